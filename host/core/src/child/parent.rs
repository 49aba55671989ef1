//! The object whose units have children: a JobFlow or a DaemonJob.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::child::build::{Cause, NODE, QUEUE_LABELS, STEP};
use crate::child::fields::{list, number, object, text};
use crate::child::view::ChildView;
use crate::cluster::memory::memory_of;
use crate::cluster::object::unread;
use crate::job::time::read_time;

/// The API version of JobFlow, JobTemplate and DaemonJob.
pub const API_VERSION: &str = "api.practice.com/v1alpha1";
/// The annotation by which units are retried by hand.
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
    /// `JobFlow` or `DaemonJob`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flow => "JobFlow",
            Self::Daemon => "DaemonJob",
        }
    }

    /// The kind that an owner reference names, if it is one of these. Source: docs/jobflow.md 2.1.
    pub fn of_owner(api_version: &str, kind: &str) -> Option<Self> {
        [Self::Flow, Self::Daemon].into_iter().find(|one| api_version == API_VERSION && kind == one.name())
    }

    /// `step` or `node`.
    pub fn unit_word(self) -> &'static str {
        match self {
            Self::Flow => "step",
            Self::Daemon => "node",
        }
    }

    /// The annotation of a child with its unit's name.
    pub fn unit_annotation(self) -> &'static str {
        match self {
            Self::Flow => STEP,
            Self::Daemon => NODE,
        }
    }

    /// The field of the status with the units.
    pub fn table(self) -> &'static str {
        match self {
            Self::Flow => "steps",
            Self::Daemon => "nodes",
        }
    }
}

/// A JobFlow or a DaemonJob as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Parent {
    /// Which of the two.
    pub kind: ParentKind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its version.
    pub version: String,
    /// Its generation.
    pub generation: i64,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// It is being deleted.
    pub terminating: bool,
    /// Its labels of queues, which its children get.
    pub labels: BTreeMap<String, String>,
    /// The value of its annotation [`RETRY`].
    pub retry: Option<String>,
    /// Why its spec is not read: the sentence for its owner.
    pub unread: Option<String>,
    /// Its spec, raw.
    pub spec: Value,
    /// Its status, raw.
    pub status: Value,
}

impl Parent {
    /// Its spec, where that was read.
    ///
    /// # Errors
    /// The reason why not, for the condition `Valid`.
    pub fn readable_spec(&self) -> Result<&Value, Cause> {
        self.unread.as_ref().map_or(Ok(&self.spec), |why| Err(Cause::new("TooLarge", format!("spec: {why}"))))
    }

    /// Without its spec, for which there is no room.
    #[must_use]
    pub fn without_spec(self, why: String) -> Self {
        Self { spec: Value::Null, unread: Some(why), retry: None, labels: BTreeMap::new(), ..self }
    }

    /// The memory of what its owner wrote, as far as it is held.
    pub fn bytes(&self) -> usize {
        let labels = self.labels.iter().map(|(key, value)| key.len() + value.len() + 2 * size_of::<String>());
        let spec = if self.spec.is_null() { 0 } else { memory_of(&self.spec) };
        labels.chain(self.retry.as_ref().map(String::len)).chain([spec]).fold(0, usize::saturating_add)
    }

    /// The names of the steps that a flow has, as its spec has them, accepted or not; `None` for one without a name.
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

    /// The owner reference of its children.
    pub fn owner_reference(&self) -> Value {
        json!({"apiVersion": API_VERSION, "kind": self.kind.name(), "name": self.name, "uid": self.uid,
            "controller": true, "blockOwnerDeletion": true})
    }

    /// Whether a child is of this object, in its namespace. Anybody may write an owner reference with its UID elsewhere.
    pub fn owns(&self, child: &ChildView) -> bool {
        child.owner_kind == Some(self.kind)
            && child.owner_uid.as_deref() == Some(&*self.uid)
            && child.namespace == self.namespace
    }

    /// The key of a Job of it in `status.jobStatusList`.
    pub fn list_key(&self, job: &str) -> String {
        format!("{job}/{}", self.namespace)
    }
}
