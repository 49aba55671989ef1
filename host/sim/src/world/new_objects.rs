//! The pods and ReplicaSets that the world creates, as pure functions of a set.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::DynamicObject;
use serde_json::json;

use super::action::NewPod;
use super::labels;
use super::sets::{SetKind, SetView};

/// The pod that a set makes, under a name, on a node. The node is named at once: the world is scheduler too, and
/// a deletion ends a pod without a node at once.
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

/// The ReplicaSet of a Deployment's present template.
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

/// A pod with the same name and spec as another one, but an identity and a history of its own: labels that tell of
/// operations on the old one do not come along.
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
