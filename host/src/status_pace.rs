//! When the next status of an object may be written.
//!
//! Three may follow each other at once, and then one each second: of what changes more often, the last state counts. While
//! many objects have something to say, each waits longer, as the records of jobs do.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use oarlock_core::shared::record_pace::RecordPace;
use parking_lot::Mutex;
use tokio::time::{Duration, Instant};

/// Status writes of one object that may follow each other at once.
const BURST: u32 = 3;
/// Time after which one more may.
const PACE: Duration = Duration::from_secs(1);
/// The same where JobRecords are written with it.
const PACE_OF_RECORDS: Duration = Duration::from_secs(2);

/// The pace of all objects together.
pub(crate) type Together<K> = Arc<Mutex<RecordPace<K>>>;

/// The status writes of one object.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    used: u32,
    since: Option<Instant>,
    room_at: Option<Instant>,
}

impl Pace {
    /// When the next status may be written; `None` is now. The last one of an object waits for no other.
    pub(crate) fn next(&self, with_records: bool, is_last: bool) -> Option<Instant> {
        let now = Instant::now();
        let since = self.since?;
        let pace = if with_records { PACE_OF_RECORDS } else { PACE };
        let may_burst = !with_records && self.left(since, now) > 0;
        let own = Some(since + pace).filter(|_| !may_burst);
        let due = own.max(self.room_at.filter(|_| !is_last))?;
        (due > now).then_some(due)
    }

    fn left(&self, since: Instant, now: Instant) -> u32 {
        let gained = u32::try_from((now - since).as_millis() / PACE.as_millis()).unwrap_or(BURST);
        BURST.saturating_sub(self.used.saturating_sub(gained))
    }

    /// Notes a status write that ended at `time` and took so long.
    pub(crate) fn wrote<K: Clone + PartialEq>(
        &mut self,
        key: &K,
        together: &Together<K>,
        (time, took): (Timestamp, Duration),
    ) {
        let now = Instant::now();
        let left = self.since.map_or(BURST, |since| self.left(since, now));
        let took = i64::try_from(took.as_millis()).unwrap_or(i64::MAX);
        let room = together.lock().wrote(key, time, took).duration_since(time);
        let room_at = now + Duration::try_from(room).unwrap_or_default();
        *self = Self { used: (BURST - left + 1).min(BURST), since: Some(now), room_at: Some(room_at) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOK: Duration = Duration::from_millis(20);

    /// The times at which so many objects that always have something to say write, in milliseconds, for ten seconds.
    async fn written_by(objects: usize) -> Vec<u128> {
        let (together, begun) = (Together::default(), Instant::now());
        let mut paces: Vec<(usize, Pace)> = (0..objects).map(|number| (number, Pace::default())).collect();
        let mut times = Vec::new();
        while begun.elapsed() < Duration::from_secs(10) {
            for (key, pace) in &mut paces {
                if pace.next(false, false).is_none() {
                    let time = Timestamp::UNIX_EPOCH + begun.elapsed();
                    pace.wrote(key, &together, (time, TOOK));
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
        let together = Together::default();
        let (mut pace, time) = (Pace::default(), Timestamp::UNIX_EPOCH);
        Pace::default().wrote(&1, &together, (time, Duration::from_secs(2)));
        pace.wrote(&0, &together, (time, TOOK));
        assert!(pace.next(false, false).is_some());
        assert_eq!(pace.next(false, true), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_status_with_records_waits_two_seconds() {
        let mut pace = Pace::default();
        assert_eq!(pace.next(true, false), None);
        pace.wrote(&0, &Together::default(), (Timestamp::UNIX_EPOCH, TOOK));
        assert_eq!(pace.next(true, true), Some(Instant::now() + Duration::from_secs(2)));
    }
}
