//! Nodes that are not Ready: the DaemonJob waits for them or omits them. Source: docs/jobflow.md 4.2.

use crate::attempts::plan::ParentPlan;
use crate::attempts::unit::{Unit, UnitState};
use crate::daemon_job::plan::DaemonRound;
use crate::object::time::{after_seconds, read_time, write_time};

/// The reason of a node that is not Ready. The DaemonJob waits for it or has omitted it.
pub(crate) const NOT_READY: &str = "NodeNotReady";

impl DaemonRound<'_> {
    /// Makes a unit wait with the reason [`NOT_READY`] if its node is not Ready, or omits the unit.
    pub(crate) fn await_node(&self, unit: &mut Unit, plan: &mut ParentPlan) {
        if self.observed.nodes.get(&unit.name).is_some_and(|node| !node.not_ready) {
            if unit.reason == NOT_READY {
                unit.set(UnitState::Waiting, "", "");
                unit.start_time = None;
            }
            return;
        }
        // A node that has had an attempt is not omitted.
        if self.spec.skip_not_ready && unit.attempt == unit.counted_from {
            return unit.set(UnitState::Omitted, NOT_READY, "the node is not Ready, and notReadyPolicy is Skip");
        }
        let since = read_time(unit.start_time.as_deref()).filter(|_| unit.reason == NOT_READY).unwrap_or(self.now);
        unit.start_time = Some(write_time(since));
        unit.set(UnitState::Waiting, NOT_READY, "the node is not Ready; its Job starts once it is");
        if let Some(seconds) = self.spec.node_timeout {
            let due = after_seconds(since, seconds);
            if due <= self.now {
                unit.set(UnitState::Failed, NOT_READY, &format!("the node was not Ready for {seconds} s"));
                unit.completion_time = Some(write_time(self.now));
            } else {
                plan.requeue_by(due);
            }
        }
    }

    /// Makes a retry wait until its node is Ready, under any policy. The unit keeps its slot and its message about the failure.
    pub(crate) fn await_retry(&self, unit: &mut Unit, plan: &mut ParentPlan) {
        let since = read_time(unit.not_ready_since.as_deref()).unwrap_or(self.now);
        unit.not_ready_since = Some(write_time(since));
        let Some(seconds) = self.spec.node_timeout else { return };
        let due = after_seconds(since, seconds);
        if due > self.now {
            return plan.requeue_by(due);
        }
        unit.not_ready_since = None;
        let before = if unit.message.is_empty() { "" } else { "; before: " };
        let message = format!("the node was not Ready for {seconds} s{before}{}", unit.message);
        unit.set(UnitState::Failed, NOT_READY, &message);
        unit.completion_time = Some(write_time(self.now));
    }
}
