//! The targets that a round works on. `target.rs` says what each of them needs.
//!
//! Takes the memory and the results of writes; yields a [`Plan`]. May not examine every target: a round costs only the
//! targets that changed, are due or may start. Source: docs/operationjob.md 3.1, 3.4.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::cluster::live_reads::LiveRead;
use crate::cluster::writes::{Entry, EventNote, Priority, Write};
use crate::job::state::{Progress, TargetState};
use crate::job::time::after;
use crate::round::availability::{self, within_bound};
use crate::round::charge::{charge_writes, count_waiting};
use crate::round::context::{Round, Target};
use crate::round::decided::Decided;
use crate::round::events::new_events;
use crate::round::exclusive::{give_back, take_pods};
use crate::round::judge::Verdict;
use crate::round::memory::JobMemory;
use crate::round::pace::soonest_slot;
use crate::round::refresh::{Refresh, note_task_pods, reindex};
use crate::round::results::take_results;
use crate::round::room::ranges_room;
use crate::round::target::{Need, PlannedVisit};
use crate::round::target_memory::TargetMemory;
use crate::round::tasks::may_have_pods;
use crate::shared::tables::{SharedTables, Tables, lock};
use crate::shared::write_queue::{ENOUGH_WAITING, MOST_ENTRIES, WriteQueue};

/// Most targets of one round, so that one huge job never keeps the others waiting: one record's worth.
pub const BATCH: usize = 250;
/// Wait for the other jobs of the namespace to be read.
const READ_AGAIN: SignedDuration = SignedDuration::from_millis(200);
/// Wait after live reads that the API server did not answer.
const FAILED_READ_AGAIN: SignedDuration = SignedDuration::from_secs(2);
/// Wait while other jobs' targets use all that a plugin may have in flight.
const FULL_AGAIN: SignedDuration = SignedDuration::from_secs(1);

/// The work of a round on the targets of a job.
#[derive(Debug, Default)]
pub struct Plan {
    /// Visits, in order.
    pub visits: Vec<(u32, PlannedVisit)>,
    /// Verdicts that need no call.
    pub settled: Vec<(u32, Verdict)>,
    /// Patches that only bump a resourceVersion; nothing has to be durable first.
    pub bumps: Vec<Entry>,
    /// The targets that the round works on.
    pub turned: Vec<u32>,
    /// No write of the job waits or is on the wire.
    pub job_is_quiet: bool,
    /// Nothing is decided in this round: a write of the job itself is on its way.
    pub rests: bool,
    /// Targets that wait because their plugin is in debt.
    pub in_debt: usize,
    /// Targets would start if other jobs of the plugin had fewer in flight.
    pub lacks_room: bool,
    /// No target may be visited in this round.
    pub shut: bool,
    /// Time of the next round if nothing changes before.
    pub requeue: Option<Timestamp>,
}

impl Plan {
    /// Schedules the next round at `time` or before.
    pub fn come_back(&mut self, time: Timestamp) {
        self.requeue = Some(self.requeue.map_or(time, |other| other.min(time)));
    }

    /// The targets of the round that are at work after it, or would be, with their states.
    pub(super) fn at_work<'a>(&'a self, memory: &'a JobMemory) -> impl Iterator<Item = (u32, &'a TargetState)> {
        let visits = self.visits.iter().map(|(index, visit)| (*index, &visit.state));
        let settled = self.settled.iter().filter_map(|(index, verdict)| Some((*index, verdict.state.as_ref()?)));
        let next: BTreeMap<u32, &TargetState> = visits.chain(settled).collect();
        let all = self
            .turned
            .iter()
            .filter_map(move |index| Some((*index, next.get(index).copied().or_else(|| memory.latest(*index))?)));
        all.filter(|(_, state)| state.progress == Progress::Processing)
    }

    /// Notes that the plugin was called for the first `made` of the visits. If the time of the round was up then, the next
    /// rounds have fewer targets, so that nothing is read live for a target that is not visited, and the others come first.
    pub fn visits_made(&self, made: usize, memory: &mut JobMemory) {
        let left = self.visits.get(made..).unwrap_or_default();
        let Some((first, _)) = left.first() else {
            // A round that only asks for live reads says nothing of the plugin.
            if made > 0 || memory.live_reads.is_empty() {
                memory.batch = memory.batch.map(|batch| batch + batch / 2 + 1).filter(|batch| *batch < BATCH);
            }
            return;
        };
        memory.batch = Some(made.max(1));
        memory.turn = *first;
        // One that has not started is found among those that may start.
        memory.dirty.extend(left.iter().map(|(index, _)| index));
    }
}

impl JobMemory {
    /// Takes the next in turn of the targets to work on.
    pub(super) fn next_dirty(&mut self) -> Option<u32> {
        while let Some(index) = self.reading.pop_first() {
            if self.dirty.remove(&index) {
                return Some(index);
            }
        }
        let index = self.dirty.range(self.turn..).next().or(self.dirty.first()).copied()?;
        self.dirty.remove(&index);
        self.turn = index.saturating_add(1);
        Some(index)
    }

    /// Makes a target due in the next round, which has the answers of its live reads.
    pub(super) fn reads_for(&mut self, index: u32) {
        self.dirty.insert(index);
        self.reading.insert(index);
    }
}

/// Permission to start and visit targets in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StartGate {
    /// At most this many targets may be started, and whether other jobs bound that.
    Open(usize, bool),
    /// Those in flight may be visited, none may start: no valid spec, no plugin, or a namespace without the label.
    NoStarts,
    /// The same, until this term has read all jobs of the namespace, and for nodes those of all: one of them may have claimed
    /// what a target needs, or be at work on it.
    Unread,
    /// None may be visited: this term has not raised the job's epoch.
    Shut,
}

/// The permission of a round. A job that was read in this term no longer keeps the others of its namespace waiting.
fn start_gate(round: &Round<'_>, memory: &JobMemory, tables: &mut Tables) -> StartGate {
    let ended = memory.state.end.is_some();
    let read = memory.epoch_raised || ended;
    if read {
        tables.claims.read(&round.job.key);
    }
    // Also if another client removed the job's start time.
    let begun = memory.state.start.is_some() || memory.durable.pending.len() < memory.state.targets.len();
    if !read && begun {
        return StartGate::Shut;
    }
    if !tables.claims.may_start(round.kind, &round.job.key.namespace) {
        return StartGate::Unread;
    }
    let (Some(spec), Some(plugin)) = (round.valid(), round.serving()) else { return StartGate::NoStarts };
    if round.brakes.pause() || round.unlabelled.is_some() || memory.selecting.freezing {
        return StartGate::NoStarts;
    }
    let own = memory.latest.processing.len();
    let elsewhere = tables.in_flight_elsewhere(&plugin.manifest.name, &round.job.key);
    // What is done to no pod uses up no limit that jobs share.
    let shared = if round.dry_run { usize::MAX } else { plugin.targets_in_flight() };
    let of_all = elsewhere.room(own, shared);
    let of_job = plugin.targets_of_one_job().min(spec.policy.most_in_flight(memory.state.targets.len()));
    let of_job = of_job.saturating_sub(own);
    StartGate::Open(of_all.min(of_job), of_all < of_job)
}

/// The first half of a round, up to the plugin calls: takes results, and plans. Returns the events that follow from the
/// results.
pub fn prepare(
    round: &Round<'_>,
    memory: &mut JobMemory,
    refreshed: Refresh,
    tables: &SharedTables,
    queue: &mut WriteQueue,
) -> (Plan, Vec<EventNote>) {
    let digest = round.serving().map(|plugin| &plugin.digest);
    lock(tables).note_owner(&round.job.key, round.owner());
    charge_writes(round, memory, &mut lock(tables));
    let events = take_results(memory, &round.job, round.action());
    let mut guard = lock(tables);
    let own = &mut *guard;
    let before = std::mem::replace(&mut memory.brakes, round.brakes);
    if std::mem::take(&mut memory.edited) || round.brakes.tighter_than(before) {
        let starts = memory.take_back_starts();
        give_back(round, &starts, memory, own);
        availability::note_ends(round, &starts, memory, own);
    }
    if matches!(refreshed, Refresh::Reloaded | Refresh::Overtaken) || memory.indexed_for.as_ref() != digest {
        reindex(round, memory, own);
        memory.turn_to_all();
    }
    if std::mem::take(&mut memory.looks_for_task_pods) {
        note_task_pods(round, memory);
    }
    if round.deleting() && !std::mem::replace(&mut memory.outputs_go, true) {
        turn_to_outputs(memory);
    }
    let gate = start_gate(round, memory, own);
    availability::refresh(round, memory, own);
    // Where the unavailable targets are bounded, locked until the starts are noted: no other job counts in between.
    let held = memory.availability.is_kept().then_some(guard);
    let mut plan = plan(round, memory, gate, queue);
    let tables = &mut *held.unwrap_or_else(|| lock(tables));
    count_waiting(round, plan.in_debt, memory, tables);
    take_pods(round, &mut plan, memory, tables);
    availability::note_starts(round, &plan, memory, tables);
    let serving = round.serving().map(|plugin| &plugin.manifest.name);
    // Those of a plugin that does not serve for a while are still in flight.
    if let Some(plugin) = serving.or(memory.state.plugin.as_ref().map(|plugin| &plugin.name)) {
        let starts = plan.visits.iter().filter(|(index, _)| memory.latest.pending.contains(index)).count();
        let in_flight = if round.dry_run { 0 } else { memory.in_flight().saturating_add(starts) };
        tables.note_in_flight(plugin, &round.job.key, in_flight);
        if plan.lacks_room {
            tables.waits_for_room(plugin, &round.job.key);
        }
    }
    if !plan.lacks_room && !plan.rests {
        tables.needs_no_room(&round.job.key);
    }
    (plan, new_events(events, memory))
}

/// Makes the targets that have ended and had tasks due: the outputs of those go with the job.
fn turn_to_outputs(memory: &mut JobMemory) {
    let had_tasks =
        |target: &TargetState| target.progress.terminal() && !target.owes_release() && may_have_pods(target);
    for index in crate::job::state::indexes(&memory.state.targets, had_tasks) {
        let uid = memory.state.target(index).and_then(|target| target.uid.clone());
        memory.still_held(index, uid.unwrap_or_default());
    }
}

/// Plans one round. Takes back the waiting entries of its targets; a busy target is skipped, since its result makes it
/// due.
fn plan(round: &Round<'_>, memory: &mut JobMemory, gate: StartGate, queue: &mut WriteQueue) -> Plan {
    let mut plan = Plan::default();
    if gate == StartGate::Shut {
        plan.come_back(after(round.now, READ_AGAIN));
        return Plan { shut: true, ..plan };
    }
    if queue.has_job_entry(&round.job.uid) {
        return Plan { rests: true, ..plan };
    }
    memory.dirty.extend(memory.agenda.take_due(round.now));
    memory.dirty.append(&mut memory.crowded);
    let mut reads = BTreeSet::new();
    for index in choose(round, memory, gate, queue, &mut plan) {
        if queue.withdraw(&round.job.uid, index) {
            turn_to(index, round, memory, &mut plan, &mut reads);
        }
    }
    memory.live_reads = reads;
    plan.job_is_quiet = queue.entries(&round.job.uid) == 0;
    if plan.job_is_quiet && !memory.crowded.is_empty() {
        // This round took the last entries back: no result will bring the next one.
        plan.come_back(round.now);
    }
    plan
}

/// The targets of this round, at most a batch: those in flight that changed, in turn, then those that may start.
fn choose(
    round: &Round<'_>,
    memory: &mut JobMemory,
    gate: StartGate,
    queue: &WriteQueue,
    plan: &mut Plan,
) -> BTreeSet<u32> {
    let mut room = MOST_ENTRIES.saturating_sub(queue.entries(&round.job.uid));
    let mut batch: BTreeSet<u32> = BTreeSet::new();
    let mut left = BTreeSet::new();
    let full = memory.batch.unwrap_or(BATCH);
    while batch.len() < full
        && let Some(index) = memory.next_dirty()
    {
        let live = memory.durable.processing.contains(&index) || memory.releasing.contains(&index);
        let over = |decided: &Decided| {
            let recorded = memory.state.target(index).is_some_and(TargetState::attempt_over);
            decided.state.progress.terminal() || decided.state.between_attempts() && !recorded
        };
        let ends = memory.decided.get(&index).is_some_and(over);
        if live && !ends {
            let follows = memory.targets.get(&index).is_some_and(|known| known.writes_its_end);
            if follows && round.may_act() && queue.has_entry(&round.job.uid, index) {
                // It is released after what was proposed with its end: the result brings that visit.
                continue;
            }
            // One that has an entry needs no room for another: its own is taken back.
            if !queue.has_entry(&round.job.uid, index) {
                let Some(less) = room.checked_sub(1) else {
                    // All targets that may have entries have one: their results cause the next round.
                    left.insert(index);
                    continue;
                };
                room = less;
            }
            batch.insert(index);
        } else if memory.decided.contains_key(&index) {
            memory.after_record.insert(index);
        }
    }
    if !memory.dirty.is_empty() {
        plan.come_back(round.now);
    }
    memory.crowded.extend(left);
    let mut may_start = startable(round, memory, gate, queue, plan);
    if may_start.is_empty() {
        return batch;
    }
    if let Some(slot) = soonest_slot(round, memory).filter(|slot| *slot > round.now) {
        plan.come_back(slot);
        // What was read for a target is known in this round only.
        may_start.retain(|index| round.has_read_for(*index, memory));
    }
    let most =
        if round.deleting() || round.brakes.skips { usize::MAX } else { room.min(full.saturating_sub(batch.len())) };
    if may_start.len() > most && room > 0 {
        plan.come_back(round.now);
    }
    batch.extend(may_start.into_iter().take(most));
    batch
}

/// Pending targets that may start: together with those ever started, at most `partition`; all if the job is deleted,
/// since they end then.
fn startable(round: &Round<'_>, memory: &JobMemory, gate: StartGate, queue: &WriteQueue, plan: &mut Plan) -> Vec<u32> {
    let free = |index: &&u32| {
        let waits = |known: &TargetMemory| {
            known.waits_for_object && !known.news || known.read_at.is_some_and(|time| time > round.now)
        };
        !memory.decided.contains_key(index) && !memory.targets.get(index).is_some_and(waits)
    };
    if round.deleting() || round.brakes.skips && !matches!(gate, StartGate::Shut) {
        return memory.durable.pending.iter().filter(|index| !memory.decided.contains_key(index)).copied().collect();
    }
    if gate == StartGate::Unread && !memory.durable.pending.is_empty() {
        plan.come_back(after(round.now, READ_AGAIN));
    }
    let StartGate::Open(most, by_others) = gate else { return Vec::new() };
    if queue.waiting(&round.job.uid) >= ENOUGH_WAITING {
        return Vec::new();
    }
    let started = memory.state.targets.len().saturating_sub(memory.durable.pending.len());
    let allowed = round.valid().and_then(|spec| spec.partition).map_or(usize::MAX, |partition| partition as usize);
    let eligible = memory.durable.pending.iter().take(allowed.saturating_sub(started));
    let found = within_bound(round, memory, eligible.filter(free).copied(), BATCH + 1);
    if found.is_empty() {
        return found;
    }
    if let Some((until, _)) = memory.debt {
        plan.in_debt += found.len();
        plan.come_back(until);
        return Vec::new();
    }
    if found.len() > most && by_others {
        // Of an own end the job hears.
        plan.lacks_room = true;
        plan.come_back(after(round.now, FULL_AGAIN));
    }
    found.into_iter().take(most.min(ranges_room(memory))).collect()
}

fn turn_to(index: u32, round: &Round<'_>, memory: &mut JobMemory, plan: &mut Plan, reads: &mut BTreeSet<LiveRead>) {
    let mut known = memory.targets.remove(&index).unwrap_or_default();
    let Some(target) = round.target(index, memory) else { return };
    known.read_at = None;
    // What was read live for it would be lost.
    let may_wait = memory.durable.processing.contains(&index) && known.live_reads.is_empty();
    known.debt_until = memory.debt.map(|(until, _)| until).filter(|_| may_wait);
    let need = target.need(&mut known);
    plan.in_debt += usize::from(known.debt_until.is_some() && matches!(need, Need::Rest));
    let bump = |write| bump(round, &target, write, memory.state.epoch);
    plan.turned.push(index);
    let (mut set, mut again) = (None, false);
    match need {
        Need::Rest => {}
        Need::Read(wanted) => {
            // Reads that failed wait a little; fresh ones are made at once.
            let failed = wanted.iter().any(|read| round.live.failed.contains_key(read));
            known.read_at = failed.then(|| after(round.now, FAILED_READ_AGAIN));
            again = !failed;
            plan.come_back(known.read_at.unwrap_or(round.now));
            reads.extend(wanted);
        }
        Need::Set(next) => set = Some(next),
        Need::Bump(write) => plan.bumps.push(bump(write)),
        Need::Settled(verdict) => plan.settled.push((index, *verdict)),
        Need::Visit(visit) => plan.visits.push((index, *visit)),
    }
    memory.note_lifecycle(index, known.lifecycle.as_ref());
    memory.targets.insert(index, known);
    if again {
        memory.reads_for(index);
    }
    if let Some(state) = set {
        memory.after_record.insert(index);
        let (writes, events) = (Vec::new(), Vec::new());
        memory.decide(index, Decided { state, writes, events, priority: Priority::First });
    }
}

fn bump(round: &Round<'_>, target: &Target<'_>, write: Write, epoch: i64) -> Entry {
    Entry {
        job: round.job.clone(),
        index: Some(target.index),
        target_uid: target.stored.uid.clone().unwrap_or_default(),
        attempt: target.stored.attempt,
        epoch,
        priority: Priority::Bump,
        writes: vec![write],
        events: Vec::new(),
        since: None,
        dry_run: false,
    }
}
