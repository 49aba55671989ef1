//! The metrics of plugin visits: their number, outcomes and durations.

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

/// The outcome of a visit of one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VisitOutcome {
    /// The plugin gave a valid answer.
    Answered,
    /// The plugin needs a live read from the host, and is visited again after it.
    Deferred,
    /// The plugin reported a failure.
    Failed,
    /// The plugin proposed a change that it is not granted.
    Denied,
    /// The plugin trapped.
    Trapped,
    /// The plugin used up its time, memory or output.
    LimitExceeded,
}

impl VisitOutcome {
    const ALL: [Self; 6] =
        [Self::Answered, Self::Deferred, Self::Failed, Self::Denied, Self::Trapped, Self::LimitExceeded];

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

/// The metrics of the visits of all plugins.
#[derive(Debug)]
pub(super) struct Visits {
    visits: Family<VisitLabels, Counter>,
    time: Family<TimeLabels, Histogram, fn() -> Histogram>,
}

impl Visits {
    pub(super) fn register(registry: &mut Registry) -> Self {
        // 50 us to about 13 s. A call may take at most 10 s.
        let buckets: fn() -> Histogram = || Histogram::new(exponential_buckets(0.000_05, 4.0, 10));
        let visits = Self { visits: Family::default(), time: Family::new_with_constructor(buckets) };
        registry.register("plugin_visits", "Number of visits of targets, by plugin and outcome", visits.visits.clone());
        let help = "Seconds that a visit takes in the plugin, including the wait for an instance";
        registry.register("plugin_visit_duration_seconds", help, visits.time.clone());
        visits
    }

    pub(super) fn note(&self, plugin: String, outcome: VisitOutcome, took: Duration) {
        let labels = TimeLabels { plugin: plugin.clone() };
        if self.time.get(&labels).is_none() {
            // The series exist from the first visit, because otherwise the first trap is no increase.
            for outcome in VisitOutcome::ALL {
                let labels = VisitLabels { plugin: plugin.clone(), outcome: outcome.word() };
                drop(self.visits.get_or_create_owned(&labels));
            }
        }
        self.time.get_or_create_owned(&labels).observe(took.as_secs_f64());
        self.visits.get_or_create_owned(&VisitLabels { plugin, outcome: outcome.word() }).inc();
    }
}
