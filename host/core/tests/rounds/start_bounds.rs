//! The bound that keeps each target from starting, once nothing more starts by itself.

use std::sync::Arc;

use oarlock_core::operation_job::round::context::{Observed, Round};
use oarlock_core::operation_job::round::starts::bounds::{StartBound, start_bounds};
use oarlock_core::operation_job::shared::tables::lock;
use oarlock_core::requests::live_reads::LiveReads;
use serde_json::{Value, json};

use crate::answers::evict_and_wait;
use crate::bench::Bench;
use crate::bench::patch::merge;

/// Returns the bounds of the unstarted targets among `a` to `d`, by index. The targets in `down` are not Ready.
fn bounds(fields: &Value, down: &[&str]) -> Vec<(u32, StartBound)> {
    let names = ["a", "b", "c", "d"];
    let mut spec = Bench::targets(&names);
    merge(&mut spec, fields);
    let mut bench = Bench::new(spec);
    for name in names {
        let ready = if down.contains(&name) { "False" } else { "True" };
        bench.show(json!({"metadata": {"name": name, "namespace": "d", "uid": name},
            "status": {"conditions": [{"type": "Ready", "status": ready}]}}));
    }
    bench.settle(&mut evict_and_wait);
    let job = serde_json::from_value(bench.job.clone()).unwrap();
    let observed = Observed {
        now: bench.now,
        job: Some(Arc::new(job)),
        records: None,
        live: LiveReads::default(),
        served: bench.served.clone(),
        namespace_terminating: false,
        node_operations: true,
        tasks: std::sync::Arc::default(),
    };
    let (found, store) = (bench.found.clone(), bench.store.clone());
    let round = Round::begin(&Bench::key(), &observed, &found, &store, &mut bench.memory).unwrap();
    start_bounds(&round, &bench.memory.stored, &bench.memory.decisions, &bench.memory.targets, &lock(&bench.tables))
        .into_iter()
        .collect()
}

#[test]
fn each_target_that_has_not_started_meets_one_bound() {
    assert_eq!(bounds(&json!({}), &[]), []);
    let of = |bound| (0..4).map(|index| (index, bound)).collect::<Vec<_>>();
    assert_eq!(bounds(&json!({"paused": true}), &[]), of(StartBound::Paused));
    assert_eq!(bounds(&json!({"partition": 3}), &[]), [(3, StartBound::Partition)]);
    let two = [(2, StartBound::Parallelism), (3, StartBound::Partition)];
    assert_eq!(bounds(&json!({"partition": 3, "parallelism": 2}), &[]), two);
}

#[test]
fn those_that_max_unavailable_holds_back_are_told_from_those_that_are_down() {
    let held = bounds(&json!({"maxUnavailable": 2}), &[]);
    assert_eq!(held, [(2, StartBound::MaxUnavailable), (3, StartBound::MaxUnavailable)]);
    let held = bounds(&json!({"maxUnavailable": 1}), &["d"]);
    assert_eq!(held, [0, 1, 2].map(|index| (index, StartBound::MaxUnavailable)));
}
