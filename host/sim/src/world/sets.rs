//! Workloads as the simulation reads them: one view of four kinds, with the fields that decisions need.

use std::fmt;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, OwnerReference};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::Value;

use super::labels::DEPLOYMENT_REVISION;
use super::pod_facts::{controller_of, version_of};

/// The workload kinds whose controllers are simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetKind {
    /// `apps/v1` Deployment: keeps one ReplicaSet per template.
    Deployment,
    /// `apps/v1` ReplicaSet: replaces a pod as soon as it terminates.
    ReplicaSet,
    /// `apps/v1` StatefulSet: recreates a pod's name once the old pod is gone.
    StatefulSet,
    /// `apps.kusionstack.io/v1alpha1` CollaSet: creates the replacement first, and deletes the pod afterwards.
    CollaSet,
}

impl SetKind {
    /// All workload kinds.
    pub const ALL: [Self; 4] = [Self::Deployment, Self::ReplicaSet, Self::StatefulSet, Self::CollaSet];

    /// Returns the kind's name in the API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Deployment => "Deployment",
            Self::ReplicaSet => "ReplicaSet",
            Self::StatefulSet => "StatefulSet",
            Self::CollaSet => "CollaSet",
        }
    }

    /// Returns the kind in the form that a client needs.
    #[must_use]
    pub fn resource(self) -> ApiResource {
        let (group, version, plural) = match self {
            Self::Deployment => ("apps", "v1", "deployments"),
            Self::ReplicaSet => ("apps", "v1", "replicasets"),
            Self::StatefulSet => ("apps", "v1", "statefulsets"),
            Self::CollaSet => ("apps.kusionstack.io", "v1alpha1", "collasets"),
        };
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, self.name()), plural)
    }
}

/// Kind, namespace and name of a workload.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetKey {
    /// The kind of workload.
    pub kind: SetKind,
    /// Namespace of the workload.
    pub namespace: String,
    /// Name of the workload.
    pub name: String,
}

impl SetKey {
    /// Returns the key of a workload.
    pub fn new(kind: SetKind, namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { kind, namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for SetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind.name(), self.namespace, self.name)
    }
}

/// A workload, reduced to the fields that deciders read.
#[derive(Clone, Debug)]
pub(crate) struct SetView {
    pub(crate) key: SetKey,
    pub(crate) uid: String,
    pub(crate) version: u64,
    pub(crate) generation: i64,
    pub(crate) replicas: usize,
    pub(crate) selector: LabelSelector,
    pub(crate) template: PodTemplateSpec,
    pub(crate) controller: Option<String>,
    pub(crate) is_terminating: bool,
    /// The number of the Deployment's template, for a ReplicaSet. 0 if it has none.
    pub(crate) revision: u64,
    pub(crate) status: Value,
}

impl SetView {
    /// Reads a view from an object. Returns none if the object has no uid or its template cannot be parsed, because an
    /// unreadable set must not stop the others.
    pub(crate) fn read(kind: SetKind, object: &DynamicObject) -> Option<Self> {
        let meta = &object.metadata;
        let spec = object.data.get("spec")?;
        let key = SetKey::new(kind, meta.namespace.clone()?, meta.name.clone()?);
        Some(Self {
            key,
            uid: meta.uid.clone()?,
            version: version_of(meta),
            generation: meta.generation.unwrap_or(0),
            replicas: spec.get("replicas").and_then(Value::as_u64).map_or(1, |n| usize::try_from(n).unwrap_or(0)),
            selector: part(spec, "selector").unwrap_or_default(),
            template: part(spec, "template")?,
            controller: controller_of(meta).map(|owner| owner.uid.clone()),
            is_terminating: meta.deletion_timestamp.is_some(),
            revision: meta.annotations.as_ref().and_then(|all| all.get(DEPLOYMENT_REVISION)?.parse().ok()).unwrap_or(0),
            status: object.data.get("status").cloned().unwrap_or(Value::Null),
        })
    }

    /// Returns the owner reference by which dependents name this set as their controller.
    pub(crate) fn as_owner(&self) -> OwnerReference {
        let resource = self.key.kind.resource();
        OwnerReference {
            api_version: resource.api_version,
            kind: resource.kind,
            name: self.key.name.clone(),
            uid: self.uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }

    /// Returns true if the stored status contains all of these fields.
    pub(crate) fn status_says(&self, wanted: &Value) -> bool {
        let Some(wanted) = wanted.as_object() else { return true };
        // Go omits zero numbers, so an absent count equals zero.
        wanted.iter().all(|(field, value)| match self.status.get(field) {
            Some(stored) => stored == value,
            None => value.is_null() || value == 0,
        })
    }
}

fn part<T: serde::de::DeserializeOwned>(spec: &Value, field: &str) -> Option<T> {
    serde_json::from_value(spec.get(field)?.clone()).ok()
}
