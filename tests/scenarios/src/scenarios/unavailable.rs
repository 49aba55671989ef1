//! The number of pods that a job makes unavailable at once.

use std::collections::BTreeSet;

use anyhow::ensure;
use serde_json::{Value, json};

use super::{names, settled_deployment};
use crate::jobs::replace;
use crate::test_cluster::TestCluster;

/// With `maxUnavailable` of 34%, never more than two of six pods are in flight.
pub async fn a_rolling_replacement_keeps_within_its_bound(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_deployment(cluster, 6).await?;
    cluster.start_host().await?;
    cluster.create_job("r", replace(&names(&pods), json!({"maxUnavailable": "34%"}))).await?;
    cluster.until_progress("r", "Succeeded").await?;
    let versions = cluster.history().versions();
    let own = versions.iter().filter(|version| version.namespace == cluster.namespace);
    let counts = own.filter(|version| version.plural == "operationjobs");
    let most = counts.filter_map(|version| version.at("/status/processingPodCount").as_i64()).max();
    ensure!(most == Some(2), "a third of six are two, and {most:?} were in flight");
    cluster.until_nothing_is_left().await
}

/// A9: two jobs on the same pods, each with `maxUnavailable` of 1, never make a second pod unavailable.
pub async fn two_jobs_together_make_no_second_pod_unavailable(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_deployment(cluster, 5).await?;
    cluster.start_host().await?;
    let spec = || replace(&names(&pods), json!({"maxUnavailable": 1}));
    cluster.create_job("one", spec()).await?;
    cluster.create_job("two", spec()).await?;
    cluster.until("one", "it has ended", |job| job.data.pointer("/status/endTime").is_some()).await?;
    cluster.until("two", "it has ended", |job| job.data.pointer("/status/endTime").is_some()).await?;
    let mut serving: BTreeSet<String> = names(&pods).into_iter().collect();
    let own = cluster.history().versions().into_iter().filter(|version| version.namespace == cluster.namespace);
    let begun = own.skip_while(|version| version.plural != "operationjobs");
    for version in begun.filter(|version| version.plural == "pods") {
        let conditions = version.at("/status/conditions").as_array().cloned().unwrap_or_default();
        let is = |condition: &Value, field: &str, word: &str| condition.get(field).is_some_and(|own| own == word);
        let ready = conditions.iter().any(|own| is(own, "type", "Ready") && is(own, "status", "True"));
        if ready && !version.is_end && version.at("/metadata/deletionTimestamp").is_null() {
            serving.insert(version.name.clone());
        } else {
            serving.remove(&version.name);
        }
        ensure!(serving.len() >= 4, "at {} only {serving:?} serve", version.resource_version);
    }
    cluster.until_nothing_is_left().await
}
