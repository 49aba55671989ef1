//! The key of an OpsJob for its rounds.

use std::fmt;

use oarlock_core::ops_job::stored::StoredOps;

/// An OpsJob, and the quota against which its rounds count. OpsJobs are cluster-scoped, so no namespace has this quota.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpsKey {
    /// The key of the quotas of the job's requester, as text.
    pub share: String,
    /// The name of the job.
    pub name: String,
}

impl OpsKey {
    /// Returns the key of this job.
    pub fn of(job: &StoredOps) -> Self {
        Self { share: job.share(), name: job.view.name.clone() }
    }
}

impl fmt::Display for OpsKey {
    /// Writes the key in the form that logs use.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "OpsJob {}", self.name)
    }
}
