//! Jobs that somebody else made look like children. The host believes only what their maker could not choose.

use std::sync::Arc;

use oarlock_core::attempts::view::{ChildKind, ChildView};
use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::fixture::make::plain;

/// Returns a Job that claims to be a child of the flow and to have ended well.
fn forged(name: &str, step: &str, attempt: &str) -> Value {
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"namespace": "ns", "name": name, "uid": "forged",
            "resourceVersion": "9", "labels": {"oarlock.dev/attempt": attempt, "oarlock.dev/owner-uid": "f-uid-0000",
            "oarlock.dev/owner-kind": "JobFlow"}, "annotations": {"oarlock.dev/step": step},
            "ownerReferences": [{"apiVersion": "api.practice.com/v1alpha1", "kind": "JobFlow", "name": "f",
                "uid": "f-uid-0000", "controller": true}]},
        "spec": {}, "status": {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]}})
}

fn two_steps() -> Fixture {
    Fixture::flow(plain(&[("a", &[]), ("b", &["a"])]))
}

/// Checks that the flow goes on as usual, whatever `job` claims.
fn is_not_believed(job: &Value, why: &str) {
    for after in [0, 1] {
        let mut fixture = two_steps();
        (0..after).for_each(|_| drop(fixture.settle()));
        fixture.children.push(Arc::new(ChildView::read(ChildKind::Job, job).unwrap()));
        fixture.settle();
        assert_eq!(fixture.started(), ["a"], "{why}");
        fixture.succeed("a");
        assert_eq!(fixture.started(), ["a", "b"], "{why}");
        assert_eq!(fixture.end_of("b"), "Pending", "{why}");
        fixture.succeed("b");
        assert_eq!((fixture.state(), fixture.created.len()), ("Succeed", 2), "{why}");
        assert_eq!(fixture.changed, [], "{why}");
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
    let mut fixture = two_steps();
    fixture.settle();
    for (field, key, value) in [
        ("labels", "oarlock.dev/attempt", "4294967295"),
        ("annotations", "oarlock.dev/step", "b"),
        ("labels", "oarlock.dev/attempt", "x"),
    ] {
        fixture.objects.get_mut("f-a").unwrap()["metadata"][field][key] = value.into();
        fixture.show("f-a");
        fixture.settle();
        assert_eq!(fixture.started(), ["a"], "{key}");
    }
    fixture.succeed("a");
    assert_eq!((&*fixture.end_of("a"), fixture.started()), ("Succeed", vec!["a", "b"]));
}
