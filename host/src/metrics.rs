//! The host's metrics, as Prometheus reads them.
//!
//! Names: docs/operationjob.md 8.4. No label ever names a job, a target or anything else that grows with use: words
//! that come from plugins or users are counted by their name only while there are few of them.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oarlock_core::job::key::JobKey;
use oarlock_kube::Requests;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// The media type of [`Metrics::text`].
pub const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Distinct words that one label takes from plugins and users. Plugins choose their reasons and users the actions, and
/// each new word would be a series that stays for ever.
const WORDS_OF_A_LABEL: usize = 64;

/// Stands for each further word.
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
struct WriteLabels {
    resource: String,
    verb: String,
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PluginLabels {
    name: String,
    state: String,
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
    /// Stays 0 until a plugin may take part in the PodOpsLifecycle; such plugins are refused for now.
    lifecycle_waiting: Gauge,
    release_pending: Gauge,
    plugins: Family<PluginLabels, Gauge>,
    leading: Gauge,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    jobs: HashMap<JobKey, JobFigures>,
    actions: BTreeSet<String>,
    reasons: BTreeSet<String>,
}

impl Metrics {
    /// Metrics that start at zero. The port's `requests` count the writes.
    pub fn new(requests: &Arc<Requests>) -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("oarlock"),
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
            plugins: Family::default(),
            leading: Gauge::default(),
            known: Mutex::default(),
        };
        metrics.register(requests);
        metrics
    }

    fn register(&mut self, requests: &Arc<Requests>) {
        let registry = &mut self.registry;
        registry.register("leading", "1 while this process leads, else 0", self.leading.clone());
        registry.register("plugins", "Plugin files by name and state", self.plugins.clone());
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
        jobs.register("round_panics", "Rounds that panicked and were repeated", self.panics.clone());
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
            "Targets that wait for their PodOpsLifecycle",
            self.lifecycle_waiting.clone(),
        );
        jobs.register("release_pending", "Ended targets not released yet", self.release_pending.clone());
    }

    /// The answer of `/metrics`.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }

    /// Replaces the part of `job` in the gauges; `None` once it is gone.
    pub fn job_is(&self, job: &JobKey, figures: Option<JobFigures>) {
        let mut known = self.known();
        let figures = figures.map(|mut figures| {
            figures.action = few(&mut known.actions, &figures.action);
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
        self.release_pending.inc_by(count(figures.release_pending));
    }

    /// Counts a target whose end is durable.
    pub fn target_ended(&self, target: &EndedTarget<'_>) {
        let mut known = self.known();
        let labels = TargetLabels {
            action: few(&mut known.actions, target.action),
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

    /// Counts a visit.
    pub fn visited(&self) {
        self.visits.inc();
    }

    /// Counts a round that panicked.
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

    /// Replaces the states of the plugins: pairs of name and state. The admin bounds their number, by the files in the
    /// plugin directory.
    pub fn plugins_are(&self, plugins: impl IntoIterator<Item = (String, String)>) {
        self.plugins.clear();
        for (name, state) in plugins {
            self.plugins.get_or_create_owned(&PluginLabels { name, state }).inc();
        }
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

/// The requests that change the cluster, as the port has counted them by the time of a scrape.
struct Writes(Arc<Requests>);

impl fmt::Debug for Writes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writes").finish_non_exhaustive()
    }
}

impl Collector for Writes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Requests that change the cluster, by answer";
        let mut family = encoder.encode_descriptor("writes", help, None, MetricType::Counter)?;
        for (labels, tally) in
            self.0.snapshot().into_iter().filter(|(l, _)| !["get", "list", "watch"].contains(&l.verb))
        {
            let labels = WriteLabels { resource: labels.resource, verb: labels.verb.to_owned(), code: labels.code };
            ConstCounter::new(tally.count).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> JobKey {
        JobKey { namespace: "default".into(), name: name.into() }
    }

    fn figures(progress: &str, in_flight: usize) -> JobFigures {
        JobFigures { action: "Replace".into(), progress: progress.into(), in_flight, ..JobFigures::default() }
    }

    #[test]
    fn the_gauges_are_the_sum_of_the_jobs_as_last_seen() {
        let metrics = Metrics::new(&Arc::default());
        metrics.job_is(&key("a"), Some(figures("Processing", 3)));
        metrics.job_is(&key("b"), Some(figures("Processing", 2)));
        metrics.job_is(&key("a"), Some(figures("Succeeded", 0)));
        let text = metrics.text();
        assert!(text.contains("oarlock_operationjob_targets_in_flight 2\n"), "{text}");
        assert!(text.contains(r#"oarlock_operationjob_jobs{action="Replace",progress="Processing"} 1"#), "{text}");
        assert!(text.contains(r#"oarlock_operationjob_jobs{action="Replace",progress="Succeeded"} 1"#), "{text}");
        metrics.job_is(&key("a"), None);
        metrics.no_jobs();
        let text = metrics.text();
        assert!(text.contains("oarlock_operationjob_targets_in_flight 0\n") && !text.contains("progress="), "{text}");
    }

    #[test]
    fn a_plugin_that_invents_reasons_makes_no_series_without_end() {
        let metrics = Metrics::new(&Arc::default());
        for number in 0..10_000 {
            let reason = format!("Invented{number}");
            metrics.target_ended(&EndedTarget { action: "Replace", outcome: "Failed", reason: &reason, took: None });
        }
        let text = metrics.text();
        assert!(text.lines().count() < 200, "{} lines", text.lines().count());
        assert!(text.contains(r#"reason="Other"} 9936"#), "{text}");
    }

    #[test]
    fn every_name_of_the_documentation_is_served() {
        let metrics = Metrics::new(&Arc::default());
        metrics.job_is(&key("a"), Some(figures("Pending", 0)));
        let took = Some(Duration::from_secs(1));
        metrics.target_ended(&EndedTarget { action: "Replace", outcome: "Succeeded", reason: "", took });
        let text = metrics.text();
        for name in [
            "jobs{",
            "targets_total{",
            "targets_in_flight ",
            "target_duration_seconds_bucket{",
            "round_duration_seconds_bucket{",
            "event_to_action_seconds_bucket{",
            "writes counter",
            "status_bytes_bucket{",
            "eviction_blocked ",
            "lifecycle_waiting ",
            "release_pending ",
        ] {
            assert!(text.contains(&format!("oarlock_operationjob_{name}")), "{name} is missing in\n{text}");
        }
    }
}
