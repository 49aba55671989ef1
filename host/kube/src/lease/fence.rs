//! The leadership of this process, and the fence that stops the requests of a term that is over.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};

use crate::transport::clock::ServerClock;

/// The leadership of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// True if this process held the lease at its last read or write of the lease.
    pub leading: bool,
    /// The number of the latest term of this process. The first term is 1, and the number is 0 before it.
    pub term: u64,
    /// The time at which this process sent the last accepted renewal.
    pub renewed: Instant,
    /// The time of the last accepted renewal on the host's wall clock.
    pub renewed_at: Timestamp,
}

/// A check before each request that its term still leads.
#[derive(Clone, Debug)]
pub struct Fence {
    bound: Option<Bound>,
    closed: watch::Sender<bool>,
}

/// The term of a fence, and what the fence knows of the lease.
#[derive(Clone, Debug)]
pub(super) struct Bound {
    pub(super) leadership: watch::Receiver<Leadership>,
    /// Renews the lease at once.
    pub(super) look: Arc<Notify>,
    pub(super) term: u64,
    pub(super) window: Duration,
    pub(super) clock: ServerClock,
}

impl Bound {
    /// Returns true while the term leads and its last renewal is recent on both clocks. The monotonic clock stops while a machine is
    /// suspended, and a user may set the wall clock.
    fn leads(&self) -> bool {
        let now = *self.leadership.borrow();
        let window = SignedDuration::try_from(self.window).unwrap_or(SignedDuration::MAX);
        let young = now.renewed.elapsed() < self.window && self.clock.local().duration_since(now.renewed_at) < window;
        now.leading && now.term == self.term && young
    }
}

impl Fence {
    /// Returns a fence that is always open, for a process that acts alone.
    pub fn open() -> Self {
        Self { bound: None, closed: watch::Sender::new(false) }
    }

    /// Returns the fence of a term of this process, which is closed from the beginning if the term is over.
    pub(super) fn of_term(bound: Bound, is_over: bool) -> Self {
        Self { bound: Some(bound), closed: watch::Sender::new(is_over) }
    }

    /// Returns true while this term leads and its last renewal is younger than two thirds of the lease duration. A closed fence stays
    /// closed, even if a late renewal succeeds. The next term finds the writes that the fence stopped.
    pub fn allows(&self) -> bool {
        if *self.closed.borrow() {
            return false;
        }
        let leads = self.bound.as_ref().is_none_or(Bound::leads);
        if !leads {
            self.close();
        }
        leads
    }

    /// Renews the lease now instead of at the next renewal. Returns true if the term still leads.
    pub async fn confirm(&self) -> bool {
        if let Some(bound) = &self.bound {
            let (asked, mut leadership) = (Instant::now(), bound.leadership.clone());
            bound.look.notify_one();
            tokio::select! {
                () = self.closed() => {}
                renewed = leadership.wait_for(|now| now.renewed >= asked) => if renewed.is_err() {
                    // Without the elector, nothing renews the lease any more.
                    self.close();
                },
            }
        }
        self.allows()
    }

    /// Ends the term. No request of this term is sent any more.
    pub fn close(&self) {
        self.closed.send_replace(true);
    }

    /// Waits until the fence closes: by [`Fence::close`], by the loss of the lease, or at the end of the window of the last renewal.
    pub async fn closed(&self) {
        let mut closed = self.closed.subscribe();
        let Some(mut bound) = self.bound.clone() else {
            let _closed = closed.wait_for(|closed| *closed).await.is_ok();
            return;
        };
        while self.allows() {
            let left = bound.window.saturating_sub(bound.leadership.borrow_and_update().renewed.elapsed());
            tokio::select! {
                changed = closed.changed() => if changed.is_err() { return },
                // Without the elector, nothing renews the lease any more.
                changed = bound.leadership.changed() => if changed.is_err() { self.close() },
                () = sleep(left.max(Duration::from_millis(1))) => {}
            }
        }
    }
}
