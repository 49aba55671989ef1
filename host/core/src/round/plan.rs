//! Which targets a round turns to, and what each needs.
//!
//! Takes what is remembered of a job and the views of this round; yields a [`Plan`]. Costs what changed: only targets
//! that something happened to, whose time has come or that may start are looked at. May not call, write or wait.
//! Source: spec/operationjob.md §§3.1, 3.4.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::cluster::writes::{TargetWrites, Write};
use crate::job::state::TargetState;
use crate::plugin::visit::Look;
use crate::round::memory::JobMemory;
use crate::round::target::{Common, Planned, Turn, turn};

/// Most targets of one round, so that one huge job never keeps the others waiting: one record's worth.
const BATCH: usize = 250;
/// Shortest time between two writes of a status that mutations wait for.
const URGENT_GAP: SignedDuration = SignedDuration::from_millis(100);
/// Wait for the other jobs of the namespace to be read.
const READ_AGAIN: SignedDuration = SignedDuration::from_millis(50);
/// First wait after looks that the API server did not answer.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(2);

/// What a round does for the targets of a job.
#[derive(Debug, Default)]
pub struct Plan {
    /// Visits, in order.
    pub visits: Vec<(u32, Planned)>,
    /// Targets to record so, with no call.
    pub decided: BTreeMap<u32, TargetState>,
    /// Touches, which need no record.
    pub touches: Vec<TargetWrites>,
    /// When to come back, though nothing happens.
    pub requeue: Option<Timestamp>,
}

impl Plan {
    /// Comes back at `time` or before.
    pub fn at(&mut self, time: Timestamp) {
        self.requeue = Some(self.requeue.map_or(time, |other| other.min(time)));
    }
}

/// Whether targets may be started and visited at all in this round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Yes.
    Open,
    /// Those in flight may, none may start: no valid spec or no plugin.
    NoStarts,
    /// None: this term has not raised the job's epoch, or not read all jobs of the namespace.
    Shut,
}

/// Plans one round.
pub fn plan(memory: &mut JobMemory, common: &Common<'_>, gate: Gate) -> Plan {
    let mut plan = Plan::default();
    if gate == Gate::Shut {
        plan.at(common.now + READ_AGAIN);
        return plan;
    }
    let mut looks = BTreeSet::new();
    take_due(memory, common.now);
    let batch = chosen(memory, common, gate, &mut plan);
    if !memory.dirty.is_empty() {
        plan.at(common.now);
    }
    for index in batch {
        take_turn(index, memory, common, &mut plan, &mut looks);
    }
    if !looks.is_empty() {
        // Looks that failed wait a little; fresh ones are made at once.
        let again = looks.iter().any(|look| common.looked.failed.contains_key(look));
        plan.at(if again { common.now + LOOK_AGAIN } else { common.now });
    }
    memory.looks = looks;
    plan
}

/// Timers that have come.
fn take_due(memory: &mut JobMemory, now: Timestamp) {
    while let Some((time, index)) = memory.timers.first().copied().filter(|(time, _)| *time <= now) {
        memory.timers.remove(&(time, index));
        memory.dirty.insert(index);
    }
}

/// The targets of this round, at most a batch: those in flight that changed, then those that may start.
fn chosen(memory: &mut JobMemory, common: &Common<'_>, gate: Gate, plan: &mut Plan) -> BTreeSet<u32> {
    let mut batch: BTreeSet<u32> = BTreeSet::new();
    while batch.len() < BATCH
        && let Some(index) = memory.dirty.pop_first()
    {
        let decided = memory.decided.get(&index).is_some_and(|state| state.progress.terminal());
        let live = memory.processing.contains(&index) || memory.releasing.contains(&index);
        if live && !decided {
            batch.insert(index);
        } else if memory.decided.contains_key(&index) {
            memory.after_record.insert(index);
        }
    }
    let may_start = startable(memory, common, gate);
    if may_start.is_empty() {
        return batch;
    }
    if let Some(slot) = memory.written.map(|(at, _)| at + URGENT_GAP).filter(|slot| *slot > common.now) {
        plan.at(slot);
        return batch;
    }
    let room = BATCH.saturating_sub(batch.len());
    if may_start.len() > room {
        plan.at(common.now);
    }
    batch.extend(may_start.into_iter().take(room));
    batch
}

/// Pending targets that may start: with those ever started, no more than `partition`; all when the job is deleted,
/// for they end then.
fn startable(memory: &JobMemory, common: &Common<'_>, gate: Gate) -> Vec<u32> {
    let undecided = |index: &&u32| !memory.decided.contains_key(index);
    if common.deleting {
        return memory.pending.iter().filter(undecided).take(BATCH * 40).copied().collect();
    }
    if gate == Gate::NoStarts {
        return Vec::new();
    }
    let started = memory.state.targets.len() - memory.pending.len();
    let allowed = common.spec.and_then(|spec| spec.partition).map_or(usize::MAX, |partition| partition as usize);
    let eligible = memory.pending.iter().take(allowed.saturating_sub(started));
    eligible.filter(undecided).take(BATCH + 1).copied().collect()
}

fn take_turn(index: u32, memory: &mut JobMemory, common: &Common<'_>, plan: &mut Plan, looks: &mut BTreeSet<Look>) {
    let Some(state) = memory.state.target(index).cloned() else { return };
    let name = memory.state.name(index).to_owned();
    match turn(&name, &state, memory.target(index), common) {
        Turn::Rest(until) => until.into_iter().for_each(|time| memory.wake(time, index)),
        Turn::Look(wanted) => {
            looks.extend(wanted);
            memory.dirty.insert(index);
        }
        Turn::Decide(next) => {
            memory.after_record.insert(index);
            plan.decided.insert(index, next);
        }
        Turn::Touch(write) => plan.touches.push(touch(index, write)),
        Turn::Visit(planned) => plan.visits.push((index, planned)),
    }
}

fn touch(index: u32, write: Write) -> TargetWrites {
    TargetWrites { target: Some(index), writes: vec![write] }
}

/// When a status that mutations wait for may be written.
pub fn urgent_slot(memory: &JobMemory) -> Option<Timestamp> {
    memory.written.map(|(at, _)| at + URGENT_GAP)
}

/// When a status that nothing waits for may be written: a second, or ten times the last write's duration, after it.
pub fn lazy_slot(memory: &JobMemory) -> Option<Timestamp> {
    memory.written.map(|(at, took)| at + SignedDuration::from_millis(took.saturating_mul(10).max(1000)))
}
