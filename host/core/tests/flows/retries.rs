//! The retry by hand: A6, and what it names.

use oarlock_core::child::unit::UnitState;
use serde_json::json;

use crate::stage::Stage;
use crate::stage::make::{daemon, flow, job, last, plain, step};

#[test]
fn a_retry_runs_only_what_failed_or_was_omitted() {
    let by_template = json!({"name": "b", "dependencies": ["a"], "jobTemplateRef": "t"});
    let steps = [step("a", &[], json!({})), by_template, step("c", &["b"], json!({}))];
    let mut stage = Stage::flow(flow(steps, json!({})));
    stage.add_template("t", "u/1", job());
    stage.settle();
    stage.succeed("a");
    stage.fail("b");
    assert_eq!((stage.state(), stage.end_of("c").as_str()), ("Failed", "Omitted/DependencyNotMet"));
    stage.add_template("t", "u/2", json!({"template": {"spec": {"containers": [{"name": "c", "image": "mended"}]}}}));
    stage.settle();
    assert_eq!((stage.created.len(), stage.unit("b").outdated), (2, true));
    stage.retry("1");
    assert_eq!((stage.names()[2..].to_vec(), stage.unit("b").outdated), (vec!["f-b-r1"], false));
    assert_eq!(stage.object_of("b")["spec"]["template"]["spec"]["containers"][0]["image"], "mended");
    assert_eq!((stage.state(), stage.parent.status.get("completionTime")), ("Running", None));
    stage.succeed("b");
    stage.succeed("c");
    assert_eq!((stage.state(), stage.started()), ("Succeed", vec!["a", "b", "b", "c"]));
}

#[test]
fn a_token_is_carried_out_once_also_across_a_restart() {
    let mut stage = Stage::flow(plain(&[("a", &[])]));
    stage.settle();
    stage.fail("a");
    stage.retry("1");
    stage.fail("a");
    stage.restart();
    stage.settle();
    assert_eq!((stage.created.len(), stage.parent.status["retryToken"].as_str()), (2, Some("1")));
    stage.retry(&"2".repeat(10_000));
    stage.fail("a");
    stage.restart();
    stage.settle();
    assert_eq!(stage.created.len(), 3);
    assert!(stage.parent.status["retryToken"].as_str().unwrap().len() < 128);
}

/// A flow of so many steps that all fail at once, each retried as often and as soon as its author may ask for.
fn restless(steps: usize) -> Stage {
    let policy = json!({"retryPolicy": {"limit": 2_147_483_647, "backoffSeconds": 0, "maxBackoffSeconds": 0},
        "continueOnFailure": true});
    let steps = (0..steps).map(|number| step(&format!("s{number}"), &[], policy.clone()));
    Stage::flow(flow(steps, json!({})))
}

#[test]
fn five_hundred_steps_that_fail_at_once_make_so_many_jobs_a_minute_and_keep_the_last_few() {
    const STEPS: usize = 500;
    let mut stage = restless(STEPS);
    stage.settle();
    let (mut most_a_minute, mut most_kept) = (0, 0);
    // The first waits are 1, 2, 4 and 8 seconds; from then on they are all alike.
    for _minute in 0..2 {
        let before = stage.created.len();
        for _second in 0..60 {
            for unit in (0..STEPS).map(|number| format!("s{number}")) {
                if stage.state_of(&unit) == UnitState::Pending {
                    stage.end(&unit, false);
                }
            }
            stage.pass(1);
            most_kept = most_kept.max(stage.objects.len());
        }
        most_a_minute = most_a_minute.max(stage.created.len() - before);
    }
    // Five attempts in the first 15 seconds, and one in ten from then on.
    assert!((STEPS..=STEPS * 10).contains(&most_a_minute), "{most_a_minute} creates in a minute");
    assert!(most_kept <= STEPS * 4, "{most_kept} Jobs are kept");
    assert_eq!(stage.events("IgnoredField"), 1, "{:?}", stage.told);
}

#[test]
fn no_unit_has_more_than_a_hundred_further_attempts_whatever_is_asked() {
    let mut stage = restless(1);
    stage.settle();
    while stage.state_of("s0") != UnitState::Failed {
        stage.fail("s0");
        if stage.state_of("s0") == UnitState::Retrying {
            stage.wake();
        }
    }
    assert_eq!((stage.created.len(), stage.objects.len()), (101, 4));
    assert_eq!(stage.names()[100], "f-s0-r100");
}

#[test]
fn a_retry_counts_anew() {
    let mut stage = Stage::flow(flow([step("a", &[], json!({"retryPolicy": {"limit": 1}}))], json!({})));
    stage.settle();
    for round in 0..2 {
        stage.fail("a");
        assert_eq!(stage.state_of("a"), UnitState::Retrying);
        stage.wake();
        stage.fail("a");
        assert_eq!(stage.state_of("a"), UnitState::Failed);
        if round == 0 {
            stage.retry("1");
        }
    }
    assert_eq!(stage.names(), ["f-a", "f-a-r1", "f-a-r2", "f-a-r3"]);
}

#[test]
fn a_named_unit_runs_though_another_failure_stays() {
    for policy in ["FailFast", "Continue", "Pause"] {
        let steps = [step("a", &[], json!({})), step("b", &[], json!({})), step("c", &["b"], json!({}))];
        let mut stage = Stage::flow(flow(steps, json!({"failurePolicy": {"type": policy}})));
        stage.settle();
        stage.fail("a");
        stage.fail("b");
        stage.retry("1/b,c");
        assert_eq!(stage.started(), ["a", "b", "b"], "{policy}: {:?}", stage.states());
        stage.restart();
        stage.succeed("b");
        assert_eq!(stage.started().last(), Some(&"c"), "{policy}: {:?}", stage.states());
        stage.succeed("c");
        let ends = [stage.end_of("a"), stage.end_of("b"), stage.end_of("c")];
        assert_eq!(ends, ["Failed/BackoffLimitExceeded", "Succeed", "Succeed"], "{policy}");
        assert_eq!(stage.condition("Failed"), "True/StepFailed", "{policy}");
        stage.retry("2/a");
        stage.succeed("a");
        assert_eq!(stage.state(), "Succeed", "{policy}");
    }
}

#[test]
fn a_new_failure_after_a_retry_of_one_unit_fails_fast_again() {
    let mut stage = Stage::flow(plain(&[("a", &[]), ("b", &[]), ("c", &["b"])]));
    stage.settle();
    stage.fail("a");
    stage.fail("b");
    stage.retry("1/b,c");
    stage.fail("b");
    assert_eq!(
        (stage.end_of("c").as_str(), stage.condition("Failed").as_str()),
        ("Omitted/DependencyNotMet", "True/StepFailed")
    );
}

#[test]
fn an_unknown_unit_is_told_and_does_nothing() {
    let mut stage = Stage::flow(plain(&[("a", &[])]));
    stage.settle();
    stage.fail("a");
    stage.retry("1/nobody");
    assert_eq!((stage.created.len(), stage.state(), stage.events("IgnoredField")), (1, "Failed", 1));
    assert!(stage.told.iter().any(|(_, message)| message.contains("nobody")));
    stage.pass(60);
    assert_eq!(stage.events("IgnoredField"), 1);
}

#[test]
fn a_token_on_a_new_object_does_nothing() {
    let mut stage = Stage::flow(plain(&[("a", &[])]));
    stage.retry("1");
    stage.fail("a");
    assert_eq!((stage.created.len(), stage.state()), (1, "Failed"));
}

#[test]
fn a_retry_runs_all_steps_of_finally_again_once_flows_ended() {
    let more = json!({"finally": [last("y", json!({})), last("z", json!({}))]});
    let mut stage = Stage::flow(flow([step("a", &[], json!({}))], more));
    stage.settle();
    stage.fail("a");
    stage.succeed("y");
    stage.fail("z");
    stage.retry("1");
    assert_eq!(stage.started(), ["a", "y", "z", "a"]);
    stage.succeed("a");
    assert_eq!(stage.started()[4..], ["y", "z"]);
    stage.succeed("y");
    stage.succeed("z");
    assert_eq!((stage.state(), stage.started().len()), ("Succeed", 6));
}

#[test]
fn a_retry_that_starts_nothing_changes_no_times() {
    let mut stage = Stage::flow(plain(&[("a", &[])]));
    stage.settle();
    stage.succeed("a");
    let times = |stage: &Stage| ["startTime", "completionTime"].map(|time| stage.parent.status[time].clone());
    let before = times(&stage);
    stage.pass(60);
    stage.retry("1");
    assert_eq!((times(&stage), stage.state()), (before, "Succeed"));
}

#[test]
fn a_long_value_keeps_its_token_and_is_carried_out_once() {
    let mut stage = Stage::flow(plain(&[("a", &[])]));
    stage.settle();
    stage.fail("a");
    let value = format!("7/a,{}", "x,".repeat(100));
    stage.retry(&value);
    assert_eq!(stage.created.len(), 2);
    stage.fail("a");
    stage.restart();
    stage.settle();
    assert_eq!((stage.created.len(), stage.state()), (2, "Failed"));
    let token = stage.parent.status["retryToken"].as_str().unwrap();
    assert!(token.starts_with("7#") && token.len() < 40, "{token}");
}

#[test]
fn a_retry_while_the_spec_is_refused_runs_once_it_is_mended() {
    let mut stage = Stage::flow(plain(&[("a", &[])]));
    stage.settle();
    stage.fail("a");
    let good = stage.parent.spec["flows"].clone();
    stage.edit("/flows/0/dependencies", json!(["a"]));
    stage.settle();
    stage.retry("1");
    assert_eq!((stage.state(), stage.parent.status["retryToken"].as_str()), ("Failed", Some("1")));
    stage.edit("/flows", good);
    stage.settle();
    assert_eq!((stage.state(), stage.created.len()), ("Pending", 2));
}

#[test]
fn a_retry_of_one_step_takes_those_along_that_its_failure_had_omitted() {
    let mut stage =
        Stage::flow(plain(&[("a", &[]), ("b", &["a"]), ("c", &["b"]), ("other", &[]), ("late", &["other"])]));
    stage.settle();
    stage.fail("a");
    stage.succeed("other");
    assert_eq!(
        (stage.end_of("c").as_str(), stage.end_of("late").as_str()),
        ("Omitted/DependencyNotMet", "Omitted/FlowFailed")
    );
    stage.retry("1/a");
    for step in ["a", "b", "c", "late"] {
        stage.succeed(step);
    }
    assert_eq!((stage.state(), stage.condition("Complete").as_str()), ("Succeed", "True/Succeeded"));
}

#[test]
fn a_failure_that_is_left_keeps_its_own_omitted() {
    let mut stage = Stage::flow(plain(&[("a", &[]), ("b", &["a"]), ("x", &[]), ("y", &["x"])]));
    stage.settle();
    stage.fail("a");
    stage.fail("x");
    stage.retry("1/a");
    stage.succeed("a");
    stage.succeed("b");
    assert_eq!((stage.end_of("y").as_str(), stage.state()), ("Omitted/FlowFailed", "Failed"));
    assert_eq!(stage.condition("Complete"), "False/AtRest");
}

#[test]
fn a_retry_of_the_node_that_failed_gives_the_omitted_ones_their_run() {
    let mut stage = Stage::daemon(daemon(json!({"concurrency": 1})), ["n0", "n1", "n2"]);
    stage.settle();
    stage.fail("n0");
    assert_eq!(stage.end_of("n2"), "Omitted/TooManyFailures");
    stage.retry("1/n0");
    for node in ["n0", "n1", "n2"] {
        stage.succeed(node);
    }
    assert_eq!((stage.state(), stage.created.len()), ("Succeed", 4));
}

#[test]
fn a_retry_that_names_a_step_that_had_not_failed_resumes_what_a_failure_paused() {
    let spec = json!({"failurePolicy": {"type": "Pause"}});
    let steps = [step("bad", &[], json!({})), step("good", &[], json!({})), step("next", &["good"], json!({}))];
    let mut stage = Stage::flow(flow(steps, spec));
    stage.settle();
    stage.fail("bad");
    stage.succeed("good");
    assert_eq!((stage.condition("Paused").as_str(), stage.created.len()), ("True/FailurePolicy", 2));
    stage.retry("1/good");
    assert_eq!((stage.started().last(), stage.end_of("bad").starts_with("Failed")), (Some(&"next"), true));
    stage.succeed("next");
    assert_eq!(stage.state(), "Failed");
}

#[test]
fn a_step_of_finally_that_was_not_needed_is_judged_anew_after_a_retry_of_one_step() {
    let more = json!({"finally": [last("z", json!({"when": "success"}))]});
    let mut stage = Stage::flow(flow([step("a", &[], json!({}))], more));
    stage.settle();
    stage.fail("a");
    assert_eq!(stage.end_of("z"), "Omitted/NotNeeded");
    stage.retry("1/a");
    stage.succeed("a");
    stage.succeed("z");
    assert_eq!((stage.state(), stage.started()), ("Succeed", vec!["a", "a", "z"]));
}

#[test]
fn a_retry_of_the_step_that_ran_out_of_time_takes_those_along_that_were_omitted_with_it() {
    let steps = [step("a", &[], json!({})), step("b", &["a"], json!({}))];
    let mut stage = Stage::flow(flow(steps, json!({"timeoutSeconds": 60})));
    stage.settle();
    stage.pass(60);
    stage.fail("a");
    assert_eq!(stage.end_of("b"), "Omitted/FlowTimeout");
    stage.retry("1/a");
    stage.succeed("a");
    stage.succeed("b");
    assert_eq!(stage.state(), "Succeed");
}

#[test]
fn a_retry_of_one_step_while_the_spec_is_refused_takes_along_what_its_failure_had_omitted() {
    let mut stage = Stage::flow(plain(&[("a", &[]), ("b", &["a"])]));
    stage.settle();
    stage.fail("a");
    let good = stage.parent.spec["flows"].clone();
    stage.edit("/flows/0/dependencies", json!(["a"]));
    stage.settle();
    stage.retry("1/a");
    stage.edit("/flows", good);
    stage.settle();
    stage.succeed("a");
    stage.succeed("b");
    assert_eq!((stage.state(), stage.started()), ("Succeed", vec!["a", "a", "b"]));
}

#[test]
fn a_retry_that_names_a_step_that_runs_leaves_a_flow_failed() {
    let mut stage = Stage::flow(plain(&[("a", &[]), ("b", &[]), ("c", &["b"])]));
    stage.settle();
    stage.fail("a");
    stage.retry("1/b");
    assert_eq!((stage.state(), stage.end_of("c").as_str()), ("Failed", "Omitted/FlowFailed"));
    stage.succeed("b");
    assert_eq!((stage.state(), stage.events("Failed")), ("Failed", 1));
}
