//! Jobs of more than 250 targets, which are kept in records.

use std::time::Duration;

use anyhow::ensure;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use oarlock_sim::world::{Pause, Scope};
use serde_json::{Value, json};

use super::hostile::with_hostile;
use super::{all_replaced, names, settled_collaset, settled_deployment};
use crate::jobs::{Told, replace};
use crate::rig::Rig;

/// Every second of 300 targets is missing, and the host is killed in the middle.
pub async fn three_hundred_targets_are_kept_in_records(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_deployment(rig, 150).await?;
    let targets: Vec<String> =
        names(&pods).into_iter().zip(0..).flat_map(|(name, number)| [name, format!("missing-{number}")]).collect();
    rig.start_host().await?;
    rig.create_job("many", replace(&targets, json!({"partition": 200}))).await?;
    rig.until("many", "some way on", |job| job.count("succeeded") >= 20).await?;
    rig.restart_host().await?;
    let job = rig
        .until("many", "as far as it may", |job| job.count("succeeded") == 100 && job.count("failed") == 100)
        .await?;
    ensure!(job.count("pending") == 100 && job.progress() == "Processing", "{:?}", job.data);
    rig.edit_job("many", json!({"partition": 300})).await?;
    let job = rig.until_progress("many", "Failed").await?;
    ensure!(job.count("succeeded") == 150 && job.count("failed") == 150, "{:?}", job.data);
    let status = job.data.get("status").cloned().unwrap_or_default();
    ensure!(status.get("targetDetails").is_none(), "{status}");
    ensure!(status.get("records") == Some(&json!({"count": 2, "size": 250})), "{status}");
    let failures = status.get("failures").and_then(Value::as_array).cloned().unwrap_or_default();
    ensure!(failures.len() == 100, "{} failures", failures.len());
    let first = json!({"index": 1, "name": "missing-0", "reason": "PodNotFound"});
    ensure!(
        first
            .as_object()
            .into_iter()
            .flatten()
            .all(|(key, value)| failures.first().and_then(|one| one.get(key)) == Some(value)),
        "{failures:?}"
    );
    ensure!(
        status.pointer("/ranges/succeeded").and_then(Value::as_str).is_some_and(|ranges| ranges.starts_with("0,2,4")),
        "{status}"
    );
    ensure!(serde_json::to_vec(&status)?.len() < 64_000, "a status that etcd takes");
    records_tell_all(rig, &targets).await?;
    all_replaced(rig, &pods).await?;
    rig.delete_job("many").await?;
    rig.until_gone("many").await?;
    crate::rig::patiently("the records go with their job", async || {
        Ok(records(rig).list(&ListParams::default()).await?.items.is_empty())
    })
    .await
}

/// As many targets as a job may have.
const MOST: usize = 10_000;

/// A35: every second pod was never there.
pub async fn of_ten_thousand_targets_every_second_one_fails(rig: &mut Rig) -> anyhow::Result<()> {
    let mut targets = Vec::with_capacity(MOST);
    for number in 0..MOST / 2 {
        let name = format!("p{number}");
        rig.seedbed.bare_pod(&name).await?;
        targets.extend([json!({"name": name}), json!({"name": format!("missing-{number}")})]);
    }
    rig.start(with_hostile(rig)).await?;
    rig.create_job("most", json!({"action": "Hostile", "targets": targets})).await?;
    let job = rig.until_progress("most", "Failed").await?;
    ensure!(job.count("succeeded") == MOST / 2 && job.count("failed") == MOST / 2, "{:?}", job.data);
    let status = job.data.get("status").cloned().unwrap_or_default();
    ensure!(status.get("records") == Some(&json!({"count": 40, "size": 250})), "{status}");
    let failures = status.get("failures").and_then(Value::as_array).map_or(0, Vec::len);
    ensure!(failures == 100, "{failures} failures");
    ensure!(serde_json::to_vec(&status)?.len() < 64_000, "a status that etcd takes");
    let all = records(rig).list(&ListParams::default()).await?.items;
    let outcomes = all.iter().flat_map(details).filter(|detail| detail.get("endTime").is_some()).count();
    ensure!(all.len() == 40 && outcomes == MOST, "{} records with {outcomes} outcomes", all.len());
    Ok(())
}

/// 300 of them are marked by then. While the job is paused nothing more starts.
pub async fn ten_thousand_targets_are_paused_and_deleted_soon_after_they_began(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_collaset(rig, 300).await?;
    rig.world.hold(Pause::Creation, Scope::World);
    rig.start_host().await?;
    let targets: Vec<String> =
        names(&pods).into_iter().chain((300..MOST).map(|number| format!("missing-{number}"))).collect();
    rig.create_job("most", replace(&targets, json!({}))).await?;
    rig.until("most", "begun", |job| job.count("processing") > 0).await?;
    rig.edit_job("most", json!({"paused": true})).await?;
    let job = rig.until("most", "paused", |job| job.condition("Paused") == "True/PausedBySpec").await?;
    rig.pass(Duration::from_secs(120)).await;
    let later = rig.jobs().get("most").await?;
    let waiting = (job.count("pending"), later.count("pending"));
    ensure!(waiting.0 == waiting.1 && waiting.0 > 0, "nothing starts, and {waiting:?} wait");
    rig.delete_job("most").await?;
    rig.until_gone("most").await?;
    rig.until_nothing_is_left().await
}

/// The OperationRecords of the namespace.
pub(crate) fn records(rig: &Rig) -> Api<DynamicObject> {
    Api::namespaced_with(rig.client.clone(), &rig.namespace, &crate::jobs::records())
}

/// The details of the targets of a record.
pub(crate) fn details(record: &DynamicObject) -> Vec<Value> {
    let lines = record.data.get("targets").and_then(Value::as_array).into_iter().flatten();
    lines.filter_map(|line| serde_json::from_str(line.as_str()?).ok()).collect()
}

/// S2: one outcome for each target, in the order of the spec.
async fn records_tell_all(rig: &Rig, targets: &[String]) -> anyhow::Result<()> {
    let mut list = records(rig).list(&ListParams::default()).await?.items;
    list.sort_by_key(|record| record.data.get("shard").and_then(Value::as_u64));
    ensure!(list.len() == 2, "{} records", list.len());
    let details: Vec<Value> = list.iter().flat_map(details).collect();
    let named: Vec<&str> = details.iter().filter_map(|detail| detail.get("name")?.as_str()).collect();
    ensure!(named == targets, "in the order of the spec");
    for detail in &details {
        let missing = detail.get("name").and_then(Value::as_str).is_some_and(|name| name.starts_with("missing-"));
        let expected = if missing { "Failed" } else { "Succeeded" };
        ensure!(detail.get("progress") == Some(&json!(expected)), "{detail}");
    }
    Ok(())
}

/// Many small jobs and a large one come, some are deleted in flight, while somebody writes to all pods.
pub async fn small_jobs_and_a_large_one_come_and_go_while_pods_change(rig: &mut Rig) -> anyhow::Result<()> {
    const SMALL: usize = 40;
    let large = settled_deployment(rig, 300).await?;
    let few = settled_collaset(rig, SMALL).await?;
    rig.start_host().await?;
    let busy = tokio::spawn(keep_writing(rig.pods(), names(&large).into_iter().chain(names(&few)).collect()));
    rig.create_job("large", replace(&names(&large), json!({}))).await?;
    for (number, name) in names(&few).into_iter().enumerate() {
        rig.create_job(&format!("small-{number}"), replace(&[name], json!({}))).await?;
        // Every third is deleted: some before, some after their pod is marked.
        if number % 3 == 2 {
            rig.delete_job(&format!("small-{}", number - number % 2)).await?;
        }
    }
    let deleted = |number: &usize| (0..SMALL).any(|third| third % 3 == 2 && third - third % 2 == *number);
    for number in (0..SMALL).filter(deleted) {
        rig.until_gone(&format!("small-{number}")).await?;
    }
    for number in (0..SMALL).filter(|number| !deleted(number)) {
        rig.until_progress(&format!("small-{number}"), "Succeeded").await?;
    }
    rig.until_progress("large", "Succeeded").await?;
    busy.abort();
    let kept = few.iter().enumerate().filter(|(number, _)| !deleted(number)).map(|(_, pod)| pod.clone());
    let targets: Vec<_> = large.into_iter().chain(kept).collect();
    let verdict = rig.world.ledger().verdict_within(&targets, super::HEARD).await;
    // What a deleted job had begun may have happened, once, and its new pod may have gone with it.
    let strange = verdict.others_lost.iter().filter(|(name, _)| !name.starts_with("foo-")).count();
    ensure!(strange == 0 && verdict.targets.iter().all(|target| target.is_right()), "{verdict}");
    rig.until_nothing_is_left().await
}

/// Writes to one pod after the other, again and again; those that are gone are passed over.
async fn keep_writing(pods: Api<k8s_openapi::api::core::v1::Pod>, names: Vec<String>) {
    for (turn, name) in names.iter().cycle().enumerate() {
        let touched = json!({"metadata": {"labels": {"somebody.test/turn": turn.to_string()}}});
        drop(pods.patch(name, &PatchParams::default(), &Patch::Merge(touched)).await);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
