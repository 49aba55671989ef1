//! The record of a round in flight, request by request, and the changes once the record is durable. This module does
//! what `host/kube/src/persist/record.rs` and the end of `host/src/round.rs` do.

use std::sync::Arc;

use oarlock_core::operation_job::round::context::Round;
use oarlock_core::operation_job::round::decide::{WriteSpan, commit};
use oarlock_core::operation_job::round::memory::JobMemory;
use oarlock_core::operation_job::write_queue::WriteQueue;
use oarlock_core::plugin::manifest::TargetKind;
use oarlock_core::requests::writes::{Record, Stopped, Write};
use serde_json::json;

use crate::api::Reply;
use crate::host::{Running, Term, View, shared};
use crate::ledger::Author;
use crate::part::Part;
use crate::round::Work;
use crate::scenario::{Scenario, at, job_key, job_ref};
use crate::state::State;
use crate::switch::Switch;

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// The API server carries out the request, and the reply arrives.
    Done,
    /// The API server carries out the request, and the reply is lost.
    Lost,
    /// The request times out. The API server may carry it out later.
    Late,
}

impl State {
    /// Makes the next request of the record in flight, with this outcome.
    pub fn record(&mut self, scenario: &Scenario, host: usize, fate: Fate) {
        let Some(mut term) = self.hosts[host].term.take() else { return };
        let Some(running) = term.running.take() else { return };
        let mut running = running.take();
        let write = next_write(&running.record);
        let by = Author { term: term.number, index: None, attempt: 0 };
        let outcome = match (&write, fate) {
            _ if term.over && !scenario.lacks(Switch::AsksNoFence) => Err(Stopped::LostLease),
            (Some(write), Fate::Late) => {
                self.astray(write.clone(), by);
                Err(unknown())
            }
            (Some(write), Fate::Lost) => self.serve(scenario, write, by).and_then(|_| Err(unknown())),
            (Some(write), Fate::Done) => self.serve(scenario, write, by),
            (None, _) => Ok(Reply::Eviction),
        };
        let pretends = scenario.lacks(Switch::TakesEveryRecordAsDurable);
        match outcome {
            Ok(reply) => {
                let version = match &reply {
                    Reply::Job(job) => {
                        self.hosts[host].view.edit(|view| view.take_job(job));
                        job.job.metadata.resource_version.clone()
                    }
                    _ => None,
                };
                written(&mut running.record, version);
            }
            Err(_) if pretends => written(&mut running.record, None),
            Err(stopped) => return self.not_recorded(host, term, &stopped),
        }
        if !running.record.is_empty() {
            term.running = Some(Part::new(running));
            self.hosts[host].term = Some(term);
            return;
        }
        if scenario.lacks(Switch::SendsBeforeItRecords) {
            running.entries.clear();
        }
        let work = Work {
            host,
            memory: JobMemory::clone(&term.memory),
            tables: shared(&term.tables),
            queue: WriteQueue::clone(&term.queue),
            store: self.hosts[host].view.store(),
            term,
        };
        self.recorded(scenario, work, &running);
    }

    /// Handles a record that may not be durable: drops the decisions, and marks the job as uncertain if its version may
    /// have changed.
    fn not_recorded(&mut self, host: usize, mut term: Term, stopped: &Stopped) {
        if matches!(stopped, Stopped::Gone | Stopped::Conflict | Stopped::Unknown { .. }) {
            self.hosts[host].view.edit(View::doubts);
        }
        term.memory.edit(JobMemory::drop_decisions);
        term.wake();
        self.hosts[host].term = Some(term);
    }

    /// Handles a durable record: the memory takes the decisions over, and the queue gets the write batches.
    pub(crate) fn recorded(&mut self, scenario: &Scenario, mut work: Work, running: &Running) {
        let round = Round {
            job: job_ref(),
            object: &running.job.job,
            now: at(running.now),
            kind: TargetKind::Pod,
            spec: running.spec.clone(),
            unlabelled: None,
            policy: running.policy.clone(),
            pause_state: running.pause_state,
            plugin: &scenario.plugin,
            store: &work.store,
            live: running.live.clone(),
            served: Arc::new(|_| true),
            namespace_terminating: false,
            dry_run: false,
            tasks: Arc::default(),
            target_count: work.memory.stored.state.targets.len(),
            began: work.memory.stored.began.unwrap_or_else(|| at(running.now)),
        };
        let span = WriteSpan { began: at(running.now), ended: at(self.now) };
        commit(&round, running.commit.clone(), &mut work.memory, &work.tables, span);
        running.entries.iter().for_each(|entry| work.queue.push(entry.clone()));
        let next = work.memory.next(running.requeue_at, running.must_wait);
        self.ended(work, next.filter(|_| !scenario.lacks(Switch::ForgetsDueTimes)));
    }
}

/// Returns the next request of a record.
pub fn next_write(record: &Record) -> Option<Write> {
    let object = job_key().object();
    let finalizer = record.finalizer.as_ref().map(|body| Write::patch(&object, body.clone()));
    finalizer.or_else(|| {
        let body = record.status.clone()?;
        Some(Write::Patch { object: object.clone(), subresource: Some("status".to_owned()), body })
    })
}

/// Removes the written part from a record, and moves the rest to the version of the reply.
fn written(record: &mut Record, version: Option<String>) {
    if record.finalizer.take().is_none() {
        record.status = None;
    } else if let (Some(version), Some(status)) = (version, record.status.as_mut())
        && !status["metadata"]["resourceVersion"].is_null()
    {
        status["metadata"]["resourceVersion"] = json!(version);
    }
}

/// Returns the outcome of a request without a reply.
pub fn unknown() -> Stopped {
    Stopped::Unknown { message: "timed out".into() }
}
