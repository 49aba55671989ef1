//! Jobs on nodes: which nodes they take, what they put on them, and what is left of that.

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
use crate::rig::{Rig, patiently};

/// The plugin that keeps nodes free.
const MAINTAIN: Plugin = ("maintain", MAINTAIN_GRANTS);
/// What the plugin puts on a node: this label, and a taint of this key.
const MARK: &str = "example.com/maintenance";
/// The annotation by which the plugin learns that the work is done.
const DONE: &str = "example.com/maintained";
/// A job on these nodes.
fn maintain(targets: &[&String], more: &Value) -> Value {
    let targets: Vec<Value> = targets.iter().map(|name| json!({ "name": name })).collect();
    let mut spec = json!({"action": "Maintain", "targetKind": "Node", "targets": targets});
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    spec
}

/// Somebody says that the work on a node is done, or begins anew.
async fn done(rig: &Rig, name: &str, yes: bool) -> anyhow::Result<()> {
    change(rig, name, json!({"metadata": {"annotations": {DONE: yes.then_some("yes")}}})).await
}

/// What is on a node: `cordon`, the keys of taints but the reserved one, the label, and how many holds.
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

async fn until_shown(rig: &Rig, name: &str, wanted: &[&str]) -> anyhow::Result<()> {
    let mut seen = Vec::new();
    let waited = patiently(&format!("{name} shows {wanted:?}"), async || {
        seen = nodes(rig).get_opt(name).await?.as_ref().map(shown).unwrap_or_default();
        Ok(seen == wanted)
    })
    .await;
    waited.map_err(|waited| anyhow::anyhow!("{waited}; it shows {seen:?}"))
}

/// What the plugin puts on a node.
const HELD: [&str; 4] = ["cordon", "taint example.com/maintenance", "label", "hold"];

async fn until_held(rig: &Rig, name: &str) -> anyhow::Result<()> {
    until_shown(rig, name, &HELD).await
}

async fn until_clean(rig: &Rig, name: &str) -> anyhow::Result<()> {
    until_shown(rig, name, &[]).await
}

/// A node is held while somebody works on it, one after the other; nothing is left on either.
pub async fn nodes_are_kept_free_one_after_the_other(rig: &mut Rig) -> anyhow::Result<()> {
    let (a, b) = (node(rig, "a", true).await?, node(rig, "b", true).await?);
    begin(rig, MAINTAIN).await?;
    let spec = json!({"action": "Maintain", "targetKind": "Node", "parallelism": 1,
        "selector": {"labelSelector": {"matchLabels": {"scenario": rig.namespace}}}});
    create(rig, "m", spec).await?;
    until_held(rig, &a).await?;
    until_clean(rig, &b).await?;
    done(rig, &a, true).await?;
    until_clean(rig, &a).await?;
    until_held(rig, &b).await?;
    done(rig, &b, true).await?;
    let job = rig.until_progress("m", "Succeeded").await?;
    until_clean(rig, &b).await?;
    ensure!(
        job.count("succeeded") == 2 && job.data.pointer("/status/selection/kind") == Some(&json!("Node")),
        "{:?}",
        job.data
    );
    Ok(())
}

/// The second of two jobs on one node waits, and says for whom.
pub async fn of_two_jobs_on_one_node_the_second_waits_for_the_first(rig: &mut Rig) -> anyhow::Result<()> {
    let a = node(rig, "a", true).await?;
    begin(rig, MAINTAIN).await?;
    create(rig, "first", maintain(&[&a], &json!({}))).await?;
    until_held(rig, &a).await?;
    create(rig, "second", maintain(&[&a], &json!({}))).await?;
    let waits = |job: &DynamicObject| job.data.pointer("/status/waitsFor") == Some(&json!("Other jobs"));
    let job = rig.until("second", "waiting", waits).await?;
    let (told, first) = (job.condition_message("Reconciling"), format!("{}/first", rig.namespace));
    ensure!(told.contains(&a) && told.contains(&first), "{told}");
    rig.delete_job("first").await?;
    rig.until_gone("first").await?;
    until_held(rig, &a).await?;
    done(rig, &a, true).await?;
    rig.until_progress("second", "Succeeded").await?;
    until_clean(rig, &a).await
}

/// A node that is not there is not found, and one that is made anew in flight is another one.
pub async fn a_node_that_is_not_there_or_made_anew_is_not_worked_on(rig: &mut Rig) -> anyhow::Result<()> {
    let a = node(rig, "a", true).await?;
    let none = format!("{}-none", rig.namespace);
    begin(rig, MAINTAIN).await?;
    create(rig, "m", maintain(&[&none, &a], &json!({}))).await?;
    until_held(rig, &a).await?;
    rig.until("m", "not found", |job| job.target(&none) == "Failed/NodeNotFound").await?;
    nodes(rig).delete(&a, &DeleteParams::default()).await?;
    node(rig, "a", true).await?;
    cordon(rig, &a, true).await?;
    let job = rig.until_progress("m", "Failed").await?;
    ensure!(job.target(&a) == "Failed/NodeGone", "{:?}", job.targets());
    rig.delete_job("m").await?;
    rig.until_gone("m").await?;
    until_shown(rig, &a, &["cordon"]).await
}

/// A cordon that somebody else put on, before or during the job, stays; one that is the job's goes.
pub async fn a_cordon_of_somebody_else_stays_on_its_node(rig: &mut Rig) -> anyhow::Result<()> {
    let (before, during, own) = (node(rig, "a", true).await?, node(rig, "b", true).await?, node(rig, "c", true).await?);
    cordon(rig, &before, true).await?;
    begin(rig, MAINTAIN).await?;
    let all = [&before, &during, &own];
    create(rig, "m", maintain(&all, &json!({}))).await?;
    for name in all {
        until_held(rig, name).await?;
    }
    rig.until("m", "begun", |job| job.targets().values().all(|one| one.pointer("/extraInfo/Begun").is_some())).await?;
    cordon(rig, &during, false).await?;
    let given_up = |node: &Node| {
        let holds = node.metadata.annotations.iter().flatten().filter(|(key, _)| key.starts_with("hold.oarlock.dev/"));
        holds.map(|(_, list)| list).all(|list| !list.contains("cordon"))
    };
    patiently("the host gives up the cordon", async || Ok(given_up(&nodes(rig).get(&during).await?))).await?;
    cordon(rig, &during, true).await?;
    for name in all {
        done(rig, name, true).await?;
    }
    rig.until_progress("m", "Succeeded").await?;
    until_shown(rig, &before, &["cordon"]).await?;
    until_shown(rig, &during, &["cordon"]).await?;
    until_clean(rig, &own).await?;
    cordon(rig, &own, true).await?;
    rig.delete_job("m").await?;
    rig.until_gone("m").await?;
    until_shown(rig, &own, &["cordon"]).await
}

/// Deletion, a deadline, and a host that is killed leave nothing on a node.
pub async fn a_node_is_let_go_when_its_job_is_deleted_late_or_without_a_host(rig: &mut Rig) -> anyhow::Result<()> {
    let (a, b, c) = (node(rig, "a", true).await?, node(rig, "b", true).await?, node(rig, "c", true).await?);
    cordon(rig, &b, true).await?;
    begin(rig, MAINTAIN).await?;
    create(rig, "deleted", maintain(&[&a], &json!({}))).await?;
    create(rig, "late", maintain(&[&b], &json!({"activeDeadlineSeconds": 3}))).await?;
    create(rig, "orphan", maintain(&[&c], &json!({}))).await?;
    for name in [&a, &b, &c] {
        until_held(rig, name).await?;
    }
    rig.delete_job("deleted").await?;
    rig.until_gone("deleted").await?;
    until_clean(rig, &a).await?;
    let late = rig.until_progress("late", "Failed").await?;
    ensure!(late.target(&b) == "Failed/DeadlineExceeded", "{:?}", late.targets());
    until_shown(rig, &b, &["cordon"]).await?;
    rig.kill_host("host").await?;
    rig.delete_job("orphan").await?;
    start(rig, MAINTAIN).await?;
    rig.until_gone("orphan").await?;
    until_clean(rig, &c).await
}

/// The plugin is withdrawn while its target is held: the job can be deleted all the same.
pub async fn a_node_is_let_go_although_its_plugin_is_gone(rig: &mut Rig) -> anyhow::Result<()> {
    let a = node(rig, "a", true).await?;
    begin(rig, MAINTAIN).await?;
    create(rig, "m", maintain(&[&a], &json!({}))).await?;
    until_held(rig, &a).await?;
    rig.kill_host("host").await?;
    rig.start_host().await?;
    rig.until("m", "without a plugin", |job| job.condition("ActionAvailable") == "False/NoPlugin").await?;
    rig.delete_job("m").await?;
    rig.until_gone("m").await?;
    until_clean(rig, &a).await
}

/// A69: a job vanishes while it holds a node, and the host looks on.
pub async fn a_node_is_let_go_as_its_job_vanishes(rig: &mut Rig) -> anyhow::Result<()> {
    let (a, b) = (node(rig, "a", true).await?, node(rig, "b", true).await?);
    cordon(rig, &b, true).await?;
    begin(rig, MAINTAIN).await?;
    create(rig, "m", maintain(&[&a, &b], &json!({}))).await?;
    until_held(rig, &a).await?;
    until_held(rig, &b).await?;
    rig.vanish("m").await?;
    until_clean(rig, &a).await?;
    until_shown(rig, &b, &["cordon"]).await
}

/// A job whose finalizer was taken off is gone while it holds a node and no host runs: the next one lets that go once it has
/// listed nodes and jobs.
pub async fn a_cordon_of_a_job_that_vanished_is_taken_off(rig: &mut Rig) -> anyhow::Result<()> {
    let a = node(rig, "a", true).await?;
    begin(rig, MAINTAIN).await?;
    create(rig, "m", maintain(&[&a], &json!({}))).await?;
    until_held(rig, &a).await?;
    rig.kill_host("host").await?;
    rig.delete_job("m").await?;
    rig.strip("m").await?;
    rig.until_gone("m").await?;
    start(rig, MAINTAIN).await?;
    until_clean(rig, &a).await
}

/// A hold of a job that never was goes, so that exclusive jobs may come. What no plugin may put on a node stays on it.
pub async fn a_forged_hold_goes_without_what_it_lists(rig: &mut Rig) -> anyhow::Result<()> {
    const TEAM: &str = "node-restriction.kubernetes.io/team";
    let a = node(rig, "a", true).await?;
    begin(rig, MAINTAIN).await?;
    let forged = json!([format!("label:{TEAM}"), "taint:node.kubernetes.io/out-of-service:NoExecute"]).to_string();
    let taints = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]);
    change(rig, &a, json!({"metadata": {"labels": {TEAM: "a"}, "annotations": {"hold.oarlock.dev/never": forged}}, "spec": {"taints": taints}}))
        .await?;
    create(rig, "m", maintain(&[&a], &json!({}))).await?;
    rig.pass(std::time::Duration::from_secs(25 * 60)).await;
    until_shown(
        rig,
        &a,
        &["cordon", "taint node.kubernetes.io/out-of-service", "taint example.com/maintenance", "label", "hold"],
    )
    .await?;
    let labels = nodes(rig).get(&a).await?.metadata.labels.unwrap_or_default();
    ensure!(labels.get(TEAM).is_some_and(|team| team == "a"), "{labels:?}");
    let events: Api<Event> = Api::namespaced(rig.client.clone(), "default");
    patiently("the host says what it left", async || {
        let all = events.list(&ListParams::default()).await?;
        Ok(all.iter().any(|event| event.reason.as_deref() == Some("HoldRefused")))
    })
    .await?;
    rig.delete_job("m").await?;
    rig.until_gone("m").await?;
    until_shown(rig, &a, &["taint node.kubernetes.io/out-of-service"]).await
}

/// A plugin for nodes does nothing to pods.
pub async fn a_plugin_for_nodes_takes_no_pods(rig: &mut Rig) -> anyhow::Result<()> {
    rig.seedbed.bare_pod("p").await?;
    begin(rig, MAINTAIN).await?;
    create(rig, "m", json!({"action": "Maintain", "targets": [{"name": "p"}]})).await?;
    let job = rig.until("m", "refused", |job| job.condition("Valid") == "False/TargetKindNotSupported").await?;
    let told = job.condition_message("Valid");
    ensure!(told == "plugin maintain works on Nodes, and spec.targetKind is Pod", "{told}");
    ensure!(job.count("pending") == 1 && job.condition("Stalled").starts_with("True/"), "{:?}", job.data);
    rig.delete_job("m").await?;
    rig.until_gone("m").await?;
    rig.until_nothing_is_left().await
}

/// Without its label a namespace has no jobs on nodes, and one that slipped in waits.
pub async fn a_namespace_without_the_label_has_no_jobs_on_nodes(rig: &mut Rig) -> anyhow::Result<()> {
    let a = node(rig, "a", true).await?;
    grant(rig, MAINTAIN).await?;
    start(rig, MAINTAIN).await?;
    let refused = rig.create_job("m", maintain(&[&a], &json!({}))).await;
    let words = refused.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(
        words.contains("oarlock.dev/node-operations=true") && words.contains("plugin that works on Nodes"),
        "{words}"
    );
    rig.lift_admission().await?;
    create(rig, "m", maintain(&[&a], &json!({}))).await?;
    let job = rig.until("m", "refused", |job| job.condition("Valid") == "False/NamespaceNotAllowed").await?;
    let told = job.condition_message("Valid");
    ensure!(told.contains("oarlock.dev/node-operations=true") && told.contains(&rig.namespace), "{told}");
    until_clean(rig, &a).await?;
    set_label(rig, Some("true")).await?;
    until_held(rig, &a).await?;
    rig.delete_job("m").await?;
    rig.until_gone("m").await?;
    rig.restore_admission().await?;
    until_clean(rig, &a).await
}

/// The label is taken off while a target is in flight: that goes on, and the next one waits for the label.
pub async fn a_label_that_is_taken_off_in_flight_stops_starts_and_fails_nothing(rig: &mut Rig) -> anyhow::Result<()> {
    let (a, b) = (node(rig, "a", true).await?, node(rig, "b", true).await?);
    begin(rig, MAINTAIN).await?;
    create(rig, "m", maintain(&[&a, &b], &json!({"parallelism": 1}))).await?;
    until_held(rig, &a).await?;
    set_label(rig, None).await?;
    rig.until("m", "told", |job| job.condition("Valid") == "False/NamespaceNotAllowed").await?;
    rig.edit_job("m", json!({"paused": true})).await?;
    rig.until("m", "paused", |job| job.condition("Paused") == "True/PausedBySpec").await?;
    rig.edit_job("m", json!({"paused": false})).await?;
    done(rig, &a, true).await?;
    let job = rig.until("m", "half done", |job| job.count("succeeded") == 1).await?;
    ensure!(job.target(&b) == "Pending", "{:?}", job.targets());
    until_clean(rig, &a).await?;
    until_clean(rig, &b).await?;
    set_label(rig, Some("true")).await?;
    until_held(rig, &b).await?;
    done(rig, &b, true).await?;
    rig.until_progress("m", "Succeeded").await?;
    until_clean(rig, &b).await
}

/// Of nodes of which one is not Ready, that one is worked on first, and no other beside it.
pub async fn a_node_that_is_not_ready_is_worked_on_before_the_others(rig: &mut Rig) -> anyhow::Result<()> {
    let (a, b, c) = (node(rig, "a", true).await?, node(rig, "b", true).await?, node(rig, "c", false).await?);
    begin(rig, MAINTAIN).await?;
    create(rig, "m", maintain(&[&a, &b, &c], &json!({"parallelism": 2, "maxUnavailable": 1}))).await?;
    until_held(rig, &c).await?;
    rig.pass(std::time::Duration::from_secs(60)).await;
    let job = rig.jobs().get("m").await?;
    ensure!(job.count("processing") == 1 && job.count("pending") == 2, "{:?}", job.targets());
    set_ready(rig, &c, true).await?;
    for name in [&c, &a, &b] {
        until_held(rig, name).await?;
        done(rig, name, true).await?;
        until_clean(rig, name).await?;
    }
    rig.until_progress("m", "Succeeded").await.map(drop)
}
