//! The handler of the only watch of OperationJobs. It feeds the cache of jobs, and the caches of flows and OpsJobs, which own some
//! OperationJobs.

use std::sync::{Arc, OnceLock};

use oarlock_core::attempts::view::{ChildKind, ChildView};
use oarlock_core::object::memory::NamespaceShares;
use oarlock_core::ops_job::view::OpsChild;
use serde_json::Value;

use crate::flows::cache::FlowCache;
use crate::ops::cache::OpsCache;
use crate::ops::handlers::read_child;
use crate::transport::projection::Projection;
use crate::watch::handler::EventHandler;
use crate::watch::jobs::{CachedJob, Jobs, read_job};

/// The caches that see OperationJobs as children of their owners. Each cache is set before the watch of jobs begins, or never.
#[derive(Default)]
pub(crate) struct OwnerCaches {
    pub(crate) flows: OnceLock<Arc<FlowCache>>,
    pub(crate) ops: OnceLock<Arc<OpsCache>>,
}

/// The handler of the watch of OperationJobs, for the jobs and for the caches of their owners.
pub(crate) struct OperationJobHandler {
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) parents: Arc<OwnerCaches>,
}

/// A job, and its views as a child of a flow or of an OpsJob.
pub(crate) struct SeenJob {
    cached: Option<CachedJob>,
    of_flow: Option<ChildView>,
    of_ops: Option<OpsChild>,
}

impl EventHandler for OperationJobHandler {
    type Item = SeenJob;

    fn projection(&self) -> Arc<Projection> {
        Arc::default()
    }

    fn pick(&self, document: Value) -> Option<SeenJob> {
        Some(SeenJob {
            cached: read_job(&document),
            of_flow: self.parents.flows.get().and_then(|_| ChildView::read(ChildKind::Operation, &document)),
            of_ops: self.parents.ops.get().and_then(|_| read_child(&document)),
        })
    }

    fn fitting(&self, item: SeenJob, listed: &mut NamespaceShares) -> SeenJob {
        SeenJob { cached: item.cached.map(|cached| cached.within(listed, 0)), ..item }
    }

    fn listed(&self, items: Vec<SeenJob>, version: u64) {
        let (mut cached, mut of_flows, mut of_ops) = (Vec::new(), Vec::new(), Vec::new());
        for item in items {
            cached.extend(item.cached);
            of_flows.extend(item.of_flow);
            of_ops.extend(item.of_ops);
        }
        self.jobs.listed(cached, version);
        let OwnerCaches { flows, ops } = &*self.parents;
        if let Some(flows) = flows.get() {
            flows.reset_children(ChildKind::Operation, of_flows, version);
        }
        if let Some(ops) = ops.get() {
            ops.reset_children(of_ops, version);
        }
    }

    fn changed(&self, item: SeenJob) {
        let OwnerCaches { flows, ops } = &*self.parents;
        item.cached.into_iter().for_each(|cached| self.jobs.changed(cached));
        flows.get().zip(item.of_flow).into_iter().for_each(|(flows, child)| flows.put_child(child));
        ops.get().zip(item.of_ops).into_iter().for_each(|(ops, child)| ops.put_child(child));
    }

    fn deleted(&self, item: SeenJob) {
        let OwnerCaches { flows, ops } = &*self.parents;
        item.cached.iter().for_each(|cached| self.jobs.remove(cached));
        flows.get().zip(item.of_flow).into_iter().for_each(|(flows, child)| flows.drop_child(child));
        ops.get().zip(item.of_ops).iter().for_each(|(ops, child)| ops.drop_child(child));
    }
}
