//! Decides which step starts, waits or is omitted, and builds its child. Source: docs/jobflow.md 2.3.

#![expect(clippy::indexing_slicing, reason = "every index is that of a step: FlowSpec::read has checked them")]

use crate::attempts::build::{Built, Cause, JobParts, build_job, build_operation, has_containers};
use crate::attempts::follow::{StartInput, is_first, start};
use crate::attempts::plan::{Observation, ParentPlan};
use crate::attempts::retry_and_cleanup::{DEPENDENCY_NOT_MET, FAILURE_HANDLED, FLOW_FAILED, NOT_NEEDED};
use crate::attempts::settings::FailurePolicyType;
use crate::attempts::unit::{Unit, UnitState};
use crate::job_flow::handled::{DependencyState, LeftOut};
use crate::job_flow::plan::FlowRound;
use crate::job_flow::spec::{Step, When, Work};

/// The inputs and results that all steps of `flows` share.
pub(crate) struct FlowScheduling<'a> {
    /// True if a step may start.
    pub(crate) may_start: bool,
    /// For each step, true if it may start its next attempt.
    pub(crate) ready: &'a [bool],
    /// True if a failure stops other steps.
    pub(crate) stopped: bool,
    /// For each step, the failures because of which it is omitted.
    pub(crate) left_out: LeftOut,
}

/// The inputs of the steps of `finally`.
pub(crate) struct FinallyScheduling<'a> {
    /// True if a step may start.
    pub(crate) may_start: bool,
    /// For each step, true if it may start its next attempt.
    pub(crate) ready: &'a [bool],
    /// True if the flow has failed.
    pub(crate) failed: bool,
}

impl FlowRound<'_> {
    /// Decides whether a step of `flows` starts, waits or is omitted. Does nothing if the step is not ready or has an outcome.
    pub(crate) fn schedule_step(
        &self,
        index: usize,
        units: &mut [Unit],
        plan: &mut ParentPlan,
        FlowScheduling { may_start, ready, stopped, left_out }: &mut FlowScheduling<'_>,
    ) {
        let step = &self.spec.steps[index];
        let dependency_state = self.spec.handlers.dependency_state(index, step, units, left_out);
        if !ready[index] || units[index].state.is_terminal() {
            return;
        }
        if units[index].state == UnitState::Retrying {
            return if *may_start {
                self.start(index, units, plan)
            };
        }
        let needed: Vec<&Unit> = step.dependencies.iter().map(|needed| &units[*needed]).collect();
        let all_terminal = needed.iter().all(|unit| unit.state.is_terminal());
        let one_failed = needed.iter().any(|unit| unit.state == UnitState::Failed);
        let schedule_step = match step.when {
            When::Finished => all_terminal,
            When::Failure if all_terminal && !one_failed => {
                let (reason, message) = match dependency_state {
                    // A handler step may still succeed. Until then, the host does not know whether this step must run.
                    DependencyState::Open => return units[index].set(UnitState::Waiting, "", ""),
                    // A dependency did not run, so it is unknown whether it would have failed.
                    DependencyState::Broken(needed) => {
                        (DEPENDENCY_NOT_MET, format!("step {} did not run", units[needed].name))
                    }
                    _ => (NOT_NEEDED, "no step that it depends on failed".to_owned()),
                };
                return units[index].set(UnitState::Omitted, reason, &message);
            }
            When::Failure => all_terminal,
            When::Success => {
                let pauses = *stopped && self.spec.failure_policy == FailurePolicyType::Pause;
                if let Some((reason, message)) = why_left_out(&dependency_state, units, pauses) {
                    return units[index].set(UnitState::Omitted, reason, &message);
                }
                if *stopped && self.spec.failure_policy == FailurePolicyType::FailFast {
                    return units[index].set(
                        UnitState::Omitted,
                        FLOW_FAILED,
                        "another step failed, and failurePolicy is FailFast",
                    );
                }
                matches!(dependency_state, DependencyState::Met)
            }
        };
        if schedule_step && *may_start {
            self.start(index, units, plan);
        } else if units[index].state != UnitState::Waiting && !schedule_step {
            units[index].set(UnitState::Waiting, "", "");
        }
    }

    /// Starts or omits a step of `finally`, once all other steps have ended.
    pub(crate) fn schedule_finally(
        &self,
        index: usize,
        units: &mut [Unit],
        plan: &mut ParentPlan,
        last: FinallyScheduling<'_>,
    ) {
        let FinallyScheduling { may_start, ready, failed } = last;
        let step = &self.spec.steps[index];
        let is_wanted = match step.when {
            When::Finished => true,
            When::Success => !failed,
            When::Failure => failed,
        };
        if !ready[index] {
            return;
        }
        if !is_wanted && units[index].state != UnitState::Retrying {
            let message = if failed { "the flow failed" } else { "the flow did not fail" };
            return units[index].set(UnitState::Omitted, NOT_NEEDED, message);
        }
        if may_start {
            self.start(index, units, plan);
        }
    }

    fn start(&self, index: usize, units: &mut [Unit], plan: &mut ParentPlan) {
        let step = &self.spec.steps[index];
        let Observation { parent, memory, .. } = self.observed;
        if parent.terminating {
            return;
        }
        if plan.is_full() {
            plan.more = true;
            return;
        }
        let unit = &mut units[index];
        let built = self.build(step, unit);
        let is_step = |name: &str| name != step.name && self.names.contains_key(name);
        let creates = plan.creates.len();
        start(unit, built, StartInput { parent, memory, now: self.now }, plan, is_step);
        let follows = is_first(unit, memory) && (step.is_final || !step.dependencies.is_empty());
        plan.creates[creates..].iter_mut().for_each(|create| create.follows = follows);
    }

    pub(crate) fn build(&self, step: &Step<'_>, unit: &Unit) -> Result<Built, Cause> {
        let parent = self.observed.parent;
        let parts = |base, template, overrides| JobParts {
            base,
            template,
            overrides,
            volumes: self.spec.volumes,
            mounts: step.mounts,
            globals: self.globals,
            backoff_limit: step.retry.pod_backoff_limit,
            timeout: step.timeout,
            tolerates_all: false,
        };
        match step.work {
            Work::Job(job) => build_job(parent, parts(job, None, None)),
            Work::Operation(operation) => {
                let whole = build_operation(parent, operation, &self.globals, &[]);
                // The failed child tells which targets are left, unless the flow now asks for another operation.
                let previous = self.children.previous(parent, unit).filter(|child| child.revision == whole.revision);
                let left = previous.map(|child| child.progress.targets_left.as_slice()).unwrap_or_default();
                Ok(if left.is_empty() { whole } else { build_operation(parent, operation, &self.globals, left) })
            }
            Work::Template(name, overrides) => {
                let namespace = &parent.namespace;
                let template = self.observed.templates.get(name).ok_or_else(|| {
                    Cause::new(
                        "JobTemplateNotFound",
                        format!("there is no JobTemplate {name:?} in namespace {namespace}; it starts once there is"),
                    )
                })?;
                if let Some(why) = &template.unread {
                    return Err(Cause::new("TooLarge", format!("JobTemplate {name:?}: {why}")));
                }
                if !has_containers(&template.job) {
                    return Err(Cause::new("Rejected", format!("JobTemplate {name:?} has no container")));
                }
                build_job(parent, parts(&template.job, Some((name, &template.version)), overrides))
            }
        }
    }
}

/// Returns why a step that waits for success is omitted. While a failure pauses the flow, a failed dependency may still succeed.
fn why_left_out(dependency_state: &DependencyState, units: &[Unit], pauses: bool) -> Option<(&'static str, String)> {
    match *dependency_state {
        DependencyState::Broken(needed) if !pauses => {
            Some((DEPENDENCY_NOT_MET, format!("step {} did not succeed", units[needed].name)))
        }
        DependencyState::OtherBranch(failed) => {
            let Unit { name, handled_by, .. } = &units[failed];
            Some((FAILURE_HANDLED, format!("step {name} failed, and step {handled_by} made up for it")))
        }
        _ => None,
    }
}
