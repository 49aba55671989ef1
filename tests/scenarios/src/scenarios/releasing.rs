//! Releases: a refused release and its effect on others, and holds of jobs that are gone.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::{Method, StatusCode};
use oarlock_sim::world::{Pause, Scope};
use serde_json::json;
use tokio::time::Instant;

use super::ending::begun;
use super::{is_held, names, settled_collaset};
use crate::jobs::{Told, replace};
use crate::test_cluster::{Backend, TestCluster, patiently};
use oarlock_support::faults::{Then, When};
use oarlock_support::interception::WriteRecord;
use oarlock_support::orders::Order;

/// A34: if the API server refuses one of five releases, the other four are not delayed.
pub async fn a_release_that_is_refused_keeps_no_other_waiting(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_collaset(cluster, 5).await?;
    cluster.world.hold(Pause::Creation, Scope::World);
    cluster.start_host().await?;
    cluster.create_job("r", replace(&names(&pods), json!({"activeDeadlineSeconds": 4}))).await?;
    for (name, _) in &pods {
        begun(cluster, name).await?;
    }
    let interceptor = cluster.running()?.interceptor.clone();
    let (refused, _) = pods.first().context("five pods")?;
    interceptor.order(Order::all(Method::PATCH, &format!("/pods/{refused}"), Then::Refuse(StatusCode::FORBIDDEN)));
    let released = |job: &kube::api::DynamicObject| job.data.to_string().matches("Released").count();
    let job = cluster.until("r", "four released", |job| released(job) == 4).await?;
    ensure!(job.progress() == "Failed" && job.data.pointer("/status/endTime").is_some(), "{:?}", job.data);
    ensure!(job.targets().get(refused).is_some_and(|one| !one.to_string().contains("Released")), "{:?}", job.data);
    let before = interceptor.caught();
    cluster.pass(Duration::from_secs(60)).await;
    let tried = interceptor.caught() - before;
    ensure!(tried <= 8, "{tried} tries in a minute");
    cluster.until_told("ReleaseTargetFailed", 1).await?;
    interceptor.lift();
    cluster.until("r", "all released", |job| released(job) == 5).await?;
    ensure!(cluster.told_times("ReleaseTargetFailed").await? == 1, "told once");
    cluster.until_nothing_is_left().await
}

/// Creates a CollaSet of one pod whose new pod does not come, and starts a host. Returns the pod.
async fn in_flight(cluster: &mut TestCluster) -> anyhow::Result<(String, String)> {
    let pods = settled_collaset(cluster, 1).await?;
    cluster.world.hold(Pause::Creation, Scope::World);
    cluster.start_host().await?;
    pods.into_iter().next().context("one pod")
}

/// A69: if a job loses its finalizer while its target is in flight and is then deleted, the host releases its holds at once.
pub async fn a_job_whose_finalizer_was_taken_off_leaves_nothing(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let (name, uid) = in_flight(cluster).await?;
    cluster.create_job("f", replace(std::slice::from_ref(&name), json!({}))).await?;
    begun(cluster, &name).await?;
    let has = |job: &kube::api::DynamicObject| job.metadata.finalizers.as_ref().is_some_and(|list| !list.is_empty());
    cluster.until("f", "protected", has).await?;
    cluster.vanish("f").await?;
    let vanished = Instant::now();
    cluster.until_nothing_is_left().await?;
    let took = vanished.elapsed();
    ensure!(matches!(cluster.backend, Backend::Real(_)) || took < Duration::from_secs(5), "{took:?}");
    ensure!(cluster.pods().get(&name).await?.metadata.uid.as_ref() == Some(&uid), "the pod stays");
    patiently("nobody holds it", async || {
        let pod = cluster.pods().get(&name).await?;
        Ok(pod.metadata.finalizers.is_none() && pod.metadata.annotations.is_none_or(|all| all.is_empty()))
    })
    .await
}

/// A70: the host removes a mark that takes effect after its job has vanished.
pub async fn a_mark_that_arrives_after_its_job_has_vanished_is_taken_off(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let (name, _) = in_flight(cluster).await?;
    let (interceptor, part) = (cluster.running()?.interceptor.clone(), format!("/pods/{name}"));
    let latch = interceptor.hold_next(Method::PATCH, &part);
    cluster.create_job("f", replace(std::slice::from_ref(&name), json!({}))).await?;
    latch.caught().await;
    cluster.vanish("f").await?;
    cluster.until_unknown("f").await?;
    latch.release();
    let marked = |sent: &WriteRecord| sent.path.ends_with(&part) && sent.status == Some(StatusCode::OK);
    patiently("the mark arrives", async || Ok(interceptor.records().iter().any(marked))).await?;
    cluster.until_nothing_is_left().await
}

/// A70: the host removes such a mark even if it had given up waiting for the answer and checked once more before the mark took effect.
pub async fn a_mark_without_an_answer_that_arrives_late_is_taken_off(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let (name, _) = in_flight(cluster).await?;
    let interceptor = cluster.running()?.interceptor.clone();
    let then = Then::Late(Duration::from_secs(30));
    let (part, says) = (format!("/pods/{name}"), String::new());
    interceptor.order(Order { method: Method::PATCH, part, says, times: Some(1), when: When::BeforeSend, then });
    cluster.create_job("f", replace(std::slice::from_ref(&name), json!({}))).await?;
    patiently("the mark is on its way", async || Ok(interceptor.caught() > 0)).await?;
    cluster.vanish("f").await?;
    cluster.until_pod(&name, "marked for nobody", is_held).await?;
    cluster.until_nothing_is_left().await
}
