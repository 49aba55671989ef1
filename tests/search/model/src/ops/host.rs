//! One process of the host: its cache of OpsJobs, the events that its watches still have to deliver, and its term while
//! it leads or believes that it leads.
//!
//! This module does what `host/kube/src/kinds/cache.rs` and the state of a term in `host/src/engine.rs` do.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use oarlock_core::kind::locks::{TargetLock, TargetLocks};
use oarlock_core::ops_job::view::NODE_WORK;

use crate::ops::api::{ChildDocument, OpsApi, OpsDocument, OpsEvent, Subject};
use crate::ops::round::OpsRound;
use crate::ops::scenario::{Task, node_uid};
use crate::part::Part;

/// The cache of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct OpsView {
    /// The OpsJobs, by name.
    pub jobs: BTreeMap<String, Part<OpsDocument>>,
    /// The OperationJobs, by name.
    children: BTreeMap<String, Part<ChildDocument>>,
    /// The UIDs of objects that are gone.
    gone: BTreeSet<String>,
    /// The version that the next view of an OpsJob must exceed, by name.
    uncertain: BTreeMap<String, u64>,
}

impl OpsView {
    /// Returns the cache of a process that has just listed all objects.
    pub fn listed(api: &OpsApi) -> Self {
        Self { jobs: api.jobs.clone(), children: api.children.clone(), ..Self::default() }
    }

    /// Returns the OperationJob of an OpsJob, if it is in the cache.
    pub fn child(&self, job: &OpsDocument) -> Option<&Part<ChildDocument>> {
        self.children
            .get(job.name())
            .filter(|child| child.owner == job.job.view.uid && child.child.is_of(&job.job.view))
    }

    /// Returns true if the view of an OpsJob may be older than the host's last write.
    pub fn is_uncertain(&self, name: &str) -> bool {
        let version = self.jobs.get(name).map_or(0, |job| job.version());
        self.uncertain.get(name).is_some_and(|exceeded| version <= *exceeded)
    }

    /// Marks the view of an OpsJob uncertain.
    pub fn doubt(&mut self, name: &str) {
        let version = self.jobs.get(name).map_or(0, |job| job.version());
        self.uncertain.insert(name.to_owned(), version);
    }

    /// Takes the answer to a live read of an OpsJob. Returns the name of the OpsJob if the cache changed.
    pub fn confirm(&mut self, name: &str, stored: Option<&Part<OpsDocument>>) -> Option<String> {
        self.uncertain.remove(name);
        match (stored, self.jobs.get(name).cloned()) {
            (Some(stored), _) => self.put_job(stored),
            (None, Some(before)) => self.drop_job(&before),
            (None, None) => None,
        }
    }

    /// Takes the answer to a live read of an OperationJob. Returns the name of its OpsJob if the cache changed.
    pub fn confirm_child(&mut self, name: &str, stored: Option<&Part<ChildDocument>>) -> Option<String> {
        match (stored, self.children.get(name).cloned()) {
            (Some(stored), _) => self.put_child(stored),
            (None, Some(before)) => self.drop_child(name, &before.child.uid),
            (None, None) => None,
        }
    }

    /// Takes a view of an OpsJob, unless the cache has a newer one. Returns the name of the OpsJob if the cache changed.
    pub fn put_job(&mut self, job: &Part<OpsDocument>) -> Option<String> {
        if self.knows(job) {
            return None;
        }
        self.jobs.insert(job.name().to_owned(), job.clone());
        if !self.is_uncertain(job.name()) {
            self.uncertain.remove(job.name());
        }
        Some(job.name().to_owned())
    }

    fn drop_job(&mut self, job: &OpsDocument) -> Option<String> {
        self.gone.insert(job.job.view.uid.clone());
        self.uncertain.remove(job.name());
        self.jobs.remove(job.name()).map(|_| job.name().to_owned())
    }

    /// Takes a view of an OperationJob, unless the cache has a newer one. Returns the name of its OpsJob if the cache
    /// changed.
    pub fn put_child(&mut self, child: &Part<ChildDocument>) -> Option<String> {
        if self.knows_child(child) {
            return None;
        }
        let name = &child.child.key.name;
        let before = self.children.insert(name.clone(), child.clone());
        self.gone
            .extend(before.filter(|before| before.child.uid != child.child.uid).map(|before| before.child.uid.clone()));
        self.jobs.contains_key(name).then(|| name.clone())
    }

    /// Removes the OperationJob with this name and UID. Returns the name of its OpsJob if the cache changed.
    pub fn drop_child(&mut self, name: &str, uid: &str) -> Option<String> {
        self.gone.insert(uid.to_owned());
        self.children.get(name).filter(|known| known.child.uid == uid)?;
        self.children.remove(name);
        self.jobs.contains_key(name).then(|| name.to_owned())
    }

    /// Takes an event of a watch. Returns the name of the OpsJob that changed.
    pub fn take(&mut self, event: &OpsEvent) -> Option<String> {
        match event {
            OpsEvent::Job(job) => self.put_job(job),
            OpsEvent::JobGone(job) => self.drop_job(job),
            OpsEvent::Child(child) => self.put_child(child),
            OpsEvent::ChildGone(child) => self.drop_child(&child.child.key.name, &child.child.uid),
        }
    }

    /// Returns true if the event does not change the cache.
    pub fn is_old(&self, event: &OpsEvent) -> bool {
        match event {
            OpsEvent::Job(job) => self.knows(job),
            OpsEvent::JobGone(job) => self.gone.contains(&job.job.view.uid),
            OpsEvent::Child(child) => self.knows_child(child),
            OpsEvent::ChildGone(child) => self.gone.contains(&child.child.uid),
        }
    }

    fn knows(&self, job: &OpsDocument) -> bool {
        let is_older = self.jobs.get(job.name()).is_some_and(|known| known.version() >= job.version());
        is_older || self.gone.contains(&job.job.view.uid)
    }

    fn knows_child(&self, child: &ChildDocument) -> bool {
        let known = self.children.get(&child.child.key.name);
        known.is_some_and(|known| known.child.version >= child.child.version) || self.gone.contains(&child.child.uid)
    }
}

/// The holders of the nodes in one term.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    /// The production type.
    pub locks: TargetLocks,
    /// The OpsJobs of the scenario, whose nodes make up the hash.
    tasks: &'static [Task],
}

impl Claims {
    /// Returns no claims on the nodes of these OpsJobs.
    pub fn none(tasks: &'static [Task]) -> Self {
        Self { tasks, ..Self::default() }
    }

    /// Returns the UID of the OpsJob that holds the node of each OpsJob.
    pub fn holders(&self) -> impl Iterator<Item = Option<&str>> {
        self.tasks.iter().map(|task| self.locks.holder(&TargetLock::new(NODE_WORK, node_uid(task.node))))
    }
}

impl std::hash::Hash for Claims {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.holders().for_each(|holder| holder.hash(state));
    }
}

/// One term of leadership.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct OpsTerm {
    /// True if another process has the lease.
    pub is_over: bool,
    /// The holders of the targets.
    pub claims: Part<Claims>,
    /// The names of the OpsJobs that need a round now.
    pub dirty: BTreeSet<String>,
    /// The time of the next round of each OpsJob that needs one later.
    pub due: BTreeMap<String, u32>,
    /// The rounds between two of their requests, by the name of the OpsJob.
    pub rounds: BTreeMap<String, Part<OpsRound>>,
}

/// One process of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct OpsHost {
    /// The cache of the process.
    pub view: Part<OpsView>,
    /// The events that the watches still have to deliver. Events of one object keep their order.
    pub news: Part<BTreeMap<Subject, VecDeque<OpsEvent>>>,
    /// The term of the process while it leads or believes that it leads.
    pub term: Option<OpsTerm>,
}

impl OpsHost {
    /// Changes the cache. Marks the OpsJob whose name `change` returns dirty.
    pub fn cache(&mut self, change: impl FnOnce(&mut OpsView) -> Option<String>) {
        let dirty = self.view.edit(change);
        if let Some(term) = &mut self.term {
            term.dirty.extend(dirty);
        }
    }
}
