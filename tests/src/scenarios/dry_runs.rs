//! Dry runs: what they show of each target, and that neither the cluster nor another job notices them.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::ensure;
use kube::api::{DynamicObject, ListParams};
use oarlock_bed::faults::Then;
use oarlock_bed::interception::Interceptor;
use oarlock_bed::orders::Order;
use oarlock_sim::world::{Pause, Scope};
use serde_json::{Value, json};

use super::evicting::budget;
use super::lifecycle::{restart, start};
use super::many::{details, records};
use super::{all_replaced, names, settled_collaset, settled_deployment};
use crate::jobs::{Told, replace};
use crate::rig::Rig;

/// A dry run of Replace on these targets, with further fields of the spec.
pub(crate) fn dry_run(targets: &[String], more: Value) -> Value {
    let mut spec = replace(targets, more);
    if let Some(spec) = spec.as_object_mut() {
        spec.insert("dryRun".to_owned(), json!(true));
    }
    spec
}

/// UID and resourceVersion of each pod, by name.
async fn versions(rig: &Rig) -> anyhow::Result<BTreeMap<String, [Option<String>; 2]>> {
    let pods = rig.pods().list(&ListParams::default()).await?.items;
    let of = |meta: kube::api::ObjectMeta| (meta.name.unwrap_or_default(), [meta.uid, meta.resource_version]);
    Ok(pods.into_iter().map(|pod| of(pod.metadata)).collect())
}

/// Fails if a request of any host was to change a pod.
fn pods_were_left_alone(rig: &Rig) -> anyhow::Result<()> {
    let writes = rig.running()?.wire.records();
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

/// How many requests of a target were only to be checked.
fn tried(wire: &Interceptor, name: &str) -> usize {
    let of_pod = format!("/pods/{name}");
    let asked = |path: &str| path.ends_with(&of_pod) || path.ends_with(&format!("{of_pod}/eviction"));
    wire.records().iter().filter(|write| write.dry_run && asked(&write.path)).count()
}

fn plan(job: &DynamicObject, name: &str) -> String {
    let plan = job.targets().get(name).and_then(|target| Some(target.pointer("/extraInfo/Plan")?.as_str()?.to_owned()));
    plan.unwrap_or_default()
}

fn message(job: &DynamicObject, name: &str) -> String {
    let told = job.targets().get(name).and_then(|one| Some(one.pointer("/error/message")?.as_str()?.to_owned()));
    told.unwrap_or_default()
}

/// A13: of three pods one is bare; nothing happens to any of them, and the job has no finalizer.
pub async fn a_dry_run_shows_what_would_be_done_and_does_nothing(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_deployment(rig, 2).await?;
    rig.seedbed.bare_pod("bare").await?;
    rig.until_pod("bare", "at rest", is_ready).await?;
    let before = versions(rig).await?;
    rig.start_host().await?;
    let mut targets = names(&pods);
    targets.push("bare".to_owned());
    rig.create_job("d", dry_run(&targets, json!({"retryPolicy": {"limit": 2}}))).await?;
    let job = rig.until_progress("d", "Failed").await?;
    for name in names(&pods) {
        let first = format!("evict pod {name}; then possible: ");
        ensure!(job.target(&name) == "Succeeded" && plan(&job, &name).starts_with(&first), "{:?}", job.data);
        ensure!(tried(&rig.running()?.wire, &name) == 1, "tried once");
    }
    ensure!(job.target("bare") == "Failed/NoController" && plan(&job, "bare").is_empty(), "{:?}", job.data);
    ensure!(job.metadata.finalizers.is_none(), "{:?}", job.metadata);
    rig.until_told("Planned", 2).await?;
    rig.until_told("JobFailed", 1).await?;
    ensure!(rig.told_times("EvictedPod").await? == 0, "nobody was evicted");
    rig.create_job("e", dry_run(&names(&pods), json!({}))).await?;
    let job = rig.until_progress("e", "Succeeded").await?;
    ensure!(job.condition("Complete") == "True/DryRunComplete", "{:?}", job.data);
    ensure!(versions(rig).await? == before, "no pod has changed");
    pods_were_left_alone(rig)?;
    rig.delete_job("e").await?;
    rig.until_gone("e").await
}

/// The marks of a CollaSet's pods are tried as they would be set, and no replacement comes.
pub async fn the_marks_of_a_dry_run_are_tried_and_not_set(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_collaset(rig, 2).await?;
    let before = versions(rig).await?;
    rig.start_host().await?;
    rig.create_job("d", dry_run(&names(&pods), json!({"parallelism": 1}))).await?;
    let job = rig.until_progress("d", "Succeeded").await?;
    for name in names(&pods) {
        let mark = format!("patch pod {name} (labels collaset.kusionstack.io/to-replace=true; finalizers ");
        ensure!(plan(&job, &name).starts_with(&mark), "{}", plan(&job, &name));
    }
    ensure!(versions(rig).await? == before, "no pod has changed");
    pods_were_left_alone(rig)
}

/// A budget that allows nothing now is told as what it is, by the server's own words, and at once.
pub async fn a_dry_run_says_that_a_budget_allows_nothing(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_deployment(rig, 2).await?;
    budget(rig, 2).await?;
    rig.start_host().await?;
    rig.create_job("d", dry_run(&names(&pods), json!({}))).await?;
    let job = rig.until_progress("d", "Failed").await?;
    for name in names(&pods) {
        let words = format!("evict pod {name}: disruption budget web: ");
        ensure!(job.target(&name) == "Failed/EvictionBlocked", "{:?}", job.data);
        ensure!(message(&job, &name).starts_with(&words), "{}", message(&job, &name));
    }
    pods_were_left_alone(rig)?;
    budget(rig, 0).await?;
    crate::rig::patiently("the budget allows it", async || {
        let name = format!("d{}", rig.jobs().list(&ListParams::default()).await?.items.len());
        rig.create_job(&name, dry_run(&names(&pods), json!({}))).await?;
        let ended = |job: &DynamicObject| ["Succeeded", "Failed"].contains(&job.progress());
        Ok(rig.until(&name, "it has ended", ended).await?.progress() == "Succeeded")
    })
    .await?;
    pods_were_left_alone(rig)
}

/// A dry run and a job in earnest on the same pods, each with a bound that would hold the other up.
pub async fn a_dry_run_and_a_job_on_the_same_pods_do_not_notice_each_other(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_deployment(rig, 3).await?;
    rig.start_host().await?;
    // The dry run stays in flight, for the server has no time for its requests.
    let busy = Then::Refuse(http::StatusCode::TOO_MANY_REQUESTS);
    rig.running()?.wire.order(Order::all(http::Method::POST, "/eviction", busy).saying("dryRun"));
    rig.create_job("d", dry_run(&names(&pods), json!({"parallelism": 1, "maxUnavailable": 1}))).await?;
    rig.until("d", "in flight", |job| job.count("processing") == 1).await?;
    rig.create_job("r", replace(&names(&pods), json!({"maxUnavailable": 1}))).await?;
    rig.until_progress("r", "Succeeded").await?;
    // Each of its targets is gone, or was seen as it went.
    let job = rig.until("d", "it has ended", |job| job.data.pointer("/status/endTime").is_some()).await?;
    let ends: Vec<String> = names(&pods).iter().map(|name| job.target(name) + &plan(&job, name)).collect();
    let right =
        |end: &String| end == "Failed/PodNotFound" || end.starts_with("Succeedednothing at first: the plugin waits");
    ensure!(ends.iter().all(right), "the other job replaced them all: {ends:?}");
    all_replaced(rig, &pods).await?;
    rig.running()?.wire.lift();
    let left = rig.pod_names("web").await?;
    rig.world.hold(Pause::Creation, Scope::World);
    rig.create_job("again", replace(left.get(..1).unwrap_or_default(), json!({}))).await?;
    rig.until("again", "in flight", |job| job.count("processing") == 1).await?;
    rig.create_job("beside", dry_run(left.get(1..).unwrap_or_default(), json!({"maxUnavailable": 1}))).await?;
    rig.until_progress("beside", "Succeeded").await?;
    rig.world.release(Pause::Creation, Scope::World);
    rig.until_progress("again", "Succeeded").await.map(drop)
}

/// The host is killed while a target is in flight; the next one tries again.
pub async fn a_dry_run_goes_on_over_a_restart(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_deployment(rig, 3).await?;
    let before = versions(rig).await?;
    rig.start_host().await?;
    let busy = Then::Refuse(http::StatusCode::TOO_MANY_REQUESTS);
    rig.running()?.wire.order(Order::all(http::Method::POST, "/eviction", busy));
    rig.create_job("d", dry_run(&names(&pods), json!({"parallelism": 2}))).await?;
    rig.until("d", "in flight", |job| job.count("processing") == 2).await?;
    pods_were_left_alone(rig)?;
    rig.restart_host().await?;
    let job = rig.until_progress("d", "Succeeded").await?;
    ensure!(names(&pods).iter().all(|name| !plan(&job, name).is_empty()), "{:?}", job.data);
    ensure!(versions(rig).await? == before && job.metadata.finalizers.is_none(), "nothing has changed");
    pods_were_left_alone(rig)
}

/// A dry run that is deleted while it is in flight goes at once, and leaves nothing.
pub async fn a_dry_run_that_is_deleted_midway_is_gone_at_once(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_deployment(rig, 2).await?;
    let before = versions(rig).await?;
    rig.start_host().await?;
    let slow = Then::Delay(Duration::from_secs(2));
    rig.running()?.wire.order(Order::all(http::Method::POST, "/eviction", slow));
    rig.create_job("d", dry_run(&names(&pods), json!({}))).await?;
    rig.until("d", "in flight", |job| job.count("processing") == 2).await?;
    rig.delete_job("d").await?;
    ensure!(rig.jobs().get_opt("d").await?.is_none(), "it has no finalizer");
    rig.create_job("e", dry_run(&names(&pods), json!({}))).await?;
    rig.until_progress("e", "Succeeded").await?;
    ensure!(versions(rig).await? == before, "no pod has changed");
    pods_were_left_alone(rig)
}

/// More targets than one record holds: each has its plan, and the events stay few.
pub async fn three_hundred_targets_have_their_plans_in_records(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_deployment(rig, 150).await?;
    let missing = (0..150).map(|number| format!("missing-{number}"));
    let targets: Vec<String> = names(&pods).into_iter().zip(missing).flat_map(|(name, none)| [name, none]).collect();
    let before = versions(rig).await?;
    rig.start_host().await?;
    rig.create_job("many", dry_run(&targets, json!({"partition": 200}))).await?;
    rig.until("many", "as far as it may", |job| job.count("succeeded") + job.count("failed") == 200).await?;
    rig.restart_host().await?;
    rig.edit_job("many", json!({"partition": 300})).await?;
    let job = rig.until_progress("many", "Failed").await?;
    ensure!(job.count("succeeded") == 150 && job.count("failed") == 150, "{:?}", job.data);
    let all = records(rig).list(&ListParams::default()).await?.items;
    let planned = all.iter().flat_map(details).filter(|one| one.pointer("/extraInfo/Plan").is_some()).count();
    ensure!(planned == 150, "{planned} plans");
    ensure!(rig.told_times("Planned").await? == 0, "one event for each tenth in place of them");
    ensure!(versions(rig).await? == before && job.metadata.finalizers.is_none(), "nothing has changed");
    pods_were_left_alone(rig)
}

/// Pods that take part in the lifecycle: none is begun, and the plan says that it would be.
pub async fn a_dry_run_begins_no_lifecycle(rig: &mut Rig) -> anyhow::Result<()> {
    rig.world.install_kruise().await?;
    let pods = settled_collaset(rig, 2).await?;
    let before = versions(rig).await?;
    start(rig).await?;
    let mut spec = restart(&names(&pods), json!({}));
    if let Some(spec) = spec.as_object_mut() {
        spec.insert("dryRun".to_owned(), json!(true));
    }
    rig.create_job("d", spec).await?;
    let job = rig.until_progress("d", "Succeeded").await?;
    for name in names(&pods) {
        let first = "begin the PodOpsLifecycle and wait for its permission, then ";
        ensure!(plan(&job, &name).starts_with(first), "{}", plan(&job, &name));
    }
    ensure!(versions(rig).await? == before, "no pod has changed");
    pods_were_left_alone(rig)
}
