//! The keys of the objects of flows that have rounds.

use oarlock_core::attempts::parent::{Parent, ParentKind};
use oarlock_core::job_template::template::StoredTemplate;

/// The place of a JobTemplate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TemplateKey {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl TemplateKey {
    /// Returns the key of the template with this namespace and name.
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Returns the key of a template.
    pub(crate) fn of(template: &StoredTemplate) -> Self {
        Self::new(&template.namespace, &template.name)
    }

    /// Returns the key of the object that has rounds.
    pub(crate) fn of_rounds(&self) -> FlowKey {
        FlowKey::Template(self.namespace.clone(), self.name.clone())
    }
}

/// A JobFlow, a DaemonJob or a JobTemplate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlowKey {
    /// A JobFlow or DaemonJob: its kind, namespace and name.
    Parent(ParentKind, String, String),
    /// A JobTemplate: its namespace and name.
    Template(String, String),
}

impl FlowKey {
    /// Returns the key of a parent.
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
