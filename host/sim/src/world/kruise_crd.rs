//! The CustomResourceDefinition of OpenKruise's ContainerRecreateRequest, reduced to the fields that the simulation uses.

use kube::api::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

/// Returns the kind in the form that a client needs.
pub(crate) fn recreate_requests() -> ApiResource {
    let gvk = GroupVersionKind::gvk("apps.kruise.io", "v1alpha1", "ContainerRecreateRequest");
    ApiResource::from_gvk_with_plural(&gvk, "containerrecreaterequests")
}

/// Returns the definition, ready to be created or applied.
#[must_use]
pub fn recreate_request_crd() -> Value {
    let column = |name: &str, path: &str| json!({ "name": name, "type": "string", "jsonPath": path });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": "containerrecreaterequests.apps.kruise.io" },
        "spec": {
            "group": "apps.kruise.io",
            "scope": "Namespaced",
            "names": {
                "kind": "ContainerRecreateRequest",
                "listKind": "ContainerRecreateRequestList",
                "plural": "containerrecreaterequests",
                "singular": "containerrecreaterequest",
                "shortNames": ["crr"],
            },
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "subresources": { "status": {} },
                "additionalPrinterColumns": [column("PHASE", ".status.phase"), column("POD", ".spec.podName")],
                "schema": { "openAPIV3Schema": schema() },
            }],
        },
    })
}

fn schema() -> Value {
    let (text, seconds) = (json!({ "type": "string" }), json!({ "type": "integer", "format": "int64" }));
    let container = json!({
        "type": "object",
        "required": ["name"],
        "x-kubernetes-preserve-unknown-fields": true,
        "properties": {
            "name": text,
            "statusContext": {
                "type": "object",
                "required": ["containerID", "restartCount"],
                "properties": { "containerID": text, "restartCount": { "type": "integer", "format": "int32" } },
            },
        },
    });
    let strategy = json!({
        "type": "object",
        "properties": {
            "failurePolicy": text,
            "orderedRecreate": { "type": "boolean" },
            "terminationGracePeriodSeconds": seconds,
            "unreadyGracePeriodSeconds": seconds,
            "minStartedSeconds": { "type": "integer", "format": "int32" },
        },
    });
    let state = json!({
        "type": "object",
        "required": ["name", "phase"],
        "properties": { "name": text, "phase": text, "message": text },
    });
    json!({
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "required": ["containers", "podName"],
                "properties": {
                    "podName": text,
                    "containers": { "type": "array", "items": container },
                    "strategy": strategy,
                    "activeDeadlineSeconds": seconds,
                    "ttlSecondsAfterFinished": { "type": "integer", "format": "int32" },
                },
            },
            "status": {
                "type": "object",
                "required": ["phase"],
                "properties": {
                    "phase": text,
                    "message": text,
                    "completionTime": { "type": "string", "format": "date-time" },
                    "containerRecreateStates": { "type": "array", "items": state },
                },
            },
        },
    })
}
