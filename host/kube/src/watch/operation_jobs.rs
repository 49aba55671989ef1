//! The handler of the only watch of OperationJobs. It feeds the cache of jobs, and the caches of the kinds that own OperationJobs.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use oarlock_core::attempts::view::{ChildKind, ChildView};
use oarlock_core::cache::object_cache::fitting;
use oarlock_core::object::api_object::ObjectKey;
use oarlock_core::object::memory::NamespaceShares;
use oarlock_core::object::quota_key::QuotaKey;
use parking_lot::RwLock;
use serde_json::Value;

use crate::flows::cache::FlowCache;
use crate::transport::projection::Projection;
use crate::watch::handler::EventHandler;
use crate::watch::jobs::{CachedJob, Jobs, read_job};

/// An OperationJob as the cache of an owning kind keeps it.
pub(crate) type OwnedJob = Box<dyn Any + Send>;

/// The cache of a kind that owns OperationJobs.
pub(crate) trait OwnsJobs: Send + Sync {
    /// Reads an OperationJob. Returns `None` if no object of the kind owns it.
    fn read(&self, document: &Value) -> Option<OwnedJob>;

    /// Takes an OperationJob from a watch event.
    fn changed(&self, job: OwnedJob);

    /// Takes the last view of a deleted OperationJob.
    fn deleted(&self, job: OwnedJob);

    /// Takes a complete list at this version.
    fn listed(&self, jobs: Vec<OwnedJob>, version: u64);

    /// Returns the UID of the cached OperationJob with this key.
    fn uid_of(&self, key: &ObjectKey) -> Option<String>;

    /// Drops the OperationJob with this key and UID, after the API server did not show it.
    fn is_absent(&self, key: &ObjectKey, uid: &str);

    /// Returns the key whose quotas the OperationJob with this UID uses, if an object of the kind owns it.
    fn quota_of(&self, uid: &str) -> Option<QuotaKey>;
}

/// The caches that see OperationJobs as children of their owners. Each is set before the watch of jobs begins, or never.
#[derive(Default)]
pub(crate) struct OwnerCaches {
    pub(crate) flows: OnceLock<Arc<FlowCache>>,
    kinds: RwLock<Vec<Arc<dyn OwnsJobs>>>,
}

impl OwnerCaches {
    /// Adds the cache of a kind.
    pub(crate) fn add(&self, cache: Arc<dyn OwnsJobs>) {
        self.kinds.write().push(cache);
    }

    /// Returns the caches of the kinds.
    pub(crate) fn kinds(&self) -> Vec<Arc<dyn OwnsJobs>> {
        self.kinds.read().clone()
    }

    /// Takes the answer of the API server to a read of an OperationJob. `before` returns the UIDs that the caches had before the read.
    pub(crate) fn confirm(&self, key: &ObjectKey, before: &[Option<String>], answer: Option<&Value>) {
        for (cache, before) in self.kinds().iter().zip(before) {
            if answer.is_none() {
                before.iter().for_each(|uid| cache.is_absent(key, uid));
            }
            answer.and_then(|answer| cache.read(answer)).into_iter().for_each(|job| cache.changed(job));
        }
    }

    /// Returns the UID of an OperationJob in each cache.
    pub(crate) fn uids_of(&self, key: &ObjectKey) -> Vec<Option<String>> {
        self.kinds().iter().map(|cache| cache.uid_of(key)).collect()
    }
}

/// The handler of the watch of OperationJobs, for the jobs and for the caches of their owners.
pub(crate) struct OperationJobHandler {
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) owners: Arc<OwnerCaches>,
}

/// A job, and its views as a child of other objects.
pub(crate) struct SeenJob {
    cached: Option<CachedJob>,
    of_flow: Option<ChildView>,
    /// The views of the kinds, in their order.
    of_kinds: Vec<Option<OwnedJob>>,
}

impl EventHandler for OperationJobHandler {
    type Item = SeenJob;

    fn projection(&self) -> Arc<Projection> {
        Arc::default()
    }

    fn pick(&self, document: Value) -> Option<SeenJob> {
        Some(SeenJob {
            cached: read_job(&document),
            of_flow: self.owners.flows.get().and_then(|_| ChildView::read(ChildKind::Operation, &document)),
            of_kinds: self.owners.kinds().iter().map(|cache| cache.read(&document)).collect(),
        })
    }

    fn fitting(&self, item: SeenJob, listed: &mut NamespaceShares) -> SeenJob {
        SeenJob { cached: item.cached.map(|cached| fitting(cached, listed)), ..item }
    }

    fn listed(&self, items: Vec<SeenJob>, version: u64) {
        let kinds = self.owners.kinds();
        let (mut cached, mut of_flows) = (Vec::new(), Vec::new());
        let mut of_kinds: Vec<Vec<OwnedJob>> = kinds.iter().map(|_| Vec::new()).collect();
        for item in items {
            cached.extend(item.cached);
            of_flows.extend(item.of_flow);
            of_kinds.iter_mut().zip(item.of_kinds).for_each(|(all, job)| all.extend(job));
        }
        self.jobs.listed(cached, version);
        if let Some(flows) = self.owners.flows.get() {
            flows.reset_children(ChildKind::Operation, of_flows, version);
        }
        kinds.iter().zip(of_kinds).for_each(|(cache, jobs)| cache.listed(jobs, version));
    }

    fn changed(&self, item: SeenJob) {
        item.cached.into_iter().for_each(|cached| self.jobs.changed(cached));
        self.owners.flows.get().zip(item.of_flow).into_iter().for_each(|(flows, child)| flows.put_child(child));
        for (cache, job) in self.owners.kinds().iter().zip(item.of_kinds) {
            job.into_iter().for_each(|job| cache.changed(job));
        }
    }

    fn deleted(&self, item: SeenJob) {
        item.cached.iter().for_each(|cached| self.jobs.remove(cached));
        self.owners.flows.get().zip(item.of_flow).into_iter().for_each(|(flows, child)| flows.drop_child(child));
        for (cache, job) in self.owners.kinds().iter().zip(item.of_kinds) {
            job.into_iter().for_each(|job| cache.deleted(job));
        }
    }
}
