//! The start of a target: its conditions, the record before it, and the jobs that start no target.

use oarlock_core::object::api_object::{Object, ObjectKey};
use oarlock_core::object::time::after_seconds;
use oarlock_core::operation_job::round::finalize::FINALIZER;
use oarlock_core::plugin::lookup::PluginLookup;
use oarlock_core::plugin::proposal::{Proposal, Report, State};
use oarlock_core::plugin::visit::{Answer, Visit};
use oarlock_core::requests::writes::Stopped;
use serde_json::{Value, json};

use crate::answers::evict_and_wait;
use crate::bench::Bench;

#[test]
fn intent_is_recorded_before_the_first_mutation() {
    let mut bench = Bench::new(Bench::targets(&["a", "b"]));
    bench.pod("a", "1");
    bench.pod("b", "2");
    bench.settle(&mut evict_and_wait);
    assert_eq!(bench.sent, ["finalizer", "status", "evict a", "evict b"]);
    assert_eq!(bench.status()["epoch"], json!(1));
    assert_eq!(bench.status()["targetDetails"][0]["uid"], json!("1"));
    assert_eq!(bench.status()["targetDetails"][0]["extraInfo"]["Owner"], json!("CloneSet/s/set"));
    assert_eq!(bench.job["metadata"]["finalizers"], json!([FINALIZER]));
}

#[test]
fn the_time_at_which_somebody_else_asked_a_target_to_go_is_recorded_with_its_intent() {
    for (grace, noted) in [(30, json!("2025-12-31T23:59:33Z")), (0, Value::Null)] {
        let mut bench = Bench::new(Bench::targets(&["a"]));
        bench.later(-60);
        bench.pod("a", "1");
        bench.later(60);
        let seen = bench.store.get(&ObjectKey::pod("d", "a")).unwrap();
        let (deleted, resource_version) = (Some(after_seconds(bench.now, 3)), "99".to_owned());
        bench.store.apply(Object { deleted, grace_seconds: Some(grace), resource_version, ..Object::clone(&seen) });
        // This test covers only the first record.
        bench.refuse.insert("evict", Stopped::Unknown { message: "timed out".into() });
        bench.round(&mut evict_and_wait);
        assert_eq!(bench.sent, ["finalizer", "status"]);
        let intent = &bench.status()["targetDetails"][0];
        assert_eq!((&intent["uid"], &intent["extraInfo"]["EvictedAt"]), (&json!("1"), &noted), "{intent}");
    }
}

#[test]
fn what_holds_a_job_back_is_shown_in_a_word() {
    let with = |field: &str, value: Value| {
        let mut spec = Bench::targets(&["a"]);
        spec[field] = value;
        spec
    };
    let refused = PluginLookup::NotServing { reason: "AwaitingGrant", message: "reads: [...]".into() };
    let unreadable = PluginLookup::NotServing { reason: "KindNotReadable", message: "ConfigMap".into() };
    for (spec, found, word) in [
        (with("partition", json!(0)), None, json!("Partition")),
        (with("partition", json!(-1)), None, json!("InvalidSpec")),
        (with("partition", json!(1)), Some(PluginLookup::Unknown { loaded: Vec::new() }), json!("NoPlugin")),
        (with("partition", json!(1)), Some(refused), json!("Grant")),
        (with("partition", json!(1)), Some(unreadable), json!("KindNotReadable")),
        (with("partition", json!(1)), None, Value::Null),
    ] {
        let mut bench = Bench::new(spec);
        bench.found = found.unwrap_or(bench.found);
        bench.pod("a", "1");
        bench.settle(&mut evict_and_wait);
        assert_eq!(
            (&bench.status()["waitsFor"], &bench.status()["done"]),
            (&word, &json!("0/1")),
            "{}",
            bench.status()
        );
    }
}

#[test]
fn a_target_that_is_a_new_pod_itself_names_the_pod_that_it_replaces() {
    let mut bench = Bench::new(Bench::targets(&["a"]));
    bench.pod("a", "1");
    let mut wait = |_: &Visit| {
        let set_extra = vec![("NotAllowedToReplaceNewPod".to_owned(), "origin".to_owned())];
        let proposal = Proposal { set_extra, ..Proposal::default() };
        let report = Report { state: State::Processing, proposal, check_after_ms: None };
        Answer::Reported { operate: Proposal::default(), report }
    };
    bench.settle(&mut wait);
    assert_eq!(bench.status()["waitsFor"], "Replacement of origin");
    let conditions = bench.status()["conditions"].as_array().unwrap();
    let found = conditions.iter().find(|condition| condition["type"] == "Reconciling").unwrap();
    assert!(found["message"].as_str().unwrap().contains("a is itself the new pod of origin"), "{found}");
}
