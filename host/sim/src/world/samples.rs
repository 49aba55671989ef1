//! Small pods and sets for the unit tests of the simulation.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodCondition, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::action::Member;
use super::sets::{SetKey, SetKind, SetView};

#[derive(Clone)]
pub(crate) struct SamplePod(pub(crate) Pod);

/// Returns a ready pod with the uid `uid-<name>`.
pub(crate) fn pod(name: &str) -> SamplePod {
    let meta = ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some("demo".to_owned()),
        uid: Some(format!("uid-{name}")),
        resource_version: Some("1".to_owned()),
        creation_timestamp: Some(Time(Timestamp::UNIX_EPOCH)),
        ..ObjectMeta::default()
    };
    SamplePod(Pod { metadata: meta, ..Pod::default() }).phase("Running").condition("Ready", "True", None)
}

impl SamplePod {
    pub(crate) fn uid(mut self, uid: &str) -> Self {
        self.0.metadata.uid = Some(uid.to_owned());
        self
    }
    pub(crate) fn version(mut self, version: u64) -> Self {
        self.0.metadata.resource_version = Some(version.to_string());
        self
    }
    pub(crate) fn label(mut self, key: &str, value: &str) -> Self {
        self.0.metadata.labels.get_or_insert_default().insert(key.to_owned(), value.to_owned());
        self
    }
    pub(crate) fn owner(mut self, kind: &str, uid: &str) -> Self {
        self.0.metadata.owner_references = Some(vec![OwnerReference {
            kind: kind.to_owned(),
            uid: uid.to_owned(),
            controller: Some(true),
            ..OwnerReference::default()
        }]);
        self
    }
    pub(crate) fn terminating(mut self) -> Self {
        self.0.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        self.0.metadata.deletion_grace_period_seconds = Some(30);
        self
    }
    pub(crate) fn phase(mut self, phase: &str) -> Self {
        self.0.status.get_or_insert_default().phase = Some(phase.to_owned());
        self
    }
    pub(crate) fn condition(mut self, kind: &str, status: &str, reason: Option<&str>) -> Self {
        let conditions = self.0.status.get_or_insert_with(PodStatus::default).conditions.get_or_insert_default();
        conditions.retain(|condition| condition.type_ != kind);
        conditions.push(PodCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.map(str::to_owned),
            ..PodCondition::default()
        });
        self
    }
    pub(crate) fn node(mut self, name: &str) -> Self {
        self.0.spec.get_or_insert_default().node_name = Some(name.to_owned());
        self
    }
    /// Ends the pod's container with this exit code.
    pub(crate) fn ended(mut self, exit_code: i32) -> Self {
        let terminated = ContainerStateTerminated { exit_code, ..ContainerStateTerminated::default() };
        let state = ContainerState { terminated: Some(terminated), ..ContainerState::default() };
        let container = ContainerStatus { state: Some(state), ..ContainerStatus::default() };
        self.0.status.get_or_insert_default().container_statuses = Some(vec![container]);
        self.phase(if exit_code == 0 { "Succeeded" } else { "Failed" })
    }
    pub(crate) fn member(self) -> Member {
        Member { is_leaving: self.0.metadata.deletion_timestamp.is_some(), pod: Arc::new(self.0) }
    }
}

pub(crate) fn set_of(kind: SetKind, name: &str, replicas: usize) -> SetView {
    SetView {
        key: SetKey::new(kind, "demo", name),
        uid: format!("uid-{name}"),
        version: 1,
        generation: 1,
        replicas,
        selector: Default::default(),
        template: Default::default(),
        controller: None,
        is_terminating: false,
        revision: 0,
        status: Value::Null,
    }
}
