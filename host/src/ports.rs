//! The two ports and the metrics, as rounds and the controller use them.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_api::OperationJob;
use oarlock_core::cluster::object::Kind;
use oarlock_core::job::key::{JobKey, JobRef};
use oarlock_core::job::state::Progress;
use oarlock_core::job::time::before;
use oarlock_core::plugin::lookup::{PluginInfo, PluginLookup};
use oarlock_core::round::context::action;
use oarlock_core::round::decided::Commit;
use oarlock_core::round::events::{EventBuilder, new_events};
use oarlock_core::round::memory::JobMemory;
use oarlock_core::shared::tables::{SharedTables, lock};
use oarlock_kube::Cluster;
use oarlock_kube::record::RecordError;
use oarlock_kube::watch::health::KindHealth;
use oarlock_kube::watch::watches::{WatchedKind, WatchedKinds};
use oarlock_wasm::{Declared, DeclaredKind, FirstScan, Plugins};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::call_share::CallShares;
use crate::health::Heartbeat;
use crate::log_share::LogShare;
use crate::logs::Logs;
use crate::metrics::{EndedTarget, JobFigures, Metrics};
use crate::running::Calling;

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
    /// What each plugin's troubles may take of the log.
    pub(crate) log_share: LogShare,
    /// The rounds that call their plugins.
    pub(crate) calling: Calling,
    /// How much of the machine the calls of each plugin may use.
    pub(crate) shares: CallShares,
    /// What collects logs, where the host keeps files.
    pub(crate) logs: OnceLock<Logs>,
    /// Digests of the plugins whose kinds and fields are watched.
    declared: Mutex<BTreeSet<String>>,
    /// Rises when the set of plugins that may be run has changed.
    listed: watch::Sender<u64>,
    /// The job whose next round panics: for tests of containment.
    sabotaged: Mutex<Option<JobKey>>,
}

impl Ports {
    /// Ports on these adapters.
    pub fn new(cluster: Cluster, plugins: Plugins, metrics: Arc<Metrics>) -> Self {
        metrics.shows_port(&cluster);
        let (declared, listed, sabotaged) = (Mutex::default(), watch::Sender::new(0), Mutex::default());
        let (heart, log_share) = (Arc::default(), LogShare::default());
        let (calling, shares) = (Calling::default(), CallShares::default());
        let logs = OnceLock::new();
        Self { cluster, plugins, metrics, heart, log_share, calling, shares, logs, declared, listed, sabotaged }
    }

    /// Changes when the set of plugins that may be run has changed.
    pub fn listed(&self) -> watch::Receiver<u64> {
        self.listed.subscribe()
    }

    /// Keeps the kinds and fields that the plugins declare watched, until `stop`. A kind that is late or refused delays
    /// only the plugins that declare it.
    pub async fn keep_declared(self: Arc<Self>, stop: CancellationToken) {
        // Declared one after the other, plugins that were compiled before would have pods listed once for each.
        let mut first_scan = self.plugins.first_scan();
        tokio::select! {
            () = stop.cancelled() => return,
            reached = first_scan.wait_for(|reached| *reached > FirstScan::Pending) => if reached.is_err() { return },
        }
        // No pod is looked at before it is known which holds are the host's.
        tokio::select! {
            () = stop.cancelled() => return,
            () = self.cluster.await_hold_keys() => {}
        }
        let mut plugins = self.plugins.changes();
        let mut watches = self.cluster.watch_changes();
        while !stop.is_cancelled() {
            plugins.borrow_and_update();
            let digests = self.plugins.digests();
            self.cluster.declare(declared(&self.plugins)).await;
            *self.declared.lock() = digests;
            loop {
                self.listed.send_modify(|number| *number = number.wrapping_add(1));
                tokio::select! {
                    () = stop.cancelled() => return,
                    changed = plugins.changed() => if changed.is_err() { return } else { break },
                    changed = watches.changed() => if changed.is_err() { return },
                }
            }
        }
    }

    /// True if a job may have a round while as many rounds of these actions run as may at once.
    pub fn has_place(&self, key: &JobKey, full: &[String]) -> bool {
        full.is_empty() || self.cluster.action(key).is_none_or(|action| !full.contains(&action))
    }

    /// The time that is compared with the API server's.
    pub fn clock(&self) -> Timestamp {
        self.cluster.clock().now()
    }

    /// The time this long before now.
    pub fn ago(&self, time: Duration) -> Timestamp {
        before(self.clock(), SignedDuration::try_from(time).unwrap_or_default())
    }

    /// The plugin of a job: the version it is bound to while that can be run, else the serving one. `None` while its
    /// declared kinds and fields are being listed, since it would see too little, and while its file may not have been
    /// loaded yet.
    pub fn plugin_for(&self, job: &OperationJob, memory: &JobMemory) -> Option<PluginLookup> {
        let bound = memory.state.plugin.as_ref().map(|plugin| plugin.digest.as_str());
        // First, since the plugin may be loaded meanwhile.
        let loading = *self.plugins.first_scan().borrow() < FirstScan::Done;
        match self.plugins.find(action(job), bound) {
            PluginLookup::Serving(plugin) if !loading || bound.is_none_or(|bound| bound == plugin.digest) => {
                self.metrics.action_is_served(action(job));
                self.usable(plugin)
            }
            _ if loading => None,
            found => Some(found),
        }
    }

    fn usable(&self, plugin: Arc<PluginInfo>) -> Option<PluginLookup> {
        if !self.declared.lock().contains(&plugin.digest) {
            return None;
        }
        let watches = self.cluster.health();
        let mut own: Vec<&KindHealth> = Vec::new();
        for (kind, wanted) in self.plugins.declared_by(&plugin.digest) {
            if wanted.watched {
                let wanted = watched(wanted);
                // The watch that was there before serves until a newer one is synced.
                let mut able = watches.iter().filter(|health| health.kind == kind && health.declared.covers(&wanted));
                own.push(able.clone().find(|health| health.synced).or(able.next_back())?);
            }
        }
        // A kind that the plugin can lack has no objects where it is not served; the watch asks for it again.
        let missing = |health: &&&KindHealth| !health.served && !plugin.manifest.can_lack(&health.kind);
        if let Some(health) = own.iter().find(missing) {
            return Some(unavailable(&plugin, "KindNotServed", health));
        }
        match own.iter().find(|health| !health.synced) {
            Some(health) if health.error.is_some() => Some(unavailable(&plugin, "KindNotReadable", health)),
            Some(_) => None,
            None => Some(PluginLookup::Serving(plugin)),
        }
    }

    /// Makes the next round of this job panic, once. For tests of containment.
    pub fn sabotage_next(&self, key: JobKey) {
        *self.sabotaged.lock() = Some(key);
    }

    #[allow(clippy::panic, reason = "it is asked for by a test, and by nothing else")]
    pub(crate) fn sabotage(&self, key: &JobKey) {
        if self.sabotaged.lock().take_if(|wanted| wanted == key).is_some() {
            panic!("a test wanted this round to panic");
        }
    }

    /// Counts and logs the changes that have become durable.
    pub fn count(&self, key: &JobKey, job: &OperationJob, commit: &Commit, memory: &JobMemory) {
        let Some(status) = &commit.status else { return };
        self.metrics.status_sent(serde_json::to_vec(status).map_or(0, |text| text.len()));
        let before = memory.status.as_ref().and_then(|status| status.progress.as_deref());
        let progress = status.progress.as_deref();
        if progress != before {
            let (succeeded, failed) = (status.succeeded_pod_count, status.failed_pod_count);
            let (action, progress) = (action(job), progress.unwrap_or_default());
            tracing::info!(job = %key, action, progress, succeeded, failed, "the job goes on to another progress");
        }
        for (index, target) in memory.ended_by(commit) {
            let reason = target.error.as_ref().map(|error| error.reason.as_str());
            // Not `message`: that is the name of the line's own text.
            let error = target.error.as_ref().map(|error| error.message.as_str());
            let (name, outcome) = (memory.state.name(index), target.progress.word());
            tracing::info!(job = %key, action = action(job), target = name, outcome, reason, error, "a target ended");
            let took = target.start.zip(target.end).map(|(start, end)| end.duration_since(start));
            self.metrics.target_ended(&EndedTarget {
                action: action(job),
                outcome: target.progress.word(),
                reason: target.error.as_ref().map_or("", |error| error.reason.as_str()),
                took: took.and_then(|took| Duration::try_from(took).ok()),
            });
        }
    }

    /// Counts what plugins were held back from since the last call.
    pub fn count_limited(&self, tables: &SharedTables) {
        let limited = lock(tables).budgets.take_limited();
        for ((plugin, what), times) in limited {
            self.metrics.limited(&plugin, what.word(), times);
        }
    }

    /// Says on the job that the API server refuses its record, once: its status cannot say it.
    pub fn tell_refused(&self, job: &JobRef, action: &str, error: &RecordError, memory: &mut JobMemory) {
        if error.is_refused() {
            let message = format!("{error}; the job goes on once that is allowed");
            let note = EventBuilder { job, action }.about_job(true, "StatusRefused", message);
            self.cluster.emit(new_events(vec![note], memory));
        }
    }

    /// Updates the gauges with the state of a job after a round.
    pub fn show(&self, key: &JobKey, job: &OperationJob, memory: &JobMemory) {
        let progress = memory.status.as_ref().and_then(|status| status.progress.clone());
        let figures = JobFigures {
            action: action(job).to_owned(),
            progress: progress.unwrap_or_else(|| Progress::Pending.word().to_owned()),
            in_flight: memory.durable.processing.len(),
            eviction_blocked: memory.blocked.len(),
            lifecycle_waiting: memory.lifecycle.len(),
            release_pending: memory.releasing.len(),
        };
        self.metrics.job_is(key, Some(figures));
    }
}

fn unavailable(plugin: &PluginInfo, reason: &'static str, health: &KindHealth) -> PluginLookup {
    let Kind { api_version, kind } = &health.kind;
    let error = health.error.as_deref().unwrap_or("the API server does not serve it");
    let message = format!(
        "plugin {} needs {kind} of {api_version}, which cannot be read: {error}; it serves as soon as that is fixed",
        plugin.manifest.name
    );
    PluginLookup::NotServing { reason, message }
}

/// An error with its causes on one line.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let next_text = next.to_string();
        if !text.contains(&next_text) {
            text.push_str(": ");
            text.push_str(&next_text);
        }
        cause = next.source();
    }
    text
}

/// The kinds that a host watches or reads for these plugins: what they declare, pods and namespaces.
fn declared(plugins: &Plugins) -> WatchedKinds {
    watched_kinds([Kind::namespace(), Kind::pod()], plugins.declared())
}

/// The kinds to watch or to read: those that are `needed` in any case, and those that plugins declare. Pods come with the
/// field that the host itself reads.
pub(crate) fn watched_kinds(needed: impl IntoIterator<Item = Kind>, plugins: Declared) -> WatchedKinds {
    let mut declared = WatchedKinds::default();
    declared.kinds.extend(needed.into_iter().map(|kind| (kind, WatchedKind::default())));
    for (kind, wanted) in plugins {
        if !wanted.watched && !declared.kinds.contains_key(&kind) {
            declared.read.insert(kind, wanted.fields);
            continue;
        }
        declared.kinds.entry(kind).or_default().merge(&watched(wanted));
    }
    if let Some(pods) = declared.kinds.get_mut(&Kind::pod()) {
        pods.fields.insert("/spec/nodeName".to_owned());
    }
    declared
}

/// What is kept of a kind that plugins declare.
fn watched(declared: DeclaredKind) -> WatchedKind {
    let DeclaredKind { fields, indexed, .. } = declared;
    WatchedKind { fields, labels_indexed: indexed.labels, fields_indexed: indexed.fields }
}
