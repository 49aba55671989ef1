//! What happens in a run: which job, and what goes wrong.
//!
//! Takes nothing; yields data that a stage plays. May not do anything itself.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use oarlock_bed::faults::{Fault, Then, When};
use oarlock_sim::world::SetKey;

use crate::crash::line::Lives;
use crate::rig::Rig;
use crate::variants::Variant;

/// The two ways of Replace, and the workload that each is shown on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The CollaSet `foo` replaces a marked pod.
    CollaSet,
    /// The pods of the Deployment `web` are evicted.
    Evict,
    /// The pods of the StatefulSet `db` are evicted, and come back under their names.
    EvictSameName,
}

impl Mode {
    /// Name of the workload.
    #[must_use]
    pub fn app(self) -> &'static str {
        match self {
            Self::CollaSet => "foo",
            Self::Evict => "web",
            Self::EvictSameName => "db",
        }
    }

    /// Plants the workload.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn plant(self, rig: &Rig, replicas: usize) -> anyhow::Result<SetKey> {
        Ok(match self {
            Self::CollaSet => rig.seedbed.collaset(self.app(), replicas).await?,
            Self::Evict => rig.seedbed.deployment(self.app(), replicas).await?,
            Self::EvictSameName => rig.seedbed.stateful_set(self.app(), replicas).await?,
        })
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug)]
pub enum Trouble {
    /// The host is killed at this write, and nobody is there for some time.
    Crash {
        /// Number of the write, from one.
        at: u64,
        /// The moment within it.
        when: When,
        /// How long no host runs then.
        down: Duration,
    },
    /// The server does this write, and the host sees a broken connection.
    LostReply {
        /// Number of the write, from one.
        at: u64,
    },
    /// The server does this write, and the host hears that it took too long.
    GatewayTimeout {
        /// Number of the write, from one.
        at: u64,
    },
    /// Before the first write to a pod arrives, somebody makes that pod anew under its name.
    Namesake,
    /// New pods take this long until they are ready.
    SlowPods(Duration),
}

/// What happens.
#[derive(Clone)]
pub struct Script {
    /// How pods are replaced.
    pub mode: Mode,
    /// How many.
    pub targets: usize,
    /// What goes wrong, if anything does.
    pub trouble: Option<Trouble>,
    /// The write at which somebody deletes the job.
    pub delete_at: Option<u64>,
    /// A known-bad host; one that is right otherwise.
    pub variant: Option<Arc<dyn Variant>>,
}

impl Trouble {
    /// The fault that it is to the line between host and server.
    #[must_use]
    pub fn fault(self, lives: &Lives) -> Option<Fault> {
        match self {
            Self::Crash { at, when, .. } => Some(Fault { at, when, then: Then::Kill(lives.killer()) }),
            Self::LostReply { at } => Some(Fault { at, when: When::AfterCommit, then: Then::DropConnection }),
            Self::GatewayTimeout { at } => {
                Some(Fault { at, when: When::AfterCommit, then: Then::Refuse(StatusCode::GATEWAY_TIMEOUT) })
            }
            Self::Namesake | Self::SlowPods(_) => None,
        }
    }
}

impl Script {
    /// A run without any trouble.
    #[must_use]
    pub fn of(mode: Mode, targets: usize) -> Self {
        Self { mode, targets, trouble: None, delete_at: None, variant: None }
    }
}
