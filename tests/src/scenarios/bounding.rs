//! How many targets are in flight at once, and what failures mean for the rest of a job.

use std::time::Duration;

use anyhow::ensure;
use kube::api::{DynamicObject, Patch, PatchParams};
use oarlock_sim::world::Version;
use serde_json::{Value, json};

use super::hostile::with_hostile;
use crate::jobs::Told;
use crate::rig::Rig;

/// The label by which a pod asks for a misdeed.
const DO: &str = "hostile.test/do";

/// Pods of these names, and a job of the hostile plugin on them with these further fields of its spec.
async fn create(rig: &Rig, job: &str, pods: &[(&str, &str)], more: Value) -> anyhow::Result<()> {
    for (name, deed) in pods {
        rig.seedbed.bare_pod(name).await?;
        asks(rig, name, deed).await?;
    }
    let targets: Vec<_> = pods.iter().map(|(name, _)| json!({ "name": name })).collect();
    let mut spec = json!({"action": "Hostile", "targets": targets});
    if let (Some(spec), Value::Object(more)) = (spec.as_object_mut(), more) {
        spec.extend(more);
    }
    rig.create_job(job, spec).await?;
    Ok(())
}

/// From now on the pod asks for this misdeed.
async fn asks(rig: &Rig, pod: &str, deed: &str) -> anyhow::Result<()> {
    let body = json!({"metadata": {"labels": {DO: deed}}});
    rig.pods().patch(pod, &PatchParams::default(), &Patch::Merge(body)).await?;
    Ok(())
}

/// The stored versions of a job, oldest first.
pub(super) fn versions(rig: &Rig, job: &str) -> Vec<Version> {
    let of_job = |version: &Version| version.plural == "operationjobs" && version.name == job;
    rig.history().versions().into_iter().filter(|v| v.namespace == rig.namespace && of_job(v)).collect()
}

/// The most targets of a job that were in flight in any version of its status.
fn most_in_flight(rig: &Rig, job: &str) -> u64 {
    let counts = versions(rig, job).into_iter();
    counts.map(|version| version.at("/status/processingPodCount").as_u64().unwrap_or(0)).max().unwrap_or(0)
}

fn waits_for(job: &DynamicObject) -> &str {
    job.data.pointer("/status/waitsFor").and_then(Value::as_str).unwrap_or_default()
}

/// Whether a plugin or the host has written to the pod.
async fn is_untouched(rig: &Rig, pod: &str) -> anyhow::Result<bool> {
    let meta = rig.pods().get(pod).await?.metadata;
    let labels = meta.labels.iter().flatten().filter(|(key, _)| key.starts_with("hostile.test/") && *key != DO);
    Ok(labels.count() == 0 && meta.annotations.is_none_or(|all| all.is_empty()))
}

/// A6: two at once, and no more than four of seven ever, although each of them fails.
pub async fn no_more_targets_are_in_flight_than_parallelism_and_partition_allow(rig: &mut Rig) -> anyhow::Result<()> {
    let names = ["g", "b", "f", "a", "e", "c", "d"];
    rig.start(with_hostile(rig)).await?;
    let more = json!({"partition": 4, "parallelism": 2});
    create(rig, "p", &names.map(|name| (name, "fail-in-progress")), more).await?;
    rig.until("p", "four failed", |job| job.count("failed") == 4).await?;
    rig.pass(Duration::from_secs(60)).await;
    let job = rig.jobs().get("p").await?;
    ensure!((job.progress(), job.count("failed"), job.count("pending")) == ("Processing", 4, 3), "{:?}", job.data);
    ensure!(waits_for(&job) == "Partition", "{:?}", job.data);
    let details = job.data.pointer("/status/targetDetails").and_then(Value::as_array).cloned().unwrap_or_default();
    let told: Vec<_> = details.iter().filter_map(|target| target.get("name")?.as_str()).collect();
    ensure!(told == names, "in the order of the spec: {told:?}");
    ensure!(names[..4].iter().all(|name| job.target(name) == "Failed/Hostile"), "{:?}", job.data);
    for name in &names[4..] {
        ensure!(job.target(name) == "Pending" && is_untouched(rig, name).await?, "{name}: {:?}", job.data);
    }
    rig.edit_job("p", json!({"partition": 7})).await?;
    rig.until_progress("p", "Failed").await?;
    ensure!(most_in_flight(rig, "p") == 2, "{} were in flight at once", most_in_flight(rig, "p"));
    Ok(())
}

/// A share of few targets is rounded up, to one at least; what is raised starts more, and what is lowered stops nobody.
pub async fn parallelism_is_a_share_that_can_be_raised_and_lowered_in_flight(rig: &mut Rig) -> anyhow::Result<()> {
    let names = ["a", "b", "c", "d", "e", "f"];
    rig.start(with_hostile(rig)).await?;
    create(rig, "p", &names.map(|name| (name, "dawdle-in-progress")), json!({"parallelism": "1%"})).await?;
    rig.until("p", "one in flight", |job| job.count("processing") == 1).await?;
    rig.edit_job("p", json!({"parallelism": "51%"})).await?;
    rig.until("p", "four in flight", |job| job.count("processing") == 4).await?;
    rig.edit_job("p", json!({"parallelism": 2})).await?;
    rig.until("p", "seen", |job| observed(job) == job.metadata.generation).await?;
    // Those in flight go on; nobody takes the places of the first two.
    for (name, left) in [("a", 3), ("b", 2)] {
        asks(rig, name, "succeed").await?;
        rig.until("p", "one less", |job| job.target(name) == "Succeeded").await?;
        rig.pass(Duration::from_secs(20)).await;
        ensure!(rig.jobs().get("p").await?.count("processing") == left, "{left} are left in flight");
    }
    asks(rig, "c", "succeed").await?;
    rig.until("p", "the next one", |job| job.target("c") == "Succeeded" && job.count("processing") == 2).await?;
    rig.edit_job("p", json!({"parallelism": null})).await?;
    for name in ["d", "e", "f"] {
        asks(rig, name, "succeed").await?;
    }
    rig.until_progress("p", "Succeeded").await?;
    ensure!(most_in_flight(rig, "p") == 4, "{} were in flight at once", most_in_flight(rig, "p"));
    Ok(())
}

fn observed(job: &DynamicObject) -> Option<i64> {
    job.data.pointer("/status/observedGeneration").and_then(Value::as_i64)
}

/// Ten targets. The first five start: two of them fail once all are in flight, and three go on.
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

/// Two of five in flight fail, with this failure policy; yields once both have.
async fn half_in_flight(rig: &mut Rig, policy: Value) -> anyhow::Result<()> {
    rig.start(with_hostile(rig)).await?;
    create(rig, "f", &HALF, json!({"partition": 5, "failurePolicy": policy})).await?;
    rig.until("f", "five in flight", |job| job.count("processing") == 5).await?;
    for name in ["a", "b"] {
        asks(rig, name, "fail-in-progress").await?;
    }
    let failed = |job: &DynamicObject| ["a", "b"].iter().all(|name| job.target(name) == "Failed/Hostile");
    rig.until("f", "two failed", failed).await.map(drop)
}

/// A10: with `FailFast` what has not started is skipped, what is in flight goes on, and the job fails.
pub async fn with_fail_fast_the_rest_is_skipped_and_half_of_the_job_in_flight_goes_on(
    rig: &mut Rig,
) -> anyhow::Result<()> {
    half_in_flight(rig, json!({"type": "FailFast", "maxFailures": "19%"})).await?;
    let job = rig.until("f", "the rest is skipped", |job| job.count("failed") == 7).await?;
    ensure!((job.progress(), job.count("processing")) == ("Processing", 3), "{:?}", job.data);
    ensure!(job.condition("Failed") == "False/InProgress", "{:?}", job.data);
    rig.edit_job("f", json!({"partition": 10})).await?;
    for name in ["c", "d", "e"] {
        asks(rig, name, "succeed").await?;
    }
    let job = rig.until_progress("f", "Failed").await?;
    ensure!(job.condition("Failed") == "True/FailFast" && job.count("succeeded") == 3, "{:?}", job.data);
    for (name, _) in &HALF[5..] {
        ensure!(job.target(name) == "Failed/Skipped" && is_untouched(rig, name).await?, "{name}: {:?}", job.data);
        let target = job.targets().get(*name).cloned().unwrap_or_default();
        ensure!(target.get("uid").is_none() && !target.to_string().contains("Released"), "{target}");
    }
    rig.delete_job("f").await?;
    rig.until_gone("f").await
}

/// A10: with `Pause` nothing more starts or is operated until more failures are tolerated; what is in flight goes on, also
/// where another host takes over.
pub async fn with_pause_nothing_starts_until_more_failures_are_tolerated(rig: &mut Rig) -> anyhow::Result<()> {
    half_in_flight(rig, json!({"type": "Pause", "maxFailures": 1})).await?;
    rig.until("f", "paused", |job| job.condition("Paused") == "True/FailureThreshold").await?;
    // Before the host is killed: what it had not told by then, nobody tells.
    rig.until_told("Paused", 1).await?;
    rig.edit_job("f", json!({"partition": 10})).await?;
    asks(rig, "c", "succeed").await?;
    rig.until("f", "one more succeeded", |job| job.count("succeeded") == 1).await?;
    rig.kill_host("host").await?;
    rig.start(with_hostile(rig)).await?;
    for name in ["d", "e"] {
        asks(rig, name, "succeed").await?;
    }
    let job = rig.until("f", "nothing in flight", |job| job.count("succeeded") == 3).await?;
    ensure!(job.condition("Reconciling") == "True/Paused" && waits_for(&job) == "Failures", "{:?}", job.data);
    rig.pass(Duration::from_secs(60)).await;
    ensure!(rig.jobs().get("f").await?.count("pending") == 5, "nothing starts");
    rig.edit_job("f", json!({"failurePolicy": {"maxFailures": 5}})).await?;
    let job = rig.until_progress("f", "Failed").await?;
    ensure!((job.count("succeeded"), job.count("failed")) == (8, 2), "{:?}", job.data);
    ensure!(job.condition("Failed") == "True/TargetsFailed", "{:?}", job.data);
    rig.until_told("Resumed", 1).await?;
    ensure!((rig.told_times("Paused").await?, rig.told_times("Resumed").await?) == (1, 1), "each once");
    Ok(())
}

/// A share of the targets that rounds to none tolerates none.
pub async fn a_share_of_failures_that_rounds_to_none_tolerates_none(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = [("a", "fail-in-operate"), ("b", "succeed"), ("c", "succeed")];
    rig.start(with_hostile(rig)).await?;
    let policy = json!({"type": "FailFast", "maxFailures": "33%"});
    create(rig, "n", &pods, json!({"parallelism": "1%", "failurePolicy": policy})).await?;
    let job = rig.until_progress("n", "Failed").await?;
    let told = ["a", "b", "c"].map(|name| job.target(name));
    ensure!(told == ["Failed/Hostile", "Failed/Skipped", "Failed/Skipped"], "{told:?}");
    Ok(())
}
