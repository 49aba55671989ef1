//! Nodes that are not Ready: a Job waits for its node, or leaves it out. Source: docs/jobflow.md 4.2.

use crate::child::plan::ParentPlan;
use crate::child::unit::{Unit, UnitState};
use crate::daemon::plan::Round;
use crate::job::time::{after_seconds, read_time, write_time};

/// The reason of a node that is waited for or left out.
pub(super) const NOT_READY: &str = "NodeNotReady";

impl Round<'_> {
    /// A node that is not Ready is waited for, with the reason [`NOT_READY`], or left out.
    pub(super) fn await_node(&self, unit: &mut Unit, plan: &mut ParentPlan) {
        if self.observed.nodes.get(&unit.name).is_some_and(|node| !node.not_ready) {
            if unit.reason == NOT_READY {
                unit.set(UnitState::Waiting, "", "");
                unit.start_time = None;
            }
            return;
        }
        // What had an attempt is not left out.
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
                plan.wake_at(due);
            }
        }
    }

    /// A further attempt waits until the node is Ready, whatever the policy: it keeps its slot, and what it says of the failure.
    pub(super) fn await_retry(&self, unit: &mut Unit, plan: &mut ParentPlan) {
        let since = read_time(unit.not_ready_since.as_deref()).unwrap_or(self.now);
        unit.not_ready_since = Some(write_time(since));
        let Some(seconds) = self.spec.node_timeout else { return };
        let due = after_seconds(since, seconds);
        if due > self.now {
            return plan.wake_at(due);
        }
        unit.not_ready_since = None;
        let before = if unit.message.is_empty() { "" } else { "; before: " };
        let message = format!("the node was not Ready for {seconds} s{before}{}", unit.message);
        unit.set(UnitState::Failed, NOT_READY, &message);
        unit.completion_time = Some(write_time(self.now));
    }
}
