//! The answers of plugins: proposals, reports and failures, in one form for all contract versions.
//!
//! `oarlock-wasm` converts every supported version of the contract into these types. `wit/action/handler.wit` documents the meaning of each
//! field.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::manifest::Manifest;
use crate::object_key::{Kind, ObjectKey};
pub use crate::task::TaskRequest;

/// The declarations of `setup`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Registration {
    /// The kinds of objects that the plugin sees next to a target.
    pub relations: Vec<Relation>,
    /// The extras whose value only one target may hold.
    pub exclusive_extras: Vec<String>,
}

impl Registration {
    /// Checks that the manifest declares the kinds and fields of all relations.
    ///
    /// # Errors
    ///
    /// If a relation is not possible, with the fix.
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

    /// Returns the relation with this name.
    ///
    /// # Errors
    ///
    /// If no relation with this name was declared, with a message.
    pub fn relation(&self, name: &str) -> Result<&Relation, String> {
        let found = self.relations.iter().find(|relation| relation.name == name);
        found.ok_or_else(|| format!("`setup` declared no relation {name:?}"))
    }

    /// Returns the names that the job's parameters give to objects of relations, by the pointer of the relation.
    pub fn named_by_parameters(&self, parameters: &Value) -> BTreeMap<String, String> {
        let pointers = self.relations.iter().filter_map(|relation| match &relation.by {
            RelationKey::Parameter(pointer) => Some(pointer),
            _ => None,
        });
        let named = |pointer: &String| Some((pointer.clone(), parameters.pointer(pointer)?.as_str()?.to_owned()));
        pointers.filter_map(named).collect()
    }

    /// Returns the relation by the controller that the target had, if the plugin has this relation.
    pub fn same_controller(&self) -> Option<&Relation> {
        self.relations.iter().find(|relation| relation.by == RelationKey::SameController)
    }
}

impl Registration {
    /// Returns the kind of the objects that an exclusive extra names: the kind of the relation by this extra, or else of the first
    /// relation.
    pub fn kind_of_extra(&self, key: &str) -> Kind {
        let by_extra = self.relations.iter().find(|relation| relation.by == RelationKey::Extra(key.to_owned()));
        by_extra.or_else(|| self.relations.first()).map_or_else(Kind::pod, |relation| relation.kind.clone())
    }
}

/// One kind of object that the plugin sees next to a target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Relation {
    /// The name of the relation, unique in the plugin.
    pub name: String,
    /// The kind of the objects.
    pub kind: Kind,
    /// The matching rule.
    pub by: RelationKey,
}

impl Relation {
    /// Returns true if the relation finds the Pods on the target's node. If the target is a Node, it finds the Pods of every namespace.
    pub fn is_on_node(&self) -> bool {
        self.kind == Kind::pod() && self.by == RelationKey::Field(NODE_NAME.to_owned())
    }
}

/// The field that names the node of a Pod. With an index of this field, the host finds the Pods of a Node in all namespaces.
pub const NODE_NAME: &str = "/spec/nodeName";

/// The rule that matches the objects of a relation to a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum RelationKey {
    /// The value of this label is the target's name or one of its exclusive extras.
    Label(String),
    /// The object's name is the value of this extra.
    Extra(String),
    /// The string at this pointer is the target's name.
    Field(String),
    /// The object's name is the string at this pointer of the job's parameters.
    Parameter(String),
    /// The job owns the object.
    OwnerIsJob,
    /// The target owns the object.
    OwnerIsTarget,
    /// The object has the controller that the target had.
    SameController,
}

/// The changes that a plugin proposes for one target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Proposal {
    /// The changes, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mutations: Vec<Mutation>,
    /// The extras to store.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set_extra: Vec<(String, String)>,
    /// The extras to remove, before `set_extra`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove_extra: Vec<String>,
    /// The events to record on the job.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<PluginEvent>,
}

/// A reference to the object of a mutation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ObjectRef {
    /// The kind, namespace and name of the object.
    pub key: ObjectKey,
    /// If set, the reference means only the object with this UID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// One change to the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Mutation {
    /// Changes labels, annotations and finalizers.
    Metadata(MetadataChange),
    /// Creates this object unless it exists.
    Create(Value),
    /// Applies a JSON Merge Patch.
    Patch {
        /// The object to change.
        object: ObjectRef,
        /// The subresource, such as `status`, or `None` for the object itself.
        subresource: Option<String>,
        /// The patch.
        patch: Value,
    },
    /// Evicts a pod.
    Evict {
        /// The pod.
        pod: ObjectRef,
        /// The grace period in place of the pod's own.
        grace_seconds: Option<u32>,
    },
    /// Deletes an object.
    Delete {
        /// The object.
        object: ObjectRef,
        /// The grace period in place of the object's own.
        grace_seconds: Option<u32>,
        /// The propagation policy: `Background`, `Foreground` or `Orphan`.
        propagation: Option<String>,
    },
    /// Cordons or uncordons a node.
    Schedulable {
        /// The name of the node.
        node: String,
        /// False to cordon the node.
        schedulable: bool,
    },
    /// Adds a taint to a node, or removes it.
    Taint(TaintChange),
    /// Cordons a node and evicts its pods.
    Drain(DrainRequest),
    /// Starts a task, unless a task of its name exists.
    Task(TaskRequest),
    /// A mutation of a later contract, which this version of the host does not support. The host refuses it by name.
    Other {
        /// The verb of the mutation.
        verb: String,
    },
}

impl Mutation {
    /// Returns the object that the mutation changes and that must exist.
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

/// A taint to add to a node or to remove. Key and effect together identify the taint.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TaintChange {
    /// The name of the node.
    pub node: String,
    /// The `key` of the taint.
    pub key: String,
    /// The `value` of the taint.
    pub value: String,
    /// The effect: `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
    /// True to add the taint, and false to remove it.
    pub present: bool,
}

/// A node to drain, and the pods that the drain may evict.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DrainRequest {
    /// The name of the node.
    pub node: String,
    /// The grace period in place of each pod's own.
    pub grace_seconds: Option<u32>,
    /// True if the drain also evicts pods that would lose `emptyDir` data.
    pub delete_empty_dir_data: bool,
    /// True if the drain also evicts pods that no controller would recreate.
    pub force: bool,
}

/// The metadata to set and remove.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MetadataChange {
    /// The object to change.
    pub object: ObjectRef,
    /// The labels to set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set_labels: Vec<(String, String)>,
    /// The labels to remove.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove_labels: Vec<String>,
    /// The annotations to set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set_annotations: Vec<(String, String)>,
    /// The annotations to remove.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove_annotations: Vec<String>,
    /// The finalizers to add.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub add_finalizers: Vec<String>,
    /// The finalizers to remove.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove_finalizers: Vec<String>,
    /// If true, the changes stay. Otherwise, each change is a hold.
    pub keep: bool,
}

/// An event that a plugin requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PluginEvent {
    /// True for a `Warning` instead of a `Normal` event.
    pub warning: bool,
    /// A CamelCase word for programs.
    pub reason: String,
    /// One sentence for people.
    pub message: String,
}

/// The reason why a target failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PluginError {
    /// A CamelCase word for programs.
    pub reason: String,
    /// One sentence for people.
    pub message: String,
}

/// The progress of a target.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum State {
    /// The target has not ended.
    Processing,
    /// The target succeeded, according to the plugin.
    Succeeded,
    /// The target failed.
    Failed(PluginError),
}

/// The result of `progress`.
#[derive(Clone, Debug, PartialEq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Report {
    /// The progress of the target.
    pub state: State,
    /// The next changes.
    pub proposal: Proposal,
    /// The longest time until the next visit, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check_after_ms: Option<u32>,
}

/// The reason why a call gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CallFailure {
    /// True if the host may repeat the call.
    pub retryable: bool,
    /// A CamelCase word for programs.
    pub reason: String,
    /// One sentence for people.
    pub message: String,
    /// The shortest time until the next try, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u32>,
}
