//! The jobs of one namespace leave room in flight to the jobs of other namespaces, and they end. Source: docs/operationjob.md 3.4.3, 3.8.

use oarlock_core::object::key::JobKey;
use oarlock_core::operation_job::shared::tables::{InFlightElsewhere, lock};
use oarlock_core::plugin::grant::Limits;
use oarlock_core::plugin::lookup::{PluginInfo, PluginLookup};
use serde_json::{Value, json};

use crate::answers::evict_and_wait;
use crate::bench::Bench;
use crate::bench::patch::merge;
use crate::bench::plugin::plugin;

/// Returns a bench with a job of twelve targets, whose pods exist. The plugin's grant has these limits, and no target ever ends.
fn bench(fields: &Value, limits: Limits) -> Bench {
    let names: Vec<String> = (0..12).map(|number| format!("p{number}")).collect();
    let mut spec = Bench::targets(&names.iter().map(String::as_str).collect::<Vec<_>>());
    merge(&mut spec, fields);
    let mut bench = Bench::new(spec);
    names.iter().for_each(|name| bench.pod(name, name));
    let PluginLookup::Serving(info) = plugin() else { panic!("it serves") };
    let mut info = PluginInfo::clone(&info);
    info.grant.limits = limits;
    bench.found = PluginLookup::Serving(info.into());
    bench
}

fn at_most(targets: u32) -> Limits {
    Limits { targets_in_flight: Some(targets), ..Limits::default() }
}

/// Returns the key of a job of another namespace.
fn elsewhere() -> JobKey {
    JobKey { namespace: "elsewhere".into(), name: "j".into() }
}

/// Returns this job's targets in flight as the other job sees them.
fn seen_elsewhere(bench: &Bench) -> InFlightElsewhere {
    lock(&bench.tables).in_flight_elsewhere("replace", &elsewhere())
}

fn in_flight(bench: &Bench) -> u64 {
    bench.status()["processingPodCount"].as_u64().unwrap_or(0)
}

#[test]
fn a_namespace_whose_targets_never_end_leaves_room_for_the_first_target_of_another() {
    let mut bench = bench(&json!({}), at_most(4));
    bench.settle(&mut evict_and_wait);
    let seen = seen_elsewhere(&bench);
    assert_eq!((in_flight(&bench), seen.of_all, seen.room(0, 4)), (3, 3, 1));
    assert!(seen.others_wait, "this job would start more");
    assert!(bench.next.is_some(), "and looks for room again");
}

#[test]
fn a_namespace_has_no_more_than_its_half_while_another_one_waits() {
    let mut bench = bench(&json!({}), at_most(8));
    lock(&bench.tables).waits_for_capacity("replace", &elsewhere());
    bench.settle(&mut evict_and_wait);
    assert_eq!(in_flight(&bench), 4);
    lock(&bench.tables).needs_no_capacity(&elsewhere());
    bench.later(2);
    bench.settle(&mut evict_and_wait);
    assert_eq!(in_flight(&bench), 6);
    lock(&bench.tables).waits_for_capacity("replace", &elsewhere());
    bench.later(2);
    bench.settle(&mut evict_and_wait);
    assert_eq!(in_flight(&bench), 6, "what has started goes on");
}

#[test]
fn a_job_that_starts_all_that_it_has_waits_for_nobody() {
    let mut bench = bench(&json!({"partition": 2}), at_most(4));
    bench.settle(&mut evict_and_wait);
    assert_eq!((in_flight(&bench), seen_elsewhere(&bench).others_wait), (2, false));
}

#[test]
fn no_job_keeps_its_room_for_longer_than_the_grant_allows() {
    for fields in [json!({}), json!({"activeDeadlineSeconds": i32::MAX})] {
        let limits = Limits { max_deadline_seconds: Some(30), ..at_most(4) };
        let mut bench = bench(&fields, limits);
        bench.settle(&mut evict_and_wait);
        assert_eq!(bench.word(0), "Processing");
        for _ in 0..6 {
            bench.later(6);
            bench.settle(&mut evict_and_wait);
        }
        assert_eq!(bench.word(0), "Failed/DeadlineExceeded", "{fields}");
        let message = bench.status()["targetDetails"][0]["error"]["message"].as_str().unwrap_or_default();
        assert!(message.starts_with("deadline of 30 s exceeded"), "{message}");
    }
    let mut earlier =
        bench(&json!({"activeDeadlineSeconds": 5}), Limits { max_deadline_seconds: Some(30), ..at_most(4) });
    earlier.settle(&mut evict_and_wait);
    earlier.later(6);
    earlier.settle(&mut evict_and_wait);
    assert_eq!(earlier.word(0), "Failed/DeadlineExceeded", "a shorter one of the job counts");
}
