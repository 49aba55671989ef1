//! Schedules: runs of the whole host that are drawn from a seed, each with several things that go wrong at once.
//!
//! Takes a seed; yields a point to be played: a job, how late everything is for the host, and kills and faults at some of
//! its writes. The same seed gives the same run, so that a schedule that fails is named by its seed. May not choose what is
//! easy: nothing that was drawn is thrown away.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use oarlock_bed::faults::When;
use oarlock_sim::{Delays, Random};
use parking_lot::Mutex;

use super::mode::Mode;
use super::points::{Point, acts, calm};
use super::script::{ASTRAY, Kind, Plot, Script, Trouble};

/// Names one seed, whose schedule alone is played then.
pub const SEED_VARIABLE: &str = "OARLOCK_SEED";
/// The most targets of a schedule.
const TARGETS: u64 = 4;
/// The most that goes wrong in one.
const TROUBLES: u64 = 5;

/// The jobs on pods. A deletion has no number yet.
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

/// How many writes the jobs make that nothing happens to, and how many of them decide something.
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

/// The seed that a user names, if one does.
///
/// # Errors
/// If it is no number.
pub fn named_seed() -> anyhow::Result<Option<u64>> {
    let named = std::env::var(SEED_VARIABLE).ok();
    named.map(|seed| seed.parse().map_err(|_| anyhow::anyhow!("{SEED_VARIABLE} is no number: {seed}"))).transpose()
}

/// The schedule of a seed, for one of these jobs.
///
/// # Errors
/// If its job does not go as it should where nothing happens to it.
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
    // Each visit that is decided on an old view costs a write more, and so does what every trouble leaves in doubt.
    let most = (4 + troubles.len()) * (writes + 4);
    Ok(Point { script: Script { troubles, delays, seed, ..Script::of(mode, plot, targets) }, most })
}

/// What goes wrong, in the order of the writes, of which at most one each.
fn troubles(random: &mut Random, plot: Plot, last: u64) -> Vec<Trouble> {
    let count = random.up_to(TROUBLES);
    let mut troubles = BTreeMap::new();
    for _ in 0..count {
        // Whatever went wrong makes more writes than an undisturbed run has.
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

/// One of these; the first where there is no other.
pub(super) fn pick<T: Copy>(random: &mut Random, first: T, all: &[T]) -> T {
    let last = all.len().saturating_sub(1);
    usize::try_from(random.up_to(last as u64)).ok().and_then(|place| all.get(place).copied()).unwrap_or(first)
}
