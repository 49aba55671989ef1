//! A round that panics costs its job that round, and nobody else anything.

use std::time::Duration;

use anyhow::ensure;
use http::Method;
use oarlock_core::job::key::JobKey;
use oarlock_sim::world::{Pause, Scope};
use serde_json::json;

use super::ending::begun;
use super::hostile::with_hostile;
use super::{all_replaced, names, settled_collaset};
use crate::jobs::{Told, replace};
use crate::rig::{Rig, patiently};
use oarlock_bed::faults::Then;
use oarlock_bed::interception::WriteRecord;
use oarlock_bed::orders::{Latch, Order};

/// The next round of this job panics.
fn sabotage(rig: &Rig, job: &str) -> anyhow::Result<()> {
    rig.running()?.host.sabotage_next(JobKey { namespace: rig.namespace.clone(), name: job.to_owned() });
    Ok(())
}

/// How many rounds have panicked.
fn panics(rig: &Rig) -> Option<i64> {
    rig.figure("operationjob_round_panics_total")
}

async fn until_panicked(rig: &Rig, times: i64) -> anyhow::Result<()> {
    patiently("a round panicked", async || Ok(panics(rig) == Some(times))).await
}

/// A52: the first round of a job panics, and one in flight; another job beside it goes on.
pub async fn a_round_that_panics_is_made_again_and_no_other_job_notices(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_collaset(rig, 2).await?;
    rig.world.hold(Pause::Creation, Scope::World);
    rig.start_host().await?;
    sabotage(rig, "p")?;
    for (job, target) in ["p", "q"].into_iter().zip(names(&pods)) {
        rig.create_job(job, replace(&[target], json!({}))).await?;
    }
    for (name, _) in &pods {
        begun(rig, name).await?;
    }
    until_panicked(rig, 1).await?;
    sabotage(rig, "p")?;
    rig.edit_job("p", json!({"activeDeadlineSeconds": 9_000})).await?;
    until_panicked(rig, 2).await?;
    rig.world.release(Pause::Creation, Scope::World);
    rig.until_progress("q", "Succeeded").await?;
    rig.until_progress("p", "Succeeded").await?;
    ensure!(rig.running()?.leads() && panics(rig) == Some(2), "the host ran on");
    all_replaced(rig, &pods).await
}

/// A52: the round panics while a write of its job is under way, and nothing but the reply to that write brings the next.
pub async fn a_reply_that_comes_after_a_panic_is_not_lost(rig: &mut Rig) -> anyhow::Result<()> {
    rig.seedbed.bare_pod("a").await?;
    rig.start(with_hostile(rig)).await?;
    let wire = rig.running()?.wire.clone();
    wire.order(Order::all(Method::PATCH, "/pods/a", Then::Hold(Latch::default())));
    let spec = json!({"action": "Hostile", "targets": [{"name": "a"}], "activeDeadlineSeconds": 60});
    rig.create_job("p", spec).await?;
    patiently("the write is under way", async || Ok(wire.caught() > 0)).await?;
    let epoch = |job: &kube::api::DynamicObject| job.data.pointer("/status/epoch").and_then(serde_json::Value::as_i64);
    let before = epoch(&rig.until("p", "in flight", |job| job.count("processing") == 1).await?);
    sabotage(rig, "p")?;
    rig.edit_job("p", json!({"TTLSecondsAfterFinished": 900})).await?;
    until_panicked(rig, 1).await?;
    rig.until("p", "adopted anew", |job| epoch(job) > before).await?;
    wire.lift();
    rig.until("p", "ended", super::deadlines::has_ended).await?;
    rig.until_progress("p", "Succeeded").await?;
    Ok(())
}

/// A52: the round panics while a write of its job is lost. The deadline is kept, and what arrives after it does nothing.
pub async fn a_deadline_is_kept_after_a_panic_while_a_write_was_lost(rig: &mut Rig) -> anyhow::Result<()> {
    rig.seedbed.bare_pod("a").await?;
    rig.start_host().await?;
    let wire = rig.running()?.wire.clone();
    wire.order(Order::next(Method::PATCH, "/pods/a", Then::Late(Duration::from_secs(45))));
    let spec = json!({"parameters": {"strategy": "CollaSet"}, "activeDeadlineSeconds": 15});
    rig.create_job("p", replace(&["a".to_owned()], spec)).await?;
    patiently("the write is under way", async || Ok(wire.caught() > 0)).await?;
    sabotage(rig, "p")?;
    rig.edit_job("p", json!({"TTLSecondsAfterFinished": 900})).await?;
    until_panicked(rig, 1).await?;
    let job = rig.until_progress("p", "Failed").await?;
    let target = job.targets().get("a").cloned().unwrap_or_default();
    ensure!(job.target("a") == "Failed/DeadlineExceeded", "{target}");
    ensure!((15..=17).contains(&super::deadlines::lasted(&target)?), "{target}");
    let late = |sent: &WriteRecord| sent.path.ends_with("/pods/a") && sent.status == Some(http::StatusCode::CONFLICT);
    patiently("the late write comes too late", async || Ok(wire.records().iter().any(late))).await?;
    rig.until_nothing_is_left().await
}
