//! Limits what the history keeps per day for callers without permissions in the whole cluster: bytes of specs, and rows. Source: docs/opsjob-rest.md
//! 12.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::object::quota_key::QuotaKey;

/// The bytes per day of one key.
const BYTES: u64 = 32 * 1024 * 1024;
/// The jobs per day of one key. The history keeps a row for each job, and a row for each request that made a job.
pub const JOBS: u64 = 10_000;
const DAY: Duration = Duration::from_secs(24 * 3_600);
/// The number of keys at which the meter forgets keys without any current use.
const KEYS: usize = 1_000;

/// Counts the use of each key. A key may use the amount of a day at once. Times are durations since the meter's owner started.
#[derive(Debug)]
pub struct RowMeter {
    a_day: u64,
    /// The amount that each key has used, and the time of this count.
    used: HashMap<QuotaKey, (u64, Duration)>,
}

impl RowMeter {
    /// Returns a meter of bytes.
    pub fn of_bytes() -> Self {
        Self { a_day: BYTES, used: HashMap::new() }
    }

    /// Returns a meter of jobs.
    pub fn of_jobs() -> Self {
        Self { a_day: JOBS, used: HashMap::new() }
    }

    /// Returns the time in which a key without room gets room for one more.
    pub fn one_more(&self) -> Duration {
        DAY.checked_div(u32::try_from(self.a_day).unwrap_or(u32::MAX)).unwrap_or(DAY)
    }

    fn used(&self, key: &QuotaKey, now: Duration) -> u64 {
        let Some((used, at)) = self.used.get(key) else { return 0 };
        let passed = now.saturating_sub(*at).min(DAY).as_millis();
        let regained = passed.saturating_mul(u128::from(self.a_day)).checked_div(DAY.as_millis()).unwrap_or(0);
        used.saturating_sub(u64::try_from(regained).unwrap_or(u64::MAX))
    }

    /// Counts an amount for a key. Returns false, and counts nothing, if the key has used up its day.
    pub fn takes(&mut self, key: &QuotaKey, amount: u64, now: Duration) -> bool {
        let used = self.used(key, now).saturating_add(amount);
        if used > self.a_day {
            return false;
        }
        if self.used.len() >= KEYS {
            let idle: HashSet<QuotaKey> = self.used.keys().filter(|key| self.used(key, now) == 0).cloned().collect();
            self.used.retain(|key, _| !idle.contains(key));
        }
        self.used.insert(key.clone(), (used, now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_its_day_at_once_and_then_bit_by_bit() {
        let (mut meter, key, other) = (RowMeter::of_bytes(), QuotaKey::of("alice"), QuotaKey::of("bob"));
        let mib = 1024 * 1024;
        let taken = |meter: &mut RowMeter, now: u64| {
            (0..100).filter(|_| meter.takes(&key, mib, Duration::from_secs(now))).count()
        };
        assert_eq!((taken(&mut meter, 0), taken(&mut meter, 0)), (32, 0));
        assert!(meter.takes(&other, mib, Duration::ZERO));
        assert_eq!(taken(&mut meter, 6 * 3_600), 8);
        assert_eq!(taken(&mut meter, 100 * 3_600), 32);
    }

    #[test]
    fn a_key_makes_ten_thousand_jobs_and_then_one_every_nine_seconds() {
        let (mut meter, key) = (RowMeter::of_jobs(), QuotaKey::of("alice"));
        let taken = |meter: &mut RowMeter, now: u64| {
            (0..2 * JOBS).filter(|_| meter.takes(&key, 1, Duration::from_secs(now))).count()
        };
        assert_eq!((taken(&mut meter, 0), taken(&mut meter, 8), taken(&mut meter, 18)), (10_000, 0, 2));
        assert_eq!(meter.one_more(), Duration::from_millis(8_640));
    }

    #[test]
    fn keys_that_have_their_whole_day_are_forgotten() {
        let mut meter = RowMeter::of_bytes();
        for number in 0..10 * KEYS as u64 {
            assert!(meter.takes(&QuotaKey::User(number.to_string()), 1, Duration::from_secs(number * 60)));
        }
        assert!(meter.used.len() <= KEYS + 1, "{}", meter.used.len());
    }
}
