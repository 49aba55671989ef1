//! One process of the host: its caches, the events that its watches still have to deliver, and its term while it leads
//! or believes that it leads.
//!
//! The memory, tables and queue of the term are the production types. This module does what `host/src` and `host/kube`
//! do around them, in the same order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::jiff::Timestamp;
use oarlock_core::cache::store::{Change, Indexed, Store};
use oarlock_core::object::api_object::{Kind, Object};
use oarlock_core::operation_job::round::decided::Commit;
use oarlock_core::operation_job::round::memory::JobMemory;
use oarlock_core::operation_job::round::starts::memory::PauseState;
use oarlock_core::operation_job::shared::tables::{SharedTables, Tables};
use oarlock_core::operation_job::spec::{Invalid, ValidSpec};
use oarlock_core::operation_job::write_queue::WriteQueue;
use oarlock_core::requests::live_reads::LiveReads;
use oarlock_core::requests::writes::{BatchResult, Record, WriteBatch};
use oarlock_core::status::policy::Policy;

use crate::api::{Api, Event, StoredJob};
use crate::part::Part;
use crate::scenario::{ORIGIN, job_key};

/// The caches of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct View {
    /// The pods, by name.
    pub pods: BTreeMap<String, Part<Object>>,
    /// Pods known to be gone, by UID, while events about them are still in flight.
    gone: BTreeMap<String, Part<Object>>,
    /// The job; `None` if it is gone.
    pub job: Option<Part<StoredJob>>,
    /// The version that the next view of the job must exceed.
    pub doubt: Option<u64>,
}

/// Events since the last round began, like `JobChanges` of `host/src/queue.rs`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct JobChanges {
    /// Changed targets.
    pub changed: BTreeSet<u32>,
    /// Targets with an object that got a new version and no other change.
    pub requeue_on_new_version: BTreeSet<u32>,
    /// Targets with a terminating object, the UID of the object, and the time of the request to delete it.
    pub departed: Vec<(u32, String, Timestamp)>,
    /// Results of write batches.
    pub results: Vec<BatchResult>,
}

impl JobChanges {
    /// Moves all events into the memory for the round.
    pub fn move_into(self, memory: &mut JobMemory) {
        self.changed.into_iter().for_each(|index| memory.work.requeue(index, &mut memory.targets));
        self.requeue_on_new_version
            .into_iter()
            .for_each(|index| memory.work.requeue_on_new_version(index, &mut memory.targets));
        for (index, uid, time) in self.departed {
            if memory.decisions.latest(&memory.stored, index).is_some_and(|target| target.uid.as_deref() == Some(&uid))
            {
                memory.targets.memory_of(index).expects.asked_to_go(time);
            }
        }
        memory.work.results.extend(self.results);
    }
}

/// A write batch with a request in flight.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sending {
    /// The batch, as the host sent it.
    pub entry: WriteBatch,
    /// Number of writes of the batch that were made.
    pub done: usize,
    /// Time at which the host sent the first request.
    pub sent: u32,
}

/// A round whose record is in flight.
#[derive(Clone, Debug)]
pub struct Running {
    /// The job, as the round read it.
    pub job: Part<StoredJob>,
    /// The time of the round.
    pub now: u32,
    /// The spec of the job.
    pub spec: Result<Arc<ValidSpec>, Invalid>,
    /// The policy of the round.
    pub policy: Policy,
    /// The reasons that stop the round from starting or operating targets.
    pub pause_state: PauseState,
    /// The live reads of the round.
    pub live: Arc<LiveReads>,
    /// The record, without the parts that are already durable.
    pub record: Record,
    /// The changes of the memory once the record is durable.
    pub commit: Commit,
    /// The write batches that may follow the record.
    pub entries: Vec<WriteBatch>,
    /// Time of the next round.
    pub requeue_at: Option<Timestamp>,
    /// True if the host may decide nothing before `requeue_at`, or before a change.
    pub must_wait: bool,
}

impl std::hash::Hash for Running {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (&self.job, self.now, &self.spec, &self.policy, self.pause_state, &self.live.answered).hash(state);
        (&self.record.finalizer, &self.record.status, &self.commit, &self.entries, self.requeue_at, self.must_wait)
            .hash(state);
    }
}

/// One term of leadership.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Term {
    /// The number of the term.
    pub number: u8,
    /// True if another process has the lease.
    pub over: bool,
    /// The memory of the job.
    pub memory: Part<JobMemory>,
    /// The tables that the jobs of the term share.
    pub tables: Part<Tables>,
    /// The write batches that wait or are in flight.
    pub queue: Part<WriteQueue>,
    /// Events since the last round began.
    pub changes: Part<JobChanges>,
    /// Time of the next round.
    pub due: Option<u32>,
    /// The round whose record is in flight.
    pub running: Option<Part<Running>>,
    /// The write batches with a request in flight.
    pub in_flight: Part<Vec<Sending>>,
}

/// One process of the host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    /// The caches of the process.
    pub view: Part<View>,
    /// The events that the watches still have to deliver: of pods, and of the job.
    pub news: [Part<VecDeque<Event>>; 2],
    /// The term of the process while it leads or believes that it leads.
    pub term: Option<Term>,
    /// State of the last term, if the switched-off rule is that a process forgets it.
    pub last: Option<(Part<JobMemory>, Part<Tables>, Part<WriteQueue>)>,
}

impl Term {
    /// Begins a term.
    pub fn begin(number: u8, view: &View) -> Self {
        let mut tables = Tables::default();
        let status = view.job.as_ref().and_then(|job| job.job.status.as_ref());
        if view.job.is_some() {
            tables.claims.expect(&job_key());
        }
        let in_flight = status.and_then(|status| Some((status.plugin.as_ref()?, status.processing_pod_count?)));
        if let Some((plugin, count)) = in_flight {
            tables.note_in_flight(&plugin.name, &job_key(), usize::try_from(count).unwrap_or(0));
        }
        Self {
            number,
            over: false,
            memory: Part::default(),
            tables: Part::new(tables),
            queue: Part::default(),
            changes: Part::default(),
            due: Some(0),
            running: None,
            in_flight: Part::default(),
        }
    }

    /// Makes the job due at once.
    pub fn wake(&mut self) {
        self.due = Some(0);
    }

    /// Takes the result of a write batch.
    pub fn take(&mut self, result: BatchResult) {
        self.changes.edit(|changes| changes.results.push(result));
        self.wake();
    }

    /// Handles a change of an object, like `Lead::hear_object`. `by` is the target whose write caused the change.
    pub fn hear(&mut self, change: &Change, by: Option<u32>, store: &Store) {
        let woken = self.tables.edit(|tables| {
            tables.note_gone(change);
            tables.concerned(change, store)
        });
        for (job, index) in woken {
            let echo = by == Some(index);
            self.changes.edit(|changes| {
                if !echo {
                    let of_version = change.is_of_version_only();
                    if of_version { &mut changes.requeue_on_new_version } else { &mut changes.changed }.insert(index);
                }
                let views = [&change.new, &change.old].into_iter().flatten();
                let asked = views.filter_map(|object| Some((index, object.uid.clone(), object.asked_to_go()?)));
                let asked: Vec<_> = asked.take(1).filter(|asked| !changes.departed.contains(asked)).collect();
                changes.departed.extend(asked);
            });
            if !echo && !self.queue.is_in_flight(&job.uid, index) {
                self.wake();
            }
        }
    }
}

impl View {
    /// Returns the caches of a process that has just listed all objects.
    pub fn listed(api: &Api) -> Self {
        Self { pods: api.pods.clone(), job: api.job.clone(), ..Self::default() }
    }

    /// Returns a store with the cached pods.
    pub fn store(&self) -> Arc<Store> {
        let store = Store::default();
        store.keep(&Kind::pod(), Indexed { labels: [ORIGIN.to_owned()].into(), ..Indexed::default() });
        for pod in self.gone.values() {
            store.remove(Object::clone(pod));
        }
        for pod in self.pods.values() {
            store.apply(Object::clone(pod));
        }
        Arc::new(store)
    }

    /// Takes a view of a pod, or its last view if `gone`. Returns the change for the tables.
    pub fn pod(&mut self, pod: &Part<Object>, gone: bool, store: &Store) -> Option<Change> {
        let name = &pod.key.name;
        if gone {
            self.gone.insert(pod.uid.clone(), pod.clone());
            let change = store.remove(Object::clone(pod))?;
            self.pods.remove(name);
            return Some(change);
        }
        let change = store.apply(Object::clone(pod))?;
        self.pods.insert(name.clone(), pod.clone());
        Some(change)
    }

    /// Forgets each pod that is gone, once no queued event is about the pod.
    pub fn forget_gone(&mut self, news: &VecDeque<Event>) {
        self.gone.retain(|uid, _| {
            news.iter().any(|event| matches!(event, Event::Pod(pod) | Event::PodGone(pod) if pod.uid == *uid))
        });
    }

    /// Takes a view of the job. Returns true if the view is newer than the one before.
    pub fn take_job(&mut self, job: &Part<StoredJob>) -> bool {
        let newer = self.job.as_ref().is_some_and(|known| known.version() < job.version());
        if newer {
            self.job = Some(job.clone());
        }
        newer
    }

    /// Returns true if the host must read the job before it trusts the cached view.
    pub fn doubtful(&self) -> bool {
        let version = self.job.as_ref().map_or(0, |job| job.version());
        self.doubt.is_some_and(|exceeded| version <= exceeded)
    }

    /// Marks the view of the job as uncertain. The next view must be newer.
    pub fn doubts(&mut self) {
        self.doubt = Some(self.job.as_ref().map_or(0, |job| job.version()));
    }
}

/// Returns a copy of the tables that a round can share.
pub fn shared(tables: &Part<Tables>) -> SharedTables {
    Arc::new(Mutex::new(Tables::clone(tables)))
}

/// Returns the tables after the round.
pub fn unshared(tables: SharedTables) -> Part<Tables> {
    match Arc::try_unwrap(tables) {
        Ok(tables) => Part::new(tables.into_inner().unwrap_or_else(PoisonError::into_inner)),
        Err(shared) => Part::new(shared.lock().unwrap_or_else(PoisonError::into_inner).clone()),
    }
}
