//! The settings of a lease, and the reasons why an election ends.

use std::time::Duration;

/// The annotation of the lease in which the holder publishes a text for all readers of the lease.
pub const NOTE: &str = "oarlock.dev/serves";

/// The lease and the identity of a process that wants to lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseConfig {
    /// The namespace of the lease.
    pub namespace: String,
    /// The name of the lease.
    pub name: String,
    /// The name of this process. Two processes that run at once must not share a name.
    pub identity: String,
    /// The time for which a lease counts without a renewal. Use 15 s unless there is a reason for another duration.
    pub duration: Duration,
}

impl std::fmt::Display for LeaseConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The reason why an election ended.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Two processes run with one identity.
    #[error(
        "the lease {lease} was taken by another process that has the identity {identity:?} too: give each process an --identity of its own (this one: {own}; the other one: {other})"
    )]
    TakenByNamesake {
        /// The namespace and name of the lease.
        lease: String,
        /// The identity of both processes.
        identity: String,
        /// This process, as it named itself in the lease.
        own: String,
        /// The other process, as the lease names it.
        other: String,
    },
    /// The task that holds the lease panicked.
    #[error("the task that holds the lease panicked")]
    Panicked(#[source] tokio::task::JoinError),
}

/// Returns the time after a renewal in which the host may send writes.
pub(crate) fn window(duration: Duration) -> Duration {
    duration.saturating_mul(2) / 3
}
