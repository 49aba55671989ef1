//! The scenario `neighbours`: what a job loses beside a plugin that misbehaves.
//!
//! For each misdeed it measures the rate at which one job replaces its targets: alone, and beside jobs of another plugin that
//! misbehaves repeatedly on other pods of the same set. The order alternates.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use kube::api::{DynamicObject, PostParams};
use serde_json::{Map, Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, sleep};

use crate::arguments::{Modes, Operations};
use crate::backend::Backend;
use crate::bench_cluster::longest;
use crate::children::Dropped;
use crate::job_watch;
use crate::meter::Meter;
use crate::setup::{HostSetup, SetupOptions, figures_of};
use crate::spread::{self, as_f64, round};

/// The misdeeds of the other plugin. `compile` replaces its file each second. `succeed` does nothing wrong: it shows the cost of
/// the same number of well-behaved jobs.
const MISDEEDS: [&str; 12] = [
    "succeed",
    "trap-in-operate",
    "loop-in-operate",
    "memory-bomb-in-operate",
    "huge-output-in-operate",
    "many-events-in-operate",
    "log-flood-in-operate",
    "call-flood-in-operate",
    "retry-in-operate",
    "hurry-in-progress",
    "huge-extra-in-operate",
    COMPILE,
];
const COMPILE: &str = "compile";
/// The number of pods on which the other plugin misbehaves.
const VICTIMS: usize = 100;
/// The number of such pods in one job.
const VICTIMS_OF_A_JOB: usize = 25;
/// The time between two jobs of the other plugin.
const EACH: Duration = Duration::from_millis(250);
/// The head start of the misdeeds before the measured job.
const AHEAD: Duration = Duration::from_secs(2);

const NOTES: &str = "\
- besideToAlone: the rate at which a job replaces its targets beside the misdeed, divided by its rate alone. With `succeed` the
  other jobs do nothing wrong: the others are to be compared with that.
- peakRssMib: of the host, with and without the misdeed. misdeeds: jobs of the other plugin that were begun meanwhile, of 25
  targets each; with `compile`, new files of it.";

/// Runs the scenario.
///
/// # Errors
/// If a job does not end.
pub(crate) async fn run(asked: &Operations, targets: usize, components: &Path) -> anyhow::Result<Value> {
    let backend = Backend::for_contenders(asked.on).await?;
    let mut runs = Vec::new();
    for mode in asked.modes(Modes::Evict) {
        for misdeed in misdeeds(asked.misdeed.as_deref())? {
            let mut rounds = Vec::new();
            for number in 1..=asked.rounds(1) {
                eprintln!("{} beside {misdeed}: round {number}", mode.word());
                let options = SetupOptions::new(mode, targets.saturating_add(VICTIMS), components);
                let options = SetupOptions { dropped: Dropped::WithHostile, ..options };
                rounds.push(pair(&backend, options, misdeed, number).await?);
            }
            let spread = spread::of(&rounds.iter().collect::<Vec<_>>());
            runs.push(json!({"mode": misdeed, "targets": targets, "rounds": rounds, "spread": spread}));
        }
    }
    Ok(figures_of(asked, runs, NOTES))
}

/// Returns all misdeeds, or the requested one.
fn misdeeds(asked: Option<&str>) -> anyhow::Result<Vec<&'static str>> {
    let found: Vec<_> = MISDEEDS.into_iter().filter(|misdeed| asked.is_none_or(|asked| asked == *misdeed)).collect();
    anyhow::ensure!(!found.is_empty(), "--misdeed must be one of {}", MISDEEDS.join(", "));
    Ok(found)
}

/// Runs one round: alone and beside the misdeed, in alternating order.
async fn pair(backend: &Backend, options: SetupOptions<'_>, misdeed: &str, number: u32) -> anyhow::Result<Value> {
    let mut order = [None, Some(misdeed)];
    if number.is_multiple_of(2) {
        order.reverse();
    }
    let mut figures = Map::new();
    for beside in order {
        let word = if beside.is_some() { "beside" } else { "alone" };
        let setup = HostSetup::set(backend, &format!("{word}-{misdeed}-{number}"), options).await?;
        figures.extend(once(setup, beside, word).await?);
    }
    let rate = |word: &str| figures.get(&format!("{word}TargetsPerSecond")).and_then(Value::as_f64);
    let ratio = rate("beside").zip(rate("alone")).map(|(beside, alone)| round(beside / alone));
    figures.insert("besideToAlone".to_owned(), json!(ratio));
    Ok(json!({ "host": figures }))
}

async fn once(setup: HostSetup<'_>, misdeed: Option<&str>, word: &str) -> anyhow::Result<Map<String, Value>> {
    let all = setup.serving.names();
    let (targets, victims) = all.split_at(all.len().saturating_sub(VICTIMS));
    let misdeeds = misdeed.map(|misdeed| begin(&setup, misdeed, victims)).transpose()?;
    sleep(AHEAD).await;
    let meter = Meter::start(setup.backend, setup.host.id())?;
    let begun = Instant::now();
    setup.cluster.create(&job_watch::replace("measured", targets, json!({}))).await?;
    setup.watch.until_succeeded("measured", longest(targets.len())).await?;
    let rate = round(as_f64(targets.len()) / begun.elapsed().as_secs_f64());
    let peak = meter.figures(targets.len())?.remove("peakRssMib").unwrap_or_default();
    let mut figures = Map::new();
    figures.insert(format!("{word}TargetsPerSecond"), rate.into());
    figures.insert(format!("{word}PeakRssMib"), peak);
    if let Some(misdeeds) = misdeeds {
        figures.insert("misdeeds".to_owned(), misdeeds.end().await?.into());
    }
    setup.end().await?;
    Ok(figures)
}

/// Misdeeds that continue until they are ended.
struct Misdeeds {
    stop: tokio::sync::watch::Sender<bool>,
    task: JoinHandle<anyhow::Result<u32>>,
}

impl Misdeeds {
    /// Ends the misdeeds and returns their number.
    async fn end(self) -> anyhow::Result<u32> {
        self.stop.send_replace(true);
        self.task.await?
    }
}

fn begin(setup: &HostSetup<'_>, misdeed: &str, victims: &[String]) -> anyhow::Result<Misdeeds> {
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let task = if misdeed == COMPILE {
        let file = setup.host.plugins().join("hostile.wasm");
        let component = std::fs::read(&file).context("cannot read hostile.wasm")?;
        tokio::spawn(compile(file, component, stopped))
    } else {
        let groups = victims.chunks(VICTIMS_OF_A_JOB).map(<[String]>::to_vec).collect();
        tokio::spawn(misbehave(setup.cluster.jobs(), misdeed.to_owned(), groups, stopped))
    };
    Ok(Misdeeds { stop, task })
}

/// Creates jobs of the other plugin, one after the other.
async fn misbehave(
    jobs: kube::Api<DynamicObject>,
    misdeed: String,
    groups: Vec<Vec<String>>,
    stopped: tokio::sync::watch::Receiver<bool>,
) -> anyhow::Result<u32> {
    let mut ticks = interval(EACH);
    let mut count = 0u32;
    for group in groups.iter().cycle() {
        ticks.tick().await;
        if *stopped.borrow() {
            break;
        }
        count = count.saturating_add(1);
        let further = json!({"action": "Hostile", "parameters": {"do": misdeed}, "activeDeadlineSeconds": 5});
        let job = job_watch::replace(&format!("misdeed-{count}"), group, further);
        jobs.create(&PostParams::default(), &job).await?;
    }
    Ok(count)
}

/// Replaces the file of the other plugin each second by a new file that does the same.
async fn compile(
    file: PathBuf,
    component: Vec<u8>,
    stopped: tokio::sync::watch::Receiver<bool>,
) -> anyhow::Result<u32> {
    let mut ticks = interval(Duration::from_secs(1));
    let mut count = 0u32;
    loop {
        ticks.tick().await;
        if *stopped.borrow() {
            return Ok(count);
        }
        count = count.saturating_add(1);
        // A custom section at the end of the file: id, size, size of its name, name, content.
        let section = [&[0u8, 6, 1, b'n'][..], &count.to_le_bytes()].concat();
        let beside = file.with_extension("new");
        std::fs::write(&beside, [&component[..], &section].concat())?;
        std::fs::rename(&beside, &file)?;
    }
}
