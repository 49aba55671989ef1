//! Checks whether the shipped admission policies of OpsJobs are in force. Without them the host starts no OpsJob, because
//! nobody checks the rights of those who create one.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::ops_job::found::policy_gap;
use oarlock_kube::ops::{Ops, shipped_policies};
use parking_lot::Mutex;
use tokio::time::sleep;

use crate::health::Probe;

/// The time between two checks. A check reads each policy and its binding.
const CHECK_EVERY: Duration = Duration::from_secs(60);

/// The result of the last check. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct PolicyCheck(Arc<Mutex<Option<String>>>);

impl PolicyCheck {
    /// Returns a probe that fails while a policy is missing or changed.
    pub(crate) fn probe(&self) -> Probe {
        let this = self.clone();
        Box::new(move || this.0.lock().clone().map_or(Ok(()), Err))
    }

    /// Checks the policies until the task is aborted. A cluster without OpsJobs needs none of them.
    pub(crate) async fn run(self, ops: Ops) {
        loop {
            ops.port().synced().await;
            let gap = ops.cluster().ask(|answers| policy_gap(None, shipped_policies(), answers)).await;
            match gap {
                Ok(gap) => *self.0.lock() = gap,
                Err(failed) => {
                    tracing::debug!(error = failed.message, "failed to read the admission policies; retrying")
                }
            }
            sleep(CHECK_EVERY).await;
        }
    }
}
