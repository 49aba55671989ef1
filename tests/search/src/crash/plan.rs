//! Plans: faults that a host must survive. Each plan is drawn from a seed, and the seed replays it.
//!
//! Takes a seed; yields data in one of three patterns. Intermediate: the host dies between two writes and finds half of its
//! work. Stale: the host acts on an old view, because its watches lag. Unobserved: the host never sees a change, because its
//! watches end and it lists after the change is over. May not do anything itself: `plan_run` plays the plan.

use oarlock_sim::Random;
use oarlock_support::faults::{Fault, Killer, Then, When};

use super::schedule::pick;
use super::script::Plot;
use oarlock_scenarios::mode::Mode;

/// The largest number of targets of a plan.
const TARGETS: u64 = 3;
/// The longest time for which watches lag or are cut, in seconds.
const BLIND: u64 = 9;

/// The kinds whose watches a plan may disturb.
const KINDS: [&[&str]; 3] = [&["pods"], &["operationjobs"], &["pods", "operationjobs"]];

/// A plan of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The seed that the plan was drawn from.
    pub seed: u64,
    /// The way in which pods are replaced.
    pub mode: Mode,
    /// The course of the job without faults.
    pub plot: Plot,
    /// The number of pods that the job replaces.
    pub targets: usize,
    /// The faults.
    pub pattern: Pattern,
}

/// The faults of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// The host dies, and another process of its name finds its unfinished work.
    Intermediate {
        /// The deaths, in the order of the writes.
        deaths: Vec<Death>,
    },
    /// The watches of some kinds deliver nothing for a while, and then everything.
    Stale(Blind),
    /// The watches of some kinds end. The host never sees the changes before it can list again.
    Unobserved(Blind),
}

/// A death of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    /// The number of the write, from one.
    pub at: u64,
    /// The moment within the write.
    pub moment: Moment,
}

/// The moments of a death within a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The server has not received the write.
    BeforeSend,
    /// The server has committed the write, and the host does not know it.
    AfterCommit,
    /// The host has read the reply.
    AfterReply,
}

/// A time during which the host's watches deliver nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blind {
    /// The number of the write at which it begins.
    pub at: u64,
    /// The kinds whose watches are disturbed.
    pub kinds: Vec<String>,
    /// The duration in seconds.
    pub seconds: u64,
    /// True if the host dies in the middle of the time.
    pub dies: bool,
}

/// The jobs of plans, with the least number of writes for each target.
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
    /// Returns the plan of a seed. Three consecutive seeds have three different patterns.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        let mut random = Random::seeded(seed);
        let (mode, plot, writes) = pick(&mut random, (Mode::Evict, Plot::Success, 2), &JOBS);
        let targets = 1 + random.up_to(TARGETS - 1);
        // The writes for the job itself, and the writes for each target.
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

    /// Returns the name of the plan, which is also a valid name of a namespace.
    #[must_use]
    pub fn title(&self) -> String {
        format!("{}-{}", self.pattern.name(), self.seed)
    }

    /// Returns the deaths as faults.
    #[must_use]
    pub fn faults(&self, killer: &Killer) -> Vec<Fault> {
        let Pattern::Intermediate { deaths } = &self.pattern else { return Vec::new() };
        let fault = |death: &Death| Fault { at: death.at, when: death.moment.when(), then: Then::Kill(killer.clone()) };
        deaths.iter().map(fault).collect()
    }
}

impl Pattern {
    /// Returns the name of the pattern.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Intermediate { .. } => "intermediate",
            Self::Stale(_) => "stale",
            Self::Unobserved(_) => "unobserved",
        }
    }

    /// Returns the time during which the watches deliver nothing, if the pattern has one.
    #[must_use]
    pub fn blind(&self) -> Option<&Blind> {
        match self {
            Self::Intermediate { .. } => None,
            Self::Stale(blind) | Self::Unobserved(blind) => Some(blind),
        }
    }

    /// Returns the number of the first write with a fault.
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

/// Returns one to three deaths, at most one for each write.
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
