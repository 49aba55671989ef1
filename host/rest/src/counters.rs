//! The counters of the API for metrics, and of the requests that get no log line each. Source: docs/opsjob-rest.md 8.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

/// The rate limit for log lines about requests of callers that have no right on OpsJobs.
const LINES: Quota = Quota::per_second(NonZeroU32::MIN).allow_burst(NonZeroU32::new(10).expect("above 0"));

/// Counts since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestCounts {
    /// The write requests that were refused before their callers had shown any right on OpsJobs.
    pub unentitled: u64,
    /// The connections that were closed or refused because there were too many.
    pub closed_connections: u64,
}

/// Counts the requests of callers that have no right on OpsJobs.
pub(crate) struct Unentitled {
    all: AtomicU64,
    /// The requests without a log line since the last log line.
    silent: AtomicU64,
    lines: DefaultDirectRateLimiter,
}

impl Default for Unentitled {
    fn default() -> Self {
        Self { all: AtomicU64::default(), silent: AtomicU64::default(), lines: RateLimiter::direct(LINES) }
    }
}

impl Unentitled {
    /// Counts a request. Returns the number of requests before it without a log line, or `None` if this request gets no line either.
    pub(crate) fn count(&self) -> Option<u64> {
        self.all.fetch_add(1, Ordering::Relaxed);
        if self.lines.check().is_ok() {
            return Some(self.silent.swap(0, Ordering::Relaxed));
        }
        self.silent.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Returns the number of all these requests.
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
