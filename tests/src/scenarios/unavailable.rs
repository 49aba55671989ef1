//! How many pods of a job are unavailable at once.

use std::collections::BTreeSet;

use anyhow::ensure;
use serde_json::{Value, json};

use super::{names, settled_deployment};
use crate::jobs::replace;
use crate::rig::Rig;

/// A rolling replacement: never more than two of six pods are in flight.
pub async fn a_rolling_replacement_keeps_within_its_bound(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_deployment(rig, 6).await?;
    rig.start_host().await?;
    rig.create_job("r", replace(&names(&pods), json!({"maxUnavailable": "34%"}))).await?;
    rig.until_progress("r", "Succeeded").await?;
    let versions = rig.history().versions();
    let own = versions.iter().filter(|version| version.namespace == rig.namespace);
    let counts = own.filter(|version| version.plural == "operationjobs");
    let most = counts.filter_map(|version| version.at("/status/processingPodCount").as_i64()).max();
    ensure!(most == Some(2), "a third of six are two, and {most:?} were in flight");
    rig.until_nothing_is_left().await
}

/// A9: two jobs of the same pods, one of which is not Ready, and none may make a second one unavailable.
pub async fn two_jobs_together_make_no_second_pod_unavailable(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_deployment(rig, 5).await?;
    rig.start_host().await?;
    let spec = || replace(&names(&pods), json!({"maxUnavailable": 1}));
    rig.create_job("one", spec()).await?;
    rig.create_job("two", spec()).await?;
    rig.until("one", "it has ended", |job| job.data.pointer("/status/endTime").is_some()).await?;
    rig.until("two", "it has ended", |job| job.data.pointer("/status/endTime").is_some()).await?;
    let mut serving: BTreeSet<String> = names(&pods).into_iter().collect();
    let own = rig.history().versions().into_iter().filter(|version| version.namespace == rig.namespace);
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
    rig.until_nothing_is_left().await
}
