//! What keeps the targets of a job from being started or operated: a pause, or failures beyond what its policy tolerates.
//!
//! Takes the policy and the numbers of targets; yields the [`Brakes`] of a round. Source: docs/operationjob.md 3.4, 3.9.

use crate::job::policy::Policy;
use crate::job::progress::Counts;

/// The brakes of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Brakes {
    /// `spec.paused`: no start, no further attempt and no `operate`.
    pub paused: bool,
    /// The same, since more targets have failed than the policy tolerates.
    pub too_many_failed: bool,
    /// For that reason targets that have not started are skipped.
    pub skips: bool,
}

impl Brakes {
    /// The brakes of a job with this policy and these numbers of targets.
    pub fn of(policy: &Policy, counts: Counts) -> Self {
        Self {
            paused: policy.paused,
            too_many_failed: !policy.paused && policy.pauses(counts.failed, counts.total),
            skips: policy.skips(counts.failed, counts.total),
        }
    }

    /// True if these keep back what the others would let start.
    pub fn tighter_than(self, others: Self) -> bool {
        self.pause() && !others.pause() || self.skips && !others.skips
    }

    /// True if nothing is started or operated.
    pub fn pause(self) -> bool {
        self.paused || self.too_many_failed
    }
}
