//! How an attempt of a target comes to its end: a deadline, a deletion or a failure, the release after it, and the next
//! attempt.
//!
//! Takes a target; yields a [`Need`], as `target.rs` does for all of them. May not record an end while a write can still
//! take effect. Source: docs/operationjob.md 3.8, 3.10, 3.11.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::jiff::SignedDuration;
use oarlock_api::TargetError;

use crate::cluster::live_reads::LiveRead;
use crate::cluster::object::Object;
use crate::cluster::writes::Write;
use crate::job::state::{Progress, TargetState, ended, extras, next_attempt, waiting_for_attempt};
use crate::job::time::after;
use crate::plugin::proposal::Proposal;
use crate::plugin::visit::Call;
use crate::round::calls::PlannedCall;
use crate::round::context::Target;
use crate::round::pace::too_late_for;
use crate::round::target::{Need, PlannedVisit, error, visit};
use crate::round::target_memory::{PendingFailure, TargetMemory, UnknownWrite};
use crate::round::tasks::may_have_pods;
use crate::shared::holds;

/// Time between two tries to release a target whose object cannot be read.
const BLIND_TRY: SignedDuration = SignedDuration::from_secs(60);

impl Target<'_> {
    /// The state of a target whose attempt has failed: it waits for the next one, or has failed for good.
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
        // The wait that it was in, perhaps as long as its plugin asked for, no longer counts.
        known.retry_at = None;
        known.failure = Some(PendingFailure::new(error));
    }

    /// Steps to an end other than Succeeded: first exclude late effects, then the final check.
    pub(super) fn end(&self, known: &mut TargetMemory, failure: PendingFailure, object: Option<Arc<Object>>) -> Need {
        // Once it is too late for any request, no back-off counts.
        let given_up = failure.give_up_at.is_some_and(|time| time <= self.round.now);
        if !given_up && known.retry_at.is_some_and(|time| time > self.round.now) {
            return Need::Rest;
        }
        known.retry_at = None;
        if let Some(need) = self.exclude_late_effects(known, &failure, object.as_deref()) {
            return need;
        }
        if failure.skip_final_check || self.round.serving().is_none() {
            return match failure.of_attempt {
                true => Need::Set(self.after_attempt(self.stored, failure.error)),
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
            return Need::Read(known.live_reads.clone());
        }
        let (state, _) = self.with_tasks(self.with_departure(known, object.as_deref()), known);
        Need::Visit(Box::new(PlannedVisit { call: Call::Progress, state, object, final_check: true }))
    }

    /// `None` once no write of this job can still take effect. A bump does not stop all of them: the rest is waited for.
    fn exclude_late_effects(
        &self,
        known: &mut TargetMemory,
        failure: &PendingFailure,
        object: Option<&Object>,
    ) -> Option<Need> {
        if known.expects.needs_bump()
            && let Some(need) = self.bump(known, failure, object)
        {
            return Some(need);
        }
        if let Some(failure) = known.failure.as_mut() {
            failure.give_up_at = None;
        }
        self.wait_for_earlier_terms(known);
        (!known.expects.waited_for.is_empty()).then_some(Need::Rest)
    }

    /// Has the end wait for requests of an earlier term that no bump stops: pods of tasks that were not seen, and evictions of a
    /// drain.
    fn wait_for_earlier_terms(&self, known: &mut TargetMemory) {
        let until = too_late_for(self.round.began);
        if known.expects.own_intent || until <= self.round.now {
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

    /// `None` once no earlier write to the target's object can still take effect: the object is gone, or every request
    /// that may be under way is too old.
    fn bump(&self, known: &mut TargetMemory, failure: &PendingFailure, object: Option<&Object>) -> Option<Need> {
        let looked = self.round.live.has(&self.live_read());
        if looked {
            known.expects.looked();
        }
        let given_up = failure.give_up_at.is_some_and(|time| time <= self.round.now);
        match object.filter(|_| !known.expects.outdated()) {
            Some(object) if !given_up => {
                Some(Need::Bump(Write::patch(&self.key, holds::bump_version(object, &self.round.job.uid))))
            }
            None if !given_up && !looked => {
                if self.round.live.failed.contains_key(&self.live_read())
                    && let Some(failure) = known.failure.as_mut()
                {
                    failure.give_up_at.get_or_insert(too_late_for(self.round.now));
                }
                Some(Need::Read([self.live_read()].into()))
            }
            _ => {
                known.expects.excluded();
                None
            }
        }
    }

    /// A target whose attempt has failed: it is released, and then waits for its next attempt.
    pub(super) fn try_again(&self, known: &mut TargetMemory) -> Need {
        self.end_where_due(known);
        if let Some(failure) = known.failure.clone() {
            return self.end(known, failure, self.object());
        }
        if self.stored.owes_release() {
            return self.release(known);
        }
        known.check_at = None;
        if self.round.valid().is_some() && self.round.retry_after(self.stored.attempt).is_none() {
            // Its limit was lowered.
            return Need::Set(ended(self.stored, Progress::Failed, self.round.second(), self.stored.error.clone()));
        }
        let due = self.stored.next_attempt.is_none_or(|time| time <= self.round.now);
        if !due || !self.round.may_try_again() {
            return Need::Rest;
        }
        let object = self.object();
        // An answer counts in its own round alone, so the read of an absence goes with those that the plugin lacked.
        known.live_reads.extend(object.is_none().then(|| self.live_read()));
        if known.live_reads.iter().any(|read| !self.round.live.has(read)) {
            return Need::Read(known.live_reads.clone());
        }
        if self.busy(object.as_deref()).is_some() {
            return Need::Rest;
        }
        let takes_part = object.as_deref().filter(|pod| self.round.takes_part(pod));
        let (expects, live_reads) = (known.expects.clone(), std::mem::take(&mut known.live_reads));
        *known = TargetMemory { news: true, expects, live_reads, ..TargetMemory::default() };
        if let Some(pod) = takes_part {
            return Need::Settled(Box::new(self.begin(next_attempt(self.stored), pod)));
        }
        visit(Call::OperateThenProgress, next_attempt(self.stored), object)
    }

    /// Fails a target whose record was lost before this term: it is not started again, and this job's holds on the pod
    /// of its name are removed.
    pub(super) fn give_up_lost(&self) -> Need {
        // The name of one that a selector found is lost with its record.
        if !self.name.is_empty() && !self.round.live.has(&self.live_read()) {
            return Need::Read([self.live_read()].into());
        }
        let object = self.round.sighting(&self.key).found().filter(|object| holds::held(object, &self.round.job.uid));
        let state = TargetState { uid: object.map(|object| object.uid.clone()), ..self.stored.clone() };
        let lost = "the OperationRecord of this target, or its line there, is missing or unreadable";
        let noun = self.round.kind.noun();
        let message = match self.round.dry_run {
            true => format!("{lost}; nothing was changed"),
            false => format!("{lost}, so the changes made to its {noun} are unknown; check the {noun}"),
        };
        Need::Set(ended(&state, Progress::Failed, self.round.second(), Some(error("RecordLost", message))))
    }

    /// A target that ended and may have changes of this job to undo.
    pub(super) fn release(&self, known: &mut TargetMemory) -> Need {
        if known.not_before().is_some_and(|time| time > self.round.now) {
            return Need::Rest;
        }
        let uid = self.stored.uid.as_ref().or(known.held.as_ref());
        let object = self.round.sighting(&self.key).found().filter(|object| Some(&object.uid) == uid);
        let looked = self.round.live.has(&self.live_read());
        let given_up = known.gives_up_reads(self.round.now);
        let expects = &mut known.expects;
        // A lagging cache may miss a hold of this job, or show one that is gone.
        let confirmed = (expects.own_intent || expects.confirmed) && !self.is_unwatched() || looked;
        // Where no other view can be had, nothing is repeated on the same one but once a minute. That harms nothing: what a
        // release takes off is gone already where it was made before.
        let same = expects.unsure
            || expects.stale.is_some()
                && object.as_ref().map(|object| &object.resource_version) == expects.stale.as_ref();
        let tried = same && known.visited_at.is_some_and(|time| after(time, BLIND_TRY) > self.round.now);
        if (!confirmed || expects.outdated() && !looked) && (!given_up || tried) {
            return self.read_to_release(known, true);
        }
        expects.confirmed = true;
        expects.looked();
        if !given_up && known.live_reads.iter().any(|read| !self.round.live.has(read)) {
            return self.read_to_release(known, self.is_unwatched());
        }
        let (_, outputs) = self.outputs();
        if !given_up && !outputs.is_empty() {
            let Need::Read(mut reads) = self.read_to_release(known, self.is_unwatched()) else { return Need::Rest };
            reads.extend(outputs);
            return Need::Read(reads);
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
            // Nothing is left but pods and outputs of tasks, of which its plugin knows nothing.
            let planned = PlannedVisit { call: Call::Release, state, object, final_check: false };
            let call = PlannedCall { target: self.clone(), planned: &planned };
            known.visited(self.round.now);
            return Need::Settled(Box::new(call.let_go(&Proposal::default(), known)));
        }
        visit(Call::Release, state, object)
    }

    /// The live reads of a release. What is not watched is known in one round only, so all of them are made together.
    fn read_to_release(&self, known: &TargetMemory, own: bool) -> Need {
        let own = own.then(|| self.live_read());
        Need::Read(known.live_reads.iter().cloned().chain(own).collect())
    }
}
