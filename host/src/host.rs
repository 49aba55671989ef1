//! The two ports and the figures, as rounds and the controller use them.
//!
//! Takes adapters that somebody else constructed; yields what a round needs of them. May not decide anything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use oarlock_api::OperationJob;
use oarlock_core::cluster::object::Kind;
use oarlock_core::cluster::writes::{Applied, EventNote, JobKey};
use oarlock_core::job::state::Progress;
use oarlock_core::plugin::lookup::Found;
use oarlock_core::round::decide::Commit;
use oarlock_core::round::memory::JobMemory;
use oarlock_core::round::standing::action;
use oarlock_kube::Cluster;
use oarlock_kube::watch::watches::Declared;
use oarlock_wasm::Plugins;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::metrics::{EndedTarget, JobFigures, Metrics};

/// The two ports and the figures.
pub struct Host {
    /// The Cluster port.
    pub cluster: Cluster,
    /// The Plugins port.
    pub plugins: Plugins,
    /// The figures.
    pub metrics: Arc<Metrics>,
    /// Digests of the plugins whose kinds and fields were listed, so that jobs may run on them.
    listed: watch::Sender<BTreeSet<String>>,
}

impl Host {
    /// A host on these ports.
    pub fn new(cluster: Cluster, plugins: Plugins, metrics: Arc<Metrics>) -> Self {
        Self { cluster, plugins, metrics, listed: watch::Sender::new(BTreeSet::new()) }
    }

    /// Changes when other plugins may be run on.
    pub fn listed(&self) -> watch::Receiver<BTreeSet<String>> {
        self.listed.subscribe()
    }

    /// Has watched what the plugins declare, whenever that changes, until `stop`.
    pub async fn keep_declared(self: Arc<Self>, stop: CancellationToken) {
        let mut changes = self.plugins.changes();
        while !stop.is_cancelled() {
            changes.borrow_and_update();
            let digests = self.plugins.digests();
            self.cluster.declare(declared(&self.plugins)).await;
            self.listed.send_replace(digests);
            tokio::select! {
                () = stop.cancelled() => return,
                changed = changes.changed() => if changed.is_err() { return },
            }
        }
    }

    /// The time that is compared with the API server's.
    pub fn clock(&self) -> Timestamp {
        self.cluster.clock().now()
    }

    /// The plugin of a job: the version it is bound to while that can be run, else the serving one. `None` while what
    /// that plugin declares is being listed: it would see too little.
    pub fn find(&self, job: &OperationJob, memory: &JobMemory) -> Option<Found> {
        let bound = memory.state.plugin.as_ref().map(|plugin| plugin.digest.as_str());
        match self.plugins.find(action(job), bound) {
            Found::Serving(plugin) if !self.listed.borrow().contains(&plugin.digest) => None,
            found => Some(found),
        }
    }

    /// Counts what has become durable.
    pub fn count(&self, job: &OperationJob, commit: &Commit) {
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
    }

    /// Shows in the gauges where a job stands after a round.
    pub fn show(&self, key: &JobKey, job: &OperationJob, memory: &JobMemory) {
        let progress = memory.status.as_ref().and_then(|status| status.progress.clone());
        let figures = JobFigures {
            action: action(job).to_owned(),
            progress: progress.unwrap_or_else(|| Progress::Pending.word().to_owned()),
            in_flight: memory.processing.len(),
            eviction_blocked: memory.blocked.len(),
            release_pending: memory.releasing.len(),
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

/// What is watched: what plugins declare, and what the host itself reads of pods.
fn declared(plugins: &Plugins) -> Declared {
    let mut declared = Declared::default();
    declared.kinds.entry(Kind::pod()).or_default().fields.insert("/spec/nodeName".to_owned());
    for (kind, wanted) in plugins.declared().into_iter().filter(|(_, wanted)| wanted.watched) {
        let entry = declared.kinds.entry(kind).or_default();
        entry.fields.extend(wanted.fields);
        entry.labels_indexed.extend(wanted.indexed.labels);
        entry.fields_indexed.extend(wanted.indexed.fields);
    }
    declared
}
