//! Deadlines that strike while nothing moves: whatever a target waits for, it ends when its time is over.

use anyhow::{Context as _, ensure};
use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;
use oarlock_sim::world::{Pause, Scope};
use serde_json::{Value, json};

use super::evicting::budget;
use super::hostile::with_hostile;
use super::{identities, names, settled_collaset, settled_deployment};
use crate::jobs::{Told, replace};
use crate::rig::Rig;

/// The limit of most targets here, and how much later its end may be recorded, in seconds.
const LIMIT: i64 = 5;
/// The limit of an eviction that is tried after five seconds and again after fifteen.
const BETWEEN_TRIES: i64 = 8;
const LATE: i64 = 2;

/// A50: a marked pod of a CollaSet gets no partner.
pub async fn a_deadline_is_kept_while_no_partner_comes(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_collaset(rig, 2).await?;
    rig.world.hold(Pause::Creation, Scope::World);
    rig.start_host().await?;
    rig.create_job("d", replace(&names(&pods), json!({"activeDeadlineSeconds": LIMIT}))).await?;
    ends_in_time(rig, &names(&pods), LIMIT).await?;
    rig.until_nothing_is_left().await
}

/// A50: an eviction is refused by a budget, and the next try would come after the deadline.
pub async fn a_deadline_is_kept_while_a_budget_refuses_the_eviction(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_deployment(rig, 2).await?;
    budget(rig, 2).await?;
    rig.start_host().await?;
    let target = names(pods.get(..1).unwrap_or_default());
    rig.create_job("d", replace(&target, json!({"activeDeadlineSeconds": BETWEEN_TRIES}))).await?;
    ends_in_time(rig, &target, BETWEEN_TRIES).await?;
    let stays = identities(rig, &target).await?;
    ensure!(pods.starts_with(&stays), "nobody was evicted: {stays:?}");
    rig.until_nothing_is_left().await
}

/// A50: the plugin wants to be asked again in an hour.
pub async fn a_deadline_is_kept_although_the_plugin_asks_for_an_hour(rig: &mut Rig) -> anyhow::Result<()> {
    rig.seedbed.bare_pod("a").await?;
    rig.start(with_hostile(rig)).await?;
    let spec = json!({
        "action": "Hostile", "targets": [{"name": "a"}], "activeDeadlineSeconds": LIMIT,
        "parameters": {"do": "dawdle-in-progress"},
    });
    rig.create_job("d", spec).await?;
    ends_in_time(rig, &["a".to_owned()], LIMIT).await
}

/// Waits for the end of job `d`, each target of which ran out of time.
async fn ends_in_time(rig: &Rig, targets: &[String], limit: i64) -> anyhow::Result<()> {
    let job = rig.until_progress("d", "Failed").await?;
    for name in targets {
        ensure!(job.target(name) == "Failed/DeadlineExceeded", "{name}: {:?}", job.data);
        let target = job.targets().get(name).cloned().unwrap_or_default();
        ensure!((limit..=limit + LATE).contains(&lasted(&target)?), "{name}: {target}");
    }
    let status = job.data.get("status").cloned().unwrap_or_default();
    ensure!(lasted(&status)? <= limit + LATE, "{status}");
    Ok(())
}

/// From `startTime` to `endTime` of a target or a job, in seconds.
pub(crate) fn lasted(of: &Value) -> anyhow::Result<i64> {
    let time = |field: &str| -> anyhow::Result<Timestamp> {
        let text = of.get(field).and_then(Value::as_str).with_context(|| format!("no {field}: {of}"))?;
        Ok(text.parse()?)
    };
    Ok(time("endTime")?.duration_since(time("startTime")?).as_secs())
}

/// Whether a job has ended, well or badly.
pub(crate) fn has_ended(job: &DynamicObject) -> bool {
    ["Succeeded", "Failed"].contains(&job.progress())
}
