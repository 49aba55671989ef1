//! The owner of units and their children: a JobFlow or a DaemonJob.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::attempts::build::{Cause, NODE, QUEUE_LABELS, STEP};
use crate::attempts::view::ChildView;
use crate::cache::object_cache::CachedObject;
use crate::object::api_object::{Kind, ObjectKey, unread};
use crate::object::fields::{list, number, object, text};
use crate::object::memory::memory_of;
use crate::object::time::read_time;

/// The API version of JobFlow, JobTemplate and DaemonJob.
pub const API_VERSION: &str = "api.practice.com/v1alpha1";
/// The annotation with which a user retries units.
pub const RETRY: &str = "oarlock.dev/retry";

/// A kind with units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ParentKind {
    /// `JobFlow`.
    Flow,
    /// `DaemonJob`.
    Daemon,
}

impl ParentKind {
    /// Returns `JobFlow` or `DaemonJob`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flow => "JobFlow",
            Self::Daemon => "DaemonJob",
        }
    }

    /// Returns the kind as objects name it.
    pub fn kind(self) -> Kind {
        Kind::new(API_VERSION, self.name())
    }

    /// Returns the key of an object of this kind.
    pub fn key(self, namespace: &str, name: &str) -> ObjectKey {
        ObjectKey { kind: self.kind(), namespace: Some(namespace.to_owned()), name: name.to_owned() }
    }

    /// Returns the kind of an object with this key, if it is JobFlow or DaemonJob.
    pub fn of_key(key: &ObjectKey) -> Option<Self> {
        Self::of_owner(&key.kind.api_version, &key.kind.kind)
    }

    /// Returns the kind that an owner reference names, if it is JobFlow or DaemonJob. Source: docs/jobflow.md 2.1.
    pub fn of_owner(api_version: &str, kind: &str) -> Option<Self> {
        [Self::Flow, Self::Daemon].into_iter().find(|one| api_version == API_VERSION && kind == one.name())
    }

    /// Returns `step` or `node`.
    pub fn unit_word(self) -> &'static str {
        match self {
            Self::Flow => "step",
            Self::Daemon => "node",
        }
    }

    /// Returns the annotation of a child that has its unit's name.
    pub fn unit_annotation(self) -> &'static str {
        match self {
            Self::Flow => STEP,
            Self::Daemon => NODE,
        }
    }

    /// Returns the status field with the units.
    pub fn table(self) -> &'static str {
        match self {
            Self::Flow => "steps",
            Self::Daemon => "nodes",
        }
    }
}

/// A stored JobFlow or DaemonJob.
#[derive(Clone, Debug, PartialEq)]
pub struct Parent {
    /// Kind of the object.
    pub kind: ParentKind,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// UID of the object.
    pub uid: String,
    /// resourceVersion of the object.
    pub version: String,
    /// Generation of the object.
    pub generation: i64,
    /// Time of creation.
    pub created: Option<Timestamp>,
    /// True if the object is being deleted.
    pub terminating: bool,
    /// The labels of queues, which the host copies to children.
    pub labels: BTreeMap<String, String>,
    /// Value of the annotation [`RETRY`].
    pub retry: Option<String>,
    /// Why the host did not read the spec, as a message for the object's owner.
    pub unread: Option<String>,
    /// The raw spec.
    pub spec: Value,
    /// The raw status.
    pub status: Value,
}

/// Returns the kind JobRecord.
pub fn record_kind() -> Kind {
    Kind::new("oarlock.dev/v1alpha1", "JobRecord")
}

/// Returns the key of the JobRecord with this namespace and name.
pub fn record_key(namespace: &str, name: String) -> ObjectKey {
    ObjectKey { kind: record_kind(), namespace: Some(namespace.to_owned()), name }
}

impl Parent {
    /// Returns the key of the object.
    pub fn key(&self) -> ObjectKey {
        self.kind.key(&self.namespace, &self.name)
    }

    /// Returns the spec.
    ///
    /// # Errors
    /// If the host did not read the spec. The cause is for the condition `Valid`.
    pub fn readable_spec(&self) -> Result<&Value, Cause> {
        self.unread.as_ref().map_or(Ok(&self.spec), |why| Err(Cause::new("TooLarge", format!("spec: {why}"))))
    }

    /// Returns the step names of a flow's spec, even of a refused spec. Returns `None` for a step without a name.
    pub fn step_names(&self) -> impl Iterator<Item = Option<&str>> {
        let steps = list(&self.spec, "/flows").iter().chain(list(&self.spec, "/finally"));
        steps.map(|step| text(step, "/name"))
    }

    /// Reads a stored object.
    pub fn read(kind: ParentKind, mut object_value: Value) -> Option<Self> {
        let own = |pointer: &str| text(&object_value, pointer).map(str::to_owned);
        let labels = object(&object_value, "/metadata/labels").into_iter().flatten();
        let labels = labels.filter(|(key, _)| key.starts_with(QUEUE_LABELS));
        let labels = labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect();
        let parent = Self {
            kind,
            namespace: own("/metadata/namespace")?,
            name: own("/metadata/name")?,
            uid: own("/metadata/uid")?,
            version: own("/metadata/resourceVersion").unwrap_or_default(),
            generation: number(&object_value, "/metadata/generation").unwrap_or(0),
            created: read_time(text(&object_value, "/metadata/creationTimestamp")),
            terminating: own("/metadata/deletionTimestamp").is_some(),
            labels,
            unread: unread(&object_value).map(str::to_owned),
            retry: own("/metadata/annotations/oarlock.dev~1retry").filter(|token| !token.is_empty()),
            spec: Value::Null,
            status: Value::Null,
        };
        let mut take = |field: &str| object_value.get_mut(field).map_or(Value::Null, Value::take);
        Some(Self { spec: take("spec"), status: take("status"), ..parent })
    }

    /// Returns the owner reference for children of this object.
    pub fn owner_reference(&self) -> Value {
        json!({"apiVersion": API_VERSION, "kind": self.kind.name(), "name": self.name, "uid": self.uid,
            "controller": true, "blockOwnerDeletion": true})
    }

    /// Returns true if a child belongs to this object and is in its namespace. In another namespace, anyone may write an owner reference with this
    /// UID.
    pub fn owns(&self, child: &ChildView) -> bool {
        child.owner_kind == Some(self.kind)
            && child.owner_uid.as_deref() == Some(&*self.uid)
            && child.namespace == self.namespace
    }

    /// Returns the key of a Job in `status.jobStatusList`.
    pub fn list_key(&self, job: &str) -> String {
        format!("{job}/{}", self.namespace)
    }
}

impl CachedObject for Parent {
    fn key(&self) -> ObjectKey {
        self.kind.key(&self.namespace, &self.name)
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn version(&self) -> u64 {
        self.version.parse().unwrap_or(0)
    }

    fn bytes(&self) -> usize {
        let labels = self.labels.iter().map(|(key, value)| key.len() + value.len() + 2 * size_of::<String>());
        let spec = if self.spec.is_null() { 0 } else { memory_of(&self.spec) };
        labels.chain(self.retry.as_ref().map(String::len)).chain([spec]).fold(0, usize::saturating_add)
    }

    fn without_spec(self, why: &str) -> Self {
        Self { spec: Value::Null, unread: Some(why.to_owned()), retry: None, labels: BTreeMap::new(), ..self }
    }
}
