//! Letting go: what one release that is refused costs the others, and what nobody owes any more.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::{Method, StatusCode};
use oarlock_sim::world::{Pause, Scope};
use serde_json::json;

use super::ending::begun;
use super::{names, settled_collaset};
use crate::jobs::{Told, replace};
use crate::rig::{Rig, patiently};
use oarlock_bed::faults::Then;
use oarlock_bed::orders::Order;

/// A34: the API server refuses to let one of five go.
pub async fn a_release_that_is_refused_keeps_no_other_waiting(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_collaset(rig, 5).await?;
    rig.world.hold(Pause::Creation, Scope::World);
    rig.start_host().await?;
    rig.create_job("r", replace(&names(&pods), json!({"activeDeadlineSeconds": 4}))).await?;
    for (name, _) in &pods {
        begun(rig, name).await?;
    }
    let wire = rig.running()?.wire.clone();
    let (refused, _) = pods.first().context("five pods")?;
    wire.order(Order::all(Method::PATCH, &format!("/pods/{refused}"), Then::Refuse(StatusCode::FORBIDDEN)));
    let released = |job: &kube::api::DynamicObject| job.data.to_string().matches("Released").count();
    let job = rig.until("r", "four released", |job| released(job) == 4).await?;
    ensure!(job.progress() == "Failed" && job.data.pointer("/status/endTime").is_some(), "{:?}", job.data);
    ensure!(job.targets().get(refused).is_some_and(|one| !one.to_string().contains("Released")), "{:?}", job.data);
    let before = wire.caught();
    rig.pass(Duration::from_secs(60)).await;
    let tried = wire.caught() - before;
    ensure!(tried <= 8, "{tried} tries in a minute");
    rig.until_told("ReleaseTargetFailed", 1).await?;
    wire.lift();
    rig.until("r", "all released", |job| released(job) == 5).await?;
    ensure!(rig.told_times("ReleaseTargetFailed").await? == 1, "told once");
    rig.until_nothing_is_left().await
}

/// The finalizer of a job is taken off while its target is in flight, and the job is deleted. What it holds then is let go
/// by a slow resync, so this takes twenty minutes of virtual time.
pub async fn a_job_whose_finalizer_was_taken_off_leaves_nothing(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_collaset(rig, 1).await?;
    rig.world.hold(Pause::Creation, Scope::World);
    rig.start_host().await?;
    rig.create_job("f", replace(&names(&pods), json!({}))).await?;
    for (name, _) in &pods {
        begun(rig, name).await?;
    }
    let has = |job: &kube::api::DynamicObject| job.metadata.finalizers.as_ref().is_some_and(|list| !list.is_empty());
    rig.until("f", "protected", has).await?;
    rig.strip("f").await?;
    // It is put back, at most once a minute; where it is taken off again at once, the job goes without it.
    rig.until("f", "protected again", has).await?;
    rig.strip("f").await?;
    rig.delete_job("f").await?;
    rig.until_gone("f").await?;
    rig.pass(Duration::from_secs(1300)).await;
    rig.until_nothing_is_left().await?;
    let (name, uid) = pods.first().context("one pod")?;
    ensure!(rig.pods().get(name).await?.metadata.uid.as_ref() == Some(uid), "the pod stays");
    patiently("nobody holds it", async || {
        let pod = rig.pods().get(name).await?;
        Ok(pod.metadata.finalizers.is_none() && pod.metadata.annotations.is_none_or(|all| all.is_empty()))
    })
    .await
}
