//! Selectors: a job keeps the targets that its selector found at the start.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use oarlock_sim::world::Effect;
use serde_json::{Value, json};

use super::{SETTLED, all_replaced, identities, names, settled, settled_deployment};
use crate::jobs::Told;
use crate::test_cluster::TestCluster;

/// Returns the spec of a Replace job with a selector.
fn select(selector: &Value, partition: usize) -> Value {
    json!({"action": "Replace", "selector": selector, "partition": partition})
}

/// A7: a selected pod that is created again is no target, and neither is a pod that gets the label later.
pub async fn what_a_selector_found_is_frozen_with_its_uids(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let set = cluster.seedbed.stateful_set("web", 2).await?;
    let pods = settled(cluster, &set, "web").await?;
    cluster.seedbed.bare_pod("late").await?;
    cluster.start_host().await?;
    cluster.create_job("s", select(&json!({"labelSelector": {"matchLabels": {"app": "web"}}}), 0)).await?;
    let job = cluster.until("s", "its targets", |job| job.count("pending") == 2).await?;
    // Wait before the kill: a killed host never sends its remaining events.
    cluster.until_told("Selected", 1).await?;
    let uids: BTreeMap<String, Value> = job
        .targets()
        .into_iter()
        .map(|(name, target)| (name, target.get("uid").cloned().unwrap_or_default()))
        .collect();
    ensure!(pods.iter().all(|(name, uid)| uids.get(name) == Some(&json!(uid))), "{uids:?}");
    ensure!(job.data.pointer("/status/selection/source") == Some(&json!("Selector")), "{:?}", job.data);
    let label = Patch::Merge(json!({"metadata": {"labels": {"app": "web"}}}));
    cluster.pods().patch("late", &PatchParams::default(), &label).await?;
    let name = names(pods.get(..1).unwrap_or_default()).join("");
    let namesake = cluster.world.recreate_same_name(&cluster.namespace, &name).await?;
    cluster.restart_host().await?;
    cluster.edit_job("s", json!({"partition": 3})).await?;
    let job = cluster.until_progress("s", "Failed").await?;
    ensure!(job.target(&name) == "Failed/PodNotFound", "{:?}", job.data);
    ensure!(job.count("succeeded") == 1 && job.targets().len() == 2, "{:?}", job.data);
    ensure!(cluster.pods().get(&name).await?.metadata.uid == Some(namesake), "the namesake stays");
    ensure!(cluster.pods().get("late").await?.metadata.deletion_timestamp.is_none(), "who came late is no target");
    let entries = cluster.world.ledger().entries();
    let evicted = entries.iter().filter(|entry| entry.effect == Effect::PodEvicted).count();
    ensure!(evicted == 1, "{evicted} were evicted");
    cluster.until_nothing_is_left().await
}

/// A68: if the spec names a pod by its UID and the pod is created again before its start, the new pod is not the target.
pub async fn a_pod_that_was_made_anew_is_not_the_one_that_the_spec_names(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let set = cluster.seedbed.stateful_set("web", 2).await?;
    let pods = settled(cluster, &set, "web").await?;
    cluster.start_host().await?;
    let targets: Vec<Value> = pods.iter().map(|(name, uid)| json!({"name": name, "uid": uid})).collect();
    cluster.create_job("u", json!({"action": "Replace", "targets": targets, "partition": 0})).await?;
    cluster.until("u", "its targets", |job| job.count("pending") == 2).await?;
    let (name, uid) = pods.first().context("a pod")?;
    let namesake = cluster.world.recreate_same_name(&cluster.namespace, name).await?;
    cluster.restart_host().await?;
    cluster.edit_job("u", json!({"partition": 2})).await?;
    let job = cluster.until_progress("u", "Failed").await?;
    ensure!(job.target(name) == "Failed/PodNotFound" && job.count("succeeded") == 1, "{:?}", job.data);
    let targets = job.targets();
    let told = targets.get(name).and_then(|target| target.pointer("/error/message")?.as_str()).unwrap_or_default();
    ensure!(told.contains(uid) && told.contains(&namesake), "{told}");
    ensure!(cluster.pods().get(name).await?.metadata.uid == Some(namesake), "the namesake stays");
    all_replaced(cluster, pods.get(1..).unwrap_or_default()).await
}

/// A selector finds 300 pods of a Deployment once, although the host is killed before and after their list is stored.
pub async fn three_hundred_pods_of_a_deployment_are_selected_once(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let mut pods = settled_deployment(cluster, 300).await?;
    pods.sort();
    cluster.start_host().await?;
    let owner = json!({"ownerRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}});
    cluster.create_job("many", select(&owner, 10)).await?;
    cluster.restart_host().await?;
    let job = cluster.until("many", "some way on", |job| job.count("succeeded") == 10).await?;
    ensure!(job.count("pending") == 290, "{:?}", job.data);
    let status = job.data.get("status").cloned().unwrap_or_default();
    ensure!(status.get("records") == Some(&json!({"count": 2, "size": 250})), "{status}");
    let frozen = status.get("selection").cloned().unwrap_or_default();
    cluster.restart_host().await?;
    cluster.edit_job("many", json!({"partition": 20})).await?;
    let job = cluster.until("many", "further on", |job| job.count("succeeded") == 20).await?;
    ensure!(job.data.pointer("/status/selection") == Some(&frozen), "{:?}", job.data);
    ensure!(job.count("failed") == 0 && job.count("pending") == 280, "new pods are no targets: {:?}", job.data);
    cluster.delete_job("many").await?;
    cluster.until_gone("many").await?;
    all_replaced(cluster, pods.get(..20).unwrap_or_default()).await
}

/// A job whose selector finds nothing says so, and goes on once the selector finds a pod.
pub async fn a_selector_that_finds_nothing_waits_for_pods(cluster: &mut TestCluster) -> anyhow::Result<()> {
    cluster.start_host().await?;
    cluster.create_job("s", select(&json!({"labelSelector": {"matchLabels": {"app": "db"}}}), 1)).await?;
    let job = cluster.until("s", "none", |job| job.condition("Valid") == "False/NoTargetsMatched").await?;
    ensure!(job.targets().is_empty(), "{:?}", job.data);
    let set = cluster.seedbed.stateful_set("db", 1).await?;
    cluster.world.settled(&set, SETTLED).await?;
    let pods = identities(cluster, &["db-0".to_owned()]).await?;
    let job = cluster.until_progress("s", "Succeeded").await?;
    let time = |pointer: &str| -> anyhow::Result<Timestamp> {
        Ok(serde_json::from_value(job.data.pointer(pointer).cloned().unwrap_or_default())?)
    };
    ensure!(time("/status/selection/time")? >= time("/status/startTime")?, "{:?}", job.data);
    all_replaced(cluster, &pods).await
}
