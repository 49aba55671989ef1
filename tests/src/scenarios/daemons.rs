//! DaemonJobs: one Job for each node of a set, so many at once, and nodes that come, go and are not Ready.

#![expect(clippy::indexing_slicing, reason = "a test fails loudly")]

use std::collections::BTreeSet;

use anyhow::ensure;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use super::on_nodes::{node, nodes, set_ready};
use crate::flows::{begin, prepare, unit, work};
use crate::rig::{Rig, patiently};

const DAEMON: &str = "DaemonJob";

/// A spec on the nodes of this scenario.
pub(crate) fn spec(rig: &Rig, script: &str, rollout: Value) -> Value {
    let mut spec = work(script);
    let mut own = json!({"nodeSelector": {"matchLabels": {"scenario": rig.namespace}}});
    if let (Some(own), Some(more)) = (own.as_object_mut(), rollout.as_object()) {
        own.extend(more.clone());
    }
    spec["rollout"] = own;
    spec
}

async fn three(rig: &Rig) -> anyhow::Result<[String; 3]> {
    Ok([node(rig, "a", true).await?, node(rig, "b", true).await?, node(rig, "c", true).await?])
}

/// Every node has its Job, on that node, but those that are excluded.
pub async fn every_node_has_its_job_but_the_excluded_one(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let [a, b, c] = three(rig).await?;
    let mut spec = spec(rig, "sleep 1", json!({}));
    spec["excludeNodeList"] = json!(format!(" {b},,\n nobody"));
    spec["globalParams"] = json!({"env": [{"name": "FOO", "value": "bar"}], "nodeName": "elsewhere"});
    rig.create_flow(DAEMON, "d", spec).await?;
    let daemon = rig.until_state(DAEMON, "d", "Succeed").await?;
    ensure!(rig.batch_job_names().await? == [format!("d-{a}"), format!("d-{c}")], "{daemon:#}");
    let job = serde_json::to_value(rig.batch_jobs().get(&format!("d-{a}")).await?)?;
    ensure!(job.pointer("/spec/template/spec/nodeName") == Some(&json!(a)), "{job:#}");
    ensure!(job.pointer("/spec/template/spec/containers/0/env/0/value") == Some(&json!("bar")), "{job:#}");
    Ok(())
}

/// With a concurrency of one a node follows the other, also over a host that is killed.
pub async fn one_node_follows_the_other_over_a_restart(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let all = three(rig).await?;
    rig.create_flow(DAEMON, "d", spec(rig, "sleep 2", json!({"concurrency": 1}))).await?;
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        patiently("the next Job is there", async || Ok(rig.batch_job_names().await?.len() > seen.len())).await?;
        let jobs = rig.batch_jobs().list(&kube::api::ListParams::default()).await?;
        let open =
            jobs.items.iter().filter(|job| job.status.as_ref().is_none_or(|status| status.completion_time.is_none()));
        ensure!(open.count() <= 1, "more than one at once");
        seen.extend(jobs.items.into_iter().filter_map(|job| job.metadata.name));
        rig.restart_host().await?;
    }
    let daemon = rig.until_state(DAEMON, "d", "Succeed").await?;
    let expected: BTreeSet<String> = all.iter().map(|name| format!("d-{name}")).collect();
    ensure!(rig.batch_job_names().await?.into_iter().collect::<BTreeSet<_>>() == expected, "{daemon:#}");
    Ok(())
}

/// A node that is not Ready is waited for, or left out.
pub async fn a_node_that_is_not_ready_is_waited_for_or_left_out(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let (a, b) = (node(rig, "a", true).await?, node(rig, "b", false).await?);
    rig.create_flow(DAEMON, "waits", spec(rig, "true", json!({"concurrency": 1}))).await?;
    rig.create_flow(DAEMON, "skips", spec(rig, "true", json!({"notReadyPolicy": "Skip"}))).await?;
    let skips = rig.until_state(DAEMON, "skips", "Succeed").await?;
    ensure!(unit(&skips, &b) == "Omitted/NodeNotReady" && unit(&skips, &a) == "Succeed", "{skips:#}");
    let waits = |daemon: &Value| unit(daemon, &a) == "Succeed" && unit(daemon, &b) == "Waiting/NodeNotReady";
    rig.until_flow((DAEMON, "waits"), "it waits", waits).await?;
    set_ready(rig, &b, true).await?;
    rig.until_state(DAEMON, "waits", "Succeed").await?;
    Ok(())
}

/// A node that goes takes its Job along, and one that comes has a run where the policy says so.
pub async fn nodes_that_go_and_come(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let (a, b) = (node(rig, "a", true).await?, node(rig, "b", true).await?);
    rig.create_flow(DAEMON, "d", spec(rig, "sleep 3", json!({"newNodePolicy": "Run"}))).await?;
    rig.create_flow(DAEMON, "fixed", spec(rig, "true", json!({}))).await?;
    rig.until_flow((DAEMON, "d"), "both run", |daemon| unit(daemon, &a) == "Running" && unit(daemon, &b) == "Running")
        .await?;
    nodes(rig).delete(&b, &DeleteParams::default()).await?;
    let daemon = rig.until_state(DAEMON, "d", "Succeed").await?;
    ensure!(unit(&daemon, &b) == "Omitted/NodeGone" && unit(&daemon, &a) == "Succeed", "{daemon:#}");
    patiently("its Job is gone", async || Ok(rig.batch_jobs().get_opt(&format!("d-{b}")).await?.is_none())).await?;
    rig.until_state(DAEMON, "fixed", "Succeed").await?;
    let c = node(rig, "c", true).await?;
    rig.until_flow((DAEMON, "d"), "the new one ran", |daemon| unit(daemon, &c) == "Succeed").await?;
    ensure!(rig.batch_jobs().get_opt(&format!("fixed-{c}")).await?.is_none());
    Ok(())
}

/// Failures up to the limit are tolerated; one more pauses, and a higher limit goes on.
pub async fn a_pause_after_failures_ends_with_a_higher_limit(rig: &mut Rig) -> anyhow::Result<()> {
    prepare(rig).await?;
    three(rig).await?;
    let policy = |most: u32| json!({"concurrency": 1, "failurePolicy": {"type": "Pause", "maxFailures": most}});
    rig.create_flow(DAEMON, "d", spec(rig, "exit 1", policy(0))).await?;
    rig.start_host().await?;
    rig.until_flow((DAEMON, "d"), "it is paused", |daemon| crate::flows::is_true(daemon, "Paused")).await?;
    ensure!(rig.batch_job_names().await?.len() == 1);
    rig.patch_flow(DAEMON, "d", json!({"spec": {"rollout": policy(3)}})).await?;
    let daemon = rig.until_completed(DAEMON, "d").await?;
    ensure!(daemon.pointer("/status/state") == Some(&json!("Succeed")), "three failures are tolerated: {daemon:#}");
    Ok(())
}
