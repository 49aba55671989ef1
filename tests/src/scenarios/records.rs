//! Jobs of more than 250 targets whose last status write goes wrong, and records that somebody tampers with.

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
use crate::rig::{Rig, patiently};
use oarlock_bed::faults::Then;
use oarlock_bed::orders::{Latch, Order};

/// More targets than a status holds.
const MANY: usize = 300;
const UID: &str = "oarlock.dev/job-uid";

/// A54: somebody else wrote the job meanwhile.
pub async fn a_last_status_write_that_conflicts_is_made_again(rig: &mut Rig) -> anyhow::Result<()> {
    ends_although(rig, Then::Refuse(StatusCode::CONFLICT)).await
}

/// A54: the server fails.
pub async fn a_last_status_write_that_the_server_fails_is_made_again(rig: &mut Rig) -> anyhow::Result<()> {
    ends_although(rig, Then::Refuse(StatusCode::INTERNAL_SERVER_ERROR)).await
}

/// A54: the write was made, and its answer is lost.
pub async fn a_last_status_write_without_an_answer_is_found_made(rig: &mut Rig) -> anyhow::Result<()> {
    ends_although(rig, Then::Late(Duration::ZERO)).await
}

/// A54: the request is lost; what arrives long after comes too late.
pub async fn a_last_status_write_that_never_arrived_is_made_again(rig: &mut Rig) -> anyhow::Result<()> {
    ends_although(rig, Then::Late(Duration::from_secs(60))).await
}

/// The last status write of a job that succeeds and of one that fails meets this fate.
async fn ends_although(rig: &mut Rig, then: Then) -> anyhow::Result<()> {
    let good: Vec<String> = (0..MANY).map(|number| format!("p{number}")).collect();
    for name in &good {
        rig.seedbed.bare_pod(name).await?;
    }
    rig.start(with_hostile(rig)).await?;
    let wire = rig.running()?.wire.clone();
    for job in ["good", "bad"] {
        let last = Order::next(Method::PATCH, &format!("/operationjobs/{job}/status"), then.clone());
        wire.order(last.saying("\"endTime\""));
    }
    let more = json!({"TTLSecondsAfterFinished": 20});
    let targets: Vec<_> = good.iter().map(|name| json!({ "name": name })).collect();
    let spec = json!({"action": "Hostile", "targets": targets, "TTLSecondsAfterFinished": 20});
    rig.create_job("good", spec).await?;
    let missing: Vec<String> = (0..MANY).map(|number| format!("missing-{number}")).collect();
    rig.create_job("bad", replace(&missing, more)).await?;
    // Both at once: each goes soon after its end.
    let ended = |job: &DynamicObject| job.data.pointer("/status/endTime").is_some();
    let (good, bad) =
        tokio::try_join!(rig.until("good", "with its end", ended), rig.until("bad", "with its end", ended))?;
    for (job, progress, told) in [(good, "Succeeded", "Completed"), (bad, "Failed", "JobFailed")] {
        ensure!(job.progress() == progress && job.count(progress) == MANY, "{:?}", job.data);
        rig.until_told(told, 1).await?;
    }
    ensure!(wire.caught() == 2, "both last writes met their fate: {}", wire.caught());
    for name in ["good", "bad"] {
        rig.until_gone(name).await?;
    }
    for told in ["Completed", "JobFailed"] {
        ensure!(rig.told_times(told).await? == 1, "{told} is told once");
    }
    rig.until_told("TTL", 2).await
}

/// 300 marked pods of a CollaSet, all in flight, and the record of each shard.
async fn in_flight(rig: &mut Rig) -> anyhow::Result<Vec<(String, String)>> {
    let pods = settled_collaset(rig, MANY).await?;
    rig.world.hold(Pause::Creation, Scope::World);
    rig.start_host().await?;
    rig.create_job("many", replace(&names(&pods), json!({}))).await?;
    rig.until("many", "all in flight", |job| job.count("processing") == MANY).await?;
    patiently("all are marked", async || {
        let held = rig.pods().list(&ListParams::default()).await?.items;
        Ok(held.iter().filter(|pod| pod.metadata.finalizers.is_some()).count() == MANY)
    })
    .await?;
    Ok(pods)
}

/// The record of this shard, labelled or not.
async fn record(rig: &Rig, shard: u64) -> anyhow::Result<Option<DynamicObject>> {
    let all = records(rig).list(&ListParams::default()).await?.items;
    Ok(all.into_iter().find(|record| record.data.get("shard").and_then(Value::as_u64) == Some(shard)))
}

async fn name_of(rig: &Rig, shard: u64) -> anyhow::Result<String> {
    let record = record(rig, shard).await?.context("there is no such record")?;
    Ok(record.metadata.name.unwrap_or_default())
}

async fn remove(rig: &mut Rig, shard: u64) -> anyhow::Result<()> {
    let name = name_of(rig, shard).await?;
    rig.removes_record(&name);
    records(rig).delete(&name, &DeleteParams::default()).await?;
    Ok(())
}

async fn strip(rig: &Rig, shard: u64) -> anyhow::Result<()> {
    let body = json!({"metadata": {"labels": {UID: null}}});
    records(rig).patch(&name_of(rig, shard).await?, &PatchParams::default(), &Patch::Merge(body)).await?;
    Ok(())
}

/// Waits until both records are found by their label and say of each target what is expected.
async fn until_right(rig: &Rig, pods: &[(String, String)], progress: &str) -> anyhow::Result<()> {
    let job = rig.jobs().get("many").await?;
    let of_job = ListParams::default().labels(&format!("{UID}={}", job.metadata.uid.unwrap_or_default()));
    patiently("both records are there and right", async || {
        let mut found = records(rig).list(&of_job).await?.items;
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

/// A55: a slow resync finds a record that is gone and one whose label is, in flight and after the end.
pub async fn records_that_were_removed_or_stripped_are_written_anew(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = in_flight(rig).await?;
    for progress in ["Processing", "Succeeded"] {
        if progress == "Succeeded" {
            rig.world.release(Pause::Creation, Scope::World);
            rig.until_progress("many", "Succeeded").await?;
        }
        until_right(rig, &pods, progress).await?;
        remove(rig, 0).await?;
        strip(rig, 1).await?;
        rig.pass(Duration::from_secs(700)).await;
        until_right(rig, &pods, progress).await?;
    }
    all_replaced(rig, &pods).await
}

/// A55: a record that a list by label does not show is not lost.
pub async fn a_record_whose_label_is_gone_is_found_by_the_next_host(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = in_flight(rig).await?;
    rig.kill_host("host").await?;
    strip(rig, 0).await?;
    rig.start_host().await?;
    until_right(rig, &pods, "Processing").await?;
    rig.world.release(Pause::Creation, Scope::World);
    rig.until_progress("many", "Succeeded").await?;
    until_right(rig, &pods, "Succeeded").await?;
    all_replaced(rig, &pods).await
}

/// A55: nobody knows any more what was done to those targets, so nothing is done again and what is held is let go.
pub async fn targets_of_a_record_that_was_lost_while_no_host_ran_are_not_started_again(
    rig: &mut Rig,
) -> anyhow::Result<()> {
    let pods = in_flight(rig).await?;
    rig.kill_host("host").await?;
    remove(rig, 0).await?;
    rig.start_host().await?;
    let job = rig.until("many", "those of the first record ended", |job| job.count("failed") == 250).await?;
    ensure!(job.count("processing") == 50, "{:?}", job.data);
    let failures = job.data.pointer("/status/failures").and_then(Value::as_array).cloned().unwrap_or_default();
    let lost = failures.iter().all(|failure| failure.get("reason") == Some(&json!("RecordLost")));
    ensure!(lost && !failures.is_empty(), "{failures:?}");
    patiently("the lost ones are let go", async || {
        let held = rig.pods().list(&ListParams::default()).await?.items;
        Ok(held.iter().filter(|pod| pod.metadata.finalizers.is_some()).count() == 50)
    })
    .await?;
    rig.world.release(Pause::Creation, Scope::World);
    let job = rig.until_progress("many", "Failed").await?;
    ensure!(job.count("succeeded") == 50 && job.count("failed") == 250, "{:?}", job.data);
    all_replaced(rig, pods.get(250..).unwrap_or_default()).await
}

/// The records of a second wave are written, and the status that follows them is not: its targets are not in flight yet.
pub async fn no_pod_is_marked_while_the_status_says_less_than_the_records(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_collaset(rig, MANY).await?;
    rig.world.hold(Pause::Creation, Scope::World);
    let begin = rig.host_named("host");
    let wire = begin.wire.clone();
    for then in [Then::Refuse(StatusCode::INTERNAL_SERVER_ERROR), Then::Hold(Latch::default())] {
        wire.order(Order::next(Method::PATCH, "/operationjobs/many/status", then).saying("\"0-299\""));
    }
    // A held request goes on once no order is left: this one is never met.
    rig.start(begin).await?;
    let targets = names(&pods);
    rig.create_job("many", replace(&targets, json!({}))).await?;
    patiently("the status is held", async || Ok(wire.caught() == 2)).await?;
    rig.pass(Duration::from_secs(5)).await;
    // A slow machine starts them in more rounds than two, each with a status of its own.
    let stored = rig.jobs().get("many").await?;
    let in_flight = stored.data.pointer("/status/ranges/processing").and_then(serde_json::Value::as_str);
    let last = in_flight.and_then(|text| text.rsplit(['-', ',']).next()?.parse::<usize>().ok());
    let in_flight = last.map_or(0, |last| last + 1);
    ensure!(in_flight < MANY, "the held status is not stored: {:?}", stored.data);
    let later: Vec<String> = targets.iter().skip(in_flight).map(|name| format!("/pods/{name}")).collect();
    let marked = wire.records().iter().filter(|sent| later.iter().any(|path| sent.path.ends_with(path))).count();
    ensure!(marked == 0, "{marked} pods were marked though the status does not have their targets in flight");
    wire.lift();
    rig.until("many", "all in flight", |job| job.count("processing") == MANY).await?;
    rig.world.release(Pause::Creation, Scope::World);
    rig.until_progress("many", "Succeeded").await?;
    all_replaced(rig, &pods).await
}
