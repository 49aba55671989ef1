//! Messages about the object that a target in flight waits for. The job has them while it waits and when its deadline ends the target.

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
use crate::test_cluster::TestCluster;

fn waits_for(job: &DynamicObject) -> &str {
    job.data.pointer("/status/waitsFor").and_then(Value::as_str).unwrap_or_default()
}

/// Returns the error message of the first target.
fn error(job: &DynamicObject) -> &str {
    job.data.pointer("/status/targetDetails/0/error/message").and_then(Value::as_str).unwrap_or_default()
}

/// If the new pod of a target finds no node, the job names the pod with the scheduler's message. The error at the deadline does too.
pub async fn a_replacement_that_finds_no_node_names_its_pod_and_the_words_of_the_scheduler(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let node = node(cluster, "a", true).await?;
    let set = workload(cluster, "web", 1).await?;
    let pods = settled(cluster, &set, "web").await?;
    cordon(cluster, &node, true).await?;
    cluster.start_host().await?;
    let spec = replace(&names(&pods), json!({"activeDeadlineSeconds": 30}));
    cluster.create_job("r", spec).await?;
    let job = cluster.until("r", "its new pod is named", |job| waits_for(job) == "NewPod").await?;
    let told = job.condition_message("Reconciling");
    ensure!(told.contains("pod web-") && told.contains("has no node: Unschedulable: 0/"), "{told}");
    let job = cluster.until_progress("r", "Failed").await?;
    let told = error(&job);
    ensure!(told.starts_with("deadline of 30 s exceeded (NewPod: pod web-"), "{told}");
    ensure!(told.contains("has no node: Unschedulable"), "{told}");
    Ok(())
}

/// If the set of a target is scaled down and makes no new pod, the job says so.
pub async fn a_replacement_whose_set_is_scaled_down_says_that_no_pod_has_come(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let set = cluster.seedbed.replica_set("web", 3).await?;
    let pods = settled(cluster, &set, "web").await?;
    // A pod from the second in which the job began could count as the new pod.
    cluster.pass(Duration::from_secs(3)).await;
    cluster.start_host().await?;
    let target = names(pods.get(..1).unwrap_or_default());
    cluster.world.hold(Pause::Creation, Scope::World);
    cluster.create_job("r", replace(&target, json!({"activeDeadlineSeconds": 40}))).await?;
    cluster.world.until("the eviction", SETTLED, |all| all.len() == 2).await?;
    cluster.world.scale(&set, 2).await?;
    cluster.world.release(Pause::Creation, Scope::World);
    let job = cluster.until("r", "it says that none came", |job| waits_for(job) == "NewPod").await?;
    let told = job.condition_message("Reconciling");
    ensure!(told.contains("ReplicaSet web has made no new pod; it may have been scaled down"), "{told}");
    let job = cluster.until_progress("r", "Failed").await?;
    ensure!(error(&job).contains("has made no new pod"), "{}", error(&job));
    Ok(())
}

/// If two jobs restart one pod on a node without a working kruise-daemon, the first job says so, and the second job names
/// the first. Source: openkruise/kruise#1626.
pub async fn of_two_restarts_of_one_pod_the_second_names_the_request_that_it_waits_for(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    cluster.world.install_kruise().await?;
    node(cluster, "a", true).await?;
    let set = workload(cluster, "web", 1).await?;
    let pods = settled(cluster, &set, "web").await?;
    cluster.world.hold(Pause::Restart, Scope::World);
    start(cluster).await?;
    cluster.create_job("r", restart(&names(&pods), json!({}))).await?;
    let first = cluster.until("r", "it says what it waits for", |job| waits_for(job) == "Kruise").await?;
    let told = first.condition_message("Reconciling");
    ensure!(told.contains("the kruise-daemon of node ") && told.contains(" has not begun with"), "{told}");
    cluster.create_job("s", restart(&names(&pods), json!({}))).await?;
    let second = cluster.until("s", "it says what it waits for", |job| waits_for(job) == "Kruise").await?;
    let told = second.condition_message("Reconciling");
    ensure!(told.contains(" waits for the end of r-"), "{told}");
    cluster.world.release(Pause::Restart, Scope::World);
    for job in ["r", "s"] {
        cluster.until_progress(job, "Succeeded").await?;
    }
    cluster.until_nothing_is_left().await
}
