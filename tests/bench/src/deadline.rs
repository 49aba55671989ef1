//! The scenario `deadline`: how late jobs end whose targets never end.
//!
//! Each job has one target and a deadline of 5 s, and the simulated cluster creates no new pods. The lateness is measured by the
//! status, in whole seconds, and by a watch.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use oarlock_sim::world::{Pause, Scope};
use serde_json::{Map, Value, json};

use crate::arguments::{Modes, Operations};
use crate::backend::Backend;
use crate::job_watch::{Version, Versions};
use crate::setup::{HostSetup, SetupOptions, figures_of, run_of};
use crate::spread::{quantile, round};

/// The deadline of each target, from its start.
const DEADLINE_SECONDS: u32 = 5;
/// The time between two creations of jobs.
const EACH: Duration = Duration::from_millis(50);

const NOTES: &str = "\
- statusLateSeconds: endTime less startTime less 5 s, of the job's status; both times are cut to whole seconds, so that 1 may
  be 0.1. watchLateMilliseconds: the same between the versions of the status with startTime and with the end, as they arrive
  at a watch.
- endedBy: jobs by the reason of their target's error, or its progress where it has none; all should be DeadlineExceeded.";

/// Runs the scenario.
///
/// # Errors
/// If a job does not end.
pub(crate) async fn run(asked: &Operations, jobs: usize, components: &Path) -> anyhow::Result<Value> {
    let backend = Backend::for_contenders(asked.on).await?;
    backend.plane()?;
    let mut runs = Vec::new();
    for mode in asked.modes(Modes::Evict) {
        let mut rounds = Vec::new();
        for number in 1..=asked.rounds(1) {
            let namespace = format!("deadline-{}-{number}", mode.word());
            let setup = HostSetup::set(&backend, &namespace, SetupOptions::new(mode, jobs, components)).await?;
            setup.cluster.world.hold(Pause::Creation, Scope::World);
            setup.create_jobs(jobs, EACH, &json!({"activeDeadlineSeconds": DEADLINE_SECONDS})).await?;
            setup.until_ended(jobs).await?;
            rounds.push(figures(&setup.watch.all()));
            setup.end().await?;
        }
        runs.push(run_of(mode.word(), jobs, rounds));
    }
    Ok(figures_of(asked, runs, NOTES))
}

fn figures(jobs: &Versions) -> Value {
    let mut figures = Map::new();
    let by_status: Vec<f64> = jobs.values().filter_map(|versions| late_by_status(versions)).collect();
    let by_watch: Vec<f64> = jobs.values().filter_map(|versions| late_by_watch(versions)).collect();
    let share = [("P50", 0.5), ("P99", 0.99), ("Most", 1.0)];
    for (word, share) in share {
        figures.insert(format!("statusLateSeconds{word}"), json!(quantile(&by_status, share)));
    }
    for (word, share) in share {
        let milliseconds = quantile(&by_watch, share).map(|seconds| round(seconds * 1000.0));
        figures.insert(format!("watchLateMilliseconds{word}"), json!(milliseconds));
    }
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    for version in jobs.values().filter_map(|versions| versions.last()) {
        let count = ends.entry(end_of(version)).or_default();
        *count = count.saturating_add(1);
    }
    figures.extend(ends.into_iter().map(|(end, count)| (format!("endedBy{end}"), count.into())));
    figures.insert("jobs".to_owned(), jobs.len().into());
    figures.into()
}

fn late_by_status(versions: &[Version]) -> Option<f64> {
    let status = &versions.last()?.status;
    let time = |text: &Option<String>| text.as_ref()?.parse::<Timestamp>().ok();
    let took = time(&status.end_time)?.duration_since(time(&status.start_time)?);
    Some(round(took.as_secs_f64() - f64::from(DEADLINE_SECONDS)))
}

fn late_by_watch(versions: &[Version]) -> Option<f64> {
    let started = versions.iter().find(|version| version.status.start_time.is_some())?;
    let ended = versions.iter().find(|version| version.is_last())?;
    Some((ended.at - started.at).as_secs_f64() - f64::from(DEADLINE_SECONDS))
}

fn end_of(version: &Version) -> String {
    let target = version.status.target_details.iter().flatten().next();
    let reason = target.and_then(|detail| detail.error.as_ref()).map(|error| error.reason.clone());
    reason.or_else(|| version.status.progress.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use oarlock_api::OperationJobStatus;
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn lateness_counts_from_the_deadline() {
        let begin = Instant::now();
        let status = |end: Option<&str>| OperationJobStatus {
            start_time: Some("2026-01-01T00:00:01Z".into()),
            end_time: end.map(Into::into),
            progress: Some(if end.is_some() { "Failed" } else { "Processing" }.into()),
            ..OperationJobStatus::default()
        };
        let versions = [
            Version { at: begin, status: status(None) },
            Version { at: begin + Duration::from_millis(5250), status: status(Some("2026-01-01T00:00:07Z")) },
        ];
        assert_eq!(late_by_status(&versions), Some(1.0));
        assert_eq!(late_by_watch(&versions), Some(0.25));
        assert_eq!(late_by_watch(&versions[..1]), None);
    }
}
