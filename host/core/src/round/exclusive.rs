//! Pods of exclusive plugins, and nodes, in a round: who has one before its start is recorded, and who gives it back once its
//! release is durable. Source: docs/operationjob.md 3.4.3.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::job::key::{JobKey, JobRef};
use crate::job::state::Progress;
use crate::round::context::Round;
use crate::round::memory::JobMemory;
use crate::round::plan::Plan;
use crate::shared::tables::Tables;
use crate::shared::wake_index::TargetId;

fn target(job: &JobRef, index: u32) -> TargetId {
    (Arc::new(job.clone()), index)
}

/// Takes the objects of all targets at work, as a term reads them or another plugin comes.
pub(super) fn take_again(job: &JobKey, exclusive: bool, memory: &mut JobMemory, tables: &mut Tables) {
    memory.woken.extend(tables.exclusive.forget(job));
    for index in memory.durable.processing.iter().chain(&memory.releasing).filter(|_| exclusive) {
        if let Some(uid) = memory.latest(*index).and_then(|state| state.uid.as_ref()) {
            tables.exclusive.have(uid, job, *index);
        }
    }
}

/// Takes the objects of the targets that this round starts. One whose object another job has does not start: it waits.
pub(super) fn take_pods(round: &Round<'_>, plan: &mut Plan, memory: &mut JobMemory, tables: &mut Tables) {
    if !round.is_exclusive() {
        return;
    }
    let wanted = plan.at_work(memory).filter_map(|(index, state)| Some((index, state.uid.clone()?)));
    for (index, uid) in wanted.collect::<Vec<_>>() {
        if tables.exclusive.take(&uid, &target(&round.job, index)) || !memory.durable.pending.contains(&index) {
            continue;
        }
        plan.visits.retain(|(planned, _)| *planned != index);
        plan.settled.retain(|(planned, _)| *planned != index);
        memory.take_back(index);
        memory.after_record.remove(&index);
        let known = memory.target(index);
        known.waits_for_object = true;
        known.news = false;
    }
    note_holders(round, plan, memory, tables);
}

/// Notes which jobs have the objects that the targets of this round wait for.
fn note_holders(round: &Round<'_>, plan: &Plan, memory: &mut JobMemory, tables: &Tables) {
    for index in &plan.turned {
        let object = round.store.get(&memory.state.object(&round.job.key.namespace, *index));
        let Some(known) = memory.targets.get_mut(index) else { continue };
        let object = object.filter(|_| known.waits_for_object);
        let holder =
            object.and_then(|object| tables.exclusive.holder(&object.uid)).filter(|job| **job != round.job.key);
        known.waits_for_job = holder.cloned();
    }
}

/// Gives back the objects of those among `indexes` that are not at work any more.
pub(super) fn give_back(round: &Round<'_>, indexes: &BTreeSet<u32>, memory: &mut JobMemory, tables: &mut Tables) {
    for index in indexes.iter().filter(|_| round.is_exclusive()) {
        let starts = memory.latest(*index).is_some_and(|state| state.progress == Progress::Processing);
        if !starts && !memory.releasing.contains(index) {
            memory.woken.extend(tables.exclusive.give_back(&round.job.key, *index));
        }
    }
}
