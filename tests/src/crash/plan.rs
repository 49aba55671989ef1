//! Plans: one thing each that a host must survive, drawn from a seed, played again.
//!
//! Takes a seed; yields data in one of three patterns: the host dies between two writes and finds half of what it wanted
//! (intermediate); it acts on an old view, since its watches lag (stale); it misses a change for good, since its watches end
//! and it lists once that is over (unobserved). May not do anything itself: `plan_run` plays it.

use oarlock_bed::faults::{Fault, Killer, Then, When};
use oarlock_sim::Random;

use super::mode::Mode;
use super::schedule::pick;
use super::script::Plot;

/// The most targets of a plan.
const TARGETS: u64 = 3;
/// For how long watches lag or are gone, in seconds.
const BLIND: u64 = 9;

/// The kinds that a host may be blind to.
const KINDS: [&[&str]; 3] = [&["pods"], &["operationjobs"], &["pods", "operationjobs"]];

/// One plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What it was drawn from.
    pub seed: u64,
    /// How pods are replaced.
    pub mode: Mode,
    /// How the job goes.
    pub plot: Plot,
    /// How many pods it replaces.
    pub targets: usize,
    /// What happens.
    pub pattern: Pattern,
}

/// What happens to the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// It dies, and another process of its name finds what it left.
    Intermediate {
        /// Where it dies, in the order of the writes.
        deaths: Vec<Death>,
    },
    /// Its watches of some kinds bring nothing for a while, and then everything.
    Stale(Blind),
    /// Its watches of some kinds end, and what happens before it can list anew is never told.
    Unobserved(Blind),
}

/// One death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    /// Number of the write, from one.
    pub at: u64,
    /// The moment within it.
    pub moment: Moment,
}

/// The moment within a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The server has not seen it.
    BeforeSend,
    /// The server has done it, and the host does not know.
    AfterCommit,
    /// The host has read the reply.
    AfterReply,
}

/// A while in which the host does not see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blind {
    /// The write at which it begins.
    pub at: u64,
    /// What it does not see.
    pub kinds: Vec<String>,
    /// How long that lasts, in seconds.
    pub seconds: u64,
    /// Whether the host dies in the middle of it.
    pub dies: bool,
}

/// The jobs of plans, and how many writes each makes at least for a target.
const JOBS: [(Mode, Plot, u64); 8] = [
    (Mode::CollaSet, Plot::Success, 4),
    (Mode::Evict, Plot::Success, 2),
    (Mode::EvictSameName, Plot::Success, 2),
    (Mode::Evict, Plot::Missing, 2),
    (Mode::CollaSet, Plot::Bounded, 4),
    (Mode::Evict, Plot::Bounded, 2),
    (Mode::CollaSet, Plot::Deleted { at: 0 }, 4),
    (Mode::Evict, Plot::Deleted { at: 0 }, 2),
];

impl Plan {
    /// The plan of a seed. Three seeds in a row have three patterns.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        let mut random = Random::seeded(seed);
        let (mode, plot, writes) = pick(&mut random, (Mode::Evict, Plot::Success, 2), &JOBS);
        let targets = 1 + random.up_to(TARGETS - 1);
        // What is written once for the job, and what for each target.
        let writes = 4 + writes * targets;
        let plot = match plot {
            Plot::Deleted { .. } => Plot::Deleted { at: 1 + random.up_to(writes - 1) },
            plot => plot,
        };
        let pattern = match seed % 3 {
            0 => Pattern::Intermediate { deaths: deaths(&mut random, writes) },
            1 => Pattern::Stale(blind(&mut random, writes)),
            _ => Pattern::Unobserved(blind(&mut random, writes)),
        };
        Self { seed, mode, plot, targets: usize::try_from(targets).unwrap_or(1), pattern }
    }

    /// Its name, which is one of a namespace too.
    #[must_use]
    pub fn title(&self) -> String {
        format!("{}-{}", self.pattern.name(), self.seed)
    }

    /// The deaths, as faults.
    #[must_use]
    pub fn faults(&self, killer: &Killer) -> Vec<Fault> {
        let Pattern::Intermediate { deaths } = &self.pattern else { return Vec::new() };
        let fault = |death: &Death| Fault { at: death.at, when: death.moment.when(), then: Then::Kill(killer.clone()) };
        deaths.iter().map(fault).collect()
    }
}

impl Pattern {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Intermediate { .. } => "intermediate",
            Self::Stale(_) => "stale",
            Self::Unobserved(_) => "unobserved",
        }
    }

    /// The while in which the host does not see.
    #[must_use]
    pub fn blind(&self) -> Option<&Blind> {
        match self {
            Self::Intermediate { .. } => None,
            Self::Stale(blind) | Self::Unobserved(blind) => Some(blind),
        }
    }

    /// The write at which something happens first.
    #[must_use]
    pub fn begins_at(&self) -> u64 {
        let deaths =
            || if let Self::Intermediate { deaths } = self { deaths.first().map(|death| death.at) } else { None };
        self.blind().map(|blind| blind.at).or_else(deaths).unwrap_or(0)
    }
}

impl Moment {
    const ALL: [Self; 3] = [Self::BeforeSend, Self::AfterCommit, Self::AfterReply];

    fn when(self) -> When {
        match self {
            Self::BeforeSend => When::BeforeSend,
            Self::AfterCommit => When::AfterCommit,
            Self::AfterReply => When::AfterReply,
        }
    }
}

/// One to three deaths, at writes of their own.
fn deaths(random: &mut Random, writes: u64) -> Vec<Death> {
    let count = 1 + random.up_to(2);
    let drawn = (0..count).map(|_| 1 + random.up_to(writes - 1)).collect::<std::collections::BTreeSet<_>>();
    let moment = |random: &mut Random| pick(random, Moment::AfterCommit, &Moment::ALL);
    drawn.into_iter().map(|at| Death { at, moment: moment(random) }).collect()
}

fn blind(random: &mut Random, writes: u64) -> Blind {
    let kinds = pick::<&[&str]>(random, &["pods"], &KINDS).iter().map(|kind| (*kind).to_owned()).collect();
    Blind { at: 1 + random.up_to(writes - 1), kinds, seconds: 2 + random.up_to(BLIND - 2), dies: random.up_to(3) == 0 }
}
