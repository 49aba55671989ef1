//! Decisions on the way from a round to its record, and what a record made durable. Plain data.

use std::collections::BTreeMap;

use oarlock_api::OperationJobStatus;

use crate::cluster::writes::{EventNote, Priority, StoredShard, Write};
use crate::job::progress::Counts;
use crate::job::state::TargetState;

/// A decision about a target that is not durable yet, with the writes that follow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Decided {
    /// The state to record.
    pub state: TargetState,
    /// The writes that follow the record, in order.
    pub writes: Vec<Write>,
    /// The events that follow.
    pub events: Vec<EventNote>,
    /// Priority of the writes.
    pub priority: Priority,
}

/// The durable state of a job that the events about it as a whole report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Standing {
    /// The numbers of targets.
    pub counts: Counts,
    /// Its end is stored.
    pub ended: bool,
}

/// The version of the job that a memory reflects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct StoredVersion {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// True if it is being deleted.
    pub deleting: bool,
}

/// The changes of the memory once a record is durable.
#[derive(Clone, Debug, Default)]
pub struct Commit {
    /// The targets that the round worked on.
    pub turned: Vec<u32>,
    /// The decisions.
    pub targets: BTreeMap<u32, Decided>,
    /// The job's status.
    pub status: Option<OperationJobStatus>,
    /// The finalizer was added to the job.
    pub finalizer: bool,
    /// The shards that were written, as they are stored now.
    pub shards: BTreeMap<u32, StoredShard>,
    /// The events that follow.
    pub events: Vec<EventNote>,
}
