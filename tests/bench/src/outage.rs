//! The scenario `outage`: a job during which the API server or its store fails.
//!
//! It runs a job repeatedly while a server is killed and restarted, or frozen. It measures how long each run takes, and counts
//! wrong outcomes by the event log of the simulated cluster and targets that never ended. The simulated cluster is cut off too, and
//! its watches back off, so the seconds are those of the whole cluster.

use std::path::Path;
use std::time::Duration;

use oarlock_support::control_plane::ControlPlane;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::arguments::{Failure, Mode, Modes, Operations};
use crate::backend::Backend;
use crate::job_watch;
use crate::outcome;
use crate::setup::{HostSetup, SetupOptions, figures_of, run_of};
use crate::spread::round;

/// The latest moment of the first failure. It comes earlier, once a third of the targets are gone.
const FIRST: Duration = Duration::from_secs(4);
/// The latest moment of the second failure. It comes earlier, once two thirds of the targets are gone.
const SECOND: Duration = Duration::from_secs(30);
/// How long the store is down.
const STORE_AWAY: Duration = Duration::from_secs(1);
/// How long the API server is frozen.
const FROZEN: Duration = Duration::from_secs(8);

const NOTES: &str = "\
The API server is killed and restarted twice: after 4 s and after 30 s, or once a third and two thirds of the targets
are gone if that is earlier; the store is killed once and restarted after a second, or the API server frozen once for 8 s, at the
first of these moments.
- wrong: targets that were not replaced exactly once, and other pods that were lost, by the world's ledger; failed: targets
  that the status calls failed; stuck: targets that had not ended when waiting was given up.
- downSeconds: from the failure until the server was ready again. failures: how many there were before the job had ended.";

/// Runs each failure in each mode.
///
/// # Errors
/// If a cluster cannot be started, or does not come back.
pub(crate) async fn run(asked: &Operations, targets: usize, components: &Path) -> anyhow::Result<Value> {
    let rounds = asked.rounds(10);
    let mut runs = Vec::new();
    for mode in asked.modes(Modes::Both) {
        for failure in asked.failures() {
            let backend = Backend::for_contenders(asked.on).await?;
            backend.plane()?;
            let label = format!("{}, {}", mode.word(), failure.word());
            let mut figures = Vec::new();
            for number in 1..=rounds {
                eprintln!("{label}, {targets} targets: round {number} of {rounds}");
                let options = SetupOptions::new(mode, targets, components);
                figures.push(once(&backend, options, (failure, number)).await?);
            }
            runs.push(run_of(&label, targets, figures));
        }
    }
    Ok(figures_of(asked, runs, NOTES))
}

async fn once(
    backend: &Backend,
    options: SetupOptions<'_>,
    (failure, number): (Failure, u32),
) -> anyhow::Result<Value> {
    let setup = HostSetup::set(backend, &namespace(options.mode, failure, number), options).await?;
    let job = job_watch::replace("bench", &setup.serving.names(), json!({}));
    let begun = Instant::now();
    setup.cluster.create(&job).await?;
    let ends = async {
        // A job that does not end is a figure here, not an error.
        let _ = setup.until_ended(1).await;
        begun.elapsed().as_secs_f64()
    };
    let (seconds, downs) = tokio::join!(ends, fail(&setup, failure, begun));
    let downs = downs?;
    let mut figures = outcome::of(&setup, "bench").await;
    figures.insert("seconds".to_owned(), round(seconds).into());
    figures.insert("secondsOfEachRun".to_owned(), format!("{seconds:.1}").into());
    figures.insert("failures".to_owned(), downs.len().into());
    let longest = downs.iter().map(Duration::as_secs_f64).reduce(f64::max);
    figures.insert("downSeconds".to_owned(), json!(longest.map(round)));
    setup.end().await?;
    Ok(figures.into())
}

fn namespace(mode: Mode, failure: Failure, number: u32) -> String {
    format!("outage-{}-{}-{number}", mode.word(), failure.word())
}

/// Lets the failures happen, and returns how long each lasted.
async fn fail(setup: &HostSetup<'_>, failure: Failure, begun: Instant) -> anyhow::Result<Vec<Duration>> {
    let plane = setup.backend.plane()?;
    let mut downs = Vec::new();
    let twice = failure == Failure::ApiServerKilled;
    for (latest, third) in [(FIRST, 1), (SECOND, 2)].into_iter().take(if twice { 2 } else { 1 }) {
        let enough = (setup.serving.targets.len() * third / 3).max(1);
        if setup.until_gone(enough, begun + latest).await {
            let away = Instant::now();
            happens(plane, failure).await?;
            downs.push(away.elapsed());
        }
    }
    Ok(downs)
}

async fn happens(plane: &ControlPlane, failure: Failure) -> anyhow::Result<()> {
    match failure {
        Failure::ApiServerKilled => {
            plane.kill_api_server();
            plane.start_api_server().await
        }
        Failure::StoreKilled => {
            plane.kill_store();
            sleep(STORE_AWAY).await;
            plane.start_store().await
        }
        Failure::ApiServerFrozen => {
            plane.freeze_api_server()?;
            sleep(FROZEN).await;
            plane.thaw_api_server()
        }
    }
}
