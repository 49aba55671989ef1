//! Failures that another step makes up for, and the branches that are omitted because of them. Source: docs/jobflow.md 2.3.

#![expect(clippy::indexing_slicing, reason = "every index is that of a step: FlowSpec::read has checked them")]

use fixedbitset::FixedBitSet;

use crate::attempts::retry_and_cleanup::{DEPENDENCY_NOT_MET, FAILURE_HANDLED, NOT_NEEDED};
use crate::attempts::unit::{Unit, UnitState};
use crate::job_flow::spec::{FlowSpec, Step};

/// The steps that make up for failures, by the indexes of steps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handlers {
    /// The steps that make up for the failure of each step.
    of: Vec<Vec<usize>>,
    /// The steps that each step comes after. Empty if no step makes up for a failure.
    before: Vec<FixedBitSet>,
    /// The steps that each step comes after or may wait for, directly or through other steps. A step may wait for another step to make up for a
    /// failure.
    awaited: Vec<FixedBitSet>,
}

/// The result of checking the dependencies of a step.
pub(crate) enum DependencyState {
    /// The step may start.
    Met,
    /// The step has to wait.
    Open,
    /// The dependency with this index did not succeed.
    Broken(usize),
    /// Another branch runs in place of this step, because the step with this index failed.
    OtherBranch(usize),
}

/// For each step that is omitted or about to be omitted, the failures that caused it.
pub(crate) type LeftOut = Vec<FixedBitSet>;

impl Handlers {
    /// Reads the handlers of these steps. `order` puts each step after its dependencies.
    pub(crate) fn of(steps: &[Step<'_>], order: &[usize]) -> Self {
        let mut of = vec![Vec::new(); steps.len()];
        for (index, step) in steps.iter().enumerate().filter(|(_, step)| step.handles_failure) {
            step.dependencies.iter().for_each(|needed| of[*needed].push(index));
        }
        let mut before = Vec::new();
        if of.iter().any(|handlers| !handlers.is_empty()) {
            before = vec![FixedBitSet::with_capacity(steps.len()); steps.len()];
            for index in order.iter().copied() {
                let mut all = FixedBitSet::with_capacity(steps.len());
                for needed in steps[index].dependencies.iter().copied() {
                    all.insert(needed);
                    all.union_with(&before[needed]);
                }
                before[index] = all;
            }
        }
        let awaited = awaited(&of, &before);
        Self { of, before, awaited }
    }

    /// Returns empty sets for this number of steps.
    pub(crate) fn left_out(&self, steps: usize) -> LeftOut {
        if self.before.is_empty() { Vec::new() } else { vec![FixedBitSet::with_capacity(steps); steps] }
    }

    /// Returns true if a step that makes up for this failure may still succeed.
    pub(crate) fn may_handle(&self, failed: usize, units: &[Unit]) -> bool {
        self.of[failed].iter().any(|handler| !units[*handler].state.is_terminal())
    }

    /// Returns true if another step may wait for a handler of this failure. A handler that itself waits for that step does not count.
    fn may_handle_for(&self, index: usize, failed: usize, units: &[Unit]) -> bool {
        let mut open = self.of[failed].iter().filter(|handler| !units[**handler].state.is_terminal());
        open.any(|handler| !self.awaited[*handler].contains(index))
    }

    /// Returns true if a step made up for the failure and step `index` comes after it.
    fn is_after(&self, index: usize, failed: usize, units: &[Unit]) -> bool {
        let mut succeeded = self.of[failed].iter().filter(|handler| units[**handler].state == UnitState::Succeed);
        succeeded.any(|handler| self.before[index].contains(*handler))
    }

    /// Notes which failures are made up for. A step that makes up for failures runs again if one of its dependencies runs again.
    pub(crate) fn note(&self, spec: &FlowSpec<'_>, units: &mut [Unit]) {
        for index in spec.order.iter().copied().filter(|index| spec.steps[*index].handles_failure) {
            let is_open = spec.steps[index].dependencies.iter().any(|needed| !units[*needed].state.is_terminal());
            if is_open && matches!(units[index].state, UnitState::Succeed | UnitState::Failed) {
                units[index].start_over();
            }
        }
        for index in 0..units.len() {
            let handler = self.of[index].iter().find(|handler| units[**handler].state == UnitState::Succeed);
            let name = handler.map(|handler| units[*handler].name.clone()).unwrap_or_default();
            units[index].handled_by = if units[index].state == UnitState::Failed { name } else { String::new() };
        }
    }

    /// Checks the dependencies of a step that waits for their success.
    pub(crate) fn dependency_state(
        &self,
        index: usize,
        step: &Step<'_>,
        units: &[Unit],
        left_out: &mut LeftOut,
    ) -> DependencyState {
        let (mut is_open, mut failures) = (false, FixedBitSet::with_capacity(self.before.len()));
        for needed in step.dependencies.iter().copied() {
            let unit = &units[needed];
            match unit.state {
                UnitState::Succeed => {}
                UnitState::Failed if unit.tolerated => {}
                UnitState::Omitted if unit.reason == NOT_NEEDED => {}
                UnitState::Failed | UnitState::Omitted if self.before.is_empty() => {
                    return DependencyState::Broken(needed);
                }
                UnitState::Failed => failures.insert(needed),
                UnitState::Omitted => {
                    let is_known = [DEPENDENCY_NOT_MET, FAILURE_HANDLED].contains(&unit.reason.as_str());
                    if !is_known || left_out[needed].is_clear() {
                        return DependencyState::Broken(needed);
                    }
                    failures.union_with(&left_out[needed]);
                }
                _ => is_open = true,
            }
        }
        let counts = |failed: &usize| !self.is_after(index, *failed, units);
        let failures: FixedBitSet = failures.ones().filter(counts).collect();
        let is_handled = |failed: &usize| !units[*failed].handled_by.is_empty();
        let mut open = failures.ones().filter(|failed| !is_handled(failed)).peekable();
        is_open |= open.peek().is_some();
        let broken = open.find(|failed| !self.may_handle_for(index, *failed, units));
        let first = failures.ones().next();
        let tells = |failed: usize| {
            let mut all = step.dependencies.iter().copied();
            all.find(|needed| *needed == failed || left_out[*needed].contains(failed)).unwrap_or(failed)
        };
        let broken = broken.map(tells);
        if let Some(left_out) = left_out.get_mut(index) {
            *left_out = failures;
        }
        match (broken, first) {
            (Some(needed), _) => DependencyState::Broken(needed),
            _ if is_open => DependencyState::Open,
            (None, Some(failed)) => DependencyState::OtherBranch(failed),
            (None, None) => DependencyState::Met,
        }
    }
}

/// Returns the steps that each step comes after or may wait for, directly or through other steps. If two steps would wait for each other, each set
/// has the other step, and neither waits.
fn awaited(of: &[Vec<usize>], before: &[FixedBitSet]) -> Vec<FixedBitSet> {
    let mut awaited = before.to_vec();
    for (failed, handlers) in of.iter().enumerate() {
        for handler in handlers.iter().copied() {
            let after = (0..before.len()).filter(|step| before[*step].contains(failed) && *step != handler);
            after.filter(|step| !before[handler].contains(*step)).for_each(|step| awaited[step].insert(handler));
        }
    }
    for through in 0..awaited.len() {
        let more = awaited[through].clone();
        awaited.iter_mut().filter(|all| all.contains(through)).for_each(|all| all.union_with(&more));
    }
    awaited
}
