//! The metrics of OpsJobs. Names: docs/opsjob.md 9. No label names a job, a user or a node.

use std::time::Duration;

use oarlock_core::ops_job::phases::{OpsStatus, Phase};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabels {
    r#type: &'static str,
    phase: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TypeLabels {
    r#type: &'static str,
}

/// The metrics of OpsJobs, which rise after the counted change is durable.
#[derive(Debug)]
pub(crate) struct OpsMetrics {
    phases: Family<PhaseLabels, Counter>,
    durations: Family<TypeLabels, Histogram>,
    timeouts: Family<TypeLabels, Counter>,
}

impl OpsMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            phases: Family::default(),
            // 1 s to about 18 hours.
            durations: Family::new_with_constructor(|| Histogram::new(exponential_buckets(1.0, 2.0, 17))),
            timeouts: Family::default(),
        };
        registry.register("phase", "Number of times that OpsJobs entered a phase", metrics.phases.clone());
        registry.register(
            "duration_seconds",
            "Seconds from the start of an OpsJob to its end",
            metrics.durations.clone(),
        );
        registry.register("timeout", "Number of OpsJobs that exceeded their timeout", metrics.timeouts.clone());
        metrics
    }

    /// Counts the changes between two statuses of a job of this type.
    pub(crate) fn reported(&self, kind: &'static str, before: &OpsStatus, now: &OpsStatus) {
        for phase in Phase::ALL.into_iter().filter(|phase| now.is(phase.word()) && !before.is(phase.word())) {
            let condition = now.condition(Phase::Failed.word());
            let reason = match condition.map(|condition| condition.reason.as_str()) {
                Some("Timeout") => "timeout",
                Some("Stopped") => "stopped",
                _ => "workload_failed",
            };
            let reason = if phase == Phase::Failed { reason } else { "" };
            self.phases.get_or_create_owned(&PhaseLabels { r#type: kind, phase: phase.word(), reason }).inc();
            if reason == "timeout" {
                self.timeouts.get_or_create_owned(&TypeLabels { r#type: kind }).inc();
            }
        }
        let took = now.started.zip(now.finished).map(|(started, finished)| finished.duration_since(started));
        if let Some(took) = took.filter(|_| !before.has_ended()) {
            let took = Duration::try_from(took).unwrap_or_default();
            self.durations.get_or_create_owned(&TypeLabels { r#type: kind }).observe(took.as_secs_f64());
        }
    }
}
