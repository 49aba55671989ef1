//! Hosts that are killed midway, two hosts at once, and wrong clocks.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_core::object::time::before;
use oarlock_sim::world::{Pause, Scope};
use serde_json::{Value, json};

use super::ending::begun;
use super::{all_replaced, names, settled_collaset, settled_deployment};
use crate::components::component;
use crate::jobs::{Told, replace};
use crate::test_cluster::{TestCluster, patiently};

fn time(value: Option<&Value>) -> anyhow::Result<Timestamp> {
    Ok(serde_json::from_value(value.cloned().context("no such time")?)?)
}

/// A16: the delay counts from the start of the target, even if another host leads.
pub async fn a_delay_goes_on_over_a_restart(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_deployment(cluster, 1).await?;
    cluster.start_host().await?;
    cluster.create_job("w", replace(&names(&pods), json!({"operationDelaySeconds": 10}))).await?;
    let job = cluster.until("w", "begun", |job| job.count("processing") == 1).await?;
    let started = time(job.data.pointer("/status/targetDetails/0/startTime"))?;
    cluster.pass(Duration::from_secs(8)).await;
    cluster.restart_host().await?;
    let job = cluster.until_progress("w", "Succeeded").await?;
    ensure!(time(job.data.pointer("/status/targetDetails/0/startTime"))? == started, "the start stays: {:?}", job.data);
    let leaving = cluster.history().versions().into_iter().find(|version| {
        version.uid == pods.first().map(|(_, uid)| uid.clone()).unwrap_or_default()
            && version.at("/metadata/deletionTimestamp").is_string()
    });
    let leaving = leaving.context("the pod was seen terminating")?;
    let grace = leaving.at("/metadata/deletionGracePeriodSeconds").as_i64().unwrap_or(0);
    let evicted = before(time(Some(leaving.at("/metadata/deletionTimestamp")))?, SignedDuration::from_secs(grace));
    // A delay that restarted with the second host would end after eighteen seconds.
    ensure!((10..16).contains(&evicted.duration_since(started).as_secs()), "evicted {evicted}, started {started}");
    all_replaced(cluster, &pods).await
}

/// A38: the next host finds the new pod although it never saw the old one.
pub async fn a_host_that_was_killed_after_an_eviction_finds_the_new_pod(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let pods = settled_deployment(cluster, 3).await?;
    cluster.start_host().await?;
    killed_after_eviction(cluster, &pods).await
}

async fn killed_after_eviction(cluster: &mut TestCluster, pods: &[(String, String)]) -> anyhow::Result<()> {
    cluster.world.hold(Pause::Creation, Scope::World);
    cluster.create_job("k", replace(&names(pods), json!({"TTLSecondsAfterFinished": 5}))).await?;
    let gone = |all: &[std::sync::Arc<k8s_openapi::api::core::v1::Pod>]| all.is_empty();
    cluster.world.until("the pods to be evicted", super::SETTLED, gone).await?;
    cluster.kill_host("host").await?;
    cluster.world.release(Pause::Creation, Scope::World);
    cluster.world.until("new pods", super::SETTLED, |all| all.len() == pods.len()).await?;
    cluster.start(cluster.host_named("host")).await?;
    let job = cluster.until_progress("k", "Succeeded").await?;
    let new: std::collections::BTreeSet<String> = job
        .targets()
        .values()
        .filter_map(|target| Some(target.pointer("/extraInfo/NewPod")?.as_str()?.to_owned()))
        .collect();
    ensure!(new.len() == pods.len(), "{:?}", job.data);
    // A visit that needs a live read first is deferred. It is no failure of the plugin.
    let visits = |outcome| cluster.figure(&format!("plugin_visits_total{{plugin=\"replace\",outcome=\"{outcome}\"}}"));
    ensure!(visits("Deferred") > Some(0) && visits("Failed") == Some(0), "{:?}", visits("Failed"));
    all_replaced(cluster, pods).await
}

/// If two hosts run at once, one acts, and the other goes on when the first is killed.
pub async fn of_two_hosts_one_acts_and_the_other_takes_over(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_collaset(cluster, 4).await?;
    let mut first = cluster.host_named("first");
    first.lease = Duration::from_secs(6);
    cluster.start(first).await?;
    patiently("the first leads", async || Ok(cluster.running()?.leads())).await?;
    let mut second = cluster.host_named("second");
    second.lease = Duration::from_secs(6);
    cluster.start(second).await?;
    cluster.create_job("two", replace(&names(&pods), json!({"partition": 2}))).await?;
    cluster.until("two", "half done", |job| job.count("succeeded") == 2).await?;
    ensure!(
        !cluster.running()?.leads() && cluster.running()?.interceptor.records().is_empty(),
        "the second only watches"
    );
    cluster.world.hold(Pause::Creation, Scope::World);
    cluster.edit_job("two", json!({"partition": 4})).await?;
    for (name, _) in pods.get(2..).unwrap_or_default() {
        begun(cluster, name).await?;
    }
    cluster.kill_host("first").await?;
    cluster.world.release(Pause::Creation, Scope::World);
    let job = cluster.until_progress("two", "Succeeded").await?;
    ensure!(cluster.running()?.leads(), "the second leads");
    ensure!(job.data.pointer("/status/epoch") == Some(&json!(2)), "a term each: {:?}", job.data);
    all_replaced(cluster, &pods).await
}

/// A45: a clock that is ahead changes nothing.
pub async fn a_clock_ten_minutes_ahead_changes_nothing(cluster: &mut TestCluster) -> anyhow::Result<()> {
    with_a_wrong_clock(cluster, SignedDuration::from_mins(10)).await
}

/// A45: a clock that is behind changes nothing.
pub async fn a_clock_ten_minutes_behind_changes_nothing(cluster: &mut TestCluster) -> anyhow::Result<()> {
    with_a_wrong_clock(cluster, SignedDuration::from_mins(-10)).await
}

/// Runs several pods of one set, a host that is killed after the evictions, and a time to live. All must follow the server's time.
async fn with_a_wrong_clock(cluster: &mut TestCluster, ahead: SignedDuration) -> anyhow::Result<()> {
    let pods = settled_deployment(cluster, 3).await?;
    cluster.clock_ahead = ahead;
    cluster.start_host().await?;
    killed_after_eviction(cluster, &pods).await?;
    let seen = tokio::time::Instant::now();
    cluster.until_gone("k").await?;
    // A host that trusted its own clock would delete the job at once, or ten minutes later.
    ensure!(seen.elapsed() >= Duration::from_secs(2), "gone after {:?}", seen.elapsed());
    Ok(())
}

/// A19: a job keeps its plugin when another edition appears, and changes to it only when the first edition is lost.
pub async fn a_job_stays_on_the_plugin_it_began_with_until_that_is_lost(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let digest = |job: &kube::api::DynamicObject| job.data.pointer("/status/plugin/digest").cloned();
    let pods = settled_deployment(cluster, 3).await?;
    cluster.start_host().await?;
    cluster.create_job("v", replace(&names(&pods), json!({"partition": 1}))).await?;
    let job = cluster.until("v", "one done", |job| job.count("succeeded") == 1).await?;
    let first = digest(&job);
    let published = cluster.running()?.host.plugins.publish("replace", component("replace+2")?).await;
    ensure!(published.is_some(), "the second edition is there");
    cluster.edit_job("v", json!({"partition": 2})).await?;
    let job = cluster.until("v", "two done", |job| job.count("succeeded") == 2).await?;
    ensure!(digest(&job) == first && cluster.told_times("PluginRebound").await? == 0, "{:?}", job.data);
    cluster.stop_host().await?;
    let mut begin = cluster.host_named("host");
    begin.plugins = vec!["replace+2"];
    cluster.start(begin).await?;
    cluster.edit_job("v", json!({"partition": 3})).await?;
    let job = cluster.until_progress("v", "Succeeded").await?;
    ensure!(first.is_some() && digest(&job).is_some_and(|second| Some(second) != first), "{:?}", job.data);
    cluster.until_told("PluginRebound", 1).await?;
    all_replaced(cluster, &pods).await
}
