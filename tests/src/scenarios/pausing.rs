//! A pause, and other edits of a job, at every stage of its targets.

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
use crate::rig::Rig;

/// A12: what is in flight ends and is recorded while the job is paused, whoever leads; nothing else begins.
pub async fn what_is_in_flight_ends_while_the_job_is_paused(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_collaset(rig, 4).await?;
    rig.world.hold(Pause::Creation, Scope::World);
    rig.start_host().await?;
    rig.create_job("p", replace(&names(&pods), json!({"parallelism": 2}))).await?;
    let (first, rest) = pods.split_at(2);
    let (first, rest) = (names(first), names(rest));
    for name in &first {
        begun(rig, name).await?;
    }
    rig.edit_job("p", json!({"paused": true})).await?;
    rig.until("p", "paused", |job| job.condition("Paused") == "True/PausedBySpec").await?;
    // Before the host is killed: what it had not told by then, nobody tells.
    rig.until_told("Paused", 1).await?;
    rig.restart_host().await?;
    rig.world.release(Pause::Creation, Scope::World);
    rig.until("p", "those in flight ended", |job| job.count("succeeded") == 2).await?;
    rig.restart_host().await?;
    rig.pass(Duration::from_secs(60)).await;
    let job = rig.jobs().get("p").await?;
    ensure!(job.count("pending") == 2 && job.condition("Paused") == "True/PausedBySpec", "{:?}", job.data);
    let is_of_rest = |path: &str| rest.iter().any(|name| path.contains(&format!("/pods/{name}")));
    let sent = rig.running()?.wire.records();
    ensure!(!sent.iter().any(|sent| is_of_rest(&sent.path)), "nothing is done to the rest: {sent:?}");
    rig.edit_job("p", json!({"paused": null})).await?;
    rig.until_progress("p", "Succeeded").await?;
    rig.until_told("Resumed", 1).await?;
    all_replaced(rig, &pods).await
}

/// A12: a target that was refused its eviction is not operated again while its job is paused, and its deadline runs on.
pub async fn a_refused_eviction_is_not_tried_again_while_the_job_is_paused(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_deployment(rig, 2).await?;
    budget(rig, 2).await?;
    rig.start_host().await?;
    let (target, other) = pods.split_at(1);
    let (name, other) = (names(target).join(""), names(other));
    rig.create_job("b", replace(&names(target), json!({}))).await?;
    rig.create_job("t", replace(&other, json!({"activeDeadlineSeconds": 30}))).await?;
    let (blocked, other) = ("Processing/EvictionBlocked", other.join(""));
    rig.until("b", "blocked", |job| job.target(&name) == blocked).await?;
    rig.until("t", "blocked", |job| job.target(&other) == blocked).await?;
    for job in ["b", "t"] {
        rig.edit_job(job, json!({"paused": true})).await?;
        rig.until(job, "paused", |job| job.condition("Paused") == "True/PausedBySpec").await?;
    }
    let evictions = |rig: &Rig| -> anyhow::Result<usize> {
        let sent = rig.running()?.wire.records();
        Ok(sent.iter().filter(|sent| sent.verb == Method::POST && sent.path.contains("/eviction")).count())
    };
    let before = evictions(rig)?;
    budget(rig, 0).await?;
    let job = rig.until_progress("t", "Failed").await?;
    ensure!(job.target(&other) == "Failed/DeadlineExceeded", "{:?}", job.data);
    rig.pass(Duration::from_secs(120)).await;
    ensure!(evictions(rig)? == before, "no eviction is tried again");
    ensure!(rig.jobs().get("b").await?.count("processing") == 1, "it still waits");
    rig.edit_job("b", json!({"paused": false})).await?;
    rig.until_progress("b", "Succeeded").await?;
    all_replaced(rig, target).await
}

/// The stages that a target can be in.
const STAGES: [&str; 5] = ["before", "delay", "flight", "between", "ended"];
/// Seconds of the delay and of the wait between attempts, where a test sees their end.
const WAIT: u64 = 20;
/// The same where it does not: a busy machine is slow.
const LONG_WAIT: u64 = 600;

/// A job in each stage, of one target of its name. The delay and the wait between attempts have these seconds.
async fn jobs_in_each_stage(rig: &mut Rig, wait: u64) -> anyhow::Result<()> {
    rig.start(with_hostile(rig)).await?;
    for stage in STAGES {
        rig.seedbed.bare_pod(stage).await?;
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
        rig.create_job(stage, spec).await?;
        rig.until(stage, "in its stage", |job| is_in_stage(job, stage)).await?;
        if stage == "flight" {
            rig.until_pod(stage, "operated", was_operated).await?;
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

/// A pause holds a target in whatever stage it is, and a resumed job goes on from there.
pub async fn a_pause_holds_each_target_where_it_is_and_a_resumed_job_goes_on(rig: &mut Rig) -> anyhow::Result<()> {
    jobs_in_each_stage(rig, WAIT).await?;
    for stage in STAGES {
        rig.edit_job(stage, json!({"paused": true, "partition": 1})).await?;
        let wanted = if stage == "ended" { "False/NotPaused" } else { "True/PausedBySpec" };
        rig.until(stage, "paused", |job| job.condition("Paused") == wanted).await?;
    }
    rig.pass(Duration::from_secs(3 * WAIT)).await;
    for stage in STAGES {
        let job = rig.jobs().get(stage).await?;
        ensure!(is_in_stage(&job, stage), "{stage}: {:?}", job.data);
    }
    for stage in ["before", "delay", "between"] {
        let pods = rig.pods().get(stage).await?;
        let labels = pods.metadata.labels.unwrap_or_default();
        ensure!(!labels.contains_key("hostile.test/done"), "{stage} is not operated: {labels:?}");
    }
    for stage in STAGES {
        rig.edit_job(stage, json!({"paused": false})).await?;
    }
    for stage in ["before", "delay", "between"] {
        rig.until_progress(stage, "Succeeded").await?;
    }
    ensure!(rig.jobs().get("flight").await?.count("processing") == 1, "it goes on");
    ensure!(detail(&rig.jobs().get("between").await?, "attempt") == Some(&json!(2)), "its second attempt");
    Ok(())
}

/// A deletion ends a target in whatever stage it is, paused or not, and leaves nothing.
pub async fn a_deletion_ends_each_target_where_it_is(rig: &mut Rig) -> anyhow::Result<()> {
    jobs_in_each_stage(rig, LONG_WAIT).await?;
    for stage in ["before", "flight"] {
        rig.edit_job(stage, json!({"paused": true})).await?;
    }
    for stage in STAGES {
        rig.delete_job(stage).await?;
    }
    for stage in STAGES {
        rig.until_gone(stage).await?;
    }
    rig.until_nothing_is_left().await?;
    for stage in ["before", "delay", "between"] {
        let labels = rig.pods().get(stage).await?.metadata.labels.unwrap_or_default();
        ensure!(!labels.keys().any(|key| key.starts_with("hostile.test/")), "{stage}: {labels:?}");
    }
    Ok(())
}

/// A raised partition starts what waits for it, and changes nothing in any other stage.
pub async fn a_raised_partition_moves_only_what_waits_for_it(rig: &mut Rig) -> anyhow::Result<()> {
    jobs_in_each_stage(rig, WAIT).await?;
    for stage in STAGES {
        rig.edit_job(stage, json!({"partition": 2, "parallelism": 1})).await?;
    }
    for stage in ["before", "delay", "between"] {
        rig.until_progress(stage, "Succeeded").await?;
    }
    for stage in ["delay", "flight", "ended"] {
        ensure!(detail(&rig.jobs().get(stage).await?, "attempt").is_none(), "{stage}: one attempt");
    }
    let ended = rig.jobs().get("ended").await?;
    ensure!(ended.progress() == "Succeeded" && ended.count("succeeded") == 1, "{:?}", ended.data);
    Ok(())
}

/// A deadline that is brought forward ends what has started, in whatever stage, and nothing else.
pub async fn a_deadline_that_is_brought_forward_ends_what_has_started(rig: &mut Rig) -> anyhow::Result<()> {
    jobs_in_each_stage(rig, LONG_WAIT).await?;
    for stage in STAGES {
        rig.edit_job(stage, json!({"activeDeadlineSeconds": i32::MAX, "paused": stage == "between"})).await?;
    }
    for stage in STAGES {
        rig.edit_job(stage, json!({"activeDeadlineSeconds": 1})).await?;
    }
    for stage in ["delay", "flight", "between"] {
        let job = rig.until_progress(stage, "Failed").await?;
        ensure!(job.target(stage) == "Failed/DeadlineExceeded", "{stage}: {:?}", job.data);
        rig.until(stage, "released", |job| detail(job, "extraInfo/Released").is_some()).await?;
    }
    let (before, ended) = (rig.jobs().get("before").await?, rig.jobs().get("ended").await?);
    ensure!((before.progress(), ended.progress()) == ("Pending", "Succeeded"), "{:?}, {:?}", before.data, ended.data);
    rig.until_nothing_is_left().await
}
