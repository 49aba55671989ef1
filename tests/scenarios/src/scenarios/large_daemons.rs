//! DaemonJobs on many nodes: the limit of Jobs at once across kills of the host, a tolerated share of failures, and nodes
//! that are unreachable, cordoned or tainted.

#![expect(clippy::indexing_slicing, reason = "a test fails loudly")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Method;
use k8s_openapi::api::batch::v1::Job;
use kube::api::{ApiResource, DeleteParams};
use oarlock_sim::Random;
use oarlock_sim::world::{History, Pause, Scope, Version};
use oarlock_support::faults::Then;
use oarlock_support::orders::{Latch, Order};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::daemons::spec;
use super::on_nodes::{RESERVED, change, cordon, node, set_ready};
use crate::flows::{begin, prepare, unit};
use crate::test_cluster::{Backend, TestCluster, patiently};

const DAEMON: &str = "DaemonJob";
/// The longest wait for a request to hold. If none comes, the host is killed without one.
const HELD_WITHIN: Duration = Duration::from_secs(2);

fn is_sim(cluster: &TestCluster) -> bool {
    matches!(cluster.backend, Backend::Sim(_))
}

/// Creates this many nodes of this scenario.
async fn many(cluster: &TestCluster, count: usize) -> anyhow::Result<Vec<String>> {
    let names: Vec<String> = (0..count).map(|number| format!("n{number:04}")).collect();
    let made = names.iter().map(|name| node(cluster, name, true)).collect::<Vec<_>>();
    stream::iter(made).buffered(16).try_collect().await
}

/// The sums over the versions of all Jobs of a namespace.
#[derive(Default)]
struct Seen {
    undecided: BTreeSet<String>,
    most: usize,
    /// The UIDs of the Jobs, by name.
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

/// Kills and restarts the host at a random moment: at any time, before one of its writes, or after the server has committed the write.
async fn kill_anywhere(cluster: &mut TestCluster, random: &mut Random) -> anyhow::Result<()> {
    let interceptor = cluster.running()?.interceptor.clone();
    let latch = Latch::default();
    let (method, part) = if random.up_to(2) == 0 { (Method::PATCH, "/status") } else { (Method::POST, "/jobs") };
    let order = Order::next(method, part, Then::Hold(latch.clone()));
    match random.up_to(2) {
        0 => tokio::time::sleep(Duration::from_millis(random.up_to(1_000))).await,
        1 => {
            interceptor.order(order);
            // If no write comes in time, the host dies between two writes.
            let _ = timeout(HELD_WITHIN, latch.caught()).await;
        }
        _ => {
            interceptor.order(order.after_commit());
            let _ = timeout(HELD_WITHIN, latch.caught()).await;
        }
    }
    cluster.restart_host().await
}

/// At most a tenth of the nodes have an unfinished Job at any moment, and each node gets one Job, whenever the host dies.
pub async fn a_tenth_of_the_nodes_at_once_holds_over_many_deaths_of_the_host(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    prepare(cluster).await?;
    let (count, kills) = if is_sim(cluster) { (1_000, 20) } else { (200, 5) };
    let nodes = many(cluster, count).await?;
    let jobs = History::record(&cluster.client, vec![ApiResource::erase::<Job>(&())]);
    cluster.start_host().await?;
    cluster.create_flow(DAEMON, "d", spec(cluster, "sleep 4", json!({"concurrency": "10%"}))).await?;
    let mut random = Random::seeded(31);
    for kill in 0..kills {
        tokio::time::sleep(Duration::from_millis(random.up_to(1_000))).await;
        kill_anywhere(cluster, &mut random).await?;
        let left = count.saturating_sub(cluster.batch_job_names().await?.len());
        ensure!(left > 0, "all Jobs are there before kill {kill}: it shows nothing");
    }
    let daemon = cluster.until_state(DAEMON, "d", "Succeed").await?;
    let all_ended = |versions: &[Version]| {
        let seen = Seen::of(versions, &cluster.namespace);
        seen.made.len() == count && seen.undecided.is_empty()
    };
    jobs.until("every Job is seen to end", super::HEARD, all_ended).await?;
    let seen = Seen::of(&jobs.versions(), &cluster.namespace);
    ensure!(jobs.gaps().is_empty(), "{:?}", jobs.gaps());
    ensure!(seen.most <= count / 10, "{} were undecided at once", seen.most);
    let wanted: BTreeSet<String> = nodes.iter().map(|node| format!("d-{node}")).collect();
    ensure!(seen.made.keys().cloned().collect::<BTreeSet<_>>() == wanted, "{:?}", seen.made.keys());
    ensure!(seen.made.values().all(|uids| uids.len() == 1), "one node has had two Jobs: {:?}", seen.made);
    ensure!(daemon.pointer("/status/counts/succeeded") == Some(&json!(count)), "{:#}", daemon["status"]["counts"]);
    ensure!(seen.most > count / 20, "only {} were undecided at once: it shows nothing", seen.most);
    Ok(())
}

/// Deletes this many running Jobs of a DaemonJob.
async fn lose(cluster: &TestCluster, daemon: &str, count: usize) -> anyhow::Result<()> {
    let of = format!("{daemon}-");
    for name in cluster.batch_job_names().await?.iter().filter(|name| name.starts_with(&of)).take(count) {
        cluster.batch_jobs().delete(name, &DeleteParams::background()).await?;
    }
    Ok(())
}

/// A percentage of tolerated failures is rounded down. With one more failure the DaemonJob fails.
pub async fn a_hundredth_of_the_nodes_may_fail_and_no_more(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    let count = if is_sim(cluster) { 1_000 } else { 150 };
    many(cluster, count).await?;
    let tolerated = count / 100;
    let rollout = json!({"failurePolicy": {"type": "Continue", "maxFailures": "1%"}});
    for (name, failures, state) in [("just", tolerated, "Succeed"), ("over", tolerated + 1, "Failed")] {
        let seconds = if is_sim(cluster) { 60 } else { 15 };
        cluster.create_flow(DAEMON, name, spec(cluster, &format!("sleep {seconds}"), rollout.clone())).await?;
        let of = format!("{name}-");
        patiently("all Jobs are there", async || {
            Ok(cluster.batch_job_names().await?.iter().filter(|job| job.starts_with(&of)).count() == count)
        })
        .await?;
        lose(cluster, name, failures).await?;
        let daemon = cluster.until_completed(DAEMON, name).await?;
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

/// An unreachable node never confirms the end of its pod. Its Job still counts as failed, and another node may start.
pub async fn a_node_that_cannot_be_reached_frees_its_slot(cluster: &mut TestCluster) -> anyhow::Result<()> {
    // A Job that is about to fail counts as failed after a minute.
    let (limit, within) = if is_sim(cluster) { (60, 130) } else { (5, 75) };
    begin(cluster).await?;
    let (lost, next) = (node(cluster, "a", true).await?, node(cluster, "b", true).await?);
    cluster.world.hold(Pause::Termination, Scope::World);
    let rollout = json!({"concurrency": 1, "nodeTimeoutSeconds": limit, "failurePolicy": {"type": "Continue"}});
    cluster.create_flow(DAEMON, "d", spec(cluster, "sleep 900", rollout)).await?;
    cluster.until_flow((DAEMON, "d"), "the first runs", |daemon| unit(daemon, &lost) == "Running").await?;
    set_ready(cluster, &lost, false).await?;
    let (first, second) = (format!("d-{lost}"), format!("d-{next}"));
    patiently("its slot is free", async || Ok(cluster.batch_jobs().get_opt(&second).await?.is_some())).await?;
    let (first, second) = (cluster.batch_jobs().get(&first).await?, cluster.batch_jobs().get(&second).await?);
    let waited = created(&second)?.duration_since(created(&first)?).as_secs();
    ensure!((limit..=within).contains(&waited), "the slot was free after {waited} s");
    let ended = first.status.as_ref().and_then(|status| status.conditions.as_ref());
    ensure!(!ended.into_iter().flatten().any(|one| one.type_ == "Failed"), "nobody confirmed its end: {ended:?}");
    let daemon =
        cluster.until_flow((DAEMON, "d"), "the first failed", |one| unit(one, &lost).starts_with("Failed")).await?;
    ensure!(unit(&daemon, &lost) == "Failed/DeadlineExceeded", "{daemon:#}");
    cluster.world.release(Pause::Termination, Scope::World);
    let daemon = cluster.until_completed(DAEMON, "d").await?;
    ensure!(daemon["status"]["state"] == "Failed" && daemon["status"]["counts"]["failed"] == 2, "{daemon:#}");
    Ok(())
}

/// Cordoned and tainted nodes get their Jobs unless the DaemonJob excludes them.
pub async fn cordoned_and_tainted_nodes_are_left_out_where_asked_for(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    let [plain, cordoned, tainted] =
        [node(cluster, "a", true).await?, node(cluster, "b", true).await?, node(cluster, "c", true).await?];
    cordon(cluster, &cordoned, true).await?;
    let taints = [RESERVED, "scenarios.test/tainted"].map(|key| json!({"key": key, "effect": "NoSchedule"}));
    change(cluster, &tainted, json!({"spec": {"taints": taints}})).await?;
    let tolerant = |rollout: Value| {
        let mut spec = spec(cluster, "true", rollout);
        spec["template"]["spec"]["tolerations"] = json!([{"key": RESERVED, "operator": "Exists"}]);
        spec
    };
    cluster.create_flow(DAEMON, "all", tolerant(json!({}))).await?;
    cluster.create_flow(DAEMON, "few", tolerant(json!({"taints": "Respect", "skipCordoned": true}))).await?;
    cluster.until_state(DAEMON, "all", "Succeed").await?;
    cluster.until_state(DAEMON, "few", "Succeed").await?;
    let wanted = [&plain, &cordoned, &tainted].map(|node| format!("all-{node}"));
    let wanted: Vec<String> = wanted.into_iter().chain([format!("few-{plain}")]).collect();
    ensure!(cluster.batch_job_names().await? == wanted);
    Ok(())
}
