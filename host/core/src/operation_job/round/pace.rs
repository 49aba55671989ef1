//! Earliest times for the next write of a status, and waits after failures.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::object::time::after_millis;
use crate::operation_job::round::context::Round;
use crate::operation_job::round::memory::{Decisions, Reports, StoredState};
use crate::requests::backoff::Backoff;

/// Shortest time between two writes of a status that mutations or a visit wait for.
const URGENT_MS: i64 = 100;
/// Longest time between two writes of a status that mutations wait for. If writes are slow, the next write waits to
/// carry more changes.
const LONGEST_URGENT_MS: i64 = 1_000;
/// Longest time between two writes of a status that mutations wait for, if each start waits for an end, as under
/// `maxUnavailable`. It applies to at most [`BOUNDED`] targets in flight. Capacity stays unused while a record waits.
const LONGEST_BOUNDED_MS: i64 = 250;
/// Most targets in flight to which `LONGEST_BOUNDED_MS` applies.
const BOUNDED: usize = 250;
/// Shortest time between two writes of a status for the tasks of few targets.
const PROMPT_MS: i64 = 20;
/// Most targets in flight that count as few. Their records are small, and each target causes no more than a few a
/// second.
const FEW: usize = 32;
/// Shortest time between two writes that no mutation waits for.
const LAZY_MS: i64 = 1_000;
/// Longest wait before the end of a target or of the job is written.
const END_MS: i64 = 1_500;
/// Waits after retryable failures.
pub(super) const FAILED: Backoff = Backoff::from_secs(1, 60);

/// Returns the earliest time to write a status that somebody waits for: `times` the duration of the last write after it, at least 100 ms and at most
/// `longest` milliseconds.
fn debounced_until(reports: &Reports, times: i64, longest: i64) -> Option<Timestamp> {
    reports.written.map(|(at, took)| after_millis(at, took.saturating_mul(times).clamp(URGENT_MS, longest)))
}

/// Returns the earliest time to write the status with which a job ends. No other write follows, so this one does not
/// wait to carry more changes.
pub fn final_write_at(reports: &Reports) -> Option<Timestamp> {
    debounced_until(reports, 1, URGENT_MS)
}

/// Returns the earliest time to write a status for which the tasks of few targets wait. The wait is as long as the last
/// write took, unless many jobs have something to write. Each script on a node waits for two such writes: of its start
/// and of its result.
fn task_write_at(reports: &Reports) -> Option<Timestamp> {
    let own = reports.written.map(|(at, took)| after_millis(at, took.clamp(PROMPT_MS, URGENT_MS)));
    own.max(reports.record_allowed_at)
}

/// Returns the earlier of `write_at` and the earliest time for the tasks of few targets. The second time counts only if the
/// job's plugin has tasks and few targets are in flight.
pub fn or_task_write_at(
    round: &Round<'_>,
    stored: &StoredState,
    reports: &Reports,
    write_at: Option<Timestamp>,
) -> Option<Timestamp> {
    let has_tasks = round.serving().is_some_and(|plugin| !plugin.manifest.tasks.is_empty());
    let is_prompt = has_tasks && stored.durable.processing.len() <= FEW;
    if is_prompt { write_at.min(task_write_at(reports)) } else { write_at }
}

/// Returns the earliest time to start targets, and to write a record that mutations wait for. A job is quiet if no
/// write of it waits or is in flight. The record of a quiet job waits as long as the last one took, because there is no
/// result that it could carry too.
pub fn urgent_write_at(
    round: &Round<'_>,
    stored: &StoredState,
    reports: &Reports,
    is_quiet: bool,
) -> Option<Timestamp> {
    let has_few = stored.durable.processing.len() <= BOUNDED;
    let is_bounded = has_few && round.valid().is_some_and(|spec| spec.policy.bounds_starts());
    let longest = if is_bounded { LONGEST_BOUNDED_MS } else { LONGEST_URGENT_MS };
    or_task_write_at(round, stored, reports, debounced_until(reports, if is_quiet { 1 } else { 3 }, longest))
}

/// Returns the earliest time to write a status for which only a visit waits, because a plugin sees its stored extras
/// once they are durable. The wait is ten times the duration of the last write, or three times while the job is quiet,
/// and at most a second. It is longer if many jobs of the owner have something to write
/// ([`RecordRateLimit`](crate::status::record_rate_limit::RecordRateLimit)).
pub fn awaited_write_at(reports: &Reports, is_quiet: bool) -> Option<Timestamp> {
    debounced_until(reports, if is_quiet { 3 } else { 10 }, LAZY_MS).max(reports.record_allowed_at)
}

/// Returns the earliest time to write a status that nothing waits for: a second after the last write, or ten times its
/// duration. Ends wait at most a second and a half. Both waits are longer if many jobs have something to write.
pub fn routine_write_at(stored: &StoredState, decisions: &Decisions, reports: &Reports) -> Option<Timestamp> {
    let most = if decisions.latest.ended() > stored.durable.ended() { END_MS } else { i64::MAX };
    let own = reports.written.map(|(at, took)| after_millis(at, took.saturating_mul(10).max(LAZY_MS).min(most)));
    own.max(reports.record_allowed_at)
}

/// Returns the wait after `tries` failures in a row, or the plugin's own wait.
pub fn wait_after(tries: u32, own_ms: Option<u32>) -> SignedDuration {
    match own_ms {
        Some(ms) => SignedDuration::from_millis(i64::from(ms)),
        None => FAILED.signed_wait(tries),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: i64) -> Timestamp {
        after_millis(Timestamp::UNIX_EPOCH, milliseconds)
    }

    /// Returns the reports about a job whose last write ended at 0 and took this many milliseconds.
    fn after_write_of(milliseconds: i64) -> Reports {
        Reports { written: Some((at(0), milliseconds)), ..Reports::default() }
    }

    #[test]
    fn only_what_a_mutation_waits_for_is_not_held_back_by_other_jobs() {
        let alone = after_write_of(20);
        let urgent_slot = |reports: &Reports| debounced_until(reports, 3, LONGEST_URGENT_MS);
        let routine_write_at =
            |reports: &Reports| routine_write_at(&StoredState::default(), &Decisions::default(), reports);
        let slots =
            |reports: &Reports| [urgent_slot(reports), awaited_write_at(reports, false), routine_write_at(reports)];
        assert_eq!(slots(&alone), [at(100), at(200), at(1_000)].map(Some));
        assert_eq!(task_write_at(&alone), Some(at(20)));
        let mut delayed = alone;
        delayed.record_allowed_at = Some(at(4_000));
        assert_eq!(task_write_at(&delayed), Some(at(4_000)));
        assert_eq!(slots(&delayed), [at(100), at(4_000), at(4_000)].map(Some));
    }

    #[test]
    fn the_last_record_of_a_job_waits_for_nothing_more_to_carry_however_slow_records_are() {
        let slow = after_write_of(400);
        let slots =
            [URGENT_MS, LONGEST_BOUNDED_MS, LONGEST_URGENT_MS].map(|longest| debounced_until(&slow, 3, longest));
        assert_eq!(slots, [at(100), at(250), at(1_000)].map(Some));
        assert_eq!(final_write_at(&slow), Some(at(100)));
        let quick = after_write_of(50);
        assert_eq!([false, true].map(|is_quiet| awaited_write_at(&quick, is_quiet)), [at(500), at(150)].map(Some));
        assert_eq!([false, true].map(|is_quiet| awaited_write_at(&slow, is_quiet)), [at(1_000), at(1_000)].map(Some));
    }
}
