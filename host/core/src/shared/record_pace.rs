//! The pace of records and statuses that nothing waits for, over all jobs or flows of a term.
//!
//! Takes how long each write of a record took; yields the time from which on its job may write the next one. A job's own pace
//! bounds what one job costs the API server; this one bounds what many do together: such a write is under way for a third of
//! the time at most, however many jobs have something to say, so that they leave the server to the mutations. Pure.

use k8s_openapi::jiff::Timestamp;

use crate::job::key::JobKey;
use crate::job::time::after_millis;

/// How much longer the others wait than a write took.
const SHARE: i64 = 3;
/// Longest time for which other jobs hold back a record, in milliseconds.
const LONGEST_MS: i64 = 10_000;

/// When the records written so far are paid for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RecordPace<K = JobKey> {
    paid_at: Option<Timestamp>,
    /// The job that wrote last.
    last: Option<K>,
}

impl<K> Default for RecordPace<K> {
    fn default() -> Self {
        Self { paid_at: None, last: None }
    }
}

impl<K: Clone + PartialEq> RecordPace<K> {
    /// Notes a write of a record that has just ended and took so many milliseconds. Returns the time from which on its job may
    /// write one that nothing waits for: at once, where one job alone has something to say.
    pub fn wrote(&mut self, job: &K, now: Timestamp, took: i64) -> Timestamp {
        let alone = self.last.as_ref() == Some(job);
        if !alone {
            self.last = Some(job.clone());
        }
        // The time of the write itself has passed.
        let began = after_millis(now, took.saturating_neg());
        let free = self.paid_at.map_or(began, |paid| paid.max(began));
        let cost = took.saturating_mul(if alone { 1 } else { SHARE });
        let paid = after_millis(free, cost).min(after_millis(now, LONGEST_MS));
        self.paid_at = Some(paid);
        paid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: i64) -> Timestamp {
        after_millis(Timestamp::UNIX_EPOCH, milliseconds)
    }

    fn job(number: i64) -> JobKey {
        JobKey { namespace: "d".into(), name: format!("j{number}") }
    }

    #[test]
    fn one_job_that_writes_one_record_after_the_other_is_not_held_back() {
        let mut pace = RecordPace::default();
        pace.wrote(&job(1), at(-1_000), 50);
        for now in (50..5_000).step_by(50).map(at) {
            assert_eq!(pace.wrote(&job(1), now, 50), now);
        }
    }

    #[test]
    fn jobs_that_write_at_once_come_back_one_after_the_other() {
        let mut pace = RecordPace::default();
        let next: Vec<Timestamp> = (0..4).map(|number| pace.wrote(&job(number), at(1_000), 200)).collect();
        assert_eq!(next, [at(1_400), at(2_000), at(2_600), at(3_200)]);
        assert_eq!(pace.wrote(&job(3), at(9_000), 200), at(9_000), "what was written long ago is paid for");
    }

    #[test]
    fn no_job_is_held_back_for_longer_than_ten_seconds() {
        let mut pace = RecordPace::default();
        let next = (0..1_000).map(|number| pace.wrote(&job(number), at(0), 300)).max();
        assert_eq!(next, Some(at(10_000)));
    }
}
