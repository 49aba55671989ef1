//! The final check of a target whose deadline has passed, and its end where that shows no success.
//!
//! Takes the answer to the last visit; yields the [`Verdict`] that ends the target or its attempt. May not end it as failed
//! where it has succeeded after all. Source: docs/operationjob.md 3.8.

use crate::job::state::{Progress, ended};
use crate::plugin::proposal::State;
use crate::plugin::visit::Answer;
use crate::round::calls::PlannedCall;
use crate::round::judge::{TRAPS, Verdict, not_made, unchanged};
use crate::round::target_memory::{PendingFailure, TargetMemory};
use crate::shared::tables::Tables;

impl PlannedCall<'_> {
    /// Judges the final check of a target whose deadline has passed: only `succeeded` counts.
    pub(super) fn final_check(&self, answer: Answer, known: &mut TargetMemory, tables: &mut Tables) -> Verdict {
        let Some(failure) = known.failure.clone() else { return unchanged(self.planned) };
        match answer {
            Answer::Reported { operate, report } if report.state == State::Succeeded => {
                let verdict = self.proposed([&operate, &report.proposal], State::Succeeded, known, tables);
                // Denied, or by an object that another target has taken: its time is over all the same.
                let succeeded = verdict.state.as_ref().is_some_and(|state| state.progress == Progress::Succeeded);
                if succeeded { verdict } else { self.lost_for_good(failure) }
            }
            Answer::Trapped(_) if known.traps.saturating_add(1) < TRAPS => {
                known.traps = known.traps.saturating_add(1);
                known.retry_at = Some(self.target.round.now);
                unchanged(self.planned)
            }
            _ => self.lost_for_good(failure),
        }
    }

    /// The end of a target whose final check did not show success. What was proposed with its failure is worked out anew:
    /// a bump has moved its object since.
    fn lost_for_good(&self, failure: PendingFailure) -> Verdict {
        let follows = &failure.follows;
        let (writes, events) = match self.authorized(follows, &self.planned.state.extra) {
            Err(why) if !follows.mutations.is_empty() => (Vec::new(), vec![not_made(self.target.name, &why)]),
            _ => (self.target.writes(self.planned, follows), follows.events.clone()),
        };
        let (planned, error) = (&self.planned.state, failure.error.clone());
        let state = match failure.of_attempt {
            true => self.target.after_attempt(planned, error),
            false => ended(planned, Progress::Failed, self.target.round.second(), Some(error)),
        };
        Verdict { state: Some(failure.ended(state)), writes, events, ..Verdict::default() }
    }
}
