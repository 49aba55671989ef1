//! Whose turn it is: which step starts, waits or is left out, and what its child is built from. Source: docs/jobflow.md 2.3.

#![expect(clippy::indexing_slicing, reason = "every index is that of a step: FlowSpec::read has checked them")]

use crate::child::build::{Built, Cause, JobParts, build_job, build_operation, has_containers};
use crate::child::closing::{DEPENDENCY_NOT_MET, FAILURE_HANDLED, FLOW_FAILED, NOT_NEEDED};
use crate::child::course::{is_first, start};
use crate::child::plan::{Observation, ParentPlan};
use crate::child::settings::FailurePolicyType;
use crate::child::unit::{Unit, UnitState};
use crate::flow::handled::{LeftOut, Needs};
use crate::flow::plan::Round;
use crate::flow::spec::{Step, When, Work};

/// What the turns of all steps of `flows` share.
pub(super) struct Turns<'a> {
    /// Something may start.
    pub(super) may_start: bool,
    /// Which steps may start their next attempt.
    pub(super) ready: &'a [bool],
    /// A failure stops others.
    pub(super) stopped: bool,
    /// Of each step, the failures for which it was left out.
    pub(super) left_out: LeftOut,
}

impl Round<'_> {
    /// A step of `flows` that has no child: whether it is its turn.
    pub(super) fn turn(
        &self,
        index: usize,
        units: &mut [Unit],
        plan: &mut ParentPlan,
        Turns { may_start, ready, stopped, left_out }: &mut Turns<'_>,
    ) {
        let step = &self.spec.steps[index];
        let needs = self.spec.handlers.needs(index, step, units, left_out);
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
        let turn = match step.when {
            When::Finished => all_terminal,
            When::Failure if all_terminal && !one_failed => {
                let (reason, message) = match needs {
                    // Whether it is needed follows from how a failure is made up for.
                    Needs::Open => return units[index].set(UnitState::Waiting, "", ""),
                    // Nobody knows whether it would have failed.
                    Needs::Broken(needed) => (DEPENDENCY_NOT_MET, format!("step {} did not run", units[needed].name)),
                    _ => (NOT_NEEDED, "no step that it depends on failed".to_owned()),
                };
                return units[index].set(UnitState::Omitted, reason, &message);
            }
            When::Failure => all_terminal,
            When::Success => {
                let pauses = *stopped && self.spec.failure_policy == FailurePolicyType::Pause;
                if let Some((reason, message)) = why_left_out(&needs, units, pauses) {
                    return units[index].set(UnitState::Omitted, reason, &message);
                }
                if *stopped && self.spec.failure_policy == FailurePolicyType::FailFast {
                    return units[index].set(
                        UnitState::Omitted,
                        FLOW_FAILED,
                        "another step failed, and failurePolicy is FailFast",
                    );
                }
                matches!(needs, Needs::Met)
            }
        };
        if turn && *may_start {
            self.start(index, units, plan);
        } else if units[index].state != UnitState::Waiting && !turn {
            units[index].set(UnitState::Waiting, "", "");
        }
    }

    /// A step of `finally`, once all others have ended.
    pub(super) fn last_turn(
        &self,
        index: usize,
        units: &mut [Unit],
        plan: &mut ParentPlan,
        (may_start, ready, failed): (bool, &[bool], bool),
    ) {
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
        start(unit, built, (parent, memory), (plan, self.now), is_step);
        let follows = is_first(unit, memory) && (step.is_final || !step.dependencies.is_empty());
        plan.creates[creates..].iter_mut().for_each(|create| create.follows = follows);
    }

    pub(super) fn build(&self, step: &Step<'_>, unit: &Unit) -> Result<Built, Cause> {
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
                // The child that failed says which targets are left, unless something else is asked for now.
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

/// Why a step that waits for success is left out. While a failure pauses the flow, one that did not succeed may still.
fn why_left_out(needs: &Needs, units: &[Unit], pauses: bool) -> Option<(&'static str, String)> {
    match *needs {
        Needs::Broken(needed) if !pauses => {
            Some((DEPENDENCY_NOT_MET, format!("step {} did not succeed", units[needed].name)))
        }
        Needs::OtherBranch(failed) => {
            let Unit { name, handled_by, .. } = &units[failed];
            Some((FAILURE_HANDLED, format!("step {name} failed, and step {handled_by} made up for it")))
        }
        _ => None,
    }
}
