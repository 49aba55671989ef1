//! Answers of plugins: proposals, reports and failures, in one form for all contract versions.
//!
//! `oarlock-wasm` converts every supported version of the contract into these types at its edge.
//! `wit/action/handler.wit` documents the meaning of each field.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::manifest::Manifest;
use crate::object_key::{Kind, ObjectKey};
pub use crate::task::TaskRequest;

/// The declarations of `setup`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Registration {
    /// Kinds of objects seen next to a target.
    pub relations: Vec<Relation>,
    /// Extras whose value only one target may hold.
    pub exclusive_extras: Vec<String>,
}

impl Registration {
    /// Checks that the plugin sees related objects only of kinds, and by fields, that its manifest declares.
    ///
    /// # Errors
    ///
    /// The relation that cannot be had, and the fix.
    pub fn check(&self, manifest: &Manifest) -> Result<(), String> {
        for (at, relation) in self.relations.iter().enumerate() {
            let name = &relation.name;
            if self.relations.iter().take(at).any(|earlier| earlier.name == *name) {
                return Err(format!("`setup` declares relation {name} twice; give each another name"));
            }
            let kind = &relation.kind;
            if !manifest.declares_kind(kind) {
                return Err(format!(
                    "relation {name} is about {} {}; add it to `reads` of the manifest",
                    kind.api_version, kind.kind
                ));
            }
            if let RelationKey::Field(pointer) = &relation.by
                && !manifest.declares_read(kind, pointer)
            {
                return Err(format!(
                    "relation {name} matches by {pointer} of {}; add it to `reads` of the manifest",
                    kind.kind
                ));
            }
            if let RelationKey::Parameter(pointer) = &relation.by
                && (manifest.parameters.is_none() || !pointer.starts_with('/'))
            {
                return Err(format!(
                    "relation {name} matches by the parameter {pointer:?}: write a JSON Pointer such as `/configMap`, and \
                     declare it in `parameters` of the manifest"
                ));
            }
        }
        Ok(())
    }

    /// The relation of this name.
    ///
    /// # Errors
    ///
    /// The sentence for a relation that was not declared.
    pub fn relation(&self, name: &str) -> Result<&Relation, String> {
        let found = self.relations.iter().find(|relation| relation.name == name);
        found.ok_or_else(|| format!("`setup` declared no relation {name:?}"))
    }

    /// The names that the job's parameters give to objects of relations, by the pointer of the relation.
    pub fn named_by_parameters(&self, parameters: &Value) -> BTreeMap<String, String> {
        let pointers = self.relations.iter().filter_map(|relation| match &relation.by {
            RelationKey::Parameter(pointer) => Some(pointer),
            _ => None,
        });
        let named = |pointer: &String| Some((pointer.clone(), parameters.pointer(pointer)?.as_str()?.to_owned()));
        pointers.filter_map(named).collect()
    }

    /// The relation by the controller that the target had, if the plugin has one.
    pub fn same_controller(&self) -> Option<&Relation> {
        self.relations.iter().find(|relation| relation.by == RelationKey::SameController)
    }
}

impl Registration {
    /// The kind of the objects that an exclusive extra names: that of the relation by this extra, else of any relation.
    pub fn kind_of_extra(&self, key: &str) -> Kind {
        let by_extra = self.relations.iter().find(|relation| relation.by == RelationKey::Extra(key.to_owned()));
        by_extra.or_else(|| self.relations.first()).map_or_else(Kind::pod, |relation| relation.kind.clone())
    }
}

/// One kind of object seen next to a target.
#[derive(Clone, Debug, PartialEq)]
pub struct Relation {
    /// Unique in the plugin.
    pub name: String,
    /// Kind of the objects.
    pub kind: Kind,
    /// The matching rule.
    pub by: RelationKey,
}

impl Relation {
    /// The Pods whose node the target is: where that is a Node, they are of every namespace.
    pub fn is_on_node(&self) -> bool {
        self.kind == Kind::pod() && self.by == RelationKey::Field(NODE_NAME.to_owned())
    }
}

/// The field that names the node of a Pod. Where it is indexed, the Pods of a Node are found in all namespaces.
pub const NODE_NAME: &str = "/spec/nodeName";

/// The rule that matches the objects of a relation to a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelationKey {
    /// The value of this label is the target's name or one of its exclusive extras.
    Label(String),
    /// The object's name is the value of this extra.
    Extra(String),
    /// The string at this pointer is the target's name.
    Field(String),
    /// The object's name is the string at this pointer of the job's parameters.
    Parameter(String),
    /// The job owns it.
    OwnerIsJob,
    /// The target owns it.
    OwnerIsTarget,
    /// It has the controller that the target had.
    SameController,
}

/// The changes that a plugin proposes for one target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Proposal {
    /// Changes, in order.
    pub mutations: Vec<Mutation>,
    /// Extras to store.
    pub set_extra: Vec<(String, String)>,
    /// Extras to remove, before `set_extra`.
    pub remove_extra: Vec<String>,
    /// Events to record on the job.
    pub events: Vec<PluginEvent>,
}

/// Names the object of a mutation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectRef {
    /// Kind, namespace and name.
    pub key: ObjectKey,
    /// If given, the reference means only the object of this UID.
    pub uid: Option<String>,
}

/// One change to the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// Labels, annotations, finalizers.
    Metadata(MetadataChange),
    /// Create this object unless it exists.
    Create(Value),
    /// A JSON Merge Patch.
    Patch {
        /// The object to change.
        object: ObjectRef,
        /// Such as `status`; `None` for the object itself.
        subresource: Option<String>,
        /// The patch.
        patch: Value,
    },
    /// Evict a pod.
    Evict {
        /// The pod.
        pod: ObjectRef,
        /// Overrides its grace period.
        grace_seconds: Option<u32>,
    },
    /// Delete an object.
    Delete {
        /// The object.
        object: ObjectRef,
        /// Overrides its grace period.
        grace_seconds: Option<u32>,
        /// `Background`, `Foreground` or `Orphan`.
        propagation: Option<String>,
    },
    /// Cordon or uncordon a node.
    Schedulable {
        /// Its name.
        node: String,
        /// `false` cordons it.
        schedulable: bool,
    },
    /// Put a taint on a node, or take it off.
    Taint(TaintChange),
    /// Cordon a node, and evict its pods.
    Drain(DrainRequest),
    /// Start a task, unless one of its name exists.
    Task(TaskRequest),
    /// One that this version of the host does not carry out: an addition of a later contract. It is refused by name.
    Other {
        /// Its verb.
        verb: String,
    },
}

impl Mutation {
    /// The object that it changes and that has to be there.
    pub fn object(&self) -> Option<&ObjectRef> {
        match self {
            Self::Metadata(change) => Some(&change.object),
            Self::Patch { object, .. } | Self::Delete { object, .. } => Some(object),
            Self::Evict { pod, .. } => Some(pod),
            Self::Create(_)
            | Self::Schedulable { .. }
            | Self::Taint(_)
            | Self::Drain(_)
            | Self::Task(_)
            | Self::Other { .. } => None,
        }
    }
}

/// A taint to put on a node, or to take off. Key and effect together name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TaintChange {
    /// Name of the node.
    pub node: String,
    /// Its `key`.
    pub key: String,
    /// Its `value`.
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
    /// True if it is put on.
    pub present: bool,
}

/// A node to drain, and which of its pods may go.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DrainRequest {
    /// Name of the node.
    pub node: String,
    /// Overrides the grace period of each pod.
    pub grace_seconds: Option<u32>,
    /// True if pods that would lose `emptyDir` data go too.
    pub delete_empty_dir_data: bool,
    /// True if pods that no controller would make anew go too.
    pub force: bool,
}

/// Metadata to set and remove.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MetadataChange {
    /// The object to change.
    pub object: ObjectRef,
    /// Labels to set.
    pub set_labels: Vec<(String, String)>,
    /// Labels to remove.
    pub remove_labels: Vec<String>,
    /// Annotations to set.
    pub set_annotations: Vec<(String, String)>,
    /// Annotations to remove.
    pub remove_annotations: Vec<String>,
    /// Finalizers to add.
    pub add_finalizers: Vec<String>,
    /// Finalizers to remove.
    pub remove_finalizers: Vec<String>,
    /// If true, the changes stay; otherwise each is a hold.
    pub keep: bool,
}

/// An event that a plugin asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PluginEvent {
    /// `Warning` instead of `Normal`.
    pub warning: bool,
    /// A CamelCase word for programs.
    pub reason: String,
    /// One sentence for people.
    pub message: String,
}

/// The reason why a target failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginError {
    /// A CamelCase word for programs.
    pub reason: String,
    /// One sentence for people.
    pub message: String,
}

/// Progress of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Not at its end.
    Processing,
    /// Succeeded, as the plugin saw.
    Succeeded,
    /// Failed.
    Failed(PluginError),
}

/// The result of `progress`.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Progress of the target.
    pub state: State,
    /// The next changes.
    pub proposal: Proposal,
    /// The longest time until the next visit, in milliseconds.
    pub check_after_ms: Option<u32>,
}

/// The reason why a call gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallFailure {
    /// True if the call may be repeated.
    pub retryable: bool,
    /// A CamelCase word for programs.
    pub reason: String,
    /// One sentence for people.
    pub message: String,
    /// The shortest time until the next try, in milliseconds.
    pub retry_after_ms: Option<u32>,
}
