//! Plugins that make one change after the other. Source: docs/operationjob.md 3.1.4.

use oarlock_core::object::time::after_millis;
use oarlock_core::plugin::proposal::{PluginError, State};
use oarlock_core::plugin::visit::{Answer, Call, Visit};
use serde_json::json;

use crate::answers::{change, proposing, report};
use crate::bench::Bench;

/// Runs rounds for a minute. After each round the host receives an event of the target's object, as it does after a late reply or after a change by
/// another target.
fn a_minute(bench: &mut Bench, answer: &mut dyn FnMut(&Visit) -> Answer) {
    let end = after_millis(bench.now, 60_000);
    while bench.now < end {
        bench.now = after_millis(bench.now, 20);
        bench.touch_all();
        bench.round(answer);
    }
}

#[test]
fn a_plugin_that_changes_its_mind_at_each_visit_is_visited_less_and_less_often_whatever_it_hears() {
    for every in [1, 2] {
        let mut bench = Bench::of_one(&json!({"activeDeadlineSeconds": 150}));
        let mut visits = 0u32;
        let mut changing = |visit: &Visit| {
            visits += 1;
            match visit.call {
                Call::OperateThenProgress if visits.is_multiple_of(every) => {
                    proposing(vec![change(visit, Some(("mark", &visits.to_string())), None)])
                }
                _ => report(State::Processing),
            }
        };
        a_minute(&mut bench, &mut changing);
        let changes = bench.times("patch a");
        assert!((5..40).contains(&changes), "{changes} changes in a minute, at one of {every} visits");
        if every == 1 {
            assert_eq!(bench.word(0), "Processing/NotConverging");
        }
        a_minute(&mut bench, &mut changing);
        let more = bench.times("patch a") - changes;
        assert!(more < 5, "{more} more in the next minute, at one of {every} visits");
        a_minute(&mut bench, &mut changing);
        assert_eq!(bench.word(0), "Failed/DeadlineExceeded");
        let message = bench.status()["targetDetails"][0]["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains("NotConverging: the plugin proposed "), "{message}");
    }
}

#[test]
fn a_release_that_proposes_another_change_each_time_ends_without_its_plugin() {
    let mut bench = Bench::of_one(&json!({}));
    let mut visits = 0u32;
    for _ in 0..40 {
        bench.settle(&mut |visit: &Visit| {
            visits += 1;
            match visit.call {
                Call::Release => proposing(vec![change(visit, Some(("mark", &visits.to_string())), None)]),
                _ => report(State::Failed(PluginError { reason: "Broken".into(), message: "it is".into() })),
            }
        });
        bench.later(1);
    }
    assert!(visits < 30, "{visits} visits");
    assert_eq!(bench.status()["targetDetails"][0]["extraInfo"]["Released"], json!("true"), "{}", bench.status());
    assert!(bench.event_reasons.contains(&"ReleaseTargetFailed".to_owned()), "{:?}", bench.event_reasons);
}

#[test]
fn an_action_of_ten_changes_is_not_held_up() {
    let mut bench = Bench::of_one(&json!({}));
    let mut steps = 0u32;
    let begun = bench.now;
    while bench.status()["endTime"].is_null() {
        assert!(bench.now < after_millis(begun, 5_000), "{steps} steps, {}", bench.status());
        bench.now = after_millis(bench.now, 20);
        bench.round(&mut |visit: &Visit| match visit.call {
            Call::OperateThenProgress if steps < 10 => {
                steps += 1;
                proposing(vec![change(visit, Some(("mark", &steps.to_string())), None)])
            }
            _ => report(State::Succeeded),
        });
    }
    assert_eq!((steps, bench.word(0)), (10, "Succeeded".into()));
}
