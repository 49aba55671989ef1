//! What happens in a run: which job, and what goes wrong.
//!
//! Takes nothing; yields data that a stage plays. May not do anything itself.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use oarlock::controller::RESYNC;
use oarlock_bed::faults::{Fault, Then, When};
use oarlock_sim::Delays;
use serde_json::{Value, json};

use crate::crash::Outcome;
use crate::crash::line::Lives;
use crate::crash::mode::Mode;
use crate::variants::Variant;

/// Longer than the world needs to finish whatever it was doing when the host was killed.
const LONG: Duration = Duration::from_secs(5);
/// Longer than the lease of a host.
pub(super) const FAILOVER: Duration = Duration::from_secs(20);
/// Deadline of targets whose new pods never serve: they have been created long before.
const DEADLINE: u64 = 20;

/// How the job goes where nothing goes wrong between host and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plot {
    /// All pods are replaced.
    Success,
    /// One more target does not exist.
    Missing,
    /// No new pod ever serves, and each target ends by its deadline.
    NeverServes,
    /// Two targets are in flight at once, and the first of all is a pod of nobody, which each of its two attempts fails at.
    Bounded,
    /// It is a dry run, of one target more, which is a pod of nobody.
    DryRun,
    /// Somebody deletes the job at this write.
    Deleted {
        /// Number of the write, from one.
        at: u64,
    },
    /// Before the first write to a pod arrives, somebody makes that pod anew under its name.
    Namesake,
    /// Whoever comes after a host that was killed has another name, and waits for the lease.
    Failover,
}

/// A target that does not exist.
pub const NOBODY: &str = "nobody";
/// A target without a controller: nobody would replace it.
pub const BARE: &str = "bare";
/// Targets of a bounded job that are in flight at once.
const PARALLELISM: usize = 2;

impl Plot {
    /// What the spec says beyond its targets.
    #[must_use]
    pub fn spec(self) -> Value {
        match self {
            Self::NeverServes => json!({"activeDeadlineSeconds": DEADLINE}),
            Self::Bounded => json!({"parallelism": PARALLELISM, "retryPolicy": {"limit": 1, "backoffSeconds": 2}}),
            Self::DryRun => json!({"dryRun": true, "parallelism": PARALLELISM, "retryPolicy": {"limit": 1}}),
            _ => json!({}),
        }
    }

    /// Whether the first target is a pod of nobody.
    #[must_use]
    pub fn has_a_bare_pod(self) -> bool {
        matches!(self, Self::Bounded | Self::DryRun)
    }

    /// The names that the job gets for its pods.
    #[must_use]
    pub fn names(self, pods: &[(String, String)]) -> Vec<String> {
        let nobody = (self == Self::Missing).then(|| NOBODY.to_owned());
        let bare = self.has_a_bare_pod().then(|| BARE.to_owned());
        bare.into_iter().chain(pods.iter().map(|(name, _)| name.clone())).chain(nobody).collect()
    }
}

/// How long a request may be under way at most, in seconds: half a minute less than an API server works on one.
pub const ASTRAY: u64 = 30;

/// What goes wrong with a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The host is killed.
    Kill(When),
    /// The server does it, and the host sees a broken connection.
    LostReply,
    /// The server does it, and the host hears that it took too long.
    TimedOut,
    /// The server never sees it, and the host hears that its view is old.
    Conflict,
    /// The server never sees it, and the host hears that it is too busy.
    Busy,
    /// The server does it, and the host hears of an error.
    Broken,
    /// It takes so many seconds to arrive.
    Slow(u64),
    /// The host never hears of it, and it arrives after so many seconds.
    Astray(u64),
}

impl Kind {
    /// Those of a sweep: what may follow at once.
    pub const ALL: [Self; 7] = [
        Self::Kill(When::BeforeSend),
        Self::Kill(When::AfterCommit),
        Self::Kill(When::AfterReply),
        Self::LostReply,
        Self::TimedOut,
        Self::Conflict,
        Self::Busy,
    ];

    /// What a reader calls it, without its numbers.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Slow(_) => "Slow".to_owned(),
            Self::Astray(_) => "Astray".to_owned(),
            kind => format!("{kind:?}"),
        }
    }

    /// The fault that it is, where `killer` kills the host.
    #[must_use]
    pub fn fault(self, at: u64, killer: oarlock_bed::faults::Killer) -> Fault {
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

/// One thing that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Number of the write, from one.
    pub at: u64,
    /// What.
    pub kind: Kind,
}

impl Trouble {
    /// The fault that it is to the line between host and server.
    #[must_use]
    pub fn fault(self, lives: &Lives) -> Fault {
        self.kind.fault(self.at, lives.killer())
    }

    /// How much later the last writes of an ended job come: events are sent one after the other, and one that goes astray is
    /// given up after ten seconds; the status that says that targets are released comes ten times later than the last one took.
    #[must_use]
    pub fn holds_up(self) -> Duration {
        match self.kind {
            Kind::Slow(seconds) => Duration::from_secs(11 * seconds),
            Kind::Astray(_) => Duration::from_secs(11),
            _ => Duration::ZERO,
        }
    }

    /// How long nobody is there after a kill: every other time until everything has happened.
    #[must_use]
    pub fn down(self) -> Duration {
        let turn = self.at / 2 + u64::from(self.kind == Kind::Kill(When::AfterCommit));
        if turn.is_multiple_of(2) { Duration::ZERO } else { LONG }
    }
}

/// What happens.
#[derive(Clone)]
pub struct Script {
    /// How pods are replaced.
    pub mode: Mode,
    /// How many.
    pub targets: usize,
    /// How the job goes.
    pub plot: Plot,
    /// What goes wrong, in the order of the writes.
    pub troubles: Vec<Trouble>,
    /// How late everything is for the host: its requests overtake each other, and its watches lag.
    pub delays: Option<Delays>,
    /// What the world draws its times and names from.
    pub seed: u64,
    /// Whether it prints all that happened.
    pub tells: bool,
    /// A known-bad host; one that is right otherwise.
    pub variant: Option<Arc<dyn Variant>>,
}

impl Script {
    /// A run without any trouble.
    #[must_use]
    pub fn of(mode: Mode, plot: Plot, targets: usize) -> Self {
        Self { mode, targets, plot, troubles: Vec::new(), delays: None, seed: 1, tells: false, variant: None }
    }

    /// How much later the last writes for its ended job come than where nothing goes wrong. A pod or an output of a task that
    /// was asked for long ago goes when everything is read anew, and where its job is gone too, the time after that.
    #[must_use]
    pub fn holds_up(&self, has_late_object: bool) -> Duration {
        let anew = if has_late_object { RESYNC * 2 + Duration::from_secs(ASTRAY) } else { Duration::ZERO };
        // Another leader comes once the lease of the killed one has run out.
        let leader = if self.plot == Plot::Failover { FAILOVER } else { Duration::ZERO };
        anew + leader + self.troubles.iter().map(|trouble| trouble.holds_up()).sum::<Duration>()
    }

    /// What a reader calls it.
    #[must_use]
    pub fn title(&self) -> String {
        let Self { mode, targets, plot, troubles, delays, .. } = self;
        format!("{mode:?} of {targets}, {plot:?}{}, {troubles:?}", late(*delays))
    }
}

/// How late everything is, for a reader.
pub(super) fn late(delays: Option<Delays>) -> String {
    delays.map_or(String::new(), |delays| format!(", late by {}", delays.seed))
}

/// A run that a sweep can play.
pub trait Scripted: Clone + Send + Sync {
    /// Plays it in a runtime of its own.
    ///
    /// # Errors
    /// If the stage cannot be set; what the host does wrong is in the outcome.
    fn run(self) -> anyhow::Result<Outcome>;

    /// What a reader calls it.
    fn title(&self) -> String;

    /// The part of that which it has in common with other runs of a sweep.
    fn subject(&self) -> String;

    /// What goes wrong.
    fn troubles(&self) -> &[Trouble];

    /// Whether each host has a name of its own: then only kills show anything new.
    fn fails_over(&self) -> bool;

    /// The same run with these troubles, and as late.
    #[must_use]
    fn disturbed(&self, troubles: Vec<Trouble>, delays: Option<Delays>) -> Self;

    /// The same run with a known-bad host.
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
