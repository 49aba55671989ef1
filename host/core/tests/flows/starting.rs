//! The steps that start, and the order of their starts: A1, A4, A10, A13, A14, A16, A17, A26.

use oarlock_core::attempts::build::Cause;
use oarlock_core::attempts::refused::Refused;
use oarlock_core::attempts::unit::UnitState;
use oarlock_core::object::time::after_seconds;
use serde_json::json;

use crate::fixture::Fixture;
use crate::fixture::make::{flow, job, plain, step, with};

#[test]
fn five_steps_run_in_the_order_of_their_dependencies() {
    let steps: [(&str, &[&str]); 5] =
        [("j1", &[]), ("j2", &["j1"]), ("j3", &["j1", "j2"]), ("j4", &[]), ("j5", &["j4", "j2"])];
    let mut fixture = Fixture::flow(plain(&steps));
    fixture.settle();
    assert_eq!(fixture.started(), ["j1", "j4"]);
    assert_eq!((fixture.state(), fixture.condition("Progressing").as_str()), ("Pending", "True/Working"));
    fixture.succeed("j1");
    assert_eq!(fixture.started(), ["j1", "j4", "j2"]);
    fixture.succeed("j4");
    fixture.succeed("j2");
    assert_eq!(fixture.started()[3..], ["j3", "j5"]);
    fixture.succeed("j3");
    fixture.succeed("j5");
    assert_eq!((fixture.state(), fixture.condition("Complete").as_str()), ("Succeed", "True/Succeeded"));
    assert_eq!(fixture.parent.status["progress"], "5/5");
    assert_eq!((fixture.events("Succeed"), fixture.events("Created")), (1, 5));
}

#[test]
fn only_the_first_child_of_a_step_that_waited_for_others_follows_them() {
    let retried = json!({"dependencies": ["a"], "retryPolicy": {"limit": 1, "backoffSeconds": 1}});
    let last = step("last", &[], json!({}));
    let mut fixture =
        Fixture::flow(flow([step("a", &[], json!({})), step("b", &[], retried)], json!({"finally": [last]})));
    let follows = |fixture: &Fixture| -> Vec<_> {
        fixture.plan().creates.iter().map(|create| (create.unit.clone(), create.follows)).collect()
    };
    assert_eq!(follows(&fixture), [("a".to_owned(), false)]);
    fixture.settle();
    fixture.end_child("f-a", true);
    assert_eq!(follows(&fixture), [("b".to_owned(), true)]);
    fixture.settle();
    fixture.fail("b");
    fixture.now = after_seconds(fixture.now, 1);
    assert_eq!(follows(&fixture), [("b".to_owned(), false)], "it waited for its own back-off");
    fixture.settle();
    fixture.end_child("f-b-r1", true);
    assert_eq!(follows(&fixture), [("last".to_owned(), true)]);
}

#[test]
fn a_flow_is_pending_until_a_unit_runs() {
    let mut fixture = Fixture::flow(plain(&[("a", &[])]));
    fixture.round();
    assert_eq!(fixture.state(), "Pending");
    fixture.round();
    assert_eq!((fixture.state(), fixture.state_of("a")), ("Pending", UnitState::Pending));
    fixture.run("a");
    assert_eq!((fixture.state(), fixture.state_of("a")), ("Running", UnitState::Running));
    assert!(fixture.parent.status["jobStatusList"]["f-a/ns"]["active"] == 1);
}

#[test]
fn repeated_dependencies_count_once() {
    let mut fixture = Fixture::flow(plain(&[("a", &[]), ("b", &["a", "a"])]));
    fixture.settle();
    fixture.succeed("a");
    fixture.succeed("b");
    assert_eq!(fixture.state(), "Succeed");
}

#[test]
fn an_absent_template_blocks_one_step_and_heals_unasked() {
    let by_template = json!({"name": "a", "jobTemplateRef": "t.1"});
    let mut fixture = Fixture::flow(flow([by_template, step("b", &[], json!({}))], json!({})));
    fixture.settle();
    assert_eq!((fixture.started(), fixture.end_of("a").as_str()), (vec!["b"], "Blocked/JobTemplateNotFound"));
    assert_eq!(fixture.condition("Blocked"), "True/JobTemplateNotFound");
    fixture.succeed("b");
    assert_eq!((fixture.state(), fixture.condition("Stalled").as_str()), ("Running", "True/Blocked"));
    assert_eq!((fixture.condition("Progressing").as_str(), fixture.events("Blocked")), ("False/AtRest", 1));
    fixture.add_template("t.1", "u/1", job());
    fixture.settle();
    assert_eq!(fixture.object_of("a")["metadata"]["annotations"]["createByJobTemplate"], "ns.t.1");
    assert_eq!(
        (fixture.condition("Stalled").as_str(), fixture.condition("Blocked").as_str()),
        ("", "False/NoneBlocked")
    );
    fixture.succeed("a");
    assert_eq!(fixture.state(), "Succeed");
}

#[test]
fn a_template_without_container_blocks() {
    let mut fixture = Fixture::flow(flow([json!({"name": "a", "jobTemplateRef": "t"})], json!({})));
    fixture.add_template("t", "u/1", json!({"template": {"spec": {"containers": []}}}));
    fixture.settle();
    assert_eq!(fixture.end_of("a"), "Blocked/Rejected");
}

#[test]
fn a_job_of_many_completions_is_done_when_its_condition_says_so() {
    let wide = with(job(), json!({"completions": 3, "parallelism": 2}));
    let first = json!({"name": "a", "jobTemplate": wide});
    let mut fixture = Fixture::flow(flow([first, step("b", &["a"], json!({}))], json!({})));
    fixture.settle();
    for status in [json!({"active": 2}), json!({"active": 1, "succeeded": 2}), json!({"succeeded": 3})] {
        fixture.set_status("f-a", status);
        fixture.settle();
        assert_eq!(fixture.started(), ["a"]);
    }
    fixture.succeed("a");
    assert_eq!(fixture.started(), ["a", "b"]);
}

#[test]
fn stored_duplicates_are_reported_and_heal() {
    let mut fixture = Fixture::flow(plain(&[("a", &[]), ("a", &[])]));
    fixture.settle();
    assert_eq!((fixture.condition("Valid").as_str(), fixture.created.len()), ("False/DuplicateStep", 0));
    assert!(fixture.message("Valid").contains("step a"));
    fixture.edit("/flows/1/name", json!("b"));
    fixture.settle();
    assert_eq!(fixture.started(), ["a", "b"]);
}

#[test]
fn an_edit_that_is_not_valid_lets_running_children_end() {
    let mut fixture = Fixture::flow(plain(&[("a", &[]), ("b", &["a"]), ("c", &[])]));
    fixture.settle();
    fixture.edit("/flows/0/dependencies", json!(["a"]));
    fixture.settle();
    assert_eq!((fixture.state(), fixture.condition("Failed").as_str()), ("Failed", "False/InProgress"));
    fixture.succeed("a");
    fixture.fail("c");
    assert_eq!(
        (fixture.end_of("a").as_str(), fixture.end_of("c").as_str()),
        ("Succeed", "Failed/BackoffLimitExceeded")
    );
    assert_eq!((fixture.condition("Failed").as_str(), fixture.started().len()), ("True/Invalid", 2));
    fixture.edit("/flows/0/dependencies", json!([]));
    fixture.retry("1");
    assert_eq!(fixture.started()[2..], ["c", "b"]);
}

#[test]
fn a_child_that_was_just_created_is_recorded_though_the_spec_is_not_valid_any_more() {
    let mut fixture = Fixture::flow(plain(&[("a", &[])]));
    fixture.round();
    fixture.edit("/flows/0/dependencies", json!(["a"]));
    fixture.settle();
    assert_eq!((fixture.state_of("a"), fixture.condition("Failed").as_str()), (UnitState::Pending, "False/InProgress"));
    fixture.succeed("a");
    assert_eq!((fixture.end_of("a").as_str(), fixture.condition("Failed").as_str()), ("Succeed", "True/Invalid"));
}

fn refused(fixture: &Fixture, unit: &str, reason: &str) -> Refused {
    let create = fixture.plan().creates.into_iter().find(|create| create.unit == unit).unwrap();
    let message = "Job f-a belongs to somebody else";
    Refused::again(None, Cause::new(reason, message), create.revision, false, fixture.now)
}

#[test]
fn a_refused_create_blocks_its_step_until_it_is_tried_again() {
    let mut fixture = Fixture::flow(plain(&[("a", &[]), ("b", &[]), ("c", &["a"])]));
    let refused = refused(&fixture, "a", "NameConflict");
    fixture.memory.refused.insert("a".to_owned(), refused);
    let plan = fixture.settle();
    assert_eq!((fixture.started(), fixture.end_of("a").as_str()), (vec!["b"], "Blocked/NameConflict"));
    assert_eq!(plan.due, Some(after_seconds(fixture.now, 5)));
    fixture.wake_refused();
    assert_eq!(fixture.started(), ["b", "a"]);
}

#[test]
fn an_edit_tries_a_refused_step_at_once() {
    let mut fixture = Fixture::flow(plain(&[("a", &[])]));
    let refused = refused(&fixture, "a", "Rejected");
    fixture.memory.refused.insert("a".to_owned(), refused);
    fixture.settle();
    assert_eq!(fixture.end_of("a"), "Blocked/Rejected");
    fixture.edit("/flows/0/jobTemplate/template/spec/containers/0/image", json!("legal"));
    assert_eq!(fixture.plan().creates.len(), 1);
}
