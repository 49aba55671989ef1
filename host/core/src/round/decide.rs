//! What a round makes durable, and what it does after that.
//!
//! Takes the plan and the verdicts; yields a [`Decision`]: one [`Record`], the writes that may follow it, the events,
//! and when to come back. Whatever a mutation waits for is in the record; what nothing waits for waits for its turn.
//! May not write. Source: spec/operationjob.md §§3.1, 3.6, 3.12, 3.15.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;
use oarlock_api::{OperationJob, OperationJobStatus, PluginBinding, Selection};
use serde_json::{Value, json};

use crate::cluster::writes::{EventNote, Record, TargetWrites, Write};
use crate::job::spec::Invalid;
use crate::job::state::{Progress, TargetState, write_time};
use crate::plugin::lookup::Found;
use crate::round::conditions::{self, Facts, conditions};
use crate::round::events::{Teller, untold};
use crate::round::finalize::{Closing, closing};
use crate::round::judge::Verdict;
use crate::round::memory::JobMemory;
use crate::round::plan::{Plan, lazy_slot, urgent_slot};
use crate::round::status::{self, Address, Summary};
use crate::round::target::Common;

/// The finalizer of every job that has started a target.
pub const FINALIZER: &str = "finalizer.operating.kusionstack.io/protected";

/// What a round makes durable, and what it does after that.
#[derive(Debug, Default)]
pub struct Decision {
    /// What must be durable first.
    pub record: Record,
    /// What becomes true by that.
    pub commit: Commit,
    /// Writes that may follow.
    pub writes: Vec<TargetWrites>,
    /// Events that follow.
    pub events: Vec<EventNote>,
    /// Events of single targets, which follow if their writes were done.
    pub target_events: BTreeMap<u32, Vec<EventNote>>,
    /// When to come back though nothing happens.
    pub requeue: Option<Timestamp>,
}

/// What becomes true once the record is durable.
#[derive(Debug, Default)]
pub struct Commit {
    /// The states of targets.
    pub targets: BTreeMap<u32, TargetState>,
    /// The job's status.
    pub status: Option<OperationJobStatus>,
    /// Shards whose record exists then.
    pub shards: BTreeSet<u32>,
}

/// What a decision is made from beside plan and verdicts.
pub struct Grounds<'a> {
    /// The job as seen.
    pub job: &'a OperationJob,
    /// What its targets have in common.
    pub common: Common<'a>,
    /// The plugin.
    pub found: &'a Found,
    /// What broke a rule, if anything did.
    pub invalid: Option<&'a Invalid>,
    /// What the job owes others before its finalizer goes. It costs a look at every pod of the namespace, so it is asked
    /// for only then.
    pub farewell: &'a dyn Fn() -> Vec<Write>,
}

impl Grounds<'_> {
    fn now(&self) -> Timestamp {
        self.common.now
    }

    fn action(&self) -> &str {
        crate::round::standing::action(self.job)
    }

    fn teller(&self) -> Teller<'_> {
        Teller { key: self.common.key, uid: self.common.job_uid, action: self.action() }
    }

    fn generation(&self) -> i64 {
        self.job.metadata.generation.unwrap_or(0)
    }

    fn address(&self) -> Address<'_> {
        let version = self.job.metadata.resource_version.as_deref().unwrap_or_default();
        Address { key: self.common.key, uid: self.common.job_uid, resource_version: version }
    }
}

/// Decides what to record, write and tell.
pub fn decide(plan: Plan, verdicts: Vec<(u32, Verdict)>, memory: &mut JobMemory, grounds: &Grounds<'_>) -> Decision {
    let mut decision = Decision { requeue: plan.requeue, writes: plan.touches, ..Decision::default() };
    memory.decided.extend(plan.decided);
    let urgent = sort_out(verdicts, memory, grounds, &mut decision);
    close(memory, grounds, &mut decision);
    if !(urgent || due(memory, grounds, &mut decision)) {
        return decision;
    }
    record(memory, grounds, &mut decision);
    let mut notes: Vec<EventNote> = Vec::new();
    for (index, target) in &memory.decided {
        notes.extend(grounds.teller().ended(memory.state.name(*index), *index, target));
    }
    // What was decided earlier and is recorded now counts as new here.
    notes.extend(grounds.teller().progress(memory.durable_counts(), memory.counts()));
    notes.extend(about_job(grounds));
    notes.extend(rebound(memory, grounds).map(|message| grounds.teller().job(false, "PluginRebound", message)));
    decision.events.extend(untold(notes, memory));
    decision.commit.targets = memory.decided.clone();
    decision
}

/// Adds what is due for the job itself, once nothing of its targets is left to do.
fn close(memory: &mut JobMemory, grounds: &Grounds<'_>, decision: &mut Decision) {
    let due = closing(grounds.job, memory, grounds.common.key, grounds.now());
    if matches!(due, Closing::Write(..)) && grounds.common.deleting {
        let writes = (grounds.farewell)();
        if !writes.is_empty() {
            return decision.writes.push(TargetWrites { target: None, writes });
        }
    }
    match due {
        Closing::Rest => memory.close_at = None,
        Closing::Later(time) => memory.close_at = Some(time),
        Closing::Write(write, event) => {
            decision.writes.push(*write);
            decision.events.extend(event.map(|event| *event));
        }
    }
}

/// Puts each verdict where it belongs. Yields whether mutations wait for a record that may be written now.
fn sort_out(
    verdicts: Vec<(u32, Verdict)>,
    memory: &mut JobMemory,
    grounds: &Grounds<'_>,
    decision: &mut Decision,
) -> bool {
    let slot = urgent_slot(memory).filter(|slot| *slot > grounds.now());
    let mut urgent = false;
    for (index, verdict) in verdicts {
        if let Some(wake) = verdict.wake {
            memory.wake(wake, index);
        }
        if !verdict.looks.is_empty() {
            memory.looks.extend(verdict.looks);
            memory.dirty.insert(index);
            decision.requeue = Some(grounds.now());
        }
        let succeeded = verdict.state.as_ref().is_some_and(|state| state.progress == Progress::Succeeded);
        let changed = verdict.state.filter(|state| memory.state.target(index) != Some(state));
        let waits = changed.is_some() && !verdict.writes.is_empty();
        if let (true, Some(slot)) = (waits, slot) {
            // The record may not be written yet: the visit is made again then.
            memory.wake(slot, index);
            continue;
        }
        urgent |= waits;
        match changed {
            None if succeeded && verdict.writes.is_empty() && verdict.wake.is_none() => memory.let_go(index),
            Some(state) => {
                // The plugin sees what it remembers once that is durable, and may have waited for it.
                if memory.state.target(index).is_some_and(|stored| stored.extra != state.extra) {
                    memory.after_record.insert(index);
                }
                memory.decided.insert(index, state);
            }
            None => drop(memory.decided.remove(&index)),
        }
        if !verdict.writes.is_empty() {
            decision.writes.push(TargetWrites { target: Some(index), writes: verdict.writes });
        }
        let attempt = memory.latest(index).map_or(1, |state| state.attempt);
        let notes: Vec<_> =
            verdict.events.into_iter().map(|event| grounds.teller().note(event, index, attempt)).collect();
        if !notes.is_empty() {
            decision.target_events.insert(index, untold(notes, memory));
        }
    }
    urgent
}

/// Whether what nothing waits for is to be written now. Where its turn comes later, the round comes back then.
fn due(memory: &mut JobMemory, grounds: &Grounds<'_>, decision: &mut Decision) -> bool {
    let ended = memory.state.end.is_some();
    if !memory.fenced && !ended {
        return true;
    }
    if memory.decided.is_empty() && (ended || !job_changed(memory, grounds)) {
        return false;
    }
    let slot = if ends(memory) { urgent_slot(memory) } else { lazy_slot(memory) };
    match slot.filter(|slot| *slot > grounds.now()) {
        Some(slot) => {
            decision.requeue = Some(decision.requeue.map_or(slot, |other| other.min(slot)));
            false
        }
        None => true,
    }
}

/// Whether the next record is the one that ends the job: somebody waits for it, and no other follows.
fn ends(memory: &JobMemory) -> bool {
    let ended = |index: &u32| memory.decided.get(index).is_some_and(|target| target.progress.terminal());
    !memory.decided.is_empty()
        && memory.state.end.is_none()
        && memory.pending.iter().chain(&memory.processing).all(ended)
}

/// Whether the job itself, not its targets, has something new to say.
fn job_changed(memory: &JobMemory, grounds: &Grounds<'_>) -> bool {
    let status = grounds.job.status.as_ref();
    let generation = status.and_then(|status| status.observed_generation);
    generation != Some(grounds.generation())
        || rebound(memory, grounds).is_some()
        || conditions::moved(&facts(memory, grounds), &memory.state.conditions)
}

fn facts<'a>(memory: &JobMemory, grounds: &'a Grounds<'_>) -> Facts<'a> {
    Facts {
        action: grounds.action(),
        counts: memory.counts(),
        invalid: grounds.invalid,
        found: grounds.found,
        generation: grounds.generation(),
        now: grounds.now(),
    }
}

/// Builds the record.
fn record(memory: &JobMemory, grounds: &Grounds<'_>, decision: &mut Decision) {
    let address = grounds.address();
    let raise = i64::from(!memory.fenced && memory.state.end.is_none());
    let summary = Summary {
        generation: if memory.state.end.is_some() { observed(grounds) } else { grounds.generation() },
        epoch: memory.state.epoch + raise,
        plugin: binding(memory, grounds),
        selection: selection(memory, grounds),
        conditions: match memory.state.end {
            Some(_) => memory.state.conditions.clone(),
            None => conditions(&facts(memory, grounds), &memory.state.conditions),
        },
        counts: memory.counts(),
        now: grounds.now(),
    };
    let next = status::status(memory, summary);
    let starts = memory.decided.values().any(|target| target.uid.is_some());
    decision.record.finalizer = finalizer(grounds.job).filter(|_| starts);
    decision.record.records = status::records(memory, &memory.decided, &memory.shards, &address);
    decision.record.status = status::patch(grounds.job.status.as_ref(), &next, &address);
    let size = u32::try_from(crate::job::state::SHARD).unwrap_or(u32::MAX);
    decision.commit.shards = if memory.state.sharded() {
        memory.decided.keys().map(|index| index / size).collect()
    } else {
        BTreeSet::new()
    };
    decision.commit.status = Some(next);
}

fn observed(grounds: &Grounds<'_>) -> i64 {
    let status = grounds.job.status.as_ref();
    status.and_then(|status| status.observed_generation).unwrap_or_else(|| grounds.generation())
}

/// The plugin is bound with the first intent, and anew once the bound digest is gone.
fn binding(memory: &JobMemory, grounds: &Grounds<'_>) -> Option<PluginBinding> {
    let Found::Serving(plugin) = grounds.found else { return memory.state.plugin.clone() };
    let started =
        memory.state.plugin.is_some() || memory.decided.values().any(|target| target.progress == Progress::Processing);
    let bound = || PluginBinding {
        name: plugin.manifest.name.clone(),
        version: plugin.manifest.version.to_string(),
        digest: plugin.digest.clone(),
    };
    if memory.state.end.is_some() {
        return memory.state.plugin.clone();
    }
    started.then(bound)
}

fn selection(memory: &JobMemory, grounds: &Grounds<'_>) -> Option<Selection> {
    let frozen = || {
        let spec = grounds.common.spec?;
        Some(Selection { source: "Targets".into(), time: write_time(grounds.now()), digest: spec.digest.clone() })
    };
    memory.state.selection.clone().or_else(frozen)
}

/// The digest that a job runs on now though it began on another, which is gone.
fn rebound(memory: &JobMemory, grounds: &Grounds<'_>) -> Option<String> {
    let bound = memory.state.plugin.as_ref().filter(|_| memory.state.end.is_none())?;
    match grounds.found {
        Found::Serving(plugin) if plugin.digest != bound.digest => {
            Some(format!("plugin {} {} is gone; the job goes on with {}", bound.name, bound.digest, plugin.digest))
        }
        _ => None,
    }
}

/// The patch that adds the finalizer, where it is missing and may still be added.
fn finalizer(job: &OperationJob) -> Option<Value> {
    let meta = &job.metadata;
    let mut list = meta.finalizers.clone().unwrap_or_default();
    if meta.deletion_timestamp.is_some() || list.iter().any(|name| name == FINALIZER) {
        return None;
    }
    list.push(FINALIZER.to_owned());
    Some(json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": list}}))
}

fn about_job(grounds: &Grounds<'_>) -> Vec<EventNote> {
    let teller = grounds.teller();
    if let Some(invalid) = grounds.invalid {
        return vec![teller.job(true, "InvalidSpec", format!("{}: {}", invalid.reason, invalid.message))];
    }
    match grounds.found {
        Found::Serving(_) => Vec::new(),
        Found::NotServing { message, .. } => vec![teller.job(true, "OpsAction", message.clone())],
        Found::Unknown { loaded } => {
            let message = format!("no plugin for action {:?}; loaded: {}", grounds.action(), loaded.join(", "));
            vec![teller.job(true, "OpsAction", message)]
        }
    }
}
