//! Runs a case: rounds when they are due, and the events between them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_core::object::time::after;
use oarlock_core::plugin::lookup::PluginLookup;
use oarlock_core::plugin::visit::Visit;
use proptest::prelude::*;
use serde_json::json;

use crate::bad_input::case::{Case, Event, Shown};
use crate::bad_input::manners::{Manner, answer};
use crate::bad_input::storm::{Dice, Storm};
use crate::bench::plugin::plugin;
use crate::bench::{Bench, JOB_UID};

/// The most rounds of a job within ten seconds without an event from outside, plus `ROUNDS_EACH` for each target.
///
/// Several rounds come at once: the first writes, an end with its invalidation, live read and traps, and the first quick visits to each target. The
/// 32 live reads that a visit may ask for one by one come at once too. After that all waits grow. A job that spins makes two thousand rounds.
const ROUNDS: usize = 200;
const ROUNDS_EACH: usize = 4;
const WITHIN: SignedDuration = SignedDuration::from_secs(10);
/// The shortest time between two rounds of a job, as the host keeps it.
const GATHERING: SignedDuration = SignedDuration::from_millis(5);
/// The time from a request to its reply.
const ROUND_TRIP: SignedDuration = SignedDuration::from_millis(20);

/// A case that runs.
pub(super) struct CaseRun {
    pub(super) bench: Bench,
    dice: Dice,
    manners: Vec<Manner>,
    /// The times of the rounds since the last event from outside.
    rounds: VecDeque<Timestamp>,
}

impl CaseRun {
    pub(super) fn begin(case: &Case) -> Self {
        let Case { stored, later } = case;
        let mut job = json!({"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob",
            "metadata": {"name": "j", "namespace": "d", "uid": JOB_UID, "resourceVersion": "1", "generation": 1,
                "finalizers": stored.finalizers},
            "spec": stored.spec.0, "status": stored.status.0});
        job.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        let dice = Dice(Rc::new(RefCell::new(later.seed)));
        let mut bench = Bench::stored(job);
        bench.weather = Box::new(Storm { dice: dice.clone(), bad: later.trouble });
        bench.wire = later.wire;
        for Shown(record) in &stored.records {
            // A record whose number makes no sense is read like any other. A bench has room for one record of each number.
            let place = record["shard"].as_i64().and_then(|shard| u32::try_from(shard).ok()).unwrap_or(u32::MAX);
            bench.records.insert(place, record.clone());
        }
        for Shown(pod) in &stored.pods {
            bench.show(pod.clone());
        }
        bench.next = Some(bench.now);
        Self { bench, dice, manners: later.manners.clone(), rounds: VecDeque::new() }
    }

    /// Returns when the next round is due or the next result arrives.
    fn due(&self) -> Option<Timestamp> {
        let comes = self.bench.queue.has_next(|_| true).then(|| after(self.bench.now, ROUND_TRIP));
        self.bench.next.into_iter().chain(comes).min()
    }

    /// Runs rounds until `end`, or until nothing is due any more.
    pub(super) fn run_until(&mut self, end: Timestamp) -> Result<(), TestCaseError> {
        while let Some(due) = self.due().filter(|_| !self.bench.job_is_gone) {
            let rest = self.rounds.back().map_or(self.bench.now, |last| after(*last, GATHERING));
            let at = due.max(rest).max(self.bench.now);
            if at > end {
                break;
            }
            self.bench.now = at;
            if self.bench.queue.has_next(|_| true) {
                self.bench.send();
            }
            self.round()?;
        }
        self.bench.now = self.bench.now.max(end);
        Ok(())
    }

    fn round(&mut self) -> Result<(), TestCaseError> {
        let now = self.bench.now;
        self.rounds.push_back(now);
        while self.rounds.front().is_some_and(|first| now.duration_since(*first) >= WITHIN) {
            self.rounds.pop_front();
        }
        let targets = self.bench.memory.stored.durable.processing.len();
        if self.rounds.len() > ROUNDS.saturating_add(targets.saturating_mul(ROUNDS_EACH)) {
            return Err(TestCaseError::fail(format!("it spins: {:?}\n{}", self.rounds, self.shown())));
        }
        let (dice, manners) = (self.dice.clone(), self.manners.clone());
        let mut plugin = |visit: &Visit| {
            let manner = manners[dice.roll(manners.len() as u64) as usize];
            answer(manner, &dice, visit)
        };
        self.bench.round(&mut plugin);
        if !self.bench.job_is_gone {
            self.nobody_is_forgotten()?;
        }
        Ok(())
    }

    pub(super) fn happen(&mut self, event: &Event) {
        let bench = &mut self.bench;
        if bench.job_is_gone {
            return;
        }
        match event {
            Event::Pod(Shown(pod)) => bench.show(pod.clone()),
            Event::Vanishes(name) => bench.vanish(name),
            Event::Edit(Shown(patch)) => bench.edit(patch),
            Event::Restart => bench.crash(),
            Event::PluginGone => bench.found = PluginLookup::Unknown { loaded: vec![] },
            Event::PluginBack => bench.found = plugin(),
        }
        if matches!(event, Event::PluginGone | Event::PluginBack) {
            bench.memory.requeue_all();
            bench.next = Some(Timestamp::UNIX_EPOCH);
        }
        self.rounds.clear();
    }

    /// Answers every request from now on.
    pub(super) fn clear_up(&mut self) {
        self.bench.weather = Box::new(Storm { dice: self.dice.clone(), bad: 0 });
        self.rounds.clear();
    }

    pub(super) fn shown(&self) -> String {
        let sent: Vec<&String> = self.bench.sent.iter().rev().take(20).collect();
        format!(
            "at {}, next {:?}, sent {sent:?}\n{:#}\n{:#?}",
            self.bench.now, self.bench.next, self.bench.job, self.bench.memory
        )
    }
}
