//! Pauses of a scenario: which stages of pods and sets do not advance, and for which of them.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use super::sets::SetKey;
use super::store::Place;

/// A step that a scenario can hold back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pause {
    /// Sets make no pods.
    Creation,
    /// Pods get no node: they stay Pending, and a deletion ends them at once.
    Scheduling,
    /// Kubelets do not start the pods of tasks.
    Tasks,
    /// Pods that run do not become ready.
    Readiness,
    /// Pods are not ready, those that were lose it.
    Health,
    /// Deleted pods do not end.
    Termination,
    /// Nobody takes part in the PodOpsLifecycle: neither webhook nor controller is there.
    Lifecycle,
    /// The rules before an operation do not pass: nothing is `pre-checked`.
    Rules,
    /// Controllers of traffic do not let pods go: the finalizers that begin with `prot.` stay.
    Draining,
    /// Kruise restarts no container: requests for it never complete.
    Restart,
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
    on: Mutex<BTreeSet<(Pause, Scope)>>,
}

impl Pauses {
    pub(crate) fn begin(&self, pause: Pause, scope: Scope) {
        self.on.lock().insert((pause, scope));
    }

    pub(crate) fn end(&self, pause: Pause, scope: Scope) {
        self.on.lock().remove(&(pause, scope));
    }

    /// True if a pause is on for a pod or for any set of a lineage.
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
