//! Updates the memory from the stored job.
//!
//! Takes an observation; yields a [`Refresh`]. A status that this term wrote itself changes nothing. A status that
//! another client wrote is the truth, and the host reads all state again from it.

use std::collections::{BTreeMap, BTreeSet};

use oarlock_api::{OperationJob, OperationRecord};

use crate::cache::store::Store;
use crate::object::api_object::Kind;
use crate::object::key::{JobKey, JobRef};
use crate::object::task_pod::JOB_UID;
use crate::operation_job::holds::held;
use crate::operation_job::round::context::{Observed, Round, waits};
use crate::operation_job::round::decided::StoredVersion;
use crate::operation_job::round::exclusive::take_again;
use crate::operation_job::round::memory::{Decisions, JobMemory, RoundWork, StoredState, TargetStates, Targets};
use crate::operation_job::round::starts::bounds::note_all_disrupted;
use crate::operation_job::round::starts::memory::Availability;
use crate::operation_job::round::status;
use crate::operation_job::shared::claims::{Claim, stored_claims};
use crate::operation_job::shared::successors::RootController;
use crate::operation_job::shared::tables::Tables;
use crate::operation_job::shared::wake_index::TargetId;
use crate::operation_job::shared::wakers::Waits;
use crate::operation_job::state::{JobState, TargetState};
use crate::operation_job::tasks::target_tasks::pods_of;
use crate::plugin::proposal::Registration;

/// The effect of an observation on the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refresh {
    /// The targets are as this term left them.
    Unchanged,
    /// The host has read the durable state again.
    Reloaded,
    /// The status or a record has a higher epoch than this term has given it: another process may lead, or a client has
    /// edited the epoch. If this term continues, it uses that epoch from now on.
    Overtaken,
    /// The host must read the records first.
    NeedsRecords,
}

/// Updates `memory` from `job`.
pub fn refresh(memory: &mut JobMemory, job: &OperationJob, observed: &Observed) -> Refresh {
    let seen = version(job);
    let same_job = memory.stored.version.as_ref().is_some_and(|known| known.uid == seen.uid);
    if memory.stored.version.is_some() && !same_job {
        // The job is another job with the same name.
        let results = std::mem::take(&mut memory.work.results);
        *memory = JobMemory { work: RoundWork { results, ..RoundWork::default() }, ..JobMemory::default() };
    }
    if memory.stored.version.as_ref() == Some(&seen) && !memory.stored.reload && !memory.stored.operation_records.wanted
    {
        return Refresh::Unchanged;
    }
    let edited = memory.stored.version.as_ref().is_some_and(|known| known.generation != seen.generation);
    memory.work.edited |= edited;
    let unfrozen =
        memory.stored.state.selection.is_none() && !memory.stored.state.targets.iter().any(TargetState::started);
    let own = same_job && !memory.stored.reload && memory.stored.status == job.status && !(edited && unfrozen);
    let uses_records = job.status.as_ref().is_some_and(|status| status.records.is_some());
    if uses_records && observed.records.is_none() && (memory.stored.operation_records.wanted || !own) {
        memory.stored.operation_records.wanted = true;
        return Refresh::NeedsRecords;
    }
    let records = observed.records.as_deref().unwrap_or_default();
    if own {
        let went = memory.stored.version.as_ref().is_some_and(|known| known.deleting != seen.deleting);
        if edited || went {
            // A spec edit or a deletion concerns every target that is in flight or owes a release.
            memory.requeue_all();
        }
        if memory.stored.operation_records.wanted {
            memory.stored.operation_records.read(records, true);
            keep_right_records(&mut memory.stored, &memory.decisions, job, records);
        }
        memory.stored.version = Some(seen);
        return if overtaken_in_records(&mut memory.stored) { Refresh::Overtaken } else { Refresh::Unchanged };
    }
    memory.decisions.unfreeze(&mut memory.stored, &mut memory.targets);
    let known = same_job.then(|| std::mem::take(&mut memory.stored.state));
    memory.stored.operation_records.read(records, known.is_some() && memory.stored.epoch_raised);
    memory.stored.status.clone_from(&job.status);
    let known = known.filter(|_| memory.stored.epoch_raised);
    memory.adopt(JobState::read(job, records, observed.now, known.as_ref()), seen);
    let mut overtaken = known.as_ref().is_some_and(|known| memory.stored.state.epoch > known.epoch);
    // A client that lowers the epoch in a status does not make this term an older one.
    memory.stored.state.epoch = memory.stored.state.epoch.max(known.map_or(i64::MIN, |known| known.epoch));
    keep_right_records(&mut memory.stored, &memory.decisions, job, records);
    overtaken |= overtaken_in_records(&mut memory.stored);
    let lost: Vec<u32> = memory.stored.state.lost.iter().copied().collect();
    lost.into_iter().for_each(|index| memory.targets.memory_of(index).record_lost = true);
    memory.stored.status_differs = status::differs(&memory.stored, &memory.decisions, job.status.as_ref());
    if overtaken { Refresh::Overtaken } else { Refresh::Reloaded }
}

/// Keeps changed records that agree with the targets from being rewritten. The last write of such a record was this
/// term's own, and the write that was to follow it failed.
fn keep_right_records(
    stored: &mut StoredState,
    decisions: &Decisions,
    job: &OperationJob,
    records: &[OperationRecord],
) {
    let meta = &job.metadata;
    let key =
        JobKey { namespace: meta.namespace.clone().unwrap_or_default(), name: meta.name.clone().unwrap_or_default() };
    let job = JobRef { key, uid: meta.uid.clone().unwrap_or_default() };
    let numbered = records.iter().filter_map(|record| Some((u32::try_from(record.record.shard).ok()?, record)));
    let doubted = numbered.filter(|(record_number, _)| stored.operation_records.rewrite.contains(record_number));
    let right: Vec<u32> = doubted
        .filter(|(_, record)| status::says(record, stored, decisions, &job))
        .map(|(record_number, _)| record_number)
        .collect();
    stored.operation_records.rewrite.retain(|record_number| !right.contains(record_number));
}

/// Takes over the epoch of a record, if it is higher than the epoch that this term has given the job. Returns true if
/// there was such a record.
fn overtaken_in_records(stored: &mut StoredState) -> bool {
    let (epoch, highest) = (stored.state.epoch, stored.operation_records.highest_epoch());
    let overtaken = stored.epoch_raised && highest > epoch;
    if overtaken {
        let higher = stored
            .operation_records
            .stored
            .iter()
            .filter(|(_, record)| record.epoch > epoch)
            .map(|(record_number, _)| *record_number);
        stored.operation_records.rewrite.extend(higher.collect::<Vec<_>>());
        stored.state.epoch = highest;
    }
    overtaken
}

/// Returns the version of a job.
fn version(job: &OperationJob) -> StoredVersion {
    let meta = &job.metadata;
    StoredVersion {
        uid: meta.uid.clone().unwrap_or_default(),
        resource_version: meta.resource_version.clone().unwrap_or_default(),
        generation: meta.generation.unwrap_or(0),
        deleting: meta.deletion_timestamp.is_some(),
    }
}

/// Updates the shared tables after the state was read again, or after the plugin changed.
pub(super) fn reindex(
    round: &Round<'_>,
    stored: &StoredState,
    decisions: &Decisions,
    targets: &mut Targets,
    tables: &mut Tables,
) {
    let job = &round.job;
    let registration = round.serving().map(|plugin| &plugin.registration);
    targets.indexed_for = round.serving().map(|plugin| plugin.digest.clone());
    tables.wake.forget(&job.key);
    // No change wakes a pending target any more, so the host examines again what the target waits for.
    targets.known.values_mut().for_each(|known| known.waits_for_object = false);
    registration.into_iter().for_each(|registration| tables.wake.relate(registration));
    index_claims(&job.key, stored, registration, tables);
    targets.woken.extend(tables.exclusive.forget(&job.key));
    if round.is_exclusive() {
        take_again(&job.key, stored, decisions, targets, tables);
    }
    // The index no longer reports changes of targets that are not in flight, so the host examines all of them again.
    targets.availability = Availability::default();
    targets.woken.extend(note_all_disrupted(&job.key, stored, decisions, tables));
    let named = round.named_by_parameters();
    for index in stored.durable.processing.iter().chain(&targets.releasing) {
        if let Some(target) = decisions.latest(stored, *index) {
            let waits = Waits { parameters: &named, ..waits(round, stored, decisions, targets, *index) };
            tables.wake.set(job, *index, target, waits);
        }
    }
}

/// Adds the stored claims to the shared tables.
pub(super) fn index_claims(
    job: &JobKey,
    stored: &StoredState,
    registration: Option<&Registration>,
    tables: &mut Tables,
) {
    for (index, target) in (0u32..).zip(&stored.state.targets) {
        let Some(uid) = &target.uid else { continue };
        for object in stored_claims(target, registration) {
            tables.claims.claim(&object, Claim { job: job.clone(), index, target_uid: uid.clone() });
        }
    }
}

/// Updates the shared tables for the targets that a round decided. Returns the targets that wait for free objects and
/// that no change wakes. A target that has claimed an object leaves other objects free, and a target whose own object
/// is gone joins the line late.
pub(super) fn index_decided(
    round: &Round<'_>,
    states: TargetStates<'_>,
    worked_on: &[u32],
    tables: &mut Tables,
) -> BTreeSet<TargetId> {
    let TargetStates { stored, decisions, targets } = states;
    let registration = round.serving().map(|plugin| &plugin.registration);
    let named = round.named_by_parameters();
    let mut moved = BTreeSet::new();
    for index in worked_on {
        let Some(state) = decisions.latest(stored, *index) else { continue };
        let waits = Waits { parameters: &named, ..waits(round, stored, decisions, targets, *index) };
        if tables.wake.set(&round.job, *index, state, waits) {
            // The pod of a StatefulSet is known by its name.
            let controller = RootController::of(&round.job.key.namespace, state);
            moved.extend(controller.filter(|controller| controller.kind != "StatefulSet"));
        }
    }
    let Some(relation) = registration.and_then(Registration::same_controller) else { return BTreeSet::new() };
    let waiting = |controller: &RootController| tables.in_line_for_free(controller, &relation.kind, round.store);
    moved.iter().flat_map(waiting).collect()
}

/// Returns the ended targets whose object still carries a hold of this job, from an earlier leader, with the UIDs of
/// the objects. A dry run holds nothing. If a client wrote a hold in its name, the host removes the hold after the job
/// is gone, like any orphaned hold.
pub(super) fn holds_left(job: &JobRef, stored: &StoredState, store: &Store) -> BTreeMap<u32, String> {
    let state = &stored.state;
    let mut left = BTreeMap::new();
    if state.dry_run {
        return left;
    }
    let held_by = store.held_by(&state.kind.kind(), &job.uid);
    if held_by.is_empty() {
        return left;
    }
    let by_name: BTreeMap<String, u32> =
        (0u32..).zip(&state.names).filter_map(|(index, target)| Some((target.name.clone()?, index))).collect();
    for object in held_by.iter().filter(|object| held(object, &job.uid)) {
        let Some(index) = by_name.get(&object.key.name).copied() else { continue };
        if state.object(&job.key.namespace, index) != object.key {
            continue;
        }
        let ended = state.target(index).filter(|target| target.progress.terminal() && !target.owes_release());
        if ended.is_some_and(|target| target.uid.as_ref().is_none_or(|uid| *uid == object.uid)) {
            left.insert(index, object.uid.clone());
        }
    }
    left
}

/// Returns the ended targets that have task pods left, with the UIDs of their objects. The targets ended under an
/// earlier leader, or the request for the pod arrived after their end.
pub(super) fn task_pods_left(round: &Round<'_>, stored: &StoredState) -> BTreeMap<u32, String> {
    let pods = round.store.labelled(&Kind::pod(), &round.tasks.namespace, JOB_UID, &round.job.uid);
    let left = pods_of(&pods, &round.job.uid).into_iter().filter_map(|index| {
        let ended = stored.state.target(index).filter(|target| target.progress.terminal() && !target.owes_release());
        Some((index, ended?.uid.clone()?))
    });
    left.collect()
}
