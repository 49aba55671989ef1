//! The targets that a round works on. `target.rs` tells what each of them needs.
//!
//! Takes the memory and the results of writes; yields a [`Plan`]. May not examine every target: a round costs only the
//! targets that changed, are due or may start. Exceptions: the deletion of the job, and a failure policy that skips
//! targets, because both end all pending targets at once. Source: docs/operationjob.md 3.1, 3.4.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::object::time::after;
use crate::operation_job::round::context::{Round, Target};
use crate::operation_job::round::decided::Decided;
use crate::operation_job::round::memory::{BATCH, Decisions, JobMemory, RoundWork, StoredState, TargetStates, Targets};
use crate::operation_job::round::pace::urgent_write_at;
use crate::operation_job::round::starts::bounds::{ranges_capacity, unavailable_capacity};
use crate::operation_job::round::target::NextStep;
use crate::operation_job::round::target_memory::TargetMemory;
use crate::operation_job::round::visit::{PlannedVisit, TargetUpdate};
use crate::operation_job::shared::tables::Tables;
use crate::operation_job::state::{Progress, TargetState, indexes};
use crate::operation_job::tasks::target_tasks::may_have_pods;
use crate::operation_job::write_queue::{ENOUGH_WAITING, MOST_BATCHES, WriteQueue};
use crate::requests::live_reads::LiveRead;
use crate::requests::writes::{Priority, Write, WriteBatch};

/// Wait until the other jobs of the namespace are read.
const READ_AGAIN: SignedDuration = SignedDuration::from_millis(200);
/// Wait after live reads that the API server did not answer.
const FAILED_READ_AGAIN: SignedDuration = SignedDuration::from_secs(2);
/// Wait while targets of other jobs use all that a plugin may have in flight.
const FULL_AGAIN: SignedDuration = SignedDuration::from_secs(1);

/// The work of a round on the targets of a job.
#[derive(Debug, Default)]
pub struct Plan {
    /// The visits, in order.
    pub visits: Vec<(u32, PlannedVisit)>,
    /// The outcomes that need no plugin call.
    pub updates_without_call: Vec<(u32, TargetUpdate)>,
    /// The patches that invalidate a resourceVersion. Nothing has to be durable before them.
    pub invalidations: Vec<WriteBatch>,
    /// The targets that the round works on.
    pub worked_on: Vec<u32>,
    /// True if no write of the job waits or is in flight.
    pub job_is_quiet: bool,
    /// True if this round decides nothing, because a write of the job itself waits or is in flight.
    pub must_wait: bool,
    /// Number of targets that wait because their plugin is over budget.
    pub over_budget_targets: usize,
    /// True if targets would start if other jobs of the plugin had fewer in flight.
    pub lacks_capacity: bool,
    /// True if no target may be visited in this round.
    pub admits_nothing: bool,
    /// Time of the next round if nothing changes before.
    pub requeue_at: Option<Timestamp>,
    /// The live reads that the targets of the round need.
    reads: BTreeSet<LiveRead>,
}

impl Plan {
    /// Schedules the next round for `time` or earlier.
    pub fn requeue_by(&mut self, time: Timestamp) {
        self.requeue_at = Some(self.requeue_at.map_or(time, |other| other.min(time)));
    }

    /// Returns the targets of the round that are at work after it, with their states.
    pub(super) fn at_work<'a>(
        &'a self,
        stored: &'a StoredState,
        decisions: &'a Decisions,
    ) -> impl Iterator<Item = (u32, &'a TargetState)> {
        let visits = self.visits.iter().map(|(index, visit)| (*index, &visit.state));
        let updates_without_call =
            self.updates_without_call.iter().filter_map(|(index, update)| Some((*index, update.state.as_ref()?)));
        let next: BTreeMap<u32, &TargetState> = visits.chain(updates_without_call).collect();
        let all = self.worked_on.iter().filter_map(move |index| {
            Some((*index, next.get(index).copied().or_else(|| decisions.latest(stored, *index))?))
        });
        all.filter(|(_, state)| state.progress == Progress::Processing)
    }

    /// Records that the plugin was called for the first `made` visits. If the round ran out of time, the next rounds
    /// take fewer targets, and begin with those that were left out. So the host makes no useless live reads.
    pub fn visits_made(&self, made: usize, work: &mut RoundWork) {
        let left = self.visits.get(made..).unwrap_or_default();
        let Some((first, _)) = left.first() else {
            // A round that only asks for live reads shows nothing about the plugin's speed.
            if made > 0 || work.live_reads.is_empty() {
                work.batch = work.batch.map(|batch| batch + batch / 2 + 1).filter(|batch| *batch < BATCH);
            }
            return;
        };
        work.batch = Some(made.max(1));
        work.next_index = *first;
        // Only targets in flight need this mark: `startable` finds the pending targets again by itself.
        work.dirty.extend(left.iter().map(|(index, _)| index));
    }
}

impl RoundWork {
    /// Removes and returns the next target to work on.
    pub(super) fn next_dirty(&mut self) -> Option<u32> {
        while let Some(index) = self.reading.pop_first() {
            if self.dirty.remove(&index) {
                return Some(index);
            }
        }
        let index = self.dirty.range(self.next_index..).next().or(self.dirty.first()).copied()?;
        self.dirty.remove(&index);
        self.next_index = index.saturating_add(1);
        Some(index)
    }

    /// Makes the targets due whose time has come, and those that had no room for their write batches.
    fn take_due(&mut self, now: Timestamp) {
        self.dirty.extend(self.due_times.take_due(now));
        self.dirty.append(&mut self.deferred);
    }

    /// Returns the most targets of a round.
    fn batch_size(&self) -> usize {
        self.batch.unwrap_or(BATCH)
    }

    /// Makes a target due in the next round, which has the answers of its live reads.
    pub(super) fn reads_for(&mut self, index: u32) {
        self.dirty.insert(index);
        self.reading.insert(index);
    }
}

/// The admission of starts and visits in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartAdmission {
    /// Admits starts within this limit.
    Open(StartLimit),
    /// Admits visits of targets in flight, but no start. The job has no valid spec, no serving plugin, or no label on
    /// its namespace. Or the job is paused, its failure policy has tripped, or the host is freezing the targets that its
    /// selector found.
    NoStarts,
    /// Admits no start until this term has read all jobs of the namespace, or for nodes all jobs on nodes. One of these
    /// jobs may have claimed the object that a target needs, or be at work on it.
    Unread,
    /// Admits no visit, because this term has not raised the job's epoch.
    Shut,
}

/// The limit on the starts of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StartLimit {
    /// Most starts.
    most: usize,
    /// True if targets of other jobs set the limit.
    by_others: bool,
}

/// Returns the admission of a round. A job that this term has read no longer keeps the other jobs of its namespace
/// waiting.
pub(super) fn start_admission(
    round: &Round<'_>,
    stored: &StoredState,
    decisions: &Decisions,
    tables: &mut Tables,
) -> StartAdmission {
    let ended = stored.state.end.is_some();
    let read = stored.epoch_raised || ended;
    if read {
        tables.claims.read(&round.job.key);
    }
    // A job has also begun if another client removed its start time.
    let begun = stored.state.start.is_some() || stored.durable.pending.len() < stored.state.targets.len();
    if !read && begun {
        return StartAdmission::Shut;
    }
    if !tables.claims.may_start(round.kind, &round.job.key.namespace) {
        return StartAdmission::Unread;
    }
    let (Some(spec), Some(plugin)) = (round.valid(), round.serving()) else { return StartAdmission::NoStarts };
    if round.pause_state.pause() || round.unlabelled.is_some() || decisions.selecting.freezing {
        return StartAdmission::NoStarts;
    }
    let own = decisions.latest.processing.len();
    let elsewhere = tables.in_flight_elsewhere(&plugin.manifest.name, &round.job.key);
    // A dry run changes no object, so it uses up no limit that jobs share.
    let shared = if round.dry_run { usize::MAX } else { plugin.targets_in_flight() };
    let of_all = elsewhere.room(own, shared);
    let of_job = plugin.targets_of_one_job().min(spec.policy.most_in_flight(stored.state.targets.len()));
    let of_job = of_job.saturating_sub(own);
    StartAdmission::Open(StartLimit { most: of_all.min(of_job), by_others: of_all < of_job })
}

/// Records the targets that this round starts, before another job counts the unavailable targets.
pub(super) fn note_starts(
    round: &Round<'_>,
    plan: &Plan,
    stored: &StoredState,
    decisions: &Decisions,
    tables: &mut Tables,
) {
    if round.dry_run {
        return;
    }
    // The other targets were recorded when they started, or when the term read them.
    let at_work = plan.at_work(stored, decisions);
    for (index, _) in at_work.filter(|(index, _)| stored.durable.pending.contains(index)) {
        let object = stored.state.object(&round.job.key.namespace, index);
        tables.note_disrupted(&round.job.key, index, &object, round.second());
    }
}

/// Records the number of the job's targets in flight, and whether the job waits for others to have fewer in flight.
pub(super) fn note_in_flight(
    round: &Round<'_>,
    plan: &Plan,
    stored: &StoredState,
    decisions: &Decisions,
    tables: &mut Tables,
) {
    let serving = round.serving().map(|plugin| &plugin.manifest.name);
    // Targets of a plugin that does not serve for a while are still in flight.
    if let Some(plugin) = serving.or(stored.state.plugin.as_ref().map(|plugin| &plugin.name)) {
        let starts = plan.visits.iter().filter(|(index, _)| decisions.latest.pending.contains(index)).count();
        let in_flight = if round.dry_run { 0 } else { decisions.in_flight(stored).saturating_add(starts) };
        tables.note_in_flight(plugin, &round.job.key, in_flight);
        if plan.lacks_capacity {
            tables.waits_for_capacity(plugin, &round.job.key);
        }
    }
    if !plan.lacks_capacity && !plan.must_wait {
        tables.needs_no_capacity(&round.job.key);
    }
}

/// Returns the ended targets with tasks, with the UIDs of their objects. The outputs of their tasks go with the job.
pub(super) fn outputs_left(stored: &StoredState) -> BTreeMap<u32, String> {
    let had_tasks =
        |target: &TargetState| target.progress.terminal() && !target.owes_release() && may_have_pods(target);
    let uid = |index: u32| stored.state.target(index).and_then(|target| target.uid.clone()).unwrap_or_default();
    indexes(&stored.state.targets, had_tasks).into_iter().map(|index| (index, uid(index))).collect()
}

/// Plans one round. Takes back the waiting write batches of its targets. A target with a batch in flight is skipped,
/// because the result makes it due.
pub(super) fn plan(
    round: &Round<'_>,
    memory: &mut JobMemory,
    admission: StartAdmission,
    queue: &mut WriteQueue,
) -> Plan {
    let mut plan = Plan::default();
    if admission == StartAdmission::Shut {
        plan.requeue_by(after(round.now, READ_AGAIN));
        return Plan { admits_nothing: true, ..plan };
    }
    if queue.has_job_batch(&round.job.uid) {
        return Plan { must_wait: true, ..plan };
    }
    memory.work.take_due(round.now);
    let states = TargetStates { stored: &memory.stored, decisions: &memory.decisions, targets: &memory.targets };
    // The changed targets in flight come first, in turn.
    let ChangedTargets { mut batch, room, after_record } = changed_targets(round, states, &mut memory.work, queue);
    memory.decisions.after_record.extend(after_record);
    if !memory.work.dirty.is_empty() {
        plan.requeue_by(round.now);
    }
    let starts = starts(round, memory, admission, queue, &mut plan);
    let most = match round.deleting() || round.pause_state.skips {
        true => usize::MAX,
        false => room.min(memory.work.batch_size().saturating_sub(batch.len())),
    };
    if starts.len() > most && room > 0 {
        plan.requeue_by(round.now);
    }
    batch.extend(starts.into_iter().take(most));
    for index in batch {
        if !queue.withdraw(&round.job.uid, index) {
            continue;
        }
        let Some(target) = round.target(index, &memory.stored) else {
            memory.targets.known.remove(&index);
            continue;
        };
        let over_budget = memory.work.over_budget.map(|(until, _)| until);
        match plan_target(&target, &memory.stored, &mut memory.targets, over_budget, &mut plan) {
            PlanStep::Planned => {}
            PlanStep::Reads => memory.work.reads_for(index),
            PlanStep::Decided(state) => {
                memory.decisions.after_record.insert(index);
                let (writes, events) = (Vec::new(), Vec::new());
                let decided = Decided { state, writes, made_as: None, events, priority: Priority::First };
                memory.decisions.decide(index, decided, &mut memory.targets);
            }
        }
    }
    memory.work.live_reads = std::mem::take(&mut plan.reads);
    plan.job_is_quiet = queue.entries(&round.job.uid) == 0;
    if plan.job_is_quiet && !memory.work.deferred.is_empty() {
        // This round withdrew the last batches, so no result will bring the next round.
        plan.requeue_by(round.now);
    }
    plan
}

/// The changed targets of a round.
struct ChangedTargets {
    /// The targets in flight that the round works on.
    batch: BTreeSet<u32>,
    /// The number of further targets that may have write batches.
    room: usize,
    /// The targets to visit once their decisions are durable.
    after_record: BTreeSet<u32>,
}

/// Removes the changed targets from the work of the next round, at most a batch, and returns them. Targets without room
/// for their write batches wait in `work.deferred`.
fn changed_targets(
    round: &Round<'_>,
    states: TargetStates<'_>,
    work: &mut RoundWork,
    queue: &WriteQueue,
) -> ChangedTargets {
    let TargetStates { stored, decisions, targets } = states;
    let mut room = MOST_BATCHES.saturating_sub(queue.entries(&round.job.uid));
    let (mut batch, mut after_record) = (BTreeSet::new(), BTreeSet::new());
    let full = work.batch_size();
    while batch.len() < full
        && let Some(index) = work.next_dirty()
    {
        let live = stored.durable.processing.contains(&index) || targets.releasing.contains(&index);
        let over = |decided: &Decided| {
            let recorded = stored.state.target(index).is_some_and(TargetState::attempt_over);
            decided.state.progress.terminal() || decided.state.between_attempts() && !recorded
        };
        let ends = decisions.decided.get(&index).is_some_and(over);
        if live && !ends {
            let follows = targets.known.get(&index).is_some_and(|known| known.writes_its_end);
            if follows && round.may_act() && queue.has_batch(&round.job.uid, index) {
                // The release comes after the writes that were proposed with the target's end. Their result brings that
                // visit.
                continue;
            }
            // A target with a write batch needs no further capacity, because the round takes its batch back.
            if !queue.has_batch(&round.job.uid, index) {
                let Some(less) = room.checked_sub(1) else {
                    // All targets that may have write batches have one. Their results bring the next round.
                    work.deferred.insert(index);
                    continue;
                };
                room = less;
            }
            batch.insert(index);
        } else if decisions.decided.contains_key(&index) {
            after_record.insert(index);
        }
    }
    ChangedTargets { batch, room, after_record }
}

/// Returns the targets to start now. If the pace of records forbids starts now, returns only the targets whose live
/// reads this round has.
fn starts(
    round: &Round<'_>,
    memory: &JobMemory,
    admission: StartAdmission,
    queue: &WriteQueue,
    plan: &mut Plan,
) -> Vec<u32> {
    let mut may_start = startable(round, memory, admission, queue, plan);
    if may_start.is_empty() {
        return may_start;
    }
    let is_quiet = queue.entries(&round.job.uid) == 0;
    let write_at = urgent_write_at(round, &memory.stored, &memory.reports, is_quiet);
    if let Some(write_at) = write_at.filter(|write_at| *write_at > round.now) {
        plan.requeue_by(write_at);
        // A live read for a target counts only in this round.
        may_start.retain(|index| round.has_read_for(*index, &memory.stored));
    }
    may_start
}

/// Returns the pending targets that may start: at most `partition`, together with those ever started. If the job is
/// deleted or skips targets, returns all pending targets, because they end then.
fn startable(
    round: &Round<'_>,
    memory: &JobMemory,
    admission: StartAdmission,
    queue: &WriteQueue,
    plan: &mut Plan,
) -> Vec<u32> {
    let free = |index: &&u32| {
        let waits = |known: &TargetMemory| {
            known.waits_for_object && !known.changed_by_others || known.read_at.is_some_and(|time| time > round.now)
        };
        !memory.decisions.decided.contains_key(index) && !memory.targets.known.get(index).is_some_and(waits)
    };
    if round.deleting() || round.pause_state.skips && !matches!(admission, StartAdmission::Shut) {
        return memory
            .stored
            .durable
            .pending
            .iter()
            .filter(|index| !memory.decisions.decided.contains_key(index))
            .copied()
            .collect();
    }
    if admission == StartAdmission::Unread && !memory.stored.durable.pending.is_empty() {
        plan.requeue_by(after(round.now, READ_AGAIN));
    }
    let StartAdmission::Open(StartLimit { most, by_others }) = admission else { return Vec::new() };
    if queue.waiting(&round.job.uid) >= ENOUGH_WAITING {
        return Vec::new();
    }
    let started = memory.stored.state.targets.len().saturating_sub(memory.stored.durable.pending.len());
    let allowed = round.valid().and_then(|spec| spec.partition).map_or(usize::MAX, |partition| partition as usize);
    let eligible = memory.stored.durable.pending.iter().take(allowed.saturating_sub(started));
    let room = unavailable_capacity(round, &memory.stored, &memory.decisions, &memory.targets);
    let found = memory.targets.availability.within(room, eligible.filter(free).copied(), BATCH + 1);
    if found.is_empty() {
        return found;
    }
    if let Some((until, _)) = memory.work.over_budget {
        plan.over_budget_targets += found.len();
        plan.requeue_by(until);
        return Vec::new();
    }
    if found.len() > most && by_others {
        // If the job's own limit applies, an end of its own target brings the next round.
        plan.lacks_capacity = true;
        plan.requeue_by(after(round.now, FULL_AGAIN));
    }
    found.into_iter().take(most.min(ranges_capacity(&memory.decisions))).collect()
}

/// The result of planning one target.
enum PlanStep {
    /// The plan has all that the target needs in this round.
    Planned,
    /// The target needs the next round, which has the answers of its live reads.
    Reads,
    /// The host must record this state, without a plugin call.
    Decided(TargetState),
}

/// Plans what a target needs. A target whose plugin is over budget until `over_budget` may have to wait.
fn plan_target(
    target: &Target<'_>,
    stored: &StoredState,
    targets: &mut Targets,
    over_budget: Option<Timestamp>,
    plan: &mut Plan,
) -> PlanStep {
    let (round, index) = (target.round, target.index);
    let mut known = targets.known.remove(&index).unwrap_or_default();
    known.read_at = None;
    // A wait would lose the answers of the target's live reads.
    let may_wait = stored.durable.processing.contains(&index) && known.live_reads.is_empty();
    known.over_budget_until = over_budget.filter(|_| may_wait);
    let next_step = target.next_step(&mut known);
    plan.over_budget_targets += usize::from(known.over_budget_until.is_some() && matches!(next_step, NextStep::Wait));
    plan.worked_on.push(index);
    let mut worked_on = PlanStep::Planned;
    match next_step {
        NextStep::Wait => {}
        NextStep::Read(wanted) => {
            // Reads that failed wait a little; new reads are made at once.
            if wanted.iter().any(|read| round.live.failed.contains_key(read)) {
                known.read_at = Some(after(round.now, FAILED_READ_AGAIN));
            } else {
                worked_on = PlanStep::Reads;
            }
            plan.requeue_by(known.read_at.unwrap_or(round.now));
            plan.reads.extend(wanted);
        }
        NextStep::Set(next) => worked_on = PlanStep::Decided(next),
        NextStep::Invalidate(write) => plan.invalidations.push(invalidate(target, write, stored.state.epoch)),
        NextStep::Apply(update) => plan.updates_without_call.push((index, *update)),
        NextStep::Visit(visit) => plan.visits.push((index, *visit)),
    }
    targets.note_lifecycle(index, known.lifecycle.as_ref());
    targets.known.insert(index, known);
    worked_on
}

fn invalidate(target: &Target<'_>, write: Write, epoch: i64) -> WriteBatch {
    WriteBatch {
        job: target.round.job.clone(),
        index: Some(target.index),
        target_uid: target.stored.uid.clone().unwrap_or_default(),
        attempt: target.stored.attempt,
        epoch,
        priority: Priority::Invalidate,
        writes: vec![write],
        made_as: None,
        events: Vec::new(),
        since: None,
        dry_run: false,
    }
}
