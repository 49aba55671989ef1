//! The rounds of JobFlows, JobTemplates and DaemonJobs while this process leads.

mod memory;
mod reporting;
mod requests;
mod restore;
mod round;
mod template;

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use oarlock_core::attempts::parent::ParentKind;
use oarlock_core::object::api_object::ObjectKey;
use oarlock_kube::flows::Flows;
use oarlock_kube::lease::fence::Fence;
use parking_lot::Mutex;
use tokio::time::{Duration, Instant};

use crate::flows::memory::FlowMemory;
use crate::metrics::Metrics;
use crate::metrics::flows::ShownFlows;
use crate::reconcilers::{NextRound, Reconcile};
use crate::round_trouble::RoundTrouble;
use crate::status_rate_limit::SharedRateLimit;

/// The state that all flow rounds of one term share.
pub(crate) struct FlowTerm {
    pub(crate) flows: Flows,
    pub(crate) fence: Fence,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) shared_limit: SharedRateLimit<ObjectKey>,
    /// The time at which the term began.
    pub(crate) began: Timestamp,
    shown: Mutex<ShownFlows>,
}

impl FlowTerm {
    /// Begins the term that `fence` guards.
    pub(crate) fn begin(flows: Flows, fence: Fence, metrics: Arc<Metrics>) -> Self {
        flows.cache().set_idle(false);
        let (shown, began) = (Mutex::new(ShownFlows::begin(metrics.clone())), flows.cluster().clock().now());
        Self { flows, fence, metrics, shared_limit: SharedRateLimit::default(), began, shown }
    }
}

impl Drop for FlowTerm {
    fn drop(&mut self) {
        self.flows.cache().set_idle(true);
    }
}

impl Reconcile for FlowTerm {
    type Memory = FlowMemory;

    fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    async fn ready(&self) {
        self.flows.synced().await;
    }

    fn all(&self) -> Vec<ObjectKey> {
        self.flows.cache().keys()
    }

    fn take_changed(&self) -> Vec<ObjectKey> {
        self.flows.cache().take_dirty().into_iter().collect()
    }

    async fn changed(&self) {
        self.flows.cache().until_dirty().await;
    }

    async fn round(
        &self,
        key: &ObjectKey,
        memory: &mut FlowMemory,
        since: Option<Instant>,
    ) -> Result<NextRound, RoundTrouble> {
        memory.since = since;
        round::run(self, key, memory).await
    }

    fn ended(&self, key: &ObjectKey, memory: &mut FlowMemory, took: Duration) {
        if let Some(kind) = ParentKind::of_key(key) {
            self.metrics.flows.of(kind).round_took(took);
        }
        if let Some(figures) = memory.figures.take() {
            self.shown.lock().set(key, Some(figures));
        }
    }

    fn is_gone(&self, key: &ObjectKey) {
        self.shown.lock().set(key, None);
    }
}
