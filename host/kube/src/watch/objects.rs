//! The watched objects with the declared fields, and the event of each change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use oarlock_core::cache::store::{Change, Store};
use oarlock_core::object::api_object::{Kind, Object};
use oarlock_core::object::hold_keys::HoldKeys;
use oarlock_core::object::key::{JobKey, JobRef};
use oarlock_core::object::memory::MemoryBudget;
use oarlock_core::object::task_pod::{JOB_UID, TASK_FIELDS};
use parking_lot::RwLock;
use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;

use crate::transport::projection::Projection;

/// A change of a job or of a watched object.
#[derive(Clone, Debug)]
pub enum WatchEvent {
    /// A job was created or changed.
    Job(JobKey),
    /// The API server said that the job with this UID was deleted. The job never comes back.
    JobGone(JobRef),
    /// A watched object was created, changed or deleted. `by` is the target of the write that made the change, if this process made it.
    Object {
        /// The object before and after.
        change: Change,
        /// The target that the write was for.
        by: Option<Author>,
    },
}

/// The target of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Author {
    /// The UID of the job.
    pub job_uid: String,
    /// The position of the target in the job.
    pub index: u32,
}

/// The kept fields of the objects of one kind, and the indexes of these objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedKind {
    /// RFC 6901 pointers of the kept fields. Metadata is always kept.
    pub fields: BTreeSet<String>,
    /// The label keys by which objects are indexed.
    pub labels_indexed: BTreeSet<String>,
    /// The pointers of the fields by which objects are indexed. These fields are kept too.
    pub fields_indexed: BTreeSet<String>,
}

/// All kinds that the host watches besides the jobs, and kinds that it reads by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedKinds {
    /// The watched kinds.
    pub kinds: BTreeMap<Kind, WatchedKind>,
    /// RFC 6901 pointers of the fields that live reads of unwatched kinds show.
    pub read: BTreeMap<Kind, BTreeSet<String>>,
}

impl WatchedKind {
    /// Adds another declaration.
    pub fn merge(&mut self, other: &Self) {
        self.fields.extend(other.fields.iter().cloned());
        self.labels_indexed.extend(other.labels_indexed.iter().cloned());
        self.fields_indexed.extend(other.fields_indexed.iter().cloned());
    }

    /// Returns true if this declaration has all fields and indexes of `other`.
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

/// The watched objects, each in the view that came last.
#[derive(Clone)]
pub(crate) struct Objects {
    pub(crate) store: Arc<Store>,
    pub(crate) events: UnboundedSender<WatchEvent>,
    kept: Arc<RwLock<BTreeMap<Kind, Arc<KeptFields>>>>,
    /// The keys that prove which holds of pods the host wrote.
    pub(crate) hold_keys: Arc<RwLock<HoldKeys>>,
}

/// The kept fields of a kind, and the projection that reads only these fields.
#[derive(Default)]
struct KeptFields {
    pointers: Vec<String>,
    projection: Arc<Projection>,
}

impl KeptFields {
    /// Adds the fields that show the state of a task's container if pods are indexed by their task. The store keeps them only for pods of
    /// tasks.
    fn of(kind: &Kind, pointers: Vec<String>, with_tasks: bool) -> Self {
        let tasks = TASK_FIELDS.iter().filter(|_| with_tasks && *kind == Kind::pod()).map(|field| (*field).to_owned());
        let read: Vec<String> = pointers.iter().cloned().chain(tasks).collect();
        Self { pointers, projection: Arc::new(Projection::of_object(&read)) }
    }
}

impl Objects {
    pub(crate) fn new(events: UnboundedSender<WatchEvent>, room: MemoryBudget) -> Self {
        Self { store: Arc::new(Store::within(room)), events, kept: Arc::default(), hold_keys: Arc::default() }
    }

    /// Keeps these fields from now on, and no fields of other kinds.
    pub(crate) fn keep(&self, watched: &BTreeMap<Kind, WatchedKind>, read: BTreeMap<Kind, BTreeSet<String>>) {
        let fields = |declared: &WatchedKind| declared.fields.union(&declared.fields_indexed).cloned().collect();
        let mut pointers: BTreeMap<Kind, Vec<String>> =
            read.into_iter().map(|(kind, fields)| (kind, fields.into_iter().collect())).collect();
        pointers.extend(watched.iter().map(|(kind, declared)| (kind.clone(), fields(declared))));
        let with_tasks =
            |kind: &Kind| watched.get(kind).is_some_and(|declared| declared.labels_indexed.contains(JOB_UID));
        let kept = pointers.into_iter().map(|(kind, pointers)| {
            let kept = Arc::new(KeptFields::of(&kind, pointers, with_tasks(&kind)));
            (kind, kept)
        });
        *self.kept.write() = kept.collect();
    }

    /// Returns the projection of a kind, which skips the fields that are not kept.
    pub(crate) fn projection(&self, kind: &Kind) -> Arc<Projection> {
        self.kept.read().get(kind).map(|kept| kept.projection.clone()).unwrap_or_default()
    }

    /// Returns the kept part of a document, or `None` if the document is not an object.
    pub(crate) fn project(&self, document: &Value, kind: &Kind) -> Option<Object> {
        let kept = self.kept.read().get(kind).cloned();
        Object::read(document, kind, kept.as_ref().map_or(&[], |kept| &kept.pointers), &self.hold_keys.read())
    }

    /// Puts a view of an object into the store if its kind is watched.
    pub(crate) fn take(&self, object: Object) {
        self.send(self.store.apply(object), None);
    }

    pub(crate) fn send(&self, changes: impl IntoIterator<Item = Change>, by: Option<&Author>) {
        for change in changes {
            // The receiver is dropped only while the host stops.
            let _stopping = self.events.send(WatchEvent::Object { change, by: by.cloned() }).is_err();
        }
    }
}
