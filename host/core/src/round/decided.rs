//! Decisions on the way from a round to its record, and what a record made durable. Plain data.

use std::collections::{BTreeMap, BTreeSet};

use oarlock_api::OperationJobStatus;

use crate::cluster::writes::{EventNote, Priority, StoredShard, Write};
use crate::job::progress::Counts;
use crate::job::state::{Progress, TargetState};
use crate::round::memory::JobMemory;

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
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
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

impl JobMemory {
    /// Stores a decision, in place of any other about the target.
    pub fn decide(&mut self, index: u32, decided: Decided) {
        self.latest.put(index, decided.state.progress);
        self.availability.doubt(index);
        if decided.writes.is_empty() {
            self.urgent.remove(&index);
        } else {
            self.urgent.insert(index);
        }
        self.decided.insert(index, decided);
    }

    /// Takes back a decision about a target.
    pub fn take_back(&mut self, index: u32) {
        if self.decided.remove(&index).is_some() {
            self.urgent.remove(&index);
            if let Some(stored) = self.state.target(index) {
                self.latest.put(index, stored.progress);
            }
            self.availability.doubt(index);
        }
    }

    /// Takes back the starts, and the further attempts, that are not recorded yet: the spec that allowed them has changed, or
    /// the brakes are on.
    pub(super) fn take_back_starts(&mut self) -> BTreeSet<u32> {
        let begins = |(index, decided): (&u32, &Decided)| {
            let stored = self.state.target(*index)?;
            let waits = stored.progress == Progress::Pending || stored.between_attempts();
            let goes = decided.state.progress == Progress::Processing && !decided.state.between_attempts();
            (waits && goes).then_some(*index)
        };
        let starts: BTreeSet<u32> = self.decided.iter().filter_map(begins).collect();
        for index in &starts {
            self.take_back(*index);
            self.after_record.remove(index);
            self.dirty.insert(*index);
        }
        starts
    }

    /// Drops decisions that were not recorded: the next round reads the job again and decides again.
    pub fn forget_plan(&mut self) {
        self.unfreeze();
        self.decided.clear();
        self.urgent.clear();
        self.waits_for_starts = false;
        self.latest = self.durable.clone();
        self.reload = true;
        self.shards.read_again();
    }
}
