//! Dry runs: they show a plan for each target, and they affect neither the cluster nor another job.

use std::collections::BTreeMap;

use anyhow::ensure;
use kube::api::{DynamicObject, ListParams};
use oarlock_sim::world::{Pause, Scope};
use oarlock_support::faults::Then;
use oarlock_support::interception::Interceptor;
use oarlock_support::orders::Order;
use serde_json::{Value, json};

use super::evicting::budget;
use super::{all_replaced, names, settled_collaset, settled_deployment};
use crate::jobs::{Told, replace};
use crate::test_cluster::TestCluster;

/// Returns the spec of a dry run of Replace on these targets, with further fields.
pub(crate) fn dry_run(targets: &[String], more: Value) -> Value {
    let mut spec = replace(targets, more);
    if let Some(spec) = spec.as_object_mut() {
        spec.insert("dryRun".to_owned(), json!(true));
    }
    spec
}

/// Returns UID and resourceVersion of each pod, by name.
async fn versions(cluster: &TestCluster) -> anyhow::Result<BTreeMap<String, [Option<String>; 2]>> {
    let pods = cluster.pods().list(&ListParams::default()).await?.items;
    let of = |meta: kube::api::ObjectMeta| (meta.name.unwrap_or_default(), [meta.uid, meta.resource_version]);
    Ok(pods.into_iter().map(|pod| of(pod.metadata)).collect())
}

/// Fails if the host sent a real write to a pod.
fn pods_were_left_alone(cluster: &TestCluster) -> anyhow::Result<()> {
    let writes = cluster.running()?.interceptor.records();
    let earnest: Vec<_> = writes.iter().filter(|write| write.path.contains("/pods/") && !write.dry_run).collect();
    ensure!(earnest.is_empty(), "sent in earnest: {earnest:?}");
    Ok(())
}

fn is_ready(pod: &DynamicObject) -> bool {
    let conditions = pod.data.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
    conditions
        .into_iter()
        .any(|one| one.get("type") == Some(&json!("Ready")) && one.get("status") == Some(&json!("True")))
}

/// Returns the number of dry-run requests for a pod.
fn tried(interceptor: &Interceptor, name: &str) -> usize {
    let of_pod = format!("/pods/{name}");
    let asked = |path: &str| path.ends_with(&of_pod) || path.ends_with(&format!("{of_pod}/eviction"));
    interceptor.records().iter().filter(|write| write.dry_run && asked(&write.path)).count()
}

fn plan(job: &DynamicObject, name: &str) -> String {
    let plan = job.targets().get(name).and_then(|target| Some(target.pointer("/extraInfo/Plan")?.as_str()?.to_owned()));
    plan.unwrap_or_default()
}

fn message(job: &DynamicObject, name: &str) -> String {
    let told = job.targets().get(name).and_then(|one| Some(one.pointer("/error/message")?.as_str()?.to_owned()));
    told.unwrap_or_default()
}

/// A13: a dry run on two pods of a Deployment and a bare pod changes none of them, and its job has no finalizer.
pub async fn a_dry_run_shows_what_would_be_done_and_does_nothing(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_deployment(cluster, 2).await?;
    cluster.seedbed.bare_pod("bare").await?;
    cluster.until_pod("bare", "at rest", is_ready).await?;
    let before = versions(cluster).await?;
    cluster.start_host().await?;
    let mut targets = names(&pods);
    targets.push("bare".to_owned());
    cluster.create_job("d", dry_run(&targets, json!({"retryPolicy": {"limit": 2}}))).await?;
    let job = cluster.until_progress("d", "Failed").await?;
    for name in names(&pods) {
        let first = format!("evict pod {name}; then possible: ");
        ensure!(job.target(&name) == "Succeeded" && plan(&job, &name).starts_with(&first), "{:?}", job.data);
        ensure!(tried(&cluster.running()?.interceptor, &name) == 1, "tried once");
    }
    ensure!(job.target("bare") == "Failed/NoController" && plan(&job, "bare").is_empty(), "{:?}", job.data);
    ensure!(job.metadata.finalizers.is_none(), "{:?}", job.metadata);
    cluster.until_told("Planned", 2).await?;
    cluster.until_told("JobFailed", 1).await?;
    ensure!(cluster.told_times("EvictedPod").await? == 0, "nobody was evicted");
    cluster.create_job("e", dry_run(&names(&pods), json!({}))).await?;
    let job = cluster.until_progress("e", "Succeeded").await?;
    ensure!(job.condition("Complete") == "True/DryRunComplete", "{:?}", job.data);
    ensure!(versions(cluster).await? == before, "no pod has changed");
    pods_were_left_alone(cluster)?;
    cluster.delete_job("e").await?;
    cluster.until_gone("e").await
}

/// A dry run tries the marks of a CollaSet's pods without setting them, so no new pod comes.
pub async fn the_marks_of_a_dry_run_are_tried_and_not_set(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_collaset(cluster, 2).await?;
    let before = versions(cluster).await?;
    cluster.start_host().await?;
    cluster.create_job("d", dry_run(&names(&pods), json!({"parallelism": 1}))).await?;
    let job = cluster.until_progress("d", "Succeeded").await?;
    for name in names(&pods) {
        let mark = format!("patch pod {name} (labels collaset.kusionstack.io/to-replace=true; finalizers ");
        ensure!(plan(&job, &name).starts_with(&mark), "{}", plan(&job, &name));
    }
    ensure!(versions(cluster).await? == before, "no pod has changed");
    pods_were_left_alone(cluster)
}

/// If a budget allows no eviction now, a dry run fails at once with the server's message.
pub async fn a_dry_run_says_that_a_budget_allows_nothing(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_deployment(cluster, 2).await?;
    budget(cluster, 2).await?;
    cluster.start_host().await?;
    cluster.create_job("d", dry_run(&names(&pods), json!({}))).await?;
    let job = cluster.until_progress("d", "Failed").await?;
    for name in names(&pods) {
        let words = format!("evict pod {name}: disruption budget web: ");
        ensure!(job.target(&name) == "Failed/EvictionBlocked", "{:?}", job.data);
        ensure!(message(&job, &name).starts_with(&words), "{}", message(&job, &name));
    }
    pods_were_left_alone(cluster)?;
    budget(cluster, 0).await?;
    crate::test_cluster::patiently("the budget allows it", async || {
        let name = format!("d{}", cluster.jobs().list(&ListParams::default()).await?.items.len());
        cluster.create_job(&name, dry_run(&names(&pods), json!({}))).await?;
        let ended = |job: &DynamicObject| ["Succeeded", "Failed"].contains(&job.progress());
        Ok(cluster.until(&name, "it has ended", ended).await?.progress() == "Succeeded")
    })
    .await?;
    pods_were_left_alone(cluster)
}

/// A dry run and a real job on the same pods do not affect each other, although each has a bound that would block the other.
pub async fn a_dry_run_and_a_job_on_the_same_pods_do_not_notice_each_other(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let pods = settled_deployment(cluster, 3).await?;
    cluster.start_host().await?;
    // The server refuses the dry run's requests as too busy, so the dry run stays in flight.
    let busy = Then::Refuse(http::StatusCode::TOO_MANY_REQUESTS);
    cluster.running()?.interceptor.order(Order::all(http::Method::POST, "/eviction", busy).saying("dryRun"));
    cluster.create_job("d", dry_run(&names(&pods), json!({"parallelism": 1, "maxUnavailable": 1}))).await?;
    cluster.until("d", "in flight", |job| job.count("processing") == 1).await?;
    cluster.create_job("r", replace(&names(&pods), json!({"maxUnavailable": 1}))).await?;
    cluster.until_progress("r", "Succeeded").await?;
    // Each target of the dry run is gone, or was observed while it terminated.
    let job = cluster.until("d", "it has ended", |job| job.data.pointer("/status/endTime").is_some()).await?;
    let ends: Vec<String> = names(&pods).iter().map(|name| job.target(name) + &plan(&job, name)).collect();
    let right =
        |end: &String| end == "Failed/PodNotFound" || end.starts_with("Succeedednothing at first: the plugin waits");
    ensure!(ends.iter().all(right), "the other job replaced them all: {ends:?}");
    all_replaced(cluster, &pods).await?;
    cluster.running()?.interceptor.lift();
    let left = cluster.pod_names("web").await?;
    cluster.world.hold(Pause::Creation, Scope::World);
    cluster.create_job("again", replace(left.get(..1).unwrap_or_default(), json!({}))).await?;
    cluster.until("again", "in flight", |job| job.count("processing") == 1).await?;
    cluster.create_job("beside", dry_run(left.get(1..).unwrap_or_default(), json!({"maxUnavailable": 1}))).await?;
    cluster.until_progress("beside", "Succeeded").await?;
    cluster.world.release(Pause::Creation, Scope::World);
    cluster.until_progress("again", "Succeeded").await.map(drop)
}
