//! One term of leadership: the state that all jobs share while this process leads.
//!
//! It begins with empty memory; only the Cluster port keeps views from before, as caches.

use oarlock_core::cluster::writes::EntryResult;
use oarlock_core::job::key::JobKey;
use oarlock_core::shared::tables::SharedTables;
use oarlock_kube::Cluster;
use oarlock_kube::apply::Outbox;
use oarlock_kube::lease::Fence;
use tokio::sync::mpsc::UnboundedSender;

use crate::round::Next;

/// One term of leadership.
pub struct Term {
    /// Closes for good once this process no longer leads.
    pub fence: Fence,
    /// Claims, the wake index and the numbers of targets in flight.
    pub tables: SharedTables,
    /// The writes that wait or are on the wire.
    pub outbox: Outbox,
}

impl Term {
    /// A term in which nothing was read yet. Results of its writes go to `results`.
    pub fn begin(cluster: &Cluster, fence: Fence, results: UnboundedSender<EntryResult>) -> Self {
        let outbox = cluster.outbox(&fence, results);
        Self { fence, tables: SharedTables::default(), outbox }
    }

    /// The job is gone: it is forgotten once none of its requests is on the wire.
    pub fn leave(&self, key: &JobKey) -> Next {
        let quiet = self.outbox.queue(|queue| queue.withdraw_key(key));
        if quiet { Next::Gone } else { Next::At(None) }
    }
}
