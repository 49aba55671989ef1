//! Marks on the pods of a CollaSet: who put them on, who may take them off, and when.

use anyhow::{Context as _, ensure};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use oarlock_sim::world::{Pause, Scope};
use serde_json::{Value, json};

use super::{all_replaced, holds, is_held, names, settled_collaset};
use crate::jobs::{Told, replace};
use crate::rig::Rig;
use oarlock_bed::faults::Then;
use oarlock_bed::orders::{Latch, Order};

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

/// A CollaSet of one pod that is marked by job `a` and whose new pod does not come yet. Yields the pod.
async fn marked(rig: &mut Rig) -> anyhow::Result<(String, String)> {
    let pods = settled_collaset(rig, 1).await?;
    rig.world.hold(Pause::Creation, Scope::World);
    rig.start_host().await?;
    rig.create_job("a", replace(&names(&pods), json!({}))).await?;
    let pod = pods.into_iter().next().context("a CollaSet of one has a pod")?;
    rig.until_pod(&pod.0, "marked", |pod| is_held(pod) && is_marked(pod) && is_kept(pod)).await?;
    Ok(pod)
}

/// A user sets the label that asks for a new pod, or takes it off.
pub(crate) async fn user_labels(rig: &Rig, name: &str, value: Value) -> anyhow::Result<()> {
    let body = json!({"metadata": {"labels": {TO_REPLACE: value}}});
    rig.pods().patch(name, &PatchParams::default(), &Patch::Merge(body)).await?;
    Ok(())
}

/// A job that is deleted in flight leaves no mark.
pub async fn a_deleted_job_takes_its_marks_off_a_pod_in_flight(rig: &mut Rig) -> anyhow::Result<()> {
    let (name, uid) = marked(rig).await?;
    rig.delete_job("a").await?;
    rig.until_gone("a").await?;
    ensure!(rig.leftovers().await?.is_empty(), "{:?}", rig.leftovers().await?);
    rig.world.release(Pause::Creation, Scope::World);
    let pod = rig.pods().get(&name).await?;
    ensure!(pod.metadata.uid.as_deref() == Some(&uid), "the pod stays as it was");
    Ok(())
}

/// A18: the host lets go without the plugin too.
pub async fn marks_go_although_the_plugin_is_gone(rig: &mut Rig) -> anyhow::Result<()> {
    marked(rig).await?;
    rig.kill_host("host").await?;
    let mut without = rig.host_named("host");
    without.plugins.clear();
    rig.start(without).await?;
    rig.until("a", "without a plugin", |job| job.condition("ActionAvailable") == "False/NoPlugin").await?;
    rig.delete_job("a").await?;
    rig.until_gone("a").await?;
    rig.until_told("ReleaseTargetFailed", 1).await?;
    ensure!(rig.leftovers().await?.is_empty(), "{:?}", rig.leftovers().await?);
    Ok(())
}

/// A18: the same where the file is removed under a running host, which keeps the version for its jobs in flight.
pub async fn marks_go_although_the_plugin_was_withdrawn(rig: &mut Rig) -> anyhow::Result<()> {
    marked(rig).await?;
    rig.running()?.host.plugins.withdraw("replace").await;
    rig.delete_job("a").await?;
    rig.until_gone("a").await?;
    ensure!(rig.leftovers().await?.is_empty(), "{:?}", rig.leftovers().await?);
    Ok(())
}

/// A20: the finalizer goes from a pod that is going already.
pub async fn a_terminating_pod_is_let_go_when_its_job_is_deleted(rig: &mut Rig) -> anyhow::Result<()> {
    let (name, uid) = marked(rig).await?;
    rig.pods().delete(&name, &DeleteParams::default()).await?;
    rig.until_pod(&name, "terminating", is_leaving).await?;
    rig.delete_job("a").await?;
    rig.until_gone("a").await?;
    let gone = |pods: &[std::sync::Arc<k8s_openapi::api::core::v1::Pod>]| {
        pods.iter().all(|pod| pod.metadata.uid.as_deref() != Some(&uid))
    };
    rig.world.until("the pod to go", super::SETTLED, gone).await?;
    rig.until_nothing_is_left().await
}

/// A23: the second job adopts the marks, and they stay for it.
pub async fn marks_of_two_jobs_stay_until_the_second_ends(rig: &mut Rig) -> anyhow::Result<()> {
    let pod = marked(rig).await?;
    rig.create_job("b", replace(std::slice::from_ref(&pod.0), json!({}))).await?;
    rig.until_pod(&pod.0, "held by both", |pod| holds(pod) == 2).await?;
    rig.delete_job("a").await?;
    rig.until_gone("a").await?;
    rig.until_pod(&pod.0, "held and marked for one", |pod| holds(pod) == 1 && is_marked(pod) && is_kept(pod)).await?;
    rig.world.release(Pause::Creation, Scope::World);
    rig.until_progress("b", "Succeeded").await?;
    all_replaced(rig, &[pod]).await
}

/// A24: what a user marked stays marked, whatever becomes of the job.
pub async fn labels_that_a_user_set_stay(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_collaset(rig, 2).await?;
    rig.world.hold(Pause::Creation, Scope::World);
    for (name, _) in &pods {
        user_labels(rig, name, json!("true")).await?;
    }
    rig.start_host().await?;
    rig.create_job("t", replace(&names(&pods), json!({"partition": 1, "activeDeadlineSeconds": 4}))).await?;
    let first = pods.first().map(|(name, _)| name.clone()).unwrap_or_default();
    rig.until_pod(&first, "adopted", is_kept).await?;
    let job = rig.until("t", "out of time", |job| job.count("failed") == 1).await?;
    ensure!(job.target(&first) == "Failed/DeadlineExceeded", "{:?}", job.data);
    rig.delete_job("t").await?;
    rig.until_gone("t").await?;
    for (name, uid) in &pods {
        rig.until_pod(name, "marked by the user alone", |pod| is_marked(pod) && !is_kept(pod) && !is_held(pod)).await?;
        ensure!(rig.pods().get(name).await?.metadata.uid.as_ref() == Some(uid), "the pod stays");
    }
    Ok(())
}

/// A25: a pod that replaces another one waits until it has.
pub async fn a_pod_that_is_itself_a_replacement_waits_and_is_replaced_then(rig: &mut Rig) -> anyhow::Result<()> {
    let mut pods = settled_collaset(rig, 1).await?;
    let origin = pods.first().map(|(name, _)| name.clone()).unwrap_or_default();
    rig.world.hold(Pause::Readiness, Scope::World);
    user_labels(rig, &origin, json!("true")).await?;
    let two = |pods: &[std::sync::Arc<k8s_openapi::api::core::v1::Pod>]| pods.len() == 2;
    rig.world.until("the new pod to appear", super::SETTLED, two).await?;
    let all = super::identities(rig, &rig.pod_names("foo").await?).await?;
    let new = all.into_iter().find(|(name, _)| *name != origin).context("there are two")?;
    rig.start_host().await?;
    rig.create_job("n", replace(std::slice::from_ref(&new.0), json!({}))).await?;
    let job = rig.until("n", "not allowed", |job| told_origin(job).is_some()).await?;
    ensure!(told_origin(&job).as_deref() == Some(&origin) && job.progress() == "Processing", "{:?}", job.data);
    rig.world.release(Pause::Readiness, Scope::World);
    let job = rig.until_progress("n", "Succeeded").await?;
    ensure!(told_origin(&job).is_none(), "the extra is dropped: {:?}", job.data);
    pods.push(new);
    all_replaced(rig, &pods).await
}

fn told_origin(job: &DynamicObject) -> Option<String> {
    let told = job.data.pointer("/status/targetDetails/0/extraInfo/NotAllowedToReplaceNewPod")?;
    told.as_str().map(str::to_owned)
}

fn new_pod(job: &DynamicObject) -> Option<String> {
    job.data.pointer("/status/targetDetails/0/extraInfo/NewPod")?.as_str().map(str::to_owned)
}

/// A40: what one job no longer needs stays for the other.
pub async fn one_of_two_jobs_lets_go_and_the_other_still_gets_its_new_pod(rig: &mut Rig) -> anyhow::Result<()> {
    let pod = marked(rig).await?;
    rig.create_job("b", replace(std::slice::from_ref(&pod.0), json!({}))).await?;
    rig.until_pod(&pod.0, "held by both", |pod| holds(pod) == 2).await?;
    rig.world.hold(Pause::Readiness, Scope::World);
    rig.world.release(Pause::Creation, Scope::World);
    rig.until("a", "with its new pod", |job| new_pod(job).is_some()).await?;
    rig.delete_job("a").await?;
    rig.until_gone("a").await?;
    rig.until_pod(&pod.0, "kept for b", |pod| holds(pod) == 1 && is_kept(pod)).await?;
    rig.world.release(Pause::Readiness, Scope::World);
    let job = rig.until_progress("b", "Succeeded").await?;
    ensure!(new_pod(&job).is_some(), "{:?}", job.data);
    all_replaced(rig, &[pod]).await
}

/// A21: a fact is stored before the guard that it lets go.
pub async fn the_old_pod_stays_until_its_new_pod_is_stored(rig: &mut Rig) -> anyhow::Result<()> {
    let pod = marked(rig).await?;
    let wire = rig.running()?.wire.clone();
    wire.order(Order::all(
        http::Method::PATCH,
        "/operationjobs/a/status",
        Then::Refuse(http::StatusCode::INTERNAL_SERVER_ERROR),
    ));
    rig.world.release(Pause::Creation, Scope::World);
    rig.until_pod(&pod.0, "terminating", is_leaving).await?;
    rig.pass(std::time::Duration::from_secs(20)).await;
    crate::rig::patiently("a status write is refused", async || Ok(wire.caught() > 0)).await?;
    rig.until_pod(&pod.0, "still kept", |pod| is_leaving(pod) && is_kept(pod)).await?;
    wire.lift();
    let job = rig.until_progress("a", "Succeeded").await?;
    ensure!(new_pod(&job).is_some(), "{:?}", job.data);
    all_replaced(rig, &[pod]).await
}

/// A44: the job's finalizer was removed by hand while no host ran, and the job is gone. The next host lists the jobs once it has
/// seen the hold, and lets go.
pub async fn holds_of_a_job_that_vanished_are_let_go(rig: &mut Rig) -> anyhow::Result<()> {
    let (name, uid) = marked(rig).await?;
    rig.kill_host("host").await?;
    rig.delete_job("a").await?;
    rig.strip("a").await?;
    rig.until_gone("a").await?;
    rig.start_host().await?;
    rig.until_nothing_is_left().await?;
    ensure!(rig.pods().get(&name).await?.metadata.uid == Some(uid), "the pod stays");
    Ok(())
}

/// The patch that removes its hold has no answer.
pub async fn the_sweep_for_a_job_that_vanished_holds_up_no_other(rig: &mut Rig) -> anyhow::Result<()> {
    let others = super::settled_deployment(rig, 1).await?;
    let (name, _) = marked(rig).await?;
    rig.kill_host("host").await?;
    rig.delete_job("a").await?;
    rig.strip("a").await?;
    rig.until_gone("a").await?;
    rig.world.release(Pause::Creation, Scope::World);
    let begin = rig.host_named("host");
    let wire = begin.wire.clone();
    wire.order(Order::all(http::Method::PATCH, &format!("/pods/{name}"), Then::Hold(Latch::default())));
    rig.start(begin).await?;
    crate::rig::patiently("the sweep has begun", async || Ok(wire.caught() > 0)).await?;
    rig.create_job("b", replace(&names(&others), json!({}))).await?;
    rig.until_progress("b", "Succeeded").await?;
    wire.lift();
    rig.pass(std::time::Duration::from_secs(1300)).await;
    rig.until_nothing_is_left().await
}

/// The target ended by its deadline, and the host was killed before it could let go of its pod.
async fn owed(rig: &mut Rig) -> anyhow::Result<(String, String)> {
    let (name, uid) = settled_collaset(rig, 1).await?.into_iter().next().context("a CollaSet of one has a pod")?;
    rig.world.hold(Pause::Creation, Scope::World);
    rig.start_host().await?;
    let target = std::slice::from_ref(&name);
    rig.create_job("o", replace(target, json!({"activeDeadlineSeconds": 4}))).await?;
    rig.until_pod(&name, "kept", |pod| is_held(pod) && is_kept(pod)).await?;
    let wire = rig.running()?.wire.clone();
    wire.order(Order::all(http::Method::PATCH, &format!("/pods/{name}"), Then::Hold(Latch::default())));
    let job = rig.until_progress("o", "Failed").await?;
    ensure!(
        job.target(&name) == "Failed/DeadlineExceeded" && !job.data.to_string().contains("Released"),
        "{:?}",
        job.data
    );
    rig.kill_host("host").await?;
    Ok((name, uid))
}

/// The pod is going, and goes.
async fn goes(rig: &Rig, name: &str, uid: &str) -> anyhow::Result<()> {
    let gone = |pods: &[std::sync::Arc<k8s_openapi::api::core::v1::Pod>]| {
        pods.iter().all(|pod| pod.metadata.uid.as_deref() != Some(uid))
    };
    rig.world.until("the pod to go", super::SETTLED, gone).await?;
    let job = rig.until("o", "released", |job| job.data.to_string().contains("Released")).await?;
    ensure!(job.target(name) == "Failed/DeadlineExceeded", "{:?}", job.data);
    rig.until_nothing_is_left().await
}

/// A47: the pod is deleted before the next host comes.
pub async fn a_release_that_a_killed_host_still_owed_is_done(rig: &mut Rig) -> anyhow::Result<()> {
    let (name, uid) = owed(rig).await?;
    rig.pods().delete(&name, &DeleteParams::default()).await?;
    rig.until_pod(&name, "terminating and kept", |pod| is_leaving(pod) && is_kept(pod)).await?;
    rig.start_host().await?;
    goes(rig, &name, &uid).await
}

/// A47: the pod is deleted while the next host lets go of it, and that host does not hear of it.
pub async fn a_release_that_is_owed_is_done_although_the_view_of_the_pod_is_old(rig: &mut Rig) -> anyhow::Result<()> {
    let (name, uid) = owed(rig).await?;
    let begin = rig.host_named("host");
    let wire = begin.wire.clone();
    wire.freeze("pods");
    let latch = wire.hold_next(http::Method::PATCH, &format!("/pods/{name}"));
    rig.start(begin).await?;
    latch.caught().await;
    rig.pods().delete(&name, &DeleteParams::default()).await?;
    rig.until_pod(&name, "terminating and kept", |pod| is_leaving(pod) && is_kept(pod)).await?;
    latch.release();
    goes(rig, &name, &uid).await
}
