//! The record of a round, and the writes and events that may follow it.
//!
//! Takes the plan and the outcomes of visits; yields a [`Decision`]: one [`Record`], the write batches that may follow
//! it, the events, and the next due time. The host writes a record soon if mutations wait for it, and limits the rate
//! of all other records. Source: docs/operationjob.md 3.1, 3.6, 3.12, 3.15.

use std::collections::BTreeSet;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_api::{OperationJobStatus, PluginBinding, Selection};

use crate::object::time::{after, write_time};
use crate::operation_job::cleanup::cleanup;
use crate::operation_job::round::conditions::{conditions, moved};
use crate::operation_job::round::context::Round;
use crate::operation_job::round::decided::{Commit, Decided};
use crate::operation_job::round::drain::is_blocked;
use crate::operation_job::round::events::new_events;
use crate::operation_job::round::exclusive::give_back;
use crate::operation_job::round::finalize::{Finalize, finalize, finalizer};
use crate::operation_job::round::held_back::held_back;
use crate::operation_job::round::job_events::{job_events, rebound};
use crate::operation_job::round::memory::{Decisions, Housekeeping, JobMemory, RoundWork, StoredState, Targets};
use crate::operation_job::round::operation_records::record_number_of;
use crate::operation_job::round::pace::{
    awaited_write_at, final_write_at, or_task_write_at, routine_write_at, urgent_write_at,
};
use crate::operation_job::round::plan::Plan;
use crate::operation_job::round::starts::bounds::note_ends;
use crate::operation_job::round::starts::memory::PauseState;
use crate::operation_job::round::status::{self, Summary};
use crate::operation_job::round::visit::TargetUpdate;
use crate::operation_job::selected::FROM_SELECTOR;
use crate::operation_job::shared::tables::{SharedTables, Tables, lock};
use crate::operation_job::state::Progress;
use crate::plugin::manifest::TargetKind;
use crate::requests::writes::{EventNote, MadeAs, PluginAccount, Priority, Record, Write, WriteBatch};

/// The delay before the host retries the end of a deleted job, while it has not read all other jobs of the namespace.
const OTHERS_UNREAD: SignedDuration = SignedDuration::from_millis(200);

/// The record of a round, and the writes and events that may follow it.
#[derive(Debug, Default)]
pub struct Decision {
    /// The documents that must be durable first.
    pub record: Record,
    /// The changes of the memory once the record is durable.
    pub commit: Commit,
    /// The write batches that may follow the record.
    pub entries: Vec<WriteBatch>,
    /// Time of the next round if nothing changes before.
    pub requeue_at: Option<Timestamp>,
    /// True if the host may decide nothing before `requeue_at`, or before a change.
    pub must_wait: bool,
}

impl Decision {
    fn requeue_by(&mut self, time: Timestamp) {
        self.requeue_at = Some(self.requeue_at.map_or(time, |other| other.min(time)));
    }
}

/// The time that the write of a record took.
#[derive(Clone, Copy, Debug)]
pub struct WriteSpan {
    /// Start of the write.
    pub began: Timestamp,
    /// End of the write.
    pub ended: Timestamp,
}

/// Updates the memory with a durable decision. Returns the events to emit.
pub fn commit(
    round: &Round<'_>,
    commit: Commit,
    memory: &mut JobMemory,
    tables: &SharedTables,
    span: WriteSpan,
) -> Vec<EventNote> {
    let indexes: BTreeSet<u32> = commit.worked_on.iter().chain(commit.targets.keys()).copied().collect();
    let (mut events, wrote) = (commit.events.clone(), commit.status.is_some());
    memory.committed(commit, span.began, span.ended);
    if let Some(plugin) = round.serving() {
        let in_flight = if round.dry_run { 0 } else { memory.decisions.in_flight(&memory.stored) };
        lock(tables).note_in_flight(&plugin.manifest.name, &round.job.key, in_flight);
    }
    {
        let tables = &mut lock(tables);
        if let Some((at, took)) = memory.reports.written.filter(|_| wrote) {
            let owner = tables.owner_of(&round.job.key);
            memory.reports.record_allowed_at = Some(tables.record_rate_limit.wrote(owner, &round.job.key, at, took));
        }
        let woken = give_back(round, &indexes, memory.states(), tables);
        memory.targets.woken.extend(woken);
        memory.targets.woken.extend(note_ends(round, &indexes, &memory.stored, &memory.decisions, tables));
    }
    // This also covers a record whose reply was lost, because the host has read the job since.
    let summary = memory.stored.summary();
    let before = memory.reports.last_reported.replace(summary).unwrap_or(summary);
    events.extend(round.events().progress(before, summary));
    for index in indexes {
        let due = memory.targets.due(
            index,
            round.bounds(index, &memory.stored, &memory.decisions, &memory.targets),
            &memory.stored,
        );
        let ends = memory.decisions.decided.get(&index).is_some_and(|decided| decided.state.attempt_over());
        memory.work.schedule(index, due.filter(|_| !ends));
    }
    new_events(events, &memory.stored, &mut memory.reports)
}

/// Returns the epoch that this round records: one more than the stored one, until the term has raised it.
fn epoch_of(stored: &StoredState) -> i64 {
    let epoch = stored.state.epoch.max(stored.operation_records.highest_epoch());
    if stored.epoch_raised || stored.state.end.is_some() { epoch } else { epoch.saturating_add(1) }
}

/// Decides the record, the writes and the events.
pub(super) fn decide(
    round: &Round<'_>,
    plan: Plan,
    updates: Vec<(u32, TargetUpdate)>,
    memory: &mut JobMemory,
    tables: &Tables,
) -> Decision {
    let mut decision = Decision {
        requeue_at: plan.requeue_at,
        must_wait: plan.must_wait || plan.admits_nothing,
        entries: plan.invalidations,
        commit: Commit { worked_on: plan.worked_on, ..Commit::default() },
        ..Decision::default()
    };
    if plan.must_wait {
        return decision;
    }
    let epoch = epoch_of(&memory.stored);
    for (index, mut update) in updates {
        if note_update(index, &mut update, &memory.stored, &mut memory.work, &mut memory.targets) {
            decision.requeue_by(round.now);
        }
        match outcome(round, index, update, &memory.stored, epoch) {
            Outcome::Undecided => {}
            Outcome::Record { decided, is_awaited } => {
                memory.decisions.after_record.extend(is_awaited.then_some(index));
                memory.decisions.decide(index, decided, &mut memory.targets);
            }
            Outcome::Write(decided) => {
                memory.decisions.withdraw(index, &memory.stored, &mut memory.targets);
                decision.entries.push(entry(round, index, decided, epoch));
            }
            Outcome::Unchanged { events, is_over } => {
                memory.decisions.withdraw(index, &memory.stored, &mut memory.targets);
                decision.commit.events.extend(events);
                if is_over {
                    memory.targets.note_released(index, &mut memory.work);
                    memory.housekeeping.requeue_now |= memory.is_idle();
                }
            }
        }
    }
    if plan.job_is_quiet && decision.entries.is_empty() && memory.decisions.urgent.is_empty() {
        let is_idle = memory.is_idle();
        let write = job_write(round, &memory.stored, &mut memory.housekeeping, is_idle, tables);
        decision.entries.extend(write.map(|write| job_batch(round, write, epoch)));
    }
    let waits = frees_capacity(round, &memory.stored, &memory.decisions)
        && !std::mem::replace(&mut memory.decisions.waits_for_starts, true);
    if waits {
        // The host delays each record by at most one round, so that a series of ends cannot delay the record for ever.
        decision.requeue_by(round.now);
    }
    let is_quiet = plan.job_is_quiet && decision.entries.is_empty();
    if !waits && due(round, memory, is_quiet, &mut decision) {
        record_all(round, memory, epoch, &mut decision);
    }
    for entry in &mut decision.entries {
        // The round planned the invalidation before it knew the epoch of this record.
        entry.epoch = epoch;
        entry.since = memory.reports.since;
    }
    decision
}

/// Adds the record of all decisions, with the events and the write batches that follow the record.
fn record_all(round: &Round<'_>, memory: &JobMemory, epoch: i64, decision: &mut Decision) {
    let JobMemory { stored, decisions, targets, .. } = memory;
    let (record, status) = record(round, stored, decisions, targets, epoch);
    decision.commit.finalizer = record.finalizer.is_some();
    decision.commit.status = Some(status);
    decision.record = record;
    job_events(round, stored, decisions, decision);
    if decisions.selecting.freezing {
        // The frozen targets may start in the next round.
        decision.requeue_by(round.now);
    }
    decision.commit.targets = decisions.decided.clone();
    let follow = decisions.decided.iter().filter(|(_, decided)| !decided.writes.is_empty());
    decision.entries.extend(follow.map(|(index, decided)| entry(round, *index, decided.clone(), epoch)));
}

/// Stores the live reads and the wait reasons of an update in the memory. Returns true if the next round is due at once.
fn note_update(
    index: u32,
    update: &mut TargetUpdate,
    stored: &StoredState,
    work: &mut RoundWork,
    targets: &mut Targets,
) -> bool {
    let reads = std::mem::take(&mut update.live_reads);
    let mut is_due = !reads.is_empty();
    if is_due {
        work.live_reads.extend(reads);
        work.reads_for(index);
    }
    let wait = targets.known.get(&index).and_then(|known| known.lifecycle.clone());
    targets.note_lifecycle(index, wait.as_ref());
    let Some(state) = update.state.as_ref().filter(|_| stored.state.target(index).is_some()) else { return is_due };
    if !state.progress.terminal() && targets.known.get(&index).is_some_and(|known| known.failure.is_some()) {
        // The next round begins to end the target.
        work.dirty.insert(index);
        is_due = true;
    }
    match is_blocked(state).filter(|_| !state.attempt_over()) {
        Some(true) => drop(targets.blocked.insert(index)),
        Some(false) => drop(targets.blocked.remove(&index)),
        None => {}
    }
    is_due
}

/// The outcome of an update for the record and the writes of the round.
enum Outcome {
    /// The update decides nothing.
    Undecided,
    /// The record stores the state. The writes and events follow.
    Record {
        /// The decision.
        decided: Decided,
        /// True if a visit waits for the record.
        is_awaited: bool,
    },
    /// The writes need no record.
    Write(Decided),
    /// The state is stored already, and there is nothing to write.
    Unchanged {
        /// The events that follow the record.
        events: Vec<EventNote>,
        /// True if the target has ended and is released.
        is_over: bool,
    },
}

/// Returns the outcome of an update. A changed state becomes a decision. Writes that need no record go out at once.
fn outcome(round: &Round<'_>, index: u32, update: TargetUpdate, stored: &StoredState, epoch: i64) -> Outcome {
    let TargetUpdate { state, writes, of_plugin, events, pod_events, live_reads: _, denied: _ } = update;
    let made_as = made_as(round, of_plugin, &writes);
    let (Some(state), Some(before)) = (state, stored.state.target(index)) else { return Outcome::Undecided };
    let attempt = state.attempt;
    let events: Vec<EventNote> =
        events.into_iter().map(|event| round.events().about_target(event, index, attempt)).collect();
    let on_pod = round.target(index, stored).zip(state.uid.as_deref());
    let on_pod = on_pod.into_iter().flat_map(|(target, uid)| {
        pod_events.iter().map(move |event| round.events().on_object(event.clone(), &target, uid, attempt))
    });
    let events: Vec<EventNote> = events.into_iter().chain(on_pod).collect();
    let operated = before.started() || !before.extra.is_empty();
    let priority = if operated { Priority::Operated } else { Priority::First };
    let record_is_old =
        || stored.state.uses_records() && stored.operation_records.epoch(record_number_of(index)) < epoch;
    // The host wrote the OperationRecords, but its status write failed. Other writes wait until the status is stored.
    let unrecorded = || record_is_old() || stored.status_differs;
    if *before != state || !writes.is_empty() && unrecorded() {
        // The plugin sees new extras only after the record. Without writes, no result would start its next visit, so the
        // host requests a visit after the record.
        let is_awaited = before.extra != state.extra && writes.is_empty();
        return Outcome::Record { decided: Decided { state, writes, made_as, events, priority }, is_awaited };
    }
    if writes.is_empty() {
        let is_over =
            state.progress == Progress::Succeeded || state.progress == Progress::Failed && !state.owes_release();
        return Outcome::Unchanged { events, is_over };
    }
    Outcome::Write(Decided { state, writes, made_as, events, priority })
}

/// Returns the writes that the host makes as the account of the plugin that serves the job, if its grant names one. The decision keeps
/// the account, so that the host never makes such a write as itself, even if the plugin stops serving before the record is durable.
fn made_as(round: &Round<'_>, of_plugin: BTreeSet<usize>, writes: &[Write]) -> Option<MadeAs> {
    let grant = &round.serving()?.grant;
    let account = PluginAccount { plugin: grant.name.clone(), name: grant.account()?.to_owned() };
    let writes: BTreeSet<usize> = of_plugin.into_iter().filter(|position| *position < writes.len()).collect();
    (!writes.is_empty()).then_some(MadeAs { account, writes })
}

fn entry(round: &Round<'_>, index: u32, decided: Decided, epoch: i64) -> WriteBatch {
    WriteBatch {
        job: round.job.clone(),
        index: Some(index),
        target_uid: decided.state.uid.clone().unwrap_or_default(),
        attempt: decided.state.attempt.max(1),
        epoch,
        priority: decided.priority,
        writes: decided.writes,
        made_as: decided.made_as,
        events: decided.events,
        since: None,
        dry_run: round.dry_run,
    }
}

/// The write batch that is due for the job itself.
struct JobWrite {
    /// The writes, in order.
    writes: Vec<Write>,
    /// The event that follows them.
    event: Option<EventNote>,
}

/// Returns the writes that are due for the job itself. No write of its targets may be left.
fn job_write(
    round: &Round<'_>,
    stored: &StoredState,
    housekeeping: &mut Housekeeping,
    is_idle: bool,
    tables: &Tables,
) -> Option<JobWrite> {
    if round.deleting() && !tables.claims.ready(&round.job.key.namespace) {
        // The job may owe patches to pods of other jobs. The host knows these patches once it has read those jobs.
        housekeeping.job_write_at = Some(after(round.now, OTHERS_UNREAD));
        return None;
    }
    let finalize = finalize(round, stored, housekeeping, is_idle);
    housekeeping.job_write_at = match &finalize {
        Finalize::Later(time) => Some(*time),
        Finalize::Nothing | Finalize::Write(..) => None,
    };
    let Finalize::Write(write, event) = finalize else { return None };
    // The job makes the patches that it owes to pods of other jobs before the host removes the finalizer.
    let mut owed = if round.deleting() { cleanup(&round.job, round.store, tables) } else { Vec::new() };
    if owed.is_empty() {
        return Some(JobWrite { writes: vec![*write], event: event.map(|event| *event) });
    }
    // A refused write ends its batch. Each try begins with another write, so that a refused write does not block the
    // others.
    let tries = housekeeping.job_retry.map_or(0, |(_, tries)| tries as usize);
    let first = tries.checked_rem(owed.len()).unwrap_or(0);
    owed.rotate_left(first);
    Some(JobWrite { writes: owed, event: None })
}

fn job_batch(round: &Round<'_>, JobWrite { writes, event }: JobWrite, epoch: i64) -> WriteBatch {
    WriteBatch {
        job: round.job.clone(),
        index: None,
        target_uid: String::new(),
        attempt: 0,
        epoch,
        priority: Priority::Operated,
        writes,
        made_as: None,
        events: event.into_iter().collect(),
        since: None,
        // The time to live also applies to a dry run.
        dry_run: false,
    }
}

/// Returns true if targets have ended whose end is not recorded yet, and other targets may start in their place. The
/// starts then go into the same record.
fn frees_capacity(round: &Round<'_>, stored: &StoredState, decisions: &Decisions) -> bool {
    let Some(spec) = round.valid() else { return false };
    let ended = decisions.latest.ended() > stored.durable.ended();
    let pause_state = PauseState::of(&round.policy, decisions.counts());
    ended && !decisions.latest.pending.is_empty() && (spec.policy.bounds_starts() || pause_state != round.pause_state)
}

/// Returns true if the record must be written now. If the record is due later, the next round is due then too.
fn due(round: &Round<'_>, memory: &JobMemory, is_quiet: bool, decision: &mut Decision) -> bool {
    if memory.decisions.selecting.unanswered() {
        return false;
    }
    let ended = memory.stored.state.end.is_some();
    if !memory.stored.epoch_raised && !ended {
        return true;
    }
    let freezes = memory.decisions.selecting.freezing;
    let mends = freezes || memory.stored.status_differs || !memory.stored.operation_records.rewrite.is_empty();
    if memory.decisions.decided.is_empty()
        && !mends
        && (ended || !job_changed(round, &memory.stored, &memory.decisions, &memory.targets))
    {
        return false;
    }
    let write_at = if ends(&memory.stored, &memory.decisions) {
        or_task_write_at(round, &memory.stored, &memory.reports, final_write_at(&memory.reports))
    } else if !memory.decisions.urgent.is_empty() || freezes {
        urgent_write_at(round, &memory.stored, &memory.reports, is_quiet)
    } else if awaited(&memory.decisions) {
        or_task_write_at(round, &memory.stored, &memory.reports, awaited_write_at(&memory.reports, is_quiet))
    } else {
        routine_write_at(&memory.stored, &memory.decisions, &memory.reports)
    };
    match write_at.filter(|write_at| *write_at > round.now) {
        Some(write_at) => {
            decision.requeue_by(write_at);
            false
        }
        None => true,
    }
}

/// Returns true if the host must visit a target after the record, and the record does not end this target.
fn awaited(decisions: &Decisions) -> bool {
    let goes_on = |index| decisions.decided.get(index).is_none_or(|decided| !decided.state.progress.terminal());
    decisions.after_record.iter().any(goes_on)
}

/// Returns true if the next record ends the job: users wait for this record, and no other record follows.
fn ends(stored: &StoredState, decisions: &Decisions) -> bool {
    let latest = &decisions.latest;
    stored.state.end.is_none()
        && !decisions.decided.is_empty()
        && latest.pending.is_empty()
        && latest.processing.is_empty()
}

/// Returns true if the job's own status has changed, apart from its targets.
fn job_changed(round: &Round<'_>, stored: &StoredState, decisions: &Decisions, targets: &Targets) -> bool {
    let status = round.object.status.as_ref();
    let generation = status.and_then(|status| status.observed_generation);
    generation != Some(round.generation())
        || rebound(round, stored).is_some()
        || moved(round, stored, targets)
        || finalizer(round, stored, decisions, targets).is_some()
}

/// Builds the record. Also returns the status that the record stores.
fn record(
    round: &Round<'_>,
    stored: &StoredState,
    decisions: &Decisions,
    targets: &Targets,
    epoch: i64,
) -> (Record, OperationJobStatus) {
    let ended = stored.state.end.is_some();
    let before = round.object.status.as_ref();
    let observed = before.and_then(|status| status.observed_generation);
    let held_back = held_back(round, stored, decisions, targets);
    let summary = Summary {
        generation: observed.filter(|_| ended).unwrap_or_else(|| round.generation()),
        epoch,
        plugin: binding(round, stored, decisions),
        selection: selection(round, stored),
        conditions: match ended {
            true => stored.state.conditions.clone(),
            false => conditions(round, stored, decisions, targets, held_back.as_ref()),
        },
        waits_for: held_back.map(|held| held.word),
        counts: decisions.counts(),
        now: round.now,
    };
    let next = status::status(stored, decisions, summary);
    let version = round.object.metadata.resource_version.as_deref().unwrap_or_default();
    let operation_records = operation_records(stored, decisions, epoch);
    let record = Record {
        finalizer: finalizer(round, stored, decisions, targets),
        operation_records: status::operation_record_writes(stored, decisions, &operation_records, &round.job, epoch),
        best_effort_records: round.namespace_terminating,
        status: status::patch(before, &next, &round.job, version),
    };
    (record, next)
}

/// Returns the records to write: those of the decided targets, unless the stored record is up to date, and those to
/// rewrite.
fn operation_records(stored: &StoredState, decisions: &Decisions, epoch: i64) -> BTreeSet<u32> {
    if !stored.state.uses_records() {
        return BTreeSet::new();
    }
    let unsaid = |(index, decided): &(&u32, &Decided)| {
        stored.state.target(**index) != Some(&decided.state)
            || stored.operation_records.epoch(record_number_of(**index)) < epoch
    };
    let decided = decisions.decided.iter().filter(unsaid).map(|(index, _)| record_number_of(*index));
    decided.chain(stored.operation_records.rewrite.iter().copied()).collect()
}

/// Returns the plugin to bind. The first start binds the plugin, and a later record binds it again once the bound
/// digest is gone.
fn binding(round: &Round<'_>, stored: &StoredState, decisions: &Decisions) -> Option<PluginBinding> {
    let known = &stored.state.plugin;
    let Some(plugin) = round.serving().filter(|_| stored.state.end.is_none()) else { return known.clone() };
    // A target whose object never existed needed no plugin. A target may also start and end in one round.
    let begins = |decided: &Decided| decided.state.started() && decided.state.uid.is_some();
    (known.is_some() || decisions.decided.values().any(begins)).then(|| PluginBinding {
        name: plugin.manifest.name.clone(),
        version: plugin.manifest.version.to_string(),
        digest: plugin.digest.clone(),
    })
}

fn selection(round: &Round<'_>, stored: &StoredState) -> Option<Selection> {
    let frozen = || {
        let spec = round.valid()?;
        let source = if spec.query.is_some() { FROM_SELECTOR } else { "Targets" };
        let known = spec.query.is_none() || !stored.state.targets.is_empty();
        let digest = spec.digest.clone();
        let kind = (spec.kind == TargetKind::Node).then(|| spec.kind.word().to_owned());
        known.then(|| Selection { source: source.into(), time: write_time(round.now), digest, kind })
    };
    stored.state.selection.clone().or_else(frozen)
}
