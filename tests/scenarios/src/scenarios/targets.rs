//! The pods of scenarios: settled sets, their pods, and the marks on them.

use kube::api::DynamicObject;
use oarlock_sim::world::SetKey;

use super::{HEARD, SETTLED};
use crate::test_cluster::TestCluster;

/// Returns names and UIDs of pods, as the check of the event log needs them.
///
/// # Errors
/// If a pod does not exist.
pub async fn identities(cluster: &TestCluster, names: &[String]) -> anyhow::Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for name in names {
        let pod = cluster.pods().get(name).await?;
        found.push((name.clone(), pod.metadata.uid.unwrap_or_default()));
    }
    Ok(found)
}

/// Fails unless each of `targets` went once and was replaced once, and no mark of a host is left.
///
/// # Errors
/// If a target was not replaced correctly. The error shows the result of the check.
pub async fn all_replaced(cluster: &TestCluster, targets: &[(String, String)]) -> anyhow::Result<()> {
    let verdict = cluster.world.ledger().verdict_within(targets, HEARD).await;
    anyhow::ensure!(verdict.is_clean(), "{verdict}");
    cluster.until_nothing_is_left().await
}

/// Creates a CollaSet, waits until it is settled, and returns the identities of its pods.
///
/// # Errors
/// If the pods do not become Ready.
pub async fn settled_collaset(cluster: &TestCluster, replicas: usize) -> anyhow::Result<Vec<(String, String)>> {
    let set = cluster.seedbed.collaset("foo", replicas).await?;
    settled(cluster, &set, "foo").await
}

/// Creates a Deployment, waits until it is settled, and returns the identities of its pods.
///
/// # Errors
/// If the API server refuses a request, or if the Deployment does not settle in time.
pub async fn settled_deployment(cluster: &TestCluster, replicas: usize) -> anyhow::Result<Vec<(String, String)>> {
    let set = cluster.seedbed.deployment("web", replicas).await?;
    settled(cluster, &set, "web").await
}

pub(crate) async fn settled(cluster: &TestCluster, set: &SetKey, app: &str) -> anyhow::Result<Vec<(String, String)>> {
    cluster.world.settled(set, SETTLED).await?;
    identities(cluster, &cluster.pod_names(app).await?).await
}

/// Returns the names in identities.
#[must_use]
pub fn names(pods: &[(String, String)]) -> Vec<String> {
    pods.iter().map(|(name, _)| name.clone()).collect()
}

/// Returns true if any job holds the pod.
pub(crate) fn is_held(pod: &DynamicObject) -> bool {
    pod.metadata.annotations.iter().flatten().any(|(key, _)| key.starts_with("hold.oarlock.dev/"))
}

/// Returns the number of jobs that hold the pod.
pub(crate) fn holds(pod: &DynamicObject) -> usize {
    pod.metadata.annotations.iter().flatten().filter(|(key, _)| key.starts_with("hold.oarlock.dev/")).count()
}
