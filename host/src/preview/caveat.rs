//! The facts that a preview could not read, and the objections against its job.

use oarlock_core::requests::live_reads::ReadFailure;
use oarlock_kube::read::snapshot::UnlistedKind;

/// A caveat of a preview.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PreviewCaveat {
    /// The cluster does not serve OperationJobs.
    NotServed,
    /// A job of this name exists. The preview treats it as deleted.
    NameTaken,
    /// The namespace was not read.
    Namespace(ReadFailure),
    /// The other jobs of the namespace were not listed.
    Jobs(UnlistedKind),
    /// The jobs of all namespaces, which share the nodes, were not listed.
    JobsOnNodes(UnlistedKind),
    /// The jobs of all namespaces, which share the plugin's limit of targets in flight, were not listed.
    JobsInFlight(UnlistedKind),
    /// The records of large jobs were not listed: those of the namespace, or of all namespaces for a job on nodes.
    Records(UnlistedKind),
}
