//! The figures that the Cluster port provides at a scrape: requests, watches, events and the lease.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use oarlock_artefacts::Artefacts;
use oarlock_core::object::api_object::Kind;
use oarlock_kube::flows::Flows;
use oarlock_kube::lease::fence::Leadership;
use oarlock_kube::transport::requests::{LATENCY_BOUNDS, RequestCounts, RequestLabels};
use oarlock_kube::watch::health::KindHealth;
use oarlock_kube::{Cluster, Requests};
use oarlock_rest::{ANSWER_BOUNDS, Rest};
use oarlock_wasm::{PluginStatus, Plugins};
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::sync::watch;

use crate::health::Health;
use crate::history::Recorder;
use crate::traces::SpanCounts;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    resource: String,
    verb: String,
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    api_version: String,
    kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PartLabels {
    part: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PeakLabels {
    plugin: String,
    version: String,
    limit: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnswerLabels {
    method: &'static str,
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    outcome: &'static str,
}

/// Returns the state of each watch of a kind.
pub(super) type WatchesOfKind = Box<dyn Fn() -> Vec<KindHealth> + Send + Sync>;

/// The sources of figures at a scrape. Each is set when it becomes available.
#[derive(Default)]
pub(super) struct ScrapeSources {
    pub(super) cluster: OnceLock<Cluster>,
    pub(super) leadership: OnceLock<watch::Receiver<Leadership>>,
    pub(super) flows: OnceLock<Flows>,
    pub(super) kinds: Mutex<Vec<WatchesOfKind>>,
    pub(super) recorder: OnceLock<Recorder>,
    pub(super) rest: OnceLock<Rest>,
    pub(super) health: OnceLock<Arc<Health>>,
    pub(super) memory_limit: OnceLock<u64>,
    pub(super) spans: OnceLock<Arc<SpanCounts>>,
    pub(super) artefacts: OnceLock<Artefacts>,
    pub(super) plugins: OnceLock<Plugins>,
}

impl fmt::Debug for ScrapeSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources").finish_non_exhaustive()
    }
}

/// The collector of the watches, the events and the lease.
#[derive(Debug)]
pub(super) struct Port(pub(super) Arc<ScrapeSources>);

impl Collector for Port {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let leadership = self.0.leadership.get().map(|leadership| *leadership.borrow());
        if let Some(now) = leadership.filter(|now| now.leading) {
            let help = "Seconds since this process last sent a renewal of the lease, only if it is the leader";
            let family = encoder.encode_descriptor("lease_age_seconds", help, None, MetricType::Gauge)?;
            ConstGauge::new(now.renewed.elapsed().as_secs_f64()).encode(family)?;
        }
        if let Some(recorder) = self.0.recorder.get() {
            let help = "Number of OpsJobs whose latest state is not in the history yet";
            let family = encoder.encode_descriptor("history_jobs_waiting", help, None, MetricType::Gauge)?;
            ConstGauge::new(i64::try_from(recorder.waiting()).unwrap_or(i64::MAX)).encode(family)?;
        }
        encode_process_parts(&self.0, &mut encoder)?;
        if let Some(plugins) = self.0.plugins.get() {
            encode_peaks(plugins, &mut encoder)?;
        }
        if let Some(rest) = self.0.rest.get() {
            let counts = rest.counts();
            let help = "Number of REST requests to change an object from callers without a known right on OpsJobs";
            let family = encoder.encode_descriptor("rest_unentitled", help, None, MetricType::Counter)?;
            ConstCounter::new(counts.unentitled).encode(family)?;
            let help =
                "Number of REST connections that the server closed or did not accept, because there were too many";
            let family = encoder.encode_descriptor("rest_connections_closed", help, None, MetricType::Counter)?;
            ConstCounter::new(counts.closed_connections).encode(family)?;
            encode_answers(rest, &mut encoder)?;
        }
        let Some(cluster) = self.0.cluster.get() else { return Ok(()) };
        encode_watches(&watch_figures(cluster, &self.0), &mut encoder)?;
        let help = "Number of events by outcome: emitted, failed (rejected, or out of retries) or dropped";
        let mut family = encoder.encode_descriptor("events", help, None, MetricType::Counter)?;
        let counts = cluster.events();
        for (outcome, count) in [("emitted", counts.emitted), ("failed", counts.failed), ("dropped", counts.dropped)] {
            ConstCounter::new(count).encode(family.encode_family(&EventLabels { outcome })?)?;
        }
        let help = "Limit of concurrent writes to targets: 32, or fewer after the API server was busy";
        let family = encoder.encode_descriptor("writes_allowed", help, None, MetricType::Gauge)?;
        ConstGauge::new(i64::try_from(cluster.writes_allowed()).unwrap_or(i64::MAX)).encode(family)
    }
}

/// Encodes the peak use of each limit by each callable version of a plugin. The host keeps few replaced versions, so the series are few.
fn encode_peaks(plugins: &Plugins, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help =
        "Peak use of a limit by the calls of a plugin since its grant, in percent of the limit, rounded up to tens";
    let mut family = encoder.encode_descriptor("plugin_limit_peak_percent", help, None, MetricType::Gauge)?;
    // Two files may have the same version.
    let mut known = BTreeSet::new();
    for PluginStatus { name, version, digest, .. } in plugins.list() {
        let (Some(plugin), Some(version), Some(digest)) = (name, version, digest) else { continue };
        if !known.insert((plugin.clone(), version.clone())) {
            continue;
        }
        for (limit, peak) in plugins.peak_use(&digest) {
            let labels = PeakLabels { plugin: plugin.clone(), version: version.clone(), limit };
            ConstGauge::new(i64::from(peak)).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

/// Encodes the readiness of the parts, the memory limit, and the requests to the store of artefacts.
fn encode_process_parts(sources: &ScrapeSources, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    if let Some(health) = sources.health.get() {
        let help = "1 while this part of /readyz is ready, otherwise 0";
        let mut family = encoder.encode_descriptor("part_ready", help, None, MetricType::Gauge)?;
        for (part, is_ready) in health.readiness_of_parts() {
            let labels = PartLabels { part: part.to_owned() };
            ConstGauge::new(i64::from(is_ready)).encode(family.encode_family(&labels)?)?;
        }
    }
    if let Some(limit) = sources.memory_limit.get() {
        let help = "Bytes of memory that this process and its compile helpers may use";
        let family = encoder.encode_descriptor("memory_limit_bytes", help, None, MetricType::Gauge)?;
        ConstGauge::new(i64::try_from(*limit).unwrap_or(i64::MAX)).encode(family)?;
    }
    let Some(artefacts) = sources.artefacts.get() else { return Ok(()) };
    let help = "Number of requests to the store of artefacts by outcome: ok or failed";
    let mut family = encoder.encode_descriptor("artefact_requests", help, None, MetricType::Counter)?;
    let counts = artefacts.request_counts();
    for (outcome, count) in [("ok", counts.ok), ("failed", counts.failed)] {
        ConstCounter::new(count).encode(family.encode_family(&EventLabels { outcome })?)?;
    }
    Ok(())
}

/// Encodes the times of the answers of the REST API.
fn encode_answers(rest: &Rest, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "Seconds from the head of a REST request to the head of its answer, by method and status code";
    let mut family = encoder.encode_descriptor("rest_request_duration_seconds", help, None, MetricType::Histogram)?;
    for answered in rest.answers() {
        let labels = AnswerLabels { method: answered.method, code: answered.code.to_string() };
        let slower = answered.count.saturating_sub(answered.buckets.iter().sum());
        let buckets: Vec<(f64, u64)> =
            ANSWER_BOUNDS.into_iter().zip(answered.buckets).chain([(f64::MAX, slower)]).collect();
        let mut encoder = family.encode_family(&labels)?;
        encoder.encode_histogram::<NoLabelSet>(answered.seconds, answered.count, &buckets, None)?;
    }
    Ok(())
}

/// The figures of the watches of one kind.
struct WatchFigures {
    labels: KindLabels,
    synced: bool,
    replied: Option<Duration>,
    lists: u64,
}

/// Returns the figures of the watches, by kind. Jobs, flows and further kinds may each watch the same kind; then the worse
/// figures count.
fn watch_figures(cluster: &Cluster, sources: &ScrapeSources) -> Vec<WatchFigures> {
    let mut watches = cluster.health();
    // During the list of a wider declaration, the older watch counts.
    watches.dedup_by(|newer, shown| newer.kind == shown.kind);
    watches.extend(sources.flows.get().map(Flows::health).unwrap_or_default());
    watches.extend(sources.kinds.lock().iter().flat_map(|health| health()));
    let mut figures = BTreeMap::<Kind, WatchFigures>::new();
    for health in watches {
        let labels = KindLabels { api_version: health.kind.api_version.clone(), kind: health.kind.kind.clone() };
        let shown = WatchFigures {
            labels,
            synced: health.synced && !health.unread,
            replied: health.replied,
            lists: health.lists,
        };
        match figures.entry(health.kind) {
            Entry::Vacant(place) => drop(place.insert(shown)),
            Entry::Occupied(mut other) => {
                let other = other.get_mut();
                other.synced &= shown.synced;
                other.replied = other.replied.max(shown.replied);
                other.lists += shown.lists;
            }
        }
    }
    figures.into_values().collect()
}

fn encode_watches(watches: &[WatchFigures], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "Seconds since the last event of the watch of a kind";
    let mut family = encoder.encode_descriptor("watch_age_seconds", help, None, MetricType::Gauge)?;
    for watch in watches {
        let replied = watch.replied.as_ref().map(Duration::as_secs_f64);
        if let Some(replied) = replied {
            ConstGauge::new(replied).encode(family.encode_family(&watch.labels)?)?;
        }
    }
    let help = "Number of lists of a kind: the first list, and one for each watch that could not resume";
    let mut family = encoder.encode_descriptor("watch_lists", help, None, MetricType::Counter)?;
    for watch in watches {
        ConstCounter::new(watch.lists).encode(family.encode_family(&watch.labels)?)?;
    }
    let help = "1 if the cache of a kind is complete or the cluster does not serve the kind, otherwise 0";
    let mut family = encoder.encode_descriptor("watch_synced", help, None, MetricType::Gauge)?;
    for watch in watches {
        ConstGauge::new(i64::from(watch.synced)).encode(family.encode_family(&watch.labels)?)?;
    }
    Ok(())
}

/// The collector of all requests to the API server.
pub(super) struct ApiRequests(pub(super) Arc<Requests>);

/// The collector of requests that change the cluster, except those for flows. The collector shows only their number.
pub(super) struct Writes(pub(super) Arc<Requests>);

impl fmt::Debug for ApiRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiRequests").finish_non_exhaustive()
    }
}

impl fmt::Debug for Writes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writes").finish_non_exhaustive()
    }
}

impl Collector for ApiRequests {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Seconds that requests to the API server take, by resource, verb and status code";
        let mut family =
            encoder.encode_descriptor("api_request_duration_seconds", help, None, MetricType::Histogram)?;
        for (labels, tally) in calls(self.0.snapshot()) {
            let slower = tally.count.saturating_sub(tally.buckets.iter().sum());
            let buckets: Vec<(f64, u64)> =
                LATENCY_BOUNDS.into_iter().zip(tally.buckets).chain([(f64::MAX, slower)]).collect();
            let mut encoder = family.encode_family(&labels)?;
            encoder.encode_histogram::<NoLabelSet>(tally.seconds, tally.count, &buckets, None)?;
        }
        Ok(())
    }
}

impl Collector for Writes {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        encode_writes(encoder, "Number of requests that change the cluster, by status code", &self.0)
    }
}

/// Encodes the requests that change the cluster, without those that are counted separately.
pub(super) fn encode_writes(mut encoder: DescriptorEncoder<'_>, help: &str, requests: &Requests) -> fmt::Result {
    let mut family = encoder.encode_descriptor("writes", help, None, MetricType::Counter)?;
    let writes = calls(requests.own()).filter(|(l, _)| !["get", "list", "watch"].contains(&l.verb.as_str()));
    for (labels, tally) in writes {
        ConstCounter::new(tally.count).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

fn calls(
    tallies: impl IntoIterator<Item = (RequestLabels, RequestCounts)>,
) -> impl Iterator<Item = (CallLabels, RequestCounts)> {
    tallies.into_iter().map(|(labels, tally)| {
        (CallLabels { resource: labels.resource, verb: labels.verb.to_owned(), code: labels.code }, tally)
    })
}
