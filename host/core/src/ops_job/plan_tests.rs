//! Tests of `plan`.

use super::*;
use crate::kind::locks::TargetLock;
use crate::object::fields::text;
use crate::ops_job::outcomes::{StoredFile, TargetOutcome};
use crate::ops_job::pod_targets::{PodFacts, WorkloadPods};
use crate::ops_job::spec::{Defaults, time_to_live};
use crate::ops_job::targets::NodeFacts;
use crate::ops_job::view::NODE_WORK;

const HERE: Here<'_> = Here { cluster: "local", node: None };

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_767_225_600 + second).unwrap()
}

fn node(name: &str) -> NodeFacts {
    NodeFacts {
        name: name.into(),
        uid: format!("uid-{name}"),
        host: name.into(),
        is_ready: true,
        ..NodeFacts::default()
    }
}

/// A job and its OperationJob. The fixture makes every effect at once.
struct Fixture {
    job: OpsJobView,
    spec: Value,
    child: Option<OpsChild>,
    nodes: Vec<NodeFacts>,
    target_locks: TargetLocks,
    second: i64,
    made: Vec<&'static str>,
    is_gone: bool,
    document: Value,
    pods: Option<WorkloadPods>,
    file: JobFile<'static>,
    history_row: RowState,
    ungranted: Option<&'static str>,
}

impl Fixture {
    fn of(spec: Value) -> Self {
        let job = OpsJobView { name: "j".into(), uid: "u".into(), created: Some(at(0)), ..OpsJobView::default() };
        let nodes = ["a", "b", "c"].map(node).to_vec();
        let (target_locks, made) = (TargetLocks::default(), Vec::new());
        let job = OpsJobView { kind: text(&spec, "/type").and_then(OpsType::read), ..job };
        let (pods, file) = (None, JobFile::NotKept);
        Self {
            job,
            spec,
            child: None,
            nodes,
            target_locks,
            second: 0,
            made,
            is_gone: false,
            document: Value::Null,
            pods,
            file,
            history_row: RowState::NotKept,
            ungranted: None,
        }
    }

    fn reboot(more: &Value) -> Self {
        let mut spec =
            json!({"type": "reboot", "inputs": [{"name": "cluster", "value": "local"}], "ttlSecondsAfterFinished": 60});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Self::of(spec)
    }

    /// Reconciles once and makes the status and effects.
    fn pass(&mut self) -> OpsPlan {
        let mut plan = self.plan(None, None);
        if plan.pending_read == Some(OpsRead::Targets) {
            let found = Found { nodes: self.nodes.clone(), pods: self.pods.clone(), ..Found::default() };
            plan = self.plan(Some(&found), None);
        }
        if plan.pending_read == Some(OpsRead::Outcomes) {
            let outcomes = self.outcomes();
            plan = self.plan(None, Some(&outcomes));
        }
        self.make(plan)
    }

    /// Returns outcomes that match the counts of the OperationJob.
    fn outcomes(&self) -> Outcomes {
        let counts = self.child.as_ref().unwrap().counts;
        let of = |count: usize, reason: &str| {
            let succeeded = reason.is_empty();
            let reason = reason.to_owned();
            vec![TargetOutcome { name: "a".into(), succeeded, reason, ..TargetOutcome::default() }; count]
        };
        let targets = [of(counts.succeeded, ""), of(counts.failed, "NotReady"), of(counts.skipped, "Skipped")].concat();
        Outcomes { targets, counts }
    }

    fn plan(&mut self, found: Option<&Found>, outcomes: Option<&Outcomes>) -> OpsPlan {
        let spec = OpsSpec::read(&self.spec, Defaults::default());
        self.job.stops = self.spec["stop"] == true;
        self.job.ttl = time_to_live(&self.spec, Defaults::default());
        let observed = OpsObservation {
            job: &self.job,
            spec: spec.as_ref(),
            child: self.child.as_ref(),
            found,
            outcomes,
            file: self.file,
            history_row: self.history_row,
            exports: Some("reg:5000"),
            ungranted: self.ungranted,
            here: HERE,
            now: at(self.second),
        };
        let planned = plan(observed, &self.target_locks);
        self.target_locks.apply(&self.job.uid, &self.job.name, &planned.locks).unwrap();
        planned
    }

    fn make(&mut self, plan: OpsPlan) -> OpsPlan {
        self.job.status = plan.status.clone().unwrap_or_else(|| self.job.status.clone());
        for effect in &plan.effects {
            self.made.push(match effect {
                Effect::AddFinalizers(names) => {
                    self.job.has_ops_finalizer = true;
                    self.job.has_history_finalizer |= names.contains(&HISTORY);
                    "keep"
                }
                Effect::StoreTargets(resolved, _) => {
                    self.job.targets = Some(resolved.clone());
                    "store"
                }
                Effect::StoreScript(_) => "script",
                Effect::CreateChild(child) => {
                    let total = child["spec"]["targets"].as_array().unwrap().len();
                    let counts = TargetCounts { total, ..TargetCounts::default() };
                    let paused = child["spec"]["paused"] == true;
                    self.document = child.clone();
                    self.child = Some(OpsChild { uid: "c".into(), counts, paused, ..OpsChild::default() });
                    "create"
                }
                Effect::UnpauseChild => {
                    self.child.as_mut().unwrap().paused = false;
                    "unpause"
                }
                Effect::PauseChild => {
                    self.child.as_mut().unwrap().paused = true;
                    "pause"
                }
                Effect::DeleteChild => {
                    self.child.as_mut().unwrap().deleting = true;
                    "delete"
                }
                Effect::DropFinalizer(HISTORY) => {
                    self.job.has_history_finalizer = false;
                    "release"
                }
                Effect::DropFinalizer(_) => {
                    self.job.has_ops_finalizer = false;
                    "drop"
                }
                Effect::DeleteSelf => {
                    self.is_gone = true;
                    "gone"
                }
            });
        }
        plan
    }

    fn settle(&mut self) {
        while {
            let plan = self.pass();
            plan.status.is_some() || !plan.effects.is_empty() && !self.is_gone
        } {}
    }

    /// Sets the progress of the OperationJob.
    fn child(&mut self, counts: TargetCounts, has_ended: bool) {
        let child = self.child.as_mut().unwrap();
        (child.counts, child.has_ended, child.began) = (counts, has_ended, Some(at(self.second)));
        self.settle();
    }

    /// Removes the OperationJob after it has released everything.
    fn released(&mut self) {
        assert!(self.child.take().unwrap().deleting, "nobody else deletes it");
        self.settle();
    }

    fn outcome(&self) -> (Option<Phase>, &str, &str) {
        let phase = self.job.status.phase;
        let word = phase.map_or("", Phase::word);
        let condition = self.job.status.condition(word);
        condition.map_or((phase, "", ""), |one| (phase, &one.reason, &one.message))
    }
}

#[test]
fn a_reboot_comes_to_its_end_and_goes_when_its_time_is_over() {
    let mut fixture = Fixture::reboot(&json!({}));
    fixture.settle();
    assert_eq!(fixture.made, ["keep", "store", "create", "unpause"]);
    assert!(fixture.job.status.is(RESOLVED));
    assert_eq!(fixture.job.status.phase, Some(Phase::Pending));
    fixture.second = 5;
    fixture.child(TargetCounts { total: 3, processing: 1, ..TargetCounts::default() }, false);
    assert_eq!((fixture.job.status.phase, fixture.job.status.started), (Some(Phase::Running), Some(at(5))));
    fixture.second = 9;
    fixture.child(TargetCounts { total: 3, succeeded: 3, ..TargetCounts::default() }, true);
    assert!(!fixture.job.status.has_ended(), "what it held is released first");
    fixture.released();
    assert_eq!(fixture.outcome(), (Some(Phase::Succeeded), "Succeed", "3 of 3 targets succeeded"));
    assert_eq!(fixture.made, ["keep", "store", "create", "unpause", "delete", "drop"]);
    assert_eq!(fixture.target_locks.holder(&TargetLock::new(NODE_WORK, "uid-a")), None);
    assert_eq!(fixture.pass().requeue_at, Some(at(9 + 60)));
    fixture.second = 69;
    fixture.settle();
    assert!(fixture.is_gone);
}

#[test]
fn nothing_is_made_before_the_claim_is_stored() {
    let mut fixture = Fixture::reboot(&json!({}));
    let mut made = Vec::new();
    for _ in 0..4 {
        let was_claimed = fixture.job.status.is(RESOLVED);
        let plan = fixture.pass();
        made.push((was_claimed, plan.effects.iter().any(|effect| matches!(effect, Effect::CreateChild(_)))));
    }
    assert!(made.contains(&(true, true)) && !made.contains(&(false, true)));
}

#[test]
fn more_failures_than_are_tolerated_fail_it_and_skipped_targets_are_none() {
    for (failed, skipped, wanted) in [(1, 0, "Succeed"), (1, 2, "Succeed"), (2, 0, "ToleranceExceeded")] {
        let mut fixture = Fixture::reboot(&json!({"availableRatio": "0.6"}));
        fixture.settle();
        let succeeded = 3 - failed - skipped.min(3 - failed);
        fixture.child(TargetCounts { total: 3, succeeded, failed, skipped, ..TargetCounts::default() }, true);
        fixture.released();
        assert_eq!(fixture.outcome().1, wanted);
    }
}

#[test]
fn a_job_that_is_stopped_deleted_or_out_of_time_lets_go_of_its_targets_first() {
    for (how, reason, words) in
        [("stop", "Stopped", "stopped"), ("delete", "Stopped", "stopped"), ("time", "Timeout", "timed out after 100 s")]
    {
        let mut fixture = Fixture::reboot(&json!({"timeoutSecond": 100}));
        fixture.settle();
        fixture.child(TargetCounts { total: 3, processing: 1, ..TargetCounts::default() }, false);
        match how {
            "stop" => fixture.spec["stop"] = json!(true),
            "delete" => fixture.job.deleting = true,
            _ => fixture.second = 100,
        }
        fixture.settle();
        assert_eq!(fixture.made[4..], ["pause", "delete"]);
        assert!(!fixture.job.status.has_ended());
        let outputs = fixture.job.status.other_fields["outputs"].clone();
        // The deletion ends all targets, which says nothing about their real outcomes.
        fixture.child(TargetCounts { total: 3, failed: 3, ..TargetCounts::default() }, true);
        assert_eq!(fixture.job.status.other_fields["outputs"], outputs);
        fixture.released();
        assert_eq!((fixture.outcome().0, fixture.outcome().1), (Some(Phase::Failed), reason));
        assert!(fixture.outcome().2.contains(words), "{}", fixture.outcome().2);
        assert_eq!(fixture.made.last(), Some(&"drop"));
    }
}

#[test]
fn targets_that_are_not_released_hold_the_end_of_a_stopped_job_up_for_two_minutes() {
    let mut fixture = Fixture::reboot(&json!({}));
    fixture.settle();
    fixture.child(TargetCounts { total: 3, processing: 1, ..TargetCounts::default() }, false);
    fixture.spec["stop"] = json!(true);
    fixture.settle();
    fixture.second = CANCEL_GRACE;
    fixture.settle();
    assert!(fixture.outcome().2.contains("1 targets are not released yet"), "{}", fixture.outcome().2);
    assert!(fixture.job.has_ops_finalizer, "it goes once they are released");
}

#[test]
fn targets_that_are_not_released_hold_no_outcome_up_for_longer_than_two_minutes() {
    let mut fixture = Fixture::reboot(&json!({}));
    fixture.settle();
    fixture.child(TargetCounts { total: 3, succeeded: 3, ..TargetCounts::default() }, true);
    assert!(!fixture.job.status.has_ended());
    fixture.second = CANCEL_GRACE;
    fixture.settle();
    assert_eq!(fixture.outcome().0, Some(Phase::Succeeded));
    assert!(fixture.outcome().2.contains("released as soon as possible") && fixture.job.has_ops_finalizer);
    fixture.released();
    assert!(!fixture.job.has_ops_finalizer);
}

#[test]
fn a_job_in_work_whose_spec_cannot_be_read_any_more_lets_go_of_its_targets_first() {
    let mut fixture = Fixture::reboot(&json!({}));
    fixture.settle();
    fixture.child(TargetCounts { total: 3, processing: 1, ..TargetCounts::default() }, false);
    fixture.spec["batchCount"] = json!(-1);
    fixture.settle();
    assert_eq!(fixture.made[4..], ["pause", "delete"]);
    assert!(!fixture.job.status.has_ended());
    fixture.released();
    assert_eq!((fixture.outcome().0, fixture.outcome().1), (Some(Phase::Failed), "Invalid"));
    assert!(fixture.outcome().2.contains("spec.batchCount: 0 or more"));
}

#[test]
fn outcomes_that_cannot_be_read_hold_a_stop_up_for_two_minutes_at_most() {
    for has_ended in [false, true] {
        let mut fixture = Fixture::reboot(&json!({}));
        fixture.settle();
        let counts = TargetCounts { total: 3, processing: 1, ..TargetCounts::default() };
        fixture.child.as_mut().unwrap().counts = counts;
        fixture.child.as_mut().unwrap().has_ended = has_ended;
        fixture.spec["stop"] = json!(true);
        for second in [0, 0, 0, CANCEL_GRACE] {
            fixture.second = second;
            let plan = fixture.plan(None, None);
            fixture.make(plan);
        }
        assert_eq!((fixture.outcome().0, fixture.outcome().1), (Some(Phase::Failed), "Stopped"), "{has_ended}");
        assert!(!fixture.job.status.has(ENDED) && !fixture.made.contains(&"delete"));
    }
}

#[test]
fn targets_that_somebody_wrote_while_no_policy_was_there_are_not_worked_on() {
    let mut fixture = Fixture::reboot(&json!({}));
    fixture.job.has_ops_finalizer = true;
    fixture.job.targets = Some(Resolved { targets: vec![("a".into(), "uid-a".into())], ..Resolved::default() });
    assert_eq!(fixture.plan(None, None).pending_read, Some(OpsRead::Targets));
    let found = Found { gap: Some("it is missing".to_owned()), ..Found::default() };
    let plan = fixture.plan(Some(&found), None);
    fixture.make(plan);
    assert_eq!(fixture.outcome().1, "PolicyMissing");
    assert!(fixture.child.is_none());
}

#[test]
fn a_job_whose_child_is_refused_ends_as_invalid_with_the_words_of_the_child() {
    let mut fixture = Fixture::reboot(&json!({}));
    fixture.settle();
    fixture.child.as_mut().unwrap().refused = Some("parameters: drain is no number".to_owned());
    fixture.settle();
    fixture.released();
    assert_eq!((fixture.outcome().1, fixture.outcome().2), ("Invalid", "parameters: drain is no number"));
}

#[test]
fn a_job_that_is_invalid_goes_when_its_time_is_over_too() {
    let mut fixture = Fixture::reboot(&json!({"type": "Reboot"}));
    fixture.settle();
    fixture.second = 60;
    fixture.settle();
    assert!(fixture.is_gone);
}

#[test]
fn a_job_that_lives_when_a_history_comes_is_held_by_it() {
    let mut fixture = Fixture::reboot(&json!({}));
    fixture.settle();
    assert!(fixture.job.has_ops_finalizer && !fixture.job.has_history_finalizer);
    fixture.history_row = RowState::InPart;
    fixture.settle();
    assert!(fixture.job.has_history_finalizer);
}

#[test]
fn a_job_goes_once_the_history_has_its_last_state() {
    let mut fixture = Fixture::reboot(&json!({"stop": true}));
    fixture.history_row = RowState::InPart;
    fixture.settle();
    assert!(fixture.job.has_history_finalizer && fixture.job.status.has_ended());
    fixture.second = 60;
    fixture.settle();
    assert!(fixture.is_gone, "its time is over, and it is deleted");
    fixture.job.deleting = true;
    fixture.settle();
    assert!(fixture.job.has_history_finalizer, "its row is not whole");
    fixture.history_row = RowState::Whole;
    fixture.settle();
    assert!(!fixture.job.has_history_finalizer);
    // A job that ended before there was a history waits for the history as well.
    (fixture.job.deleting, fixture.is_gone, fixture.history_row) = (false, false, RowState::InPart);
    fixture.settle();
    assert!(!fixture.is_gone);
    fixture.history_row = RowState::Whole;
    fixture.settle();
    assert!(fixture.is_gone);
    // A host without a history removes the finalizer that another host has added.
    (fixture.job.has_history_finalizer, fixture.job.deleting, fixture.history_row) = (true, true, RowState::NotKept);
    fixture.settle();
    assert!(!fixture.job.has_history_finalizer);
}

#[test]
fn nothing_is_looked_up_for_a_job_that_is_stopped() {
    let mut fixture = Fixture::reboot(&json!({"stop": true}));
    fixture.job.has_ops_finalizer = true;
    assert_eq!(fixture.plan(None, None).pending_read, None);
    fixture.spec["stop"] = json!(false);
    assert_eq!(fixture.plan(None, None).pending_read, Some(OpsRead::Targets));
}

#[test]
fn targets_without_room_beside_the_spec_are_refused() {
    let mut fixture = Fixture::reboot(&json!({}));
    fixture.job.bytes = ROOM;
    fixture.settle();
    assert!(fixture.outcome().2.contains("create several jobs"), "{:?}", fixture.outcome());
}

#[test]
fn what_the_api_server_refuses_is_told_with_what_it_was_for() {
    let (store, create) = (Effect::StoreTargets(Resolved::default(), None), Effect::CreateChild(json!({})));
    let cases = [
        (Attempt::LookUp(OpsRead::Targets), Some(RESOLVED), "failed to find the targets: no"),
        (Attempt::LookUp(OpsRead::Outcomes), None, "failed to read what became of the targets: no"),
        (Attempt::Make(&store), Some(RESOLVED), "failed to store the targets: no"),
        (Attempt::Make(&create), Some(CREATED), "failed to create the OperationJob: no"),
        (Attempt::Make(&Effect::PauseChild), None, "failed to pause the OperationJob: no"),
    ];
    for (attempt, condition, words) in cases {
        let told = with_refusal(&OpsStatus::default(), attempt, "no", at(0));
        assert_eq!(told.other_fields["waitingFor"], json!([words]));
        assert_eq!(told.conditions.iter().map(|one| one.kind.as_str()).next(), condition);
        assert!(!told.is(RESOLVED));
    }
}

#[test]
fn a_child_that_somebody_deletes_is_not_made_again() {
    let mut fixture = Fixture::reboot(&json!({}));
    fixture.settle();
    fixture.child(TargetCounts { total: 3, succeeded: 1, processing: 1, ..TargetCounts::default() }, false);
    fixture.child = None;
    fixture.settle();
    assert_eq!(fixture.outcome().1, "ChildLost");
    let counts = TargetCounts::read(fixture.job.status.other_fields.get("progress"));
    assert_eq!((counts.succeeded, counts.failed, counts.processing), (1, 1, 0), "what was in work came to nothing");
    assert_eq!(fixture.made.iter().filter(|made| **made == "create").count(), 1);
}

#[test]
fn another_operation_job_than_the_recorded_one_never_starts_targets() {
    let mut fixture = Fixture::reboot(&json!({}));
    fixture.settle();
    fixture.child(TargetCounts { total: 3, processing: 1, ..TargetCounts::default() }, false);
    // Somebody deletes the OperationJob, and the API server carries out a late request to create it.
    let child = fixture.child.as_ref().unwrap();
    fixture.child =
        Some(OpsChild { uid: "late".into(), paused: true, counts: TargetCounts::default(), ..child.clone() });
    fixture.settle();
    assert_eq!(fixture.outcome().1, "ChildLost");
    assert_eq!(fixture.job.status.other_fields["operationJob"]["uid"], "c", "the record stays");
    assert_eq!(fixture.made, ["keep", "store", "create", "unpause", "delete"]);
}

#[test]
fn the_progress_of_a_stopped_job_counts_failed_nodes_as_its_result_does() {
    let counts = TargetCounts { total: 3, succeeded: 1, failed: 1, processing: 1, ..TargetCounts::default() };
    let stopped = |mut fixture: Fixture| {
        fixture.settle();
        fixture.child(counts, false);
        fixture.spec["stop"] = json!(true);
        fixture.settle();
        fixture.released();
        let outputs = fixture.job.status.other_fields["outputs"].as_array().unwrap().clone();
        let result = outputs.into_iter().find(|output| output["name"] == "result").unwrap();
        let result: Value = serde_json::from_str(result["value"].as_str().unwrap()).unwrap();
        (
            TargetCounts::read(fixture.job.status.other_fields.get("progress")),
            fixture.job.status.other_fields["progress"].clone(),
            result,
        )
    };
    let (progress, written, result) = stopped(Fixture::reboot(&json!({})));
    assert_eq!(
        (json!(progress.failed), json!(progress.succeeded)),
        (result["failed"].clone(), result["succeeded"].clone())
    );
    assert_eq!((progress.failed, progress.processing, &written["pending"]), (1, 0, &json!(1)));
    let check = json!({"type": "preflight", "inputs": [{"name": "cluster", "value": "local"}], "image": "i", "entryPoint": "dHJ1ZQ=="});
    let (progress, written, result) = stopped(Fixture::of(check));
    // No check has found the nodes healthy. The result names all of them as failed, or counts them as left out.
    let named = result["failed_nodes"].as_array().unwrap().len()
        + usize::try_from(result["left_out"].as_u64().unwrap_or(0)).unwrap();
    assert_eq!((progress.failed, named, &written["pending"]), (2, 2, &json!(0)));
}

#[test]
fn what_the_grant_does_not_cover_is_refused_before_anything_starts() {
    let mut fixture = Fixture::reboot(&json!({}));
    fixture.ungranted = Some("hostpath: /etc/x is not among the directories that the grant of preflight allows");
    fixture.settle();
    let (phase, reason, words) = fixture.outcome();
    assert_eq!((phase, reason), (Some(Phase::Failed), "Forbidden"));
    assert!(words.starts_with("spec.hostpath: /etc/x"), "{words}");
    assert_eq!((fixture.made, fixture.child), (vec!["keep", "drop"], None));
    // A grant that changes after the targets were found counts as well.
    let mut fixture = Fixture::reboot(&json!({}));
    while !fixture.job.status.is(RESOLVED) {
        fixture.pass();
    }
    fixture.ungranted = Some("hostpath: /etc/x is not among the directories that the grant of preflight allows");
    fixture.settle();
    assert_eq!(fixture.outcome().1, "Forbidden");
    assert!(fixture.child.is_none() && !fixture.made.contains(&"create"));
}

fn dumplog() -> Fixture {
    let spec = json!({"type": "dumplog", "inputs": [{"name": "workload", "value": "team/pod/web"}]});
    let pod = |name: &str| PodFacts { name: name.into(), uid: format!("uid-{name}"), ..PodFacts::default() };
    let pods = Some(WorkloadPods { namespace: "team".into(), pods: vec![pod("web-1"), pod("web-0")] });
    Fixture { pods, file: JobFile::Due, ..Fixture::of(spec) }
}

#[test]
fn the_logs_of_pods_are_collected_by_a_child_beside_them_and_put_together_before_it_goes() {
    let mut fixture = dumplog();
    fixture.settle();
    assert_eq!(fixture.job.child_namespace(), "team");
    let (metadata, spec) = (&fixture.document["metadata"], &fixture.document["spec"]);
    assert_eq!((&metadata["namespace"], &metadata["name"]), (&json!("team"), &json!("j")));
    let targets = json!([{"name": "web-0", "uid": "uid-web-0"}, {"name": "web-1", "uid": "uid-web-1"}]);
    assert_eq!((&spec["targetKind"], &spec["targets"], &spec["parallelism"]), (&json!("Pod"), &targets, &json!(8)));
    assert_eq!(spec["failurePolicy"], json!({"type": "Continue", "maxFailures": 1}));
    let place = TargetLock::new("dumplog", "uid-web-0");
    assert_eq!(fixture.target_locks.holder(&place), Some("u"));
    fixture.child(TargetCounts { total: 2, succeeded: 1, failed: 1, ..TargetCounts::default() }, true);
    assert_eq!(fixture.pass().pending_read, Some(OpsRead::File));
    fixture.file = JobFile::Underway("putting the logs together");
    let waits = fixture.pass();
    assert!(waits.effects.is_empty() && waits.requeue_at.is_some(), "{waits:?}");
    assert_eq!(fixture.job.status.other_fields["waitingFor"], json!(["putting the logs together"]));
    let file: &'static StoredFile =
        Box::leak(Box::new(StoredFile { reference: "artifact:j/web.log".into(), size: 9, lines: 2 }));
    fixture.file = JobFile::Stored(file);
    fixture.settle();
    fixture.child = None;
    fixture.settle();
    let value = |name: &str| {
        let outputs = fixture.job.status.other_fields["outputs"].as_array().unwrap().clone();
        outputs.into_iter().find(|output| output["name"] == name).map(|output| output["value"].clone())
    };
    let told = ["endpoint", "lines", "size", "missing"].map(value);
    let expected = ["artifact:j/web.log", "2", "9", "[\"a\"]"].map(|text| Some(json!(text)));
    assert_eq!((told, fixture.job.status.phase), (expected, Some(Phase::Succeeded)));
}

#[test]
fn a_dumplog_that_is_stopped_leaves_no_file_and_one_that_lost_all_pods_fails() {
    let mut fixture = dumplog();
    fixture.settle();
    fixture.child(TargetCounts { total: 2, succeeded: 2, ..TargetCounts::default() }, true);
    fixture.file = JobFile::Underway("putting the logs together");
    fixture.settle();
    fixture.spec["stop"] = json!(true);
    fixture.settle();
    fixture.child = None;
    fixture.settle();
    assert_eq!(fixture.job.status.condition("Failed").unwrap().reason, "Stopped");
    let outputs = fixture.job.status.other_fields["outputs"].as_array().unwrap();
    assert!(outputs.iter().all(|output| output["name"] != "endpoint"), "{outputs:?}");
    let mut fixture = dumplog();
    fixture.settle();
    fixture.child(TargetCounts { total: 2, failed: 2, ..TargetCounts::default() }, true);
    fixture.file = JobFile::Lost("gone");
    fixture.settle();
    fixture.child = None;
    fixture.settle();
    let failed = fixture.job.status.condition("Failed").unwrap();
    assert_eq!(failed.reason, "ToleranceExceeded");
}

#[test]
fn a_dumplog_waits_for_room_on_the_volume_and_says_so() {
    let mut fixture = Fixture { file: JobFile::NoRoom("the volume of files has 12 % free"), ..dumplog() };
    fixture.settle();
    let waits = fixture.pass();
    assert!(waits.effects.is_empty() && waits.requeue_at.is_some() && fixture.child.is_none(), "{waits:?}");
    let condition = fixture.job.status.condition("FilesWritable").unwrap();
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "VolumeFull"));
    assert_eq!(fixture.job.status.other_fields["waitingFor"], json!(["the volume of files has 12 % free"]));
    fixture.file = JobFile::Due;
    fixture.settle();
    assert!(fixture.child.is_some() && fixture.job.status.is("FilesWritable"));
}

#[test]
fn a_dumplog_whose_file_is_lost_fails_with_words() {
    let mut fixture = dumplog();
    fixture.settle();
    fixture.child(TargetCounts { total: 2, succeeded: 2, ..TargetCounts::default() }, true);
    fixture.file = JobFile::Lost("the volume of files has 12 % free");
    fixture.settle();
    let failed = fixture.job.status.condition("Failed").unwrap();
    assert_eq!(failed.reason, "FileLost");
    assert!(failed.message.contains("12 % free"), "{failed:?}");
}

#[test]
fn a_job_with_a_long_label_fails_and_one_that_has_its_targets_goes_on() {
    let label =
        json!({"inputs": [{"name": "cluster", "value": "local"}, {"name": "label", "value": "x".repeat(4_097)}]});
    let mut fixture = Fixture::reboot(&label);
    fixture.settle();
    assert_eq!(fixture.job.status.condition("Failed").unwrap().reason, "Invalid");
    let mut fixture = Fixture::reboot(&json!({}));
    fixture.pass();
    fixture.pass();
    assert!(fixture.job.targets.is_some());
    fixture.spec["inputs"] = label["inputs"].clone();
    fixture.settle();
    assert!(fixture.child.is_some(), "{:?}", fixture.job.status);
}

#[test]
fn a_child_says_whose_shares_it_takes() {
    let of = |requester: &str| {
        let mut fixture = Fixture::reboot(&json!({}));
        fixture.job.requester = requester.to_owned();
        fixture.settle();
        fixture.document["metadata"]["annotations"]["oarlock.dev/quota-key"].as_str().unwrap().to_owned()
    };
    assert_eq!(of("system:serviceaccount:team-a:builder"), "namespace/team-a");
    assert_eq!((of("alice").as_str(), of("").as_str()), ("user/alice", "namespace/oarlock-ops"));
}

#[test]
fn a_host_that_keeps_no_files_collects_no_logs() {
    let mut fixture = Fixture { file: JobFile::NotKept, ..dumplog() };
    fixture.settle();
    assert_eq!(fixture.job.status.condition("Failed").unwrap().reason, "NotServed");
}

#[test]
fn a_job_gets_its_place_in_its_second_with_its_first_status_and_keeps_it() {
    let mut fixture = Fixture::reboot(&json!({}));
    let mut places = Vec::new();
    // The cache keeps the version at which it first saw the job. Another host does not know this version.
    for version in [41, 41, 60, 70] {
        fixture.job.first_version = version;
        let plan = fixture.pass();
        places.extend(plan.status.map(|status| status.other_fields.get("seq").cloned()));
    }
    assert!(!places.is_empty() && places.iter().all(|place| *place == Some(json!(41))), "{places:?}");
}
