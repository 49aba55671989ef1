//! The bound on targets of a job that are unavailable at once.

use oarlock_core::object::api_object::ObjectKey;
use oarlock_core::object::key::JobKey;
use oarlock_core::operation_job::shared::tables::lock;
use oarlock_core::plugin::lookup::{PluginInfo, PluginLookup};
use oarlock_core::plugin::proposal::{PluginError, Proposal, State};
use oarlock_core::plugin::visit::{Answer, Call, Visit};
use serde_json::{Value, json};

use crate::answers::{evict_and_wait, report};
use crate::bench::patch::merge;
use crate::bench::plugin::plugin;
use crate::bench::{Bench, START};

fn pod(name: &str, ready: bool) -> Value {
    let status = if ready { "True" } else { "False" };
    json!({"metadata": {"name": name, "namespace": "d", "uid": name},
        "status": {"conditions": [{"type": "Ready", "status": status}]}})
}

/// Returns a bench with a job of these targets. The targets in `down` have a pod that is not Ready.
fn bench(names: &[&str], down: &[&str], fields: &Value) -> Bench {
    let mut spec = Bench::targets(names);
    merge(&mut spec, fields);
    let mut bench = Bench::new(spec);
    for name in names {
        bench.show(pod(name, !down.contains(name)));
    }
    bench.settle(&mut evict_and_wait);
    bench
}

fn step(bench: &mut Bench, answer: &mut dyn FnMut(&Visit) -> Answer) {
    bench.later(2);
    bench.settle(answer);
}

fn words(bench: &Bench, count: usize) -> String {
    (0..count).map(|index| bench.word(index)).collect::<Vec<_>>().join(" ")
}

#[test]
fn no_start_makes_more_targets_unavailable_than_the_bound() {
    let mut bench = bench(&["a", "b", "c", "d"], &[], &json!({"maxUnavailable": "50%"}));
    assert_eq!(words(&bench, 4), "Processing Processing Pending Pending");
    bench.vanish("a");
    step(&mut bench, &mut evict_and_wait);
    assert_eq!(words(&bench, 4), "Succeeded Processing Processing Pending");
}

#[test]
fn those_that_are_unavailable_already_start_first_and_take_nobody_elses_place() {
    let bench = bench(&["a", "b", "c", "d"], &["c", "d"], &json!({"maxUnavailable": 2}));
    assert_eq!(words(&bench, 4), "Pending Pending Processing Processing");
    let none_is_ready = &["a", "b", "c", "d"];
    let bench = self::bench(none_is_ready, none_is_ready, &json!({"maxUnavailable": 1}));
    assert_eq!(words(&bench, 4), "Processing Processing Processing Processing");
}

#[test]
fn a_pod_beyond_the_partition_that_is_not_ready_takes_room_until_it_is() {
    let mut bench = bench(&["a", "b"], &["b"], &json!({"maxUnavailable": 1, "partition": 1}));
    assert_eq!((words(&bench, 2).as_str(), &bench.status()["waitsFor"]), ("Pending Pending", &json!("Unavailable")));
    bench.show(pod("b", true));
    step(&mut bench, &mut evict_and_wait);
    assert_eq!(words(&bench, 2), "Processing Pending");
}

#[test]
fn a_pod_that_fails_by_itself_takes_room_while_the_job_runs() {
    let mut bench = bench(&["a", "b", "c"], &[], &json!({"maxUnavailable": 1, "partition": 2}));
    assert_eq!(words(&bench, 3), "Processing Pending Pending");
    bench.show(pod("c", false));
    bench.vanish("a");
    step(&mut bench, &mut evict_and_wait);
    assert_eq!(words(&bench, 3), "Succeeded Pending Pending");
    bench.show(pod("c", true));
    step(&mut bench, &mut evict_and_wait);
    assert_eq!(words(&bench, 3), "Succeeded Processing Pending");
}

#[test]
fn a_target_that_failed_and_left_its_pod_without_work_counts_until_that_is_ready() {
    let mut failing = |visit: &Visit| {
        let error = PluginError { reason: "Broken".into(), message: "it is".into() };
        match (visit.call, visit.target.name.as_str()) {
            (Call::Release, _) => Answer::Proposed(Proposal::default()),
            (_, "a") => report(State::Failed(error)),
            _ => evict_and_wait(visit),
        }
    };
    let mut spec = Bench::targets(&["a", "b"]);
    merge(&mut spec, &json!({"maxUnavailable": 1}));
    let mut bench = Bench::new(spec);
    bench.show(pod("a", false));
    bench.show(pod("b", true));
    bench.settle(&mut failing);
    step(&mut bench, &mut failing);
    step(&mut bench, &mut failing);
    assert_eq!(words(&bench, 2), "Failed/Broken Pending");
    bench.show(pod("a", true));
    step(&mut bench, &mut failing);
    assert_eq!(words(&bench, 2), "Failed/Broken Processing");
}

#[test]
fn what_another_job_works_on_counts_before_the_cache_shows_it() {
    let other = JobKey { namespace: "d".into(), name: "other".into() };
    let mut spec = Bench::targets(&["a", "b"]);
    merge(&mut spec, &json!({"maxUnavailable": 1}));
    let mut bench = Bench::new(spec);
    bench.show(pod("a", true));
    bench.show(pod("b", true));
    lock(&bench.tables).note_disrupted(&other, 0, &ObjectKey::pod("d", "b"), START.parse().unwrap());
    bench.settle(&mut evict_and_wait);
    assert_eq!(words(&bench, 2), "Pending Processing", "the other one has made b unavailable already");
    bench.vanish("b");
    step(&mut bench, &mut evict_and_wait);
    assert_eq!(words(&bench, 2), "Processing Succeeded");
    let woken = lock(&bench.tables).note_undisrupted(&other, 0);
    assert!(woken.is_empty(), "b has ended");
}

#[test]
fn the_end_of_another_jobs_work_makes_room() {
    let other = JobKey { namespace: "d".into(), name: "other".into() };
    let mut spec = Bench::targets(&["a", "b"]);
    merge(&mut spec, &json!({"maxUnavailable": 1, "partition": 1}));
    let mut bench = Bench::new(spec);
    bench.show(pod("a", true));
    bench.show(pod("b", true));
    lock(&bench.tables).note_disrupted(&other, 0, &ObjectKey::pod("d", "b"), START.parse().unwrap());
    bench.settle(&mut evict_and_wait);
    assert_eq!(words(&bench, 2), "Pending Pending");
    let woken = lock(&bench.tables).note_undisrupted(&other, 0);
    woken.into_iter().for_each(|(_, index)| bench.requeue(index));
    step(&mut bench, &mut evict_and_wait);
    assert_eq!(words(&bench, 2), "Processing Pending");
}

#[test]
fn a_bound_that_is_set_later_counts_from_then_on() {
    let mut bench = bench(&["a", "b", "c"], &[], &json!({"partition": 1}));
    bench.edit(&json!({"metadata": {"generation": 2}, "spec": {"partition": 3, "maxUnavailable": 2}}));
    step(&mut bench, &mut evict_and_wait);
    assert_eq!(words(&bench, 3), "Processing Processing Pending");
    bench.crash();
    step(&mut bench, &mut evict_and_wait);
    assert_eq!(words(&bench, 3), "Processing Processing Pending");
}

#[test]
fn pods_are_heard_of_after_another_version_of_the_plugin_has_come() {
    let mut bench = bench(&["a", "b", "c"], &[], &json!({"maxUnavailable": 1, "partition": 2}));
    assert_eq!(words(&bench, 3), "Processing Pending Pending");
    let PluginLookup::Serving(info) = plugin() else { panic!("it serves") };
    let mut info = PluginInfo::clone(&info);
    info.digest = "sha256:another".to_owned();
    bench.found = PluginLookup::Serving(info.into());
    bench.touch_all();
    step(&mut bench, &mut evict_and_wait);
    bench.show(pod("c", false));
    bench.vanish("a");
    step(&mut bench, &mut evict_and_wait);
    assert_eq!(words(&bench, 3), "Succeeded Pending Pending", "c is not Ready");
    bench.show(pod("c", true));
    step(&mut bench, &mut evict_and_wait);
    assert_eq!(words(&bench, 3), "Succeeded Processing Pending");
}
