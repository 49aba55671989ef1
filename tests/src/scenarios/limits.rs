//! What a manifest and a grant limit: targets in flight, who may share a pod, and kinds of targets.

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
use crate::rig::Rig;
use oarlock_bed::faults::Then;
use oarlock_bed::interception::Interceptor;
use oarlock_bed::orders::Order;

/// A host with the Replace plugin, its manifest changed.
async fn start_with(rig: &mut Rig, change: impl FnOnce(&mut Map<String, Value>)) -> anyhow::Result<()> {
    start_on(rig, rig.host_named("host").wire, change).await
}

/// The same, on this wire.
async fn start_on(
    rig: &mut Rig,
    wire: Interceptor,
    change: impl FnOnce(&mut Map<String, Value>),
) -> anyhow::Result<()> {
    let mut begin = Begin { wire, ..rig.host_named("host") };
    begin.plugins.clear();
    rig.start(begin).await?;
    let state = rig.running()?.host.plugins.publish("replace", replace_with(change)?).await;
    ensure!(state.as_ref().is_some_and(|status| status.state == oarlock_wasm::PluginState::Serving), "{state:?}");
    Ok(())
}

/// Two jobs of one plugin never have more targets in flight than its grant allows, and both finish.
pub async fn targets_in_flight_stay_within_the_limit_of_the_grant(rig: &mut Rig) -> anyhow::Result<()> {
    const MOST: u64 = 3;
    let pods = settled_collaset(rig, 10).await?;
    let mut begin = rig.host_named("host");
    begin.grants = format!("{GRANTS}  limits: {{targetsInFlight: {MOST}}}\n");
    rig.start(begin).await?;
    for (name, part) in [("a", pods.get(..5)), ("b", pods.get(5..))] {
        rig.create_job(name, replace(&names(part.unwrap_or_default()), json!({}))).await?;
    }
    for name in ["a", "b"] {
        rig.until_progress(name, "Succeeded").await?;
    }
    let mut now = std::collections::BTreeMap::new();
    let mut most = 0;
    let ours = |version: &&Version| version.plural == "operationjobs" && version.namespace == rig.namespace;
    for version in rig.history().versions().iter().filter(ours) {
        now.insert(version.uid.clone(), version.at("/status/processingPodCount").as_u64().unwrap_or(0));
        most = most.max(now.values().sum());
    }
    ensure!(most == MOST, "{most} targets were in flight at once");
    all_replaced(rig, &pods).await
}

/// A job that waits for its partition with nothing in flight leaves its room to others.
pub async fn a_job_that_rests_leaves_its_room_to_others(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_collaset(rig, 3).await?;
    let mut begin = rig.host_named("host");
    begin.grants = format!("{GRANTS}  limits: {{targetsInFlight: 1}}\n");
    rig.start(begin).await?;
    rig.create_job("a", replace(&names(pods.get(..2).unwrap_or_default()), json!({"partition": 1}))).await?;
    rig.create_job("b", replace(&names(pods.get(2..).unwrap_or_default()), json!({}))).await?;
    rig.until("a", "at its partition", |job| job.count("succeeded") == 1).await?;
    let rests = tokio::time::Instant::now();
    rig.until_progress("b", "Succeeded").await?;
    ensure!(rests.elapsed() < Duration::from_secs(60), "after {:?}", rests.elapsed());
    rig.edit_job("a", json!({"partition": 2})).await?;
    rig.until_progress("a", "Succeeded").await?;
    all_replaced(rig, &pods).await
}

/// A plugin that shares no pod: the second job's target waits until the first lets go.
pub async fn an_exclusive_plugin_starts_no_pod_that_another_job_holds(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_collaset(rig, 2).await?;
    rig.world.hold(Pause::Creation, Scope::World);
    start_with(rig, |manifest| drop(manifest.insert("exclusive".to_owned(), json!(true)))).await?;
    let first = names(pods.get(..1).unwrap_or_default());
    rig.create_job("a", replace(&first, json!({}))).await?;
    begun(rig, &first.join("")).await?;
    rig.create_job("b", replace(&names(&pods), json!({}))).await?;
    let job = rig.until("b", "one in flight", |job| job.count("processing") == 1).await?;
    ensure!(job.target(&first.join("")) == "Pending", "{:?}", job.data);
    rig.pass(Duration::from_secs(120)).await;
    ensure!(rig.jobs().get("b").await?.count("pending") == 1, "it still waits");
    rig.delete_job("a").await?;
    rig.until_gone("a").await?;
    rig.until("b", "both in flight", |job| job.count("processing") == 2).await?;
    rig.until_pod(&first.join(""), "held by one", |pod| holds(pod) == 1).await?;
    rig.world.release(Pause::Creation, Scope::World);
    rig.until_progress("b", "Succeeded").await?;
    all_replaced(rig, &pods).await
}

/// Two jobs of a plugin that shares no pod begin on one pod in the same moment: one of them waits, before either holds it.
pub async fn of_two_jobs_that_begin_on_one_pod_at_once_an_exclusive_plugin_takes_one(
    rig: &mut Rig,
) -> anyhow::Result<()> {
    let pods = settled_collaset(rig, 1).await?;
    rig.world.hold(Pause::Creation, Scope::World);
    let target = names(&pods);
    let jobs = ["a", "b"];
    for job in jobs {
        rig.create_job(job, replace(&target, json!({}))).await?;
    }
    // Both are planned before the record of either is durable.
    let wire = rig.host_named("host").wire;
    wire.order(Order::all(Method::PATCH, "/operationjobs/", Then::Delay(Duration::from_millis(50))).after_commit());
    start_on(rig, wire, |manifest| drop(manifest.insert("exclusive".to_owned(), json!(true)))).await?;
    begun(rig, &target.join("")).await?;
    rig.pass(Duration::from_secs(120)).await;
    let mut flight = Vec::new();
    for job in jobs {
        flight.extend((rig.jobs().get(job).await?.count("processing") == 1).then_some(job));
    }
    let [first] = flight.as_slice() else { anyhow::bail!("in flight: {flight:?}") };
    rig.until_pod(&target.join(""), "held by one", |pod| holds(pod) == 1).await?;
    rig.delete_job(first).await?;
    rig.until_gone(first).await?;
    let other = if *first == "a" { "b" } else { "a" };
    rig.until(other, "in flight", |job| job.count("processing") == 1).await?;
    rig.world.release(Pause::Creation, Scope::World);
    rig.until_progress(other, "Succeeded").await?;
    all_replaced(rig, &pods).await
}

/// A5: the plugin asks for a parameter that the job does not give.
pub async fn a_parameter_that_is_required_and_missing_is_named(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_collaset(rig, 1).await?;
    let required = |manifest: &mut Map<String, Value>| {
        let schema = manifest.get_mut("parameters").and_then(Value::as_object_mut);
        schema.into_iter().for_each(|schema| drop(schema.insert("required".to_owned(), json!(["strategy"]))));
    };
    start_with(rig, required).await?;
    rig.create_job("q", replace(&names(&pods), json!({}))).await?;
    let job = rig.until("q", "refused", |job| job.condition("Valid") == "False/ParametersInvalid").await?;
    ensure!(job.condition_message("Valid").contains("strategy"), "{}", job.condition_message("Valid"));
    rig.delete_job("q").await?;
    rig.until_gone("q").await?;
    rig.until_nothing_is_left().await
}
