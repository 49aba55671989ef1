//! Plays many points in parallel and sums up their results.
//!
//! Takes points in their order and a time limit; yields the properties that did not hold, after at least a given number of
//! points. A soak plays all points. Every run has its own runtime, cluster and clock, so runs share only compiled plugins.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::points::{Point, acts};
use super::schedule::{Calm, SEED_VARIABLE, named_seed, of_seed};
use super::script::{Plot, Scripted};
use oarlock_scenarios::is_soak;
use oarlock_scenarios::mode::Mode;

/// The sums of the points so far.
#[derive(Debug, Default)]
struct Tally {
    points: usize,
    kills: usize,
    /// The number of points whose trouble never happened, because the run made fewer writes.
    spared: usize,
    by_script: BTreeMap<String, usize>,
    by_kind: BTreeMap<String, usize>,
    failures: Vec<String>,
}

/// Plays points from the beginning of the list: at least `floor` points, and more until `time` is over.
///
/// # Errors
/// If a point failed, or if there are fewer points than `floor`. The error names each failed point.
pub fn sweep<S: Scripted>(what: &str, points: &[Point<S>], floor: usize, time: Duration) -> anyhow::Result<()> {
    let (began, soak) = (Instant::now(), is_soak());
    let tally = play_many(|number| {
        let goes_on = soak || number < floor || began.elapsed() < time;
        points.get(number).filter(|_| goes_on).cloned().map(|point| Ok((String::new(), point)))
    });
    let Tally { points: played, kills, spared, .. } = &tally;
    println!("{what}: {played} of {} points in {:.0?}, {kills} kills, {spared} spared", points.len(), began.elapsed());
    tally.conclude(what, floor)?;
    let enough = tally.kills * 8 >= tally.points && tally.spared * 8 <= tally.points;
    anyhow::ensure!(enough, "{what}: {} kills, and the trouble of {} points never came", tally.kills, tally.spared);
    Ok(())
}

/// Plays the schedules of the seeds from 1 to `count` for these jobs. If the user names a seed, plays only its schedule.
///
/// # Errors
/// If a schedule failed. The error names each failed seed.
pub fn schedules(what: &str, jobs: &[(Mode, Plot)], count: usize) -> anyhow::Result<()> {
    let (began, calm) = (Instant::now(), Calm::default());
    let named = named_seed()?;
    let tally = play_many(|number| {
        let seed = match named {
            Some(seed) => Some(seed).filter(|_| number == 0),
            None => u64::try_from(number).ok().filter(|_| number < count).map(|number| number + 1),
        }?;
        let point = of_seed(seed, jobs, &calm).map_err(|error| format!("{SEED_VARIABLE}={seed}: {error:#}"));
        Some(point.map(|mut point| {
            point.script.tells = named.is_some();
            (format!("{SEED_VARIABLE}={seed}: "), point)
        }))
    });
    let Tally { points: played, kills, .. } = &tally;
    println!("{what}: {played} schedules in {:.0?}, {kills} with kills", began.elapsed());
    tally.conclude(what, if named.is_some() { 1 } else { count })
}

/// Plays, on all cores, the points that `take` returns for the numbers from zero on. Each point has a prefix for messages.
/// Ends when `take` returns `None`.
fn play_many<S: Scripted>(take: impl Fn(usize) -> Option<Result<(String, Point<S>), String>> + Sync) -> Tally {
    let (next, tally) = (AtomicUsize::new(0), Mutex::new(Tally::default()));
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let take_one = || take(next.fetch_add(1, Ordering::Relaxed));
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(taken) = take_one() {
                    let (name, point) = match taken {
                        Ok(taken) => taken,
                        Err(error) => {
                            tally.lock().failures.push(error);
                            continue;
                        }
                    };
                    let played =
                        play(&point).unwrap_or_else(|error| Played { failures: vec![error], ..Played::default() });
                    let say = |failure: &String| format!("{name}{}", point.says(failure));
                    let failures: Vec<String> = played.failures.iter().map(say).collect();
                    // Print failures at once: they help even if another run never ends.
                    failures.iter().for_each(|failure| println!("{failure}"));
                    tally.lock().add(&point, &played, failures);
                }
            });
        }
    });
    tally.into_inner()
}

/// The result of a point.
#[derive(Debug, Default)]
pub struct Played {
    killed: bool,
    /// True if the trouble of the point happened.
    met: bool,
    /// The properties that did not hold.
    pub failures: Vec<String>,
}

/// Plays a point.
///
/// # Errors
/// If the point cannot be played.
pub fn play<S: Scripted>(point: &Point<S>) -> Result<Played, String> {
    let outcome = point.script.clone().run().map_err(|error| format!("{error:#}"))?;
    let mut failures = outcome.breaches.clone();
    let writes = acts(&outcome).count();
    if writes > point.most {
        failures.push(format!("R1: {writes} writes, {} were allowed", point.most));
    }
    let met = outcome.writes.iter().any(|write| write.fault.is_some());
    Ok(Played { killed: outcome.crashed, met, failures })
}

impl Tally {
    /// Prints the sums. Fails if a property did not hold, or if fewer than `floor` points were played.
    fn conclude(&self, what: &str, floor: usize) -> anyhow::Result<()> {
        self.by_script.iter().chain(&self.by_kind).for_each(|(name, count)| println!("  {count:>5} {name}"));
        anyhow::ensure!(self.failures.is_empty(), "{what}:\n{}", self.failures.join("\n"));
        anyhow::ensure!(self.points >= floor, "{what}: {} points are too few, {floor} are asked", self.points);
        Ok(())
    }

    fn add<S: Scripted>(&mut self, point: &Point<S>, played: &Played, failures: Vec<String>) {
        self.points += 1;
        self.kills += usize::from(played.killed);
        let troubles = point.script.troubles();
        self.spared += usize::from(!troubles.is_empty() && !played.met);
        *self.by_script.entry(point.script.subject()).or_default() += 1;
        let kinds = troubles.iter().map(|trouble| trouble.kind.name());
        let none = troubles.is_empty().then(|| "no trouble".to_owned());
        kinds.chain(none).for_each(|kind| *self.by_kind.entry(kind).or_default() += 1);
        self.failures.extend(failures);
    }
}
