//! Write batches in flight: the final check before a request, the request, and its result. This module does what
//! `host/kube/src/send/apply.rs` does.

use oarlock_core::object::api_object::Kind;
use oarlock_core::requests::writes::{BatchResult, Priority, Stopped, Write};
use serde_json::{Value, json};

use crate::api::Reply;
use crate::host::{Host, Sending, Term, View};
use crate::ledger::Author;
use crate::record::{Fate, unknown};
use crate::scenario::{JOB_UID, Scenario, at};
use crate::state::State;
use crate::switch::Switch;

impl State {
    /// Sends the next waiting write batch.
    pub fn send(&mut self, scenario: &Scenario, host: usize) {
        let Some(mut term) = self.hosts[host].term.take() else { return };
        if let Some(entry) = term.queue.edit(|queue| queue.take_next(|_| true)) {
            let mut sending = Sending { entry, done: 0, sent: self.now };
            if scenario.lacks(Switch::BumpsNothing) && sending.entry.priority == Priority::Invalidate {
                sending.done = sending.entry.writes.len();
                self.result(scenario, &mut term, sending, None);
            } else if let Err(stopped) = may_send(scenario, &term, &self.hosts[host], &sending) {
                self.result(scenario, &mut term, sending, Some(stopped));
            } else {
                if scenario.lacks(Switch::NobodyIsBusy) {
                    term.queue.edit(|queue| queue.finished(JOB_UID, sending.entry.index));
                }
                term.in_flight.edit(|in_flight| in_flight.push(sending));
            }
        }
        self.hosts[host].term = Some(term);
    }

    /// Completes a request in flight with this outcome.
    pub fn arrive(&mut self, scenario: &Scenario, host: usize, place: usize, fate: Fate) {
        let Some(mut term) = self.hosts[host].term.take() else { return };
        let mut sending = term.in_flight.edit(|in_flight| in_flight.remove(place));
        let (write, by) = (rewritten(scenario, &sending), author(&term, &sending));
        let outcome = match fate {
            Fate::Done => self.serve(scenario, &write, by),
            Fate::Lost => self.serve(scenario, &write, by).and_then(|_| Err(unknown())),
            Fate::Late => {
                self.astray(write.clone(), by);
                Err(unknown())
            }
        };
        let again = scenario.lacks(Switch::RepeatsOnAFreshView)
            && matches!(outcome, Err(Stopped::Conflict | Stopped::Unknown { .. }));
        let outcome = if again { self.repeat(scenario, &write, by).unwrap_or(outcome) } else { outcome };
        match outcome {
            Ok(reply) => {
                self.remember(host, &mut term, &sending, &reply);
                sending.done += 1;
                if let Reply::Pod(pod) = &reply {
                    sending.entry.made(sending.done, &pod.resource_version);
                }
                if sending.done == sending.entry.writes.len() {
                    self.result(scenario, &mut term, sending, None);
                } else if let Err(stopped) = may_send(scenario, &term, &self.hosts[host], &sending) {
                    self.result(scenario, &mut term, sending, Some(stopped));
                } else {
                    term.in_flight.edit(|in_flight| in_flight.push(sending));
                }
            }
            Err(stopped) => {
                self.notice(host, &mut term, &write, &stopped);
                self.result(scenario, &mut term, sending, Some(stopped));
            }
        }
        self.hosts[host].term = Some(term);
    }

    /// Carries out a request that timed out before.
    pub fn late(&mut self, scenario: &Scenario, place: usize) {
        let late = self.late.edit(|all| all.remove(place));
        // No process gets a reply, because the request has timed out at its sender.
        let _unheard = self.serve(scenario, &late.write.0, late.by).is_err();
    }

    /// Repeats a request based on the live object, as a driver with this rule broken does.
    fn repeat(&mut self, scenario: &Scenario, write: &Write, by: Author) -> Option<Result<Reply, Stopped>> {
        let seen = self.api.pod(write.object()).cloned()?;
        let mut fresh = write.clone();
        fresh.move_version(&seen.resource_version);
        match &mut fresh {
            Write::Evict { uid, .. } => uid.clone_from(&seen.uid),
            Write::Patch { body, .. } => {
                if let Some(slot) = body.pointer_mut("/metadata/uid") {
                    *slot = json!(seen.uid);
                }
            }
            _ => {}
        }
        Some(self.serve(scenario, &fresh, by))
    }

    /// Puts the reply into the caches, before the result becomes an event.
    fn remember(&mut self, host: usize, term: &mut Term, sending: &Sending, reply: &Reply) {
        let view = &mut self.hosts[host].view;
        match reply {
            Reply::Pod(pod) => {
                let store = view.store();
                if let Some(change) = view.edit(|view| view.pod(pod, false, &store)) {
                    term.hear(&change, sending.entry.index, &store);
                }
            }
            Reply::Job(job) => {
                view.edit(|view| view.take_job(job));
            }
            Reply::JobGone => {
                view.edit(|view| view.job = None);
                term.wake();
            }
            Reply::Eviction => {}
        }
    }

    /// Updates the caches from a refused request.
    fn notice(&mut self, host: usize, term: &mut Term, write: &Write, stopped: &Stopped) {
        let view = &mut self.hosts[host].view;
        let unsure = matches!(stopped, Stopped::Gone | Stopped::Conflict | Stopped::Unknown { .. });
        if write.object().kind == Kind::job() {
            if unsure {
                view.edit(View::doubts);
            }
            return;
        }
        let Some(seen) = view.pods.get(&write.object().name).cloned().filter(|_| *stopped == Stopped::Gone) else {
            return;
        };
        let store = view.store();
        if let Some(change) = view.edit(|view| view.pod(&seen, true, &store)) {
            term.hear(&change, None, &store);
        }
    }

    fn result(&self, scenario: &Scenario, term: &mut Term, sending: Sending, stopped: Option<Stopped>) {
        let stopped = match stopped {
            Some(Stopped::Unknown { .. }) if scenario.lacks(Switch::UnknownIsNotMade) => {
                Some(Stopped::Throttled { retry_after: None })
            }
            stopped => stopped,
        };
        if scenario.lacks(Switch::LosesResults) {
            return;
        }
        let Sending { entry, done, sent } = sending;
        let sent = (!matches!(stopped, Some(Stopped::NotSent))).then(|| at(sent));
        term.take(BatchResult { entry, sent, at: at(self.now), done, stopped });
    }
}

/// Returns the author of the next write of a batch.
pub fn author(term: &Term, sending: &Sending) -> Author {
    Author { term: term.number, index: sending.entry.index, attempt: sending.entry.attempt }
}

/// Returns the next write of a batch, as the driver sends it.
pub fn rewritten(scenario: &Scenario, sending: &Sending) -> Write {
    let mut write = sending.entry.writes[sending.done].clone();
    let by_name = scenario.lacks(Switch::NamesInsteadOfUids);
    if !by_name && !scenario.lacks(Switch::WritesWithoutVersion) || write.object().kind == Kind::job() {
        return write;
    }
    match &mut write {
        Write::Evict { uid, resource_version, .. } => {
            *resource_version = None;
            if by_name {
                uid.clear();
            }
        }
        Write::Patch { body, .. } => {
            if let Some(meta) = body.get_mut("metadata").and_then(Value::as_object_mut) {
                meta.remove("resourceVersion");
                if by_name {
                    meta.remove("uid");
                }
            }
        }
        _ => {}
    }
    write
}

/// Makes the final check before a request: this term leads, the job exists, and the newest known view of the object is
/// the view that the decision was based on.
fn may_send(scenario: &Scenario, term: &Term, host: &Host, sending: &Sending) -> Result<(), Stopped> {
    if term.over && !scenario.lacks(Switch::AsksNoFence) {
        return Err(Stopped::LostLease);
    }
    let Some(write) = sending.entry.writes.get(sending.done) else { return Err(Stopped::NotSent) };
    let view = &host.view;
    let Some(job) = &view.job else { return Err(Stopped::NotSent) };
    let current = if write.object().kind == Kind::job() {
        write.version().is_none_or(|version| job.job.metadata.resource_version.as_deref() == Some(version))
    } else if scenario.lacks(Switch::NamesInsteadOfUids) {
        view.pods.contains_key(&write.object().name)
    } else {
        write.fits(view.pods.get(&write.object().name).map(|pod| &**pod))
    };
    if current { Ok(()) } else { Err(Stopped::NotSent) }
}
