//! OpsJobs of the type dumplog: they write the logs of a workload into one file. These scenarios run in memory and on real
//! nodes, because a real API server without kubelets has no logs.

#![expect(clippy::indexing_slicing, reason = "a test fails loudly")]

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::Method;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, PostParams};
use oarlock_sim::world::Return;
use serde_json::{Value, json};

use oarlock_support::faults::Then;
use oarlock_support::orders::Order;

use super::on_nodes::{Plugin, node, nodes};
use super::ops_jobs::{begin, end_well};
use crate::components::DUMPLOG_GRANTS;
use crate::ops::{condition, output, said};
use crate::test_cluster::{TestCluster, patiently};

pub(crate) const DUMPLOG: Plugin = ("dumplog", DUMPLOG_GRANTS);

fn pods(cluster: &TestCluster) -> Api<Pod> {
    Api::namespaced(cluster.client.clone(), &cluster.namespace)
}

/// Creates a pod on this node whose containers run these scripts, and waits until it is ready.
pub(crate) async fn talker(
    cluster: &TestCluster,
    name: &str,
    node: &str,
    scripts: &[(&str, &str)],
) -> anyhow::Result<()> {
    let container =
        |(name, script): &(&str, &str)| json!({"name": name, "image": "busybox", "command": ["sh", "-c", script]});
    let containers: Vec<Value> = scripts.iter().map(container).collect();
    let pod = json!({"metadata": {"name": name}, "spec": {"nodeName": node, "containers": containers}});
    pods(cluster).create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    until_ready(cluster, name).await
}

async fn until_ready(cluster: &TestCluster, name: &str) -> anyhow::Result<()> {
    patiently("the pod is Ready", async || {
        let conditions = pods(cluster).get(name).await?.status.and_then(|status| status.conditions).unwrap_or_default();
        Ok(conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
    })
    .await
}

pub(crate) fn dumplog(cluster: &TestCluster, workload: &str) -> Value {
    json!({"type": "dumplog", "inputs": [{"name": "workload", "value": format!("{}/{workload}", cluster.namespace)}]})
}

/// Gives the host a folder for files and returns the folder.
pub(crate) fn keep_files(cluster: &mut TestCluster) -> PathBuf {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("oarlock-dumplog-{}-{number}", std::process::id()));
    cluster.files = Some(folder.clone());
    folder
}

/// Returns the lines of a job's file, and checks them against the job's outputs.
pub(crate) fn file_of(folder: &std::path::Path, job: &Value) -> anyhow::Result<Vec<String>> {
    let reference = output(job, "endpoint");
    let file = reference.as_str().and_then(|text| text.strip_prefix("artifact:")).context("it has a file")?;
    let text = std::fs::read_to_string(folder.join("artefacts").join(file))?;
    ensure!(output(job, "size") == json!(text.len()), "{job:#}");
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    ensure!(output(job, "lines") == json!(lines.len()), "{job:#}");
    ensure!(lines.iter().map(|line| &line[..30]).is_sorted(), "in the order of time: {lines:#?}");
    Ok(lines)
}

/// Waits until the parts from which the file was assembled are deleted.
pub(crate) async fn no_parts(folder: &std::path::Path) -> anyhow::Result<()> {
    let parts = folder.join("artefacts/.parts");
    patiently("no parts are left", async || {
        let left = |at: &std::path::Path| std::fs::read_dir(at).map_or(0, Iterator::count);
        let jobs = std::fs::read_dir(&parts).into_iter().flatten().flatten();
        Ok(jobs.map(|job| left(&job.path())).sum::<usize>() == 0)
    })
    .await
}

/// The file has each line once, and includes the logs of the runs before a restart. One of two pods restarts with its node.
pub async fn the_logs_of_all_runs_are_one_file_in_the_order_of_time(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let (a, b) = (node(cluster, "a", true).await?, node(cluster, "b", true).await?);
    let folder = keep_files(cluster);
    let of_jobs = begin(cluster, DUMPLOG).await?;
    let talks =
        [("app", "echo begin; while true; do echo tick; sleep 1; done"), ("side", "seq -f 'side %g' 3; sleep 900")];
    talker(cluster, "one", &a, &talks).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    cluster.world.returns(&a, Return::Ready);
    cluster.world.reboot(&a);
    patiently("it was restarted", async || {
        let status =
            pods(cluster).get("one").await?.status.and_then(|status| status.container_statuses).unwrap_or_default();
        Ok(status.iter().all(|one| one.restart_count == 1))
    })
    .await?;
    until_ready(cluster, "one").await?;
    talker(cluster, "two", &b, &[("app", "echo hello; sleep 900")]).await?;
    cluster.create_ops("one-log", dumplog(cluster, "pod/one")).await?;
    let job = cluster.until_ops_ended("one-log", "Succeeded", "Succeed").await?;
    ensure!(output(&job, "missing") == json!([]) && output(&job, "truncated").is_null(), "{job:#}");
    let lines = file_of(&folder, &job)?;
    let place = format!(" {}/one/", cluster.namespace);
    let of = |container: &str| {
        let label = format!("{place}{container} ");
        lines.iter().filter_map(|line| line.split_once(&label).map(|(_, text)| text.to_owned())).collect::<Vec<_>>()
    };
    ensure!(of("side previous") == ["side 1", "side 2", "side 3"], "{lines:#?}");
    let side = of("side");
    ensure!(side.iter().filter(|text| !text.starts_with("previous")).count() == 3, "{lines:#?}");
    ensure!(of("app previous").iter().filter(|text| *text == "begin").count() == 1, "{lines:#?}");
    ensure!(of("app previous").iter().filter(|text| *text == "tick").count() >= 3, "{lines:#?}");
    ensure!(!lines.iter().any(|line| line.contains("/two/")), "{lines:#?}");
    no_parts(&folder).await?;
    std::fs::remove_dir_all(&folder)?;
    end_well(cluster, &of_jobs).await
}

/// If one node is dead, the logs of its pod are missing, and the logs of the other pods are there.
pub async fn a_pod_whose_logs_cannot_be_read_is_named_and_costs_only_its_own(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let (a, b) = (node(cluster, "a", true).await?, node(cluster, "b", true).await?);
    let folder = keep_files(cluster);
    let of_jobs = begin(cluster, DUMPLOG).await?;
    let labels = json!({"app": "web"});
    let set = json!({"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    // The simulated cluster has no DaemonSet controller.
    let sets: Api<DaemonSet> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let set = sets.create(&PostParams::default(), &serde_json::from_value(set)?).await?;
    let owner = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "web", "uid": set.metadata.uid, "controller": true});
    for (name, node) in [("here", &a), ("there", &b)] {
        let pod = json!({"metadata": {"name": name, "ownerReferences": [owner]}, "spec": {"nodeName": node, "containers": [
            {"name": "c", "image": "busybox", "command": ["sh", "-c", "echo hello; sleep 900"]}]}});
        pods(cluster).create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        until_ready(cluster, name).await?;
    }
    cluster.world.returns(&b, Return::Never);
    cluster.world.reboot(&b);
    patiently("its node is silent", async || {
        let conditions = nodes(cluster).get(&b).await?.status.and_then(|status| status.conditions).unwrap_or_default();
        Ok(conditions.iter().any(|one| one.type_ == "Ready" && one.status == "Unknown"))
    })
    .await?;
    cluster.create_ops("logs", dumplog(cluster, "daemonset/web")).await?;
    let job = cluster.until_ops_ended("logs", "Succeeded", "Succeed").await?;
    ensure!(output(&job, "missing") == json!(["there"]), "{job:#}");
    ensure!(said(&job, "there").contains("connection refused"), "{job:#}");
    let lines = file_of(&folder, &job)?;
    ensure!(lines.len() == 1 && lines[0].ends_with("/here/c hello"), "{lines:#?}");
    std::fs::remove_dir_all(&folder)?;
    end_well(cluster, &of_jobs).await
}

/// If a kubelet answers 200 with an error text instead of a log, the host retries. Then the pod counts as missing, and other logs are kept.
pub async fn words_of_a_kubelet_in_place_of_a_log_are_told_and_are_no_lines(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    const WORDS: &str = "unable to retrieve container logs for containerd://x";
    let a = node(cluster, "a", true).await?;
    let folder = keep_files(cluster);
    let of_jobs = begin(cluster, DUMPLOG).await?;
    talker(cluster, "p", &a, &[("bad", "echo no; sleep 900"), ("good", "echo yes; sleep 900")]).await?;
    let words = || Then::Pieces(vec![WORDS]);
    cluster.running()?.interceptor.order(Order { times: Some(2), ..Order::all(Method::GET, "container=bad", words()) });
    cluster.create_ops("later", dumplog(cluster, "pod/p")).await?;
    let job = cluster.until_ops_ended("later", "Succeeded", "Succeed").await?;
    ensure!(output(&job, "missing") == json!([]), "{job:#}");
    let lines = file_of(&folder, &job)?;
    ensure!(lines.len() == 2 && !lines.iter().any(|line| line.contains("unable")), "{lines:#?}");
    cluster.running()?.interceptor.order(Order::all(Method::GET, "container=bad", words()));
    cluster.create_ops("never", dumplog(cluster, "pod/p")).await?;
    let job = cluster.until_ops_ended("never", "Failed", "ToleranceExceeded").await?;
    let told = said(&job, "p");
    ensure!(told.contains(&format!("container bad: in place of a log came: {WORDS}")), "{told}");
    std::fs::remove_dir_all(&folder)?;
    end_well(cluster, &of_jobs).await
}

/// A dumplog fails with a reason for a missing workload, for two workloads, for a node without the pod, and for a deleted pod.
pub async fn a_dumplog_that_cannot_be_says_why(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let a = node(cluster, "a", true).await?;
    let folder = keep_files(cluster);
    let of_jobs = begin(cluster, DUMPLOG).await?;
    cluster.create_ops("nobody", dumplog(cluster, "deployment/nobody")).await?;
    cluster.until_ops_ended("nobody", "Failed", "WorkloadNotFound").await?;
    let two = json!({"type": "dumplog", "inputs": [{"name": "workload", "value": "d/pod/a"}, {"name": "workload", "value": "d/pod/b"}]});
    cluster.create_ops("two", two).await?;
    let job = cluster.until_ops_ended("two", "Failed", "Invalid").await?;
    ensure!(said(&job, "Failed").contains("dumplog needs exactly one workload, and the job has 2"), "{job:#}");
    talker(cluster, "p", &a, &[("c", "echo hello; sleep 900")]).await?;
    let elsewhere = json!({"type": "dumplog", "inputs": [{"name": "workload", "value": format!("{}/pod/p", cluster.namespace)},
        {"name": "node", "value": node(cluster, "b", true).await?}]});
    cluster.create_ops("elsewhere", elsewhere).await?;
    let job = cluster.until_ops_ended("elsewhere", "Failed", "NoTargets").await?;
    ensure!(said(&job, "Failed").contains("no pods, or none on the nodes"), "{job:#}");
    pods(cluster).delete("p", &DeleteParams::default().grace_period(0)).await?;
    cluster.create_ops("gone", dumplog(cluster, "pod/p")).await?;
    let job = cluster.until_ops_ended("gone", "Failed", "WorkloadNotFound").await?;
    ensure!(condition(&job, "TargetsResolved").is_none(), "{job:#}");
    let _none = std::fs::remove_dir_all(&folder);
    end_well(cluster, &of_jobs).await
}
