//! The conditions and events of a job.

use anyhow::ensure;
use serde_json::json;

use super::{all_replaced, names, settled_collaset};
use crate::jobs::{Told, replace};
use crate::test_cluster::TestCluster;

/// Conditions and events of a job are right from the first status to the last event.
pub async fn conditions_and_events_tell_the_story_of_a_job(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_collaset(cluster, 2).await?;
    cluster.start_host().await?;
    let mut targets = names(&pods);
    targets.push("never".to_owned());
    cluster.create_job("story", replace(&targets, json!({"partition": 1}))).await?;
    let job = cluster.until("story", "waiting", |job| job.count("succeeded") == 1).await?;
    ensure!(
        job.condition("Valid") == "True/Accepted" && job.condition("ActionAvailable") == "True/Serving",
        "{:?}",
        job.data
    );
    ensure!(
        job.condition("Complete") == "False/InProgress" && job.condition("Reconciling").starts_with("True/"),
        "{:?}",
        job.data
    );
    ensure!(job.data.pointer("/status/plugin/name") == Some(&json!("replace")), "{:?}", job.data);
    ensure!(job.data.pointer("/status/observedGeneration") == Some(&json!(1)), "{:?}", job.data);
    cluster.edit_job("story", json!({"partition": 3})).await?;
    let job = cluster.until_progress("story", "Failed").await?;
    ensure!(
        job.condition("Complete") == "False/JobFailed" && job.condition("Failed") == "True/TargetsFailed",
        "{:?}",
        job.data
    );
    ensure!(
        job.condition("Stalled").starts_with("True/") && job.condition("Reconciling").starts_with("False/"),
        "{:?}",
        job.data
    );
    let order: Vec<_> = job
        .data
        .pointer("/status/targetDetails")
        .and_then(|list| list.as_array())
        .into_iter()
        .flatten()
        .filter_map(|one| one.get("name")?.as_str())
        .collect();
    ensure!(order == targets, "in the order of the spec: {order:?}");
    for (reason, times) in [("ReplaceOriginPod", 2), ("ReplaceNewPod", 2), ("TargetFailed", 1), ("JobFailed", 1)] {
        cluster.until_told(reason, times).await?;
        ensure!(
            cluster.told_times(reason).await? == times,
            "{reason} is told {} times",
            cluster.told_times(reason).await?
        );
    }
    let told = |event: &k8s_openapi::api::events::v1::Event| event.note.as_deref() == Some("1 of 3 targets failed");
    ensure!(cluster.events().await?.iter().any(told), "the end in a sentence");
    for event in cluster.events().await? {
        ensure!(event.reporting_controller.as_deref() == Some("operationjob-controller"), "{event:?}");
        ensure!(event.regarding.and_then(|job| job.name).as_deref() == Some("story"), "regards the job");
    }
    all_replaced(cluster, &pods).await
}
