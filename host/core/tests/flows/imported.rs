//! Objects that the original operator has worked on: A40, and 2.10.

use oarlock_core::attempts::parent::ParentKind;
use oarlock_core::attempts::unit::UnitState;
use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::fixture::make::{flow, job, object, plain, step, with};

fn ended(kind: &str) -> Value {
    json!({"conditions": [{"type": kind, "status": "True", "lastTransitionTime": "2025-01-01T00:00:00Z"}]})
}

fn stored(spec: Value, state: &str, list: Value) -> Fixture {
    let status = json!({"state": state, "jobStatusList": list});
    Fixture::of(ParentKind::Flow, with(object("JobFlow", "f", spec), json!({"status": status})))
}

fn two() -> Value {
    plain(&[("a", &[]), ("b", &["a"])])
}

/// Returns a Job as the original operator made it: without annotation, not controlled.
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
            let mut fixture = stored(two(), state, list);
            fixture.settle();
            fixture.restart();
            fixture.pass(1_000);
            assert_eq!((fixture.state(), fixture.created.len()), (state, 0));
        }
    }
}

#[test]
fn a_finished_object_is_complete() {
    let mut fixture = stored(two(), "Succeed", json!({}));
    fixture.settle();
    assert_eq!((fixture.condition("Complete").as_str(), fixture.condition("Stalled").as_str()), ("True/Succeeded", ""));
    let mut fixture = stored(two(), "Failed", json!({"f-a/ns": ended("Failed")}));
    fixture.settle();
    assert_eq!(
        (fixture.condition("Failed").as_str(), fixture.condition("Complete").as_str()),
        ("True/StepFailed", "False/AtRest")
    );
    let mut fixture = stored(two(), "Failed", json!({}));
    fixture.settle();
    assert_eq!(fixture.message("Progressing"), "0 of 0 steps succeeded");
}

#[test]
fn an_edit_or_a_retry_takes_a_failed_object_up_again() {
    let list = json!({"f-a/ns": ended("Complete")});
    let mut fixture = stored(two(), "Failed", list.clone());
    fixture.settle();
    fixture.edit("/flows/1/jobTemplate/template/spec/containers/0/image", json!("mended"));
    fixture.settle();
    assert_eq!(fixture.started(), ["b"]);
    fixture.succeed("b");
    assert_eq!(fixture.state(), "Succeed");

    let mut fixture = stored(two(), "Failed", list);
    fixture.settle();
    fixture.retry("1");
    assert_eq!(fixture.names(), ["f-b"]);
}

#[test]
fn a_step_that_is_added_to_a_finished_object_runs() {
    let mut fixture = stored(two(), "Succeed", json!({}));
    fixture.settle();
    fixture.edit(
        "/flows",
        json!([step("a", &[], json!({})), step("b", &[], json!({})), step("c", &["a", "b"], json!({}))]),
    );
    fixture.settle();
    assert_eq!(fixture.started(), ["c"]);
}

#[test]
fn a_running_object_whose_job_vanished_has_failed() {
    let mut fixture = stored(two(), "Running", json!({"f-a/ns": {"active": 1}}));
    fixture.settle();
    assert_eq!(
        (fixture.end_of("a").as_str(), fixture.end_of("b").as_str()),
        ("Failed/JobDeleted", "Omitted/DependencyNotMet")
    );
    assert_eq!((fixture.state(), fixture.created.len()), ("Failed", 0));
    fixture.retry("1");
    assert_eq!(fixture.names(), ["f-a-r1"]);
}

#[test]
fn a_vanished_job_counts_by_its_entry_of_this_namespace() {
    let list = json!({"f-a/ns": ended("Complete"), "f-b/other": ended("Complete")});
    let mut fixture = stored(two(), "Running", list);
    fixture.settle();
    assert_eq!((fixture.end_of("a").as_str(), fixture.started()), ("Succeed/Imported", vec!["b"]));
    assert_eq!(fixture.parent.status["jobStatusList"].get("f-b/other"), None);
}

#[test]
fn a_job_that_is_there_counts_and_not_the_entry_of_its_name() {
    let mut fixture = stored(two(), "Running", json!({"f-a/ns": ended("Failed")}));
    fixture.plant(planted("f-a", json!({"active": 1})));
    fixture.settle();
    assert_eq!((fixture.state_of("a"), fixture.unit("a").job_uid.as_str()), (UnitState::Running, "old-f-a"));
}

#[test]
fn a_job_of_an_earlier_object_of_this_name_is_not_counted() {
    let mut fixture = stored(two(), "Running", json!({}));
    let mut foreign = planted("f-a", ended("Complete"));
    foreign["metadata"]["ownerReferences"][0]["uid"] = "earlier".into();
    fixture.children.push(std::sync::Arc::new(
        oarlock_core::attempts::view::ChildView::read(oarlock_core::attempts::view::ChildKind::Job, &foreign).unwrap(),
    ));
    let plan = fixture.plan();
    assert_eq!((plan.units[0].state, plan.creates.len(), plan.changes.len()), (UnitState::Waiting, 1, 0));
}

#[test]
fn an_object_of_the_original_that_never_began_runs() {
    let mut fixture = stored(flow([step("a", &[], json!({}))], json!({})), "Pending", Value::Null);
    fixture.settle();
    assert_eq!(fixture.started(), ["a"]);
}
