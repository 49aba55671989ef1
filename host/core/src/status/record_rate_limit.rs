//! Limits how often all jobs, all flows or all OpsJobs of one owner write their status together. Delays only writes that no target waits for.
//!
//! Takes the duration of each write of a record; yields the time from which its job may write the next record. A job's own rate limit bounds the cost
//! of one job for the API server. This limit bounds the cost of many jobs of one owner together. While several jobs of an owner write, each write
//! reserves three times its duration. Mutations use the other two thirds. No write waits for more than 10 s. Each owner has a limit of its own, so
//! the records of one owner delay no other owner's. Pure.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;

use crate::object::key::JobKey;
use crate::object::quota_key::QuotaKey;
use crate::object::time::after_millis;

/// Factor on the duration of a write: other jobs wait three times as long as the write took.
const SHARE: i64 = 3;
/// The longest time for which other jobs hold back a record, in milliseconds.
const LONGEST_MS: i64 = 10_000;

/// The rate limits of all owners that have written lately.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RecordRateLimit<K = JobKey> {
    owners: BTreeMap<QuotaKey, OwnerRateLimit<K>>,
}

impl<K> Default for RecordRateLimit<K> {
    fn default() -> Self {
        Self { owners: BTreeMap::new() }
    }
}

/// The rate limit of one owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct OwnerRateLimit<K> {
    /// The earliest time of the owner's next status write.
    paid_at: Timestamp,
    /// The job that wrote the last record.
    last: K,
}

impl<K: Clone + PartialEq> RecordRateLimit<K> {
    /// Notes that a job of this owner has just written a record, which took `took` milliseconds. Returns the time from which the job may write a
    /// record that nothing waits for. If only one job of the owner writes, it may write again at once, except after its first write.
    /// That write counts as if several jobs wrote, so the job then waits twice the duration of the write.
    pub fn wrote(&mut self, owner: QuotaKey, job: &K, now: Timestamp, took: i64) -> Timestamp {
        self.owners.retain(|_, pace| after_millis(pace.paid_at, LONGEST_MS) >= now);
        // The wait begins with the write, whose own time has already passed.
        let began = after_millis(now, took.saturating_neg());
        let before = self.owners.get(&owner);
        let is_alone = before.is_some_and(|pace| pace.last == *job);
        let free = before.map_or(began, |pace| pace.paid_at.max(began));
        let cost = took.saturating_mul(if is_alone { 1 } else { SHARE });
        let paid_at = after_millis(free, cost).min(after_millis(now, LONGEST_MS));
        self.owners.insert(owner, OwnerRateLimit { paid_at, last: job.clone() });
        paid_at
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

    fn owner() -> QuotaKey {
        QuotaKey::Namespace("d".into())
    }

    #[test]
    fn one_job_that_writes_one_record_after_the_other_is_not_held_back() {
        let mut pace = RecordRateLimit::default();
        pace.wrote(owner(), &job(1), at(-1_000), 50);
        for now in (50..5_000).step_by(50).map(at) {
            assert_eq!(pace.wrote(owner(), &job(1), now, 50), now);
        }
    }

    #[test]
    fn jobs_that_write_at_once_come_back_one_after_the_other() {
        let mut pace = RecordRateLimit::default();
        let next: Vec<Timestamp> = (0..4).map(|number| pace.wrote(owner(), &job(number), at(1_000), 200)).collect();
        assert_eq!(next, [at(1_400), at(2_000), at(2_600), at(3_200)]);
        assert_eq!(pace.wrote(owner(), &job(3), at(9_000), 200), at(9_000), "what was written long ago is paid for");
    }

    #[test]
    fn no_job_is_held_back_for_longer_than_ten_seconds() {
        let mut pace = RecordRateLimit::default();
        let next = (0..1_000).map(|number| pace.wrote(owner(), &job(number), at(0), 300)).max();
        assert_eq!(next, Some(at(10_000)));
    }

    #[test]
    fn the_records_of_one_owner_delay_no_other_owner_and_are_forgotten_once_they_are_paid_for() {
        let mut pace = RecordRateLimit::default();
        let crowd = (0..1_000).map(|number| pace.wrote(owner(), &job(number), at(0), 300)).max();
        let other = QuotaKey::User("else".into());
        assert_eq!([crowd, Some(pace.wrote(other.clone(), &job(0), at(0), 300))], [at(10_000), at(600)].map(Some));
        pace.wrote(other, &job(0), at(30_000), 300);
        assert_eq!(pace.owners.len(), 1);
    }
}
