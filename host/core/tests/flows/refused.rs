//! Events while a spec is refused count after the edit that heals the spec, by the rules of the unit: 2.3, 2.5.

use serde_json::json;

use crate::fixture::Fixture;
use crate::fixture::make::{daemon, flow, step};

/// A step name that no rule allows.
const BAD: &str = "A";

/// Returns a flow with step `a`, a second step `b`, and a spec that is refused from now on.
fn refused(a: serde_json::Value) -> Fixture {
    let mut fixture = Fixture::flow(flow([step("a", &[], a), step("b", &[], json!({}))], json!({})));
    fixture.settle();
    fixture.edit("/flows/1/name", json!(BAD));
    fixture.settle();
    fixture
}

fn heal(fixture: &mut Fixture) {
    fixture.edit("/flows/1/name", json!("b"));
    fixture.settle();
}

#[test]
fn a_tolerated_failure_is_tolerated_after_the_edit() {
    let mut fixture = refused(json!({"continueOnFailure": true}));
    fixture.fail("a");
    assert_eq!((fixture.end_of("a").as_str(), fixture.state()), ("Failed/BackoffLimitExceeded", "Failed"));
    fixture.restart();
    heal(&mut fixture);
    assert!(fixture.unit("a").tolerated);
    fixture.succeed("b");
    assert_eq!(fixture.state(), "Succeed");
}

#[test]
fn a_failed_attempt_is_retried_after_the_edit() {
    let mut fixture = refused(json!({"retryPolicy": {"limit": 1, "backoffSeconds": 10}}));
    fixture.fail("a");
    assert_eq!(fixture.end_of("a"), "Failed/BackoffLimitExceeded");
    fixture.succeed("b");
    assert!(fixture.parent.status.get("completionTime").is_some(), "nothing is active any more");
    fixture.restart();
    heal(&mut fixture);
    assert_eq!((fixture.end_of("a").as_str(), fixture.created.len()), ("Retrying/BackoffLimitExceeded", 2));
    fixture.pass(10);
    assert_eq!(fixture.names(), ["f-a", "f-b", "f-a-r1"]);
    fixture.fail("a");
    assert_eq!(fixture.end_of("a"), "Failed/BackoffLimitExceeded", "its limit is used up");
}

#[test]
fn a_failure_without_a_retry_policy_stays() {
    let mut fixture = refused(json!({}));
    fixture.fail("a");
    heal(&mut fixture);
    fixture.edit("/flows/0/retryPolicy", json!({"limit": 3}));
    fixture.pass(60);
    assert_eq!((fixture.end_of("a").as_str(), fixture.created.len()), ("Failed/BackoffLimitExceeded", 2));
}

#[test]
fn an_eviction_uses_its_own_budget_after_the_edit() {
    let mut fixture = refused(json!({"retryPolicy": {"limit": 0, "infraLimit": 1}}));
    fixture.evict("a");
    heal(&mut fixture);
    assert_eq!(fixture.end_of("a"), "Retrying/InfrastructureFailure");
    fixture.pass(10);
    assert_eq!(fixture.names(), ["f-a", "f-b", "f-a-r1"]);
}

#[test]
fn nodes_are_retried_after_the_edit_and_count_for_the_limit() {
    let rollout = json!({"retryPolicy": {"limit": 1}, "failurePolicy": {"maxFailures": 1}});
    let mut fixture = Fixture::daemon(daemon(rollout), ["n1", "n2"]);
    fixture.settle();
    fixture.edit("/rollout/concurrency", json!("x"));
    fixture.settle();
    fixture.fail("n1");
    fixture.succeed("n2");
    fixture.edit("/rollout/concurrency", json!(2));
    fixture.settle();
    assert_eq!(fixture.end_of("n1"), "Retrying/BackoffLimitExceeded");
    fixture.wake();
    fixture.fail("n1");
    assert_eq!((fixture.names(), fixture.state()), (vec!["d-n1", "d-n2", "d-n1-r1"], "Succeed"));
}

#[test]
fn a_retry_by_hand_after_the_edit_counts_anew() {
    let mut fixture = refused(json!({"retryPolicy": {"limit": 1}}));
    fixture.fail("a");
    fixture.retry("1");
    assert_eq!(fixture.created.len(), 2, "nothing starts while the spec is refused");
    heal(&mut fixture);
    assert_eq!(fixture.names(), ["f-a", "f-b", "f-a-r1"]);
    fixture.fail("a");
    assert_eq!(fixture.end_of("a"), "Retrying/BackoffLimitExceeded");
}

#[test]
fn an_attempt_that_waits_while_the_spec_is_refused_keeps_nothing_moving() {
    let mut fixture = Fixture::flow(flow(
        [step("a", &[], json!({"retryPolicy": {"limit": 1}})), step("b", &[], json!({}))],
        json!({}),
    ));
    fixture.settle();
    fixture.fail("a");
    fixture.succeed("b");
    fixture.edit("/flows/1/name", json!(BAD));
    fixture.settle();
    assert_eq!(
        (fixture.condition("Progressing").as_str(), fixture.condition("Failed").as_str()),
        ("False/AtRest", "True/Invalid")
    );
    assert!(fixture.parent.status.get("completionTime").is_some());
    heal(&mut fixture);
    fixture.pass(10);
    assert_eq!(fixture.names(), ["f-a", "f-b", "f-a-r1"]);
}
