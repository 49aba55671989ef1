//! Operations on targets, each with the time of its begin and of its end, and the least time that they allow.
//!
//! Takes times of a ledger; yields what follows from them. Pure.
//!
//! The *pipeline bound*: at most `k` targets are operated on at once, so `k` seconds of operations take one second at least,
//! and the longest of them takes its own time. No host that keeps within `k` can be done earlier than the greater of the sum
//! of all durations divided by `k` and the longest duration, in whatever order it starts its targets.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// One target's operation, in times of a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    /// Its first physical effect.
    pub(crate) begun: Duration,
    /// Its last one.
    pub(crate) ended: Duration,
}

impl Operation {
    /// How long it took.
    pub(crate) fn took(&self) -> Duration {
        self.ended.saturating_sub(self.begun)
    }
}

/// The least time for these operations with at most `at_once` of them at a time, as this file's head says.
pub(crate) fn pipeline_bound(operations: &[Operation], at_once: u32) -> Duration {
    let took = || operations.iter().map(Operation::took);
    let shared = took().sum::<Duration>().checked_div(at_once).unwrap_or_default();
    shared.max(took().max().unwrap_or_default())
}

/// The time of these operations in the order of their begins, at most `at_once` of them at a time, each as soon as another has
/// ended: what a host takes that loses no time at all and does not know how long each will take.
pub(crate) fn back_to_back(operations: &[Operation], at_once: u32) -> Duration {
    let mut in_order = operations.to_vec();
    in_order.sort_unstable_by_key(|operation| operation.begun);
    let mut free: BinaryHeap<Reverse<Duration>> = (0..at_once).map(|_| Reverse(Duration::ZERO)).collect();
    for operation in &in_order {
        let Some(mut next) = free.peek_mut() else { break };
        next.0 += operation.took();
    }
    free.into_iter().map(|Reverse(ended)| ended).max().unwrap_or_default()
}

/// The mean duration; none of nothing.
pub(crate) fn mean(operations: &[Operation]) -> Option<Duration> {
    let count = u32::try_from(operations.len()).ok()?;
    operations.iter().map(Operation::took).sum::<Duration>().checked_div(count)
}

/// How many were under way at once, at most. One that ends when another begins does not count beside it.
pub(crate) fn most_at_once(operations: &[Operation]) -> usize {
    let begins = operations.iter().map(|operation| (operation.begun, true));
    let mut steps: Vec<(Duration, bool)> =
        begins.chain(operations.iter().map(|operation| (operation.ended, false))).collect();
    steps.sort_unstable();
    let mut now = 0usize;
    let counts = steps.into_iter().map(|(_, begins)| {
        now = if begins { now.saturating_add(1) } else { now.saturating_sub(1) };
        now
    });
    counts.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(begun: u64, ended: u64) -> Operation {
        Operation { begun: Duration::from_millis(begun), ended: Duration::from_millis(ended) }
    }

    #[test]
    fn bound_is_the_shared_time_or_the_longest() {
        let even = [at(0, 100), at(0, 100), at(100, 200), at(100, 200)];
        assert_eq!(pipeline_bound(&even, 2), Duration::from_millis(200));
        assert_eq!(pipeline_bound(&[at(0, 100), at(0, 300)], 2), Duration::from_millis(300));
        assert_eq!(pipeline_bound(&[], 2), Duration::ZERO);
    }

    #[test]
    fn each_begins_back_to_back_with_the_first_that_ends() {
        let operations = [at(0, 100), at(1, 301), at(110, 210), at(220, 320)];
        assert_eq!(back_to_back(&operations, 2), Duration::from_millis(300));
        assert_eq!(back_to_back(&operations, 1), Duration::from_millis(600));
        assert_eq!(back_to_back(&[], 2), Duration::ZERO);
    }

    #[test]
    fn one_that_begins_when_another_ends_is_not_at_once_with_it() {
        assert_eq!(most_at_once(&[at(0, 100), at(50, 150), at(100, 200)]), 2);
        assert_eq!(most_at_once(&[]), 0);
    }
}
