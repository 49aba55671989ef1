//! Jobs of more than 250 targets whose last status write fails, and records that someone deletes or edits.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::{Method, StatusCode};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use oarlock_sim::world::{Pause, Scope};
use serde_json::{Value, json};

use super::hostile::with_hostile;
use super::many::{details, records};
use super::{all_replaced, names, settled_collaset};
use crate::jobs::{Told, replace};
use crate::test_cluster::{TestCluster, patiently};
use oarlock_support::faults::Then;
use oarlock_support::orders::{Latch, Order};

/// A number of targets above the capacity of a status.
const MANY: usize = 300;
const UID: &str = "oarlock.dev/job-uid";

/// A54: the host repeats the last status write if it conflicts with another write.
pub async fn a_last_status_write_that_conflicts_is_made_again(cluster: &mut TestCluster) -> anyhow::Result<()> {
    ends_although(cluster, Then::Refuse(StatusCode::CONFLICT)).await
}

/// A54: the host repeats the last status write if the server fails.
pub async fn a_last_status_write_that_the_server_fails_is_made_again(cluster: &mut TestCluster) -> anyhow::Result<()> {
    ends_although(cluster, Then::Refuse(StatusCode::INTERNAL_SERVER_ERROR)).await
}

/// A54: the host finds that its last status write was made although the answer is lost.
pub async fn a_last_status_write_without_an_answer_is_found_made(cluster: &mut TestCluster) -> anyhow::Result<()> {
    ends_although(cluster, Then::Late(Duration::ZERO)).await
}

/// A54: the host repeats a lost last status write. The original request arrives much later and has no effect.
pub async fn a_last_status_write_that_never_arrived_is_made_again(cluster: &mut TestCluster) -> anyhow::Result<()> {
    ends_although(cluster, Then::Late(Duration::from_secs(60))).await
}

/// Applies `then` to the last status write of a job that succeeds and of a job that fails.
async fn ends_although(cluster: &mut TestCluster, then: Then) -> anyhow::Result<()> {
    let good: Vec<String> = (0..MANY).map(|number| format!("p{number}")).collect();
    for name in &good {
        cluster.seedbed.bare_pod(name).await?;
    }
    cluster.start(with_hostile(cluster)).await?;
    let interceptor = cluster.running()?.interceptor.clone();
    for job in ["good", "bad"] {
        let last = Order::next(Method::PATCH, &format!("/operationjobs/{job}/status"), then.clone());
        interceptor.order(last.saying("\"endTime\""));
    }
    let more = json!({"TTLSecondsAfterFinished": 20});
    let targets: Vec<_> = good.iter().map(|name| json!({ "name": name })).collect();
    let spec = json!({"action": "Hostile", "targets": targets, "TTLSecondsAfterFinished": 20});
    cluster.create_job("good", spec).await?;
    let missing: Vec<String> = (0..MANY).map(|number| format!("missing-{number}")).collect();
    cluster.create_job("bad", replace(&missing, more)).await?;
    // Wait for both at once, because each job is deleted soon after its end.
    let ended = |job: &DynamicObject| job.data.pointer("/status/endTime").is_some();
    let (good, bad) =
        tokio::try_join!(cluster.until("good", "with its end", ended), cluster.until("bad", "with its end", ended))?;
    for (job, progress, told) in [(good, "Succeeded", "Completed"), (bad, "Failed", "JobFailed")] {
        ensure!(job.progress() == progress && job.count(progress) == MANY, "{:?}", job.data);
        cluster.until_told(told, 1).await?;
    }
    ensure!(interceptor.caught() == 2, "both last writes met their fate: {}", interceptor.caught());
    for name in ["good", "bad"] {
        cluster.until_gone(name).await?;
    }
    for told in ["Completed", "JobFailed"] {
        ensure!(cluster.told_times(told).await? == 1, "{told} is told once");
    }
    cluster.until_told("TTL", 2).await
}

/// Returns 300 marked pods of a CollaSet. All are in flight.
async fn in_flight(cluster: &mut TestCluster) -> anyhow::Result<Vec<(String, String)>> {
    let pods = settled_collaset(cluster, MANY).await?;
    cluster.world.hold(Pause::Creation, Scope::World);
    cluster.start_host().await?;
    cluster.create_job("many", replace(&names(&pods), json!({}))).await?;
    cluster.until("many", "all in flight", |job| job.count("processing") == MANY).await?;
    patiently("all are marked", async || {
        let held = cluster.pods().list(&ListParams::default()).await?.items;
        Ok(held.iter().filter(|pod| pod.metadata.finalizers.is_some()).count() == MANY)
    })
    .await?;
    Ok(pods)
}

/// Returns the record of this number, with or without its label.
async fn record(cluster: &TestCluster, shard: u64) -> anyhow::Result<Option<DynamicObject>> {
    let all = records(cluster).list(&ListParams::default()).await?.items;
    Ok(all.into_iter().find(|record| record.data.get("shard").and_then(Value::as_u64) == Some(shard)))
}

async fn name_of(cluster: &TestCluster, shard: u64) -> anyhow::Result<String> {
    let record = record(cluster, shard).await?.context("there is no such record")?;
    Ok(record.metadata.name.unwrap_or_default())
}

async fn remove(cluster: &mut TestCluster, shard: u64) -> anyhow::Result<()> {
    let name = name_of(cluster, shard).await?;
    cluster.removes_record(&name);
    records(cluster).delete(&name, &DeleteParams::default()).await?;
    Ok(())
}

async fn strip(cluster: &TestCluster, shard: u64) -> anyhow::Result<()> {
    let body = json!({"metadata": {"labels": {UID: null}}});
    records(cluster).patch(&name_of(cluster, shard).await?, &PatchParams::default(), &Patch::Merge(body)).await?;
    Ok(())
}

/// Waits until both records have their label and the expected content for each target.
async fn until_right(cluster: &TestCluster, pods: &[(String, String)], progress: &str) -> anyhow::Result<()> {
    let job = cluster.jobs().get("many").await?;
    let of_job = ListParams::default().labels(&format!("{UID}={}", job.metadata.uid.unwrap_or_default()));
    patiently("both records are there and right", async || {
        let mut found = records(cluster).list(&of_job).await?.items;
        found.sort_by_key(|record| record.data.get("shard").and_then(Value::as_u64));
        let said: Vec<Value> = found.iter().flat_map(details).collect();
        let right = |(said, (name, uid)): (&Value, &(String, String))| {
            let word = |field: &str| said.get(field).and_then(Value::as_str).unwrap_or_default();
            word("name") == name && word("uid") == uid && word("progress") == progress
        };
        Ok(found.len() == 2 && said.len() == MANY && said.iter().zip(pods).all(right))
    })
    .await
}

/// A55: a slow resync finds a deleted record and a record without its label, both in flight and after the end.
pub async fn records_that_were_removed_or_stripped_are_written_anew(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = in_flight(cluster).await?;
    for progress in ["Processing", "Succeeded"] {
        if progress == "Succeeded" {
            cluster.world.release(Pause::Creation, Scope::World);
            cluster.until_progress("many", "Succeeded").await?;
        }
        until_right(cluster, &pods, progress).await?;
        remove(cluster, 0).await?;
        strip(cluster, 1).await?;
        cluster.pass(Duration::from_secs(700)).await;
        until_right(cluster, &pods, progress).await?;
    }
    all_replaced(cluster, &pods).await
}

/// A55: a record without its label, which a list by label does not show, is not lost.
pub async fn a_record_whose_label_is_gone_is_found_by_the_next_host(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = in_flight(cluster).await?;
    cluster.kill_host("host").await?;
    strip(cluster, 0).await?;
    cluster.start_host().await?;
    until_right(cluster, &pods, "Processing").await?;
    cluster.world.release(Pause::Creation, Scope::World);
    cluster.until_progress("many", "Succeeded").await?;
    until_right(cluster, &pods, "Succeeded").await?;
    all_replaced(cluster, &pods).await
}

/// A55: the host does not restart targets whose record was lost, because their progress is unknown. It releases their holds.
pub async fn targets_of_a_record_that_was_lost_while_no_host_ran_are_not_started_again(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let pods = in_flight(cluster).await?;
    cluster.kill_host("host").await?;
    remove(cluster, 0).await?;
    cluster.start_host().await?;
    let job = cluster.until("many", "those of the first record ended", |job| job.count("failed") == 250).await?;
    ensure!(job.count("processing") == 50, "{:?}", job.data);
    let failures = job.data.pointer("/status/failures").and_then(Value::as_array).cloned().unwrap_or_default();
    let lost = failures.iter().all(|failure| failure.get("reason") == Some(&json!("RecordLost")));
    ensure!(lost && !failures.is_empty(), "{failures:?}");
    patiently("the lost ones are released", async || {
        let held = cluster.pods().list(&ListParams::default()).await?.items;
        Ok(held.iter().filter(|pod| pod.metadata.finalizers.is_some()).count() == 50)
    })
    .await?;
    cluster.world.release(Pause::Creation, Scope::World);
    let job = cluster.until_progress("many", "Failed").await?;
    ensure!(job.count("succeeded") == 50 && job.count("failed") == 250, "{:?}", job.data);
    all_replaced(cluster, pods.get(250..).unwrap_or_default()).await
}

/// If the host has written the records of further targets but not the status, these targets are not in flight yet.
pub async fn no_pod_is_marked_while_the_status_says_less_than_the_records(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let pods = settled_collaset(cluster, MANY).await?;
    cluster.world.hold(Pause::Creation, Scope::World);
    let begin = cluster.host_named("host");
    let interceptor = begin.interceptor.clone();
    for then in [Then::Refuse(StatusCode::INTERNAL_SERVER_ERROR), Then::Hold(Latch::default())] {
        interceptor.order(Order::next(Method::PATCH, "/operationjobs/many/status", then).saying("\"0-299\""));
    }
    // Lifting all orders lets a held request go on.
    cluster.start(begin).await?;
    let targets = names(&pods);
    cluster.create_job("many", replace(&targets, json!({}))).await?;
    patiently("the status is held", async || Ok(interceptor.caught() == 2)).await?;
    cluster.pass(Duration::from_secs(5)).await;
    // A slow machine starts the targets in more than two rounds, each with its own status.
    let stored = cluster.jobs().get("many").await?;
    let in_flight = stored.data.pointer("/status/ranges/processing").and_then(serde_json::Value::as_str);
    let last = in_flight.and_then(|text| text.rsplit(['-', ',']).next()?.parse::<usize>().ok());
    let in_flight = last.map_or(0, |last| last + 1);
    ensure!(in_flight < MANY, "the held status is not stored: {:?}", stored.data);
    let later: Vec<String> = targets.iter().skip(in_flight).map(|name| format!("/pods/{name}")).collect();
    let marked = interceptor.records().iter().filter(|sent| later.iter().any(|path| sent.path.ends_with(path))).count();
    ensure!(marked == 0, "{marked} pods were marked though the status does not have their targets in flight");
    interceptor.lift();
    cluster.until("many", "all in flight", |job| job.count("processing") == MANY).await?;
    cluster.world.release(Pause::Creation, Scope::World);
    cluster.until_progress("many", "Succeeded").await?;
    all_replaced(cluster, &pods).await
}
