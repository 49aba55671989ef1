//! Removes a namespace with everything in it, because no controller here does.
//!
//! No other process may still act in the namespace. Objects are listed by pages and deleted one by one, because a single deletion
//! of thousands takes longer than a request may.

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Request;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt as _};
use serde_json::json;

/// Requests in flight.
const IN_FLIGHT: usize = 32;
/// Objects in a page.
const PAGE: u32 = 500;
/// The kinds that a scenario leaves behind, owners before their dependents.
const KINDS: [(&str, &str, &str); 12] = [
    ("api.practice.com", "v1alpha1", "JobFlow"),
    ("api.practice.com", "v1alpha1", "DaemonJob"),
    ("oarlock.dev", "v1alpha1", "JobRecord"),
    ("batch", "v1", "Job"),
    ("apps.kusionstack.io", "v1alpha1", "OperationJob"),
    ("oarlock.dev", "v1alpha1", "OperationRecord"),
    ("apps.kusionstack.io", "v1alpha1", "CollaSet"),
    ("apps", "v1", "Deployment"),
    ("apps", "v1", "ReplicaSet"),
    ("", "v1", "Pod"),
    ("events.k8s.io", "v1", "Event"),
    ("", "v1", "ServiceAccount"),
];

/// The kinds that tasks of jobs leave in the namespace of their pods. This namespace has no jobs.
const OF_TASKS: [(&str, &str, &str); 3] =
    [("", "v1", "Pod"), ("", "v1", "ConfigMap"), ("events.k8s.io", "v1", "Event")];

/// Removes all nodes, and everything that tasks on them left in their namespace.
///
/// # Errors
/// If a kind cannot be listed or deleted. The error names the kind.
pub(crate) async fn remove_nodes(client: &Client, tasks_namespace: &str) -> anyhow::Result<()> {
    remove_kinds(client, tasks_namespace, &OF_TASKS).await?;
    let nodes = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Node"));
    remove_all(&Api::all_with(client.clone(), &nodes)).await.context("cannot remove every node")
}

/// Removes everything in a namespace, and the namespace.
///
/// # Errors
/// If a kind cannot be listed or deleted. The error names the kind.
pub(crate) async fn remove(client: &Client, namespace: &str) -> anyhow::Result<()> {
    remove_kinds(client, namespace, &KINDS).await?;
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Namespace"));
    let namespaces: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    namespaces.delete(namespace, &DeleteParams::default()).await.context("cannot delete the namespace")?;
    // No controller here finalizes a namespace. An empty namespace that stays does no harm.
    let empty = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}, "spec": {}});
    let request = Request::put(format!("/api/v1/namespaces/{namespace}/finalize"))
        .header("content-type", "application/json")
        .body(empty.to_string().into_bytes())?;
    let _ = client.request_text(request).await;
    Ok(())
}

async fn remove_kinds(client: &Client, namespace: &str, kinds: &[(&str, &str, &str)]) -> anyhow::Result<()> {
    for (group, version, kind) in kinds {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
        remove_all(&api).await.with_context(|| format!("cannot remove every {kind} of namespace {namespace}"))?;
    }
    Ok(())
}

async fn remove_all(api: &Api<DynamicObject>) -> anyhow::Result<()> {
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = match api.list_metadata(&page).await {
            // A kind that is not served has no objects.
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            list => list?,
        };
        let objects = list.items.into_iter().map(|object| (object.name_any(), !object.finalizers().is_empty()));
        stream::iter(objects)
            .map(|(name, is_held)| remove_one(api, name, is_held))
            .buffer_unordered(IN_FLIGHT)
            .try_collect::<Vec<()>>()
            .await?;
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = ListParams::default().limit(PAGE).continue_token(&token),
            None => return Ok(()),
        }
    }
}

async fn remove_one(api: &Api<DynamicObject>, name: String, is_held: bool) -> anyhow::Result<()> {
    if is_held {
        let released = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        gone_is_fine(api.patch(&name, &PatchParams::default(), &released).await)?;
    }
    gone_is_fine(api.delete(&name, &DeleteParams::default().grace_period(0)).await)
}

fn gone_is_fine<T>(outcome: kube::Result<T>) -> anyhow::Result<()> {
    match outcome {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        outcome => Ok(outcome.map(drop)?),
    }
}
