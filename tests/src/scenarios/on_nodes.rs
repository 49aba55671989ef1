//! What scenarios on nodes share: nodes of their own, a namespace in which jobs may work on them, and a host with a plugin that
//! does.

use anyhow::ensure;
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use oarlock::manifests::{GrantedAccess, PodPolicies, manifests_with};
use oarlock_bed::install::{self, Way};
use oarlock_core::cluster::own::TASKS_NAMESPACE;
use serde_json::{Value, json};

use crate::rig::{Rig, patiently, tasks_namespace};

/// The name of a plugin, and its grant.
pub(crate) type Plugin = (&'static str, &'static str);

/// The label of a namespace in which jobs may work on nodes.
pub(crate) const ALLOWED: &str = "oarlock.dev/node-operations";
/// Keeps the pods of other scenarios away from the nodes of this one.
pub(crate) const RESERVED: &str = "scenarios.test/reserved";

pub(crate) fn nodes(rig: &Rig) -> Api<Node> {
    Api::all(rig.client.clone())
}

pub(crate) async fn set_label(rig: &Rig, value: Option<&str>) -> anyhow::Result<()> {
    let namespaces: Api<Namespace> = Api::all(rig.client.clone());
    let body = json!({"metadata": {"labels": {ALLOWED: value}}});
    namespaces.patch(&rig.namespace, &PatchParams::default(), &Patch::Merge(body)).await?;
    Ok(())
}

/// Creates a job once the admission policy has seen the label of the namespace.
pub(crate) async fn create(rig: &Rig, name: &str, spec: Value) -> anyhow::Result<()> {
    let mut last = String::new();
    let created = patiently("the job is accepted", async || match rig.create_job(name, spec.clone()).await {
        Ok(_) => Ok(true),
        Err(error) => {
            last = error.to_string();
            Ok(false)
        }
    });
    created.await.map_err(|waited| anyhow::anyhow!("{waited}: {last}"))
}

/// The rights that the grant of the plugin needs, as an admin gives them.
pub(crate) async fn grant(rig: &Rig, (plugin, grants): Plugin) -> anyhow::Result<()> {
    let grants = oarlock_wasm::parse_grants(grants)?;
    let access = GrantedAccess::of(grants);
    let documents = install::documents(&manifests_with(&access, PodPolicies::NONE)?)?;
    let name =
        |document: &Value| document.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let of_nodes = documents.into_iter().filter(|one| {
        [plugin, "node-holds"].iter().any(|word| name(one).contains(word)) || name(one) == TASKS_NAMESPACE
    });
    // Scenarios that share a control plane have a namespace of tasks each.
    let renamed = of_nodes
        .map(|one| serde_json::from_str(&one.to_string().replace(TASKS_NAMESPACE, &tasks_namespace(&rig.namespace))));
    let of_nodes: Vec<Value> = renamed.collect::<Result<_, _>>()?;
    ensure!(of_nodes.len() >= 2, "a role and its binding at least: {of_nodes:?}");
    install::install(&rig.client, &of_nodes, Way::Apply).await
}

/// A namespace in which jobs may work on nodes, and a host with the plugin.
pub(crate) async fn begin(rig: &mut Rig, plugin: Plugin) -> anyhow::Result<()> {
    set_label(rig, Some("true")).await?;
    grant(rig, plugin).await?;
    start(rig, plugin).await
}

pub(crate) async fn start(rig: &mut Rig, (plugin, grants): Plugin) -> anyhow::Result<()> {
    let mut host = rig.host_named("host");
    host.plugins = vec![plugin];
    host.grants = grants.to_owned();
    rig.start(host).await
}

/// A new node of this scenario.
pub(crate) async fn node(rig: &Rig, suffix: &str, ready: bool) -> anyhow::Result<String> {
    let name = format!("{}-{suffix}", rig.namespace);
    let reserved = json!([{"key": RESERVED, "effect": "NoSchedule"}]);
    let labels = json!({"scenario": rig.namespace});
    let body = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {"taints": reserved}});
    nodes(rig).create(&PostParams::default(), &serde_json::from_value(body)?).await?;
    set_ready(rig, &name, ready).await?;
    // A real server taints a new node as not ready.
    change(rig, &name, json!({"spec": {"taints": reserved}})).await?;
    Ok(name)
}

pub(crate) async fn set_ready(rig: &Rig, name: &str, ready: bool) -> anyhow::Result<()> {
    let status = if ready { "True" } else { "False" };
    let body = json!({"status": {"conditions": [{"type": "Ready", "status": status, "reason": "Test", "message": "",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    nodes(rig).patch_status(name, &PatchParams::default(), &Patch::Merge(body)).await?;
    Ok(())
}

pub(crate) async fn change(rig: &Rig, name: &str, patch: Value) -> anyhow::Result<()> {
    nodes(rig).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

pub(crate) async fn cordon(rig: &Rig, name: &str, cordoned: bool) -> anyhow::Result<()> {
    change(rig, name, json!({"spec": {"unschedulable": cordoned}})).await
}
