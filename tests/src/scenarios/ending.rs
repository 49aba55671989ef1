//! How jobs and targets come to their end: time to live, deadlines, last looks, unknown actions, and the quiet after.

use std::time::Duration;

use anyhow::ensure;
use http::Method;
use oarlock_sim::world::{Pause, Scope};
use serde_json::json;
use tokio::time::Instant;

use super::{all_replaced, is_held, names, settled_collaset, settled_deployment};
use crate::jobs::{Told, replace};
use crate::rig::{Rig, patiently};
use oarlock_bed::faults::Then;
use oarlock_bed::interception::WriteRecord;
use oarlock_bed::orders::{Latch, Order};

/// A14: whatever the deadline, a job stays as long as its time to live says, and no longer.
pub async fn an_ended_job_is_deleted_once_its_time_to_live_is_over(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_deployment(rig, 1).await?;
    rig.start_host().await?;
    rig.create_job("t", replace(&names(&pods), json!({"TTLSecondsAfterFinished": 4}))).await?;
    rig.until_progress("t", "Succeeded").await?;
    let seen = Instant::now();
    rig.until_gone("t").await?;
    // The end was seen up to a second after it was recorded, in whole seconds.
    ensure!(seen.elapsed() >= Duration::from_secs(2), "gone after {:?}", seen.elapsed());
    rig.until_told("TTL", 1).await?;
    all_replaced(rig, &pods).await
}

/// A43: the delete was under way when somebody raised the time to live.
pub async fn a_time_to_live_that_was_raised_at_the_last_moment_counts(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_deployment(rig, 1).await?;
    rig.start_host().await?;
    let wire = rig.running()?.wire.clone();
    wire.order(Order::all(Method::DELETE, "/operationjobs/t", Then::Hold(Latch::default())));
    rig.create_job("t", replace(&names(&pods), json!({"TTLSecondsAfterFinished": 1}))).await?;
    patiently("the delete is under way", async || Ok(wire.caught() > 0)).await?;
    rig.edit_job("t", json!({"TTLSecondsAfterFinished": 86_400})).await?;
    wire.lift();
    let refused = |sent: &WriteRecord| sent.verb == Method::DELETE && sent.status == Some(http::StatusCode::CONFLICT);
    patiently("the delete is refused", async || Ok(wire.records().iter().any(refused))).await?;
    rig.pass(Duration::from_secs(60)).await;
    rig.until_progress("t", "Succeeded").await?;
    Ok(())
}

/// A43: the host has not heard that somebody raised the time to live, and strikes by what it knows.
pub async fn a_time_to_live_that_was_raised_unseen_counts(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_deployment(rig, 1).await?;
    rig.start_host().await?;
    let wire = rig.running()?.wire.clone();
    rig.create_job("u", replace(&names(&pods), json!({"TTLSecondsAfterFinished": 5}))).await?;
    rig.until_progress("u", "Succeeded").await?;
    wire.freeze("operationjobs");
    rig.edit_job("u", json!({"TTLSecondsAfterFinished": 86_400})).await?;
    let refused = |sent: &WriteRecord| sent.verb == Method::DELETE && sent.status == Some(http::StatusCode::CONFLICT);
    patiently("the delete is refused", async || Ok(wire.records().iter().any(refused))).await?;
    wire.thaw();
    rig.pass(Duration::from_secs(60)).await;
    rig.until_progress("u", "Succeeded").await?;
    Ok(())
}

/// The deadline is each target's own; what it leaves behind is nothing.
pub async fn a_target_whose_time_is_over_fails_and_leaves_nothing(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_collaset(rig, 3).await?;
    rig.world.hold(Pause::Creation, Scope::World);
    rig.start_host().await?;
    rig.create_job("d", replace(&names(&pods), json!({"activeDeadlineSeconds": 3, "partition": 2}))).await?;
    let job = rig.until("d", "out of time", |job| job.count("failed") == 2).await?;
    let failed = job
        .targets()
        .values()
        .filter(|target| target.pointer("/error/reason") == Some(&json!("DeadlineExceeded")))
        .count();
    ensure!(failed == 2 && job.count("pending") == 1, "the third has not begun: {:?}", job.data);
    rig.until_nothing_is_left().await?;
    rig.until_told("Timeout", 2).await?;
    let job = rig.until("d", "released", |job| job.data.to_string().matches("Released").count() == 2).await?;
    ensure!(job.progress() == "Processing" && job.condition("Failed") == "False/InProgress", "{:?}", job.data);
    Ok(())
}

/// A15: the effect is done, the watch does not show it, and the deadline strikes.
pub async fn the_last_look_finds_a_success_that_the_watch_did_not_show(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_deployment(rig, 1).await?;
    rig.start_host().await?;
    let wire = rig.running()?.wire.clone();
    rig.world.hold(Pause::Termination, Scope::World);
    rig.create_job("l", replace(&names(&pods), json!({"activeDeadlineSeconds": 6}))).await?;
    let evicted = |pods: &[std::sync::Arc<k8s_openapi::api::core::v1::Pod>]| {
        pods.iter().any(|pod| pod.metadata.deletion_timestamp.is_some())
    };
    rig.world.until("the pod to be evicted", super::SETTLED, evicted).await?;
    wire.freeze("pods");
    rig.world.release(Pause::Termination, Scope::World);
    let job = rig.until("l", "ended", |job| ["Succeeded", "Failed"].contains(&job.progress())).await?;
    ensure!(job.progress() == "Succeeded", "{:?}", job.data);
    wire.thaw();
    all_replaced(rig, &pods).await
}

/// A17: what serves instead is named, once, and nothing holds the job.
pub async fn an_unknown_action_is_told_once_and_its_job_can_be_deleted(rig: &mut Rig) -> anyhow::Result<()> {
    rig.seedbed.bare_pod("a").await?;
    rig.start_host().await?;
    rig.create_job("u", json!({"action": "Nope", "targets": [{"name": "a"}]})).await?;
    let job = rig.until("u", "without a plugin", |job| job.condition("ActionAvailable") == "False/NoPlugin").await?;
    let message = job.condition_message("ActionAvailable");
    ensure!(message.contains("Nope") && message.contains("Replace"), "{message}");
    rig.until_told("OpsAction", 1).await?;
    rig.pass(Duration::from_secs(60)).await;
    ensure!(rig.told_times("OpsAction").await? == 1, "told once");
    rig.delete_job("u").await?;
    rig.until_gone("u").await
}

/// A37: whatever happens around it, and even over a restart, an ended job is only read.
pub async fn an_ended_job_causes_no_write(rig: &mut Rig) -> anyhow::Result<()> {
    let set = rig.seedbed.deployment("web", 3).await?;
    let pods = super::settled(rig, &set, "web").await?;
    rig.start_host().await?;
    rig.create_job("e", replace(&names(&pods), json!({}))).await?;
    rig.until_progress("e", "Succeeded").await?;
    let conditions = |job: &kube::api::DynamicObject| (job.condition("Stalled"), job.condition("Reconciling"));
    let job = rig.until_progress("e", "Succeeded").await?;
    ensure!(conditions(&job).0.starts_with("False/") && conditions(&job).1.starts_with("False/"), "{:?}", job.data);
    let before = rig.running()?.wire.records().len();
    churn(rig, &set).await?;
    rig.pass(Duration::from_secs(1300)).await;
    let writes = rig.running()?.wire.records();
    ensure!(writes.len() == before, "{:?}", writes.get(before..));
    rig.restart_host().await?;
    patiently("the new host leads", async || Ok(rig.running()?.leads())).await?;
    churn(rig, &set).await?;
    ensure!(rig.running()?.wire.records().is_empty(), "{:?}", rig.running()?.wire.records());
    rig.until("e", "as it was", |now| now.metadata.resource_version == job.metadata.resource_version).await?;
    Ok(())
}

/// The set grows and shrinks, and the host sees it.
async fn churn(rig: &Rig, set: &oarlock_sim::world::SetKey) -> anyhow::Result<()> {
    for size in [6, 3] {
        rig.world.scale(set, size).await?;
        rig.world.settled(set, super::SETTLED).await?;
        let store = rig.running()?.host.cluster.store().clone();
        let names = rig.pod_names("web").await?;
        let key = |name: &String| oarlock_core::cluster::object::ObjectKey::pod(&rig.namespace, name);
        patiently("the host sees the pods", async || Ok(names.iter().all(|name| store.get(&key(name)).is_some())))
            .await?;
    }
    Ok(())
}

/// Used by scenarios that only need to know that a target has begun.
pub(crate) async fn begun(rig: &Rig, pod: &str) -> anyhow::Result<()> {
    rig.until_pod(pod, "held", is_held).await
}
