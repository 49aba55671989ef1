//! The scenario `outage`: a job during which the API server or its store fails.
//!
//! Takes the number of targets; runs a job again and again while a server is killed and restarted, or frozen, and yields how
//! long each run takes, what went wrong by the world's ledger, and targets that never came to their end. The world is cut off
//! too, and its watches wait before they try again, so the seconds are those of the whole cluster. May not judge.

use std::path::Path;
use std::time::Duration;

use oarlock_bed::control_plane::ControlPlane;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::arguments::{Failure, Mode, Modes, Operations};
use crate::ground::Ground;
use crate::job_watch;
use crate::outcome;
use crate::scene::{Cast, Scene, figures_of, run_of};
use crate::spread::round;

/// When the first failure comes at the latest; it comes before, once a third of the targets are gone.
const FIRST: Duration = Duration::from_secs(4);
/// When the second failure comes at the latest; it comes before, once two thirds of the targets are gone.
const SECOND: Duration = Duration::from_secs(30);
/// How long the store is away.
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
/// If a cluster cannot be started or does not come back.
pub(crate) async fn run(asked: &Operations, targets: usize, components: &Path) -> anyhow::Result<Value> {
    let rounds = asked.rounds(10);
    let mut runs = Vec::new();
    for mode in asked.modes(Modes::Both) {
        for failure in asked.failures() {
            let ground = Ground::for_contenders(asked.on).await?;
            ground.plane()?;
            let label = format!("{}, {}", mode.word(), failure.word());
            let mut figures = Vec::new();
            for number in 1..=rounds {
                eprintln!("{label}, {targets} targets: round {number} of {rounds}");
                let cast = Cast::new(mode, targets, components);
                figures.push(once(&ground, cast, (failure, number)).await?);
            }
            runs.push(run_of(&label, targets, figures));
        }
    }
    Ok(figures_of(asked, runs, NOTES))
}

async fn once(ground: &Ground, cast: Cast<'_>, (failure, number): (Failure, u32)) -> anyhow::Result<Value> {
    let scene = Scene::set(ground, &namespace(cast.mode, failure, number), cast).await?;
    let job = job_watch::replace("bench", &scene.planted.names(), json!({}));
    let begun = Instant::now();
    scene.site.create(&job).await?;
    let ends = async {
        // A job that does not end is a figure and no error here.
        let _ = scene.until_ended(1).await;
        begun.elapsed().as_secs_f64()
    };
    let (seconds, downs) = tokio::join!(ends, fail(&scene, failure, begun));
    let downs = downs?;
    let mut figures = outcome::of(&scene, "bench").await;
    figures.insert("seconds".to_owned(), round(seconds).into());
    figures.insert("secondsOfEachRun".to_owned(), format!("{seconds:.1}").into());
    figures.insert("failures".to_owned(), downs.len().into());
    let longest = downs.iter().map(Duration::as_secs_f64).reduce(f64::max);
    figures.insert("downSeconds".to_owned(), json!(longest.map(round)));
    scene.end().await?;
    Ok(figures.into())
}

fn namespace(mode: Mode, failure: Failure, number: u32) -> String {
    format!("outage-{}-{}-{number}", mode.word(), failure.word())
}

/// Lets the failures happen; yields how long each lasted.
async fn fail(scene: &Scene<'_>, failure: Failure, begun: Instant) -> anyhow::Result<Vec<Duration>> {
    let plane = scene.ground.plane()?;
    let mut downs = Vec::new();
    let twice = failure == Failure::ApiServerKilled;
    for (latest, third) in [(FIRST, 1), (SECOND, 2)].into_iter().take(if twice { 2 } else { 1 }) {
        let enough = (scene.planted.targets.len() * third / 3).max(1);
        if scene.until_gone(enough, begun + latest).await {
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
