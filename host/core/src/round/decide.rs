//! The record of a round, and the writes and events that may follow it.
//!
//! Takes the plan and the verdicts; yields a [`Decision`]: one [`Record`], the entries that may follow it, the events,
//! and the next due time. A record that mutations wait for is written soon, any other is paced. Source:
//! docs/operationjob.md 3.1, 3.6, 3.12, 3.15.

use std::collections::BTreeSet;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_api::{PluginBinding, Selection};

use crate::cluster::writes::{Entry, EventNote, Priority, Record, Write};
use crate::job::selected::FROM_SELECTOR;
use crate::job::state::Progress;
use crate::job::time::{after, write_time};
use crate::plugin::manifest::TargetKind;
use crate::round::availability::note_ends;
use crate::round::brakes::Brakes;
use crate::round::charge::charge_answers;
use crate::round::conditions::{conditions, moved};
use crate::round::context::Round;
use crate::round::decided::{Commit, Decided};
use crate::round::drain::is_blocked;
use crate::round::events::new_events;
use crate::round::exclusive::give_back;
use crate::round::finalize::{Finalize, finalize, finalizer};
use crate::round::held_back::held_back;
use crate::round::judge::Verdict;
use crate::round::memory::JobMemory;
use crate::round::pace::{awaited_slot, is_prompt, last_slot, lazy_slot, prompt_slot, soonest_slot};
use crate::round::plan::Plan;
use crate::round::refresh::index_decided;
use crate::round::shards::shard_of;
use crate::round::status::{self, Summary};
use crate::round::tell::{rebound, tell};
use crate::shared::cleanup::cleanup;
use crate::shared::tables::{SharedTables, Tables, lock};

/// Wait of the end of a deleted job for the other jobs of its namespace to be read.
const OTHERS_UNREAD: SignedDuration = SignedDuration::from_millis(200);

/// The record of a round, and the writes and events that may follow it.
#[derive(Debug, Default)]
pub struct Decision {
    /// The documents that must be durable first.
    pub record: Record,
    /// The changes of the memory once the record is durable.
    pub commit: Commit,
    /// The entries that may follow.
    pub entries: Vec<Entry>,
    /// Time of the next round if nothing changes before.
    pub requeue: Option<Timestamp>,
    /// Nothing may be decided before that time, or before a change.
    pub rests: bool,
}

impl Decision {
    fn come_back(&mut self, time: Timestamp) {
        self.requeue = Some(self.requeue.map_or(time, |other| other.min(time)));
    }
}

/// The second half of a round, after the plugin calls: decides, and updates the shared tables.
pub fn conclude(
    round: &Round<'_>,
    mut plan: Plan,
    mut verdicts: Vec<(u32, Verdict)>,
    memory: &mut JobMemory,
    tables: &SharedTables,
) -> Decision {
    let tables = &mut lock(tables);
    verdicts.extend(std::mem::take(&mut plan.settled));
    charge_answers(round, &mut verdicts, memory, tables);
    let decision = decide(round, plan, verdicts, memory, tables);
    let woken = index_decided(round, memory, &decision.commit.turned, tables);
    memory.woken.extend(woken);
    decision
}

/// Updates the memory with a durable decision, written from `began` to `now`. Returns the events to emit.
pub fn commit(
    round: &Round<'_>,
    commit: Commit,
    memory: &mut JobMemory,
    tables: &SharedTables,
    times: (Timestamp, Timestamp),
) -> Vec<EventNote> {
    let indexes: BTreeSet<u32> = commit.turned.iter().chain(commit.targets.keys()).copied().collect();
    let (mut events, wrote) = (commit.events.clone(), commit.status.is_some());
    memory.committed(commit, times.0, times.1);
    if let Some(plugin) = round.serving() {
        let in_flight = if round.dry_run { 0 } else { memory.in_flight() };
        lock(tables).note_in_flight(&plugin.manifest.name, &round.job.key, in_flight);
    }
    {
        let tables = &mut lock(tables);
        if let Some((at, took)) = memory.written.filter(|_| wrote) {
            memory.record_room_at = Some(tables.record_pace.wrote(&round.job.key, at, took));
        }
        give_back(round, &indexes, memory, tables);
        note_ends(round, &indexes, memory, tables);
    }
    // Also what a record said whose reply was lost: the job was read since.
    let standing = memory.standing();
    let before = memory.announced.replace(standing).unwrap_or(standing);
    events.extend(round.events().progress(before, standing));
    for index in indexes {
        memory.schedule(index, round.bounds(index, memory));
    }
    new_events(events, memory)
}

/// Decides the record, the writes and the events.
fn decide(
    round: &Round<'_>,
    plan: Plan,
    verdicts: Vec<(u32, Verdict)>,
    memory: &mut JobMemory,
    tables: &Tables,
) -> Decision {
    let mut decision = Decision {
        requeue: plan.requeue,
        rests: plan.rests || plan.shut,
        entries: plan.bumps,
        commit: Commit { turned: plan.turned, ..Commit::default() },
        ..Decision::default()
    };
    if plan.rests {
        return decision;
    }
    let epoch = memory.state.epoch.max(memory.shards.highest_epoch());
    let epoch = if memory.epoch_raised || memory.state.end.is_some() { epoch } else { epoch.saturating_add(1) };
    sort_out(round, verdicts, memory, epoch, &mut decision);
    if plan.job_is_quiet && decision.entries.is_empty() && memory.urgent.is_empty() {
        finalize_job(round, memory, epoch, tables, &mut decision);
    }
    let waits = makes_room(round, memory) && !std::mem::replace(&mut memory.waits_for_starts, true);
    if waits {
        // Once for each record, so that ends which follow each other do not put it off.
        decision.come_back(round.now);
    }
    if !waits && due(round, memory, &mut decision) {
        record(round, memory, epoch, &mut decision);
        tell(round, memory, &mut decision);
        if memory.selecting.freezing {
            // What it froze may start in the next round.
            decision.come_back(round.now);
        }
        decision.commit.targets = memory.decided.clone();
        let follow = memory.decided.iter().filter(|(_, decided)| !decided.writes.is_empty());
        decision.entries.extend(follow.map(|(index, decided)| entry(round, *index, decided.clone(), epoch)));
    }
    for entry in &mut decision.entries {
        // A bump was planned before the epoch of this record was known.
        entry.epoch = epoch;
        entry.since = memory.since;
    }
    decision
}

/// Sorts the verdicts: a changed state is decided, writes that need no record become entries.
fn sort_out(
    round: &Round<'_>,
    verdicts: Vec<(u32, Verdict)>,
    memory: &mut JobMemory,
    epoch: i64,
    decision: &mut Decision,
) {
    for (index, verdict) in verdicts {
        let Verdict { state, writes, events, pod_events, live_reads, denied: _ } = verdict;
        if !live_reads.is_empty() {
            memory.live_reads.extend(live_reads);
            memory.reads_for(index);
            decision.come_back(round.now);
        }
        let wait = memory.targets.get(&index).and_then(|known| known.lifecycle.clone());
        memory.note_lifecycle(index, wait.as_ref());
        let Some(state) = state else { continue };
        let Some(stored) = memory.state.target(index) else { continue };
        if !state.progress.terminal() && memory.targets.get(&index).is_some_and(|known| known.failure.is_some()) {
            // The next round begins to end it.
            memory.dirty.insert(index);
            decision.come_back(round.now);
        }
        match is_blocked(&state).filter(|_| !state.attempt_over()) {
            Some(true) => drop(memory.blocked.insert(index)),
            Some(false) => drop(memory.blocked.remove(&index)),
            None => {}
        }
        let attempt = state.attempt;
        let events: Vec<EventNote> =
            events.into_iter().map(|event| round.events().about_target(event, index, attempt)).collect();
        let on_pod = round.target(index, memory).zip(state.uid.as_deref());
        let on_pod = on_pod.into_iter().flat_map(|(target, uid)| {
            pod_events.iter().map(move |event| round.events().on_object(event.clone(), &target, uid, attempt))
        });
        let events: Vec<EventNote> = events.into_iter().chain(on_pod).collect();
        let operated = stored.started() || !stored.extra.is_empty();
        let priority = if operated { Priority::Operated } else { Priority::First };
        let shard_is_old = || memory.state.sharded() && memory.shards.epoch(shard_of(index)) < epoch;
        // Writes also wait for a status that says less than its records: the write that was to follow them failed.
        let unrecorded = || shard_is_old() || memory.status_differs;
        if *stored != state || !writes.is_empty() && unrecorded() {
            // The plugin sees its extras once they are durable, and may have waited for that. The results of writes bring
            // a visit anyway.
            if stored.extra != state.extra && writes.is_empty() {
                memory.after_record.insert(index);
            }
            memory.decide(index, Decided { state, writes, events, priority });
            continue;
        }
        memory.take_back(index);
        if writes.is_empty() {
            decision.commit.events.extend(events);
            if state.progress == Progress::Succeeded || state.progress == Progress::Failed && !state.owes_release() {
                memory.let_go(index);
            }
        } else {
            decision.entries.push(entry(round, index, Decided { state, writes, events, priority }, epoch));
        }
    }
}

fn entry(round: &Round<'_>, index: u32, decided: Decided, epoch: i64) -> Entry {
    Entry {
        job: round.job.clone(),
        index: Some(index),
        target_uid: decided.state.uid.clone().unwrap_or_default(),
        attempt: decided.state.attempt.max(1),
        epoch,
        priority: decided.priority,
        writes: decided.writes,
        events: decided.events,
        since: None,
        dry_run: round.dry_run,
    }
}

/// Adds the write that is due for the job itself, once no write of its targets is left.
fn finalize_job(round: &Round<'_>, memory: &mut JobMemory, epoch: i64, tables: &Tables, decision: &mut Decision) {
    if round.deleting() && !tables.claims.ready(&round.job.key.namespace) {
        // What it owes to pods of other jobs is known once those were read.
        memory.close_at = Some(after(round.now, OTHERS_UNREAD));
        return;
    }
    let (writes, event) = match finalize(round, memory) {
        Finalize::Rest => return memory.close_at = None,
        Finalize::Later(time) => return memory.close_at = Some(time),
        Finalize::Write(write, event) => {
            // Before the finalizer is removed, the job makes the patches that it owes to pods of others.
            let mut owed = if round.deleting() { cleanup(&round.job, round.store, tables) } else { Vec::new() };
            // The first one that is refused is its entry's last. Each try begins with another one, so that it does not
            // keep the others from being made.
            let tries = memory.job_retry.map_or(0, |(_, tries)| tries as usize);
            let first = tries.checked_rem(owed.len()).unwrap_or(0);
            owed.rotate_left(first);
            if owed.is_empty() { (vec![*write], event) } else { (owed, None) }
        }
    };
    memory.close_at = None;
    decision.entries.push(job_entry(round, writes, event.map(|event| *event), epoch));
}

fn job_entry(round: &Round<'_>, writes: Vec<Write>, event: Option<EventNote>, epoch: i64) -> Entry {
    Entry {
        job: round.job.clone(),
        index: None,
        target_uid: String::new(),
        attempt: 0,
        epoch,
        priority: Priority::Operated,
        writes,
        events: event.into_iter().collect(),
        since: None,
        // Its time to live counts for a dry run too.
        dry_run: false,
    }
}

/// True if targets have ended that are not recorded yet, and others may start in their place: their starts go into the same
/// record.
fn makes_room(round: &Round<'_>, memory: &JobMemory) -> bool {
    let Some(spec) = round.valid() else { return false };
    let ended = memory.latest.ended() > memory.durable.ended();
    let brakes = Brakes::of(&round.policy, memory.counts());
    ended && !memory.latest.pending.is_empty() && (spec.policy.bounds_starts() || brakes != round.brakes)
}

/// True if the record is to be written now. If it is due later, so is the next round.
fn due(round: &Round<'_>, memory: &JobMemory, decision: &mut Decision) -> bool {
    if memory.selecting.unanswered() {
        return false;
    }
    let ended = memory.state.end.is_some();
    if !memory.epoch_raised && !ended {
        return true;
    }
    let freezes = memory.selecting.freezing;
    let mends = freezes || memory.status_differs || !memory.shards.rewrite.is_empty();
    if memory.decided.is_empty() && !mends && (ended || !job_changed(round, memory)) {
        return false;
    }
    let slot = if ends(memory) {
        let slot = last_slot(memory);
        if is_prompt(round, memory) { slot.min(prompt_slot(memory)) } else { slot }
    } else if !memory.urgent.is_empty() || freezes {
        soonest_slot(round, memory)
    } else if awaited(memory) {
        let slot = awaited_slot(memory);
        if is_prompt(round, memory) { slot.min(prompt_slot(memory)) } else { slot }
    } else {
        lazy_slot(memory)
    };
    match slot.filter(|slot| *slot > round.now) {
        Some(slot) => {
            decision.come_back(slot);
            false
        }
        None => true,
    }
}

/// True if a visit waits for the record. Of a target whose end is recorded nobody waits for that.
fn awaited(memory: &JobMemory) -> bool {
    let goes_on = |index| memory.decided.get(index).is_none_or(|decided| !decided.state.progress.terminal());
    memory.after_record.iter().any(goes_on)
}

/// True if the next record is the one that ends the job: users wait for it, and no other follows.
fn ends(memory: &JobMemory) -> bool {
    let latest = &memory.latest;
    memory.state.end.is_none()
        && !memory.decided.is_empty()
        && latest.pending.is_empty()
        && latest.processing.is_empty()
}

/// True if the job's own status, apart from its targets, has changed.
fn job_changed(round: &Round<'_>, memory: &JobMemory) -> bool {
    let status = round.object.status.as_ref();
    let generation = status.and_then(|status| status.observed_generation);
    generation != Some(round.generation())
        || rebound(round, memory).is_some()
        || moved(round, memory)
        || finalizer(round, memory).is_some()
}

/// Builds the record.
fn record(round: &Round<'_>, memory: &JobMemory, epoch: i64, decision: &mut Decision) {
    let ended = memory.state.end.is_some();
    let observed = round.object.status.as_ref().and_then(|status| status.observed_generation);
    let (counts, held_back) = (memory.counts(), held_back(round, memory));
    let summary = Summary {
        generation: observed.filter(|_| ended).unwrap_or_else(|| round.generation()),
        epoch,
        plugin: binding(round, memory),
        selection: selection(round, memory),
        conditions: match ended {
            true => memory.state.conditions.clone(),
            false => conditions(round, memory, held_back.as_ref()),
        },
        waits_for: held_back.map(|held| held.word),
        counts,
        now: round.now,
    };
    let next = status::status(memory, summary);
    let version = round.object.metadata.resource_version.as_deref().unwrap_or_default();
    decision.record.finalizer = finalizer(round, memory);
    decision.commit.finalizer = decision.record.finalizer.is_some();
    decision.record.shards = status::shard_writes(memory, &shards(memory, epoch), &round.job, epoch);
    decision.record.best_effort_shards = round.namespace_terminating;
    decision.record.status = status::patch(round.object.status.as_ref(), &next, &round.job, version);
    decision.commit.status = Some(next);
}

/// The shards that a record writes: those of the decided targets, unless they say it already, and those to be rewritten.
fn shards(memory: &JobMemory, epoch: i64) -> BTreeSet<u32> {
    if !memory.state.sharded() {
        return BTreeSet::new();
    }
    let unsaid = |(index, decided): &(&u32, &Decided)| {
        memory.state.target(**index) != Some(&decided.state) || memory.shards.epoch(shard_of(**index)) < epoch
    };
    let decided = memory.decided.iter().filter(unsaid).map(|(index, _)| shard_of(*index));
    decided.chain(memory.shards.rewrite.iter().copied()).collect()
}

/// The plugin is bound with the first intent, and bound again once the bound digest is gone.
fn binding(round: &Round<'_>, memory: &JobMemory) -> Option<PluginBinding> {
    let known = &memory.state.plugin;
    let Some(plugin) = round.serving().filter(|_| memory.state.end.is_none()) else { return known.clone() };
    // One whose object was never there needed no plugin; one may also start and end in one round.
    let begins = |decided: &Decided| decided.state.started() && decided.state.uid.is_some();
    (known.is_some() || memory.decided.values().any(begins)).then(|| PluginBinding {
        name: plugin.manifest.name.clone(),
        version: plugin.manifest.version.to_string(),
        digest: plugin.digest.clone(),
    })
}

fn selection(round: &Round<'_>, memory: &JobMemory) -> Option<Selection> {
    let frozen = || {
        let spec = round.valid()?;
        let source = if spec.query.is_some() { FROM_SELECTOR } else { "Targets" };
        let known = spec.query.is_none() || !memory.state.targets.is_empty();
        let digest = spec.digest.clone();
        let kind = (spec.kind == TargetKind::Node).then(|| spec.kind.word().to_owned());
        known.then(|| Selection { source: source.into(), time: write_time(round.now), digest, kind })
    };
    memory.state.selection.clone().or_else(frozen)
}
