//! The number of targets in flight, and the effect of failures on the rest of a job.

use std::time::Duration;

use anyhow::ensure;
use kube::api::{DynamicObject, Patch, PatchParams};
use oarlock_sim::world::Version;
use serde_json::{Value, json};

use super::hostile::with_hostile;
use crate::jobs::Told;
use crate::test_cluster::TestCluster;

/// The label with which a pod asks for a misdeed.
const DO: &str = "hostile.test/do";

/// Creates pods of these names, and a job of the hostile plugin on them with these further fields of its spec.
async fn create(cluster: &TestCluster, job: &str, pods: &[(&str, &str)], more: Value) -> anyhow::Result<()> {
    for (name, deed) in pods {
        cluster.seedbed.bare_pod(name).await?;
        asks(cluster, name, deed).await?;
    }
    let targets: Vec<_> = pods.iter().map(|(name, _)| json!({ "name": name })).collect();
    let mut spec = json!({"action": "Hostile", "targets": targets});
    if let (Some(spec), Value::Object(more)) = (spec.as_object_mut(), more) {
        spec.extend(more);
    }
    cluster.create_job(job, spec).await?;
    Ok(())
}

/// Sets the label that asks for this misdeed on the pod.
async fn asks(cluster: &TestCluster, pod: &str, deed: &str) -> anyhow::Result<()> {
    let body = json!({"metadata": {"labels": {DO: deed}}});
    cluster.pods().patch(pod, &PatchParams::default(), &Patch::Merge(body)).await?;
    Ok(())
}

/// Returns the stored versions of a job, oldest first.
pub(super) fn versions(cluster: &TestCluster, job: &str) -> Vec<Version> {
    let of_job = |version: &Version| version.plural == "operationjobs" && version.name == job;
    cluster.history().versions().into_iter().filter(|v| v.namespace == cluster.namespace && of_job(v)).collect()
}

/// Returns the largest number of targets in flight in any stored status of a job.
fn most_in_flight(cluster: &TestCluster, job: &str) -> u64 {
    let counts = versions(cluster, job).into_iter();
    counts.map(|version| version.at("/status/processingPodCount").as_u64().unwrap_or(0)).max().unwrap_or(0)
}

fn waits_for(job: &DynamicObject) -> &str {
    job.data.pointer("/status/waitsFor").and_then(Value::as_str).unwrap_or_default()
}

/// Returns true if neither a plugin nor the host has written to the pod.
async fn is_untouched(cluster: &TestCluster, pod: &str) -> anyhow::Result<bool> {
    let meta = cluster.pods().get(pod).await?.metadata;
    let labels = meta.labels.iter().flatten().filter(|(key, _)| key.starts_with("hostile.test/") && *key != DO);
    Ok(labels.count() == 0 && meta.annotations.is_none_or(|all| all.is_empty()))
}

/// A6: with parallelism two and partition four, at most two of seven targets are in flight and only four run, although each of them fails.
pub async fn no_more_targets_are_in_flight_than_parallelism_and_partition_allow(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let names = ["g", "b", "f", "a", "e", "c", "d"];
    cluster.start(with_hostile(cluster)).await?;
    let more = json!({"partition": 4, "parallelism": 2});
    create(cluster, "p", &names.map(|name| (name, "fail-in-progress")), more).await?;
    cluster.until("p", "four failed", |job| job.count("failed") == 4).await?;
    cluster.pass(Duration::from_secs(60)).await;
    let job = cluster.jobs().get("p").await?;
    ensure!((job.progress(), job.count("failed"), job.count("pending")) == ("Processing", 4, 3), "{:?}", job.data);
    ensure!(waits_for(&job) == "Partition", "{:?}", job.data);
    let details = job.data.pointer("/status/targetDetails").and_then(Value::as_array).cloned().unwrap_or_default();
    let told: Vec<_> = details.iter().filter_map(|target| target.get("name")?.as_str()).collect();
    ensure!(told == names, "in the order of the spec: {told:?}");
    ensure!(names[..4].iter().all(|name| job.target(name) == "Failed/Hostile"), "{:?}", job.data);
    for name in &names[4..] {
        ensure!(job.target(name) == "Pending" && is_untouched(cluster, name).await?, "{name}: {:?}", job.data);
    }
    cluster.edit_job("p", json!({"partition": 7})).await?;
    cluster.until_progress("p", "Failed").await?;
    ensure!(most_in_flight(cluster, "p") == 2, "{} were in flight at once", most_in_flight(cluster, "p"));
    Ok(())
}

/// A percentage of targets is rounded up, to at least one. A higher `parallelism` starts more targets, and a lower one stops none.
pub async fn parallelism_is_a_share_that_can_be_raised_and_lowered_in_flight(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let names = ["a", "b", "c", "d", "e", "f"];
    cluster.start(with_hostile(cluster)).await?;
    create(cluster, "p", &names.map(|name| (name, "dawdle-in-progress")), json!({"parallelism": "1%"})).await?;
    cluster.until("p", "one in flight", |job| job.count("processing") == 1).await?;
    cluster.edit_job("p", json!({"parallelism": "51%"})).await?;
    cluster.until("p", "four in flight", |job| job.count("processing") == 4).await?;
    cluster.edit_job("p", json!({"parallelism": 2})).await?;
    cluster.until("p", "seen", |job| observed(job) == job.metadata.generation).await?;
    // The targets in flight go on. No target takes the places of the first two.
    for (name, left) in [("a", 3), ("b", 2)] {
        asks(cluster, name, "succeed").await?;
        cluster.until("p", "one less", |job| job.target(name) == "Succeeded").await?;
        cluster.pass(Duration::from_secs(20)).await;
        ensure!(cluster.jobs().get("p").await?.count("processing") == left, "{left} are left in flight");
    }
    asks(cluster, "c", "succeed").await?;
    cluster.until("p", "the next one", |job| job.target("c") == "Succeeded" && job.count("processing") == 2).await?;
    cluster.edit_job("p", json!({"parallelism": null})).await?;
    for name in ["d", "e", "f"] {
        asks(cluster, name, "succeed").await?;
    }
    cluster.until_progress("p", "Succeeded").await?;
    ensure!(most_in_flight(cluster, "p") == 4, "{} were in flight at once", most_in_flight(cluster, "p"));
    Ok(())
}

fn observed(job: &DynamicObject) -> Option<i64> {
    job.data.pointer("/status/observedGeneration").and_then(Value::as_i64)
}

/// Ten targets for a job with partition five. Two of the first five fail once all are in flight, and three go on.
const HALF: [(&str, &str); 10] = [
    ("a", "dawdle-in-progress"),
    ("b", "dawdle-in-progress"),
    ("c", "dawdle-in-progress"),
    ("d", "dawdle-in-progress"),
    ("e", "dawdle-in-progress"),
    ("f", "succeed"),
    ("g", "succeed"),
    ("h", "succeed"),
    ("i", "succeed"),
    ("j", "succeed"),
];

/// Starts the job of ten targets with this failure policy, and waits until two of the five targets in flight have failed.
async fn half_in_flight(cluster: &mut TestCluster, policy: Value) -> anyhow::Result<()> {
    cluster.start(with_hostile(cluster)).await?;
    create(cluster, "f", &HALF, json!({"partition": 5, "failurePolicy": policy})).await?;
    cluster.until("f", "five in flight", |job| job.count("processing") == 5).await?;
    for name in ["a", "b"] {
        asks(cluster, name, "fail-in-progress").await?;
    }
    let failed = |job: &DynamicObject| ["a", "b"].iter().all(|name| job.target(name) == "Failed/Hostile");
    cluster.until("f", "two failed", failed).await.map(drop)
}

/// A10: with `FailFast` the host skips targets that have not started, the targets in flight go on, and the job fails.
pub async fn with_fail_fast_the_rest_is_skipped_and_half_of_the_job_in_flight_goes_on(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    half_in_flight(cluster, json!({"type": "FailFast", "maxFailures": "19%"})).await?;
    let job = cluster.until("f", "the rest is skipped", |job| job.count("failed") == 7).await?;
    ensure!((job.progress(), job.count("processing")) == ("Processing", 3), "{:?}", job.data);
    ensure!(job.condition("Failed") == "False/InProgress", "{:?}", job.data);
    cluster.edit_job("f", json!({"partition": 10})).await?;
    for name in ["c", "d", "e"] {
        asks(cluster, name, "succeed").await?;
    }
    let job = cluster.until_progress("f", "Failed").await?;
    ensure!(job.condition("Failed") == "True/FailFast" && job.count("succeeded") == 3, "{:?}", job.data);
    for (name, _) in &HALF[5..] {
        ensure!(job.target(name) == "Failed/Skipped" && is_untouched(cluster, name).await?, "{name}: {:?}", job.data);
        let target = job.targets().get(*name).cloned().unwrap_or_default();
        ensure!(target.get("uid").is_none() && !target.to_string().contains("Released"), "{target}");
    }
    cluster.delete_job("f").await?;
    cluster.until_gone("f").await
}

/// A10: with `Pause` no target starts until more failures are tolerated. The targets in flight go on, even if another host takes over.
pub async fn with_pause_nothing_starts_until_more_failures_are_tolerated(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    half_in_flight(cluster, json!({"type": "Pause", "maxFailures": 1})).await?;
    cluster.until("f", "paused", |job| job.condition("Paused") == "True/FailureThreshold").await?;
    // Wait before the kill: a killed host never sends its remaining events.
    cluster.until_told("Paused", 1).await?;
    cluster.edit_job("f", json!({"partition": 10})).await?;
    asks(cluster, "c", "succeed").await?;
    cluster.until("f", "one more succeeded", |job| job.count("succeeded") == 1).await?;
    cluster.kill_host("host").await?;
    cluster.start(with_hostile(cluster)).await?;
    for name in ["d", "e"] {
        asks(cluster, name, "succeed").await?;
    }
    let job = cluster.until("f", "nothing in flight", |job| job.count("succeeded") == 3).await?;
    ensure!(job.condition("Reconciling") == "True/Paused" && waits_for(&job) == "Failures", "{:?}", job.data);
    cluster.pass(Duration::from_secs(60)).await;
    ensure!(cluster.jobs().get("f").await?.count("pending") == 5, "nothing starts");
    cluster.edit_job("f", json!({"failurePolicy": {"maxFailures": 5}})).await?;
    let job = cluster.until_progress("f", "Failed").await?;
    ensure!((job.count("succeeded"), job.count("failed")) == (8, 2), "{:?}", job.data);
    ensure!(job.condition("Failed") == "True/TargetsFailed", "{:?}", job.data);
    cluster.until_told("Resumed", 1).await?;
    ensure!((cluster.told_times("Paused").await?, cluster.told_times("Resumed").await?) == (1, 1), "each once");
    Ok(())
}
