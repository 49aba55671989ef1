//! The pace of a DaemonJob, and its reaction to failures: A31, A36 to A38.

use oarlock_core::attempts::build::Cause;
use oarlock_core::attempts::pods::PodReport;
use oarlock_core::attempts::refused::Refused;
use oarlock_core::attempts::unit::UnitState;
use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::fixture::make::daemon;

fn of(rollout: Value, nodes: usize) -> Fixture {
    let names: Vec<String> = (0..nodes).map(|index| format!("n{index:04}")).collect();
    Fixture::daemon(daemon(rollout), names.iter().map(String::as_str))
}

#[test]
fn nodes_follow_others_once_all_slots_were_taken() {
    let mut fixture = of(json!({"concurrency": 2}), 4);
    let follows = |fixture: &Fixture| fixture.plan().creates.iter().map(|create| create.follows).collect::<Vec<_>>();
    assert_eq!(follows(&fixture), [false, false]);
    fixture.settle();
    fixture.end_child("d-n0000", true);
    assert_eq!(follows(&fixture), [true]);
    let mut fixture = of(json!({}), 4);
    fixture.settle();
    assert!(fixture.created.len() == 4 && follows(&fixture).is_empty());
}

#[test]
fn no_slots_hold_everything_and_an_edit_lets_it_go() {
    let mut fixture = of(json!({"concurrency": 0}), 3);
    let held = "0 of 3 nodes succeeded; spec.rollout.concurrency is 0: raise it to go on";
    fixture.settle();
    assert_eq!(fixture.message("Progressing"), held);
    fixture.settle();
    assert_eq!((fixture.created.len(), fixture.state()), (0, "Pending"));
    fixture.edit("/rollout/concurrency", json!(2));
    fixture.settle();
    assert_eq!(fixture.started(), ["n0000", "n0001"]);
}

#[test]
fn a_node_whose_job_is_refused_holds_no_slot() {
    let mut fixture = of(json!({"concurrency": 1}), 2);
    let revision = fixture.plan().creates[0].revision.clone();
    let refusal = Cause::new("NameConflict", "Job d-n0000 is somebody else's");
    let refused = Refused::again(None, refusal, revision, false, fixture.now);
    fixture.memory.refused.insert("n0000".to_owned(), refused);
    fixture.settle();
    assert_eq!((fixture.started(), fixture.end_of("n0000").as_str()), (vec!["n0001"], "Blocked/NameConflict"));
}

#[test]
fn a_node_whose_create_has_no_answer_keeps_its_slot_and_is_blocked_in_the_end() {
    let mut fixture = of(json!({"concurrency": 1}), 2);
    let revision = fixture.plan().creates[0].revision.clone();
    let mut refused: Option<Refused> = None;
    for blocks in [false, false, true] {
        let refusal = Cause::new("Rejected", "failed calling webhook");
        let next = Refused::again(refused.as_ref(), refusal, revision.clone(), true, fixture.now);
        fixture.memory.refused.insert("n0000".to_owned(), next.clone());
        fixture.settle();
        assert_eq!((fixture.created.len(), fixture.state_of("n0000") == UnitState::Blocked), (0, blocks));
        refused = Some(next);
    }
    fixture.wake_refused();
    assert_eq!(fixture.started(), ["n0000"]);
}

#[test]
fn a_job_that_shows_up_after_its_node_was_omitted_is_followed() {
    let mut fixture = of(json!({"concurrency": 2, "failurePolicy": {"maxFailures": 0}}), 3);
    fixture.settle();
    fixture.fail("n0000");
    fixture.succeed("n0001");
    assert_eq!(fixture.end_of("n0002"), "Omitted/TooManyFailures");
    // The create had no answer, but the API server made the Job.
    let lost = of(json!({"concurrency": 3}), 3).plan().creates.remove(2);
    fixture.create(&lost);
    fixture.settle();
    assert_eq!(
        (fixture.state_of("n0002"), fixture.condition("Failed").as_str()),
        (UnitState::Pending, "False/InProgress")
    );
    fixture.succeed("n0002");
    assert_eq!((fixture.state_of("n0002"), fixture.state()), (UnitState::Succeed, "Failed"));
}

#[test]
fn a_back_off_keeps_its_slot() {
    let mut fixture = of(json!({"concurrency": 1, "retryPolicy": {"limit": 1}}), 2);
    fixture.settle();
    fixture.fail("n0000");
    assert_eq!((fixture.state_of("n0000"), fixture.created.len()), (UnitState::Retrying, 1));
    fixture.wake();
    assert_eq!(fixture.names(), ["d-n0000", "d-n0000-r1"]);
    fixture.restart();
    fixture.settle();
    assert_eq!(fixture.created.len(), 2);
    fixture.succeed("n0000");
    assert_eq!(fixture.started().last(), Some(&"n0001"));
}

#[test]
fn more_failures_than_are_tolerated_omit_the_rest() {
    let mut fixture = of(json!({"concurrency": 2, "failurePolicy": {"maxFailures": 1}}), 6);
    fixture.settle();
    fixture.fail("n0000");
    assert_eq!((fixture.state(), fixture.created.len()), ("Running", 3));
    fixture.fail("n0001");
    assert_eq!((fixture.state(), fixture.created.len()), ("Failed", 3));
    assert_eq!(
        (fixture.end_of("n0005").as_str(), fixture.condition("Failed").as_str()),
        ("Omitted/TooManyFailures", "False/InProgress")
    );
    fixture.succeed("n0002");
    assert_eq!((fixture.condition("Failed").as_str(), fixture.events("Failed")), ("True/NodesFailed", 1));
    fixture.retry("1");
    assert_eq!((fixture.state(), fixture.created.len()), ("Running", 5));
}

#[test]
fn a_pause_holds_until_the_limit_is_raised() {
    let mut fixture = of(json!({"concurrency": 3, "failurePolicy": {"type": "Pause", "maxFailures": 2}}), 8);
    fixture.settle();
    ["n0000", "n0001", "n0002"].into_iter().for_each(|node| fixture.end(node, false));
    fixture.settle();
    assert_eq!((fixture.state(), fixture.condition("Paused").as_str()), ("Running", "True/FailurePolicy"));
    assert_eq!((fixture.created.len(), fixture.condition("Reconciling").as_str()), (3, "True/Paused"));
    fixture.restart();
    fixture.settle();
    assert_eq!(fixture.created.len(), 3);
    fixture.edit("/rollout/failurePolicy/maxFailures", json!(5));
    fixture.settle();
    assert_eq!((fixture.condition("Paused").as_str(), fixture.created.len()), ("False/InProgress", 6));
    for node in 3..8 {
        fixture.succeed(&format!("n{node:04}"));
    }
    assert_eq!(fixture.state(), "Succeed");
    assert!(fixture.message("Complete").contains("5 of 8"), "{}", fixture.message("Complete"));
}

#[test]
fn under_pause_it_has_failed_once_all_nodes_are_decided() {
    let mut fixture = of(json!({"concurrency": 1, "failurePolicy": {"type": "Pause"}}), 2);
    fixture.settle();
    fixture.succeed("n0000");
    fixture.fail("n0001");
    assert_eq!((fixture.state(), fixture.condition("Failed").as_str()), ("Failed", "True/NodesFailed"));
    assert_eq!(fixture.condition("Paused"), "False/AtRest");
    fixture.edit("/rollout/failurePolicy/maxFailures", json!(1));
    fixture.settle();
    assert_eq!((fixture.state(), fixture.condition("Complete").as_str()), ("Succeed", "True/Succeeded"));
}

#[test]
fn a_pause_by_hand_holds_too() {
    let mut fixture = of(json!({"concurrency": 1, "paused": true}), 2);
    fixture.settle();
    assert_eq!((fixture.created.len(), fixture.condition("Paused").as_str()), (0, "True/BySpec"));
    fixture.edit("/rollout/paused", json!(false));
    fixture.settle();
    assert_eq!(fixture.created.len(), 1);
}

#[test]
fn a_named_node_runs_though_other_failures_stay() {
    let mut fixture = of(json!({}), 3);
    fixture.settle();
    fixture.fail("n0000");
    fixture.fail("n0001");
    fixture.succeed("n0002");
    fixture.retry("1/n0001");
    assert_eq!(fixture.names().last(), Some(&"d-n0001-r1"));
    fixture.succeed("n0001");
    assert_eq!((fixture.state(), fixture.parent.status["progress"].as_str()), ("Failed", Some("2/3")));
}

#[test]
fn an_edited_job_outdates_nodes_that_have_started() {
    let mut fixture = of(json!({"concurrency": 1}), 2);
    fixture.settle();
    fixture.edit("/template/spec/containers/0/image", json!("new"));
    fixture.settle();
    assert!(fixture.unit("n0000").outdated);
    fixture.succeed("n0000");
    assert!(fixture.unit("n0000").outdated && !fixture.unit("n0001").outdated);
    assert_eq!(fixture.object_of("n0001")["spec"]["template"]["spec"]["containers"][0]["image"], "new");
}

#[test]
fn an_edit_that_tolerates_the_failures_gives_the_omitted_nodes_their_run() {
    for (field, value) in [("type", json!("Continue")), ("maxFailures", json!(3))] {
        let mut fixture = of(json!({"concurrency": 1, "failurePolicy": {"maxFailures": 0}}), 4);
        fixture.settle();
        fixture.fail("n0000");
        assert_eq!((fixture.state(), fixture.end_of("n0003").as_str()), ("Failed", "Omitted/TooManyFailures"));
        fixture.edit(&format!("/rollout/failurePolicy/{field}"), value);
        fixture.settle();
        assert_eq!((fixture.state(), fixture.created.len()), ("Running", 2), "{field}");
    }
}

#[test]
fn a_retry_waits_until_its_node_is_ready_and_keeps_its_slot() {
    for policy in ["Wait", "Skip"] {
        let retried = json!({"limit": 1, "backoffSeconds": 10});
        let mut fixture = of(json!({"concurrency": 1, "notReadyPolicy": policy, "retryPolicy": retried}), 2);
        fixture.settle();
        fixture.fail("n0000");
        fixture.set_ready("n0000", false);
        fixture.pass(10);
        fixture.restart();
        fixture.pass(3_600);
        assert_eq!((fixture.end_of("n0000").as_str(), fixture.created.len()), ("Retrying/BackoffLimitExceeded", 1));
        let said = fixture.message("Progressing");
        let awaited = "waiting for n0000 (NodeNotReady: the next attempt starts once its node is Ready)";
        assert!(said.contains(awaited) && fixture.unit("n0000").not_ready_since.is_some(), "{said}");
        fixture.set_ready("n0000", true);
        fixture.settle();
        assert_eq!((fixture.names(), fixture.unit("n0000").message.as_str()), (vec!["d-n0000", "d-n0000-r1"], ""));
        fixture.succeed("n0000");
        assert_eq!(fixture.started().last(), Some(&"n0001"), "{policy}");
    }
}

#[test]
fn a_retry_whose_node_is_not_ready_in_time_fails_and_frees_its_slot() {
    let retried = json!({"limit": 1, "backoffSeconds": 10});
    let policy = json!({"type": "Continue"});
    let mut fixture =
        of(json!({"concurrency": 1, "nodeTimeoutSeconds": 60, "retryPolicy": retried, "failurePolicy": policy}), 2);
    fixture.settle();
    fixture.fail("n0000");
    fixture.set_ready("n0000", false);
    fixture.pass(10);
    fixture.pass(59);
    fixture.restart();
    fixture.settle();
    assert_eq!((fixture.state_of("n0000"), fixture.created.len()), (UnitState::Retrying, 1));
    fixture.wake();
    assert_eq!((fixture.end_of("n0000").as_str(), fixture.started().last()), ("Failed/NodeNotReady", Some(&"n0001")));
    assert!(fixture.unit("n0000").message.starts_with("the node was not Ready for 60 s"));
}

#[test]
fn a_retry_that_waits_for_its_node_is_given_up_with_the_failure_that_it_had() {
    let mut fixture = of(json!({"retryPolicy": {"limit": 1, "infraLimit": 0, "backoffSeconds": 10}}), 2);
    fixture.settle();
    let report = PodReport { message: "exit code 3".to_owned(), is_infrastructure: false };
    fixture.pods.insert("d-n0000".to_owned(), report);
    fixture.fail("n0000");
    let said = fixture.unit("n0000").message.clone();
    fixture.set_ready("n0000", false);
    fixture.pass(10);
    let shown = fixture.message("Progressing");
    assert!(shown.contains("once its node is Ready; before: exit code 3)"), "{shown}");
    fixture.restart();
    fixture.evict("n0001");
    let message = format!("it is not tried again, because another failed; {said}");
    assert_eq!(
        (fixture.end_of("n0000").as_str(), &fixture.unit("n0000").message),
        ("Failed/BackoffLimitExceeded", &message)
    );
    assert!(fixture.unit("n0000").not_ready_since.is_none());
}

#[test]
fn a_node_whose_retry_was_refused_is_waited_for_and_not_left_out() {
    let retried = json!({"limit": 1, "backoffSeconds": 10});
    let mut fixture = of(json!({"notReadyPolicy": "Skip", "retryPolicy": retried}), 1);
    fixture.settle();
    fixture.fail("n0000");
    fixture.now = fixture.plan().due.unwrap();
    let revision = fixture.plan().creates[0].revision.clone();
    let refused = Refused::again(None, Cause::new("Rejected", "no"), revision, false, fixture.now);
    fixture.memory.refused.insert("n0000".to_owned(), refused);
    fixture.settle();
    assert_eq!(fixture.end_of("n0000"), "Blocked/Rejected");
    fixture.set_ready("n0000", false);
    fixture.settle();
    assert_eq!((fixture.end_of("n0000").as_str(), fixture.created.len()), ("Waiting/NodeNotReady", 1));
}
