//! Computes the replacements of targets from the event log of the simulated cluster.
//!
//! A replacement begins when the target begins to terminate or when its successor is created, whichever comes first. It ends when
//! the target is gone and the successor is ready.

use std::collections::BTreeMap;

use oarlock_sim::world::{Effect, Entry};

use crate::pipeline::Operation;

/// Returns the replacements of the replaced targets, in the order of `targets`. Targets are names and UIDs.
pub(crate) fn of(entries: &[Entry], targets: &[(String, String)]) -> Vec<Operation> {
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
        Some(Operation { begun: begun.get(uid.as_str()).copied().unwrap_or(ended), ended })
    });
    replaced.collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use oarlock_sim::world::Cause;

    use super::*;

    fn entry(uid: &str, ms: u64, effect: Effect) -> Entry {
        let time = Duration::from_millis(ms);
        Entry { time, namespace: "shop".into(), name: uid.into(), uid: uid.into(), effect }
    }

    fn at(begun: u64, ended: u64) -> Operation {
        Operation { begun: Duration::from_millis(begun), ended: Duration::from_millis(ended) }
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
}
