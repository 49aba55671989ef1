//! The handlers that put the items of lists and watches into the cache of OpsJobs.

use std::sync::Arc;

use oarlock_core::cache::object_cache::fitting;
use oarlock_core::object::memory::NamespaceShares;
use oarlock_core::object::own::OPS_NAMESPACE;
use oarlock_core::ops_job::spec::{Defaults, OpsType};
use oarlock_core::ops_job::stored::StoredOps;
use oarlock_core::ops_job::view::OpsChild;
use serde_json::Value;

use crate::ops::cache::OpsCache;
use crate::ops::observer::OpsJobObserver;
use crate::transport::projection::Projection;
use crate::watch::handler::EventHandler;

/// The handler of OpsJobs.
#[derive(Clone)]
pub(super) struct OpsJobHandler {
    pub(super) cache: Arc<OpsCache>,
    pub(super) defaults: Defaults,
    pub(super) observer: Arc<dyn OpsJobObserver>,
}

impl EventHandler for OpsJobHandler {
    type Item = StoredOps;

    fn projection(&self) -> Arc<Projection> {
        Arc::new(Projection::of_parts(&["/spec", "/status"].map(str::to_owned)))
    }

    fn pick(&self, document: Value) -> Option<StoredOps> {
        self.observer.seen(&document);
        StoredOps::read(&document, self.defaults)
    }

    fn fitting(&self, item: StoredOps, listed: &mut NamespaceShares) -> StoredOps {
        fitting(item, listed)
    }

    fn listed(&self, items: Vec<StoredOps>, version: u64) {
        self.observer.listed(items.iter().map(|job| job.view.uid.clone()).collect());
        self.cache.reset_jobs(items, version);
    }

    fn changed(&self, item: StoredOps) {
        self.cache.put_job(item);
    }

    fn deleted(&self, item: StoredOps) {
        self.observer.gone(&item.view.uid);
        self.cache.drop_job(&item);
    }
}

/// Reads an OperationJob that an OpsJob owns. Its namespace is the namespace of children of OpsJobs, or its action is one that only the
/// host may use, on pods of any namespace. Users may create neither.
pub(crate) fn read_child(document: &Value) -> Option<OpsChild> {
    let namespace = document.pointer("/metadata/namespace").and_then(Value::as_str);
    let action = document.pointer("/spec/action").and_then(Value::as_str).and_then(OpsType::read);
    let is_for_pods = action.is_some_and(|action| !action.is_for_nodes());
    OpsChild::read(document).filter(|_| namespace == Some(OPS_NAMESPACE) || is_for_pods)
}
