//! What the host has for itself: no tenant writes there, or asks for it but by an OpsJob.

/// Where the pods of tasks are.
pub const TASKS_NAMESPACE: &str = "oarlock-tasks";
/// Where the children of OpsJobs on nodes are.
pub const OPS_NAMESPACE: &str = "oarlock-ops";
/// The actions on pods that OpsJobs alone have: who may make a job is asked there for what it needs.
pub const OPS_POD_ACTIONS: [&str; 2] = ["dumplog", "exportimage"];
