//! The outcome of a proposal that a plugin makes, alone or with its report.
//!
//! Takes the two parts of the proposal and the reported state; yields a [`TargetUpdate`]. May not make a write before the
//! state that the write belongs to is recorded. Source: docs/operationjob.md 3.7, 3.16, 3.17.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;

use crate::object::api_object::{Object, ObjectKey};
use crate::object::time::write_time;
use crate::operation_job::holds;
use crate::operation_job::round::calls::PlannedCall;
use crate::operation_job::round::drain::{DrainStep, drain_of};
use crate::operation_job::round::lifecycle::Finish;
use crate::operation_job::round::target::too_large;
use crate::operation_job::round::target_memory::TargetMemory;
use crate::operation_job::round::visit::{PlannedVisit, TargetUpdate, unchanged};
use crate::operation_job::shared::claims::{Claim, note_claims, stored_claims};
use crate::operation_job::shared::tables::Tables;
use crate::operation_job::state::{Progress, TargetState, ended, extras};
use crate::operation_job::tasks::target_tasks::{note_intents, requests};
use crate::plugin::proposal::{Mutation, PluginError, PluginEvent, Proposal, State};
use crate::requests::live_reads::LiveRead;
use crate::requests::writes::Write;

/// The end of a target that its plugin proposes.
struct ProposedEnd {
    /// The state with the extras of the proposal.
    next: TargetState,
    /// The writes of the proposal.
    writes: Vec<Write>,
    /// The events of the proposal.
    events: Vec<PluginEvent>,
}

impl PlannedCall<'_> {
    /// Returns the outcome of a proposal. `parts` are the part of `operate` beside mutations, and the proposal itself.
    /// `state` is the state that the plugin reports with it.
    pub(super) fn proposed(
        &self,
        parts: [&Proposal; 2],
        state: State,
        known: &mut TargetMemory,
        tables: &mut Tables,
    ) -> TargetUpdate {
        known.call_tries = 0;
        known.traps = 0;
        let [operate, proposal] = parts;
        if self.is_out_of_bounds() && parts.iter().any(|part| !part.mutations.is_empty()) {
            return self.out_of_bounds(parts, state, known, tables);
        }
        let extra = match self.allowed(parts, state == State::Processing, known) {
            Ok(extra) => extra,
            Err(update) => return *update,
        };
        let mut writes = self.target.writes(self.planned, proposal);
        if writes.is_empty() && state == State::Processing {
            writes = self.target.task_writes(&self.planned.state, known);
        }
        let mut next = TargetState { extra, ..self.planned.state.clone() };
        let step = drain_of(proposal).map(|request| self.target.drain(self.planned, request, known));
        if writes.is_empty() && known.write_tries == 0 && known.blocked == 0 {
            // The reason for the target's wait is over, unless the host retries a write.
            known.trouble = None;
            next.error = None;
        }
        if let Some(trouble) = known.changes.trouble(self.target.round.now).filter(|_| !writes.is_empty()) {
            next.error = Some(trouble);
        }
        if let Some(object) = self.planned.object.as_deref().filter(|object| !object.is_whole())
            && writes.is_empty()
            && !proposal.mutations.is_empty()
        {
            next.error = Some(too_large(object, self.target.round.kind));
        }
        let step = step.map(|step| self.take_step(step, &mut next, &mut writes, known));
        if !self.claim(&mut next, tables) {
            // Another target was faster. The host repeats the call, which no longer sees the object.
            known.check(self.target.round.now);
            return unchanged(self.planned);
        }
        known.operated |= !writes.is_empty();
        let of_plugin = self.target.of_plugin(&writes);
        let mut events: Vec<PluginEvent> = operate.events.iter().chain(&proposal.events).cloned().collect();
        let update = match state {
            State::Processing => {
                let pod_events = self.target.begins_to_hold(self.planned, &writes).into_iter().collect();
                events.extend(step.as_ref().and_then(|step| step.event(self.target.name)));
                let live_reads = step.and_then(|step| step.read).into_iter().collect();
                TargetUpdate { state: Some(next), writes, events, pod_events, live_reads, ..TargetUpdate::default() }
            }
            State::Succeeded => self.succeeded(next, writes, events, known),
            State::Failed(error) => {
                self.proposed_failure([operate, proposal], error, ProposedEnd { next, writes, events }, known)
            }
        };
        // Any further writes come after those of the proposal.
        TargetUpdate { of_plugin, ..update }
    }

    /// Returns the extras of the target with those that a proposal sets, and with the tasks that it asks for. A request
    /// that is not allowed or cannot be carried out ends the attempt.
    fn allowed(
        &self,
        parts: [&Proposal; 2],
        goes_on: bool,
        known: &mut TargetMemory,
    ) -> Result<BTreeMap<String, String>, Box<TargetUpdate>> {
        let mut extra = self.planned.state.extra.clone();
        let deny = |denied: String, known: &mut TargetMemory| {
            let update = self.failing("MutationDenied", denied.clone(), known);
            Box::new(TargetUpdate { denied: Some(denied), ..update })
        };
        for part in parts {
            self.authorized(part, &extra).map_err(|denied| deny(denied, known))?;
            part.remove_extra.iter().for_each(|key| drop(extra.remove(key)));
            extra.extend(part.set_extra.iter().cloned());
        }
        let [_, proposal] = parts;
        if !goes_on && requests(proposal).next().is_some() {
            return Err(deny("a task cannot begin with the end of its target".to_owned(), known));
        }
        if let Some((reason, lacking)) = self.target.cannot_run(proposal, &self.planned.state) {
            return Err(Box::new(self.failing(reason, lacking, known)));
        }
        note_since(&self.planned.state.extra, &mut extra, self.target.round.now);
        note_intents(proposal, &mut extra);
        Ok(extra)
    }

    /// Returns the end of a target that its plugin reports as done, once the lifecycle of its pod needs no further
    /// step.
    fn succeeded(
        &self,
        mut next: TargetState,
        writes: Vec<Write>,
        events: Vec<PluginEvent>,
        known: &mut TargetMemory,
    ) -> TargetUpdate {
        if let Some(finish) = self.finish(&mut next, known) {
            let pod_events = finish.event.into_iter().collect();
            let writes = writes.into_iter().chain(finish.write).collect();
            return TargetUpdate { state: Some(next), writes, events, pod_events, ..TargetUpdate::default() };
        }
        // A write of this very proposal may also put a hold on the object.
        let uid = &self.target.round.job.uid;
        let puts = || writes.iter().any(|write| holds::is_put_by(write, &self.target.key, uid));
        let object = self.planned.object.as_ref();
        let is_held = |object: &Object| holds::held(object, uid) || !known.marks.is_empty();
        let held = object.filter(|object| is_held(object) || puts() || self.target.is_unfinished(object));
        known.unreleased_uid = held.map(|object| object.uid.clone());
        if self.target.has_task_pods(&next) {
            known.unreleased_uid = next.uid.clone();
        }
        let next = ended(&next, Progress::Succeeded, self.target.round.second(), None);
        TargetUpdate { state: Some(next), writes, events, ..TargetUpdate::default() }
    }

    /// Adds the next step of a drain to the writes and the state of the proposal. An eviction goes out alone, so that
    /// its result is that of its pod. The target shows the pods that stay once no eviction is due.
    fn take_step(
        &self,
        step: DrainStep,
        next: &mut TargetState,
        writes: &mut Vec<Write>,
        known: &mut TargetMemory,
    ) -> DrainStep {
        known.check_at = step.check_at;
        let evicts = writes.is_empty() && step.evict.is_some();
        if !evicts || !next.extra.contains_key(extras::DRAIN) {
            next.extra.insert(extras::DRAIN.to_owned(), step.extra());
        }
        match step.trouble() {
            // The host knows which pods stay once no eviction is due. Until then, the last error stands.
            _ if evicts => next.error.clone_from(&self.planned.state.error),
            Some(trouble) => {
                known.trouble = Some((trouble.clone(), 2));
                next.error = Some(trouble);
            }
            None => {}
        }
        if writes.is_empty() {
            writes.extend(step.evict.clone());
        }
        if let Some(read) = &step.read {
            known.live_reads.insert(read.clone());
            known.check_at = Some(self.target.round.now);
        }
        step
    }

    /// Returns the step that the lifecycle of the target's pod needs before the target has succeeded. At the target's
    /// deadline, the host awaits no step.
    fn finish(&self, next: &mut TargetState, known: &mut TargetMemory) -> Option<Finish> {
        let pod = self.planned.object.as_deref().filter(|pod| self.target.round.takes_part(pod))?;
        if self.planned.final_check {
            return None;
        }
        self.target.finish(next, known, pod)
    }

    /// Returns the outcome of a failure that the plugin reports. The extras and changes that came with the failure
    /// follow once it is recorded.
    fn proposed_failure(
        &self,
        [operate, proposal]: [&Proposal; 2],
        error: PluginError,
        proposed: ProposedEnd,
        known: &mut TargetMemory,
    ) -> TargetUpdate {
        let ProposedEnd { next, writes, events } = proposed;
        let extra = next.extra.clone();
        let planned = &PlannedVisit { state: next, object: self.planned.object.clone(), ..*self.planned };
        let failed = PlannedCall { target: self.target.clone(), planned };
        let mut update = failed.failing(&error.reason, error.message, known);
        match known.failure.as_mut() {
            Some(failure) => {
                update.events.clone_from(&operate.events);
                failure.extra = Some(extra);
                failure.follows = Proposal { set_extra: vec![], remove_extra: vec![], ..proposal.clone() };
                known.live_reads.extend(self.read_for(proposal));
            }
            None => (update.writes, update.events) = (writes, events),
        }
        update
    }

    /// Returns the live reads that the host must make again before it can carry out a proposal in a later round.
    fn read_for(&self, proposal: &Proposal) -> Vec<LiveRead> {
        let keys = proposal.mutations.iter().filter_map(Mutation::object).map(|object| &object.key);
        let read = keys.filter(|key| !self.target.round.store.keeps(&key.kind));
        read.cloned().map(LiveRead::Object).collect()
    }

    /// Claims the objects that the state's exclusive extras name, and releases the claims that the state no longer
    /// names. Returns false if another target may have claimed one of the objects.
    fn claim(&self, next: &mut TargetState, tables: &mut Tables) -> bool {
        let Some(plugin) =
            self.target.round.serving().filter(|plugin| !plugin.registration.exclusive_extras.is_empty())
        else {
            return true;
        };
        let namespace = &self.target.round.job.key.namespace;
        let seen = |kind: &crate::object::api_object::Kind, name: &str| {
            let key = ObjectKey::seen_from(namespace, kind, name);
            self.target.round.store.get(&key).map(|object| object.uid.clone())
        };
        match note_claims(next, &plugin.registration, seen) {
            Some(noted) => drop(next.extra.insert(extras::CLAIMED_UID.to_owned(), noted)),
            None => drop(next.extra.remove(extras::CLAIMED_UID)),
        }
        let wanted = stored_claims(next, Some(&plugin.registration));
        let target_uid = next.uid.clone().unwrap_or_default();
        let stored = stored_claims(self.target.stored, Some(&plugin.registration));
        // The claims of another job in the namespace are unknown before this term has read that job.
        let unknown = !tables.claims.ready(namespace) && wanted.iter().any(|object| !stored.contains(object));
        if unknown || wanted.iter().any(|object| tables.claims.is_claimed_by_another(namespace, object, &target_uid)) {
            return false;
        }
        for object in &wanted {
            let job = self.target.round.job.key.clone();
            tables.claims.claim(object, Claim { job, index: self.target.index, target_uid: target_uid.clone() });
        }
        // The host releases a durable claim only once the newer state is durable too.
        let kept: Vec<_> = wanted.into_iter().chain(stored).collect();
        tables.claims.release_except(&self.target.round.job.key, self.target.index, &kept);
        true
    }
}

/// Stores since when the target waits for the reason that its plugin gives now.
fn note_since(before: &BTreeMap<String, String>, extra: &mut BTreeMap<String, String>, now: Timestamp) {
    let word = |of: &BTreeMap<String, String>| {
        of.get(extras::WAITS_FOR).map(|text| text.split(':').next().unwrap_or_default().to_owned())
    };
    let awaited = word(extra);
    if awaited.is_none() {
        extra.remove(extras::WAITS_SINCE);
    } else if awaited != word(before) || !extra.contains_key(extras::WAITS_SINCE) {
        extra.insert(extras::WAITS_SINCE.to_owned(), write_time(now));
    }
}
