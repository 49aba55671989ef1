//! Reboots and checks of nodes: each node once, so many at a time, and by what is seen of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::ensure;
use http::{Method, StatusCode};
use k8s_openapi::api::core::v1::Node;
use kube::api::ApiResource;
use oarlock_bed::faults::Then;
use oarlock_bed::orders::Order;
use oarlock_sim::world::{Effect, History, Return, Version};
use serde_json::{Value, json};

use super::SETTLED;
use super::drains::{REBOOT, bootable, drain, on, reboot, until_drained, workload};
use super::evicting::budget;
use super::on_nodes::{Plugin, begin, cordon, create, node, nodes, set_ready, start};
use crate::components::PREFLIGHT_GRANTS;
use crate::jobs::Told;
use crate::rig::{Rig, patiently};

/// The plugin that checks.
pub(crate) const PREFLIGHT: Plugin = ("preflight", PREFLIGHT_GRANTS);

pub(crate) fn history(rig: &Rig) -> History {
    History::record(&rig.client, vec![ApiResource::erase::<Node>(&())])
}

/// True of a version of a node that is Ready and not cordoned.
fn serves(version: &Version) -> bool {
    let mut conditions = version.at("/status/conditions").as_array().into_iter().flatten();
    let ready = conditions.any(|one| {
        one.get("type").is_some_and(|kind| kind == "Ready") && one.get("status").is_some_and(|status| status == "True")
    });
    !version.is_end && ready && version.at("/spec/unschedulable") != &json!(true)
}

/// How many of these nodes were out of service at the worst version of any of them.
fn most_out_of_service(history: &History, names: &[&String]) -> usize {
    let mut serving: BTreeMap<String, bool> = BTreeMap::new();
    let mut most = 0;
    let versions = history.versions();
    // A node is made in several steps, and serves from the last one on.
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

pub(crate) fn reboots(rig: &Rig, names: &[&String]) -> Vec<u64> {
    let counts = rig.world.ledger().reboots();
    names.iter().map(|name| counts.get(*name).copied().unwrap_or(0)).collect()
}

/// Nothing of a job is on a node.
pub(crate) async fn until_free(rig: &Rig, name: &str, cordoned: bool) -> anyhow::Result<()> {
    patiently("the job has let go of the node", async || {
        let Some(node) = nodes(rig).get_opt(name).await? else { return Ok(true) };
        let held = node.metadata.annotations.iter().flatten().any(|(key, _)| key.starts_with("hold.oarlock.dev/"));
        Ok(!held && node.spec.and_then(|spec| spec.unschedulable).unwrap_or(false) == cordoned)
    })
    .await
}

/// Two nodes at a time are drained and rebooted. A budget keeps the pod of one, which waits; the others go on beside it.
pub async fn nodes_are_rebooted_two_at_a_time_and_a_budget_holds_up_its_own_node_alone(
    rig: &mut Rig,
) -> anyhow::Result<()> {
    let a = bootable(rig, "a").await?;
    workload(rig, "web", 1).await?;
    let (b, c, d) = (bootable(rig, "b").await?, bootable(rig, "c").await?, bootable(rig, "d").await?);
    let all = [&a, &b, &c, &d];
    budget(rig, 1).await?;
    begin(rig, REBOOT).await?;
    let history = history(rig);
    create(rig, "r", reboot(&all, &json!({}), &json!({"parallelism": 2}))).await?;
    let job = rig.until("r", "done but for one", |job| job.count("succeeded") == 3).await?;
    ensure!(
        job.target(&a) == "Processing/EvictionBlocked" && reboots(rig, &all) == [0, 1, 1, 1],
        "{:?}",
        job.targets()
    );
    budget(rig, 0).await?;
    rig.until_progress("r", "Succeeded").await?;
    ensure!(reboots(rig, &all) == [1; 4], "{:?}", reboots(rig, &all));
    for name in all {
        until_free(rig, name, false).await?;
    }
    let most = most_out_of_service(&history, &all);
    ensure!((1..=2).contains(&most), "at worst {most} were out of service");
    Ok(())
}

/// A node that does not come back as it should fails by what is seen of it, and costs no other node anything.
pub async fn a_node_that_does_not_come_back_fails_by_what_is_seen_of_it(rig: &mut Rig) -> anyhow::Result<()> {
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
        let name = bootable(rig, &format!("n{at}")).await?;
        rig.world.returns(&name, *way);
        names.push(name);
    }
    begin(rig, REBOOT).await?;
    let all: Vec<&String> = names.iter().collect();
    create(rig, "r", reboot(&all, &json!({"readyDeadlineSeconds": 15}), &json!({}))).await?;
    let job = rig.until_progress("r", "Failed").await?;
    let found: Vec<String> = names.iter().map(|name| job.target(name)).collect();
    let wanted: Vec<&str> = ways.iter().map(|(_, end)| *end).collect();
    ensure!(found == wanted, "{:?}", job.targets());
    ensure!(reboots(rig, &all) == [1; 6], "{:?}", reboots(rig, &all));
    for name in all {
        until_free(rig, name, false).await?;
    }
    Ok(())
}

/// Only the job's own cordon goes: one from before, and one that somebody put on afterwards, stay.
pub async fn a_node_is_uncordoned_only_of_the_jobs_own_cordon(rig: &mut Rig) -> anyhow::Result<()> {
    let (before, own) = (bootable(rig, "a").await?, bootable(rig, "b").await?);
    cordon(rig, &before, true).await?;
    begin(rig, REBOOT).await?;
    create(rig, "r", reboot(&[&before, &own], &json!({}), &json!({}))).await?;
    let job = rig.until_progress("r", "Succeeded").await?;
    let was =
        |name: &String| job.targets().get(name).and_then(|one| one.pointer("/extraInfo/WasUnschedulable").cloned());
    ensure!((was(&before), was(&own)) == (Some(json!("true")), Some(json!("false"))), "{:?}", job.targets());
    until_free(rig, &before, true).await?;
    until_free(rig, &own, false).await?;
    cordon(rig, &own, true).await?;
    rig.delete_job("r").await?;
    rig.until_gone("r").await?;
    until_free(rig, &own, true).await
}

/// A job that is deleted before the task leaves the node as it was; after it, the node reboots once all the same.
pub async fn a_reboot_that_was_asked_for_is_not_taken_back_and_one_that_was_not_is_never_made(
    rig: &mut Rig,
) -> anyhow::Result<()> {
    let a = bootable(rig, "a").await?;
    workload(rig, "web", 1).await?;
    budget(rig, 1).await?;
    begin(rig, REBOOT).await?;
    create(rig, "early", reboot(&[&a], &json!({}), &json!({}))).await?;
    rig.until("early", "blocked", |job| drain(job, &a).pointer("/blocked").is_some()).await?;
    rig.delete_job("early").await?;
    rig.until_gone("early").await?;
    until_free(rig, &a, false).await?;
    rig.pass(Duration::from_secs(60)).await;
    ensure!(reboots(rig, &[&a]) == [0] && on(rig, &a).await.len() == 1);
    let b = bootable(rig, "b").await?;
    rig.world.returns(&b, Return::Never);
    create(rig, "late", reboot(&[&b], &json!({}), &json!({}))).await?;
    until_drained(rig, "late", &b).await?;
    let down = |entries: &[oarlock_sim::world::Entry]| entries.iter().any(|entry| entry.name == b);
    rig.world.ledger().until("it goes down", SETTLED, down).await?;
    rig.delete_job("late").await?;
    rig.until_gone("late").await?;
    until_free(rig, &b, false).await?;
    ensure!(reboots(rig, &[&b]) == [1]);
    Ok(())
}

/// Somebody takes the cordon off while the task cannot be made: what came to the node meanwhile goes before it reboots.
pub async fn a_node_whose_cordon_is_taken_off_is_drained_again_before_it_reboots(rig: &mut Rig) -> anyhow::Result<()> {
    let a = bootable(rig, "a").await?;
    begin(rig, REBOOT).await?;
    rig.running()?.wire.order(Order::all(Method::POST, "/pods", Then::Refuse(StatusCode::FORBIDDEN)));
    create(rig, "r", reboot(&[&a], &json!({}), &json!({}))).await?;
    until_drained(rig, "r", &a).await?;
    rig.until("r", "without its task", |job| job.target(&a) == "Processing/UpdateObjectFailed").await?;
    rig.kill_host("host").await?;
    cordon(rig, &a, false).await?;
    workload(rig, "web", 1).await?;
    let came = on(rig, &a).await;
    start(rig, REBOOT).await?;
    rig.until_progress("r", "Succeeded").await?;
    let entries = rig.world.ledger().entries();
    let evicted = entries.iter().position(|one| one.effect == Effect::PodEvicted && came.contains(&one.name));
    let down = entries.iter().position(|one| one.name == a);
    ensure!(came.len() == 1 && evicted.is_some() && evicted < down, "{came:?}: {entries:?}");
    ensure!(reboots(rig, &[&a]) == [1]);
    until_free(rig, &a, false).await
}

/// The host is killed again and again, each time a little later than the time before: every node reboots once.
pub async fn a_host_that_is_killed_again_and_again_reboots_each_node_once(rig: &mut Rig) -> anyhow::Result<()> {
    let mut names = Vec::new();
    for at in 0..4 {
        names.push(bootable(rig, &format!("n{at}")).await?);
    }
    workload(rig, "web", 4).await?;
    let all: Vec<&String> = names.iter().collect();
    begin(rig, REBOOT).await?;
    create(rig, "r", reboot(&all, &json!({}), &json!({"parallelism": 2}))).await?;
    for kill in 0..40u64 {
        tokio::time::sleep(Duration::from_millis(60 + 23 * kill)).await;
        let job = rig.jobs().get("r").await?;
        if job.progress() == "Succeeded" {
            break;
        }
        rig.kill_host("host").await?;
        start(rig, REBOOT).await?;
    }
    rig.until_progress("r", "Succeeded").await?;
    ensure!(reboots(rig, &all) == [1; 4], "{:?}", reboots(rig, &all));
    for name in all {
        until_free(rig, name, false).await?;
    }
    Ok(())
}

/// Of a second job on nodes that are rebooted by a first, each waits until that is done.
pub async fn of_two_jobs_that_reboot_one_node_each_does_once_it_has_the_node(rig: &mut Rig) -> anyhow::Result<()> {
    let a = bootable(rig, "a").await?;
    begin(rig, REBOOT).await?;
    create(rig, "first", reboot(&[&a], &json!({}), &json!({}))).await?;
    create(rig, "second", reboot(&[&a], &json!({}), &json!({}))).await?;
    rig.until_progress("first", "Succeeded").await?;
    rig.until_progress("second", "Succeeded").await?;
    ensure!(reboots(rig, &[&a]) == [2], "once for each job");
    until_free(rig, &a, false).await
}

/// Nodes are checked; those that take no pod, and those whose check says no, are named.
pub async fn nodes_are_checked_and_each_that_is_not_proven_healthy_fails(rig: &mut Rig) -> anyhow::Result<()> {
    let (good, down, kept) = (node(rig, "a", true).await?, node(rig, "b", true).await?, node(rig, "c", true).await?);
    set_ready(rig, &down, false).await?;
    cordon(rig, &kept, true).await?;
    begin(rig, PREFLIGHT).await?;
    let check = |script: &str, tolerate: bool, targets: &[&String]| {
        let targets: Vec<Value> = targets.iter().map(|name| json!({ "name": name })).collect();
        let parameters = json!({"image": "check:1", "script": script, "tolerateAll": tolerate});
        json!({"action": "preflight", "targetKind": "Node", "targets": targets, "parameters": parameters})
    };
    let all = [&good, &down, &kept];
    create(rig, "strict", check("# sim: message ok", false, &all)).await?;
    let job = rig.until_progress("strict", "Failed").await?;
    // The nodes of this scenario have a taint.
    let found = all.map(|name| job.target(name));
    ensure!(found == ["Failed/Unschedulable", "Failed/NodeNotReady", "Failed/Unschedulable"], "{:?}", job.targets());
    create(rig, "all", check("# sim: message ok", true, &all)).await?;
    let job = rig.until_progress("all", "Failed").await?;
    let found = all.map(|name| job.target(name));
    ensure!(found == ["Succeeded", "Failed/NodeNotReady", "Succeeded"], "{:?}", job.targets());
    create(rig, "exits", check("# sim: output bad disk\n# sim: exit 3", true, &[&good])).await?;
    let job = rig.until_progress("exits", "Failed").await?;
    ensure!(job.target(&good) == "Failed/CheckFailed", "{:?}", job.targets());
    let all_of = job.targets();
    let told = all_of.get(&good).and_then(|one| one.pointer("/error/message")?.as_str()).unwrap_or_default();
    ensure!(told.contains("exit code 3: bad disk"), "{told}");
    create(rig, "says", check("# sim: message {\"passed\": false, \"message\": \"no fan\"}", true, &[&good])).await?;
    let job = rig.until_progress("says", "Failed").await?;
    ensure!(job.target(&good) == "Failed/ReportedFailure", "{:?}", job.targets());
    Ok(())
}
