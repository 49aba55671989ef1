//! The time of a round: the host's clock, corrected by the `Date` headers in replies of the API server.
//!
//! The host compares stored timestamps with this time. The caller passes the clock, so nothing here reads the wall clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use k8s_openapi::jiff::{SignedDuration, Timestamp, fmt::rfc2822};
use parking_lot::Mutex;

/// The clock of the host. Tests pass a clock that follows tokio's paused time.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The smallest difference that the clock corrects. A `Date` header has whole seconds and a reply takes time to arrive, so a smaller
/// difference may be none.
const WORTH_CORRECTING: SignedDuration = SignedDuration::from_secs(2);

/// The number of consecutive replies that must agree on another difference before it counts. One of several API servers or proxies may have
/// a wrong clock.
const AGREEING: u32 = 3;

/// The clock of the host with the correction by the API server.
#[derive(Clone)]
pub struct ServerClock {
    local: Clock,
    offset_ms: Arc<AtomicI64>,
    candidate: Arc<Mutex<Option<OffsetCandidate>>>,
}

/// A difference that contradicts the known one.
#[derive(Clone, Copy)]
struct OffsetCandidate {
    offset_ms: i64,
    /// The number of consecutive replies with this difference.
    replies: u32,
}

impl std::fmt::Debug for ServerClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerClock").field("offset", &self.offset()).finish_non_exhaustive()
    }
}

impl ServerClock {
    /// Returns a clock without a correction.
    pub fn new(local: Clock) -> Self {
        Self { local, offset_ms: Arc::default(), candidate: Arc::default() }
    }

    /// Returns the time by the clock of the API server.
    pub fn now(&self) -> Timestamp {
        let local = self.local();
        let offset = SignedDuration::from_millis(self.offset_ms.load(Ordering::Relaxed));
        local.checked_add(offset).unwrap_or(local)
    }

    /// Returns how far the API server's clock is ahead of the host's clock.
    pub fn offset(&self) -> SignedDuration {
        SignedDuration::from_millis(self.offset_ms.load(Ordering::Relaxed))
    }

    pub(crate) fn local(&self) -> Timestamp {
        (self.local)()
    }

    /// Learns from the `Date` of a reply to a request that was sent at `sent` by the host's clock.
    pub(crate) fn learn(&self, date: &str, sent: Timestamp) {
        let Ok(date) = rfc2822::parse(date) else { return };
        let received = self.local();
        let under_way = received.duration_since(sent);
        // A slow reply says too little, and so does a clock that was set meanwhile.
        if under_way.is_negative() || under_way >= WORTH_CORRECTING {
            return;
        }
        // The header has whole seconds. It was written at some time between the request and the reply.
        let server = date.timestamp().as_millisecond().saturating_add(500);
        let local = sent.as_millisecond().saturating_add(i64::try_from(under_way.as_millis() / 2).unwrap_or(0));
        let offset = server.saturating_sub(local);
        if self.is_agreed(offset) {
            self.offset_ms.store(offset, Ordering::Relaxed);
            tracing::info!(
                offset_ms = offset,
                "the API server's clock differs from this host's; timestamps are corrected"
            );
        }
    }

    /// Returns true if the latest replies agree on an offset other than the known one.
    fn is_agreed(&self, offset_ms: i64) -> bool {
        let differs =
            |other: i64| SignedDuration::from_millis(offset_ms.saturating_sub(other)).abs() >= WORTH_CORRECTING;
        let mut candidate = self.candidate.lock();
        if !differs(self.offset_ms.load(Ordering::Relaxed)) {
            *candidate = None;
            return false;
        }
        let before =
            candidate.filter(|candidate| !differs(candidate.offset_ms)).map_or(0, |candidate| candidate.replies);
        let replies = before.saturating_add(1);
        let agreed = replies >= AGREEING;
        *candidate = (!agreed).then_some(OffsetCandidate { offset_ms, replies });
        agreed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn a_host_clock_ten_minutes_ahead_is_corrected() {
        let clock = ServerClock::new(Arc::new(|| at(1_700_000_600)));
        for _ in 0..3 {
            clock.learn("Tue, 14 Nov 2023 22:13:20 GMT", at(1_700_000_600));
        }
        assert!(clock.now().duration_since(at(1_700_000_000)).abs() <= SignedDuration::from_secs(1));
    }

    #[test]
    fn a_difference_within_the_resolution_of_the_header_is_left_alone() {
        let clock = ServerClock::new(Arc::new(|| at(1_700_000_001)));
        clock.learn("Tue, 14 Nov 2023 22:13:20 GMT", at(1_700_000_001));
        assert_eq!(clock.now(), at(1_700_000_001));
    }

    #[test]
    fn a_slow_reply_and_an_odd_header_teach_nothing() {
        let clock = ServerClock::new(Arc::new(|| at(1_700_000_600)));
        clock.learn("Tue, 14 Nov 2023 22:13:20 GMT", at(1_700_000_590));
        clock.learn("yesterday", at(1_700_000_600));
        assert_eq!(clock.offset(), SignedDuration::ZERO);
    }

    #[test]
    fn one_odd_header_among_good_ones_changes_nothing() {
        let clock = ServerClock::new(Arc::new(|| at(1_700_000_000)));
        for odd in [true, false, true, true, false, true] {
            let date = if odd { "Tue, 14 Nov 2023 22:23:20 GMT" } else { "Tue, 14 Nov 2023 22:13:20 GMT" };
            clock.learn(date, at(1_700_000_000));
            assert_eq!(clock.offset(), SignedDuration::ZERO);
        }
    }

    #[test]
    fn headers_that_differ_from_each_other_change_nothing() {
        let clock = ServerClock::new(Arc::new(|| at(1_700_000_000)));
        for minute in [23, 33, 43, 53] {
            clock.learn(&format!("Tue, 14 Nov 2023 22:{minute}:20 GMT"), at(1_700_000_000));
        }
        assert_eq!(clock.offset(), SignedDuration::ZERO);
    }
}
