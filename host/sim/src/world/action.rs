//! Actions of a workload's controller, as data: deciders return them, `writer` performs them. Actions of one decision
//! are independent and may be performed in any order.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::ledger::Cause;
use super::pod_facts::PodFacts;
use super::sets::SetKey;

/// One physical or administrative step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Make a pod of the set's template.
    CreatePod(NewPod),
    /// Make the replacement of an origin, then tell the origin its instance id.
    ReplaceOrigin { origin: PodName, id: u64 },
    /// Change labels of one pod; none removes.
    LabelPod { pod: PodName, labels: BTreeMap<String, Option<String>> },
    /// Ask for a pod's graceful deletion.
    DeletePod { pod: PodName, cause: Cause },
    /// Make the ReplicaSet of a Deployment's present template.
    CreateReplicaSet { name: String, hash: String, replicas: usize, revision: u64 },
    /// Number the template of a ReplicaSet anew: its Deployment went back to it.
    SetRevision { set: SetKey, uid: String, revision: u64 },
    /// Set the size of another set.
    Resize { set: SetKey, uid: String, replicas: usize },
    /// Write the set's own status.
    WriteStatus(Value),
}

/// A pod, by name and identity.
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

/// A pod to be made: under a fixed name or one that is drawn, with labels besides the template's.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NewPod {
    pub(crate) name: Option<String>,
    pub(crate) labels: BTreeMap<String, String>,
}

/// A pod of a set. It is *leaving* once it terminates or its deletion was sent, although no watch shows it yet.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) pod: Arc<Pod>,
    pub(crate) is_leaving: bool,
}

/// Inputs of a set's decider besides the set and its pods.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetContext {
    /// The lowest instance id that was never used in the set.
    pub(crate) next_id: u64,
    /// A scenario forbids new pods for now.
    pub(crate) creation_held: bool,
}
