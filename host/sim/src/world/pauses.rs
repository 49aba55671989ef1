//! Pauses of a scenario: which stages of pods and sets do not advance, and for which of them.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use super::sets::SetKey;
use super::store::Place;

/// A step that a scenario can hold back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Brake {
    /// Sets make no pods.
    Creation,
    /// Pods that run do not become ready.
    Readiness,
    /// Pods are not ready, those that were lose it.
    Health,
    /// Deleted pods do not end.
    Termination,
    /// A set makes no pods while a command makes one of its pods again under its name; the world sets this one itself.
    Recreation,
}

/// The pods and sets that a pause applies to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// For all.
    World,
    /// For one set and, if it is a Deployment, for its ReplicaSets.
    Set(SetKey),
    /// For any pod of this namespace and name.
    Pod(String, String),
}

/// The pauses that are on.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    on: Mutex<BTreeSet<(Brake, Scope)>>,
}

impl Pauses {
    pub(crate) fn put_on(&self, brake: Brake, scope: Scope) {
        self.on.lock().insert((brake, scope));
    }

    pub(crate) fn take_off(&self, brake: Brake, scope: Scope) {
        self.on.lock().remove(&(brake, scope));
    }

    /// True if a pause is on for a pod or for any set of a lineage.
    pub(crate) fn hold(&self, brake: Brake, pod: Option<&Place>, lineage: &[SetKey]) -> bool {
        let on = self.on.lock();
        let is_on = |scope: Scope| on.contains(&(brake, scope));
        is_on(Scope::World)
            || pod.is_some_and(|(namespace, name)| is_on(Scope::Pod(namespace.clone(), name.clone())))
            || lineage.iter().any(|key| is_on(Scope::Set(key.clone())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::sets::SetKind;

    #[test]
    fn a_brake_holds_within_its_scope_until_it_is_taken_off() {
        let pauses = Pauses::default();
        let foo = SetKey::new(SetKind::CollaSet, "demo", "foo");
        let pod = ("demo".to_owned(), "a".to_owned());
        pauses.put_on(Brake::Readiness, Scope::Set(foo.clone()));
        assert!(pauses.hold(Brake::Readiness, Some(&pod), std::slice::from_ref(&foo)));
        assert!(!pauses.hold(Brake::Creation, Some(&pod), std::slice::from_ref(&foo)));
        assert!(!pauses.hold(Brake::Readiness, Some(&pod), &[]));
        pauses.take_off(Brake::Readiness, Scope::Set(foo.clone()));
        pauses.put_on(Brake::Readiness, Scope::Pod("demo".into(), "a".into()));
        assert!(pauses.hold(Brake::Readiness, Some(&pod), &[foo]));
    }
}
