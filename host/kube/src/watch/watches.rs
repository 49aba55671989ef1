//! The watches: of the OperationJobs, and of every kind that plugins or the host declare.
//!
//! They keep the [`Store`] and the jobs up to date and send a [`WatchEvent`] for each change. A kind whose declaration
//! changed counts as synced only once its objects were listed anew. The meaning of a change is decided elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use oarlock_core::cluster::object::{Kind, Object};
use oarlock_core::cluster::store::{Change, Indexed, Store};
use oarlock_core::job::key::JobKey;
use parking_lot::{Mutex, RwLock};
use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::cluster::Link;
use crate::watch::health::{KindHealth, WatchHealth};
use crate::watch::projection::Projection;
use crate::watch::reflector::{ItemSink, Reflector};

/// A change of a job or of a watched object.
#[derive(Clone, Debug)]
pub enum WatchEvent {
    /// A job was made, changed or is gone.
    Job(JobKey),
    /// A watched object was made, changed or is gone. `by` is the target whose write made the change, where this process made it.
    Object {
        /// The object before and after.
        change: Change,
        /// The target that the write was for.
        by: Option<Author>,
    },
}

/// The target that a write was for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Author {
    /// UID of its job.
    pub job_uid: String,
    /// Its position there.
    pub index: u32,
}

/// The fields that are kept of the objects of one kind, and those they are found by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedKind {
    /// RFC 6901 pointers of the fields to keep; metadata is always kept.
    pub fields: BTreeSet<String>,
    /// Keys of labels that objects are found by.
    pub labels_indexed: BTreeSet<String>,
    /// Pointers of fields that objects are found by; kept too.
    pub fields_indexed: BTreeSet<String>,
}

/// Everything that is watched beside the jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedKinds {
    /// By kind.
    pub kinds: BTreeMap<Kind, WatchedKind>,
}

impl WatchedKind {
    /// Adds another declaration.
    pub fn merge(&mut self, other: &Self) {
        self.fields.extend(other.fields.iter().cloned());
        self.labels_indexed.extend(other.labels_indexed.iter().cloned());
        self.fields_indexed.extend(other.fields_indexed.iter().cloned());
    }
}

impl WatchedKinds {
    /// Adds another declaration.
    pub fn merge(&mut self, other: &Self) {
        for (kind, declared) in &other.kinds {
            self.kinds.entry(kind.clone()).or_default().merge(declared);
        }
    }
}

/// The watched objects, from whatever showed them last.
#[derive(Clone)]
pub(crate) struct Objects {
    pub(crate) store: Arc<Store>,
    pub(crate) events: UnboundedSender<WatchEvent>,
    kept: Arc<RwLock<BTreeMap<Kind, Arc<Kept>>>>,
}

/// The fields that are kept of a kind, and the projection that reads no others.
#[derive(Default)]
struct Kept {
    pointers: Vec<String>,
    projection: Arc<Projection>,
}

impl Kept {
    fn of(declared: &WatchedKind) -> Self {
        let pointers: Vec<String> = declared.fields.union(&declared.fields_indexed).cloned().collect();
        let projection = Arc::new(Projection::of_object(&pointers));
        Self { pointers, projection }
    }
}

impl Objects {
    pub(crate) fn new(events: UnboundedSender<WatchEvent>) -> Self {
        Self { store: Arc::default(), events, kept: Arc::default() }
    }

    /// The projection of a kind, which skips the fields that are not kept.
    pub(crate) fn projection(&self, kind: &Kind) -> Arc<Projection> {
        self.kept.read().get(kind).map(|kept| kept.projection.clone()).unwrap_or_default()
    }

    /// The kept part of a document; `None` where the document is no object.
    pub(crate) fn project(&self, document: &Value, kind: &Kind) -> Option<Object> {
        let kept = self.kept.read().get(kind).cloned();
        Object::slim(document, kind, kept.as_ref().map_or(&[], |kept| &kept.pointers))
    }

    /// Puts a view of an object into the store, where its kind is watched.
    pub(crate) fn take(&self, object: Object) {
        self.send(self.store.apply(object), None);
    }

    pub(crate) fn send(&self, changes: impl IntoIterator<Item = Change>, by: Option<&Author>) {
        for change in changes {
            // The receiver is gone only while the host stops.
            let _stopping = self.events.send(WatchEvent::Object { change, by: by.cloned() }).is_err();
        }
    }
}

/// The objects of one kind.
struct ObjectSink {
    objects: Objects,
    kind: Kind,
}

impl ItemSink for ObjectSink {
    type Item = Object;

    fn projection(&self) -> Arc<Projection> {
        self.objects.projection(&self.kind)
    }

    fn pick(&self, document: Value) -> Option<Object> {
        // Items of a list do not name their kind; it is the kind that was listed.
        self.objects.project(&document, &self.kind).filter(|object| object.key.kind == self.kind)
    }

    fn listed(&self, items: Vec<Object>, version: u64) {
        self.objects.send(self.objects.store.reset(&self.kind, items, version), None);
    }

    fn changed(&self, item: Object) {
        self.objects.take(item);
    }

    fn deleted(&self, item: Object) {
        self.objects.send(self.objects.store.remove(item), None);
    }
}

/// The watches that run.
pub(crate) struct Watches {
    running: Mutex<BTreeMap<Kind, Running>>,
    /// Declarations take effect one after the other; the last one stays.
    turn: tokio::sync::Mutex<()>,
    changes: watch::Sender<u64>,
}

impl Default for Watches {
    fn default() -> Self {
        Self { running: Mutex::default(), turn: tokio::sync::Mutex::default(), changes: watch::Sender::new(0) }
    }
}

struct Running {
    /// `None` for the jobs.
    declared: Option<WatchedKind>,
    health: WatchHealth,
    task: JoinHandle<()>,
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
        let WatchedKinds { kinds } = declared;
        let turn = self.turn.lock().await;
        let outdated = self.take_outdated(&jobs, &kinds);
        for (kind, mut running) in outdated {
            running.task.abort();
            // A cancelled task has stopped between two steps; nothing it keeps is half done.
            let _cancelled = (&mut running.task).await.is_err();
            if !kinds.contains_key(&kind) {
                link.objects.kept.write().remove(&kind);
                link.objects.store.forget(&kind);
            }
        }
        {
            let mut running = self.running.lock();
            let health = || WatchHealth::new(self.changes.clone());
            running.entry(jobs.clone()).or_insert_with(|| watch_jobs(link, jobs, health()));
            for (kind, declared) in kinds {
                running.entry(kind.clone()).or_insert_with(|| watch_kind(link, kind, declared, health()));
            }
        }
        drop(turn);
        self.changes.send_modify(|number| *number = number.wrapping_add(1));
    }

    fn take_outdated(&self, jobs: &Kind, kinds: &BTreeMap<Kind, WatchedKind>) -> Vec<(Kind, Running)> {
        let mut running = self.running.lock();
        let current = |kind: &Kind, running: &Running| kind == jobs || running.declared.as_ref() == kinds.get(kind);
        let (keep, outdated) = std::mem::take(&mut *running).into_iter().partition(|(kind, run)| current(kind, run));
        *running = keep;
        let outdated: BTreeMap<Kind, Running> = outdated;
        outdated.into_iter().collect()
    }

    /// Resolves once the jobs and these kinds were listed with the fields that are declared now.
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

    /// Rises when the state of a watch changes.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(crate) fn health(&self) -> Vec<KindHealth> {
        self.running.lock().iter().map(|(kind, running)| running.health.of(kind)).collect()
    }

    /// Ends all watches.
    pub(crate) fn stop(&self) {
        self.running.lock().clear();
    }
}

fn watch_jobs(link: &Link, kind: Kind, health: WatchHealth) -> Running {
    let reflector = Reflector { link: link.clone(), kind, sink: link.jobs.clone(), health: health.clone() };
    Running { declared: None, health, task: tokio::spawn(reflector.run()) }
}

fn watch_kind(link: &Link, kind: Kind, declared: WatchedKind, health: WatchHealth) -> Running {
    link.objects.kept.write().insert(kind.clone(), Arc::new(Kept::of(&declared)));
    let indexed = Indexed { labels: declared.labels_indexed.clone(), fields: declared.fields_indexed.clone() };
    link.objects.store.keep(&kind, indexed);
    let sink = ObjectSink { objects: link.objects.clone(), kind: kind.clone() };
    let reflector = Reflector { link: link.clone(), kind, sink, health: health.clone() };
    Running { declared: Some(declared), health, task: tokio::spawn(reflector.run()) }
}
