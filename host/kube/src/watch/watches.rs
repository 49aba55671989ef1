//! The watches of the OperationJobs and of every kind that plugins or the host declare.
//!
//! The watches keep the store and the jobs up to date and send a `WatchEvent` for each change. A kind with a changed declaration
//! counts as synced only after a new list. Until then, the previous watch continues for callers that need no more fields than it has. Other
//! modules decide what a change means.

use std::collections::BTreeMap;
use std::sync::Arc;

use oarlock_core::cache::store::Indexed;
use oarlock_core::object::api_object::{Kept, Kind, Object};
use oarlock_core::object::memory::NamespaceShares;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};

use crate::link::Link;
use crate::transport::projection::Projection;
use crate::watch::handler::EventHandler;
use crate::watch::health::{KindHealth, WatchHealth};
use crate::watch::objects::{Objects, WatchedKind, WatchedKinds};
use crate::watch::operation_jobs::OperationJobHandler;
use crate::watch::reflector::Reflector;

/// True once another watch of the kind has taken over. The replaced watch then changes nothing.
type Replaced = Arc<Mutex<bool>>;

/// The handler for the objects of one kind.
struct ObjectHandler {
    objects: Objects,
    kind: Kind,
    replaced: Replaced,
    /// The watch that continues until this watch has listed its objects.
    before: Mutex<Option<(Replaced, AbortHandle)>>,
}

impl ObjectHandler {
    /// Makes a change, unless another watch has taken over. The lock is held during the change, so that a view with fewer fields never
    /// follows a view with all fields.
    fn change(&self, change: impl FnOnce(&Objects)) {
        let replaced = self.replaced.lock();
        if !*replaced {
            change(&self.objects);
        }
    }
}

impl EventHandler for ObjectHandler {
    type Item = Object;

    fn projection(&self) -> Arc<Projection> {
        self.objects.projection(&self.kind)
    }

    fn pick(&self, document: Value) -> Option<Object> {
        // List items do not name their kind, so they have the kind of the list.
        self.objects.project(&document, &self.kind).filter(|object| object.key.kind == self.kind)
    }

    fn fitting(&self, object: Object, listed: &mut NamespaceShares) -> Object {
        let room = listed.admit(object.share(), 0, object.extra_bytes());
        if room.is_ok() { object } else { object.cut(Kept::NoRoom) }
    }

    fn listed(&self, items: Vec<Object>, version: u64) {
        if let Some((replaced, task)) = self.before.lock().take() {
            *replaced.lock() = true;
            task.abort();
        }
        self.change(|objects| objects.send(objects.store.reset(&self.kind, items, version), None));
    }

    fn changed(&self, item: Object) {
        self.change(|objects| objects.take(item));
    }

    fn deleted(&self, item: Object) {
        self.change(|objects| objects.send(objects.store.remove(item), None));
    }
}

/// The running watches.
pub(crate) struct Watches {
    running: Mutex<BTreeMap<Kind, Running>>,
    /// The lock that applies declarations one after the other. The last declaration stays.
    turn: tokio::sync::Mutex<()>,
    changes: watch::Sender<u64>,
}

impl Default for Watches {
    fn default() -> Self {
        Self { running: Mutex::default(), turn: tokio::sync::Mutex::default(), changes: watch::Sender::new(0) }
    }
}

struct Running {
    /// The declaration of the watch. It is empty for the jobs.
    declared: WatchedKind,
    health: WatchHealth,
    task: JoinHandle<()>,
    replaced: Replaced,
    /// The watch that continues until this watch is synced.
    before: Option<Box<Running>>,
}

impl Running {
    /// Returns the watch that shows the kind: this watch if it is synced, and otherwise the previous watch. Any other watch ends.
    async fn showing(mut self) -> Option<Box<Running>> {
        if self.health.is_synced() {
            self.before = None;
            return Some(Box::new(self));
        }
        let before = self.before.take();
        self.end().await;
        before
    }

    /// Ends the watch.
    async fn end(mut self) {
        self.task.abort();
        // A cancelled task has stopped between two steps, so none of its changes is half done.
        let _cancelled = (&mut self.task).await.is_err();
    }

    /// Returns the state of each watch of the kind that shows objects or is about to.
    fn states(&self, kind: &Kind) -> impl Iterator<Item = KindHealth> {
        let before = self.before.as_ref().filter(|_| !self.health.is_synced());
        let before = before.map(|before| before.health.of(kind, before.declared.clone()));
        before.into_iter().chain([self.health.of(kind, self.declared.clone())])
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Watches {
    /// Watches the jobs, if they are not watched yet, and exactly the kinds of `declared`.
    pub(crate) async fn declare(&self, link: &Link, declared: WatchedKinds) {
        let jobs = Kind::job();
        let WatchedKinds { kinds, read } = declared;
        let turn = self.turn.lock().await;
        let outdated = self.take_outdated(&jobs, &kinds);
        let mut showing = BTreeMap::new();
        for (kind, mut running) in outdated {
            if kinds.contains_key(&kind) {
                showing.extend(running.showing().await.map(|before| (kind, before)));
                continue;
            }
            if let Some(before) = running.before.take() {
                before.end().await;
            }
            running.end().await;
            link.objects.store.forget(&kind);
        }
        link.objects.keep(&kinds, read);
        {
            let mut running = self.running.lock();
            running.entry(jobs.clone()).or_insert_with(|| self.watch_jobs(link, jobs));
            for (kind, declared) in kinds {
                let before = showing.remove(&kind);
                running.entry(kind.clone()).or_insert_with(|| self.watch_kind(link, kind, declared, before));
            }
        }
        drop(turn);
        self.changes.send_modify(|number| *number = number.wrapping_add(1));
    }

    fn take_outdated(&self, jobs: &Kind, kinds: &BTreeMap<Kind, WatchedKind>) -> Vec<(Kind, Running)> {
        let mut running = self.running.lock();
        let current = |kind: &Kind, running: &Running| kind == jobs || Some(&running.declared) == kinds.get(kind);
        let (keep, outdated) = std::mem::take(&mut *running).into_iter().partition(|(kind, run)| current(kind, run));
        *running = keep;
        let outdated: BTreeMap<Kind, Running> = outdated;
        outdated.into_iter().collect()
    }

    /// Waits until the jobs and these kinds are listed with the fields that are declared now.
    pub(crate) async fn synced(&self, kinds: &[Kind]) {
        let mut changes = self.changes();
        while !self.are_synced(kinds) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    fn are_synced(&self, kinds: &[Kind]) -> bool {
        let jobs = Kind::job();
        let running = self.running.lock();
        kinds.iter().chain([&jobs]).all(|kind| running.get(kind).is_some_and(|run| run.health.is_synced()))
    }

    /// Returns a counter that rises when the state of a watch changes.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(crate) fn health(&self) -> Vec<KindHealth> {
        self.running.lock().iter().flat_map(|(kind, running)| running.states(kind)).collect()
    }

    /// Ends all watches.
    pub(crate) fn stop(&self) {
        self.running.lock().clear();
    }

    fn new_health(&self) -> WatchHealth {
        WatchHealth::new(self.changes.clone())
    }

    /// Begins the watch of the jobs.
    fn watch_jobs(&self, link: &Link, kind: Kind) -> Running {
        let health = self.new_health();
        let handler = OperationJobHandler { jobs: link.jobs.clone(), owners: link.owners.clone() };
        let reflector = Reflector { link: link.clone(), kind, handler, health: health.clone() };
        Running {
            declared: WatchedKind::default(),
            health,
            task: tokio::spawn(reflector.run()),
            replaced: Replaced::default(),
            before: None,
        }
    }

    /// Begins the watch of a kind, which takes over from the watch `before` once it is synced.
    fn watch_kind(&self, link: &Link, kind: Kind, declared: WatchedKind, before: Option<Box<Running>>) -> Running {
        let health = self.new_health();
        let indexed = Indexed { labels: declared.labels_indexed.clone(), fields: declared.fields_indexed.clone() };
        link.objects.store.keep(&kind, indexed);
        let replaced = Replaced::default();
        let handler = ObjectHandler {
            objects: link.objects.clone(),
            kind: kind.clone(),
            replaced: replaced.clone(),
            before: Mutex::new(before.as_ref().map(|before| (before.replaced.clone(), before.task.abort_handle()))),
        };
        let reflector = Reflector { link: link.clone(), kind, handler, health: health.clone() };
        Running { declared, health, task: tokio::spawn(reflector.run()), replaced, before }
    }
}
