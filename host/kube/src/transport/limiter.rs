//! The limit on writes in flight: 32, and fewer while the API server refuses for load.
//!
//! Beyond about 32 only latency grows. Reads are not limited. Slow replies are the matter of their namespace
//! (`crate::transport::shares`).

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Source: docs/operationjob.md 10.
const MOST: usize = 32;
/// The limit falls at most once in this time: replies to writes that were already in flight say nothing new.
pub(crate) const SETTLING: Duration = Duration::from_secs(1);

/// Lets writes through, in the order in which they came.
pub(crate) struct WriteLimiter {
    places: Arc<Semaphore>,
    state: Mutex<State>,
}

struct State {
    limit: f64,
    /// Places that the limit no longer allows but that are still taken.
    owed: usize,
    lowered: Option<Instant>,
}

/// One write in flight, until it is dropped.
pub(crate) struct WritePermit {
    limiter: Arc<WriteLimiter>,
    place: Option<OwnedSemaphorePermit>,
}

impl Default for WriteLimiter {
    fn default() -> Self {
        let state = State { limit: MOST as f64, owed: 0, lowered: None };
        Self { places: Arc::new(Semaphore::new(MOST)), state: Mutex::new(state) }
    }
}

impl WriteLimiter {
    /// Waits until one more write may go.
    pub(crate) async fn enter(self: &Arc<Self>) -> WritePermit {
        // The semaphore is never closed.
        let place = self.places.clone().acquire_owned().await.ok();
        WritePermit { limiter: self.clone(), place }
    }

    /// The number that may be in flight now.
    pub(crate) fn limit(&self) -> usize {
        whole(self.state.lock().limit)
    }

    fn learn(&self, busy: bool) {
        let mut state = self.state.lock();
        let before = whole(state.limit);
        if !busy {
            state.limit = (state.limit + 1.0 / state.limit).min(MOST as f64);
        } else if state.lowered.is_none_or(|at| at.elapsed() >= SETTLING) {
            state.limit = (state.limit * 0.5).max(1.0);
            state.lowered = Some(Instant::now());
        }
        self.resize(&mut state, before);
    }

    fn resize(&self, state: &mut State, before: usize) {
        let after = whole(state.limit);
        let more = after.saturating_sub(before);
        let redeemed = more.min(state.owed);
        state.owed -= redeemed;
        self.places.add_permits(more - redeemed);
        let fewer = before.saturating_sub(after);
        state.owed += fewer - self.places.forget_permits(fewer);
    }
}

/// The places of a limit: at least one.
pub(crate) fn whole(limit: f64) -> usize {
    limit.floor().max(1.0) as usize
}

impl WritePermit {
    /// The reply came. `busy`: the API server refused for load.
    pub(crate) fn leave(self, busy: bool) {
        self.limiter.learn(busy);
    }
}

impl Drop for WritePermit {
    fn drop(&mut self) {
        let mut state = self.limiter.state.lock();
        if state.owed > 0
            && let Some(place) = self.place.take()
        {
            state.owed -= 1;
            place.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn at_most_thirty_two_writes_are_in_flight() {
        let limiter = Arc::new(WriteLimiter::default());
        let mut inside = Vec::new();
        for _ in 0..32 {
            inside.push(limiter.enter().await);
        }
        assert!(tokio::time::timeout(Duration::from_secs(1), limiter.enter()).await.is_err());
        inside.pop();
        assert!(tokio::time::timeout(Duration::from_secs(1), limiter.enter()).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_server_gets_fewer_writes_and_more_again_later() {
        let limiter = Arc::new(WriteLimiter::default());
        limiter.enter().await.leave(true);
        limiter.enter().await.leave(true);
        assert_eq!(limiter.limit(), 16, "the limit falls once per settling time");
        for _ in 0..1_000 {
            limiter.enter().await.leave(false);
        }
        assert_eq!(limiter.limit(), 32);
    }

    #[tokio::test(start_paused = true)]
    async fn writes_in_flight_when_the_limit_falls_leave_no_place_behind() {
        let limiter = Arc::new(WriteLimiter::default());
        let mut inside = Vec::new();
        for _ in 0..32 {
            inside.push(limiter.enter().await);
        }
        inside.pop().unwrap().leave(true);
        for passage in inside.drain(..) {
            passage.leave(false);
        }
        let mut places = 0;
        while let Ok(passage) = tokio::time::timeout(Duration::from_millis(1), limiter.enter()).await {
            inside.push(passage);
            places += 1;
        }
        assert_eq!(places, limiter.limit());
    }
}
