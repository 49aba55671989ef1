//! The actions of a workload controller, as data: deciders return them and `writer` performs them. The actions of one
//! decision are independent, so any order is valid.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::ledger::Cause;
use super::pod_facts::PodFacts;
use super::sets::SetKey;

/// One physical or administrative action.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Creates a pod from the set's template.
    CreatePod(NewPod),
    /// Creates the replacement of an origin, then labels the origin with the replacement's instance id.
    ReplaceOrigin { origin: PodName, id: u64 },
    /// Changes labels of a pod. A value of none removes the label.
    LabelPod { pod: PodName, labels: BTreeMap<String, Option<String>> },
    /// Deletes a pod gracefully.
    DeletePod { pod: PodName, cause: Cause },
    /// Creates the ReplicaSet of a Deployment's current template.
    CreateReplicaSet { name: String, hash: String, replicas: usize, revision: u64 },
    /// Sets a new revision on a ReplicaSet, because its Deployment returned to its template.
    SetRevision { set: SetKey, uid: String, revision: u64 },
    /// Sets the size of another set.
    Resize { set: SetKey, uid: String, replicas: usize },
    /// Writes the status of the set.
    WriteStatus(Value),
}

/// A pod's name and uid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodName {
    pub(crate) name: String,
    pub(crate) uid: String,
}

impl PodName {
    pub(crate) fn of(pod: &Pod) -> Self {
        Self { name: pod.pod_name().to_owned(), uid: pod.uid().to_owned() }
    }
}

/// A pod to be created: its name, unless a name is drawn, and labels besides the template's.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NewPod {
    pub(crate) name: Option<String>,
    pub(crate) labels: BTreeMap<String, String>,
}

/// A pod of a set. It is leaving once it terminates or a delete was sent, even if no watch shows the deletion yet.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) pod: Arc<Pod>,
    pub(crate) is_leaving: bool,
}

/// Inputs of a set's decider, besides the set and its pods.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetContext {
    /// The lowest instance id that the set has never used.
    pub(crate) next_id: u64,
    /// Whether the scenario currently forbids new pods.
    pub(crate) creation_held: bool,
}
