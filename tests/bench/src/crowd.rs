//! The scenario `crowd`: a hundred jobs at once, run like the one job of `replace`. This module divides the targets among the jobs,
//! and compares the slowest job with the median job.

use crate::goals::Goal;
use crate::job_watch::{Version, Versions};
use crate::spread::{quantile, round};

/// The maximum number of jobs.
const JOBS: usize = 100;

/// The goals of the scenario.
pub(crate) const GOALS: [Goal; 3] = [
    Goal { figure: "/ratios/targetsPerSecond", name: "rate to the bare client's", goal: "at least 0.85" },
    Goal {
        figure: "/host/slowestToMedianJob",
        name: "time of the slowest job to the median job's",
        goal: "at most 1.5",
    },
    Goal { figure: "/host/verdict", name: "outcomes, by the ledger", goal: "clean" },
];

/// The notes below the tables of the scenario.
pub(crate) const NOTES: &str = "
- The targets are dealt out to 100 jobs, created at once; the rate is that of all of them together. A job's time is from the
  moment when a watch brought its creation to its end; slowestToMedianJob: the longest such time to the median one.";

/// Divides the targets among the jobs as evenly as possible, in their order.
pub(crate) fn dealt_out(targets: &[String]) -> impl Iterator<Item = (String, &[String])> {
    let each = targets.len().div_ceil(JOBS).max(1);
    targets.chunks(each).enumerate().map(|(number, targets)| (format!("bench-{number}"), targets))
}

/// Returns the slowest job's time divided by the median job's. Returns `None` unless each job has ended.
pub(crate) fn slowest_to_median(jobs: &Versions) -> Option<f64> {
    let took = |versions: &Vec<Version>| {
        let ended = versions.iter().find(|version| version.is_last())?;
        Some(ended.at.saturating_duration_since(versions.first()?.at).as_secs_f64())
    };
    let times = jobs.values().map(took).collect::<Option<Vec<f64>>>()?;
    let median = quantile(&times, 0.5).filter(|median| *median > 0.0)?;
    quantile(&times, 1.0).map(|slowest| round(slowest / median))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use oarlock_api::OperationJobStatus;
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn every_target_is_dealt_out_once() {
        for count in [1usize, 7, 100, 101, 10_000] {
            let names: Vec<String> = (0..count).map(|n| n.to_string()).collect();
            let jobs: Vec<_> = dealt_out(&names).collect();
            assert!(jobs.len() <= JOBS && jobs.iter().all(|(_, targets)| targets.len() <= count.div_ceil(JOBS)));
            assert_eq!(jobs.iter().flat_map(|(_, targets)| targets.iter().cloned()).collect::<Vec<_>>(), names);
        }
    }

    #[test]
    fn slowest_is_compared_with_the_median_once_all_have_ended() {
        let begin = Instant::now();
        let version = |ms: u64, progress: &str| Version {
            at: begin + Duration::from_millis(ms),
            status: OperationJobStatus { progress: Some(progress.into()), ..OperationJobStatus::default() },
        };
        let job = |ms: u64| vec![version(0, "Pending"), version(ms, "Succeeded"), version(ms + 900, "Succeeded")];
        let mut jobs: Versions =
            [("a", 100), ("b", 200), ("c", 300)].map(|(name, ms)| (name.to_owned(), job(ms))).into();
        assert_eq!(slowest_to_median(&jobs), Some(1.5));
        jobs.insert("d".into(), vec![version(0, "Pending")]);
        assert_eq!(slowest_to_median(&jobs), None);
    }
}
