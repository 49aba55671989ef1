//! Entries on their way: the last check before a request, the request, and the result that comes back. What
//! `host/kube/src/apply.rs` does.

use oarlock_core::cluster::object::Kind;
use oarlock_core::cluster::writes::{EntryResult, Priority, Stopped, Write};
use serde_json::{Value, json};

use crate::api::Reply;
use crate::host::{Host, Sending, Term, View};
use crate::ledger::Author;
use crate::record::{Fate, unknown};
use crate::scene::{JOB_UID, Scene, at};
use crate::state::State;
use crate::switch::Switch;

impl State {
    /// Sends the next entry that waits.
    pub fn send(&mut self, scene: &Scene, host: usize) {
        let Some(mut term) = self.hosts[host].term.take() else { return };
        if let Some(entry) = term.queue.edit(|queue| queue.take_next(|_| true)) {
            let mut sending = Sending { entry, done: 0, sent: self.now };
            if scene.lacks(Switch::BumpsNothing) && sending.entry.priority == Priority::Bump {
                sending.done = sending.entry.writes.len();
                self.result(scene, &mut term, sending, None);
            } else if let Err(stopped) = may_send(scene, &term, &self.hosts[host], &sending) {
                self.result(scene, &mut term, sending, Some(stopped));
            } else {
                if scene.lacks(Switch::NobodyIsBusy) {
                    term.queue.edit(|queue| queue.finished(JOB_UID, sending.entry.index));
                }
                term.wire.edit(|wire| wire.push(sending));
            }
        }
        self.hosts[host].term = Some(term);
    }

    /// A request on the wire meets its fate.
    pub fn arrive(&mut self, scene: &Scene, host: usize, place: usize, fate: Fate) {
        let Some(mut term) = self.hosts[host].term.take() else { return };
        let mut sending = term.wire.edit(|wire| wire.remove(place));
        let (write, by) = (rewritten(scene, &sending), author(&term, &sending));
        let outcome = match fate {
            Fate::Done => self.serve(scene, &write, by),
            Fate::Lost => self.serve(scene, &write, by).and_then(|_| Err(unknown())),
            Fate::Late => {
                self.astray(write.clone(), by);
                Err(unknown())
            }
        };
        let again = scene.lacks(Switch::RepeatsOnAFreshView)
            && matches!(outcome, Err(Stopped::Conflict | Stopped::Unknown { .. }));
        let outcome = if again { self.repeat(scene, &write, by).unwrap_or(outcome) } else { outcome };
        match outcome {
            Ok(reply) => {
                self.remember(host, &mut term, &sending, &reply);
                sending.done += 1;
                if let Reply::Pod(pod) = &reply {
                    sending.entry.made(sending.done, &pod.resource_version);
                }
                if sending.done == sending.entry.writes.len() {
                    self.result(scene, &mut term, sending, None);
                } else if let Err(stopped) = may_send(scene, &term, &self.hosts[host], &sending) {
                    self.result(scene, &mut term, sending, Some(stopped));
                } else {
                    term.wire.edit(|wire| wire.push(sending));
                }
            }
            Err(stopped) => {
                self.notice(host, &mut term, &write, &stopped);
                self.result(scene, &mut term, sending, Some(stopped));
            }
        }
        self.hosts[host].term = Some(term);
    }

    /// A request that went astray is carried out after all.
    pub fn late(&mut self, scene: &Scene, place: usize) {
        let late = self.late.edit(|all| all.remove(place));
        // Nobody hears of it.
        let _unheard = self.serve(scene, &late.write.0, late.by).is_err();
    }

    /// What a driver does that repeats a request on what it reads then.
    fn repeat(&mut self, scene: &Scene, write: &Write, by: Author) -> Option<Result<Reply, Stopped>> {
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
        Some(self.serve(scene, &fresh, by))
    }

    /// The reply is in the caches before the result is news.
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

    /// What a refusal says of the object.
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

    fn result(&self, scene: &Scene, term: &mut Term, sending: Sending, stopped: Option<Stopped>) {
        let stopped = match stopped {
            Some(Stopped::Unknown { .. }) if scene.lacks(Switch::UnknownIsNotMade) => {
                Some(Stopped::Throttled { retry_after: None })
            }
            stopped => stopped,
        };
        if scene.lacks(Switch::LosesResults) {
            return;
        }
        let Sending { entry, done, sent } = sending;
        let sent = (!matches!(stopped, Some(Stopped::NotSent))).then(|| at(sent));
        term.take(EntryResult { entry, sent, at: at(self.now), done, stopped });
    }
}

/// Who makes the write that is due of an entry.
pub fn author(term: &Term, sending: &Sending) -> Author {
    Author { term: term.number, index: sending.entry.index, attempt: sending.entry.attempt }
}

/// The write that is due of an entry, as a driver sends it.
pub fn rewritten(scene: &Scene, sending: &Sending) -> Write {
    let mut write = sending.entry.writes[sending.done].clone();
    let by_name = scene.lacks(Switch::NamesInsteadOfUids);
    if !by_name && !scene.lacks(Switch::WritesWithoutVersion) || write.object().kind == Kind::job() {
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

/// The last check before a request: this term leads, the job is there, and the newest known view of the object is the one
/// that was decided on.
fn may_send(scene: &Scene, term: &Term, host: &Host, sending: &Sending) -> Result<(), Stopped> {
    if term.over && !scene.lacks(Switch::AsksNoFence) {
        return Err(Stopped::LostLease);
    }
    let Some(write) = sending.entry.writes.get(sending.done) else { return Err(Stopped::NotSent) };
    let view = &host.view;
    let Some(job) = &view.job else { return Err(Stopped::NotSent) };
    let current = if write.object().kind == Kind::job() {
        write.version().is_none_or(|version| job.job.metadata.resource_version.as_deref() == Some(version))
    } else if scene.lacks(Switch::NamesInsteadOfUids) {
        view.pods.contains_key(&write.object().name)
    } else {
        write.fits(view.pods.get(&write.object().name).map(|pod| &**pod))
    };
    if current { Ok(()) } else { Err(Stopped::NotSent) }
}
