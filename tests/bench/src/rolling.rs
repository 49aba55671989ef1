//! The scenario `rolling`: one job replaces all pods of a set with `maxUnavailable: 10%`.
//!
//! It measures the time of the job, from its creation until a watch delivers its end, and its ratio to two ideals. The pods of the
//! simulated cluster take about two seconds to serve. The time is drawn for each pod from a range, as images and probes differ.
//!
//! - No host can beat the *pipeline bound* (`pipeline.rs`). It uses the durations of exactly these targets in this run, from the
//!   event log, and the limit of pods at once.
//! - *Batches* is the operator's estimate: the number of batches times the mean configured duration of one replacement, without the
//!   API server's time. A host that does not wait for the slowest pod of a batch may come close to the estimate. It may even beat
//!   the estimate if few slow durations were drawn, so trust the first ratio.

use std::path::Path;
use std::time::Duration;

use oarlock_sim::world::{Span, Timings};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::arguments::{Mode, Modes, Operations};
use crate::backend::Backend;
use crate::bench_cluster::longest;
use crate::goals::{self, Goal};
use crate::job_watch;
use crate::outcome;
use crate::pipeline;
use crate::replacements;
use crate::setup::{HostSetup, SetupOptions, figures_of, run_of};
use crate::spread::round;

/// The limit of the job.
const MAX_UNAVAILABLE: &str = "10%";

const GOALS: [Goal; 4] = [
    Goal { figure: "/host/timeToPipelineBound", name: "time to the pipeline bound", goal: "at most 1.15" },
    Goal { figure: "/host/timeToBatches", name: "time to batches x one replacement", goal: "at most 1.15" },
    Goal { figure: "/host/mostAtOnce", name: "replaced at once, by the ledger", goal: "at most maxUnavailable" },
    Goal { figure: "/host/wrong", name: "wrong outcomes, by the ledger", goal: "0" },
];

const NOTES: &str = "\
The job has maxUnavailable: 10%, rounded down and at least 1. seconds: from its creation until a watch brought its end.
- pipelineBoundSeconds: the greater of the sum of all replacements' durations divided by maxUnavailable and the longest of
  them. A replacement lasts from its first physical effect, the pod's termination or its successor's creation, until the
  pod is gone and its successor ready, by the world's ledger of this very run. No host that keeps within maxUnavailable can
  be faster.
- batchesSeconds: targets divided by maxUnavailable, rounded up, times configuredSeconds: the mean duration of one
  replacement as the world is configured, without the API server's time. replacementSecondsMean: the same as measured.
- wrong, failed, stuck: targets not replaced exactly once and other pods lost, by the ledger; failed and not ended, by the status.";

/// Returns timings with which pods take about two seconds until they serve.
fn unhurried() -> Timings {
    let (short, long) = (Span::millis(10, 30), Span::millis(500, 1500));
    Timings { react: short, start: long, ready: long, available: short, terminate: Span::millis(100, 500) }
}

/// Runs each mode.
///
/// # Errors
/// If a cluster cannot be started, or a job does not end.
pub(crate) async fn run(asked: &Operations, targets: usize, components: &Path) -> anyhow::Result<Value> {
    let rounds = asked.rounds_of(targets);
    let mut runs = Vec::new();
    for mode in asked.modes(Modes::Evict) {
        let backend = Backend::for_contenders(asked.on).await?;
        let mut figures = Vec::new();
        for number in 1..=rounds {
            eprintln!(
                "{}, {targets} targets, maxUnavailable {MAX_UNAVAILABLE}: round {number} of {rounds}",
                mode.word()
            );
            let options = SetupOptions { timings: unhurried(), ..SetupOptions::new(mode, targets, components) };
            let setup = HostSetup::set(&backend, &format!("rolling-{}-{number}", mode.word()), options).await?;
            figures.push(once(setup, mode).await?);
        }
        runs.push(goals::beside(run_of(mode.word(), targets, figures), &GOALS));
    }
    Ok(figures_of(asked, runs, NOTES))
}

async fn once(setup: HostSetup<'_>, mode: Mode) -> anyhow::Result<Value> {
    let targets = setup.serving.targets.len();
    let job = job_watch::replace("bench", &setup.serving.names(), json!({"maxUnavailable": MAX_UNAVAILABLE}));
    let begun = Instant::now();
    setup.cluster.create(&job).await?;
    setup.watch.until_succeeded("bench", longest(targets)).await?;
    let seconds = begun.elapsed().as_secs_f64();
    let mut figures = outcome::of(&setup, "bench").await;
    figures.extend(ideals(&setup, mode, seconds));
    setup.end().await?;
    Ok(figures.into())
}

fn ideals(setup: &HostSetup<'_>, mode: Mode, seconds: f64) -> Map<String, Value> {
    let targets = u32::try_from(setup.serving.targets.len()).unwrap_or(u32::MAX);
    let at_once = (targets / 10).max(1);
    let replaced = replacements::of(&setup.cluster.world.ledger().entries(), &setup.serving.targets);
    let mean = pipeline::mean(&replaced);
    let bound = pipeline::pipeline_bound(&replaced, at_once);
    let configured = configured(mode, &unhurried());
    let batches = configured * targets.div_ceil(at_once);
    let figures = json!({
        "seconds": round(seconds),
        "timeToPipelineBound": round(seconds / bound.as_secs_f64()),
        "timeToBatches": round(seconds / batches.as_secs_f64()),
        "pipelineBoundSeconds": round(bound.as_secs_f64()),
        "batchesSeconds": round(batches.as_secs_f64()),
        "configuredSeconds": round(configured.as_secs_f64()),
        "replacementSecondsMean": mean.map(|mean| round(mean.as_secs_f64())),
        "maxUnavailable": at_once,
        "mostAtOnce": pipeline::most_at_once(&replaced),
    });
    figures.as_object().cloned().unwrap_or_default()
}

/// Returns the mean configured duration of a replacement. A pod's start always takes longer than another pod's end.
fn configured(mode: Mode, timings: &Timings) -> Duration {
    let Timings { react, start, ready, available, terminate } = *timings;
    let mean = |spans: &[Span]| spans.iter().map(|span| (span.least + span.most) / 2).sum::<Duration>();
    match mode {
        // The set reacts to the termination with a new pod.
        Mode::Evict => mean(&[react, start, ready]),
        // The first effect is the new pod. Once it is available, the set reacts again, and the old pod goes.
        Mode::CollaSet => mean(&[start, ready, available, react, terminate]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacement_of_an_unhurried_pod_takes_two_seconds() {
        assert_eq!(configured(Mode::Evict, &unhurried()), Duration::from_millis(2020));
        assert_eq!(configured(Mode::CollaSet, &unhurried()), Duration::from_millis(2340));
    }
}
