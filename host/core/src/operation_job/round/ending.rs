//! The end of a target's attempt: a deadline, a deletion or a failure, then the release and the next attempt.
//!
//! Takes a target; yields a [`NextStep`], as `target.rs` does for every target. May not record an end while a write can
//! still take effect. Source: docs/operationjob.md 3.8, 3.10, 3.11.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::jiff::SignedDuration;
use oarlock_api::TargetError;

use crate::object::api_object::Object;
use crate::object::time::{after, too_late_for};
use crate::operation_job::holds;
use crate::operation_job::round::calls::PlannedCall;
use crate::operation_job::round::context::Target;
use crate::operation_job::round::target::{NextStep, error, visit};
use crate::operation_job::round::target_memory::{PendingFailure, TargetMemory, UnknownWrite};
use crate::operation_job::round::visit::PlannedVisit;
use crate::operation_job::state::{Progress, TargetState, ended, extras, next_attempt, waiting_for_attempt};
use crate::operation_job::tasks::target_tasks::may_have_pods;
use crate::plugin::proposal::Proposal;
use crate::plugin::visit::Call;
use crate::requests::live_reads::LiveRead;
use crate::requests::writes::Write;

/// Time between two tries to release a target whose object the host cannot read.
const BLIND_TRY: SignedDuration = SignedDuration::from_secs(60);

impl Target<'_> {
    /// Returns the state of a target after a failed attempt: the target waits for the next attempt, or has failed for
    /// good.
    pub(super) fn after_attempt(&self, state: &TargetState, error: TargetError) -> TargetState {
        match self.round.retry_after(state.attempt) {
            Some(wait) => waiting_for_attempt(state, after(self.round.second(), wait), error),
            None => ended(state, Progress::Failed, self.round.second(), Some(error)),
        }
    }

    /// Sets a pending failure if the target's deadline has passed or its job is deleted.
    pub(super) fn end_where_due(&self, known: &mut TargetMemory) {
        if self.round.deleting() {
            if !known.failure.as_ref().is_some_and(|failure| failure.skip_final_check) {
                known.retry_at = None;
                let error = self.deleted("while the target was in flight");
                known.failure = Some(PendingFailure { skip_final_check: true, ..PendingFailure::new(error) });
            }
            return;
        }
        let deadline = self.round.deadline(self.stored);
        if known.failure.is_some() || deadline.is_none_or(|deadline| deadline > self.round.now) {
            return;
        }
        let seconds = self.round.deadline_seconds();
        let trouble = known
            .trouble
            .as_ref()
            .map(|(trouble, _)| trouble.clone())
            .or_else(|| known.lifecycle.as_ref().map(|wait| error(wait.awaited.reason(), wait.message.clone())))
            .or_else(|| known.changes.trouble(self.round.now))
            .or_else(|| self.stored.error.clone().filter(|_| self.stored.between_attempts()))
            .or_else(|| self.stored.waits_for().map(|(word, sentence)| error(&word, sentence)));
        let waited = trouble.map(|trouble| format!(" ({}: {})", trouble.reason, trouble.message));
        let rest = match self.round.dry_run {
            true => "nothing was changed",
            false => "changes already requested may still take effect",
        };
        let message = format!(
            "deadline of {seconds} s exceeded{}; {rest}",
            waited.or_else(|| self.round.endless_delay()).unwrap_or_default()
        );
        let error = error("DeadlineExceeded", message);
        // The target's earlier wait no longer counts, even if its plugin asked for it.
        known.retry_at = None;
        known.failure = Some(PendingFailure::new(error));
    }

    /// Returns the next step to an end other than Succeeded. Late effects are excluded first, then the final check
    /// follows.
    pub(super) fn end(
        &self,
        known: &mut TargetMemory,
        failure: PendingFailure,
        object: Option<Arc<Object>>,
    ) -> NextStep {
        // After `give_up_at`, no old request can arrive. The host then ignores the backoff.
        let given_up = failure.give_up_at.is_some_and(|time| time <= self.round.now);
        if !given_up && known.retry_at.is_some_and(|time| time > self.round.now) {
            return NextStep::Wait;
        }
        known.retry_at = None;
        if let Some(next_step) = self.exclude_late_effects(known, &failure, object.as_deref()) {
            return next_step;
        }
        if failure.skip_final_check || self.round.serving().is_none() {
            return match failure.of_attempt {
                true => NextStep::Set(self.after_attempt(self.stored, failure.error)),
                false => self.fail(failure.error),
            };
        }
        let read = self.live_read();
        let given_up = known.gives_up_reads(self.round.now);
        let answered = |read: &LiveRead| given_up || self.round.live.has(read) || self.round.live.refused(read);
        let missing: BTreeSet<_> =
            known.live_reads.iter().chain([&read]).filter(|read| !answered(read)).cloned().collect();
        if !missing.is_empty() {
            known.live_reads.extend(missing);
            return NextStep::Read(known.live_reads.clone());
        }
        let (state, _) = self.with_tasks(self.with_departure(known, object.as_deref()), known);
        NextStep::Visit(Box::new(PlannedVisit { call: Call::Progress, state, object, final_check: true }))
    }

    /// Returns the step that is needed while a write of this job can still take effect; `None` if no write can. An
    /// invalidation does not stop all writes, so the host waits for the others.
    fn exclude_late_effects(
        &self,
        known: &mut TargetMemory,
        failure: &PendingFailure,
        object: Option<&Object>,
    ) -> Option<NextStep> {
        if known.expects.needs_invalidation()
            && let Some(next_step) = self.invalidate(known, failure, object)
        {
            return Some(next_step);
        }
        if let Some(failure) = known.failure.as_mut() {
            failure.give_up_at = None;
        }
        self.wait_for_earlier_terms(known);
        (!known.expects.waited_for.is_empty()).then_some(NextStep::Wait)
    }

    /// Makes the end wait for requests of an earlier term that no invalidation stops: creations of task pods that the host
    /// has not seen, and evictions of a drain.
    fn wait_for_earlier_terms(&self, known: &mut TargetMemory) {
        let until = too_late_for(self.round.began);
        if known.expects.start_recorded_here || until <= self.round.now {
            return;
        }
        let creations = self.unseen_tasks().into_iter().map(|object| UnknownWrite { object, uid: None, version: None });
        let drained = self.stored.extra(extras::DRAIN).is_some_and(|drain| drain != extras::DRAINED);
        let pods = self.round.store.on_node(self.name).into_iter().filter(|_| drained);
        let evictions =
            pods.map(|pod| UnknownWrite { object: pod.key.clone(), uid: Some(pod.uid.clone()), version: None });
        let all: Vec<UnknownWrite> = creations.chain(evictions).collect();
        known.expects.waited_for.extend(all.into_iter().map(|write| (write, until)));
    }

    /// Returns the step that is needed while an earlier write to the target's object can still take effect. Returns
    /// `None` if the object is gone, or if the API server can no longer execute any request that may be in flight.
    fn invalidate(
        &self,
        known: &mut TargetMemory,
        failure: &PendingFailure,
        object: Option<&Object>,
    ) -> Option<NextStep> {
        let read_live = self.round.live.has(&self.live_read());
        if read_live {
            known.expects.read_live();
        }
        let given_up = failure.give_up_at.is_some_and(|time| time <= self.round.now);
        match object.filter(|_| !known.expects.outdated()) {
            Some(object) if !given_up => Some(NextStep::Invalidate(Write::patch(
                &self.key,
                holds::invalidate_version(object, &self.round.job.uid),
            ))),
            None if !given_up && !read_live => {
                if self.round.live.failed.contains_key(&self.live_read())
                    && let Some(failure) = known.failure.as_mut()
                {
                    failure.give_up_at.get_or_insert(too_late_for(self.round.now));
                }
                Some(NextStep::Read([self.live_read()].into()))
            }
            _ => {
                known.expects.excluded();
                None
            }
        }
    }

    /// Returns the need of a target whose attempt has failed. The host releases the target, which then waits for its
    /// next attempt.
    pub(super) fn next_attempt_step(&self, known: &mut TargetMemory) -> NextStep {
        self.end_where_due(known);
        if let Some(failure) = known.failure.clone() {
            return self.end(known, failure, self.object());
        }
        if self.stored.owes_release() {
            return self.release(known);
        }
        known.check_at = None;
        if self.round.valid().is_some() && self.round.retry_after(self.stored.attempt).is_none() {
            // A user lowered the retry limit.
            return NextStep::Set(ended(self.stored, Progress::Failed, self.round.second(), self.stored.error.clone()));
        }
        let due = self.stored.next_attempt.is_none_or(|time| time <= self.round.now);
        if !due || !self.round.may_try_again() {
            return NextStep::Wait;
        }
        let object = self.object();
        // A live read is valid for one round, so the host requests all missing reads together.
        known.live_reads.extend(object.is_none().then(|| self.live_read()));
        if known.live_reads.iter().any(|read| !self.round.live.has(read)) {
            return NextStep::Read(known.live_reads.clone());
        }
        if self.busy(object.as_deref()).is_some() {
            return NextStep::Wait;
        }
        let takes_part = object.as_deref().filter(|pod| self.round.takes_part(pod));
        let (expects, live_reads) = (known.expects.clone(), std::mem::take(&mut known.live_reads));
        *known = TargetMemory { changed_by_others: true, expects, live_reads, ..TargetMemory::default() };
        if let Some(pod) = takes_part {
            return NextStep::Apply(Box::new(self.begin(next_attempt(self.stored), pod)));
        }
        visit(Call::OperateThenProgress, next_attempt(self.stored), object)
    }

    /// Returns the need of a target whose record was lost before this term. The target fails and is not started again,
    /// and the host removes this job's holds from the object of that name.
    pub(super) fn give_up_lost(&self) -> NextStep {
        // The name of a target that a selector found is lost with its record.
        if !self.name.is_empty() && !self.round.live.has(&self.live_read()) {
            return NextStep::Read([self.live_read()].into());
        }
        let object = self.round.sighting(&self.key).found().filter(|object| holds::held(object, &self.round.job.uid));
        let state = TargetState { uid: object.map(|object| object.uid.clone()), ..self.stored.clone() };
        let lost = "the OperationRecord of this target, or its line there, is missing or unreadable";
        let noun = self.round.kind.noun();
        let message = match self.round.dry_run {
            true => format!("{lost}; nothing was changed"),
            false => format!("{lost}, so the changes made to its {noun} are unknown; check the {noun}"),
        };
        NextStep::Set(ended(&state, Progress::Failed, self.round.second(), Some(error("RecordLost", message))))
    }

    /// Returns the need of an ended target that may have changes of this job to undo.
    pub(super) fn release(&self, known: &mut TargetMemory) -> NextStep {
        if known.not_before().is_some_and(|time| time > self.round.now) {
            return NextStep::Wait;
        }
        let uid = self.stored.uid.as_ref().or(known.unreleased_uid.as_ref());
        let object = self.round.sighting(&self.key).found().filter(|object| Some(&object.uid) == uid);
        let read_live = self.round.live.has(&self.live_read());
        let given_up = known.gives_up_reads(self.round.now);
        let expects = &mut known.expects;
        // A stale cache may miss a hold of this job, or show a hold that is gone.
        let confirmed = (expects.start_recorded_here || expects.confirmed) && !self.is_unwatched() || read_live;
        // If the host cannot read a newer version, it retries the release on the old version once a minute. A repetition does no
        // harm: if an earlier try took effect, the changes to undo are gone already.
        let same = expects.view_is_uncertain
            || expects.stale.is_some()
                && object.as_ref().map(|object| &object.resource_version) == expects.stale.as_ref();
        let tried = same && known.visited_at.is_some_and(|time| after(time, BLIND_TRY) > self.round.now);
        if (!confirmed || expects.outdated() && !read_live) && (!given_up || tried) {
            return self.read_to_release(known, true);
        }
        expects.confirmed = true;
        expects.read_live();
        if !given_up && known.live_reads.iter().any(|read| !self.round.live.has(read)) {
            return self.read_to_release(known, self.is_unwatched());
        }
        let (_, outputs) = self.outputs();
        if !given_up && !outputs.is_empty() {
            let NextStep::Read(mut reads) = self.read_to_release(known, self.is_unwatched()) else {
                return NextStep::Wait;
            };
            reads.extend(outputs);
            return NextStep::Read(reads);
        }
        if !given_up {
            known.unread_since = None;
        }
        let state = self.with_tasks_ended(self.stored.clone());
        let held = object.as_deref().is_some_and(|object| holds::held(object, &self.round.job.uid));
        if !self.stored.owes_release()
            && !held
            && may_have_pods(&state)
            && !object.as_deref().is_some_and(|object| self.is_unfinished(object))
        {
            // Only pods and outputs of tasks are left, and the plugin knows nothing of them.
            let planned = PlannedVisit { call: Call::Release, state, object, final_check: false };
            let call = PlannedCall { target: self.clone(), planned: &planned };
            known.visited(self.round.now);
            return NextStep::Apply(Box::new(call.release_object(&Proposal::default(), known)));
        }
        visit(Call::Release, state, object)
    }

    /// Returns the live reads of a release. The host does not cache an unwatched object, so it requests all reads of a
    /// release in one round.
    fn read_to_release(&self, known: &TargetMemory, own: bool) -> NextStep {
        let own = own.then(|| self.live_read());
        NextStep::Read(known.live_reads.iter().cloned().chain(own).collect())
    }
}
