//! Objects that the original operator has worked on: A40, and 2.10.

use oarlock_core::child::parent::ParentKind;
use oarlock_core::child::unit::UnitState;
use serde_json::{Value, json};

use crate::stage::Stage;
use crate::stage::make::{flow, job, object, plain, step, with};

fn ended(kind: &str) -> Value {
    json!({"conditions": [{"type": kind, "status": "True", "lastTransitionTime": "2025-01-01T00:00:00Z"}]})
}

fn stored(spec: Value, state: &str, list: Value) -> Stage {
    let status = json!({"state": state, "jobStatusList": list});
    Stage::of(ParentKind::Flow, with(object("JobFlow", "f", spec), json!({"status": status})))
}

fn two() -> Value {
    plain(&[("a", &[]), ("b", &["a"])])
}

/// A Job as the original made it: without annotation, not controlled.
fn planted(name: &str, status: Value) -> Value {
    let owner = json!({"apiVersion": "api.practice.com/v1alpha1", "kind": "JobFlow", "name": "f", "uid": "f-uid-0000"});
    json!({"apiVersion": "batch/v1", "kind": "Job", "spec": job(), "status": status, "metadata":
        {"namespace": "ns", "name": name, "uid": format!("old-{name}"), "resourceVersion": "1", "ownerReferences": [owner]}})
}

#[test]
fn a_finished_object_keeps_its_state_and_creates_nothing() {
    for state in ["Succeed", "Failed"] {
        for list in [
            json!({}),
            json!({"f-a/ns": ended("Complete"), "f-b/ns": ended("Complete")}),
            json!({"f-a/ns": {"active": 1}}),
        ] {
            let mut stage = stored(two(), state, list);
            stage.settle();
            stage.restart();
            stage.pass(1_000);
            assert_eq!((stage.state(), stage.created.len()), (state, 0));
        }
    }
}

#[test]
fn a_finished_object_is_complete() {
    let mut stage = stored(two(), "Succeed", json!({}));
    stage.settle();
    assert_eq!((stage.condition("Complete").as_str(), stage.condition("Stalled").as_str()), ("True/Succeeded", ""));
    let mut stage = stored(two(), "Failed", json!({"f-a/ns": ended("Failed")}));
    stage.settle();
    assert_eq!(
        (stage.condition("Failed").as_str(), stage.condition("Complete").as_str()),
        ("True/StepFailed", "False/AtRest")
    );
    let mut stage = stored(two(), "Failed", json!({}));
    stage.settle();
    assert_eq!(stage.message("Progressing"), "0 of 0 steps succeeded");
}

#[test]
fn an_edit_or_a_retry_takes_a_failed_object_up_again() {
    let list = json!({"f-a/ns": ended("Complete")});
    let mut stage = stored(two(), "Failed", list.clone());
    stage.settle();
    stage.edit("/flows/1/jobTemplate/template/spec/containers/0/image", json!("mended"));
    stage.settle();
    assert_eq!(stage.started(), ["b"]);
    stage.succeed("b");
    assert_eq!(stage.state(), "Succeed");

    let mut stage = stored(two(), "Failed", list);
    stage.settle();
    stage.retry("1");
    assert_eq!(stage.names(), ["f-b"]);
}

#[test]
fn a_step_that_is_added_to_a_finished_object_runs() {
    let mut stage = stored(two(), "Succeed", json!({}));
    stage.settle();
    stage.edit(
        "/flows",
        json!([step("a", &[], json!({})), step("b", &[], json!({})), step("c", &["a", "b"], json!({}))]),
    );
    stage.settle();
    assert_eq!(stage.started(), ["c"]);
}

#[test]
fn a_running_object_whose_job_vanished_has_failed() {
    let mut stage = stored(two(), "Running", json!({"f-a/ns": {"active": 1}}));
    stage.settle();
    assert_eq!(
        (stage.end_of("a").as_str(), stage.end_of("b").as_str()),
        ("Failed/JobDeleted", "Omitted/DependencyNotMet")
    );
    assert_eq!((stage.state(), stage.created.len()), ("Failed", 0));
    stage.retry("1");
    assert_eq!(stage.names(), ["f-a-r1"]);
}

#[test]
fn a_running_object_goes_on_with_the_jobs_that_are_there() {
    let mut stage = stored(two(), "Running", json!({"f-a/ns": {"active": 1}}));
    stage.plant(planted("f-a", json!({"active": 1})));
    stage.settle();
    assert_eq!((stage.state_of("a"), stage.unit("a").job_uid.as_str()), (UnitState::Running, "old-f-a"));
    assert_eq!(stage.changed, [("adopt", "f-a".to_owned())]);
    stage.end_child("f-a", true);
    stage.settle();
    assert_eq!(stage.started(), ["b"]);
    stage.succeed("b");
    assert_eq!(stage.state(), "Succeed");
}

#[test]
fn a_vanished_job_counts_by_its_entry_of_this_namespace() {
    let list = json!({"f-a/ns": ended("Complete"), "f-b/other": ended("Complete")});
    let mut stage = stored(two(), "Running", list);
    stage.settle();
    assert_eq!((stage.end_of("a").as_str(), stage.started()), ("Succeed/Imported", vec!["b"]));
    assert_eq!(stage.parent.status["jobStatusList"].get("f-b/other"), None);
}

#[test]
fn a_job_that_is_there_counts_and_not_the_entry_of_its_name() {
    let mut stage = stored(two(), "Running", json!({"f-a/ns": ended("Failed")}));
    stage.plant(planted("f-a", json!({"active": 1})));
    stage.settle();
    assert_eq!((stage.state_of("a"), stage.unit("a").job_uid.as_str()), (UnitState::Running, "old-f-a"));
}

#[test]
fn a_job_of_an_earlier_object_of_this_name_is_not_counted() {
    let mut stage = stored(two(), "Running", json!({}));
    let mut foreign = planted("f-a", ended("Complete"));
    foreign["metadata"]["ownerReferences"][0]["uid"] = "earlier".into();
    stage.children.push(std::sync::Arc::new(
        oarlock_core::child::view::ChildView::read(oarlock_core::child::view::ChildKind::Job, &foreign).unwrap(),
    ));
    let plan = stage.plan();
    assert_eq!((plan.units[0].state, plan.creates.len(), plan.changes.len()), (UnitState::Waiting, 1, 0));
}

#[test]
fn an_object_of_the_original_that_never_began_runs() {
    let mut stage = stored(flow([step("a", &[], json!({}))], json!({})), "Pending", Value::Null);
    stage.settle();
    assert_eq!(stage.started(), ["a"]);
}

#[test]
fn a_finished_daemon_job_creates_nothing_for_any_node() {
    let status = json!({"state": "Succeed", "jobStatusList": {}});
    let stored = with(object("DaemonJob", "d", job()), json!({"status": status}));
    let mut stage = Stage::of(ParentKind::Daemon, stored);
    ["n1", "n2"].into_iter().for_each(|node| stage.add_node(node));
    stage.settle();
    stage.restart();
    stage.settle();
    assert_eq!((stage.state(), stage.created.len()), ("Succeed", 0));
}
