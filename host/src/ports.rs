//! The two ports and the metrics, as rounds and the controller use them.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_api::OperationJob;
use oarlock_core::object::key::JobKey;
use oarlock_core::object::time::before;
use oarlock_core::operation_job::round::context::action;
use oarlock_core::operation_job::round::memory::JobMemory;
use oarlock_core::plugin::lookup::PluginLookup;
use oarlock_core::plugin::visit_recorder::{RecorderBounds, VisitRecorder};
use oarlock_kube::Cluster;
use oarlock_wasm::{FirstScan, Plugins};

use crate::bound_jobs::BoundJobs;
use crate::call_share::PluginCallLimits;
use crate::declared_kinds::DeclaredKinds;
use crate::health::Heartbeat;
use crate::log_share::LogShare;
use crate::logs::Logs;
use crate::metrics::Metrics;
use crate::round_limits::Calling;

/// The two ports and the metrics.
pub struct Ports {
    /// The Cluster port.
    pub cluster: Cluster,
    /// The Plugins port.
    pub plugins: Plugins,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// The heartbeat of the controller.
    pub heart: Arc<Heartbeat>,
    /// The share of each plugin in the log.
    pub(crate) log_share: LogShare,
    /// The jobs whose rounds call their plugins now.
    pub(crate) calling: Calling,
    /// The share of each plugin's calls in the host's threads.
    pub(crate) shares: PluginCallLimits,
    /// The collector of logs, if the host keeps files.
    pub(crate) logs: OnceLock<Logs>,
    /// The jobs that are bound to each version of a plugin.
    pub(crate) bound: Arc<BoundJobs>,
    /// The recorder of visits.
    pub recorder: VisitRecorder,
    /// The kinds and fields that plugins declare.
    pub(crate) kinds: DeclaredKinds,
}

impl Ports {
    /// Makes ports from these adapters.
    pub fn new(cluster: Cluster, plugins: Plugins, metrics: Arc<Metrics>) -> Self {
        metrics.shows_port(&cluster);
        metrics.shows_plugins(&plugins);
        let (heart, log_share, logs) = (Arc::default(), LogShare::default(), OnceLock::new());
        let (calling, shares, kinds) = (Calling::default(), PluginCallLimits::default(), DeclaredKinds::default());
        let (bound, recorder) = (Arc::default(), VisitRecorder::default());
        Self { cluster, plugins, metrics, heart, log_share, calling, shares, logs, bound, recorder, kinds }
    }

    /// Replaces the recorder of visits.
    #[must_use]
    pub fn with_recorder(self, bounds: RecorderBounds) -> Self {
        Self { recorder: VisitRecorder::new(bounds), ..self }
    }

    /// Returns true if a job may have a round while the actions in `full` run as many rounds as they may.
    pub fn has_free_slot(&self, key: &JobKey, full: &[String]) -> bool {
        full.is_empty() || self.cluster.action(key).is_none_or(|action| !full.contains(&action))
    }

    /// Returns the time that is compared with the API server's.
    pub fn clock(&self) -> Timestamp {
        self.cluster.clock().now()
    }

    /// Returns the time this long before now.
    pub fn ago(&self, time: Duration) -> Timestamp {
        before(self.clock(), SignedDuration::try_from(time).unwrap_or_default())
    }

    /// Returns the plugin of a job: the version that the job is bound to, if it can run, else the serving version.
    ///
    /// Returns `None` while the plugin's kinds and fields are being listed, because the plugin would see too little.
    /// Also returns `None` while the plugin's file may not have been loaded yet.
    pub fn plugin_for(&self, job: &OperationJob, memory: &JobMemory) -> Option<PluginLookup> {
        let bound = memory.stored.state.plugin.as_ref().map(|plugin| plugin.digest.as_str());
        // Read first, because the plugin may be loaded meanwhile.
        let loading = *self.plugins.first_scan().borrow() < FirstScan::Done;
        match self.plugins.find(action(job), bound) {
            PluginLookup::Serving(plugin) if !loading || bound.is_none_or(|bound| bound == plugin.digest) => {
                self.metrics.action_is_served(action(job));
                self.kinds.usable(&self.cluster, &self.plugins, plugin)
            }
            _ if loading => None,
            found => Some(found),
        }
    }
}
