//! Letting go: what one release that is refused costs the others, and what nobody owes any more.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::{Method, StatusCode};
use oarlock_sim::world::{Pause, Scope};
use serde_json::json;
use tokio::time::Instant;

use super::ending::begun;
use super::{is_held, names, settled_collaset};
use crate::jobs::{Told, replace};
use crate::rig::{Ground, Rig, patiently};
use oarlock_bed::faults::{Then, When};
use oarlock_bed::interception::WriteRecord;
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

/// Marks the one pod of a CollaSet by job `f`, whose new pod does not come. Yields the pod.
async fn in_flight(rig: &mut Rig) -> anyhow::Result<(String, String)> {
    let pods = settled_collaset(rig, 1).await?;
    rig.world.hold(Pause::Creation, Scope::World);
    rig.start_host().await?;
    pods.into_iter().next().context("one pod")
}

/// A69: the finalizer of a job is taken off while its target is in flight, and the job is deleted: what it holds then is let go
/// at once.
pub async fn a_job_whose_finalizer_was_taken_off_leaves_nothing(rig: &mut Rig) -> anyhow::Result<()> {
    let (name, uid) = in_flight(rig).await?;
    rig.create_job("f", replace(std::slice::from_ref(&name), json!({}))).await?;
    begun(rig, &name).await?;
    let has = |job: &kube::api::DynamicObject| job.metadata.finalizers.as_ref().is_some_and(|list| !list.is_empty());
    rig.until("f", "protected", has).await?;
    rig.vanish("f").await?;
    let vanished = Instant::now();
    rig.until_nothing_is_left().await?;
    let took = vanished.elapsed();
    ensure!(matches!(rig.ground, Ground::Real(_)) || took < Duration::from_secs(5), "{took:?}");
    ensure!(rig.pods().get(&name).await?.metadata.uid.as_ref() == Some(&uid), "the pod stays");
    patiently("nobody holds it", async || {
        let pod = rig.pods().get(&name).await?;
        Ok(pod.metadata.finalizers.is_none() && pod.metadata.annotations.is_none_or(|all| all.is_empty()))
    })
    .await
}

/// A70: the mark is on its way as the job vanishes, and takes effect afterwards.
pub async fn a_mark_that_arrives_after_its_job_has_vanished_is_taken_off(rig: &mut Rig) -> anyhow::Result<()> {
    let (name, _) = in_flight(rig).await?;
    let (wire, part) = (rig.running()?.wire.clone(), format!("/pods/{name}"));
    let latch = wire.hold_next(Method::PATCH, &part);
    rig.create_job("f", replace(std::slice::from_ref(&name), json!({}))).await?;
    latch.caught().await;
    rig.vanish("f").await?;
    rig.until_unknown("f").await?;
    latch.release();
    let marked = |sent: &WriteRecord| sent.path.ends_with(&part) && sent.status == Some(StatusCode::OK);
    patiently("the mark arrives", async || Ok(wire.records().iter().any(marked))).await?;
    rig.until_nothing_is_left().await
}

/// A70: the same where the host has given up waiting for an answer, and looked once more, before the mark takes effect.
pub async fn a_mark_without_an_answer_that_arrives_late_is_taken_off(rig: &mut Rig) -> anyhow::Result<()> {
    let (name, _) = in_flight(rig).await?;
    let wire = rig.running()?.wire.clone();
    let then = Then::Late(Duration::from_secs(30));
    let (part, says) = (format!("/pods/{name}"), String::new());
    wire.order(Order { method: Method::PATCH, part, says, times: Some(1), when: When::BeforeSend, then });
    rig.create_job("f", replace(std::slice::from_ref(&name), json!({}))).await?;
    patiently("the mark is on its way", async || Ok(wire.caught() > 0)).await?;
    rig.vanish("f").await?;
    rig.until_pod(&name, "marked for nobody", is_held).await?;
    rig.until_nothing_is_left().await
}
