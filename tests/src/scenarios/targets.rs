//! The pods that scenarios work on: settled sets, who is in them, and what is left on them.

use kube::api::DynamicObject;
use oarlock_sim::world::SetKey;

use super::{HEARD, SETTLED};
use crate::rig::Rig;

/// Names and UIDs of pods, as the ledger's verdict wants them.
///
/// # Errors
/// If a pod is not there.
pub async fn identities(rig: &Rig, names: &[String]) -> anyhow::Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for name in names {
        let pod = rig.pods().get(name).await?;
        found.push((name.clone(), pod.metadata.uid.unwrap_or_default()));
    }
    Ok(found)
}

/// Fails unless each of `targets` went once and was replaced once, and nothing of ours is left.
///
/// # Errors
/// With the ledger's verdict.
pub async fn all_replaced(rig: &Rig, targets: &[(String, String)]) -> anyhow::Result<()> {
    let verdict = rig.world.ledger().verdict_within(targets, HEARD).await;
    anyhow::ensure!(verdict.is_clean(), "{verdict}");
    rig.until_nothing_is_left().await
}

/// A settled CollaSet and the identities of its pods.
pub(crate) async fn settled_collaset(rig: &Rig, replicas: usize) -> anyhow::Result<Vec<(String, String)>> {
    let set = rig.seedbed.collaset("foo", replicas).await?;
    settled(rig, &set, "foo").await
}

/// A settled Deployment and the identities of its pods.
pub(crate) async fn settled_deployment(rig: &Rig, replicas: usize) -> anyhow::Result<Vec<(String, String)>> {
    let set = rig.seedbed.deployment("web", replicas).await?;
    settled(rig, &set, "web").await
}

pub(crate) async fn settled(rig: &Rig, set: &SetKey, app: &str) -> anyhow::Result<Vec<(String, String)>> {
    rig.world.settled(set, SETTLED).await?;
    identities(rig, &rig.pod_names(app).await?).await
}

/// The names among identities.
pub(crate) fn names(pods: &[(String, String)]) -> Vec<String> {
    pods.iter().map(|(name, _)| name.clone()).collect()
}

/// Whether any job holds the pod.
pub(crate) fn is_held(pod: &DynamicObject) -> bool {
    pod.metadata.annotations.iter().flatten().any(|(key, _)| key.starts_with("hold.oarlock.dev/"))
}

/// How many jobs hold the pod.
pub(crate) fn holds(pod: &DynamicObject) -> usize {
    pod.metadata.annotations.iter().flatten().filter(|(key, _)| key.starts_with("hold.oarlock.dev/")).count()
}
