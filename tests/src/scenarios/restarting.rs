//! Hosts that end in the middle, two at once, and clocks that are wrong.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_core::job::time::before;
use oarlock_sim::world::{Pause, Scope};
use serde_json::{Value, json};

use super::ending::begun;
use super::{all_replaced, names, settled_collaset, settled_deployment};
use crate::components::component;
use crate::jobs::{Told, replace};
use crate::rig::{Rig, patiently};

fn time(value: Option<&Value>) -> anyhow::Result<Timestamp> {
    Ok(serde_json::from_value(value.cloned().context("no such time")?)?)
}

/// A16: the delay counts from the start of the target, whoever leads.
pub async fn a_delay_goes_on_over_a_restart(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_deployment(rig, 1).await?;
    rig.start_host().await?;
    rig.create_job("w", replace(&names(&pods), json!({"operationDelaySeconds": 10}))).await?;
    let job = rig.until("w", "begun", |job| job.count("processing") == 1).await?;
    let started = time(job.data.pointer("/status/targetDetails/0/startTime"))?;
    rig.pass(Duration::from_secs(8)).await;
    rig.restart_host().await?;
    let job = rig.until_progress("w", "Succeeded").await?;
    ensure!(time(job.data.pointer("/status/targetDetails/0/startTime"))? == started, "the start stays: {:?}", job.data);
    let leaving = rig.history().versions().into_iter().find(|version| {
        version.uid == pods.first().map(|(_, uid)| uid.clone()).unwrap_or_default()
            && version.at("/metadata/deletionTimestamp").is_string()
    });
    let leaving = leaving.context("the pod was seen terminating")?;
    let grace = leaving.at("/metadata/deletionGracePeriodSeconds").as_i64().unwrap_or(0);
    let evicted = before(time(Some(leaving.at("/metadata/deletionTimestamp")))?, SignedDuration::from_secs(grace));
    // A delay that began anew with the second host would be over after eighteen.
    ensure!((10..16).contains(&evicted.duration_since(started).as_secs()), "evicted {evicted}, started {started}");
    all_replaced(rig, &pods).await
}

/// A38: the next host finds the new pod although it never saw the old one.
pub async fn a_host_that_was_killed_after_an_eviction_finds_the_new_pod(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_deployment(rig, 3).await?;
    rig.start_host().await?;
    killed_after_eviction(rig, &pods).await
}

async fn killed_after_eviction(rig: &mut Rig, pods: &[(String, String)]) -> anyhow::Result<()> {
    rig.world.hold(Pause::Creation, Scope::World);
    rig.create_job("k", replace(&names(pods), json!({"TTLSecondsAfterFinished": 5}))).await?;
    let gone = |all: &[std::sync::Arc<k8s_openapi::api::core::v1::Pod>]| all.is_empty();
    rig.world.until("the pods to be evicted", super::SETTLED, gone).await?;
    rig.kill_host("host").await?;
    rig.world.release(Pause::Creation, Scope::World);
    rig.world.until("new pods", super::SETTLED, |all| all.len() == pods.len()).await?;
    rig.start(rig.host_named("host")).await?;
    let job = rig.until_progress("k", "Succeeded").await?;
    let new: std::collections::BTreeSet<String> = job
        .targets()
        .values()
        .filter_map(|target| Some(target.pointer("/extraInfo/NewPod")?.as_str()?.to_owned()))
        .collect();
    ensure!(new.len() == pods.len(), "{:?}", job.data);
    // What the host has to ask the API server first is no failure of the plugin.
    let visits = |outcome| rig.figure(&format!("plugin_visits_total{{plugin=\"replace\",outcome=\"{outcome}\"}}"));
    ensure!((visits("Deferred").is_some(), visits("Failed")) == (true, None), "{:?}", visits("Failed"));
    all_replaced(rig, pods).await
}

/// The marks of the first host are the second one's.
pub async fn a_host_that_was_killed_after_marking_finishes(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_collaset(rig, 3).await?;
    rig.world.hold(Pause::Creation, Scope::World);
    rig.start_host().await?;
    rig.create_job("k", replace(&names(&pods), json!({}))).await?;
    for (name, _) in &pods {
        begun(rig, name).await?;
    }
    rig.kill_host("host").await?;
    rig.world.release(Pause::Creation, Scope::World);
    rig.start_host().await?;
    rig.until_progress("k", "Succeeded").await?;
    all_replaced(rig, &pods).await
}

/// Two hosts run at once: one acts, and when it is killed the other one goes on.
pub async fn of_two_hosts_one_acts_and_the_other_takes_over(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_collaset(rig, 4).await?;
    let mut first = rig.host_named("first");
    first.lease = Duration::from_secs(6);
    rig.start(first).await?;
    patiently("the first leads", async || Ok(rig.running()?.leads())).await?;
    let mut second = rig.host_named("second");
    second.lease = Duration::from_secs(6);
    rig.start(second).await?;
    rig.create_job("two", replace(&names(&pods), json!({"partition": 2}))).await?;
    rig.until("two", "half done", |job| job.count("succeeded") == 2).await?;
    ensure!(!rig.running()?.leads() && rig.running()?.wire.records().is_empty(), "the second only watches");
    rig.world.hold(Pause::Creation, Scope::World);
    rig.edit_job("two", json!({"partition": 4})).await?;
    for (name, _) in pods.get(2..).unwrap_or_default() {
        begun(rig, name).await?;
    }
    rig.kill_host("first").await?;
    rig.world.release(Pause::Creation, Scope::World);
    let job = rig.until_progress("two", "Succeeded").await?;
    ensure!(rig.running()?.leads(), "the second leads");
    ensure!(job.data.pointer("/status/epoch") == Some(&json!(2)), "a term each: {:?}", job.data);
    all_replaced(rig, &pods).await
}

/// A45, ahead.
pub async fn a_clock_ten_minutes_ahead_changes_nothing(rig: &mut Rig) -> anyhow::Result<()> {
    with_a_wrong_clock(rig, SignedDuration::from_mins(10)).await
}

/// A45, behind.
pub async fn a_clock_ten_minutes_behind_changes_nothing(rig: &mut Rig) -> anyhow::Result<()> {
    with_a_wrong_clock(rig, SignedDuration::from_mins(-10)).await
}

/// Several pods of one set, a host killed after the evictions, and a time to live: all by the server's time.
async fn with_a_wrong_clock(rig: &mut Rig, ahead: SignedDuration) -> anyhow::Result<()> {
    let pods = settled_deployment(rig, 3).await?;
    rig.clock_ahead = ahead;
    rig.start_host().await?;
    killed_after_eviction(rig, &pods).await?;
    let seen = tokio::time::Instant::now();
    rig.until_gone("k").await?;
    // Whoever trusted its own clock would delete the job at once, or after ten more minutes.
    ensure!(seen.elapsed() >= Duration::from_secs(2), "gone after {:?}", seen.elapsed());
    Ok(())
}

/// A19: another edition of the plugin appears, and later the first one is lost.
pub async fn a_job_stays_on_the_plugin_it_began_with_until_that_is_lost(rig: &mut Rig) -> anyhow::Result<()> {
    let digest = |job: &kube::api::DynamicObject| job.data.pointer("/status/plugin/digest").cloned();
    let pods = settled_deployment(rig, 3).await?;
    rig.start_host().await?;
    rig.create_job("v", replace(&names(&pods), json!({"partition": 1}))).await?;
    let job = rig.until("v", "one done", |job| job.count("succeeded") == 1).await?;
    let first = digest(&job);
    let published = rig.running()?.host.plugins.publish("replace", component("replace+2")?).await;
    ensure!(published.is_some(), "the second edition is there");
    rig.edit_job("v", json!({"partition": 2})).await?;
    let job = rig.until("v", "two done", |job| job.count("succeeded") == 2).await?;
    ensure!(digest(&job) == first && rig.told_times("PluginRebound").await? == 0, "{:?}", job.data);
    rig.stop_host().await?;
    let mut begin = rig.host_named("host");
    begin.plugins = vec!["replace+2"];
    rig.start(begin).await?;
    rig.edit_job("v", json!({"partition": 3})).await?;
    let job = rig.until_progress("v", "Succeeded").await?;
    ensure!(first.is_some() && digest(&job).is_some_and(|second| Some(second) != first), "{:?}", job.data);
    rig.until_told("PluginRebound", 1).await?;
    all_replaced(rig, &pods).await
}
