//! Extensions of a job's spec: the bound on targets in flight, failure policies, further attempts, and a pause.

use oarlock_core::object::time::after_millis;
use oarlock_core::plugin::proposal::{PluginError, Proposal, State};
use oarlock_core::plugin::visit::{Answer, Call, Visit};
use serde_json::{Value, json};

use crate::answers::{evict_and_wait, report, waiting};
use crate::bench::Bench;
use crate::bench::patch::merge;

/// Returns a bench with a job of these targets, whose pods exist, with these fields.
fn bench(names: &[&str], fields: &Value) -> Bench {
    let mut spec = Bench::targets(names);
    merge(&mut spec, fields);
    let mut bench = Bench::new(spec);
    for name in names {
        bench.pod(name, name);
    }
    bench
}

/// Removes a pod and visits its target.
fn goes(bench: &mut Bench, name: &str) {
    bench.vanish(name);
    bench.touch_all();
    bench.later(2);
    bench.settle(&mut evict_and_wait);
}

/// Edits the spec as a user would.
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
    // The last write was slow, so that a start without a waiting mutation has some time before its record.
    bench.memory.reports.written.as_mut().unwrap().1 = 200;
    bench.now = after_millis(bench.now, 300);
    bench.round(&mut evict_and_wait);
    let decided: Vec<_> =
        bench.memory.decisions.decided.values().map(|decided| decided.state.progress.word()).collect();
    assert_eq!(decided, ["Processing"], "the record waits for its slot");
    bench.edit(&json!({"metadata": {"generation": 3}, "spec": {"paused": true}}));
    bench.later(2);
    bench.settle(&mut evict_and_wait);
    assert_eq!(words(&bench, 2), ["Processing", "Pending"]);
}

/// Returns the milliseconds from the last record, which took 400 ms, to the record that `which` waits for.
fn recorded_after(bench: &mut Bench, which: impl Fn(&Bench) -> bool) -> i64 {
    bench.memory.reports.written = Some((bench.now, 400));
    let last = bench.now;
    while !which(bench) {
        bench.now = after_millis(bench.now, 50);
        bench.round(&mut evict_and_wait);
    }
    bench.now.as_millisecond() - last.as_millisecond()
}

#[test]
fn a_slow_record_waits_to_carry_more_only_while_the_job_has_writes_under_way() {
    let started_after = |fields: &Value, is_quiet: bool| {
        let mut bench = bench(&["a", "b"], fields);
        edit(&mut bench, &json!({"partition": 1}));
        if !is_quiet {
            bench.wire = 0;
        }
        bench.settle(&mut evict_and_wait);
        edit(&mut bench, &json!({"partition": 2}));
        recorded_after(&mut bench, |bench| bench.word(1) != "Pending")
    };
    let bounded = json!({"parallelism": 2});
    assert_eq!([started_after(&json!({}), true), started_after(&bounded, true)], [400, 250]);
    assert_eq!([started_after(&json!({}), false), started_after(&bounded, false)], [1_000, 250]);
}

#[test]
fn the_record_that_ends_a_job_waits_for_a_tenth_of_a_second_however_slow_records_are() {
    let mut bench = bench(&["a"], &json!({}));
    bench.settle(&mut evict_and_wait);
    bench.vanish("a");
    bench.touch_all();
    assert_eq!(recorded_after(&mut bench, |bench| bench.status()["progress"] == "Succeeded"), 100);
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
    assert_eq!((bench.word(0), &bench.status()["waitsFor"]), ("Processing/Broken".into(), &json!("Retry")));
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
    bench.memory.reports.written = Some((bench.now, 200));
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
    assert_eq!((bench.word(0), bench.event_reasons.contains(&"Resumed".to_owned())), ("Succeeded".into(), false));
}
