//! The retry by hand: A6, and what it names.

use oarlock_core::child::unit::UnitState;
use serde_json::json;

use crate::stage::Stage;
use crate::stage::make::{flow, job, last, plain, step};

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
fn a_retry_of_one_unit_leaves_the_others() {
    let mut stage = Stage::flow(plain(&[("a", &[]), ("b", &["a"])]));
    stage.settle();
    stage.fail("a");
    stage.retry("1/a");
    assert_eq!((stage.state_of("a"), stage.end_of("b").as_str()), (UnitState::Pending, "Omitted/DependencyNotMet"));
    stage.succeed("a");
    assert_eq!((stage.started(), stage.state()), (vec!["a", "a"], "Succeed"));
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
fn a_retry_runs_failed_steps_of_finally_again_once_flows_ended() {
    let more = json!({"finally": [last("y", json!({})), last("z", json!({}))]});
    let mut stage = Stage::flow(flow([step("a", &[], json!({}))], more));
    stage.settle();
    stage.fail("a");
    stage.succeed("y");
    stage.fail("z");
    stage.retry("1");
    assert_eq!(stage.started(), ["a", "y", "z", "a"]);
    stage.succeed("a");
    assert_eq!(stage.started().last(), Some(&"z"));
    stage.succeed("z");
    assert_eq!((stage.state(), stage.started().len()), ("Succeed", 5));
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
