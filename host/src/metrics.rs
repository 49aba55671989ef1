//! The host's metrics, as Prometheus reads them.
//!
//! Names: docs/operationjob.md 8.4 and 8.5, docs/jobflow.md 7. No label ever names a job, a target or anything else that grows with use: words
//! that come from plugins or users are counted by their name only while there are few of them.

mod at_scrape;
pub(crate) mod flows;
#[cfg(test)]
mod flows_tests;
#[cfg(test)]
mod metrics_tests;
pub(crate) mod ops;
mod plugins;
mod process;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oarlock_core::job::key::JobKey;
use oarlock_kube::flows::Flows;
use oarlock_kube::lease::Leadership;
use oarlock_kube::ops::Ops;
use oarlock_kube::{Cluster, Requests};
use oarlock_rest::Rest;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::history::Recorder;
use crate::metrics::at_scrape::{ApiRequests, Port, Sources, Writes};
use crate::metrics::flows::FlowMetrics;
use crate::metrics::ops::OpsMetrics;
pub use crate::metrics::plugins::VisitOutcome;
use crate::metrics::plugins::Visits;
use crate::metrics::process::Process;

/// The media type of [`Metrics::text`].
pub const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Distinct words that one label takes from plugins. They choose their reasons, and each new word would be a series that stays
/// for ever.
const WORDS_OF_A_LABEL: usize = 64;

/// Stands for each further word, and for each action that no plugin has served: users make those up.
const OTHER: &str = "Other";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct JobLabels {
    action: String,
    progress: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TargetLabels {
    action: String,
    outcome: String,
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PluginLabels {
    name: String,
    state: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LimitLabels {
    plugin: String,
    what: String,
}

/// A job's part of the gauges, as of its last round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFigures {
    /// `spec.action`.
    pub action: String,
    /// `status.progress`.
    pub progress: String,
    /// Targets in `Processing`.
    pub in_flight: usize,
    /// Targets with an eviction that a disruption budget refuses.
    pub eviction_blocked: usize,
    /// Targets that the lifecycle of their pods has kept waiting for more than a minute.
    pub lifecycle_waiting: usize,
    /// Ended targets that are not released yet.
    pub release_pending: usize,
}

/// The end of one target.
#[derive(Clone, Copy, Debug)]
pub struct EndedTarget<'a> {
    /// `spec.action` of its job.
    pub action: &'a str,
    /// `Succeeded` or `Failed`.
    pub outcome: &'a str,
    /// Reason of its error; empty if it has none.
    pub reason: &'a str,
    /// From its start to its end; `None` if it never started.
    pub took: Option<Duration>,
}

/// All metrics of one host.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Names without the prefix.
    process: Registry,
    sources: Arc<Sources>,
    plugin_visits: Visits,
    /// Those of JobFlows and DaemonJobs.
    pub(crate) flows: FlowMetrics,
    /// Those of OpsJobs.
    pub(crate) ops: OpsMetrics,
    jobs: Family<JobLabels, Gauge>,
    targets: Family<TargetLabels, Counter>,
    targets_in_flight: Gauge,
    target_duration: Histogram,
    round_duration: Histogram,
    rounds: Counter,
    visits: Counter,
    panics: Counter,
    event_to_action: Histogram,
    status_bytes: Histogram,
    eviction_blocked: Gauge,
    lifecycle_waiting: Gauge,
    release_pending: Gauge,
    rounds_running: Gauge,
    rounds_waiting: Gauge,
    writes_waiting: Gauge,
    plugins: Family<PluginLabels, Gauge>,
    limited: Family<LimitLabels, Counter>,
    grants_refused: Gauge,
    leading: Gauge,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    jobs: HashMap<JobKey, JobFigures>,
    /// Those that a plugin has served.
    actions: BTreeSet<String>,
    reasons: BTreeSet<String>,
    plugins: BTreeSet<String>,
}

impl Metrics {
    /// Metrics that start at zero. The port's `requests` count the writes.
    pub fn new(requests: &Arc<Requests>) -> Self {
        let mut registry = Registry::with_prefix("oarlock");
        let (sources, mut process) = (Arc::default(), Registry::default());
        let mut metrics = Self {
            plugin_visits: Visits::register(&mut registry),
            flows: FlowMetrics::register(&mut registry, &sources),
            registry,
            ops: OpsMetrics::register(process.sub_registry_with_prefix("safe_opsjob")),
            process,
            sources,
            jobs: Family::default(),
            targets: Family::default(),
            targets_in_flight: Gauge::default(),
            // 0.1 s to about 1.8 hours: a replacement takes as long as a pod takes to serve.
            target_duration: Histogram::new(exponential_buckets(0.1, 2.0, 17)),
            // 0.1 ms to about 3 s.
            round_duration: Histogram::new(exponential_buckets(0.0001, 2.0, 16)),
            rounds: Counter::default(),
            visits: Counter::default(),
            panics: Counter::default(),
            // 1 ms to about 32 s.
            event_to_action: Histogram::new(exponential_buckets(0.001, 2.0, 16)),
            // 256 bytes to 512 KiB; a status of 1,000 details has 357 KB.
            status_bytes: Histogram::new(exponential_buckets(256.0, 2.0, 12)),
            eviction_blocked: Gauge::default(),
            lifecycle_waiting: Gauge::default(),
            release_pending: Gauge::default(),
            rounds_running: Gauge::default(),
            rounds_waiting: Gauge::default(),
            writes_waiting: Gauge::default(),
            plugins: Family::default(),
            limited: Family::default(),
            grants_refused: Gauge::default(),
            leading: Gauge::default(),
            known: Mutex::default(),
        };
        metrics.register(requests);
        metrics
    }

    fn register(&mut self, requests: &Arc<Requests>) {
        self.process.register_collector(Box::new(Process));
        let registry = &mut self.registry;
        let version = vec![("version", env!("CARGO_PKG_VERSION"))];
        registry.register("build", "The version of this host", Info::new(version));
        registry.register_collector(Box::new(Port(self.sources.clone())));
        registry.register_collector(Box::new(ApiRequests(requests.clone())));
        registry.register("leading", "1 while this process leads, else 0", self.leading.clone());
        registry.register("plugins", "Plugin files by name and state", self.plugins.clone());
        let refused = "1 while the file of grants is refused as it stands, else 0";
        registry.register("grants_refused", refused, self.grants_refused.clone());
        let limited = "Events of a plugin left out, and waits of its targets, since it asked for too much";
        registry.register("plugin_limited", limited, self.limited.clone());
        let jobs = registry.sub_registry_with_prefix("operationjob");
        jobs.register("jobs", "Jobs by action and progress", self.jobs.clone());
        jobs.register("targets", "Targets that ended", self.targets.clone());
        jobs.register("targets_in_flight", "Targets in Processing", self.targets_in_flight.clone());
        jobs.register("target_duration_seconds", "From a target's start to its end", self.target_duration.clone());
        jobs.register(
            "round_duration_seconds",
            "One pass over one job, its writes included",
            self.round_duration.clone(),
        );
        jobs.register("rounds", "Passes over one job", self.rounds.clone());
        jobs.register("visits", "Plugin visits of one target", self.visits.clone());
        let panics = "Rounds that panicked and were repeated, of flows and OpsJobs too";
        jobs.register("round_panics", panics, self.panics.clone());
        jobs.register(
            "event_to_action_seconds",
            "From a watch event to the write it led to; first writes of a target wait for their turn and are not counted",
            self.event_to_action.clone(),
        );
        jobs.register_collector(Box::new(Writes(requests.clone())));
        jobs.register("status_bytes", "Size of the status patches sent", self.status_bytes.clone());
        let blocked = "Targets whose eviction a disruption budget refuses";
        jobs.register("eviction_blocked", blocked, self.eviction_blocked.clone());
        jobs.register(
            "lifecycle_waiting",
            "Targets that the PodOpsLifecycle has kept waiting for more than a minute",
            self.lifecycle_waiting.clone(),
        );
        jobs.register("rounds_running", "Passes over one job under way", self.rounds_running.clone());
        jobs.register("rounds_waiting", "Jobs whose pass is due and has not begun", self.rounds_waiting.clone());
        let waiting = "Writes to targets that are decided and not sent yet, by target";
        jobs.register("writes_waiting", waiting, self.writes_waiting.clone());
        jobs.register("release_pending", "Ended targets not released yet", self.release_pending.clone());
    }

    /// The answer of `/metrics`.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode_registry(&mut text, &self.registry)
            .and_then(|()| encode_registry(&mut text, &self.process))
            .and_then(|()| encode_eof(&mut text));
        text
    }

    /// Counts this action by its name from now on, since a plugin serves it.
    pub fn action_is_served(&self, action: &str) {
        let _word = few(&mut self.known().actions, action);
    }

    /// Replaces the part of `job` in the gauges; `None` once it is gone.
    pub fn job_is(&self, job: &JobKey, figures: Option<JobFigures>) {
        let mut known = self.known();
        let figures = figures.map(|mut figures| {
            figures.action = known.action(&figures.action);
            figures
        });
        let previous = match figures.clone() {
            Some(figures) => known.jobs.insert(job.clone(), figures),
            None => known.jobs.remove(job),
        };
        if previous == figures {
            return;
        }
        if let Some(previous) = previous {
            self.add(&previous, -1);
        }
        if let Some(figures) = figures {
            self.add(&figures, 1);
        }
    }

    /// Forgets all jobs: a process that does not lead has none.
    pub fn no_jobs(&self) {
        let jobs = std::mem::take(&mut self.known().jobs);
        jobs.values().for_each(|figures| self.add(figures, -1));
    }

    fn add(&self, figures: &JobFigures, times: i64) {
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX).saturating_mul(times);
        let labels = JobLabels { action: figures.action.clone(), progress: figures.progress.clone() };
        let left = self.jobs.get_or_create_owned(&labels).inc_by(times) + times;
        if left == 0 {
            self.jobs.remove(&labels);
        }
        self.targets_in_flight.inc_by(count(figures.in_flight));
        self.eviction_blocked.inc_by(count(figures.eviction_blocked));
        self.lifecycle_waiting.inc_by(count(figures.lifecycle_waiting));
        self.release_pending.inc_by(count(figures.release_pending));
    }

    /// Counts a target whose end is durable.
    pub fn target_ended(&self, target: &EndedTarget<'_>) {
        let mut known = self.known();
        let labels = TargetLabels {
            action: known.action(target.action),
            outcome: target.outcome.to_owned(),
            reason: few(&mut known.reasons, target.reason),
        };
        drop(known);
        self.targets.get_or_create_owned(&labels).inc();
        if let Some(took) = target.took {
            self.target_duration.observe(took.as_secs_f64());
        }
    }

    /// Counts a round.
    pub fn round_took(&self, duration: Duration) {
        self.round_duration.observe(duration.as_secs_f64());
        self.rounds.inc();
    }

    /// Counts a visit of this plugin.
    pub fn visited(&self, plugin: &str, outcome: VisitOutcome, took: Duration) {
        self.visits.inc();
        let plugin = few(&mut self.known().plugins, plugin);
        self.plugin_visits.note(plugin, outcome, took);
    }

    /// Shows the state of this port at each scrape.
    pub fn shows_port(&self, cluster: &Cluster) {
        // Only the first one counts: a process has one.
        let _known = self.sources.cluster.set(cluster.clone()).is_err();
    }

    /// Shows the age of the lease at each scrape.
    pub fn shows_lease(&self, leadership: watch::Receiver<Leadership>) {
        let _known = self.sources.leadership.set(leadership).is_err();
    }

    /// Shows the watches and the writes of flows at each scrape.
    pub fn shows_flows(&self, flows: &Flows) {
        let _known = self.sources.flows.set(flows.clone()).is_err();
    }

    /// Shows what the REST API counts.
    pub fn shows_rest(&self, rest: &Rest) {
        let _known = self.sources.rest.set(rest.clone()).is_err();
    }

    /// Shows the watch of OpsJobs at each scrape.
    pub fn shows_ops(&self, ops: &Ops) {
        let _known = self.sources.ops.set(ops.clone()).is_err();
    }

    /// Shows how far the history is behind at each scrape.
    pub fn shows_history(&self, recorder: &Recorder) {
        let _known = self.sources.recorder.set(recorder.clone()).is_err();
    }

    /// Sets the lengths of the queues: rounds that run, rounds that are due, and entries that wait to be sent.
    pub fn queues_are(&self, running: usize, due: usize, writes: usize) {
        for (gauge, number) in
            [(&self.rounds_running, running), (&self.rounds_waiting, due), (&self.writes_waiting, writes)]
        {
            gauge.set(i64::try_from(number).unwrap_or(i64::MAX));
        }
    }

    /// Counts a round that panicked, of whatever kind.
    pub fn panicked(&self) {
        self.panics.inc();
    }

    /// Counts the time from a watch event to the write it led to.
    pub fn acted_after(&self, duration: Duration) {
        self.event_to_action.observe(duration.as_secs_f64());
    }

    /// Counts the size of a status patch.
    pub fn status_sent(&self, bytes: usize) {
        #[allow(clippy::cast_precision_loss, reason = "a status is far below 2^52 bytes")]
        self.status_bytes.observe(bytes as f64);
    }

    /// Replaces the states of the plugins: pairs of name and state.
    pub fn plugins_are(&self, plugins: impl IntoIterator<Item = (String, String)>) {
        self.plugins.clear();
        // Those of now: a directory whose files come and go uses up no words.
        let mut names = BTreeSet::new();
        for (name, state) in plugins {
            let name = few(&mut names, &name);
            self.plugins.get_or_create_owned(&PluginLabels { name, state }).inc();
        }
    }

    /// Sets whether the file of grants is refused as it stands.
    pub fn grants_refused(&self, refused: bool) {
        self.grants_refused.set(i64::from(refused));
    }

    /// Counts what a plugin was held back from: `events`, `reads` or `writes`.
    pub fn limited(&self, plugin: &str, what: &str, times: u64) {
        let plugin = few(&mut self.known().plugins, plugin);
        self.limited.get_or_create_owned(&LimitLabels { plugin, what: what.to_owned() }).inc_by(times);
    }

    /// Sets the leadership of this process.
    pub fn leads(&self, leads: bool) {
        self.leading.set(i64::from(leads));
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // A thread that panicked while counting does not stop the others.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// `action`, if a plugin has served it, else `OTHER`.
    fn action(&self, action: &str) -> String {
        if self.actions.contains(action) { action.to_owned() } else { OTHER.to_owned() }
    }
}

/// `word`, if it is known or the limit is not reached, else `OTHER`.
fn few(known: &mut BTreeSet<String>, word: &str) -> String {
    if known.contains(word) {
        return word.to_owned();
    }
    if known.len() >= WORDS_OF_A_LABEL {
        return OTHER.to_owned();
    }
    known.insert(word.to_owned());
    word.to_owned()
}
