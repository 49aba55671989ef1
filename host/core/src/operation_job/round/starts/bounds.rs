//! The bounds on the starts of a round, apart from its plan.
//!
//! Takes the memory, the objects and the targets of other jobs; yields the unavailable targets, and the number of further
//! starts that the status and the policy have room for. For people, it also yields the first bound that each pending
//! target meets. A round examines only targets that changed since the last round. Source: docs/operationjob.md 2.5, 3.4,
//! 3.9.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;

use crate::object::api_object::{Object, ObjectKey};
use crate::object::key::JobKey;
use crate::object::ranges;
use crate::operation_job::round::context::{Round, waits};
use crate::operation_job::round::memory::{BATCH, Decisions, StoredState, Targets};
use crate::operation_job::round::starts::memory::Availability;
use crate::operation_job::round::status::PROCESSING_BYTES;
use crate::operation_job::shared::claims::stored_claims;
use crate::operation_job::shared::tables::Tables;
use crate::operation_job::shared::wake_index::TargetId;
use crate::operation_job::state::{Progress, TargetState};

/// Most bytes that one index can add to a text of ranges.
const INDEX_BYTES: usize = 6;

/// A bound that keeps a target from starting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StartBound {
    /// `spec.paused` stops all starts.
    Paused,
    /// More targets have failed than `spec.failurePolicy` tolerates.
    Failures,
    /// `spec.partition` allows no further start.
    Partition,
    /// Another job has a hold on its pod, or an operation of the PodOpsLifecycle is under way on it.
    TargetBusy,
    /// `spec.parallelism` allows no further target in flight.
    Parallelism,
    /// The plugin may have no further target in flight, of this job or of all jobs.
    TargetsInFlight,
    /// `spec.maxUnavailable` allows no further unavailable target.
    MaxUnavailable,
    /// A live read that the target needs has failed.
    Unread,
}

/// Returns the bounds of all targets that have not started.
pub fn start_bounds(
    round: &Round<'_>,
    stored: &StoredState,
    decisions: &Decisions,
    targets: &Targets,
    tables: &Tables,
) -> BTreeMap<u32, StartBound> {
    let pending = &decisions.latest.pending;
    let total = stored.state.targets.len();
    let started = total.saturating_sub(pending.len());
    let partition = round.valid().and_then(|spec| spec.partition).map_or(usize::MAX, |most| most as usize);
    let eligible = partition.saturating_sub(started);
    let in_flight = in_flight_bound(round, stored, decisions, tables);
    let known = |index: &u32| targets.known.get(index);
    let busy = |index: &u32| known(index).is_some_and(|known| known.waits_for_object);
    let unread = |index: &u32| known(index).is_some_and(|known| known.read_at.is_some());
    let free = pending.iter().copied().take(eligible).filter(|index| !busy(index));
    let room = unavailable_capacity(round, stored, decisions, targets);
    let within: Vec<u32> = targets.availability.within(room, free, usize::MAX);
    let bound = |(place, index): (usize, &u32)| {
        let bound = match in_flight {
            _ if round.pause_state.paused => StartBound::Paused,
            _ if round.pause_state.too_many_failed => StartBound::Failures,
            _ if place >= eligible => StartBound::Partition,
            _ if busy(index) => StartBound::TargetBusy,
            _ if unread(index) => StartBound::Unread,
            Some(bound) => bound,
            None if within.binary_search(index).is_err() => StartBound::MaxUnavailable,
            None => StartBound::TargetsInFlight,
        };
        (*index, bound)
    };
    pending.iter().enumerate().map(bound).collect()
}

/// Returns the bound on targets in flight that the job meets, if it meets one.
fn in_flight_bound(
    round: &Round<'_>,
    stored: &StoredState,
    decisions: &Decisions,
    tables: &Tables,
) -> Option<StartBound> {
    let (spec, plugin) = (round.valid()?, round.serving()?);
    let own = decisions.latest.processing.len();
    if own >= spec.policy.most_in_flight(stored.state.targets.len()) {
        return Some(StartBound::Parallelism);
    }
    let elsewhere = tables.in_flight_elsewhere(&plugin.manifest.name, &round.job.key);
    let full = own >= plugin.targets_of_one_job() || elsewhere.room(own, plugin.targets_in_flight()) == 0;
    full.then_some(StartBound::TargetsInFlight)
}

/// Returns the number of further targets that may be in flight before their ranges exceed the status.
pub(crate) fn ranges_capacity(decisions: &Decisions) -> usize {
    let processing = &decisions.latest.processing;
    if processing.len() * INDEX_BYTES + BATCH * INDEX_BYTES < PROCESSING_BYTES {
        return usize::MAX;
    }
    let (text, cut) = ranges::format(processing, PROCESSING_BYTES);
    if cut { 0 } else { PROCESSING_BYTES.saturating_sub(text.len()) / INDEX_BYTES }
}

/// Records the objects of all targets in flight in the shared tables, when a term reads the job or its plugin changes.
/// Targets of a dry run work on no object. Returns the targets of other jobs to wake.
pub(crate) fn note_all_disrupted(
    job: &JobKey,
    stored: &StoredState,
    decisions: &Decisions,
    tables: &mut Tables,
) -> BTreeSet<TargetId> {
    let woken = tables.forget_disrupted(job);
    if stored.state.dry_run {
        return woken;
    }
    for index in decisions.latest.processing.union(&stored.durable.processing).copied() {
        let since = decisions.latest(stored, index).and_then(|state| state.start).unwrap_or(Timestamp::MAX);
        tables.note_disrupted(job, index, &stored.state.object(&job.namespace, index), since);
    }
    woken
}

/// Records the end of the targets among `indexes` that are no longer in flight. Returns the targets of other jobs to
/// wake.
pub(crate) fn note_ends(
    round: &Round<'_>,
    indexes: &BTreeSet<u32>,
    stored: &StoredState,
    decisions: &Decisions,
    tables: &mut Tables,
) -> BTreeSet<TargetId> {
    let in_flight =
        |index: &u32| stored.durable.processing.contains(index) || decisions.latest.processing.contains(index);
    let over = indexes.iter().filter(|index| !in_flight(index));
    over.flat_map(|index| tables.note_undisrupted(&round.job.key, *index)).collect()
}

/// Updates the unavailable targets. The tables stay locked until the starts that follow are recorded in them.
pub(crate) fn refresh_availability(
    round: &Round<'_>,
    stored: &StoredState,
    decisions: &Decisions,
    targets: &mut Targets,
    tables: &mut Tables,
) {
    let bounded = round.valid().is_some_and(|spec| spec.policy.max_unavailable.is_some());
    let wanted = bounded && !decisions.latest.pending.is_empty();
    if wanted != targets.availability.is_tracked {
        targets.availability = Availability { is_tracked: wanted, ..Availability::default() };
        let all = 0..u32::try_from(stored.state.targets.len()).unwrap_or(u32::MAX);
        for index in all.filter(|index| !decisions.latest.processing.contains(index)) {
            if let Some(state) = decisions.latest(stored, index) {
                tables.wake.set(&round.job, index, state, waits(round, stored, decisions, targets, index));
            }
            targets.availability.mark_uncertain(index);
        }
    }
    let heard = tables.disrupted.take_uncertain(&round.job.key);
    if !wanted {
        return;
    }
    let mut uncertain = std::mem::take(&mut targets.availability.uncertain);
    uncertain.extend(heard);
    for index in uncertain {
        if is_unavailable(round, stored, decisions, tables, index) {
            targets.availability.down.insert(index);
        } else {
            targets.availability.down.remove(&index);
        }
    }
}

/// Returns true if a target that is not in flight is unavailable.
fn is_unavailable(round: &Round<'_>, stored: &StoredState, decisions: &Decisions, tables: &Tables, index: u32) -> bool {
    let Some(state) = decisions.latest(stored, index) else { return false };
    let key = stored.state.object(&round.job.key.namespace, index);
    let works = |object: &Object| object.available && !object.terminating();
    match state.progress {
        Progress::Pending => {
            // The object with the target's name may not be the object that a selector found.
            let own = |object: &Object| state.uid.as_ref().is_none_or(|uid| *uid == object.uid);
            tables.disrupted.elsewhere(&round.job.key, &key)
                || !round.store.get(&key).is_some_and(|object| own(&object) && works(&object))
        }
        Progress::Failed => leaves_unavailable(round, state, key),
        Progress::Processing | Progress::Succeeded => false,
    }
}

/// Returns true if a failed target leaves its object, or the object that it claimed, unavailable.
fn leaves_unavailable(round: &Round<'_>, state: &TargetState, key: ObjectKey) -> bool {
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

/// Returns the number of further targets that may become unavailable. A bound of the policy limits it.
pub(crate) fn unavailable_capacity(
    round: &Round<'_>,
    stored: &StoredState,
    decisions: &Decisions,
    targets: &Targets,
) -> usize {
    let bound = round.valid().and_then(|spec| spec.policy.most_unavailable(stored.state.targets.len()));
    bound.map_or(usize::MAX, |bound| bound.saturating_sub(targets.unavailable(decisions)))
}

impl Targets {
    /// Returns the number of unavailable targets, if the policy bounds it; otherwise 0.
    pub(crate) fn unavailable(&self, decisions: &Decisions) -> usize {
        let Availability { is_tracked, down, .. } = &self.availability;
        if *is_tracked { decisions.latest.processing.len().saturating_add(down.len()) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranges_of_those_in_flight_are_never_cut_by_starts() {
        // Every second target is in flight. No two are neighbours, so each costs the most bytes.
        for (begun, most) in [(3_000, 1), (0, 7), (0, BATCH)] {
            let mut decisions = Decisions::default();
            let mut free = (0..10_000).step_by(2);
            decisions.latest.processing.extend(free.by_ref().take(begun));
            loop {
                let room = ranges_capacity(&decisions).min(most);
                let started = free.by_ref().take(room);
                decisions.latest.processing.extend(started);
                let (text, cut) = ranges::format(&decisions.latest.processing, PROCESSING_BYTES);
                assert!(!cut && text.len() <= PROCESSING_BYTES, "{} in flight", decisions.latest.processing.len());
                if room == 0 {
                    assert!(text.len() + INDEX_BYTES > PROCESSING_BYTES, "{} bytes, and no room", text.len());
                    break;
                }
            }
            assert!(free.next().is_some(), "all of them would not fit");
        }
        let in_flight = |last: u32| {
            let mut decisions = Decisions::default();
            decisions.latest.processing.extend((0..last).step_by(2));
            decisions
        };
        assert_eq!(ranges_capacity(&in_flight(10_000)), 0, "what is cut already has no room");
        assert_eq!(ranges_capacity(&in_flight(2_000)), usize::MAX);
    }
}
