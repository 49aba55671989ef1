//! The pace of records that nothing waits for, over all jobs of a term.
//!
//! Takes how long each write of a record took; yields the time from which on its job may write the next one. A job's own pace
//! bounds what one job costs the API server; this one bounds what many do together: on average one such write is under way,
//! however many jobs have something to say, so that they leave the server to the mutations. Pure.

use k8s_openapi::jiff::Timestamp;

use crate::job::time::after_millis;

/// Longest time for which other jobs hold back a record, in milliseconds.
const LONGEST_MS: i64 = 10_000;

/// When the records written so far are paid for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RecordPace {
    paid_at: Option<Timestamp>,
}

impl RecordPace {
    /// Notes a write of a record that has just ended and took so many milliseconds. Returns the time from which on its job may
    /// write one that nothing waits for: at once, where the jobs together write less than one after the other.
    pub fn wrote(&mut self, now: Timestamp, took: i64) -> Timestamp {
        // Its time has passed while it was under way.
        let began = after_millis(now, took.saturating_neg());
        let free = self.paid_at.map_or(began, |paid| paid.max(began));
        let paid = after_millis(free, took).min(after_millis(now, LONGEST_MS));
        self.paid_at = Some(paid);
        paid
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::SignedDuration;

    use super::*;

    const BEGIN: Timestamp = Timestamp::UNIX_EPOCH;

    fn at(milliseconds: i64) -> Timestamp {
        BEGIN + SignedDuration::from_millis(milliseconds)
    }

    #[test]
    fn one_job_that_writes_one_record_after_the_other_is_not_held_back() {
        let mut pace = RecordPace::default();
        for round in 1..100 {
            let now = at(round * 50);
            assert_eq!(pace.wrote(now, 50), now);
        }
    }

    #[test]
    fn jobs_that_write_at_once_come_back_one_after_the_other() {
        let mut pace = RecordPace::default();
        let next: Vec<Timestamp> = (0..4).map(|_| pace.wrote(at(1_000), 200)).collect();
        assert_eq!(next, [at(1_000), at(1_200), at(1_400), at(1_600)]);
        assert_eq!(pace.wrote(at(5_000), 200), at(5_000), "what was written long ago is paid for");
    }

    #[test]
    fn no_job_is_held_back_for_longer_than_ten_seconds() {
        let mut pace = RecordPace::default();
        let next = (0..1_000).map(|_| pace.wrote(at(0), 300)).max();
        assert_eq!(next, Some(at(10_000)));
    }
}
