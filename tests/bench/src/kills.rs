//! The scenario `kills`: one job whose host is killed every two seconds and started again at once, and one job whose host is not
//! killed.
//!
//! It measures the times of both jobs, in alternating order, and counts wrong outcomes by the event log of the simulated cluster.
//! The host gets SIGKILL. The first kill comes once a third of the targets are gone, if this is earlier than two seconds, so that
//! it also hits a short job. The new host has the same identity, like a restarted container, and finds it in the lease.

use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout};

use crate::arguments::{Modes, Operations};
use crate::backend::Backend;
use crate::bench_cluster::longest;
use crate::goals::{self, Goal};
use crate::job_watch;
use crate::outcome;
use crate::setup::{HostSetup, SetupOptions, figures_of, run_of};
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
/// If a cluster cannot be started, or a host does not start.
pub(crate) async fn run(asked: &Operations, targets: usize, components: &Path) -> anyhow::Result<Value> {
    let rounds = asked.rounds_of(targets);
    let mut runs = Vec::new();
    for mode in asked.modes(Modes::Both) {
        let backend = Backend::for_contenders(asked.on).await?;
        let mut figures = Vec::new();
        for number in 1..=rounds {
            eprintln!(
                "{}, {targets} targets, killed every {} s: round {number} of {rounds}",
                mode.word(),
                asked.kill_every
            );
            let options = SetupOptions::new(mode, targets, components);
            figures.push(pair(&backend, options, Duration::from_secs(asked.kill_every.into()), number).await?);
        }
        runs.push(goals::beside(run_of(mode.word(), targets, figures), &GOALS));
    }
    Ok(figures_of(asked, runs, NOTES))
}

/// Runs one round: calm and killed, in alternating order.
async fn pair(backend: &Backend, options: SetupOptions<'_>, every: Duration, number: u32) -> anyhow::Result<Value> {
    let mut order = [None, Some(every)];
    if number.is_multiple_of(2) {
        order.reverse();
    }
    let (mut figures, mut wrong) = (Map::new(), 0u64);
    for every in order {
        let word = if every.is_some() { "killed" } else { "calm" };
        let setup = HostSetup::set(backend, &format!("{word}-{}-{number}", options.mode.word()), options).await?;
        let (seconds, kills, outcome) = once(setup, every).await?;
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

/// Runs one job. Returns its seconds, the number of kills, and its outcome. A job that does not end is a figure and not an error.
async fn once(mut setup: HostSetup<'_>, every: Option<Duration>) -> anyhow::Result<(f64, u32, Map<String, Value>)> {
    let targets = setup.serving.targets.len();
    let begun = Instant::now();
    let latest = begun + longest(targets);
    setup.cluster.create(&job_watch::replace("bench", &setup.serving.names(), json!({}))).await?;
    let mut kills = 0u32;
    if let Some(every) = every {
        let mut lives = setup.until_gone((targets / 3).max(1), begun + every).await;
        while lives && Instant::now() < latest {
            setup.host.kill_and_start()?;
            kills = kills.saturating_add(1);
            lives = timeout(every, setup.until_ended(1)).await.is_err();
        }
    } else {
        let _ = setup.until_ended(1).await;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let outcome = outcome::of(&setup, "bench").await;
    setup.host.leads().await?;
    setup.end().await?;
    Ok((seconds, kills, outcome))
}
