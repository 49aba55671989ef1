//! The two ports and the figures, as rounds and the controller use them.
//!
//! Takes adapters that somebody else constructed; yields what a round needs of them. May not decide anything.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use oarlock_api::OperationJob;
use oarlock_core::decide::Commit;
use oarlock_core::memory::JobMemory;
use oarlock_core::plugin::Found;
use oarlock_core::state::Progress;
use oarlock_core::writes::{Applied, EventNote, JobKey};
use oarlock_kube::cluster::Cluster;
use oarlock_wasm::Plugins;

use crate::metrics::{EndedTarget, JobFigures, Metrics};

/// The two ports and the figures.
pub struct Host {
    /// The Cluster port.
    pub cluster: Cluster,
    /// The Plugins port.
    pub plugins: Plugins,
    /// The figures.
    pub metrics: Arc<Metrics>,
}

impl Host {
    /// The time that is compared with the API server's.
    pub fn clock(&self) -> Timestamp {
        self.cluster.clock().now()
    }

    /// The plugin of a job: the version it is bound to while that can be run, else the serving one.
    pub fn find(&self, job: &OperationJob, memory: &JobMemory) -> Found {
        let action = action(job);
        let bound = memory.state.plugin.as_ref().map(|plugin| plugin.digest.as_str());
        self.plugins.find(action, bound)
    }

    /// Counts what has become durable.
    pub fn count(&self, key: &JobKey, job: &OperationJob, commit: &Commit) {
        let Some(status) = &commit.status else { return };
        self.metrics.status_sent(serde_json::to_vec(status).map_or(0, |text| text.len()));
        for target in commit.targets.values().filter(|target| target.progress.terminal() && !target.released()) {
            let took = target.start.zip(target.end).map(|(start, end)| end.duration_since(start));
            self.metrics.target_ended(&EndedTarget {
                action: action(job),
                outcome: target.progress.word(),
                reason: target.error.as_ref().map_or("", |error| error.reason.as_str()),
                took: took.and_then(|took| Duration::try_from(took).ok()),
            });
        }
        let figures = JobFigures {
            action: action(job).to_owned(),
            progress: status.progress.clone().unwrap_or_else(|| Progress::Pending.word().to_owned()),
            in_flight: usize::try_from(status.processing_pod_count.unwrap_or(0)).unwrap_or(0),
            ..JobFigures::default()
        };
        self.metrics.job_is(key, Some(figures));
    }

    /// Emits the events of targets whose writes were done, and the warnings.
    pub fn tell(&self, applied: &[Applied], mut targets: BTreeMap<u32, Vec<EventNote>>, warnings: Vec<EventNote>) {
        for outcome in applied.iter().filter(|outcome| outcome.stopped.is_some()) {
            outcome.target.iter().for_each(|index| drop(targets.remove(index)));
        }
        let notes: Vec<_> = targets.into_values().flatten().chain(warnings).collect();
        if !notes.is_empty() {
            self.cluster.emit(notes);
        }
    }
}

/// `spec.action`, empty where it is not given.
pub fn action(job: &OperationJob) -> &str {
    job.spec.as_ref().and_then(|spec| spec.action.as_deref()).unwrap_or_default()
}
