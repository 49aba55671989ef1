//! Reads the work of a flow from the ledger of pods: when each step worked, and how its pods ended. The module knows no
//! status.

use std::collections::{BTreeMap, BTreeSet};

use oarlock_sim::world::{Effect, Entry};

/// The work of one step or on one node, as the pods show it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    /// The places of the first and the last entry in the ledger.
    pub(crate) first: usize,
    pub(crate) last: usize,
    /// The exit codes of the pods, in order.
    pub(crate) exits: Vec<i32>,
    /// The number of pods.
    pub(crate) pods: usize,
    /// The nodes of the pods, in order.
    pub(crate) nodes: Vec<String>,
}

impl Work {
    fn add(&mut self, place: usize, effect: &Effect) {
        if self.pods == 0 {
            self.first = place;
        }
        self.last = place;
        match effect {
            Effect::PodCreated { .. } => self.pods = self.pods.saturating_add(1),
            Effect::PodStarted { node } => self.nodes.push(node.clone()),
            Effect::PodEnded { exit_code } => self.exits.push(*exit_code),
            _ => {}
        }
    }
}

/// Returns the work of each unit of an object that had pods. The name of a pod begins with the object and the unit.
pub(crate) fn work(entries: &[Entry], object: &str, units: &[&str]) -> BTreeMap<String, Work> {
    let mut found: BTreeMap<String, Work> = BTreeMap::new();
    for (place, entry) in entries.iter().enumerate() {
        let rest = entry.name.strip_prefix(object).and_then(|rest| rest.strip_prefix('-'));
        let is_of =
            |unit: &&&str| rest.is_some_and(|rest| rest.strip_prefix(**unit).is_some_and(|end| end.starts_with('-')));
        if let Some(unit) = units.iter().filter(is_of).max_by_key(|unit| unit.len()) {
            found.entry((*unit).to_owned()).or_default().add(place, &entry.effect);
        }
    }
    found
}

/// Returns the work of replacing these pods, as (name, uid): from the first new pod to the end of the last old pod.
pub(crate) fn replacement(entries: &[Entry], targets: &[(String, String)]) -> Work {
    let mut work = Work::default();
    let uids: BTreeSet<&str> = targets.iter().map(|(_, uid)| uid.as_str()).collect();
    for (place, entry) in entries.iter().enumerate() {
        let is_part = match &entry.effect {
            Effect::PodCreated { for_origin: Some(origin), .. } => uids.contains(origin.as_str()),
            Effect::PodTerminating { .. } | Effect::PodGone => uids.contains(entry.uid.as_str()),
            _ => false,
        };
        if is_part {
            work.add(place, &entry.effect);
        }
    }
    work
}

/// Returns the pairs of a step and a step it depends on in which the second had not ended when the first began.
pub(crate) fn too_early<'a>(work: &BTreeMap<String, Work>, edges: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let is_early = |(step, on): &(&str, &str)| match (work.get(*step), work.get(*on)) {
        (Some(step), Some(on)) => step.first < on.last,
        _ => false,
    };
    edges.iter().copied().filter(is_early).collect()
}

/// Returns how many of these worked at once, at the worst entry.
pub(crate) fn most_at_once(work: &BTreeMap<String, Work>) -> usize {
    let at = |place: usize| work.values().filter(|one| one.first <= place && place <= one.last).count();
    work.values().map(|one| at(one.first)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn entry(name: &str, effect: Effect) -> Entry {
        let (namespace, uid) = ("default".to_owned(), name.to_owned());
        Entry { time: Duration::ZERO, namespace, name: name.to_owned(), uid, effect }
    }

    fn created(name: &str) -> Entry {
        entry(name, Effect::PodCreated { owner: None, for_origin: None })
    }

    fn ended(name: &str, exit_code: i32) -> Entry {
        entry(name, Effect::PodEnded { exit_code })
    }

    #[test]
    fn retries_are_the_work_of_their_step_and_other_pods_of_none() {
        let entries =
            [created("f-a-x"), ended("f-a-x", 1), created("foo-a-x"), created("f-a-r1-y"), ended("f-a-r1-y", 0)];
        let found = work(&entries, "f", &["a", "b"]);
        let expected = Work { first: 0, last: 4, exits: vec![1, 0], pods: 2, nodes: Vec::new() };
        assert_eq!(found, BTreeMap::from([("a".to_owned(), expected)]));
    }

    #[test]
    fn a_step_that_begins_before_the_one_it_depends_on_has_ended_is_too_early() {
        let entries = [created("f-a-x"), created("f-b-x"), ended("f-a-x", 0), ended("f-b-x", 0), created("f-c-x")];
        let found = work(&entries, "f", &["a", "b", "c"]);
        let edges = [("b", "a"), ("c", "a"), ("c", "d")];
        assert_eq!(too_early(&found, &edges), [("b", "a")]);
        assert_eq!(most_at_once(&found), 2);
    }

    #[test]
    fn a_replacement_lasts_until_the_last_old_pod_is_gone() {
        let origin = Effect::PodCreated { owner: None, for_origin: Some("a".to_owned()) };
        let entries =
            [created("a"), created("b"), entry("n", origin), entry("b", Effect::PodGone), entry("a", Effect::PodGone)];
        let found = replacement(&entries, &[("a".to_owned(), "a".to_owned())]);
        assert_eq!((found.first, found.last, found.pods), (2, 4, 1));
    }
}
