//! Failures between the host and its cluster, as a test scripts them.

use oarlock_core::requests::live_reads::LiveRead;
use oarlock_core::requests::writes::{Stopped, Write};

/// The outcome of a write.
#[derive(Clone, Debug)]
pub(crate) enum Fate {
    /// The cluster applies the write, and the reply arrives.
    Done,
    /// The cluster does not apply the write.
    Stopped(Stopped),
    /// The cluster applies the write, and the reply is lost.
    Lost,
}

/// The outcome of a live read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// The cluster answers the read.
    Answered,
    /// No answer arrives.
    Silent,
    /// The cluster refuses the read.
    Refused,
}

/// The fate of a pod whose eviction was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Going {
    /// The pod does not change yet.
    Stays,
    /// The pod terminates with this grace period.
    Terminates(i64),
    /// The pod is gone at once.
    Gone,
}

/// The failures between the host and its cluster.
pub(crate) trait Weather {
    /// Returns the outcome of a write to a target or to the job itself.
    fn write(&mut self, _: &Write) -> Fate {
        Fate::Done
    }

    /// Returns true if a round's record is written.
    fn records(&mut self) -> bool {
        true
    }

    /// Returns true if the plugin still serves when it is called after its lookup.
    fn plugin(&mut self) -> bool {
        true
    }

    /// Returns the outcome of a live read.
    fn look(&mut self, _: &LiveRead) -> Look {
        Look::Answered
    }

    /// Returns the fate of a pod whose eviction was accepted.
    fn goes(&mut self) -> Going {
        Going::Stays
    }

    /// Returns the fate of a task's pod that is deleted.
    fn is_ended(&mut self) -> Going {
        Going::Gone
    }
}

/// The weather without failures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fine;

impl Weather for Fine {}
