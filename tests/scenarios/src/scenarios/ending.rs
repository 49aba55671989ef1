//! The end of jobs and targets: time to live, deadlines, final checks, unknown actions, and no writes afterwards.

use std::time::Duration;

use anyhow::ensure;
use http::Method;
use oarlock_sim::world::{Pause, Scope};
use serde_json::json;
use tokio::time::Instant;

use super::{all_replaced, is_held, names, settled_collaset, settled_deployment};
use crate::jobs::{Told, replace};
use crate::test_cluster::{TestCluster, patiently};
use oarlock_support::faults::Then;
use oarlock_support::interception::WriteRecord;
use oarlock_support::orders::{Latch, Order};

/// A14: an ended job stays as long as its time to live says, whatever its deadline.
pub async fn an_ended_job_is_deleted_once_its_time_to_live_is_over(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_deployment(cluster, 1).await?;
    cluster.start_host().await?;
    cluster.create_job("t", replace(&names(&pods), json!({"TTLSecondsAfterFinished": 4}))).await?;
    cluster.until_progress("t", "Succeeded").await?;
    let seen = Instant::now();
    cluster.until_gone("t").await?;
    // The test observes the end up to a second late, and the stored time has whole seconds.
    ensure!(seen.elapsed() >= Duration::from_secs(2), "gone after {:?}", seen.elapsed());
    cluster.until_told("TTL", 1).await?;
    all_replaced(cluster, &pods).await
}

/// A43: a user raises the time to live while the delete of the job is in flight, and the API server refuses the delete.
pub async fn a_time_to_live_that_was_raised_at_the_last_moment_counts(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_deployment(cluster, 1).await?;
    cluster.start_host().await?;
    let interceptor = cluster.running()?.interceptor.clone();
    interceptor.order(Order::all(Method::DELETE, "/operationjobs/t", Then::Hold(Latch::default())));
    cluster.create_job("t", replace(&names(&pods), json!({"TTLSecondsAfterFinished": 1}))).await?;
    patiently("the delete is under way", async || Ok(interceptor.caught() > 0)).await?;
    cluster.edit_job("t", json!({"TTLSecondsAfterFinished": 86_400})).await?;
    interceptor.lift();
    let refused = |sent: &WriteRecord| sent.verb == Method::DELETE && sent.status == Some(http::StatusCode::CONFLICT);
    patiently("the delete is refused", async || Ok(interceptor.records().iter().any(refused))).await?;
    cluster.pass(Duration::from_secs(60)).await;
    cluster.until_progress("t", "Succeeded").await?;
    Ok(())
}

/// A43: a user raises the time to live while the host's watch lags. The host sends the delete, and the API server refuses it.
pub async fn a_time_to_live_that_was_raised_unseen_counts(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_deployment(cluster, 1).await?;
    cluster.start_host().await?;
    let interceptor = cluster.running()?.interceptor.clone();
    cluster.create_job("u", replace(&names(&pods), json!({"TTLSecondsAfterFinished": 5}))).await?;
    cluster.until_progress("u", "Succeeded").await?;
    interceptor.freeze("operationjobs");
    cluster.edit_job("u", json!({"TTLSecondsAfterFinished": 86_400})).await?;
    let refused = |sent: &WriteRecord| sent.verb == Method::DELETE && sent.status == Some(http::StatusCode::CONFLICT);
    patiently("the delete is refused", async || Ok(interceptor.records().iter().any(refused))).await?;
    interceptor.thaw();
    cluster.pass(Duration::from_secs(60)).await;
    cluster.until_progress("u", "Succeeded").await?;
    Ok(())
}

/// The deadline counts for each target separately. A target that fails by it leaves nothing behind.
pub async fn a_target_whose_time_is_over_fails_and_leaves_nothing(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_collaset(cluster, 3).await?;
    cluster.world.hold(Pause::Creation, Scope::World);
    cluster.start_host().await?;
    cluster.create_job("d", replace(&names(&pods), json!({"activeDeadlineSeconds": 3, "partition": 2}))).await?;
    let job = cluster.until("d", "out of time", |job| job.count("failed") == 2).await?;
    let failed = job
        .targets()
        .values()
        .filter(|target| target.pointer("/error/reason") == Some(&json!("DeadlineExceeded")))
        .count();
    ensure!(failed == 2 && job.count("pending") == 1, "the third has not begun: {:?}", job.data);
    cluster.until_nothing_is_left().await?;
    cluster.until_told("Timeout", 2).await?;
    let job = cluster.until("d", "released", |job| job.data.to_string().matches("Released").count() == 2).await?;
    ensure!(job.progress() == "Processing" && job.condition("Failed") == "False/InProgress", "{:?}", job.data);
    Ok(())
}

/// A15: the final check at the deadline finds a success that the watch did not show.
pub async fn the_last_look_finds_a_success_that_the_watch_did_not_show(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let pods = settled_deployment(cluster, 1).await?;
    cluster.start_host().await?;
    let interceptor = cluster.running()?.interceptor.clone();
    cluster.world.hold(Pause::Termination, Scope::World);
    cluster.create_job("l", replace(&names(&pods), json!({"activeDeadlineSeconds": 6}))).await?;
    let evicted = |pods: &[std::sync::Arc<k8s_openapi::api::core::v1::Pod>]| {
        pods.iter().any(|pod| pod.metadata.deletion_timestamp.is_some())
    };
    cluster.world.until("the pod to be evicted", super::SETTLED, evicted).await?;
    interceptor.freeze("pods");
    cluster.world.release(Pause::Termination, Scope::World);
    let job = cluster.until("l", "ended", |job| ["Succeeded", "Failed"].contains(&job.progress())).await?;
    ensure!(job.progress() == "Succeeded", "{:?}", job.data);
    interceptor.thaw();
    all_replaced(cluster, &pods).await
}

/// A17: the host names the available actions in one event, and the job can be deleted.
pub async fn an_unknown_action_is_told_once_and_its_job_can_be_deleted(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    cluster.seedbed.bare_pod("a").await?;
    cluster.start_host().await?;
    cluster.create_job("u", json!({"action": "Nope", "targets": [{"name": "a"}]})).await?;
    let job =
        cluster.until("u", "without a plugin", |job| job.condition("ActionAvailable") == "False/NoPlugin").await?;
    let message = job.condition_message("ActionAvailable");
    ensure!(message.contains("Nope") && message.contains("Replace"), "{message}");
    cluster.until_told("OpsAction", 1).await?;
    cluster.pass(Duration::from_secs(60)).await;
    ensure!(cluster.told_times("OpsAction").await? == 1, "told once");
    let after = cluster.jobs().get("u").await?.metadata.resource_version;
    ensure!(after == job.metadata.resource_version, "the host writes nothing more");
    cluster.delete_job("u").await?;
    cluster.until_gone("u").await
}

/// A37: an ended job causes no write, whatever changes around it and even after a restart of the host.
pub async fn an_ended_job_causes_no_write(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let set = cluster.seedbed.deployment("web", 3).await?;
    let pods = super::settled(cluster, &set, "web").await?;
    cluster.start_host().await?;
    cluster.create_job("e", replace(&names(&pods), json!({}))).await?;
    cluster.until_progress("e", "Succeeded").await?;
    let conditions = |job: &kube::api::DynamicObject| (job.condition("Stalled"), job.condition("Reconciling"));
    let job = cluster.until_progress("e", "Succeeded").await?;
    ensure!(conditions(&job).0.starts_with("False/") && conditions(&job).1.starts_with("False/"), "{:?}", job.data);
    let before = cluster.running()?.interceptor.records().len();
    churn(cluster, &set).await?;
    cluster.pass(Duration::from_secs(1300)).await;
    let writes = cluster.running()?.interceptor.records();
    ensure!(writes.len() == before, "{:?}", writes.get(before..));
    cluster.restart_host().await?;
    patiently("the new host leads", async || Ok(cluster.running()?.leads())).await?;
    churn(cluster, &set).await?;
    ensure!(cluster.running()?.interceptor.records().is_empty(), "{:?}", cluster.running()?.interceptor.records());
    cluster.until("e", "as it was", |now| now.metadata.resource_version == job.metadata.resource_version).await?;
    Ok(())
}

/// Scales the set up and down, and waits until the host's cache shows its pods.
async fn churn(cluster: &TestCluster, set: &oarlock_sim::world::SetKey) -> anyhow::Result<()> {
    for size in [6, 3] {
        cluster.world.scale(set, size).await?;
        cluster.world.settled(set, super::SETTLED).await?;
        let store = cluster.running()?.host.cluster.store().clone();
        let names = cluster.pod_names("web").await?;
        let key = |name: &String| oarlock_core::object::api_object::ObjectKey::pod(&cluster.namespace, name);
        patiently("the host sees the pods", async || Ok(names.iter().all(|name| store.get(&key(name)).is_some())))
            .await?;
    }
    Ok(())
}

/// Waits until a host holds the pod, for scenarios that only need a target that has begun.
pub(crate) async fn begun(cluster: &TestCluster, pod: &str) -> anyhow::Result<()> {
    cluster.until_pod(pod, "held", is_held).await
}
