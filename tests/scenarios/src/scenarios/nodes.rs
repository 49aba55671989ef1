//! Jobs on nodes: which nodes they take, the marks that they put on nodes, and the marks that are left.

use anyhow::ensure;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams};
use serde_json::{Value, json};

use super::on_nodes::{
    Plugin, RESERVED, begin, change, cordon, create, grant, node, nodes, set_label, set_ready, start,
};
use crate::components::MAINTAIN_GRANTS;
use crate::jobs::Told;
use crate::test_cluster::{TestCluster, patiently};

/// The plugin that maintains nodes.
const MAINTAIN: Plugin = ("maintain", MAINTAIN_GRANTS);
/// The key of the label and the taint that the plugin puts on a node.
const MARK: &str = "example.com/maintenance";
/// The annotation that tells the plugin that the work is done.
const DONE: &str = "example.com/maintained";
/// Returns the spec of a job on these nodes.
fn maintain(targets: &[&String], more: &Value) -> Value {
    let targets: Vec<Value> = targets.iter().map(|name| json!({ "name": name })).collect();
    let mut spec = json!({"action": "Maintain", "targetKind": "Node", "targets": targets});
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    spec
}

/// Marks the work on a node as done or not done, as a user does.
async fn done(cluster: &TestCluster, name: &str, yes: bool) -> anyhow::Result<()> {
    change(cluster, name, json!({"metadata": {"annotations": {DONE: yes.then_some("yes")}}})).await
}

/// Returns the marks on a node: `cordon`, the keys of taints without the reserved one, `label`, and `hold` for each hold.
fn shown(node: &Node) -> Vec<String> {
    let spec = node.spec.clone().unwrap_or_default();
    let cordon = spec.unschedulable.filter(|cordoned| *cordoned).map(|_| "cordon".to_owned());
    let taints = spec
        .taints
        .into_iter()
        .flatten()
        .filter(|taint| taint.key != RESERVED)
        .map(|taint| format!("taint {}", taint.key));
    let label = node.metadata.labels.iter().flatten().filter(|(key, _)| *key == MARK).map(|_| "label".to_owned());
    let holds = node.metadata.annotations.iter().flatten().filter(|(key, _)| key.starts_with("hold.oarlock.dev/"));
    cordon.into_iter().chain(taints).chain(label).chain(holds.map(|_| "hold".to_owned())).collect()
}

async fn until_shown(cluster: &TestCluster, name: &str, wanted: &[&str]) -> anyhow::Result<()> {
    let mut seen = Vec::new();
    let waited = patiently(&format!("{name} shows {wanted:?}"), async || {
        seen = nodes(cluster).get_opt(name).await?.as_ref().map(shown).unwrap_or_default();
        Ok(seen == wanted)
    })
    .await;
    waited.map_err(|waited| anyhow::anyhow!("{waited}; it shows {seen:?}"))
}

/// The marks that the plugin puts on a node.
const HELD: [&str; 4] = ["cordon", "taint example.com/maintenance", "label", "hold"];

async fn until_held(cluster: &TestCluster, name: &str) -> anyhow::Result<()> {
    until_shown(cluster, name, &HELD).await
}

async fn until_clean(cluster: &TestCluster, name: &str) -> anyhow::Result<()> {
    until_shown(cluster, name, &[]).await
}

/// The job holds one node after the other while a user works on it, and leaves nothing on either node.
pub async fn nodes_are_kept_free_one_after_the_other(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let (a, b) = (node(cluster, "a", true).await?, node(cluster, "b", true).await?);
    begin(cluster, MAINTAIN).await?;
    let spec = json!({"action": "Maintain", "targetKind": "Node", "parallelism": 1,
        "selector": {"labelSelector": {"matchLabels": {"scenario": cluster.namespace}}}});
    create(cluster, "m", spec).await?;
    until_held(cluster, &a).await?;
    until_clean(cluster, &b).await?;
    done(cluster, &a, true).await?;
    until_clean(cluster, &a).await?;
    until_held(cluster, &b).await?;
    done(cluster, &b, true).await?;
    let job = cluster.until_progress("m", "Succeeded").await?;
    until_clean(cluster, &b).await?;
    ensure!(
        job.count("succeeded") == 2 && job.data.pointer("/status/selection/kind") == Some(&json!("Node")),
        "{:?}",
        job.data
    );
    Ok(())
}

/// The second of two jobs on one node waits, and names the first job.
pub async fn of_two_jobs_on_one_node_the_second_waits_for_the_first(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let a = node(cluster, "a", true).await?;
    begin(cluster, MAINTAIN).await?;
    create(cluster, "first", maintain(&[&a], &json!({}))).await?;
    until_held(cluster, &a).await?;
    create(cluster, "second", maintain(&[&a], &json!({}))).await?;
    let waits = |job: &DynamicObject| job.data.pointer("/status/waitsFor") == Some(&json!("Other jobs"));
    let job = cluster.until("second", "waiting", waits).await?;
    let (told, first) = (job.condition_message("Reconciling"), format!("{}/first", cluster.namespace));
    ensure!(told.contains(&a) && told.contains(&first), "{told}");
    cluster.delete_job("first").await?;
    cluster.until_gone("first").await?;
    until_held(cluster, &a).await?;
    done(cluster, &a, true).await?;
    cluster.until_progress("second", "Succeeded").await?;
    until_clean(cluster, &a).await
}

/// A missing node fails as not found, and a node that was deleted and created again in flight is another node.
pub async fn a_node_that_is_not_there_or_made_anew_is_not_worked_on(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let a = node(cluster, "a", true).await?;
    let none = format!("{}-none", cluster.namespace);
    begin(cluster, MAINTAIN).await?;
    create(cluster, "m", maintain(&[&none, &a], &json!({}))).await?;
    until_held(cluster, &a).await?;
    cluster.until("m", "not found", |job| job.target(&none) == "Failed/NodeNotFound").await?;
    nodes(cluster).delete(&a, &DeleteParams::default()).await?;
    node(cluster, "a", true).await?;
    cordon(cluster, &a, true).await?;
    let job = cluster.until_progress("m", "Failed").await?;
    ensure!(job.target(&a) == "Failed/NodeGone", "{:?}", job.targets());
    cluster.delete_job("m").await?;
    cluster.until_gone("m").await?;
    until_shown(cluster, &a, &["cordon"]).await
}

/// A cordon that someone else set, before or during the job, stays. The cordon of the job goes.
pub async fn a_cordon_of_somebody_else_stays_on_its_node(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let (before, during, own) =
        (node(cluster, "a", true).await?, node(cluster, "b", true).await?, node(cluster, "c", true).await?);
    cordon(cluster, &before, true).await?;
    begin(cluster, MAINTAIN).await?;
    let all = [&before, &during, &own];
    create(cluster, "m", maintain(&all, &json!({}))).await?;
    for name in all {
        until_held(cluster, name).await?;
    }
    cluster
        .until("m", "begun", |job| job.targets().values().all(|one| one.pointer("/extraInfo/Begun").is_some()))
        .await?;
    cordon(cluster, &during, false).await?;
    let given_up = |node: &Node| {
        let holds = node.metadata.annotations.iter().flatten().filter(|(key, _)| key.starts_with("hold.oarlock.dev/"));
        holds.map(|(_, list)| list).all(|list| !list.contains("cordon"))
    };
    patiently("the host gives up the cordon", async || Ok(given_up(&nodes(cluster).get(&during).await?))).await?;
    cordon(cluster, &during, true).await?;
    for name in all {
        done(cluster, name, true).await?;
    }
    cluster.until_progress("m", "Succeeded").await?;
    until_shown(cluster, &before, &["cordon"]).await?;
    until_shown(cluster, &during, &["cordon"]).await?;
    until_clean(cluster, &own).await?;
    cordon(cluster, &own, true).await?;
    cluster.delete_job("m").await?;
    cluster.until_gone("m").await?;
    until_shown(cluster, &own, &["cordon"]).await
}

/// A deleted job, a job at its deadline and a job without a host leave nothing on a node.
pub async fn a_node_is_let_go_when_its_job_is_deleted_late_or_without_a_host(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let (a, b, c) = (node(cluster, "a", true).await?, node(cluster, "b", true).await?, node(cluster, "c", true).await?);
    cordon(cluster, &b, true).await?;
    begin(cluster, MAINTAIN).await?;
    create(cluster, "deleted", maintain(&[&a], &json!({}))).await?;
    create(cluster, "late", maintain(&[&b], &json!({"activeDeadlineSeconds": 3}))).await?;
    create(cluster, "orphan", maintain(&[&c], &json!({}))).await?;
    for name in [&a, &b, &c] {
        until_held(cluster, name).await?;
    }
    cluster.delete_job("deleted").await?;
    cluster.until_gone("deleted").await?;
    until_clean(cluster, &a).await?;
    let late = cluster.until_progress("late", "Failed").await?;
    ensure!(late.target(&b) == "Failed/DeadlineExceeded", "{:?}", late.targets());
    until_shown(cluster, &b, &["cordon"]).await?;
    cluster.kill_host("host").await?;
    cluster.delete_job("orphan").await?;
    start(cluster, MAINTAIN).await?;
    cluster.until_gone("orphan").await?;
    until_clean(cluster, &c).await
}

/// A job whose plugin was withdrawn while it holds a node can still be deleted.
pub async fn a_node_is_let_go_although_its_plugin_is_gone(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let a = node(cluster, "a", true).await?;
    begin(cluster, MAINTAIN).await?;
    create(cluster, "m", maintain(&[&a], &json!({}))).await?;
    until_held(cluster, &a).await?;
    cluster.kill_host("host").await?;
    cluster.start_host().await?;
    cluster.until("m", "without a plugin", |job| job.condition("ActionAvailable") == "False/NoPlugin").await?;
    cluster.delete_job("m").await?;
    cluster.until_gone("m").await?;
    until_clean(cluster, &a).await
}

/// A69: if a job vanishes while it holds a node and the host runs, the host releases the node.
pub async fn a_node_is_let_go_as_its_job_vanishes(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let (a, b) = (node(cluster, "a", true).await?, node(cluster, "b", true).await?);
    cordon(cluster, &b, true).await?;
    begin(cluster, MAINTAIN).await?;
    create(cluster, "m", maintain(&[&a, &b], &json!({}))).await?;
    until_held(cluster, &a).await?;
    until_held(cluster, &b).await?;
    cluster.vanish("m").await?;
    until_clean(cluster, &a).await?;
    until_shown(cluster, &b, &["cordon"]).await
}

/// A job without its finalizer is gone while it holds a node and no host runs. The next host releases the node once it has listed nodes and jobs.
pub async fn a_cordon_of_a_job_that_vanished_is_taken_off(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let a = node(cluster, "a", true).await?;
    begin(cluster, MAINTAIN).await?;
    create(cluster, "m", maintain(&[&a], &json!({}))).await?;
    until_held(cluster, &a).await?;
    cluster.kill_host("host").await?;
    cluster.delete_job("m").await?;
    cluster.strip("m").await?;
    cluster.until_gone("m").await?;
    start(cluster, MAINTAIN).await?;
    until_clean(cluster, &a).await
}

/// The host removes a hold of a job that never existed, so that exclusive jobs can start. Marks that no plugin may set stay on the node.
pub async fn a_forged_hold_goes_without_what_it_lists(cluster: &mut TestCluster) -> anyhow::Result<()> {
    const TEAM: &str = "node-restriction.kubernetes.io/team";
    let a = node(cluster, "a", true).await?;
    begin(cluster, MAINTAIN).await?;
    let forged = json!([format!("label:{TEAM}"), "taint:node.kubernetes.io/out-of-service:NoExecute"]).to_string();
    let taints = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]);
    change(cluster, &a, json!({"metadata": {"labels": {TEAM: "a"}, "annotations": {"hold.oarlock.dev/never": forged}}, "spec": {"taints": taints}}))
        .await?;
    create(cluster, "m", maintain(&[&a], &json!({}))).await?;
    cluster.pass(std::time::Duration::from_secs(25 * 60)).await;
    until_shown(
        cluster,
        &a,
        &["cordon", "taint node.kubernetes.io/out-of-service", "taint example.com/maintenance", "label", "hold"],
    )
    .await?;
    let labels = nodes(cluster).get(&a).await?.metadata.labels.unwrap_or_default();
    ensure!(labels.get(TEAM).is_some_and(|team| team == "a"), "{labels:?}");
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), "default");
    patiently("the host says what it left", async || {
        let all = events.list(&ListParams::default()).await?;
        Ok(all.iter().any(|event| event.reason.as_deref() == Some("HoldRefused")))
    })
    .await?;
    cluster.delete_job("m").await?;
    cluster.until_gone("m").await?;
    until_shown(cluster, &a, &["taint node.kubernetes.io/out-of-service"]).await
}

/// A plugin for nodes does nothing to pods.
pub async fn a_plugin_for_nodes_takes_no_pods(cluster: &mut TestCluster) -> anyhow::Result<()> {
    cluster.seedbed.bare_pod("p").await?;
    begin(cluster, MAINTAIN).await?;
    create(cluster, "m", json!({"action": "Maintain", "targets": [{"name": "p"}]})).await?;
    let job = cluster.until("m", "refused", |job| job.condition("Valid") == "False/TargetKindNotSupported").await?;
    let told = job.condition_message("Valid");
    ensure!(told == "plugin maintain works on Nodes, and spec.targetKind is Pod", "{told}");
    ensure!(job.count("pending") == 1 && job.condition("Stalled").starts_with("True/"), "{:?}", job.data);
    cluster.delete_job("m").await?;
    cluster.until_gone("m").await?;
    cluster.until_nothing_is_left().await
}

/// Without its label a namespace accepts no jobs on nodes, and a job from before the policy waits.
pub async fn a_namespace_without_the_label_has_no_jobs_on_nodes(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let a = node(cluster, "a", true).await?;
    grant(cluster, MAINTAIN).await?;
    start(cluster, MAINTAIN).await?;
    let refused = cluster.create_job("m", maintain(&[&a], &json!({}))).await;
    let words = refused.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(
        words.contains("oarlock.dev/node-operations=true") && words.contains("plugin that works on Nodes"),
        "{words}"
    );
    cluster.lift_admission().await?;
    create(cluster, "m", maintain(&[&a], &json!({}))).await?;
    let job = cluster.until("m", "refused", |job| job.condition("Valid") == "False/NamespaceNotAllowed").await?;
    let told = job.condition_message("Valid");
    ensure!(told.contains("oarlock.dev/node-operations=true") && told.contains(&cluster.namespace), "{told}");
    until_clean(cluster, &a).await?;
    set_label(cluster, Some("true")).await?;
    until_held(cluster, &a).await?;
    cluster.delete_job("m").await?;
    cluster.until_gone("m").await?;
    cluster.restore_admission().await?;
    until_clean(cluster, &a).await
}

/// If the label is removed while a target is in flight, that target goes on, and the next target waits for the label.
pub async fn a_label_that_is_taken_off_in_flight_stops_starts_and_fails_nothing(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let (a, b) = (node(cluster, "a", true).await?, node(cluster, "b", true).await?);
    begin(cluster, MAINTAIN).await?;
    create(cluster, "m", maintain(&[&a, &b], &json!({"parallelism": 1}))).await?;
    until_held(cluster, &a).await?;
    set_label(cluster, None).await?;
    cluster.until("m", "told", |job| job.condition("Valid") == "False/NamespaceNotAllowed").await?;
    cluster.edit_job("m", json!({"paused": true})).await?;
    cluster.until("m", "paused", |job| job.condition("Paused") == "True/PausedBySpec").await?;
    cluster.edit_job("m", json!({"paused": false})).await?;
    done(cluster, &a, true).await?;
    let job = cluster.until("m", "half done", |job| job.count("succeeded") == 1).await?;
    ensure!(job.target(&b) == "Pending", "{:?}", job.targets());
    until_clean(cluster, &a).await?;
    until_clean(cluster, &b).await?;
    set_label(cluster, Some("true")).await?;
    until_held(cluster, &b).await?;
    done(cluster, &b, true).await?;
    cluster.until_progress("m", "Succeeded").await?;
    until_clean(cluster, &b).await
}

/// A node that is not Ready comes first, and no other node is in work beside it.
pub async fn a_node_that_is_not_ready_is_worked_on_before_the_others(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let (a, b, c) =
        (node(cluster, "a", true).await?, node(cluster, "b", true).await?, node(cluster, "c", false).await?);
    begin(cluster, MAINTAIN).await?;
    create(cluster, "m", maintain(&[&a, &b, &c], &json!({"parallelism": 2, "maxUnavailable": 1}))).await?;
    until_held(cluster, &c).await?;
    cluster.pass(std::time::Duration::from_secs(60)).await;
    let job = cluster.jobs().get("m").await?;
    ensure!(job.count("processing") == 1 && job.count("pending") == 2, "{:?}", job.targets());
    set_ready(cluster, &c, true).await?;
    for name in [&c, &a, &b] {
        until_held(cluster, name).await?;
        done(cluster, name, true).await?;
        until_clean(cluster, name).await?;
    }
    cluster.until_progress("m", "Succeeded").await.map(drop)
}
