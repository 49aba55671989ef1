//! What of the flows has rounds: its key.

use oarlock_core::child::parent::{Parent, ParentKind};

/// A JobFlow, a DaemonJob or a JobTemplate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlowKey {
    /// A JobFlow or DaemonJob: its kind, namespace and name.
    Parent(ParentKind, String, String),
    /// A JobTemplate: its namespace and name.
    Template(String, String),
}

impl FlowKey {
    /// The key of a parent.
    pub fn of(parent: &Parent) -> Self {
        Self::Parent(parent.kind, parent.namespace.clone(), parent.name.clone())
    }
}

impl std::fmt::Display for FlowKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Parent(kind, namespace, name) => write!(f, "{} {namespace}/{name}", kind.name()),
            Self::Template(namespace, name) => write!(f, "JobTemplate {namespace}/{name}"),
        }
    }
}
