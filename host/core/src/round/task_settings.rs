//! Where the pods of tasks are made, and of which image.

use crate::cluster::own::TASKS_NAMESPACE;

/// Where the pods of tasks are made, and of which image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskSettings {
    /// Their namespace.
    pub namespace: String,
    /// The host's own image, whose `node-exec` runs commands on nodes; without one none is begun.
    pub image: Option<String>,
}

impl Default for TaskSettings {
    fn default() -> Self {
        let image = concat!("oarlock:", env!("CARGO_PKG_VERSION")).to_owned();
        Self { namespace: TASKS_NAMESPACE.to_owned(), image: Some(image) }
    }
}
