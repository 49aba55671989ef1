//! The scenario `idle`: what a host costs that has nothing to do.
//!
//! It runs 200 jobs of one target to their end and then changes 50 pods a second for a minute, among them the new pods of the ended
//! jobs. A change sets a status condition of a type that no component reads, although the host caches all conditions. It measures
//! the host's CPU, writes and memory during the changes, and its CPU while nothing changes.

use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep};

use crate::arguments::{Modes, Operations};
use crate::backend::Backend;
use crate::meter::Meter;
use crate::requests;
use crate::setup::{HostSetup, SetupOptions, figures_of, run_of};
use crate::spread::{as_f64, round};
use crate::usage;

/// The number of ended jobs.
const JOBS: usize = 200;
/// The time between two changes.
const EACH: Duration = Duration::from_millis(20);
/// The number of changes, enough for a minute.
const CHANGES: usize = 3000;
/// How long the host is measured while nothing changes.
const SILENCE: Duration = Duration::from_secs(20);

const NOTES: &str = "\
- silentCpuPercent: of one core, in 20 s in which nothing changes; cpuPercent: while pods change. The difference is what the
  changes cost, cpuMicrosecondsPerChange of each. changesPerSecond: as achieved.
- writes: without the lease's; there is nothing that the host should write.";

/// Runs the scenario.
///
/// # Errors
/// If a job does not end.
pub(crate) async fn run(asked: &Operations, pods: usize, components: &Path) -> anyhow::Result<Value> {
    let backend = Backend::for_contenders(asked.on).await?;
    backend.plane()?;
    let mut runs = Vec::new();
    for mode in asked.modes(Modes::Evict) {
        let mut rounds = Vec::new();
        for number in 1..=asked.rounds(1) {
            let namespace = format!("idle-{}-{number}", mode.word());
            let setup = HostSetup::set(&backend, &namespace, SetupOptions::new(mode, pods, components)).await?;
            rounds.push(once(setup).await?);
        }
        runs.push(run_of(mode.word(), pods, rounds));
    }
    Ok(figures_of(asked, runs, NOTES))
}

async fn once(setup: HostSetup<'_>) -> anyhow::Result<Value> {
    let jobs = setup.serving.targets.len().min(JOBS);
    setup.create_jobs(jobs, EACH, &json!({})).await?;
    setup.until_ended(jobs).await?;
    let process = setup.host.id();
    Meter::start(setup.backend, process)?.until_quiet().await?;
    let rss_before = usage::rss_kib(process)?;

    let mut silent = Meter::start(setup.backend, process)?;
    sleep(SILENCE).await;
    silent.read()?;

    let mut busy = Meter::start(setup.backend, process)?;
    let begun = Instant::now();
    change(&setup).await?;
    let took = begun.elapsed();
    busy.read()?;

    let percent = |meter: &Meter<'_>| 100.0 * meter.spent().cpu.as_secs_f64() / meter.took().as_secs_f64();
    let for_changes = (percent(&busy) - percent(&silent)) / 100.0 * busy.took().as_secs_f64() * 1_000_000.0;
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    let mib = |kib: u64| round(kib as f64 / 1024.0);
    let figures = json!({
        "endedJobs": jobs,
        "changesPerSecond": round(as_f64(CHANGES) / took.as_secs_f64()),
        "silentCpuPercent": round(percent(&silent)),
        "cpuPercent": round(percent(&busy)),
        "cpuMicrosecondsPerChange": round(for_changes / as_f64(CHANGES)),
        "writes": requests::writes(silent.requests()) + requests::writes(busy.requests()),
        "rssMib": mib(usage::rss_kib(process)?),
        "rssGrowthMib": round(mib(usage::rss_kib(process)?) - mib(rss_before)),
        "peakRssMib": mib(usage::peak_rss_kib(process)?),
    });
    setup.end().await?;
    Ok(figures)
}

/// Changes pods at an even pace, one after the other.
async fn change(setup: &HostSetup<'_>) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::namespaced(setup.cluster.client.clone(), &setup.cluster.namespace);
    let names: Vec<String> = setup.cluster.world.pods().iter().map(|pod| pod.name_any()).collect();
    let mut ticks = interval(EACH);
    let mut patches = JoinSet::new();
    for (number, name) in names.iter().cycle().take(CHANGES).enumerate() {
        ticks.tick().await;
        let condition = json!({"type": "bench.oarlock.dev/Beat", "status": "True", "message": number.to_string()});
        let body = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
        let (pods, name) = (pods.clone(), name.clone());
        patches.spawn(async move { pods.patch_status(&name, &PatchParams::default(), &body).await.map(drop) });
        while let Some(patched) = patches.try_join_next() {
            patched??;
        }
    }
    while let Some(patched) = patches.join_next().await {
        patched??;
    }
    Ok(())
}
