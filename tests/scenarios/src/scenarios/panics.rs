//! A panic in a round costs its job only that round, and does not affect other jobs.

use std::time::Duration;

use anyhow::ensure;
use http::Method;
use oarlock_sim::world::{Pause, Scope};
use serde_json::json;

use super::ending::begun;
use super::hostile::with_hostile;
use super::{all_replaced, names, settled_collaset};
use crate::jobs::{Told, replace};
use crate::test_cluster::{TestCluster, patiently};
use oarlock_support::faults::Then;
use oarlock_support::interception::WriteRecord;
use oarlock_support::orders::{Latch, Order};

/// Makes the next round of this job panic as it writes the status.
fn sabotage(cluster: &TestCluster, job: &str) -> anyhow::Result<()> {
    let status = format!("/operationjobs/{job}/status");
    cluster.running()?.interceptor.order(Order::next(Method::PATCH, &status, Then::Panic));
    Ok(())
}

/// Returns the number of rounds that panicked.
fn panics(cluster: &TestCluster) -> Option<i64> {
    cluster.figure("operationjob_round_panics_total")
}

async fn until_panicked(cluster: &TestCluster, times: i64) -> anyhow::Result<()> {
    patiently("a round panicked", async || Ok(panics(cluster) == Some(times))).await
}

/// A52: the host repeats a round that panics, both the first round of a job and a round in flight. Another job goes on.
pub async fn a_round_that_panics_is_made_again_and_no_other_job_notices(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let pods = settled_collaset(cluster, 2).await?;
    cluster.world.hold(Pause::Creation, Scope::World);
    cluster.start_host().await?;
    sabotage(cluster, "p")?;
    for (job, target) in ["p", "q"].into_iter().zip(names(&pods)) {
        cluster.create_job(job, replace(&[target], json!({}))).await?;
    }
    for (name, _) in &pods {
        begun(cluster, name).await?;
    }
    until_panicked(cluster, 1).await?;
    sabotage(cluster, "p")?;
    cluster.edit_job("p", json!({"activeDeadlineSeconds": 9_000})).await?;
    until_panicked(cluster, 2).await?;
    cluster.world.release(Pause::Creation, Scope::World);
    cluster.until_progress("q", "Succeeded").await?;
    cluster.until_progress("p", "Succeeded").await?;
    ensure!(cluster.running()?.leads() && panics(cluster) == Some(2), "the host ran on");
    all_replaced(cluster, &pods).await
}

/// A52: the host does not lose the reply to a write that was in flight during a panic. Only that reply causes the next round.
pub async fn a_reply_that_comes_after_a_panic_is_not_lost(cluster: &mut TestCluster) -> anyhow::Result<()> {
    cluster.seedbed.bare_pod("a").await?;
    cluster.start(with_hostile(cluster)).await?;
    let interceptor = cluster.running()?.interceptor.clone();
    interceptor.order(Order::all(Method::PATCH, "/pods/a", Then::Hold(Latch::default())));
    let spec = json!({"action": "Hostile", "targets": [{"name": "a"}], "activeDeadlineSeconds": 60});
    cluster.create_job("p", spec).await?;
    patiently("the write is under way", async || Ok(interceptor.caught() > 0)).await?;
    let epoch = |job: &kube::api::DynamicObject| job.data.pointer("/status/epoch").and_then(serde_json::Value::as_i64);
    let before = epoch(&cluster.until("p", "in flight", |job| job.count("processing") == 1).await?);
    sabotage(cluster, "p")?;
    cluster.edit_job("p", json!({"TTLSecondsAfterFinished": 900})).await?;
    until_panicked(cluster, 1).await?;
    cluster.until("p", "adopted anew", |job| epoch(job) > before).await?;
    interceptor.lift();
    cluster.until("p", "ended", super::deadlines::has_ended).await?;
    cluster.until_progress("p", "Succeeded").await?;
    Ok(())
}

/// A52: the deadline holds if a round panics while a write is lost. The late write has no effect.
pub async fn a_deadline_is_kept_after_a_panic_while_a_write_was_lost(cluster: &mut TestCluster) -> anyhow::Result<()> {
    cluster.seedbed.bare_pod("a").await?;
    cluster.start_host().await?;
    let interceptor = cluster.running()?.interceptor.clone();
    interceptor.order(Order::next(Method::PATCH, "/pods/a", Then::Late(Duration::from_secs(45))));
    let spec = json!({"parameters": {"strategy": "CollaSet"}, "activeDeadlineSeconds": 15});
    cluster.create_job("p", replace(&["a".to_owned()], spec)).await?;
    patiently("the write is under way", async || Ok(interceptor.caught() > 0)).await?;
    sabotage(cluster, "p")?;
    cluster.edit_job("p", json!({"TTLSecondsAfterFinished": 900})).await?;
    until_panicked(cluster, 1).await?;
    let job = cluster.until_progress("p", "Failed").await?;
    let target = job.targets().get("a").cloned().unwrap_or_default();
    ensure!(job.target("a") == "Failed/DeadlineExceeded", "{target}");
    ensure!((15..=17).contains(&super::deadlines::lasted(&target)?), "{target}");
    let late = |sent: &WriteRecord| sent.path.ends_with("/pods/a") && sent.status == Some(http::StatusCode::CONFLICT);
    patiently("the late write comes too late", async || Ok(interceptor.records().iter().any(late))).await?;
    cluster.until_nothing_is_left().await
}
