//! Failure, attempts and time: A5, A21, A25, the policies, and `suspend`.

use oarlock_core::attempts::unit::UnitState;
use oarlock_core::object::time::write_time;
use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::fixture::make::{flow, last, plain, step, with};

#[test]
fn one_of_two_failed_roots_fails_the_flow_at_once_and_the_other_one_ends() {
    let mut fixture = Fixture::flow(plain(&[("a", &[]), ("b", &[]), ("c", &["b"])]));
    fixture.settle();
    fixture.fail("a");
    assert_eq!((fixture.state(), fixture.condition("Failed").as_str()), ("Failed", "False/InProgress"));
    assert_eq!((fixture.end_of("c").as_str(), fixture.state_of("b")), ("Omitted/FlowFailed", UnitState::Pending));
    assert_eq!(
        (fixture.condition("Progressing").as_str(), fixture.condition("Reconciling").as_str()),
        ("True/WindingDown", "True/WindingDown")
    );
    assert!(fixture.parent.status.get("completionTime").is_none());
    fixture.succeed("b");
    assert_eq!((fixture.end_of("b").as_str(), fixture.condition("Failed").as_str()), ("Succeed", "True/StepFailed"));
    assert_eq!(
        (fixture.condition("Stalled").as_str(), fixture.condition("Reconciling").as_str()),
        ("True/StepFailed", "")
    );
    assert!(fixture.parent.status.get("completionTime").is_some());
    assert_eq!((fixture.events("Failed"), fixture.events("StepFailed")), (1, 1));
}

#[test]
fn an_eviction_uses_another_budget_than_failures_of_the_work() {
    let retried = json!({"retryPolicy": {"limit": 2, "infraLimit": 1, "backoffSeconds": 10}});
    let mut fixture = Fixture::flow(flow([step("a", &[], retried)], json!({})));
    fixture.settle();
    fixture.evict("a");
    assert_eq!(fixture.end_of("a"), "Retrying/InfrastructureFailure");
    fixture.wake();
    fixture.fail("a");
    fixture.wake();
    fixture.fail("a");
    assert_eq!(fixture.state_of("a"), UnitState::Retrying);
    fixture.pass(19);
    assert_eq!(fixture.created.len(), 3);
    fixture.pass(1);
    assert_eq!(fixture.names(), ["f-a", "f-a-r1", "f-a-r2", "f-a-r3"]);
    fixture.succeed("a");
    assert_eq!((fixture.state(), fixture.unit("a").attempt, fixture.listed), ("Succeed", 3, 3));
    assert_eq!(fixture.events("Retrying"), 3);
}

#[test]
fn an_eviction_counts_as_one_though_the_pod_is_gone_when_the_failure_is_confirmed() {
    let retried = json!({"retryPolicy": {"limit": 0, "infraLimit": 1, "backoffSeconds": 10}});
    for restarts in [false, true] {
        let mut fixture = Fixture::flow(flow([step("a", &[], retried.clone())], json!({})));
        fixture.settle();
        fixture.announce_eviction("a");
        assert_eq!(fixture.end_of("a"), "Running/InfrastructureFailure");
        if restarts {
            fixture.restart();
        }
        fixture.fail("a");
        assert_eq!(fixture.end_of("a"), "Retrying/InfrastructureFailure");
        assert!(fixture.unit("a").message.contains("Evicted"), "{}", fixture.unit("a").message);
        fixture.wake();
        fixture.fail("a");
        assert_eq!(fixture.end_of("a"), "Failed/BackoffLimitExceeded", "the second one is not the infrastructure's");
        assert_eq!(fixture.listed, 2);
    }
}

#[test]
fn a_limit_that_is_used_up_fails_the_step() {
    let retried = json!({"retryPolicy": {"limit": 1, "infraLimit": 1}});
    let mut fixture = Fixture::flow(flow([step("a", &[], retried)], json!({})));
    fixture.settle();
    for _ in 0..2 {
        fixture.evict("a");
        if fixture.state_of("a") == UnitState::Retrying {
            fixture.wake();
        }
    }
    assert_eq!((fixture.state(), fixture.created.len()), ("Failed", 2));
}

#[test]
fn the_back_off_holds_across_a_restart() {
    let retried = json!({"retryPolicy": {"limit": 2, "backoffSeconds": 40}});
    let mut fixture = Fixture::flow(flow([step("a", &[], retried)], json!({})));
    fixture.settle();
    fixture.fail("a");
    fixture.pass(30);
    fixture.restart();
    fixture.pass(9);
    assert_eq!(fixture.created.len(), 1);
    fixture.pass(1);
    assert_eq!(fixture.created.len(), 2);
}

#[test]
fn no_new_attempt_starts_once_the_flow_failed() {
    let retried = json!({"retryPolicy": {"limit": 5}});
    let mut fixture = Fixture::flow(flow([step("a", &[], retried), step("b", &[], json!({}))], json!({})));
    fixture.settle();
    fixture.fail("a");
    assert_eq!(fixture.state_of("a"), UnitState::Retrying);
    fixture.fail("b");
    fixture.pass(3_600);
    assert_eq!((fixture.created.len(), fixture.end_of("a").as_str()), (2, "Failed/BackoffLimitExceeded"));
    assert_eq!(fixture.condition("Failed"), "True/StepFailed");
}

#[test]
fn under_continue_other_branches_run_to_their_end() {
    let steps = [
        step("a", &[], json!({})),
        step("b", &[], json!({})),
        step("c", &["b"], json!({})),
        step("d", &["a"], json!({})),
    ];
    let mut fixture = Fixture::flow(flow(steps, json!({"failurePolicy": {"type": "Continue"}})));
    fixture.settle();
    fixture.fail("a");
    assert_eq!((fixture.state(), fixture.end_of("d").as_str()), ("Running", "Omitted/DependencyNotMet"));
    fixture.succeed("b");
    assert_eq!(fixture.started(), ["a", "b", "c"]);
    fixture.succeed("c");
    assert_eq!((fixture.state(), fixture.condition("Failed").as_str()), ("Failed", "True/StepFailed"));
}

fn paused() -> Fixture {
    let steps = [
        step("a", &[], json!({})),
        step("b", &[], json!({"retryPolicy": {"limit": 3}})),
        step("c", &["a"], json!({})),
        step("d", &["b"], json!({})),
    ];
    let mut fixture = Fixture::flow(flow(steps, json!({"failurePolicy": {"type": "Pause"}})));
    fixture.settle();
    fixture.fail("a");
    fixture
}

#[test]
fn under_pause_nothing_new_starts_until_a_retry() {
    let mut fixture = paused();
    fixture.succeed("b");
    assert_eq!((fixture.state(), fixture.condition("Paused").as_str()), ("Running", "True/FailurePolicy"));
    assert_eq!((fixture.started(), fixture.condition("Reconciling").as_str()), (vec!["a", "b"], "True/Paused"));
    assert_eq!(fixture.condition("Progressing"), "False/AtRest");
    fixture.retry("1");
    assert_eq!(
        (fixture.condition("Paused").as_str(), fixture.started()[2..].to_vec()),
        ("False/InProgress", vec!["a", "d"])
    );
    assert_eq!((fixture.events("Paused"), fixture.events("Resumed")), (1, 1));
    fixture.succeed("a");
    fixture.succeed("c");
    fixture.succeed("d");
    assert_eq!(fixture.state(), "Succeed");
}

#[test]
fn under_pause_the_last_failure_waits_for_a_retry_too_and_finally_with_it() {
    let more = json!({"failurePolicy": {"type": "Pause"}, "finally": [last("z", json!({"when": "success"}))]});
    let mut fixture = Fixture::flow(flow([step("a", &[], json!({})), step("b", &[], json!({}))], more));
    fixture.settle();
    fixture.succeed("b");
    fixture.fail("a");
    assert_eq!((fixture.state(), fixture.condition("Paused").as_str()), ("Running", "True/FailurePolicy"));
    assert_eq!((fixture.condition("Failed").as_str(), fixture.end_of("z").as_str()), ("False/InProgress", "Waiting"));
    assert!(fixture.parent.status.get("completionTime").is_none());
    assert_eq!((fixture.events("Failed"), fixture.events("Paused")), (0, 1));
    fixture.restart();
    fixture.retry("1/a");
    fixture.succeed("a");
    fixture.succeed("z");
    assert_eq!((fixture.state(), fixture.started()), ("Succeed", vec!["a", "b", "a", "z"]));
}

#[test]
fn under_pause_a_flow_that_has_nothing_left_to_start_fails_by_another_policy() {
    let mut fixture = Fixture::flow(flow([step("a", &[], json!({}))], json!({"failurePolicy": {"type": "Pause"}})));
    fixture.settle();
    fixture.fail("a");
    assert_eq!((fixture.state(), fixture.condition("Stalled").as_str()), ("Running", ""));
    fixture.edit("/failurePolicy/type", json!("Continue"));
    fixture.settle();
    assert_eq!((fixture.state(), fixture.condition("Failed").as_str()), ("Failed", "True/StepFailed"));
    assert_eq!(fixture.condition("Paused"), "False/AtRest");
}

#[test]
fn under_pause_another_policy_goes_on() {
    let mut fixture = paused();
    fixture.succeed("b");
    fixture.edit("/failurePolicy/type", json!("Continue"));
    fixture.settle();
    assert_eq!((fixture.started(), fixture.end_of("c").as_str()), (vec!["a", "b", "d"], "Omitted/DependencyNotMet"));
}

#[test]
fn under_pause_an_attempt_that_waits_is_held_and_not_given_up() {
    let mut fixture = paused();
    fixture.fail("b");
    fixture.pass(3_600);
    assert_eq!((fixture.state_of("b"), fixture.created.len()), (UnitState::Retrying, 2));
    fixture.retry("1");
    assert_eq!(fixture.started()[2..], ["a", "b"]);
}

fn timed() -> Fixture {
    let steps = [
        step("a", &[], json!({})),
        step("b", &[], json!({"jobTemplate": with(crate::fixture::make::job(), json!({"suspend": true}))})),
        step("c", &["a"], json!({})),
        step("d", &[], json!({})),
    ];
    Fixture::flow(flow(steps, json!({"timeoutSeconds": 60, "finally": [last("z", json!({}))]})))
}

/// Returns a flow of a step with a timeout of 20 s whose Job is suspended.
fn suspended(more: Value) -> Fixture {
    let job = with(crate::fixture::make::job(), json!({"suspend": true}));
    Fixture::flow(flow([step("a", &[], json!({"timeoutSeconds": 20, "jobTemplate": job}))], more))
}

#[test]
fn the_time_of_a_step_ends_a_job_that_is_suspended_and_the_job_stays() {
    let mut fixture = suspended(json!({}));
    fixture.settle();
    fixture.pass(19);
    assert_eq!(
        (fixture.state_of("a"), fixture.unit("a").message.as_str()),
        (UnitState::Pending, "its Job is suspended")
    );
    fixture.pass(1);
    assert_eq!(fixture.changed, [("stop", "f-a".to_owned())]);
    fixture.settle();
    assert_eq!(fixture.changed.len(), 1, "it is stopped once");
    fixture.fail("a");
    assert_eq!((fixture.end_of("a").as_str(), fixture.changed.len()), ("Failed/BackoffLimitExceeded", 1));
    assert!(fixture.unit("a").message.contains("its Job is suspended"), "{}", fixture.unit("a").message);
}

/// The host does not fight a user who suspends Jobs again and again.
#[test]
fn a_job_that_is_suspended_anew_after_it_was_stopped_is_deleted() {
    let mut fixture = suspended(json!({}));
    fixture.settle();
    fixture.pass(20);
    fixture.objects.get_mut("f-a").unwrap()["spec"]["suspend"] = true.into();
    fixture.show("f-a");
    fixture.settle();
    assert_eq!(fixture.changed, [("stop", "f-a".to_owned()), ("delete", "f-a".to_owned())]);
    assert_eq!(fixture.end_of("a"), "Failed/JobDeleted");
}

#[test]
fn the_time_of_a_node_ends_a_job_that_is_suspended() {
    let more = json!({"suspend": true, "rollout": {"nodeTimeoutSeconds": 20}});
    let mut fixture = Fixture::daemon(with(crate::fixture::make::job(), more), ["n1"]);
    fixture.settle();
    fixture.pass(20);
    assert_eq!(fixture.changed.iter().map(|(word, _)| *word).collect::<Vec<_>>(), ["stop"]);
}

#[test]
fn a_job_in_a_queue_has_its_time_once_it_is_admitted_and_says_where_it_waits() {
    let mut fixture = suspended(json!({"globalParams": {"labels": {"kueue.x-k8s.io/queue-name": "gpus"}}}));
    fixture.settle();
    fixture.pass(500);
    let told = "its Job waits for queue gpus";
    assert_eq!((fixture.state_of("a"), fixture.unit("a").message.as_str()), (UnitState::Pending, told));
    assert_eq!(fixture.changed, []);
}

/// Source: <https://github.com/tektoncd/pipeline/issues/3898>.
#[test]
fn a_job_that_can_have_no_pods_says_why() {
    let cases = [
        (json!({"managedBy": "example.com/other"}), "its Job waits for example.com/other"),
        (json!({"managedBy": "kubernetes.io/job-controller"}), ""),
        (json!({"parallelism": 0}), "its Job asks for no pods: its parallelism is 0"),
    ];
    for (fields, told) in cases {
        let job = with(crate::fixture::make::job(), fields);
        let mut fixture = Fixture::flow(flow([step("a", &[], json!({"jobTemplate": job}))], json!({})));
        fixture.settle();
        assert_eq!(fixture.unit("a").message, told);
    }
}

#[test]
fn a_step_whose_further_attempts_were_left_out_says_so() {
    let retried = json!({"retryPolicy": {"limit": 2, "backoffSeconds": 5}});
    let mut fixture = Fixture::flow(flow([step("one", &[], retried), step("two", &[], json!({}))], json!({})));
    fixture.settle();
    fixture.fail("one");
    assert_eq!(fixture.state_of("one"), UnitState::Retrying);
    fixture.fail("two");
    assert_eq!(fixture.end_of("one"), "Failed/BackoffLimitExceeded");
    let said = &fixture.unit("one").message;
    assert!(said.starts_with("it is not tried again, because another failed"), "{said}");
    assert!(!fixture.unit("two").message.contains("not tried again"));
}

/// Source: <https://github.com/kubernetes/kubernetes/issues/79152>.
#[test]
fn a_job_with_a_selector_of_its_own_is_not_made() {
    let job = with(crate::fixture::make::job(), json!({"manualSelector": true}));
    let mut fixture = Fixture::flow(flow([step("a", &[], json!({"jobTemplate": job}))], json!({})));
    fixture.settle();
    assert_eq!(fixture.end_of("a"), "Blocked/Rejected");
    assert!(fixture.unit("a").message.contains("take it out"), "{}", fixture.unit("a").message);
}

#[test]
fn a_retry_by_hand_while_it_is_suspended_begins_the_suspended_time_anew() {
    let mut fixture = timed();
    fixture.settle();
    fixture.pass(60);
    ["a", "d"].into_iter().for_each(|unit| fixture.fail(unit));
    fixture.succeed("z");
    fixture.edit("/suspend", json!(true));
    fixture.settle();
    fixture.pass(500);
    fixture.retry("now");
    fixture.pass(10);
    fixture.edit("/suspend", json!(false));
    fixture.settle();
    // A Job without active pods is checked earlier.
    ["a", "d"].into_iter().for_each(|unit| fixture.run(unit));
    let plan = fixture.settle();
    assert_eq!(plan.header.suspended_seconds, 10);
    assert_eq!(
        plan.due.map(write_time).as_deref(),
        Some("2026-01-01T00:10:30Z"),
        "60 s after the retry at 09:20, and 10 more"
    );
}

#[test]
fn a_flow_that_is_out_of_time_stops_its_children_and_runs_finally() {
    let mut fixture = timed();
    fixture.settle();
    fixture.succeed("d");
    fixture.pass(10);
    fixture.edit("/suspend", json!(true));
    fixture.settle();
    assert_eq!(fixture.plan().due, None);
    fixture.pass(30);
    fixture.edit("/suspend", json!(false));
    let plan = fixture.settle();
    assert_eq!(plan.due.map(write_time).as_deref(), Some("2026-01-01T00:01:30Z"));
    fixture.pass(49);
    assert_eq!(fixture.state_of("a"), UnitState::Pending);
    fixture.pass(1);
    assert_eq!(fixture.changed, [("stop", "f-a".to_owned()), ("stop", "f-b".to_owned())]);
    for step in ["a", "b"] {
        assert_eq!(fixture.object_of(step)["spec"]["activeDeadlineSeconds"], 1);
    }
    assert_eq!(fixture.object_of("b")["spec"]["suspend"], false, "else its time would not begin");
    let ends: Vec<String> = ["a", "b", "c", "d"].map(|step| fixture.end_of(step)).into();
    assert_eq!(ends, ["Failed/FlowTimeout", "Failed/FlowTimeout", "Omitted/FlowTimeout", "Succeed"]);
    assert_eq!((fixture.started().last().copied(), fixture.events("Timeout")), (Some("z"), 1));
    fixture.succeed("z");
    let stops = "waiting for the Jobs that were told to stop to end";
    assert!(fixture.message("Progressing").ends_with(stops), "{}", fixture.message("Progressing"));
    fixture.fail("a");
    fixture.fail("b");
    assert_eq!(
        (fixture.condition("Failed").as_str(), fixture.end_of("a").as_str()),
        ("True/FlowTimeout", "Failed/FlowTimeout")
    );
    assert_eq!(fixture.state(), "Failed");
}

#[test]
fn a_flow_that_was_out_of_time_says_which_limit_that_was_whatever_it_is_now() {
    for limit in [Value::Null, json!(7_200)] {
        let mut fixture = Fixture::flow(flow([step("a", &[], json!({}))], json!({"timeoutSeconds": 60})));
        fixture.settle();
        fixture.pass(60);
        fixture.fail("a");
        fixture.edit("/timeoutSeconds", limit);
        fixture.settle();
        assert_eq!(fixture.condition("Failed"), "True/FlowTimeout");
        assert_eq!(fixture.message("Failed"), "the flow did not end within 60 s");
    }
}

#[test]
fn finally_is_outside_of_the_time_of_the_flow() {
    let mut fixture = timed();
    fixture.settle();
    ["a", "b", "d", "c"].into_iter().for_each(|step| fixture.succeed(step));
    fixture.pass(3_600);
    assert_eq!(fixture.state_of("z"), UnitState::Pending);
    fixture.succeed("z");
    assert_eq!(fixture.state(), "Succeed");
}

#[test]
fn a_retry_after_the_timeout_gives_the_flow_its_time_again() {
    for token in ["1", "1/a"] {
        let mut fixture = timed();
        fixture.settle();
        fixture.pass(60);
        ["a", "b", "d"].into_iter().for_each(|unit| fixture.fail(unit));
        fixture.succeed("z");
        assert_eq!(fixture.condition("Failed"), "True/FlowTimeout");
        fixture.retry(token);
        assert!(fixture.names().contains(&"f-a-r1"), "{token}: {:?}", fixture.states());
        fixture.pass(59);
        fixture.succeed("a");
        assert_eq!(fixture.end_of("a"), "Succeed");
    }
}

#[test]
fn a_retry_while_finally_runs_after_the_timeout_gives_the_flow_its_time_again() {
    let mut fixture = timed();
    fixture.settle();
    fixture.pass(60);
    assert_eq!(fixture.state_of("z"), UnitState::Pending);
    fixture.retry("1");
    assert_eq!((fixture.child_of("a").as_str(), fixture.state()), ("f-a-r1", "Pending"));
}

#[test]
fn a_suspended_flow_starts_nothing_and_its_children_go_on() {
    let mut fixture = Fixture::flow(plain(&[("a", &[]), ("b", &["a"])]));
    fixture.settle();
    fixture.edit("/suspend", json!(true));
    fixture.succeed("a");
    assert_eq!((fixture.started(), fixture.condition("Paused").as_str()), (vec!["a"], "True/BySpec"));
    assert_eq!((fixture.state(), fixture.condition("Reconciling").as_str()), ("Running", "True/Paused"));
    fixture.restart();
    fixture.pass(100);
    fixture.edit("/suspend", json!(false));
    fixture.settle();
    assert_eq!((fixture.started(), fixture.parent.status["suspendedSeconds"].clone()), (vec!["a", "b"], json!(100)));
    assert_eq!((fixture.events("Paused"), fixture.events("Resumed")), (1, 1));
}

#[test]
fn a_flow_that_is_suspended_from_the_start_is_pending() {
    let mut fixture = Fixture::flow(flow([step("a", &[], json!({}))], json!({"suspend": true})));
    fixture.settle();
    assert_eq!(
        (fixture.state(), fixture.created.len(), fixture.condition("Complete").as_str()),
        ("Pending", 0, "False/InProgress")
    );
}

#[test]
fn an_announced_end_decides_after_a_minute() {
    for (kind, end) in [("FailureTarget", "Failed/PodFailurePolicy"), ("SuccessCriteriaMet", "Succeed")] {
        let mut fixture = Fixture::flow(plain(&[("a", &[])]));
        fixture.settle();
        fixture.set_condition("f-a", kind, "PodFailurePolicy");
        fixture.settle();
        fixture.pass(59);
        assert!(!fixture.state_of("a").is_terminal());
        fixture.wake();
        assert_eq!(fixture.end_of("a"), end);
    }
}

#[test]
fn the_limit_of_an_attempt_is_the_smaller_one() {
    for (own, limit, deadline) in [(json!(20), json!(30), 20), (json!(40), json!(30), 30), (Value::Null, json!(30), 30)]
    {
        let timed = with(crate::fixture::make::job(), json!({"activeDeadlineSeconds": own}));
        let steps = [json!({"name": "a", "jobTemplate": timed, "timeoutSeconds": limit})];
        let mut fixture = Fixture::flow(flow(steps, json!({})));
        fixture.settle();
        assert_eq!(fixture.object_of("a")["spec"]["activeDeadlineSeconds"], deadline);
    }
}

#[test]
fn each_timeout_is_told_also_of_a_flow_that_had_failed() {
    let mut fixture = timed();
    fixture.settle();
    fixture.fail("d");
    assert_eq!((fixture.state(), fixture.events("Timeout")), ("Failed", 0));
    fixture.pass(60);
    assert_eq!(fixture.events("Timeout"), 1);
    fixture.fail("a");
    fixture.succeed("z");
    fixture.retry("1/a");
    assert_eq!((fixture.state_of("a"), fixture.end_of("b").as_str()), (UnitState::Pending, "Failed/FlowTimeout"));
    fixture.pass(60);
    assert_eq!((fixture.end_of("a").as_str(), fixture.events("Timeout")), ("Failed/FlowTimeout", 2));
}
