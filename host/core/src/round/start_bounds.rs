//! What keeps targets from starting, each with the first bound that it meets.
//!
//! Takes a round that is at rest; yields the bound of each target that has not started. May not look at a target that has.
//! Source: docs/operationjob.md 3.4, 3.9.

use std::collections::BTreeMap;

use crate::round::availability::within_bound;
use crate::round::context::Round;
use crate::round::memory::JobMemory;
use crate::shared::tables::Tables;

/// What keeps a target from starting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StartBound {
    /// `spec.paused`.
    Paused,
    /// More targets have failed than `spec.failurePolicy` tolerates.
    Failures,
    /// `spec.partition`.
    Partition,
    /// Another job has a hold on its pod, or an operation of the PodOpsLifecycle is under way on it.
    TargetBusy,
    /// `spec.parallelism`.
    Parallelism,
    /// The most targets that the plugin may have in flight, of this job or of all.
    TargetsInFlight,
    /// `spec.maxUnavailable`.
    MaxUnavailable,
    /// A live read that it needs has failed.
    Unread,
}

/// The bounds of all targets that have not started.
pub fn start_bounds(round: &Round<'_>, memory: &JobMemory, tables: &Tables) -> BTreeMap<u32, StartBound> {
    let pending = &memory.latest.pending;
    let total = memory.state.targets.len();
    let started = total.saturating_sub(pending.len());
    let partition = round.valid().and_then(|spec| spec.partition).map_or(usize::MAX, |most| most as usize);
    let eligible = partition.saturating_sub(started);
    let in_flight = in_flight_bound(round, memory, tables);
    let known = |index: &u32| memory.targets.get(index);
    let busy = |index: &u32| known(index).is_some_and(|known| known.waits_for_object);
    let unread = |index: &u32| known(index).is_some_and(|known| known.read_at.is_some());
    let free = pending.iter().copied().take(eligible).filter(|index| !busy(index));
    let within: Vec<u32> = within_bound(round, memory, free, usize::MAX);
    let bound = |(place, index): (usize, &u32)| {
        let bound = match in_flight {
            _ if round.brakes.paused => StartBound::Paused,
            _ if round.brakes.too_many_failed => StartBound::Failures,
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

/// The bound on targets in flight that is met, if one is.
fn in_flight_bound(round: &Round<'_>, memory: &JobMemory, tables: &Tables) -> Option<StartBound> {
    let (spec, plugin) = (round.valid()?, round.serving()?);
    let own = memory.latest.processing.len();
    if own >= spec.policy.most_in_flight(memory.state.targets.len()) {
        return Some(StartBound::Parallelism);
    }
    let elsewhere = tables.in_flight_elsewhere(&plugin.manifest.name, &round.job.key);
    let full = own >= plugin.targets_of_one_job() || elsewhere.room(own, plugin.targets_in_flight()) == 0;
    full.then_some(StartBound::TargetsInFlight)
}
