//! The scenario `restart`: how long a host that was killed in the middle of a job takes until it acts again.
//!
//! It runs one job that uses every policy. It kills and restarts the host when a quarter, a half and three quarters of the targets
//! are gone. It measures the seconds from the start of the new process until the server has answered its first request for a pod:
//! an eviction or a mark. It waits for the last requests of the old process first.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::arguments::{Modes, Operations};
use crate::backend::Backend;
use crate::bench_cluster::longest;
use crate::goals::{self, Goal};
use crate::job_watch;
use crate::outcome;
use crate::requests::Request;
use crate::setup::{HostSetup, SetupOptions, figures_of, run_of};
use crate::spread::{self, round};
use crate::usage;

/// The time between two reads of the requests, and so the precision of the figures.
const READ_EVERY: Duration = Duration::from_millis(5);
/// The time without a request after which no more requests of the killed process can come.
const QUIET: Duration = Duration::from_millis(500);

const GOALS: [Goal; 2] = [
    Goal {
        figure: "/host/secondsToFirstActionMost",
        name: "seconds from a restart to the first action",
        goal: "at most 3 (at 10,000 targets)",
    },
    Goal { figure: "/host/wrong", name: "wrong outcomes, by the ledger", goal: "0" },
];

const NOTES: &str = "\
The host is killed and restarted three times in one job that has maxUnavailable, parallelism, failurePolicy and retryPolicy.
- secondsToFirstAction: from the start of the new process until its first eviction or mark was answered, median and most of the
  restarts; secondsToFirstWrite: until its first write of any kind but the lease's. restarts: those that the job lasted for.
- watchedPods: pods in the cluster at the last restart. peakRssMib: of the process that was started last.
- wrong, failed, stuck: as in the other scenarios, of the whole job.";

/// Runs each mode.
///
/// # Errors
/// If a cluster cannot be started, or a host does not start.
pub(crate) async fn run(asked: &Operations, targets: usize, components: &Path) -> anyhow::Result<Value> {
    let rounds = asked.rounds(1);
    let mut runs = Vec::new();
    for mode in asked.modes(Modes::Both) {
        let backend = Backend::for_contenders(asked.on).await?;
        let mut figures = Vec::new();
        for number in 1..=rounds {
            eprintln!("{}, {targets} targets, three restarts: round {number} of {rounds}", mode.word());
            let namespace = format!("restart-{}-{number}", mode.word());
            let setup = HostSetup::set(&backend, &namespace, SetupOptions::new(mode, targets, components)).await?;
            figures.push(once(setup).await?);
        }
        runs.push(goals::beside(run_of(mode.word(), targets, figures), &GOALS));
    }
    Ok(figures_of(asked, runs, NOTES))
}

async fn once(mut setup: HostSetup<'_>) -> anyhow::Result<Value> {
    let targets = setup.serving.targets.len();
    let latest = Instant::now() + longest(targets);
    let policies = json!({
        "maxUnavailable": "50%",
        "parallelism": "50%",
        "failurePolicy": {"type": "Pause", "maxFailures": "10%"},
        "retryPolicy": {"limit": 2, "backoffSeconds": 1},
    });
    setup.cluster.create(&job_watch::replace("bench", &setup.serving.names(), policies)).await?;
    let (mut to_write, mut to_action, mut watched) = (Vec::new(), Vec::new(), 0);
    for quarter in 1..=3 {
        if !setup.until_gone((targets * quarter / 4).max(1), latest).await {
            break;
        }
        watched = setup.cluster.world.pods().len();
        let (write, action) = restart(&mut setup).await?;
        to_write.extend(write);
        to_action.extend(action);
    }
    let _ = setup.until_ended(1).await;
    let mut figures = outcome::of(&setup, "bench").await;
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    let peak = usage::peak_rss_kib(setup.host.id())? as f64 / 1024.0;
    for (name, seconds) in [("secondsToFirstAction", &to_action), ("secondsToFirstWrite", &to_write)] {
        for (word, share) in [("P50", 0.5), ("Most", 1.0)] {
            figures.insert(format!("{name}{word}"), json!(spread::quantile(seconds, share).map(round)));
        }
    }
    figures.insert("restarts".to_owned(), to_action.len().into());
    figures.insert("watchedPods".to_owned(), watched.into());
    figures.insert("peakRssMib".to_owned(), round(peak).into());
    setup.end().await?;
    Ok(figures.into())
}

/// Restarts the host. Returns the seconds to its first write and to its first action. Either is `None` if the job ends first.
async fn restart(setup: &mut HostSetup<'_>) -> anyhow::Result<(Option<f64>, Option<f64>)> {
    let mut tail = setup.backend.tail()?;
    setup.host.kill();
    let mut heard = Instant::now();
    while heard.elapsed() < QUIET {
        if !setup.backend.more(&mut tail)?.is_empty() {
            heard = Instant::now();
        }
        sleep(READ_EVERY).await;
    }
    let begun = Instant::now();
    setup.host.start_again()?;
    let (mut write, mut action) = (None, None);
    let acts = async {
        while action.is_none() {
            sleep(READ_EVERY).await;
            let more = setup.backend.more(&mut tail)?;
            let now = begun.elapsed().as_secs_f64();
            write = write.or_else(|| more.iter().any(Request::is_write).then_some(now));
            action = more.iter().any(Request::is_for_a_pod).then_some(now);
        }
        anyhow::Ok(())
    };
    tokio::select! {
        acted = acts => acted?,
        _ = setup.until_ended(1) => {}
    }
    setup.host.leads().await?;
    Ok((write, action))
}
