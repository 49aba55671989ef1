//! Names of OpsJobs in the API: their kind, finalizers, conditions and reasons.

use crate::object::api_object::{Kind, ObjectKey};

/// The API version of OpsJobs.
pub const API_VERSION: &str = "oarlock.dev/v1alpha1";
/// The kind of OpsJobs.
pub const OPS_KIND: &str = "OpsJob";
/// The finalizer of a job that may have targets.
pub const FINALIZER: &str = "oarlock.dev/opsjob";
/// The finalizer of a job whose last state the history must get.
pub const HISTORY: &str = "oarlock.dev/history";
/// The condition that the host has found the targets and that they belong to the job.
pub const RESOLVED: &str = "TargetsResolved";
/// The condition of a job whose OperationJob the API server refused.
pub(super) const CREATED: &str = "OperationJobCreated";
/// The condition that says whether a plugin serves the action.
pub(super) const AVAILABLE: &str = "ActionAvailable";
/// The condition that the outcomes of the targets are stored. It is True if all targets have ended.
pub(super) const ENDED: &str = "TargetsEnded";
/// The condition of a job that the host ends by force.
pub(super) const STOPPING: &str = "Stopping";
/// The field of a status that names the OperationJob, with name and UID.
pub(super) const OPERATION_JOB: &str = "operationJob";
/// The reason of a target that never started because other targets had failed.
pub(super) const SKIPPED: &str = "Skipped";

/// Returns the kind OpsJob.
pub fn ops_kind() -> Kind {
    Kind::new(API_VERSION, OPS_KIND)
}

/// Returns the key of the OpsJob with this name.
pub fn ops_key(name: &str) -> ObjectKey {
    ObjectKey { kind: ops_kind(), namespace: None, name: name.to_owned() }
}
