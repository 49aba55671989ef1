//! Selectors: what they found when the job began is what the job is about, whatever comes later.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use oarlock_sim::world::Effect;
use serde_json::{Value, json};

use super::{SETTLED, all_replaced, identities, names, settled, settled_deployment};
use crate::jobs::Told;
use crate::rig::Rig;

/// A Replace job for what a selector finds.
fn select(selector: &Value, partition: usize) -> Value {
    json!({"action": "Replace", "selector": selector, "partition": partition})
}

/// A7: one pod is made anew after it was selected, and another one gets the label.
pub async fn what_a_selector_found_is_frozen_with_its_uids(rig: &mut Rig) -> anyhow::Result<()> {
    let set = rig.seedbed.stateful_set("web", 2).await?;
    let pods = settled(rig, &set, "web").await?;
    rig.seedbed.bare_pod("late").await?;
    rig.start_host().await?;
    rig.create_job("s", select(&json!({"labelSelector": {"matchLabels": {"app": "web"}}}), 0)).await?;
    let job = rig.until("s", "its targets", |job| job.count("pending") == 2).await?;
    // Before the host is killed: what it had not told by then, nobody tells.
    rig.until_told("Selected", 1).await?;
    let uids: BTreeMap<String, Value> = job
        .targets()
        .into_iter()
        .map(|(name, target)| (name, target.get("uid").cloned().unwrap_or_default()))
        .collect();
    ensure!(pods.iter().all(|(name, uid)| uids.get(name) == Some(&json!(uid))), "{uids:?}");
    ensure!(job.data.pointer("/status/selection/source") == Some(&json!("Selector")), "{:?}", job.data);
    let label = Patch::Merge(json!({"metadata": {"labels": {"app": "web"}}}));
    rig.pods().patch("late", &PatchParams::default(), &label).await?;
    let name = names(pods.get(..1).unwrap_or_default()).join("");
    let namesake = rig.world.recreate_same_name(&rig.namespace, &name).await?;
    rig.restart_host().await?;
    rig.edit_job("s", json!({"partition": 3})).await?;
    let job = rig.until_progress("s", "Failed").await?;
    ensure!(job.target(&name) == "Failed/PodNotFound", "{:?}", job.data);
    ensure!(job.count("succeeded") == 1 && job.targets().len() == 2, "{:?}", job.data);
    ensure!(rig.pods().get(&name).await?.metadata.uid == Some(namesake), "the namesake stays");
    ensure!(rig.pods().get("late").await?.metadata.deletion_timestamp.is_none(), "who came late is no target");
    let entries = rig.world.ledger().entries();
    let evicted = entries.iter().filter(|entry| entry.effect == Effect::PodEvicted).count();
    ensure!(evicted == 1, "{evicted} were evicted");
    rig.until_nothing_is_left().await
}

/// A68: of two pods that the spec names by their UIDs one is made anew before its turn.
pub async fn a_pod_that_was_made_anew_is_not_the_one_that_the_spec_names(rig: &mut Rig) -> anyhow::Result<()> {
    let set = rig.seedbed.stateful_set("web", 2).await?;
    let pods = settled(rig, &set, "web").await?;
    rig.start_host().await?;
    let targets: Vec<Value> = pods.iter().map(|(name, uid)| json!({"name": name, "uid": uid})).collect();
    rig.create_job("u", json!({"action": "Replace", "targets": targets, "partition": 0})).await?;
    rig.until("u", "its targets", |job| job.count("pending") == 2).await?;
    let (name, uid) = pods.first().context("a pod")?;
    let namesake = rig.world.recreate_same_name(&rig.namespace, name).await?;
    rig.restart_host().await?;
    rig.edit_job("u", json!({"partition": 2})).await?;
    let job = rig.until_progress("u", "Failed").await?;
    ensure!(job.target(name) == "Failed/PodNotFound" && job.count("succeeded") == 1, "{:?}", job.data);
    let targets = job.targets();
    let told = targets.get(name).and_then(|target| target.pointer("/error/message")?.as_str()).unwrap_or_default();
    ensure!(told.contains(uid) && told.contains(&namesake), "{told}");
    ensure!(rig.pods().get(name).await?.metadata.uid == Some(namesake), "the namesake stays");
    all_replaced(rig, pods.get(1..).unwrap_or_default()).await
}

/// The pods of a Deployment, more than a status holds, and the host is killed before and after their list is the job's.
pub async fn three_hundred_pods_of_a_deployment_are_selected_once(rig: &mut Rig) -> anyhow::Result<()> {
    let mut pods = settled_deployment(rig, 300).await?;
    pods.sort();
    rig.start_host().await?;
    let owner = json!({"ownerRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}});
    rig.create_job("many", select(&owner, 10)).await?;
    rig.restart_host().await?;
    let job = rig.until("many", "some way on", |job| job.count("succeeded") == 10).await?;
    ensure!(job.count("pending") == 290, "{:?}", job.data);
    let status = job.data.get("status").cloned().unwrap_or_default();
    ensure!(status.get("records") == Some(&json!({"count": 2, "size": 250})), "{status}");
    let frozen = status.get("selection").cloned().unwrap_or_default();
    rig.restart_host().await?;
    rig.edit_job("many", json!({"partition": 20})).await?;
    let job = rig.until("many", "further on", |job| job.count("succeeded") == 20).await?;
    ensure!(job.data.pointer("/status/selection") == Some(&frozen), "{:?}", job.data);
    ensure!(job.count("failed") == 0 && job.count("pending") == 280, "new pods are no targets: {:?}", job.data);
    rig.delete_job("many").await?;
    rig.until_gone("many").await?;
    all_replaced(rig, pods.get(..20).unwrap_or_default()).await
}

/// A selector that finds nothing says so, and goes on once it finds something.
pub async fn a_selector_that_finds_nothing_waits_for_pods(rig: &mut Rig) -> anyhow::Result<()> {
    rig.start_host().await?;
    rig.create_job("s", select(&json!({"labelSelector": {"matchLabels": {"app": "db"}}}), 1)).await?;
    let job = rig.until("s", "none", |job| job.condition("Valid") == "False/NoTargetsMatched").await?;
    ensure!(job.targets().is_empty(), "{:?}", job.data);
    let set = rig.seedbed.stateful_set("db", 1).await?;
    rig.world.settled(&set, SETTLED).await?;
    let pods = identities(rig, &["db-0".to_owned()]).await?;
    let job = rig.until_progress("s", "Succeeded").await?;
    let time = |pointer: &str| -> anyhow::Result<Timestamp> {
        Ok(serde_json::from_value(job.data.pointer(pointer).cloned().unwrap_or_default())?)
    };
    ensure!(time("/status/selection/time")? >= time("/status/startTime")?, "{:?}", job.data);
    all_replaced(rig, &pods).await
}
