//! How fast a DaemonJob goes on, and what failures mean for it: A31, A36 to A38.

use oarlock_core::child::build::Cause;
use oarlock_core::child::pods::PodReport;
use oarlock_core::child::refused::Refused;
use oarlock_core::child::unit::UnitState;
use serde_json::{Value, json};

use crate::stage::make::daemon;
use crate::stage::{Death, Stage};

fn of(rollout: Value, nodes: usize) -> Stage {
    let names: Vec<String> = (0..nodes).map(|index| format!("n{index:04}")).collect();
    Stage::daemon(daemon(rollout), names.iter().map(String::as_str))
}

fn undecided(stage: &Stage) -> Vec<String> {
    let is_open = |name: &str| stage.objects[name]["status"].is_null();
    stage.objects.keys().filter(|name| is_open(name)).cloned().collect()
}

#[test]
fn never_more_than_a_tenth_is_undecided_whenever_the_driver_dies() {
    let mut stage = of(json!({"concurrency": "10%"}), 1_000);
    let deaths = [Death::AtOnce, Death::AfterCreates, Death::AfterStatus];
    for round in 0..200 {
        let open = undecided(&stage);
        assert!(open.len() <= 100, "{}", open.len());
        open.iter().take(37).for_each(|name| stage.end_child(name, true));
        if round % 7 == 3 && round < 140 {
            let plan = stage.plan();
            stage.carry_out(&plan, Some(deaths[round / 7 % 3]));
            assert!(undecided(&stage).len() <= 100);
            stage.restart();
        }
        stage.round();
    }
    assert_eq!((stage.state(), stage.created.len()), ("Succeed", 1_000));
    assert_eq!(stage.parent.status["counts"]["succeeded"], 1_000);
}

#[test]
fn nodes_follow_others_once_all_slots_were_taken() {
    let mut stage = of(json!({"concurrency": 2}), 4);
    let follows = |stage: &Stage| stage.plan().creates.iter().map(|create| create.follows).collect::<Vec<_>>();
    assert_eq!(follows(&stage), [false, false]);
    stage.settle();
    stage.end_child("d-n0000", true);
    assert_eq!(follows(&stage), [true]);
    let mut stage = of(json!({}), 4);
    stage.settle();
    assert!(stage.created.len() == 4 && follows(&stage).is_empty());
}

#[test]
fn no_slots_hold_everything_and_an_edit_lets_it_go() {
    let mut stage = of(json!({"concurrency": 0}), 3);
    let held = "0 of 3 nodes succeeded; spec.rollout.concurrency is 0: raise it to go on";
    stage.settle();
    assert_eq!(stage.message("Progressing"), held);
    stage.settle();
    assert_eq!((stage.created.len(), stage.state()), (0, "Pending"));
    stage.edit("/rollout/concurrency", json!(2));
    stage.settle();
    assert_eq!(stage.started(), ["n0000", "n0001"]);
}

#[test]
fn a_node_whose_job_is_refused_holds_no_slot() {
    let mut stage = of(json!({"concurrency": 1}), 2);
    let revision = stage.plan().creates[0].revision.clone();
    let refusal = Cause::new("NameConflict", "Job d-n0000 is somebody else's");
    let refused = Refused::again(None, refusal, (revision, false), stage.now);
    stage.memory.refused.insert("n0000".to_owned(), refused);
    stage.settle();
    assert_eq!((stage.started(), stage.end_of("n0000").as_str()), (vec!["n0001"], "Blocked/NameConflict"));
}

#[test]
fn a_node_whose_create_has_no_answer_keeps_its_slot_and_is_blocked_in_the_end() {
    let mut stage = of(json!({"concurrency": 1}), 2);
    let revision = stage.plan().creates[0].revision.clone();
    let mut refused: Option<Refused> = None;
    for blocks in [false, false, true] {
        let refusal = Cause::new("Rejected", "failed calling webhook");
        let next = Refused::again(refused.as_ref(), refusal, (revision.clone(), true), stage.now);
        stage.memory.refused.insert("n0000".to_owned(), next.clone());
        stage.settle();
        assert_eq!((stage.created.len(), stage.state_of("n0000") == UnitState::Blocked), (0, blocks));
        refused = Some(next);
    }
    stage.wake_refused();
    assert_eq!(stage.started(), ["n0000"]);
}

#[test]
fn a_job_that_shows_up_after_its_node_was_omitted_is_followed() {
    let mut stage = of(json!({"concurrency": 2, "failurePolicy": {"maxFailures": 0}}), 3);
    stage.settle();
    stage.fail("n0000");
    stage.succeed("n0001");
    assert_eq!(stage.end_of("n0002"), "Omitted/TooManyFailures");
    // Its create had no answer, and came through.
    let lost = of(json!({"concurrency": 3}), 3).plan().creates.remove(2);
    stage.create(&lost);
    stage.settle();
    assert_eq!((stage.state_of("n0002"), stage.condition("Failed").as_str()), (UnitState::Pending, "False/InProgress"));
    stage.succeed("n0002");
    assert_eq!((stage.state_of("n0002"), stage.state()), (UnitState::Succeed, "Failed"));
}

#[test]
fn a_back_off_keeps_its_slot() {
    let mut stage = of(json!({"concurrency": 1, "retryPolicy": {"limit": 1}}), 2);
    stage.settle();
    stage.fail("n0000");
    assert_eq!((stage.state_of("n0000"), stage.created.len()), (UnitState::Retrying, 1));
    stage.wake();
    assert_eq!(stage.names(), ["d-n0000", "d-n0000-r1"]);
    stage.restart();
    stage.settle();
    assert_eq!(stage.created.len(), 2);
    stage.succeed("n0000");
    assert_eq!(stage.started().last(), Some(&"n0001"));
}

#[test]
fn more_failures_than_are_tolerated_omit_the_rest() {
    let mut stage = of(json!({"concurrency": 2, "failurePolicy": {"maxFailures": 1}}), 6);
    stage.settle();
    stage.fail("n0000");
    assert_eq!((stage.state(), stage.created.len()), ("Running", 3));
    stage.fail("n0001");
    assert_eq!((stage.state(), stage.created.len()), ("Failed", 3));
    assert_eq!(
        (stage.end_of("n0005").as_str(), stage.condition("Failed").as_str()),
        ("Omitted/TooManyFailures", "False/InProgress")
    );
    stage.succeed("n0002");
    assert_eq!((stage.condition("Failed").as_str(), stage.events("Failed")), ("True/NodesFailed", 1));
    stage.retry("1");
    assert_eq!((stage.state(), stage.created.len()), ("Running", 5));
}

#[test]
fn a_pause_holds_until_the_limit_is_raised() {
    let mut stage = of(json!({"concurrency": 3, "failurePolicy": {"type": "Pause", "maxFailures": 2}}), 8);
    stage.settle();
    ["n0000", "n0001", "n0002"].into_iter().for_each(|node| stage.end(node, false));
    stage.settle();
    assert_eq!((stage.state(), stage.condition("Paused").as_str()), ("Running", "True/FailurePolicy"));
    assert_eq!((stage.created.len(), stage.condition("Reconciling").as_str()), (3, "True/Paused"));
    stage.restart();
    stage.settle();
    assert_eq!(stage.created.len(), 3);
    stage.edit("/rollout/failurePolicy/maxFailures", json!(5));
    stage.settle();
    assert_eq!((stage.condition("Paused").as_str(), stage.created.len()), ("False/InProgress", 6));
    for node in 3..8 {
        stage.succeed(&format!("n{node:04}"));
    }
    assert_eq!(stage.state(), "Succeed");
    assert!(stage.message("Complete").contains("5 of 8"), "{}", stage.message("Complete"));
}

#[test]
fn under_pause_it_has_failed_once_all_nodes_are_decided() {
    let mut stage = of(json!({"concurrency": 1, "failurePolicy": {"type": "Pause"}}), 2);
    stage.settle();
    stage.succeed("n0000");
    stage.fail("n0001");
    assert_eq!((stage.state(), stage.condition("Failed").as_str()), ("Failed", "True/NodesFailed"));
    assert_eq!(stage.condition("Paused"), "False/AtRest");
    stage.edit("/rollout/failurePolicy/maxFailures", json!(1));
    stage.settle();
    assert_eq!((stage.state(), stage.condition("Complete").as_str()), ("Succeed", "True/Succeeded"));
}

#[test]
fn a_pause_by_hand_holds_too() {
    let mut stage = of(json!({"concurrency": 1, "paused": true}), 2);
    stage.settle();
    assert_eq!((stage.created.len(), stage.condition("Paused").as_str()), (0, "True/BySpec"));
    stage.edit("/rollout/paused", json!(false));
    stage.settle();
    assert_eq!(stage.created.len(), 1);
}

#[test]
fn one_of_a_hundred_is_rounded_down() {
    for (failed, state) in [(10, "Succeed"), (11, "Failed")] {
        let mut stage = of(json!({"failurePolicy": {"type": "Continue", "maxFailures": "1%"}}), 1_000);
        stage.settle();
        for node in 0..1_000 {
            stage.end(&format!("n{node:04}"), node >= failed);
        }
        stage.settle();
        assert_eq!((stage.state(), stage.created.len()), (state, 1_000));
        assert_eq!(stage.parent.status["counts"]["failed"], failed);
    }
}

#[test]
fn a_node_that_cannot_be_reached_frees_its_slot() {
    let mut stage = of(json!({"concurrency": 1, "nodeTimeoutSeconds": 60, "failurePolicy": {"type": "Continue"}}), 2);
    stage.settle();
    assert_eq!(stage.object_of("n0000")["spec"]["activeDeadlineSeconds"], 60);
    stage.run("n0000");
    stage.set_ready("n0000", false);
    stage.pass(61);
    stage.set_condition("d-n0000", "FailureTarget", "DeadlineExceeded");
    stage.settle();
    assert_eq!(stage.created.len(), 1);
    stage.wake();
    let waited = stage.now.duration_since(crate::stage::START.parse().unwrap()).as_secs();
    assert_eq!((stage.end_of("n0000").as_str(), stage.started().last()), ("Failed/DeadlineExceeded", Some(&"n0001")));
    assert!(waited <= 130, "{waited}");
}

#[test]
fn a_named_node_runs_though_other_failures_stay() {
    let mut stage = of(json!({}), 3);
    stage.settle();
    stage.fail("n0000");
    stage.fail("n0001");
    stage.succeed("n0002");
    stage.retry("1/n0001");
    assert_eq!(stage.names().last(), Some(&"d-n0001-r1"));
    stage.succeed("n0001");
    assert_eq!((stage.state(), stage.parent.status["progress"].as_str()), ("Failed", Some("2/3")));
}

#[test]
fn an_edited_job_outdates_nodes_that_have_started() {
    let mut stage = of(json!({"concurrency": 1}), 2);
    stage.settle();
    stage.edit("/template/spec/containers/0/image", json!("new"));
    stage.settle();
    assert!(stage.unit("n0000").outdated);
    stage.succeed("n0000");
    assert!(stage.unit("n0000").outdated && !stage.unit("n0001").outdated);
    assert_eq!(stage.object_of("n0001")["spec"]["template"]["spec"]["containers"][0]["image"], "new");
}

#[test]
fn an_edit_that_tolerates_the_failures_gives_the_omitted_nodes_their_run() {
    for (field, value) in [("type", json!("Continue")), ("maxFailures", json!(3))] {
        let mut stage = of(json!({"concurrency": 1, "failurePolicy": {"maxFailures": 0}}), 4);
        stage.settle();
        stage.fail("n0000");
        assert_eq!((stage.state(), stage.end_of("n0003").as_str()), ("Failed", "Omitted/TooManyFailures"));
        stage.edit(&format!("/rollout/failurePolicy/{field}"), value);
        stage.settle();
        assert_eq!((stage.state(), stage.created.len()), ("Running", 2), "{field}");
    }
}

#[test]
fn a_retry_waits_until_its_node_is_ready_and_keeps_its_slot() {
    for policy in ["Wait", "Skip"] {
        let retried = json!({"limit": 1, "backoffSeconds": 10});
        let mut stage = of(json!({"concurrency": 1, "notReadyPolicy": policy, "retryPolicy": retried}), 2);
        stage.settle();
        stage.fail("n0000");
        stage.set_ready("n0000", false);
        stage.pass(10);
        stage.restart();
        stage.pass(3_600);
        assert_eq!((stage.end_of("n0000").as_str(), stage.created.len()), ("Retrying/BackoffLimitExceeded", 1));
        let said = stage.message("Progressing");
        let awaited = "waiting for n0000 (NodeNotReady: the next attempt starts once its node is Ready)";
        assert!(said.contains(awaited) && stage.unit("n0000").not_ready_since.is_some(), "{said}");
        stage.set_ready("n0000", true);
        stage.settle();
        assert_eq!((stage.names(), stage.unit("n0000").message.as_str()), (vec!["d-n0000", "d-n0000-r1"], ""));
        stage.succeed("n0000");
        assert_eq!(stage.started().last(), Some(&"n0001"), "{policy}");
    }
}

#[test]
fn a_retry_whose_node_is_not_ready_in_time_fails_and_frees_its_slot() {
    let retried = json!({"limit": 1, "backoffSeconds": 10});
    let policy = json!({"type": "Continue"});
    let mut stage =
        of(json!({"concurrency": 1, "nodeTimeoutSeconds": 60, "retryPolicy": retried, "failurePolicy": policy}), 2);
    stage.settle();
    stage.fail("n0000");
    stage.set_ready("n0000", false);
    stage.pass(10);
    stage.pass(59);
    stage.restart();
    stage.settle();
    assert_eq!((stage.state_of("n0000"), stage.created.len()), (UnitState::Retrying, 1));
    stage.wake();
    assert_eq!((stage.end_of("n0000").as_str(), stage.started().last()), ("Failed/NodeNotReady", Some(&"n0001")));
    assert!(stage.unit("n0000").message.starts_with("the node was not Ready for 60 s"));
}

#[test]
fn a_retry_that_waits_for_its_node_is_given_up_with_the_failure_that_it_had() {
    let mut stage = of(json!({"retryPolicy": {"limit": 1, "infraLimit": 0, "backoffSeconds": 10}}), 2);
    stage.settle();
    let report = PodReport { message: "exit code 3".to_owned(), is_infrastructure: false };
    stage.pods.insert("d-n0000".to_owned(), report);
    stage.fail("n0000");
    let said = stage.unit("n0000").message.clone();
    stage.set_ready("n0000", false);
    stage.pass(10);
    let shown = stage.message("Progressing");
    assert!(shown.contains("once its node is Ready; before: exit code 3)"), "{shown}");
    stage.restart();
    stage.evict("n0001");
    let message = format!("it is not tried again, because another failed; {said}");
    assert_eq!(
        (stage.end_of("n0000").as_str(), &stage.unit("n0000").message),
        ("Failed/BackoffLimitExceeded", &message)
    );
    assert!(stage.unit("n0000").not_ready_since.is_none());
}

#[test]
fn a_node_whose_retry_was_refused_is_waited_for_and_not_left_out() {
    let retried = json!({"limit": 1, "backoffSeconds": 10});
    let mut stage = of(json!({"notReadyPolicy": "Skip", "retryPolicy": retried}), 1);
    stage.settle();
    stage.fail("n0000");
    stage.now = stage.plan().due.unwrap();
    let revision = stage.plan().creates[0].revision.clone();
    let refused = Refused::again(None, Cause::new("Rejected", "no"), (revision, false), stage.now);
    stage.memory.refused.insert("n0000".to_owned(), refused);
    stage.settle();
    assert_eq!(stage.end_of("n0000"), "Blocked/Rejected");
    stage.set_ready("n0000", false);
    stage.settle();
    assert_eq!((stage.end_of("n0000").as_str(), stage.created.len()), ("Waiting/NodeNotReady", 1));
}
