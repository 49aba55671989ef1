//! DaemonJobs on many nodes: slots that hold whatever kills the host, failures that are tolerated up to a share, and nodes that
//! cannot be reached or are kept apart.

#![expect(clippy::indexing_slicing, reason = "a test fails loudly")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Method;
use k8s_openapi::api::batch::v1::Job;
use kube::api::{ApiResource, DeleteParams};
use oarlock_bed::faults::Then;
use oarlock_bed::orders::{Latch, Order};
use oarlock_sim::Random;
use oarlock_sim::world::{History, Pause, Scope, Version};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::daemons::spec;
use super::on_nodes::{RESERVED, change, cordon, node, set_ready};
use crate::flows::{begin, prepare, unit};
use crate::rig::{Ground, Rig, patiently};

const DAEMON: &str = "DaemonJob";
/// Time in which a held request of the host comes; if none does, the host is killed as it is.
const HELD_WITHIN: Duration = Duration::from_secs(2);

fn is_sim(rig: &Rig) -> bool {
    matches!(rig.ground, Ground::Sim(_))
}

/// So many nodes of this scenario.
async fn many(rig: &Rig, count: usize) -> anyhow::Result<Vec<String>> {
    let names: Vec<String> = (0..count).map(|number| format!("n{number:04}")).collect();
    let made = names.iter().map(|name| node(rig, name, true)).collect::<Vec<_>>();
    stream::iter(made).buffered(16).try_collect().await
}

/// What the versions of all Jobs of a namespace show.
#[derive(Default)]
struct Seen {
    undecided: BTreeSet<String>,
    most: usize,
    /// UIDs by name.
    made: BTreeMap<String, BTreeSet<String>>,
}

impl Seen {
    fn of(versions: &[Version], namespace: &str) -> Self {
        let mut seen = Self::default();
        for version in versions.iter().filter(|version| version.namespace == namespace) {
            seen.made.entry(version.name.clone()).or_default().insert(version.uid.clone());
            if version.is_end || is_decided(version) {
                seen.undecided.remove(&version.name);
            } else {
                seen.undecided.insert(version.name.clone());
            }
            seen.most = seen.most.max(seen.undecided.len());
        }
        seen
    }
}

fn is_decided(job: &Version) -> bool {
    let conditions = job.at("/status/conditions").as_array().into_iter().flatten();
    conditions.into_iter().any(|one| (one["type"] == "Complete" || one["type"] == "Failed") && one["status"] == "True")
}

/// Kills the host at a moment that is drawn: at any time, before one of its writes, or after the server has made it.
async fn kill_anywhere(rig: &mut Rig, random: &mut Random) -> anyhow::Result<()> {
    let wire = rig.running()?.wire.clone();
    let latch = Latch::default();
    let (method, part) = if random.up_to(2) == 0 { (Method::PATCH, "/status") } else { (Method::POST, "/jobs") };
    let order = Order::next(method, part, Then::Hold(latch.clone()));
    match random.up_to(2) {
        0 => tokio::time::sleep(Duration::from_millis(random.up_to(1_000))).await,
        1 => {
            wire.order(order);
            // Where none comes in time, it dies between two writes.
            let _ = timeout(HELD_WITHIN, latch.caught()).await;
        }
        _ => {
            wire.order(order.after_commit());
            let _ = timeout(HELD_WITHIN, latch.caught()).await;
        }
    }
    rig.restart_host().await
}

/// No more Jobs than a tenth of the nodes are undecided at any moment, and each node has one, whenever the host dies.
pub async fn a_tenth_of_the_nodes_at_once_holds_over_many_deaths_of_the_host(rig: &mut Rig) -> anyhow::Result<()> {
    prepare(rig).await?;
    let (count, kills) = if is_sim(rig) { (1_000, 20) } else { (200, 5) };
    let nodes = many(rig, count).await?;
    let jobs = History::record(&rig.client, vec![ApiResource::erase::<Job>(&())]);
    rig.start_host().await?;
    rig.create_flow(DAEMON, "d", spec(rig, "sleep 4", json!({"concurrency": "10%"}))).await?;
    let mut random = Random::seeded(31);
    for kill in 0..kills {
        tokio::time::sleep(Duration::from_millis(random.up_to(1_000))).await;
        kill_anywhere(rig, &mut random).await?;
        let left = count.saturating_sub(rig.batch_job_names().await?.len());
        ensure!(left > 0, "all Jobs are there before kill {kill}: it shows nothing");
    }
    let daemon = rig.until_state(DAEMON, "d", "Succeed").await?;
    let all_ended = |versions: &[Version]| {
        let seen = Seen::of(versions, &rig.namespace);
        seen.made.len() == count && seen.undecided.is_empty()
    };
    jobs.until("every Job is seen to end", super::HEARD, all_ended).await?;
    let seen = Seen::of(&jobs.versions(), &rig.namespace);
    ensure!(jobs.gaps().is_empty(), "{:?}", jobs.gaps());
    ensure!(seen.most <= count / 10, "{} were undecided at once", seen.most);
    let wanted: BTreeSet<String> = nodes.iter().map(|node| format!("d-{node}")).collect();
    ensure!(seen.made.keys().cloned().collect::<BTreeSet<_>>() == wanted, "{:?}", seen.made.keys());
    ensure!(seen.made.values().all(|uids| uids.len() == 1), "one node has had two Jobs: {:?}", seen.made);
    ensure!(daemon.pointer("/status/counts/succeeded") == Some(&json!(count)), "{:#}", daemon["status"]["counts"]);
    ensure!(seen.most > count / 20, "only {} were undecided at once: it shows nothing", seen.most);
    Ok(())
}

/// Deletes so many running Jobs of a DaemonJob.
async fn lose(rig: &Rig, daemon: &str, count: usize) -> anyhow::Result<()> {
    let of = format!("{daemon}-");
    for name in rig.batch_job_names().await?.iter().filter(|name| name.starts_with(&of)).take(count) {
        rig.batch_jobs().delete(name, &DeleteParams::background()).await?;
    }
    Ok(())
}

/// Of a share of failures as many are tolerated as it is rounded down, and with one more the DaemonJob has failed.
pub async fn a_hundredth_of_the_nodes_may_fail_and_no_more(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let count = if is_sim(rig) { 1_000 } else { 150 };
    many(rig, count).await?;
    let tolerated = count / 100;
    let rollout = json!({"failurePolicy": {"type": "Continue", "maxFailures": "1%"}});
    for (name, failures, state) in [("just", tolerated, "Succeed"), ("over", tolerated + 1, "Failed")] {
        let seconds = if is_sim(rig) { 60 } else { 15 };
        rig.create_flow(DAEMON, name, spec(rig, &format!("sleep {seconds}"), rollout.clone())).await?;
        let of = format!("{name}-");
        patiently("all Jobs are there", async || {
            Ok(rig.batch_job_names().await?.iter().filter(|job| job.starts_with(&of)).count() == count)
        })
        .await?;
        lose(rig, name, failures).await?;
        let daemon = rig.until_completed(DAEMON, name).await?;
        let counts = &daemon["status"]["counts"];
        let failed = counts["failed"].as_u64().and_then(|failed| usize::try_from(failed).ok());
        ensure!(failed == Some(failures) && counts["desired"] == json!(count), "{counts:#}");
        ensure!(daemon["status"]["state"] == json!(state), "{failures} of {count} failed: {counts:#}");
    }
    Ok(())
}

fn created(job: &Job) -> anyhow::Result<k8s_openapi::jiff::Timestamp> {
    Ok(job.metadata.creation_timestamp.as_ref().context("it has a time of creation")?.0)
}

/// A node that cannot be reached never confirms the end of its pod; its run has failed and its slot is free all the same.
pub async fn a_node_that_cannot_be_reached_frees_its_slot(rig: &mut Rig) -> anyhow::Result<()> {
    // An end that is announced counts after a minute.
    let (limit, within) = if is_sim(rig) { (60, 130) } else { (5, 75) };
    begin(rig).await?;
    let (lost, next) = (node(rig, "a", true).await?, node(rig, "b", true).await?);
    rig.world.hold(Pause::Termination, Scope::World);
    let rollout = json!({"concurrency": 1, "nodeTimeoutSeconds": limit, "failurePolicy": {"type": "Continue"}});
    rig.create_flow(DAEMON, "d", spec(rig, "sleep 900", rollout)).await?;
    rig.until_flow((DAEMON, "d"), "the first runs", |daemon| unit(daemon, &lost) == "Running").await?;
    set_ready(rig, &lost, false).await?;
    let (first, second) = (format!("d-{lost}"), format!("d-{next}"));
    patiently("its slot is free", async || Ok(rig.batch_jobs().get_opt(&second).await?.is_some())).await?;
    let (first, second) = (rig.batch_jobs().get(&first).await?, rig.batch_jobs().get(&second).await?);
    let waited = created(&second)?.duration_since(created(&first)?).as_secs();
    ensure!((limit..=within).contains(&waited), "the slot was free after {waited} s");
    let ended = first.status.as_ref().and_then(|status| status.conditions.as_ref());
    ensure!(!ended.into_iter().flatten().any(|one| one.type_ == "Failed"), "nobody confirmed its end: {ended:?}");
    let daemon =
        rig.until_flow((DAEMON, "d"), "the first failed", |one| unit(one, &lost).starts_with("Failed")).await?;
    ensure!(unit(&daemon, &lost) == "Failed/DeadlineExceeded", "{daemon:#}");
    rig.world.release(Pause::Termination, Scope::World);
    let daemon = rig.until_completed(DAEMON, "d").await?;
    ensure!(daemon["status"]["state"] == "Failed" && daemon["status"]["counts"]["failed"] == 2, "{daemon:#}");
    Ok(())
}

/// Cordoned and tainted nodes have their Jobs unless the DaemonJob leaves them out.
pub async fn cordoned_and_tainted_nodes_are_left_out_where_asked_for(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let [plain, cordoned, tainted] =
        [node(rig, "a", true).await?, node(rig, "b", true).await?, node(rig, "c", true).await?];
    cordon(rig, &cordoned, true).await?;
    let taints = [RESERVED, "scenarios.test/tainted"].map(|key| json!({"key": key, "effect": "NoSchedule"}));
    change(rig, &tainted, json!({"spec": {"taints": taints}})).await?;
    let tolerant = |rollout: Value| {
        let mut spec = spec(rig, "true", rollout);
        spec["template"]["spec"]["tolerations"] = json!([{"key": RESERVED, "operator": "Exists"}]);
        spec
    };
    rig.create_flow(DAEMON, "all", tolerant(json!({}))).await?;
    rig.create_flow(DAEMON, "few", tolerant(json!({"taints": "Respect", "skipCordoned": true}))).await?;
    rig.until_state(DAEMON, "all", "Succeed").await?;
    rig.until_state(DAEMON, "few", "Succeed").await?;
    let wanted = [&plain, &cordoned, &tainted].map(|node| format!("all-{node}"));
    let wanted: Vec<String> = wanted.into_iter().chain([format!("few-{plain}")]).collect();
    ensure!(rig.batch_job_names().await? == wanted);
    Ok(())
}
