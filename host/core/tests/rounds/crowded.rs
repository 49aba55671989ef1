//! A job beside many others that have much to record: some of its records wait for the others, and some do not.

use oarlock_core::object::key::JobKey;
use oarlock_core::object::quota_key::QuotaKey;
use oarlock_core::operation_job::shared::tables::lock;
use serde_json::{Value, json};

use crate::answers::evict_and_wait;
use crate::bench::Bench;
use crate::bench::patch::merge;

/// Returns a bench with a job of two targets with these fields. Two other jobs have used up the record pace.
fn crowded(fields: &Value) -> Bench {
    let mut spec = Bench::targets(&["a", "b"]);
    merge(&mut spec, fields);
    let mut bench = Bench::new(spec);
    bench.pod("a", "a");
    bench.pod("b", "b");
    for number in 0..40 {
        let other = JobKey { namespace: "d".into(), name: format!("other-{}", number % 2) };
        lock(&bench.tables).record_rate_limit.wrote(QuotaKey::Namespace("d".into()), &other, bench.now, 200);
    }
    bench.settle(&mut evict_and_wait);
    bench.vanish("a");
    bench.touch_all();
    bench.later(2);
    bench
}

#[test]
fn an_end_that_nothing_waits_for_is_recorded_once_the_other_jobs_leave_room() {
    let mut bench = crowded(&json!({}));
    bench.settle(&mut evict_and_wait);
    assert_eq!([bench.word(0), bench.word(1)], ["Processing", "Processing"], "the starts were recorded at once");
    bench.later(8);
    bench.settle(&mut evict_and_wait);
    assert_eq!([bench.word(0), bench.word(1)], ["Succeeded", "Processing"]);
}

#[test]
fn an_end_that_makes_room_for_a_start_waits_for_no_other_job() {
    let mut bench = crowded(&json!({"parallelism": 1}));
    bench.settle(&mut evict_and_wait);
    assert_eq!([bench.word(0), bench.word(1)], ["Succeeded", "Processing"]);
}

#[test]
fn the_end_of_a_job_waits_for_no_other_job() {
    let mut bench = crowded(&json!({}));
    bench.vanish("b");
    bench.touch_all();
    bench.settle(&mut evict_and_wait);
    assert_eq!(bench.status()["progress"], "Succeeded");
}
