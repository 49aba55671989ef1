//! Failure, attempts and time: A5, A21, A25, the policies, and `suspend`.

use oarlock_core::child::unit::UnitState;
use oarlock_core::job::time::write_time;
use serde_json::{Value, json};

use crate::stage::Stage;
use crate::stage::make::{flow, last, plain, step, with};

#[test]
fn one_of_two_failed_roots_fails_the_flow_at_once_and_the_other_one_ends() {
    let mut stage = Stage::flow(plain(&[("a", &[]), ("b", &[]), ("c", &["b"])]));
    stage.settle();
    stage.fail("a");
    assert_eq!((stage.state(), stage.condition("Failed").as_str()), ("Failed", "False/InProgress"));
    assert_eq!((stage.end_of("c").as_str(), stage.state_of("b")), ("Omitted/FlowFailed", UnitState::Pending));
    assert_eq!(
        (stage.condition("Progressing").as_str(), stage.condition("Reconciling").as_str()),
        ("True/WindingDown", "True/WindingDown")
    );
    assert!(stage.parent.status.get("completionTime").is_none());
    stage.succeed("b");
    assert_eq!((stage.end_of("b").as_str(), stage.condition("Failed").as_str()), ("Succeed", "True/StepFailed"));
    assert_eq!((stage.condition("Stalled").as_str(), stage.condition("Reconciling").as_str()), ("True/StepFailed", ""));
    assert!(stage.parent.status.get("completionTime").is_some());
    assert_eq!((stage.events("Failed"), stage.events("StepFailed")), (1, 1));
}

#[test]
fn an_eviction_uses_another_budget_than_failures_of_the_work() {
    let retried = json!({"retryPolicy": {"limit": 2, "infraLimit": 1, "backoffSeconds": 10}});
    let mut stage = Stage::flow(flow([step("a", &[], retried)], json!({})));
    stage.settle();
    stage.evict("a");
    assert_eq!(stage.end_of("a"), "Retrying/InfrastructureFailure");
    stage.wake();
    stage.fail("a");
    stage.wake();
    stage.fail("a");
    assert_eq!(stage.state_of("a"), UnitState::Retrying);
    stage.pass(19);
    assert_eq!(stage.created.len(), 3);
    stage.pass(1);
    assert_eq!(stage.names(), ["f-a", "f-a-r1", "f-a-r2", "f-a-r3"]);
    stage.succeed("a");
    assert_eq!((stage.state(), stage.unit("a").attempt, stage.listed), ("Succeed", 3, 3));
    assert_eq!(stage.events("Retrying"), 3);
}

#[test]
fn an_eviction_counts_as_one_though_the_pod_is_gone_when_the_failure_is_confirmed() {
    let retried = json!({"retryPolicy": {"limit": 0, "infraLimit": 1, "backoffSeconds": 10}});
    for restarts in [false, true] {
        let mut stage = Stage::flow(flow([step("a", &[], retried.clone())], json!({})));
        stage.settle();
        stage.announce_eviction("a");
        assert_eq!(stage.end_of("a"), "Running/InfrastructureFailure");
        if restarts {
            stage.restart();
        }
        stage.fail("a");
        assert_eq!(stage.end_of("a"), "Retrying/InfrastructureFailure");
        assert!(stage.unit("a").message.contains("Evicted"), "{}", stage.unit("a").message);
        stage.wake();
        stage.fail("a");
        assert_eq!(stage.end_of("a"), "Failed/BackoffLimitExceeded", "the second one is not the infrastructure's");
        assert_eq!(stage.listed, 2);
    }
}

#[test]
fn a_limit_that_is_used_up_fails_the_step() {
    let retried = json!({"retryPolicy": {"limit": 1, "infraLimit": 1}});
    let mut stage = Stage::flow(flow([step("a", &[], retried)], json!({})));
    stage.settle();
    for _ in 0..2 {
        stage.evict("a");
        if stage.state_of("a") == UnitState::Retrying {
            stage.wake();
        }
    }
    assert_eq!((stage.state(), stage.created.len()), ("Failed", 2));
}

#[test]
fn the_back_off_holds_across_a_restart() {
    let retried = json!({"retryPolicy": {"limit": 2, "backoffSeconds": 40}});
    let mut stage = Stage::flow(flow([step("a", &[], retried)], json!({})));
    stage.settle();
    stage.fail("a");
    stage.pass(30);
    stage.restart();
    stage.pass(9);
    assert_eq!(stage.created.len(), 1);
    stage.pass(1);
    assert_eq!(stage.created.len(), 2);
}

#[test]
fn no_new_attempt_starts_once_the_flow_failed() {
    let retried = json!({"retryPolicy": {"limit": 5}});
    let mut stage = Stage::flow(flow([step("a", &[], retried), step("b", &[], json!({}))], json!({})));
    stage.settle();
    stage.fail("a");
    assert_eq!(stage.state_of("a"), UnitState::Retrying);
    stage.fail("b");
    stage.pass(3_600);
    assert_eq!((stage.created.len(), stage.end_of("a").as_str()), (2, "Failed/BackoffLimitExceeded"));
    assert_eq!(stage.condition("Failed"), "True/StepFailed");
}

#[test]
fn under_continue_other_branches_run_to_their_end() {
    let steps = [
        step("a", &[], json!({})),
        step("b", &[], json!({})),
        step("c", &["b"], json!({})),
        step("d", &["a"], json!({})),
    ];
    let mut stage = Stage::flow(flow(steps, json!({"failurePolicy": {"type": "Continue"}})));
    stage.settle();
    stage.fail("a");
    assert_eq!((stage.state(), stage.end_of("d").as_str()), ("Running", "Omitted/DependencyNotMet"));
    stage.succeed("b");
    assert_eq!(stage.started(), ["a", "b", "c"]);
    stage.succeed("c");
    assert_eq!((stage.state(), stage.condition("Failed").as_str()), ("Failed", "True/StepFailed"));
}

fn paused() -> Stage {
    let steps = [
        step("a", &[], json!({})),
        step("b", &[], json!({"retryPolicy": {"limit": 3}})),
        step("c", &["a"], json!({})),
        step("d", &["b"], json!({})),
    ];
    let mut stage = Stage::flow(flow(steps, json!({"failurePolicy": {"type": "Pause"}})));
    stage.settle();
    stage.fail("a");
    stage
}

#[test]
fn under_pause_nothing_new_starts_until_a_retry() {
    let mut stage = paused();
    stage.succeed("b");
    assert_eq!((stage.state(), stage.condition("Paused").as_str()), ("Running", "True/FailurePolicy"));
    assert_eq!((stage.started(), stage.condition("Reconciling").as_str()), (vec!["a", "b"], "True/Paused"));
    assert_eq!(stage.condition("Progressing"), "False/AtRest");
    stage.retry("1");
    assert_eq!(
        (stage.condition("Paused").as_str(), stage.started()[2..].to_vec()),
        ("False/InProgress", vec!["a", "d"])
    );
    assert_eq!((stage.events("Paused"), stage.events("Resumed")), (1, 1));
    stage.succeed("a");
    stage.succeed("c");
    stage.succeed("d");
    assert_eq!(stage.state(), "Succeed");
}

#[test]
fn under_pause_the_last_failure_waits_for_a_retry_too_and_finally_with_it() {
    let more = json!({"failurePolicy": {"type": "Pause"}, "finally": [last("z", json!({"when": "success"}))]});
    let mut stage = Stage::flow(flow([step("a", &[], json!({})), step("b", &[], json!({}))], more));
    stage.settle();
    stage.succeed("b");
    stage.fail("a");
    assert_eq!((stage.state(), stage.condition("Paused").as_str()), ("Running", "True/FailurePolicy"));
    assert_eq!((stage.condition("Failed").as_str(), stage.end_of("z").as_str()), ("False/InProgress", "Waiting"));
    assert!(stage.parent.status.get("completionTime").is_none());
    assert_eq!((stage.events("Failed"), stage.events("Paused")), (0, 1));
    stage.restart();
    stage.retry("1/a");
    stage.succeed("a");
    stage.succeed("z");
    assert_eq!((stage.state(), stage.started()), ("Succeed", vec!["a", "b", "a", "z"]));
}

#[test]
fn under_pause_a_flow_that_has_nothing_left_to_start_fails_by_another_policy() {
    let mut stage = Stage::flow(flow([step("a", &[], json!({}))], json!({"failurePolicy": {"type": "Pause"}})));
    stage.settle();
    stage.fail("a");
    assert_eq!((stage.state(), stage.condition("Stalled").as_str()), ("Running", ""));
    stage.edit("/failurePolicy/type", json!("Continue"));
    stage.settle();
    assert_eq!((stage.state(), stage.condition("Failed").as_str()), ("Failed", "True/StepFailed"));
    assert_eq!(stage.condition("Paused"), "False/AtRest");
}

#[test]
fn under_pause_another_policy_goes_on() {
    let mut stage = paused();
    stage.succeed("b");
    stage.edit("/failurePolicy/type", json!("Continue"));
    stage.settle();
    assert_eq!((stage.started(), stage.end_of("c").as_str()), (vec!["a", "b", "d"], "Omitted/DependencyNotMet"));
}

#[test]
fn under_pause_an_attempt_that_waits_is_held_and_not_given_up() {
    let mut stage = paused();
    stage.fail("b");
    stage.pass(3_600);
    assert_eq!((stage.state_of("b"), stage.created.len()), (UnitState::Retrying, 2));
    stage.retry("1");
    assert_eq!(stage.started()[2..], ["a", "b"]);
}

fn timed() -> Stage {
    let steps = [
        step("a", &[], json!({})),
        step("b", &[], json!({"jobTemplate": with(crate::stage::make::job(), json!({"suspend": true}))})),
        step("c", &["a"], json!({})),
        step("d", &[], json!({})),
    ];
    Stage::flow(flow(steps, json!({"timeoutSeconds": 60, "finally": [last("z", json!({}))]})))
}

/// A flow of a step of 20 s whose Job is suspended.
fn suspended(more: Value) -> Stage {
    let job = with(crate::stage::make::job(), json!({"suspend": true}));
    Stage::flow(flow([step("a", &[], json!({"timeoutSeconds": 20, "jobTemplate": job}))], more))
}

#[test]
fn the_time_of_a_step_ends_a_job_that_is_suspended_and_the_job_stays() {
    let mut stage = suspended(json!({}));
    stage.settle();
    stage.pass(19);
    assert_eq!((stage.state_of("a"), stage.unit("a").message.as_str()), (UnitState::Pending, "its Job is suspended"));
    stage.pass(1);
    assert_eq!(stage.changed, [("stop", "f-a".to_owned())]);
    stage.settle();
    assert_eq!(stage.changed.len(), 1, "it is stopped once");
    stage.fail("a");
    assert_eq!((stage.end_of("a").as_str(), stage.changed.len()), ("Failed/BackoffLimitExceeded", 1));
    assert!(stage.unit("a").message.contains("its Job is suspended"), "{}", stage.unit("a").message);
}

/// Whoever suspends Jobs again and again is not fought.
#[test]
fn a_job_that_is_suspended_anew_after_it_was_stopped_is_deleted() {
    let mut stage = suspended(json!({}));
    stage.settle();
    stage.pass(20);
    stage.objects.get_mut("f-a").unwrap()["spec"]["suspend"] = true.into();
    stage.show("f-a");
    stage.settle();
    assert_eq!(stage.changed, [("stop", "f-a".to_owned()), ("delete", "f-a".to_owned())]);
    assert_eq!(stage.end_of("a"), "Failed/JobDeleted");
}

#[test]
fn the_time_of_a_node_ends_a_job_that_is_suspended() {
    let more = json!({"suspend": true, "rollout": {"nodeTimeoutSeconds": 20}});
    let mut stage = Stage::daemon(with(crate::stage::make::job(), more), ["n1"]);
    stage.settle();
    stage.pass(20);
    assert_eq!(stage.changed.iter().map(|(word, _)| *word).collect::<Vec<_>>(), ["stop"]);
}

#[test]
fn a_job_in_a_queue_has_its_time_once_it_is_admitted_and_says_where_it_waits() {
    let mut stage = suspended(json!({"globalParams": {"labels": {"kueue.x-k8s.io/queue-name": "gpus"}}}));
    stage.settle();
    stage.pass(500);
    let told = "its Job waits for queue gpus";
    assert_eq!((stage.state_of("a"), stage.unit("a").message.as_str()), (UnitState::Pending, told));
    assert_eq!(stage.changed, []);
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
        let job = with(crate::stage::make::job(), fields);
        let mut stage = Stage::flow(flow([step("a", &[], json!({"jobTemplate": job}))], json!({})));
        stage.settle();
        assert_eq!(stage.unit("a").message, told);
    }
}

#[test]
fn a_step_whose_further_attempts_were_left_out_says_so() {
    let retried = json!({"retryPolicy": {"limit": 2, "backoffSeconds": 5}});
    let mut stage = Stage::flow(flow([step("one", &[], retried), step("two", &[], json!({}))], json!({})));
    stage.settle();
    stage.fail("one");
    assert_eq!(stage.state_of("one"), UnitState::Retrying);
    stage.fail("two");
    assert_eq!(stage.end_of("one"), "Failed/BackoffLimitExceeded");
    let said = &stage.unit("one").message;
    assert!(said.starts_with("it is not tried again, because another failed"), "{said}");
    assert!(!stage.unit("two").message.contains("not tried again"));
}

/// Source: <https://github.com/kubernetes/kubernetes/issues/79152>.
#[test]
fn a_job_with_a_selector_of_its_own_is_not_made() {
    let job = with(crate::stage::make::job(), json!({"manualSelector": true}));
    let mut stage = Stage::flow(flow([step("a", &[], json!({"jobTemplate": job}))], json!({})));
    stage.settle();
    assert_eq!(stage.end_of("a"), "Blocked/Rejected");
    assert!(stage.unit("a").message.contains("take it out"), "{}", stage.unit("a").message);
}

#[test]
fn a_retry_by_hand_while_it_is_suspended_begins_the_suspended_time_anew() {
    let mut stage = timed();
    stage.settle();
    stage.pass(60);
    ["a", "d"].into_iter().for_each(|unit| stage.fail(unit));
    stage.succeed("z");
    stage.edit("/suspend", json!(true));
    stage.settle();
    stage.pass(500);
    stage.retry("now");
    stage.pass(10);
    stage.edit("/suspend", json!(false));
    stage.settle();
    // What has no pod at work is looked at before that.
    ["a", "d"].into_iter().for_each(|unit| stage.run(unit));
    let plan = stage.settle();
    assert_eq!(plan.header.suspended_seconds, 10);
    assert_eq!(
        plan.due.map(write_time).as_deref(),
        Some("2026-01-01T00:10:30Z"),
        "60 s after the retry at 09:20, and 10 more"
    );
}

#[test]
fn a_flow_that_is_out_of_time_stops_its_children_and_runs_finally() {
    let mut stage = timed();
    stage.settle();
    stage.succeed("d");
    stage.pass(10);
    stage.edit("/suspend", json!(true));
    stage.settle();
    assert_eq!(stage.plan().due, None);
    stage.pass(30);
    stage.edit("/suspend", json!(false));
    let plan = stage.settle();
    assert_eq!(plan.due.map(write_time).as_deref(), Some("2026-01-01T00:01:30Z"));
    stage.pass(49);
    assert_eq!(stage.state_of("a"), UnitState::Pending);
    stage.pass(1);
    assert_eq!(stage.changed, [("stop", "f-a".to_owned()), ("stop", "f-b".to_owned())]);
    for step in ["a", "b"] {
        assert_eq!(stage.object_of(step)["spec"]["activeDeadlineSeconds"], 1);
    }
    assert_eq!(stage.object_of("b")["spec"]["suspend"], false, "else its time would not begin");
    let ends: Vec<String> = ["a", "b", "c", "d"].map(|step| stage.end_of(step)).into();
    assert_eq!(ends, ["Failed/FlowTimeout", "Failed/FlowTimeout", "Omitted/FlowTimeout", "Succeed"]);
    assert_eq!((stage.started().last().copied(), stage.events("Timeout")), (Some("z"), 1));
    stage.succeed("z");
    let stops = "waiting for the Jobs that were told to stop to end";
    assert!(stage.message("Progressing").ends_with(stops), "{}", stage.message("Progressing"));
    stage.fail("a");
    stage.fail("b");
    assert_eq!(
        (stage.condition("Failed").as_str(), stage.end_of("a").as_str()),
        ("True/FlowTimeout", "Failed/FlowTimeout")
    );
    assert_eq!(stage.state(), "Failed");
}

#[test]
fn a_flow_that_was_out_of_time_says_which_limit_that_was_whatever_it_is_now() {
    for limit in [Value::Null, json!(7_200)] {
        let mut stage = Stage::flow(flow([step("a", &[], json!({}))], json!({"timeoutSeconds": 60})));
        stage.settle();
        stage.pass(60);
        stage.fail("a");
        stage.edit("/timeoutSeconds", limit);
        stage.settle();
        assert_eq!(stage.condition("Failed"), "True/FlowTimeout");
        assert_eq!(stage.message("Failed"), "the flow did not end within 60 s");
    }
}

#[test]
fn finally_is_outside_of_the_time_of_the_flow() {
    let mut stage = timed();
    stage.settle();
    ["a", "b", "d", "c"].into_iter().for_each(|step| stage.succeed(step));
    stage.pass(3_600);
    assert_eq!(stage.state_of("z"), UnitState::Pending);
    stage.succeed("z");
    assert_eq!(stage.state(), "Succeed");
}

#[test]
fn a_retry_after_the_timeout_gives_the_flow_its_time_again() {
    for token in ["1", "1/a"] {
        let mut stage = timed();
        stage.settle();
        stage.pass(60);
        ["a", "b", "d"].into_iter().for_each(|unit| stage.fail(unit));
        stage.succeed("z");
        assert_eq!(stage.condition("Failed"), "True/FlowTimeout");
        stage.retry(token);
        assert!(stage.names().contains(&"f-a-r1"), "{token}: {:?}", stage.states());
        stage.pass(59);
        stage.succeed("a");
        assert_eq!(stage.end_of("a"), "Succeed");
    }
}

#[test]
fn a_retry_while_finally_runs_after_the_timeout_gives_the_flow_its_time_again() {
    let mut stage = timed();
    stage.settle();
    stage.pass(60);
    assert_eq!(stage.state_of("z"), UnitState::Pending);
    stage.retry("1");
    assert_eq!((stage.child_of("a").as_str(), stage.state()), ("f-a-r1", "Pending"));
}

#[test]
fn a_suspended_flow_starts_nothing_and_its_children_go_on() {
    let mut stage = Stage::flow(plain(&[("a", &[]), ("b", &["a"])]));
    stage.settle();
    stage.edit("/suspend", json!(true));
    stage.succeed("a");
    assert_eq!((stage.started(), stage.condition("Paused").as_str()), (vec!["a"], "True/BySpec"));
    assert_eq!((stage.state(), stage.condition("Reconciling").as_str()), ("Running", "True/Paused"));
    stage.restart();
    stage.pass(100);
    stage.edit("/suspend", json!(false));
    stage.settle();
    assert_eq!((stage.started(), stage.parent.status["suspendedSeconds"].clone()), (vec!["a", "b"], json!(100)));
    assert_eq!((stage.events("Paused"), stage.events("Resumed")), (1, 1));
}

#[test]
fn a_flow_that_is_suspended_from_the_start_is_pending() {
    let mut stage = Stage::flow(flow([step("a", &[], json!({}))], json!({"suspend": true})));
    stage.settle();
    assert_eq!(
        (stage.state(), stage.created.len(), stage.condition("Complete").as_str()),
        ("Pending", 0, "False/InProgress")
    );
}

#[test]
fn an_announced_end_decides_after_a_minute() {
    for (kind, end) in [("FailureTarget", "Failed/PodFailurePolicy"), ("SuccessCriteriaMet", "Succeed")] {
        let mut stage = Stage::flow(plain(&[("a", &[])]));
        stage.settle();
        stage.set_condition("f-a", kind, "PodFailurePolicy");
        stage.settle();
        stage.pass(59);
        assert!(!stage.state_of("a").is_terminal());
        stage.wake();
        assert_eq!(stage.end_of("a"), end);
    }
}

#[test]
fn the_limit_of_an_attempt_is_the_smaller_one() {
    for (own, limit, deadline) in [(json!(20), json!(30), 20), (json!(40), json!(30), 30), (Value::Null, json!(30), 30)]
    {
        let timed = with(crate::stage::make::job(), json!({"activeDeadlineSeconds": own}));
        let steps = [json!({"name": "a", "jobTemplate": timed, "timeoutSeconds": limit})];
        let mut stage = Stage::flow(flow(steps, json!({})));
        stage.settle();
        assert_eq!(stage.object_of("a")["spec"]["activeDeadlineSeconds"], deadline);
    }
}

#[test]
fn each_timeout_is_told_also_of_a_flow_that_had_failed() {
    let mut stage = timed();
    stage.settle();
    stage.fail("d");
    assert_eq!((stage.state(), stage.events("Timeout")), ("Failed", 0));
    stage.pass(60);
    assert_eq!(stage.events("Timeout"), 1);
    stage.fail("a");
    stage.succeed("z");
    stage.retry("1/a");
    assert_eq!((stage.state_of("a"), stage.end_of("b").as_str()), (UnitState::Pending, "Failed/FlowTimeout"));
    stage.pass(60);
    assert_eq!((stage.end_of("a").as_str(), stage.events("Timeout")), ("Failed/FlowTimeout", 2));
}
