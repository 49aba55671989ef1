//! Checks an event log: was each target of an operation replaced exactly once, and was no other pod lost?

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::ledger::{Cause, Effect, Entry};

/// The effects on one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetOutcome {
    /// Name of the target.
    pub name: String,
    /// UID of the target.
    pub uid: String,
    /// The number of times that the target went. The right number is one.
    pub times_gone: usize,
    /// Names and uids of the replacements of the target. The right number is one.
    pub replacements: Vec<(String, String)>,
}

impl TargetOutcome {
    /// Returns true if the target went once and was replaced once.
    #[must_use]
    pub fn is_right(&self) -> bool {
        self.times_gone == 1 && self.replacements.len() == 1
    }
}

/// The result of a check of an operation's physical effects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerCheck {
    /// The outcomes of the targets in the given order.
    pub targets: Vec<TargetOutcome>,
    /// The lost pods that were not targets, were not scaled down, and were not recreated by a scenario, as (name, uid).
    pub others_lost: Vec<(String, String)>,
}

impl LedgerCheck {
    /// Returns true if each target was replaced exactly once and no other pod was lost.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.others_lost.is_empty() && self.targets.iter().all(TargetOutcome::is_right)
    }
}

impl fmt::Display for LedgerCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let right = self.targets.iter().filter(|fate| fate.is_right()).count();
        write!(f, "{right} of {} targets went once and were replaced once", self.targets.len())?;
        for fate in self.targets.iter().filter(|fate| !fate.is_right()) {
            let names: Vec<&str> = fate.replacements.iter().map(|(name, _)| name.as_str()).collect();
            let list = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            write!(f, "\n  {} ({}): gone {} times, replaced by {list}", fate.name, fate.uid, fate.times_gone)?;
        }
        for (name, uid) in &self.others_lost {
            write!(f, "\n  {name} ({uid}): lost although it was no target")?;
        }
        Ok(())
    }
}

/// Checks entries for the given targets, each as (name, uid).
pub(crate) fn judge(entries: &[Entry], targets: &[(String, String)]) -> LedgerCheck {
    let mut gone: BTreeMap<&str, usize> = BTreeMap::new();
    let mut replacements: BTreeMap<&str, Vec<(String, String)>> = BTreeMap::new();
    let mut lost: BTreeMap<&str, &str> = BTreeMap::new();
    let mut excused: BTreeSet<&str> = BTreeSet::new();
    for entry in entries {
        match &entry.effect {
            Effect::PodCreated { for_origin: Some(origin), .. } => {
                replacements.entry(origin).or_default().push((entry.name.clone(), entry.uid.clone()));
            }
            Effect::PodTerminating { cause: Cause::ScaledDown | Cause::Recreated } => {
                excused.insert(&entry.uid);
            }
            Effect::PodGone => {
                *gone.entry(&entry.uid).or_default() += 1;
                lost.insert(&entry.uid, &entry.name);
            }
            Effect::PodTerminating { .. } => {
                lost.insert(&entry.uid, &entry.name);
            }
            Effect::PodCreated { for_origin: None, .. }
            | Effect::PodStarted { .. }
            | Effect::PodReady
            | Effect::PodEnded { .. }
            | Effect::ContainerRestarted { .. }
            | Effect::NodeRebooted { .. }
            | Effect::NodeReady { .. }
            | Effect::PodEvicted => {}
        }
    }
    let expected: BTreeSet<&str> = targets.iter().map(|(_, uid)| uid.as_str()).collect();
    let is_stranger = |uid: &str| !expected.contains(uid) && !excused.contains(uid);
    let others = lost.iter().filter(|(uid, _)| is_stranger(uid));
    let others_lost = others.map(|(uid, name)| ((*name).to_owned(), (*uid).to_owned())).collect();
    let fate = |(name, uid): &(String, String)| TargetOutcome {
        name: name.clone(),
        uid: uid.clone(),
        times_gone: gone.get(uid.as_str()).copied().unwrap_or(0),
        replacements: replacements.get(uid.as_str()).cloned().unwrap_or_default(),
    };
    LedgerCheck { targets: targets.iter().map(fate).collect(), others_lost }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn entry(name: &str, effect: Effect) -> Entry {
        let uid = format!("uid-{name}");
        Entry { time: Duration::ZERO, namespace: "demo".into(), name: name.into(), uid, effect }
    }

    fn created(name: &str, origin: Option<&str>) -> Entry {
        let for_origin = origin.map(|name| format!("uid-{name}"));
        entry(name, Effect::PodCreated { owner: None, for_origin })
    }

    fn target(name: &str) -> (String, String) {
        (name.to_owned(), format!("uid-{name}"))
    }

    #[test]
    fn one_departure_and_one_replacement_are_clean() {
        let entries = [created("a", None), created("b", Some("a")), entry("a", Effect::PodGone)];
        assert!(judge(&entries, &[target("a")]).is_clean());
    }

    #[test]
    fn a_second_replacement_an_absent_one_and_a_stranger_are_named() {
        let entries = [
            created("b", Some("a")),
            created("c", Some("a")),
            entry("a", Effect::PodGone),
            entry("x", Effect::PodTerminating { cause: Cause::Evicted }),
        ];
        let verdict = judge(&entries, &[target("a"), target("d")]);
        assert!(!verdict.is_clean());
        assert_eq!(
            verdict.to_string(),
            "0 of 2 targets went once and were replaced once\n  a (uid-a): gone 1 times, replaced by b, c\n  \
             d (uid-d): gone 0 times, replaced by none\n  x (uid-x): lost although it was no target",
        );
    }

    #[test]
    fn a_pod_that_its_set_gave_up_is_not_lost() {
        let entries = [entry("x", Effect::PodTerminating { cause: Cause::ScaledDown }), entry("x", Effect::PodGone)];
        assert!(judge(&entries, &[]).is_clean());
    }
}
