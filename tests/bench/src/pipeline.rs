//! Operations on targets, each with its begin and end, and the least time that they allow. The times come from an event log.
//!
//! The *pipeline bound*: at most `k` targets are operated on at once, so `k` seconds of operations take at least one second, and
//! the longest operation takes its own time. So no host that keeps within `k` can finish earlier than the sum of all durations
//! divided by `k`, or than the longest duration, in any order of its targets.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// One target's operation, in times of an event log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    /// The time of the first physical effect.
    pub(crate) begun: Duration,
    /// The time of the last physical effect.
    pub(crate) ended: Duration,
}

impl Operation {
    /// Returns the duration of the operation.
    pub(crate) fn took(&self) -> Duration {
        self.ended.saturating_sub(self.begun)
    }
}

/// Returns the pipeline bound of these operations, with at most `at_once` of them at a time.
pub(crate) fn pipeline_bound(operations: &[Operation], at_once: u32) -> Duration {
    let took = || operations.iter().map(Operation::took);
    let shared = took().sum::<Duration>().checked_div(at_once).unwrap_or_default();
    shared.max(took().max().unwrap_or_default())
}

/// Returns the time of these operations in the order of their begins, each started as soon as another has ended, at most `at_once`
/// at a time.
///
/// This is the time of a host that loses no time and does not know how long each operation will take.
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

/// Returns the mean duration. Returns `None` without operations.
pub(crate) fn mean(operations: &[Operation]) -> Option<Duration> {
    let count = u32::try_from(operations.len()).ok()?;
    operations.iter().map(Operation::took).sum::<Duration>().checked_div(count)
}

/// Returns the highest number of operations at once. An operation that ends when another begins does not overlap it.
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
