//! The job's part in the PodOpsLifecycle. A test sets the labels as the webhook and the controller would.

use oarlock_core::object::api_object::ObjectKey;
use oarlock_core::plugin::manifest::Lifecycle;
use oarlock_core::plugin::proposal::{PluginError, Proposal, State};
use oarlock_core::plugin::visit::{Answer, Call, Visit};
use serde_json::{Value, json};

use crate::answers::{report, waiting};
use crate::bench::patch::merge;
use crate::bench::plugin::plugin_in_lifecycle;
use crate::bench::{Bench, START};

const P: &str = "podopslifecycle.kusionstack.io";

fn label(word: &str) -> String {
    format!("{word}.{P}/j")
}

/// Returns a bench with a job of one target whose controlled pod is available.
fn bench(fields: &Value) -> Bench {
    let mut spec = Bench::targets(&["a"]);
    merge(&mut spec, fields);
    let mut bench = Bench::new(spec);
    bench.found = plugin_in_lifecycle(Lifecycle::On);
    bench.show(json!({"metadata": {"name": "a", "namespace": "d", "uid": "a",
        "labels": {"kusionstack.io/control": "true", format!("{P}/service-available"): "true"}}}));
    bench
}

fn labels(bench: &Bench) -> Vec<String> {
    let pod = bench.store.get(&ObjectKey::pod("d", "a")).unwrap();
    let own = pod.labels.iter().filter(|(key, _)| key.ends_with("/j"));
    own.map(|(key, _)| key.split('.').next().unwrap().to_owned()).collect()
}

/// Changes labels of the pod as another client would.
fn set(bench: &mut Bench, changes: &Value) {
    let pod = bench.store.get(&ObjectKey::pod("d", "a")).unwrap();
    let mut document = json!({"metadata": {"name": "a", "namespace": "d", "uid": "a", "labels": pod.labels,
        "finalizers": pod.finalizers, "annotations": pod.annotations}});
    merge(&mut document["metadata"], changes);
    bench.show(document);
}

fn allow(bench: &mut Bench, answer: &mut dyn FnMut(&Visit) -> Answer) {
    let since = bench.now.as_nanosecond().to_string();
    set(bench, &json!({"labels": {label("operate"): since, label("pre-checked"): since}}));
    bench.later(2);
    bench.settle(answer);
}

/// Reports success at the first visit.
fn done(visit: &Visit) -> Answer {
    match visit.call {
        Call::Release => Answer::Proposed(Proposal::default()),
        Call::OperateThenProgress => report(State::Succeeded),
        Call::Progress => report(State::Succeeded),
    }
}

fn condition(bench: &Bench, kind: &str) -> Option<String> {
    let all = bench.status()["conditions"].as_array().unwrap();
    let found = all.iter().find(|condition| condition["type"] == kind)?;
    Some(format!("{}/{}", found["status"].as_str().unwrap(), found["reason"].as_str().unwrap()))
}

#[test]
fn a_target_begins_waits_operates_finishes_and_succeeds_once_its_pod_serves() {
    let mut bench = bench(&json!({}));
    let mut calls = Vec::new();
    let mut answer = |visit: &Visit| {
        calls.push(visit.call);
        done(visit)
    };
    bench.settle(&mut answer);
    bench.later(2);
    bench.settle(&mut answer);
    assert_eq!(
        (labels(&bench), bench.word(0)),
        (vec!["operating".into(), "operation-type".into()], "Processing".into())
    );
    set(&mut bench, &json!({"labels": {format!("{P}/service-available"): null}}));
    allow(&mut bench, &mut answer);
    assert_eq!(labels(&bench), ["operate", "operation-type", "pre-checked"], "it is finished");
    assert_eq!(bench.word(0), "Processing", "the pod does not serve yet");
    let gone = json!({"labels": {label("operate"): null, label("operation-type"): null, label("pre-checked"): null}});
    set(&mut bench, &gone);
    bench.later(2);
    bench.crash();
    bench.settle(&mut answer);
    bench.later(2);
    bench.settle(&mut answer);
    assert_eq!(
        (labels(&bench).len(), bench.word(0)),
        (0, "Processing".into()),
        "what is finished does not begin again"
    );
    set(&mut bench, &json!({"labels": {format!("{P}/service-available"): "true"}}));
    bench.later(2);
    bench.settle(&mut answer);
    assert_eq!(bench.word(0), "Succeeded");
    assert_eq!(calls.iter().filter(|call| **call == Call::OperateThenProgress).count(), 1, "{calls:?}");
    assert_eq!(bench.event_reasons, ["PodOpsLifecycle", "ReplaceOpsLifecycleFinished", "Completed"]);
}

#[test]
fn nothing_is_written_while_another_operation_is_under_way() {
    let mut bench = bench(&json!({}));
    let other = format!("operating.{P}/other");
    set(&mut bench, &json!({"labels": {other.clone(): "1"}}));
    for _ in 0..3 {
        bench.settle(&mut done);
        bench.later(30);
    }
    assert_eq!((bench.word(0), labels(&bench).len()), ("Pending".into(), 0));
    assert!(bench.sent.iter().all(|sent| sent == "status"), "{:?}", bench.sent);
    assert_eq!(bench.status()["waitsFor"], "Lifecycle");
    let all = bench.status()["conditions"].to_string();
    assert!(all.contains("operation other of the PodOpsLifecycle is under way on pod a: the next start once"), "{all}");
    set(&mut bench, &json!({"labels": {other: null}}));
    bench.settle(&mut done);
    bench.later(2);
    bench.settle(&mut done);
    assert_eq!((bench.word(0), labels(&bench).len()), ("Processing".into(), 2));
    assert_eq!(bench.status()["waitsFor"], Value::Null);
}

#[test]
fn an_operation_that_comes_in_between_costs_the_target_its_attempt() {
    let mut bench = bench(&json!({}));
    bench.settle(&mut waiting);
    let changes =
        json!({"labels": {label("operating"): null, label("operation-type"): null, format!("operating.{P}/x"): "1"}});
    set(&mut bench, &changes);
    for _ in 0..3 {
        bench.later(2);
        bench.settle(&mut waiting);
    }
    assert_eq!(bench.word(0), "Failed/LifecycleBusy");
}

#[test]
fn the_delay_counts_from_the_permission() {
    let mut bench = bench(&json!({"operationDelaySeconds": 20}));
    let mut calls = 0;
    let mut answer = |visit: &Visit| {
        calls += 1;
        done(visit)
    };
    for _ in 0..15 {
        bench.settle(&mut answer);
        bench.later(2);
    }
    allow(&mut bench, &mut answer);
    bench.later(16);
    bench.settle(&mut answer);
    assert_eq!(labels(&bench), ["operate", "operating", "operation-type", "pre-checked"]);
    bench.later(3);
    bench.settle(&mut answer);
    assert!(!labels(&bench).contains(&"operating".to_owned()), "{:?}", labels(&bench));
    assert!(calls > 0);
}

#[test]
fn a_minute_without_permission_is_shown_and_a_deletion_leaves_no_label() {
    let mut bench = bench(&json!({}));
    for _ in 0..70 {
        bench.settle(&mut done);
        bench.later(1);
    }
    assert_eq!(condition(&bench, "LifecycleBlocked").as_deref(), Some("True/NoWebhook"));
    let said = bench.status()["conditions"].to_string();
    assert!(said.contains("taken the operation); see whether KusionStack's controllers run"), "{said}");
    assert_eq!((&bench.status()["waitsFor"], bench.word(0)), (&json!("Lifecycle"), "Processing".into()));
    let times = |bench: &Bench| bench.event_reasons.iter().filter(|told| *told == "LifecycleBlocked").count();
    assert_eq!(times(&bench), 1);
    let (rounds, writes) = (bench.status_writes, bench.sent.len());
    for _ in 0..20 {
        bench.later(60);
        bench.settle(&mut done);
    }
    assert_eq!((bench.status_writes - rounds, bench.sent.len() - writes, times(&bench)), (0, 0, 1));
    set(&mut bench, &json!({"labels": {label("preparing"): "1"}, "finalizers": [format!("prot.{P}/slb")]}));
    bench.later(2);
    bench.settle(&mut done);
    assert_eq!(condition(&bench, "LifecycleBlocked").as_deref(), Some("True/TrafficDraining"));
    bench.edit(&json!({"metadata": {"deletionTimestamp": START}}));
    for _ in 0..5 {
        bench.later(2);
        bench.settle(&mut done);
    }
    assert!(bench.job_is_gone);
    assert_eq!(labels(&bench), ["preparing"], "what the webhook has set is its own");
}

#[test]
fn a_cancel_that_somebody_takes_is_asked_for_once() {
    let mut failing = |visit: &Visit| match visit.call {
        Call::Release => Answer::Proposed(Proposal::default()),
        _ => report(State::Failed(PluginError { reason: "Broken".into(), message: "it is".into() })),
    };
    let mut bench = bench(&json!({"retryPolicy": {"limit": 1, "backoffSeconds": 1}}));
    bench.settle(&mut failing);
    allow(&mut bench, &mut failing);
    for _ in 0..4 {
        bench.later(2);
        bench.settle(&mut failing);
    }
    assert_eq!(
        bench.event_reasons.iter().filter(|told| told.ends_with("Canceled")).count(),
        1,
        "{:?}",
        bench.event_reasons
    );
    let begun = labels(&bench);
    assert!(!begun.contains(&"undo-operation-type".to_owned()), "nobody listens: {begun:?}");
    set(&mut bench, &json!({"labels": {label("operate"): null, label("pre-checked"): null}}));
    bench.later(2);
    bench.settle(&mut failing);
    assert_eq!(bench.status()["targetDetails"][0]["attempt"], 2);
    assert_eq!(labels(&bench), ["operating", "operation-type"], "the next attempt begins anew");
}

#[test]
fn a_pod_that_is_not_controlled_goes_through_no_lifecycle_where_only_controlled_ones_do() {
    let mut bench = bench(&json!({}));
    bench.found = plugin_in_lifecycle(Lifecycle::Controlled);
    set(&mut bench, &json!({"labels": {"kusionstack.io/control": null}}));
    bench.settle(&mut done);
    bench.later(2);
    bench.settle(&mut done);
    assert_eq!((bench.word(0), labels(&bench).len()), ("Succeeded".into(), 0));
}

#[test]
fn a_paused_job_begins_nothing_and_one_that_began_does_not_operate() {
    let mut bench = bench(&json!({}));
    bench.settle(&mut done);
    bench.edit(&json!({"metadata": {"generation": 2}, "spec": {"paused": true}}));
    let mut watched = |visit: &Visit| {
        assert_eq!(visit.call, Call::Progress);
        report(State::Processing)
    };
    allow(&mut bench, &mut watched);
    assert_eq!(bench.word(0), "Processing");
}

#[test]
fn at_its_deadline_a_target_that_is_done_succeeds_and_finishes_all_the_same() {
    let mut bench = bench(&json!({"activeDeadlineSeconds": 30}));
    bench.settle(&mut done);
    set(&mut bench, &json!({"labels": {format!("{P}/service-available"): null}}));
    allow(&mut bench, &mut done);
    for _ in 0..20 {
        bench.later(2);
        bench.settle(&mut done);
    }
    assert_eq!((bench.word(0), labels(&bench).contains(&"operating".to_owned())), ("Succeeded".into(), false));
}

#[test]
fn a_success_that_only_the_final_check_sees_leaves_no_operation_open() {
    let mut bench = bench(&json!({"activeDeadlineSeconds": 30}));
    bench.settle(&mut waiting);
    allow(&mut bench, &mut waiting);
    bench.later(30);
    bench.settle(&mut done);
    bench.later(2);
    bench.settle(&mut done);
    assert_eq!((bench.word(0), labels(&bench).contains(&"operating".to_owned())), ("Succeeded".into(), false));
    assert!(bench.memory.is_idle());
}

#[test]
fn a_pod_that_is_taken_out_of_control_in_the_middle_is_neither_operated_nor_left() {
    let mut bench = bench(&json!({}));
    bench.found = plugin_in_lifecycle(Lifecycle::Controlled);
    bench.settle(&mut done);
    set(&mut bench, &json!({"labels": {"kusionstack.io/control": null}}));
    bench.later(2);
    let mut never = |visit: &Visit| {
        assert_eq!(visit.call, Call::Release, "it is not permitted");
        done(visit)
    };
    bench.settle(&mut never);
    bench.later(70);
    bench.settle(&mut never);
    assert_eq!(condition(&bench, "LifecycleBlocked").as_deref(), Some("True/NotControlled"));
    bench.edit(&json!({"metadata": {"deletionTimestamp": START}}));
    for _ in 0..5 {
        bench.later(2);
        bench.settle(&mut never);
    }
    assert!(bench.job_is_gone && labels(&bench).is_empty());
}

#[test]
fn nothing_begins_for_a_spec_that_is_no_longer_valid() {
    let mut bench = bench(&json!({}));
    bench.settle(&mut done);
    set(&mut bench, &json!({"labels": {label("operating"): null, label("operation-type"): null}}));
    bench.edit(&json!({"metadata": {"generation": 2}, "spec": {"targets": [{"name": "b"}]}}));
    bench.later(2);
    bench.settle(&mut done);
    assert_eq!(condition(&bench, "Valid").as_deref(), Some("False/ImmutableFieldChanged"));
    assert!(labels(&bench).is_empty(), "{:?}", labels(&bench));
}
