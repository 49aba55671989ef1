//! The watches: of the OperationJobs, and of every kind that plugins or the host declare.
//!
//! They keep the [`Store`] and the jobs up to date and send a [`WatchEvent`] for each change. A kind whose declaration
//! changed counts as synced only once its objects were listed anew; until then the watch that was there goes on for those
//! that need no more than it has. The meaning of a change is decided elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use oarlock_core::cluster::hold_keys::HoldKeys;
use oarlock_core::cluster::memory::{NamespaceShares, Room};
use oarlock_core::cluster::object::{self, Kind, Object};
use oarlock_core::cluster::store::{Change, Indexed, Store};
use oarlock_core::cluster::task_pod::{JOB_UID, TASK_FIELDS};
use oarlock_core::job::key::{JobKey, JobRef};
use parking_lot::{Mutex, RwLock};
use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};

use crate::cluster::Link;
use crate::watch::health::{KindHealth, WatchHealth};
use crate::watch::operation_jobs::OperationJobSink;
use crate::watch::projection::Projection;
use crate::watch::reflector::{ItemSink, Reflector};

/// A change of a job or of a watched object.
#[derive(Clone, Debug)]
pub enum WatchEvent {
    /// A job was made or changed.
    Job(JobKey),
    /// The API server has said that the job of this UID is gone: it never comes back.
    JobGone(JobRef),
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

/// Everything that is watched beside the jobs, or read by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedKinds {
    /// What is watched, by kind.
    pub kinds: BTreeMap<Kind, WatchedKind>,
    /// RFC 6901 pointers of the fields to show of kinds that are not watched, when an object is read live.
    pub read: BTreeMap<Kind, BTreeSet<String>>,
}

impl WatchedKind {
    /// Adds another declaration.
    pub fn merge(&mut self, other: &Self) {
        self.fields.extend(other.fields.iter().cloned());
        self.labels_indexed.extend(other.labels_indexed.iter().cloned());
        self.fields_indexed.extend(other.fields_indexed.iter().cloned());
    }

    /// True if it has all that `other` declares.
    pub fn covers(&self, other: &Self) -> bool {
        let has = |field: &String| self.fields.contains(field) || self.fields_indexed.contains(field);
        other.fields.iter().all(has)
            && self.labels_indexed.is_superset(&other.labels_indexed)
            && self.fields_indexed.is_superset(&other.fields_indexed)
    }
}

impl WatchedKinds {
    /// Adds another declaration.
    pub fn merge(&mut self, other: &Self) {
        for (kind, declared) in &other.kinds {
            self.kinds.entry(kind.clone()).or_default().merge(declared);
        }
        for (kind, fields) in &other.read {
            self.read.entry(kind.clone()).or_default().extend(fields.iter().cloned());
        }
    }
}

/// The watched objects, from whatever showed them last.
#[derive(Clone)]
pub(crate) struct Objects {
    pub(crate) store: Arc<Store>,
    pub(crate) events: UnboundedSender<WatchEvent>,
    kept: Arc<RwLock<BTreeMap<Kind, Arc<Kept>>>>,
    /// By these it is known which holds of pods are the host's.
    pub(crate) hold_keys: Arc<RwLock<HoldKeys>>,
}

/// The fields that are kept of a kind, and the projection that reads no others.
#[derive(Default)]
struct Kept {
    pointers: Vec<String>,
    projection: Arc<Projection>,
}

impl Kept {
    /// Where pods are found by their task, what says how their container fares is read too, and kept of those alone.
    fn of(kind: &Kind, pointers: Vec<String>, with_tasks: bool) -> Self {
        let tasks = TASK_FIELDS.iter().filter(|_| with_tasks && *kind == Kind::pod()).map(|field| (*field).to_owned());
        let read: Vec<String> = pointers.iter().cloned().chain(tasks).collect();
        Self { pointers, projection: Arc::new(Projection::of_object(&read)) }
    }
}

impl Objects {
    pub(crate) fn new(events: UnboundedSender<WatchEvent>, room: Room) -> Self {
        Self { store: Arc::new(Store::within(room)), events, kept: Arc::default(), hold_keys: Arc::default() }
    }

    /// Keeps these fields from now on, and of other kinds none.
    pub(crate) fn keep(&self, watched: &BTreeMap<Kind, WatchedKind>, read: BTreeMap<Kind, BTreeSet<String>>) {
        let fields = |declared: &WatchedKind| declared.fields.union(&declared.fields_indexed).cloned().collect();
        let mut pointers: BTreeMap<Kind, Vec<String>> =
            read.into_iter().map(|(kind, fields)| (kind, fields.into_iter().collect())).collect();
        pointers.extend(watched.iter().map(|(kind, declared)| (kind.clone(), fields(declared))));
        let with_tasks =
            |kind: &Kind| watched.get(kind).is_some_and(|declared| declared.labels_indexed.contains(JOB_UID));
        let kept = pointers.into_iter().map(|(kind, pointers)| {
            let kept = Arc::new(Kept::of(&kind, pointers, with_tasks(&kind)));
            (kind, kept)
        });
        *self.kept.write() = kept.collect();
    }

    /// The projection of a kind, which skips the fields that are not kept.
    pub(crate) fn projection(&self, kind: &Kind) -> Arc<Projection> {
        self.kept.read().get(kind).map(|kept| kept.projection.clone()).unwrap_or_default()
    }

    /// The kept part of a document; `None` where the document is no object.
    pub(crate) fn project(&self, document: &Value, kind: &Kind) -> Option<Object> {
        let kept = self.kept.read().get(kind).cloned();
        Object::read(document, kind, kept.as_ref().map_or(&[], |kept| &kept.pointers), &self.hold_keys.read())
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

/// True once another watch of the kind has taken over: from then on this one changes nothing.
type Replaced = Arc<Mutex<bool>>;

/// The objects of one kind.
struct ObjectSink {
    objects: Objects,
    kind: Kind,
    replaced: Replaced,
    /// The watch that goes on until this one has listed its objects.
    before: Mutex<Option<(Replaced, AbortHandle)>>,
}

impl ObjectSink {
    /// Makes a change, unless another watch has taken over. The lock is held meanwhile: what is read with fewer fields
    /// never comes after what is read with all of them.
    fn change(&self, change: impl FnOnce(&Objects)) {
        let replaced = self.replaced.lock();
        if !*replaced {
            change(&self.objects);
        }
    }
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

    fn fitting(&self, object: Object, listed: &mut NamespaceShares) -> Object {
        let room = listed.admit(object.share(), 0, object.extra_bytes());
        if room.is_ok() { object } else { object.cut(object::Kept::NoRoom) }
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
    /// Nothing for the jobs.
    declared: WatchedKind,
    health: WatchHealth,
    task: JoinHandle<()>,
    replaced: Replaced,
    /// The watch that goes on until this one is synced.
    before: Option<Box<Running>>,
}

impl Running {
    /// The watch that shows the kind: this one once it is synced, else the one before. Any other ends.
    async fn showing(mut self) -> Option<Box<Running>> {
        if self.health.is_synced() {
            self.before = None;
            return Some(Box::new(self));
        }
        let before = self.before.take();
        self.end().await;
        before
    }

    /// Ends it.
    async fn end(mut self) {
        self.task.abort();
        // A cancelled task has stopped between two steps; nothing it keeps is half done.
        let _cancelled = (&mut self.task).await.is_err();
    }

    /// The state of each watch of the kind that shows something, or is about to.
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
            let health = || WatchHealth::new(self.changes.clone());
            running.entry(jobs.clone()).or_insert_with(|| watch_jobs(link, jobs, health()));
            for (kind, declared) in kinds {
                let before = showing.remove(&kind);
                running.entry(kind.clone()).or_insert_with(|| watch_kind((link, kind, health()), declared, before));
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
        self.running.lock().iter().flat_map(|(kind, running)| running.states(kind)).collect()
    }

    /// Ends all watches.
    pub(crate) fn stop(&self) {
        self.running.lock().clear();
    }
}

fn watch_jobs(link: &Link, kind: Kind, health: WatchHealth) -> Running {
    let sink = OperationJobSink { jobs: link.jobs.clone(), parents: link.parents.clone() };
    let reflector = Reflector { link: link.clone(), kind, sink, health: health.clone() };
    Running {
        declared: WatchedKind::default(),
        health,
        task: tokio::spawn(reflector.run()),
        replaced: Replaced::default(),
        before: None,
    }
}

fn watch_kind(
    (link, kind, health): (&Link, Kind, WatchHealth),
    declared: WatchedKind,
    before: Option<Box<Running>>,
) -> Running {
    let indexed = Indexed { labels: declared.labels_indexed.clone(), fields: declared.fields_indexed.clone() };
    link.objects.store.keep(&kind, indexed);
    let replaced = Replaced::default();
    let sink = ObjectSink {
        objects: link.objects.clone(),
        kind: kind.clone(),
        replaced: replaced.clone(),
        before: Mutex::new(before.as_ref().map(|before| (before.replaced.clone(), before.task.abort_handle()))),
    };
    let reflector = Reflector { link: link.clone(), kind, sink, health: health.clone() };
    Running { declared, health, task: tokio::spawn(reflector.run()), replaced, before }
}
