//! Brings the memory up to the stored job.
//!
//! Takes an observation; yields a [`Refresh`]. A status that this term wrote itself changes nothing; one that another
//! client wrote is the truth, and all state is read again from it.

use std::collections::{BTreeMap, BTreeSet};

use oarlock_api::{OperationJob, OperationRecord};

use crate::cluster::object::Kind;
use crate::cluster::store::Store;
use crate::cluster::task_pod::JOB_UID;
use crate::job::key::{JobKey, JobRef};
use crate::job::state::{JobState, TargetState, extras};
use crate::plugin::proposal::Registration;
use crate::round::availability::{self, Availability};
use crate::round::context::{Observed, Round};
use crate::round::decided::StoredVersion;
use crate::round::exclusive::take_again;
use crate::round::memory::JobMemory;
use crate::round::status;
use crate::round::tasks::pods_of;
use crate::shared::claims::{Claim, ClaimedObject};
use crate::shared::holds::held;
use crate::shared::successors::RootController;
use crate::shared::tables::Tables;
use crate::shared::wake_index::TargetId;
use crate::shared::wakers::Waits;

/// The effect of an observation on the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refresh {
    /// The targets are as this term left them.
    Unchanged,
    /// The durable state was read again.
    Reloaded,
    /// The same, and the status or a record has a higher epoch than this term has given it: another process may lead, or
    /// somebody has edited it. If this term stands, that is its epoch from now on.
    Overtaken,
    /// The records are needed first.
    NeedsRecords,
}

/// Brings `memory` up to `job`.
pub fn refresh(memory: &mut JobMemory, job: &OperationJob, observed: &Observed) -> Refresh {
    let seen = version(job);
    let same_job = memory.version.as_ref().is_some_and(|known| known.uid == seen.uid);
    if memory.version.is_some() && !same_job {
        // Another job of the same name.
        *memory = JobMemory { results: std::mem::take(&mut memory.results), ..JobMemory::default() };
    }
    if memory.version.as_ref() == Some(&seen) && !memory.reload && !memory.shards.wanted {
        return Refresh::Unchanged;
    }
    let edited = memory.version.as_ref().is_some_and(|known| known.generation != seen.generation);
    memory.edited |= edited;
    let unfrozen = memory.state.selection.is_none() && !memory.state.targets.iter().any(TargetState::started);
    let own = same_job && !memory.reload && memory.status == job.status && !(edited && unfrozen);
    let sharded = job.status.as_ref().is_some_and(|status| status.records.is_some());
    if sharded && observed.records.is_none() && (memory.shards.wanted || !own) {
        memory.shards.wanted = true;
        return Refresh::NeedsRecords;
    }
    let records = observed.records.as_deref().unwrap_or_default();
    if own {
        let went = memory.version.as_ref().is_some_and(|known| known.deleting != seen.deleting);
        if edited || went {
            // A spec edit or a deletion concerns every target that is not at rest.
            memory.turn_to_all();
        }
        if memory.shards.wanted {
            memory.shards.read(records, true);
            spare_right_shards(memory, job, records);
        }
        memory.version = Some(seen);
        return if overtaken_in_records(memory) { Refresh::Overtaken } else { Refresh::Unchanged };
    }
    memory.unfreeze();
    let known = same_job.then(|| std::mem::take(&mut memory.state));
    memory.shards.read(records, known.is_some() && memory.epoch_raised);
    memory.status.clone_from(&job.status);
    let known = known.filter(|_| memory.epoch_raised);
    memory.adopt(JobState::read(job, records, observed.now, known.as_ref()), seen);
    let mut overtaken = known.as_ref().is_some_and(|known| memory.state.epoch > known.epoch);
    // Whoever lowers the epoch in a status does not make this term an older one.
    memory.state.epoch = memory.state.epoch.max(known.map_or(i64::MIN, |known| known.epoch));
    spare_right_shards(memory, job, records);
    overtaken |= overtaken_in_records(memory);
    let lost: Vec<u32> = memory.state.lost.iter().copied().collect();
    lost.into_iter().for_each(|index| memory.target(index).record_lost = true);
    memory.status_differs = status::differs(memory, job.status.as_ref());
    if overtaken { Refresh::Overtaken } else { Refresh::Reloaded }
}

/// Keeps changed records that agree with the memory from being rewritten: the last write was this term's own, and the
/// write that was to follow it failed.
fn spare_right_shards(memory: &mut JobMemory, job: &OperationJob, records: &[OperationRecord]) {
    let meta = &job.metadata;
    let key =
        JobKey { namespace: meta.namespace.clone().unwrap_or_default(), name: meta.name.clone().unwrap_or_default() };
    let job = JobRef { key, uid: meta.uid.clone().unwrap_or_default() };
    let numbered = records.iter().filter_map(|record| Some((u32::try_from(record.record.shard).ok()?, record)));
    let doubted = numbered.filter(|(shard, _)| memory.shards.rewrite.contains(shard));
    let right: Vec<u32> =
        doubted.filter(|(_, record)| status::says(record, memory, &job)).map(|(shard, _)| shard).collect();
    memory.shards.rewrite.retain(|shard| !right.contains(shard));
}

/// Takes over an epoch in a record that is higher than the one this term has given the job. Returns true if there was one.
fn overtaken_in_records(memory: &mut JobMemory) -> bool {
    let (epoch, highest) = (memory.state.epoch, memory.shards.highest_epoch());
    let overtaken = memory.epoch_raised && highest > epoch;
    if overtaken {
        let higher = memory.shards.stored.iter().filter(|(_, shard)| shard.epoch > epoch).map(|(shard, _)| *shard);
        memory.shards.rewrite.extend(higher.collect::<Vec<_>>());
        memory.state.epoch = highest;
    }
    overtaken
}

/// The version of a job.
fn version(job: &OperationJob) -> StoredVersion {
    let meta = &job.metadata;
    StoredVersion {
        uid: meta.uid.clone().unwrap_or_default(),
        resource_version: meta.resource_version.clone().unwrap_or_default(),
        generation: meta.generation.unwrap_or(0),
        deleting: meta.deletion_timestamp.is_some(),
    }
}

/// Updates the shared tables for a state that was read again, or for a plugin that came.
pub fn reindex(round: &Round<'_>, memory: &mut JobMemory, tables: &mut Tables) {
    let job = &round.job;
    let registration = round.serving().map(|plugin| &plugin.registration);
    memory.indexed_for = round.serving().map(|plugin| plugin.digest.clone());
    note_holds(job, memory, round.store);
    note_task_pods(round, memory);
    tables.wake.forget(&job.key);
    // No change wakes a pending target any more: what it waits for is looked at again.
    memory.targets.values_mut().for_each(|known| known.waits_for_object = false);
    registration.into_iter().for_each(|registration| tables.wake.relate(registration));
    index_claims(&job.key, memory, registration, tables);
    take_again(&job.key, round.is_exclusive(), memory, tables);
    // No change of a target that is not in flight is heard any more: all are looked at again.
    memory.availability = Availability::default();
    availability::note_all(&job.key, memory, tables);
    let named = round.named_by_parameters();
    for index in memory.durable.processing.iter().chain(&memory.releasing) {
        if let Some(target) = memory.latest(*index) {
            tables.wake.set(job, *index, target, Waits { parameters: &named, ..waits(round, memory, *index) });
        }
    }
}

/// Updates the shared tables with the claims that are stored.
pub fn index_claims(job: &JobKey, memory: &JobMemory, registration: Option<&Registration>, tables: &mut Tables) {
    for (index, target) in (0u32..).zip(&memory.state.targets) {
        let Some(uid) = &target.uid else { continue };
        for object in stored_claims(target, registration) {
            tables.claims.claim(&object, Claim { job: job.clone(), index, target_uid: uid.clone() });
        }
    }
}

/// Updates the shared tables for the targets that a round decided. Returns those that wait for free objects which no
/// change tells of: one that has claimed an object leaves others, and one whose own object is gone comes late.
pub fn index_decided(round: &Round<'_>, memory: &JobMemory, turned: &[u32], tables: &mut Tables) -> BTreeSet<TargetId> {
    let registration = round.serving().map(|plugin| &plugin.registration);
    let named = round.named_by_parameters();
    let mut moved = BTreeSet::new();
    for index in turned {
        let Some(state) = memory.latest(*index) else { continue };
        let waits = Waits { parameters: &named, ..waits(round, memory, *index) };
        if tables.wake.set(&round.job, *index, state, waits) {
            // A StatefulSet's pod is known by its name.
            let controller = RootController::of(&round.job.key.namespace, state);
            moved.extend(controller.filter(|controller| controller.kind != "StatefulSet"));
        }
    }
    let Some(relation) = registration.and_then(Registration::same_controller) else { return BTreeSet::new() };
    let waiting = |controller: &RootController| tables.in_line_for_free(controller, &relation.kind, round.store);
    moved.iter().flat_map(waiting).collect()
}

/// What a target waits for, beside its state.
pub(super) fn waits<'a>(round: &Round<'a>, memory: &'a JobMemory, index: u32) -> Waits<'a> {
    let name = memory.state.name(index);
    let there = || round.store.get(&round.kind.object(&round.job.key.namespace, name));
    let uid = memory.latest(index).and_then(|state| state.uid.as_ref());
    let gone = uid.is_some_and(|uid| there().is_none_or(|object| object.uid != *uid));
    let waits = memory.targets.get(&index).is_some_and(|known| known.waits_for_object);
    let releasing = memory.releasing.contains(&index);
    let watched = waits || memory.availability.is_kept();
    // No object of others is for a target of a dry run.
    let registration = round.plugin.serving().filter(|_| !round.dry_run).map(|plugin| &plugin.registration);
    Waits { kind: round.kind, name, registration, parameters: &[], watched, gone, releasing }
}

/// Targets that have ended under an earlier leader and whose object still carries a hold of this job. A dry run holds nothing:
/// whoever wrote one in its name, it goes with the job, as any hold of a job that is gone.
fn note_holds(job: &JobRef, memory: &mut JobMemory, store: &Store) {
    if memory.state.dry_run {
        return;
    }
    let held_by = store.held_by(&memory.state.kind.kind(), &job.uid);
    if held_by.is_empty() {
        return;
    }
    let by_name: BTreeMap<String, u32> =
        (0u32..).zip(&memory.state.names).filter_map(|(index, target)| Some((target.name.clone()?, index))).collect();
    for object in held_by.iter().filter(|object| held(object, &job.uid)) {
        let Some(index) = by_name.get(&object.key.name).copied() else { continue };
        if memory.state.object(&job.key.namespace, index) != object.key {
            continue;
        }
        let ended = memory.state.target(index).filter(|target| target.progress.terminal() && !target.owes_release());
        if ended.is_some_and(|target| target.uid.as_ref().is_none_or(|uid| *uid == object.uid)) {
            memory.still_held(index, object.uid.clone());
        }
    }
}

/// Targets that have ended and have pods of tasks left: they ended under an earlier leader, or the request for the pod arrived
/// after their end.
pub(super) fn note_task_pods(round: &Round<'_>, memory: &mut JobMemory) {
    let pods = round.store.labelled(&Kind::pod(), &round.tasks.namespace, JOB_UID, &round.job.uid);
    for index in pods_of(&pods, &round.job.uid) {
        let ended = memory.state.target(index).filter(|target| target.progress.terminal() && !target.owes_release());
        if let Some(uid) = ended.and_then(|target| target.uid.clone()) {
            memory.still_held(index, uid);
        }
    }
}

/// The objects that a target has claimed, as they are stored.
pub fn stored_claims(target: &TargetState, registration: Option<&Registration>) -> Vec<ClaimedObject> {
    let noted = target.extra(extras::CLAIMED_UID).unwrap_or_default();
    let noted: Vec<(&str, &str, &str)> = noted
        .split(',')
        .filter_map(|entry| {
            let (extra, object) = entry.split_once('=')?;
            let (kind, uid) = object.split_once('/')?;
            Some((extra, kind, uid))
        })
        .collect();
    let mut claims: Vec<ClaimedObject> = noted
        .iter()
        .filter_map(|(extra, kind, uid)| {
            let name = target.extra(extra)?.to_owned();
            Some(ClaimedObject { kind: (*kind).to_owned(), name, uid: (*uid).to_owned() })
        })
        .collect();
    let exclusive = registration.into_iter().flat_map(|registration| {
        registration.exclusive_extras.iter().map(|key| (key, registration.kind_of_extra(key)))
    });
    for (key, kind) in exclusive.filter(|(key, _)| noted.iter().all(|(extra, ..)| extra != key)) {
        let name = target.extra(key).map(str::to_owned);
        claims.extend(name.map(|name| ClaimedObject { kind: kind.kind.clone(), name, uid: String::new() }));
    }
    claims
}

/// The host's extra that lists the objects named by the exclusive extras of `target`. `seen` finds an object by kind
/// and name.
pub fn note_claims(
    target: &TargetState,
    registration: &Registration,
    seen: impl Fn(&Kind, &str) -> Option<String>,
) -> Option<String> {
    let known = stored_claims(target, Some(registration));
    let entries = registration.exclusive_extras.iter().filter_map(|key| {
        let (kind, name) = (registration.kind_of_extra(key), target.extra(key)?);
        let before = known.iter().find(|claim| claim.kind == kind.kind && claim.name == name);
        let uid = seen(&kind, name).or_else(|| before.map(|claim| claim.uid.clone())).unwrap_or_default();
        Some(format!("{key}={}/{uid}", kind.kind))
    });
    let text = entries.collect::<Vec<_>>().join(",");
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::proposal::{Relation, RelationKey};

    fn registration() -> Registration {
        let relation = Relation { name: "r".into(), kind: Kind::pod(), by: RelationKey::Extra("NewPod".into()) };
        Registration { relations: vec![relation], exclusive_extras: vec!["NewPod".into()] }
    }

    #[test]
    fn a_claim_is_stored_with_kind_and_uid_and_read_back_without_its_plugin() {
        let mut target = TargetState::default();
        target.extra.insert("NewPod".into(), "db-0".into());
        let noted = note_claims(&target, &registration(), |_, _| Some("u2".into())).unwrap();
        assert_eq!(noted, "NewPod=Pod/u2");
        target.extra.insert(extras::CLAIMED_UID.into(), noted);
        let claim = ClaimedObject { kind: "Pod".into(), name: "db-0".into(), uid: "u2".into() };
        assert_eq!(stored_claims(&target, None), [claim]);
    }

    #[test]
    fn a_claim_of_an_earlier_version_of_the_host_is_one_of_every_object_of_that_name() {
        let mut target = TargetState::default();
        target.extra.insert("NewPod".into(), "a".into());
        let claims = stored_claims(&target, Some(&registration()));
        assert_eq!(claims, [ClaimedObject { kind: "Pod".into(), name: "a".into(), uid: String::new() }]);
        assert!(stored_claims(&target, None).is_empty());
    }
}
