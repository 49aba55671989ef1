//! Earliest times for the next write of a status, and waits after failures.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::job::time::{after, after_millis};
use crate::round::context::Round;
use crate::round::memory::JobMemory;

/// Shortest time between two writes of a status that mutations wait for.
const URGENT_MS: i64 = 100;
/// Longest such time: if writes are slow, the next one waits to carry more changes.
const LONGEST_URGENT_MS: i64 = 1_000;
/// Longest such time where each start waits for an end, such as under `maxUnavailable`, and no more than [`BOUNDED`] targets are in flight:
/// places stay empty while a record waits.
const LONGEST_BOUNDED_MS: i64 = 250;
/// Most targets in flight for that.
const BOUNDED: usize = 250;
/// Shortest time between two writes of a status for the tasks of few targets.
const PROMPT_MS: i64 = 20;
/// Most targets in flight that count as few: their records are small, and no more than a few a second each.
const FEW: usize = 32;
/// Shortest time between two writes that no mutation waits for.
const LAZY_MS: i64 = 1_000;
/// Shortest time before a write that a visit waits for.
const AWAITED_MS: i64 = 100;
/// Longest wait of the end of a target or of the job.
const END_MS: i64 = 1_500;
/// First wait after a retryable failure, in seconds; doubles.
const FIRST_WAIT: i64 = 1;
/// Longest wait after a retryable failure, in seconds.
pub(super) const LONGEST_WAIT: i64 = 60;

/// Earliest time to write a status that mutations wait for, at most so many milliseconds after the last one.
fn urgent_slot(memory: &JobMemory, longest: i64) -> Option<Timestamp> {
    let gap = |took: i64| took.saturating_mul(3).clamp(URGENT_MS, longest);
    memory.written.map(|(at, took)| after_millis(at, gap(took)))
}

/// Earliest time to write the status with which a job ends. No other follows, so it waits for nothing more to carry.
pub fn last_slot(memory: &JobMemory) -> Option<Timestamp> {
    urgent_slot(memory, URGENT_MS)
}

/// Returns the earliest time to write a status for which the tasks of few targets wait: as long after the last one as that took, unless many
/// jobs have something to say. Each script on a node waits for two such writes, of its start and of its result.
pub fn prompt_slot(memory: &JobMemory) -> Option<Timestamp> {
    let own = memory.written.map(|(at, took)| after_millis(at, took.clamp(PROMPT_MS, URGENT_MS)));
    own.max(memory.record_room_at)
}

/// Returns true for a job whose plugin has tasks done and that has few targets in flight.
pub fn is_prompt(round: &Round<'_>, memory: &JobMemory) -> bool {
    let has_tasks = round.serving().is_some_and(|plugin| !plugin.manifest.tasks.is_empty());
    has_tasks && memory.durable.processing.len() <= FEW
}

/// Returns the earliest time to start targets, and to write what mutations wait for.
pub fn soonest_slot(round: &Round<'_>, memory: &JobMemory) -> Option<Timestamp> {
    let prompt = is_prompt(round, memory).then(|| prompt_slot(memory)).flatten();
    let has_few = memory.durable.processing.len() <= BOUNDED;
    let is_bounded = has_few && round.valid().is_some_and(|spec| spec.policy.bounds_starts());
    let urgent = urgent_slot(memory, if is_bounded { LONGEST_BOUNDED_MS } else { LONGEST_URGENT_MS });
    prompt.map_or(urgent, |prompt| urgent.map(|urgent| urgent.min(prompt)))
}

/// Earliest time to write a status that no mutation waits for but a visit does, since a plugin sees what it stores once
/// that is durable: ten times the last write's duration after it, within a second, unless many jobs have something to say
/// ([`RecordPace`](crate::shared::record_pace::RecordPace)).
pub fn awaited_slot(memory: &JobMemory) -> Option<Timestamp> {
    let own = memory.written.map(|(at, took)| after_millis(at, took.saturating_mul(10).clamp(AWAITED_MS, LAZY_MS)));
    own.max(memory.record_room_at)
}

/// Earliest time to write a status that nothing waits for: a second, or ten times the last write's duration, after
/// it. Ends do not wait longer than a second and a half, with the same exception.
pub fn lazy_slot(memory: &JobMemory) -> Option<Timestamp> {
    let most = if memory.latest.ended() > memory.durable.ended() { END_MS } else { i64::MAX };
    let own = memory.written.map(|(at, took)| after_millis(at, took.saturating_mul(10).max(LAZY_MS).min(most)));
    own.max(memory.record_room_at)
}

/// The wait after `tries` failures in a row, or the plugin's own.
pub fn wait_after(tries: u32, own_ms: Option<u32>) -> SignedDuration {
    match own_ms {
        Some(ms) => SignedDuration::from_millis(i64::from(ms)),
        None => SignedDuration::from_secs((FIRST_WAIT << tries.min(6)).min(LONGEST_WAIT)),
    }
}

/// The time after which a request sent at `sent` can no longer take effect: an API server gives up a request of its own
/// accord after a minute.
pub fn too_late_for(sent: Timestamp) -> Timestamp {
    after(sent, SignedDuration::from_secs(65))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_mutation_waits_for_is_not_held_back_by_other_jobs() {
        let at = |milliseconds| after_millis(Timestamp::UNIX_EPOCH, milliseconds);
        let alone = JobMemory { written: Some((at(0), 20)), ..JobMemory::default() };
        let urgent_slot = |memory: &JobMemory| urgent_slot(memory, LONGEST_URGENT_MS);
        let slots = |memory: &JobMemory| [urgent_slot(memory), awaited_slot(memory), lazy_slot(memory)];
        assert_eq!(slots(&alone), [at(100), at(200), at(1_000)].map(Some));
        assert_eq!(prompt_slot(&alone), Some(at(20)));
        let crowded = JobMemory { record_room_at: Some(at(4_000)), ..alone };
        assert_eq!(prompt_slot(&crowded), Some(at(4_000)));
        assert_eq!(slots(&crowded), [at(100), at(4_000), at(4_000)].map(Some));
    }

    #[test]
    fn the_last_record_of_a_job_waits_for_nothing_more_to_carry_however_slow_records_are() {
        let at = |milliseconds| after_millis(Timestamp::UNIX_EPOCH, milliseconds);
        let slow = JobMemory { written: Some((at(0), 400)), ..JobMemory::default() };
        let slots = [URGENT_MS, LONGEST_BOUNDED_MS, LONGEST_URGENT_MS].map(|longest| urgent_slot(&slow, longest));
        assert_eq!(slots, [at(100), at(250), at(1_000)].map(Some));
        assert_eq!(last_slot(&slow), Some(at(100)));
    }
}
