//! Retries: their timing, and the reads before them.

use oarlock_core::object::api_object::{Object, ObjectKey};
use oarlock_core::object::time::after_seconds;
use oarlock_core::plugin::proposal::{CallFailure, PluginError, Proposal, State};
use oarlock_core::plugin::visit::{Answer, Call, Visit};
use oarlock_core::requests::writes::{Stopped, blocked_by};

use crate::answers::{evict_and_wait, report, unavailable};
use crate::bench::Bench;
use serde_json::{Value, json};

/// Lets the budget allow the eviction of `a` from now on, and lets the pod go.
fn goes_once_the_budget_allows_it(bench: &mut Bench) {
    bench.refuse.clear();
    bench.later(120);
    bench.settle(&mut evict_and_wait);
    bench.gone("a");
    bench.touch_all();
    bench.later(70);
    bench.settle(&mut evict_and_wait);
    bench.later(2);
    bench.settle(&mut evict_and_wait);
}

#[test]
fn an_eviction_that_a_budget_refuses_is_tried_again_later_and_told_once() {
    let mut bench = Bench::new(Bench::targets(&["a"]));
    bench.pod("a", "1");
    bench.refuse.insert("evict", Stopped::Blocked { message: "the budget allows none".into(), retry_after: None });
    for _ in 0..40 {
        bench.settle(&mut evict_and_wait);
        bench.later(5);
    }
    assert_eq!(bench.word(0), "Processing/EvictionBlocked");
    assert_eq!(bench.event_reasons, ["EvictionBlocked"]);
    assert_eq!(bench.status()["waitsFor"], "Budget");
    let tries = bench.sent.iter().filter(|sent| sent.starts_with("evict")).count();
    assert!((4..=8).contains(&tries), "5 s, doubling to a minute, in 200 s: {tries}");
    goes_once_the_budget_allows_it(&mut bench);
    assert_eq!(bench.word(0), "Succeeded");
}

#[test]
fn a_job_that_only_waits_for_a_budget_names_it_until_it_goes_on() {
    let mut bench = Bench::new(Bench::targets(&["a"]));
    bench.pod("a", "1");
    let message = blocked_by("web", "Cannot evict pod as it would violate the pod's disruption budget.");
    bench.refuse.insert("evict", Stopped::Blocked { message, retry_after: None });
    for _ in 0..4 {
        bench.settle(&mut evict_and_wait);
        bench.later(5);
    }
    let status = bench.status();
    assert_eq!((&status["waitsFor"], &status["done"]), (&json!("Budget web"), &json!("0/1")));
    for (kind, reason) in [("Reconciling", "Waiting"), ("Stalled", "Waiting")] {
        let conditions = status["conditions"].as_array().unwrap();
        let found = conditions.iter().find(|condition| condition["type"] == kind).unwrap();
        assert_eq!(found["reason"], reason, "{found}");
        assert_eq!(found["message"], "1 target is in flight, and disruption budget web allows no eviction now");
    }
    goes_once_the_budget_allows_it(&mut bench);
    assert_eq!((&bench.status()["waitsFor"], &bench.status()["done"]), (&Value::Null, &json!("1/1")));
}

#[test]
fn the_end_of_a_pod_is_never_taken_for_the_time_it_was_asked_to_go() {
    for (grace, noted) in [(30, Some("2025-12-31T23:59:33Z")), (0, None)] {
        let mut bench = Bench::new(Bench::targets(&["a"]));
        bench.later(-60);
        bench.pod("a", "1");
        bench.later(60);
        bench.refuse.insert("evict", Stopped::Unknown { message: "timed out".into() });
        bench.settle(&mut evict_and_wait);
        let seen = bench.store.get(&ObjectKey::pod("d", "a")).unwrap();
        let (deleted, resource_version) = (Some(after_seconds(bench.now, 3)), "99".to_owned());
        bench.store.apply(Object { deleted, grace_seconds: Some(grace), resource_version, ..Object::clone(&seen) });
        bench.later(4);
        bench.touch_all();
        bench.settle(&mut evict_and_wait);
        assert_eq!(bench.status()["targetDetails"][0]["extraInfo"]["EvictedAt"].as_str(), noted);
    }
}

#[test]
fn a_retryable_failure_waits_longer_each_time_and_shows_after_two_rounds() {
    let mut bench = Bench::new(Bench::targets(&["a"]));
    bench.pod("a", "1");
    let mut calls = Vec::new();
    let start = bench.now;
    for _ in 0..40 {
        let now = bench.now;
        bench.settle(&mut |_: &Visit| {
            calls.push(now.duration_since(start).as_secs());
            Answer::Failed(CallFailure {
                retryable: true,
                reason: "Busy".into(),
                message: "m".into(),
                retry_after_ms: None,
            })
        });
        bench.later(1);
    }
    assert_eq!(calls, [0, 1, 3, 7, 15, 31]);
    assert_eq!(bench.word(0), "Processing/Busy");
}

#[test]
fn a_further_attempt_whose_pod_is_gone_makes_its_live_reads_together_and_once() {
    let mut bench = Bench::of_one(&json!({"retryPolicy": {"limit": 1, "backoffSeconds": 1}}));
    let mut visits = 0;
    let mut answer = |visit: &Visit| {
        visits += usize::from(visit.target.object.is_none());
        match (visit.call, &visit.target.object) {
            (Call::Release, _) => Answer::Proposed(Proposal::default()),
            (_, Some(_)) => report(State::Processing),
            (_, None) if visit.reads.related("successors", true).is_err() => unavailable(),
            (_, None) => {
                report(State::Failed(PluginError { reason: "PodNotFound".into(), message: "it is gone".into() }))
            }
        }
    };
    bench.settle(&mut answer);
    bench.gone("a");
    bench.touch_all();
    for _ in 0..6 {
        bench.settle(&mut answer);
        bench.later(1);
    }
    assert_eq!(
        (bench.word(0).as_str(), &bench.status()["targetDetails"][0]["attempt"]),
        ("Failed/PodNotFound", &json!(2))
    );
    assert!(visits <= 8, "two for each attempt, and its release: {visits}");
}
