//! The meaning of a plugin's answer to `release`.
//!
//! Takes an answer, or the reason why there is none; yields the writes that let go of the target's object. May not keep a
//! target for its plugin's sake: the host releases it with or without the plugin. Source: docs/operationjob.md 3.11.

use k8s_openapi::jiff::SignedDuration;

use crate::cluster::writes::Write;
use crate::job::state::extras;
use crate::job::time::after;
use crate::plugin::proposal::{PluginEvent, Proposal};
use crate::plugin::visit::Answer;
use crate::round::calls::PlannedCall;
use crate::round::judge::{TRAPS, Verdict, unchanged};
use crate::round::pace::{LONGEST_WAIT, wait_after};
use crate::round::target_memory::TargetMemory;
use crate::shared::holds;

impl PlannedCall<'_> {
    /// Judges an answer to `release`. The host releases the target, with or without the plugin.
    pub(super) fn released(&self, answer: Answer, known: &mut TargetMemory) -> Verdict {
        match answer {
            Answer::Proposed(proposal) => match self.authorized(&proposal, &self.planned.state.extra) {
                Ok(()) if !proposal.mutations.is_empty() && known.changes.trouble(self.target.round.now).is_some() => {
                    self.released_alone("it proposed one change after the other", known)
                }
                Ok(()) => {
                    let mut verdict = self.let_go(&proposal, known);
                    verdict.events.extend(proposal.events);
                    verdict
                }
                Err(denied) => {
                    let verdict = self.released_alone(&denied, known);
                    Verdict { denied: Some(denied), ..verdict }
                }
            },
            Answer::Failed(failure) if failure.retryable && known.release_tries < 5 => {
                // A user waits for the job to go: the plugin's own wait counts up to the longest of the host.
                let wait = wait_after(known.release_tries, failure.retry_after_ms);
                let wait = wait.min(SignedDuration::from_secs(LONGEST_WAIT));
                known.release_tries = known.release_tries.saturating_add(1);
                known.check(after(self.target.round.now, wait));
                known.retry_at = known.check_at;
                unchanged(self.planned)
            }
            Answer::Failed(failure) => self.released_alone(&format!("{}: {}", failure.reason, failure.message), known),
            Answer::Trapped(_) if known.traps.saturating_add(1) < TRAPS => {
                known.traps = known.traps.saturating_add(1);
                known.check_at = Some(self.target.round.now);
                unchanged(self.planned)
            }
            Answer::Trapped(trap) => self.released_alone(&trap.message, known),
            Answer::Reported { .. } => self.let_go(&Proposal::default(), known),
        }
    }

    /// Releases a target without its plugin, with one event.
    pub(crate) fn released_alone(&self, why: &str, known: &mut TargetMemory) -> Verdict {
        let mut verdict = self.let_go(&Proposal::default(), known);
        if !std::mem::replace(&mut known.release_alone, true) {
            let message = format!("{}: released without the plugin: {why}", self.target.name);
            verdict.events.push(PluginEvent { warning: true, reason: "ReleaseTargetFailed".into(), message });
        }
        verdict
    }

    /// Undoes the changes that the proposal and the job's hold name. `Released` is recorded once none is left.
    pub(super) fn let_go(&self, proposal: &Proposal, known: &mut TargetMemory) -> Verdict {
        if self.planned.state != *self.target.stored {
            // How its tasks ended is durable before their pods go.
            return unchanged(self.planned);
        }
        if let Some(until) = self.target.commands_end_until(self.target.stored) {
            // Nobody else gets the node while a command may still run there.
            known.check_at = Some(until);
            let writes = self.target.task_writes(self.target.stored, known);
            let state = Some(self.planned.state.clone()).filter(|_| !writes.is_empty());
            return Verdict { state, writes, ..Verdict::default() };
        }
        let object = self.planned.object.as_ref();
        let held = object.and_then(|object| holds::let_go_of(object, &self.target.round.job.uid, &known.marks));
        let mut writes = self.target.writes(self.planned, proposal);
        // A proposal that changes the target's metadata goes by the same hold: one patch does both.
        writes.retain(|write| {
            held.is_none() || !matches!(write, Write::Patch { object, .. } if *object == self.target.key)
        });
        writes.extend(held.map(|body| Write::patch(&self.target.key, body)));
        let cancel = self.planned.object.as_ref().and_then(|object| self.target.end_operation(object));
        let (cancel, event) = cancel.unzip();
        writes.extend(cancel);
        writes.extend(self.target.task_writes(self.target.stored, known));
        writes.extend(self.target.outputs().0);
        if !writes.is_empty() {
            let pod_events = event.into_iter().chain(self.target.lets_go(self.planned)).collect();
            return Verdict { writes, pod_events, ..unchanged(self.planned) };
        }
        let mut state = self.planned.state.clone();
        if state.owes_release() {
            state.extra.insert(extras::RELEASED.to_owned(), "true".to_owned());
        }
        Verdict { state: Some(state), ..Verdict::default() }
    }
}
