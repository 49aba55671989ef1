//! Which steps start, and when: A1, A4, A10, A13, A14, A16, A17, A26.

use oarlock_core::child::build::Cause;
use oarlock_core::child::refused::Refused;
use oarlock_core::child::unit::UnitState;
use oarlock_core::job::time::after_seconds;
use serde_json::json;

use crate::stage::Stage;
use crate::stage::make::{flow, job, plain, step, with};

#[test]
fn five_steps_run_in_the_order_of_their_dependencies() {
    let steps: [(&str, &[&str]); 5] =
        [("j1", &[]), ("j2", &["j1"]), ("j3", &["j1", "j2"]), ("j4", &[]), ("j5", &["j4", "j2"])];
    let mut stage = Stage::flow(plain(&steps));
    stage.settle();
    assert_eq!(stage.started(), ["j1", "j4"]);
    assert_eq!((stage.state(), stage.condition("Progressing").as_str()), ("Pending", "True/Working"));
    stage.succeed("j1");
    assert_eq!(stage.started(), ["j1", "j4", "j2"]);
    stage.succeed("j4");
    stage.succeed("j2");
    assert_eq!(stage.started()[3..], ["j3", "j5"]);
    stage.succeed("j3");
    stage.succeed("j5");
    assert_eq!((stage.state(), stage.condition("Complete").as_str()), ("Succeed", "True/Succeeded"));
    assert_eq!(stage.parent.status["progress"], "5/5");
    assert_eq!((stage.events("Succeed"), stage.events("Created")), (1, 5));
}

#[test]
fn only_the_first_child_of_a_step_that_waited_for_others_follows_them() {
    let retried = json!({"dependencies": ["a"], "retryPolicy": {"limit": 1, "backoffSeconds": 1}});
    let last = step("last", &[], json!({}));
    let mut stage = Stage::flow(flow([step("a", &[], json!({})), step("b", &[], retried)], json!({"finally": [last]})));
    let follows = |stage: &Stage| -> Vec<_> {
        stage.plan().creates.iter().map(|create| (create.unit.clone(), create.follows)).collect()
    };
    assert_eq!(follows(&stage), [("a".to_owned(), false)]);
    stage.settle();
    stage.end_child("f-a", true);
    assert_eq!(follows(&stage), [("b".to_owned(), true)]);
    stage.settle();
    stage.fail("b");
    stage.now = after_seconds(stage.now, 1);
    assert_eq!(follows(&stage), [("b".to_owned(), false)], "it waited for its own back-off");
    stage.settle();
    stage.end_child("f-b-r1", true);
    assert_eq!(follows(&stage), [("last".to_owned(), true)]);
}

#[test]
fn a_flow_is_pending_until_a_unit_runs() {
    let mut stage = Stage::flow(plain(&[("a", &[])]));
    stage.round();
    assert_eq!(stage.state(), "Pending");
    stage.round();
    assert_eq!((stage.state(), stage.state_of("a")), ("Pending", UnitState::Pending));
    stage.run("a");
    assert_eq!((stage.state(), stage.state_of("a")), ("Running", UnitState::Running));
    assert!(stage.parent.status["jobStatusList"]["f-a/ns"]["active"] == 1);
}

#[test]
fn repeated_dependencies_count_once() {
    let mut stage = Stage::flow(plain(&[("a", &[]), ("b", &["a", "a"])]));
    stage.settle();
    stage.succeed("a");
    stage.succeed("b");
    assert_eq!(stage.state(), "Succeed");
}

#[test]
fn an_absent_template_blocks_one_step_and_heals_unasked() {
    let by_template = json!({"name": "a", "jobTemplateRef": "t.1"});
    let mut stage = Stage::flow(flow([by_template, step("b", &[], json!({}))], json!({})));
    stage.settle();
    assert_eq!((stage.started(), stage.end_of("a").as_str()), (vec!["b"], "Blocked/JobTemplateNotFound"));
    assert_eq!(stage.condition("Blocked"), "True/JobTemplateNotFound");
    stage.succeed("b");
    assert_eq!((stage.state(), stage.condition("Stalled").as_str()), ("Running", "True/Blocked"));
    assert_eq!((stage.condition("Progressing").as_str(), stage.events("Blocked")), ("False/AtRest", 1));
    stage.add_template("t.1", "u/1", job());
    stage.settle();
    assert_eq!(stage.object_of("a")["metadata"]["annotations"]["createByJobTemplate"], "ns.t.1");
    assert_eq!((stage.condition("Stalled").as_str(), stage.condition("Blocked").as_str()), ("", "False/NoneBlocked"));
    stage.succeed("a");
    assert_eq!(stage.state(), "Succeed");
}

#[test]
fn a_template_without_container_blocks() {
    let mut stage = Stage::flow(flow([json!({"name": "a", "jobTemplateRef": "t"})], json!({})));
    stage.add_template("t", "u/1", json!({"template": {"spec": {"containers": []}}}));
    stage.settle();
    assert_eq!(stage.end_of("a"), "Blocked/Rejected");
}

#[test]
fn a_job_of_many_completions_is_done_when_its_condition_says_so() {
    let wide = with(job(), json!({"completions": 3, "parallelism": 2}));
    let first = json!({"name": "a", "jobTemplate": wide});
    let mut stage = Stage::flow(flow([first, step("b", &["a"], json!({}))], json!({})));
    stage.settle();
    for status in [json!({"active": 2}), json!({"active": 1, "succeeded": 2}), json!({"succeeded": 3})] {
        stage.set_status("f-a", status);
        stage.settle();
        assert_eq!(stage.started(), ["a"]);
    }
    stage.succeed("a");
    assert_eq!(stage.started(), ["a", "b"]);
}

#[test]
fn a_cycle_is_spelled_and_nothing_runs_until_an_edit() {
    let mut stage = Stage::flow(plain(&[("b", &["a"]), ("c", &["b"]), ("a", &["c"]), ("free", &[])]));
    stage.settle();
    assert_eq!((stage.condition("Valid").as_str(), stage.state()), ("False/Cycle", "Failed"));
    assert!(stage.message("Valid").contains("a -> c -> b -> a"), "{}", stage.message("Valid"));
    assert_eq!((stage.created.len(), stage.events("InvalidSpec")), (0, 1));
    assert_eq!(
        (stage.condition("Failed").as_str(), stage.condition("Stalled").as_str()),
        ("True/Invalid", "True/Invalid")
    );
    stage.edit("/flows/2/dependencies", json!([]));
    stage.settle();
    assert_eq!((stage.condition("Valid").as_str(), stage.state()), ("True/Accepted", "Pending"));
    assert_eq!(stage.started(), ["a", "free"]);
    assert!(stage.parent.status.get("completionTime").is_none());
}

#[test]
fn stored_duplicates_are_reported_and_heal() {
    let mut stage = Stage::flow(plain(&[("a", &[]), ("a", &[])]));
    stage.settle();
    assert_eq!((stage.condition("Valid").as_str(), stage.created.len()), ("False/DuplicateStep", 0));
    assert!(stage.message("Valid").contains("step a"));
    stage.edit("/flows/1/name", json!("b"));
    stage.settle();
    assert_eq!(stage.started(), ["a", "b"]);
}

#[test]
fn an_edit_that_is_not_valid_lets_running_children_end() {
    let mut stage = Stage::flow(plain(&[("a", &[]), ("b", &["a"]), ("c", &[])]));
    stage.settle();
    stage.edit("/flows/0/dependencies", json!(["a"]));
    stage.settle();
    assert_eq!((stage.state(), stage.condition("Failed").as_str()), ("Failed", "False/InProgress"));
    stage.succeed("a");
    stage.fail("c");
    assert_eq!((stage.end_of("a").as_str(), stage.end_of("c").as_str()), ("Succeed", "Failed/BackoffLimitExceeded"));
    assert_eq!((stage.condition("Failed").as_str(), stage.started().len()), ("True/Invalid", 2));
    stage.edit("/flows/0/dependencies", json!([]));
    stage.retry("1");
    assert_eq!(stage.started()[2..], ["c", "b"]);
}

#[test]
fn a_child_that_was_just_created_is_recorded_though_the_spec_is_not_valid_any_more() {
    let mut stage = Stage::flow(plain(&[("a", &[])]));
    stage.round();
    stage.edit("/flows/0/dependencies", json!(["a"]));
    stage.settle();
    assert_eq!((stage.state_of("a"), stage.condition("Failed").as_str()), (UnitState::Pending, "False/InProgress"));
    stage.succeed("a");
    assert_eq!((stage.end_of("a").as_str(), stage.condition("Failed").as_str()), ("Succeed", "True/Invalid"));
}

#[test]
fn a_job_of_a_long_name_is_found_again() {
    let mut object = crate::stage::make::object("JobFlow", &"f".repeat(60), plain(&[(&"s".repeat(20), &[])]));
    object["metadata"]["uid"] = "u".into();
    let mut stage = Stage::of(oarlock_core::child::parent::ParentKind::Flow, object);
    stage.round();
    assert_eq!(stage.names()[0].len(), 63);
    stage.restart();
    stage.settle();
    assert_eq!(stage.unit(&"s".repeat(20)).job, stage.names()[0]);
    stage.restart();
    stage.succeed(&"s".repeat(20));
    assert_eq!((stage.state(), stage.created.len()), ("Succeed", 1));
}

#[test]
fn nothing_is_created_for_an_object_that_is_being_deleted() {
    let mut stage = Stage::flow(plain(&[("a", &[]), ("b", &["a"]), ("c", &["b"])]));
    stage.settle();
    stage.succeed("a");
    stage.parent.terminating = true;
    stage.succeed("b");
    assert_eq!((stage.state(), stage.started()), ("Terminating", vec!["a", "b"]));
    stage.vanish("f-a");
    stage.vanish("f-b");
    stage.settle();
    assert_eq!((stage.started().len(), stage.changed.len()), (2, 0));
}

#[test]
fn a_suspended_job_is_pending_and_nobody_writes_its_suspend() {
    let held = with(job(), json!({"suspend": true}));
    let mut object =
        crate::stage::make::object("JobFlow", "f", flow([json!({"name": "a", "jobTemplate": held})], json!({})));
    object["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": "q", "other": "x"});
    let mut stage = Stage::of(oarlock_core::child::parent::ParentKind::Flow, object);
    stage.settle();
    assert_eq!(stage.object_of("a")["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "q");
    assert!(stage.object_of("a")["metadata"]["labels"].get("other").is_none());
    assert_eq!((stage.state_of("a"), &stage.object_of("a")["spec"]["suspend"]), (UnitState::Pending, &json!(true)));
    stage.objects.get_mut("f-a").unwrap()["spec"]["suspend"] = false.into();
    stage.succeed("a");
    assert_eq!((stage.state(), stage.changed.len()), ("Succeed", 0));
}

fn refused(stage: &Stage, unit: &str, reason: &str) -> Refused {
    let create = stage.plan().creates.into_iter().find(|create| create.unit == unit).unwrap();
    let message = "Job f-a belongs to somebody else";
    Refused::again(None, Cause::new(reason, message), (create.revision, false), stage.now)
}

#[test]
fn a_refused_create_blocks_its_step_until_it_is_tried_again() {
    let mut stage = Stage::flow(plain(&[("a", &[]), ("b", &[]), ("c", &["a"])]));
    let refused = refused(&stage, "a", "NameConflict");
    stage.memory.refused.insert("a".to_owned(), refused);
    let plan = stage.settle();
    assert_eq!((stage.started(), stage.end_of("a").as_str()), (vec!["b"], "Blocked/NameConflict"));
    assert_eq!(plan.due, Some(after_seconds(stage.now, 5)));
    stage.wake_refused();
    assert_eq!(stage.started(), ["b", "a"]);
}

#[test]
fn an_edit_tries_a_refused_step_at_once() {
    let mut stage = Stage::flow(plain(&[("a", &[])]));
    let refused = refused(&stage, "a", "Rejected");
    stage.memory.refused.insert("a".to_owned(), refused);
    stage.settle();
    assert_eq!(stage.end_of("a"), "Blocked/Rejected");
    stage.edit("/flows/0/jobTemplate/template/spec/containers/0/image", json!("legal"));
    assert_eq!(stage.plan().creates.len(), 1);
}
