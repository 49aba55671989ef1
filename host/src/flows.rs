//! JobFlows, JobTemplates and DaemonJobs while this process leads: how their rounds are made.

mod memory;
mod recall;
mod reporting;
mod requests;
mod round;
mod template;

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use oarlock_kube::flows::{FlowKey, Flows};
use oarlock_kube::lease::Fence;
use parking_lot::Mutex;
use tokio::time::{Duration, Instant};

use crate::flows::memory::FlowMemory;
use crate::metrics::Metrics;
use crate::metrics::flows::ShownFlows;
use crate::reconcilers::{NextRound, Reconcile};
use crate::round_trouble::RoundTrouble;
use crate::status_pace::Together;

/// What all rounds of one term share.
pub(crate) struct FlowTerm {
    pub(crate) flows: Flows,
    pub(crate) fence: Fence,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) together: Together<FlowKey>,
    /// When it began.
    pub(crate) began: Timestamp,
    shown: Mutex<ShownFlows>,
}

impl FlowTerm {
    /// The term that `fence` stands for.
    pub(crate) fn begin(flows: Flows, fence: Fence, metrics: Arc<Metrics>) -> Self {
        flows.cache().rest(false);
        let (shown, began) = (Mutex::new(ShownFlows::begin(metrics.clone())), flows.cluster().clock().now());
        Self { flows, fence, metrics, together: Together::default(), began, shown }
    }
}

impl Drop for FlowTerm {
    fn drop(&mut self) {
        self.flows.cache().rest(true);
    }
}

impl Reconcile for FlowTerm {
    type Key = FlowKey;
    type Memory = FlowMemory;

    fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    async fn ready(&self) {
        self.flows.synced().await;
    }

    fn all(&self) -> Vec<FlowKey> {
        self.flows.cache().keys()
    }

    fn take_changed(&self) -> Vec<FlowKey> {
        self.flows.cache().take_dirty().into_iter().collect()
    }

    async fn changed(&self) {
        self.flows.cache().dirtied().await;
    }

    async fn round(
        &self,
        key: &FlowKey,
        memory: &mut FlowMemory,
        since: Option<Instant>,
    ) -> Result<NextRound, RoundTrouble> {
        memory.since = since;
        round::run(self, key, memory).await
    }

    fn ended(&self, key: &FlowKey, memory: &mut FlowMemory, took: Duration) {
        if let FlowKey::Parent(kind, ..) = key {
            self.metrics.flows.of(*kind).round_took(took);
        }
        if let Some(figures) = memory.figures.take() {
            self.shown.lock().set(key, Some(figures));
        }
    }

    fn is_gone(&self, key: &FlowKey) {
        self.shown.lock().set(key, None);
    }
}
