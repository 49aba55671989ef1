//! Plans on a real control plane: the host dies between two writes, acts on an old view, or misses a change for good.
//!
//! Each plan is drawn from a seed and written to a file before it is played, several at once, each in a namespace of its own
//! with a host that sees that namespace alone and has exactly the roles of `oarlock manifests`. A test run takes the first
//! ones; `cargo xtask soak` takes all. One is played again by `OARLOCK_SEED=17`, or by `OARLOCK_PLAN` and its file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use oarlock_bed::control_plane::{self, ControlPlane};
use oarlock_tests::crash::plan::Plan;
use oarlock_tests::crash::plan_run::{Played, play};
use oarlock_tests::crash::schedule::named_seed;
use oarlock_tests::crash::sweep::is_soak;
use oarlock_tests::rig::{Rig, real_plane};

use super::ALONE;

/// Names a file, whose plan alone is played then.
const FILE_VARIABLE: &str = "OARLOCK_PLAN";
/// The plans of a soak: those of the seeds from one on.
const PLANS: u64 = 130;
/// A test run plays at least so many, of each pattern as many as of any other.
const FLOOR: usize = 12;
/// It begins no more once this time is over.
const BOX: Duration = Duration::from_secs(60);
/// More at once only wait for each other.
const AT_ONCE: usize = 6;

/// The plans to be played, and how many of them at least.
fn plans() -> anyhow::Result<(Vec<Plan>, usize)> {
    if let Some(file) = std::env::var_os(FILE_VARIABLE) {
        return Ok((vec![Plan::read(Path::new(&file))?], 1));
    }
    if let Some(seed) = named_seed()? {
        return Ok((vec![Plan::of_seed(seed)], 1));
    }
    let all: Vec<Plan> = (1..=PLANS).map(Plan::of_seed).collect();
    let floor = if is_soak() { all.len() } else { FLOOR };
    Ok((all, floor))
}

/// Plays a plan. Yields it, its file and what came of it.
async fn played(plane: Arc<ControlPlane>, plan: Plan, folder: &Path) -> anyhow::Result<(Plan, PathBuf, Played)> {
    let file = plan.write(folder)?;
    let rig = Rig::real(plane, &plan.title()).await?;
    let played = play(rig, plan.clone(), None).await;
    let played = played.unwrap_or_else(|error| Played { met: false, breaches: vec![format!("not played: {error:#}")] });
    played.breaches.iter().for_each(|breach| println!("{}: {breach}", file.display()));
    Ok((plan, file, played))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_dies_between_writes_lags_or_misses_a_change_keeps_every_promise() -> anyhow::Result<()> {
    let _alone = ALONE.lock().await;
    let options = control_plane::Options {
        controllers: vec![control_plane::GARBAGE_COLLECTOR, control_plane::DISRUPTION],
        ..control_plane::Options::default()
    };
    let plane = real_plane(options).await?;
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plans");
    let (began, (plans, floor)) = (Instant::now(), plans()?);
    let due = |number: &usize| *number < floor || began.elapsed() < BOX;
    let begun = plans.into_iter().enumerate().take_while(|(number, _)| due(number));
    let all = begun.map(|(_, plan)| played(plane.clone(), plan, &folder));
    let mut playing = std::pin::pin!(futures::stream::iter(all).buffer_unordered(AT_ONCE));
    let (mut count, mut patterns, mut failures) = (0, BTreeMap::<&str, (usize, usize)>::new(), Vec::new());
    while let Some(played) = playing.next().await {
        let (plan, file, played) = played?;
        count += 1;
        let (of_it, met) = patterns.entry(plan.pattern.name()).or_default();
        *of_it += 1;
        *met += usize::from(played.met);
        failures.extend(played.breaches.iter().map(|breach| format!("{}: {breach}", file.display())));
    }
    println!("plans: {count} of {PLANS} in {:.0?}; by pattern, played and met: {patterns:?}", began.elapsed());
    anyhow::ensure!(failures.is_empty(), "{}", failures.join("\n"));
    anyhow::ensure!(count >= floor, "{count} plans are too few, {floor} are asked");
    let met: usize = patterns.values().map(|(_, met)| met).sum();
    anyhow::ensure!(count < FLOOR || met * 4 >= count * 3, "what was planned came in {met} of {count} plans only");
    Ok(())
}
