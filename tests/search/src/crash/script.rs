//! The scripts of runs: the job, and the troubles.
//!
//! Takes nothing; yields data that a run plays. May not do anything itself.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use oarlock::controller::RESYNC;
use oarlock_sim::Delays;
use oarlock_support::faults::{Fault, Then, When};
use serde_json::{Value, json};

use crate::crash::Outcome;
use oarlock_scenarios::host_requests::Lives;
use oarlock_scenarios::mode::Mode;
use oarlock_scenarios::variant::Variant;

/// A time in which the simulated cluster finishes all its work after a kill of the host.
const LONG: Duration = Duration::from_secs(5);
/// A time longer than the lease of a host.
pub(super) const FAILOVER: Duration = Duration::from_secs(20);
/// The deadline of targets whose new pods never serve. The new pods exist long before it.
const DEADLINE: u64 = 20;

/// The course of a job without troubles between host and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plot {
    /// The job replaces all pods.
    Success,
    /// The job has a further target that does not exist.
    Missing,
    /// No new pod ever serves, and each target ends by its deadline.
    NeverServes,
    /// At most two targets are in flight at once. The first target is a pod without a controller, and both of its attempts fail.
    Bounded,
    /// The job is a dry run. It has a further target, a pod without a controller.
    DryRun,
    /// A user deletes the job at this write.
    Deleted {
        /// The number of the write, from one.
        at: u64,
    },
    /// Before the first write to a pod arrives, the pod is deleted and created again under its name.
    Namesake,
    /// The host that follows a killed host has another name and waits for the lease.
    Failover,
}

/// The name of a target that does not exist.
pub const NOBODY: &str = "nobody";
/// The name of a target without a controller, which no controller would replace.
pub const BARE: &str = "bare";
/// The number of targets of a bounded job that are in flight at once.
const PARALLELISM: usize = 2;

impl Plot {
    /// Returns the fields of the spec beside its targets.
    #[must_use]
    pub fn spec(self) -> Value {
        match self {
            Self::NeverServes => json!({"activeDeadlineSeconds": DEADLINE}),
            Self::Bounded => json!({"parallelism": PARALLELISM, "retryPolicy": {"limit": 1, "backoffSeconds": 2}}),
            Self::DryRun => json!({"dryRun": true, "parallelism": PARALLELISM, "retryPolicy": {"limit": 1}}),
            _ => json!({}),
        }
    }

    /// Returns true if the first target is a pod without a controller.
    #[must_use]
    pub fn has_a_bare_pod(self) -> bool {
        matches!(self, Self::Bounded | Self::DryRun)
    }

    /// Returns the names of the targets for these pods.
    #[must_use]
    pub fn names(self, pods: &[(String, String)]) -> Vec<String> {
        let nobody = (self == Self::Missing).then(|| NOBODY.to_owned());
        let bare = self.has_a_bare_pod().then(|| BARE.to_owned());
        bare.into_iter().chain(pods.iter().map(|(name, _)| name.clone())).chain(nobody).collect()
    }
}

/// The longest time of a request on its way, in seconds: half a minute less than an API server works on a request.
pub const ASTRAY: u64 = 30;

/// The kinds of trouble at a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The host is killed.
    Kill(When),
    /// The server commits the write, and the host's connection breaks.
    LostReply,
    /// The server commits the write, and the host gets a timeout.
    TimedOut,
    /// The server never receives the write, and the host gets a conflict.
    Conflict,
    /// The server never receives the write, and the host gets "too many requests".
    Busy,
    /// The server commits the write, and the host gets an internal error.
    Broken,
    /// The write arrives after this many seconds.
    Slow(u64),
    /// The host never gets an answer, and the write arrives after this many seconds.
    Astray(u64),
}

impl Kind {
    /// The kinds of a sweep, which are those without a time.
    pub const ALL: [Self; 7] = [
        Self::Kill(When::BeforeSend),
        Self::Kill(When::AfterCommit),
        Self::Kill(When::AfterReply),
        Self::LostReply,
        Self::TimedOut,
        Self::Conflict,
        Self::Busy,
    ];

    /// Returns the name of the kind, without its numbers.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Slow(_) => "Slow".to_owned(),
            Self::Astray(_) => "Astray".to_owned(),
            kind => format!("{kind:?}"),
        }
    }

    /// Returns the fault of this kind. `killer` kills the host.
    #[must_use]
    pub fn fault(self, at: u64, killer: oarlock_support::faults::Killer) -> Fault {
        let (when, then) = match self {
            Self::Kill(when) => (when, Then::Kill(killer)),
            Self::LostReply => (When::AfterCommit, Then::DropConnection),
            Self::TimedOut => (When::AfterCommit, Then::Refuse(StatusCode::GATEWAY_TIMEOUT)),
            Self::Conflict => (When::BeforeSend, Then::Refuse(StatusCode::CONFLICT)),
            Self::Busy => (When::BeforeSend, Then::Refuse(StatusCode::TOO_MANY_REQUESTS)),
            Self::Broken => (When::AfterCommit, Then::Refuse(StatusCode::INTERNAL_SERVER_ERROR)),
            Self::Slow(seconds) => (When::BeforeSend, Then::Delay(Duration::from_secs(seconds))),
            Self::Astray(seconds) => (When::BeforeSend, Then::Late(Duration::from_secs(seconds))),
        };
        Fault { at, when, then }
    }
}

/// A trouble at one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The number of the write, from one.
    pub at: u64,
    /// The kind of trouble.
    pub kind: Kind,
}

impl Trouble {
    /// Returns the fault for the connection between host and server.
    #[must_use]
    pub fn fault(self, lives: &Lives) -> Fault {
        self.kind.fault(self.at, lives.killer())
    }

    /// Returns the time by which the trouble delays the last writes of an ended job. Events are sent one after the other, and the host
    /// gives up a lost event after ten seconds. The host writes the released targets after ten times the duration of its last status write.
    #[must_use]
    pub fn holds_up(self) -> Duration {
        match self.kind {
            Kind::Slow(seconds) => Duration::from_secs(11 * seconds),
            Kind::Astray(_) => Duration::from_secs(11),
            _ => Duration::ZERO,
        }
    }

    /// Returns the time without a host after a kill: alternately zero and enough for the cluster to finish its work.
    #[must_use]
    pub fn down(self) -> Duration {
        let turn = self.at / 2 + u64::from(self.kind == Kind::Kill(When::AfterCommit));
        if turn.is_multiple_of(2) { Duration::ZERO } else { LONG }
    }
}

/// The script of a run.
#[derive(Clone)]
pub struct Script {
    /// The action and its targets.
    pub mode: Mode,
    /// The number of targets.
    pub targets: usize,
    /// The course of the job.
    pub plot: Plot,
    /// The troubles, in the order of the writes.
    pub troubles: Vec<Trouble>,
    /// The delays of the host: its requests overtake each other, and its watches lag.
    pub delays: Option<Delays>,
    /// The seed of the simulated times and names.
    pub seed: u64,
    /// True if the run prints everything that happened.
    pub tells: bool,
    /// A known-bad host. `None` for a correct host.
    pub variant: Option<Arc<dyn Variant>>,
}

impl Script {
    /// Returns a script without any trouble.
    #[must_use]
    pub fn of(mode: Mode, plot: Plot, targets: usize) -> Self {
        Self { mode, targets, plot, troubles: Vec::new(), delays: None, seed: 1, tells: false, variant: None }
    }

    /// Returns the time by which troubles delay the last writes of the ended job. The host deletes a late pod or output of a
    /// task at the next resync, or one resync later if its job is gone too.
    #[must_use]
    pub fn holds_up(&self, has_late_object: bool) -> Duration {
        let anew = if has_late_object { RESYNC * 2 + Duration::from_secs(ASTRAY) } else { Duration::ZERO };
        // Another leader takes over only after the lease of the killed host has expired.
        let leader = if self.plot == Plot::Failover { FAILOVER } else { Duration::ZERO };
        anew + leader + self.troubles.iter().map(|trouble| trouble.holds_up()).sum::<Duration>()
    }

    /// Returns the title of the run for a reader.
    #[must_use]
    pub fn title(&self) -> String {
        let Self { mode, targets, plot, troubles, delays, .. } = self;
        format!("{mode:?} of {targets}, {plot:?}{}, {troubles:?}", late(*delays))
    }
}

/// Returns the delays for a reader.
pub(super) fn late(delays: Option<Delays>) -> String {
    delays.map_or(String::new(), |delays| format!(", late by {}", delays.seed))
}

/// A run that a sweep can play.
pub trait Scripted: Clone + Send + Sync {
    /// Plays the script in its own runtime.
    ///
    /// # Errors
    /// If the run cannot be set up. Faults of the host are in the outcome, not in the error.
    fn run(self) -> anyhow::Result<Outcome>;

    /// Returns the title of the run for a reader.
    fn title(&self) -> String;

    /// Returns the part of the title that other runs of a sweep share.
    fn subject(&self) -> String;

    /// Returns the troubles.
    fn troubles(&self) -> &[Trouble];

    /// Returns true if each host has its own name. Only kills matter then.
    fn fails_over(&self) -> bool;

    /// Returns the same run with these troubles and delays.
    #[must_use]
    fn disturbed(&self, troubles: Vec<Trouble>, delays: Option<Delays>) -> Self;

    /// Returns the same run with a known-bad host.
    #[must_use]
    fn with_variant(&self, variant: Arc<dyn Variant>) -> Self;
}

impl Scripted for Script {
    fn run(self) -> anyhow::Result<Outcome> {
        super::run(self)
    }

    fn title(&self) -> String {
        Self::title(self)
    }

    fn subject(&self) -> String {
        let plot = format!("{:?}", self.plot);
        let plot = plot.split_whitespace().next().unwrap_or_default();
        let late = if self.delays.is_some() { ", late" } else { "" };
        format!("{:?}, {plot}{late}", self.mode)
    }

    fn troubles(&self) -> &[Trouble] {
        &self.troubles
    }

    fn fails_over(&self) -> bool {
        self.plot == Plot::Failover
    }

    fn disturbed(&self, troubles: Vec<Trouble>, delays: Option<Delays>) -> Self {
        Self { troubles, delays, ..self.clone() }
    }

    fn with_variant(&self, variant: Arc<dyn Variant>) -> Self {
        Self { variant: Some(variant), ..self.clone() }
    }
}
