//! The scenario `kills`: one job whose host is killed every two seconds and started again at once, and one whose host is not.
//!
//! Takes the number of targets; yields the times of both jobs, in turned order, and what went wrong by the world's ledger. The
//! host is a process that gets SIGKILL, first once a third of the targets are gone if that is earlier than two seconds, so that
//! a short job is hit too. The new one has the same identity, as a restarted container has, and finds it in the lease. May not
//! judge.

use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout};

use crate::arguments::{Modes, Operations};
use crate::goals::{self, Goal};
use crate::ground::Ground;
use crate::job_watch;
use crate::outcome;
use crate::scene::{Cast, Scene, figures_of, run_of};
use crate::site::longest;
use crate::spread::round;

const GOALS: [Goal; 2] = [
    Goal { figure: "/host/wrong", name: "wrong outcomes, by the ledger", goal: "0" },
    Goal { figure: "/host/killedToCalm", name: "time with kills to time without", goal: "at most 1.25" },
];

const NOTES: &str = "\
calm: the host is left alone; killed: it gets SIGKILL again and again, --kill-every seconds after it was started, and is
started again at once. The first kill comes once a third of the targets are gone, if that is earlier.
- wrong: of both jobs together, targets that were not replaced exactly once, other pods that were lost, by the world's ledger,
  and targets that the status calls failed or never calls ended.";

/// Runs each mode.
///
/// # Errors
/// If a cluster cannot be started or a host does not start.
pub(crate) async fn run(asked: &Operations, targets: usize, components: &Path) -> anyhow::Result<Value> {
    let rounds = asked.rounds_of(targets);
    let mut runs = Vec::new();
    for mode in asked.modes(Modes::Both) {
        let ground = Ground::for_contenders(asked.on).await?;
        let mut figures = Vec::new();
        for number in 1..=rounds {
            eprintln!(
                "{}, {targets} targets, killed every {} s: round {number} of {rounds}",
                mode.word(),
                asked.kill_every
            );
            let cast = Cast::new(mode, targets, components);
            figures.push(pair(&ground, cast, Duration::from_secs(asked.kill_every.into()), number).await?);
        }
        runs.push(goals::beside(run_of(mode.word(), targets, figures), &GOALS));
    }
    Ok(figures_of(asked, runs, NOTES))
}

/// One round: calm and killed, in turned order.
async fn pair(ground: &Ground, cast: Cast<'_>, every: Duration, number: u32) -> anyhow::Result<Value> {
    let mut order = [None, Some(every)];
    if number.is_multiple_of(2) {
        order.reverse();
    }
    let (mut figures, mut wrong) = (Map::new(), 0u64);
    for every in order {
        let word = if every.is_some() { "killed" } else { "calm" };
        let scene = Scene::set(ground, &format!("{word}-{}-{number}", cast.mode.word()), cast).await?;
        let (seconds, kills, outcome) = once(scene, every).await?;
        figures.insert(format!("{word}Seconds"), round(seconds).into());
        let count = |name: &str| outcome.get(name).and_then(Value::as_u64).unwrap_or(0);
        wrong = wrong.saturating_add(["wrong", "failed", "stuck"].into_iter().map(count).sum());
        figures.insert(format!("{word}Verdict"), outcome.get("verdict").cloned().unwrap_or_default());
        if every.is_some() {
            figures.insert("kills".to_owned(), kills.into());
        }
    }
    let seconds = |word: &str| figures.get(&format!("{word}Seconds")).and_then(Value::as_f64);
    let ratio = seconds("killed").zip(seconds("calm")).map(|(killed, calm)| round(killed / calm));
    figures.insert("killedToCalm".to_owned(), json!(ratio));
    figures.insert("wrong".to_owned(), wrong.into());
    Ok(figures.into())
}

/// One job: its seconds, how often its host was killed, and its outcome. A job that does not end is a figure and no error.
async fn once(mut scene: Scene<'_>, every: Option<Duration>) -> anyhow::Result<(f64, u32, Map<String, Value>)> {
    let targets = scene.planted.targets.len();
    let begun = Instant::now();
    let latest = begun + longest(targets);
    scene.site.create(&job_watch::replace("bench", &scene.planted.names(), json!({}))).await?;
    let mut kills = 0u32;
    if let Some(every) = every {
        let mut lives = scene.until_gone((targets / 3).max(1), begun + every).await;
        while lives && Instant::now() < latest {
            scene.host.kill_and_start()?;
            kills = kills.saturating_add(1);
            lives = timeout(every, scene.until_ended(1)).await.is_err();
        }
    } else {
        let _ = scene.until_ended(1).await;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let outcome = outcome::of(&scene, "bench").await;
    scene.host.leads().await?;
    scene.end().await?;
    Ok((seconds, kills, outcome))
}
