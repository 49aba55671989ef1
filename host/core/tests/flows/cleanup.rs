//! `cleanup`: what is deleted after the end.

use serde_json::json;

use crate::stage::Stage;
use crate::stage::make::{daemon, flow, step, with};

fn ended(cleanup: serde_json::Value) -> Stage {
    let steps = [step("a", &[], json!({})), step("b", &["a"], json!({}))];
    let mut stage = Stage::flow(flow(steps, json!({"cleanup": cleanup})));
    stage.settle();
    stage.succeed("a");
    stage.fail("b");
    stage
}

#[test]
fn jobs_are_kept_or_deleted_as_asked_for() {
    for (jobs, left) in [("Keep", vec!["f-a", "f-b"]), ("DeleteSucceeded", vec!["f-b"]), ("DeleteAll", vec![])] {
        let stage = ended(json!({"jobs": jobs}));
        assert_eq!(stage.objects.keys().map(String::as_str).collect::<Vec<_>>(), left, "{jobs}");
        assert_eq!((stage.state(), stage.created.len()), ("Failed", 2));
    }
}

#[test]
fn the_jobs_of_all_attempts_are_deleted() {
    let steps = [step("a", &[], json!({"retryPolicy": {"limit": 1}}))];
    let mut stage = Stage::flow(flow(steps, json!({"cleanup": {"jobs": "DeleteAll"}})));
    stage.settle();
    stage.fail("a");
    stage.wake();
    stage.succeed("a");
    assert!(stage.objects.is_empty(), "{:?}", stage.objects.keys());
}

#[test]
fn the_object_is_deleted_so_long_after_its_end() {
    let mut stage = ended(json!({"ttlSeconds": 100}));
    assert_eq!(stage.plan().due, Some(oarlock_core::job::time::after_seconds(stage.now, 100)));
    stage.restart();
    stage.pass(99);
    assert!(!stage.is_gone);
    stage.wake();
    assert!(stage.is_gone);
}

#[test]
fn an_object_that_goes_on_is_not_deleted() {
    let mut stage = ended(json!({"ttlSeconds": 100}));
    stage.retry("1");
    stage.pass(500);
    assert!(!stage.is_gone);
    stage.succeed("b");
    stage.wake();
    assert!(stage.is_gone);
}

#[test]
fn a_daemon_job_is_cleaned_up_alike() {
    let mut stage =
        Stage::daemon(with(daemon(json!({})), json!({"cleanup": {"ttlSeconds": 0, "jobs": "DeleteAll"}})), ["n1"]);
    stage.settle();
    stage.succeed("n1");
    assert!(stage.objects.is_empty() && stage.is_gone);
}
