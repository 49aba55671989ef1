//! Targets by progress, with their numbers.

use std::collections::BTreeSet;

use crate::job::state::{Progress, TargetState, indexes};

/// Targets by progress. Updated as targets move, so that no count has to walk over all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ProgressSets {
    /// Not started.
    pub pending: BTreeSet<u32>,
    /// Started, not ended.
    pub processing: BTreeSet<u32>,
    /// Succeeded.
    pub succeeded: BTreeSet<u32>,
    /// Failed.
    pub failed: BTreeSet<u32>,
}

impl ProgressSets {
    /// The sets of these targets.
    pub fn of(targets: &[TargetState]) -> Self {
        let with = |progress| indexes(targets, |target| target.progress == progress);
        Self {
            pending: with(Progress::Pending),
            processing: with(Progress::Processing),
            succeeded: with(Progress::Succeeded),
            failed: with(Progress::Failed),
        }
    }

    /// The targets of one progress.
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

    /// The number of targets that have ended.
    pub fn ended(&self) -> usize {
        self.succeeded.len() + self.failed.len()
    }

    /// The numbers.
    pub fn counts(&self) -> Counts {
        let [pending, processing, succeeded, failed] =
            [&self.pending, &self.processing, &self.succeeded, &self.failed].map(BTreeSet::len);
        Counts { total: pending + processing + succeeded + failed, pending, processing, succeeded, failed }
    }
}

/// `1 target`, `2 targets`.
pub fn targets(count: usize) -> String {
    if count == 1 { "1 target".to_owned() } else { format!("{count} targets") }
}

/// Numbers of targets by progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counts {
    /// All.
    pub total: usize,
    /// Not started.
    pub pending: usize,
    /// In flight.
    pub processing: usize,
    /// Succeeded.
    pub succeeded: usize,
    /// Failed.
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

    /// Targets that have ended.
    pub fn ended(&self) -> usize {
        self.succeeded + self.failed
    }

    /// Progress of the job.
    pub fn progress(&self) -> Progress {
        match self {
            _ if self.total == self.pending => Progress::Pending,
            _ if self.pending + self.processing > 0 => Progress::Processing,
            _ if self.failed > 0 => Progress::Failed,
            _ => Progress::Succeeded,
        }
    }
}
