//! The extensions of a job's spec: how many targets are in flight, what failures mean, further attempts, and a pause.

use oarlock_core::job::time::after_millis;
use oarlock_core::plugin::proposal::{PluginError, Proposal, State};
use oarlock_core::plugin::visit::{Answer, Call, Visit};
use serde_json::{Value, json};

use crate::answers::{evict, evict_and_wait, report, waiting};
use crate::bench::patch::merge;
use crate::bench::{Bench, START};

/// A job of these targets, whose pods are there, with these fields.
fn bench(names: &[&str], fields: &Value) -> Bench {
    let mut spec = Bench::targets(names);
    merge(&mut spec, fields);
    let mut bench = Bench::new(spec);
    for name in names {
        bench.pod(name, name);
    }
    bench
}

/// A pod is gone, and its target is visited.
fn goes(bench: &mut Bench, name: &str) {
    bench.vanish(name);
    bench.touch_all();
    bench.later(2);
    bench.settle(&mut evict_and_wait);
}

/// Somebody edits the spec.
fn edit(bench: &mut Bench, fields: &Value) {
    let generation = bench.job["metadata"]["generation"].as_i64().unwrap() + 1;
    bench.edit(&json!({"metadata": {"generation": generation}, "spec": fields}));
    bench.later(2);
}

fn words(bench: &Bench, count: usize) -> Vec<String> {
    (0..count).map(|index| bench.word(index)).collect()
}

fn condition(bench: &Bench, kind: &str) -> String {
    let all = bench.status()["conditions"].as_array().unwrap();
    let found = all.iter().find(|condition| condition["type"] == kind).unwrap();
    format!("{}/{}", found["status"].as_str().unwrap(), found["reason"].as_str().unwrap())
}

fn failing(visit: &Visit) -> Answer {
    let error = PluginError { reason: "Broken".into(), message: "it is".into() };
    match visit.call {
        Call::Release => Answer::Proposed(Proposal::default()),
        _ => report(State::Failed(error)),
    }
}

#[test]
fn no_more_targets_are_in_flight_than_parallelism_allows_and_the_next_start_is_in_the_record_of_an_end() {
    let mut bench = bench(&["a", "b", "c", "d"], &json!({"parallelism": "40%"}));
    bench.settle(&mut evict_and_wait);
    assert_eq!(words(&bench, 4), ["Processing", "Processing", "Pending", "Pending"], "40 % of four is two");
    bench.vanish("b");
    bench.touch_all();
    bench.later(2);
    let before = bench.status_writes;
    bench.settle(&mut evict_and_wait);
    assert_eq!(words(&bench, 4), ["Processing", "Succeeded", "Processing", "Pending"]);
    assert_eq!(bench.status_writes - before, 1);
}

#[test]
fn parallelism_that_is_lowered_stops_only_starts() {
    let mut bench = bench(&["a", "b", "c"], &json!({"parallelism": 2}));
    bench.settle(&mut evict_and_wait);
    edit(&mut bench, &json!({"parallelism": 1}));
    bench.settle(&mut evict_and_wait);
    goes(&mut bench, "a");
    assert_eq!(words(&bench, 3), ["Succeeded", "Processing", "Pending"]);
    goes(&mut bench, "b");
    assert_eq!(words(&bench, 3), ["Succeeded", "Succeeded", "Processing"]);
}

#[test]
fn no_version_of_any_record_shows_more_targets_in_flight_than_parallelism() {
    let names: Vec<String> = (0..252).map(|number| format!("p{number:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut bench = bench(&names, &json!({"parallelism": 2}));
    bench.settle(&mut evict_and_wait);
    for name in &names {
        goes(&mut bench, name);
    }
    bench.later(2);
    bench.settle(&mut evict_and_wait);
    assert_eq!((bench.status()["succeededPodCount"].as_i64(), bench.most_in_flight), (Some(252), 2));
}

#[test]
fn a_paused_job_starts_and_operates_nothing_and_records_what_ends() {
    let mut bench = bench(&["a", "b", "c"], &json!({"parallelism": 2}));
    bench.settle(&mut evict_and_wait);
    edit(&mut bench, &json!({"paused": true}));
    let mut calls = Vec::new();
    let mut answer = |visit: &Visit| {
        calls.push(visit.call);
        evict_and_wait(visit)
    };
    bench.settle(&mut answer);
    bench.vanish("a");
    bench.touch_all();
    bench.later(2);
    bench.settle(&mut answer);
    bench.crash();
    bench.settle(&mut answer);
    assert!(!calls.is_empty() && calls.iter().all(|call| *call == Call::Progress), "{calls:?}");
    assert_eq!(words(&bench, 3), ["Succeeded", "Processing", "Pending"]);
    assert_eq!(condition(&bench, "Paused"), "True/PausedBySpec");
    goes(&mut bench, "b");
    assert_eq!(
        (words(&bench, 3).join(" "), &bench.status()["waitsFor"]),
        ("Succeeded Succeeded Pending".into(), &json!("Paused"))
    );
    assert_eq!(condition(&bench, "Reconciling"), "True/Paused");
    edit(&mut bench, &json!({"paused": null}));
    bench.settle(&mut evict_and_wait);
    assert_eq!((bench.word(2), condition(&bench, "Paused")), ("Processing".into(), "False/NotPaused".into()));
    let told: Vec<&str> = bench.told.iter().map(String::as_str).filter(|told| told.ends_with("ed")).collect();
    assert_eq!(told, ["Paused", "Resumed"]);
}

#[test]
fn a_job_that_is_paused_while_nothing_happens_has_nothing_due_but_deadlines() {
    let mut bench = bench(&["a", "b"], &json!({"paused": true, "retryPolicy": {"limit": 1}}));
    for _ in 0..5 {
        bench.settle(&mut evict_and_wait);
        bench.later(600);
    }
    assert_eq!((bench.next, bench.status_writes), (None, 1));
    assert_eq!(words(&bench, 2), ["Pending", "Pending"]);
}

#[test]
fn a_start_that_is_not_recorded_when_the_job_is_paused_is_taken_back() {
    let mut bench = bench(&["a", "b"], &json!({"partition": 1, "operationDelaySeconds": 5}));
    bench.settle(&mut evict_and_wait);
    bench.edit(&json!({"metadata": {"generation": 2}, "spec": {"partition": 2}}));
    // The last write was slow, so that a start which no mutation waits for has some time before its record.
    bench.memory.written.as_mut().unwrap().1 = 80;
    bench.now = after_millis(bench.now, 300);
    bench.round(&mut evict_and_wait);
    let decided: Vec<_> = bench.memory.decided.values().map(|decided| decided.state.progress.word()).collect();
    assert_eq!(decided, ["Processing"], "the record waits for its slot");
    bench.edit(&json!({"metadata": {"generation": 3}, "spec": {"paused": true}}));
    bench.later(2);
    bench.settle(&mut evict_and_wait);
    assert_eq!(words(&bench, 2), ["Processing", "Pending"]);
}

#[test]
fn with_fail_fast_the_rest_is_skipped_and_those_in_flight_go_on() {
    let fields = json!({"parallelism": 3, "failurePolicy": {"type": "FailFast", "maxFailures": 1}});
    let mut bench = bench(&["a", "b", "c", "d", "e", "f"], &fields);
    let mut answer =
        |visit: &Visit| if ["a", "b"].contains(&&*visit.target.name) { failing(visit) } else { evict_and_wait(visit) };
    bench.settle(&mut evict_and_wait);
    bench.touch_all();
    bench.later(2);
    for _ in 0..4 {
        bench.settle(&mut answer);
        bench.later(2);
    }
    let skipped = words(&bench, 6).iter().filter(|word| *word == "Failed/Skipped").count();
    let in_flight = words(&bench, 6).iter().filter(|word| *word == "Processing").count();
    assert_eq!((skipped + in_flight, bench.word(0)), (4, "Failed/Broken".into()), "{:?}", words(&bench, 6));
    assert!(in_flight >= 1 && skipped >= 1, "{:?}", words(&bench, 6));
    for name in ["c", "d", "e", "f"] {
        goes(&mut bench, name);
    }
    assert_eq!((condition(&bench, "Failed"), bench.word(2)), ("True/FailFast".into(), "Succeeded".into()));
    assert!(bench.word(5) == "Failed/Skipped" && bench.times("evict f") == 0);
}

#[test]
fn with_pause_failures_stop_starts_until_more_are_tolerated() {
    let fields = json!({"parallelism": 1, "failurePolicy": {"type": "Pause", "maxFailures": 1}});
    let mut bench = bench(&["a", "b", "c", "d"], &fields);
    for _ in 0..4 {
        bench.settle(&mut failing);
        bench.later(2);
    }
    assert_eq!(words(&bench, 4), ["Failed/Broken", "Failed/Broken", "Pending", "Pending"]);
    assert_eq!(
        (condition(&bench, "Paused"), &bench.status()["waitsFor"]),
        ("True/FailureThreshold".into(), &json!("Failures"))
    );
    edit(&mut bench, &json!({"failurePolicy": {"maxFailures": 5}}));
    bench.settle(&mut evict_and_wait);
    assert_eq!(words(&bench, 4)[2..], ["Processing", "Pending"]);
}

/// Fails at the first `attempts` attempts.
fn failing_at_first(attempts: u32) -> impl FnMut(&Visit) -> Answer {
    move |visit| match (visit.call, &visit.target.object) {
        (Call::Release, _) => Answer::Proposed(Proposal::default()),
        _ if visit.target.attempt <= attempts => failing(visit),
        (Call::OperateThenProgress, Some(object)) if !object.terminating() => evict(visit),
        (_, Some(_)) => report(State::Processing),
        (_, None) => report(State::Succeeded),
    }
}

#[test]
fn a_failed_attempt_is_released_and_the_next_one_begins_after_its_wait() {
    let mut bench = bench(&["a"], &json!({"retryPolicy": {"limit": 2, "backoffSeconds": 10}}));
    let mut seen = Vec::new();
    let mut answer = failing_at_first(2);
    let mut noting = |visit: &Visit| {
        seen.push((visit.target.attempt, visit.call, visit.target.extras.contains_key("Released")));
        answer(visit)
    };
    for _ in 0..60 {
        bench.settle(&mut noting);
        bench.later(1);
    }
    bench.vanish("a");
    bench.touch_all();
    bench.settle(&mut noting);
    bench.later(2);
    bench.settle(&mut noting);
    let detail = &bench.status()["targetDetails"][0];
    assert_eq!((detail["progress"].as_str(), detail["attempt"].as_i64()), (Some("Succeeded"), Some(3)), "{detail}");
    assert_eq!((detail["startTime"].as_str(), detail.get("nextAttemptTime")), (Some(START), None), "the clock runs on");
    let kinds: Vec<_> = seen.iter().map(|(attempt, call, _)| (*attempt, *call == Call::Release)).collect();
    assert!(kinds.contains(&(1, true)) && kinds.contains(&(2, true)), "released between attempts: {kinds:?}");
    assert!(
        seen.iter().all(|(_, call, released)| !released || *call == Call::Release),
        "an attempt begins anew: {seen:?}"
    );
}

#[test]
fn between_two_attempts_a_host_that_dies_repeats_none_and_the_wait_is_kept() {
    let mut bench = bench(&["a"], &json!({"retryPolicy": {"limit": 1, "backoffSeconds": 60}}));
    let mut answer = failing_at_first(1);
    bench.settle(&mut answer);
    bench.later(2);
    bench.settle(&mut answer);
    assert_eq!((bench.word(0), &bench.status()["waitsFor"]), ("Processing/Broken".into(), &json!("Retry")));
    bench.crash();
    bench.settle(&mut answer);
    bench.later(30);
    bench.settle(&mut answer);
    assert_eq!(bench.status()["targetDetails"][0].get("attempt"), None, "still the first");
    bench.later(31);
    bench.settle(&mut answer);
    assert_eq!(bench.status()["targetDetails"][0]["attempt"], 2);
}

#[test]
fn a_deadline_and_a_deletion_end_a_target_between_its_attempts() {
    let fields = json!({"activeDeadlineSeconds": 30, "retryPolicy": {"limit": 1, "backoffSeconds": 60}});
    let mut timed = bench(&["a"], &fields);
    for _ in 0..20 {
        timed.settle(&mut failing);
        timed.later(2);
    }
    assert_eq!(timed.word(0), "Failed/DeadlineExceeded");
    let message = timed.status()["targetDetails"][0]["error"]["message"].as_str().unwrap();
    assert!(message.contains("Broken: it is"), "{message}");
    let mut deleted = bench(&["a"], &fields);
    deleted.settle(&mut failing);
    deleted.later(2);
    deleted.settle(&mut failing);
    deleted.edit(&json!({"metadata": {"deletionTimestamp": START}}));
    for _ in 0..4 {
        deleted.later(2);
        deleted.settle(&mut failing);
    }
    assert!(deleted.job_is_gone, "{}", deleted.job);
}

#[test]
fn no_attempt_begins_while_the_job_is_paused() {
    let mut bench = bench(&["a"], &json!({"retryPolicy": {"limit": 1, "backoffSeconds": 5}}));
    let mut answer = failing_at_first(1);
    bench.settle(&mut answer);
    bench.later(2);
    bench.settle(&mut answer);
    edit(&mut bench, &json!({"paused": true}));
    for _ in 0..5 {
        bench.settle(&mut answer);
        bench.later(20);
    }
    assert_eq!(bench.status()["targetDetails"][0].get("attempt"), None);
    edit(&mut bench, &json!({"paused": false}));
    bench.settle(&mut answer);
    assert_eq!(bench.status()["targetDetails"][0]["attempt"], 2);
}

#[test]
fn a_spec_made_invalid_in_flight_keeps_its_attempts_and_its_pause() {
    let mut bench = bench(&["a"], &json!({"retryPolicy": {"limit": 1, "backoffSeconds": 5}}));
    bench.settle(&mut evict_and_wait);
    edit(&mut bench, &json!({"targets": [{"name": "z"}], "paused": true}));
    for _ in 0..3 {
        bench.settle(&mut failing);
        bench.later(10);
    }
    assert_eq!((bench.word(0), condition(&bench, "Paused")), ("Processing/Broken".into(), "True/PausedBySpec".into()));
    edit(&mut bench, &json!({"targets": [{"name": "a"}], "paused": null}));
    bench.settle(&mut evict_and_wait);
    assert_eq!(bench.status()["targetDetails"][0]["attempt"], 2, "reverting heals");
}

#[test]
fn a_lowered_limit_ends_a_target_that_waits_for_its_next_attempt() {
    let mut bench = bench(&["a"], &json!({"retryPolicy": {"limit": 2, "backoffSeconds": 300}}));
    bench.settle(&mut failing);
    bench.later(2);
    bench.settle(&mut failing);
    assert_eq!(bench.word(0), "Processing/Broken");
    edit(&mut bench, &json!({"retryPolicy": {"limit": 0}}));
    bench.settle(&mut failing);
    bench.later(2);
    bench.settle(&mut failing);
    assert_eq!(bench.word(0), "Failed/Broken");
}

#[test]
fn a_failure_that_pauses_the_job_takes_back_a_start_that_is_not_recorded() {
    let fields = json!({"partition": 1, "operationDelaySeconds": 5, "failurePolicy": {"type": "Pause"}});
    let mut bench = bench(&["a", "b"], &fields);
    bench.settle(&mut failing);
    bench.later(6);
    bench.edit(&json!({"metadata": {"generation": 2}, "spec": {"partition": 2}}));
    bench.memory.written = Some((bench.now, 80));
    bench.now = after_millis(bench.now, 300);
    bench.round(&mut failing);
    bench.touch_all();
    for _ in 0..3 {
        bench.later(2);
        bench.settle(&mut failing);
    }
    assert_eq!(words(&bench, 2), ["Failed/Broken", "Pending"]);
}

#[test]
fn a_job_at_its_parallelism_has_nothing_due_until_one_ends() {
    let mut bench = bench(&["a", "b"], &json!({"parallelism": 1}));
    bench.settle(&mut waiting);
    bench.later(2);
    bench.settle(&mut waiting);
    assert!(bench.next.is_none_or(|next| next > after_millis(bench.now, 5_000)), "{:?}", bench.next);
}

#[test]
fn the_end_of_a_paused_job_is_told_as_no_resumption() {
    let mut bench = bench(&["a"], &json!({}));
    bench.settle(&mut evict_and_wait);
    edit(&mut bench, &json!({"paused": true}));
    bench.settle(&mut evict_and_wait);
    goes(&mut bench, "a");
    assert_eq!((bench.word(0), bench.told.contains(&"Resumed".to_owned())), ("Succeeded".into(), false));
}
