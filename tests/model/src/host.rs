//! One process of the host: its caches, what watches have still to tell it, and its term while it leads or believes so.
//!
//! The term is the production code's: memory, tables and queue as they are. What `host/src` and `host/kube` do around them
//! is done here in the same order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::jiff::Timestamp;
use oarlock_core::cluster::live_reads::LiveReads;
use oarlock_core::cluster::object::{Kind, Object};
use oarlock_core::cluster::store::{Change, Indexed, Store};
use oarlock_core::cluster::writes::{Entry, EntryResult, Record};
use oarlock_core::job::policy::Policy;
use oarlock_core::job::spec::{Invalid, ValidSpec};
use oarlock_core::round::brakes::Brakes;
use oarlock_core::round::decided::Commit;
use oarlock_core::round::memory::JobMemory;
use oarlock_core::shared::tables::{SharedTables, Tables};
use oarlock_core::shared::write_queue::WriteQueue;

use crate::api::{Api, Event, StoredJob};
use crate::part::Part;
use crate::scene::{ORIGIN, job_key};

/// The caches of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct View {
    /// The pods, by name.
    pub pods: BTreeMap<String, Part<Object>>,
    /// Pods known to be gone, by UID, while an event of theirs is still under way.
    gone: BTreeMap<String, Part<Object>>,
    /// The job; `None` if it is gone.
    pub job: Option<Part<StoredJob>>,
    /// The next view of the job must exceed this version.
    pub doubt: Option<u64>,
}

/// What came since the last round began: `Inbox` of `host/src/queue.rs`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Inbox {
    /// Changed targets.
    pub changed: BTreeSet<u32>,
    /// Targets with an object of which only the version changed.
    pub seen_anew: BTreeSet<u32>,
    /// Targets with a terminating object, its UID and the time at which it was asked to go.
    pub departed: Vec<(u32, String, Timestamp)>,
    /// Results of entries.
    pub results: Vec<EntryResult>,
}

impl Inbox {
    /// Moves everything into the memory for the round.
    pub fn empty_into(self, memory: &mut JobMemory) {
        self.changed.into_iter().for_each(|index| memory.turn_to(index));
        self.seen_anew.into_iter().for_each(|index| memory.seen_anew(index));
        for (index, uid, time) in self.departed {
            if memory.latest(index).is_some_and(|target| target.uid.as_deref() == Some(&uid)) {
                memory.target(index).expects.asked_to_go(time);
            }
        }
        memory.results.extend(self.results);
    }
}

/// An entry of which a request is on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sending {
    /// The entry, as it was sent.
    pub entry: Entry,
    /// The number of its writes that were made.
    pub done: usize,
    /// When its first request was sent.
    pub sent: u32,
}

/// A round whose record is on its way.
#[derive(Clone, Debug)]
pub struct Running {
    /// The job as the round has read it.
    pub job: Part<StoredJob>,
    /// The time of the round.
    pub now: u32,
    /// Its spec.
    pub spec: Result<Arc<ValidSpec>, Invalid>,
    /// Its policy.
    pub policy: Policy,
    /// Its brakes.
    pub brakes: Brakes,
    /// Its live reads.
    pub live: Arc<LiveReads>,
    /// What it records; the parts that are durable already are taken out.
    pub record: Record,
    /// What follows for the memory.
    pub commit: Commit,
    /// The entries that may follow.
    pub entries: Vec<Entry>,
    /// When the next round is due.
    pub requeue: Option<Timestamp>,
    /// Whether that is for sure.
    pub rests: bool,
}

impl std::hash::Hash for Running {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (&self.job, self.now, &self.spec, &self.policy, self.brakes, &self.live.answered).hash(state);
        (&self.record.finalizer, &self.record.status, &self.commit, &self.entries, self.requeue, self.rests)
            .hash(state);
    }
}

/// One term of leadership.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Term {
    /// Its number among all terms.
    pub number: u8,
    /// Another process has the lease.
    pub over: bool,
    /// The memory of the job.
    pub memory: Part<JobMemory>,
    /// The tables.
    pub tables: Part<Tables>,
    /// The entries that wait or are on the wire.
    pub queue: Part<WriteQueue>,
    /// What came since the last round began.
    pub inbox: Part<Inbox>,
    /// When the next round is due.
    pub due: Option<u32>,
    /// The round whose record is on its way.
    pub running: Option<Part<Running>>,
    /// The requests on the wire.
    pub wire: Part<Vec<Sending>>,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    /// Its caches.
    pub view: Part<View>,
    /// What the watches have still to tell it: of pods, and of the job.
    pub news: [Part<VecDeque<Event>>; 2],
    /// Its term, while it leads or believes so.
    pub term: Option<Term>,
    /// What it remembers of its last term, where that rule is switched off.
    pub last: Option<(Part<JobMemory>, Part<Tables>, Part<WriteQueue>)>,
}

impl Term {
    /// A term that begins now.
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
            inbox: Part::default(),
            due: Some(0),
            running: None,
            wire: Part::default(),
        }
    }

    /// Makes the job due at once.
    pub fn wake(&mut self) {
        self.due = Some(0);
    }

    /// The result of an entry comes back.
    pub fn take(&mut self, result: EntryResult) {
        self.inbox.edit(|inbox| inbox.results.push(result));
        self.wake();
    }

    /// A change is heard: `Lead::hear_object`. `by` is the target whose own write it echoes.
    pub fn hear(&mut self, change: &Change, by: Option<u32>, store: &Store) {
        let woken = self.tables.edit(|tables| {
            tables.heard(change);
            tables.concerned(change, store)
        });
        for (job, index) in woken {
            let echo = by == Some(index);
            self.inbox.edit(|inbox| {
                if !echo {
                    let of_version = change.is_of_version_only();
                    if of_version { &mut inbox.seen_anew } else { &mut inbox.changed }.insert(index);
                }
                let views = [&change.new, &change.old].into_iter().flatten();
                let asked = views.filter_map(|object| Some((index, object.uid.clone(), object.asked_to_go()?)));
                let asked: Vec<_> = asked.take(1).filter(|asked| !inbox.departed.contains(asked)).collect();
                inbox.departed.extend(asked);
            });
            if !echo && !self.queue.is_busy(&job.uid, index) {
                self.wake();
            }
        }
    }
}

impl View {
    /// The caches of a process that has just listed everything.
    pub fn listed(api: &Api) -> Self {
        Self { pods: api.pods.clone(), job: api.job.clone(), ..Self::default() }
    }

    /// The store that shows them.
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

    /// Takes a view of a pod, or its last one. Yields the change for the tables.
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

    /// Forgets what is gone, once no event tells of it any more.
    pub fn forget_gone(&mut self, news: &VecDeque<Event>) {
        self.gone.retain(|uid, _| {
            news.iter().any(|event| matches!(event, Event::Pod(pod) | Event::PodGone(pod) if pod.uid == *uid))
        });
    }

    /// Takes a view of the job. True if it is newer than the one before.
    pub fn take_job(&mut self, job: &Part<StoredJob>) -> bool {
        let newer = self.job.as_ref().is_some_and(|known| known.version() < job.version());
        if newer {
            self.job = Some(job.clone());
        }
        newer
    }

    /// True if the job has to be read before it is trusted.
    pub fn doubtful(&self) -> bool {
        let version = self.job.as_ref().map_or(0, |job| job.version());
        self.doubt.is_some_and(|exceeded| version <= exceeded)
    }

    /// The next view of the job must be newer than this one.
    pub fn doubts(&mut self) {
        self.doubt = Some(self.job.as_ref().map_or(0, |job| job.version()));
    }
}

/// The tables as a round shares them.
pub fn shared(tables: &Part<Tables>) -> SharedTables {
    Arc::new(Mutex::new(Tables::clone(tables)))
}

/// The tables once the round is over.
pub fn unshared(tables: SharedTables) -> Part<Tables> {
    match Arc::try_unwrap(tables) {
        Ok(tables) => Part::new(tables.into_inner().unwrap_or_else(PoisonError::into_inner)),
        Err(shared) => Part::new(shared.lock().unwrap_or_else(PoisonError::into_inner).clone()),
    }
}
