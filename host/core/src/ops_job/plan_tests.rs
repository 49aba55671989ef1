//! Tests of `plan`.

use super::*;
use crate::child::fields::text;
use crate::ops_job::holders::HeldPlace;
use crate::ops_job::outcomes::{StoredFile, TargetOutcome};
use crate::ops_job::pod_targets::PodFacts;
use crate::ops_job::spec::{Defaults, time_to_live};

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

/// A job, its child and what becomes of both where every effect is made at once.
struct Stage {
    job: OpsJobView,
    spec: Value,
    child: Option<OpsChild>,
    nodes: Vec<NodeFacts>,
    holders: Holders,
    second: i64,
    made: Vec<&'static str>,
    is_gone: bool,
    document: Value,
    pods: Option<WorkloadPods>,
    file: JobFile<'static>,
    recorded: RowState,
    ungranted: Option<&'static str>,
}

impl Stage {
    fn of(spec: Value) -> Self {
        let job = OpsJobView { name: "j".into(), uid: "u".into(), created: Some(at(0)), ..OpsJobView::default() };
        let nodes = ["a", "b", "c"].map(node).to_vec();
        let (holders, made) = (Holders::default(), Vec::new());
        let job = OpsJobView { kind: text(&spec, "/type").and_then(OpsType::read), ..job };
        let (pods, file) = (None, JobFile::NotKept);
        Self {
            job,
            spec,
            child: None,
            nodes,
            holders,
            second: 0,
            made,
            is_gone: false,
            document: Value::Null,
            pods,
            file,
            recorded: RowState::NotKept,
            ungranted: None,
        }
    }

    fn reboot(more: &Value) -> Self {
        let mut spec =
            json!({"type": "reboot", "inputs": [{"name": "cluster", "value": "local"}], "ttlSecondsAfterFinished": 60});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Self::of(spec)
    }

    /// One pass; its status and effects are made.
    fn pass(&mut self) -> OpsPlan {
        let mut plan = self.plan(None, None);
        if plan.needs == Some(OpsNeed::Targets) {
            let found = Found { nodes: self.nodes.clone(), pods: self.pods.clone(), ..Found::default() };
            plan = self.plan(Some(&found), None);
        }
        if plan.needs == Some(OpsNeed::Outcomes) {
            let outcomes = self.outcomes();
            plan = self.plan(None, Some(&outcomes));
        }
        self.make(plan)
    }

    /// As many of each as the child counts.
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
            recorded: self.recorded,
            exports: Some("reg:5000"),
            ungranted: self.ungranted,
            here: HERE,
            now: at(self.second),
        };
        plan(observed, &mut self.holders)
    }

    fn make(&mut self, plan: OpsPlan) -> OpsPlan {
        self.job.status = plan.status.clone().unwrap_or_else(|| self.job.status.clone());
        for effect in &plan.effects {
            self.made.push(match effect {
                Effect::AddFinalizers(names) => {
                    self.job.is_kept = true;
                    self.job.is_recorded |= names.contains(&HISTORY);
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
                    self.job.is_recorded = false;
                    "release"
                }
                Effect::DropFinalizer(_) => {
                    self.job.is_kept = false;
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

    /// The child has come to this.
    fn child(&mut self, counts: TargetCounts, has_ended: bool) {
        let child = self.child.as_mut().unwrap();
        (child.counts, child.has_ended, child.began) = (counts, has_ended, Some(at(self.second)));
        self.settle();
    }

    /// All that the child held is released.
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
    let mut stage = Stage::reboot(&json!({}));
    stage.settle();
    assert_eq!(stage.made, ["keep", "store", "create", "unpause"]);
    assert!(stage.job.status.is(RESOLVED));
    assert_eq!(stage.job.status.phase, Some(Phase::Pending));
    stage.second = 5;
    stage.child(TargetCounts { total: 3, processing: 1, ..TargetCounts::default() }, false);
    assert_eq!((stage.job.status.phase, stage.job.status.started), (Some(Phase::Running), Some(at(5))));
    stage.second = 9;
    stage.child(TargetCounts { total: 3, succeeded: 3, ..TargetCounts::default() }, true);
    assert!(!stage.job.status.has_ended(), "what it held is released first");
    stage.released();
    assert_eq!(stage.outcome(), (Some(Phase::Succeeded), "Succeed", "3 of 3 targets succeeded"));
    assert_eq!(stage.made, ["keep", "store", "create", "unpause", "delete", "drop"]);
    assert_eq!(stage.holders.holder(&HeldPlace::Node("uid-a".into())), None);
    assert_eq!(stage.pass().wake, Some(at(9 + 60)));
    stage.second = 69;
    stage.settle();
    assert!(stage.is_gone);
}

#[test]
fn nothing_is_made_before_the_claim_is_stored() {
    let mut stage = Stage::reboot(&json!({}));
    let mut made = Vec::new();
    for _ in 0..4 {
        let was_claimed = stage.job.status.is(RESOLVED);
        let plan = stage.pass();
        made.push((was_claimed, plan.effects.iter().any(|effect| matches!(effect, Effect::CreateChild(_)))));
    }
    assert!(made.contains(&(true, true)) && !made.contains(&(false, true)));
}

#[test]
fn more_failures_than_are_tolerated_fail_it_and_skipped_targets_are_none() {
    for (failed, skipped, wanted) in [(1, 0, "Succeed"), (1, 2, "Succeed"), (2, 0, "ToleranceExceeded")] {
        let mut stage = Stage::reboot(&json!({"availableRatio": "0.6"}));
        stage.settle();
        let succeeded = 3 - failed - skipped.min(3 - failed);
        stage.child(TargetCounts { total: 3, succeeded, failed, skipped, ..TargetCounts::default() }, true);
        stage.released();
        assert_eq!(stage.outcome().1, wanted);
    }
}

#[test]
fn a_job_that_is_stopped_deleted_or_out_of_time_lets_go_of_its_targets_first() {
    for (how, reason, words) in
        [("stop", "Stopped", "stopped"), ("delete", "Stopped", "stopped"), ("time", "Timeout", "timed out after 100 s")]
    {
        let mut stage = Stage::reboot(&json!({"timeoutSecond": 100}));
        stage.settle();
        stage.child(TargetCounts { total: 3, processing: 1, ..TargetCounts::default() }, false);
        match how {
            "stop" => stage.spec["stop"] = json!(true),
            "delete" => stage.job.deleting = true,
            _ => stage.second = 100,
        }
        stage.settle();
        assert_eq!(stage.made[4..], ["pause", "delete"]);
        assert!(!stage.job.status.has_ended());
        let outputs = stage.job.status.rest["outputs"].clone();
        // Its deletion ends all of its targets, which says nothing of what they came to.
        stage.child(TargetCounts { total: 3, failed: 3, ..TargetCounts::default() }, true);
        assert_eq!(stage.job.status.rest["outputs"], outputs);
        stage.released();
        assert_eq!((stage.outcome().0, stage.outcome().1), (Some(Phase::Failed), reason));
        assert!(stage.outcome().2.contains(words), "{}", stage.outcome().2);
        assert_eq!(stage.made.last(), Some(&"drop"));
    }
}

#[test]
fn targets_that_are_not_released_hold_the_end_of_a_stopped_job_up_for_two_minutes() {
    let mut stage = Stage::reboot(&json!({}));
    stage.settle();
    stage.child(TargetCounts { total: 3, processing: 1, ..TargetCounts::default() }, false);
    stage.spec["stop"] = json!(true);
    stage.settle();
    stage.second = CANCEL_GRACE;
    stage.settle();
    assert!(stage.outcome().2.contains("1 targets are still held"), "{}", stage.outcome().2);
    assert!(stage.job.is_kept, "it goes once they are released");
}

#[test]
fn targets_that_are_not_released_hold_no_outcome_up_for_longer_than_two_minutes() {
    let mut stage = Stage::reboot(&json!({}));
    stage.settle();
    stage.child(TargetCounts { total: 3, succeeded: 3, ..TargetCounts::default() }, true);
    assert!(!stage.job.status.has_ended());
    stage.second = CANCEL_GRACE;
    stage.settle();
    assert_eq!(stage.outcome().0, Some(Phase::Succeeded));
    assert!(stage.outcome().2.contains("released as soon as that can be") && stage.job.is_kept);
    stage.released();
    assert!(!stage.job.is_kept);
}

#[test]
fn a_job_in_work_whose_spec_cannot_be_read_any_more_lets_go_of_its_targets_first() {
    let mut stage = Stage::reboot(&json!({}));
    stage.settle();
    stage.child(TargetCounts { total: 3, processing: 1, ..TargetCounts::default() }, false);
    stage.spec["batchCount"] = json!(-1);
    stage.settle();
    assert_eq!(stage.made[4..], ["pause", "delete"]);
    assert!(!stage.job.status.has_ended());
    stage.released();
    assert_eq!((stage.outcome().0, stage.outcome().1), (Some(Phase::Failed), "Invalid"));
    assert!(stage.outcome().2.contains("spec.batchCount: 0 or more"));
}

#[test]
fn outcomes_that_cannot_be_read_hold_a_stop_up_for_two_minutes_at_most() {
    for has_ended in [false, true] {
        let mut stage = Stage::reboot(&json!({}));
        stage.settle();
        let counts = TargetCounts { total: 3, processing: 1, ..TargetCounts::default() };
        stage.child.as_mut().unwrap().counts = counts;
        stage.child.as_mut().unwrap().has_ended = has_ended;
        stage.spec["stop"] = json!(true);
        for second in [0, 0, 0, CANCEL_GRACE] {
            stage.second = second;
            let plan = stage.plan(None, None);
            stage.make(plan);
        }
        assert_eq!((stage.outcome().0, stage.outcome().1), (Some(Phase::Failed), "Stopped"), "{has_ended}");
        assert!(!stage.job.status.has(ENDED) && !stage.made.contains(&"delete"));
    }
}

#[test]
fn targets_that_somebody_wrote_while_no_policy_was_there_are_not_worked_on() {
    let mut stage = Stage::reboot(&json!({}));
    stage.job.is_kept = true;
    stage.job.targets = Some(Resolved { targets: vec![("a".into(), "uid-a".into())], ..Resolved::default() });
    assert_eq!(stage.plan(None, None).needs, Some(OpsNeed::Targets));
    let found = Found { gap: Some("it is missing".to_owned()), ..Found::default() };
    let plan = stage.plan(Some(&found), None);
    stage.make(plan);
    assert_eq!(stage.outcome().1, "PolicyMissing");
    assert!(stage.child.is_none());
}

#[test]
fn a_job_whose_child_is_refused_ends_as_invalid_with_the_words_of_the_child() {
    let mut stage = Stage::reboot(&json!({}));
    stage.settle();
    stage.child.as_mut().unwrap().refused = Some("parameters: drain is no number".to_owned());
    stage.settle();
    stage.released();
    assert_eq!((stage.outcome().1, stage.outcome().2), ("Invalid", "parameters: drain is no number"));
}

#[test]
fn a_job_that_is_invalid_goes_when_its_time_is_over_too() {
    let mut stage = Stage::reboot(&json!({"type": "Reboot"}));
    stage.settle();
    stage.second = 60;
    stage.settle();
    assert!(stage.is_gone);
}

#[test]
fn a_job_that_lives_when_a_history_comes_is_held_by_it() {
    let mut stage = Stage::reboot(&json!({}));
    stage.settle();
    assert!(stage.job.is_kept && !stage.job.is_recorded);
    stage.recorded = RowState::InPart;
    stage.settle();
    assert!(stage.job.is_recorded);
}

#[test]
fn a_job_goes_once_the_history_has_its_last_state() {
    let mut stage = Stage::reboot(&json!({"stop": true}));
    stage.recorded = RowState::InPart;
    stage.settle();
    assert!(stage.job.is_recorded && stage.job.status.has_ended());
    stage.second = 60;
    stage.settle();
    assert!(stage.is_gone, "its time is over, and it is deleted");
    stage.job.deleting = true;
    stage.settle();
    assert!(stage.job.is_recorded, "its row is not whole");
    stage.recorded = RowState::Whole;
    stage.settle();
    assert!(!stage.job.is_recorded);
    // One that ended before there was a history waits as well.
    (stage.job.deleting, stage.is_gone, stage.recorded) = (false, false, RowState::InPart);
    stage.settle();
    assert!(!stage.is_gone);
    stage.recorded = RowState::Whole;
    stage.settle();
    assert!(stage.is_gone);
    // A host that is started without a history lets go of what another one has begun.
    (stage.job.is_recorded, stage.job.deleting, stage.recorded) = (true, true, RowState::NotKept);
    stage.settle();
    assert!(!stage.job.is_recorded);
}

#[test]
fn nothing_is_looked_up_for_a_job_that_is_stopped() {
    let mut stage = Stage::reboot(&json!({"stop": true}));
    stage.job.is_kept = true;
    assert_eq!(stage.plan(None, None).needs, None);
    stage.spec["stop"] = json!(false);
    assert_eq!(stage.plan(None, None).needs, Some(OpsNeed::Targets));
}

#[test]
fn targets_without_room_beside_the_spec_are_refused() {
    let mut stage = Stage::reboot(&json!({}));
    stage.job.bytes = ROOM;
    stage.settle();
    assert!(stage.outcome().2.contains("make several jobs"), "{:?}", stage.outcome());
}

#[test]
fn what_the_api_server_refuses_is_told_with_what_it_was_for() {
    let (store, create) = (Effect::StoreTargets(Resolved::default(), None), Effect::CreateChild(json!({})));
    let cases = [
        (Attempt::LookUp(OpsNeed::Targets), Some(RESOLVED), "failed to find the targets: no"),
        (Attempt::LookUp(OpsNeed::Outcomes), None, "failed to read what became of the targets: no"),
        (Attempt::Make(&store), Some(RESOLVED), "failed to store the targets: no"),
        (Attempt::Make(&create), Some(CREATED), "failed to create the OperationJob: no"),
        (Attempt::Make(&Effect::PauseChild), None, "failed to pause the OperationJob: no"),
    ];
    for (attempt, condition, words) in cases {
        let told = with_refusal(&OpsStatus::default(), attempt, "no", at(0));
        assert_eq!(told.rest["waitingFor"], json!([words]));
        assert_eq!(told.conditions.iter().map(|one| one.kind.as_str()).next(), condition);
        assert!(!told.is(RESOLVED));
    }
}

#[test]
fn a_child_that_somebody_deletes_is_not_made_again() {
    let mut stage = Stage::reboot(&json!({}));
    stage.settle();
    stage.child(TargetCounts { total: 3, succeeded: 1, processing: 1, ..TargetCounts::default() }, false);
    stage.child = None;
    stage.settle();
    assert_eq!(stage.outcome().1, "ChildLost");
    let counts = TargetCounts::read(stage.job.status.rest.get("progress"));
    assert_eq!((counts.succeeded, counts.failed, counts.processing), (1, 1, 0), "what was in work came to nothing");
    assert_eq!(stage.made.iter().filter(|made| **made == "create").count(), 1);
}

#[test]
fn the_progress_of_a_stopped_job_counts_failed_nodes_as_its_result_does() {
    let counts = TargetCounts { total: 3, succeeded: 1, failed: 1, processing: 1, ..TargetCounts::default() };
    let stopped = |mut stage: Stage| {
        stage.settle();
        stage.child(counts, false);
        stage.spec["stop"] = json!(true);
        stage.settle();
        stage.released();
        let outputs = stage.job.status.rest["outputs"].as_array().unwrap().clone();
        let result = outputs.into_iter().find(|output| output["name"] == "result").unwrap();
        let result: Value = serde_json::from_str(result["value"].as_str().unwrap()).unwrap();
        (TargetCounts::read(stage.job.status.rest.get("progress")), stage.job.status.rest["progress"].clone(), result)
    };
    let (progress, written, result) = stopped(Stage::reboot(&json!({})));
    assert_eq!(
        (json!(progress.failed), json!(progress.succeeded)),
        (result["failed"].clone(), result["succeeded"].clone())
    );
    assert_eq!((progress.failed, progress.processing, &written["pending"]), (1, 0, &json!(1)));
    let check = json!({"type": "preflight", "inputs": [{"name": "cluster", "value": "local"}], "image": "i", "entryPoint": "dHJ1ZQ=="});
    let (progress, written, result) = stopped(Stage::of(check));
    // No check has found them healthy, and all of them are named or left out as failed.
    let named = result["failed_nodes"].as_array().unwrap().len()
        + usize::try_from(result["left_out"].as_u64().unwrap_or(0)).unwrap();
    assert_eq!((progress.failed, named, &written["pending"]), (2, 2, &json!(0)));
}

#[test]
fn what_the_grant_does_not_cover_is_refused_before_anything_starts() {
    let mut stage = Stage::reboot(&json!({}));
    stage.ungranted = Some("hostpath: /etc/x is not among the directories that a check may see");
    stage.settle();
    let (phase, reason, words) = stage.outcome();
    assert_eq!((phase, reason), (Some(Phase::Failed), "Forbidden"));
    assert!(words.starts_with("spec.hostpath: /etc/x"), "{words}");
    assert_eq!((stage.made, stage.child), (vec!["keep", "drop"], None));
    // A grant that is narrowed, or comes, after the targets were found counts as well.
    let mut stage = Stage::reboot(&json!({}));
    while !stage.job.status.is(RESOLVED) {
        stage.pass();
    }
    stage.ungranted = Some("hostpath: /etc/x is not among the directories that a check may see");
    stage.settle();
    assert_eq!(stage.outcome().1, "Forbidden");
    assert!(stage.child.is_none() && !stage.made.contains(&"create"));
}

#[test]
fn of_two_jobs_on_one_node_the_one_that_holds_it_goes_on() {
    let (mut first, mut second) = (Stage::reboot(&json!({})), Stage::reboot(&json!({})));
    second.job.uid = "v".into();
    first.settle();
    second.holders = first.holders.clone();
    second.settle();
    assert_eq!((second.outcome().0, second.outcome().1), (Some(Phase::Failed), "TargetBusy"));
    assert!(second.child.is_none());
}

#[test]
fn what_cannot_be_is_told_and_makes_nothing() {
    let cases = [
        (json!({"type": "Reboot"}), "Invalid", "spec.type: one of"),
        (json!({"inputs": [{"name": "node", "value": "z"}]}), "NodeNotFound", "there is no node z"),
        (json!({"inputs": [{"name": "workspace", "value": "w"}]}), "WorkspaceNotFound", "kubectl label node NAME"),
        (json!({"inputs": [{"name": "cluster", "value": "x"}]}), "ClusterUnknown", "cluster x"),
        (json!({"excludedNodes": ["a", "b", "c"]}), "NoTargets", "3 Excluded"),
        (json!({"excludedNodes": ["typo"]}), "Invalid", "spec.excludedNodes: no node has the name or host typo"),
    ];
    for (more, reason, words) in cases {
        let mut stage = Stage::reboot(&more);
        stage.settle();
        assert_eq!((stage.outcome().0, stage.outcome().1), (Some(Phase::Failed), reason));
        assert!(stage.outcome().2.contains(words), "{}", stage.outcome().2);
        assert_eq!(stage.made, ["keep", "drop"]);
    }
}

fn dumplog() -> Stage {
    let spec = json!({"type": "dumplog", "inputs": [{"name": "workload", "value": "team/pod/web"}]});
    let pod = |name: &str| PodFacts { name: name.into(), uid: format!("uid-{name}"), ..PodFacts::default() };
    let pods = Some(WorkloadPods { namespace: "team".into(), pods: vec![pod("web-1"), pod("web-0")] });
    Stage { pods, file: JobFile::Due, ..Stage::of(spec) }
}

#[test]
fn the_logs_of_pods_are_collected_by_a_child_beside_them_and_put_together_before_it_goes() {
    let mut stage = dumplog();
    stage.settle();
    assert_eq!(stage.job.child_namespace(), "team");
    let (metadata, spec) = (&stage.document["metadata"], &stage.document["spec"]);
    assert_eq!((&metadata["namespace"], &metadata["name"]), (&json!("team"), &json!("j")));
    let targets = json!([{"name": "web-0", "uid": "uid-web-0"}, {"name": "web-1", "uid": "uid-web-1"}]);
    assert_eq!((&spec["targetKind"], &spec["targets"], &spec["parallelism"]), (&json!("Pod"), &targets, &json!(8)));
    assert_eq!(spec["failurePolicy"], json!({"type": "Continue", "maxFailures": 1}));
    let place = HeldPlace::Pod("dumplog", "uid-web-0".into());
    assert_eq!(stage.holders.holder(&place), Some("u"));
    stage.child(TargetCounts { total: 2, succeeded: 1, failed: 1, ..TargetCounts::default() }, true);
    assert_eq!(stage.pass().needs, Some(OpsNeed::File));
    stage.file = JobFile::Underway("putting the logs together");
    let waits = stage.pass();
    assert!(waits.effects.is_empty() && waits.wake.is_some(), "{waits:?}");
    assert_eq!(stage.job.status.rest["waitingFor"], json!(["putting the logs together"]));
    let file: &'static StoredFile =
        Box::leak(Box::new(StoredFile { reference: "artifact:j/web.log".into(), size: 9, lines: 2 }));
    stage.file = JobFile::Stored(file);
    stage.settle();
    stage.child = None;
    stage.settle();
    let value = |name: &str| {
        let outputs = stage.job.status.rest["outputs"].as_array().unwrap().clone();
        outputs.into_iter().find(|output| output["name"] == name).map(|output| output["value"].clone())
    };
    let told = ["endpoint", "lines", "size", "missing"].map(value);
    let expected = ["artifact:j/web.log", "2", "9", "[\"a\"]"].map(|text| Some(json!(text)));
    assert_eq!((told, stage.job.status.phase), (expected, Some(Phase::Succeeded)));
}

#[test]
fn a_dumplog_that_is_stopped_leaves_no_file_and_one_that_lost_all_pods_fails() {
    let mut stage = dumplog();
    stage.settle();
    stage.child(TargetCounts { total: 2, succeeded: 2, ..TargetCounts::default() }, true);
    stage.file = JobFile::Underway("putting the logs together");
    stage.settle();
    stage.spec["stop"] = json!(true);
    stage.settle();
    stage.child = None;
    stage.settle();
    assert_eq!(stage.job.status.condition("Failed").unwrap().reason, "Stopped");
    let outputs = stage.job.status.rest["outputs"].as_array().unwrap();
    assert!(outputs.iter().all(|output| output["name"] != "endpoint"), "{outputs:?}");
    let mut stage = dumplog();
    stage.settle();
    stage.child(TargetCounts { total: 2, failed: 2, ..TargetCounts::default() }, true);
    stage.file = JobFile::Lost("gone");
    stage.settle();
    stage.child = None;
    stage.settle();
    let failed = stage.job.status.condition("Failed").unwrap();
    assert_eq!(failed.reason, "ToleranceExceeded");
}

#[test]
fn a_dumplog_waits_for_room_on_the_volume_and_says_so() {
    let mut stage = Stage { file: JobFile::NoRoom("the volume of files has 12 % free"), ..dumplog() };
    stage.settle();
    let waits = stage.pass();
    assert!(waits.effects.is_empty() && waits.wake.is_some() && stage.child.is_none(), "{waits:?}");
    let condition = stage.job.status.condition("FilesWritable").unwrap();
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "VolumeFull"));
    assert_eq!(stage.job.status.rest["waitingFor"], json!(["the volume of files has 12 % free"]));
    stage.file = JobFile::Due;
    stage.settle();
    assert!(stage.child.is_some() && stage.job.status.is("FilesWritable"));
}

#[test]
fn a_dumplog_whose_file_is_lost_fails_with_words() {
    let mut stage = dumplog();
    stage.settle();
    stage.child(TargetCounts { total: 2, succeeded: 2, ..TargetCounts::default() }, true);
    stage.file = JobFile::Lost("the volume of files has 12 % free");
    stage.settle();
    let failed = stage.job.status.condition("Failed").unwrap();
    assert_eq!(failed.reason, "FileLost");
    assert!(failed.message.contains("12 % free"), "{failed:?}");
}

#[test]
fn a_job_with_a_long_label_fails_and_one_that_has_its_targets_goes_on() {
    let label =
        json!({"inputs": [{"name": "cluster", "value": "local"}, {"name": "label", "value": "x".repeat(4_097)}]});
    let mut stage = Stage::reboot(&label);
    stage.settle();
    assert_eq!(stage.job.status.condition("Failed").unwrap().reason, "Invalid");
    let mut stage = Stage::reboot(&json!({}));
    stage.pass();
    stage.pass();
    assert!(stage.job.targets.is_some());
    stage.spec["inputs"] = label["inputs"].clone();
    stage.settle();
    assert!(stage.child.is_some(), "{:?}", stage.job.status);
}

#[test]
fn a_child_says_whose_shares_it_takes() {
    let of = |requester: &str| {
        let mut stage = Stage::reboot(&json!({}));
        stage.job.requester = requester.to_owned();
        stage.settle();
        stage.document["metadata"]["annotations"]["oarlock.dev/quota-key"].as_str().unwrap().to_owned()
    };
    assert_eq!(of("system:serviceaccount:team-a:builder"), "namespace/team-a");
    assert_eq!((of("alice").as_str(), of("").as_str()), ("user/alice", "namespace/oarlock-ops"));
}

#[test]
fn a_host_that_keeps_no_files_collects_no_logs() {
    let mut stage = Stage { file: JobFile::NotKept, ..dumplog() };
    stage.settle();
    assert_eq!(stage.job.status.condition("Failed").unwrap().reason, "NotServed");
}

#[test]
fn a_job_gets_its_place_in_its_second_with_its_first_status_and_keeps_it() {
    let mut stage = Stage::reboot(&json!({}));
    let mut places = Vec::new();
    // The cache keeps the version at which it was first seen. Another host does not know it.
    for version in [41, 41, 60, 70] {
        stage.job.first_version = version;
        let plan = stage.pass();
        places.extend(plan.status.map(|status| status.rest.get("seq").cloned()));
    }
    assert!(!places.is_empty() && places.iter().all(|place| *place == Some(json!(41))), "{places:?}");
}
