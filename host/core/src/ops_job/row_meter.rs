//! Limits the bytes a day that the history keeps for callers without rights in the whole cluster. Source: docs/opsjob-rest.md 12.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::shared::quota_key::QuotaKey;

/// Bytes a day of one key, all of which may come at once.
const A_DAY: u64 = 32 * 1024 * 1024;
const DAY: Duration = Duration::from_secs(24 * 3_600);
/// Keys that are known before those are forgotten that have all of their day.
const KEYS: usize = 1_000;

/// Counts the bytes of rows. Time is what has passed since its owner began.
#[derive(Debug, Default)]
pub struct RowMeter {
    /// The bytes that each key has used of its day, and the time of this count.
    used: HashMap<QuotaKey, (u64, Duration)>,
}

impl RowMeter {
    fn used(&self, key: &QuotaKey, now: Duration) -> u64 {
        let Some((used, at)) = self.used.get(key) else { return 0 };
        let passed = now.saturating_sub(*at).min(DAY).as_millis();
        let regained = passed.saturating_mul(u128::from(A_DAY)).checked_div(DAY.as_millis()).unwrap_or(0);
        used.saturating_sub(u64::try_from(regained).unwrap_or(u64::MAX))
    }

    /// Counts a row of so many bytes; false where the day of its key has none left, and then it does not count.
    pub fn takes(&mut self, key: &QuotaKey, bytes: u64, now: Duration) -> bool {
        let used = self.used(key, now).saturating_add(bytes);
        if used > A_DAY {
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
        let (mut meter, key, other) = (RowMeter::default(), QuotaKey::of("alice"), QuotaKey::of("bob"));
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
    fn keys_that_have_their_whole_day_are_forgotten() {
        let mut meter = RowMeter::default();
        for number in 0..10 * KEYS as u64 {
            assert!(meter.takes(&QuotaKey::User(number.to_string()), 1, Duration::from_secs(number * 60)));
        }
        assert!(meter.used.len() <= KEYS + 1, "{}", meter.used.len());
    }
}
