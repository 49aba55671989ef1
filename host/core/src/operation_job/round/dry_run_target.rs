//! A target of a dry run: the host asks its plugin once, tries the proposal, and ends the target.
//!
//! Takes a target in flight, or a plugin's answer for it; yields the next step. May not change the target, and may not
//! let other jobs notice it: the host does not invalidate, check, release or hold the target. Source:
//! docs/operationjob.md 3.14.

use std::sync::Arc;

use oarlock_api::TargetError;

use crate::object::api_object::Object;
use crate::operation_job::holds;
use crate::operation_job::round::calls::PlannedCall;
use crate::operation_job::round::context::Target;
use crate::operation_job::round::planned::{MOST_BYTES, Planned, PlannedChange};
use crate::operation_job::round::target::{NextStep, error, not_found};
use crate::operation_job::round::target_memory::{DryRunTrial, TargetMemory};
use crate::operation_job::round::visit::TargetUpdate;
use crate::operation_job::state::{Progress, TargetState, ended, extras};
use crate::plugin::proposal::{PluginEvent, Proposal, State};
use crate::requests::writes::Write;

impl Target<'_> {
    /// Returns the need of a target in flight: its end, if the end is known, otherwise the visit that brings it.
    pub(super) fn next_dry_run_step(&self, known: &mut TargetMemory, object: Option<Arc<Object>>) -> NextStep {
        if !self.round.deleting()
            && let Some(DryRunTrial { plan, outcome: Some(outcome) }) = &known.dry_run_trial
        {
            return NextStep::Apply(Box::new(self.shown(self.stored, plan, outcome.clone())));
        }
        self.end_where_due(known);
        if let Some(failure) = known.failure.clone() {
            return self.fail(failure.error);
        }
        if self.round.pause_state.pause() || self.round.valid().is_none() || self.round.serving().is_none() {
            return NextStep::Wait;
        }
        if object.is_some() {
            return self.next_step_in_flight(known, object);
        }
        // Nobody can plan changes for an object that is gone.
        if !self.round.live.has(&self.live_read()) {
            return NextStep::Read([self.live_read()].into());
        }
        let message = format!("{} {} was gone before anything was planned for it", self.round.kind.noun(), self.name);
        self.fail(error(not_found(self.round.kind), message))
    }

    /// Returns the end of a target, with its plan.
    fn shown(&self, state: &TargetState, plan: &str, outcome: Result<(), TargetError>) -> TargetUpdate {
        let mut state = state.clone();
        state.extra.insert(extras::PLAN.to_owned(), plan.to_owned());
        let (progress, error) = match outcome {
            Ok(()) => (Progress::Succeeded, None),
            Err(error) => (Progress::Failed, Some(error)),
        };
        let message = format!("{}: {plan}", self.name);
        let told = PluginEvent { warning: false, reason: "Planned".into(), message };
        // A refusal has the event of a failed target instead.
        let events = error.is_none().then_some(told).into_iter().collect();
        TargetUpdate {
            state: Some(ended(&state, progress, self.round.second(), error)),
            events,
            ..TargetUpdate::default()
        }
    }

    /// Returns the steps that the host would await or make before it asks the plugin.
    fn before(&self, pod: Option<&Object>) -> Vec<String> {
        let Some(pod) = pod else { return Vec::new() };
        let held = self.round.would_be_exclusive() && holds::holders(pod).any(|holder| holder != self.round.job.uid);
        let mut before: Vec<String> = held
            .then(|| format!("wait until other jobs have released the {}", self.round.kind.noun()))
            .into_iter()
            .collect();
        if self.round.would_take_part(pod) {
            let busy = self.round.operation().busy(pod);
            before.extend(busy.map(|busy| format!("wait while {busy}")));
            before.push("begin the PodOpsLifecycle and wait for its permission".to_owned());
        }
        before
    }
}

impl PlannedCall<'_> {
    /// Returns the outcome of a proposal or report in a dry run. The host tries its changes; without changes, the
    /// target ends.
    pub(super) fn dry_run_update(&self, parts: [&Proposal; 2], state: State, known: &mut TargetMemory) -> TargetUpdate {
        known.call_tries = 0;
        known.traps = 0;
        if self.is_out_of_bounds() && parts.iter().any(|part| !part.mutations.is_empty()) {
            return self.waits_for_grant(known);
        }
        let extra = &self.planned.state.extra;
        if let Err(denied) = parts.iter().try_for_each(|part| self.authorized(part, extra)) {
            let update = self.failing("MutationDenied", denied.clone(), known);
            return TargetUpdate { denied: Some(denied), ..update };
        }
        if let State::Failed(error) = state {
            return self.failing(&error.reason, error.message, known);
        }
        let Some(plugin) = self.target.round.serving() else { return TargetUpdate::default() };
        let mut proposal = joined(parts);
        if let Some((reason, lacking)) = self.target.cannot_run(&proposal, &self.planned.state) {
            return self.failing(reason, lacking, known);
        }
        let (mutations, stay) = self.target.drains_spelled_out(proposal.mutations);
        proposal.mutations = mutations;
        let each = self.target.each_write(self.planned, &proposal.mutations);
        let changes =
            proposal.mutations.iter().zip(&each).filter_map(|(mutation, write)| write.as_ref().and(Some(mutation)));
        let mut planned = Planned::of(changes, &plugin.manifest, &plugin.grant);
        planned.waits = waits(&proposal, &state);
        let writes = apart(each.into_iter().flatten().collect(), &mut planned.first);
        planned.before = self.target.before(self.planned.object.as_deref());
        planned.before.extend(stay.into_iter().map(|pod| format!("wait for pod {pod}")));
        let plan = planned.line(MOST_BYTES);
        if writes.is_empty() {
            return self.target.shown(&self.planned.state, &plan, Ok(()));
        }
        known.dry_run_trial = Some(DryRunTrial { plan, outcome: None });
        let of_plugin = self.target.of_plugin(&writes);
        TargetUpdate { state: Some(self.planned.state.clone()), writes, of_plugin, ..TargetUpdate::default() }
    }
}

/// Returns the writes that the host can try one by one on the object as it is. A write that tests for the outcome of an
/// earlier one is left out, and its entry in `changes` says so.
fn apart(writes: Vec<Write>, changes: &mut [PlannedChange]) -> Vec<Write> {
    let mut kept: Vec<Write> = Vec::new();
    for (write, change) in writes.into_iter().zip(changes) {
        let tests = matches!(&write, Write::Patch { body, .. } if body.is_array());
        if tests && kept.iter().any(|earlier| earlier.object() == write.object()) {
            let note = "not tried: it depends on the previous change";
            change.what = if change.what.is_empty() { note.to_owned() } else { format!("{}; {note}", change.what) };
        } else {
            kept.push(write);
        }
    }
    kept
}

/// Returns why a plugin proposes no change, as far as the plugin says.
fn waits(proposal: &Proposal, state: &State) -> String {
    if *state == State::Succeeded {
        return "the plugin reports the target as done".to_owned();
    }
    if !proposal.mutations.is_empty() {
        return "the target already has all proposed changes".to_owned();
    }
    let noted: Vec<String> = proposal.set_extra.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let told = proposal.events.iter().map(|event| event.message.clone());
    let words: Vec<String> = noted.into_iter().chain(told).collect();
    let words = if words.is_empty() { String::new() } else { format!(" ({})", words.join("; ")) };
    format!("the plugin waits{words}")
}

/// Returns the joined proposals of the functions of a visit. The host calls `progress` only if `operate` proposes no
/// change.
fn joined(parts: [&Proposal; 2]) -> Proposal {
    let mut all = Proposal::default();
    for part in parts {
        all.mutations.extend(part.mutations.iter().cloned());
        all.set_extra.extend(part.set_extra.iter().cloned());
        all.events.extend(part.events.iter().cloned());
    }
    all
}
