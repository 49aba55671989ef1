//! The visits of plugins: how many, how they ended, and how long they took.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VisitLabels {
    plugin: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TimeLabels {
    plugin: String,
}

/// The end of a visit of one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VisitOutcome {
    /// The plugin gave an answer that may be followed.
    Answered,
    /// It needs what the host has to ask the API server first, and is visited again once it has.
    Deferred,
    /// It reported that it failed.
    Failed,
    /// It proposed what it is not granted.
    Denied,
    /// It trapped.
    Trapped,
    /// It used up its time, memory or output.
    LimitExceeded,
}

impl VisitOutcome {
    fn word(self) -> &'static str {
        match self {
            Self::Answered => "Answered",
            Self::Deferred => "Deferred",
            Self::Failed => "Failed",
            Self::Denied => "Denied",
            Self::Trapped => "Trapped",
            Self::LimitExceeded => "LimitExceeded",
        }
    }
}

/// The visits of all plugins.
#[derive(Debug)]
pub(super) struct Visits {
    visits: Family<VisitLabels, Counter>,
    time: Family<TimeLabels, Histogram, fn() -> Histogram>,
}

impl Visits {
    pub(super) fn register(registry: &mut Registry) -> Self {
        // 50 us to about 13 s, the longest time that a call may take.
        let buckets: fn() -> Histogram = || Histogram::new(exponential_buckets(0.000_05, 4.0, 10));
        let visits = Self { visits: Family::default(), time: Family::new_with_constructor(buckets) };
        registry.register("plugin_visits", "Visits of targets by plugin and outcome", visits.visits.clone());
        let help = "Time of a visit in the plugin, the wait for an instance included";
        registry.register("plugin_visit_duration_seconds", help, visits.time.clone());
        visits
    }

    pub(super) fn note(&self, plugin: String, outcome: VisitOutcome, took: Duration) {
        self.time.get_or_create_owned(&TimeLabels { plugin: plugin.clone() }).observe(took.as_secs_f64());
        self.visits.get_or_create_owned(&VisitLabels { plugin, outcome: outcome.word() }).inc();
    }
}
