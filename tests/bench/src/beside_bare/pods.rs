//! The pods of the scenario `beside-bare`: origins, and their pairs, which take their places.
//!
//! A pod has about 8 KB of JSON, like a service with a sidecar, because the API server's work grows with the size of the objects.
//! No pod has a node, so the API server gives a deletion no grace period and waits only for finalizers: no kubelet runs here that
//! could end a pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use oarlock_sim::world::labels;
use serde_json::{Value, json};

/// The annotation with the name of the origin, on the pod that takes its place. The protocol removes its own label in the end, but
/// the verdict must still tell the pairs apart.
pub(crate) const IN_PLACE_OF: &str = "bench.oarlock.dev/in-place-of";

/// Returns the name of the CollaSet's pod with this instance id.
pub(crate) fn name(owner: &OwnerReference, id: usize) -> String {
    format!("{}-{id:05}", owner.name)
}

/// Returns a pod that serves and does not ask to be replaced yet.
pub(crate) fn origin(owner: &OwnerReference, id: usize) -> Pod {
    let mut pod = pod(owner, id);
    pod.metadata.labels.get_or_insert_default().insert(labels::SERVICE_AVAILABLE.to_owned(), "true".to_owned());
    pod
}

/// Returns the pod that is to take the place of `origin`.
pub(crate) fn pair(owner: &OwnerReference, id: usize, origin: &str) -> Pod {
    let mut pod = pod(owner, id);
    let metadata = &mut pod.metadata;
    metadata.labels.get_or_insert_default().insert(labels::PAIR_ORIGIN_NAME.to_owned(), origin.to_owned());
    metadata.annotations.get_or_insert_default().insert(IN_PLACE_OF.to_owned(), origin.to_owned());
    pod
}

fn pod(owner: &OwnerReference, id: usize) -> Pod {
    let labels = json!({
        labels::CONTROL: "true",
        labels::INSTANCE_ID: id.to_string(),
        labels::REVISION: format!("{}-7bdb974bc7", owner.name),
        "app": owner.name,
        "app.kubernetes.io/name": "checkout",
        "app.kubernetes.io/part-of": "shop",
        "app.kubernetes.io/version": "4.17.2",
        "topology.example.com/cell": "eu-central-1a",
    });
    let document = json!({"apiVersion": "v1", "kind": "Pod",
    "metadata": {"name": name(owner, id), "labels": labels, "annotations": annotations(), "ownerReferences": [owner]},
    "spec": {
        "containers": [container("checkout", 8080), container("sidecar", 15_020)],
        "volumes": volumes(),
        "serviceAccountName": "default",
        "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": 45,
        "priority": 0,
        "securityContext": {"runAsNonRoot": true, "runAsUser": 10_001, "fsGroup": 10_001},
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100,
            "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname",
                "labelSelector": {"matchLabels": {"app": owner.name}}}}]}},
        "tolerations": [
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
            {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
            {"key": "example.com/dedicated", "operator": "Equal", "value": "shop", "effect": "NoSchedule"},
        ],
    }});
    // A test reads this document, so the default is never sent.
    serde_json::from_value(document).unwrap_or_default()
}

/// Returns twenty annotations, like those that meshes, scrapers and releases leave.
fn annotations() -> BTreeMap<String, String> {
    (0..20)
        .map(|number| (format!("example.com/setting-{number:02}"), format!("value-{number:02}-{}", "x".repeat(70))))
        .collect()
}

fn container(name: &str, port: u16) -> Value {
    let from_object = |kind: &str, number: u8| {
        json!({"name": format!("FROM_{}_{number:02}", kind.to_uppercase()),
            "valueFrom": {format!("{kind}KeyRef"): {"name": format!("{name}-settings"), "key": format!("key-{number:02}")}}})
    };
    let mut env: Vec<Value> = (0..15)
        .map(|number| json!({"name": format!("SETTING_{number:02}"), "value": format!("value-{number:02}-of-{name}")}))
        .collect();
    env.extend((0..2).flat_map(|number| [from_object("configMap", number), from_object("secret", number)]));
    env.push(json!({"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}));
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": port}, "periodSeconds": 5, "timeoutSeconds": 2});
    json!({
        "name": name,
        "image": format!("registry.example.com/shop/{name}@sha256:{}", "8f".repeat(32)),
        "args": ["--config=/etc/settings/config.yaml", format!("--listen=0.0.0.0:{port}"), "--log-format=json"],
        "env": env,
        "ports": [{"name": "http", "containerPort": port}],
        "resources": {"requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}},
        "livenessProbe": probe("/livez"),
        "readinessProbe": probe("/readyz"),
        "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", "sleep 5"]}}},
        "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": "settings", "mountPath": "/etc/settings", "readOnly": true},
            {"name": "certificates", "mountPath": "/etc/certificates", "readOnly": true},
            {"name": "scratch", "mountPath": "/tmp"},
            {"name": "identity", "mountPath": "/var/run/secrets/identity", "readOnly": true},
        ],
    })
}

fn volumes() -> Value {
    json!([
        {"name": "settings", "configMap": {"name": "checkout-settings", "defaultMode": 420}},
        {"name": "certificates", "secret": {"secretName": "checkout-certificates", "defaultMode": 420}},
        {"name": "scratch", "emptyDir": {"sizeLimit": "256Mi"}},
        {"name": "identity", "projected": {"defaultMode": 420, "sources": [
            {"serviceAccountToken": {"audience": "shop", "expirationSeconds": 3607, "path": "token"}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        ]}},
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> OwnerReference {
        OwnerReference {
            name: "set".into(),
            uid: "uid-set".into(),
            controller: Some(true),
            ..OwnerReference::default()
        }
    }

    #[test]
    fn every_pod_has_about_eight_kilobytes() {
        for pod in [origin(&owner(), 7), pair(&owner(), 1007, "set-00007")] {
            let size = serde_json::to_string(&pod).unwrap().len();
            assert!((7_600..=8_600).contains(&size), "{size} bytes");
        }
    }

    #[test]
    fn pair_names_its_origin_and_does_not_serve_yet() {
        let (origin, pair) = (origin(&owner(), 7), pair(&owner(), 1007, "set-00007"));
        let labels_of = |pod: &Pod| pod.metadata.labels.clone().unwrap();
        assert_eq!(origin.metadata.name.as_deref(), Some("set-00007"));
        assert_eq!(labels_of(&pair)[labels::PAIR_ORIGIN_NAME], "set-00007");
        assert_eq!(labels_of(&pair)[labels::INSTANCE_ID], "1007");
        assert!(labels_of(&origin).contains_key(labels::SERVICE_AVAILABLE));
        assert!(!labels_of(&pair).contains_key(labels::SERVICE_AVAILABLE));
        assert!(pair.spec.unwrap().node_name.is_none());
    }
}
