//! The cache of batch Jobs and of the pods counted for them, and the watch that fills it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use kube::runtime::watcher::Event;
use parking_lot::Mutex;

use super::deciders::job_tally::Tally;
use super::pod_facts::version_of;
use super::store::Place;
use super::watches::Watches;

/// The last observed Jobs.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    memory: Mutex<JobTable>,
}

#[derive(Debug, Default)]
struct JobTable {
    all: BTreeMap<Place, Arc<Job>>,
    /// Places of Jobs by uid.
    places: HashMap<String, Place>,
    /// Tallies of Jobs by uid.
    tallies: HashMap<String, Tally>,
}

/// Returns the namespace and name of a Job.
pub(crate) fn place_of_job(job: &Job) -> Place {
    (job.namespace().unwrap_or_default(), job.name_any())
}

/// Returns the uid of a Job.
pub(crate) fn uid_of(job: &Job) -> &str {
    job.metadata.uid.as_deref().unwrap_or_default()
}

impl Jobs {
    /// Stores a version of a Job, unless the cache has a newer one.
    pub(crate) fn put(&self, job: Job) {
        let (mut memory, place) = (self.memory.lock(), place_of_job(&job));
        let known = memory.all.get(&place).map(|known| version_of(&known.metadata));
        if known.is_none_or(|known| known <= version_of(&job.metadata)) {
            memory.places.insert(uid_of(&job).to_owned(), place.clone());
            memory.all.insert(place, Arc::new(job));
        }
    }

    pub(crate) fn get(&self, place: &Place) -> Option<Arc<Job>> {
        self.memory.lock().all.get(place).cloned()
    }

    pub(crate) fn places(&self) -> Vec<Place> {
        self.memory.lock().all.keys().cloned().collect()
    }

    /// Returns the place of the Job with a uid.
    pub(crate) fn place_of(&self, uid: &str) -> Option<Place> {
        self.memory.lock().places.get(uid).cloned()
    }

    /// Reads or changes the tally of a Job.
    pub(crate) fn tally<T>(&self, uid: &str, change: impl FnOnce(&mut Tally) -> T) -> T {
        change(self.memory.lock().tallies.entry(uid.to_owned()).or_default())
    }

    fn remove(&self, job: &Job) {
        let (mut memory, place, uid) = (self.memory.lock(), place_of_job(job), uid_of(job));
        memory.places.remove(uid);
        memory.tallies.remove(uid);
        if memory.all.get(&place).is_some_and(|known| uid_of(known) == uid) {
            memory.all.remove(&place);
        }
    }

    fn only_these_exist(&self, uids: &HashSet<String>) {
        let mut memory = self.memory.lock();
        memory.all.retain(|_, job| uids.contains(uid_of(job)));
        memory.places.retain(|uid, _| uids.contains(uid));
        memory.tallies.retain(|uid, _| uids.contains(uid));
    }
}

/// The state of the Job watch.
pub(crate) struct JobWatch {
    watches: Watches,
    seen: HashSet<String>,
    has_synced: bool,
}

impl JobWatch {
    pub(crate) fn new(watches: Watches) -> Self {
        Self { watches, seen: HashSet::new(), has_synced: false }
    }

    /// Handles a watch event.
    pub(crate) fn saw(&mut self, event: Event<Job>) {
        let rounds = self.watches.rounds.clone();
        match event {
            Event::Init => self.seen.clear(),
            Event::InitApply(job) | Event::Apply(job) => {
                self.seen.insert(uid_of(&job).to_owned());
                let place = place_of_job(&job);
                if self.watches.looks_after(&place.0) {
                    rounds.jobs.put(job);
                    self.watches.wake_job(place);
                }
            }
            Event::Delete(job) => rounds.jobs.remove(&job),
            Event::InitDone => {
                rounds.jobs.only_these_exist(&self.seen);
                self.watches.count_sync(&mut self.has_synced);
            }
        }
    }
}
