//! The replacements of targets, as the world's ledger tells of them, and the least time that they allow.
//!
//! Takes entries of a ledger; yields when each target's replacement began and ended, and what follows from that. Pure.
//!
//! The *pipeline bound*: at most `k` targets are being replaced at once, so `k` seconds of replacements take one second at
//! least, and the longest of them takes its own time. No host that keeps within `k` can be done earlier than the greater of the
//! sum of all durations divided by `k` and the longest duration, in whatever order it starts its targets.

use std::collections::BTreeMap;
use std::time::Duration;

use oarlock_sim::world::{Effect, Entry};

/// One target's replacement, in times of its ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replacement {
    /// The target began to terminate, or a pod was made in its place: whichever came first.
    pub(crate) begun: Duration,
    /// The target was gone, and the pod in its place ready.
    pub(crate) ended: Duration,
}

impl Replacement {
    /// How long it took.
    pub(crate) fn took(&self) -> Duration {
        self.ended.saturating_sub(self.begun)
    }
}

/// The replacements of those targets, as names and UIDs, that are replaced, in their order.
pub(crate) fn of(entries: &[Entry], targets: &[(String, String)]) -> Vec<Replacement> {
    let mut gone = BTreeMap::new();
    let mut ready = BTreeMap::new();
    let mut begun = BTreeMap::new();
    let mut successor_of = BTreeMap::new();
    for Entry { uid, time, effect, .. } in entries {
        match effect {
            Effect::PodGone => drop(gone.insert(uid.as_str(), *time)),
            Effect::PodReady => drop(ready.insert(uid.as_str(), *time)),
            Effect::PodTerminating { .. } => drop(begun.entry(uid.as_str()).or_insert(*time)),
            Effect::PodCreated { for_origin: Some(origin), .. } => {
                begun.entry(origin.as_str()).or_insert(*time);
                successor_of.insert(origin.as_str(), uid.as_str());
            }
            _ => {}
        }
    }
    let replaced = targets.iter().filter_map(|(_, uid)| {
        let ready = ready.get(successor_of.get(uid.as_str())?)?;
        let ended = *ready.max(gone.get(uid.as_str())?);
        Some(Replacement { begun: begun.get(uid.as_str()).copied().unwrap_or(ended), ended })
    });
    replaced.collect()
}

/// The least time for these replacements with at most `at_once` of them at a time, as this file's head says.
pub(crate) fn pipeline_bound(replacements: &[Replacement], at_once: u32) -> Duration {
    let took = || replacements.iter().map(Replacement::took);
    let shared = took().sum::<Duration>().checked_div(at_once).unwrap_or_default();
    shared.max(took().max().unwrap_or_default())
}

/// How many were under way at once, at most. One that ends when another begins does not count beside it.
pub(crate) fn most_at_once(replacements: &[Replacement]) -> usize {
    let begins = replacements.iter().map(|replacement| (replacement.begun, true));
    let mut steps: Vec<(Duration, bool)> =
        begins.chain(replacements.iter().map(|replacement| (replacement.ended, false))).collect();
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
    use oarlock_sim::world::Cause;

    use super::*;

    fn entry(uid: &str, ms: u64, effect: Effect) -> Entry {
        let time = Duration::from_millis(ms);
        Entry { time, namespace: "shop".into(), name: uid.into(), uid: uid.into(), effect }
    }

    fn at(begun: u64, ended: u64) -> Replacement {
        Replacement { begun: Duration::from_millis(begun), ended: Duration::from_millis(ended) }
    }

    #[test]
    fn target_is_replaced_when_it_is_gone_and_the_other_is_ready() {
        let evicted = Effect::PodTerminating { cause: Cause::Evicted };
        let entries = [
            entry("b", 1, Effect::PodCreated { owner: None, for_origin: Some("a".into()) }),
            entry("b", 5, Effect::PodReady),
            entry("a", 7, evicted.clone()),
            entry("a", 9, Effect::PodGone),
            entry("c", 10, evicted),
            entry("c", 12, Effect::PodGone),
            entry("d", 14, Effect::PodCreated { owner: None, for_origin: Some("c".into()) }),
            entry("d", 20, Effect::PodReady),
        ];
        let targets = ["a", "c", "x"].map(|name| (name.to_owned(), name.to_owned()));
        assert_eq!(of(&entries, &targets), [at(1, 9), at(10, 20)]);
    }

    #[test]
    fn bound_is_the_shared_time_or_the_longest() {
        let even = [at(0, 100), at(0, 100), at(100, 200), at(100, 200)];
        assert_eq!(pipeline_bound(&even, 2), Duration::from_millis(200));
        assert_eq!(pipeline_bound(&[at(0, 100), at(0, 300)], 2), Duration::from_millis(300));
        assert_eq!(pipeline_bound(&[], 2), Duration::ZERO);
    }

    #[test]
    fn one_that_begins_when_another_ends_is_not_at_once_with_it() {
        assert_eq!(most_at_once(&[at(0, 100), at(50, 150), at(100, 200)]), 2);
        assert_eq!(most_at_once(&[]), 0);
    }
}
