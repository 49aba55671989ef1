//! CollaSet's CustomResourceDefinition, reduced to the fields that the simulated controllers use.

use serde_json::{Value, json};

/// Returns the definition, ready to be created or applied.
#[must_use]
pub fn collaset_crd() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": "collasets.apps.kusionstack.io" },
        "spec": {
            "group": "apps.kusionstack.io",
            "scope": "Namespaced",
            "names": {
                "kind": "CollaSet",
                "listKind": "CollaSetList",
                "plural": "collasets",
                "singular": "collaset",
                "shortNames": ["cls"],
            },
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "subresources": {
                    "status": {},
                    "scale": { "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas" },
                },
                "additionalPrinterColumns": columns(),
                "schema": { "openAPIV3Schema": schema() },
            }],
        },
    })
}

fn columns() -> Vec<Value> {
    let columns = [
        ("DESIRED", "integer", ".spec.replicas"),
        ("CURRENT", "integer", ".status.replicas"),
        ("AVAILABLE", "integer", ".status.availableReplicas"),
        ("UPDATED", "integer", ".status.updatedReplicas"),
        ("UPDATED_READY", "integer", ".status.updatedReadyReplicas"),
        ("UPDATED_AVAILABLE", "integer", ".status.updatedAvailableReplicas"),
        ("CURRENT_REVISION", "string", ".status.currentRevision"),
        ("UPDATED_REVISION", "string", ".status.updatedRevision"),
        ("AGE", "date", ".metadata.creationTimestamp"),
    ];
    columns.iter().map(|(name, kind, path)| json!({ "name": name, "type": kind, "jsonPath": path })).collect()
}

fn schema() -> Value {
    let count = json!({ "type": "integer", "format": "int32" });
    let open = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    json!({
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "x-kubernetes-preserve-unknown-fields": true,
                "properties": { "replicas": count, "selector": open, "template": open },
            },
            "status": {
                "type": "object",
                "x-kubernetes-preserve-unknown-fields": true,
                "properties": {
                    "observedGeneration": { "type": "integer", "format": "int64" },
                    "replicas": count,
                    "readyReplicas": count,
                    "availableReplicas": count,
                    "updatedReplicas": count,
                    "updatedReadyReplicas": count,
                    "updatedAvailableReplicas": count,
                    "currentRevision": { "type": "string" },
                    "updatedRevision": { "type": "string" },
                },
            },
        },
    })
}
