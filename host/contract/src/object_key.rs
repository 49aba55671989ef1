//! The keys of kinds and objects.

use serde::{Deserialize, Serialize};

/// The key of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Kind {
    /// The `apiVersion`, such as `v1` or `apps/v1`.
    pub api_version: String,
    /// The `kind`, such as `Pod`.
    pub kind: String,
}

impl Kind {
    /// Returns the kind with this `apiVersion` and `kind`.
    pub fn new(api_version: impl Into<String>, kind: impl Into<String>) -> Self {
        Self { api_version: api_version.into(), kind: kind.into() }
    }

    /// Returns the kind `v1` `Pod`.
    pub fn pod() -> Self {
        Self::new("v1", "Pod")
    }

    /// Returns the kind `v1` `Node`.
    pub fn node() -> Self {
        Self::new("v1", "Node")
    }

    /// Returns the kind `v1` `Namespace`.
    pub fn namespace() -> Self {
        Self::new("v1", "Namespace")
    }

    /// Returns the kind OperationJob.
    pub fn job() -> Self {
        Self::new(JOB_API_VERSION, "OperationJob")
    }

    /// Returns the kind OperationRecord.
    pub fn record() -> Self {
        Self::new("oarlock.dev/v1alpha1", "OperationRecord")
    }

    /// Returns the kind of a task that the host itself performs. No API server serves this kind, and no plugin sees it.
    pub fn host_task() -> Self {
        Self::new(IN_MEMORY, "HostTask")
    }
}

/// The `apiVersion` of objects that exist only in the host's process.
pub const IN_MEMORY: &str = "oarlock.dev/in-memory";
/// The `apiVersion` of an OperationJob.
const JOB_API_VERSION: &str = "apps.kusionstack.io/v1alpha1";

/// The key of one object. A later object may have the same key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ObjectKey {
    /// The kind of the object.
    pub kind: Kind,
    /// The namespace of the object, or `None` for a cluster-scoped object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name of the object.
    pub name: String,
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, namespace, name } = self;
        match namespace {
            Some(namespace) => write!(f, "{} {namespace}/{name}", kind.kind),
            None => write!(f, "{} {name}", kind.kind),
        }
    }
}

impl ObjectKey {
    /// Returns the key of the pod `name` in `namespace`.
    pub fn pod(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { kind: Kind::pod(), namespace: Some(namespace.into()), name: name.into() }
    }

    /// Returns the key of the node `name`. Nodes are cluster-scoped.
    pub fn node(name: impl Into<String>) -> Self {
        Self { kind: Kind::node(), namespace: None, name: name.into() }
    }

    /// Returns the key of the object with this kind and name that a job in `namespace` means. The key of a node has no namespace.
    pub fn seen_from(namespace: &str, kind: &Kind, name: impl Into<String>) -> Self {
        let namespace = (*kind != Kind::node()).then(|| namespace.to_owned());
        Self { kind: kind.clone(), namespace, name: name.into() }
    }

    /// Returns the key of the namespace with this name.
    pub fn namespace(name: &str) -> Self {
        Self { kind: Kind::namespace(), namespace: None, name: name.to_owned() }
    }
}

/// An owner reference.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The kind of the owner.
    pub kind: Kind,
    /// The name of the owner.
    pub name: String,
    /// The UID of the owner.
    pub uid: String,
    /// True if the owner is the controller.
    pub controller: bool,
}
