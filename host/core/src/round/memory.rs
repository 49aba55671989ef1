//! What a term of leadership remembers of a job between rounds.
//!
//! Everything here may be lost at any time: it is rebuilt from the stored status, and a round decides the same from an
//! empty memory, only later. Takes what rounds decided and what came of their writes. May not be shared between terms.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_openapi::jiff::Timestamp;
use oarlock_api::{OperationJobStatus, TargetError};

use crate::job::spec::{Invalid, ValidSpec};
use crate::job::state::{JobState, Progress, TargetState};
use crate::plugin::visit::Look;
use crate::round::decide::Commit;

/// What is remembered of one job.
#[derive(Debug, Default)]
pub struct JobMemory {
    /// The version of the job that `state` was read from or written to; `None` before the first round of the term.
    pub version: Option<StoredVersion>,
    /// The status as it was last stored, for telling an own write from somebody else's.
    pub status: Option<OperationJobStatus>,
    /// The records are to be read with the next observation.
    pub wants_records: bool,
    /// The durable state.
    pub state: JobState,
    /// Targets that are decided and not durable yet, as they are to be.
    pub decided: BTreeMap<u32, TargetState>,
    /// Targets that something happened to since they were last visited.
    pub dirty: BTreeSet<u32>,
    /// Targets to visit once what is decided of them is durable.
    pub after_record: BTreeSet<u32>,
    /// When targets want to be visited though nothing happens, earliest first.
    pub timers: BTreeSet<(Timestamp, u32)>,
    /// What is remembered of targets that are in flight.
    pub targets: HashMap<u32, TargetMemory>,
    /// Pending targets, by index.
    pub pending: BTreeSet<u32>,
    /// Targets that are durably in `Processing`.
    pub processing: BTreeSet<u32>,
    /// Targets that owe a release.
    pub releasing: BTreeSet<u32>,
    /// Targets whose last eviction a disruption budget refused.
    pub blocked: BTreeSet<u32>,
    /// Looks for the next round.
    pub looks: BTreeSet<Look>,
    /// Whether this term has raised the job's epoch.
    pub fenced: bool,
    /// When the status was last written, and how long that took in milliseconds.
    pub written: Option<(Timestamp, i64)>,
    /// The last check of the spec, by generation and plugin.
    pub checked: Option<Checked>,
    /// Shards whose record exists.
    pub shards: BTreeSet<u32>,
    /// Names of events that were told.
    pub told: BTreeSet<String>,
    /// Warnings about targets that were told.
    pub warnings: usize,
    /// Writes that were made, for telling whether a round acted.
    pub acts: u64,
    /// Something is due at once.
    pub again: bool,
    /// When something is due for the job itself.
    pub close_at: Option<Timestamp>,
    /// When a job-level write that failed may be tried again, and how often it failed.
    pub job_retry: Option<(Timestamp, u32)>,
}

/// Which version of the job the memory reflects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredVersion {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// Whether it is being deleted.
    pub deleting: bool,
}

/// The last check of the spec.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The generation that was checked.
    pub generation: i64,
    /// Digest of the plugin it was checked against, if one was there.
    pub plugin: Option<String>,
    /// What came of it.
    pub outcome: Result<std::sync::Arc<ValidSpec>, Invalid>,
}

/// What is remembered of one target in flight.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TargetMemory {
    /// Retryable failures of the current call in a row.
    pub tries: u32,
    /// Traps in a row.
    pub traps: u32,
    /// Not to be visited before.
    pub not_before: Option<Timestamp>,
    /// Looks that its last visit lacked.
    pub looks: BTreeSet<Look>,
    /// This term recorded its intent.
    pub own_intent: bool,
    /// resourceVersion of the target when a write of unknown outcome was sent.
    pub unknown: Option<String>,
    /// resourceVersion of the target when a write found the view old: nothing is decided before it has moved.
    pub stale: Option<String>,
    /// When an own write that the cache does not show is looked for.
    pub look_at: Option<Timestamp>,
    /// An eviction or deletion was accepted, and the cache does not show it yet.
    pub departing: bool,
    /// When the target was asked to go, as the last object showed or as we sent it.
    pub evicted_at: Option<Timestamp>,
    /// An end other than Succeeded that is not recorded yet.
    pub fate: Option<Fate>,
    /// What it waits for, and how many rounds that has lasted.
    pub trouble: Option<(TargetError, u32)>,
    /// Failed tries to release it.
    pub release_tries: u32,
    /// `release` was refused or is not to be had: the host lets go without it.
    pub release_alone: bool,
    /// It succeeded, and a hold of ours is left on it.
    pub held: bool,
    /// Evictions in a row that a disruption budget refused.
    pub blocked: u32,
    /// Whether what this term saw of the target's object was confirmed by the API server.
    pub confirmed: bool,
}

/// An end other than Succeeded that waits for a last look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fate {
    /// Why.
    pub error: TargetError,
    /// No write of ours can still take effect.
    pub settled: bool,
    /// No last look: the job is being deleted.
    pub final_word: bool,
}

impl TargetMemory {
    /// The target was asked to go at `time`. The earliest counts: the last event of an object may show the time of its
    /// end instead.
    pub fn asked_to_go(&mut self, time: Timestamp) {
        self.evicted_at = Some(self.evicted_at.map_or(time, |known| known.min(time)));
    }
}

impl JobMemory {
    /// Takes a durable state that somebody else may have written. What was decided against an older one is dropped, and
    /// every target that is not at rest is visited.
    pub fn adopt(&mut self, state: JobState, version: StoredVersion) {
        self.state = state;
        self.version = Some(version);
        self.decided.clear();
        let started = |progress| move |target: &TargetState| target.progress == progress;
        self.pending = crate::job::state::indexes(&self.state.targets, started(Progress::Pending));
        self.processing = crate::job::state::indexes(&self.state.targets, started(Progress::Processing));
        self.releasing = crate::job::state::indexes(&self.state.targets, TargetState::owes_release);
        self.targets.retain(|index, _| {
            self.processing.contains(index) || self.releasing.contains(index) || self.pending.contains(index)
        });
        self.blocked.retain(|index| self.processing.contains(index));
        self.dirty.extend(self.processing.iter().chain(&self.releasing));
    }

    /// Takes what this round made durable. It was written from `began` to `now`.
    pub fn committed(&mut self, commit: Commit, began: Timestamp, now: Timestamp) {
        for (index, target) in commit.targets {
            self.decided.remove(&index);
            self.settle(index, &target);
            if let Some(slot) = self.state.targets.get_mut(index as usize) {
                *slot = target;
            }
        }
        self.shards.extend(commit.shards);
        if let Some(status) = commit.status {
            self.dirty.append(&mut self.after_record);
            self.state.take_job(&status);
            self.status = Some(status);
            let took = now.duration_since(began).as_millis();
            self.written = Some((now, i64::try_from(took).unwrap_or(i64::MAX)));
            self.again |= !self.fenced || !self.dirty.is_empty() || self.at_rest();
            self.fenced = true;
        }
    }

    fn settle(&mut self, index: u32, target: &TargetState) {
        let started_now = target.progress == Progress::Processing && self.pending.contains(&index);
        let held = target.progress == Progress::Succeeded && self.targets.get(&index).is_some_and(|known| known.held);
        let sets = [
            (&mut self.pending, target.progress == Progress::Pending),
            (&mut self.processing, target.progress == Progress::Processing),
            (&mut self.releasing, target.owes_release() || held),
        ];
        let mut at_rest = true;
        for (set, member) in sets {
            at_rest &= !member;
            if member {
                set.insert(index);
            } else {
                set.remove(&index);
            }
        }
        if started_now {
            self.target(index).own_intent = true;
        }
        if target.progress.terminal() {
            self.blocked.remove(&index);
        }
        if at_rest {
            self.targets.remove(&index);
        } else if target.progress.terminal() {
            // The release is visited without waiting for a change.
            self.dirty.insert(index);
        }
    }

    /// A target that succeeded still carries a hold of ours: it is released.
    pub fn still_held(&mut self, index: u32) {
        self.target(index).held = true;
        self.releasing.insert(index);
        self.dirty.insert(index);
    }

    /// Nothing of ours is left on a target that succeeded.
    pub fn let_go(&mut self, index: u32) {
        self.releasing.remove(&index);
        self.targets.remove(&index);
        self.again |= self.at_rest();
    }

    /// Drops what was decided and not recorded: the job is read anew, and the next round decides again.
    pub fn forget_plan(&mut self) {
        self.decided.clear();
        self.version = None;
    }

    /// What is remembered of a target; made on first use.
    pub fn target(&mut self, index: u32) -> &mut TargetMemory {
        self.targets.entry(index).or_default()
    }

    /// Wants a target visited at `time`, though nothing happens.
    pub fn wake(&mut self, time: Timestamp, index: u32) {
        self.timers.insert((time, index));
    }

    /// The durable state of a target, or the decided one where there is one.
    pub fn latest(&self, index: u32) -> Option<&TargetState> {
        self.decided.get(&index).or_else(|| self.state.target(index))
    }

    /// How many targets are how far, with what is decided counted in.
    pub fn counts(&self) -> Counts {
        let mut counts = self.durable_counts();
        for (index, next) in &self.decided {
            if let Some(stored) = self.state.target(*index) {
                counts.add(stored.progress, usize::wrapping_sub);
                counts.add(next.progress, usize::wrapping_add);
            }
        }
        counts
    }

    /// How many targets are how far, as stored.
    pub fn durable_counts(&self) -> Counts {
        let mut counts = Counts { total: self.state.targets.len(), ..Counts::default() };
        self.state.targets.iter().for_each(|target| counts.add(target.progress, usize::wrapping_add));
        counts
    }

    /// When the next round is due, with what this one asked for. A time long past means at once.
    pub fn next(&mut self, requeue: Option<Timestamp>) -> Option<Timestamp> {
        if std::mem::take(&mut self.again) {
            return Some(Timestamp::UNIX_EPOCH);
        }
        let timer = self.timers.first().map(|(time, _)| *time);
        requeue.into_iter().chain(timer).chain(self.close_at).min()
    }

    /// The looks for the next observation, in order.
    pub fn looks(&self) -> Vec<Look> {
        self.looks.iter().cloned().collect()
    }

    /// Whether every target is durably at its end and released, and nothing waits to be written.
    pub fn at_rest(&self) -> bool {
        self.decided.is_empty() && self.pending.is_empty() && self.processing.is_empty() && self.releasing.is_empty()
    }
}

/// How many targets are how far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All.
    pub total: usize,
    /// Not started.
    pub pending: usize,
    /// In flight.
    pub processing: usize,
    /// Ended well.
    pub succeeded: usize,
    /// Ended badly.
    pub failed: usize,
}

impl Counts {
    fn add(&mut self, progress: Progress, change: fn(usize, usize) -> usize) {
        let count = match progress {
            Progress::Pending => &mut self.pending,
            Progress::Processing => &mut self.processing,
            Progress::Succeeded => &mut self.succeeded,
            Progress::Failed => &mut self.failed,
        };
        *count = change(*count, 1);
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
