//! Pauses and other edits of a job at every stage of its targets.

use std::time::Duration;

use anyhow::ensure;
use http::Method;
use kube::api::DynamicObject;
use oarlock_sim::world::{Pause, Scope};
use serde_json::{Value, json};

use super::ending::begun;
use super::evicting::budget;
use super::hostile::with_hostile;
use super::{all_replaced, names, settled_collaset, settled_deployment};
use crate::jobs::{Told, replace};
use crate::test_cluster::TestCluster;

/// A12: targets in flight end and are recorded while the job is paused, even if another host leads. No other target starts.
pub async fn what_is_in_flight_ends_while_the_job_is_paused(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_collaset(cluster, 4).await?;
    cluster.world.hold(Pause::Creation, Scope::World);
    cluster.start_host().await?;
    cluster.create_job("p", replace(&names(&pods), json!({"parallelism": 2}))).await?;
    let (first, rest) = pods.split_at(2);
    let (first, rest) = (names(first), names(rest));
    for name in &first {
        begun(cluster, name).await?;
    }
    cluster.edit_job("p", json!({"paused": true})).await?;
    cluster.until("p", "paused", |job| job.condition("Paused") == "True/PausedBySpec").await?;
    // Wait before the kill: a killed host never sends its remaining events.
    cluster.until_told("Paused", 1).await?;
    cluster.restart_host().await?;
    cluster.world.release(Pause::Creation, Scope::World);
    cluster.until("p", "those in flight ended", |job| job.count("succeeded") == 2).await?;
    cluster.restart_host().await?;
    cluster.pass(Duration::from_secs(60)).await;
    let job = cluster.jobs().get("p").await?;
    ensure!(job.count("pending") == 2 && job.condition("Paused") == "True/PausedBySpec", "{:?}", job.data);
    let is_of_rest = |path: &str| rest.iter().any(|name| path.contains(&format!("/pods/{name}")));
    let sent = cluster.running()?.interceptor.records();
    ensure!(!sent.iter().any(|sent| is_of_rest(&sent.path)), "nothing is done to the rest: {sent:?}");
    cluster.edit_job("p", json!({"paused": null})).await?;
    cluster.until_progress("p", "Succeeded").await?;
    cluster.until_told("Resumed", 1).await?;
    all_replaced(cluster, &pods).await
}

/// A12: while a job is paused, the host does not repeat a refused eviction, and the deadline still counts.
pub async fn a_refused_eviction_is_not_tried_again_while_the_job_is_paused(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let pods = settled_deployment(cluster, 2).await?;
    budget(cluster, 2).await?;
    cluster.start_host().await?;
    let (target, other) = pods.split_at(1);
    let (name, other) = (names(target).join(""), names(other));
    cluster.create_job("b", replace(&names(target), json!({}))).await?;
    cluster.create_job("t", replace(&other, json!({"activeDeadlineSeconds": 30}))).await?;
    let (blocked, other) = ("Processing/EvictionBlocked", other.join(""));
    cluster.until("b", "blocked", |job| job.target(&name) == blocked).await?;
    cluster.until("t", "blocked", |job| job.target(&other) == blocked).await?;
    for job in ["b", "t"] {
        cluster.edit_job(job, json!({"paused": true})).await?;
        cluster.until(job, "paused", |job| job.condition("Paused") == "True/PausedBySpec").await?;
    }
    let evictions = |cluster: &TestCluster| -> anyhow::Result<usize> {
        let sent = cluster.running()?.interceptor.records();
        Ok(sent.iter().filter(|sent| sent.verb == Method::POST && sent.path.contains("/eviction")).count())
    };
    let before = evictions(cluster)?;
    budget(cluster, 0).await?;
    let job = cluster.until_progress("t", "Failed").await?;
    ensure!(job.target(&other) == "Failed/DeadlineExceeded", "{:?}", job.data);
    cluster.pass(Duration::from_secs(120)).await;
    ensure!(evictions(cluster)? == before, "no eviction is tried again");
    ensure!(cluster.jobs().get("b").await?.count("processing") == 1, "it still waits");
    cluster.edit_job("b", json!({"paused": false})).await?;
    cluster.until_progress("b", "Succeeded").await?;
    all_replaced(cluster, target).await
}

/// The stages of a target.
const STAGES: [&str; 5] = ["before", "delay", "flight", "between", "ended"];
/// The delay and the backoff in seconds, for tests that wait for their end.
const WAIT: u64 = 20;
/// The delay and the backoff in seconds, for tests that must not reach their end, even on a slow machine.
const LONG_WAIT: u64 = 600;

/// Creates a job in each stage. Its one target has the name of the stage, and its delay or backoff is `wait` seconds.
async fn jobs_in_each_stage(cluster: &mut TestCluster, wait: u64) -> anyhow::Result<()> {
    cluster.start(with_hostile(cluster)).await?;
    for stage in STAGES {
        cluster.seedbed.bare_pod(stage).await?;
        let mut spec = match stage {
            "before" => json!({"partition": 0}),
            "delay" => json!({"operationDelaySeconds": wait, "partition": 1}),
            "flight" => json!({"parameters": {"do": "dawdle-in-progress"}, "partition": 1}),
            "between" => json!({
                "parameters": {"do": "hold-in-operate,fail-in-progress", "attempts": 1}, "partition": 1,
                "retryPolicy": {"limit": 1, "backoffSeconds": wait},
            }),
            _ => json!({"partition": 1}),
        };
        if let Some(spec) = spec.as_object_mut() {
            spec.extend([("action".to_owned(), json!("Hostile")), ("targets".to_owned(), json!([{ "name": stage }]))]);
        }
        cluster.create_job(stage, spec).await?;
        cluster.until(stage, "in its stage", |job| is_in_stage(job, stage)).await?;
        if stage == "flight" {
            cluster.until_pod(stage, "operated", was_operated).await?;
        }
    }
    Ok(())
}

fn detail<'a>(job: &'a DynamicObject, field: &str) -> Option<&'a Value> {
    job.data.pointer(&format!("/status/targetDetails/0/{field}"))
}

fn is_in_stage(job: &DynamicObject, stage: &str) -> bool {
    match stage {
        "before" => job.count("pending") == 1,
        "between" => detail(job, "nextAttemptTime").is_some() && detail(job, "extraInfo/Released").is_some(),
        "ended" => job.progress() == "Succeeded",
        _ => job.count("processing") == 1,
    }
}

fn was_operated(pod: &DynamicObject) -> bool {
    pod.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key("hostile.test/done"))
}

/// A pause holds a target in any stage, and a resumed job goes on from there.
pub async fn a_pause_holds_each_target_where_it_is_and_a_resumed_job_goes_on(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    jobs_in_each_stage(cluster, WAIT).await?;
    for stage in STAGES {
        cluster.edit_job(stage, json!({"paused": true, "partition": 1})).await?;
        let wanted = if stage == "ended" { "False/NotPaused" } else { "True/PausedBySpec" };
        cluster.until(stage, "paused", |job| job.condition("Paused") == wanted).await?;
    }
    cluster.pass(Duration::from_secs(3 * WAIT)).await;
    for stage in STAGES {
        let job = cluster.jobs().get(stage).await?;
        ensure!(is_in_stage(&job, stage), "{stage}: {:?}", job.data);
    }
    for stage in ["before", "delay", "between"] {
        let pods = cluster.pods().get(stage).await?;
        let labels = pods.metadata.labels.unwrap_or_default();
        ensure!(!labels.contains_key("hostile.test/done"), "{stage} is not operated: {labels:?}");
    }
    for stage in STAGES {
        cluster.edit_job(stage, json!({"paused": false})).await?;
    }
    for stage in ["before", "delay", "between"] {
        cluster.until_progress(stage, "Succeeded").await?;
    }
    ensure!(cluster.jobs().get("flight").await?.count("processing") == 1, "it goes on");
    ensure!(detail(&cluster.jobs().get("between").await?, "attempt") == Some(&json!(2)), "its second attempt");
    Ok(())
}

/// A deletion ends a target in any stage, paused or not, and leaves nothing behind.
pub async fn a_deletion_ends_each_target_where_it_is(cluster: &mut TestCluster) -> anyhow::Result<()> {
    jobs_in_each_stage(cluster, LONG_WAIT).await?;
    for stage in ["before", "flight"] {
        cluster.edit_job(stage, json!({"paused": true})).await?;
    }
    for stage in STAGES {
        cluster.delete_job(stage).await?;
    }
    for stage in STAGES {
        cluster.until_gone(stage).await?;
    }
    cluster.until_nothing_is_left().await?;
    for stage in ["before", "delay", "between"] {
        let labels = cluster.pods().get(stage).await?.metadata.labels.unwrap_or_default();
        ensure!(!labels.keys().any(|key| key.starts_with("hostile.test/")), "{stage}: {labels:?}");
    }
    Ok(())
}

/// A raised partition starts the targets that wait for it and changes no target in another stage.
pub async fn a_raised_partition_moves_only_what_waits_for_it(cluster: &mut TestCluster) -> anyhow::Result<()> {
    jobs_in_each_stage(cluster, WAIT).await?;
    for stage in STAGES {
        cluster.edit_job(stage, json!({"partition": 2, "parallelism": 1})).await?;
    }
    for stage in ["before", "delay", "between"] {
        cluster.until_progress(stage, "Succeeded").await?;
    }
    for stage in ["delay", "flight", "ended"] {
        ensure!(detail(&cluster.jobs().get(stage).await?, "attempt").is_none(), "{stage}: one attempt");
    }
    let ended = cluster.jobs().get("ended").await?;
    ensure!(ended.progress() == "Succeeded" && ended.count("succeeded") == 1, "{:?}", ended.data);
    Ok(())
}

/// An earlier deadline ends the targets that have started, in any stage, and no other target.
pub async fn a_deadline_that_is_brought_forward_ends_what_has_started(cluster: &mut TestCluster) -> anyhow::Result<()> {
    jobs_in_each_stage(cluster, LONG_WAIT).await?;
    for stage in STAGES {
        cluster.edit_job(stage, json!({"activeDeadlineSeconds": i32::MAX, "paused": stage == "between"})).await?;
    }
    for stage in STAGES {
        cluster.edit_job(stage, json!({"activeDeadlineSeconds": 1})).await?;
    }
    for stage in ["delay", "flight", "between"] {
        let job = cluster.until_progress(stage, "Failed").await?;
        ensure!(job.target(stage) == "Failed/DeadlineExceeded", "{stage}: {:?}", job.data);
        let names_the_failure =
            detail(&job, "error/message").is_some_and(|told| told.to_string().contains("Hostile: "));
        ensure!(stage != "between" || names_the_failure, "{:?}", job.data);
        cluster.until(stage, "released", |job| detail(job, "extraInfo/Released").is_some()).await?;
    }
    let (before, ended) = (cluster.jobs().get("before").await?, cluster.jobs().get("ended").await?);
    ensure!((before.progress(), ended.progress()) == ("Pending", "Succeeded"), "{:?}, {:?}", before.data, ended.data);
    cluster.until_nothing_is_left().await
}
