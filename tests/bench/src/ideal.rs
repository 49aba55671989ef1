//! Compares the time of a job on nodes with its ideal times.

use std::time::Duration;

use oarlock_sim::world::Span;
use serde_json::{Map, Value, json};

use crate::pipeline::{self, Operation};
use crate::spread::round;

/// The parameters of a job's ideal times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ideal<'a> {
    pub(crate) targets: usize,
    /// The number of targets that the job may operate on at once.
    pub(crate) at_once: u32,
    /// The parts of one operation, as the simulated cluster is configured.
    pub(crate) configured: &'a [Span],
}

impl Ideal<'_> {
    /// Returns the time that a job took, and its ratios to three ideals: the pipeline bound of these operations, the same
    /// operations back to back, and batches of configured operations.
    pub(crate) fn figures(&self, operations: &[Operation], took: Duration) -> Map<String, Value> {
        let configured: Duration = self.configured.iter().map(|span| (span.least + span.most) / 2).sum();
        let targets = u32::try_from(self.targets).unwrap_or(u32::MAX);
        let batches = configured * targets.div_ceil(self.at_once.max(1));
        let bound = pipeline::pipeline_bound(operations, self.at_once);
        let back_to_back = pipeline::back_to_back(operations, self.at_once);
        let seconds = |time: Duration| round(time.as_secs_f64());
        let figures = json!({
            "seconds": seconds(took),
            "timeToPipelineBound": round(took.as_secs_f64() / bound.as_secs_f64()),
            "timeToBackToBack": round(took.as_secs_f64() / back_to_back.as_secs_f64()),
            "timeToBatches": round(took.as_secs_f64() / batches.as_secs_f64()),
            "pipelineBoundSeconds": seconds(bound),
            "backToBackSeconds": seconds(back_to_back),
            "batchesSeconds": seconds(batches),
            "configuredSeconds": seconds(configured),
            "operationSecondsMean": pipeline::mean(operations).map(seconds),
            "operations": operations.len(),
            "parallelism": self.at_once,
        });
        figures.as_object().cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ideals_are_the_measured_durations_and_the_configured_ones_in_batches() {
        let operation =
            |begun, ended| Operation { begun: Duration::from_secs(begun), ended: Duration::from_secs(ended) };
        let operations = [operation(0, 2), operation(0, 4), operation(2, 6)];
        let configured = [Span::millis(0, 1_000), Span::millis(2_000, 3_000)];
        let ideal = Ideal { targets: 3, at_once: 2, configured: &configured };
        let figures = ideal.figures(&operations, Duration::from_secs(6));
        let of = |name: &str| figures.get(name).and_then(Value::as_f64).unwrap();
        assert_eq!((of("pipelineBoundSeconds"), of("timeToPipelineBound")), (5.0, 1.2));
        assert_eq!((of("batchesSeconds"), of("timeToBatches")), (6.0, 1.0));
    }
}
