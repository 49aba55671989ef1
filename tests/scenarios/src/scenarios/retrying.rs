//! Further attempts of a target: the releases between them, their effects, and their outcome.

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
use crate::test_cluster::TestCluster;
use oarlock_support::faults::Then;
use oarlock_support::orders::Order;

/// The label that the hostile plugin sets and that the host must remove.
const HELD: &str = "/metadata/labels/hostile.test~1held";
/// The label that the hostile plugin sets if it works correctly.
const DONE: &str = "/metadata/labels/hostile.test~1done";

/// Creates a job on these pods whose first `attempts` attempts mark each pod and fail. The value 0 means all attempts.
async fn create(cluster: &TestCluster, pods: &[&str], attempts: u32, more: Value) -> anyhow::Result<()> {
    for name in pods {
        cluster.seedbed.bare_pod(name).await?;
    }
    let targets: Vec<_> = pods.iter().map(|name| json!({ "name": name })).collect();
    let parameters = json!({"do": "hold-in-operate,fail-in-progress", "attempts": attempts});
    let mut spec = json!({"action": "Hostile", "targets": targets, "parameters": parameters});
    if let (Some(spec), Value::Object(more)) = (spec.as_object_mut(), more) {
        spec.extend(more);
    }
    cluster.create_job("r", spec).await?;
    Ok(())
}

fn target<'a>(job: &'a DynamicObject, field: &str) -> Option<&'a Value> {
    job.data.pointer(&format!("/status/targetDetails/0/{field}"))
}

/// Returns whether each version of a pod has a text at `pointer`, without repetitions.
fn course(cluster: &TestCluster, pod: &str, pointer: &str) -> Vec<bool> {
    let of_pod = |name: &str| name == pod;
    let all = cluster.history().versions().into_iter();
    let ours = all.filter(|v| v.namespace == cluster.namespace && v.plural == "pods" && of_pod(&v.name));
    let mut said: Vec<bool> = ours.map(|version| version.at(pointer).is_string()).collect();
    said.dedup();
    said
}

/// Fails unless the start of the first target never changed and its attempts were these, in this order.
fn attempts_were(cluster: &TestCluster, wanted: &[i64]) -> anyhow::Result<()> {
    let told = versions(cluster, "r");
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

/// A11: two attempts fail, the host releases the target before the next attempt begins, and the third attempt succeeds.
pub async fn a_target_is_released_between_attempts_and_its_third_succeeds(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    cluster.start(with_hostile(cluster)).await?;
    create(cluster, &["a"], 2, json!({"retryPolicy": {"limit": 2, "backoffSeconds": 1}})).await?;
    let job = cluster.until("r", "between attempts", |job| target(job, "nextAttemptTime").is_some()).await?;
    ensure!((job.progress(), job.target("a").as_str()) == ("Processing", "Processing/Hostile"), "{:?}", job.data);
    let job = cluster.until_progress("r", "Succeeded").await?;
    ensure!(target(&job, "attempt") == Some(&json!(3)) && target(&job, "error").is_none(), "{:?}", job.data);
    let left = ["nextAttemptTime", "extraInfo/Released"].map(|field| target(&job, field));
    ensure!(left == [None, None], "of the attempts before nothing is left: {left:?}");
    attempts_were(cluster, &[1, 2, 3])?;
    cluster.catch_up().await;
    let (held, done) = (course(cluster, "a", HELD), course(cluster, "a", DONE));
    ensure!(held == [false, true, false, true, false], "marked by two attempts, released after each: {held:?}");
    ensure!(done == [false, true], "done by the third: {done:?}");
    ensure!(cluster.told_times("TargetFailed").await? == 0, "the target did not fail");
    cluster.delete_job("r").await?;
    cluster.until_gone("r").await?;
    cluster.until_nothing_is_left().await
}

/// If the last attempt fails too, the target fails with its error and is released as usual.
pub async fn a_target_whose_last_attempt_fails_has_failed(cluster: &mut TestCluster) -> anyhow::Result<()> {
    cluster.start(with_hostile(cluster)).await?;
    let policy = json!({"limit": 1, "backoffSeconds": 300, "maxBackoffSeconds": 1});
    create(cluster, &["a", "b"], 0, json!({"parallelism": 1, "retryPolicy": policy})).await?;
    let job = cluster.until_progress("r", "Failed").await?;
    for name in ["a", "b"] {
        let attempt = job.targets().get(name).and_then(|target| target.get("attempt").cloned());
        ensure!(job.target(name) == "Failed/Hostile" && attempt == Some(json!(2)), "{:?}", job.data);
    }
    attempts_were(cluster, &[1, 2])?;
    let released = |job: &DynamicObject| job.data.to_string().matches("Released").count() == 2;
    cluster.until("r", "released", released).await?;
    cluster.until_told("TargetFailed", 2).await?;
    cluster.until_nothing_is_left().await
}

/// If a release between two attempts gets 403, the next attempt waits for it, and no other target does.
pub async fn no_attempt_begins_before_the_last_one_is_released(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let begin = with_hostile(cluster);
    let interceptor = begin.interceptor.clone();
    let refused = Order::all(Method::PATCH, "/pods/a", Then::Refuse(StatusCode::FORBIDDEN));
    interceptor.order(refused.saying("\"hostile.test/held\":null"));
    cluster.start(begin).await?;
    create(cluster, &["a", "b"], 1, json!({"retryPolicy": {"limit": 1, "backoffSeconds": 2}})).await?;
    cluster.until("r", "the other one succeeded", |job| job.target("b") == "Succeeded").await?;
    cluster.until_told("ReleaseTargetFailed", 1).await?;
    let before = interceptor.caught();
    cluster.pass(Duration::from_secs(60)).await;
    let job = cluster.jobs().get("r").await?;
    ensure!(target(&job, "attempt").is_none() && target(&job, "nextAttemptTime").is_some(), "{:?}", job.data);
    ensure!(target(&job, "extraInfo/Released").is_none(), "{:?}", job.data);
    ensure!(job.target("a") == "Processing/Hostile", "what the attempt failed with stays: {:?}", job.data);
    let tried = interceptor.caught() - before;
    ensure!(tried <= 8, "{tried} tries in a minute");
    interceptor.lift();
    let job = cluster.until_progress("r", "Succeeded").await?;
    ensure!(target(&job, "attempt") == Some(&json!(2)), "{:?}", job.data);
    attempts_were(cluster, &[1, 2])?;
    cluster.catch_up().await;
    ensure!(course(cluster, "a", HELD) == [false, true, false], "{:?}", course(cluster, "a", HELD));
    cluster.until_nothing_is_left().await
}

/// If a host is killed during the backoff, the next host repeats no attempt and starts the next attempt at the stored time.
pub async fn the_wait_between_attempts_goes_on_over_a_restart(cluster: &mut TestCluster) -> anyhow::Result<()> {
    cluster.start(with_hostile(cluster)).await?;
    create(cluster, &["a"], 1, json!({"retryPolicy": {"limit": 1, "backoffSeconds": 5}})).await?;
    let job = cluster.until("r", "released", |job| target(job, "extraInfo/Released").is_some()).await?;
    let due = target(&job, "nextAttemptTime").cloned();
    cluster.kill_host("host").await?;
    cluster.start(with_hostile(cluster)).await?;
    cluster.until_progress("r", "Succeeded").await?;
    let waits = versions(cluster, "r");
    let waits = waits.iter().map(|version| version.at("/status/targetDetails/0/nextAttemptTime"));
    let mut waits: Vec<_> = waits.filter(|time| time.is_string()).collect();
    waits.dedup();
    ensure!(waits == [&due.context("a time")?], "one wait: {waits:?}");
    attempts_were(cluster, &[1, 2])?;
    cluster.catch_up().await;
    ensure!(course(cluster, "a", HELD) == [false, true, false], "{:?}", course(cluster, "a", HELD));
    Ok(())
}

/// A11, S1: the event log shows that each attempt restarts a container once, whatever the outcome of the others.
pub async fn each_attempt_restarts_a_container_once(cluster: &mut TestCluster) -> anyhow::Result<()> {
    cluster.world.install_kruise().await?;
    cluster.seedbed.with_containers(&["app", "side"]).bare_pod("p").await?;
    cluster.until_pod("p", "running", |pod| pod.data.pointer("/status/phase") == Some(&json!("Running"))).await?;
    let place = (cluster.namespace.clone(), "p".to_owned());
    cluster.world.break_container((&place.0, &place.1), "side", "the disk is full");
    cluster
        .start(Begin { plugins: vec!["restart"], grants: RESTART_GRANTS.to_owned(), ..cluster.host_named("host") })
        .await?;
    let policy = json!({"limit": 2, "backoffSeconds": 10});
    cluster.create_job("r", json!({"action": "Restart", "targets": [{"name": "p"}], "retryPolicy": policy})).await?;
    let waits = |attempt: Value| {
        move |job: &DynamicObject| {
            let now = target(job, "attempt").cloned().unwrap_or(json!(1));
            now == attempt && target(job, "nextAttemptTime").is_some()
        }
    };
    let job = cluster.until("r", "one attempt failed", waits(json!(1))).await?;
    ensure!(job.target("p") == "Processing/RestartFailed", "{:?}", job.data);
    cluster.until("r", "two attempts failed", waits(json!(2))).await?;
    cluster.world.mend_container((&place.0, &place.1), "side");
    let job = cluster.until_progress("r", "Succeeded").await?;
    ensure!(target(&job, "attempt") == Some(&json!(3)), "{:?}", job.data);
    attempts_were(cluster, &[1, 2, 3])?;
    let restarts = |name: &str| {
        let of_it = |effect| match effect {
            Effect::ContainerRestarted { container, count } if container == name => Some(count),
            _ => None,
        };
        cluster.world.ledger().entries().into_iter().filter_map(|entry| of_it(entry.effect)).collect::<Vec<_>>()
    };
    ensure!(restarts("app") == [1, 2, 3], "once by each attempt: {:?}", restarts("app"));
    ensure!(restarts("side") == [1], "by the last one alone: {:?}", restarts("side"));
    Ok(())
}

/// The targets of a large job, which are in records, never exceed `parallelism`. Each fails once and succeeds with its
/// second attempt, although a host is killed midway.
pub async fn targets_in_records_are_tried_again_too(cluster: &mut TestCluster) -> anyhow::Result<()> {
    const TARGETS: usize = 260;
    let names: Vec<String> = (0..TARGETS).map(|number| format!("p-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    cluster.start(with_hostile(cluster)).await?;
    create(cluster, &names, 1, json!({"parallelism": "20%", "retryPolicy": {"limit": 1, "backoffSeconds": 2}})).await?;
    cluster.until("r", "a third succeeded", |job| job.count("succeeded") > TARGETS / 3).await?;
    cluster.kill_host("host").await?;
    cluster.start(with_hostile(cluster)).await?;
    cluster.until_progress("r", "Succeeded").await?;
    cluster.catch_up().await;
    let mut attempts = Vec::new();
    for record in records(cluster).list(&ListParams::default()).await?.items {
        attempts.extend(details(&record).into_iter().map(|detail| detail.get("attempt").and_then(Value::as_i64)));
    }
    ensure!(attempts == vec![Some(2); TARGETS], "{attempts:?}");
    for name in names {
        let (held, done) = (course(cluster, name, HELD), course(cluster, name, DONE));
        ensure!(held == [false, true, false] && done == [false, true], "{name}: {held:?} {done:?}");
    }
    let versions = versions(cluster, "r");
    let counts = versions.iter().map(|version| version.at("/status/processingPodCount").as_u64().unwrap_or(0));
    ensure!(counts.max() == Some(52), "a fifth of them at once");
    cluster.until_nothing_is_left().await
}
