//! Leadership: one lease, renewed on the host's monotonic clock.
//!
//! A process that finds its own identity in the lease takes it at once, so that a restart costs no lease time; others wait
//! until the lease was unchanged for its whole duration on their own clock. Wall clocks of two machines are never compared.
//! A leader that loses the lease to another process of its own identity ends for good: the two would lead in turns.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::cluster::Cluster;
use crate::lease_holder::LeaseHolder;
pub use crate::lease_holder::NOTE;
use crate::transport::call::Transport;
use crate::transport::clock::ServerClock;

/// The lease and the identity of a process that wants to lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseConfig {
    /// Namespace of the lease.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The name of this process; no two that run at once may share one.
    pub identity: String,
    /// Time for which a lease counts that is not renewed. 15 s unless there is a reason.
    pub duration: Duration,
}

impl std::fmt::Display for LeaseConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The reason why a process stands for election no longer.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Two processes run under one identity.
    #[error(
        "the lease {lease} was taken by another process that has the identity {identity:?} too: give each process an --identity of its own (this one: {own}; the other one: {other})"
    )]
    TakenByNamesake {
        /// Namespace and name of the lease.
        lease: String,
        /// What both are called.
        identity: String,
        /// This process, as it called itself in the lease.
        own: String,
        /// The other one, as the lease names it.
        other: String,
    },
    /// The task that holds the lease panicked.
    #[error("the task that holds the lease panicked")]
    Panicked(#[source] tokio::task::JoinError),
}

/// The leadership of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// It held the lease at its last read or write of it.
    pub leading: bool,
    /// The number of its latest term, from 1; 0 before the first.
    pub term: u64,
    /// The time at which it sent the last renewal that was accepted.
    pub renewed: Instant,
    /// The same, by the host's own clock.
    pub renewed_at: Timestamp,
}

/// Says, before each request, whether one term still allows it.
#[derive(Clone, Debug)]
pub struct Fence {
    bound: Option<Bound>,
    closed: watch::Sender<bool>,
}

#[derive(Clone, Debug)]
struct Bound {
    leadership: watch::Receiver<Leadership>,
    look: Arc<Notify>,
    term: u64,
    window: Duration,
    clock: ServerClock,
}

impl Bound {
    /// True while the term leads and its last renewal is young enough on both clocks: the monotonic one stands still while
    /// a machine is suspended, and the other one may be set.
    fn leads(&self) -> bool {
        let now = *self.leadership.borrow();
        let window = SignedDuration::try_from(self.window).unwrap_or(SignedDuration::MAX);
        let young = now.renewed.elapsed() < self.window && self.clock.local().duration_since(now.renewed_at) < window;
        now.leading && now.term == self.term && young
    }
}

impl Fence {
    /// A fence that is always open, for a process that alone can act.
    pub fn open() -> Self {
        Self { bound: None, closed: watch::Sender::new(false) }
    }

    /// True while this term leads and its last renewal is younger than two thirds of the lease's duration. A fence that
    /// has closed stays closed, also if a late renewal succeeds: the next term finds the writes that it stopped.
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

    /// Looks at the lease now, rather than at its next renewal. Returns whether the term still stands.
    pub async fn confirm(&self) -> bool {
        if let Some(bound) = &self.bound {
            let (asked, mut leadership) = (Instant::now(), bound.leadership.clone());
            bound.look.notify_one();
            tokio::select! {
                () = self.closed() => {}
                renewed = leadership.wait_for(|now| now.renewed >= asked) => if renewed.is_err() {
                    // Where the elector is gone, nothing renews the lease any more.
                    self.close();
                },
            }
        }
        self.allows()
    }

    /// Ends the term: nothing more is sent in it.
    pub fn close(&self) {
        self.closed.send_replace(true);
    }

    /// Resolves once the fence has closed: by [`Fence::close`], by the loss of the lease, or at the end of the window of
    /// the last renewal.
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
                // Where the elector is gone, nothing renews the lease any more.
                changed = bound.leadership.changed() => if changed.is_err() { self.close() },
                () = sleep(left.max(Duration::from_millis(1))) => {}
            }
        }
    }
}

/// The election of this process, from its start until it resigns.
pub struct LeaderElector {
    leadership: watch::Receiver<Leadership>,
    unheld: watch::Receiver<Option<String>>,
    window: Duration,
    clock: ServerClock,
    /// Has the lease renewed at once.
    look: Arc<Notify>,
    /// The last term that is over though the lease may still be held.
    over: watch::Sender<u64>,
    note: watch::Sender<Option<String>>,
    resign: oneshot::Sender<()>,
    task: JoinHandle<Result<(), LeaseError>>,
}

impl LeaderElector {
    /// Stands for election from now on.
    pub fn stand(cluster: &Cluster, config: LeaseConfig) -> Self {
        let window = window(config.duration);
        let clock = cluster.clock().clone();
        let begun = Leadership { leading: false, term: 0, renewed: Instant::now(), renewed_at: clock.local() };
        let (sender, leadership) = watch::channel(begun);
        let (resign, resigned) = oneshot::channel();
        // A renewal that hangs must end while another one still fits into the window.
        let transport = Transport { timeout: config.duration / 3, ..cluster.link.transport.clone() };
        let (note, noted) = watch::channel(None);
        let holder = LeaseHolder::new(transport, config, sender, noted);
        let unheld = holder.unheld();
        let (over, ended) = watch::channel(0);
        let look = Arc::new(Notify::new());
        let task = tokio::spawn(holder.run(resigned, ended, look.clone()));
        Self { leadership, unheld, window, clock, look, over, note, resign, task }
    }

    /// The leadership as it changes. It ends with the election: [`LeaderElector::resign`] then says why.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.clone()
    }

    /// What the lease says in its annotation [`NOTE`] while this process holds it; `None` is no annotation. A change is written
    /// with the next renewal, and costs no request of its own.
    pub fn note(&self) -> watch::Sender<Option<String>> {
        self.note.clone()
    }

    /// The operation that failed and its cause, while no process is known to hold the lease: this one did not write it in
    /// time, and no other one was seen to hold it. Else `None`.
    pub fn unheld(&self) -> watch::Receiver<Option<String>> {
        self.unheld.clone()
    }

    /// The fence of the term that is now; closed for good once that term is over.
    pub fn fence(&self) -> Fence {
        let term = self.leadership.borrow().term;
        let Self { leadership, clock, look, window, .. } = self;
        let (leadership, clock, look) = (leadership.clone(), clock.clone(), look.clone());
        let bound = Bound { leadership, look, term, window: *window, clock };
        let over = *self.over.borrow() >= term;
        Fence { bound: Some(bound), closed: watch::Sender::new(over) }
    }

    /// The term of this number is over: the next one begins as soon as the lease is taken again, by this process or by
    /// another one.
    pub fn begin_anew(&self, term: u64) {
        self.over.send_replace(term);
    }

    /// Gives the lease back, so that another process need not wait. Everything that acts must have stopped.
    ///
    /// # Errors
    /// The reason why the election had ended before.
    pub async fn resign(self) -> Result<(), LeaseError> {
        let Self { resign, task, .. } = self;
        // Where the task is gone already, there is nothing to give back.
        let _gone = resign.send(()).is_err();
        task.await.map_err(LeaseError::Panicked)?
    }
}

/// Time after a renewal in which writes may be sent.
pub(crate) fn window(duration: Duration) -> Duration {
    duration.saturating_mul(2) / 3
}
