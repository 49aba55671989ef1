//! Rounds in which writes and live reads are refused or not answered, a record is lost, and results come late. The rounds are those of
//! `decisions.rs`. Source: docs/operationjob.md 3.1, 3.7, 3.8, 8.1.

use std::cell::Cell;
use std::rc::Rc;

use k8s_openapi::jiff::Timestamp;
use oarlock_core::object::api_object::ObjectKey;
use oarlock_core::object::key::JobRef;
use oarlock_core::operation_job::round::memory::JobMemory;
use oarlock_core::plugin::proposal::{Proposal, Report, State};
use oarlock_core::plugin::visit::{Answer, Call, Visit};
use oarlock_core::requests::live_reads::LiveRead;
use oarlock_core::requests::writes::{BatchResult, Priority, Stopped, Write, WriteBatch};
use serde_json::json;

use crate::answers::{evict_and_wait, marking, report, unavailable, waiting};
use crate::bench::weather::{Fate, Look, Weather};
use crate::bench::{Bench, JOB_UID};

/// Returns the seconds from the start at which a write was attempted, while it never succeeds.
fn tries(bench: &mut Bench, write: &str, seconds: i64) -> Vec<i64> {
    let mut times = Vec::new();
    for second in 0..seconds {
        let before = bench.times(write);
        bench.settle(&mut evict_and_wait);
        (before..bench.times(write)).for_each(|_| times.push(second));
        bench.later(1);
    }
    times
}

#[test]
fn a_write_that_is_refused_is_tried_less_and_less_often_and_shown() {
    let mut bench = Bench::of_one(&json!({}));
    bench.refuse.insert("evict", Stopped::Refused { message: "forbidden".into() });
    assert_eq!(tries(&mut bench, "evict a", 120), [0, 1, 3, 7, 15, 31, 63]);
    assert_eq!(bench.word(0), "Processing/UpdateObjectFailed");
}

#[test]
fn a_write_without_an_answer_is_tried_less_and_less_often() {
    let mut bench = Bench::of_one(&json!({}));
    bench.refuse.insert("evict", Stopped::Unknown { message: "timed out".into() });
    let tries = tries(&mut bench, "evict a", 120);
    assert!((4..=9).contains(&tries.len()), "{tries:?}");
    let waits: Vec<i64> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(waits.is_sorted(), "{tries:?}");
    assert_eq!(bench.word(0), "Processing", "nothing is known to be wrong");
}

/// Refuses live reads of this pod.
struct NoLookAt(&'static str);

impl Weather for NoLookAt {
    fn look(&mut self, read: &LiveRead) -> Look {
        if *read == LiveRead::Object(ObjectKey::pod("d", self.0)) { Look::Refused } else { Look::Answered }
    }
}

/// Answers as a plugin that cannot go on without a live read of a pod.
fn look_at_x(visit: &Visit) -> Answer {
    match visit.reads.get(&ObjectKey::pod("d", "x"), true) {
        Err(_) => unavailable(),
        Ok(_) => waiting(visit),
    }
}

#[test]
fn a_look_that_is_refused_holds_no_target_back_at_its_deadline() {
    let mut bench = Bench::of_one(&json!({"activeDeadlineSeconds": 5}));
    bench.weather = Box::new(NoLookAt("x"));
    for _ in 0..6 {
        bench.settle(&mut look_at_x);
        assert!(bench.word(0).starts_with("Processing"), "{}", bench.word(0));
        bench.later(1);
    }
    bench.settle(&mut look_at_x);
    assert_eq!(bench.word(0), "Failed/DeadlineExceeded");
}

/// Counts live reads.
struct Counted(Rc<Cell<usize>>);

impl Weather for Counted {
    fn look(&mut self, _: &LiveRead) -> Look {
        self.0.set(self.0.get() + 1);
        Look::Answered
    }
}

#[test]
fn a_pod_that_is_not_there_is_looked_for_once() {
    let mut bench = Bench::new(Bench::targets(&["nobody"]));
    let looks = Rc::new(Cell::new(0));
    bench.weather = Box::new(Counted(looks.clone()));
    while bench.word(0) != "Failed/PodNotFound" {
        bench.round(&mut waiting);
        bench.now = bench.now.max(bench.next.unwrap());
        assert!(looks.get() < 10);
    }
    assert_eq!(looks.get(), 1);
}

/// Removes the plugin between its lookup and its call while the flag is true.
struct Goes(Rc<Cell<bool>>);

impl Weather for Goes {
    fn plugin(&mut self) -> bool {
        !self.0.get()
    }
}

#[test]
fn a_plugin_that_goes_between_look_up_and_call_costs_no_target_anything() {
    let mut bench = Bench::of_one(&json!({"activeDeadlineSeconds": 60}));
    let gone = Rc::new(Cell::new(true));
    bench.weather = Box::new(Goes(gone.clone()));
    let plugin_is = |bench: &mut Bench, there: bool| {
        // A change of the plugins gives every job a round.
        gone.set(!there);
        bench.memory.requeue_all();
        for _ in 0..2 {
            bench.settle(&mut evict_and_wait);
            bench.later(1);
        }
    };
    plugin_is(&mut bench, false);
    assert_eq!(bench.word(0), "Pending", "it does not start without its call");
    plugin_is(&mut bench, true);
    assert_eq!((bench.word(0), bench.sent.iter().filter(|sent| *sent == "evict a").count()), ("Processing".into(), 1));
    bench.later(1);
    plugin_is(&mut bench, false);
    assert_eq!(bench.word(0), "Processing");
    bench.later(60);
    plugin_is(&mut bench, false);
    assert_eq!(bench.word(0), "Processing", "its last look is owed to it");
    plugin_is(&mut bench, true);
    assert_eq!(bench.word(0), "Failed/DeadlineExceeded");
}

/// Loses the next record once the flag is set.
struct LostRecord(Rc<Cell<bool>>);

impl Weather for LostRecord {
    fn records(&mut self) -> bool {
        !self.0.take()
    }
}

#[test]
fn a_record_that_fails_tells_nothing_and_what_it_would_have_told_is_told_once() {
    // More than 100 targets of a large job fail. Failures that were not recorded do not count among the 100 Warnings.
    for targets in [1, 260] {
        let names: Vec<String> = (0..targets).map(|number| format!("p{number}")).collect();
        let mut spec = Bench::targets(&names.iter().map(String::as_str).collect::<Vec<_>>());
        spec["activeDeadlineSeconds"] = json!(60);
        let mut bench = Bench::new(spec);
        names.iter().for_each(|name| bench.pod(name, name));
        let lost = Rc::new(Cell::new(false));
        bench.weather = Box::new(LostRecord(lost.clone()));
        for _ in 0..3 {
            bench.settle(&mut waiting);
            bench.later(1);
        }
        bench.later(61);
        bench.event_reasons.clear();
        lost.set(true);
        while lost.get() {
            bench.round(&mut waiting);
        }
        assert_eq!(bench.event_reasons, Vec::<String>::new());
        assert!(bench.status().get("endTime").is_none());
        for _ in 0..5 {
            bench.later(1);
            bench.settle(&mut waiting);
        }
        let told = |reason: &str| bench.event_reasons.iter().filter(|told| *told == reason).count();
        let times = ["Timeout", "TargetFailed", "JobFailed"].map(told);
        assert_eq!(times, if targets == 1 { [1, 1, 1] } else { [0, 100, 1] });
    }
}

#[test]
fn a_write_to_another_object_says_nothing_about_the_target() {
    let other = ObjectKey::pod("d", "other");
    let result = |bench: &Bench, stopped: Option<Stopped>| {
        let write = Write::Delete {
            object: other.clone(),
            uid: "9".into(),
            resource_version: Some(bench.version.to_string()),
            grace_seconds: None,
            propagation: None,
        };
        let entry = WriteBatch {
            job: JobRef { key: Bench::key(), uid: JOB_UID.into() },
            index: Some(0),
            target_uid: "1".into(),
            attempt: 1,
            epoch: bench.memory.stored.state.epoch,
            priority: Priority::Operated,
            writes: vec![write],
            made_as: None,
            events: vec![],
            since: None,
            dry_run: false,
        };
        let done = usize::from(stopped.is_none());
        BatchResult { entry, sent: Some(bench.now), at: bench.now, done, stopped }
    };
    for stopped in [None, Some(Stopped::Unknown { message: "timed out".into() })] {
        let mut bench = Bench::of_one(&json!({}));
        bench.settle(&mut waiting);
        bench.pod("other", "9");
        let result = result(&bench, stopped.clone());
        bench.memory.work.results.push(result);
        bench.round(&mut waiting);
        let expects = &bench.memory.targets.known[&0].expects;
        // Otherwise the target's own pod would count as leaving, or as changed by a write in flight.
        assert!(!expects.leaving && expects.departure_sent.is_none() && expects.unknown.is_none(), "{expects:?}");
        let unknown: Vec<_> = expects.waited_for.keys().map(|write| &write.object).collect();
        assert_eq!(unknown, if stopped.is_some() { vec![&other] } else { vec![] });
    }
}

#[test]
fn the_answer_to_a_write_of_an_earlier_memory_makes_its_target_due() {
    let mut bench = Bench::of_one(&json!({"activeDeadlineSeconds": 60}));
    bench.wire = 0;
    bench.settle(&mut evict_and_wait);
    let entry = bench.queue.take_next(|_| true).unwrap();
    // A round panicked: the memory is lost, and the write is still in flight.
    bench.memory = JobMemory::default();
    bench.settle(&mut evict_and_wait);
    assert_eq!(bench.status()["epoch"], json!(2));
    bench.later(61);
    bench.settle(&mut evict_and_wait);
    assert_eq!(bench.word(0), "Processing", "a target is not ended while its write is on the wire");
    bench.wire = usize::MAX;
    bench.queue.finished(JOB_UID, entry.index);
    let stopped = Some(Stopped::Unknown { message: "timed out".into() });
    bench.memory.work.results.push(BatchResult { entry, sent: Some(bench.now), at: bench.now, done: 0, stopped });
    bench.next = Some(Timestamp::UNIX_EPOCH);
    for _ in 0..3 {
        bench.settle(&mut evict_and_wait);
        bench.later(1);
    }
    assert_eq!(bench.word(0), "Failed/DeadlineExceeded");
}

/// Reports that the next write was decided on an outdated view and not sent.
struct OutdatedOnce(Cell<bool>);

impl Weather for OutdatedOnce {
    fn write(&mut self, _: &Write) -> Fate {
        if self.0.replace(false) { Fate::Stopped(Stopped::NotSent) } else { Fate::Done }
    }
}

#[test]
fn a_write_that_a_foreign_change_spoiled_is_decided_anew_at_once_however_long_nothing_had_happened() {
    let mut bench = Bench::of_one(&json!({}));
    let asks_again = |visit: &Visit| match report(State::Processing) {
        Answer::Reported { operate, report } if visit.call != Call::Release => {
            Answer::Reported { operate, report: Report { check_after_ms: Some(0), ..report } }
        }
        answer => answer,
    };
    for _ in 0..40 {
        bench.settle(&mut { asks_again });
        bench.later(1);
    }
    bench.weather = Box::new(OutdatedOnce(Cell::new(true)));
    while bench.times("patch a") == 0 {
        bench.settle(&mut marking);
        bench.later(1);
    }
    bench.settle(&mut marking);
    bench.later(1);
    bench.settle(&mut marking);
    assert!(bench.times("patch a") > 1, "next {:?} at {}", bench.next, bench.now);
}

#[test]
fn a_hold_that_is_under_way_when_somebody_edits_the_status_is_let_go() {
    let mut bench = Bench::of_one(&json!({}));
    bench.settle(&mut waiting);
    bench.wire = 0;
    bench.touch_all();
    let mut marks_and_succeeds = |visit: &Visit| match marking(visit) {
        Answer::Proposed(proposal) if visit.call != Call::Release => Answer::Reported {
            operate: Proposal::default(),
            report: Report { state: State::Succeeded, proposal, check_after_ms: None },
        },
        _ => Answer::Proposed(Proposal::default()),
    };
    bench.later(2);
    bench.settle(&mut marks_and_succeeds);
    assert!(bench.queue.has_next(|_| true), "the mark waits");
    bench.edit(&json!({"status": {"succeededPodCount": 7}}));
    bench.settle(&mut marks_and_succeeds);
    bench.wire = usize::MAX;
    bench.send();
    for _ in 0..3 {
        bench.later(2);
        bench.settle(&mut marks_and_succeeds);
    }
    let pod = bench.store.get(&ObjectKey::pod("d", "a")).unwrap();
    assert!(pod.labels.is_empty() && pod.finalizers.is_empty(), "{pod:?}");
}
