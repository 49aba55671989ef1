//! The points of a sweep: each script with each kind of trouble at each write that decides something.
//!
//! Takes the scripts; plays each one undisturbed to learn its writes; yields the points in an order in which every prefix of
//! the list has points of every script and every kind. May not choose a point by its content.

use std::time::Duration;

use oarlock_sim::Delays;
use oarlock_support::faults::When;
use oarlock_support::interception::WriteRecord;

use super::Outcome;
use super::script::{Kind, Plot, Script, Scripted, Trouble};
use oarlock_scenarios::is_soak;
use oarlock_scenarios::mode::Mode;

/// The number of targets of a script: few, so that a run is short, but enough that targets overlap.
const TARGETS: usize = 6;
/// The number of random orders of requests and watches for each way of replacing.
const SEEDS: u64 = 40;
/// The number of random orders in a soak.
const SOAKED: u64 = 160;
/// The delays of requests and watches in late points.
const LATE: Delays = Delays { seed: 0, request: Duration::from_millis(40), watch: Duration::from_millis(900) };
/// The number of nodes of a script: a cordoned node, and more nodes than run at a time.
const NODES: usize = 3;
/// A number of targets above the capacity of one record.
const RECORDED: usize = 260;

/// A run of a sweep.
#[derive(Clone)]
pub struct Point<S = Script> {
    /// The script of the run.
    pub script: S,
    /// The largest number of writes (R1).
    pub most: usize,
}

impl<S: Scripted> Point<S> {
    /// Returns a failure together with the title of the script.
    #[must_use]
    pub fn says(&self, failure: &str) -> String {
        format!("{}: {failure}", self.script.title())
    }
}

/// Returns the writes of an outcome that decide something.
pub fn acts(outcome: &Outcome) -> impl Iterator<Item = &WriteRecord> {
    outcome.writes.iter().filter(|write| decides(write))
}

/// Returns false for events, which are best effort, and for the lease, which is always renewed.
fn decides(write: &WriteRecord) -> bool {
    !["/leases", "/events"].iter().any(|plural| write.path.contains(plural))
}

/// Returns the undisturbed scripts. [`deleted`] and [`late`] derive deletions and delays from them.
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

/// Returns all points.
///
/// # Errors
/// If an undisturbed script breaks a property.
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

/// Returns points of a job with enough targets for records: trouble at every fourth write, and the kinds in turn. There are
/// fewer points, because such a run takes forty times as long.
///
/// # Errors
/// If the undisturbed script breaks a property.
pub fn recorded() -> anyhow::Result<Vec<Point>> {
    let script = Script::of(Mode::Evict, Plot::Success, RECORDED);
    let points = troubled(&script, &calm(&script)?);
    let step = 4 * Kind::ALL.len() + 1;
    Ok(spread(points.into_iter().step_by(step).collect()))
}

/// Returns the points of jobs on nodes.
///
/// # Errors
/// If an undisturbed script breaks a property.
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

/// Returns points with each kind of trouble at each write.
pub(super) fn troubled<S: Scripted>(script: &S, calm: &Outcome) -> Vec<Point<S>> {
    let most = 2 * acts(calm).count();
    let kills = |kind: &Kind| matches!(kind, Kind::Kill(_));
    let kinds = || Kind::ALL.into_iter().filter(|kind| !script.fails_over() || kills(kind));
    let each = acts(calm).flat_map(|write| kinds().map(|kind| Trouble { at: write.number, kind }));
    each.map(|trouble| Point { script: script.disturbed(vec![trouble], None), most }).collect()
}

/// Returns points with a deletion at each write. One point has the deletion alone. The other also kills the host at that
/// write, so that the next host finds the job deleted.
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

/// Returns points with delays of all requests and watches: alone, and with trouble at one write.
pub(super) fn late<S: Scripted>(script: &S, calm: &Outcome) -> Vec<Point<S>> {
    let writes = acts(calm).map(|write| write.number).collect::<Vec<_>>();
    let kinds = Kind::ALL.into_iter().cycle().zip(writes.into_iter().cycle());
    let seeds = if is_soak() { SOAKED } else { SEEDS };
    let each = (1..=seeds).zip(kinds).flat_map(|(seed, (kind, at))| {
        [None, Some(Trouble { at, kind })].map(|trouble| (Delays { seed, ..LATE }, trouble))
    });
    // A visit that is decided on an old view is refused, and its repetition costs another write.
    let most = 4 * acts(calm).count();
    let script = |delays, trouble: Option<Trouble>| script.disturbed(trouble.into_iter().collect(), Some(delays));
    each.map(|(delays, trouble)| Point { script: script(delays, trouble), most }).collect()
}

/// Returns the same points in steps of about the golden ratio, so that every prefix covers the whole list.
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
