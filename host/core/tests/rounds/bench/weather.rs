//! What goes wrong between the host and its cluster, as a test says it.

use oarlock_core::cluster::live_reads::LiveRead;
use oarlock_core::cluster::writes::{Stopped, Write};

/// What becomes of a write.
#[derive(Clone, Debug)]
pub(crate) enum Fate {
    /// It is done, and the reply comes.
    Done,
    /// It is not done.
    Stopped(Stopped),
    /// It is done, and the reply is lost.
    Lost,
}

/// What becomes of a live read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// It is answered.
    Answered,
    /// No answer comes.
    Silent,
    /// It is refused.
    Refused,
}

/// What becomes of a pod whose eviction was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Going {
    /// Nothing is seen of it.
    Stays,
    /// It has this grace period.
    Terminates(i64),
    /// It is gone at once.
    Gone,
}

/// What goes wrong between the host and its cluster.
pub(crate) trait Weather {
    /// What becomes of a write to a target or to the job itself.
    fn write(&mut self, _: &Write) -> Fate {
        Fate::Done
    }

    /// Whether a round's record is written.
    fn records(&mut self) -> bool {
        true
    }

    /// Whether the plugin that served when it was looked up is still there when it is called.
    fn plugin(&mut self) -> bool {
        true
    }

    /// What becomes of a live read.
    fn look(&mut self, _: &LiveRead) -> Look {
        Look::Answered
    }

    /// What becomes of a pod whose eviction was accepted.
    fn goes(&mut self) -> Going {
        Going::Stays
    }

    /// What becomes of the pod of a task that is deleted.
    fn is_ended(&mut self) -> Going {
        Going::Gone
    }
}

/// Nothing goes wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fine;

impl Weather for Fine {}
