//! Targets that the spec names by their UID. The host leaves another object of the same name alone.

use serde_json::{Value, json};

use crate::answers::{evict_and_wait, waiting};
use crate::bench::{Bench, START};

/// Returns a bench with a job on pod `a` of UID `1` and these fields of its spec.
fn bench(fields: &Value) -> Bench {
    let mut spec = json!({"action": "Replace", "targets": [{"name": "a", "uid": "1"}]});
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    Bench::new(spec)
}

/// Replaces the pod `a` and sends its events to the host.
fn show(bench: &mut Bench, uid: &str) {
    let owner = json!({"apiVersion": "apps/v1", "kind": "CloneSet", "name": "s", "uid": "set", "controller": true});
    bench.show(json!({"metadata": {"name": "a", "namespace": "d", "uid": uid, "creationTimestamp": START,
        "ownerReferences": [owner]}}));
}

fn step(bench: &mut Bench) {
    bench.later(2);
    bench.settle(&mut evict_and_wait);
}

fn message(bench: &Bench) -> String {
    bench.status()["targetDetails"][0]["error"]["message"].as_str().unwrap().to_owned()
}

#[test]
fn a_pod_of_another_uid_than_the_spec_names_is_left_alone_and_both_uids_are_told() {
    let mut bench = bench(&json!({}));
    show(&mut bench, "2");
    bench.settle(&mut evict_and_wait);
    step(&mut bench);
    assert_eq!((bench.word(0), bench.times("evict a")), ("Failed/PodNotFound".into(), 0));
    assert_eq!(message(&bench), "the job names UID 1, and the pod of that name has UID 2: a in namespace d");
    assert_eq!((bench.times("finalizer"), &bench.status()["progress"]), (0, &json!("Failed")));
    assert!(bench.memory.is_idle(), "nothing is released");
}

#[test]
fn a_pod_that_is_made_anew_while_its_target_waits_is_left_alone_also_by_the_next_host() {
    for crashes in [false, true] {
        let mut bench = bench(&json!({"partition": 0}));
        show(&mut bench, "1");
        bench.settle(&mut waiting);
        assert_eq!(bench.status()["targetDetails"][0]["uid"], "1");
        show(&mut bench, "2");
        if crashes {
            bench.crash();
            step(&mut bench);
        }
        bench.edit(&json!({"metadata": {"generation": 2}, "spec": {"partition": 1}}));
        step(&mut bench);
        step(&mut bench);
        assert_eq!((bench.word(0), bench.times("evict a")), ("Failed/PodNotFound".into(), 0), "crashes: {crashes}");
    }
}

#[test]
fn a_status_that_names_another_uid_makes_no_other_pod_the_target() {
    let mut bench = bench(&json!({"partition": 0}));
    show(&mut bench, "1");
    bench.settle(&mut waiting);
    show(&mut bench, "2");
    bench.edit(&json!({"status": {"targetDetails": [{"name": "a", "progress": "Pending", "uid": "2"}]}}));
    step(&mut bench);
    assert_eq!(bench.memory.stored.state.targets[0].uid.as_deref(), Some("1"), "the spec says which one it is");
    bench.edit(&json!({"metadata": {"generation": 2}, "spec": {"partition": 1}}));
    step(&mut bench);
    step(&mut bench);
    assert_eq!((bench.word(0), bench.times("evict a")), ("Failed/PodNotFound".into(), 0));
}

#[test]
fn a_pod_of_the_uid_that_the_spec_names_is_worked_on_and_may_be_replaced_under_its_name() {
    let mut bench = bench(&json!({}));
    show(&mut bench, "1");
    bench.settle(&mut evict_and_wait);
    assert_eq!((bench.word(0), bench.times("evict a")), ("Processing".into(), 1));
    show(&mut bench, "2");
    for crashes in [false, true] {
        if crashes {
            bench.crash();
        }
        step(&mut bench);
        assert_eq!((bench.word(0), bench.times("evict a")), ("Succeeded".into(), 1), "crashes: {crashes}");
        assert_eq!(bench.status()["targetDetails"][0]["uid"], "1");
    }
}

#[test]
fn a_uid_that_is_edited_starts_nothing_and_what_is_in_flight_stays_about_the_pod_it_began_with() {
    let mut bench = bench(&json!({}));
    show(&mut bench, "1");
    bench.settle(&mut waiting);
    bench.edit(&json!({"metadata": {"generation": 2}, "spec": {"targets": [{"name": "a", "uid": "2"}]}}));
    step(&mut bench);
    bench.crash();
    step(&mut bench);
    let valid = bench.status()["conditions"].as_array().unwrap().iter().find(|one| one["type"] == "Valid").cloned();
    assert_eq!(valid.unwrap()["reason"], "ImmutableFieldChanged");
    assert_eq!((bench.word(0), &bench.status()["targetDetails"][0]["uid"]), ("Processing".into(), &json!("1")));
    assert_eq!(bench.times("evict a"), 0, "no `operate` while the spec is invalid");
}

#[test]
fn targets_that_wait_for_their_turn_have_their_uids_above_250_too() {
    let named = |number: usize| json!({"name": format!("p{number:03}"), "uid": format!("u{number}")});
    let targets: Vec<Value> = (0..300).map(named).collect();
    let mut bench = Bench::new(json!({"action": "Replace", "targets": targets, "partition": 260}));
    for number in 0..300 {
        let uid = if number == 270 { "anew".to_owned() } else { format!("u{number}") };
        bench.pod(&format!("p{number:03}"), &uid);
    }
    for _ in 0..3 {
        step(&mut bench);
    }
    bench.crash();
    bench.edit(&json!({"metadata": {"generation": 2}, "spec": {"partition": 300}}));
    for _ in 0..3 {
        step(&mut bench);
    }
    assert_eq!((&bench.status()["ranges"]["failed"], bench.times("evict p270")), (&json!("270"), 0));
    assert!(bench.times("evict p000") > 0 && bench.times("evict p299") > 0);
}
