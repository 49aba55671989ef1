//! The rate limit of an object's status.
//!
//! An object may write three statuses at once, and then one per second. More frequent changes are merged into the last
//! state. While many objects of an owner change, each waits longer, as the records of jobs do.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use oarlock_core::object::quota_key::QuotaKey;
use oarlock_core::status::record_rate_limit::RecordRateLimit;
use parking_lot::Mutex;
use tokio::time::{Duration, Instant};

/// The number of status writes of one object without a wait.
const BURST: u32 = 3;
/// The time after which an object may write once more.
const PACE: Duration = Duration::from_secs(1);
/// The time after which an object may write once more if it also writes JobRecords.
const PACE_OF_RECORDS: Duration = Duration::from_secs(2);

/// The shared rate limits, one for the objects of each owner.
pub(crate) type SharedRateLimit<K> = Arc<Mutex<RecordRateLimit<K>>>;

/// A status write that has just ended.
pub(crate) struct StatusWrite<'a, K> {
    /// The object.
    pub(crate) key: &'a K,
    /// The owner whose rate limit counts the write.
    pub(crate) owner: QuotaKey,
    /// The time at which the write ended.
    pub(crate) ended: Timestamp,
    /// The duration of the write.
    pub(crate) took: Duration,
}

/// The status write limit of one object.
#[derive(Debug, Default)]
pub(crate) struct StatusRateLimit {
    used: u32,
    since: Option<Instant>,
    allowed_at: Option<Instant>,
}

impl StatusRateLimit {
    /// Returns the time of the next write; `None` means now. The last status of an object does not wait for other
    /// objects.
    pub(crate) fn next(&self, with_records: bool, is_last: bool) -> Option<Instant> {
        let now = Instant::now();
        let since = self.since?;
        let pace = if with_records { PACE_OF_RECORDS } else { PACE };
        let may_burst = !with_records && self.left(since, now) > 0;
        let own = Some(since + pace).filter(|_| !may_burst);
        let due = own.max(self.allowed_at.filter(|_| !is_last))?;
        (due > now).then_some(due)
    }

    fn left(&self, since: Instant, now: Instant) -> u32 {
        let gained = u32::try_from((now - since).as_millis() / PACE.as_millis()).unwrap_or(BURST);
        BURST.saturating_sub(self.used.saturating_sub(gained))
    }

    /// Notes a status write.
    pub(crate) fn wrote<K: Clone + PartialEq>(&mut self, write: StatusWrite<'_, K>, shared_limit: &SharedRateLimit<K>) {
        let StatusWrite { key, owner, ended, took } = write;
        let now = Instant::now();
        let left = self.since.map_or(BURST, |since| self.left(since, now));
        let took = i64::try_from(took.as_millis()).unwrap_or(i64::MAX);
        let room = shared_limit.lock().wrote(owner, key, ended, took).duration_since(ended);
        let allowed_at = now + Duration::try_from(room).unwrap_or_default();
        *self = Self { used: (BURST - left + 1).min(BURST), since: Some(now), allowed_at: Some(allowed_at) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOK: Duration = Duration::from_millis(20);

    fn write(key: &usize, ended: Timestamp, took: Duration) -> StatusWrite<'_, usize> {
        StatusWrite { key, owner: QuotaKey::Namespace("d".to_owned()), ended, took }
    }

    /// Returns the times, in milliseconds, at which so many constantly changing objects write within ten seconds.
    async fn written_by(objects: usize) -> Vec<u128> {
        let (shared_limit, begun) = (SharedRateLimit::default(), Instant::now());
        let mut paces: Vec<(usize, StatusRateLimit)> =
            (0..objects).map(|number| (number, StatusRateLimit::default())).collect();
        let mut times = Vec::new();
        while begun.elapsed() < Duration::from_secs(10) {
            for (key, pace) in &mut paces {
                if pace.next(false, false).is_none() {
                    let time = Timestamp::UNIX_EPOCH + begun.elapsed();
                    pace.wrote(write(key, time, TOOK), &shared_limit);
                    times.push(begun.elapsed().as_millis());
                }
            }
            tokio::time::advance(Duration::from_millis(10)).await;
        }
        times
    }

    #[tokio::test(start_paused = true)]
    async fn three_statuses_follow_at_once_and_then_one_each_second() {
        let seconds: Vec<u128> = written_by(1).await.into_iter().map(|time| time / 1_000).take(6).collect();
        assert_eq!(seconds, [0, 0, 0, 1, 2, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn statuses_of_a_crowd_are_under_way_for_a_third_of_the_time() {
        let late = written_by(100).await.into_iter().filter(|time| *time >= 5_000).count();
        assert!((60..=100).contains(&late), "{late} writes of {TOOK:?} in 5 s");
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_status_waits_for_no_other_object() {
        let shared_limit = SharedRateLimit::default();
        let (mut pace, time) = (StatusRateLimit::default(), Timestamp::UNIX_EPOCH);
        StatusRateLimit::default().wrote(write(&1, time, Duration::from_secs(2)), &shared_limit);
        pace.wrote(write(&0, time, TOOK), &shared_limit);
        assert!(pace.next(false, false).is_some());
        assert_eq!(pace.next(false, true), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_status_with_records_waits_two_seconds() {
        let mut pace = StatusRateLimit::default();
        assert_eq!(pace.next(true, false), None);
        pace.wrote(write(&0, Timestamp::UNIX_EPOCH, TOOK), &SharedRateLimit::default());
        assert_eq!(pace.next(true, true), Some(Instant::now() + Duration::from_secs(2)));
    }
}
