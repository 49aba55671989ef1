//! DaemonJobs: one Job for each node of a set, a limit of Jobs at once, and nodes that come, go and are not Ready.

#![expect(clippy::indexing_slicing, reason = "a test fails loudly")]

use anyhow::ensure;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use super::on_nodes::{node, nodes, set_ready};
use crate::flows::{begin, prepare, unit, work};
use crate::test_cluster::{TestCluster, patiently};

const DAEMON: &str = "DaemonJob";

/// Returns a spec that selects the nodes of this scenario.
pub(crate) fn spec(cluster: &TestCluster, script: &str, rollout: Value) -> Value {
    let mut spec = work(script);
    let mut own = json!({"nodeSelector": {"matchLabels": {"scenario": cluster.namespace}}});
    if let (Some(own), Some(more)) = (own.as_object_mut(), rollout.as_object()) {
        own.extend(more.clone());
    }
    spec["rollout"] = own;
    spec
}

async fn three(cluster: &TestCluster) -> anyhow::Result<[String; 3]> {
    Ok([node(cluster, "a", true).await?, node(cluster, "b", true).await?, node(cluster, "c", true).await?])
}

/// A DaemonJob waits for a node that is not Ready, or omits the node, as its policy says.
pub async fn a_node_that_is_not_ready_is_waited_for_or_left_out(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    let (a, b) = (node(cluster, "a", true).await?, node(cluster, "b", false).await?);
    cluster.create_flow(DAEMON, "waits", spec(cluster, "true", json!({"concurrency": 1}))).await?;
    cluster.create_flow(DAEMON, "skips", spec(cluster, "true", json!({"notReadyPolicy": "Skip"}))).await?;
    let skips = cluster.until_state(DAEMON, "skips", "Succeed").await?;
    ensure!(unit(&skips, &b) == "Omitted/NodeNotReady" && unit(&skips, &a) == "Succeed", "{skips:#}");
    let waits = |daemon: &Value| unit(daemon, &a) == "Succeed" && unit(daemon, &b) == "Waiting/NodeNotReady";
    cluster.until_flow((DAEMON, "waits"), "it waits", waits).await?;
    set_ready(cluster, &b, true).await?;
    cluster.until_state(DAEMON, "waits", "Succeed").await?;
    Ok(())
}

/// A Job goes with its node. A new node gets a Job if the policy says so.
pub async fn nodes_that_go_and_come(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    let (a, b) = (node(cluster, "a", true).await?, node(cluster, "b", true).await?);
    cluster.create_flow(DAEMON, "d", spec(cluster, "sleep 3", json!({"newNodePolicy": "Run"}))).await?;
    cluster.create_flow(DAEMON, "fixed", spec(cluster, "true", json!({}))).await?;
    cluster
        .until_flow((DAEMON, "d"), "both run", |daemon| unit(daemon, &a) == "Running" && unit(daemon, &b) == "Running")
        .await?;
    nodes(cluster).delete(&b, &DeleteParams::default()).await?;
    let daemon = cluster.until_state(DAEMON, "d", "Succeed").await?;
    ensure!(unit(&daemon, &b) == "Omitted/NodeGone" && unit(&daemon, &a) == "Succeed", "{daemon:#}");
    patiently("its Job is gone", async || Ok(cluster.batch_jobs().get_opt(&format!("d-{b}")).await?.is_none())).await?;
    cluster.until_state(DAEMON, "fixed", "Succeed").await?;
    let c = node(cluster, "c", true).await?;
    cluster.until_flow((DAEMON, "d"), "the new one ran", |daemon| unit(daemon, &c) == "Succeed").await?;
    ensure!(cluster.batch_jobs().get_opt(&format!("fixed-{c}")).await?.is_none());
    Ok(())
}

/// Failures up to the limit are tolerated. One more failure pauses the DaemonJob, and a higher limit lets it go on.
pub async fn a_pause_after_failures_ends_with_a_higher_limit(cluster: &mut TestCluster) -> anyhow::Result<()> {
    prepare(cluster).await?;
    three(cluster).await?;
    let policy = |most: u32| json!({"concurrency": 1, "failurePolicy": {"type": "Pause", "maxFailures": most}});
    cluster.create_flow(DAEMON, "d", spec(cluster, "exit 1", policy(0))).await?;
    cluster.start_host().await?;
    cluster.until_flow((DAEMON, "d"), "it is paused", |daemon| crate::flows::is_true(daemon, "Paused")).await?;
    ensure!(cluster.batch_job_names().await?.len() == 1);
    cluster.patch_flow(DAEMON, "d", json!({"spec": {"rollout": policy(3)}})).await?;
    let daemon = cluster.until_completed(DAEMON, "d").await?;
    ensure!(daemon.pointer("/status/state") == Some(&json!("Succeed")), "three failures are tolerated: {daemon:#}");
    Ok(())
}
