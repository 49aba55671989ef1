//! The metrics of JobFlows and DaemonJobs, each kind under its own prefix. Names: docs/jobflow.md 7.
//!
//! A gauge is the sum over the objects of a term, as of their last rounds. A term subtracts its share when it ends. A
//! counter rises after the counted change is durable.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oarlock_core::attempts::changes::{UnitEnds, changed_units, duration};
use oarlock_core::attempts::parent::ParentKind;
use oarlock_core::attempts::plan::ParentPlan;
use oarlock_core::attempts::unit::{Unit, UnitState};
use oarlock_core::object::api_object::ObjectKey;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::metrics::at_scrape::{ScrapeSources, encode_writes};
use crate::metrics::{Metrics, OTHER, few};

/// The values of `status.state`. Another controller may have stored other words.
const STATES: [&str; 5] = ["Pending", "Running", "Succeed", "Failed", "Terminating"];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UnitLabels {
    outcome: String,
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AttemptLabels {
    infra: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: String,
}

const OWN: AttemptLabels = AttemptLabels { infra: "false" };
const INFRA: AttemptLabels = AttemptLabels { infra: "true" };

/// The metrics of JobFlows, and those of DaemonJobs.
#[derive(Debug)]
pub(crate) struct FlowMetrics {
    flows: KindMetrics,
    daemons: KindMetrics,
}

impl FlowMetrics {
    pub(super) fn register(registry: &mut Registry, sources: &Arc<ScrapeSources>) -> Self {
        let mut of = |kind, prefix| {
            let registry = registry.sub_registry_with_prefix(prefix);
            registry.register_collector(Box::new(FlowWrites { kind, sources: sources.clone() }));
            KindMetrics::register(registry)
        };
        Self { flows: of(ParentKind::Flow, "jobflow"), daemons: of(ParentKind::Daemon, "daemonjob") }
    }

    /// Returns the metrics of one kind.
    pub(crate) fn of(&self, kind: ParentKind) -> &KindMetrics {
        match kind {
            ParentKind::Flow => &self.flows,
            ParentKind::Daemon => &self.daemons,
        }
    }
}

/// The metrics of one kind.
#[derive(Debug)]
pub(crate) struct KindMetrics {
    objects: Family<StateLabels, Gauge>,
    units: Family<UnitLabels, Counter>,
    units_in_flight: Gauge,
    attempts: Family<AttemptLabels, Counter>,
    unit_duration: Histogram,
    start_delay: Histogram,
    round_duration: Histogram,
    blocked: Family<ReasonLabels, Gauge>,
    /// The reasons that have a series. This lock is held while gauges change.
    reasons: Mutex<BTreeSet<String>>,
}

impl KindMetrics {
    fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            objects: Family::default(),
            units: Family::default(),
            units_in_flight: Gauge::default(),
            attempts: Family::default(),
            // 1 s to about 18 hours. Times in a status have whole seconds.
            unit_duration: Histogram::new(exponential_buckets(1.0, 2.0, 17)),
            // 1 ms to about 32 s.
            start_delay: Histogram::new(exponential_buckets(0.001, 2.0, 16)),
            // 0.1 ms to about 3 s.
            round_duration: Histogram::new(exponential_buckets(0.0001, 2.0, 16)),
            blocked: Family::default(),
            reasons: Mutex::default(),
        };
        // The series exists from the start, because otherwise the first failure of the infrastructure is no increase.
        [OWN, INFRA].iter().for_each(|labels| drop(metrics.attempts.get_or_create_owned(labels)));
        registry.register("objects", "Number of objects by state, as of their latest round", metrics.objects.clone());
        registry.register("units", "Number of steps or nodes that ended", metrics.units.clone());
        let help = "Number of steps or nodes whose child has not ended, or whose next attempt waits for its backoff";
        registry.register("units_in_flight", help, metrics.units_in_flight.clone());
        let help = "Number of ended attempts of steps or nodes, and whether the infrastructure failed them";
        registry.register("attempts", help, metrics.attempts.clone());
        let help = "Seconds from the creation of the last child of a step or node to its end";
        registry.register("unit_duration_seconds", help, metrics.unit_duration.clone());
        let help = "Seconds from the change that lets a step or node start to the creation of its child";
        registry.register("start_delay_seconds", help, metrics.start_delay.clone());
        let help = "Seconds that one round of an object takes, including its writes";
        registry.register("round_duration_seconds", help, metrics.round_duration.clone());
        let help =
            "Number of steps or nodes whose child the host cannot build or create, or whose operation is not ready";
        registry.register("blocked", help, metrics.blocked.clone());
        metrics
    }

    /// Counts the units that ended between the previous status and the status that was just written.
    pub(crate) fn reported(&self, before: &[Unit], now: &[Unit]) {
        for (old, unit) in changed_units(before, now) {
            let ends = UnitEnds::between(old, unit);
            for (labels, times) in [(OWN, ends.own_attempts), (INFRA, ends.infra_attempts)] {
                self.attempts.get_or_create_owned(&labels).inc_by(u64::from(times));
            }
            if ends.has_ended {
                self.unit_ended(unit);
            }
        }
    }

    fn unit_ended(&self, unit: &Unit) {
        let reason = few(&mut self.reasons(), &unit.reason);
        let labels = UnitLabels { outcome: format!("{:?}", unit.state), reason };
        self.units.get_or_create_owned(&labels).inc();
        if let Some(took) = duration(unit) {
            self.unit_duration.observe(took.as_secs_f64());
        }
    }

    /// Counts the time from the change that made the first child of a unit due to its creation.
    pub(crate) fn started_after(&self, delay: Duration) {
        self.start_delay.observe(delay.as_secs_f64());
    }

    /// Counts a round.
    pub(crate) fn round_took(&self, took: Duration) {
        self.round_duration.observe(took.as_secs_f64());
    }

    /// Adds the figures of an object to the gauges. Returns them with the counted reasons.
    fn add(&self, mut figures: FlowFigures) -> FlowFigures {
        let mut reasons = self.reasons();
        let mut blocked = BTreeMap::<String, usize>::new();
        for (reason, count) in std::mem::take(&mut figures.blocked) {
            *blocked.entry(few(&mut reasons, &reason)).or_default() += count;
        }
        figures.blocked = blocked;
        self.change(&figures, 1);
        figures
    }

    fn subtract(&self, figures: &FlowFigures) {
        let _alone = self.reasons();
        self.change(figures, -1);
    }

    fn change(&self, figures: &FlowFigures, times: i64) {
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX).saturating_mul(times);
        let state = StateLabels { state: figures.state };
        if self.objects.get_or_create_owned(&state).inc_by(times) + times == 0 {
            self.objects.remove(&state);
        }
        self.units_in_flight.inc_by(count(figures.in_flight));
        for (reason, number) in &figures.blocked {
            let labels = ReasonLabels { reason: reason.clone() };
            let more = count(*number);
            if self.blocked.get_or_create_owned(&labels).inc_by(more) + more == 0 {
                self.blocked.remove(&labels);
            }
        }
    }

    fn reasons(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // A thread that panicked while counting does not stop the others.
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The share of one object in the gauges, as of its last round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FlowFigures {
    state: &'static str,
    in_flight: usize,
    blocked: BTreeMap<String, usize>,
}

impl FlowFigures {
    /// Returns the figures of a plan.
    pub(crate) fn of(plan: &ParentPlan) -> Self {
        let counts = &plan.summary.counts;
        let mut blocked = BTreeMap::<String, usize>::new();
        if counts.blocked > 0 {
            for unit in plan.units.iter().filter(|unit| unit.state == UnitState::Blocked) {
                match blocked.get_mut(&unit.reason) {
                    Some(count) => *count += 1,
                    None => drop(blocked.insert(unit.reason.clone(), 1)),
                }
            }
        }
        let state = STATES.into_iter().find(|state| *state == plan.summary.state);
        Self { state: state.unwrap_or(OTHER), in_flight: counts.pending + counts.running + counts.retrying, blocked }
    }
}

/// The share of a term in the gauges. Dropping it subtracts the share.
pub(crate) struct ShownFlows {
    metrics: Arc<Metrics>,
    shown: HashMap<ObjectKey, FlowFigures>,
}

impl ShownFlows {
    /// Begins a term that shows nothing yet.
    pub(crate) fn begin(metrics: Arc<Metrics>) -> Self {
        Self { metrics, shown: HashMap::new() }
    }

    /// Replaces the figures of an object; `None` after its deletion.
    pub(crate) fn set(&mut self, key: &ObjectKey, figures: Option<FlowFigures>) {
        let Some(kind) = ParentKind::of_key(key) else { return };
        let metrics = self.metrics.flows.of(kind);
        if let Some(before) = self.shown.remove(key) {
            metrics.subtract(&before);
        }
        if let Some(figures) = figures {
            self.shown.insert(key.clone(), metrics.add(figures));
        }
    }
}

impl Drop for ShownFlows {
    fn drop(&mut self) {
        let keys: Vec<ObjectKey> = self.shown.keys().cloned().collect();
        keys.iter().for_each(|key| self.set(key, None));
    }
}

/// The collector of writes for objects of one kind. The collector shows only their number.
struct FlowWrites {
    kind: ParentKind,
    sources: Arc<ScrapeSources>,
}

impl fmt::Debug for FlowWrites {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlowWrites").finish_non_exhaustive()
    }
}

impl Collector for FlowWrites {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(flows) = self.sources.flows.get() else { return Ok(()) };
        let help = "Number of requests for these objects that change the cluster, by status code";
        encode_writes(encoder, help, flows.requests(self.kind))
    }
}
