//! The clocks of the in-memory API. Under tokio's paused time the default clock depends only on the schedule of the tasks.
//! Only `RealClock` reads the machine's clock.

use k8s_openapi::jiff::{SignedDuration, Timestamp, fmt::strtime};

/// Source of the API server's time.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Returns the current time.
    fn now(&self) -> Timestamp;
}

/// The start of virtual time, 2026-01-01T00:00:00Z, unless a test sets another one.
const VIRTUAL_START: i64 = 1_767_225_600;

/// A clock that advances with tokio's time, paused or not, from a fixed start.
#[derive(Debug, Clone)]
pub struct VirtualClock {
    start: Timestamp,
    origin: tokio::time::Instant,
}

impl VirtualClock {
    /// Returns a clock that shows `start` now.
    pub fn starting_at(start: Timestamp) -> Self {
        Self { start, origin: tokio::time::Instant::now() }
    }
}

impl Default for VirtualClock {
    fn default() -> Self {
        Self::starting_at(Timestamp::from_second(VIRTUAL_START).unwrap_or(Timestamp::UNIX_EPOCH))
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.origin.elapsed()).unwrap_or(SignedDuration::MAX);
        self.start.checked_add(elapsed).unwrap_or(Timestamp::MAX)
    }
}

/// The machine's clock, for a cluster that a person watches.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealClock;

impl Clock for RealClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// Formats a timestamp as Kubernetes' `metav1.Time` does: whole seconds, UTC.
pub(crate) fn seconds(at: Timestamp) -> String {
    strtime::format("%Y-%m-%dT%H:%M:%SZ", at).unwrap_or_default()
}

/// Formats a timestamp as the HTTP `Date` header does.
pub(crate) fn http_date(at: Timestamp) -> String {
    strtime::format("%a, %d %b %Y %H:%M:%S GMT", at).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn virtual_time_follows_tokio_and_nothing_else() {
        let clock = VirtualClock::default();
        assert_eq!(seconds(clock.now()), "2026-01-01T00:00:00Z");
        tokio::time::advance(std::time::Duration::from_secs(61)).await;
        assert_eq!(seconds(clock.now()), "2026-01-01T00:01:01Z");
        assert_eq!(http_date(clock.now()), "Thu, 01 Jan 2026 00:01:01 GMT");
    }
}
