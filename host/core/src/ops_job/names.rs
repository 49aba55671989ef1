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
