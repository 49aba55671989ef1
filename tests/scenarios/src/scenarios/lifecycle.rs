//! Restarts of pods, in place and by eviction, and the PodOpsLifecycle, whose other side the simulated cluster plays.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use kube::api::{DynamicObject, Patch, PatchParams};
use oarlock_sim::world::{Pause, Scope};
use serde_json::{Value, json};

use super::{names, settled_collaset, settled_deployment};
use crate::components::RESTART_GRANTS;
use crate::jobs::{Told, replace};
use crate::test_cluster::{TestCluster, patiently};

const P: &str = "podopslifecycle.kusionstack.io";

/// Returns the spec of a job that restarts these pods.
pub fn restart(targets: &[String], more: Value) -> Value {
    let mut spec = replace(targets, more);
    if let Some(spec) = spec.as_object_mut() {
        spec.insert("action".to_owned(), json!("Restart"));
    }
    spec
}

/// Starts a host with the Restart plugin.
///
/// # Errors
/// If the component is missing, or if the host refuses it.
pub async fn start(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let mut begin = cluster.host_named("host");
    begin.plugins = vec!["restart"];
    begin.grants = RESTART_GRANTS.to_owned();
    cluster.start(begin).await
}

/// Returns the lifecycle labels on a pod, including those of operations.
async fn lifecycle_labels(cluster: &TestCluster, pod: &str) -> anyhow::Result<Vec<String>> {
    let labels = cluster.pods().get(pod).await?.metadata.labels.unwrap_or_default();
    Ok(labels.into_keys().filter(|key| key.contains(P) && *key != format!("{P}/service-available")).collect())
}

fn condition(job: &DynamicObject, kind: &str) -> Option<String> {
    let all = job.data.pointer("/status/conditions")?.as_array()?;
    let found = all.iter().find(|condition| condition.get("type").is_some_and(|is| is == kind))?;
    Some(format!("{}/{}", found.get("status")?.as_str()?, found.get("reason")?.as_str()?))
}

/// The pods of a CollaSet are drained, restarted in place once each, and serve again. Nothing of the job is left on them.
pub async fn pods_are_restarted_in_place_once_their_traffic_is_drained(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    cluster.world.install_kruise().await?;
    let pods = settled_collaset(cluster, 3).await?;
    start(cluster).await?;
    cluster.create_job("r", restart(&names(&pods), json!({"parallelism": 1}))).await?;
    let job = cluster.until_progress("r", "Succeeded").await?;
    for (name, uid) in &pods {
        let pod = cluster.pods().get(name).await?;
        ensure!(pod.metadata.uid.as_ref() == Some(uid), "{name} is another pod: it was not restarted in place");
        let count = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
        ensure!(count.iter().all(|one| one.restart_count == 1), "{name}: {count:?}");
        ensure!(job.targets().get(name).is_some_and(|one| one.to_string().contains("InPlace")), "{:?}", job.data);
        patiently("no label of the operation is left", async || Ok(lifecycle_labels(cluster, name).await?.is_empty()))
            .await?;
    }
    for reason in ["PodOpsLifecycle", "RestartOpsLifecycleFinished"] {
        cluster.until_told(reason, 3).await?;
        ensure!(cluster.told_times(reason).await? == 3, "{reason}: once for each pod");
    }
    cluster.until_nothing_is_left().await
}

/// A31: without Kruise a restart evicts the pod and its controller makes another, unless the job allows no fallback.
pub async fn without_kruise_pods_are_restarted_by_eviction(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_deployment(cluster, 2).await?;
    start(cluster).await?;
    cluster.create_job("r", restart(&names(&pods), json!({}))).await?;
    let job = cluster.until_progress("r", "Succeeded").await?;
    ensure!(job.targets().values().all(|one| one.to_string().contains("NewPod")), "{:?}", job.data);
    let left = cluster.pod_names("web").await?;
    let none = json!({"parameters": {"fallback": "None"}});
    cluster.create_job("n", restart(&left, none)).await?;
    let job = cluster.until_progress("n", "Failed").await?;
    ensure!(job.targets().values().all(|one| one.to_string().contains("RestartUnsupported")), "{:?}", job.data);
    cluster.until_nothing_is_left().await
}

/// A32: a job waits while the operation of another owner is in progress on the pod.
pub async fn a_pod_with_another_operation_is_waited_for(cluster: &mut TestCluster) -> anyhow::Result<()> {
    cluster.world.install_kruise().await?;
    let pods = settled_collaset(cluster, 1).await?;
    let (name, _) = pods.first().context("one pod")?;
    cluster.world.hold(Pause::Lifecycle, Scope::World);
    let other = format!("operating.{P}/other");
    let label = |value: Option<&str>| Patch::Merge(json!({"metadata": {"labels": { &other: value }}}));
    cluster.pods().patch(name, &PatchParams::default(), &label(Some("1"))).await?;
    start(cluster).await?;
    cluster.create_job("r", restart(&names(&pods), json!({}))).await?;
    cluster.until("r", "it has a status", |job| job.data.pointer("/status/startTime").is_some()).await?;
    cluster.pass(Duration::from_secs(30)).await;
    let job = cluster.jobs().get("r").await?;
    ensure!(job.progress() == "Pending" && lifecycle_labels(cluster, name).await? == [other.clone()], "{:?}", job.data);
    cluster.pods().patch(name, &PatchParams::default(), &label(None)).await?;
    cluster.world.release(Pause::Lifecycle, Scope::World);
    cluster.until_progress("r", "Succeeded").await?;
    cluster.until_nothing_is_left().await
}

/// A33: if no controller drives the lifecycle, the job shows it, and the labels go with the job.
pub async fn a_lifecycle_that_nobody_drives_is_shown_and_its_labels_go_with_the_job(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    cluster.world.install_kruise().await?;
    let pods = settled_collaset(cluster, 2).await?;
    cluster.world.hold(Pause::Lifecycle, Scope::World);
    start(cluster).await?;
    cluster.create_job("r", restart(&names(&pods), json!({}))).await?;
    let shown = |job: &DynamicObject| condition(job, "LifecycleBlocked").as_deref() == Some("True/NoWebhook");
    let job = cluster.until("r", "shown as blocked", shown).await?;
    ensure!(job.data.pointer("/status/waitsFor") == Some(&json!("Lifecycle")), "{:?}", job.data);
    cluster.until_told("LifecycleBlocked", 1).await?;
    cluster.delete_job("r").await?;
    cluster.until_gone("r").await?;
    for (name, _) in &pods {
        ensure!(lifecycle_labels(cluster, name).await?.is_empty(), "{:?}", lifecycle_labels(cluster, name).await?);
    }
    cluster.until_nothing_is_left().await
}

/// A job names lifecycle rules that do not pass and traffic that is not drained. The job goes on once they end.
pub async fn what_a_lifecycle_waits_for_is_named(cluster: &mut TestCluster) -> anyhow::Result<()> {
    cluster.world.install_kruise().await?;
    let pods = settled_collaset(cluster, 1).await?;
    cluster.world.hold(Pause::Rules, Scope::World);
    cluster.world.hold(Pause::Draining, Scope::World);
    start(cluster).await?;
    cluster.create_job("r", restart(&names(&pods), json!({}))).await?;
    let blocked =
        |reason: &'static str| move |job: &DynamicObject| condition(job, "LifecycleBlocked").as_deref() == Some(reason);
    cluster.until("r", "its rules are awaited", blocked("True/RulesPending")).await?;
    let (name, _) = pods.first().context("one pod")?;
    let guard = json!({"metadata": {"finalizers": [format!("prot.{P}/slb")]}});
    cluster.pods().patch(name, &PatchParams::default(), &Patch::Merge(guard)).await?;
    cluster.world.release(Pause::Rules, Scope::World);
    let job = cluster.until("r", "its traffic is awaited", blocked("True/TrafficDraining")).await?;
    ensure!(job.data.to_string().contains("/slb"), "the finalizer is named: {:?}", job.data);
    cluster.world.release(Pause::Draining, Scope::World);
    let none = json!({"metadata": {"finalizers": null}});
    cluster.pods().patch(name, &PatchParams::default(), &Patch::Merge(none)).await?;
    let job = cluster.until_progress("r", "Succeeded").await?;
    ensure!(condition(&job, "LifecycleBlocked").as_deref() == Some("False/NotBlocked"), "{:?}", job.data);
    cluster.until_nothing_is_left().await
}

/// A30: a container that cannot be restarted fails its target with the reason.
pub async fn a_container_that_cannot_be_restarted_fails_its_target(cluster: &mut TestCluster) -> anyhow::Result<()> {
    cluster.world.install_kruise().await?;
    let pods = settled_collaset(cluster, 1).await?;
    let (name, _) = pods.first().context("one pod")?;
    let container =
        cluster.pods().get(name).await?.spec.context("a spec")?.containers.first().context("one")?.name.clone();
    cluster.world.break_container((&cluster.namespace, name), &container, "the image is gone");
    start(cluster).await?;
    cluster.create_job("r", restart(&names(&pods), json!({}))).await?;
    let job = cluster.until_progress("r", "Failed").await?;
    let said = job.targets().get(name).map(ToString::to_string).unwrap_or_default();
    ensure!(said.contains("RestartFailed") && said.contains("the image is gone"), "{said}");
    patiently("no label of the operation is left", async || Ok(lifecycle_labels(cluster, name).await?.is_empty()))
        .await?;
    cluster.until_nothing_is_left().await
}
