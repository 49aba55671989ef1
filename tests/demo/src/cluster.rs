//! The requests of kubectl, by a client that sees what any user sees.

use anyhow::Context as _;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use oarlock_support::install;
use serde_json::Value;

use crate::snapshot::text;

/// Returns the objects of a kind, in the namespace of the client if the kind has namespaces.
fn api(client: &Client, kind: &str) -> Api<DynamicObject> {
    let (group, version) = match kind {
        "OperationJob" => ("apps.kusionstack.io", "v1alpha1"),
        "JobTemplate" | "JobFlow" | "DaemonJob" => ("api.practice.com", "v1alpha1"),
        _ => ("", "v1"),
    };
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    match kind {
        "Node" | "Namespace" => Api::all_with(client.clone(), &resource),
        _ => Api::default_namespaced_with(client.clone(), &resource),
    }
}

/// `kubectl apply -f -`.
pub(crate) async fn apply(client: &Client, yaml: &str) -> anyhow::Result<()> {
    for document in install::documents(yaml)? {
        install::apply(client, &document).await?;
    }
    Ok(())
}

/// `kubectl get KIND NAME`.
pub(crate) async fn get(client: &Client, kind: &str, name: &str) -> anyhow::Result<Value> {
    let found = api(client, kind).get(name).await.with_context(|| format!("cannot read {kind} {name}"))?;
    Ok(serde_json::to_value(found)?)
}

/// `kubectl get KIND -l LABELS`, oldest first.
pub(crate) async fn list(client: &Client, kind: &str, labels: &str) -> anyhow::Result<Vec<Value>> {
    let listed = api(client, kind).list(&ListParams::default().labels(labels)).await;
    let listed = listed.with_context(|| format!("cannot list {kind}s {labels}"))?;
    let mut all: Vec<Value> = listed.items.iter().map(serde_json::to_value).collect::<Result<_, _>>()?;
    all.sort_by_key(|object| {
        ["creationTimestamp", "name"].map(|field| text(object, &format!("/metadata/{field}")).to_owned())
    });
    Ok(all)
}

/// `kubectl patch KIND NAME`. A list of operations is a JSON Patch, and an object is a merge patch.
pub(crate) async fn patch(client: &Client, (kind, name): (&str, &str), patch: Value) -> anyhow::Result<()> {
    let patch = if patch.is_array() { Patch::Json(serde_json::from_value(patch)?) } else { Patch::Merge(patch) };
    let patched = api(client, kind).patch(name, &PatchParams::default(), &patch).await;
    patched.map(drop).with_context(|| format!("cannot patch {kind} {name}"))
}
