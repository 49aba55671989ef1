//! The key of an OpsJob among those that have rounds.

use std::fmt;

use oarlock_core::ops_job::stored::StoredOps;

/// An OpsJob and whose share its rounds count against: these jobs are in no namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpsKey {
    /// The key of quotas of its requester, as text.
    pub share: String,
    /// Its name.
    pub name: String,
}

impl OpsKey {
    /// Returns the key of this job.
    pub fn of(job: &StoredOps) -> Self {
        Self { share: job.share(), name: job.view.name.clone() }
    }
}

impl fmt::Display for OpsKey {
    /// Writes the key as logs name it.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "OpsJob {}", self.name)
    }
}
