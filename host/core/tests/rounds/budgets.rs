//! Plugins that overload the host, over all targets. Source: docs/operationjob.md 3.4.5.

use oarlock_core::object::time::{after_millis, after_seconds};
use oarlock_core::operation_job::shared::budgets::{Limited, Payer};
use oarlock_core::operation_job::shared::tables::lock;
use oarlock_core::plugin::proposal::{PluginEvent, Proposal, Report, State};
use oarlock_core::plugin::visit::{Answer, Call, Visit};
use serde_json::json;

use crate::answers::{evict_and_wait, report, unavailable};
use crate::bench::Bench;
use crate::bench::weather::{Look, Weather};

/// Returns a bench with a job of 250 targets, whose pods exist.
fn bench(fields: &serde_json::Value) -> Bench {
    let names: Vec<String> = (0..250).map(|number| format!("p{number:03}")).collect();
    let mut spec = Bench::targets(&names.iter().map(String::as_str).collect::<Vec<_>>());
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let mut bench = Bench::new(spec);
    names.iter().for_each(|name| bench.pod(name, name));
    bench
}

/// Runs rounds for this many seconds, when they are due.
fn run(bench: &mut Bench, seconds: i64, answer: &mut dyn FnMut(&Visit) -> Answer) {
    let end = after_seconds(bench.now, seconds);
    while let Some(next) = bench.next.filter(|next| *next <= end) {
        bench.now = next.max(after_millis(bench.now, 5));
        bench.round(answer);
    }
    bench.now = end;
}

/// Returns the key under which the work of the job is charged.
fn payer() -> Payer {
    Payer { plugin: "replace".into(), namespace: "d".into() }
}

fn limited(bench: &Bench, what: Limited) -> u64 {
    lock(&bench.tables).budgets.take_limited().remove(&("replace".to_owned(), what)).unwrap_or(0)
}

#[test]
fn events_of_a_plugin_that_never_stops_telling_are_bounded_and_those_left_out_are_counted() {
    let mut bench = bench(&json!({}));
    let mut told = 0u32;
    bench.next = Some(bench.now);
    run(&mut bench, 10, &mut |visit: &Visit| {
        let events = (0..16).map(|_| {
            told += 1;
            PluginEvent { warning: true, reason: format!("Told{told}"), message: visit.target.name.clone() }
        });
        let proposal = Proposal { events: events.collect(), ..Proposal::default() };
        let report = Report { state: State::Processing, proposal, check_after_ms: Some(0) };
        Answer::Reported { operate: Proposal::default(), report }
    });
    let kept = bench.event_reasons.iter().filter(|reason| reason.starts_with("Told")).count();
    assert!(told > 20_000 && (6_000..13_000).contains(&kept), "{kept} of {told}");
    assert_eq!(limited(&bench, Limited::Events), u64::from(told) - kept as u64);
}

#[test]
fn a_plugin_in_debt_starts_and_visits_nothing_and_goes_on_after_that() {
    for what in [Limited::Writes, Limited::Reads] {
        let mut bench = bench(&json!({}));
        lock(&bench.tables).budgets.pay(&payer(), what, 10_000, bench.now);
        bench.next = Some(bench.now);
        let mut visits = 0;
        run(&mut bench, 4, &mut |_| {
            visits += 1;
            report(State::Processing)
        });
        assert_eq!(visits, 0, "it owes more {}", what.word());
        assert!(limited(&bench, what) > 0);
        run(&mut bench, 40, &mut |_| {
            visits += 1;
            report(State::Succeeded)
        });
        assert_eq!((visits, bench.status()["succeededPodCount"].as_u64()), (250, Some(250)));
    }
}

#[test]
fn a_debt_delays_no_deadline_and_no_release() {
    let mut bench = bench(&json!({"activeDeadlineSeconds": 10}));
    bench.next = Some(bench.now);
    run(&mut bench, 5, &mut evict_and_wait);
    lock(&bench.tables).budgets.pay(&payer(), Limited::Writes, 1_000_000, bench.now);
    run(&mut bench, 8, &mut evict_and_wait);
    assert_eq!(bench.status()["failedPodCount"].as_u64(), Some(250), "{}", bench.status());
    let released = |detail: &serde_json::Value| detail["extraInfo"]["Released"] == json!("true");
    assert!(bench.status()["targetDetails"].as_array().unwrap().iter().all(released));
}

/// Answers and counts every live read.
struct Counted(std::sync::mpsc::Sender<()>);

impl Weather for Counted {
    fn look(&mut self, _: &oarlock_core::requests::live_reads::LiveRead) -> Look {
        self.0.send(()).unwrap();
        Look::Answered
    }
}

#[test]
fn live_reads_that_a_plugin_asks_for_are_bounded() {
    let mut bench = bench(&json!({}));
    let (sender, reads) = std::sync::mpsc::channel();
    bench.weather = Box::new(Counted(sender));
    bench.next = Some(bench.now);
    let mut asked = 0u32;
    run(&mut bench, 20, &mut |visit: &Visit| {
        let mut lacks = false;
        for _ in 0..30 {
            asked += 1;
            let key = oarlock_core::object::api_object::ObjectKey::pod("d", format!("x{asked}"));
            lacks |= visit.call != Call::Release && visit.reads.get(&key, true).is_err();
        }
        if lacks { unavailable() } else { report(State::Processing) }
    });
    let reads = reads.try_iter().count();
    assert!((4_000..18_000).contains(&reads), "{reads} live reads");
}

#[test]
fn writes_are_paid_for_when_they_were_sent() {
    let mut bench = bench(&json!({}));
    bench.settle(&mut evict_and_wait);
    let sent = bench.sent.iter().filter(|sent| sent.starts_with("evict")).count();
    assert_eq!(sent, 250);
    let left = lock(&bench.tables).budgets.pay_for_some(&payer(), Limited::Writes, 10_000, bench.now);
    assert_eq!(left, 5_750);
}
