//! The memory that a term of leadership keeps of a job between rounds. Plain data.
//!
//! The host may lose all of it at any time, and then rebuilds it from the stored status. With an empty memory, a round
//! decides the same, only later. Exception: nothing stores `TargetMemory::marks`. So after a restart, the host does not
//! remove a mark whose hold another client has removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use oarlock_api::{OperationJob, OperationJobStatus, UnreadSpec};

use crate::object::key::JobKey;
use crate::operation_job::progress::{Counts, ProgressSets};
use crate::operation_job::round::decided::{Commit, Decided, JobSummary, StoredVersion};
use crate::operation_job::round::due_times::DueTimes;
use crate::operation_job::round::fit::{Checked, fits, granted};
use crate::operation_job::round::operation_records::OperationRecords;
use crate::operation_job::round::starts::memory::{Availability, PauseState};
use crate::operation_job::round::target_memory::{LifecycleWait, TargetMemory, TargetTimeBounds};
use crate::operation_job::shared::budgets::Limited;
use crate::operation_job::shared::wake_index::TargetId;
use crate::operation_job::spec::{Invalid, ValidSpec, validate};
use crate::operation_job::state::{JobState, Progress, TargetState};
use crate::plugin::lookup::PluginLookup;
use crate::requests::live_reads::{FoundTarget, LiveRead};
use crate::requests::writes::BatchResult;

/// Most targets of one round, so that one huge job does not keep the others waiting. One record holds as many targets.
pub const BATCH: usize = 250;
/// Most names of emitted events that the memory keeps. The API server answers a further repetition with
/// `AlreadyExists`.
const MOST_EMITTED_EVENTS: usize = 4_096;

/// The memory of one job, in six parts. A step of a round takes the parts that it reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct JobMemory {
    /// The state of a job as it is stored, and as this term last read or wrote it.
    pub stored: StoredState,
    /// The decisions of rounds that are not durable yet.
    pub decisions: Decisions,
    /// The inputs of the next round: the targets to work on, results, live reads, and the limits of the round.
    pub work: RoundWork,
    /// The memory of the targets of a job.
    pub targets: Targets,
    /// The check of the spec, and the times of the writes of the job itself.
    pub housekeeping: Housekeeping,
    /// The reports about a job: emitted events, and the times of its status writes.
    pub reports: Reports,
}

/// The state of a job as it is stored, and as this term last read or wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct StoredState {
    /// The version of the job that `state` was read from or written to; `None` before the first round of the term.
    pub version: Option<StoredVersion>,
    /// The durable state. For the targets that a selector found, see also `selecting`.
    pub state: JobState,
    /// The status as it was last stored, to tell the host's own write from another client's write.
    pub status: Option<OperationJobStatus>,
    /// The job's OperationRecords.
    pub operation_records: OperationRecords,
    /// Targets by durable progress.
    pub durable: ProgressSets,
    /// True if this term has raised the job's epoch.
    pub epoch_raised: bool,
    /// True if the stored status differs from the records.
    pub status_differs: bool,
    /// Time at which the finalizer was last added to the job.
    pub finalizer_put: Option<Timestamp>,
    /// The time of the first round of the term. No request of an earlier term was sent later.
    pub began: Option<Timestamp>,
    /// True if a record failed: the host reads the stored state again, whatever its version.
    pub reload: bool,
}

/// The decisions of rounds that are not durable yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Decisions {
    /// The next state of each target, by index, with the writes that follow its record.
    pub decided: BTreeMap<u32, Decided>,
    /// Targets in `decided` whose writes wait for the record.
    pub urgent: BTreeSet<u32>,
    /// Targets by progress, decisions included.
    pub latest: ProgressSets,
    /// The selection of the targets, until it is durable.
    pub selecting: Selecting,
    /// True while the record of ended targets waits one round. The same record then also stores the targets that start in
    /// their place.
    pub waits_for_starts: bool,
    /// Targets to visit once their decisions are durable.
    pub after_record: BTreeSet<u32>,
}

/// The progress of a job's selection. All fields are empty for a job that names its targets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selecting {
    /// The live read that the next observation makes.
    pub wanted: Option<LiveRead>,
    /// The reason why the last read gave no targets.
    pub refused: Option<Invalid>,
    /// The time of the next read.
    pub requeue_at: Option<Timestamp>,
    /// A list that waits until this term has raised the job's epoch.
    pub(super) found: Option<Vec<FoundTarget>>,
    /// True if the targets in the memory are not durable yet, so that nothing starts.
    pub freezing: bool,
}

/// The inputs of the next round: the targets to work on, results, live reads, and the limits of the round.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RoundWork {
    /// Targets to work on in the next round.
    pub dirty: BTreeSet<u32>,
    /// Targets in `dirty` for which live reads are made. The answers count only in the next round.
    pub reading: BTreeSet<u32>,
    /// The target that comes first among those to work on. It advances, so that a round without time for all targets
    /// does not always leave out the same ones.
    pub next_index: u32,
    /// Most targets of a round, if the plugin is too slow for a whole batch. Without this limit, a round of a slow plugin
    /// reads 250 targets live and visits one.
    pub batch: Option<usize>,
    /// Targets deferred until fewer targets of the job have write batches. A result brings that round.
    pub deferred: BTreeSet<u32>,
    /// The due times of targets.
    pub due_times: DueTimes,
    /// Time until which the plugin is over budget, and for which resource. Before that time, no target starts or is
    /// visited, except at its end.
    pub over_budget: Option<(Timestamp, Limited)>,
    /// Results that came back since the last round.
    pub results: Vec<BatchResult>,
    /// The live reads for the next round.
    pub live_reads: BTreeSet<LiveRead>,
    /// True if the next round looks for task pods of ended targets.
    pub looks_for_task_pods: bool,
    /// The pause state of the last round.
    pub pause_state: PauseState,
    /// True if the spec was edited since the last round.
    pub edited: bool,
}

/// The memory of the targets of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Targets {
    /// The memory of targets that are in flight, wait to start or are to be released.
    pub known: BTreeMap<u32, TargetMemory>,
    /// Targets that owe a release.
    pub releasing: BTreeSet<u32>,
    /// The unavailable targets, if the job's policy bounds their number.
    pub(super) availability: Availability,
    /// Targets whose last eviction a disruption budget refused.
    pub blocked: BTreeSet<u32>,
    /// The reasons why the lifecycle of pods has held targets back for long.
    pub lifecycle: BTreeMap<u32, LifecycleWait>,
    /// Targets, of any job, that wait for objects which the last round found free.
    pub woken: BTreeSet<TargetId>,
    /// The digest of the plugin whose relations index the targets.
    pub indexed_for: Option<String>,
}

/// The check of the spec, and the times of the writes of the job itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Housekeeping {
    /// The last check of the spec.
    pub checked: Option<Checked>,
    /// Time since which the job has waited for the host to list the kinds of its plugin.
    pub unlisted_since: Option<Timestamp>,
    /// True if the next round is due at once.
    pub requeue_now: bool,
    /// Due time of the next write of the job itself.
    pub job_write_at: Option<Timestamp>,
    /// Earliest time to retry a failed write of the job itself, and the number of its failures.
    pub job_retry: Option<(Timestamp, u32)>,
    /// True if the job is being deleted, and its ended targets with tasks were marked dirty.
    pub outputs_go: bool,
}

/// The reports about a job: emitted events, and the times of its status writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reports {
    /// Names of emitted events.
    pub emitted_events: BTreeSet<String>,
    /// Number of emitted warnings about targets.
    pub warnings: usize,
    /// The counts in the last event about the whole job. Before the first event, the counts in the stored status.
    pub last_reported: Option<JobSummary>,
    /// End of the last write of the status, and the duration of that write in milliseconds.
    pub written: Option<(Timestamp, i64)>,
    /// The earliest time for a record that nothing waits for, by the rate limit that all jobs share.
    pub record_allowed_at: Option<Timestamp>,
    /// Time at which the host received the first change for the next round.
    pub since: Option<Timestamp>,
}

/// The states of a job's targets: as stored, as decided since, and the memory of each target. Functions with
/// many parameters take this struct in place of these three.
#[derive(Clone, Copy)]
pub struct TargetStates<'a> {
    /// The state of the job as it is stored.
    pub stored: &'a StoredState,
    /// The decisions that are not durable yet.
    pub decisions: &'a Decisions,
    /// The memory of the targets.
    pub targets: &'a Targets,
}

impl JobMemory {
    /// Returns the states of the job's targets.
    pub fn states(&self) -> TargetStates<'_> {
        TargetStates { stored: &self.stored, decisions: &self.decisions, targets: &self.targets }
    }

    /// Takes a durable state that another client may have written. Drops decisions about an older state, and makes
    /// every target due that is in flight or owes a release.
    pub fn adopt(&mut self, state: JobState, version: StoredVersion) {
        self.stored.state = state;
        self.stored.version = Some(version);
        self.decisions.selecting = Selecting::default();
        self.stored.reload = false;
        self.decisions.decided.clear();
        self.decisions.urgent.clear();
        self.decisions.after_record.clear();
        self.work.deferred.clear();
        self.work.reading.clear();
        self.stored.durable = ProgressSets::of(&self.stored.state.targets);
        self.decisions.latest = self.stored.durable.clone();
        self.targets.adopt(&self.stored);
        self.reports.last_reported = self.reports.last_reported.or(Some(self.stored.summary()));
        self.work.due_times = DueTimes::default();
        self.requeue_all();
    }

    /// Marks everything dirty that a missed change may concern.
    pub fn resync(&mut self) {
        self.requeue_all();
        self.stored.operation_records.read_again();
        self.work.looks_for_task_pods = true;
    }

    /// Makes every target due that is in flight, owes a release or has a decision that is not durable yet.
    pub fn requeue_all(&mut self) {
        // A start that is not recorded yet is in `decided`.
        let known =
            self.stored.durable.processing.iter().chain(&self.targets.releasing).chain(self.decisions.decided.keys());
        let all: Vec<u32> = known.copied().collect();
        all.into_iter().for_each(|index| self.work.requeue(index, &mut self.targets));
    }

    /// Takes over the changes that this round made durable, written from `began` to `now`.
    pub fn committed(&mut self, commit: Commit, began: Timestamp, now: Timestamp) {
        let follow = |(index, decided): (&u32, &Decided)| {
            (decided.state.attempt_over() && !decided.writes.is_empty()).then_some(*index)
        };
        let releases_that_wait: BTreeSet<u32> = commit.targets.iter().filter_map(follow).collect();
        for (index, decided) in commit.targets {
            self.decisions.decided.remove(&index);
            self.decisions.urgent.remove(&index);
            self.index_durable(index, &decided.state);
            if let Some(write_at) = self.stored.state.targets.get_mut(index as usize) {
                *write_at = decided.state;
            }
        }
        self.stored.operation_records.written(commit.operation_records);
        if commit.finalizer {
            self.stored.finalizer_put = Some(now);
        }
        if let Some(status) = commit.status {
            for index in std::mem::take(&mut self.decisions.after_record) {
                if let Some(known) = self.targets.known.get_mut(&index) {
                    known.check(now);
                    self.work.dirty.insert(index);
                }
            }
            // The writes that were proposed with an end come before the release, and their result brings it.
            self.work.dirty.retain(|index| !releases_that_wait.contains(index));
            for index in releases_that_wait {
                self.targets.known.entry(index).and_modify(|known| known.writes_its_end = true);
            }
            self.decisions.waits_for_starts = false;
            self.decisions.selecting.freezing = false;
            self.stored.state.take_job(&status);
            self.stored.status = Some(status);
            self.stored.status_differs = false;
            let took = now.duration_since(began).as_millis();
            self.reports.written = Some((now, i64::try_from(took).unwrap_or(i64::MAX)));
            self.housekeeping.requeue_now |= !self.stored.epoch_raised || !self.work.dirty.is_empty() || self.is_idle();
            self.stored.epoch_raised = true;
        }
    }

    fn index_durable(&mut self, index: u32, target: &TargetState) {
        let started_now = target.progress == Progress::Processing && self.stored.durable.pending.contains(&index);
        self.stored.durable.put(index, target.progress);
        self.decisions.latest.put(index, target.progress);
        if started_now {
            self.targets.memory_of(index).expects.start_recorded_here = true;
        }
        self.targets.index_durable(index, target, &mut self.work);
    }

    /// Returns the due time of the job: the earliest of its own times and those of its targets. The Unix epoch
    /// means now. If the round could not decide (`must_wait`), the result is `requeue_at`, unless the next round is due
    /// at once.
    pub fn next(&mut self, requeue_at: Option<Timestamp>, must_wait: bool) -> Option<Timestamp> {
        if std::mem::take(&mut self.housekeeping.requeue_now) || !must_wait && !self.work.dirty.is_empty() {
            return Some(Timestamp::UNIX_EPOCH);
        }
        if must_wait {
            return requeue_at;
        }
        let own = self.housekeeping.job_write_at.into_iter().chain(self.decisions.selecting.requeue_at);
        requeue_at.into_iter().chain(self.work.due_times.first()).chain(own).min()
    }

    /// Returns true if every target is durably ended and released, and no write is pending.
    pub fn is_idle(&self) -> bool {
        self.decisions.decided.is_empty()
            && self.stored.durable.pending.is_empty()
            && self.stored.durable.processing.is_empty()
            && self.targets.releasing.is_empty()
    }
}

impl StoredState {
    /// Returns the targets that `commit` ends, before the memory takes it over. A target that ended earlier may be in
    /// `commit` again for its release, and does not count.
    pub fn ended_by<'a>(&'a self, commit: &'a Commit) -> impl Iterator<Item = (u32, &'a TargetState)> {
        let ended = |index: u32| self.state.target(index).is_some_and(|target| target.progress.terminal());
        let now = commit.targets.iter().filter(move |(index, _)| !ended(**index));
        now.map(|(index, decided)| (*index, &decided.state)).filter(|(_, state)| state.progress.terminal())
    }

    /// Returns the durable summary that the events about the whole job report.
    pub fn summary(&self) -> JobSummary {
        JobSummary { counts: self.durable.counts(), ended: self.state.end.is_some() }
    }
}

impl Decisions {
    /// Returns the decided state of a target, or the durable state if nothing is decided.
    pub fn latest<'a>(&'a self, stored: &'a StoredState, index: u32) -> Option<&'a TargetState> {
        self.decided.get(&index).map(|decided| &decided.state).or_else(|| stored.state.target(index))
    }

    /// Returns the number of targets by progress, decisions included.
    pub fn counts(&self) -> Counts {
        self.latest.counts()
    }

    /// Returns the number of targets in flight as other jobs count them. An end that is not durable yet frees no
    /// capacity.
    pub fn in_flight(&self, stored: &StoredState) -> usize {
        let starts = |(index, decided): &(&u32, &Decided)| {
            decided.state.progress == Progress::Processing && stored.durable.pending.contains(index)
        };
        stored.durable.processing.len() + self.decided.iter().filter(starts).count()
    }
}

impl RoundWork {
    /// Makes a target due in the next round, because another client changed its object or an object is free for the
    /// target.
    pub fn requeue(&mut self, index: u32, targets: &mut Targets) {
        self.dirty.insert(index);
        targets.availability.mark_uncertain(index);
        if let Some(known) = targets.known.get_mut(&index) {
            known.changed_by_others = true;
        }
    }

    /// Makes a target due in the next round if it waits for another version of an object. One of its objects has a new
    /// version, without any other change that a visit could see.
    pub fn requeue_on_new_version(&mut self, index: u32, targets: &mut Targets) {
        if targets.known.get(&index).is_some_and(|known| known.expects.another_version()) {
            self.requeue(index, targets);
        }
    }

    /// Sets the due time of a target. A target that the next round works on anyway has none.
    pub(super) fn schedule(&mut self, index: u32, due: Option<Timestamp>) {
        let is_in_next_round = self.dirty.contains(&index) || self.deferred.contains(&index);
        self.due_times.set(index, due.filter(|_| !is_in_next_round));
    }

    /// Returns the live reads for the next observation, in order.
    pub fn all_reads(&self, selecting: &Selecting) -> Vec<LiveRead> {
        self.live_reads.iter().chain(&selecting.wanted).cloned().collect()
    }
}

impl Targets {
    /// Returns the memory of a target, and creates it on first use.
    pub fn memory_of(&mut self, index: u32) -> &mut TargetMemory {
        self.known.entry(index).or_default()
    }

    /// Drops the memory of targets that are over in the durable state, and finds the targets that owe a release.
    fn adopt(&mut self, stored: &StoredState) {
        self.releasing = crate::operation_job::state::indexes(&stored.state.targets, TargetState::owes_release);
        let Self { known, releasing, .. } = self;
        known.retain(|index, known| {
            let live = stored.durable.pending.contains(index) || stored.durable.processing.contains(index);
            live || releasing.contains(index) || known.unreleased_uid.is_some()
        });
        for (index, known) in known {
            known.read_at = None;
            if known.unreleased_uid.is_some()
                && stored.state.target(*index).is_some_and(|target| target.progress.terminal())
            {
                // The cache may not show the hold yet.
                releasing.insert(*index);
            }
            if !stored.durable.processing.contains(index) {
                known.at_its_end();
            }
        }
        self.blocked.retain(|index| stored.durable.processing.contains(index));
        self.lifecycle.retain(|index, _| stored.durable.processing.contains(index));
    }

    /// Takes over the durable state of a target: its object may owe a release, and the memory of a target that is over goes.
    fn index_durable(&mut self, index: u32, target: &TargetState, work: &mut RoundWork) {
        self.availability.mark_uncertain(index);
        let held =
            target.progress.terminal() && self.known.get(&index).is_some_and(|known| known.unreleased_uid.is_some());
        if target.attempt_over() {
            self.blocked.remove(&index);
            self.lifecycle.remove(&index);
            self.known.entry(index).and_modify(TargetMemory::at_its_end);
        }
        if target.owes_release() || held {
            self.releasing.insert(index);
            // The release comes without a further change.
            work.dirty.insert(index);
        } else {
            self.releasing.remove(&index);
            if target.progress.terminal() {
                self.known.remove(&index);
                work.due_times.set(index, None);
            }
        }
    }

    /// Stores the reason why the lifecycle of its pod holds a target back; `None` removes the reason.
    pub(super) fn note_lifecycle(&mut self, index: u32, wait: Option<&LifecycleWait>) {
        match wait {
            Some(wait) => drop(self.lifecycle.insert(index, wait.clone())),
            None => drop(self.lifecycle.remove(&index)),
        }
    }

    /// Records that a hold, task pods or task outputs of this job are left of targets that owe no release. `holds` has the
    /// UID of each target's object, by target. The host releases these targets all the same.
    pub(super) fn still_held(&mut self, holds: BTreeMap<u32, String>, work: &mut RoundWork) {
        for (index, uid) in holds {
            self.memory_of(index).unreleased_uid = Some(uid);
            self.releasing.insert(index);
            work.dirty.insert(index);
        }
    }

    /// Records that an ended target has no hold, task pods or task outputs of this job any more.
    pub fn note_released(&mut self, index: u32, work: &mut RoundWork) {
        self.releasing.remove(&index);
        self.known.remove(&index);
        work.due_times.set(index, None);
    }

    /// Returns the due time of a target by its memory.
    pub(super) fn due(&self, index: u32, bounds: TargetTimeBounds, stored: &StoredState) -> Option<Timestamp> {
        let known = self.known.get(&index)?;
        if stored.durable.pending.contains(&index) {
            known.read_at
        } else if stored.durable.processing.contains(&index) {
            known.due(bounds)
        } else if self.releasing.contains(&index) {
            known.due(TargetTimeBounds { visits: true, ..TargetTimeBounds::default() })
        } else {
            None
        }
    }
}

impl Housekeeping {
    /// Checks the spec, and that it fits its plugin. The outcome is cached for each generation and plugin, because the
    /// cost grows with the number of targets. Each call checks the grant, which may change at any time.
    pub fn check(
        &mut self,
        key: &JobKey,
        job: &OperationJob,
        plugin: &PluginLookup,
        stored: &StoredState,
    ) -> Result<Arc<ValidSpec>, Invalid> {
        if let Some(UnreadSpec { reason, message }) = job.unread.clone() {
            return Err(Invalid { reason, message });
        }
        let generation = job.metadata.generation.unwrap_or(0);
        let digest = plugin.serving().map(|plugin| plugin.digest.clone());
        let known = self.checked.as_ref().filter(|known| (known.generation, &known.plugin) == (generation, &digest));
        let outcome = match known {
            Some(known) => known.outcome.clone(),
            None => {
                let spec = validate(job.spec.as_ref(), stored.state.selection.as_ref());
                let outcome = spec.and_then(|spec| fits(spec, plugin)).map(Arc::new);
                self.checked = Some(Checked { generation, plugin: digest, outcome: outcome.clone() });
                outcome
            }
        };
        outcome.and_then(|spec| granted(key, spec, plugin))
    }
}

impl Reports {
    /// Records the name of an event. Returns true if the name is new.
    pub fn note_emitted(&mut self, name: &str) -> bool {
        if self.emitted_events.len() >= MOST_EMITTED_EVENTS {
            self.emitted_events.clear();
        }
        self.emitted_events.insert(name.to_owned())
    }
}
