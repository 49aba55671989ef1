//! Rounds whose time is up before all their visits are made. Source: docs/operationjob.md 3.1.5.

use std::collections::BTreeSet;

use oarlock_core::object::api_object::ObjectKey;
use oarlock_core::object::time::after_millis;
use oarlock_core::plugin::proposal::{Proposal, State};
use oarlock_core::plugin::visit::{Answer, Call, Visit};
use oarlock_core::requests::live_reads::LiveRead;

use crate::answers::{report, unavailable};
use crate::bench::Bench;
use crate::bench::weather::{Look, Weather};

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("p{number:03}")).collect()
}

/// Returns a bench with a job of this many targets, whose rounds have time for this many visits.
fn bench(targets: usize, visits: usize) -> Bench {
    let names = names(targets);
    let mut bench = Bench::new(Bench::targets(&names.iter().map(String::as_str).collect::<Vec<_>>()));
    for name in &names {
        bench.pod(name, name);
    }
    bench.visits_in_time = visits;
    bench
}

/// Returns the bench of such a job after all its targets have started and are due.
fn started(targets: usize, visits: usize) -> Bench {
    let mut bench = bench(targets, usize::MAX);
    for _ in 0..5 {
        bench.now = after_millis(bench.now, 1_000);
        bench.round(&mut |_| report(State::Processing));
    }
    assert_eq!(bench.status()["processingPodCount"].as_u64(), Some(targets as u64));
    bench.touch_all();
    bench.visits_in_time = visits;
    bench
}

/// Runs rounds until the job has ended, and returns their number.
fn until_ended(bench: &mut Bench, answer: &mut dyn FnMut(&Visit) -> Answer) -> usize {
    for rounds in 1..2_000 {
        bench.now = after_millis(bench.now, 20);
        bench.round(answer);
        if bench.status()["endTime"].is_string() {
            return rounds;
        }
    }
    panic!("it never ends: {}", bench.status())
}

#[test]
fn the_targets_that_a_round_has_no_time_for_come_in_the_next_ones() {
    for (targets, visits) in [(40, 1), (40, 7), (300, 30)] {
        let mut bench = started(targets, visits);
        let mut seen = BTreeSet::new();
        until_ended(&mut bench, &mut |visit: &Visit| {
            seen.insert(visit.target.name.clone());
            report(State::Succeeded)
        });
        assert_eq!(bench.status()["succeededPodCount"].as_u64(), Some(targets as u64));
        assert_eq!(seen.len(), targets);
    }
}

/// Counts live reads.
struct Counted(std::sync::mpsc::Sender<()>);

impl Weather for Counted {
    fn look(&mut self, _: &LiveRead) -> Look {
        self.0.send(()).unwrap();
        Look::Answered
    }
}

fn key(visit: &Visit) -> ObjectKey {
    ObjectKey::pod("d", visit.target.name.clone())
}

#[test]
fn a_slow_plugin_reads_live_for_as_many_targets_as_a_round_has_time_for() {
    let mut bench = started(40, 2);
    let (sender, reads) = std::sync::mpsc::channel();
    bench.weather = Box::new(Counted(sender));
    until_ended(&mut bench, &mut |visit: &Visit| match (visit.call, visit.reads.get(&key(visit), true)) {
        (Call::Release, _) => Answer::Proposed(Proposal::default()),
        (_, Err(_)) => unavailable(),
        (_, Ok(_)) => report(State::Succeeded),
    });
    let reads = reads.try_iter().count();
    assert!((40..120).contains(&reads), "{reads} live reads for 40 targets");
}

#[test]
fn the_first_targets_of_a_job_do_not_keep_its_last_from_their_turn() {
    let mut bench = started(20, 2);
    let mut visits: Vec<u32> = Vec::new();
    for _ in 0..60 {
        bench.now = after_millis(bench.now, 20);
        // Each target has events all the time.
        bench.touch_all();
        bench.round(&mut |visit: &Visit| {
            visits.push(visit.target.index);
            report(State::Processing)
        });
    }
    let times = |index: u32| visits.iter().filter(|visited| **visited == index).count();
    let (most, least) = ((0..20).map(times).max().unwrap(), (0..20).map(times).min().unwrap());
    assert!(least > 0 && most <= 2 * least + 2, "{least} to {most} visits");
}

#[test]
fn targets_that_have_not_started_come_too() {
    let mut bench = bench(300, 30);
    until_ended(&mut bench, &mut |_| report(State::Succeeded));
    assert_eq!(bench.status()["succeededPodCount"].as_u64(), Some(300));
}

#[test]
fn a_plugin_that_becomes_fast_again_has_whole_rounds_again() {
    let mut bench = bench(200, 5);
    for _ in 0..4 {
        bench.now = after_millis(bench.now, 200);
        bench.round(&mut |_| report(State::Processing));
    }
    bench.visits_in_time = usize::MAX;
    let mut most = 0;
    for _ in 0..12 {
        bench.now = after_millis(bench.now, 2_000);
        bench.touch_all();
        let mut visits = 0;
        bench.round(&mut |_| {
            visits += 1;
            report(State::Processing)
        });
        most = most.max(visits);
    }
    assert_eq!(most, 200);
}
