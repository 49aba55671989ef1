//! Pauses of a scenario: the stages that do not advance, and the pods and sets to which this applies.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use super::sets::SetKey;
use super::store::Place;

/// A stage that a scenario can pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pause {
    /// Sets create no pods.
    Creation,
    /// Pods get no node. They stay Pending, and a deletion removes them at once.
    Scheduling,
    /// Kubelets do not start task pods.
    Tasks,
    /// Running pods do not become ready.
    Readiness,
    /// Pods are not ready. Ready pods become unready.
    Health,
    /// Deleted pods do not end.
    Termination,
    /// Neither the webhook nor the controller of the PodOpsLifecycle acts.
    Lifecycle,
    /// The rules before an operation do not pass, so no pod becomes `pre-checked`.
    Rules,
    /// Traffic controllers do not release pods: the finalizers that begin with `prot.` stay.
    Draining,
    /// OpenKruise restarts no container, so requests for a restart never complete.
    Restart,
    /// A set creates no pods while a command recreates one of its pods. Only the simulation itself starts this pause.
    Recreation,
}

/// The pods and sets that a pause applies to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// All pods and sets.
    World,
    /// One set and, for a Deployment, its ReplicaSets.
    Set(SetKey),
    /// Every pod with this namespace and name.
    Pod(String, String),
}

/// The active pauses.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    on: Mutex<BTreeSet<(Pause, Scope)>>,
}

impl Pauses {
    pub(crate) fn begin(&self, pause: Pause, scope: Scope) {
        self.on.lock().insert((pause, scope));
    }

    pub(crate) fn end(&self, pause: Pause, scope: Scope) {
        self.on.lock().remove(&(pause, scope));
    }

    /// Returns true if a pause applies to a pod or to a set of a lineage.
    pub(crate) fn hold(&self, pause: Pause, pod: Option<&Place>, lineage: &[SetKey]) -> bool {
        let on = self.on.lock();
        let is_on = |scope: Scope| on.contains(&(pause, scope));
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
    fn a_pause_holds_within_its_scope_until_it_ends() {
        let pauses = Pauses::default();
        let foo = SetKey::new(SetKind::CollaSet, "demo", "foo");
        let pod = ("demo".to_owned(), "a".to_owned());
        pauses.begin(Pause::Readiness, Scope::Set(foo.clone()));
        assert!(pauses.hold(Pause::Readiness, Some(&pod), std::slice::from_ref(&foo)));
        assert!(!pauses.hold(Pause::Creation, Some(&pod), std::slice::from_ref(&foo)));
        assert!(!pauses.hold(Pause::Readiness, Some(&pod), &[]));
        pauses.end(Pause::Readiness, Scope::Set(foo.clone()));
        pauses.begin(Pause::Readiness, Scope::Pod("demo".into(), "a".into()));
        assert!(pauses.hold(Pause::Readiness, Some(&pod), &[foo]));
    }
}
