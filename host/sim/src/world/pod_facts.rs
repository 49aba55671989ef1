//! Accessors for the fields of a pod that the simulated controllers read.

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::labels;

/// The properties of a pod that the simulated controllers read.
pub(crate) trait PodFacts {
    fn meta(&self) -> &ObjectMeta;
    fn condition(&self, kind: &str) -> Option<&PodCondition>;
    fn phase(&self) -> &str;
    fn node(&self) -> Option<&str>;

    fn uid(&self) -> &str {
        self.meta().uid.as_deref().unwrap_or_default()
    }
    fn pod_name(&self) -> &str {
        self.meta().name.as_deref().unwrap_or_default()
    }
    fn pod_namespace(&self) -> &str {
        self.meta().namespace.as_deref().unwrap_or_default()
    }
    fn label(&self, key: &str) -> Option<&str> {
        self.meta().labels.as_ref()?.get(key).map(String::as_str)
    }
    fn bears(&self, key: &str) -> bool {
        self.label(key).is_some()
    }
    fn is_terminating(&self) -> bool {
        self.meta().deletion_timestamp.is_some()
    }
    fn is_ready(&self) -> bool {
        self.condition("Ready").is_some_and(|condition| condition.status == "True")
    }
    fn is_finished(&self) -> bool {
        matches!(self.phase(), "Succeeded" | "Failed")
    }
    fn is_evicted(&self) -> bool {
        self.condition(labels::DISRUPTION_TARGET).is_some_and(|condition| {
            condition.status == "True" && condition.reason.as_deref() == Some(labels::EVICTED_BY_API)
        })
    }
    fn controller(&self) -> Option<&OwnerReference> {
        controller_of(self.meta())
    }
}

impl PodFacts for Pod {
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn condition(&self, kind: &str) -> Option<&PodCondition> {
        self.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
    }
    fn phase(&self) -> &str {
        self.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
    }
    fn node(&self) -> Option<&str> {
        self.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())
    }
}

/// Returns the owner reference that is marked as the controller.
pub(crate) fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.as_ref()?.iter().find(|owner| owner.controller == Some(true))
}

/// Returns the resource version as a number, since servers with etcd count revisions. Zero is older than any version.
pub(crate) fn version_of(meta: &ObjectMeta) -> u64 {
    meta.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}
