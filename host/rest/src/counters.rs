//! The counters of the API for metrics, and of the requests that are worth no line each. Source: docs/opsjob-rest.md 8.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

/// Lines a second, and at once, of requests whose senders have no right on OpsJobs.
const LINES: Quota = Quota::per_second(NonZeroU32::MIN).allow_burst(NonZeroU32::new(10).expect("above 0"));

/// Numbers since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestCounts {
    /// Requests that would change something and were refused before their senders had shown any right on OpsJobs.
    pub unentitled: u64,
    /// Connections that were closed, or not taken in, because there were too many.
    pub closed_connections: u64,
}

/// Counts requests of whoever has no right on OpsJobs.
pub(crate) struct Unentitled {
    all: AtomicU64,
    /// Those without a line since the last line.
    silent: AtomicU64,
    lines: DefaultDirectRateLimiter,
}

impl Default for Unentitled {
    fn default() -> Self {
        Self { all: AtomicU64::default(), silent: AtomicU64::default(), lines: RateLimiter::direct(LINES) }
    }
}

impl Unentitled {
    /// Counts one. Yields how many had no line before it, if it is to have one.
    pub(crate) fn count(&self) -> Option<u64> {
        self.all.fetch_add(1, Ordering::Relaxed);
        if self.lines.check().is_ok() {
            return Some(self.silent.swap(0, Ordering::Relaxed));
        }
        self.silent.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Returns the number of these requests.
    pub(crate) fn all(&self) -> u64 {
        self.all.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted_and_few_have_a_line() {
        let unentitled = Unentitled::default();
        let lines = (0..10_000).filter_map(|_| unentitled.count()).count();
        assert!((10..1_000).contains(&lines), "{lines}");
        assert_eq!(unentitled.all(), 10_000);
        assert!(unentitled.silent.load(Ordering::Relaxed) > 0);
    }
}
