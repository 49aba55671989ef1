//! Histories with one defect each. The judge must name the defect, and must find nothing in the correct history.

use std::sync::Arc;

use serde_json::json;

use super::*;

fn unit(name: &str, needs: &[&str], outcome: &str, attempts: u64) -> ExpectedUnit {
    let needs = needs.iter().map(ToString::to_string).collect();
    ExpectedUnit { name: name.into(), needs, outcome: outcome.into(), attempts, expires: name == "a" }
}

/// Returns a flow of two units: `a` expires, `b` waits for `a` and runs twice.
fn expected() -> Expected {
    Expected {
        namespace: "n".into(),
        plural: "jobflows".into(),
        name: "f".into(),
        table: "steps".into(),
        at_once: 1,
        units: vec![unit("a", &[], "Succeed", 1), unit("b", &["a"], "Succeed", 2)],
    }
}

fn version(plural: &str, name: &str, uid: &str, object: Value) -> Version {
    let (plural, namespace, object) = (plural.to_owned(), "n".to_owned(), Arc::new(object));
    Version { resource_version: 0, plural, namespace, name: name.into(), uid: uid.into(), object, is_end: false }
}

fn flow(steps: Value, ended: bool) -> Version {
    let conditions = json!([{"type": "Complete", "status": "True"}, {"type": "Valid", "status": "True"}]);
    let end = if ended {
        json!({"state": "Succeed", "completionTime": "2026-01-01T00:00:00Z", "conditions": conditions})
    } else {
        json!({"state": "Running"})
    };
    let mut status = json!({ "steps": steps });
    status.as_object_mut().unwrap().extend(end.as_object().unwrap().clone());
    version("jobflows", "f", "f", json!({ "status": status }))
}

fn job(unit: &str, attempt: u64, condition: &str) -> Version {
    let name = if attempt == 0 { format!("f-{unit}") } else { format!("f-{unit}-r{attempt}") };
    let object = json!({
        "metadata": {
            "ownerReferences": [{"uid": "f", "controller": true}],
            "labels": {"oarlock.dev/attempt": attempt.to_string()},
            "annotations": {"oarlock.dev/step": unit},
        },
        "spec": {},
        "status": {"conditions": [{"type": condition, "status": "True"}]},
    });
    version("jobs", &name, &name, object)
}

fn changed(mut version: Version, change: impl FnOnce(&mut Value)) -> Version {
    change(Arc::make_mut(&mut version.object));
    version
}

fn expiring() -> Version {
    changed(job("a", 0, "Complete"), |job| job["spec"] = json!({"ttlSecondsAfterFinished": 0}))
}

/// Returns the history of a correct host.
fn right() -> Vec<Version> {
    let a = json!({"name": "a", "state": "Succeed", "jobUID": "f-a"});
    let b =
        |state: &str, uid: &str, attempt: u64| json!({"name": "b", "state": state, "jobUID": uid, "attempt": attempt});
    vec![
        flow(json!([]), false),
        job("a", 0, ""),
        job("a", 0, "Complete"),
        flow(json!([a, {"name": "b", "state": "Waiting"}]), false),
        expiring(),
        job("b", 0, ""),
        Version { is_end: true, ..expiring() },
        job("b", 0, "Failed"),
        flow(json!([a, b("Retrying", "f-b", 0)]), false),
        job("b", 1, ""),
        job("b", 1, "Complete"),
        flow(json!([a, b("Succeed", "f-b-r1", 1)]), true),
    ]
}

/// Returns the findings of the judge about a history, joined.
fn said(mut versions: Vec<Version>) -> String {
    versions.iter_mut().zip(1..).for_each(|(version, number)| version.resource_version = number);
    judge(&versions, &expected()).join("\n")
}

fn without(place: usize) -> Vec<Version> {
    let mut versions = right();
    versions.remove(place);
    versions
}

fn with(place: usize, version: Version) -> Vec<Version> {
    let mut versions = right();
    versions.insert(place, version);
    versions
}

fn exchanged(one: usize, other: usize) -> Vec<Version> {
    let mut versions = right();
    versions.swap(one, other);
    versions
}

#[test]
fn nothing_is_said_of_a_history_that_is_right() {
    assert_eq!(said(right()), "");
}

#[test]
fn a_child_that_is_made_twice_is_found_under_any_name() {
    let other = |name: &str, uid: &str| Version { name: name.into(), uid: uid.into(), ..job("b", 0, "") };
    let again = said(with(10, other("f-b", "another")));
    assert!(again.contains("S1: attempt 0 of b was made twice; at 11 jobs f-b"), "{again}");
    let renamed = said(with(6, other("f-b-x", "another")));
    assert!(renamed.contains("S1: attempt 0 of b") && renamed.contains("S5: attempt 0 of b has another"), "{renamed}");
    let third = said(with(11, job("b", 2, "")));
    assert!(third.contains("S1: attempt 2 of b is one too many"), "{third}");
}

#[test]
fn a_child_that_is_forgotten_is_found() {
    let mut versions = right();
    versions.drain(9..11);
    let said = said(versions);
    assert!(said.contains("S2: attempt 1 of b was never made"), "{said}");
}

#[test]
fn a_child_that_begins_before_its_turn_is_found() {
    let early = said(exchanged(2, 5));
    assert!(early.contains("S7: b began before a was over; at 3"), "{early}");
    assert!(early.contains("S4: 2 children have no outcome"), "{early}");
    let retry = said(exchanged(7, 9));
    assert!(retry.contains("S7: attempt 1 of b began before the one before had failed; at 8"), "{retry}");
}

#[test]
fn a_time_to_live_that_begins_before_the_outcome_is_stored_is_found() {
    let early = said(exchanged(3, 4));
    assert!(early.contains("S7: the time to live of f-a began before its outcome was stored; at 4"), "{early}");
    let gone = said(with(3, Version { is_end: true, ..job("a", 0, "Complete") }));
    assert!(gone.contains("S2: f-a went before its outcome was stored; at 4"), "{gone}");
    let stays = said(without(6));
    assert!(stays.contains("S2: f-a is gone: false"), "{stays}");
}

#[test]
fn an_outcome_that_no_child_shows_or_that_changes_is_found() {
    let early = said(exchanged(2, 3));
    assert!(early.contains("S3: a is said to be Succeed, and its child ended with None; at 3"), "{early}");
    let back = flow(json!([{"name": "a", "state": "Running", "jobUID": "f-a"}, {"name": "b"}]), false);
    let back = said(with(5, back));
    assert!(back.contains("S3: what became of a changed"), "{back}");
    let lost = said(with(5, flow(json!([{"name": "b"}]), false)));
    assert!(lost.contains("S2: a is not in the status any more"), "{lost}");
}

#[test]
fn a_child_of_nobody_is_found() {
    let foreign = changed(job("b", 0, ""), |job| job["metadata"]["ownerReferences"] = json!([{"uid": "f"}]));
    let said = said(with(5, Version { uid: "another".into(), ..foreign }));
    assert!(said.contains("S5: a child of nobody; at 6"), "{said}");
}

#[test]
fn a_template_that_names_what_is_not_there_is_found() {
    let template = version("jobtemplates", "t", "t", json!({"status": {"dependencyList": ["f-b"]}}));
    let said = said(with(1, template));
    assert!(said.contains(r#"S3: the template t names ["f-b"], and there are []"#), "{said}");
}
