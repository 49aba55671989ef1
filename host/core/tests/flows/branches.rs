//! `when`, `continueOnFailure` and `finally`: A22 to A24.

use oarlock_core::child::unit::UnitState;
use serde_json::json;

use crate::stage::Stage;
use crate::stage::make::{flow, last, plain, step};

fn branched() -> Stage {
    let steps = [
        step("work", &[], json!({})),
        step("mend", &["work"], json!({"when": "failure"})),
        step("join", &["work", "mend"], json!({})),
    ];
    let mut stage = Stage::flow(flow(steps, json!({})));
    stage.settle();
    stage
}

#[test]
fn a_failure_branch_that_is_not_needed_lets_the_join_run() {
    let mut stage = branched();
    stage.succeed("work");
    assert_eq!((stage.end_of("mend").as_str(), stage.started()), ("Omitted/NotNeeded", vec!["work", "join"]));
    stage.succeed("join");
    assert_eq!((stage.state(), stage.parent.status["progress"].as_str()), ("Succeed", Some("2/2")));
}

#[test]
fn a_failure_branch_runs_though_the_flow_failed_at_once() {
    let mut stage = branched();
    stage.fail("work");
    assert_eq!((stage.state(), stage.started()), ("Failed", vec!["work", "mend"]));
    assert_eq!(stage.end_of("join"), "Omitted/DependencyNotMet");
    assert_eq!(stage.condition("Progressing"), "True/WindingDown");
    stage.succeed("mend");
    assert_eq!((stage.state(), stage.condition("Failed").as_str()), ("Failed", "True/StepFailed"));
}

#[test]
fn a_branch_of_two_steps_is_left_out_whole_where_each_names_the_step_that_it_is_for() {
    let steps = |second: &[&str]| {
        let handles = json!({"when": "failure", "handlesFailure": true});
        [
            step("load", &[], json!({})),
            step("fetch", &["load"], json!({"when": "failure"})),
            step("mend", second, if second.contains(&"load") { handles } else { json!({}) }),
        ]
    };
    let stage = |second: &[&str]| {
        let mut stage = Stage::flow(flow(steps(second), json!({})));
        stage.settle();
        stage
    };
    let mut well = stage(&["load", "fetch"]);
    well.succeed("load");
    assert_eq!(
        (well.end_of("fetch").as_str(), well.end_of("mend").as_str()),
        ("Omitted/NotNeeded", "Omitted/NotNeeded")
    );
    assert_eq!((well.state(), well.started()), ("Succeed", vec!["load"]));
    let mut ill = stage(&["load", "fetch"]);
    ill.fail("load");
    ill.succeed("fetch");
    assert_eq!(ill.started(), ["load", "fetch", "mend"]);
    ill.succeed("mend");
    assert_eq!(ill.state(), "Succeed");
    // Without that the second step runs after a success, as a join does.
    let mut join = stage(&["fetch"]);
    join.succeed("load");
    assert_eq!(join.started(), ["load", "mend"]);
}

#[test]
fn a_failure_step_waits_for_all_of_its_dependencies() {
    let steps = [
        step("a", &[], json!({})),
        step("b", &[], json!({})),
        step("mend", &["a", "b"], json!({"when": "failure"})),
        step("after", &["a", "b"], json!({"when": "finished"})),
    ];
    let mut stage = Stage::flow(flow(steps, json!({})));
    stage.settle();
    stage.fail("a");
    assert_eq!(stage.started(), ["a", "b"]);
    stage.succeed("b");
    assert_eq!(stage.started(), ["a", "b", "mend", "after"]);
}

#[test]
fn what_depends_on_an_omitted_step_is_omitted_but_after_one_that_was_not_needed() {
    let mut stage = Stage::flow(plain(&[("a", &[]), ("b", &["a"]), ("c", &["b"]), ("d", &["c"])]));
    stage.settle();
    stage.fail("a");
    for step in ["b", "c", "d"] {
        assert_eq!(stage.end_of(step), "Omitted/DependencyNotMet");
    }
    assert_eq!((stage.state(), stage.events("Omitted"), stage.events("StepFailed")), ("Failed", 3, 1));
}

#[test]
fn a_tolerated_failure_counts_as_success_for_the_others() {
    let steps = [step("a", &[], json!({"continueOnFailure": true})), step("b", &["a"], json!({}))];
    let mut stage = Stage::flow(flow(steps, json!({})));
    stage.settle();
    stage.fail("a");
    assert_eq!((stage.unit("a").tolerated, stage.started()), (true, vec!["a", "b"]));
    stage.succeed("b");
    assert_eq!((stage.state(), stage.condition("Complete").as_str()), ("Succeed", "True/Succeeded"));
    assert_eq!(stage.parent.status["steps"][0]["tolerated"], true);
}

#[test]
fn a_failure_that_an_edit_tolerates_counts_at_once() {
    let steps = [step("a", &[], json!({})), step("b", &["a"], json!({"when": "finished"}))];
    let mut stage = Stage::flow(flow(steps, json!({})));
    stage.settle();
    stage.fail("a");
    assert_eq!(stage.state(), "Failed");
    stage.edit("/flows/0/continueOnFailure", json!(true));
    stage.settle();
    assert_eq!((stage.state(), stage.unit("a").tolerated), ("Running", true));
    stage.succeed("b");
    assert_eq!(stage.state(), "Succeed");
}

fn with_finally() -> Stage {
    let more = json!({"finally": [last("rescue", json!({"when": "failure"})), last("tidy", json!({})),
        last("cheer", json!({"when": "success"}))]});
    let mut stage = Stage::flow(flow([step("a", &[], json!({})), step("b", &["a"], json!({}))], more));
    stage.settle();
    stage
}

#[test]
fn finally_runs_both_of_its_steps_after_a_failure() {
    let mut stage = with_finally();
    stage.fail("a");
    assert_eq!(stage.started(), ["a", "rescue", "tidy"]);
    assert_eq!((stage.end_of("cheer").as_str(), stage.state()), ("Omitted/NotNeeded", "Failed"));
    assert_eq!(stage.condition("Progressing"), "True/RunningFinally");
    assert_eq!(stage.condition("Failed"), "False/InProgress");
    stage.succeed("rescue");
    stage.succeed("tidy");
    assert_eq!(stage.condition("Failed"), "True/StepFailed");
}

#[test]
fn finally_runs_what_is_for_success_after_a_success() {
    let mut stage = with_finally();
    stage.succeed("a");
    assert_eq!(stage.started(), ["a", "b"]);
    stage.succeed("b");
    assert_eq!(
        (stage.started()[2..].to_vec(), stage.end_of("rescue").as_str()),
        (vec!["tidy", "cheer"], "Omitted/NotNeeded")
    );
    assert_eq!(stage.state(), "Running");
    stage.succeed("tidy");
    stage.succeed("cheer");
    assert_eq!(stage.state(), "Succeed");
}

#[test]
fn a_failed_step_of_finally_fails_the_flow_unless_it_is_tolerated() {
    let ends = [(json!({}), "Failed"), (json!({"continueOnFailure": true}), "Succeed")];
    for (more, end) in ends {
        let mut stage = Stage::flow(flow([step("a", &[], json!({}))], json!({"finally": [last("z", more)]})));
        stage.settle();
        stage.succeed("a");
        stage.fail("z");
        assert_eq!(stage.state(), end);
    }
}

#[test]
fn finally_alone_runs_at_once() {
    let mut stage = Stage::flow(json!({"finally": [last("z", json!({}))]}));
    stage.settle();
    assert_eq!(stage.started(), ["z"]);
    stage.succeed("z");
    assert_eq!(stage.state(), "Succeed");
}

#[test]
fn finally_waits_while_the_flow_is_suspended_or_not_valid() {
    let mut stage = with_finally();
    stage.edit("/suspend", json!(true));
    stage.fail("a");
    assert_eq!((stage.started(), stage.condition("Paused").as_str()), (vec!["a"], "True/BySpec"));
    stage.edit("/flows/0/name", json!("A"));
    stage.edit("/suspend", json!(false));
    stage.settle();
    assert_eq!(stage.started(), ["a"]);
    stage.edit("/flows/0/name", json!("a"));
    stage.settle();
    assert_eq!(stage.started(), ["a", "rescue", "tidy"]);
}

/// `b` follows `a`, and `c` mends its failure; `join` follows both branches.
fn either(policy: &str) -> Stage {
    let steps = [
        step("a", &[], json!({})),
        step("b", &["a"], json!({})),
        step("after-b", &["b"], json!({})),
        step("c", &["a"], json!({"when": "failure", "handlesFailure": true})),
        step("join", &["after-b", "c"], json!({})),
        step("other", &[], json!({})),
        step("after-other", &["other"], json!({})),
    ];
    let mut stage = Stage::flow(flow(steps, json!({"failurePolicy": {"type": policy}})));
    stage.settle();
    stage
}

/// Seen of Argo Workflows and Tekton, whose users write `depends: a.Failed` and `onError: continue` for this.
#[test]
fn a_failure_that_a_step_makes_up_for_fails_no_flow_and_leaves_the_other_branch_out() {
    for policy in ["FailFast", "Continue", "Pause"] {
        let mut stage = either(policy);
        stage.fail("a");
        assert_eq!((stage.state(), stage.started()), ("Running", vec!["a", "other", "c"]), "{policy}");
        stage.succeed("other");
        assert_eq!(stage.started(), ["a", "other", "c", "after-other"], "it stops nothing meanwhile");
        stage.succeed("c");
        for step in ["b", "after-b"] {
            assert_eq!(stage.end_of(step), "Omitted/FailureHandled");
        }
        assert_eq!(stage.unit("b").message, "step a failed, and step c made up for it");
        assert_eq!((stage.unit("a").handled_by.as_str(), stage.started()[4]), ("c", "join"));
        stage.succeed("join");
        stage.succeed("after-other");
        assert_eq!((stage.state(), stage.condition("Complete").as_str()), ("Succeed", "True/Succeeded"));
        assert_eq!(stage.parent.status["steps"][0]["handledBy"], "c");
    }
}

#[test]
fn a_failure_counts_once_what_would_have_made_up_for_it_has_failed() {
    let mut stage = either("FailFast");
    stage.fail("a");
    stage.fail("c");
    assert_eq!((stage.state(), stage.end_of("b").as_str()), ("Failed", "Omitted/DependencyNotMet"));
    assert_eq!(stage.end_of("join"), "Omitted/DependencyNotMet");
    stage.succeed("other");
    assert_eq!(stage.end_of("after-other"), "Omitted/FlowFailed");
}

#[test]
fn without_a_failure_the_other_branch_is_what_is_left_out() {
    let mut stage = either("FailFast");
    ["a", "b", "after-b"].into_iter().for_each(|step| stage.succeed(step));
    assert_eq!((stage.end_of("c").as_str(), stage.started()[4]), ("Omitted/NotNeeded", "join"));
}

#[test]
fn what_made_up_for_a_failure_is_judged_anew_where_the_failed_step_runs_again() {
    let mut stage = either("FailFast");
    stage.fail("a");
    ["c", "other", "join", "after-other"].into_iter().for_each(|step| stage.succeed(step));
    stage.retry("again");
    assert_eq!((stage.unit("a").handled_by.as_str(), stage.unit("c").state), ("", UnitState::Waiting));
    stage.succeed("a");
    assert_eq!((stage.end_of("c").as_str(), stage.started().last()), ("Omitted/NotNeeded", Some(&"b")));
}

#[test]
fn a_step_of_finally_that_failed_is_retried_by_its_name_and_nothing_else() {
    let more = json!({"finally": [last("release", json!({})), last("tell", json!({}))]});
    let mut stage = Stage::flow(flow([step("work", &[], json!({}))], more));
    stage.settle();
    stage.fail("work");
    stage.succeed("tell");
    stage.fail("release");
    stage.retry("again/release");
    assert_eq!(stage.started(), ["work", "release", "tell", "release"]);
}

/// A step that mends whatever of a chain fails depends on all of it: those before it do not wait for it.
#[test]
fn one_step_makes_up_for_the_failure_of_a_whole_chain() {
    let steps = [
        step("a", &[], json!({})),
        step("b", &["a"], json!({})),
        step("mend", &["a", "b"], json!({"when": "failure", "handlesFailure": true})),
        step("join", &["b", "mend"], json!({})),
    ];
    let mut stage = Stage::flow(flow(steps, json!({})));
    stage.settle();
    stage.fail("a");
    assert_eq!((stage.end_of("b").as_str(), stage.started()), ("Omitted/DependencyNotMet", vec!["a", "mend"]));
    stage.succeed("mend");
    assert_eq!(stage.started(), ["a", "mend", "join"]);
    stage.succeed("join");
    assert_eq!(stage.state(), "Succeed");
}

#[test]
fn what_makes_up_for_failures_waits_for_failure() {
    for more in [json!({"handlesFailure": true}), json!({"handlesFailure": true, "when": "finished"})] {
        let stage = Stage::flow(flow([step("a", &[], json!({})), step("b", &["a"], more)], json!({})));
        let (reason, message) = (&stage.plan().verdict.conditions, "handlesFailure needs when: failure");
        assert!(reason.iter().any(|said| said.message.contains(message)), "{reason:?}");
    }
}

/// Steps that make up for failures, each of which would wait for the other.
#[test]
fn two_steps_that_mend_chains_of_one_root_do_not_wait_for_each_other() {
    let mends = || json!({"when": "failure", "handlesFailure": true});
    let steps = [
        step("a", &[], json!({})),
        step("x", &["a"], json!({})),
        step("y", &["a"], json!({})),
        step("mx", &["a", "x"], mends()),
        step("my", &["a", "y"], mends()),
    ];
    let mut stage = Stage::flow(flow(steps, json!({})));
    stage.settle();
    stage.fail("a");
    assert_eq!(stage.started(), ["a", "mx", "my"]);
    ["mx", "my"].into_iter().for_each(|step| stage.succeed(step));
    assert_eq!(stage.state(), "Succeed");

    let steps = [
        step("a", &[], json!({})),
        step("c", &[], json!({})),
        step("b", &["c"], json!({})),
        step("d", &["a"], json!({})),
        step("h1", &["a", "b"], mends()),
        step("h2", &["c", "d"], mends()),
    ];
    let mut stage = Stage::flow(flow(steps, json!({"failurePolicy": {"type": "Continue"}})));
    stage.settle();
    ["a", "c"].into_iter().for_each(|step| stage.fail(step));
    ["h1", "h2"].into_iter().for_each(|step| stage.succeed(step));
    assert_eq!(stage.state(), "Succeed");
}

#[test]
fn a_step_for_a_failure_waits_while_it_is_open_whether_one_before_it_runs() {
    let steps = [
        step("a", &[], json!({})),
        step("s", &["a"], json!({})),
        step("h", &["a", "s"], json!({"when": "failure", "handlesFailure": true})),
        step("e", &["s"], json!({"when": "failure"})),
        step("after", &["e"], json!({})),
    ];
    let mut stage = Stage::flow(flow(steps, json!({"failurePolicy": {"type": "Continue"}})));
    stage.settle();
    stage.fail("a");
    assert_eq!((stage.state_of("e"), stage.started()), (UnitState::Waiting, vec!["a", "h"]));
    stage.fail("h");
    assert_eq!((stage.end_of("e").as_str(), stage.started()), ("Omitted/DependencyNotMet", vec!["a", "h"]));
}
