//! Plays many points at once and sums up what came of them.
//!
//! Takes points in their order and how long it may take; yields what did not hold, after at least so many points. A soak takes
//! all of them. Every run has a runtime, a cluster and a clock of its own, so that runs share nothing but plugin code.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::points::{Point, acts};
use super::run;

/// Set for a run that takes as long as it takes.
const SOAK_VARIABLE: &str = "OARLOCK_SOAK";

/// What the points so far came to.
#[derive(Debug, Default)]
struct Tally {
    points: usize,
    kills: usize,
    /// Points whose trouble never came, since the run made fewer writes.
    spared: usize,
    by_script: BTreeMap<String, usize>,
    by_kind: BTreeMap<String, usize>,
    failures: Vec<String>,
}

/// Plays points from the beginning of the list: `floor` of them, and more until `time` is over.
///
/// # Errors
/// Names each point that failed, or that there are fewer points than the floor.
pub fn sweep(what: &str, points: &[Point], floor: usize, time: Duration) -> anyhow::Result<()> {
    let (began, next, tally) = (Instant::now(), AtomicUsize::new(0), Mutex::new(Tally::default()));
    let soak = is_soak();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let goes_on = soak || number < floor || began.elapsed() < time;
                    let Some(point) = points.get(number).filter(|_| goes_on) else { break };
                    let played =
                        play(point).unwrap_or_else(|error| Played { failures: vec![error], ..Played::default() });
                    let failures: Vec<String> = played.failures.iter().map(|failure| point.says(failure)).collect();
                    // Told at once, for a run that never ends would keep all of it.
                    failures.iter().for_each(|failure| println!("{failure}"));
                    tally.lock().add(point, &played, failures);
                }
            });
        }
    });
    let tally = tally.into_inner();
    let Tally { points: played, kills, spared, .. } = &tally;
    println!("{what}: {played} of {} points in {:.0?}, {kills} kills, {spared} spared", points.len(), began.elapsed());
    tally.by_script.iter().chain(&tally.by_kind).for_each(|(name, count)| println!("  {count:>5} {name}"));
    anyhow::ensure!(tally.failures.is_empty(), "{what}:\n{}", tally.failures.join("\n"));
    anyhow::ensure!(tally.points >= floor, "{what}: {} points are too few, {floor} are asked", tally.points);
    let enough = tally.kills * 8 >= tally.points && tally.spared * 8 <= tally.points;
    anyhow::ensure!(enough, "{what}: {} kills, and the trouble of {} points never came", tally.kills, tally.spared);
    Ok(())
}

/// Whether this run is to show everything.
#[must_use]
pub fn is_soak() -> bool {
    std::env::var_os(SOAK_VARIABLE).is_some()
}

/// What came of a point.
#[derive(Debug, Default)]
pub struct Played {
    killed: bool,
    /// Whether its trouble came.
    met: bool,
    /// What did not hold.
    pub failures: Vec<String>,
}

/// Plays a point.
///
/// # Errors
/// Says what kept it from being played.
pub fn play(point: &Point) -> Result<Played, String> {
    let outcome = run(point.script.clone()).map_err(|error| format!("{error:#}"))?;
    let mut failures = outcome.breaches.clone();
    let writes = acts(&outcome).count();
    if writes > point.most {
        failures.push(format!("R1: {writes} writes, {} were allowed", point.most));
    }
    let met = outcome.writes.iter().any(|write| write.fault.is_some());
    Ok(Played { killed: outcome.crashed, met, failures })
}

impl Tally {
    fn add(&mut self, point: &Point, played: &Played, failures: Vec<String>) {
        self.points += 1;
        self.kills += usize::from(played.killed);
        self.spared += usize::from(point.script.trouble.is_some() && !played.met);
        let plot = format!("{:?}", point.script.plot);
        let plot = plot.split_whitespace().next().unwrap_or_default();
        *self.by_script.entry(format!("{:?}, {plot}", point.script.mode)).or_default() += 1;
        let kind =
            point.script.trouble.map_or_else(|| "no trouble".to_owned(), |trouble| format!("{:?}", trouble.kind));
        *self.by_kind.entry(kind).or_default() += 1;
        self.failures.extend(failures);
    }
}
