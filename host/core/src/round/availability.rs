//! The targets of a job that are unavailable, where `maxUnavailable` bounds their number.
//!
//! Takes the memory, the objects and what other jobs work on; yields the targets that may start. Only what changed since the
//! last round is looked at again. Source: docs/operationjob.md 3.4.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;

use crate::cluster::object::{Object, ObjectKey};
use crate::job::key::JobKey;
use crate::job::state::{Progress, TargetState};
use crate::round::context::Round;
use crate::round::memory::JobMemory;
use crate::round::plan::Plan;
use crate::round::refresh::{stored_claims, waits};
use crate::shared::tables::Tables;

/// Which targets are unavailable though they are not in flight. Those in flight all count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Availability {
    /// The policy asks for it, and all targets were looked at.
    kept: bool,
    down: BTreeSet<u32>,
    doubtful: BTreeSet<u32>,
}

impl Availability {
    /// True if a change of any target's object counts.
    pub(super) fn is_kept(&self) -> bool {
        self.kept
    }

    /// Notes that whether a target is available may have changed.
    pub(super) fn doubt(&mut self, index: u32) {
        if self.kept {
            self.doubtful.insert(index);
        }
    }
}

/// Notes what all targets in flight work on, as a term reads them or another plugin comes; those of a dry run on nothing.
pub(super) fn note_all(job: &JobKey, memory: &mut JobMemory, tables: &mut Tables) {
    memory.woken.extend(tables.forget_disrupted(job));
    if memory.state.dry_run {
        return;
    }
    let in_flight: Vec<u32> = memory.latest.processing.union(&memory.durable.processing).copied().collect();
    for index in in_flight {
        let since = memory.latest(index).and_then(|state| state.start).unwrap_or(Timestamp::MAX);
        tables.note_disrupted(job, index, &memory.state.object(&job.namespace, index), since);
    }
}

/// Notes the targets that this round starts, before another job counts the unavailable ones.
pub(super) fn note_starts(round: &Round<'_>, plan: &Plan, memory: &JobMemory, tables: &mut Tables) {
    if round.dry_run {
        return;
    }
    // The others were noted as they started, or were read.
    for (index, _) in plan.at_work(memory).filter(|(index, _)| memory.durable.pending.contains(index)) {
        let object = memory.state.object(&round.job.key.namespace, index);
        tables.note_disrupted(&round.job.key, index, &object, round.second());
    }
}

/// Notes the end of the targets among `indexes` that are not in flight any more.
pub(super) fn note_ends(round: &Round<'_>, indexes: &BTreeSet<u32>, memory: &mut JobMemory, tables: &mut Tables) {
    for index in indexes {
        if !memory.durable.processing.contains(index) && !memory.latest.processing.contains(index) {
            memory.woken.extend(tables.note_undisrupted(&round.job.key, *index));
        }
    }
}

/// Brings the unavailable targets up to date. The tables stay locked until the starts that follow are noted in them.
pub(super) fn refresh(round: &Round<'_>, memory: &mut JobMemory, tables: &mut Tables) {
    let bounded = round.valid().is_some_and(|spec| spec.policy.max_unavailable.is_some());
    let wanted = bounded && !memory.latest.pending.is_empty();
    if wanted != memory.availability.kept {
        memory.availability = Availability { kept: wanted, ..Availability::default() };
        let all = 0..u32::try_from(memory.state.targets.len()).unwrap_or(u32::MAX);
        for index in all.filter(|index| !memory.latest.processing.contains(index)) {
            if let Some(state) = memory.latest(index) {
                tables.wake.set(&round.job, index, state, waits(round, memory, index));
            }
            memory.availability.doubt(index);
        }
    }
    let heard = tables.disrupted.take_doubts(&round.job.key);
    if !wanted {
        return;
    }
    let mut doubtful = std::mem::take(&mut memory.availability.doubtful);
    doubtful.extend(heard);
    for index in doubtful {
        if is_down(round, memory, tables, index) {
            memory.availability.down.insert(index);
        } else {
            memory.availability.down.remove(&index);
        }
    }
}

/// True if a target that is not in flight is unavailable.
fn is_down(round: &Round<'_>, memory: &JobMemory, tables: &Tables, index: u32) -> bool {
    let Some(state) = memory.latest(index) else { return false };
    let key = memory.state.object(&round.job.key.namespace, index);
    let works = |object: &Object| object.available && !object.terminating();
    match state.progress {
        Progress::Pending => {
            // The object of its name may not be the one that a selector found.
            let own = |object: &Object| state.uid.as_ref().is_none_or(|uid| *uid == object.uid);
            tables.disrupted.elsewhere(&round.job.key, &key)
                || !round.store.get(&key).is_some_and(|object| own(&object) && works(&object))
        }
        Progress::Failed => left_down(round, state, key),
        Progress::Processing | Progress::Succeeded => false,
    }
}

/// True if a failed target leaves its object, or the one that it took, without work.
fn left_down(round: &Round<'_>, state: &TargetState, key: ObjectKey) -> bool {
    let registration = round.serving().map(|plugin| &plugin.registration);
    let of_kind = round.kind.kind();
    let same = stored_claims(state, registration).into_iter().filter(|claim| claim.kind == of_kind.kind);
    let taken =
        same.map(|claim| (ObjectKey::seen_from(&round.job.key.namespace, &of_kind, claim.name), Some(claim.uid)));
    let own = std::iter::once((key, state.uid.clone()));
    let seen = own.filter(|(_, uid)| uid.is_some()).chain(taken).filter_map(|(key, uid)| {
        let object = round.store.get(&key)?;
        uid.is_none_or(|uid| uid.is_empty() || uid == object.uid).then_some(object)
    });
    seen.into_iter().any(|object| !object.available || object.terminating())
}

/// Those of the eligible targets that may start without exceeding the bound, at most so many: all that are unavailable
/// already, and as many others as there is room for.
pub(super) fn within_bound(
    round: &Round<'_>,
    memory: &JobMemory,
    eligible: impl Iterator<Item = u32>,
    most: usize,
) -> Vec<u32> {
    let bound = round.valid().and_then(|spec| spec.policy.most_unavailable(memory.state.targets.len()));
    let down = &memory.availability.down;
    let mut room = bound.map_or(usize::MAX, |bound| bound.saturating_sub(memory.unavailable()));
    // Behind the last one that is down there is nothing but targets that need room.
    let last = down.last().copied();
    let mut found = Vec::new();
    for index in eligible {
        if found.len() >= most || room == 0 && last.is_none_or(|last| last < index) {
            break;
        }
        if !down.contains(&index) {
            let Some(less) = room.checked_sub(1) else { continue };
            room = less;
        }
        found.push(index);
    }
    found
}

impl JobMemory {
    /// The number of unavailable targets, where the policy bounds it.
    pub(super) fn unavailable(&self) -> usize {
        let Availability { kept, down, .. } = &self.availability;
        if *kept { self.latest.processing.len().saturating_add(down.len()) } else { 0 }
    }
}
