//! Limits in a manifest and a grant: targets in flight, exclusive pods, and required parameters.

use std::time::Duration;

use anyhow::ensure;
use http::Method;
use oarlock_sim::world::{Pause, Scope, Version};
use serde_json::{Map, Value, json};

use super::ending::begun;
use super::{all_replaced, holds, names, settled_collaset};
use crate::components::{GRANTS, replace_with};
use crate::hosts::Begin;
use crate::jobs::{Told, replace};
use crate::test_cluster::TestCluster;
use oarlock_support::faults::Then;
use oarlock_support::interception::Interceptor;
use oarlock_support::orders::Order;

/// Starts a host that has the Replace plugin with a changed manifest.
async fn start_with(cluster: &mut TestCluster, change: impl FnOnce(&mut Map<String, Value>)) -> anyhow::Result<()> {
    start_on(cluster, cluster.host_named("host").interceptor, change).await
}

/// Starts such a host behind this interceptor.
async fn start_on(
    cluster: &mut TestCluster,
    interceptor: Interceptor,
    change: impl FnOnce(&mut Map<String, Value>),
) -> anyhow::Result<()> {
    let mut begin = Begin { interceptor, ..cluster.host_named("host") };
    begin.plugins.clear();
    cluster.start(begin).await?;
    let state = cluster.running()?.host.plugins.publish("replace", replace_with(change)?).await;
    ensure!(state.as_ref().is_some_and(|status| status.state == oarlock_wasm::PluginState::Serving), "{state:?}");
    Ok(())
}

/// Two jobs of one plugin never have more targets in flight than its grant allows, and both finish.
pub async fn targets_in_flight_stay_within_the_limit_of_the_grant(cluster: &mut TestCluster) -> anyhow::Result<()> {
    const MOST: u64 = 3;
    let pods = settled_collaset(cluster, 10).await?;
    let mut begin = cluster.host_named("host");
    begin.grants = format!("{GRANTS}  limits: {{targetsInFlight: {MOST}}}\n");
    cluster.start(begin).await?;
    for (name, part) in [("a", pods.get(..5)), ("b", pods.get(5..))] {
        cluster.create_job(name, replace(&names(part.unwrap_or_default()), json!({}))).await?;
    }
    for name in ["a", "b"] {
        cluster.until_progress(name, "Succeeded").await?;
    }
    let mut now = std::collections::BTreeMap::new();
    let mut most = 0;
    let ours = |version: &&Version| version.plural == "operationjobs" && version.namespace == cluster.namespace;
    for version in cluster.history().versions().iter().filter(ours) {
        now.insert(version.uid.clone(), version.at("/status/processingPodCount").as_u64().unwrap_or(0));
        most = most.max(now.values().sum());
    }
    ensure!(most == MOST, "{most} targets were in flight at once");
    all_replaced(cluster, &pods).await
}

/// A job that waits for its partition with nothing in flight leaves its capacity to other jobs.
pub async fn a_job_that_rests_leaves_its_room_to_others(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_collaset(cluster, 3).await?;
    let mut begin = cluster.host_named("host");
    begin.grants = format!("{GRANTS}  limits: {{targetsInFlight: 1}}\n");
    cluster.start(begin).await?;
    cluster.create_job("a", replace(&names(pods.get(..2).unwrap_or_default()), json!({"partition": 1}))).await?;
    cluster.create_job("b", replace(&names(pods.get(2..).unwrap_or_default()), json!({}))).await?;
    cluster.until("a", "at its partition", |job| job.count("succeeded") == 1).await?;
    let rests = tokio::time::Instant::now();
    cluster.until_progress("b", "Succeeded").await?;
    ensure!(rests.elapsed() < Duration::from_secs(60), "after {:?}", rests.elapsed());
    cluster.edit_job("a", json!({"partition": 2})).await?;
    cluster.until_progress("a", "Succeeded").await?;
    all_replaced(cluster, &pods).await
}

/// With an exclusive plugin, the second job's target waits until the first job releases the pod.
pub async fn an_exclusive_plugin_starts_no_pod_that_another_job_holds(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_collaset(cluster, 2).await?;
    cluster.world.hold(Pause::Creation, Scope::World);
    start_with(cluster, |manifest| drop(manifest.insert("exclusive".to_owned(), json!(true)))).await?;
    let first = names(pods.get(..1).unwrap_or_default());
    cluster.create_job("a", replace(&first, json!({}))).await?;
    begun(cluster, &first.join("")).await?;
    cluster.create_job("b", replace(&names(&pods), json!({}))).await?;
    let job = cluster.until("b", "one in flight", |job| job.count("processing") == 1).await?;
    ensure!(job.target(&first.join("")) == "Pending", "{:?}", job.data);
    cluster.pass(Duration::from_secs(120)).await;
    ensure!(cluster.jobs().get("b").await?.count("pending") == 1, "it still waits");
    cluster.delete_job("a").await?;
    cluster.until_gone("a").await?;
    cluster.until("b", "both in flight", |job| job.count("processing") == 2).await?;
    cluster.until_pod(&first.join(""), "held by one", |pod| holds(pod) == 1).await?;
    cluster.world.release(Pause::Creation, Scope::World);
    cluster.until_progress("b", "Succeeded").await?;
    all_replaced(cluster, &pods).await
}

/// If two jobs of an exclusive plugin begin on one pod at the same moment, one job waits before either holds the pod.
pub async fn of_two_jobs_that_begin_on_one_pod_at_once_an_exclusive_plugin_takes_one(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let pods = settled_collaset(cluster, 1).await?;
    cluster.world.hold(Pause::Creation, Scope::World);
    let target = names(&pods);
    let jobs = ["a", "b"];
    for job in jobs {
        cluster.create_job(job, replace(&target, json!({}))).await?;
    }
    // The host plans both jobs before the record of either job is durable.
    let interceptor = cluster.host_named("host").interceptor;
    interceptor
        .order(Order::all(Method::PATCH, "/operationjobs/", Then::Delay(Duration::from_millis(50))).after_commit());
    start_on(cluster, interceptor, |manifest| drop(manifest.insert("exclusive".to_owned(), json!(true)))).await?;
    begun(cluster, &target.join("")).await?;
    cluster.pass(Duration::from_secs(120)).await;
    let mut flight = Vec::new();
    for job in jobs {
        flight.extend((cluster.jobs().get(job).await?.count("processing") == 1).then_some(job));
    }
    let [first] = flight.as_slice() else { anyhow::bail!("in flight: {flight:?}") };
    cluster.until_pod(&target.join(""), "held by one", |pod| holds(pod) == 1).await?;
    cluster.delete_job(first).await?;
    cluster.until_gone(first).await?;
    let other = if *first == "a" { "b" } else { "a" };
    cluster.until(other, "in flight", |job| job.count("processing") == 1).await?;
    cluster.world.release(Pause::Creation, Scope::World);
    cluster.until_progress(other, "Succeeded").await?;
    all_replaced(cluster, &pods).await
}

/// A5: the job names a required parameter that it lacks.
pub async fn a_parameter_that_is_required_and_missing_is_named(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_collaset(cluster, 1).await?;
    let required = |manifest: &mut Map<String, Value>| {
        let schema = manifest.get_mut("parameters").and_then(Value::as_object_mut);
        schema.into_iter().for_each(|schema| drop(schema.insert("required".to_owned(), json!(["strategy"]))));
    };
    start_with(cluster, required).await?;
    cluster.create_job("q", replace(&names(&pods), json!({}))).await?;
    let job = cluster.until("q", "refused", |job| job.condition("Valid") == "False/ParametersInvalid").await?;
    ensure!(job.condition_message("Valid").contains("strategy"), "{}", job.condition_message("Valid"));
    cluster.delete_job("q").await?;
    cluster.until_gone("q").await?;
    cluster.until_nothing_is_left().await
}
