//! Reboots and checks of nodes: each node once, a limit of nodes at a time, and outcomes from the observed state.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::ensure;
use http::{Method, StatusCode};
use k8s_openapi::api::core::v1::Node;
use kube::api::ApiResource;
use oarlock_sim::world::{Effect, History, Return, Version};
use oarlock_support::faults::Then;
use oarlock_support::orders::Order;
use serde_json::{Value, json};

use super::SETTLED;
use super::drains::{REBOOT, bootable, drain, on, reboot, until_drained, workload};
use super::evicting::budget;
use super::on_nodes::{Plugin, begin, cordon, create, node, nodes, set_ready, start};
use crate::components::PREFLIGHT_GRANTS;
use crate::jobs::Told;
use crate::test_cluster::{TestCluster, patiently};

/// The plugin that checks nodes.
pub(crate) const PREFLIGHT: Plugin = ("preflight", PREFLIGHT_GRANTS);

pub(crate) fn history(cluster: &TestCluster) -> History {
    History::record(&cluster.client, vec![ApiResource::erase::<Node>(&())])
}

/// Returns true if a version of a node is Ready and not cordoned.
fn serves(version: &Version) -> bool {
    let mut conditions = version.at("/status/conditions").as_array().into_iter().flatten();
    let ready = conditions.any(|one| {
        one.get("type").is_some_and(|kind| kind == "Ready") && one.get("status").is_some_and(|status| status == "True")
    });
    !version.is_end && ready && version.at("/spec/unschedulable") != &json!(true)
}

/// Returns the largest number of these nodes that were out of service at the same time.
fn most_out_of_service(history: &History, names: &[&String]) -> usize {
    let mut serving: BTreeMap<String, bool> = BTreeMap::new();
    let mut most = 0;
    let versions = history.versions();
    // A node is created in several steps, and serves after the last step.
    let mut born = BTreeSet::new();
    for version in versions.iter().filter(|version| names.iter().any(|name| **name == version.name)) {
        if serves(version) {
            born.insert(version.name.clone());
        }
        if born.contains(&version.name) {
            serving.insert(version.name.clone(), serves(version));
        }
        most = most.max(serving.values().filter(|serves| !**serves).count());
    }
    most
}

pub(crate) fn reboots(cluster: &TestCluster, names: &[&String]) -> Vec<u64> {
    let counts = cluster.world.ledger().reboots();
    names.iter().map(|name| counts.get(*name).copied().unwrap_or(0)).collect()
}

/// Waits until the job has no hold on a node, and the node is cordoned as expected.
pub(crate) async fn until_free(cluster: &TestCluster, name: &str, cordoned: bool) -> anyhow::Result<()> {
    patiently("the job has released the node", async || {
        let Some(node) = nodes(cluster).get_opt(name).await? else { return Ok(true) };
        let held = node.metadata.annotations.iter().flatten().any(|(key, _)| key.starts_with("hold.oarlock.dev/"));
        Ok(!held && node.spec.and_then(|spec| spec.unschedulable).unwrap_or(false) == cordoned)
    })
    .await
}

/// Two nodes at a time are drained and rebooted. A budget blocks the drain of one node, and the other nodes go on.
pub async fn nodes_are_rebooted_two_at_a_time_and_a_budget_holds_up_its_own_node_alone(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let a = bootable(cluster, "a").await?;
    workload(cluster, "web", 1).await?;
    let (b, c, d) = (bootable(cluster, "b").await?, bootable(cluster, "c").await?, bootable(cluster, "d").await?);
    let all = [&a, &b, &c, &d];
    budget(cluster, 1).await?;
    begin(cluster, REBOOT).await?;
    let history = history(cluster);
    create(cluster, "r", reboot(&all, &json!({}), &json!({"parallelism": 2}))).await?;
    let job = cluster.until("r", "done but for one", |job| job.count("succeeded") == 3).await?;
    ensure!(
        job.target(&a) == "Processing/EvictionBlocked" && reboots(cluster, &all) == [0, 1, 1, 1],
        "{:?}",
        job.targets()
    );
    budget(cluster, 0).await?;
    cluster.until_progress("r", "Succeeded").await?;
    ensure!(reboots(cluster, &all) == [1; 4], "{:?}", reboots(cluster, &all));
    for name in all {
        until_free(cluster, name, false).await?;
    }
    let most = most_out_of_service(&history, &all);
    ensure!((1..=2).contains(&most), "at worst {most} were out of service");
    Ok(())
}

/// A node that does not come back correctly fails with a reason from its observed state, and does not affect other nodes.
pub async fn a_node_that_does_not_come_back_fails_by_what_is_seen_of_it(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let ways = [
        (Return::Never, "Failed/NotRebooted"),
        (Return::SameBootId, "Failed/NotRebooted"),
        (Return::NotReady, "Failed/NotReady"),
        (Return::Deleted, "Failed/NodeGone"),
        (Return::MadeAnew, "Failed/NodeGone"),
        (Return::Ready, "Succeeded"),
    ];
    let mut names = Vec::new();
    for (at, (way, _)) in ways.iter().enumerate() {
        let name = bootable(cluster, &format!("n{at}")).await?;
        cluster.world.returns(&name, *way);
        names.push(name);
    }
    begin(cluster, REBOOT).await?;
    let all: Vec<&String> = names.iter().collect();
    create(cluster, "r", reboot(&all, &json!({"readyDeadlineSeconds": 15}), &json!({}))).await?;
    let job = cluster.until_progress("r", "Failed").await?;
    let found: Vec<String> = names.iter().map(|name| job.target(name)).collect();
    let wanted: Vec<&str> = ways.iter().map(|(_, end)| *end).collect();
    ensure!(found == wanted, "{:?}", job.targets());
    ensure!(reboots(cluster, &all) == [1; 6], "{:?}", reboots(cluster, &all));
    for name in all {
        until_free(cluster, name, false).await?;
    }
    Ok(())
}

/// A job that is deleted before its task leaves the node unchanged. If it is deleted after its task, the node still reboots once.
pub async fn a_reboot_that_was_asked_for_is_not_taken_back_and_one_that_was_not_is_never_made(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let a = bootable(cluster, "a").await?;
    workload(cluster, "web", 1).await?;
    budget(cluster, 1).await?;
    begin(cluster, REBOOT).await?;
    create(cluster, "early", reboot(&[&a], &json!({}), &json!({}))).await?;
    cluster.until("early", "blocked", |job| drain(job, &a).pointer("/blocked").is_some()).await?;
    cluster.delete_job("early").await?;
    cluster.until_gone("early").await?;
    until_free(cluster, &a, false).await?;
    budget(cluster, 0).await?;
    cluster.pass(Duration::from_secs(60)).await;
    ensure!(reboots(cluster, &[&a]) == [0] && on(cluster, &a).await.len() == 1);
    let b = bootable(cluster, "b").await?;
    cluster.world.returns(&b, Return::Never);
    create(cluster, "late", reboot(&[&b], &json!({}), &json!({}))).await?;
    until_drained(cluster, "late", &b).await?;
    let down = |entries: &[oarlock_sim::world::Entry]| entries.iter().any(|entry| entry.name == b);
    cluster.world.ledger().until("it goes down", SETTLED, down).await?;
    cluster.delete_job("late").await?;
    cluster.until_gone("late").await?;
    until_free(cluster, &b, false).await?;
    ensure!(reboots(cluster, &[&b]) == [1]);
    Ok(())
}

/// If someone uncordons the node while the task cannot be created, pods that arrive meanwhile are evicted before the reboot.
pub async fn a_node_whose_cordon_is_taken_off_is_drained_again_before_it_reboots(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let a = bootable(cluster, "a").await?;
    begin(cluster, REBOOT).await?;
    cluster.running()?.interceptor.order(Order::all(Method::POST, "/pods", Then::Refuse(StatusCode::FORBIDDEN)));
    create(cluster, "r", reboot(&[&a], &json!({}), &json!({}))).await?;
    until_drained(cluster, "r", &a).await?;
    cluster.until("r", "without its task", |job| job.target(&a) == "Processing/UpdateObjectFailed").await?;
    cluster.kill_host("host").await?;
    cordon(cluster, &a, false).await?;
    workload(cluster, "web", 1).await?;
    let came = on(cluster, &a).await;
    start(cluster, REBOOT).await?;
    cluster.until_progress("r", "Succeeded").await?;
    let entries = cluster.world.ledger().entries();
    let evicted = entries.iter().position(|one| one.effect == Effect::PodEvicted && came.contains(&one.name));
    let down = entries.iter().position(|one| one.name == a);
    ensure!(came.len() == 1 && evicted.is_some() && evicted < down, "{came:?}: {entries:?}");
    ensure!(reboots(cluster, &[&a]) == [1]);
    until_free(cluster, &a, false).await
}

/// A host is killed repeatedly, each time a little later, and every node reboots once.
pub async fn a_host_that_is_killed_again_and_again_reboots_each_node_once(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let mut names = Vec::new();
    for at in 0..4 {
        names.push(bootable(cluster, &format!("n{at}")).await?);
    }
    workload(cluster, "web", 4).await?;
    let all: Vec<&String> = names.iter().collect();
    begin(cluster, REBOOT).await?;
    create(cluster, "r", reboot(&all, &json!({}), &json!({"parallelism": 2}))).await?;
    for kill in 0..40u64 {
        tokio::time::sleep(Duration::from_millis(60 + 23 * kill)).await;
        let job = cluster.jobs().get("r").await?;
        if job.progress() == "Succeeded" {
            break;
        }
        cluster.kill_host("host").await?;
        start(cluster, REBOOT).await?;
    }
    cluster.until_progress("r", "Succeeded").await?;
    ensure!(reboots(cluster, &all) == [1; 4], "{:?}", reboots(cluster, &all));
    for name in all {
        until_free(cluster, name, false).await?;
    }
    Ok(())
}

/// If two jobs reboot the same node, the second job waits until the first is done, and each job reboots the node once.
pub async fn of_two_jobs_that_reboot_one_node_each_does_once_it_has_the_node(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let a = bootable(cluster, "a").await?;
    begin(cluster, REBOOT).await?;
    create(cluster, "first", reboot(&[&a], &json!({}), &json!({}))).await?;
    create(cluster, "second", reboot(&[&a], &json!({}), &json!({}))).await?;
    cluster.until_progress("first", "Succeeded").await?;
    cluster.until_progress("second", "Succeeded").await?;
    ensure!(reboots(cluster, &[&a]) == [2], "once for each job");
    until_free(cluster, &a, false).await
}

/// A check fails a node that takes no pod and a node whose script reports a failure, and names the reason.
pub async fn nodes_are_checked_and_each_that_is_not_proven_healthy_fails(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let (good, down, kept) =
        (node(cluster, "a", true).await?, node(cluster, "b", true).await?, node(cluster, "c", true).await?);
    set_ready(cluster, &down, false).await?;
    cordon(cluster, &kept, true).await?;
    begin(cluster, PREFLIGHT).await?;
    let check = |script: &str, tolerate: bool, targets: &[&String]| {
        let targets: Vec<Value> = targets.iter().map(|name| json!({ "name": name })).collect();
        let parameters = json!({"image": "check:1", "script": script, "tolerateAll": tolerate});
        json!({"action": "preflight", "targetKind": "Node", "targets": targets, "parameters": parameters})
    };
    let all = [&good, &down, &kept];
    create(cluster, "strict", check("# sim: message ok", false, &all)).await?;
    let job = cluster.until_progress("strict", "Failed").await?;
    // The nodes of this scenario have a taint.
    let found = all.map(|name| job.target(name));
    ensure!(found == ["Failed/Unschedulable", "Failed/NodeNotReady", "Failed/Unschedulable"], "{:?}", job.targets());
    create(cluster, "all", check("# sim: message ok", true, &all)).await?;
    let job = cluster.until_progress("all", "Failed").await?;
    let found = all.map(|name| job.target(name));
    ensure!(found == ["Succeeded", "Failed/NodeNotReady", "Succeeded"], "{:?}", job.targets());
    create(cluster, "exits", check("# sim: output bad disk\n# sim: exit 3", true, &[&good])).await?;
    let job = cluster.until_progress("exits", "Failed").await?;
    ensure!(job.target(&good) == "Failed/CheckFailed", "{:?}", job.targets());
    let all_of = job.targets();
    let told = all_of.get(&good).and_then(|one| one.pointer("/error/message")?.as_str()).unwrap_or_default();
    ensure!(told.contains("exit code 3: bad disk"), "{told}");
    create(cluster, "says", check("# sim: message {\"passed\": false, \"message\": \"no fan\"}", true, &[&good]))
        .await?;
    let job = cluster.until_progress("says", "Failed").await?;
    ensure!(job.target(&good) == "Failed/ReportedFailure", "{:?}", job.targets());
    Ok(())
}
