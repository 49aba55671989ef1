//! Schedules: runs of the whole host that are drawn from a seed, each with several troubles.
//!
//! Takes a seed; yields a point: a job, the delays of the host, and kills and faults at some of its writes. The same seed gives the
//! same run, so the seed of a failed schedule is enough to replay it. May not prefer easy schedules: every drawn schedule is played.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use oarlock_sim::{Delays, Random};
use oarlock_support::faults::When;
use parking_lot::Mutex;

use super::points::{Point, acts, calm};
use super::script::{ASTRAY, Kind, Plot, Script, Trouble};
use oarlock_scenarios::mode::Mode;

/// The environment variable that names one seed. Only the schedule of that seed is played then.
pub const SEED_VARIABLE: &str = "OARLOCK_SEED";
/// The largest number of targets of a schedule.
const TARGETS: u64 = 4;
/// The largest number of troubles of a schedule.
const TROUBLES: u64 = 5;

/// The jobs on pods. The write number of a deletion is drawn later.
pub const ON_PODS: &[(Mode, Plot)] = &[
    (Mode::CollaSet, Plot::Success),
    (Mode::Evict, Plot::Success),
    (Mode::EvictSameName, Plot::Success),
    (Mode::CollaSet, Plot::Deleted { at: 0 }),
    (Mode::Evict, Plot::Deleted { at: 0 }),
    (Mode::EvictSameName, Plot::Deleted { at: 0 }),
    (Mode::Evict, Plot::Missing),
    (Mode::CollaSet, Plot::NeverServes),
    (Mode::Evict, Plot::NeverServes),
    (Mode::CollaSet, Plot::Bounded),
    (Mode::Evict, Plot::Bounded),
    (Mode::CollaSet, Plot::DryRun),
    (Mode::Evict, Plot::DryRun),
    (Mode::CollaSet, Plot::Namesake),
    (Mode::Evict, Plot::Namesake),
    (Mode::CollaSet, Plot::Failover),
    (Mode::Evict, Plot::Failover),
];

/// The jobs on nodes.
pub const ON_NODES: &[(Mode, Plot)] = &[
    (Mode::Reboot, Plot::Success),
    (Mode::Reboot, Plot::Deleted { at: 0 }),
    (Mode::Reboot, Plot::Failover),
    (Mode::Check, Plot::Success),
    (Mode::Check, Plot::Deleted { at: 0 }),
];

/// The number of writes of each undisturbed job, and the number of those that decide something.
#[derive(Clone, Default)]
pub struct Calm {
    known: Arc<Mutex<BTreeMap<String, (u64, usize)>>>,
}

impl Calm {
    fn writes(&self, script: &Script) -> anyhow::Result<(u64, usize)> {
        let title = script.title();
        if let Some(known) = self.known.lock().get(&title) {
            return Ok(*known);
        }
        let outcome = calm(script)?;
        let last = acts(&outcome).map(|write| write.number).max().unwrap_or(1);
        let counted = (last, acts(&outcome).count());
        self.known.lock().insert(title, counted);
        Ok(counted)
    }
}

/// Returns the seed that the user names, if any.
///
/// # Errors
/// If the seed is no number.
pub fn named_seed() -> anyhow::Result<Option<u64>> {
    let named = std::env::var(SEED_VARIABLE).ok();
    named.map(|seed| seed.parse().map_err(|_| anyhow::anyhow!("{SEED_VARIABLE} is no number: {seed}"))).transpose()
}

/// Returns the schedule of a seed, for one of these jobs.
///
/// # Errors
/// If the undisturbed job breaks a property.
pub fn of_seed(seed: u64, jobs: &[(Mode, Plot)], calm: &Calm) -> anyhow::Result<Point> {
    let mut random = Random::seeded(seed);
    let (mode, plot) = pick(&mut random, (Mode::Evict, Plot::Success), jobs);
    let targets = usize::try_from(1 + random.up_to(TARGETS - 1)).unwrap_or(1);
    let undisturbed = if let Plot::Deleted { .. } = plot { Plot::Success } else { plot };
    let (last, writes) = calm.writes(&Script::of(mode, undisturbed, targets))?;
    let plot = match plot {
        Plot::Deleted { .. } => Plot::Deleted { at: 1 + random.up_to(last) },
        plot => plot,
    };
    let troubles = troubles(&mut random, plot, last);
    let delays = (random.up_to(3) > 0).then(|| Delays {
        seed,
        request: Duration::from_millis(random.up_to(120)),
        watch: Duration::from_millis(random.up_to(3_000)),
    });
    // A visit that is decided on an old view costs another write. The uncertainty after each trouble costs more.
    let most = (4 + troubles.len()) * (writes + 4);
    Ok(Point { script: Script { troubles, delays, seed, ..Script::of(mode, plot, targets) }, most })
}

/// Draws the troubles in the order of the writes, at most one for each write.
fn troubles(random: &mut Random, plot: Plot, last: u64) -> Vec<Trouble> {
    let count = random.up_to(TROUBLES);
    let mut troubles = BTreeMap::new();
    for _ in 0..count {
        // Troubles cause more writes than an undisturbed run has.
        let at = 1 + random.up_to(last + last / 2);
        troubles.insert(at, kind(random));
    }
    if plot == Plot::Failover && !troubles.values().any(|kind| matches!(kind, Kind::Kill(_))) {
        troubles.insert(1 + random.up_to(last), Kind::Kill(When::AfterCommit));
    }
    troubles.into_iter().map(|(at, kind)| Trouble { at, kind }).collect()
}

fn kind(random: &mut Random) -> Kind {
    match random.up_to(9) {
        0..=3 => Kind::Kill(pick(random, When::AfterCommit, &When::ALL)),
        4 => Kind::LostReply,
        5 => Kind::TimedOut,
        6 => Kind::Conflict,
        7 => Kind::Busy,
        8 => Kind::Astray(1 + random.up_to(ASTRAY - 1)),
        _ if random.up_to(1) == 0 => Kind::Broken,
        _ => Kind::Slow(1 + random.up_to(8)),
    }
}

/// Returns a random item of `all`, or `first` if `all` is empty.
pub(super) fn pick<T: Copy>(random: &mut Random, first: T, all: &[T]) -> T {
    let last = all.len().saturating_sub(1);
    usize::try_from(random.up_to(last as u64)).ok().and_then(|place| all.get(place).copied()).unwrap_or(first)
}
