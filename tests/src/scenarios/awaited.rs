//! What a target in flight waits for: it is said while it waits, and where its time is over.

use std::time::Duration;

use anyhow::ensure;
use kube::api::DynamicObject;
use oarlock_sim::world::{Pause, Scope};
use serde_json::{Value, json};

use super::drains::workload;
use super::lifecycle::{restart, start};
use super::on_nodes::{cordon, node};
use super::{SETTLED, names, settled};
use crate::jobs::{Told, replace};
use crate::rig::Rig;

fn waits_for(job: &DynamicObject) -> &str {
    job.data.pointer("/status/waitsFor").and_then(Value::as_str).unwrap_or_default()
}

/// The message of the error of the only target.
fn error(job: &DynamicObject) -> &str {
    job.data.pointer("/status/targetDetails/0/error/message").and_then(Value::as_str).unwrap_or_default()
}

/// The new pod of a target finds no node: the job names it, with the scheduler's words, and so does the error at the deadline.
pub async fn a_replacement_that_finds_no_node_names_its_pod_and_the_words_of_the_scheduler(
    rig: &mut Rig,
) -> anyhow::Result<()> {
    let node = node(rig, "a", true).await?;
    let set = workload(rig, "web", 1).await?;
    let pods = settled(rig, &set, "web").await?;
    cordon(rig, &node, true).await?;
    rig.start_host().await?;
    let spec = replace(&names(&pods), json!({"activeDeadlineSeconds": 30}));
    rig.create_job("r", spec).await?;
    let job = rig.until("r", "its new pod is named", |job| waits_for(job) == "NewPod").await?;
    let told = job.condition_message("Reconciling");
    ensure!(told.contains("pod web-") && told.contains("has no node: Unschedulable: 0/"), "{told}");
    let job = rig.until_progress("r", "Failed").await?;
    let told = error(&job);
    ensure!(told.starts_with("deadline of 30 s exceeded (NewPod: pod web-"), "{told}");
    ensure!(told.contains("has no node: Unschedulable"), "{told}");
    Ok(())
}

/// The set of a target is scaled down, and makes no new pod: the job says so.
pub async fn a_replacement_whose_set_is_scaled_down_says_that_no_pod_has_come(rig: &mut Rig) -> anyhow::Result<()> {
    let set = rig.seedbed.replica_set("web", 3).await?;
    let pods = settled(rig, &set, "web").await?;
    // A pod that was made in the second in which the job began might be the new one.
    rig.pass(Duration::from_secs(3)).await;
    rig.start_host().await?;
    let target = names(pods.get(..1).unwrap_or_default());
    rig.world.hold(Pause::Creation, Scope::World);
    rig.create_job("r", replace(&target, json!({"activeDeadlineSeconds": 40}))).await?;
    rig.world.until("the eviction", SETTLED, |all| all.len() == 2).await?;
    rig.world.scale(&set, 2).await?;
    rig.world.release(Pause::Creation, Scope::World);
    let job = rig.until("r", "it says that none came", |job| waits_for(job) == "NewPod").await?;
    let told = job.condition_message("Reconciling");
    ensure!(told.contains("ReplicaSet web has made no new pod; it may have been scaled down"), "{told}");
    let job = rig.until_progress("r", "Failed").await?;
    ensure!(error(&job).contains("has made no new pod"), "{}", error(&job));
    Ok(())
}

/// Two jobs restart one pod, and nobody on its node restarts containers: the first says so, and the second names the first.
/// Source: openkruise/kruise#1626.
pub async fn of_two_restarts_of_one_pod_the_second_names_the_request_that_it_waits_for(
    rig: &mut Rig,
) -> anyhow::Result<()> {
    rig.world.install_kruise().await?;
    node(rig, "a", true).await?;
    let set = workload(rig, "web", 1).await?;
    let pods = settled(rig, &set, "web").await?;
    rig.world.hold(Pause::Restart, Scope::World);
    start(rig).await?;
    rig.create_job("r", restart(&names(&pods), json!({}))).await?;
    let first = rig.until("r", "it says what it waits for", |job| waits_for(job) == "Kruise").await?;
    let told = first.condition_message("Reconciling");
    ensure!(told.contains("the kruise-daemon of node ") && told.contains(" has not begun with"), "{told}");
    rig.create_job("s", restart(&names(&pods), json!({}))).await?;
    let second = rig.until("s", "it says what it waits for", |job| waits_for(job) == "Kruise").await?;
    let told = second.condition_message("Reconciling");
    ensure!(told.contains(" waits for the end of r-"), "{told}");
    rig.world.release(Pause::Restart, Scope::World);
    for job in ["r", "s"] {
        rig.until_progress(job, "Succeeded").await?;
    }
    rig.until_nothing_is_left().await
}
