//! How old the stored status of a job is while its targets end.
//!
//! Takes the versions of the status as a watch brought them, and the moments at which targets were physically replaced, as
//! the world's ledger tells; yields two times. Pure.
//!
//! The *age* at a moment is how long the first target that has been replaced and is not yet counted in the status has been
//! so. It is greatest just before a new version arrives. Both ends are seen by watches of the same process, so what a watch
//! takes is not a part of it. The *gap* is the time between two versions; a gap in which nothing ended is no fault.

use std::time::Duration;

use oarlock_sim::world::Entry;
use tokio::time::Instant;

use crate::replacements;

/// When each target was replaced: it is gone and the pod in its place is ready. Ascending.
pub(crate) fn replaced(entries: &[Entry], opened: Instant, targets: &[(String, String)]) -> Vec<Instant> {
    let mut all: Vec<Instant> =
        replacements::of(entries, targets).iter().map(|replacement| opened + replacement.ended).collect();
    all.sort();
    all
}

/// The greatest age of the status; `versions` are moments and how many targets the status counted as ended from then on.
pub(crate) fn greatest(versions: &[(Instant, usize)], replaced: &[Instant]) -> Option<Duration> {
    let next = versions.iter().skip(1);
    let ages = versions.iter().zip(next).filter_map(|((_, ended), (next, _))| {
        let first = replaced.get(*ended)?;
        Some(next.saturating_duration_since(*first))
    });
    ages.max()
}

/// The longest time between two versions.
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
