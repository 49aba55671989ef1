//! The handlers that put the items of lists and watches into the cache of a kind.

use std::sync::Arc;

use oarlock_core::cache::object_cache::fitting;
use oarlock_core::kind::plan_kind::{PlanKind, WatchedObjects};
use oarlock_core::object::api_object::ObjectKey;
use oarlock_core::object::memory::NamespaceShares;
use oarlock_core::object::quota_key::QuotaKey;
use serde_json::Value;

use crate::kinds::cache::EngineCache;
use crate::transport::projection::Projection;
use crate::watch::handler::EventHandler;
use crate::watch::operation_jobs::{OwnedJob, OwnsJobs};

/// The handler of the objects of a kind.
pub(crate) struct KindHandler<K: PlanKind>(pub(crate) Arc<EngineCache<K>>);

/// The handler of the children of a kind, if no other watch shows them.
pub(crate) struct ChildHandler<K: PlanKind>(pub(crate) Arc<EngineCache<K>>);

/// Returns the projection for the documents of a kind.
pub(crate) fn projection_of(watched: &WatchedObjects) -> Projection {
    Projection::of_parts(&watched.fields.iter().map(|field| (*field).to_owned()).collect::<Vec<_>>())
}

impl<K: PlanKind> EventHandler for KindHandler<K> {
    type Item = K::Object;

    fn projection(&self) -> Arc<Projection> {
        Arc::new(projection_of(&self.0.kind().objects()))
    }

    fn pick(&self, document: Value) -> Option<K::Object> {
        self.0.observer().seen(&document);
        self.0.kind().read(&document)
    }

    fn fitting(&self, item: K::Object, listed: &mut NamespaceShares) -> K::Object {
        fitting(item, listed)
    }

    fn listed(&self, items: Vec<K::Object>, version: u64) {
        self.0.reset(items, version);
    }

    fn changed(&self, item: K::Object) {
        self.0.put(item);
    }

    fn deleted(&self, item: K::Object) {
        self.0.drop_object(&item);
    }
}

impl<K: PlanKind> EventHandler for ChildHandler<K> {
    type Item = K::Child;

    fn projection(&self) -> Arc<Projection> {
        Arc::new(self.0.kind().children().map_or_else(Projection::everything, |children| projection_of(&children)))
    }

    fn pick(&self, document: Value) -> Option<K::Child> {
        self.0.kind().read_child(&document)
    }

    fn listed(&self, items: Vec<K::Child>, version: u64) {
        self.0.reset_children(items, version);
    }

    fn changed(&self, item: K::Child) {
        self.0.put_child(item);
    }

    fn deleted(&self, item: K::Child) {
        self.0.drop_child(&item);
    }
}

/// Returns an OperationJob as the children of the kind are kept.
fn child_of<K: PlanKind>(job: OwnedJob) -> Option<K::Child> {
    job.downcast::<K::Child>().ok().map(|child| *child)
}

impl<K: PlanKind> OwnsJobs for EngineCache<K> {
    fn read(&self, document: &Value) -> Option<OwnedJob> {
        self.kind().read_child(document).map(|child| Box::new(child) as OwnedJob)
    }

    fn changed(&self, job: OwnedJob) {
        child_of::<K>(job).into_iter().for_each(|child| self.put_child(child));
    }

    fn deleted(&self, job: OwnedJob) {
        child_of::<K>(job).iter().for_each(|child| self.drop_child(child));
    }

    fn listed(&self, jobs: Vec<OwnedJob>, version: u64) {
        self.reset_children(jobs.into_iter().filter_map(child_of::<K>).collect(), version);
    }

    fn uid_of(&self, key: &ObjectKey) -> Option<String> {
        self.child_uid(key)
    }

    fn is_absent(&self, key: &ObjectKey, uid: &str) {
        self.child_is_absent(key, uid);
    }

    fn quota_of(&self, uid: &str) -> Option<QuotaKey> {
        self.owner_of(uid).map(|object| self.kind().quota(&object))
    }
}
