//! The points of a sweep: each script with each kind of trouble at each write that decides something.
//!
//! Takes the scripts; plays each without trouble, so that "each write" is a fact; yields the points in an order in which any
//! beginning of the list has something of every script and every kind. May not choose a point by what it is about.

use std::time::Duration;

use oarlock_bed::faults::When;
use oarlock_bed::interception::WriteRecord;
use oarlock_sim::Delays;

use super::Outcome;
use super::mode::Mode;
use super::script::{Kind, Plot, Script, Scripted, Trouble};
use super::sweep::is_soak;

/// Targets of a script: few, so that a run is short, and enough to overlap.
const TARGETS: usize = 6;
/// How many orders of requests and watches there are for each way of replacing.
const SEEDS: u64 = 40;
/// The same for a soak.
const SOAKED: u64 = 160;
/// How late everything is, where it is.
const LATE: Delays = Delays { seed: 0, request: Duration::from_millis(40), watch: Duration::from_millis(900) };
/// Nodes of a script: one that is cordoned, and one more than there are at a time.
const NODES: usize = 3;
/// More than one record holds.
const RECORDED: usize = 260;

/// One run of a sweep.
#[derive(Clone)]
pub struct Point<S = Script> {
    /// What happens.
    pub script: S,
    /// R1: the writes that it may have.
    pub most: usize,
}

impl<S: Scripted> Point<S> {
    /// A failure with what happened.
    #[must_use]
    pub fn says(&self, failure: &str) -> String {
        format!("{}: {failure}", self.script.title())
    }
}

/// The writes of an outcome that decide something.
pub fn acts(outcome: &Outcome) -> impl Iterator<Item = &WriteRecord> {
    outcome.writes.iter().filter(|write| decides(write))
}

/// An event is best effort, and the lease is renewed whatever happens.
fn decides(write: &WriteRecord) -> bool {
    !["/leases", "/events"].iter().any(|plural| write.path.contains(plural))
}

/// The scripts, each without trouble. A deletion comes once for each write of a run that goes well, and delays besides.
fn scripts() -> Vec<Script> {
    use Mode::{CollaSet, Evict, EvictSameName};
    use Plot::{Bounded, DryRun, Failover, Missing, Namesake, NeverServes, Success};
    let few = [
        (CollaSet, Success),
        (Evict, Success),
        (EvictSameName, Success),
        (Evict, Missing),
        (CollaSet, NeverServes),
        (Evict, NeverServes),
        (CollaSet, Bounded),
        (Evict, Bounded),
        (CollaSet, DryRun),
        (Evict, DryRun),
        (CollaSet, Namesake),
        (Evict, Namesake),
        (CollaSet, Failover),
        (Evict, Failover),
    ];
    few.into_iter().map(|(mode, plot)| Script::of(mode, plot, TARGETS)).collect()
}

/// All points.
///
/// # Errors
/// If a script that nothing happens to does not go as it should.
pub fn all() -> anyhow::Result<Vec<Point>> {
    let mut points = Vec::new();
    for script in scripts() {
        let calm = calm(&script)?;
        points.extend(troubled(&script, &calm));
        if script.plot == Plot::Success {
            points.extend(deleted(&script, &calm));
            points.extend(late(&script, &calm));
        }
    }
    Ok(spread(points))
}

/// Points of a job of so many targets that they are in records: trouble at every fourth write, of each kind in turns, for
/// such a run is forty times as long.
///
/// # Errors
/// If it does not go as it should where nothing happens to it.
pub fn recorded() -> anyhow::Result<Vec<Point>> {
    let script = Script::of(Mode::Evict, Plot::Success, RECORDED);
    let points = troubled(&script, &calm(&script)?);
    let step = 4 * Kind::ALL.len() + 1;
    Ok(spread(points.into_iter().step_by(step).collect()))
}

/// The points of jobs on nodes.
///
/// # Errors
/// If a script that nothing happens to does not go as it should.
pub fn on_nodes() -> anyhow::Result<Vec<Point>> {
    let mut points = Vec::new();
    for mode in [Mode::Reboot, Mode::Check] {
        let script = Script::of(mode, Plot::Success, NODES);
        let calm = calm(&script)?;
        points.extend(troubled(&script, &calm));
        points.extend(deleted(&script, &calm));
        points.extend(late(&script, &calm));
        let script = Script { plot: Plot::Failover, ..script };
        points.extend(troubled(&script, &self::calm(&script)?));
    }
    Ok(spread(points))
}

pub(super) fn calm<S: Scripted>(script: &S) -> anyhow::Result<Outcome> {
    let outcome = script.clone().run()?;
    anyhow::ensure!(outcome.breaches.is_empty(), "{}, without trouble: {:#?}", script.title(), outcome.breaches);
    Ok(outcome)
}

/// Trouble of each kind at each write.
pub(super) fn troubled<S: Scripted>(script: &S, calm: &Outcome) -> Vec<Point<S>> {
    let most = 2 * acts(calm).count();
    let kills = |kind: &Kind| matches!(kind, Kind::Kill(_));
    let kinds = || Kind::ALL.into_iter().filter(|kind| !script.fails_over() || kills(kind));
    let each = acts(calm).flat_map(|write| kinds().map(|kind| Trouble { at: write.number, kind }));
    each.map(|trouble| Point { script: script.disturbed(vec![trouble], None), most }).collect()
}

/// Deleted at each write: alone, and with the host killed at the same one, so that it finds the job deleted when it is back.
fn deleted(script: &Script, calm: &Outcome) -> Vec<Point> {
    let most = 3 * acts(calm).count();
    let kills = When::ALL.map(Kind::Kill).into_iter().cycle();
    let each = acts(calm).zip(kills).flat_map(|(write, kind)| {
        let at = write.number;
        [None, Some(Trouble { at, kind })].map(|trouble| (Plot::Deleted { at }, trouble))
    });
    let script =
        |plot, trouble: Option<Trouble>| Script { plot, troubles: trouble.into_iter().collect(), ..script.clone() };
    each.map(|(plot, trouble)| Point { script: script(plot, trouble), most }).collect()
}

/// Everything is late for the host: alone, and with trouble at some write.
pub(super) fn late<S: Scripted>(script: &S, calm: &Outcome) -> Vec<Point<S>> {
    let writes = acts(calm).map(|write| write.number).collect::<Vec<_>>();
    let kinds = Kind::ALL.into_iter().cycle().zip(writes.into_iter().cycle());
    let seeds = if is_soak() { SOAKED } else { SEEDS };
    let each = (1..=seeds).zip(kinds).flat_map(|(seed, (kind, at))| {
        [None, Some(Trouble { at, kind })].map(|trouble| (Delays { seed, ..LATE }, trouble))
    });
    // Each visit that is decided on an old view and refused costs a write more.
    let most = 4 * acts(calm).count();
    let script = |delays, trouble: Option<Trouble>| script.disturbed(trouble.into_iter().collect(), Some(delays));
    each.map(|(delays, trouble)| Point { script: script(delays, trouble), most }).collect()
}

/// The same points in steps of about the golden ratio, which leave no part of the list behind.
pub(super) fn spread<S: Scripted>(points: Vec<Point<S>>) -> Vec<Point<S>> {
    let count = points.len();
    let mut step = (count * 1000 / 1618).max(1);
    while gcd(step, count) > 1 {
        step += 1;
    }
    let at = |turn: usize| points.get(turn * step % count.max(1)).cloned();
    (0..count).filter_map(at).collect()
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
