//! The memory that a term of leadership keeps of a job between rounds. Plain data.
//!
//! All of it may be lost at any time: it is rebuilt from the stored status, and a round decides the same from an empty
//! memory, only later.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use oarlock_api::{OperationJob, OperationJobStatus, UnreadSpec};

use crate::cluster::live_reads::LiveRead;
use crate::cluster::writes::EntryResult;
use crate::job::key::JobKey;
use crate::job::progress::{Counts, ProgressSets};
use crate::job::spec::{Invalid, ValidSpec, validate};
use crate::job::state::{JobState, Progress, TargetState};
use crate::plugin::lookup::PluginLookup;
use crate::round::agenda::Agenda;
use crate::round::availability::Availability;
use crate::round::brakes::Brakes;
use crate::round::decided::{Commit, Decided, Standing, StoredVersion};
use crate::round::fit::{Checked, fits, granted};
use crate::round::selection::Selecting;
use crate::round::shards::Shards;
use crate::round::target_memory::{Bounds, LifecycleWait, TargetMemory};
use crate::shared::budgets::Limited;
use crate::shared::wake_index::TargetId;

/// Names of emitted events that are remembered; a repetition beyond meets AlreadyExists.
const TOLD: usize = 4_096;

/// The memory of one job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct JobMemory {
    /// The version of the job that `state` was read from or written to; `None` before the first round of the term.
    pub version: Option<StoredVersion>,
    /// The time of the first round of the term: no request of an earlier term was sent later.
    pub began: Option<Timestamp>,
    /// The next record waits for the starts that ends made room for.
    pub waits_for_starts: bool,
    /// The brakes of the last round.
    pub brakes: Brakes,
    /// The spec was edited since the last round.
    pub edited: bool,
    /// The status as it was last stored, to tell an own write from another client's.
    pub status: Option<OperationJobStatus>,
    /// The job's OperationRecords.
    pub shards: Shards,
    /// The durable state. Of the targets that a selector found see `selecting`.
    pub state: JobState,
    /// The selection of the targets, until it is durable.
    pub selecting: Selecting,
    /// Targets by durable progress.
    pub durable: ProgressSets,
    /// Targets by progress, decisions included.
    pub latest: ProgressSets,
    /// Decisions that are not durable yet.
    pub decided: BTreeMap<u32, Decided>,
    /// Those of `decided` that writes wait for.
    pub urgent: BTreeSet<u32>,
    /// Targets to work on in the next round.
    pub dirty: BTreeSet<u32>,
    /// The target that is first in turn among those to work on: in a round that has no time for all of them, none is last
    /// each time.
    pub turn: u32,
    /// Those of `dirty` that live reads are made for: their answers count in the next round alone.
    pub reading: BTreeSet<u32>,
    /// Most targets of a round, where the plugin is too slow for a whole batch.
    pub batch: Option<usize>,
    /// Until when, and for what, its plugin is in debt: no target is started or visited before, but at its end.
    pub debt: Option<(Timestamp, Limited)>,
    /// Targets to turn to once fewer targets of the job have entries: a result brings that round.
    pub crowded: BTreeSet<u32>,
    /// Targets to visit once their decisions are durable.
    pub after_record: BTreeSet<u32>,
    /// Which targets are unavailable, where the job's policy bounds their number.
    pub(super) availability: Availability,
    /// The due times of targets.
    pub agenda: Agenda,
    /// The memory of targets that are in flight, wait to start or are to be released.
    pub targets: BTreeMap<u32, TargetMemory>,
    /// Targets that owe a release.
    pub releasing: BTreeSet<u32>,
    /// Targets whose last eviction a disruption budget refused.
    pub blocked: BTreeSet<u32>,
    /// What the lifecycle of pods has kept targets from for long.
    pub lifecycle: BTreeMap<u32, LifecycleWait>,
    /// Targets, of any job, that wait for objects which the last round found to be free.
    pub woken: BTreeSet<TargetId>,
    /// Results that came back since the last round.
    pub results: Vec<EntryResult>,
    /// The live reads for the next round.
    pub live_reads: BTreeSet<LiveRead>,
    /// A record failed: the stored state is read again, whatever its version.
    pub reload: bool,
    /// This term has raised the job's epoch.
    pub epoch_raised: bool,
    /// The stored status differs from the records.
    pub status_differs: bool,
    /// End of the last write of the status, and its duration in milliseconds.
    pub written: Option<(Timestamp, i64)>,
    /// The time from which on the other jobs leave room for a record that nothing waits for.
    pub record_room_at: Option<Timestamp>,
    /// The last check of the spec.
    pub checked: Option<Checked>,
    /// The digest of the plugin by whose relations targets are indexed.
    pub indexed_for: Option<String>,
    /// The job's state when the events about it as a whole were last emitted; at first, when the term read it.
    pub announced: Option<Standing>,
    /// Names of events that were emitted.
    pub told: BTreeSet<String>,
    /// Warnings about targets that were emitted.
    pub warnings: usize,
    /// Time at which the host heard of the first change for the next round.
    pub since: Option<Timestamp>,
    /// The next round is due at once.
    pub again: bool,
    /// Since when it has waited for the kinds of its plugin to be listed.
    pub unlisted_since: Option<Timestamp>,
    /// Due time of the next write of the job itself.
    pub close_at: Option<Timestamp>,
    /// Earliest time for retrying a failed write of the job itself, and the number of its failures.
    pub job_retry: Option<(Timestamp, u32)>,
    /// The job is being deleted, and its ended targets with tasks were turned to.
    pub outputs_go: bool,
    /// Pods of tasks of ended targets are looked for in the next round.
    pub looks_for_task_pods: bool,
    /// Time at which the finalizer was last added to the job.
    pub finalizer_put: Option<Timestamp>,
}

impl JobMemory {
    /// Takes a durable state that another client may have written. Decisions against an older one are dropped, and
    /// every target that is not at rest is visited.
    pub fn adopt(&mut self, state: JobState, version: StoredVersion) {
        self.state = state;
        self.version = Some(version);
        self.selecting = Selecting::default();
        self.reload = false;
        self.decided.clear();
        self.urgent.clear();
        self.after_record.clear();
        self.crowded.clear();
        self.reading.clear();
        self.durable = ProgressSets::of(&self.state.targets);
        self.latest = self.durable.clone();
        self.releasing = crate::job::state::indexes(&self.state.targets, TargetState::owes_release);
        let Self { durable, releasing, targets, .. } = self;
        targets.retain(|index, known| {
            let live = durable.pending.contains(index) || durable.processing.contains(index);
            live || releasing.contains(index) || known.held.is_some()
        });
        for (index, known) in &mut self.targets {
            known.read_at = None;
            if known.held.is_some() && self.state.target(*index).is_some_and(|target| target.progress.terminal()) {
                // No view may show its hold yet.
                self.releasing.insert(*index);
            }
            if !self.durable.processing.contains(index) {
                known.at_its_end();
            }
        }
        self.blocked.retain(|index| self.durable.processing.contains(index));
        self.lifecycle.retain(|index, _| self.durable.processing.contains(index));
        self.announced = self.announced.or(Some(self.standing()));
        self.agenda = Agenda::default();
        self.turn_to_all();
    }

    /// Looks at everything again that a change may have been missed of.
    pub fn resync(&mut self) {
        self.turn_to_all();
        self.shards.read_again();
        self.looks_for_task_pods = true;
    }

    /// Makes every target that is not at rest due for a visit.
    pub fn turn_to_all(&mut self) {
        // A start that is not recorded yet is among the decided.
        let known = self.durable.processing.iter().chain(&self.releasing).chain(self.decided.keys());
        let all: Vec<u32> = known.copied().collect();
        all.into_iter().for_each(|index| self.turn_to(index));
    }

    /// Makes a target due in the next round, since something other than this host changed it, or an object is free for it.
    pub fn turn_to(&mut self, index: u32) {
        self.dirty.insert(index);
        self.availability.doubt(index);
        if let Some(known) = self.targets.get_mut(&index) {
            known.news = true;
        }
    }

    /// Makes a target due in the next round if it waits for another version of an object. One of its objects has a new
    /// version, and nothing else that a visit could see.
    pub fn seen_anew(&mut self, index: u32) {
        if self.targets.get(&index).is_some_and(|known| known.expects.another_version()) {
            self.turn_to(index);
        }
    }

    /// Checks the spec and that it fits its plugin. Cached for each generation and plugin, since the cost grows with
    /// the number of targets; the grant may change at any time, so it is checked each time.
    pub fn check(
        &mut self,
        key: &JobKey,
        job: &OperationJob,
        plugin: &PluginLookup,
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
                let spec = validate(job.spec.as_ref(), self.state.selection.as_ref());
                let outcome = spec.and_then(|spec| fits(spec, plugin)).map(Arc::new);
                self.checked = Some(Checked { generation, plugin: digest, outcome: outcome.clone() });
                outcome
            }
        };
        outcome.and_then(|spec| granted(key, spec, plugin))
    }

    /// Takes over the changes that this round made durable, written from `began` to `now`.
    pub fn committed(&mut self, commit: Commit, began: Timestamp, now: Timestamp) {
        let follow = |(index, decided): (&u32, &Decided)| {
            (decided.state.attempt_over() && !decided.writes.is_empty()).then_some(*index)
        };
        let releases_that_wait: BTreeSet<u32> = commit.targets.iter().filter_map(follow).collect();
        for (index, decided) in commit.targets {
            self.decided.remove(&index);
            self.urgent.remove(&index);
            self.index_durable(index, &decided.state);
            if let Some(slot) = self.state.targets.get_mut(index as usize) {
                *slot = decided.state;
            }
        }
        self.shards.written(commit.shards);
        if commit.finalizer {
            self.finalizer_put = Some(now);
        }
        if let Some(status) = commit.status {
            for index in std::mem::take(&mut self.after_record) {
                if let Some(known) = self.targets.get_mut(&index) {
                    known.check(now);
                    self.dirty.insert(index);
                }
            }
            // What was proposed with an end is made before the release: the result brings that.
            self.dirty.retain(|index| !releases_that_wait.contains(index));
            for index in releases_that_wait {
                self.targets.entry(index).and_modify(|known| known.writes_its_end = true);
            }
            self.waits_for_starts = false;
            self.selecting.freezing = false;
            self.state.take_job(&status);
            self.status = Some(status);
            self.status_differs = false;
            let took = now.duration_since(began).as_millis();
            self.written = Some((now, i64::try_from(took).unwrap_or(i64::MAX)));
            self.again |= !self.epoch_raised || !self.dirty.is_empty() || self.at_rest();
            self.epoch_raised = true;
        }
    }

    fn index_durable(&mut self, index: u32, target: &TargetState) {
        let started_now = target.progress == Progress::Processing && self.durable.pending.contains(&index);
        self.durable.put(index, target.progress);
        self.latest.put(index, target.progress);
        self.availability.doubt(index);
        let held = target.progress.terminal() && self.targets.get(&index).is_some_and(|known| known.held.is_some());
        if started_now {
            self.target(index).expects.own_intent = true;
        }
        if target.attempt_over() {
            self.blocked.remove(&index);
            self.lifecycle.remove(&index);
            self.targets.entry(index).and_modify(TargetMemory::at_its_end);
        }
        if target.owes_release() || held {
            self.releasing.insert(index);
            // The release is visited without waiting for a change.
            self.dirty.insert(index);
        } else {
            self.releasing.remove(&index);
            if target.progress.terminal() {
                self.targets.remove(&index);
                self.agenda.set(index, None);
            }
        }
    }

    /// Notes what the lifecycle of its pod keeps a target from.
    pub(super) fn note_lifecycle(&mut self, index: u32, wait: Option<&LifecycleWait>) {
        match wait {
            Some(wait) => drop(self.lifecycle.insert(index, wait.clone())),
            None => drop(self.lifecycle.remove(&index)),
        }
    }

    /// Notes a hold of this job on the object of a target that owes no release; it is released all the same.
    pub fn still_held(&mut self, index: u32, uid: String) {
        self.target(index).held = Some(uid);
        self.releasing.insert(index);
        self.dirty.insert(index);
    }

    /// Notes that the object of an ended target has no hold of this job any more.
    pub fn let_go(&mut self, index: u32) {
        self.releasing.remove(&index);
        self.targets.remove(&index);
        self.agenda.set(index, None);
        self.again |= self.at_rest();
    }

    /// The memory of a target; created on first use.
    pub fn target(&mut self, index: u32) -> &mut TargetMemory {
        self.targets.entry(index).or_default()
    }

    /// The decided state of a target, or the durable one if nothing is decided.
    pub fn latest(&self, index: u32) -> Option<&TargetState> {
        self.decided.get(&index).map(|decided| &decided.state).or_else(|| self.state.target(index))
    }

    /// The number of targets by progress, decisions included.
    pub fn counts(&self) -> Counts {
        self.latest.counts()
    }

    /// The number of targets in flight as other jobs count them: an end that is not durable yet makes no room.
    pub fn in_flight(&self) -> usize {
        let starts = |(index, decided): &(&u32, &Decided)| {
            decided.state.progress == Progress::Processing && self.durable.pending.contains(index)
        };
        self.durable.processing.len() + self.decided.iter().filter(starts).count()
    }

    /// The targets that `commit`, before it is taken over, ends. One that ended before may be recorded again for its
    /// release.
    pub fn ended_by<'a>(&'a self, commit: &'a Commit) -> impl Iterator<Item = (u32, &'a TargetState)> {
        let ended = |index: u32| self.state.target(index).is_some_and(|target| target.progress.terminal());
        let now = commit.targets.iter().filter(move |(index, _)| !ended(**index));
        now.map(|(index, decided)| (*index, &decided.state)).filter(|(_, state)| state.progress.terminal())
    }

    /// The durable state that the events of the whole job report.
    pub fn standing(&self) -> Standing {
        Standing { counts: self.durable.counts(), ended: self.state.end.is_some() }
    }

    /// Recomputes the due time of a target from its memory.
    pub fn schedule(&mut self, index: u32, bounds: Bounds) {
        let ends = self.decided.get(&index).is_some_and(|decided| decided.state.attempt_over());
        let turned_to_next = self.dirty.contains(&index) || self.crowded.contains(&index);
        let due = match self.targets.get(&index) {
            _ if turned_to_next || ends => None,
            Some(known) if self.durable.pending.contains(&index) => known.read_at,
            Some(known) if self.durable.processing.contains(&index) => known.due(bounds),
            Some(known) if self.releasing.contains(&index) => known.due(Bounds { visits: true, ..Bounds::default() }),
            _ => None,
        };
        self.agenda.set(index, due);
    }

    /// The due time of the job: the earliest of its own and those of its targets. A time long past means at once. After
    /// a round that may decide nothing it is `requeue` alone.
    pub fn next(&mut self, requeue: Option<Timestamp>, rests: bool) -> Option<Timestamp> {
        if std::mem::take(&mut self.again) || !rests && !self.dirty.is_empty() {
            return Some(Timestamp::UNIX_EPOCH);
        }
        if rests {
            return requeue;
        }
        requeue.into_iter().chain(self.agenda.first()).chain(self.close_at).chain(self.selecting.again_at).min()
    }

    /// The live reads for the next observation, in order.
    pub fn live_reads(&self) -> Vec<LiveRead> {
        self.live_reads.iter().chain(&self.selecting.wanted).cloned().collect()
    }

    /// True if every target is durably ended and released, and no write is pending.
    pub fn at_rest(&self) -> bool {
        self.decided.is_empty()
            && self.durable.pending.is_empty()
            && self.durable.processing.is_empty()
            && self.releasing.is_empty()
    }

    /// Notes the name of an event. Returns true if it is new.
    pub fn tell(&mut self, name: &str) -> bool {
        if self.told.len() >= TOLD {
            self.told.clear();
        }
        self.told.insert(name.to_owned())
    }
}
