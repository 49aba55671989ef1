//! What a rehearsal should have known and does not, or what speaks against its job.

use oarlock_core::cluster::live_reads::ReadFailure;
use oarlock_kube::snapshot::UnlistedKind;

/// One doubt about a rehearsal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The cluster serves no OperationJobs.
    NotServed,
    /// There is a job of this name already. The rehearsal takes it as deleted.
    NameTaken,
    /// The namespace was not read.
    Namespace(ReadFailure),
    /// The other jobs of the namespace were not listed.
    Jobs(UnlistedKind),
    /// The jobs of all namespaces were not listed, which work on the same nodes.
    JobsOnNodes(UnlistedKind),
    /// The jobs of all namespaces were not listed, which use up what the plugin may have in flight.
    JobsInFlight(UnlistedKind),
    /// The records of large jobs were not listed: those of the namespace, or of all for a job on nodes.
    Records(UnlistedKind),
}
