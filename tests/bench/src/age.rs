//! Computes how old the stored status of a job is while its targets end.
//!
//! The input is the versions of the status, as a watch delivered them, and the moments at which targets were physically replaced,
//! from the event log of the simulated cluster.
//!
//! The *age* at a moment is the time since the first replacement that the status does not count yet. It is greatest just before a
//! new version arrives. Watches of the same process see both ends, so the delay of a watch is not part of the age. The *gap* is the
//! time between two versions; a gap in which no target ended is no fault.

use std::time::Duration;

use oarlock_sim::world::Entry;
use tokio::time::Instant;

use crate::replacements;

/// Returns the moments at which targets were replaced, ascending. A target is replaced once it is gone and its successor is ready.
pub(crate) fn replaced(entries: &[Entry], opened: Instant, targets: &[(String, String)]) -> Vec<Instant> {
    let mut all: Vec<Instant> =
        replacements::of(entries, targets).iter().map(|replacement| opened + replacement.ended).collect();
    all.sort();
    all
}

/// Returns the greatest age of the status. Each version has its moment and the number of targets that it counts as ended.
pub(crate) fn greatest(versions: &[(Instant, usize)], replaced: &[Instant]) -> Option<Duration> {
    let next = versions.iter().skip(1);
    let ages = versions.iter().zip(next).filter_map(|((_, ended), (next, _))| {
        let first = replaced.get(*ended)?;
        Some(next.saturating_duration_since(*first))
    });
    ages.max()
}

/// Returns the longest time between two versions.
pub(crate) fn longest_gap(versions: &[(Instant, usize)]) -> Option<Duration> {
    versions.iter().zip(versions.iter().skip(1)).map(|((at, _), (next, _))| *next - *at).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_counts_from_the_first_target_that_is_not_told_of() {
        let begin = Instant::now();
        let at = |ms: u64| begin + Duration::from_millis(ms);
        let replaced = [at(100), at(150), at(900)];
        let versions = [(at(0), 0), (at(500), 2), (at(1000), 3)];
        assert_eq!(greatest(&versions, &replaced), Some(Duration::from_millis(400)));
        assert_eq!(longest_gap(&versions), Some(Duration::from_millis(500)));
        assert_eq!(greatest(&versions[..1], &replaced), None);
    }
}
