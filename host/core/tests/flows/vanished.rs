//! Children that expire or are deleted: A7 to A9.

use serde_json::{Value, json};

use crate::stage::make::{flow, job, plain, step, with};
use crate::stage::{Death, Stage};

fn with_ttl() -> Stage {
    let brief = with(job(), json!({"ttlSecondsAfterFinished": 0}));
    let mut stage =
        Stage::flow(flow([json!({"name": "a", "jobTemplate": brief}), step("b", &["a"], json!({}))], json!({})));
    stage.settle();
    stage
}

#[test]
fn a_withheld_ttl_begins_once_the_outcome_is_durable() {
    let mut stage = with_ttl();
    assert!(stage.object_of("a")["spec"].get("ttlSecondsAfterFinished").is_none());
    assert_eq!(stage.object_of("a")["metadata"]["annotations"]["oarlock.dev/ttl"], "0");
    stage.end("a", true);
    let plan = stage.plan();
    stage.carry_out(&plan, Some(Death::AfterStatus));
    assert!(stage.objects.contains_key("f-a"));
    stage.restart();
    stage.settle();
    assert_eq!((stage.changed.clone(), stage.objects.contains_key("f-a")), (vec![("ttl", "f-a".to_owned())], false));
    stage.succeed("b");
    assert_eq!((stage.started(), stage.state()), (vec!["a", "b"], "Succeed"));
    assert!(stage.parent.status["jobStatusList"]["f-a/ns"]["conditions"].is_array());
}

#[test]
fn a_job_that_ended_while_the_driver_was_down_is_recorded_and_then_expires() {
    let mut stage = with_ttl();
    stage.end("a", true);
    stage.restart();
    stage.settle();
    stage.restart();
    stage.settle();
    assert_eq!((stage.started(), stage.end_of("a").as_str()), (vec!["a", "b"], "Succeed"));
}

#[test]
fn the_jobs_of_earlier_attempts_expire_too() {
    let brief = with(job(), json!({"ttlSecondsAfterFinished": 0}));
    let steps = [json!({"name": "a", "jobTemplate": brief, "retryPolicy": {"limit": 1}})];
    let mut stage = Stage::flow(flow(steps, json!({})));
    stage.settle();
    stage.fail("a");
    assert!(stage.objects.contains_key("f-a"), "what it says may still be asked for");
    stage.wake();
    assert_eq!(stage.objects.keys().collect::<Vec<_>>(), ["f-a-r1"]);
    stage.succeed("a");
    assert!(stage.objects.is_empty());
}

#[test]
fn a_finished_job_that_is_deleted_changes_nothing() {
    let mut stage = Stage::flow(plain(&[("a", &[]), ("b", &["a"])]));
    stage.settle();
    stage.succeed("a");
    stage.succeed("b");
    let before = stage.memory.units.clone();
    stage.vanish("f-a");
    stage.settle();
    stage.restart();
    stage.settle();
    assert_eq!((stage.memory.units == before, stage.state(), stage.created.len()), (true, "Succeed", 2));
}

#[test]
fn a_job_that_ended_and_vanished_at_once_counts_as_it_was_last_seen() {
    for (well, end) in [(true, "Succeed"), (false, "Failed/BackoffLimitExceeded")] {
        let mut stage = Stage::flow(plain(&[("a", &[])]));
        stage.settle();
        stage.end("a", well);
        stage.vanish("f-a");
        stage.settle();
        assert_eq!((stage.end_of("a").as_str(), stage.created.len(), stage.listed), (end, 1, 0));
    }
}

#[test]
fn a_running_job_that_is_deleted_has_failed() {
    let mut stage = Stage::flow(plain(&[("a", &[]), ("b", &["a"])]));
    stage.settle();
    stage.run("a");
    stage.vanish("f-a");
    stage.settle();
    assert_eq!((stage.end_of("a").as_str(), stage.state()), ("Failed/JobDeleted", "Failed"));
    assert_eq!((stage.created.len(), stage.condition("Failed").as_str()), (1, "True/StepFailed"));
}

#[test]
fn a_running_job_that_is_deleted_while_the_driver_is_down_has_failed() {
    let mut stage = Stage::flow(plain(&[("a", &[])]));
    stage.settle();
    stage.vanish("f-a");
    stage.restart();
    stage.settle();
    assert_eq!((stage.end_of("a").as_str(), stage.created.len()), ("Failed/JobDeleted", 1));
}

#[test]
fn a_retry_policy_replaces_a_deleted_job() {
    let mut stage = Stage::flow(flow([step("a", &[], json!({"retryPolicy": {"limit": 1}}))], json!({})));
    stage.settle();
    stage.vanish("f-a");
    stage.settle();
    assert_eq!(stage.end_of("a"), "Retrying/JobDeleted");
    stage.wake();
    assert_eq!(stage.names(), ["f-a", "f-a-r1"]);
    stage.vanish("f-a-r1");
    stage.settle();
    assert_eq!(stage.end_of("a"), "Failed/JobDeleted");
}

/// The owner reference of a child is taken off, or put back.
fn set_owners(stage: &mut Stage, name: &str, owners: Value) -> Value {
    let stored = &mut stage.objects.get_mut(name).unwrap()["metadata"]["ownerReferences"];
    let before = std::mem::replace(stored, owners);
    stage.show(name);
    stage.settle();
    before
}

#[test]
fn an_owner_reference_that_is_stripped_leaves_the_recorded_outcome() {
    let mut stage = with_ttl();
    stage.end("a", true);
    let plan = stage.plan();
    stage.carry_out(&plan, Some(Death::AfterStatus));
    set_owners(&mut stage, "f-a", json!([]));
    for _ in 0..2 {
        assert_eq!((stage.end_of("a").as_str(), stage.started()), ("Succeed", vec!["a", "b"]));
        assert!(stage.changed.is_empty(), "it is not ours any more: {:?}", stage.changed);
        stage.restart();
        stage.settle();
    }
}

#[test]
fn a_child_without_its_owner_reference_blocks_its_unit_also_after_a_restart() {
    let mut stage = Stage::flow(plain(&[("a", &[]), ("b", &["a"])]));
    stage.settle();
    let owners = set_owners(&mut stage, "f-a", json!([]));
    stage.end("a", true);
    for _ in 0..2 {
        stage.settle();
        assert_eq!((stage.end_of("a").as_str(), stage.created.len()), ("Blocked/NameConflict", 1));
        stage.restart();
    }
    assert!(stage.unit("a").message.contains("Job ns/f-a"), "{}", stage.unit("a").message);
    set_owners(&mut stage, "f-a", owners);
    assert_eq!((stage.end_of("a").as_str(), stage.started()), ("Succeed", vec!["a", "b"]));
}

#[test]
fn a_child_that_is_deleted_without_its_owner_reference_was_deleted() {
    for restarts in [false, true] {
        let mut stage = Stage::flow(plain(&[("a", &[])]));
        stage.settle();
        set_owners(&mut stage, "f-a", json!([]));
        if restarts {
            stage.restart();
            stage.settle();
        }
        stage.vanish("f-a");
        stage.settle();
        assert_eq!((stage.end_of("a").as_str(), stage.created.len()), ("Failed/JobDeleted", 1), "{restarts}");
    }
}

#[test]
fn a_copy_of_a_child_without_owner_is_nobodys_child() {
    let mut stage = Stage::flow(plain(&[("a", &[])]));
    stage.settle();
    let mut copy = stage.objects["f-a"].clone();
    copy["metadata"] = with(copy["metadata"].clone(), json!({"name": "copy", "uid": "copied", "ownerReferences": []}));
    copy["metadata"]["labels"]["oarlock.dev/attempt"] = json!("7");
    stage.plant(copy);
    stage.end_child("copy", true);
    stage.settle();
    assert_eq!((stage.end_of("a").as_str(), stage.changed.len()), ("Pending", 0));
    stage.fail("a");
    assert_eq!((stage.end_of("a").as_str(), stage.changed.len()), ("Failed/BackoffLimitExceeded", 0));
}

#[test]
fn the_time_of_a_flow_stops_no_job_that_is_not_its_own() {
    let mut stage = Stage::flow(flow([step("a", &[], json!({}))], json!({"timeoutSeconds": 60})));
    stage.settle();
    set_owners(&mut stage, "f-a", json!([]));
    stage.pass(60);
    assert_eq!((stage.end_of("a").as_str(), stage.changed.len()), ("Failed/FlowTimeout", 0));
    assert!(stage.parent.status.get("completionTime").is_some());
}
