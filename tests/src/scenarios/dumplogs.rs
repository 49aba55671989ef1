//! OpsJobs of the type dumplog: the logs of a workload in one file. A real API server without kubelets has no logs, so these run on the
//! cluster in memory and on real nodes.

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

use oarlock_bed::faults::Then;
use oarlock_bed::orders::Order;

use super::on_nodes::{Plugin, node, nodes};
use super::ops_jobs::{begin, end_well};
use crate::components::DUMPLOG_GRANTS;
use crate::ops::{condition, output, said};
use crate::rig::{Rig, patiently};

pub(crate) const DUMPLOG: Plugin = ("dumplog", DUMPLOG_GRANTS);

fn pods(rig: &Rig) -> Api<Pod> {
    Api::namespaced(rig.client.clone(), &rig.namespace)
}

/// A pod on this node, whose containers run these scripts.
pub(crate) async fn talker(rig: &Rig, name: &str, node: &str, scripts: &[(&str, &str)]) -> anyhow::Result<()> {
    let container =
        |(name, script): &(&str, &str)| json!({"name": name, "image": "busybox", "command": ["sh", "-c", script]});
    let containers: Vec<Value> = scripts.iter().map(container).collect();
    let pod = json!({"metadata": {"name": name}, "spec": {"nodeName": node, "containers": containers}});
    pods(rig).create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    until_ready(rig, name).await
}

async fn until_ready(rig: &Rig, name: &str) -> anyhow::Result<()> {
    patiently("the pod is Ready", async || {
        let conditions = pods(rig).get(name).await?.status.and_then(|status| status.conditions).unwrap_or_default();
        Ok(conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
    })
    .await
}

pub(crate) fn dumplog(rig: &Rig, workload: &str) -> Value {
    json!({"type": "dumplog", "inputs": [{"name": "workload", "value": format!("{}/{workload}", rig.namespace)}]})
}

/// Gives the host a folder for files.
pub(crate) fn keep_files(rig: &mut Rig) -> PathBuf {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("oarlock-dumplog-{}-{number}", std::process::id()));
    rig.files = Some(folder.clone());
    folder
}

/// The file of a job that has one, and its lines.
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

/// Nothing is left of what the file was put together of.
pub(crate) async fn no_parts(folder: &std::path::Path) -> anyhow::Result<()> {
    let parts = folder.join("artefacts/.parts");
    patiently("no parts are left", async || {
        let left = |at: &std::path::Path| std::fs::read_dir(at).map_or(0, Iterator::count);
        let jobs = std::fs::read_dir(&parts).into_iter().flatten().flatten();
        Ok(jobs.map(|job| left(&job.path())).sum::<usize>() == 0)
    })
    .await
}

/// A pod with two containers whose node restarted, and one that never did: each line once, those of the run before among them.
pub async fn the_logs_of_all_runs_are_one_file_in_the_order_of_time(rig: &mut Rig) -> anyhow::Result<()> {
    let (a, b) = (node(rig, "a", true).await?, node(rig, "b", true).await?);
    let folder = keep_files(rig);
    let of_jobs = begin(rig, DUMPLOG).await?;
    let talks =
        [("app", "echo begin; while true; do echo tick; sleep 1; done"), ("side", "seq -f 'side %g' 3; sleep 900")];
    talker(rig, "one", &a, &talks).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    rig.world.returns(&a, Return::Ready);
    rig.world.reboot(&a);
    patiently("it was restarted", async || {
        let status =
            pods(rig).get("one").await?.status.and_then(|status| status.container_statuses).unwrap_or_default();
        Ok(status.iter().all(|one| one.restart_count == 1))
    })
    .await?;
    until_ready(rig, "one").await?;
    talker(rig, "two", &b, &[("app", "echo hello; sleep 900")]).await?;
    rig.create_ops("one-log", dumplog(rig, "pod/one")).await?;
    let job = rig.until_ops_ended("one-log", "Succeeded", "Succeed").await?;
    ensure!(output(&job, "missing") == json!([]) && output(&job, "truncated").is_null(), "{job:#}");
    let lines = file_of(&folder, &job)?;
    let place = format!(" {}/one/", rig.namespace);
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
    end_well(rig, &of_jobs).await
}

/// One node is dead: the logs of its pod are missing, and those of the others are there.
pub async fn a_pod_whose_logs_cannot_be_read_is_named_and_costs_only_its_own(rig: &mut Rig) -> anyhow::Result<()> {
    let (a, b) = (node(rig, "a", true).await?, node(rig, "b", true).await?);
    let folder = keep_files(rig);
    let of_jobs = begin(rig, DUMPLOG).await?;
    let labels = json!({"app": "web"});
    let set = json!({"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    // The world has no controller of DaemonSets.
    let sets: Api<DaemonSet> = Api::namespaced(rig.client.clone(), &rig.namespace);
    let set = sets.create(&PostParams::default(), &serde_json::from_value(set)?).await?;
    let owner = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "web", "uid": set.metadata.uid, "controller": true});
    for (name, node) in [("here", &a), ("there", &b)] {
        let pod = json!({"metadata": {"name": name, "ownerReferences": [owner]}, "spec": {"nodeName": node, "containers": [
            {"name": "c", "image": "busybox", "command": ["sh", "-c", "echo hello; sleep 900"]}]}});
        pods(rig).create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        until_ready(rig, name).await?;
    }
    rig.world.returns(&b, Return::Never);
    rig.world.reboot(&b);
    patiently("its node is silent", async || {
        let conditions = nodes(rig).get(&b).await?.status.and_then(|status| status.conditions).unwrap_or_default();
        Ok(conditions.iter().any(|one| one.type_ == "Ready" && one.status == "Unknown"))
    })
    .await?;
    rig.create_ops("logs", dumplog(rig, "daemonset/web")).await?;
    let job = rig.until_ops_ended("logs", "Succeeded", "Succeed").await?;
    ensure!(output(&job, "missing") == json!(["there"]), "{job:#}");
    ensure!(said(&job, "there").contains("connection refused"), "{job:#}");
    let lines = file_of(&folder, &job)?;
    ensure!(lines.len() == 1 && lines[0].ends_with("/here/c hello"), "{lines:#?}");
    std::fs::remove_dir_all(&folder)?;
    end_well(rig, &of_jobs).await
}

/// A kubelet answers 200 and words in place of a log: the run is tried again, and then its pod is missing. The other logs are kept.
pub async fn words_of_a_kubelet_in_place_of_a_log_are_told_and_are_no_lines(rig: &mut Rig) -> anyhow::Result<()> {
    const WORDS: &str = "unable to retrieve container logs for containerd://x";
    let a = node(rig, "a", true).await?;
    let folder = keep_files(rig);
    let of_jobs = begin(rig, DUMPLOG).await?;
    talker(rig, "p", &a, &[("bad", "echo no; sleep 900"), ("good", "echo yes; sleep 900")]).await?;
    let words = || Then::Pieces(vec![WORDS]);
    rig.running()?.wire.order(Order { times: Some(2), ..Order::all(Method::GET, "container=bad", words()) });
    rig.create_ops("later", dumplog(rig, "pod/p")).await?;
    let job = rig.until_ops_ended("later", "Succeeded", "Succeed").await?;
    ensure!(output(&job, "missing") == json!([]), "{job:#}");
    let lines = file_of(&folder, &job)?;
    ensure!(lines.len() == 2 && !lines.iter().any(|line| line.contains("unable")), "{lines:#?}");
    rig.running()?.wire.order(Order::all(Method::GET, "container=bad", words()));
    rig.create_ops("never", dumplog(rig, "pod/p")).await?;
    let job = rig.until_ops_ended("never", "Failed", "ToleranceExceeded").await?;
    let told = said(&job, "p");
    ensure!(told.contains(&format!("container bad: in place of a log came: {WORDS}")), "{told}");
    std::fs::remove_dir_all(&folder)?;
    end_well(rig, &of_jobs).await
}

/// A workload that is not there, one without pods, one that another job reads, a pod that goes, and a host without a folder.
pub async fn a_dumplog_that_cannot_be_says_why(rig: &mut Rig) -> anyhow::Result<()> {
    let a = node(rig, "a", true).await?;
    let folder = keep_files(rig);
    let of_jobs = begin(rig, DUMPLOG).await?;
    rig.create_ops("nobody", dumplog(rig, "deployment/nobody")).await?;
    rig.until_ops_ended("nobody", "Failed", "WorkloadNotFound").await?;
    let two = json!({"type": "dumplog", "inputs": [{"name": "workload", "value": "d/pod/a"}, {"name": "workload", "value": "d/pod/b"}]});
    rig.create_ops("two", two).await?;
    let job = rig.until_ops_ended("two", "Failed", "Invalid").await?;
    ensure!(said(&job, "Failed").contains("dumplog takes one workload, and here are 2"), "{job:#}");
    talker(rig, "p", &a, &[("c", "echo hello; sleep 900")]).await?;
    let elsewhere = json!({"type": "dumplog", "inputs": [{"name": "workload", "value": format!("{}/pod/p", rig.namespace)},
        {"name": "node", "value": node(rig, "b", true).await?}]});
    rig.create_ops("elsewhere", elsewhere).await?;
    let job = rig.until_ops_ended("elsewhere", "Failed", "NoTargets").await?;
    ensure!(said(&job, "Failed").contains("no pods, or none on the nodes"), "{job:#}");
    pods(rig).delete("p", &DeleteParams::default().grace_period(0)).await?;
    rig.create_ops("gone", dumplog(rig, "pod/p")).await?;
    let job = rig.until_ops_ended("gone", "Failed", "WorkloadNotFound").await?;
    ensure!(condition(&job, "TargetsResolved").is_none(), "{job:#}");
    let _none = std::fs::remove_dir_all(&folder);
    end_well(rig, &of_jobs).await
}
