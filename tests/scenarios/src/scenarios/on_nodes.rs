//! Functions for scenarios on nodes: nodes, a namespace in which jobs may work on nodes, and a host with such a plugin.

use anyhow::ensure;
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use oarlock::manifests::{GrantedAccess, PodPolicies, manifests_with};
use oarlock_core::object::own::TASKS_NAMESPACE;
use oarlock_support::install::{self, Way};
use serde_json::{Value, json};

use crate::test_cluster::{TestCluster, patiently, tasks_namespace};

/// The name of a plugin and its grant.
pub(crate) type Plugin = (&'static str, &'static str);

/// The label of a namespace in which jobs may work on nodes.
pub(crate) const ALLOWED: &str = "oarlock.dev/node-operations";
/// The key of the taint that keeps the pods of other scenarios away from the nodes of this one.
pub(crate) const RESERVED: &str = "scenarios.test/reserved";

/// Returns a client of the nodes.
pub(crate) fn nodes(cluster: &TestCluster) -> Api<Node> {
    Api::all(cluster.client.clone())
}

/// Sets or removes the label that allows jobs in the namespace to work on nodes.
///
/// # Errors
/// If the API server refuses a request.
pub(crate) async fn set_label(cluster: &TestCluster, value: Option<&str>) -> anyhow::Result<()> {
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let body = json!({"metadata": {"labels": {ALLOWED: value}}});
    namespaces.patch(&cluster.namespace, &PatchParams::default(), &Patch::Merge(body)).await?;
    Ok(())
}

/// Creates a job, and repeats the create until the admission policy has observed the label of the namespace.
pub(crate) async fn create(cluster: &TestCluster, name: &str, spec: Value) -> anyhow::Result<()> {
    let mut last = String::new();
    let created = patiently("the job is accepted", async || match cluster.create_job(name, spec.clone()).await {
        Ok(_) => Ok(true),
        Err(error) => {
            last = error.to_string();
            Ok(false)
        }
    });
    created.await.map_err(|waited| anyhow::anyhow!("{waited}: {last}"))
}

/// Installs the roles that the grant of the plugin needs, as an admin does.
///
/// # Errors
/// If the grant cannot be parsed, or if the API server refuses a document.
pub(crate) async fn grant(cluster: &TestCluster, (plugin, grants): Plugin) -> anyhow::Result<()> {
    let grants = oarlock_wasm::parse_grants(grants)?;
    let access = GrantedAccess::of(grants);
    let documents = install::documents(&manifests_with(&access, PodPolicies::NONE)?)?;
    let name =
        |document: &Value| document.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let of_nodes = documents.into_iter().filter(|one| {
        [plugin, "node-holds"].iter().any(|word| name(one).contains(word)) || name(one) == TASKS_NAMESPACE
    });
    // Each scenario on a shared control plane has its own namespace of tasks.
    let renamed = of_nodes.map(|one| {
        serde_json::from_str(&one.to_string().replace(TASKS_NAMESPACE, &tasks_namespace(&cluster.namespace)))
    });
    let of_nodes: Vec<Value> = renamed.collect::<Result<_, _>>()?;
    ensure!(of_nodes.len() >= 2, "a role and its binding at least: {of_nodes:?}");
    install::install(&cluster.client, &of_nodes, Way::Apply).await
}

/// Allows jobs on nodes in the namespace and starts a host with the plugin.
pub(crate) async fn begin(cluster: &mut TestCluster, plugin: Plugin) -> anyhow::Result<()> {
    set_label(cluster, Some("true")).await?;
    grant(cluster, plugin).await?;
    start(cluster, plugin).await
}

pub(crate) async fn start(cluster: &mut TestCluster, (plugin, grants): Plugin) -> anyhow::Result<()> {
    let mut host = cluster.host_named("host");
    host.plugins = vec![plugin];
    host.grants = grants.to_owned();
    cluster.start(host).await
}

/// Creates a node of this scenario and returns its name.
///
/// # Errors
/// If the API server refuses a request.
pub async fn node(cluster: &TestCluster, suffix: &str, ready: bool) -> anyhow::Result<String> {
    let name = format!("{}-{suffix}", cluster.namespace);
    let reserved = json!([{"key": RESERVED, "effect": "NoSchedule"}]);
    let labels = json!({"scenario": cluster.namespace});
    let body = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {"taints": reserved}});
    nodes(cluster).create(&PostParams::default(), &serde_json::from_value(body)?).await?;
    set_ready(cluster, &name, ready).await?;
    // A real API server taints a new node as not ready.
    change(cluster, &name, json!({"spec": {"taints": reserved}})).await?;
    Ok(name)
}

/// Sets the condition Ready of a node.
///
/// # Errors
/// If the API server refuses a request.
pub async fn set_ready(cluster: &TestCluster, name: &str, ready: bool) -> anyhow::Result<()> {
    let status = if ready { "True" } else { "False" };
    let body = json!({"status": {"conditions": [{"type": "Ready", "status": status, "reason": "Test", "message": "",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    nodes(cluster).patch_status(name, &PatchParams::default(), &Patch::Merge(body)).await?;
    Ok(())
}

pub(crate) async fn change(cluster: &TestCluster, name: &str, patch: Value) -> anyhow::Result<()> {
    nodes(cluster).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// Makes a node unschedulable, or schedulable again.
///
/// # Errors
/// If the API server refuses a request.
pub(crate) async fn cordon(cluster: &TestCluster, name: &str, cordoned: bool) -> anyhow::Result<()> {
    change(cluster, name, json!({"spec": {"unschedulable": cordoned}})).await
}
