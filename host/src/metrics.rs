//! The host's metrics for Prometheus.
//!
//! Names: docs/operationjob.md 8.4 and 8.5, docs/jobflow.md 7. No label names a job, a target or anything else whose
//! number grows with use. Words from plugins or users become labels only while there are few of them.

mod at_scrape;
pub(crate) mod flows;
#[cfg(test)]
mod flows_tests;
#[cfg(test)]
mod metrics_tests;
pub(crate) mod ops;
mod plugins;
mod process;
pub(crate) mod rounds;
mod traces;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oarlock_artefacts::Artefacts;
use oarlock_core::object::key::JobKey;
use oarlock_kube::flows::Flows;
use oarlock_kube::lease::fence::Leadership;
use oarlock_kube::watch::health::KindHealth;
use oarlock_kube::{Cluster, Requests};
use oarlock_rest::Rest;
use oarlock_wasm::Plugins;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::health::Health;
use crate::history::Recorder;
use crate::metrics::at_scrape::{ApiRequests, Port, ScrapeSources, Writes};
use crate::metrics::flows::FlowMetrics;
use crate::metrics::ops::OpsMetrics;
pub use crate::metrics::plugins::VisitOutcome;
use crate::metrics::plugins::Visits;
use crate::metrics::process::Process;
use crate::metrics::rounds::FailingRounds;
use crate::metrics::traces::Traces;
use crate::traces::SpanCounts;

/// The media type of [`Metrics::text`].
pub const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The number of distinct words that one label accepts from plugins. Plugins choose their reasons, and each new word
/// would be a series that stays forever.
const WORDS_OF_A_LABEL: usize = 64;

/// The label for each further word, and for each action that no plugin has served. Users can invent actions.
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

/// The share of one job in the gauges, as of its last round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFigures {
    /// `spec.action`.
    pub action: String,
    /// `status.progress`.
    pub progress: String,
    /// The number of targets in `Processing`.
    pub in_flight: usize,
    /// The number of targets with an eviction that a disruption budget refuses.
    pub eviction_blocked: usize,
    /// The number of targets that the lifecycle of their pods has delayed for more than a minute.
    pub lifecycle_waiting: usize,
    /// The number of ended targets that are not released yet.
    pub release_pending: usize,
}

/// The end of one target.
#[derive(Clone, Copy, Debug)]
pub struct EndedTarget<'a> {
    /// The `spec.action` of the job.
    pub action: &'a str,
    /// The outcome: `Succeeded` or `Failed`.
    pub outcome: &'a str,
    /// The reason of the error; empty if there is none.
    pub reason: &'a str,
    /// The time from start to end; `None` if the target never started.
    pub took: Option<Duration>,
}

/// All metrics of one host.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// The metrics whose names have no prefix.
    process: Registry,
    sources: Arc<ScrapeSources>,
    plugin_visits: Visits,
    /// The metrics of JobFlows and DaemonJobs.
    pub(crate) flows: FlowMetrics,
    /// The metrics of OpsJobs.
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
    terms: Counter,
    /// The objects whose last round failed.
    pub(crate) failing: FailingRounds,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    jobs: HashMap<JobKey, JobFigures>,
    /// The actions that a plugin has served.
    actions: BTreeSet<String>,
    reasons: BTreeSet<String>,
    plugins: BTreeSet<String>,
}

impl Metrics {
    /// Makes metrics that start at zero. The port's `requests` count the writes.
    pub fn new(requests: &Arc<Requests>) -> Self {
        let mut registry = Registry::with_prefix("oarlock");
        let (sources, mut process) = (Arc::default(), Registry::default());
        let mut metrics = Self {
            plugin_visits: Visits::register(&mut registry),
            flows: FlowMetrics::register(&mut registry, &sources),
            failing: FailingRounds::register(&mut registry),
            registry,
            ops: OpsMetrics::register(process.sub_registry_with_prefix("safe_opsjob")),
            process,
            sources,
            jobs: Family::default(),
            targets: Family::default(),
            targets_in_flight: Gauge::default(),
            // 0.1 s to about 1.8 hours, because a replacement lasts until the new pod serves.
            target_duration: Histogram::new(exponential_buckets(0.1, 2.0, 17)),
            // 0.1 ms to about 3 s.
            round_duration: Histogram::new(exponential_buckets(0.0001, 2.0, 16)),
            rounds: Counter::default(),
            visits: Counter::default(),
            panics: Counter::default(),
            // 1 ms to about 32 s.
            event_to_action: Histogram::new(exponential_buckets(0.001, 2.0, 16)),
            // 256 bytes to 512 KiB. A status with 1,000 details has 357 KB.
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
            terms: Counter::default(),
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
        registry.register_collector(Box::new(Traces(self.sources.clone())));
        registry.register("leading", "1 while this process is the leader, otherwise 0", self.leading.clone());
        registry.register("terms", "Number of terms that this process has begun to lead", self.terms.clone());
        registry.register("plugins", "Number of plugin files, by name and state", self.plugins.clone());
        let refused = "1 while the host rejects the current grants file, otherwise 0";
        registry.register("grants_refused", refused, self.grants_refused.clone());
        let limited = "Number of dropped events and delayed reads and writes of a plugin that exceeds its budgets";
        registry.register("plugin_limited", limited, self.limited.clone());
        let jobs = registry.sub_registry_with_prefix("operationjob");
        jobs.register("jobs", "Number of jobs, by action and progress", self.jobs.clone());
        jobs.register("targets", "Number of targets that ended", self.targets.clone());
        jobs.register("targets_in_flight", "Number of targets in Processing", self.targets_in_flight.clone());
        jobs.register(
            "target_duration_seconds",
            "Seconds from the start of a target to its end",
            self.target_duration.clone(),
        );
        jobs.register(
            "round_duration_seconds",
            "Seconds that one round of a job takes, including its writes",
            self.round_duration.clone(),
        );
        jobs.register("rounds", "Number of rounds of jobs", self.rounds.clone());
        jobs.register("visits", "Number of plugin visits of targets", self.visits.clone());
        let panics = "Number of rounds that panicked and that the host repeats, including rounds of flows and OpsJobs";
        jobs.register("round_panics", panics, self.panics.clone());
        jobs.register(
            "event_to_action_seconds",
            "Seconds from a watch event to the write that it causes, without the first write of a target",
            self.event_to_action.clone(),
        );
        jobs.register_collector(Box::new(Writes(requests.clone())));
        jobs.register("status_bytes", "Bytes of the status patches that the host sends", self.status_bytes.clone());
        let blocked = "Number of targets whose eviction a PodDisruptionBudget blocks";
        jobs.register("eviction_blocked", blocked, self.eviction_blocked.clone());
        jobs.register(
            "lifecycle_waiting",
            "Number of targets that wait for the PodOpsLifecycle for more than a minute",
            self.lifecycle_waiting.clone(),
        );
        jobs.register("rounds_running", "Number of rounds that run now", self.rounds_running.clone());
        jobs.register(
            "rounds_waiting",
            "Number of jobs whose round is due but has not begun",
            self.rounds_waiting.clone(),
        );
        let waiting = "Number of targets with a decided write that the host has not sent yet";
        jobs.register("writes_waiting", waiting, self.writes_waiting.clone());
        jobs.register(
            "release_pending",
            "Number of ended targets that the host has not released yet",
            self.release_pending.clone(),
        );
    }

    /// Returns the answer of `/metrics`.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode_registry(&mut text, &self.registry)
            .and_then(|()| encode_registry(&mut text, &self.process))
            .and_then(|()| encode_eof(&mut text));
        text
    }

    /// Counts this action by its name from now on, because a plugin serves it.
    pub fn action_is_served(&self, action: &str) {
        let _word = few(&mut self.known().actions, action);
    }

    /// Replaces the share of `job` in the gauges; `None` after its deletion.
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

    /// Forgets all jobs, because a process that does not lead has none.
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

    /// Counts a visit of a plugin.
    pub fn visited(&self, plugin: &str, outcome: VisitOutcome, took: Duration) {
        self.visits.inc();
        let plugin = few(&mut self.known().plugins, plugin);
        self.plugin_visits.note(plugin, outcome, took);
    }

    /// Shows the state of this port at each scrape.
    pub fn shows_port(&self, cluster: &Cluster) {
        // A process has one port, so only the first call counts.
        let _known = self.sources.cluster.set(cluster.clone()).is_err();
    }

    /// Shows the peak use of limits by these plugins at each scrape.
    pub fn shows_plugins(&self, plugins: &Plugins) {
        let _known = self.sources.plugins.set(plugins.clone()).is_err();
    }

    /// Shows the age of the lease at each scrape.
    pub fn shows_lease(&self, leadership: watch::Receiver<Leadership>) {
        let _known = self.sources.leadership.set(leadership).is_err();
    }

    /// Shows the watches and the writes of flows at each scrape.
    pub fn shows_flows(&self, flows: &Flows) {
        let _known = self.sources.flows.set(flows.clone()).is_err();
    }

    /// Shows the counters of the REST API at each scrape.
    pub fn shows_rest(&self, rest: &Rest) {
        let _known = self.sources.rest.set(rest.clone()).is_err();
    }

    /// Shows the watches of one more kind at each scrape. `health` returns their state.
    pub fn shows_kind(&self, health: impl Fn() -> Vec<KindHealth> + Send + Sync + 'static) {
        self.sources.kinds.lock().push(Box::new(health));
    }

    /// Shows the readiness of each part of the process at each scrape.
    pub fn shows_health(&self, health: &Arc<Health>) {
        let _known = self.sources.health.set(health.clone()).is_err();
    }

    /// Shows the memory limit of this process, in bytes.
    pub fn shows_memory_limit(&self, bytes: u64) {
        let _known = self.sources.memory_limit.set(bytes).is_err();
    }

    /// Shows the counts of exported spans at each scrape.
    pub fn shows_traces(&self, counts: &Arc<SpanCounts>) {
        let _known = self.sources.spans.set(counts.clone()).is_err();
    }

    /// Shows the counts of requests to the store of artefacts at each scrape.
    pub fn shows_artefacts(&self, artefacts: &Artefacts) {
        let _known = self.sources.artefacts.set(artefacts.clone()).is_err();
    }

    /// Shows at each scrape how many jobs wait for the history.
    pub fn shows_history(&self, recorder: &Recorder) {
        let _known = self.sources.recorder.set(recorder.clone()).is_err();
    }

    /// Sets the lengths of the queues: running rounds, due rounds, and entries that wait for sending.
    pub fn queues_are(&self, running: usize, due: usize, writes: usize) {
        for (gauge, number) in
            [(&self.rounds_running, running), (&self.rounds_waiting, due), (&self.writes_waiting, writes)]
        {
            gauge.set(i64::try_from(number).unwrap_or(i64::MAX));
        }
    }

    /// Counts a round that panicked, of any kind of object.
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
        // Only current names count, so that a directory whose files come and go uses up no words.
        let mut names = BTreeSet::new();
        for (name, state) in plugins {
            let name = few(&mut names, &name);
            self.plugins.get_or_create_owned(&PluginLabels { name, state }).inc();
        }
    }

    /// Sets whether the current file of grants is refused.
    pub fn grants_refused(&self, refused: bool) {
        self.grants_refused.set(i64::from(refused));
    }

    /// Counts the limited requests of a plugin: `events`, `reads` or `writes`.
    pub fn limited(&self, plugin: &str, what: &str, times: u64) {
        let plugin = few(&mut self.known().plugins, plugin);
        self.limited.get_or_create_owned(&LimitLabels { plugin, what: what.to_owned() }).inc_by(times);
    }

    /// Sets whether this process leads, and counts the beginning of a term.
    pub fn leads(&self, leads: bool) {
        if self.leading.set(i64::from(leads)) == 0 && leads {
            self.terms.inc();
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // A thread that panicked while counting does not stop the others.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Returns `action` if a plugin has served it, else `OTHER`.
    fn action(&self, action: &str) -> String {
        if self.actions.contains(action) { action.to_owned() } else { OTHER.to_owned() }
    }
}

/// Returns `word` if it is known or if there is room for it, else `OTHER`.
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
