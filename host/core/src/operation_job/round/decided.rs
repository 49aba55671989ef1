//! Decisions between a round and its record, and the changes that a record made durable. Plain data.

use std::collections::{BTreeMap, BTreeSet};

use oarlock_api::OperationJobStatus;

use crate::operation_job::progress::Counts;
use crate::operation_job::round::memory::{Decisions, JobMemory, RoundWork, StoredState, Targets};
use crate::operation_job::state::{Progress, TargetState};
use crate::requests::writes::{EventNote, MadeAs, Priority, StoredOperationRecord, Write};

/// A decision about a target that is not durable yet, with the writes that follow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Decided {
    /// The state to record.
    pub state: TargetState,
    /// The writes that follow the record, in order.
    pub writes: Vec<Write>,
    /// The writes that the host makes as the account of the plugin.
    pub made_as: Option<MadeAs>,
    /// The events that follow the record.
    pub events: Vec<EventNote>,
    /// Priority of the writes.
    pub priority: Priority,
}

/// The durable summary of a job, which the events about the job as a whole report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct JobSummary {
    /// The counts of targets.
    pub counts: Counts,
    /// True if the end of the job is stored.
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
    /// True if the job is being deleted.
    pub deleting: bool,
}

/// The changes of the memory once a record is durable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Commit {
    /// The targets that the round worked on.
    pub worked_on: Vec<u32>,
    /// The decisions about targets.
    pub targets: BTreeMap<u32, Decided>,
    /// The job's status as it is stored now.
    pub status: Option<OperationJobStatus>,
    /// True if the record added the finalizer to the job.
    pub finalizer: bool,
    /// The records that were written, as they are stored now.
    pub operation_records: BTreeMap<u32, StoredOperationRecord>,
    /// The events that follow the record.
    pub events: Vec<EventNote>,
}

impl Decisions {
    /// Stores a decision, and replaces any other decision about the target.
    pub fn decide(&mut self, index: u32, decided: Decided, targets: &mut Targets) {
        self.latest.put(index, decided.state.progress);
        targets.availability.mark_uncertain(index);
        if decided.writes.is_empty() {
            self.urgent.remove(&index);
        } else {
            self.urgent.insert(index);
        }
        self.decided.insert(index, decided);
    }

    /// Removes a decision about a target.
    pub fn withdraw(&mut self, index: u32, stored: &StoredState, targets: &mut Targets) {
        if self.decided.remove(&index).is_some() {
            self.urgent.remove(&index);
            if let Some(stored) = stored.state.target(index) {
                self.latest.put(index, stored.progress);
            }
            targets.availability.mark_uncertain(index);
        }
    }

    /// Removes the starts and further attempts that are not recorded yet, because the spec that allowed them has
    /// changed or the job is paused. Returns their targets.
    pub(super) fn withdraw_starts(
        &mut self,
        stored: &StoredState,
        work: &mut RoundWork,
        targets: &mut Targets,
    ) -> BTreeSet<u32> {
        let begins = |(index, decided): (&u32, &Decided)| {
            let stored = stored.state.target(*index)?;
            let waits = stored.progress == Progress::Pending || stored.between_attempts();
            let goes = decided.state.progress == Progress::Processing && !decided.state.between_attempts();
            (waits && goes).then_some(*index)
        };
        let starts: BTreeSet<u32> = self.decided.iter().filter_map(begins).collect();
        for index in &starts {
            self.withdraw(*index, stored, targets);
            self.after_record.remove(index);
            work.dirty.insert(*index);
        }
        starts
    }
}

impl JobMemory {
    /// Drops decisions that were not recorded. The next round reads the job again and decides again.
    pub fn drop_decisions(&mut self) {
        self.decisions.unfreeze(&mut self.stored, &mut self.targets);
        self.decisions.decided.clear();
        self.decisions.urgent.clear();
        self.decisions.waits_for_starts = false;
        self.decisions.latest = self.stored.durable.clone();
        self.stored.reload = true;
        self.stored.operation_records.read_again();
    }
}
