//! Names of kinds and objects.

/// Names one kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kind {
    /// `apiVersion`, such as `v1` or `apps/v1`.
    pub api_version: String,
    /// `kind`, such as `Pod`.
    pub kind: String,
}

impl Kind {
    /// The kind of `apiVersion` and `kind`.
    pub fn new(api_version: impl Into<String>, kind: impl Into<String>) -> Self {
        Self { api_version: api_version.into(), kind: kind.into() }
    }

    /// `v1` `Pod`.
    pub fn pod() -> Self {
        Self::new("v1", "Pod")
    }

    /// `v1` `Node`.
    pub fn node() -> Self {
        Self::new("v1", "Node")
    }

    /// `v1` `Namespace`.
    pub fn namespace() -> Self {
        Self::new("v1", "Namespace")
    }

    /// The OperationJob.
    pub fn job() -> Self {
        Self::new(JOB_API_VERSION, "OperationJob")
    }

    /// The OperationRecord.
    pub fn record() -> Self {
        Self::new("oarlock.dev/v1alpha1", "OperationRecord")
    }

    /// A task that the host itself does: no API server has one, and no plugin sees one.
    pub fn host_task() -> Self {
        Self::new("oarlock.dev/in-memory", "HostTask")
    }
}

/// `apiVersion` of an OperationJob.
const JOB_API_VERSION: &str = "apps.kusionstack.io/v1alpha1";

/// Names one object. A later object may have the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace; `None` for a cluster-scoped object.
    pub namespace: Option<String>,
    /// Its name.
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
    /// The pod `name` of `namespace`.
    pub fn pod(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { kind: Kind::pod(), namespace: Some(namespace.into()), name: name.into() }
    }

    /// The node `name`, which is in no namespace.
    pub fn node(name: impl Into<String>) -> Self {
        Self { kind: Kind::node(), namespace: None, name: name.into() }
    }

    /// The object of this kind and name that a namespace leads to: a node is in none.
    pub fn seen_from(namespace: &str, kind: &Kind, name: impl Into<String>) -> Self {
        let namespace = (*kind != Kind::node()).then(|| namespace.to_owned());
        Self { kind: kind.clone(), namespace, name: name.into() }
    }

    /// The namespace of that name.
    pub fn namespace(name: &str) -> Self {
        Self { kind: Kind::namespace(), namespace: None, name: name.to_owned() }
    }
}

/// An owner reference.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Kind of the owner.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// True if it is the controller.
    pub controller: bool,
}
