//! The next need of one target.
//!
//! Takes its durable state, its memory and the views of this round; yields a [`Need`]. May not act on it.
//! `ending.rs` says how an attempt ends. Source: docs/operationjob.md 3.5 to 3.11.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::jiff::SignedDuration;
use oarlock_api::TargetError;

use crate::cluster::live_reads::LiveRead;
use crate::cluster::object::{Kept, Object};
use crate::cluster::writes::Write;
use crate::job::state::{Progress, TargetState, ended, extras};
use crate::job::time::{after, write_time};
use crate::plugin::manifest::TargetKind;
use crate::plugin::visit::Call;
use crate::round::context::Target;
use crate::round::judge::Verdict;
use crate::round::lifecycle::Gate;
use crate::round::target_memory::{PendingFailure, TargetMemory};
use crate::shared::holds;

/// Longest time that an own write may stay unseen before the host reads the object live.
const UNSEEN: SignedDuration = SignedDuration::from_secs(3);

/// The next need of one target.
#[derive(Debug)]
pub enum Need {
    /// Nothing before a change or its due time.
    Rest,
    /// These live reads first.
    Read(BTreeSet<LiveRead>),
    /// Recording this state, without a call.
    Set(TargetState),
    /// A bump of its resourceVersion, so that a write still under way fails.
    Bump(Write),
    /// This verdict, without a call.
    Settled(Box<Verdict>),
    /// A visit.
    Visit(Box<PlannedVisit>),
}

/// A visit that the round makes.
#[derive(Debug)]
pub struct PlannedVisit {
    /// The functions to call.
    pub call: Call,
    /// The state to record, before the plugin's extras.
    pub state: TargetState,
    /// The object of the recorded UID.
    pub object: Option<Arc<Object>>,
    /// Every read is live, and only `succeeded` counts.
    pub final_check: bool,
}

pub(super) fn visit(call: Call, state: TargetState, object: Option<Arc<Object>>) -> Need {
    Need::Visit(Box::new(PlannedVisit { call, state, object, final_check: false }))
}

/// The reason of a target whose object is not there.
pub(super) fn not_found(kind: TargetKind) -> &'static str {
    match kind {
        TargetKind::Pod => "PodNotFound",
        TargetKind::Node => "NodeNotFound",
    }
}

/// The error of a target whose object is not held whole: nobody could tell what was on it before.
pub(super) fn too_large(object: &Object, kind: TargetKind) -> TargetError {
    let reason = match kind {
        TargetKind::Pod => "PodTooLarge",
        TargetKind::Node => "NodeTooLarge",
    };
    let (noun, name) = (kind.noun(), &object.key.name);
    let why = match object.kept {
        Kept::NoRoom => format!("beside the other {noun}s {} the host has no memory for it: have fewer of them, or smaller ones", match kind {
            TargetKind::Pod => "of its namespace",
            TargetKind::Node => "of the cluster",
        }),
        _ => "its labels, annotations, finalizers or the fields that plugins read are more than the host keeps of any: make them smaller".to_owned(),
    };
    error(reason, format!("{noun} {name} is not worked on: {why}"))
}

pub(super) fn error(reason: &str, message: impl Into<String>) -> TargetError {
    TargetError { reason: reason.to_owned(), message: message.into() }
}

impl Target<'_> {
    /// The next need of this target.
    pub fn need(&self, known: &mut TargetMemory) -> Need {
        self.note_reads(known);
        self.note_marks(known);
        match self.stored.progress {
            Progress::Pending => {
                let need = self.start(known);
                self.shown_unread(need, known)
            }
            Progress::Processing if known.record_lost => self.give_up_lost(),
            Progress::Processing if self.stored.between_attempts() => {
                let need = self.try_again(known);
                self.shown_unread(need, known)
            }
            Progress::Processing => {
                let need = self.advance(known);
                self.shown_unread(need, known)
            }
            Progress::Succeeded | Progress::Failed => self.release(known),
        }
    }

    fn note_marks(&self, known: &mut TargetMemory) {
        let Some(uid) = self.stored.uid.as_ref() else { return };
        if let Some(object) = self.round.sighting(&self.key).found().filter(|object| object.uid == *uid) {
            known.marks = holds::still_there(&object, &self.round.job.uid, std::mem::take(&mut known.marks));
        }
    }

    pub(super) fn live_read(&self) -> LiveRead {
        LiveRead::Object(self.key.clone())
    }

    /// A target that ends before it starts. Without a UID nobody takes it for one that was changed.
    fn never_start(&self, error: TargetError) -> Need {
        let state = TargetState { uid: None, ..self.stored.clone() };
        Need::Set(ended(&state, Progress::Failed, self.round.second(), Some(error)))
    }

    pub(super) fn fail(&self, error: TargetError) -> Need {
        Need::Set(ended(self.stored, Progress::Failed, self.round.second(), Some(error)))
    }

    /// The error of a target whose job is deleted.
    pub(super) fn deleted(&self, how: &str) -> TargetError {
        if self.round.object.metadata.deletion_timestamp.is_some() {
            return error("JobDeleted", format!("the job was deleted {how}"));
        }
        let namespace = &self.round.job.key.namespace;
        error("NamespaceTerminating", format!("namespace {namespace} was deleted {how}"))
    }

    /// A pending target: it starts, or it fails because its pod was never there.
    fn start(&self, known: &mut TargetMemory) -> Need {
        let round = self.round;
        known.waits_for_object = false;
        if round.deleting() {
            return self.never_start(self.deleted("before the target started"));
        }
        if round.brakes.skips {
            let message = "not started: more targets have failed than spec.failurePolicy.maxFailures tolerates";
            return self.never_start(error("Skipped", message));
        }
        // One that a selector found, or whose UID the spec names, is that object and no other.
        let selected = self.stored.uid.as_ref();
        let there = round.sighting(&self.key).found();
        let Some(object) = there.filter(|object| selected.is_none_or(|uid| *uid == object.uid)) else {
            if !round.live.has(&self.live_read()) {
                return Need::Read([self.live_read()].into());
            }
            return self.never_start(self.never_there());
        };
        if !object.is_whole() {
            // There may be room meanwhile.
            if !round.live.has(&self.live_read()) {
                return Need::Read([self.live_read()].into());
            }
            return self.never_start(too_large(&object, round.kind));
        }
        let held = round.is_exclusive() && holds::holders(&object).any(|holder| holder != round.job.uid);
        let takes_part = round.takes_part(&object);
        known.busy = self.busy(Some(&object));
        if held || known.busy.is_some() {
            known.waits_for_object = true;
            known.news = false;
            // What a live read was refused for is over: its object is seen.
            let told = TargetState { error: None, ..self.stored.clone() };
            return if self.stored.error.is_some() { Need::Set(told) } else { Need::Rest };
        }
        let mut next = TargetState { error: None, ..self.stored.clone() };
        next.progress = Progress::Processing;
        next.start = Some(round.second());
        next.attempt = 1;
        next.uid = Some(object.uid.clone());
        if round.follows_controllers() {
            match self.owner_extras(&object) {
                Ok(noted) => next.extra.extend(noted),
                Err(read) => return Need::Read([read].into()),
            }
            // Another one asked it to go: nobody can look that up once it is gone.
            next.extra.extend(object.asked_to_go().map(|asked| (extras::EVICTED_AT.to_owned(), write_time(asked))));
        }
        known.news = true;
        if takes_part && !round.operation().begun(&object) {
            return Need::Settled(Box::new(self.begin(next, &object)));
        }
        if takes_part {
            return Need::Set(next);
        }
        match self.begin_after(&next, Some(&object)) {
            None => visit(Call::OperateThenProgress, next, Some(object)),
            Some(_) => Need::Set(next),
        }
    }

    /// The error of a target whose object was not there when it was to start.
    fn never_there(&self) -> TargetError {
        let (kind, name) = (self.round.kind, self.name);
        let place = match kind {
            TargetKind::Pod => format!(" in namespace {}", self.round.job.key.namespace),
            TargetKind::Node => String::new(),
        };
        let noun = kind.noun();
        let namesake = self.round.sighting(&self.key).found();
        let message = match (&self.stored.uid, namesake) {
            // A message is cut, and the longest names would leave no room for the UIDs.
            (Some(uid), Some(other)) => {
                format!("the job names UID {uid}, and the {noun} of that name has UID {}: {name}{place}", other.uid)
            }
            (Some(uid), None) => format!("{noun} {name} of UID {uid} not found{place}"),
            (None, _) => format!("{noun} {name} not found{place}"),
        };
        error(not_found(kind), message)
    }

    /// The extras about the controller, stored because it may be gone later.
    fn owner_extras(&self, object: &Object) -> Result<Vec<(String, String)>, LiveRead> {
        let root = match self.round.store.root(object) {
            Ok(root) => root,
            Err(_) => {
                let read = LiveRead::Controllers { namespace: self.round.job.key.namespace.clone() };
                if !self.round.live.has(&read) {
                    return Err(read);
                }
                // The ReplicaSet is gone already, so it counts as the root.
                object.controller().cloned()
            }
        };
        let mut noted = Vec::new();
        if let Some(owner) = root {
            noted.push((extras::OWNER.to_owned(), format!("{}/{}/{}", owner.kind.kind, owner.name, owner.uid)));
            if owner.kind.kind == "DaemonSet" {
                noted.extend(object.text("/spec/nodeName").map(|node| (extras::NODE.to_owned(), node)));
            }
        }
        Ok(noted)
    }

    /// A target in flight.
    fn advance(&self, known: &mut TargetMemory) -> Need {
        if let Some(read) = self.unconfirmed(known) {
            return Need::Read([read].into());
        }
        let object = self.object();
        known.expects.refresh(object.as_deref(), self.round.store, self.round.now);
        if self.round.dry_run {
            return self.try_out(known, object);
        }
        self.end_where_due(known);
        match known.failure.clone() {
            Some(failure) => self.end(known, failure, object),
            None => self.go_on(known, object),
        }
    }

    /// The live read that must confirm an absence: a cache may lag behind the leader that recorded the UID.
    fn unconfirmed(&self, known: &mut TargetMemory) -> Option<LiveRead> {
        if known.expects.own_intent || known.expects.confirmed {
            return None;
        }
        if self.object().is_some() || self.round.live.has(&self.live_read()) {
            known.expects.confirmed = true;
            return None;
        }
        // A read that the server refuses, or never answers, does not delay a target past its deadline.
        let over = self.round.deleting() || self.round.deadline(self.stored).is_some_and(|time| time <= self.round.now);
        let given_up = self.round.live.refused(&self.live_read()) || known.gives_up_reads(self.round.now);
        (!over || !given_up).then(|| self.live_read())
    }

    /// The need of a target in flight that is not about to fail.
    pub(super) fn go_on(&self, known: &mut TargetMemory, object: Option<Arc<Object>>) -> Need {
        if self.round.serving().is_none() {
            return Need::Rest;
        }
        let operated = self.was_operated(known, object.as_deref());
        let begin = self.begin_after(self.stored, object.as_deref()).filter(|_| !operated);
        if begin.is_some() {
            // Its lifecycle, if it has one, has let it go on.
            (known.lifecycle, known.lifecycle_at) = (None, None);
        }
        if begin.max(known.not_before()).is_some_and(|earliest| earliest > self.round.now) {
            return Need::Rest;
        }
        if let Some(read) = self.unseen(known, object.as_deref()) {
            let patience = *known.expects.patience.get_or_insert(after(self.round.now, UNSEEN));
            return if patience <= self.round.now { Need::Read([read].into()) } else { Need::Rest };
        }
        if known.expects.patience.take().is_some() {
            // What it waited for is seen.
            known.check(self.round.now);
        }
        let may_operate = match self.gate(known, object.as_deref(), operated) {
            Gate::Open => true,
            Gate::Watch => false,
            Gate::Wait => {
                // A change of its pod brings the next visit.
                known.check_at = None;
                return Need::Rest;
            }
            Gate::Begin(verdict) => return Need::Settled(verdict),
            Gate::Busy(error) => {
                known.retry_at = None;
                let failure = PendingFailure { of_attempt: true, ..PendingFailure::new(error) };
                known.failure = Some(failure.clone());
                return self.end(known, failure, object);
            }
        };
        if known.live_reads.iter().any(|read| !self.round.live.has(read)) {
            return Need::Read(known.live_reads.clone());
        }
        if !known.news && known.check_at.is_some_and(|time| time > self.round.now) {
            return Need::Rest;
        }
        let (next, unread) = self.with_tasks(self.with_departure(known, object.as_deref()), known);
        if !unread.is_empty() && !unread.iter().any(|read| self.round.live.refused(read)) {
            return Need::Read(known.live_reads.iter().cloned().chain(unread).collect());
        }
        let operates = may_operate && self.round.valid().is_some() && !self.round.brakes.pause();
        let call = if operates { Call::OperateThenProgress } else { Call::Progress };
        visit(call, next, object)
    }

    /// True if `operate` has had an effect already, so that a delay no longer holds the target back.
    pub fn was_operated(&self, known: &TargetMemory, object: Option<&Object>) -> bool {
        let remembered = || self.stored.extra.keys().any(|key| !extras::is_host(key));
        let marked = || object.is_none_or(|object| object.terminating() || holds::held(object, &self.round.job.uid));
        known.operated || remembered() || marked()
    }

    /// The live read that shows an own write, if the cache does not show it.
    fn unseen(&self, known: &mut TargetMemory, object: Option<&Object>) -> Option<LiveRead> {
        let expects = &mut known.expects;
        if self.round.live.has(&self.live_read()) {
            expects.looked();
            expects.departing = false;
        }
        if expects.stale.is_some() && object.map(|object| &object.resource_version) != expects.stale.as_ref() {
            expects.stale = None;
        }
        (expects.outdated() || expects.departing).then(|| self.live_read())
    }

    /// The state with the time at which the target was asked to terminate, once that is known.
    pub(super) fn with_departure(&self, known: &TargetMemory, object: Option<&Object>) -> TargetState {
        let mut next = self.stored.clone();
        let going = object.is_none_or(Object::terminating);
        if going && self.round.follows_controllers() && !next.extra.contains_key(extras::EVICTED_AT) {
            let noted = known.expects.departure().map(|time| (extras::EVICTED_AT.to_owned(), write_time(time)));
            next.extra.extend(noted);
        }
        next
    }
}
