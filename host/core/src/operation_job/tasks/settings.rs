//! Settings for the pods of tasks: their namespace, their image and the registry to which they push.

use crate::object::own::TASKS_NAMESPACE;

/// Settings for the pods of tasks: their namespace, their image and the registry to which they push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskSettings {
    /// Namespace of the pods.
    pub namespace: String,
    /// The host's own image, whose `node-exec` runs commands on nodes. Without an image, no such command begins.
    pub image: Option<String>,
    /// The registry to which containers are committed.
    pub exports: Option<CommitRegistry>,
}

/// The registry to which containers are committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitRegistry {
    /// Address of the registry, as `host[:port]`.
    pub registry: String,
    /// Name of a Secret in the namespace of tasks. Its `.dockerconfigjson` has the credentials of the registry. Its
    /// `ca.crt` has the authorities of the registry's certificate, if the system does not know them.
    pub secret: Option<String>,
    /// Further hosts, as `host[:port]`, to which the registry may send a client that pushes.
    pub hosts: Vec<String>,
}

impl Default for TaskSettings {
    fn default() -> Self {
        let image = concat!("oarlock:", env!("CARGO_PKG_VERSION")).to_owned();
        Self { namespace: TASKS_NAMESPACE.to_owned(), image: Some(image), exports: None }
    }
}
