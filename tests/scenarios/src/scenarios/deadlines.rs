//! Deadlines that end a target while no object changes, whatever the target waits for.

use anyhow::{Context as _, ensure};
use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;
use oarlock_sim::world::{Pause, Scope};
use serde_json::{Value, json};

use super::evicting::budget;
use super::hostile::with_hostile;
use super::{identities, names, settled_collaset, settled_deployment};
use crate::jobs::{Told, replace};
use crate::test_cluster::TestCluster;

/// The deadline of most targets here, in seconds. `LATE` is the allowed delay of the recorded end.
const LIMIT: i64 = 5;
/// A deadline between the second try of an eviction, after five seconds, and the third, after fifteen.
const BETWEEN_TRIES: i64 = 8;
const LATE: i64 = 2;

/// A50: the deadline holds while a marked pod of a CollaSet gets no new pod.
pub async fn a_deadline_is_kept_while_no_partner_comes(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_collaset(cluster, 2).await?;
    cluster.world.hold(Pause::Creation, Scope::World);
    cluster.start_host().await?;
    cluster.create_job("d", replace(&names(&pods), json!({"activeDeadlineSeconds": LIMIT}))).await?;
    ends_in_time(cluster, &names(&pods), LIMIT).await?;
    cluster.until_nothing_is_left().await
}

/// A50: the deadline holds while a budget refuses the eviction and the next try would come later.
pub async fn a_deadline_is_kept_while_a_budget_refuses_the_eviction(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_deployment(cluster, 2).await?;
    budget(cluster, 2).await?;
    cluster.start_host().await?;
    let target = names(pods.get(..1).unwrap_or_default());
    cluster.create_job("d", replace(&target, json!({"activeDeadlineSeconds": BETWEEN_TRIES}))).await?;
    ends_in_time(cluster, &target, BETWEEN_TRIES).await?;
    let stays = identities(cluster, &target).await?;
    ensure!(pods.starts_with(&stays), "nobody was evicted: {stays:?}");
    cluster.until_nothing_is_left().await
}

/// A50: the deadline holds although the plugin asks for its next call in an hour.
pub async fn a_deadline_is_kept_although_the_plugin_asks_for_an_hour(cluster: &mut TestCluster) -> anyhow::Result<()> {
    cluster.seedbed.bare_pod("a").await?;
    cluster.start(with_hostile(cluster)).await?;
    let spec = json!({
        "action": "Hostile", "targets": [{"name": "a"}], "activeDeadlineSeconds": LIMIT,
        "parameters": {"do": "dawdle-in-progress"},
    });
    cluster.create_job("d", spec).await?;
    ends_in_time(cluster, &["a".to_owned()], LIMIT).await
}

/// Waits until job `d` has failed, and checks that each target ran out of time at its deadline.
async fn ends_in_time(cluster: &TestCluster, targets: &[String], limit: i64) -> anyhow::Result<()> {
    let job = cluster.until_progress("d", "Failed").await?;
    for name in targets {
        ensure!(job.target(name) == "Failed/DeadlineExceeded", "{name}: {:?}", job.data);
        let target = job.targets().get(name).cloned().unwrap_or_default();
        ensure!((limit..=limit + LATE).contains(&lasted(&target)?), "{name}: {target}");
    }
    let status = job.data.get("status").cloned().unwrap_or_default();
    ensure!(lasted(&status)? <= limit + LATE, "{status}");
    Ok(())
}

/// Returns the seconds from `startTime` to `endTime` of a target or a job.
pub(crate) fn lasted(of: &Value) -> anyhow::Result<i64> {
    let time = |field: &str| -> anyhow::Result<Timestamp> {
        let text = of.get(field).and_then(Value::as_str).with_context(|| format!("no {field}: {of}"))?;
        Ok(text.parse()?)
    };
    Ok(time("endTime")?.duration_since(time("startTime")?).as_secs())
}

/// Returns true if a job has succeeded or failed.
pub(crate) fn has_ended(job: &DynamicObject) -> bool {
    ["Succeeded", "Failed"].contains(&job.progress())
}
