//! The retry by hand, and the units that it names: A6.

use oarlock_core::attempts::unit::UnitState;
use serde_json::json;

use crate::fixture::Fixture;
use crate::fixture::make::{daemon, flow, last, plain, step};

#[test]
fn a_token_is_carried_out_once_also_across_a_restart() {
    let mut fixture = Fixture::flow(plain(&[("a", &[])]));
    fixture.settle();
    fixture.fail("a");
    fixture.retry("1");
    fixture.fail("a");
    fixture.restart();
    fixture.settle();
    assert_eq!((fixture.created.len(), fixture.parent.status["retryToken"].as_str()), (2, Some("1")));
    fixture.retry(&"2".repeat(10_000));
    fixture.fail("a");
    fixture.restart();
    fixture.settle();
    assert_eq!(fixture.created.len(), 3);
    assert!(fixture.parent.status["retryToken"].as_str().unwrap().len() < 128);
}

/// Returns a flow whose steps all fail at once and are retried as often and as soon as an author may ask for.
fn restless(steps: usize) -> Fixture {
    let policy = json!({"retryPolicy": {"limit": 2_147_483_647, "backoffSeconds": 0, "maxBackoffSeconds": 0},
        "continueOnFailure": true});
    let steps = (0..steps).map(|number| step(&format!("s{number}"), &[], policy.clone()));
    Fixture::flow(flow(steps, json!({})))
}

#[test]
fn five_hundred_steps_that_fail_at_once_make_so_many_jobs_a_minute_and_keep_the_last_few() {
    const STEPS: usize = 500;
    let mut fixture = restless(STEPS);
    fixture.settle();
    let (mut most_a_minute, mut most_kept) = (0, 0);
    // The first waits are 1, 2, 4 and 8 seconds; all later waits are equal.
    for _minute in 0..2 {
        let before = fixture.created.len();
        for _second in 0..60 {
            for unit in (0..STEPS).map(|number| format!("s{number}")) {
                if fixture.state_of(&unit) == UnitState::Pending {
                    fixture.end(&unit, false);
                }
            }
            fixture.pass(1);
            most_kept = most_kept.max(fixture.objects.len());
        }
        most_a_minute = most_a_minute.max(fixture.created.len() - before);
    }
    // Five attempts in the first 15 seconds, and one every ten seconds from then on.
    assert!((STEPS..=STEPS * 10).contains(&most_a_minute), "{most_a_minute} creates in a minute");
    assert!(most_kept <= STEPS * 4, "{most_kept} Jobs are kept");
    assert_eq!(fixture.events("IgnoredField"), 1, "{:?}", fixture.event_notes);
}

#[test]
fn no_unit_has_more_than_a_hundred_further_attempts_whatever_is_asked() {
    let mut fixture = restless(1);
    fixture.settle();
    while fixture.state_of("s0") != UnitState::Failed {
        fixture.fail("s0");
        if fixture.state_of("s0") == UnitState::Retrying {
            fixture.wake();
        }
    }
    assert_eq!((fixture.created.len(), fixture.objects.len()), (101, 4));
    assert_eq!(fixture.names()[100], "f-s0-r100");
}

#[test]
fn a_retry_counts_anew() {
    let mut fixture = Fixture::flow(flow([step("a", &[], json!({"retryPolicy": {"limit": 1}}))], json!({})));
    fixture.settle();
    for round in 0..2 {
        fixture.fail("a");
        assert_eq!(fixture.state_of("a"), UnitState::Retrying);
        fixture.wake();
        fixture.fail("a");
        assert_eq!(fixture.state_of("a"), UnitState::Failed);
        if round == 0 {
            fixture.retry("1");
        }
    }
    assert_eq!(fixture.names(), ["f-a", "f-a-r1", "f-a-r2", "f-a-r3"]);
}

#[test]
fn a_named_unit_runs_though_another_failure_stays() {
    for policy in ["FailFast", "Continue", "Pause"] {
        let steps = [step("a", &[], json!({})), step("b", &[], json!({})), step("c", &["b"], json!({}))];
        let mut fixture = Fixture::flow(flow(steps, json!({"failurePolicy": {"type": policy}})));
        fixture.settle();
        fixture.fail("a");
        fixture.fail("b");
        fixture.retry("1/b,c");
        assert_eq!(fixture.started(), ["a", "b", "b"], "{policy}: {:?}", fixture.states());
        fixture.restart();
        fixture.succeed("b");
        assert_eq!(fixture.started().last(), Some(&"c"), "{policy}: {:?}", fixture.states());
        fixture.succeed("c");
        let ends = [fixture.end_of("a"), fixture.end_of("b"), fixture.end_of("c")];
        assert_eq!(ends, ["Failed/BackoffLimitExceeded", "Succeed", "Succeed"], "{policy}");
        assert_eq!(fixture.condition("Failed"), "True/StepFailed", "{policy}");
        fixture.retry("2/a");
        fixture.succeed("a");
        assert_eq!(fixture.state(), "Succeed", "{policy}");
    }
}

#[test]
fn a_new_failure_after_a_retry_of_one_unit_fails_fast_again() {
    let mut fixture = Fixture::flow(plain(&[("a", &[]), ("b", &[]), ("c", &["b"])]));
    fixture.settle();
    fixture.fail("a");
    fixture.fail("b");
    fixture.retry("1/b,c");
    fixture.fail("b");
    assert_eq!(
        (fixture.end_of("c").as_str(), fixture.condition("Failed").as_str()),
        ("Omitted/DependencyNotMet", "True/StepFailed")
    );
}

#[test]
fn an_unknown_unit_is_told_and_does_nothing() {
    let mut fixture = Fixture::flow(plain(&[("a", &[])]));
    fixture.settle();
    fixture.fail("a");
    fixture.retry("1/nobody");
    assert_eq!((fixture.created.len(), fixture.state(), fixture.events("IgnoredField")), (1, "Failed", 1));
    assert!(fixture.event_notes.iter().any(|(_, message)| message.contains("nobody")));
    fixture.pass(60);
    assert_eq!(fixture.events("IgnoredField"), 1);
}

#[test]
fn a_token_on_a_new_object_does_nothing() {
    let mut fixture = Fixture::flow(plain(&[("a", &[])]));
    fixture.retry("1");
    fixture.fail("a");
    assert_eq!((fixture.created.len(), fixture.state()), (1, "Failed"));
}

#[test]
fn a_retry_runs_all_steps_of_finally_again_once_flows_ended() {
    let more = json!({"finally": [last("y", json!({})), last("z", json!({}))]});
    let mut fixture = Fixture::flow(flow([step("a", &[], json!({}))], more));
    fixture.settle();
    fixture.fail("a");
    fixture.succeed("y");
    fixture.fail("z");
    fixture.retry("1");
    assert_eq!(fixture.started(), ["a", "y", "z", "a"]);
    fixture.succeed("a");
    assert_eq!(fixture.started()[4..], ["y", "z"]);
    fixture.succeed("y");
    fixture.succeed("z");
    assert_eq!((fixture.state(), fixture.started().len()), ("Succeed", 6));
}

#[test]
fn a_retry_that_starts_nothing_changes_no_times() {
    let mut fixture = Fixture::flow(plain(&[("a", &[])]));
    fixture.settle();
    fixture.succeed("a");
    let times = |fixture: &Fixture| ["startTime", "completionTime"].map(|time| fixture.parent.status[time].clone());
    let before = times(&fixture);
    fixture.pass(60);
    fixture.retry("1");
    assert_eq!((times(&fixture), fixture.state()), (before, "Succeed"));
}

#[test]
fn a_long_value_keeps_its_token_and_is_carried_out_once() {
    let mut fixture = Fixture::flow(plain(&[("a", &[])]));
    fixture.settle();
    fixture.fail("a");
    let value = format!("7/a,{}", "x,".repeat(100));
    fixture.retry(&value);
    assert_eq!(fixture.created.len(), 2);
    fixture.fail("a");
    fixture.restart();
    fixture.settle();
    assert_eq!((fixture.created.len(), fixture.state()), (2, "Failed"));
    let token = fixture.parent.status["retryToken"].as_str().unwrap();
    assert!(token.starts_with("7#") && token.len() < 40, "{token}");
}

#[test]
fn a_retry_while_the_spec_is_refused_runs_once_it_is_mended() {
    let mut fixture = Fixture::flow(plain(&[("a", &[])]));
    fixture.settle();
    fixture.fail("a");
    let good = fixture.parent.spec["flows"].clone();
    fixture.edit("/flows/0/dependencies", json!(["a"]));
    fixture.settle();
    fixture.retry("1");
    assert_eq!((fixture.state(), fixture.parent.status["retryToken"].as_str()), ("Failed", Some("1")));
    fixture.edit("/flows", good);
    fixture.settle();
    assert_eq!((fixture.state(), fixture.created.len()), ("Pending", 2));
}

#[test]
fn a_retry_of_one_step_takes_those_along_that_its_failure_had_omitted() {
    let mut fixture =
        Fixture::flow(plain(&[("a", &[]), ("b", &["a"]), ("c", &["b"]), ("other", &[]), ("late", &["other"])]));
    fixture.settle();
    fixture.fail("a");
    fixture.succeed("other");
    assert_eq!(
        (fixture.end_of("c").as_str(), fixture.end_of("late").as_str()),
        ("Omitted/DependencyNotMet", "Omitted/FlowFailed")
    );
    fixture.retry("1/a");
    for step in ["a", "b", "c", "late"] {
        fixture.succeed(step);
    }
    assert_eq!((fixture.state(), fixture.condition("Complete").as_str()), ("Succeed", "True/Succeeded"));
}

#[test]
fn a_failure_that_is_left_keeps_its_own_omitted() {
    let mut fixture = Fixture::flow(plain(&[("a", &[]), ("b", &["a"]), ("x", &[]), ("y", &["x"])]));
    fixture.settle();
    fixture.fail("a");
    fixture.fail("x");
    fixture.retry("1/a");
    fixture.succeed("a");
    fixture.succeed("b");
    assert_eq!((fixture.end_of("y").as_str(), fixture.state()), ("Omitted/FlowFailed", "Failed"));
    assert_eq!(fixture.condition("Complete"), "False/AtRest");
}

#[test]
fn a_retry_of_the_node_that_failed_gives_the_omitted_ones_their_run() {
    let mut fixture = Fixture::daemon(daemon(json!({"concurrency": 1})), ["n0", "n1", "n2"]);
    fixture.settle();
    fixture.fail("n0");
    assert_eq!(fixture.end_of("n2"), "Omitted/TooManyFailures");
    fixture.retry("1/n0");
    for node in ["n0", "n1", "n2"] {
        fixture.succeed(node);
    }
    assert_eq!((fixture.state(), fixture.created.len()), ("Succeed", 4));
}

#[test]
fn a_retry_that_names_a_step_that_had_not_failed_resumes_what_a_failure_paused() {
    let spec = json!({"failurePolicy": {"type": "Pause"}});
    let steps = [step("bad", &[], json!({})), step("good", &[], json!({})), step("next", &["good"], json!({}))];
    let mut fixture = Fixture::flow(flow(steps, spec));
    fixture.settle();
    fixture.fail("bad");
    fixture.succeed("good");
    assert_eq!((fixture.condition("Paused").as_str(), fixture.created.len()), ("True/FailurePolicy", 2));
    fixture.retry("1/good");
    assert_eq!((fixture.started().last(), fixture.end_of("bad").starts_with("Failed")), (Some(&"next"), true));
    fixture.succeed("next");
    assert_eq!(fixture.state(), "Failed");
}

#[test]
fn a_step_of_finally_that_was_not_needed_is_judged_anew_after_a_retry_of_one_step() {
    let more = json!({"finally": [last("z", json!({"when": "success"}))]});
    let mut fixture = Fixture::flow(flow([step("a", &[], json!({}))], more));
    fixture.settle();
    fixture.fail("a");
    assert_eq!(fixture.end_of("z"), "Omitted/NotNeeded");
    fixture.retry("1/a");
    fixture.succeed("a");
    fixture.succeed("z");
    assert_eq!((fixture.state(), fixture.started()), ("Succeed", vec!["a", "a", "z"]));
}

#[test]
fn a_retry_of_the_step_that_ran_out_of_time_takes_those_along_that_were_omitted_with_it() {
    let steps = [step("a", &[], json!({})), step("b", &["a"], json!({}))];
    let mut fixture = Fixture::flow(flow(steps, json!({"timeoutSeconds": 60})));
    fixture.settle();
    fixture.pass(60);
    fixture.fail("a");
    assert_eq!(fixture.end_of("b"), "Omitted/FlowTimeout");
    fixture.retry("1/a");
    fixture.succeed("a");
    fixture.succeed("b");
    assert_eq!(fixture.state(), "Succeed");
}

#[test]
fn a_retry_of_one_step_while_the_spec_is_refused_takes_along_what_its_failure_had_omitted() {
    let mut fixture = Fixture::flow(plain(&[("a", &[]), ("b", &["a"])]));
    fixture.settle();
    fixture.fail("a");
    let good = fixture.parent.spec["flows"].clone();
    fixture.edit("/flows/0/dependencies", json!(["a"]));
    fixture.settle();
    fixture.retry("1/a");
    fixture.edit("/flows", good);
    fixture.settle();
    fixture.succeed("a");
    fixture.succeed("b");
    assert_eq!((fixture.state(), fixture.started()), ("Succeed", vec!["a", "a", "b"]));
}

#[test]
fn a_retry_that_names_a_step_that_runs_leaves_a_flow_failed() {
    let mut fixture = Fixture::flow(plain(&[("a", &[]), ("b", &[]), ("c", &["b"])]));
    fixture.settle();
    fixture.fail("a");
    fixture.retry("1/b");
    assert_eq!((fixture.state(), fixture.end_of("c").as_str()), ("Failed", "Omitted/FlowFailed"));
    fixture.succeed("b");
    assert_eq!((fixture.state(), fixture.events("Failed")), ("Failed", 1));
}
