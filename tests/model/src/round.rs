//! One round, as `host/src/round.rs` makes it: the same functions of core in the same order. It is cut where its record is
//! on the way, since everything else may happen meanwhile.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use oarlock_core::cluster::live_reads::{LiveRead, LiveReads};
use oarlock_core::cluster::store::Store;
use oarlock_core::cluster::writes::{Entry, Record};
use oarlock_core::round::calls::PlannedCall;
use oarlock_core::round::context::{Observed, Round};
use oarlock_core::round::decide::conclude;
use oarlock_core::round::judge::Verdict;
use oarlock_core::round::memory::JobMemory;
use oarlock_core::round::plan::{Plan, prepare};
use oarlock_core::round::refresh::{Refresh, refresh};
use oarlock_core::round::results::last_events;
use oarlock_core::shared::tables::{SharedTables, lock};
use oarlock_core::shared::write_queue::WriteQueue;
use serde_json::Value;

use crate::api::StoredJob;
use crate::host::{Running, Term, shared, unshared};
use crate::ledger::{Property, gives_up_too_early};
use crate::part::Part;
use crate::plugin;
use crate::scene::{JOB_UID, Scene, at, job_key, second};
use crate::state::State;
use crate::switch::Switch;

/// What a round works on.
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
    pub fn round(&mut self, scene: &Scene, host: usize) {
        let Some(term) = self.hosts[host].term.take() else { return };
        let mut work = begin(scene, host, term, self.hosts[host].view.store());
        let live = self.observe(scene, &mut work);
        let Some(job) = self.hosts[host].view.job.clone() else {
            last_events(&mut work.memory);
            if work.queue.withdraw_key(&job_key()) {
                lock(&work.tables).forget(&job_key(), &work.store);
                work.memory = JobMemory::default();
            }
            return self.ended(work, None);
        };
        let object = if scene.lacks(Switch::IgnoresDeletion) { kept(&job) } else { Arc::new(job.job.clone()) };
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
        if refreshed == Refresh::Overtaken && work.term.over && !scene.lacks(Switch::AsksNoFence) {
            return self.ended(work, None);
        }
        let running = self.decide(scene, &mut work, &observed, (job, refreshed));
        if scene.lacks(Switch::SendsBeforeItRecords) && !running.record.is_empty() {
            running.entries.iter().for_each(|entry| work.queue.push(entry.clone()));
        }
        if running.record.is_empty() {
            return self.recorded(scene, work, &running);
        }
        work.term.running = Some(Part::new(running));
        self.ended(work, None);
    }

    /// From what was observed to what is decided.
    fn decide(
        &mut self,
        scene: &Scene,
        work: &mut Work,
        observed: &Observed,
        (job, refreshed): (Part<StoredJob>, Refresh),
    ) -> Running {
        let Work { term, memory, tables, queue, store, .. } = work;
        let round = Round::begin(&job_key(), observed, &scene.plugin, store, memory).unwrap();
        let waiting = if scene.lacks(Switch::TakesNothingBack) { entries(queue) } else { Vec::new() };
        let (plan, _) = prepare(&round, memory, refreshed, tables, queue);
        waiting.into_iter().for_each(|entry| queue.push(entry));
        let verdicts = call_plugin(scene, &round, &plan, memory, tables);
        let decision = conclude(&round, plan, verdicts, memory, tables);
        if gives_up_too_early(&self.api, &term.memory, memory) {
            self.ledger.edit(|ledger| ledger.breaks(Property::S3, "DeadlineExceeded, and its new pod was there"));
        }
        let woken: Vec<u32> = std::mem::take(&mut memory.woken).into_iter().map(|(_, index)| index).collect();
        if !woken.is_empty() {
            if woken.iter().any(|index| !queue.is_busy(JOB_UID, *index)) {
                term.wake();
            }
            term.inbox.edit(|inbox| inbox.changed.extend(woken));
        }
        Running {
            job,
            now: self.now,
            spec: round.spec.clone(),
            policy: round.policy.clone(),
            brakes: round.brakes,
            live: round.live.clone(),
            record: as_switched(scene, decision.record),
            commit: decision.commit,
            entries: decision.entries,
            requeue: decision.requeue,
            rests: decision.rests,
        }
    }

    /// The round has ended; the next one is due then, or at a change that came meanwhile.
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

    /// What is read before a round: the job if its view is in doubt, and the live reads of the last round.
    fn observe(&mut self, scene: &Scene, work: &mut Work) -> LiveReads {
        let mut live = LiveReads::default();
        let (api, cached) = (self.api.clone(), scene.lacks(Switch::ReadsTheCache));
        let view = &mut self.hosts[work.host].view;
        if view.doubtful() {
            view.edit(|view| {
                view.doubt = None;
                view.job.clone_from(&api.job);
            });
        }
        for read in work.memory.live_reads() {
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

/// What a known-bad driver makes of a record.
fn as_switched(scene: &Scene, mut record: Record) -> Record {
    if scene.lacks(Switch::PutsNoFinalizer) {
        record.finalizer = None;
    }
    if scene.lacks(Switch::RecordsWithoutVersion) {
        for body in [&mut record.finalizer, &mut record.status].into_iter().flatten() {
            body["metadata"]["resourceVersion"] = Value::Null;
        }
    }
    record
}

fn begin(scene: &Scene, host: usize, mut term: Term, store: Arc<Store>) -> Work {
    term.due = None;
    let mut memory = JobMemory::clone(&term.memory);
    let mut queue = WriteQueue::clone(&term.queue);
    let inbox = term.inbox.edit(std::mem::take);
    inbox.results.iter().for_each(|result| queue.finished(JOB_UID, result.entry.index));
    inbox.empty_into(&mut memory);
    if scene.lacks(Switch::RaisesNoEpoch) {
        memory.epoch_raised = true;
    }
    let tables = shared(&term.tables);
    if scene.lacks(Switch::ForgetsClaims) {
        lock(&tables).claims = oarlock_core::shared::claims::Claims::default();
    }
    Work { host, term, memory, tables, queue, store }
}

fn call_plugin(
    scene: &Scene,
    round: &Round<'_>,
    plan: &Plan,
    memory: &mut JobMemory,
    tables: &SharedTables,
) -> Vec<(u32, Verdict)> {
    let facts = round.job_facts(memory);
    let mut verdicts = Vec::with_capacity(plan.visits.len());
    for (index, planned) in &plan.visits {
        let mut known = memory.targets.remove(index).unwrap_or_default();
        let Some(target) = round.target(*index, memory) else { continue };
        let call = PlannedCall { target, planned };
        let verdict = if call.wants_plugin(&known) {
            let (visit, reads) = call.input(&facts, memory, &known, tables);
            let answer = plugin::answer(scene.way, &visit);
            call.judge(Some((answer, &reads)), &mut known, &mut lock(tables))
        } else {
            call.judge(None, &mut known, &mut lock(tables))
        };
        verdicts.push((*index, verdict));
        memory.targets.insert(*index, known);
    }
    plan.visits_made(verdicts.len(), memory);
    verdicts
}

/// The entries that wait.
fn entries(queue: &WriteQueue) -> Vec<Entry> {
    let mut queue = queue.clone();
    std::iter::from_fn(|| queue.take_next(|_| true)).collect()
}

/// The job as a driver sees it that does not notice its deletion.
fn kept(job: &StoredJob) -> Arc<oarlock_api::OperationJob> {
    let mut job = job.job.clone();
    job.metadata.deletion_timestamp = None;
    Arc::new(job)
}
