//! What came of each target in a rehearsal.

use oarlock_api::TargetError;
use oarlock_core::cluster::writes::Write;
use oarlock_core::job::state::TargetState;
use oarlock_core::plugin::proposal::Mutation;
use oarlock_core::round::start_bounds::StartBound;

use super::Rehearsal;

/// One target at the end of a rehearsal.
#[derive(Clone, Debug)]
pub struct RehearsedTarget {
    /// Its name.
    pub name: String,
    /// Its state, as the job's status would show it.
    pub state: TargetState,
    /// What kept it from starting at once.
    pub bound: Option<StartBound>,
    /// The mutations that its plugin proposes first, where it proposes any.
    pub mutations: Vec<Mutation>,
    /// The first writes for it: those of the mutations, or the one that begins the PodOpsLifecycle on its pod.
    pub writes: Vec<Write>,
    /// Those writes begin the PodOpsLifecycle, and the mutations come after that.
    pub begins_lifecycle: bool,
    /// Its plugin was called, and lacked nothing that it had to read.
    pub answered: bool,
    /// The trouble of the last call, which may pass.
    pub trouble: Option<TargetError>,
}

impl Rehearsal<'_> {
    /// The targets as they are now, in the order of the job.
    pub(super) fn targets(&self) -> Vec<RehearsedTarget> {
        let target = |(index, state): (u32, &TargetState)| RehearsedTarget {
            name: self.memory.state.name(index).to_owned(),
            state: self.memory.latest(index).unwrap_or(state).clone(),
            bound: self.bounds.get(&index).copied(),
            mutations: self.mutations.get(&index).cloned().unwrap_or_default(),
            writes: self.writes.get(&index).cloned().unwrap_or_default(),
            begins_lifecycle: self.begin_lifecycle.contains(&index),
            answered: self.answered.contains(&index),
            trouble: self
                .memory
                .targets
                .get(&index)
                .and_then(|known| known.trouble.clone())
                .map(|(trouble, _)| trouble),
        };
        (0_u32..).zip(&self.memory.state.targets).map(target).collect()
    }
}
