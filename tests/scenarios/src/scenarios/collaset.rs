//! Marks on the pods of a CollaSet: who sets them, who may remove them, and when.

use anyhow::{Context as _, ensure};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use oarlock_sim::world::{Pause, Scope};
use serde_json::{Value, json};

use super::{all_replaced, holds, is_held, names, settled_collaset};
use crate::jobs::{Told, replace};
use crate::test_cluster::TestCluster;
use oarlock_support::faults::Then;
use oarlock_support::orders::{Latch, Order};

const TO_REPLACE: &str = "collaset.kusionstack.io/to-replace";
const PROTECTED: &str = "finalizer.operationjob.kusionstack.io/replace-protected";

fn is_marked(pod: &DynamicObject) -> bool {
    pod.metadata.labels.iter().flatten().any(|(key, _)| key == TO_REPLACE)
}

fn is_kept(pod: &DynamicObject) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|name| name == PROTECTED)
}

fn is_leaving(pod: &DynamicObject) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Returns a pod of a CollaSet that job `a` has marked and whose new pod does not come yet.
async fn marked(cluster: &mut TestCluster) -> anyhow::Result<(String, String)> {
    let pods = settled_collaset(cluster, 1).await?;
    cluster.world.hold(Pause::Creation, Scope::World);
    cluster.start_host().await?;
    cluster.create_job("a", replace(&names(&pods), json!({}))).await?;
    let pod = pods.into_iter().next().context("a CollaSet of one has a pod")?;
    cluster.until_pod(&pod.0, "marked", |pod| is_held(pod) && is_marked(pod) && is_kept(pod)).await?;
    Ok(pod)
}

/// Sets or removes, as a user, the label that asks for a new pod.
pub(crate) async fn user_labels(cluster: &TestCluster, name: &str, value: Value) -> anyhow::Result<()> {
    let body = json!({"metadata": {"labels": {TO_REPLACE: value}}});
    cluster.pods().patch(name, &PatchParams::default(), &Patch::Merge(body)).await?;
    Ok(())
}

/// A18: the host removes its marks even without the plugin.
pub async fn marks_go_although_the_plugin_is_gone(cluster: &mut TestCluster) -> anyhow::Result<()> {
    marked(cluster).await?;
    cluster.kill_host("host").await?;
    let mut without = cluster.host_named("host");
    without.plugins.clear();
    cluster.start(without).await?;
    cluster.until("a", "without a plugin", |job| job.condition("ActionAvailable") == "False/NoPlugin").await?;
    cluster.delete_job("a").await?;
    cluster.until_gone("a").await?;
    cluster.until_told("ReleaseTargetFailed", 1).await?;
    ensure!(cluster.leftovers().await?.is_empty(), "{:?}", cluster.leftovers().await?);
    Ok(())
}

/// A18: the host removes its marks even if the plugin's file was removed while it ran. The host keeps the version for its jobs in flight.
pub async fn marks_go_although_the_plugin_was_withdrawn(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let (name, uid) = marked(cluster).await?;
    cluster.running()?.host.plugins.withdraw("replace").await;
    cluster.delete_job("a").await?;
    cluster.until_gone("a").await?;
    ensure!(cluster.leftovers().await?.is_empty(), "{:?}", cluster.leftovers().await?);
    cluster.world.release(Pause::Creation, Scope::World);
    ensure!(cluster.pods().get(&name).await?.metadata.uid == Some(uid), "the pod stays as it was");
    Ok(())
}

/// A20: the host removes the finalizer from a pod that is already terminating.
pub async fn a_terminating_pod_is_let_go_when_its_job_is_deleted(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let (name, uid) = marked(cluster).await?;
    cluster.pods().delete(&name, &DeleteParams::default()).await?;
    cluster.until_pod(&name, "terminating", is_leaving).await?;
    cluster.delete_job("a").await?;
    cluster.until_gone("a").await?;
    let gone = |pods: &[std::sync::Arc<k8s_openapi::api::core::v1::Pod>]| {
        pods.iter().all(|pod| pod.metadata.uid.as_deref() != Some(&uid))
    };
    cluster.world.until("the pod to go", super::SETTLED, gone).await?;
    cluster.until_nothing_is_left().await
}

/// A23: a second job adopts the marks of the first, and the marks stay for the second job.
pub async fn marks_of_two_jobs_stay_until_the_second_ends(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pod = marked(cluster).await?;
    cluster.create_job("b", replace(std::slice::from_ref(&pod.0), json!({}))).await?;
    cluster.until_pod(&pod.0, "held by both", |pod| holds(pod) == 2).await?;
    cluster.delete_job("a").await?;
    cluster.until_gone("a").await?;
    cluster
        .until_pod(&pod.0, "held and marked for one", |pod| holds(pod) == 1 && is_marked(pod) && is_kept(pod))
        .await?;
    cluster.world.release(Pause::Creation, Scope::World);
    cluster.until_progress("b", "Succeeded").await?;
    all_replaced(cluster, &[pod]).await
}

/// A24: a label that a user set stays, whatever happens to the job.
pub async fn labels_that_a_user_set_stay(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_collaset(cluster, 2).await?;
    cluster.world.hold(Pause::Creation, Scope::World);
    for (name, _) in &pods {
        user_labels(cluster, name, json!("true")).await?;
    }
    cluster.start_host().await?;
    cluster.create_job("t", replace(&names(&pods), json!({"partition": 1, "activeDeadlineSeconds": 4}))).await?;
    let first = pods.first().map(|(name, _)| name.clone()).unwrap_or_default();
    cluster.until_pod(&first, "adopted", is_kept).await?;
    let job = cluster.until("t", "out of time", |job| job.count("failed") == 1).await?;
    ensure!(job.target(&first) == "Failed/DeadlineExceeded", "{:?}", job.data);
    cluster.delete_job("t").await?;
    cluster.until_gone("t").await?;
    for (name, uid) in &pods {
        cluster
            .until_pod(name, "marked by the user alone", |pod| is_marked(pod) && !is_kept(pod) && !is_held(pod))
            .await?;
        ensure!(cluster.pods().get(name).await?.metadata.uid.as_ref() == Some(uid), "the pod stays");
    }
    Ok(())
}

/// A25: a target that is itself a replacement waits until it has replaced its pod, and is replaced then.
pub async fn a_pod_that_is_itself_a_replacement_waits_and_is_replaced_then(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let mut pods = settled_collaset(cluster, 1).await?;
    let origin = pods.first().map(|(name, _)| name.clone()).unwrap_or_default();
    cluster.world.hold(Pause::Readiness, Scope::World);
    user_labels(cluster, &origin, json!("true")).await?;
    let two = |pods: &[std::sync::Arc<k8s_openapi::api::core::v1::Pod>]| pods.len() == 2;
    cluster.world.until("the new pod to appear", super::SETTLED, two).await?;
    let all = super::identities(cluster, &cluster.pod_names("foo").await?).await?;
    let new = all.into_iter().find(|(name, _)| *name != origin).context("there are two")?;
    cluster.start_host().await?;
    cluster.create_job("n", replace(std::slice::from_ref(&new.0), json!({}))).await?;
    let job = cluster.until("n", "not allowed", |job| told_origin(job).is_some()).await?;
    ensure!(told_origin(&job).as_deref() == Some(&origin) && job.progress() == "Processing", "{:?}", job.data);
    cluster.world.release(Pause::Readiness, Scope::World);
    let job = cluster.until_progress("n", "Succeeded").await?;
    ensure!(told_origin(&job).is_none(), "the extra is dropped: {:?}", job.data);
    pods.push(new);
    all_replaced(cluster, &pods).await
}

fn told_origin(job: &DynamicObject) -> Option<String> {
    let told = job.data.pointer("/status/targetDetails/0/extraInfo/NotAllowedToReplaceNewPod")?;
    told.as_str().map(str::to_owned)
}

fn new_pod(job: &DynamicObject) -> Option<String> {
    job.data.pointer("/status/targetDetails/0/extraInfo/NewPod")?.as_str().map(str::to_owned)
}

/// A40: marks that one job no longer needs stay for the other job.
pub async fn one_of_two_jobs_lets_go_and_the_other_still_gets_its_new_pod(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let pod = marked(cluster).await?;
    cluster.create_job("b", replace(std::slice::from_ref(&pod.0), json!({}))).await?;
    cluster.until_pod(&pod.0, "held by both", |pod| holds(pod) == 2).await?;
    cluster.world.hold(Pause::Readiness, Scope::World);
    cluster.world.release(Pause::Creation, Scope::World);
    cluster.until("a", "with its new pod", |job| new_pod(job).is_some()).await?;
    cluster.delete_job("a").await?;
    cluster.until_gone("a").await?;
    cluster.until_pod(&pod.0, "kept for b", |pod| holds(pod) == 1 && is_kept(pod)).await?;
    cluster.world.release(Pause::Readiness, Scope::World);
    let job = cluster.until_progress("b", "Succeeded").await?;
    ensure!(new_pod(&job).is_some(), "{:?}", job.data);
    all_replaced(cluster, &[pod]).await
}

/// A21: the host stores the new pod before it removes the guard of the old pod.
pub async fn the_old_pod_stays_until_its_new_pod_is_stored(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pod = marked(cluster).await?;
    let interceptor = cluster.running()?.interceptor.clone();
    interceptor.order(Order::all(
        http::Method::PATCH,
        "/operationjobs/a/status",
        Then::Refuse(http::StatusCode::INTERNAL_SERVER_ERROR),
    ));
    cluster.world.release(Pause::Creation, Scope::World);
    cluster.until_pod(&pod.0, "terminating", is_leaving).await?;
    cluster.pass(std::time::Duration::from_secs(20)).await;
    crate::test_cluster::patiently("a status write is refused", async || Ok(interceptor.caught() > 0)).await?;
    cluster.until_pod(&pod.0, "still kept", |pod| is_leaving(pod) && is_kept(pod)).await?;
    interceptor.lift();
    let job = cluster.until_progress("a", "Succeeded").await?;
    ensure!(new_pod(&job).is_some(), "{:?}", job.data);
    all_replaced(cluster, &[pod]).await
}

/// A44: a user removed the job's finalizer while no host ran, and the job is gone. The next host observes the hold, lists
/// the jobs and releases the pod.
pub async fn holds_of_a_job_that_vanished_are_let_go(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let (name, uid) = marked(cluster).await?;
    cluster.kill_host("host").await?;
    cluster.delete_job("a").await?;
    cluster.strip("a").await?;
    cluster.until_gone("a").await?;
    cluster.start_host().await?;
    cluster.until_nothing_is_left().await?;
    ensure!(cluster.pods().get(&name).await?.metadata.uid == Some(uid), "the pod stays");
    Ok(())
}

/// A sweep for a job that vanished delays no other job, even if the patch that removes the hold has no answer.
pub async fn the_sweep_for_a_job_that_vanished_holds_up_no_other(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let others = super::settled_deployment(cluster, 1).await?;
    let (name, _) = marked(cluster).await?;
    cluster.kill_host("host").await?;
    cluster.delete_job("a").await?;
    cluster.strip("a").await?;
    cluster.until_gone("a").await?;
    cluster.world.release(Pause::Creation, Scope::World);
    let begin = cluster.host_named("host");
    let interceptor = begin.interceptor.clone();
    interceptor.order(Order::all(http::Method::PATCH, &format!("/pods/{name}"), Then::Hold(Latch::default())));
    cluster.start(begin).await?;
    crate::test_cluster::patiently("the sweep has begun", async || Ok(interceptor.caught() > 0)).await?;
    cluster.create_job("b", replace(&names(&others), json!({}))).await?;
    cluster.until_progress("b", "Succeeded").await?;
    interceptor.lift();
    cluster.pass(std::time::Duration::from_secs(1300)).await;
    cluster.until_nothing_is_left().await
}

/// Returns a pod whose target ended by its deadline. The host was killed before it could release the pod.
async fn owed(cluster: &mut TestCluster) -> anyhow::Result<(String, String)> {
    let (name, uid) = settled_collaset(cluster, 1).await?.into_iter().next().context("a CollaSet of one has a pod")?;
    cluster.world.hold(Pause::Creation, Scope::World);
    cluster.start_host().await?;
    let target = std::slice::from_ref(&name);
    cluster.create_job("o", replace(target, json!({"activeDeadlineSeconds": 4}))).await?;
    cluster.until_pod(&name, "kept", |pod| is_held(pod) && is_kept(pod)).await?;
    let interceptor = cluster.running()?.interceptor.clone();
    interceptor.order(Order::all(http::Method::PATCH, &format!("/pods/{name}"), Then::Hold(Latch::default())));
    let job = cluster.until_progress("o", "Failed").await?;
    ensure!(
        job.target(&name) == "Failed/DeadlineExceeded" && !job.data.to_string().contains("Released"),
        "{:?}",
        job.data
    );
    cluster.kill_host("host").await?;
    Ok((name, uid))
}

/// Waits until the pod is gone and its target is released.
async fn goes(cluster: &TestCluster, name: &str, uid: &str) -> anyhow::Result<()> {
    let gone = |pods: &[std::sync::Arc<k8s_openapi::api::core::v1::Pod>]| {
        pods.iter().all(|pod| pod.metadata.uid.as_deref() != Some(uid))
    };
    cluster.world.until("the pod to go", super::SETTLED, gone).await?;
    let job = cluster.until("o", "released", |job| job.data.to_string().contains("Released")).await?;
    ensure!(job.target(name) == "Failed/DeadlineExceeded", "{:?}", job.data);
    cluster.until_nothing_is_left().await
}

/// A47: the next host releases a pod that was deleted before that host started.
pub async fn a_release_that_a_killed_host_still_owed_is_done(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let (name, uid) = owed(cluster).await?;
    cluster.pods().delete(&name, &DeleteParams::default()).await?;
    cluster.until_pod(&name, "terminating and kept", |pod| is_leaving(pod) && is_kept(pod)).await?;
    cluster.start_host().await?;
    goes(cluster, &name, &uid).await
}

/// A47: the next host releases a pod that is deleted meanwhile, although its watch does not show the deletion.
pub async fn a_release_that_is_owed_is_done_although_the_view_of_the_pod_is_old(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let (name, uid) = owed(cluster).await?;
    let begin = cluster.host_named("host");
    let interceptor = begin.interceptor.clone();
    interceptor.freeze("pods");
    let latch = interceptor.hold_next(http::Method::PATCH, &format!("/pods/{name}"));
    cluster.start(begin).await?;
    latch.caught().await;
    cluster.pods().delete(&name, &DeleteParams::default()).await?;
    cluster.until_pod(&name, "terminating and kept", |pod| is_leaving(pod) && is_kept(pod)).await?;
    latch.release();
    goes(cluster, &name, &uid).await
}
