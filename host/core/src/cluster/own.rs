//! The namespaces that the host has for itself: no tenant writes there.

/// Where the pods of tasks are.
pub const TASKS_NAMESPACE: &str = "oarlock-tasks";
/// Where the children of OpsJobs on nodes are.
pub const OPS_NAMESPACE: &str = "oarlock-ops";
