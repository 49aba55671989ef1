//! Pods of exclusive plugins, and nodes, in a round. A target takes its object before its start is recorded, and gives
//! the object back once its release is durable. Source: docs/operationjob.md 3.4.3.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::object::key::{JobKey, JobRef};
use crate::operation_job::round::context::Round;
use crate::operation_job::round::memory::{Decisions, StoredState, TargetStates, Targets};
use crate::operation_job::round::plan::Plan;
use crate::operation_job::shared::tables::Tables;
use crate::operation_job::shared::wake_index::TargetId;
use crate::operation_job::state::Progress;

fn target(job: &JobRef, index: u32) -> TargetId {
    (Arc::new(job.clone()), index)
}

/// Takes the objects of all targets at work, when a term reads the job or its plugin changes.
pub(super) fn take_again(
    job: &JobKey,
    stored: &StoredState,
    decisions: &Decisions,
    targets: &Targets,
    tables: &mut Tables,
) {
    for index in stored.durable.processing.iter().chain(&targets.releasing) {
        if let Some(uid) = decisions.latest(stored, *index).and_then(|state| state.uid.as_ref()) {
            tables.exclusive.have(uid, job, *index);
        }
    }
}

/// Takes the objects of the targets that this round starts. Returns the targets whose object another job has.
pub(super) fn take_objects(
    round: &Round<'_>,
    plan: &Plan,
    stored: &StoredState,
    decisions: &Decisions,
    tables: &mut Tables,
) -> BTreeSet<u32> {
    let wanted = plan.at_work(stored, decisions).filter_map(|(index, state)| Some((index, state.uid.as_ref()?)));
    let had_elsewhere = wanted.filter(|(index, uid)| {
        !tables.exclusive.take(uid, &target(&round.job, *index)) && stored.durable.pending.contains(index)
    });
    had_elsewhere.map(|(index, _)| index).collect()
}

/// Lets targets wait for their objects instead of starting.
pub(super) fn wait_for_objects(
    waiting: BTreeSet<u32>,
    plan: &mut Plan,
    stored: &StoredState,
    decisions: &mut Decisions,
    targets: &mut Targets,
) {
    plan.visits.retain(|(planned, _)| !waiting.contains(planned));
    plan.updates_without_call.retain(|(planned, _)| !waiting.contains(planned));
    for index in waiting {
        decisions.withdraw(index, stored, targets);
        decisions.after_record.remove(&index);
        let known = targets.memory_of(index);
        known.waits_for_object = true;
        known.changed_by_others = false;
    }
}

/// Records which jobs have the objects that the targets of this round wait for.
pub(super) fn note_holders(
    round: &Round<'_>,
    plan: &Plan,
    stored: &StoredState,
    targets: &mut Targets,
    tables: &Tables,
) {
    for index in &plan.worked_on {
        let object = round.store.get(&stored.state.object(&round.job.key.namespace, *index));
        let Some(known) = targets.known.get_mut(index) else { continue };
        let object = object.filter(|_| known.waits_for_object);
        let holder =
            object.and_then(|object| tables.exclusive.holder(&object.uid)).filter(|job| **job != round.job.key);
        known.waits_for_job = holder.cloned();
    }
}

/// Gives back the objects of the targets among `indexes` that are no longer at work. Returns the targets of other jobs
/// to wake.
pub(super) fn give_back(
    round: &Round<'_>,
    indexes: &BTreeSet<u32>,
    states: TargetStates<'_>,
    tables: &mut Tables,
) -> BTreeSet<TargetId> {
    if !round.is_exclusive() {
        return BTreeSet::new();
    }
    let TargetStates { stored, decisions, targets } = states;
    let over = indexes.iter().filter(|index| {
        let starts = decisions.latest(stored, **index).is_some_and(|state| state.progress == Progress::Processing);
        !starts && !targets.releasing.contains(*index)
    });
    over.flat_map(|index| tables.exclusive.give_back(&round.job.key, *index)).collect()
}
