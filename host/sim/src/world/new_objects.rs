//! Builds the pods and ReplicaSets that the simulated cluster creates, as pure functions of a set or a Job.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::ResourceExt;
use kube::api::DynamicObject;
use serde_json::json;

use super::action::NewPod;
use super::labels;
use super::sets::{SetKind, SetView};

/// Returns a set's new pod with its name and node. The node is set at once, because the simulation also schedules, and because
/// the API server removes a deleted pod without a node at once.
pub(crate) fn pod_of(set: &SetView, new: &NewPod, name: String, node: Option<String>) -> Pod {
    let template = set.template.metadata.clone().unwrap_or_default();
    let mut labels = template.labels.unwrap_or_default();
    labels.extend(new.labels.clone());
    let spec = set.template.spec.clone().unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(set.key.namespace.clone()),
            labels: Some(labels),
            annotations: template.annotations,
            owner_references: Some(vec![set.as_owner()]),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec { node_name: node, ..spec }),
        status: None,
    }
}

/// The most characters of a generated name before its five drawn letters.
const LONGEST_BASE: usize = 58;

/// Returns the prefix of the names of a Job's pods, with the index for an Indexed Job: `job-` or `job-3-`.
pub(crate) fn job_pod_base(job: &Job, index: Option<i32>) -> String {
    let end = index.map_or_else(|| "-".to_owned(), |index| format!("-{index}-"));
    let kept: String = job.name_any().chars().take(LONGEST_BASE.saturating_sub(end.len())).collect();
    kept + &end
}

/// Returns a Job's new pod with its name, and with its index for an Indexed Job.
pub(crate) fn pod_of_job(job: &Job, index: Option<i32>, name: String) -> Pod {
    let template = job.spec.clone().unwrap_or_default().template;
    let (mut metadata, mut spec) = (template.metadata.unwrap_or_default(), template.spec.unwrap_or_default());
    metadata.generate_name = Some(job_pod_base(job, index));
    metadata.name = Some(name);
    metadata.namespace = job.namespace();
    metadata.owner_references = Some(vec![OwnerReference {
        api_version: "batch/v1".to_owned(),
        kind: "Job".to_owned(),
        name: job.name_any(),
        uid: job.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }]);
    if let Some(index) = index {
        for map in [&mut metadata.annotations, &mut metadata.labels] {
            map.get_or_insert_default().insert(labels::COMPLETION_INDEX.to_owned(), index.to_string());
        }
        spec.hostname.get_or_insert_with(|| format!("{}-{index}", job.name_any()));
    }
    spec.node_name = spec.node_name.filter(|node| !node.is_empty());
    Pod { metadata, spec: Some(spec), status: None }
}

/// Returns the ReplicaSet of a Deployment's current template.
pub(crate) fn replica_set_of(
    set: &SetView,
    (name, hash): (&str, &str),
    replicas: usize,
    revision: u64,
) -> DynamicObject {
    let hash_label = BTreeMap::from([(labels::TEMPLATE_HASH.to_owned(), hash.to_owned())]);
    let mut selector = set.selector.clone();
    selector.match_labels.get_or_insert_default().extend(hash_label.clone());
    let mut template = set.template.clone();
    let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.extend(hash_label);
    let labels = labels.clone();
    let mut object = DynamicObject::new(name, &SetKind::ReplicaSet.resource()).data(json!({
        "spec": { "replicas": replicas, "selector": selector, "template": template }
    }));
    object.metadata.namespace = Some(set.key.namespace.clone());
    object.metadata.labels = Some(labels);
    object.metadata.annotations = Some([(labels::DEPLOYMENT_REVISION.to_owned(), revision.to_string())].into());
    object.metadata.owner_references = Some(vec![set.as_owner()]);
    object
}

/// Returns a new pod with the name and spec of another pod, but without its uid and its history. The labels about operations
/// on the old pod are omitted.
pub(crate) fn anew(pod: &Pod) -> Pod {
    let old = &pod.metadata;
    let tells_of_operations = |key: &str| {
        key.contains("podopslifecycle.kusionstack.io/")
            || key.starts_with("collaset.kusionstack.io/") && key != labels::INSTANCE_ID
    };
    let mut labels = old.labels.clone().unwrap_or_default();
    labels.retain(|key, _| !tells_of_operations(key));
    let metadata = ObjectMeta {
        name: old.name.clone(),
        namespace: old.namespace.clone(),
        labels: Some(labels),
        owner_references: old.owner_references.clone(),
        ..ObjectMeta::default()
    };
    Pod { metadata, spec: pod.spec.clone(), status: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::samples::set_of;

    #[test]
    fn a_replica_set_of_a_deployment_selects_its_own_pods_alone() {
        let web = set_of(SetKind::Deployment, "web", 2);
        let object = replica_set_of(&web, ("web-abc", "abc"), 2, 1);
        let view_labels = &object.data["spec"]["selector"]["matchLabels"];
        assert_eq!(view_labels[labels::TEMPLATE_HASH], "abc");
        assert_eq!(object.data["spec"]["template"]["metadata"]["labels"][labels::TEMPLATE_HASH], "abc");
        let owner = object.metadata.owner_references.unwrap().remove(0);
        assert_eq!((owner.kind.as_str(), owner.uid.as_str(), owner.controller), ("Deployment", "uid-web", Some(true)));
    }
}
