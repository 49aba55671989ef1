//! The next need of one target.
//!
//! Takes the target's durable state, its memory and the views of this round; yields a [`NextStep`]. May not act on the
//! need. `ending.rs` tells how an attempt ends. Source: docs/operationjob.md 3.5 to 3.11.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::jiff::SignedDuration;
use oarlock_api::TargetError;

use crate::object::api_object::{Kept, Object};
use crate::object::time::{after, write_time};
use crate::operation_job::holds;
use crate::operation_job::round::context::Target;
use crate::operation_job::round::lifecycle::LifecycleGate;
use crate::operation_job::round::target_memory::{PendingFailure, TargetMemory};
use crate::operation_job::round::visit::{PlannedVisit, TargetUpdate};
use crate::operation_job::state::{Progress, TargetState, ended, extras};
use crate::plugin::manifest::TargetKind;
use crate::plugin::visit::Call;
use crate::requests::live_reads::LiveRead;
use crate::requests::writes::Write;

/// Longest time that the cache may miss the host's own write before the host reads the object live.
const UNSEEN: SignedDuration = SignedDuration::from_secs(3);

/// The next need of one target.
#[derive(Debug)]
pub enum NextStep {
    /// The target needs nothing before a change or its due time.
    Wait,
    /// The target needs these live reads first.
    Read(BTreeSet<LiveRead>),
    /// The host must record this state, without a plugin call.
    Set(TargetState),
    /// The target's object needs a patch that invalidates its resourceVersion, so that a write in flight fails.
    Invalidate(Write),
    /// The host must apply this outcome, without a plugin call.
    Apply(Box<TargetUpdate>),
    /// The target needs a visit.
    Visit(Box<PlannedVisit>),
}

pub(super) fn visit(call: Call, state: TargetState, object: Option<Arc<Object>>) -> NextStep {
    NextStep::Visit(Box::new(PlannedVisit { call, state, object, final_check: false }))
}

/// Returns the reason of a target whose object does not exist.
pub(super) fn not_found(kind: TargetKind) -> &'static str {
    match kind {
        TargetKind::Pod => "PodNotFound",
        TargetKind::Node => "NodeNotFound",
    }
}

/// Returns the error of a target whose object the host does not hold as a whole. The host could not tell what was on
/// the object before.
pub(super) fn too_large(object: &Object, kind: TargetKind) -> TargetError {
    let reason = match kind {
        TargetKind::Pod => "PodTooLarge",
        TargetKind::Node => "NodeTooLarge",
    };
    let (noun, name) = (kind.noun(), &object.key.name);
    let why = match object.kept {
        Kept::NoRoom => format!("the other {noun}s {} take all the memory that the host has for them: use fewer or smaller ones", match kind {
            TargetKind::Pod => "of its namespace",
            TargetKind::Node => "of the cluster",
        }),
        _ => "its labels, annotations, finalizers and the fields that plugins read are too large for the host: make them smaller".to_owned(),
    };
    error(reason, format!("the host does not work on {noun} {name}: {why}"))
}

pub(super) fn error(reason: &str, message: impl Into<String>) -> TargetError {
    TargetError { reason: reason.to_owned(), message: message.into() }
}

impl Target<'_> {
    /// Returns the next need of this target.
    pub fn next_step(&self, known: &mut TargetMemory) -> NextStep {
        self.note_reads(known);
        self.note_marks(known);
        match self.stored.progress {
            Progress::Pending => {
                let next_step = self.start(known);
                self.shown_unread(next_step, known)
            }
            Progress::Processing if known.record_lost => self.give_up_lost(),
            Progress::Processing if self.stored.between_attempts() => {
                let next_step = self.next_attempt_step(known);
                self.shown_unread(next_step, known)
            }
            Progress::Processing => {
                let next_step = self.advance(known);
                self.shown_unread(next_step, known)
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

    /// Returns the need of a target that ends before it starts. The state has no UID, because the host changed nothing on
    /// the object.
    fn fail_before_start(&self, error: TargetError) -> NextStep {
        let state = TargetState { uid: None, ..self.stored.clone() };
        NextStep::Set(ended(&state, Progress::Failed, self.round.second(), Some(error)))
    }

    pub(super) fn fail(&self, error: TargetError) -> NextStep {
        NextStep::Set(ended(self.stored, Progress::Failed, self.round.second(), Some(error)))
    }

    /// Returns the error of a target whose job is deleted.
    pub(super) fn deleted(&self, how: &str) -> TargetError {
        if self.round.object.metadata.deletion_timestamp.is_some() {
            return error("JobDeleted", format!("the job was deleted {how}"));
        }
        let namespace = &self.round.job.key.namespace;
        error("NamespaceTerminating", format!("namespace {namespace} was deleted {how}"))
    }

    /// Returns the need of a pending target: the target starts, or it fails because its object was never there.
    fn start(&self, known: &mut TargetMemory) -> NextStep {
        let round = self.round;
        known.waits_for_object = false;
        if round.deleting() {
            return self.fail_before_start(self.deleted("before the target started"));
        }
        if round.pause_state.skips {
            let message = "not started: more targets have failed than spec.failurePolicy.maxFailures tolerates";
            return self.fail_before_start(error("Skipped", message));
        }
        // A target whose UID a selector found or the spec names is that object and no other.
        let selected = self.stored.uid.as_ref();
        let there = round.sighting(&self.key).found();
        let Some(object) = there.filter(|object| selected.is_none_or(|uid| *uid == object.uid)) else {
            if !round.live.has(&self.live_read()) {
                return NextStep::Read([self.live_read()].into());
            }
            return self.fail_before_start(self.missing_at_start());
        };
        if !object.is_whole() {
            // The host may have memory for the object meanwhile.
            if !round.live.has(&self.live_read()) {
                return NextStep::Read([self.live_read()].into());
            }
            return self.fail_before_start(too_large(&object, round.kind));
        }
        let held = round.is_exclusive() && holds::holders(&object).any(|holder| holder != round.job.uid);
        let takes_part = round.takes_part(&object);
        known.busy = self.busy(Some(&object));
        if held || known.busy.is_some() {
            known.waits_for_object = true;
            known.changed_by_others = false;
            // The host sees the object, so the error of a refused live read no longer applies.
            let told = TargetState { error: None, ..self.stored.clone() };
            return if self.stored.error.is_some() { NextStep::Set(told) } else { NextStep::Wait };
        }
        let mut next = TargetState { error: None, ..self.stored.clone() };
        next.progress = Progress::Processing;
        next.start = Some(round.second());
        next.attempt = 1;
        next.uid = Some(object.uid.clone());
        if round.follows_controllers() {
            match self.owner_extras(&object) {
                Ok(noted) => next.extra.extend(noted),
                Err(read) => return NextStep::Read([read].into()),
            }
            // Another client has asked the object to terminate. Nobody can look up that time once the object is gone.
            next.extra.extend(object.asked_to_go().map(|asked| (extras::EVICTED_AT.to_owned(), write_time(asked))));
        }
        known.changed_by_others = true;
        if takes_part && !round.operation().begun(&object) {
            return NextStep::Apply(Box::new(self.begin(next, &object)));
        }
        if takes_part {
            return NextStep::Set(next);
        }
        match self.begin_after(&next, Some(&object)) {
            None => visit(Call::OperateThenProgress, next, Some(object)),
            Some(_) => NextStep::Set(next),
        }
    }

    /// Returns the error of a target whose object was not there when the target was to start.
    fn missing_at_start(&self) -> TargetError {
        let (kind, name) = (self.round.kind, self.name);
        let place = match kind {
            TargetKind::Pod => format!(" in namespace {}", self.round.job.key.namespace),
            TargetKind::Node => String::new(),
        };
        let noun = kind.noun();
        let namesake = self.round.sighting(&self.key).found();
        let message = match (&self.stored.uid, namesake) {
            // The host cuts messages, and the longest names would leave no space for the UIDs.
            (Some(uid), Some(other)) => {
                format!("the job names UID {uid}, and the {noun} of that name has UID {}: {name}{place}", other.uid)
            }
            (Some(uid), None) => format!("{noun} {name} of UID {uid} not found{place}"),
            (None, _) => format!("{noun} {name} not found{place}"),
        };
        error(not_found(kind), message)
    }

    /// Returns the extras about the controller. The host stores them because the controller may be gone later.
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

    /// Returns the need of a target in flight.
    fn advance(&self, known: &mut TargetMemory) -> NextStep {
        if let Some(read) = self.unconfirmed(known) {
            return NextStep::Read([read].into());
        }
        let object = self.object();
        known.expects.refresh(object.as_deref(), self.round.store, self.round.now);
        if self.round.dry_run {
            return self.next_dry_run_step(known, object);
        }
        self.end_where_due(known);
        match known.failure.clone() {
            Some(failure) => self.end(known, failure, object),
            None => self.next_step_in_flight(known, object),
        }
    }

    /// Returns the live read that must confirm an absence. A cache may lag behind the leader that recorded the UID.
    fn unconfirmed(&self, known: &mut TargetMemory) -> Option<LiveRead> {
        if known.expects.start_recorded_here || known.expects.confirmed {
            return None;
        }
        if self.object().is_some() || self.round.live.has(&self.live_read()) {
            known.expects.confirmed = true;
            return None;
        }
        // A read that the API server refuses or never answers does not delay a target past its deadline.
        let over = self.round.deleting() || self.round.deadline(self.stored).is_some_and(|time| time <= self.round.now);
        let given_up = self.round.live.refused(&self.live_read()) || known.gives_up_reads(self.round.now);
        (!over || !given_up).then(|| self.live_read())
    }

    /// Returns the need of a target in flight that is not about to fail.
    pub(super) fn next_step_in_flight(&self, known: &mut TargetMemory, object: Option<Arc<Object>>) -> NextStep {
        if self.round.serving().is_none() {
            return NextStep::Wait;
        }
        let operated = self.was_operated(known, object.as_deref());
        let begin = self.begin_after(self.stored, object.as_deref()).filter(|_| !operated);
        if begin.is_some() {
            // If the pod takes part in a lifecycle, the lifecycle has let the target go on.
            (known.lifecycle, known.lifecycle_at) = (None, None);
        }
        if begin.max(known.not_before()).is_some_and(|earliest| earliest > self.round.now) {
            return NextStep::Wait;
        }
        if let Some(read) = self.unseen(known, object.as_deref()) {
            let live_read_at = *known.expects.live_read_at.get_or_insert(after(self.round.now, UNSEEN));
            return if live_read_at <= self.round.now { NextStep::Read([read].into()) } else { NextStep::Wait };
        }
        if known.expects.live_read_at.take().is_some() {
            // The cache shows the change that the target waited for.
            known.check(self.round.now);
        }
        let may_operate = match self.lifecycle_gate(known, object.as_deref(), operated) {
            LifecycleGate::Open => true,
            LifecycleGate::Watch => false,
            LifecycleGate::Wait => {
                // A change of the pod brings the next visit.
                known.check_at = None;
                return NextStep::Wait;
            }
            LifecycleGate::Begin(update) => return NextStep::Apply(update),
            LifecycleGate::Busy(error) => {
                known.retry_at = None;
                let failure = PendingFailure { of_attempt: true, ..PendingFailure::new(error) };
                known.failure = Some(failure.clone());
                return self.end(known, failure, object);
            }
        };
        if known.live_reads.iter().any(|read| !self.round.live.has(read)) {
            return NextStep::Read(known.live_reads.clone());
        }
        if !known.changed_by_others && known.check_at.is_some_and(|time| time > self.round.now) {
            return NextStep::Wait;
        }
        let (next, unread) = self.with_tasks(self.with_departure(known, object.as_deref()), known);
        if !unread.is_empty() && !unread.iter().any(|read| self.round.live.refused(read)) {
            return NextStep::Read(known.live_reads.iter().cloned().chain(unread).collect());
        }
        let operates = may_operate && self.round.valid().is_some() && !self.round.pause_state.pause();
        let call = if operates { Call::OperateThenProgress } else { Call::Progress };
        visit(call, next, object)
    }

    /// Returns true if `operate` has had an effect already, so that a delay no longer holds the target back.
    pub fn was_operated(&self, known: &TargetMemory, object: Option<&Object>) -> bool {
        let remembered = || self.stored.extra.keys().any(|key| !extras::is_host(key));
        let marked = || object.is_none_or(|object| object.terminating() || holds::held(object, &self.round.job.uid));
        known.operated || remembered() || marked()
    }

    /// Returns the live read that shows the host's own write, if the cache does not show it.
    fn unseen(&self, known: &mut TargetMemory, object: Option<&Object>) -> Option<LiveRead> {
        let expects = &mut known.expects;
        if self.round.live.has(&self.live_read()) {
            expects.read_live();
            expects.leaving = false;
        }
        if expects.stale.is_some() && object.map(|object| &object.resource_version) != expects.stale.as_ref() {
            expects.stale = None;
        }
        (expects.outdated() || expects.leaving).then(|| self.live_read())
    }

    /// Returns the state with the time at which the target was asked to terminate, once that time is known.
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
