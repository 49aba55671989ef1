//! Further attempts: what is let go between them, what each of them does, and what comes of it.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::{Method, StatusCode};
use kube::api::{DynamicObject, ListParams};
use oarlock_sim::world::Effect;
use serde_json::{Value, json};

use super::bounding::versions;
use super::hostile::with_hostile;
use super::many::{details, records};
use crate::components::RESTART_GRANTS;
use crate::hosts::Begin;
use crate::jobs::Told;
use crate::rig::Rig;
use oarlock_bed::faults::Then;
use oarlock_bed::orders::Order;

/// A label of the hostile plugin that the host has to take off.
const HELD: &str = "/metadata/labels/hostile.test~1held";
/// The label that it sets when it does as it should.
const DONE: &str = "/metadata/labels/hostile.test~1done";

/// A job on these pods whose first `attempts` attempts mark each and fail.
async fn create(rig: &Rig, pods: &[&str], attempts: u32, more: Value) -> anyhow::Result<()> {
    for name in pods {
        rig.seedbed.bare_pod(name).await?;
    }
    let targets: Vec<_> = pods.iter().map(|name| json!({ "name": name })).collect();
    let parameters = json!({"do": "hold-in-operate,fail-in-progress", "attempts": attempts});
    let mut spec = json!({"action": "Hostile", "targets": targets, "parameters": parameters});
    if let (Some(spec), Value::Object(more)) = (spec.as_object_mut(), more) {
        spec.extend(more);
    }
    rig.create_job("r", spec).await?;
    Ok(())
}

fn target<'a>(job: &'a DynamicObject, field: &str) -> Option<&'a Value> {
    job.data.pointer(&format!("/status/targetDetails/0/{field}"))
}

/// What the versions of a pod say under `pointer`, without repetitions.
fn course(rig: &Rig, pod: &str, pointer: &str) -> Vec<bool> {
    let of_pod = |name: &str| name == pod;
    let all = rig.history().versions().into_iter();
    let ours = all.filter(|v| v.namespace == rig.namespace && v.plural == "pods" && of_pod(&v.name));
    let mut said: Vec<bool> = ours.map(|version| version.at(pointer).is_string()).collect();
    said.dedup();
    said
}

/// Fails unless the start of the first target never changed, and its attempts were these, in this order.
fn attempts_were(rig: &Rig, wanted: &[i64]) -> anyhow::Result<()> {
    let told = versions(rig, "r");
    let in_flight = || told.iter().filter(|version| version.at("/status/targetDetails/0/startTime").is_string());
    let mut starts: Vec<_> = in_flight().map(|version| version.at("/status/targetDetails/0/startTime")).collect();
    starts.dedup();
    ensure!(starts.len() == 1, "its start changed: {starts:?}");
    let mut attempts: Vec<_> =
        in_flight().map(|version| version.at("/status/targetDetails/0/attempt").as_i64().unwrap_or(1)).collect();
    attempts.dedup();
    ensure!(attempts == wanted, "{attempts:?}");
    Ok(())
}

/// A11: two attempts fail, each is released before the next one begins, and the third succeeds.
pub async fn a_target_is_released_between_attempts_and_its_third_succeeds(rig: &mut Rig) -> anyhow::Result<()> {
    rig.start(with_hostile(rig)).await?;
    create(rig, &["a"], 2, json!({"retryPolicy": {"limit": 2, "backoffSeconds": 1}})).await?;
    let job = rig.until("r", "between attempts", |job| target(job, "nextAttemptTime").is_some()).await?;
    ensure!((job.progress(), job.target("a").as_str()) == ("Processing", "Processing/Hostile"), "{:?}", job.data);
    let job = rig.until_progress("r", "Succeeded").await?;
    ensure!(target(&job, "attempt") == Some(&json!(3)) && target(&job, "error").is_none(), "{:?}", job.data);
    let left = ["nextAttemptTime", "extraInfo/Released"].map(|field| target(&job, field));
    ensure!(left == [None, None], "of the attempts before nothing is left: {left:?}");
    attempts_were(rig, &[1, 2, 3])?;
    rig.catch_up().await;
    let (held, done) = (course(rig, "a", HELD), course(rig, "a", DONE));
    ensure!(held == [false, true, false, true, false], "marked by two attempts, let go after each: {held:?}");
    ensure!(done == [false, true], "done by the third: {done:?}");
    ensure!(rig.told_times("TargetFailed").await? == 0, "the target did not fail");
    rig.delete_job("r").await?;
    rig.until_gone("r").await?;
    rig.until_nothing_is_left().await
}

/// The last attempt fails too: the target fails with its error, and is released as any other.
pub async fn a_target_whose_last_attempt_fails_has_failed(rig: &mut Rig) -> anyhow::Result<()> {
    rig.start(with_hostile(rig)).await?;
    let policy = json!({"limit": 1, "backoffSeconds": 300, "maxBackoffSeconds": 1});
    create(rig, &["a", "b"], 0, json!({"parallelism": 1, "retryPolicy": policy})).await?;
    let job = rig.until_progress("r", "Failed").await?;
    for name in ["a", "b"] {
        let attempt = job.targets().get(name).and_then(|target| target.get("attempt").cloned());
        ensure!(job.target(name) == "Failed/Hostile" && attempt == Some(json!(2)), "{:?}", job.data);
    }
    attempts_were(rig, &[1, 2])?;
    let released = |job: &DynamicObject| job.data.to_string().matches("Released").count() == 2;
    rig.until("r", "released", released).await?;
    rig.until_told("TargetFailed", 2).await?;
    rig.until_nothing_is_left().await
}

/// A release between two attempts gets 403: the next attempt waits for it, and nobody else does.
pub async fn no_attempt_begins_before_the_last_one_is_released(rig: &mut Rig) -> anyhow::Result<()> {
    let begin = with_hostile(rig);
    let wire = begin.wire.clone();
    let refused = Order::all(Method::PATCH, "/pods/a", Then::Refuse(StatusCode::FORBIDDEN));
    wire.order(refused.saying("\"hostile.test/held\":null"));
    rig.start(begin).await?;
    create(rig, &["a", "b"], 1, json!({"retryPolicy": {"limit": 1, "backoffSeconds": 2}})).await?;
    rig.until("r", "the other one succeeded", |job| job.target("b") == "Succeeded").await?;
    rig.until_told("ReleaseTargetFailed", 1).await?;
    let before = wire.caught();
    rig.pass(Duration::from_secs(60)).await;
    let job = rig.jobs().get("r").await?;
    ensure!(target(&job, "attempt").is_none() && target(&job, "nextAttemptTime").is_some(), "{:?}", job.data);
    ensure!(target(&job, "extraInfo/Released").is_none(), "{:?}", job.data);
    ensure!(job.target("a") == "Processing/Hostile", "what the attempt failed with stays: {:?}", job.data);
    let tried = wire.caught() - before;
    ensure!(tried <= 8, "{tried} tries in a minute");
    wire.lift();
    let job = rig.until_progress("r", "Succeeded").await?;
    ensure!(target(&job, "attempt") == Some(&json!(2)), "{:?}", job.data);
    attempts_were(rig, &[1, 2])?;
    rig.catch_up().await;
    ensure!(course(rig, "a", HELD) == [false, true, false], "{:?}", course(rig, "a", HELD));
    rig.until_nothing_is_left().await
}

/// A host is killed in the wait between two attempts: the next one repeats none, and begins when it would have.
pub async fn the_wait_between_attempts_goes_on_over_a_restart(rig: &mut Rig) -> anyhow::Result<()> {
    rig.start(with_hostile(rig)).await?;
    create(rig, &["a"], 1, json!({"retryPolicy": {"limit": 1, "backoffSeconds": 5}})).await?;
    let job = rig.until("r", "released", |job| target(job, "extraInfo/Released").is_some()).await?;
    let due = target(&job, "nextAttemptTime").cloned();
    rig.kill_host("host").await?;
    rig.start(with_hostile(rig)).await?;
    rig.until_progress("r", "Succeeded").await?;
    let waits = versions(rig, "r");
    let waits = waits.iter().map(|version| version.at("/status/targetDetails/0/nextAttemptTime"));
    let mut waits: Vec<_> = waits.filter(|time| time.is_string()).collect();
    waits.dedup();
    ensure!(waits == [&due.context("a time")?], "one wait: {waits:?}");
    attempts_were(rig, &[1, 2])?;
    rig.catch_up().await;
    ensure!(course(rig, "a", HELD) == [false, true, false], "{:?}", course(rig, "a", HELD));
    Ok(())
}

/// A11, S1: by the ledger each attempt restarts a container once, whatever becomes of the others.
pub async fn each_attempt_restarts_a_container_once(rig: &mut Rig) -> anyhow::Result<()> {
    rig.world.install_kruise().await?;
    rig.seedbed.with_containers(&["app", "side"]).bare_pod("p").await?;
    rig.until_pod("p", "running", |pod| pod.data.pointer("/status/phase") == Some(&json!("Running"))).await?;
    let place = (rig.namespace.clone(), "p".to_owned());
    rig.world.break_container((&place.0, &place.1), "side", "the disk is full");
    rig.start(Begin { plugins: vec!["restart"], grants: RESTART_GRANTS.to_owned(), ..rig.host_named("host") }).await?;
    let policy = json!({"limit": 2, "backoffSeconds": 10});
    rig.create_job("r", json!({"action": "Restart", "targets": [{"name": "p"}], "retryPolicy": policy})).await?;
    let waits = |attempt: Value| {
        move |job: &DynamicObject| {
            let now = target(job, "attempt").cloned().unwrap_or(json!(1));
            now == attempt && target(job, "nextAttemptTime").is_some()
        }
    };
    let job = rig.until("r", "one attempt failed", waits(json!(1))).await?;
    ensure!(job.target("p") == "Processing/RestartFailed", "{:?}", job.data);
    rig.until("r", "two attempts failed", waits(json!(2))).await?;
    rig.world.mend_container((&place.0, &place.1), "side");
    let job = rig.until_progress("r", "Succeeded").await?;
    ensure!(target(&job, "attempt") == Some(&json!(3)), "{:?}", job.data);
    attempts_were(rig, &[1, 2, 3])?;
    let restarts = |name: &str| {
        let of_it = |effect| match effect {
            Effect::ContainerRestarted { container, count } if container == name => Some(count),
            _ => None,
        };
        rig.world.ledger().entries().into_iter().filter_map(|entry| of_it(entry.effect)).collect::<Vec<_>>()
    };
    ensure!(restarts("app") == [1, 2, 3], "once by each attempt: {:?}", restarts("app"));
    ensure!(restarts("side") == [1], "by the last one alone: {:?}", restarts("side"));
    Ok(())
}

/// A large job, whose targets are in records: never more in flight than allowed, each fails once, a host is killed on the way,
/// and each succeeds with its second attempt.
pub async fn targets_in_records_are_tried_again_too(rig: &mut Rig) -> anyhow::Result<()> {
    const TARGETS: usize = 260;
    let names: Vec<String> = (0..TARGETS).map(|number| format!("p-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    rig.start(with_hostile(rig)).await?;
    create(rig, &names, 1, json!({"parallelism": "20%", "retryPolicy": {"limit": 1, "backoffSeconds": 2}})).await?;
    rig.until("r", "a third succeeded", |job| job.count("succeeded") > TARGETS / 3).await?;
    rig.kill_host("host").await?;
    rig.start(with_hostile(rig)).await?;
    rig.until_progress("r", "Succeeded").await?;
    rig.catch_up().await;
    let mut attempts = Vec::new();
    for record in records(rig).list(&ListParams::default()).await?.items {
        attempts.extend(details(&record).into_iter().map(|detail| detail.get("attempt").and_then(Value::as_i64)));
    }
    ensure!(attempts == vec![Some(2); TARGETS], "{attempts:?}");
    for name in names {
        let (held, done) = (course(rig, name, HELD), course(rig, name, DONE));
        ensure!(held == [false, true, false] && done == [false, true], "{name}: {held:?} {done:?}");
    }
    let versions = versions(rig, "r");
    let counts = versions.iter().map(|version| version.at("/status/processingPodCount").as_u64().unwrap_or(0));
    ensure!(counts.max() == Some(52), "a fifth of them at once");
    rig.until_nothing_is_left().await
}
