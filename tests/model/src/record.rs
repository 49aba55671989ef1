//! The record of a round on its way, request by request, and what follows once it is durable: what `host/kube/src/record.rs`
//! and the end of `host/src/round.rs` do.

use std::sync::Arc;

use oarlock_core::cluster::writes::{Record, Stopped, Write};
use oarlock_core::plugin::manifest::TargetKind;
use oarlock_core::round::context::Round;
use oarlock_core::round::decide::commit;
use oarlock_core::round::memory::JobMemory;
use oarlock_core::shared::write_queue::WriteQueue;
use serde_json::json;

use crate::api::Reply;
use crate::host::{Running, Term, View, shared};
use crate::ledger::Author;
use crate::part::Part;
use crate::round::Work;
use crate::scene::{Scene, at, job_key, job_ref};
use crate::state::State;
use crate::switch::Switch;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It is carried out, and the reply comes.
    Done,
    /// It is carried out, and the reply is lost.
    Lost,
    /// It times out, and may be carried out later.
    Late,
}

impl State {
    /// The next request of the record on its way, and its fate.
    pub fn record(&mut self, scene: &Scene, host: usize, fate: Fate) {
        let Some(mut term) = self.hosts[host].term.take() else { return };
        let Some(running) = term.running.take() else { return };
        let mut running = running.take();
        let write = next_write(&running.record);
        let by = Author { term: term.number, index: None, attempt: 0 };
        let outcome = match (&write, fate) {
            _ if term.over && !scene.lacks(Switch::AsksNoFence) => Err(Stopped::LostLease),
            (Some(write), Fate::Late) => {
                self.astray(write.clone(), by);
                Err(unknown())
            }
            (Some(write), Fate::Lost) => self.serve(scene, write, by).and_then(|_| Err(unknown())),
            (Some(write), Fate::Done) => self.serve(scene, write, by),
            (None, _) => Ok(Reply::Eviction),
        };
        let pretends = scene.lacks(Switch::TakesEveryRecordAsDurable);
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
        if scene.lacks(Switch::SendsBeforeItRecords) {
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
        self.recorded(scene, work, &running);
    }

    /// The record is not known to be durable: what was decided is forgotten, and the job read before it is trusted.
    fn not_recorded(&mut self, host: usize, mut term: Term, stopped: &Stopped) {
        if matches!(stopped, Stopped::Gone | Stopped::Conflict | Stopped::Unknown { .. }) {
            self.hosts[host].view.edit(View::doubts);
        }
        term.memory.edit(JobMemory::forget_plan);
        term.wake();
        self.hosts[host].term = Some(term);
    }

    /// The record is durable: the memory takes it over, and the entries are queued.
    pub(crate) fn recorded(&mut self, scene: &Scene, mut work: Work, running: &Running) {
        let round = Round {
            job: job_ref(),
            object: &running.job.job,
            now: at(running.now),
            kind: TargetKind::Pod,
            spec: running.spec.clone(),
            unlabelled: None,
            policy: running.policy.clone(),
            brakes: running.brakes,
            plugin: &scene.plugin,
            store: &work.store,
            live: running.live.clone(),
            served: Arc::new(|_| true),
            namespace_terminating: false,
            dry_run: false,
            tasks: Arc::default(),
            target_count: work.memory.state.targets.len(),
            began: work.memory.began.unwrap_or_else(|| at(running.now)),
        };
        commit(&round, running.commit.clone(), &mut work.memory, &work.tables, (at(running.now), at(self.now)));
        running.entries.iter().for_each(|entry| work.queue.push(entry.clone()));
        let next = work.memory.next(running.requeue, running.rests);
        self.ended(work, next.filter(|_| !scene.lacks(Switch::ForgetsDueTimes)));
    }
}

/// The request of a record that is next.
pub fn next_write(record: &Record) -> Option<Write> {
    let object = job_key().object();
    let finalizer = record.finalizer.as_ref().map(|body| Write::patch(&object, body.clone()));
    finalizer.or_else(|| {
        let body = record.status.clone()?;
        Some(Write::Patch { object: object.clone(), subresource: Some("status".to_owned()), body })
    })
}

/// Takes the part out of a record that was written, and moves the rest to the version that the reply shows.
fn written(record: &mut Record, version: Option<String>) {
    if record.finalizer.take().is_none() {
        record.status = None;
    } else if let (Some(version), Some(status)) = (version, record.status.as_mut())
        && !status["metadata"]["resourceVersion"].is_null()
    {
        status["metadata"]["resourceVersion"] = json!(version);
    }
}

/// The outcome of a request without a reply.
pub fn unknown() -> Stopped {
    Stopped::Unknown { message: "timed out".into() }
}
