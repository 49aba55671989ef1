//! The share of each namespace in the places on the wire: at most three quarters of them, and fewer while its replies are
//! slow or do not come.
//!
//! A webhook that hangs in one namespace costs that namespace its pace, and no other one.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::cluster::REQUEST_TIMEOUT;
use crate::transport::limiter::{SETTLING, whole};

/// Source: docs/operationjob.md 3.15.3.
const MOST_OF_ONE: usize = 24;
/// Slow replies leave at least so many: the server may just share a busy machine.
const FEW: f64 = 8.0;
/// Replies this much slower than usual mean that a queue has formed.
const SLOWER: f64 = 4.0;
/// Below this a reply is fast, whatever is usual.
const FAST_SECONDS: f64 = 0.1;
/// After this time without writes a namespace is forgotten, and what was learnt of it.
const REMEMBERED: Duration = Duration::from_secs(600);

/// The entries on the wire, by namespace.
pub(crate) struct Shares {
    namespaces: HashMap<String, Share>,
    /// When the forgotten ones were last swept out.
    swept: Instant,
}

impl Default for Shares {
    fn default() -> Self {
        Self { namespaces: HashMap::new(), swept: Instant::now() }
    }
}

struct Share {
    on_the_wire: usize,
    limit: f64,
    /// Smoothed latency, in seconds.
    latency: f64,
    /// Latency without a queue: follows down at once, up slowly.
    usual: f64,
    lowered: Option<Instant>,
    /// When its last request ended.
    replied: Option<Instant>,
}

impl Default for Share {
    fn default() -> Self {
        Self {
            on_the_wire: 0,
            limit: MOST_OF_ONE as f64,
            latency: 0.0,
            usual: FAST_SECONDS,
            lowered: None,
            replied: None,
        }
    }
}

impl Shares {
    /// True if one more entry of the namespace may go on the wire.
    pub(crate) fn has_room(&self, namespace: &str) -> bool {
        self.namespaces.get(namespace).is_none_or(|share| share.on_the_wire < whole(share.limit))
    }

    /// An entry of the namespace goes on the wire.
    pub(crate) fn enter(&mut self, namespace: &str) {
        let share = self.namespaces.entry(namespace.to_owned()).or_default();
        share.on_the_wire = share.on_the_wire.saturating_add(1);
    }

    /// A request of an entry on the wire ended after `took`.
    pub(crate) fn replied(&mut self, namespace: &str, took: Duration) {
        self.namespaces.entry(namespace.to_owned()).or_default().learn(took);
    }

    /// An entry of the namespace has its result.
    pub(crate) fn leave(&mut self, namespace: &str) {
        let Some(share) = self.namespaces.get_mut(namespace) else { return };
        share.on_the_wire = share.on_the_wire.saturating_sub(1);
        if self.swept.elapsed() >= REMEMBERED {
            self.swept = Instant::now();
            let recent = |share: &Share| share.replied.is_some_and(|at| at.elapsed() < REMEMBERED);
            self.namespaces.retain(|_, share| share.on_the_wire > 0 || recent(share));
        }
    }
}

impl Share {
    fn learn(&mut self, took: Duration) {
        self.replied = Some(Instant::now());
        let seconds = took.as_secs_f64();
        self.latency = self.latency * 0.9 + seconds * 0.1;
        self.usual = seconds.min(self.usual * 1.001).max(0.001);
        let timed_out = took >= REQUEST_TIMEOUT;
        let queued = self.latency > FAST_SECONDS && self.latency > self.usual * SLOWER;
        if !timed_out && !queued {
            self.limit = (self.limit + 1.0 / self.limit).min(MOST_OF_ONE as f64);
        } else if self.lowered.is_none_or(|at| at.elapsed() >= SETTLING) {
            self.limit =
                if timed_out { (self.limit * 0.5).max(1.0) } else { (self.limit * 0.8).max(FEW.min(self.limit)) };
            self.lowered = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The entries of the namespace that go on the wire until it has no room.
    fn fill(shares: &mut Shares, namespace: &str) -> usize {
        let mut entered = 0;
        while shares.has_room(namespace) {
            shares.enter(namespace);
            entered += 1;
        }
        entered
    }

    #[tokio::test(start_paused = true)]
    async fn one_namespace_takes_three_quarters_of_the_places() {
        let mut shares = Shares::default();
        assert_eq!((fill(&mut shares, "a"), fill(&mut shares, "b")), (24, 24));
        shares.leave("a");
        assert!(shares.has_room("a") && !shares.has_room("b"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_whose_requests_time_out_gets_fewer_places_and_more_again_later() {
        let mut shares = Shares::default();
        for _ in 0..10 {
            shares.enter("a");
            tokio::time::advance(REQUEST_TIMEOUT).await;
            shares.replied("a", REQUEST_TIMEOUT);
            shares.leave("a");
        }
        assert_eq!((fill(&mut shares, "a"), fill(&mut shares, "b")), (1, 24));
        for _ in 0..1_000 {
            shares.replied("a", Duration::from_millis(5));
        }
        assert_eq!(fill(&mut shares, "a"), 23);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_replies_leave_a_few_places() {
        let mut shares = Shares::default();
        for _ in 0..100 {
            shares.enter("a");
            tokio::time::advance(Duration::from_secs(2)).await;
            shares.replied("a", Duration::from_secs(2));
            shares.leave("a");
        }
        let few = fill(&mut shares, "a");
        assert!((8..24).contains(&few), "{few}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_without_writes_is_forgotten() {
        let mut shares = Shares::default();
        for number in 0..1_000 {
            shares.enter(&number.to_string());
            shares.replied(&number.to_string(), REQUEST_TIMEOUT);
            shares.leave(&number.to_string());
        }
        tokio::time::advance(REMEMBERED).await;
        shares.enter("a");
        shares.leave("a");
        assert!(shares.namespaces.is_empty());
    }
}
