//! Leader election with one lease, which the leader renews on the host's monotonic clock.
//!
//! A process that finds its own identity in the lease takes the lease at once, so that a restart costs no lease time. Other processes wait
//! until the lease was unchanged for its whole duration on their own clock. The host never compares the wall clocks of two machines. A
//! leader ends for good if it loses the lease to another process with the same identity. Otherwise, the two processes would lead in turns.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::lease::config::{LeaseConfig, LeaseError, window};
use crate::lease::fence::{Bound, Fence, Leadership};
use crate::lease::holder::LeaseHolder;
use crate::transport::call::Transport;
use crate::transport::clock::ServerClock;

/// The election of this process, from its start until it resigns.
pub struct LeaderElector {
    leadership: watch::Receiver<Leadership>,
    unheld: watch::Receiver<Option<String>>,
    window: Duration,
    clock: ServerClock,
    /// Renews the lease at once.
    look: Arc<Notify>,
    /// The last term that has ended, although this process may still hold the lease.
    over: watch::Sender<u64>,
    note: watch::Sender<Option<String>>,
    resign: oneshot::Sender<()>,
    task: JoinHandle<Result<(), LeaseError>>,
}

impl LeaderElector {
    /// Starts the election of this process.
    pub fn stand(cluster: &Cluster, config: LeaseConfig) -> Self {
        let window = window(config.duration);
        let clock = cluster.clock().clone();
        let begun = Leadership { leading: false, term: 0, renewed: Instant::now(), renewed_at: clock.local() };
        let (sender, leadership) = watch::channel(begun);
        let (resign, resigned) = oneshot::channel();
        // A hanging renewal must end while another renewal still fits into the window.
        let transport = Transport { timeout: config.duration / 3, ..cluster.link.transport.clone() };
        let (note, noted) = watch::channel(None);
        let holder = LeaseHolder::new(transport, config, sender, noted);
        let unheld = holder.unheld();
        let (over, ended) = watch::channel(0);
        let look = Arc::new(Notify::new());
        let task = tokio::spawn(holder.run(resigned, ended, look.clone()));
        Self { leadership, unheld, window, clock, look, over, note, resign, task }
    }

    /// Returns the leadership as it changes. It ends with the election, and [`LeaderElector::resign`] then returns the reason.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.clone()
    }

    /// Returns the sender that sets the lease's annotation [`NOTE`](crate::lease::config::NOTE). The lease has the annotation while this
    /// process holds it, and `None` means no annotation. The next renewal writes a change, so a change costs no request of its own.
    pub fn note(&self) -> watch::Sender<Option<String>> {
        self.note.clone()
    }

    /// Returns the failed operation and its cause while no process is known to hold the lease. This is so if this process did not write the
    /// lease in time and saw no other holder. Otherwise the value is `None`.
    pub fn unheld(&self) -> watch::Receiver<Option<String>> {
        self.unheld.clone()
    }

    /// Returns the fence of the current term. The fence is closed for good once that term is over.
    pub fn fence(&self) -> Fence {
        let term = self.leadership.borrow().term;
        let Self { leadership, clock, look, window, .. } = self;
        let (leadership, clock, look) = (leadership.clone(), clock.clone(), look.clone());
        let bound = Bound { leadership, look, term, window: *window, clock };
        Fence::of_term(bound, *self.over.borrow() >= term)
    }

    /// Ends the term of this number. The next term begins when this process or another process takes the lease again.
    pub fn begin_anew(&self, term: u64) {
        self.over.send_replace(term);
    }

    /// Releases the lease, so that another process need not wait for its end. Everything that acts must have stopped.
    ///
    /// # Errors
    /// If the election had ended before, with the reason.
    pub async fn resign(self) -> Result<(), LeaseError> {
        let Self { resign, task, .. } = self;
        // If the task has ended already, there is no lease to release.
        let _gone = resign.send(()).is_err();
        task.await.map_err(LeaseError::Panicked)?
    }
}
