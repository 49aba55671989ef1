//! The outcome of a plugin's answer to `release`.
//!
//! Takes an answer, or the reason why there is none; yields the writes that release the target's object. The host
//! always releases the target, even if the plugin fails. Source: docs/operationjob.md
//! 3.11.

use crate::object::time::after;
use crate::operation_job::holds;
use crate::operation_job::round::calls::PlannedCall;
use crate::operation_job::round::judge::TRAPS;
use crate::operation_job::round::pace::{FAILED, wait_after};
use crate::operation_job::round::target_memory::TargetMemory;
use crate::operation_job::round::visit::{TargetUpdate, unchanged};
use crate::operation_job::state::extras;
use crate::plugin::proposal::{PluginEvent, Proposal};
use crate::plugin::visit::Answer;
use crate::requests::writes::Write;

impl PlannedCall<'_> {
    /// Returns the outcome of an answer to `release`. The host releases the target, with or without the plugin.
    pub(super) fn released(&self, answer: Answer, known: &mut TargetMemory) -> TargetUpdate {
        match answer {
            Answer::Proposed(proposal) => match self.authorized(&proposal, &self.planned.state.extra) {
                Ok(()) if !proposal.mutations.is_empty() && known.changes.trouble(self.target.round.now).is_some() => {
                    self.release_without_plugin("it proposed one change after the other", known)
                }
                Ok(()) => {
                    let mut update = self.release_object(&proposal, known);
                    update.events.extend(proposal.events);
                    update
                }
                Err(denied) => {
                    let update = self.release_without_plugin(&denied, known);
                    TargetUpdate { denied: Some(denied), ..update }
                }
            },
            Answer::Failed(failure) if failure.retryable && known.release_tries < 5 => {
                // A user waits for the job to go, so the plugin's own wait counts only up to the host's longest wait.
                let wait = wait_after(known.release_tries, failure.retry_after_ms);
                let wait = wait.min(FAILED.signed_longest());
                known.release_tries = known.release_tries.saturating_add(1);
                known.check(after(self.target.round.now, wait));
                known.retry_at = known.check_at;
                unchanged(self.planned)
            }
            Answer::Failed(failure) => {
                self.release_without_plugin(&format!("{}: {}", failure.reason, failure.message), known)
            }
            Answer::Trapped(_) if known.traps.saturating_add(1) < TRAPS => {
                known.traps = known.traps.saturating_add(1);
                known.check_at = Some(self.target.round.now);
                unchanged(self.planned)
            }
            Answer::Trapped(trap) => self.release_without_plugin(&trap.message, known),
            Answer::Reported { .. } => self.release_object(&Proposal::default(), known),
        }
    }

    /// Releases a target without its plugin, with one event.
    pub(crate) fn release_without_plugin(&self, why: &str, known: &mut TargetMemory) -> TargetUpdate {
        let mut update = self.release_object(&Proposal::default(), known);
        if !std::mem::replace(&mut known.releases_without_plugin, true) {
            let message = format!("{}: released without the plugin: {why}", self.target.name);
            update.events.push(PluginEvent { warning: true, reason: "ReleaseTargetFailed".into(), message });
        }
        update
    }

    /// Returns the next step of a release: the writes that are still needed, or the state with `Released` if none is. The
    /// writes are one patch for all marks in the job's hold, the writes that the plugin proposed, the end of the
    /// PodOpsLifecycle, and writes for tasks and their outputs.
    pub(super) fn release_object(&self, proposal: &Proposal, known: &mut TargetMemory) -> TargetUpdate {
        if self.planned.state != *self.target.stored {
            // The ends of its tasks must be durable before their pods go.
            return unchanged(self.planned);
        }
        if let Some(until) = self.target.commands_end_until(self.target.stored) {
            // No other job gets the node while a command may still run there.
            known.check_at = Some(until);
            let writes = self.target.task_writes(self.target.stored, known);
            let state = Some(self.planned.state.clone()).filter(|_| !writes.is_empty());
            return TargetUpdate { state, writes, ..TargetUpdate::default() };
        }
        let object = self.planned.object.as_ref();
        let held = object.and_then(|object| holds::release_marks(object, &self.target.round.job.uid, &known.marks));
        let mut writes = self.target.writes(self.planned, proposal);
        // A proposal that changes the target's metadata uses the same hold, so one patch does both.
        writes.retain(|write| {
            held.is_none() || !matches!(write, Write::Patch { object, .. } if *object == self.target.key)
        });
        // The host's account can take back what the plugin did, also once the plugin's account lost its rights. It can do nothing new.
        let mut of_plugin = self.target.of_plugin(&writes);
        of_plugin.retain(|at| matches!(writes.get(*at), Some(Write::Create { .. } | Write::Evict { .. })));
        writes.extend(held.map(|body| Write::patch(&self.target.key, body)));
        let cancel = self.planned.object.as_ref().and_then(|object| self.target.end_operation(object));
        let (cancel, event) = cancel.unzip();
        writes.extend(cancel);
        writes.extend(self.target.task_writes(self.target.stored, known));
        writes.extend(self.target.outputs().0);
        if !writes.is_empty() {
            let pod_events = event.into_iter().chain(self.target.records_release(self.planned)).collect();
            return TargetUpdate { writes, of_plugin, pod_events, ..unchanged(self.planned) };
        }
        let mut state = self.planned.state.clone();
        if state.owes_release() {
            state.extra.insert(extras::RELEASED.to_owned(), "true".to_owned());
        }
        TargetUpdate { state: Some(state), ..TargetUpdate::default() }
    }
}
