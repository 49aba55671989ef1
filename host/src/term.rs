//! One term of leadership: the state that all jobs share while this process leads.
//!
//! A term begins with an empty memory. Only the Cluster port keeps earlier views, as caches.

use oarlock_core::object::key::JobKey;
use oarlock_core::operation_job::shared::tables::SharedTables;
use oarlock_core::requests::writes::BatchResult;
use oarlock_kube::Cluster;
use oarlock_kube::lease::fence::Fence;
use oarlock_kube::send::apply::WriteSender;
use tokio::sync::mpsc::UnboundedSender;

use crate::round::Next;

/// One term of leadership.
pub struct Term {
    /// The fence, which closes forever when this process no longer leads.
    pub fence: Fence,
    /// The claims, the wake index and the numbers of targets in flight.
    pub tables: SharedTables,
    /// The writes that wait or are in flight.
    pub write_sender: WriteSender,
}

impl Term {
    /// Begins a term that has read nothing yet. The results of its writes go to `results`.
    pub fn begin(cluster: &Cluster, fence: Fence, results: UnboundedSender<BatchResult>) -> Self {
        let write_sender = cluster.write_sender(&fence, results);
        Self { fence, tables: SharedTables::default(), write_sender }
    }

    /// Returns `Next::Gone` for a deleted job, once none of its requests is in flight.
    pub fn leave(&self, key: &JobKey) -> Next {
        let quiet = self.write_sender.queue(|queue| queue.withdraw_key(key));
        if quiet { Next::Gone } else { Next::At(None) }
    }
}
