//! Sets and counts of targets by progress.

use std::collections::BTreeSet;

use crate::operation_job::state::{Progress, TargetState, indexes};

/// Targets by progress. The host updates the sets as targets move, so that no count walks over all targets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ProgressSets {
    /// Targets that have not started.
    pub pending: BTreeSet<u32>,
    /// Targets that have started and have not ended.
    pub processing: BTreeSet<u32>,
    /// Targets that have succeeded.
    pub succeeded: BTreeSet<u32>,
    /// Targets that have failed.
    pub failed: BTreeSet<u32>,
}

impl ProgressSets {
    /// Returns the sets of these targets.
    pub fn of(targets: &[TargetState]) -> Self {
        let with = |progress| indexes(targets, |target| target.progress == progress);
        Self {
            pending: with(Progress::Pending),
            processing: with(Progress::Processing),
            succeeded: with(Progress::Succeeded),
            failed: with(Progress::Failed),
        }
    }

    /// Returns the targets with one progress.
    pub fn of_progress(&self, progress: Progress) -> &BTreeSet<u32> {
        match progress {
            Progress::Pending => &self.pending,
            Progress::Processing => &self.processing,
            Progress::Succeeded => &self.succeeded,
            Progress::Failed => &self.failed,
        }
    }

    /// Moves a target to the set of its progress.
    pub fn put(&mut self, index: u32, progress: Progress) {
        let sets = [
            (&mut self.pending, Progress::Pending),
            (&mut self.processing, Progress::Processing),
            (&mut self.succeeded, Progress::Succeeded),
            (&mut self.failed, Progress::Failed),
        ];
        for (set, of) in sets {
            if of == progress {
                set.insert(index);
            } else {
                set.remove(&index);
            }
        }
    }

    /// Returns the number of targets that have ended.
    pub fn ended(&self) -> usize {
        self.succeeded.len() + self.failed.len()
    }

    /// Returns the number of targets by progress.
    pub fn counts(&self) -> Counts {
        let [pending, processing, succeeded, failed] =
            [&self.pending, &self.processing, &self.succeeded, &self.failed].map(BTreeSet::len);
        Counts { total: pending + processing + succeeded + failed, pending, processing, succeeded, failed }
    }
}

/// Returns the count with its noun: `1 target`, `2 targets`.
pub fn targets(count: usize) -> String {
    if count == 1 { "1 target".to_owned() } else { format!("{count} targets") }
}

/// Numbers of targets by progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counts {
    /// Number of all targets.
    pub total: usize,
    /// Number of targets that have not started.
    pub pending: usize,
    /// Number of targets in flight.
    pub processing: usize,
    /// Number of targets that have succeeded.
    pub succeeded: usize,
    /// Number of targets that have failed.
    pub failed: usize,
}

impl Counts {
    /// Counts one more target.
    pub fn add(&mut self, progress: Progress) {
        self.total += 1;
        match progress {
            Progress::Pending => self.pending += 1,
            Progress::Processing => self.processing += 1,
            Progress::Succeeded => self.succeeded += 1,
            Progress::Failed => self.failed += 1,
        }
    }

    /// Returns the number of targets that have ended.
    pub fn ended(&self) -> usize {
        self.succeeded + self.failed
    }

    /// Returns the progress of the job.
    pub fn progress(&self) -> Progress {
        match self {
            _ if self.total == self.pending => Progress::Pending,
            _ if self.pending + self.processing > 0 => Progress::Processing,
            _ if self.failed > 0 => Progress::Failed,
            _ => Progress::Succeeded,
        }
    }
}
