//! The watches of pods and sets. They pass events to the store and the event log, and wake the pod, its set and the set's own
//! controller.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::DynamicObject;
use kube::runtime::watcher::Event;
use tokio::sync::watch;

use super::labels;
use super::pod_facts::PodFacts;
use super::queue::Queue;
use super::rounds::{Rounds, WorkKey};
use super::sets::{SetKey, SetKind, SetView};
use super::store::{Place, StoredPod, place_of};

/// The state that all watches share.
#[derive(Clone)]
pub(crate) struct Watches {
    pub(crate) rounds: Arc<Rounds>,
    pub(crate) queue: Queue<WorkKey>,
    /// The namespaces that the simulated cluster handles. Empty means all.
    pub(crate) namespaces: Arc<HashSet<String>>,
    /// The number of watches that have delivered their first list.
    pub(crate) synced: Arc<watch::Sender<usize>>,
}

/// The state of a watch of pods.
pub(crate) struct PodWatch {
    pub(crate) watches: Watches,
    round: u64,
    seen: HashSet<String>,
    has_synced: bool,
}

impl PodWatch {
    pub(crate) fn new(watches: Watches) -> Self {
        Self { watches, round: 0, seen: HashSet::new(), has_synced: false }
    }

    /// Handles a watch event.
    pub(crate) fn saw(&mut self, event: Event<Pod>) {
        let rounds = self.watches.rounds.clone();
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
                if self.watches.looks_after_pod(&pod) {
                    rounds.writer.ledger.saw_gone(&pod);
                    self.watches.wake_pod(rounds.store.remove_pod(&pod));
                }
            }
            Event::InitDone => {
                rounds.store.end_pod_list(self.round);
                rounds.writer.ledger.only_these_exist(&self.seen);
                self.watches.wake_all();
                self.watches.count_sync(&mut self.has_synced);
            }
        }
    }

    fn applied(&self, pod: Pod) {
        if self.watches.looks_after_pod(&pod) {
            self.watches.rounds.writer.ledger.saw(&pod);
            self.watches.wake_pod(self.watches.rounds.store.put_pod(pod));
        }
    }
}

/// The state of a watch of one kind of set.
pub(crate) struct SetWatch {
    watches: Watches,
    kind: SetKind,
    round: u64,
    has_synced: bool,
}

impl SetWatch {
    pub(crate) fn new(watches: Watches, kind: SetKind) -> Self {
        Self { watches, kind, round: 0, has_synced: false }
    }

    /// Handles a watch event.
    pub(crate) fn saw(&mut self, event: Event<DynamicObject>) {
        let store = &self.watches.rounds.store;
        match event {
            Event::Init => self.round = store.begin_list(),
            Event::InitApply(object) | Event::Apply(object) => {
                if let Some(view) = self.view(&object) {
                    let (key, controller) = (view.key.clone(), view.controller.clone());
                    store.put_set(view);
                    self.watches.wake_sets(key, controller.as_deref());
                }
            }
            Event::Delete(object) => {
                if let Some(view) = self.view(&object) {
                    store.remove_set(&view.key, &view.uid);
                    self.watches.wake_sets(view.key, view.controller.as_deref());
                }
            }
            Event::InitDone => {
                store.end_set_list(self.kind, self.round);
                self.watches.count_sync(&mut self.has_synced);
            }
        }
    }

    fn view(&self, object: &DynamicObject) -> Option<SetView> {
        SetView::read(self.kind, object).filter(|view| self.watches.looks_after(&view.key.namespace))
    }
}

impl Watches {
    pub(crate) fn looks_after(&self, namespace: &str) -> bool {
        self.namespaces.is_empty() || self.namespaces.contains(namespace)
    }

    /// Returns true if the simulated cluster handles the pod. For a task pod, the namespace of its job decides.
    fn looks_after_pod(&self, pod: &Pod) -> bool {
        let job = pod.metadata.annotations.as_ref().and_then(|all| all.get(labels::TASK_JOB));
        let namespace = job.filter(|_| pod.bears(labels::TASK)).and_then(|job| Some(job.split_once('/')?.0));
        self.looks_after(namespace.unwrap_or(pod.pod_namespace()))
    }

    /// Wakes every key, for example after a pause has ended.
    pub(crate) fn wake_all(&self) {
        for pod in self.rounds.store.pods() {
            self.queue.add(WorkKey::Pod(place_of(&pod)), Duration::ZERO);
        }
        for key in self.rounds.store.set_keys() {
            self.wake_set(key);
        }
        for place in self.rounds.requests.places() {
            self.queue.add(WorkKey::Request(place), Duration::ZERO);
        }
        for place in self.rounds.jobs.places() {
            self.wake_job(place);
        }
    }

    fn wake_pod(&self, pod: StoredPod) {
        for place in self.rounds.requests.about(&pod.place) {
            self.queue.add(WorkKey::Request(place), Duration::ZERO);
        }
        self.queue.add(WorkKey::Pod(pod.place), Duration::ZERO);
        if let Some(place) = pod.owner.as_deref().and_then(|uid| self.rounds.jobs.place_of(uid)) {
            self.wake_job(place);
        }
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

    /// Wakes a set's controller after a short delay, so that changes in this time share one round.
    fn wake_set(&self, key: SetKey) {
        let moment = self.rounds.writer.random.between(self.rounds.timings.react, &["react", &key.to_string()]);
        self.queue.add(WorkKey::Set(key), moment);
    }

    /// Wakes a Job's controller, also after a short delay.
    pub(crate) fn wake_job(&self, place: Place) {
        let moment =
            self.rounds.writer.random.between(self.rounds.timings.react, &["react", "Job", &place.0, &place.1]);
        self.queue.add(WorkKey::Job(place), moment);
    }

    pub(crate) fn count_sync(&self, has_synced: &mut bool) {
        if !std::mem::replace(has_synced, true) {
            self.synced.send_modify(|count| *count += 1);
        }
    }
}
