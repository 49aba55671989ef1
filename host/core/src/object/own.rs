//! Names that are reserved for the host. Tenants cannot write there, and can ask for these names only by an OpsJob.

/// The namespace of a host that is installed with the printed manifests.
pub const HOST_NAMESPACE: &str = "oarlock-system";
/// The namespaces whose pods do not make a node busy.
pub const SYSTEM_NAMESPACES: [&str; 3] = ["kube-system", HOST_NAMESPACE, TASKS_NAMESPACE];
/// The namespace of the pods of tasks.
pub const TASKS_NAMESPACE: &str = "oarlock-tasks";
/// The namespace of the dependents of OpsJobs on nodes.
pub const OPS_NAMESPACE: &str = "oarlock-ops";
/// The actions on pods that only OpsJobs have. The host checks the permissions of the OpsJob's author for them.
pub const OPS_POD_ACTIONS: [&str; 2] = ["dumplog", "exportimage"];
