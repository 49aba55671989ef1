//! Where the pods of tasks are made, of which image, and whereto they push.

use crate::cluster::own::TASKS_NAMESPACE;

/// Where the pods of tasks are made, and of which image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskSettings {
    /// Their namespace.
    pub namespace: String,
    /// The host's own image, whose `node-exec` runs commands on nodes; without one none is begun.
    pub image: Option<String>,
    /// The registry to which containers are committed.
    pub exports: Option<CommitRegistry>,
}

/// The registry to which containers are committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitRegistry {
    /// `host[:port]`.
    pub registry: String,
    /// A Secret in the namespace of tasks, with its credentials as `.dockerconfigjson`, and the authorities of its certificate as
    /// `ca.crt` where the system does not know them.
    pub secret: Option<String>,
    /// Further hosts, `host[:port]`, to which it may send whoever pushes.
    pub hosts: Vec<String>,
}

impl Default for TaskSettings {
    fn default() -> Self {
        let image = concat!("oarlock:", env!("CARGO_PKG_VERSION")).to_owned();
        Self { namespace: TASKS_NAMESPACE.to_owned(), image: Some(image), exports: None }
    }
}
