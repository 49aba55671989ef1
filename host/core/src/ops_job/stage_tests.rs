//! Tests of `stage`, with the plans of the stages.

use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::kind::locks::TargetLocks;
use crate::ops_job::found::Found;
use crate::ops_job::names::{AVAILABLE, CREATED, FINALIZER, HISTORY};
use crate::ops_job::outcomes::{JobFile, Outcomes};
use crate::ops_job::phases::Phase;
use crate::ops_job::plan::{Attempt, Effect, OpsObservation, OpsPlan, OpsRead, RowState, plan, with_refusal};
use crate::ops_job::spec::Defaults;
use crate::ops_job::targets::{Here, NodeFacts};
use crate::ops_job::view::TargetCounts;

/// The stages in their order, each with an example: what has been stored and observed of a job.
const TABLE: [(&str, &str); 18] = [
    ("Protect", ""),
    ("Find", "finalizer"),
    ("Lock", "finalizer targets"),
    ("Reject", "finalizer targets stop"),
    ("Create", "finalizer targets TargetsResolved"),
    ("Record", "finalizer targets TargetsResolved child paused"),
    ("Begin", "finalizer targets TargetsResolved recorded child paused"),
    ("Follow", "finalizer targets TargetsResolved recorded child"),
    ("Collect", "finalizer targets TargetsResolved recorded child all-ended"),
    ("Lose", "finalizer targets TargetsResolved recorded child deleting"),
    ("Stop", "finalizer targets TargetsResolved recorded child stop"),
    ("Abort", "finalizer targets TargetsResolved recorded child paused Stopping TargetsEnded=False"),
    ("Release", "finalizer targets TargetsResolved recorded child all-ended TargetsEnded"),
    ("Conclude", "finalizer targets TargetsResolved recorded TargetsEnded"),
    ("Fail", "finalizer targets TargetsResolved recorded"),
    ("CleanUp", "finalizer targets TargetsResolved recorded child Failed"),
    ("Unlock", "finalizer targets TargetsResolved recorded Failed"),
    ("Expire", "targets TargetsResolved recorded Failed"),
];

/// Returns the name of a stage, and the only effects that its plan may have. A new stage does not compile without its row.
fn row(stage: &Stage<'_>) -> (&'static str, &'static [&'static str]) {
    match stage {
        Stage::Protect => ("Protect", &["AddFinalizers"]),
        Stage::Find(_) => ("Find", &["StoreTargets"]),
        Stage::Lock(..) => ("Lock", &[]),
        Stage::Reject(_) => ("Reject", &[]),
        Stage::Create(_) => ("Create", &["StoreScript", "CreateChild"]),
        Stage::Record(_) => ("Record", &[]),
        Stage::Begin(_) => ("Begin", &["UnpauseChild"]),
        Stage::Follow(_) => ("Follow", &[]),
        Stage::Collect(_) => ("Collect", &[]),
        Stage::Lose(_) => ("Lose", &[]),
        Stage::Stop(..) => ("Stop", &["PauseChild"]),
        Stage::Abort(..) => ("Abort", &["PauseChild", "DeleteChild"]),
        Stage::Release(_) => ("Release", &["DeleteChild"]),
        Stage::Conclude => ("Conclude", &[]),
        Stage::Fail(_) => ("Fail", &[]),
        Stage::CleanUp(_) => ("CleanUp", &["DeleteChild"]),
        Stage::Unlock => ("Unlock", &["DropFinalizer"]),
        Stage::Expire => ("Expire", &["DropFinalizer", "DeleteSelf"]),
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_767_225_600 + second).unwrap()
}

/// A job and its OperationJob.
#[derive(Clone, Debug)]
struct Life {
    job: OpsJobView,
    spec: Value,
    child: Option<OpsChild>,
    history_row: RowState,
    /// True if the reads of the host succeed.
    is_readable: bool,
    second: i64,
}

/// A change that no plan makes.
#[derive(Clone, Copy, Debug)]
enum Change {
    Start,
    End,
    RefuseSpec,
    DeleteChild,
    ChildGone,
    Stop,
    DeleteJob,
    BreakSpec,
    Later,
}

impl Life {
    /// Returns the job that an example of the table describes.
    fn of(example: &str) -> Self {
        let mut job = OpsJobView { name: "j".into(), uid: "u".into(), created: Some(at(0)), ..OpsJobView::default() };
        let mut child = None::<OpsChild>;
        for word in example.split_whitespace() {
            let status = &mut job.status;
            match (word, &mut child) {
                ("finalizer", _) => job.has_ops_finalizer = true,
                ("targets", _) => job.targets = Some(targets()),
                ("stop", _) => job.stops = true,
                ("recorded", _) => {
                    drop(status.other_fields.insert(OPERATION_JOB.into(), json!({"name": "j", "uid": "c"})))
                }
                ("Failed", _) => status.enter(Phase::Failed, &PhaseReason::new("Stopped", ""), None, at(0)),
                ("child", none) => *none = Some(OpsChild { uid: "c".into(), ..OpsChild::default() }),
                ("paused", Some(child)) => child.paused = true,
                ("all-ended", Some(child)) => child.has_ended = true,
                ("deleting", Some(child)) => child.deleting = true,
                (condition, _) => {
                    let (kind, holds) = condition.split_once('=').unwrap_or((condition, "True"));
                    status.set_condition(kind, holds == "True", &PhaseReason::new("Stopped", ""), at(0));
                }
            }
        }
        let spec = json!({"type": "reboot", "inputs": [{"name": "cluster", "value": "local"}]});
        Self { job, spec, child, history_row: RowState::NotKept, is_readable: true, second: 0 }
    }

    fn plan(&self, found: Option<&Found>, outcomes: Option<&Outcomes>) -> OpsPlan {
        let spec = OpsSpec::read(&self.spec, Defaults::default());
        let observed = OpsObservation {
            job: &self.job,
            spec: spec.as_ref(),
            child: self.child.as_ref(),
            found,
            outcomes,
            file: JobFile::NotKept,
            history_row: self.history_row,
            exports: None,
            ungranted: None,
            here: Here { cluster: "local", node: None },
            now: at(self.second),
        };
        plan(observed, &TargetLocks::default())
    }

    /// Returns the place of the job's stage in the table, and the effects that the plan may have.
    fn place(&self) -> (usize, &'static [&'static str]) {
        let spec = OpsSpec::read(&self.spec, Defaults::default());
        let (child, has_history) = (self.child.as_ref(), self.history_row != RowState::NotKept);
        let seen = StageInputs { job: &self.job, spec: spec.as_ref(), child, has_history, now: at(self.second) };
        let (name, effects) = row(&stage(seen));
        (TABLE.iter().position(|(listed, _)| *listed == name).unwrap(), effects)
    }

    fn name(&self) -> &'static str {
        TABLE[self.place().0].0
    }

    /// Plans once, with the reads that the plan needs, and makes the status and the effects.
    fn round(&mut self) -> OpsPlan {
        let node = NodeFacts {
            name: "a".into(),
            uid: "uid-a".into(),
            host: "a".into(),
            is_ready: true,
            ..NodeFacts::default()
        };
        let found = Found { nodes: vec![node], ..Found::default() };
        let outcomes = self.child.as_ref().map(|child| Outcomes { targets: Vec::new(), counts: child.counts });
        let plan = match self.plan(None, None) {
            plan if !self.is_readable => plan,
            OpsPlan { pending_read: Some(OpsRead::Targets), .. } => self.plan(Some(&found), None),
            OpsPlan { pending_read: Some(OpsRead::Outcomes), .. } => self.plan(None, outcomes.as_ref()),
            plan => plan,
        };
        self.job.status = plan.status.clone().unwrap_or_else(|| self.job.status.clone());
        plan.effects.iter().for_each(|effect| self.make(effect));
        plan
    }

    fn make(&mut self, effect: &Effect) {
        match (effect, &mut self.child) {
            (Effect::AddFinalizers(names), _) => {
                self.job.has_ops_finalizer |= names.contains(&FINALIZER);
                self.job.has_history_finalizer |= names.contains(&HISTORY);
            }
            (Effect::StoreTargets(resolved, _), _) => self.job.targets = Some(resolved.clone()),
            (Effect::CreateChild(_), none) => {
                assert_eq!(*none, None, "the job has one OperationJob at a time");
                *none = Some(OpsChild { uid: "c".into(), paused: true, ..OpsChild::default() });
            }
            (Effect::UnpauseChild, Some(child)) => child.paused = false,
            (Effect::PauseChild, Some(child)) => child.paused = true,
            (Effect::DeleteChild, Some(child)) => child.deleting = true,
            (Effect::DropFinalizer(HISTORY), _) => self.job.has_history_finalizer = false,
            (Effect::DropFinalizer(_), _) => self.job.has_ops_finalizer = false,
            _ => {}
        }
    }

    fn happen(&mut self, change: Change) {
        match (change, &mut self.child) {
            (Change::Start, Some(child)) if !child.paused && !child.deleting && child.refused.is_none() => {
                (child.began, child.counts.processing) = (Some(at(self.second)), 1);
            }
            (Change::End, Some(child)) if child.began.is_some() => child.has_ended = true,
            (Change::RefuseSpec, Some(child)) => child.refused = Some("drain is no number".into()),
            (Change::DeleteChild, Some(child)) => child.deleting = true,
            (Change::ChildGone, Some(child)) if child.deleting && self.job.status.has_recorded_child() => {
                self.child = None
            }
            (Change::Stop, _) => self.job.stops = true,
            (Change::DeleteJob, _) => self.job.deleting = true,
            (Change::BreakSpec, _) => self.spec["batchCount"] = json!(-1),
            (Change::Later, _) => self.second += 100,
            _ => {}
        }
    }
}

fn targets() -> Resolved {
    Resolved { targets: vec![("a".into(), "uid-a".into())], ..Resolved::default() }
}

fn any_status() -> impl Strategy<Value = OpsStatus> {
    let kinds = [RESOLVED, CREATED, ENDED, STOPPING, AVAILABLE];
    let conditions = prop::collection::vec((select(vec![None, Some(true), Some(false)]), 0..300_i64), kinds.len());
    let recorded = select(vec![
        None,
        Some(json!({"name": "j", "uid": "c"})),
        Some(json!({"name": "j", "uid": "late"})),
        Some(json!({"name": "other", "uid": "c"})),
        Some(json!({})),
    ]);
    (option::weighted(0.8, select(Phase::ALL.to_vec())), conditions, recorded).prop_map(
        move |(phase, conditions, recorded)| {
            let mut status = OpsStatus { phase, ..OpsStatus::default() };
            status.finished = status.has_ended().then(|| at(0));
            for (kind, (holds, second)) in kinds.into_iter().zip(conditions) {
                let why = PhaseReason::new("Stopped", "");
                holds.into_iter().for_each(|holds| status.set_condition(kind, holds, &why, at(second)));
            }
            status.other_fields.extend(recorded.map(|recorded| (OPERATION_JOB.to_owned(), recorded)));
            status
        },
    )
}

fn any_child() -> impl Strategy<Value = OpsChild> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), prop::bool::weighted(0.2));
    flags.prop_map(|(has_ended, paused, deleting, has_begun, is_refused)| OpsChild {
        uid: "c".into(),
        has_ended,
        paused,
        deleting,
        began: has_begun.then(|| at(0)),
        refused: is_refused.then(|| "drain is no number".to_owned()),
        counts: TargetCounts { total: 1, ..TargetCounts::default() },
        ..OpsChild::default()
    })
}

/// Returns a job of which anything may be stored and observed, or an example of the table.
fn any_life() -> impl Strategy<Value = Life> {
    let job = (any_status(), any::<[bool; 4]>(), prop::bool::weighted(0.2), option::of(0..200_i64)).prop_map(
        |(status, [deleting, has_targets, own, history], stops, ttl)| OpsJobView {
            deleting,
            has_ops_finalizer: own,
            has_history_finalizer: history,
            stops,
            ttl,
            targets: has_targets.then(targets),
            status,
            ..Life::of("").job
        },
    );
    let spec = (option::of(0..400_i64), prop::bool::weighted(0.9)).prop_map(|(timeout, is_valid)| {
        let kind = if is_valid { "reboot" } else { "Reboot" };
        json!({"type": kind, "inputs": [{"name": "cluster", "value": "local"}], "timeoutSecond": timeout})
    });
    let row = select(vec![RowState::NotKept, RowState::InPart, RowState::Whole]);
    let wild = (job, spec, option::of(any_child()), row, prop::bool::weighted(0.6), 0..400_i64).prop_map(
        |(job, spec, child, history_row, is_readable, second)| Life {
            job,
            spec,
            child,
            history_row,
            is_readable,
            second,
        },
    );
    let listed = (select(TABLE.to_vec()), any::<bool>())
        .prop_map(|((_, example), is_readable)| Life { is_readable, ..Life::of(example) });
    prop_oneof![wild, listed]
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    use Change::*;
    let usual = vec![Start, End, ChildGone, Later];
    let rare = vec![RefuseSpec, DeleteChild, Stop, DeleteJob, BreakSpec];
    prop::collection::vec(prop_oneof![2 => select(usual), 1 => select(rare)], 0..12)
}

#[test]
fn each_stage_has_an_example() {
    let names = TABLE.map(|(_, example)| Life::of(example).name());
    assert_eq!(names, TABLE.map(|(name, _)| name));
}

#[test]
fn a_job_that_nothing_disturbs_passes_the_stages_of_success() {
    let (mut life, mut passed) = (Life::of(""), Vec::new());
    for change in [
        None,
        None,
        None,
        None,
        None,
        None,
        Some(Change::Start),
        Some(Change::End),
        None,
        Some(Change::ChildGone),
        None,
        None,
    ] {
        change.into_iter().for_each(|change| life.happen(change));
        passed.push(life.name());
        life.round();
    }
    let good = "Protect Find Lock Create Record Begin Follow Collect Release Conclude Unlock Expire";
    assert_eq!(passed.join(" "), good);
}

#[test]
fn three_events_lead_back_to_an_earlier_stage() {
    let mut life = Life::of("finalizer targets TargetsResolved recorded child");
    life.child.as_mut().unwrap().paused = true;
    assert_eq!(life.name(), "Begin", "somebody paused the OperationJob");
    life.history_row = RowState::InPart;
    assert_eq!(life.name(), "Protect", "the host keeps a history from now on");
    let mut life = Life::of("finalizer targets TargetsResolved child deleting");
    assert_eq!(life.name(), "Lose");
    life.child = None;
    assert_eq!(life.name(), "Create", "the OperationJob was gone before the status named it");
}

#[test]
fn a_refused_read_of_the_scripts_leaves_the_targets_locked() {
    let mut life = Life::of("finalizer targets TargetsResolved");
    assert_eq!(life.name(), "Create");
    life.job.status = with_refusal(&life.job.status, Attempt::LookUp(OpsRead::Targets), "no", at(0));
    assert_eq!(life.name(), "Create");
    assert!(!life.job.status.is("OperationJobCreated") && life.job.status.has("OperationJobCreated"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_096))]

    /// Each job has a stage, with any stored and observed state. Its plan has only the effects of this stage.
    #[test]
    fn a_plan_has_only_the_effects_of_its_stage(mut life in any_life()) {
        let (_, allowed) = life.place();
        let job = life.job.clone();
        for effect in life.round().effects {
            let written = format!("{effect:?}");
            let word = written.split('(').next().unwrap_or_default();
            prop_assert!(allowed.contains(&word), "{} of {:?}", written, job);
        }
    }

    /// A plan never leads back to an earlier stage, whatever else happens between the rounds.
    #[test]
    fn stages_only_go_forward(mut life in any_life(), changes in changes()) {
        let mut before = life.place().0;
        for change in changes.into_iter().map(Some).chain([None; 12]) {
            change.into_iter().for_each(|change| life.happen(change));
            let first = life.clone();
            life.round();
            let after = life.place().0;
            prop_assert!(before <= first.place().0, "{:?} led back from {} to {:?}", change, TABLE[before].0, first);
            prop_assert!(first.place().0 <= after, "the plan led back to {} from {:?}", TABLE[after].0, first);
            before = after;
        }
    }
}
