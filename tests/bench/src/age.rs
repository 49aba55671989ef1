//! How old the stored status of a job is while its targets end.
//!
//! Takes the versions of the status as a watch brought them, and the moments at which targets were physically replaced, as
//! the world's ledger tells; yields two times. Pure.
//!
//! The *age* at a moment is how long the first target that has been replaced and is not yet counted in the status has been
//! so. It is greatest just before a new version arrives. Both ends are seen by watches of the same process, so what a watch
//! takes is not a part of it. The *gap* is the time between two versions; a gap in which nothing ended is no fault.

use std::collections::BTreeMap;
use std::time::Duration;

use oarlock_sim::world::{Effect, Entry};
use tokio::time::Instant;

/// When each target was replaced: it is gone and the pod in its place is ready. Ascending.
pub(crate) fn replaced(entries: &[Entry], opened: Instant, targets: &[(String, String)]) -> Vec<Instant> {
    let mut gone = BTreeMap::new();
    let mut ready = BTreeMap::new();
    let mut successor_of = BTreeMap::new();
    for Entry { uid, time, effect, .. } in entries {
        match effect {
            Effect::PodGone => drop(gone.insert(uid.as_str(), *time)),
            Effect::PodReady => drop(ready.insert(uid.as_str(), *time)),
            Effect::PodCreated { for_origin: Some(origin), .. } => {
                successor_of.insert(origin.as_str(), uid.as_str());
            }
            _ => {}
        }
    }
    let replaced = targets.iter().filter_map(|(_, uid)| {
        let ready = ready.get(successor_of.get(uid.as_str())?)?;
        Some(opened + *ready.max(gone.get(uid.as_str())?))
    });
    let mut all: Vec<Instant> = replaced.collect();
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

    #[test]
    fn target_is_replaced_when_it_is_gone_and_the_other_is_ready() {
        let entry = |uid: &str, ms: u64, effect| Entry {
            time: Duration::from_millis(ms),
            namespace: "shop".into(),
            name: uid.into(),
            uid: uid.into(),
            effect,
        };
        let entries = [
            entry("b", 1, Effect::PodCreated { owner: None, for_origin: Some("a".into()) }),
            entry("b", 5, Effect::PodReady),
            entry("a", 9, Effect::PodGone),
        ];
        let (opened, targets) = (Instant::now(), [("a".to_owned(), "a".to_owned()), ("x".to_owned(), "x".to_owned())]);
        assert_eq!(replaced(&entries, opened, &targets), [opened + Duration::from_millis(9)]);
    }
}
