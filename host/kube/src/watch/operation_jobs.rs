//! From the one watch of OperationJobs into the cache of jobs, and into those of flows and OpsJobs, which own some.

use std::sync::{Arc, OnceLock};

use oarlock_core::child::view::{ChildKind, ChildView};
use oarlock_core::cluster::memory::NamespaceShares;
use oarlock_core::ops_job::view::OpsChild;
use serde_json::Value;

use crate::flows::cache::FlowCache;
use crate::ops::cache::OpsCache;
use crate::ops::sinks::read_child;
use crate::watch::jobs::{Held, Jobs, read_job};
use crate::watch::projection::Projection;
use crate::watch::reflector::ItemSink;

/// Who sees OperationJobs as the children of what owns them. Each is set before the watch of jobs begins, or never.
#[derive(Default)]
pub(crate) struct Parents {
    pub(crate) flows: OnceLock<Arc<FlowCache>>,
    pub(crate) ops: OnceLock<Arc<OpsCache>>,
}

/// The one watch of OperationJobs, for the jobs and for whoever owns some.
pub(crate) struct OperationJobSink {
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) parents: Arc<Parents>,
}

/// A job, and what it is to its owner.
pub(crate) struct SeenJob {
    held: Option<Held>,
    of_flow: Option<ChildView>,
    of_ops: Option<(String, OpsChild)>,
}

impl ItemSink for OperationJobSink {
    type Item = SeenJob;

    fn projection(&self) -> Arc<Projection> {
        Arc::default()
    }

    fn pick(&self, document: Value) -> Option<SeenJob> {
        Some(SeenJob {
            held: read_job(&document),
            of_flow: self.parents.flows.get().and_then(|_| ChildView::read(ChildKind::Operation, &document)),
            of_ops: self.parents.ops.get().and_then(|_| read_child(&document)),
        })
    }

    fn fitting(&self, item: SeenJob, listed: &mut NamespaceShares) -> SeenJob {
        SeenJob { held: item.held.map(|held| held.within(listed, 0)), ..item }
    }

    fn listed(&self, items: Vec<SeenJob>, version: u64) {
        let (mut held, mut of_flows, mut of_ops) = (Vec::new(), Vec::new(), Vec::new());
        for item in items {
            held.extend(item.held);
            of_flows.extend(item.of_flow);
            of_ops.extend(item.of_ops);
        }
        self.jobs.listed(held, version);
        let Parents { flows, ops } = &*self.parents;
        if let Some(flows) = flows.get() {
            flows.reset_children(ChildKind::Operation, of_flows, version);
        }
        if let Some(ops) = ops.get() {
            ops.reset_children(of_ops);
        }
    }

    fn changed(&self, item: SeenJob) {
        let Parents { flows, ops } = &*self.parents;
        item.held.into_iter().for_each(|held| self.jobs.changed(held));
        flows.get().zip(item.of_flow).into_iter().for_each(|(flows, child)| flows.put_child(child));
        ops.get().zip(item.of_ops).into_iter().for_each(|(ops, (owner, child))| ops.put_child(owner, child));
    }

    fn deleted(&self, item: SeenJob) {
        let Parents { flows, ops } = &*self.parents;
        item.held.iter().for_each(|held| self.jobs.remove(held));
        flows.get().zip(item.of_flow).into_iter().for_each(|(flows, child)| flows.drop_child(child));
        ops.get().zip(item.of_ops).iter().for_each(|(ops, (owner, child))| ops.drop_child(owner, child));
    }
}
