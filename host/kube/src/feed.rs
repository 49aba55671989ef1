//! What is watched: the OperationJobs, and every kind that plugins or the host declare.
//!
//! Takes [`Declared`]; keeps the [`Store`] and the jobs up to date and yields [`News`] of each change. A kind whose
//! declaration changed counts as synced only once its objects were listed anew. May not decide what a change means.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use oarlock_core::cluster::object::{Kind, Object};
use oarlock_core::cluster::store::{Change, Indexed, Store};
use oarlock_core::cluster::writes::JobKey;
use parking_lot::{Mutex, RwLock};
use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;

use crate::cluster::Link;
use crate::health::{KindHealth, Pulse};
use crate::reflect::{Reflection, Shelf};
use crate::sieve::Sieve;

/// Something changed.
#[derive(Clone, Debug)]
pub enum News {
    /// A job was made, changed or is gone.
    Job(JobKey),
    /// A watched object was made, changed or is gone.
    Object(Change),
}

/// What is kept of the objects of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeclaredKind {
    /// RFC 6901 pointers of the fields to keep; metadata is always kept.
    pub fields: BTreeSet<String>,
    /// Keys of labels that objects are found by.
    pub labels_indexed: BTreeSet<String>,
    /// Pointers of fields that objects are found by; kept too.
    pub fields_indexed: BTreeSet<String>,
}

/// Everything that is watched beside the jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    /// By kind.
    pub kinds: BTreeMap<Kind, DeclaredKind>,
}

impl DeclaredKind {
    /// Takes what another one declares in as well.
    pub fn merge(&mut self, other: &Self) {
        self.fields.extend(other.fields.iter().cloned());
        self.labels_indexed.extend(other.labels_indexed.iter().cloned());
        self.fields_indexed.extend(other.fields_indexed.iter().cloned());
    }
}

impl Declared {
    /// Takes what another one declares in as well.
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
    pub(crate) news: UnboundedSender<News>,
    kept: Arc<RwLock<BTreeMap<Kind, Arc<Kept>>>>,
}

/// Which fields are kept of a kind, and how documents are read for that.
#[derive(Default)]
struct Kept {
    pointers: Vec<String>,
    sieve: Arc<Sieve>,
}

impl Kept {
    fn of(declared: &DeclaredKind) -> Self {
        let pointers: Vec<String> = declared.fields.union(&declared.fields_indexed).cloned().collect();
        let sieve = Arc::new(Sieve::of_object(&pointers));
        Self { pointers, sieve }
    }
}

impl Objects {
    pub(crate) fn new(news: UnboundedSender<News>) -> Self {
        Self { store: Arc::default(), news, kept: Arc::default() }
    }

    /// How documents of a kind are read: what is not kept of a watched kind is skipped.
    pub(crate) fn sieve(&self, kind: &Kind) -> Arc<Sieve> {
        self.kept.read().get(kind).map(|kept| kept.sieve.clone()).unwrap_or_default()
    }

    /// What is kept of this document; `None` where it is no object.
    pub(crate) fn slim(&self, document: &Value, kind: &Kind) -> Option<Object> {
        let kept = self.kept.read().get(kind).cloned();
        Object::slim(document, kind, kept.as_ref().map_or(&[], |kept| &kept.pointers))
    }

    /// Takes a view of an object that is watched; others are let pass.
    pub(crate) fn take(&self, object: Object) {
        self.tell(self.store.apply(object));
    }

    pub(crate) fn tell(&self, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            // Nobody listens any more only while the host stops.
            let _stopping = self.news.send(News::Object(change)).is_err();
        }
    }
}

/// The objects of one kind.
struct ObjectShelf {
    objects: Objects,
    kind: Kind,
}

impl Shelf for ObjectShelf {
    type Item = Object;

    fn sieve(&self) -> Arc<Sieve> {
        self.objects.sieve(&self.kind)
    }

    fn pick(&self, document: Value) -> Option<Object> {
        // Items of a list do not say their kind; what was asked for is what came.
        self.objects.slim(&document, &self.kind).filter(|object| object.key.kind == self.kind)
    }

    fn listed(&self, items: Vec<Object>, version: u64) {
        self.objects.tell(self.objects.store.reset(&self.kind, items, version));
    }

    fn changed(&self, item: Object) {
        self.objects.take(item);
    }

    fn deleted(&self, item: Object) {
        self.objects.tell(self.objects.store.remove(item));
    }
}

/// The watches that run.
#[derive(Default)]
pub(crate) struct Feed {
    running: Mutex<BTreeMap<Kind, Running>>,
    /// Declarations take effect one after the other; the last one stays.
    turn: tokio::sync::Mutex<()>,
}

struct Running {
    /// `None` for the jobs.
    declared: Option<DeclaredKind>,
    pulse: Pulse,
    task: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Feed {
    /// Watches the jobs, if they are not watched yet, and exactly the kinds of `declared`. Resolves once all of them
    /// are synced.
    pub(crate) async fn declare(&self, link: &Link, declared: Declared) {
        let jobs = Kind::new(oarlock_api::OPERATION_JOB_API_VERSION, "OperationJob");
        let Declared { kinds } = declared;
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
            running.entry(jobs.clone()).or_insert_with(|| watch_jobs(link, jobs));
            for (kind, declared) in kinds {
                running.entry(kind.clone()).or_insert_with(|| watch_kind(link, kind, declared));
            }
        }
        drop(turn);
        self.synced().await;
    }

    fn take_outdated(&self, jobs: &Kind, kinds: &BTreeMap<Kind, DeclaredKind>) -> Vec<(Kind, Running)> {
        let mut running = self.running.lock();
        let current = |kind: &Kind, running: &Running| kind == jobs || running.declared.as_ref() == kinds.get(kind);
        let (keep, outdated) = std::mem::take(&mut *running).into_iter().partition(|(kind, run)| current(kind, run));
        *running = keep;
        let outdated: BTreeMap<Kind, Running> = outdated;
        outdated.into_iter().collect()
    }

    /// Resolves once everything that is watched now was listed.
    pub(crate) async fn synced(&self) {
        let pulses: Vec<Pulse> = self.running.lock().values().map(|running| running.pulse.clone()).collect();
        for pulse in pulses {
            pulse.synced().await;
        }
    }

    pub(crate) fn health(&self) -> Vec<KindHealth> {
        self.running.lock().iter().map(|(kind, running)| running.pulse.health(kind)).collect()
    }

    /// Ends all watches.
    pub(crate) fn stop(&self) {
        self.running.lock().clear();
    }
}

fn watch_jobs(link: &Link, kind: Kind) -> Running {
    let pulse = Pulse::default();
    let reflection = Reflection { link: link.clone(), kind, shelf: link.jobs.clone(), pulse: pulse.clone() };
    Running { declared: None, pulse, task: tokio::spawn(reflection.run()) }
}

fn watch_kind(link: &Link, kind: Kind, declared: DeclaredKind) -> Running {
    let pulse = Pulse::default();
    link.objects.kept.write().insert(kind.clone(), Arc::new(Kept::of(&declared)));
    let indexed = Indexed { labels: declared.labels_indexed.clone(), fields: declared.fields_indexed.clone() };
    link.objects.store.keep(&kind, indexed);
    let shelf = ObjectShelf { objects: link.objects.clone(), kind: kind.clone() };
    let reflection = Reflection { link: link.clone(), kind, shelf, pulse: pulse.clone() };
    Running { declared: Some(declared), pulse, task: tokio::spawn(reflection.run()) }
}
