//! The world's watches. Takes events of pods and sets, yields entries in the store and the ledger and keys in the
//! queue. It may not decide: each change merely wakes the pod, its set and the set's own controller.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::DynamicObject;
use kube::runtime::watcher::Event;
use tokio::sync::watch;

use super::pod_facts::PodFacts;
use super::queue::Queue;
use super::rounds::{Key, Rounds};
use super::sets::{SetKey, SetKind, SetView};
use super::store::{Stored, place_of};

/// What all watches share.
#[derive(Clone)]
pub(crate) struct Eyes {
    pub(crate) rounds: Arc<Rounds>,
    pub(crate) queue: Queue<Key>,
    /// Namespaces that the world looks after; none means all.
    pub(crate) namespaces: Arc<HashSet<String>>,
    /// How many watches have delivered their first list.
    pub(crate) synced: Arc<watch::Sender<usize>>,
}

/// The state of one watch of pods.
pub(crate) struct PodEye {
    pub(crate) eyes: Eyes,
    round: u64,
    seen: HashSet<String>,
    has_synced: bool,
}

impl PodEye {
    pub(crate) fn new(eyes: Eyes) -> Self {
        Self { eyes, round: 0, seen: HashSet::new(), has_synced: false }
    }

    /// Takes in one event.
    pub(crate) fn saw(&mut self, event: Event<Pod>) {
        let rounds = self.eyes.rounds.clone();
        match event {
            Event::Init => {
                self.round = rounds.store.begin_list();
                self.seen.clear();
            }
            Event::InitApply(pod) => {
                self.seen.insert(pod.uid().to_owned());
                self.applied(pod);
            }
            Event::Apply(pod) => self.applied(pod),
            Event::Delete(pod) => {
                if self.eyes.looks_after(pod.pod_namespace()) {
                    rounds.hands.ledger.saw_gone(&pod);
                    self.eyes.wake_pod(rounds.store.remove_pod(&pod));
                }
            }
            Event::InitDone => {
                rounds.store.end_pod_list(self.round);
                rounds.hands.ledger.only_these_exist(&self.seen);
                self.eyes.wake_all();
                self.eyes.count_sync(&mut self.has_synced);
            }
        }
    }

    fn applied(&self, pod: Pod) {
        if self.eyes.looks_after(pod.pod_namespace()) {
            self.eyes.rounds.hands.ledger.saw(&pod);
            self.eyes.wake_pod(self.eyes.rounds.store.put_pod(pod));
        }
    }
}

/// The state of one watch of one kind of set.
pub(crate) struct SetEye {
    eyes: Eyes,
    kind: SetKind,
    round: u64,
    has_synced: bool,
}

impl SetEye {
    pub(crate) fn new(eyes: Eyes, kind: SetKind) -> Self {
        Self { eyes, kind, round: 0, has_synced: false }
    }

    /// Takes in one event.
    pub(crate) fn saw(&mut self, event: Event<DynamicObject>) {
        let store = &self.eyes.rounds.store;
        match event {
            Event::Init => self.round = store.begin_list(),
            Event::InitApply(object) | Event::Apply(object) => {
                if let Some(view) = self.view(&object) {
                    let (key, controller) = (view.key.clone(), view.controller.clone());
                    store.put_set(view);
                    self.eyes.wake_sets(key, controller.as_deref());
                }
            }
            Event::Delete(object) => {
                if let Some(view) = self.view(&object) {
                    store.remove_set(&view.key, &view.uid);
                    self.eyes.wake_sets(view.key, view.controller.as_deref());
                }
            }
            Event::InitDone => {
                store.end_set_list(self.kind, self.round);
                self.eyes.count_sync(&mut self.has_synced);
            }
        }
    }

    fn view(&self, object: &DynamicObject) -> Option<SetView> {
        SetView::read(self.kind, object).filter(|view| self.eyes.looks_after(&view.key.namespace))
    }
}

impl Eyes {
    fn looks_after(&self, namespace: &str) -> bool {
        self.namespaces.is_empty() || self.namespaces.contains(namespace)
    }

    /// Wakes everything, for instance after a brake was taken off.
    pub(crate) fn wake_all(&self) {
        for pod in self.rounds.store.pods() {
            self.queue.add(Key::Pod(place_of(&pod)), Duration::ZERO);
        }
        for key in self.rounds.store.set_keys() {
            self.wake_set(key);
        }
    }

    fn wake_pod(&self, pod: Stored) {
        self.queue.add(Key::Pod(pod.place), Duration::ZERO);
        if let Some(key) = self.rounds.store.lineage(pod.owner.as_deref()).into_iter().next() {
            self.wake_set(key);
        }
    }

    fn wake_sets(&self, key: SetKey, controller: Option<&str>) {
        self.wake_set(key);
        if let Some(parent) = self.rounds.store.lineage(controller).into_iter().next() {
            self.wake_set(parent);
        }
    }

    /// Controllers react after a moment; changes within it cost one round together.
    fn wake_set(&self, key: SetKey) {
        let moment = self.rounds.hands.dice.between(self.rounds.timings.react, &["react", &key.to_string()]);
        self.queue.add(Key::Set(key), moment);
    }

    fn count_sync(&self, has_synced: &mut bool) {
        if !std::mem::replace(has_synced, true) {
            self.synced.send_modify(|count| *count += 1);
        }
    }
}
