//! The plan of one reconcile of a JobFlow. The host judges every step on its own. Source: docs/jobflow.md 2.

#![expect(clippy::indexing_slicing, reason = "every index is that of a step: FlowSpec::read has checked them")]

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use crate::attempts::build::Cause;
use crate::attempts::children::Children;
use crate::attempts::failure::RetryRules;
use crate::attempts::follow::{FollowInput, follow, stop};
use crate::attempts::globals::Globals;
use crate::attempts::imported::{import, lift, take_up};
use crate::attempts::lost::{ListedUnits, give_up_lost};
use crate::attempts::owner_summary::{PlanResults, conclude};
use crate::attempts::parent::Parent;
use crate::attempts::plan::{Observation, ParentPlan};
use crate::attempts::retry_and_cleanup::{
    FLOW_TIMEOUT, complete, finalize, new_retry, plan_invalid, retry_command, retry_now,
};
use crate::attempts::settings::FailurePolicyType;
use crate::attempts::unit::{JudgedBy, Unit, UnitState};
use crate::job_flow::scheduling::{FinallyScheduling, FlowScheduling};
use crate::job_flow::spec::{FlowSpec, Step, Work};

/// The inputs of one reconcile of one flow.
pub(crate) struct FlowRound<'a> {
    pub(crate) observed: Observation<'a>,
    pub(crate) spec: &'a FlowSpec<'a>,
    pub(crate) children: Children<'a>,
    pub(crate) globals: Globals<'a>,
    pub(crate) names: HashMap<&'a str, usize>,
    pub(crate) now: Timestamp,
}

/// Plans the next changes of a JobFlow.
pub fn plan(observed: Observation<'_>, now: Timestamp) -> ParentPlan {
    let Observation { parent, memory, .. } = observed;
    let mut plan = ParentPlan { header: memory.header.clone(), ..ParentPlan::default() };
    let spec = match parent.readable_spec().and_then(FlowSpec::read) {
        Ok(spec) => spec,
        Err(invalid) => {
            let mut units = memory.units.to_vec();
            if memory.header.lost_units > 0 || units.is_empty() {
                let known: HashSet<&str> = memory.units.iter().map(|unit| unit.name.as_str()).collect();
                units.extend(unchecked(parent).into_iter().filter(|unit| !known.contains(unit.name.as_str())));
                let children = Children::of(parent, observed.children);
                let listed = ListedUnits { units: &mut units, known: &memory.units, is_closed: true };
                give_up_lost(parent, &children, listed, &mut plan.header, now);
            }
            return plan_invalid(observed, units, plan, invalid, now);
        }
    };
    take_up(
        parent,
        &mut plan,
        crate::object::fields::at(&parent.spec, "/ErrorHandler")
            .filter(|it| !is_empty(it))
            .map(|_| "spec.ErrorHandler is stored and never run; write its steps into spec.finally".to_owned()),
    );
    let mut units = entries(&spec, &memory.units);
    let children = Children::of(parent, observed.children);
    let listed = ListedUnits { units: &mut units, known: &memory.units, is_closed: true };
    give_up_lost(parent, &children, listed, &mut plan.header, now);
    import(parent, &children, &mut units, &mut plan.header);
    lift(parent, &mut units, &mut plan.header);
    if let Some(token) = new_retry(parent, &memory.header) {
        retry_now(parent, token, &mut units, &mut plan);
    }
    plan.header.start_time.get_or_insert(now);
    plan.header.suspend(spec.suspend, now);
    let names = spec.steps.iter().enumerate().map(|(index, step)| (step.name, index)).collect();
    let round = FlowRound { observed, spec: &spec, children, globals: Globals::of(&parent.spec), names, now };
    let mut found = PlanResults { empty: "NoSteps", ..PlanResults::of(memory) };
    round.advance(&mut units, &mut plan, &mut found);
    plan.units = Arc::new(units);
    round.finish(&mut plan, &mut found);
    plan
}

fn is_empty(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::Array(items) => items.is_empty(),
        serde_json::Value::Object(fields) => fields.is_empty(),
        serde_json::Value::String(text) => text.is_empty(),
        _ => false,
    }
}

/// Returns the entries of the steps, in the order of the steps.
fn entries(spec: &FlowSpec<'_>, before: &[Unit]) -> Vec<Unit> {
    let known: HashMap<&str, &Unit> = before.iter().map(|unit| (unit.name.as_str(), unit)).collect();
    let entry = |step: &Step<'_>| known.get(step.name).map_or_else(|| Unit::new(step.name), |unit| (*unit).clone());
    spec.steps.iter().map(entry).collect()
}

/// Returns entries for the steps of a refused spec, one for each different name.
fn unchecked(parent: &Parent) -> Vec<Unit> {
    let names: BTreeSet<&str> = parent.step_names().flatten().take(500).collect();
    names.into_iter().map(Unit::new).collect()
}

impl FlowRound<'_> {
    /// Judges every step.
    fn advance(&self, units: &mut [Unit], plan: &mut ParentPlan, found: &mut PlanResults) {
        let flows = self.spec.steps.iter().take_while(|step| !step.is_final).count();
        let mut ready = self.follow_all(units, plan, false);
        let timed_out = self.time_out(&mut units[..flows], plan, found);
        let handlers = &self.spec.handlers;
        handlers.note(self.spec, units);
        let stops = |units: &[Unit]| {
            let mut failed = units[..flows].iter().enumerate().filter(|(_, unit)| unit.stops_others());
            failed.any(|(index, _)| !handlers.may_handle(index, units))
        };
        let stopped = timed_out || stops(units);
        if !timed_out && stopped && self.spec.failure_policy == FailurePolicyType::FailFast {
            // A failure that was just found also ends the retries of the other steps.
            ready = self.follow_all(units, plan, true);
        }
        let holds = self.spec.suspend || stopped && self.spec.failure_policy == FailurePolicyType::Pause;
        let may_start = !holds && !timed_out && plan.header.imported_generation.is_none();
        let mut scheduling =
            FlowScheduling { may_start, ready: &ready, stopped, left_out: handlers.left_out(units.len()) };
        for index in self.spec.order.iter().copied().filter(|index| *index < flows) {
            self.schedule_step(index, units, plan, &mut scheduling);
        }
        let all_terminal = units[..flows].iter().all(|unit| unit.state.is_terminal());
        if !all_terminal && plan.header.imported_generation.is_none() {
            // The steps of `finally` run again after other steps that run again.
            units[flows..].iter_mut().filter(|unit| unit.state.is_terminal()).for_each(Unit::start_over);
        }
        // Only now has the host omitted the steps that cannot run after a failure, so only now is it known which steps remain.
        let flow_failed = timed_out || units[..flows].iter().any(Unit::has_failed);
        self.note_failure(&units[..flows], flow_failed, stopped, found);
        let waits = self.spec.suspend || found.paused.is_some();
        // A failure that pauses the flow is not final. A retry may still change the outcome.
        if !found.holds && all_terminal {
            for index in flows..units.len() {
                let may_start = !waits && plan.header.imported_generation.is_none();
                self.schedule_finally(
                    index,
                    units,
                    plan,
                    FinallyScheduling { may_start, ready: &ready, failed: flow_failed },
                );
            }
            found.runs_finally = !waits && units[flows..].iter().any(|unit| !unit.state.is_terminal());
        }
        if units[flows..].iter().any(Unit::has_failed) && found.failure.is_none() {
            let named = units[flows..].iter().filter(|unit| unit.has_failed()).map(|unit| unit.name.as_str());
            found.failure = Some(Cause::new(
                "StepFailed",
                format!("these steps of finally failed: {}", named.collect::<Vec<_>>().join(", ")),
            ));
        }
    }

    /// Updates every step from its child. Returns true for each step that may start its next attempt.
    fn follow_all(&self, units: &mut [Unit], plan: &mut ParentPlan, given_up: bool) -> Vec<bool> {
        let (parent, memory) = (self.observed.parent, self.observed.memory);
        plan.forget_reads();
        let follow_one = |(unit, step): (&mut Unit, &Step<'_>)| {
            let rules = RetryRules {
                own: step.retry.own,
                infra: step.retry.infra,
                tolerated: step.tolerated,
                given_up: given_up && !step.is_final,
                unknown: false,
                timeout: step.timeout,
            };
            let input = FollowInput { parent, children: &self.children, memory, rules: &rules, now: self.now };
            let ready = follow(unit, input, plan);
            self.note_outdated(unit, step);
            if unit.state == UnitState::Failed {
                unit.tolerated = step.tolerated;
            }
            ready
        };
        units.iter_mut().zip(&self.spec.steps).map(follow_one).collect()
    }

    /// Notes whether the inputs of a child have changed since it was built.
    fn note_outdated(&self, unit: &mut Unit, step: &Step<'_>) {
        if !unit.has_child() {
            unit.outdated = false;
            return;
        }
        let version = self.template_version(step);
        let is_edited = self.observed.memory.header.observed_generation != Some(self.observed.parent.generation);
        if (is_edited || !unit.is_judged_by(version)) && !unit.revision.is_empty() {
            // Without its JobTemplate, the child keeps its earlier value.
            unit.outdated = self.build(step, unit).map_or(unit.outdated, |built| built.revision != unit.revision);
        }
        unit.judged_by = JudgedBy::Version(version.into());
    }

    fn template_version(&self, step: &Step<'_>) -> &str {
        match step.work {
            Work::Template(name, _) => self.observed.templates.get(name).map_or("", |template| &template.version),
            _ => "",
        }
    }

    /// Ends the unfinished steps once the time of the flow is over. Returns true if the flow has timed out.
    fn time_out(&self, units: &mut [Unit], plan: &mut ParentPlan, found: &mut PlanResults) -> bool {
        let all_done = units.iter().all(|unit| unit.state.is_terminal());
        // After `oarlock retry`, the flow gets its full time again. So an earlier timeout counts only if every step has ended.
        let was = all_done && units.iter().any(|unit| unit.reason == FLOW_TIMEOUT);
        let deadline = self.spec.timeout.and_then(|seconds| plan.header.deadline(seconds));
        let is = !all_done && deadline.is_some_and(|deadline| deadline <= self.now);
        if let Some(deadline) = deadline.filter(|deadline| *deadline > self.now && !all_done) {
            plan.requeue_by(deadline);
        }
        // The message keeps the limit that ended the flow, even if the spec has another limit now.
        let stood = units.iter().find(|unit| unit.reason == FLOW_TIMEOUT);
        let stood =
            stood.map(|unit| unit.message.split_once("; ").map_or(&*unit.message, |(limit, _)| limit).to_owned());
        let new = || format!("the flow did not end within {} s", self.spec.timeout.unwrap_or(0));
        let message = stood.filter(|_| was).unwrap_or_else(new);
        // The timeout does not change a step whose child has failed already, even before the host lists the pods of that child.
        let decided = |unit: &Unit| plan.reads.iter().any(|child| child.uid == unit.job_uid);
        for (unit, step) in units.iter_mut().zip(&self.spec.steps) {
            if !is || unit.state.is_terminal() || decided(unit) {
                continue;
            }
            let state = if unit.has_child() || unit.state == UnitState::Retrying {
                UnitState::Failed
            } else {
                UnitState::Omitted
            };
            let told = match unit.message.as_str() {
                _ if !unit.has_child() => message.clone(),
                why if unit.state == UnitState::Retrying => {
                    format!("{message}; the attempt before had failed with {}: {why}", unit.reason)
                }
                "" => message.clone(),
                waited => format!("{message}; {waited}"),
            };
            unit.set(state, FLOW_TIMEOUT, &told);
            unit.completion_time = unit.has_child().then(|| crate::object::time::write_time(self.now));
            unit.tolerated = state == UnitState::Failed && step.tolerated;
        }
        let stopped = units.iter().filter(|unit| unit.reason == FLOW_TIMEOUT);
        for child in stopped.filter_map(|unit| self.children.of_uid(&unit.job_uid)) {
            found.winds_down |= !child.gone && child.progress.ended.is_none();
            // The stop follows the durable status. Otherwise a host that dies in between would take the stopped child for a failed one.
            plan.changes_after_record.extend(stop(child));
        }
        if was || is {
            found.failure = Some(Cause::new(FLOW_TIMEOUT, message));
        }
        was || is
    }

    fn note_failure(&self, units: &[Unit], failed: bool, stopped: bool, found: &mut PlanResults) {
        let named = || {
            let named: Vec<&str> =
                units.iter().filter(|unit| unit.has_failed()).map(|unit| unit.name.as_str()).take(10).collect();
            format!("these steps failed: {}", named.join(", "))
        };
        let all_terminal = units.iter().all(|unit| unit.state.is_terminal());
        match self.spec.failure_policy {
            _ if found.failure.is_some() || !failed => {}
            // This applies even if nothing is left to start.
            FailurePolicyType::Pause if stopped => {
                let message = format!("{}; mend the cause, then run: {}", named(), retry_command(self.observed.parent));
                found.paused = Some(Cause::new("FailurePolicy", message));
                found.holds = true;
            }
            FailurePolicyType::FailFast if stopped => found.failure = Some(Cause::new("StepFailed", named())),
            _ if all_terminal => found.failure = Some(Cause::new("StepFailed", named())),
            _ => {}
        }
        if self.spec.suspend {
            found.paused = Some(Cause::new("BySpec", "spec.suspend is true: set it to false to go on"));
        }
    }

    fn finish(&self, plan: &mut ParentPlan, found: &mut PlanResults) {
        let parent = self.observed.parent;
        found.kept_state = plan.header.imported_generation.map(|_| plan.header.state.clone());
        found.starts = !plan.creates.is_empty();
        plan.summary = conclude(parent, &plan.units, &plan.header, found, self.now);
        complete(plan, self.now);
        finalize(self.observed, &self.children, self.spec.cleanup, plan, self.now);
    }
}
