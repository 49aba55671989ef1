//! Tests that the ledger catches faults that no driver of a model can cause alone.

use serde_json::{Value, json};

use super::*;
use crate::api::Event;
use crate::scenario::{Budget, Way, pod_key};
use oarlock_core::requests::writes::Write;

fn scenario() -> Scenario {
    Scenario::new("two", Way::Marked, &["a", "b"], Budget::default()).with(&json!({"parallelism": 1}))
}

/// Returns the ledger after a record of these targets.
fn recorded(api: &mut Api, details: Value) -> Ledger {
    let before = api.job.clone().unwrap();
    let status = json!({"status": {"epoch": 1, "targetDetails": details}});
    let write = Write::patch(&crate::scenario::job_key().object(), status);
    api.write(&write, 0).unwrap();
    let mut ledger = Ledger::default();
    ledger.job_written(&scenario(), Author { term: 1, index: None, attempt: 0 }, &before, api);
    ledger
}

fn target(name: &str, progress: &str) -> Value {
    json!({"name": name, "uid": name, "progress": progress})
}

#[test]
fn more_targets_in_flight_than_allowed_break_the_budget() {
    let mut api = Api::new(&scenario());
    let fine = recorded(&mut api, json!([target("a", "Processing"), target("b", "Pending")]));
    assert!(fine.broken.is_empty(), "{:?}", fine.broken);
    let ledger = recorded(&mut api, json!([target("a", "Processing"), target("b", "Processing")]));
    assert!(ledger.broken.contains_key(&Property::S4));
}

#[test]
fn an_outcome_that_is_taken_back_and_a_target_that_is_left_out_are_losses() {
    let mut api = Api::new(&scenario());
    recorded(&mut api, json!([target("a", "Failed"), target("b", "Pending")]));
    let ledger = recorded(&mut api, json!([target("a", "Processing"), target("b", "Pending")]));
    assert!(ledger.broken.contains_key(&Property::S2));
    let ledger = recorded(&mut api, json!([target("a", "Processing")]));
    assert!(ledger.broken.contains_key(&Property::S2));
}

#[test]
fn a_guard_that_goes_before_its_new_pod_is_recorded_breaks_the_order() {
    for known in [false, true] {
        let mut api = Api::new(&scenario());
        let mut origin = target("a", "Processing");
        if known {
            origin["extraInfo"] = json!({NEW_POD: "a-n"});
        }
        let mut ledger = recorded(&mut api, json!([origin, target("b", "Pending")]));
        api.change("a", |pod| pod.finalizers.push(GUARD.into()));
        let Some(Event::Pod(before)) = api.terminate("a", 1) else { panic!("it terminates") };
        let body = json!({"metadata": {"uid": "a", "finalizers": []}});
        api.write(&Write::patch(&pod_key("a"), body), 1).unwrap();
        let job = api.job.clone().unwrap();
        ledger.pod_written(Author { term: 1, index: Some(0), attempt: 1 }, &before, &api, Some(&job));
        assert_eq!(ledger.broken.contains_key(&Property::S7), !known);
    }
}

#[test]
fn a_success_while_the_pod_is_there_is_dishonest() {
    let mut api = Api::new(&scenario());
    let ledger = recorded(&mut api, json!([target("a", "Succeeded"), target("b", "Pending")]));
    assert!(ledger.broken.contains_key(&Property::S3));
}
