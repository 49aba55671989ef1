//! One round, with the functions of core that `host/src/round.rs` calls, in the same order. The model splits the round
//! while its record is in flight, because everything else may happen meanwhile.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use oarlock_core::cache::store::Store;
use oarlock_core::operation_job::round::context::{Observed, Round};
use oarlock_core::operation_job::round::memory::JobMemory;
use oarlock_core::operation_job::round::open_round::OpenRound;
use oarlock_core::operation_job::round::refresh::{Refresh, refresh};
use oarlock_core::operation_job::round::results::last_events;
use oarlock_core::operation_job::shared::tables::{SharedTables, lock};
use oarlock_core::operation_job::write_queue::WriteQueue;
use oarlock_core::requests::live_reads::{LiveRead, LiveReads};
use oarlock_core::requests::writes::{Record, WriteBatch};
use serde_json::Value;

use crate::api::StoredJob;
use crate::host::{Running, Term, shared, unshared};
use crate::ledger::{Property, gives_up_too_early};
use crate::part::Part;
use crate::plugin;
use crate::scenario::{JOB_UID, Scenario, at, job_key, second};
use crate::state::State;
use crate::switch::Switch;

/// State that a round works on.
pub(crate) struct Work {
    pub(crate) host: usize,
    pub(crate) term: Term,
    pub(crate) memory: JobMemory,
    pub(crate) tables: SharedTables,
    pub(crate) queue: WriteQueue,
    pub(crate) store: Arc<Store>,
}

impl State {
    /// Makes a round of a process up to its record.
    pub fn round(&mut self, scenario: &Scenario, host: usize) {
        let Some(term) = self.hosts[host].term.take() else { return };
        let mut work = begin(scenario, host, term, self.hosts[host].view.store());
        let live = self.observe(scenario, &mut work);
        let Some(job) = self.hosts[host].view.job.clone() else {
            last_events(&mut work.memory.work);
            if work.queue.withdraw_key(&job_key()) {
                lock(&work.tables).forget(&job_key(), &work.store);
                work.memory = JobMemory::default();
            }
            return self.ended(work, None);
        };
        let object = if scenario.lacks(Switch::IgnoresDeletion) { kept(&job) } else { Arc::new(job.job.clone()) };
        let observed = Observed {
            now: at(self.now),
            job: Some(object.clone()),
            records: None,
            live,
            served: Arc::new(|_| true),
            namespace_terminating: false,
            tasks: Arc::default(),
            node_operations: false,
        };
        let refreshed = refresh(&mut work.memory, &object, &observed);
        if refreshed == Refresh::Overtaken && work.term.over && !scenario.lacks(Switch::AsksNoFence) {
            return self.ended(work, None);
        }
        let running = self.decide(scenario, &mut work, &observed, (job, refreshed));
        if scenario.lacks(Switch::SendsBeforeItRecords) && !running.record.is_empty() {
            running.entries.iter().for_each(|entry| work.queue.push(entry.clone()));
        }
        if running.record.is_empty() {
            return self.recorded(scenario, work, &running);
        }
        work.term.running = Some(Part::new(running));
        self.ended(work, None);
    }

    /// Decides from what the round observed. Returns the round with its record in flight.
    fn decide(
        &mut self,
        scenario: &Scenario,
        work: &mut Work,
        observed: &Observed,
        (job, refreshed): (Part<StoredJob>, Refresh),
    ) -> Running {
        let Work { term, memory, tables, queue, store, .. } = work;
        let round = Round::begin(&job_key(), observed, &scenario.plugin, store, memory).unwrap();
        let waiting = if scenario.lacks(Switch::TakesNothingBack) { entries(queue) } else { Vec::new() };
        let (mut open, _) = OpenRound::open(&round, memory, refreshed, tables, queue);
        waiting.into_iter().for_each(|entry| queue.push(entry));
        while let Some(mut next) = open.next_visit(&memory.stored, &mut memory.targets, true) {
            let answer = next.visit.take().map(|visit| plugin::answer(scenario.way, &visit));
            open.judge(next, answer, &memory.stored, &mut memory.targets);
        }
        let decision = open.conclude(memory);
        if gives_up_too_early(&self.api, &term.memory, memory) {
            self.ledger.edit(|ledger| ledger.breaks(Property::S3, "DeadlineExceeded, and its new pod was there"));
        }
        let woken: Vec<u32> = std::mem::take(&mut memory.targets.woken).into_iter().map(|(_, index)| index).collect();
        if !woken.is_empty() {
            if woken.iter().any(|index| !queue.is_in_flight(JOB_UID, *index)) {
                term.wake();
            }
            term.changes.edit(|changes| changes.changed.extend(woken));
        }
        Running {
            job,
            now: self.now,
            spec: round.spec.clone(),
            policy: round.policy.clone(),
            pause_state: round.pause_state,
            live: round.live.clone(),
            record: as_switched(scenario, decision.record),
            commit: decision.commit,
            entries: decision.entries,
            requeue_at: decision.requeue_at,
            must_wait: decision.must_wait,
        }
    }

    /// Ends a round. The next round is due at `next`, or at a change that came meanwhile.
    pub(crate) fn ended(&mut self, work: Work, next: Option<Timestamp>) {
        let Work { host, mut term, memory, tables, queue, store: _ } = work;
        term.memory = Part::new(memory);
        term.tables = unshared(tables);
        term.queue = Part::new(queue);
        if term.running.is_none() {
            let next = next.map(second);
            term.due = [term.due, next].into_iter().flatten().min();
        }
        self.hosts[host].term = Some(term);
    }

    /// Makes the reads before a round: the job if its view is uncertain, and the live reads that the last round asked
    /// for.
    fn observe(&mut self, scenario: &Scenario, work: &mut Work) -> LiveReads {
        let mut live = LiveReads::default();
        let (api, cached) = (self.api.clone(), scenario.lacks(Switch::ReadsTheCache));
        let view = &mut self.hosts[work.host].view;
        if view.doubtful() {
            view.edit(|view| {
                view.doubt = None;
                view.job.clone_from(&api.job);
            });
        }
        for read in work.memory.work.all_reads(&work.memory.decisions.selecting) {
            let keys = match &read {
                LiveRead::Object(key) => vec![key.clone()],
                _ => crate::api::keys(&api),
            };
            let shown: Vec<_> = match &read {
                LiveRead::Object(_) => keys,
                _ => keys.into_iter().chain(view.pods.values().map(|pod| pod.key.clone())).collect(),
            };
            for key in shown.into_iter().filter(|_| !cached) {
                let seen = view.pods.get(&key.name).cloned();
                let change = view.edit(|view| match (api.pod(&key), seen) {
                    (Some(pod), _) => view.pod(pod, false, &work.store),
                    (None, Some(seen)) => view.pod(&seen, true, &work.store),
                    (None, None) => None,
                });
                if let Some(change) = change {
                    work.term.tables = Part::new(lock(&work.tables).clone());
                    work.term.hear(&change, None, &work.store);
                    work.tables = shared(&work.term.tables);
                }
            }
            live.answered.insert(read);
        }
        live
    }
}

/// Returns the record as a driver with a broken rule writes it.
fn as_switched(scenario: &Scenario, mut record: Record) -> Record {
    if scenario.lacks(Switch::PutsNoFinalizer) {
        record.finalizer = None;
    }
    if scenario.lacks(Switch::RecordsWithoutVersion) {
        for body in [&mut record.finalizer, &mut record.status].into_iter().flatten() {
            body["metadata"]["resourceVersion"] = Value::Null;
        }
    }
    record
}

fn begin(scenario: &Scenario, host: usize, mut term: Term, store: Arc<Store>) -> Work {
    term.due = None;
    let mut memory = JobMemory::clone(&term.memory);
    let mut queue = WriteQueue::clone(&term.queue);
    let changes = term.changes.edit(std::mem::take);
    changes.results.iter().for_each(|result| queue.finished(JOB_UID, result.entry.index));
    changes.move_into(&mut memory);
    if scenario.lacks(Switch::RaisesNoEpoch) {
        memory.stored.epoch_raised = true;
    }
    let tables = shared(&term.tables);
    if scenario.lacks(Switch::ForgetsClaims) {
        lock(&tables).claims = oarlock_core::operation_job::shared::claims::Claims::default();
    }
    Work { host, term, memory, tables, queue, store }
}

/// Returns the waiting write batches.
fn entries(queue: &WriteQueue) -> Vec<WriteBatch> {
    let mut queue = queue.clone();
    std::iter::from_fn(|| queue.take_next(|_| true)).collect()
}

/// Returns the job as a driver sees it that does not notice the deletion.
fn kept(job: &StoredJob) -> Arc<oarlock_api::OperationJob> {
    let mut job = job.job.clone();
    job.metadata.deletion_timestamp = None;
    Arc::new(job)
}
