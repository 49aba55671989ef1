//! Children that expire or are deleted: A7 to A9.

use serde_json::json;

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

#[test]
fn an_owner_reference_that_is_stripped_leaves_the_recorded_outcome() {
    let mut stage = Stage::flow(plain(&[("a", &[])]));
    stage.settle();
    stage.succeed("a");
    stage.objects.get_mut("f-a").unwrap()["metadata"]["ownerReferences"] = json!([]);
    stage.show("f-a");
    stage.settle();
    assert_eq!((stage.state(), stage.created.len()), ("Succeed", 1));
}
