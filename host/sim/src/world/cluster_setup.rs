//! Prepares a cluster for the simulation: creates definitions and nodes. Existing objects stay unchanged.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::discovery::documents::VERSION;

use super::collaset_crd::collaset_crd;
use super::reboots::boot_id;
use super::sets::SetKind;
use super::writer::is_already_there;

/// The longest wait for a new kind to be served. A server needs a second or two.
const SERVED_WITHIN: Duration = Duration::from_secs(30);

/// Error of the preparation of a cluster.
#[derive(Debug, thiserror::Error)]
pub enum PrepareFailed {
    /// The API server refused a definition.
    #[error("failed to create the CustomResourceDefinition of {kind}; the client needs the rights of an administrator")]
    CreateDefinition {
        /// The kind of the definition.
        kind: String,
        /// The API server's error.
        #[source]
        source: kube::Error,
    },
    /// The API server does not serve a kind although its definition exists.
    #[error("objects of kind {kind} cannot be listed {SERVED_WITHIN:?} after their definition was created")]
    ListKind {
        /// The kind that is not served.
        kind: String,
        /// The last error of the API server.
        #[source]
        source: kube::Error,
    },
    /// A constant definition of this crate is invalid.
    #[error("failed to read the definition of {kind}")]
    ReadDefinition {
        /// The kind of the definition.
        kind: String,
        /// The parser's error.
        #[source]
        source: serde_json::Error,
    },
    /// The API server refused a node.
    #[error("failed to create node {name}")]
    CreateNode {
        /// Name of the node.
        name: String,
        /// The API server's error.
        #[source]
        source: kube::Error,
    },
}

/// Creates missing definitions and nodes, and waits until the API server serves CollaSets.
pub(crate) async fn prepare(client: &Client, nodes: usize, now: &str) -> Result<(), PrepareFailed> {
    install(client, collaset_crd(), &SetKind::CollaSet.resource()).await?;
    for index in 0..nodes {
        let name = format!("node-{index}");
        let made = create_node(client, &name, (&boot_id(&name, 0), now)).await;
        made.map_err(|source| PrepareFailed::CreateNode { name, source })?;
    }
    Ok(())
}

/// Creates the definition of a kind unless it exists, and waits until the API server serves the kind.
pub(crate) async fn install(client: &Client, definition: Value, resource: &ApiResource) -> Result<(), PrepareFailed> {
    let kind = resource.kind.clone();
    let gvk = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let definitions: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&gvk));
    let crd: DynamicObject = serde_json::from_value(definition)
        .map_err(|source| PrepareFailed::ReadDefinition { kind: kind.clone(), source })?;
    match definitions.create(&PostParams::default(), &crd).await {
        Err(source) if !is_already_there(&source) => return Err(PrepareFailed::CreateDefinition { kind, source }),
        Ok(_) | Err(_) => {}
    }
    let objects: Api<DynamicObject> = Api::all_with(client.clone(), resource);
    let end = Instant::now() + SERVED_WITHIN;
    while let Err(source) = objects.list(&ListParams::default().limit(1)).await {
        if Instant::now() >= end {
            return Err(PrepareFailed::ListKind { kind, source });
        }
        sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// Creates a Ready node, unless a node with this name exists.
pub(crate) async fn create_node(client: &Client, name: &str, (boot_id, now): (&str, &str)) -> Result<(), kube::Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    let mut node = Node::default();
    node.metadata.name = Some(name.to_owned());
    node.metadata.labels = Some([("kubernetes.io/hostname".to_owned(), name.to_owned())].into());
    match nodes.create(&PostParams::default(), &node).await {
        Err(source) if is_already_there(&source) => return Ok(()),
        created => drop(created?),
    }
    let status = Patch::Merge(node_status(name, boot_id, now));
    nodes.patch_status(name, &PatchParams::default(), &status).await?;
    // A real server taints a new node as not ready, and the node lifecycle controller removes the taint. The simulation does it here.
    let ready = Patch::Merge(json!({ "spec": { "taints": null } }));
    nodes.patch(name, &PatchParams::default(), &ready).await.map(drop)
}

fn node_status(name: &str, boot_id: &str, now: &str) -> Value {
    let version = format!("v{}.{}.0", VERSION.0, VERSION.1);
    json!({ "status": {
        "addresses": [{ "type": "Hostname", "address": name }],
        "nodeInfo": {
            "kubeletVersion": version, "kubeProxyVersion": "", "containerRuntimeVersion": "none://", "osImage": "in memory",
            "operatingSystem": "linux", "architecture": "amd64", "kernelVersion": "", "bootID": boot_id, "machineID": "",
            "systemUUID": "",
        },
        "capacity": { "cpu": "64", "memory": "256Gi", "pods": "10000" },
        "allocatable": { "cpu": "64", "memory": "256Gi", "pods": "10000" },
        "conditions": [{
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "the world's kubelet is ready",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }],
    } })
}
