//! Jobs that somebody else made look like children: nothing of them is believed but what their maker could not choose.

use std::sync::Arc;

use oarlock_core::child::view::{ChildKind, ChildView};
use serde_json::{Value, json};

use crate::stage::Stage;
use crate::stage::make::plain;

/// A Job that says to be a child of the flow and has ended well.
fn forged(name: &str, step: &str, attempt: &str) -> Value {
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"namespace": "ns", "name": name, "uid": "forged",
            "resourceVersion": "9", "labels": {"oarlock.dev/attempt": attempt, "oarlock.dev/owner-uid": "f-uid-0000",
            "oarlock.dev/owner-kind": "JobFlow"}, "annotations": {"oarlock.dev/step": step},
            "ownerReferences": [{"apiVersion": "api.practice.com/v1alpha1", "kind": "JobFlow", "name": "f",
                "uid": "f-uid-0000", "controller": true}]},
        "spec": {}, "status": {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]}})
}

fn two_steps() -> Stage {
    Stage::flow(plain(&[("a", &[]), ("b", &["a"])]))
}

/// The flow goes its way, whatever `job` says.
fn is_not_believed(job: &Value, why: &str) {
    for after in [0, 1] {
        let mut stage = two_steps();
        (0..after).for_each(|_| drop(stage.settle()));
        stage.children.push(Arc::new(ChildView::read(ChildKind::Job, job).unwrap()));
        stage.settle();
        assert_eq!(stage.started(), ["a"], "{why}");
        stage.succeed("a");
        assert_eq!(stage.started(), ["a", "b"], "{why}");
        assert_eq!(stage.end_of("b"), "Pending", "{why}");
        stage.succeed("b");
        assert_eq!((stage.state(), stage.created.len()), ("Succeed", 2), "{why}");
        assert_eq!(stage.changed, [], "{why}");
    }
}

#[test]
fn a_job_of_another_namespace_decides_no_step() {
    for attempt in ["0", "1", "7", "4294967295"] {
        for step in ["a", "b"] {
            let mut job = forged(&format!("f-{step}"), step, attempt);
            job["metadata"]["namespace"] = "other".into();
            is_not_believed(&job, &format!("{step} {attempt}"));
        }
    }
}

#[test]
fn a_job_whose_name_is_not_that_of_its_attempt_decides_no_step() {
    for (name, attempt) in
        [("mine", "0"), ("mine", "1"), ("f-b-r1", "7"), ("f-b", "4294967295"), ("mine", "4294967295"), ("f-c", "0")]
    {
        is_not_believed(&forged(name, "b", attempt), &format!("{name} {attempt}"));
    }
}

#[test]
fn a_job_of_an_attempt_that_cannot_be_reached_yet_decides_no_step() {
    for attempt in ["2", "7", "100", "4294967294", "4294967295"] {
        is_not_believed(&forged(&format!("f-b-r{attempt}"), "b", attempt), attempt);
    }
}

#[test]
fn a_job_that_names_the_flow_by_uid_under_another_kind_decides_no_step() {
    let mut job = forged("f-b", "b", "0");
    job["metadata"]["ownerReferences"][0]["kind"] = "DaemonJob".into();
    is_not_believed(&job, "kind");
    job["metadata"]["ownerReferences"] = json!([]);
    job["metadata"]["labels"]["oarlock.dev/owner-kind"] = "DaemonJob".into();
    is_not_believed(&job, "label");
}

#[test]
fn a_child_whose_labels_were_changed_is_known_by_its_uid() {
    let mut stage = two_steps();
    stage.settle();
    for (field, key, value) in [
        ("labels", "oarlock.dev/attempt", "4294967295"),
        ("annotations", "oarlock.dev/step", "b"),
        ("labels", "oarlock.dev/attempt", "x"),
    ] {
        stage.objects.get_mut("f-a").unwrap()["metadata"][field][key] = value.into();
        stage.show("f-a");
        stage.settle();
        assert_eq!(stage.started(), ["a"], "{key}");
    }
    stage.succeed("a");
    assert_eq!((&*stage.end_of("a"), stage.started()), ("Succeed", vec!["a", "b"]));
}
