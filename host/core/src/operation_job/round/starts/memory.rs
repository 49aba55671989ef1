//! The facts about starts that the memory of a job keeps: the pause state of the last round, and the unavailable targets.
//!
//! A pause stops a job from starting or operating targets, and so do more failures than its policy tolerates. Source:
//! docs/operationjob.md 3.4, 3.9.

use std::collections::BTreeSet;

use crate::operation_job::progress::Counts;
use crate::status::policy::Policy;

/// The reasons that stop a round from starting or operating targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PauseState {
    /// True if `spec.paused` is set, which stops starts, further attempts and `operate`.
    pub paused: bool,
    /// True if more targets have failed than the policy tolerates, which stops the same steps as a pause.
    pub too_many_failed: bool,
    /// True if the job skips targets that have not started, because too many targets have failed.
    pub skips: bool,
}

impl PauseState {
    /// Returns the pause state of a job with this policy and these counts of targets.
    pub fn of(policy: &Policy, counts: Counts) -> Self {
        Self {
            paused: policy.paused,
            too_many_failed: !policy.paused && policy.pauses(counts.failed, counts.total),
            skips: policy.skips(counts.failed, counts.total),
        }
    }

    /// Returns true if this state stops a target that `others` would let start.
    pub fn stops_more_than(self, others: Self) -> bool {
        self.pause() && !others.pause() || self.skips && !others.skips
    }

    /// Returns true if no target may start or be operated.
    pub fn pause(self) -> bool {
        self.paused || self.too_many_failed
    }
}

/// The targets that are unavailable although they are not in flight. Targets in flight all count as unavailable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Availability {
    /// True if the policy bounds unavailable targets, and all targets were examined.
    pub(super) is_tracked: bool,
    /// The unavailable targets.
    pub(super) down: BTreeSet<u32>,
    /// The targets whose availability is uncertain.
    pub(super) uncertain: BTreeSet<u32>,
}

impl Availability {
    /// Returns true if a change of any target's object counts.
    pub(crate) fn is_tracked(&self) -> bool {
        self.is_tracked
    }

    /// Returns the eligible targets that may start while at most `room` targets become unavailable, at most `most` of
    /// them. Targets that are unavailable already need no room; each other target needs some.
    pub(crate) fn within(&self, mut room: usize, eligible: impl Iterator<Item = u32>, most: usize) -> Vec<u32> {
        // After the last unavailable target, every target needs room.
        let last = self.down.last().copied();
        let mut found = Vec::new();
        for index in eligible {
            if found.len() >= most || room == 0 && last.is_none_or(|last| last < index) {
                break;
            }
            if !self.down.contains(&index) {
                let Some(less) = room.checked_sub(1) else { continue };
                room = less;
            }
            found.push(index);
        }
        found
    }

    /// Marks the availability of a target as uncertain.
    pub(crate) fn mark_uncertain(&mut self, index: u32) {
        if self.is_tracked {
            self.uncertain.insert(index);
        }
    }
}
