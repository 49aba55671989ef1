//! `when`, `continueOnFailure` and `finally`: A22 to A24.

use oarlock_core::attempts::unit::UnitState;
use serde_json::json;

use crate::fixture::Fixture;
use crate::fixture::make::{flow, last, plain, step};

fn branched() -> Fixture {
    let steps = [
        step("work", &[], json!({})),
        step("mend", &["work"], json!({"when": "failure"})),
        step("join", &["work", "mend"], json!({})),
    ];
    let mut fixture = Fixture::flow(flow(steps, json!({})));
    fixture.settle();
    fixture
}

#[test]
fn a_failure_branch_runs_though_the_flow_failed_at_once() {
    let mut fixture = branched();
    fixture.fail("work");
    assert_eq!((fixture.state(), fixture.started()), ("Failed", vec!["work", "mend"]));
    assert_eq!(fixture.end_of("join"), "Omitted/DependencyNotMet");
    assert_eq!(fixture.condition("Progressing"), "True/WindingDown");
    fixture.succeed("mend");
    assert_eq!((fixture.state(), fixture.condition("Failed").as_str()), ("Failed", "True/StepFailed"));
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
    let fixture = |second: &[&str]| {
        let mut fixture = Fixture::flow(flow(steps(second), json!({})));
        fixture.settle();
        fixture
    };
    let mut well = fixture(&["load", "fetch"]);
    well.succeed("load");
    assert_eq!(
        (well.end_of("fetch").as_str(), well.end_of("mend").as_str()),
        ("Omitted/NotNeeded", "Omitted/NotNeeded")
    );
    assert_eq!((well.state(), well.started()), ("Succeed", vec!["load"]));
    let mut ill = fixture(&["load", "fetch"]);
    ill.fail("load");
    ill.succeed("fetch");
    assert_eq!(ill.started(), ["load", "fetch", "mend"]);
    ill.succeed("mend");
    assert_eq!(ill.state(), "Succeed");
    // If the second step does not name the step of its branch, it runs after a success too, as a join does.
    let mut join = fixture(&["fetch"]);
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
    let mut fixture = Fixture::flow(flow(steps, json!({})));
    fixture.settle();
    fixture.fail("a");
    assert_eq!(fixture.started(), ["a", "b"]);
    fixture.succeed("b");
    assert_eq!(fixture.started(), ["a", "b", "mend", "after"]);
}

#[test]
fn what_depends_on_an_omitted_step_is_omitted_but_after_one_that_was_not_needed() {
    let mut fixture = Fixture::flow(plain(&[("a", &[]), ("b", &["a"]), ("c", &["b"]), ("d", &["c"])]));
    fixture.settle();
    fixture.fail("a");
    for step in ["b", "c", "d"] {
        assert_eq!(fixture.end_of(step), "Omitted/DependencyNotMet");
    }
    assert_eq!((fixture.state(), fixture.events("Omitted"), fixture.events("StepFailed")), ("Failed", 3, 1));
}

#[test]
fn a_failure_that_an_edit_tolerates_counts_at_once() {
    let steps = [step("a", &[], json!({})), step("b", &["a"], json!({"when": "finished"}))];
    let mut fixture = Fixture::flow(flow(steps, json!({})));
    fixture.settle();
    fixture.fail("a");
    assert_eq!(fixture.state(), "Failed");
    fixture.edit("/flows/0/continueOnFailure", json!(true));
    fixture.settle();
    assert_eq!((fixture.state(), fixture.unit("a").tolerated), ("Running", true));
    fixture.succeed("b");
    assert_eq!(fixture.state(), "Succeed");
}

fn with_finally() -> Fixture {
    let more = json!({"finally": [last("rescue", json!({"when": "failure"})), last("tidy", json!({})),
        last("cheer", json!({"when": "success"}))]});
    let mut fixture = Fixture::flow(flow([step("a", &[], json!({})), step("b", &["a"], json!({}))], more));
    fixture.settle();
    fixture
}

#[test]
fn finally_runs_both_of_its_steps_after_a_failure() {
    let mut fixture = with_finally();
    fixture.fail("a");
    assert_eq!(fixture.started(), ["a", "rescue", "tidy"]);
    assert_eq!((fixture.end_of("cheer").as_str(), fixture.state()), ("Omitted/NotNeeded", "Failed"));
    assert_eq!(fixture.condition("Progressing"), "True/RunningFinally");
    assert_eq!(fixture.condition("Failed"), "False/InProgress");
    fixture.succeed("rescue");
    fixture.succeed("tidy");
    assert_eq!(fixture.condition("Failed"), "True/StepFailed");
}

#[test]
fn finally_runs_what_is_for_success_after_a_success() {
    let mut fixture = with_finally();
    fixture.succeed("a");
    assert_eq!(fixture.started(), ["a", "b"]);
    fixture.succeed("b");
    assert_eq!(
        (fixture.started()[2..].to_vec(), fixture.end_of("rescue").as_str()),
        (vec!["tidy", "cheer"], "Omitted/NotNeeded")
    );
    assert_eq!(fixture.state(), "Running");
    fixture.succeed("tidy");
    fixture.succeed("cheer");
    assert_eq!(fixture.state(), "Succeed");
}

#[test]
fn a_failed_step_of_finally_fails_the_flow_unless_it_is_tolerated() {
    let ends = [(json!({}), "Failed"), (json!({"continueOnFailure": true}), "Succeed")];
    for (more, end) in ends {
        let mut fixture = Fixture::flow(flow([step("a", &[], json!({}))], json!({"finally": [last("z", more)]})));
        fixture.settle();
        fixture.succeed("a");
        fixture.fail("z");
        assert_eq!(fixture.state(), end);
    }
}

#[test]
fn finally_alone_runs_at_once() {
    let mut fixture = Fixture::flow(json!({"finally": [last("z", json!({}))]}));
    fixture.settle();
    assert_eq!(fixture.started(), ["z"]);
    fixture.succeed("z");
    assert_eq!(fixture.state(), "Succeed");
}

#[test]
fn finally_waits_while_the_flow_is_suspended_or_not_valid() {
    let mut fixture = with_finally();
    fixture.edit("/suspend", json!(true));
    fixture.fail("a");
    assert_eq!((fixture.started(), fixture.condition("Paused").as_str()), (vec!["a"], "True/BySpec"));
    fixture.edit("/flows/0/name", json!("A"));
    fixture.edit("/suspend", json!(false));
    fixture.settle();
    assert_eq!(fixture.started(), ["a"]);
    fixture.edit("/flows/0/name", json!("a"));
    fixture.settle();
    assert_eq!(fixture.started(), ["a", "rescue", "tidy"]);
}

/// Returns a flow in which `b` follows `a`, and `c` mends a failure of `a`. The step `join` follows both branches.
fn either(policy: &str) -> Fixture {
    let steps = [
        step("a", &[], json!({})),
        step("b", &["a"], json!({})),
        step("after-b", &["b"], json!({})),
        step("c", &["a"], json!({"when": "failure", "handlesFailure": true})),
        step("join", &["after-b", "c"], json!({})),
        step("other", &[], json!({})),
        step("after-other", &["other"], json!({})),
    ];
    let mut fixture = Fixture::flow(flow(steps, json!({"failurePolicy": {"type": policy}})));
    fixture.settle();
    fixture
}

/// Source: Argo Workflows and Tekton, whose users write `depends: a.Failed` and `onError: continue` for this.
#[test]
fn a_failure_that_a_step_makes_up_for_fails_no_flow_and_leaves_the_other_branch_out() {
    for policy in ["FailFast", "Continue", "Pause"] {
        let mut fixture = either(policy);
        fixture.fail("a");
        assert_eq!((fixture.state(), fixture.started()), ("Running", vec!["a", "other", "c"]), "{policy}");
        fixture.succeed("other");
        assert_eq!(fixture.started(), ["a", "other", "c", "after-other"], "it stops nothing meanwhile");
        fixture.succeed("c");
        for step in ["b", "after-b"] {
            assert_eq!(fixture.end_of(step), "Omitted/FailureHandled");
        }
        assert_eq!(fixture.unit("b").message, "step a failed, and step c made up for it");
        assert_eq!((fixture.unit("a").handled_by.as_str(), fixture.started()[4]), ("c", "join"));
        fixture.succeed("join");
        fixture.succeed("after-other");
        assert_eq!((fixture.state(), fixture.condition("Complete").as_str()), ("Succeed", "True/Succeeded"));
        assert_eq!(fixture.parent.status["steps"][0]["handledBy"], "c");
    }
}

#[test]
fn a_failure_counts_once_what_would_have_made_up_for_it_has_failed() {
    let mut fixture = either("FailFast");
    fixture.fail("a");
    fixture.fail("c");
    assert_eq!((fixture.state(), fixture.end_of("b").as_str()), ("Failed", "Omitted/DependencyNotMet"));
    assert_eq!(fixture.end_of("join"), "Omitted/DependencyNotMet");
    fixture.succeed("other");
    assert_eq!(fixture.end_of("after-other"), "Omitted/FlowFailed");
}

#[test]
fn without_a_failure_the_other_branch_is_what_is_left_out() {
    let mut fixture = either("FailFast");
    ["a", "b", "after-b"].into_iter().for_each(|step| fixture.succeed(step));
    assert_eq!((fixture.end_of("c").as_str(), fixture.started()[4]), ("Omitted/NotNeeded", "join"));
}

#[test]
fn what_made_up_for_a_failure_is_judged_anew_where_the_failed_step_runs_again() {
    let mut fixture = either("FailFast");
    fixture.fail("a");
    ["c", "other", "join", "after-other"].into_iter().for_each(|step| fixture.succeed(step));
    fixture.retry("again");
    assert_eq!((fixture.unit("a").handled_by.as_str(), fixture.unit("c").state), ("", UnitState::Waiting));
    fixture.succeed("a");
    assert_eq!((fixture.end_of("c").as_str(), fixture.started().last()), ("Omitted/NotNeeded", Some(&"b")));
}

#[test]
fn a_step_of_finally_that_failed_is_retried_by_its_name_and_nothing_else() {
    let more = json!({"finally": [last("release", json!({})), last("tell", json!({}))]});
    let mut fixture = Fixture::flow(flow([step("work", &[], json!({}))], more));
    fixture.settle();
    fixture.fail("work");
    fixture.succeed("tell");
    fixture.fail("release");
    fixture.retry("again/release");
    assert_eq!(fixture.started(), ["work", "release", "tell", "release"]);
}

/// A step that mends any failure of a chain depends on the whole chain. The steps before it do not wait for it.
#[test]
fn one_step_makes_up_for_the_failure_of_a_whole_chain() {
    let steps = [
        step("a", &[], json!({})),
        step("b", &["a"], json!({})),
        step("mend", &["a", "b"], json!({"when": "failure", "handlesFailure": true})),
        step("join", &["b", "mend"], json!({})),
    ];
    let mut fixture = Fixture::flow(flow(steps, json!({})));
    fixture.settle();
    fixture.fail("a");
    assert_eq!((fixture.end_of("b").as_str(), fixture.started()), ("Omitted/DependencyNotMet", vec!["a", "mend"]));
    fixture.succeed("mend");
    assert_eq!(fixture.started(), ["a", "mend", "join"]);
    fixture.succeed("join");
    assert_eq!(fixture.state(), "Succeed");
}

#[test]
fn what_makes_up_for_failures_waits_for_failure() {
    for more in [json!({"handlesFailure": true}), json!({"handlesFailure": true, "when": "finished"})] {
        let fixture = Fixture::flow(flow([step("a", &[], json!({})), step("b", &["a"], more)], json!({})));
        let (reason, message) = (&fixture.plan().summary.conditions, "handlesFailure needs when: failure");
        assert!(reason.iter().any(|said| said.message.contains(message)), "{reason:?}");
    }
}

/// Two steps mend failures of two chains with one root. Neither waits for the other.
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
    let mut fixture = Fixture::flow(flow(steps, json!({})));
    fixture.settle();
    fixture.fail("a");
    assert_eq!(fixture.started(), ["a", "mx", "my"]);
    ["mx", "my"].into_iter().for_each(|step| fixture.succeed(step));
    assert_eq!(fixture.state(), "Succeed");

    let steps = [
        step("a", &[], json!({})),
        step("c", &[], json!({})),
        step("b", &["c"], json!({})),
        step("d", &["a"], json!({})),
        step("h1", &["a", "b"], mends()),
        step("h2", &["c", "d"], mends()),
    ];
    let mut fixture = Fixture::flow(flow(steps, json!({"failurePolicy": {"type": "Continue"}})));
    fixture.settle();
    ["a", "c"].into_iter().for_each(|step| fixture.fail(step));
    ["h1", "h2"].into_iter().for_each(|step| fixture.succeed(step));
    assert_eq!(fixture.state(), "Succeed");
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
    let mut fixture = Fixture::flow(flow(steps, json!({"failurePolicy": {"type": "Continue"}})));
    fixture.settle();
    fixture.fail("a");
    assert_eq!((fixture.state_of("e"), fixture.started()), (UnitState::Waiting, vec!["a", "h"]));
    fixture.fail("h");
    assert_eq!((fixture.end_of("e").as_str(), fixture.started()), ("Omitted/DependencyNotMet", vec!["a", "h"]));
}
