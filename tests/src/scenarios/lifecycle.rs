//! Restart, in place and by eviction, and the PodOpsLifecycle, whose other half the world plays.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use kube::api::{DynamicObject, Patch, PatchParams};
use oarlock_sim::world::{Pause, Scope};
use serde_json::{Value, json};

use super::{names, settled_collaset, settled_deployment};
use crate::components::RESTART_GRANTS;
use crate::jobs::{Told, replace};
use crate::rig::{Rig, patiently};

const P: &str = "podopslifecycle.kusionstack.io";

/// A job that restarts these pods.
pub(crate) fn restart(targets: &[String], more: Value) -> Value {
    let mut spec = replace(targets, more);
    if let Some(spec) = spec.as_object_mut() {
        spec.insert("action".to_owned(), json!("Restart"));
    }
    spec
}

pub(crate) async fn start(rig: &mut Rig) -> anyhow::Result<()> {
    let mut begin = rig.host_named("host");
    begin.plugins = vec!["restart"];
    begin.grants = RESTART_GRANTS.to_owned();
    rig.start(begin).await
}

/// The labels of an operation, and those of the lifecycle, that a pod bears.
async fn lifecycle_labels(rig: &Rig, pod: &str) -> anyhow::Result<Vec<String>> {
    let labels = rig.pods().get(pod).await?.metadata.labels.unwrap_or_default();
    Ok(labels.into_keys().filter(|key| key.contains(P) && *key != format!("{P}/service-available")).collect())
}

fn condition(job: &DynamicObject, kind: &str) -> Option<String> {
    let all = job.data.pointer("/status/conditions")?.as_array()?;
    let found = all.iter().find(|condition| condition.get("type").is_some_and(|is| is == kind))?;
    Some(format!("{}/{}", found.get("status")?.as_str()?, found.get("reason")?.as_str()?))
}

/// Pods of a CollaSet are drained, restarted in place once each, and serve again; nothing of the job is left on them.
pub async fn pods_are_restarted_in_place_once_their_traffic_is_drained(rig: &mut Rig) -> anyhow::Result<()> {
    rig.world.install_kruise().await?;
    let pods = settled_collaset(rig, 3).await?;
    start(rig).await?;
    rig.create_job("r", restart(&names(&pods), json!({"parallelism": 1}))).await?;
    let job = rig.until_progress("r", "Succeeded").await?;
    for (name, uid) in &pods {
        let pod = rig.pods().get(name).await?;
        ensure!(pod.metadata.uid.as_ref() == Some(uid), "{name} is another pod: it was not restarted in place");
        let count = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
        ensure!(count.iter().all(|one| one.restart_count == 1), "{name}: {count:?}");
        ensure!(job.targets().get(name).is_some_and(|one| one.to_string().contains("InPlace")), "{:?}", job.data);
        patiently("no label of the operation is left", async || Ok(lifecycle_labels(rig, name).await?.is_empty()))
            .await?;
    }
    for reason in ["PodOpsLifecycle", "RestartOpsLifecycleFinished"] {
        rig.until_told(reason, 3).await?;
        ensure!(rig.told_times(reason).await? == 3, "{reason}: once for each pod");
    }
    rig.until_nothing_is_left().await
}

/// A31 and the eviction: without Kruise a pod goes, and its controller makes another; of one of two containers none does.
pub async fn without_kruise_pods_are_restarted_by_eviction(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_deployment(rig, 2).await?;
    start(rig).await?;
    rig.create_job("r", restart(&names(&pods), json!({}))).await?;
    let job = rig.until_progress("r", "Succeeded").await?;
    ensure!(job.targets().values().all(|one| one.to_string().contains("NewPod")), "{:?}", job.data);
    let left = rig.pod_names("web").await?;
    let none = json!({"parameters": {"fallback": "None"}});
    rig.create_job("n", restart(&left, none)).await?;
    let job = rig.until_progress("n", "Failed").await?;
    ensure!(job.targets().values().all(|one| one.to_string().contains("RestartUnsupported")), "{:?}", job.data);
    rig.until_nothing_is_left().await
}

/// A32: somebody else's operation is under way on the pod.
pub async fn a_pod_with_another_operation_is_waited_for(rig: &mut Rig) -> anyhow::Result<()> {
    rig.world.install_kruise().await?;
    let pods = settled_collaset(rig, 1).await?;
    let (name, _) = pods.first().context("one pod")?;
    rig.world.hold(Pause::Lifecycle, Scope::World);
    let other = format!("operating.{P}/other");
    let label = |value: Option<&str>| Patch::Merge(json!({"metadata": {"labels": { &other: value }}}));
    rig.pods().patch(name, &PatchParams::default(), &label(Some("1"))).await?;
    start(rig).await?;
    rig.create_job("r", restart(&names(&pods), json!({}))).await?;
    rig.until("r", "it has a status", |job| job.data.pointer("/status/startTime").is_some()).await?;
    rig.pass(Duration::from_secs(30)).await;
    let job = rig.jobs().get("r").await?;
    ensure!(job.progress() == "Pending" && lifecycle_labels(rig, name).await? == [other.clone()], "{:?}", job.data);
    rig.pods().patch(name, &PatchParams::default(), &label(None)).await?;
    rig.world.release(Pause::Lifecycle, Scope::World);
    rig.until_progress("r", "Succeeded").await?;
    rig.until_nothing_is_left().await
}

/// A33: nobody takes part in the lifecycle.
pub async fn a_lifecycle_that_nobody_drives_is_shown_and_its_labels_go_with_the_job(
    rig: &mut Rig,
) -> anyhow::Result<()> {
    rig.world.install_kruise().await?;
    let pods = settled_collaset(rig, 2).await?;
    rig.world.hold(Pause::Lifecycle, Scope::World);
    start(rig).await?;
    rig.create_job("r", restart(&names(&pods), json!({}))).await?;
    let shown = |job: &DynamicObject| condition(job, "LifecycleBlocked").as_deref() == Some("True/NoWebhook");
    let job = rig.until("r", "shown as blocked", shown).await?;
    ensure!(job.data.pointer("/status/waitsFor") == Some(&json!("Lifecycle")), "{:?}", job.data);
    rig.until_told("LifecycleBlocked", 1).await?;
    rig.delete_job("r").await?;
    rig.until_gone("r").await?;
    for (name, _) in &pods {
        ensure!(lifecycle_labels(rig, name).await?.is_empty(), "{:?}", lifecycle_labels(rig, name).await?);
    }
    rig.until_nothing_is_left().await
}

/// Rules that never pass, and traffic that is never drained, are named; once they end the job goes on.
pub async fn what_a_lifecycle_waits_for_is_named(rig: &mut Rig) -> anyhow::Result<()> {
    rig.world.install_kruise().await?;
    let pods = settled_collaset(rig, 1).await?;
    rig.world.hold(Pause::Rules, Scope::World);
    rig.world.hold(Pause::Draining, Scope::World);
    start(rig).await?;
    rig.create_job("r", restart(&names(&pods), json!({}))).await?;
    let blocked =
        |reason: &'static str| move |job: &DynamicObject| condition(job, "LifecycleBlocked").as_deref() == Some(reason);
    rig.until("r", "its rules are awaited", blocked("True/RulesPending")).await?;
    let (name, _) = pods.first().context("one pod")?;
    let guard = json!({"metadata": {"finalizers": [format!("prot.{P}/slb")]}});
    rig.pods().patch(name, &PatchParams::default(), &Patch::Merge(guard)).await?;
    rig.world.release(Pause::Rules, Scope::World);
    let job = rig.until("r", "its traffic is awaited", blocked("True/TrafficDraining")).await?;
    ensure!(job.data.to_string().contains("/slb"), "the finalizer is named: {:?}", job.data);
    rig.world.release(Pause::Draining, Scope::World);
    let none = json!({"metadata": {"finalizers": null}});
    rig.pods().patch(name, &PatchParams::default(), &Patch::Merge(none)).await?;
    let job = rig.until_progress("r", "Succeeded").await?;
    ensure!(condition(&job, "LifecycleBlocked").as_deref() == Some("False/NotBlocked"), "{:?}", job.data);
    rig.until_nothing_is_left().await
}

/// A30: a container that cannot be restarted.
pub async fn a_container_that_cannot_be_restarted_fails_its_target(rig: &mut Rig) -> anyhow::Result<()> {
    rig.world.install_kruise().await?;
    let pods = settled_collaset(rig, 1).await?;
    let (name, _) = pods.first().context("one pod")?;
    let container = rig.pods().get(name).await?.spec.context("a spec")?.containers.first().context("one")?.name.clone();
    rig.world.break_container((&rig.namespace, name), &container, "the image is gone");
    start(rig).await?;
    rig.create_job("r", restart(&names(&pods), json!({}))).await?;
    let job = rig.until_progress("r", "Failed").await?;
    let said = job.targets().get(name).map(ToString::to_string).unwrap_or_default();
    ensure!(said.contains("RestartFailed") && said.contains("the image is gone"), "{said}");
    patiently("no label of the operation is left", async || Ok(lifecycle_labels(rig, name).await?.is_empty())).await?;
    rig.until_nothing_is_left().await
}
