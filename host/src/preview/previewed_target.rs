//! The results of each target in a preview.

use oarlock_api::TargetError;
use oarlock_core::operation_job::round::starts::bounds::StartBound;
use oarlock_core::operation_job::state::TargetState;
use oarlock_core::plugin::proposal::Mutation;
use oarlock_core::requests::writes::Write;

use super::Preview;

/// The result of one target.
#[derive(Clone, Debug)]
pub struct PreviewedTarget {
    /// The name of the target.
    pub name: String,
    /// The state of the target, as the job's status would show it.
    pub state: TargetState,
    /// The limit that prevents the target from starting now.
    pub bound: Option<StartBound>,
    /// The first mutations that the plugin proposes.
    pub mutations: Vec<Mutation>,
    /// The first writes for the target: those of the mutations, or the one that begins the PodOpsLifecycle of its pod.
    pub writes: Vec<Write>,
    /// True if those writes begin the PodOpsLifecycle, so that the mutations follow later.
    pub begins_lifecycle: bool,
    /// True if the plugin was called, and needed no further live read.
    pub answered: bool,
    /// The trouble of the last call, which may be temporary.
    pub trouble: Option<TargetError>,
}

impl Preview<'_> {
    /// Returns the current targets, in the order of the job.
    pub(super) fn targets(&self) -> Vec<PreviewedTarget> {
        let target = |(index, state): (u32, &TargetState)| PreviewedTarget {
            name: self.memory.stored.state.name(index).to_owned(),
            state: self.memory.decisions.latest(&self.memory.stored, index).unwrap_or(state).clone(),
            bound: self.bounds.get(&index).copied(),
            mutations: self.mutations.get(&index).cloned().unwrap_or_default(),
            writes: self.writes.get(&index).cloned().unwrap_or_default(),
            begins_lifecycle: self.begin_lifecycle.contains(&index),
            answered: self.answered.contains(&index),
            trouble: self
                .memory
                .targets
                .known
                .get(&index)
                .and_then(|known| known.trouble.clone())
                .map(|(trouble, _)| trouble),
        };
        (0_u32..).zip(&self.memory.stored.state.targets).map(target).collect()
    }
}
