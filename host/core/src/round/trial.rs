//! A target of a dry run: its plugin is asked once, what it proposes is tried, and the target ends.
//!
//! Takes a target in flight, or a plugin's answer for it; yields what follows. May not let anything be done to the target,
//! or anything of it be noticed by other jobs: it is not bumped, checked, released or held. Source: docs/operationjob.md
//! 3.14.

use std::sync::Arc;

use oarlock_api::TargetError;

use crate::cluster::object::Object;
use crate::cluster::writes::Write;
use crate::job::state::{Progress, TargetState, ended, extras};
use crate::plugin::proposal::{PluginEvent, Proposal, State};
use crate::round::calls::PlannedCall;
use crate::round::context::Target;
use crate::round::judge::Verdict;
use crate::round::planned::{MOST_BYTES, Planned, PlannedChange};
use crate::round::target::{Need, error, not_found};
use crate::round::target_memory::{TargetMemory, Trial};
use crate::shared::holds;

impl Target<'_> {
    /// The need of a target in flight: its end, if it is known, else the visit that brings it.
    pub(super) fn try_out(&self, known: &mut TargetMemory, object: Option<Arc<Object>>) -> Need {
        if !self.round.deleting()
            && let Some(Trial { plan, outcome: Some(outcome) }) = &known.trial
        {
            return Need::Settled(Box::new(self.shown(self.stored, plan, outcome.clone())));
        }
        self.end_where_due(known);
        if let Some(failure) = known.failure.clone() {
            return self.fail(failure.error);
        }
        if self.round.brakes.pause() || self.round.valid().is_none() || self.round.serving().is_none() {
            return Need::Rest;
        }
        if object.is_some() {
            return self.go_on(known, object);
        }
        // Nobody can say of an object that is gone what would be done to it.
        if !self.round.live.has(&self.live_read()) {
            return Need::Read([self.live_read()].into());
        }
        let message = format!("{} {} was gone before anything was planned for it", self.round.kind.noun(), self.name);
        self.fail(error(not_found(self.round.kind), message))
    }

    /// The end of a target, with its plan.
    fn shown(&self, state: &TargetState, plan: &str, outcome: Result<(), TargetError>) -> Verdict {
        let mut state = state.clone();
        state.extra.insert(extras::PLAN.to_owned(), plan.to_owned());
        let (progress, error) = match outcome {
            Ok(()) => (Progress::Succeeded, None),
            Err(error) => (Progress::Failed, Some(error)),
        };
        let message = format!("{}: {plan}", self.name);
        let told = PluginEvent { warning: false, reason: "Planned".into(), message };
        // A refusal is told as one.
        let events = error.is_none().then_some(told).into_iter().collect();
        Verdict { state: Some(ended(&state, progress, self.round.second(), error)), events, ..Verdict::default() }
    }

    /// What the host would await or do before the plugin is asked.
    fn before(&self, pod: Option<&Object>) -> Vec<String> {
        let Some(pod) = pod else { return Vec::new() };
        let held = self.round.would_be_exclusive() && holds::holders(pod).any(|holder| holder != self.round.job.uid);
        let mut before: Vec<String> = held
            .then(|| format!("wait until other jobs have let go of the {}", self.round.kind.noun()))
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
    /// Judges what a plugin proposes or reports: its changes are tried, and where there are none the target ends.
    pub(super) fn tried(&self, parts: [&Proposal; 2], state: State, known: &mut TargetMemory) -> Verdict {
        known.call_tries = 0;
        known.traps = 0;
        if self.is_out_of_bounds() && parts.iter().any(|part| !part.mutations.is_empty()) {
            return self.waits_for_grant(known);
        }
        let extra = &self.planned.state.extra;
        if let Err(denied) = parts.iter().try_for_each(|part| self.authorized(part, extra)) {
            let verdict = self.failing("MutationDenied", denied.clone(), known);
            return Verdict { denied: Some(denied), ..verdict };
        }
        if let State::Failed(error) = state {
            return self.failing(&error.reason, error.message, known);
        }
        let Some(plugin) = self.target.round.serving() else { return Verdict::default() };
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
        known.trial = Some(Trial { plan, outcome: None });
        Verdict { state: Some(self.planned.state.clone()), writes, ..Verdict::default() }
    }
}

/// The writes that can be tried one by one on the object as it is: what tests for the outcome of an earlier one is left
/// out, and `changes` says so.
fn apart(writes: Vec<Write>, changes: &mut [PlannedChange]) -> Vec<Write> {
    let mut kept: Vec<Write> = Vec::new();
    for (write, change) in writes.into_iter().zip(changes) {
        let tests = matches!(&write, Write::Patch { body, .. } if body.is_array());
        if tests && kept.iter().any(|earlier| earlier.object() == write.object()) {
            let note = "not tried: it builds on the change before";
            change.what = if change.what.is_empty() { note.to_owned() } else { format!("{}; {note}", change.what) };
        } else {
            kept.push(write);
        }
    }
    kept
}

/// Why a plugin proposes no change, as far as it says.
fn waits(proposal: &Proposal, state: &State) -> String {
    if *state == State::Succeeded {
        return "the plugin takes it as done".to_owned();
    }
    if !proposal.mutations.is_empty() {
        return "all that the plugin proposes is so already".to_owned();
    }
    let noted: Vec<String> = proposal.set_extra.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let told = proposal.events.iter().map(|event| event.message.clone());
    let words: Vec<String> = noted.into_iter().chain(told).collect();
    let words = if words.is_empty() { String::new() } else { format!(" ({})", words.join("; ")) };
    format!("the plugin waits{words}")
}

/// What a plugin proposes in the functions of a visit; `progress` is called only where `operate` proposes no change.
fn joined(parts: [&Proposal; 2]) -> Proposal {
    let mut all = Proposal::default();
    for part in parts {
        all.mutations.extend(part.mutations.iter().cloned());
        all.set_extra.extend(part.set_extra.iter().cloned());
        all.events.extend(part.events.iter().cloned());
    }
    all
}
