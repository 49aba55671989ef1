//! What happens while a spec is refused holds after the edit that heals it, by the rules of the unit: 2.3, 2.5.

use serde_json::json;

use crate::stage::Stage;
use crate::stage::make::{daemon, flow, step};

/// A step name that no rule allows.
const BAD: &str = "A";

/// A flow with step `a`, a second step `b`, and a spec that is refused from now on.
fn refused(a: serde_json::Value) -> Stage {
    let mut stage = Stage::flow(flow([step("a", &[], a), step("b", &[], json!({}))], json!({})));
    stage.settle();
    stage.edit("/flows/1/name", json!(BAD));
    stage.settle();
    stage
}

fn heal(stage: &mut Stage) {
    stage.edit("/flows/1/name", json!("b"));
    stage.settle();
}

#[test]
fn a_tolerated_failure_is_tolerated_after_the_edit() {
    let mut stage = refused(json!({"continueOnFailure": true}));
    stage.fail("a");
    assert_eq!((stage.end_of("a").as_str(), stage.state()), ("Failed/BackoffLimitExceeded", "Failed"));
    stage.restart();
    heal(&mut stage);
    assert!(stage.unit("a").tolerated);
    stage.succeed("b");
    assert_eq!(stage.state(), "Succeed");
}

#[test]
fn a_failed_attempt_is_retried_after_the_edit() {
    let mut stage = refused(json!({"retryPolicy": {"limit": 1, "backoffSeconds": 10}}));
    stage.fail("a");
    assert_eq!(stage.end_of("a"), "Failed/BackoffLimitExceeded");
    stage.succeed("b");
    assert!(stage.parent.status.get("completionTime").is_some(), "nothing is active any more");
    stage.restart();
    heal(&mut stage);
    assert_eq!((stage.end_of("a").as_str(), stage.created.len()), ("Retrying/BackoffLimitExceeded", 2));
    stage.pass(10);
    assert_eq!(stage.names(), ["f-a", "f-b", "f-a-r1"]);
    stage.fail("a");
    assert_eq!(stage.end_of("a"), "Failed/BackoffLimitExceeded", "its limit is used up");
}

#[test]
fn a_failure_without_a_retry_policy_stays() {
    let mut stage = refused(json!({}));
    stage.fail("a");
    heal(&mut stage);
    stage.edit("/flows/0/retryPolicy", json!({"limit": 3}));
    stage.pass(60);
    assert_eq!((stage.end_of("a").as_str(), stage.created.len()), ("Failed/BackoffLimitExceeded", 2));
}

#[test]
fn an_eviction_uses_its_own_budget_after_the_edit() {
    let mut stage = refused(json!({"retryPolicy": {"limit": 0, "infraLimit": 1}}));
    stage.evict("a");
    heal(&mut stage);
    assert_eq!(stage.end_of("a"), "Retrying/InfrastructureFailure");
    stage.pass(10);
    assert_eq!(stage.names(), ["f-a", "f-b", "f-a-r1"]);
}

#[test]
fn nodes_are_retried_after_the_edit_and_count_for_the_limit() {
    let rollout = json!({"retryPolicy": {"limit": 1}, "failurePolicy": {"maxFailures": 1}});
    let mut stage = Stage::daemon(daemon(rollout), ["n1", "n2"]);
    stage.settle();
    stage.edit("/rollout/concurrency", json!("x"));
    stage.settle();
    stage.fail("n1");
    stage.succeed("n2");
    stage.edit("/rollout/concurrency", json!(2));
    stage.settle();
    assert_eq!(stage.end_of("n1"), "Retrying/BackoffLimitExceeded");
    stage.wake();
    stage.fail("n1");
    assert_eq!((stage.names(), stage.state()), (vec!["d-n1", "d-n2", "d-n1-r1"], "Succeed"));
}

#[test]
fn a_retry_by_hand_after_the_edit_counts_anew() {
    let mut stage = refused(json!({"retryPolicy": {"limit": 1}}));
    stage.fail("a");
    stage.retry("1");
    assert_eq!(stage.created.len(), 2, "nothing starts while the spec is refused");
    heal(&mut stage);
    assert_eq!(stage.names(), ["f-a", "f-b", "f-a-r1"]);
    stage.fail("a");
    assert_eq!(stage.end_of("a"), "Retrying/BackoffLimitExceeded");
}

#[test]
fn an_attempt_that_waits_while_the_spec_is_refused_keeps_nothing_moving() {
    let mut stage =
        Stage::flow(flow([step("a", &[], json!({"retryPolicy": {"limit": 1}})), step("b", &[], json!({}))], json!({})));
    stage.settle();
    stage.fail("a");
    stage.succeed("b");
    stage.edit("/flows/1/name", json!(BAD));
    stage.settle();
    assert_eq!(
        (stage.condition("Progressing").as_str(), stage.condition("Failed").as_str()),
        ("False/AtRest", "True/Invalid")
    );
    assert!(stage.parent.status.get("completionTime").is_some());
    heal(&mut stage);
    stage.pass(10);
    assert_eq!(stage.names(), ["f-a", "f-b", "f-a-r1"]);
}
