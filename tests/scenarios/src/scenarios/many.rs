//! Jobs of more than 250 targets, whose details are in records.

use std::time::Duration;

use anyhow::ensure;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use oarlock_sim::world::{Pause, Scope};
use serde_json::{Value, json};

use super::hostile::with_hostile;
use super::{all_replaced, names, settled_collaset, settled_deployment};
use crate::jobs::{Told, replace};
use crate::test_cluster::TestCluster;

/// A job of 300 targets, every second one missing, ends right although the host is killed in the middle.
pub async fn three_hundred_targets_are_kept_in_records(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_deployment(cluster, 150).await?;
    let targets: Vec<String> =
        names(&pods).into_iter().zip(0..).flat_map(|(name, number)| [name, format!("missing-{number}")]).collect();
    cluster.start_host().await?;
    cluster.create_job("many", replace(&targets, json!({"partition": 200}))).await?;
    cluster.until("many", "some way on", |job| job.count("succeeded") >= 20).await?;
    cluster.restart_host().await?;
    let job = cluster
        .until("many", "as far as it may", |job| job.count("succeeded") == 100 && job.count("failed") == 100)
        .await?;
    ensure!(job.count("pending") == 100 && job.progress() == "Processing", "{:?}", job.data);
    cluster.edit_job("many", json!({"partition": 300})).await?;
    let job = cluster.until_progress("many", "Failed").await?;
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
    records_tell_all(cluster, &targets).await?;
    all_replaced(cluster, &pods).await?;
    cluster.delete_job("many").await?;
    cluster.until_gone("many").await?;
    crate::test_cluster::patiently("the records go with their job", async || {
        Ok(records(cluster).list(&ListParams::default()).await?.items.is_empty())
    })
    .await
}

/// The largest number of targets that a job may have.
const MOST: usize = 10_000;

/// A35: a job of 10,000 targets, every second one missing, has all outcomes in its records.
pub async fn of_ten_thousand_targets_every_second_one_fails(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let mut targets = Vec::with_capacity(MOST);
    for number in 0..MOST / 2 {
        let name = format!("p{number}");
        cluster.seedbed.bare_pod(&name).await?;
        targets.extend([json!({"name": name}), json!({"name": format!("missing-{number}")})]);
    }
    cluster.start(with_hostile(cluster)).await?;
    cluster.create_job("most", json!({"action": "Hostile", "targets": targets})).await?;
    let job = cluster.until_progress("most", "Failed").await?;
    ensure!(job.count("succeeded") == MOST / 2 && job.count("failed") == MOST / 2, "{:?}", job.data);
    let status = job.data.get("status").cloned().unwrap_or_default();
    ensure!(status.get("records") == Some(&json!({"count": 40, "size": 250})), "{status}");
    let failures = status.get("failures").and_then(Value::as_array).map_or(0, Vec::len);
    ensure!(failures == 100, "{failures} failures");
    ensure!(serde_json::to_vec(&status)?.len() < 64_000, "a status that etcd takes");
    let all = records(cluster).list(&ListParams::default()).await?.items;
    let outcomes = all.iter().flat_map(details).filter(|detail| detail.get("endTime").is_some()).count();
    ensure!(all.len() == 40 && outcomes == MOST, "{} records with {outcomes} outcomes", all.len());
    Ok(())
}

/// A job of 10,000 targets starts nothing while it is paused, and leaves nothing when it is deleted. The pods of 300 targets exist.
pub async fn ten_thousand_targets_are_paused_and_deleted_soon_after_they_began(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let pods = settled_collaset(cluster, 300).await?;
    cluster.world.hold(Pause::Creation, Scope::World);
    cluster.start_host().await?;
    let targets: Vec<String> =
        names(&pods).into_iter().chain((300..MOST).map(|number| format!("missing-{number}"))).collect();
    cluster.create_job("most", replace(&targets, json!({}))).await?;
    cluster.until("most", "begun", |job| job.count("processing") > 0).await?;
    cluster.edit_job("most", json!({"paused": true})).await?;
    let job = cluster.until("most", "paused", |job| job.condition("Paused") == "True/PausedBySpec").await?;
    cluster.pass(Duration::from_secs(120)).await;
    let later = cluster.jobs().get("most").await?;
    let waiting = (job.count("pending"), later.count("pending"));
    ensure!(waiting.0 == waiting.1 && waiting.0 > 0, "nothing starts, and {waiting:?} wait");
    cluster.delete_job("most").await?;
    cluster.until_gone("most").await?;
    cluster.until_nothing_is_left().await
}

/// Returns the OperationRecords of the namespace.
#[must_use]
pub fn records(cluster: &TestCluster) -> Api<DynamicObject> {
    Api::namespaced_with(cluster.client.clone(), &cluster.namespace, &crate::jobs::records())
}

/// Returns the details of the targets in a record.
pub(crate) fn details(record: &DynamicObject) -> Vec<Value> {
    let lines = record.data.get("targets").and_then(Value::as_array).into_iter().flatten();
    lines.filter_map(|line| serde_json::from_str(line.as_str()?).ok()).collect()
}

/// Checks S2: the records have one outcome for each target, in the order of the spec.
async fn records_tell_all(cluster: &TestCluster, targets: &[String]) -> anyhow::Result<()> {
    let mut list = records(cluster).list(&ListParams::default()).await?.items;
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

/// Many small jobs and a large job come, and some are deleted in flight, while another client writes to all pods.
pub async fn small_jobs_and_a_large_one_come_and_go_while_pods_change(cluster: &mut TestCluster) -> anyhow::Result<()> {
    const SMALL: usize = 40;
    let large = settled_deployment(cluster, 300).await?;
    let few = settled_collaset(cluster, SMALL).await?;
    cluster.start_host().await?;
    let busy = tokio::spawn(keep_writing(cluster.pods(), names(&large).into_iter().chain(names(&few)).collect()));
    cluster.create_job("large", replace(&names(&large), json!({}))).await?;
    for (number, name) in names(&few).into_iter().enumerate() {
        cluster.create_job(&format!("small-{number}"), replace(&[name], json!({}))).await?;
        // One of three jobs is deleted, before or after its pod is marked.
        if number % 3 == 2 {
            cluster.delete_job(&format!("small-{}", number - number % 2)).await?;
        }
    }
    let deleted = |number: &usize| (0..SMALL).any(|third| third % 3 == 2 && third - third % 2 == *number);
    for number in (0..SMALL).filter(deleted) {
        cluster.until_gone(&format!("small-{number}")).await?;
    }
    for number in (0..SMALL).filter(|number| !deleted(number)) {
        cluster.until_progress(&format!("small-{number}"), "Succeeded").await?;
    }
    cluster.until_progress("large", "Succeeded").await?;
    busy.abort();
    let kept = few.iter().enumerate().filter(|(number, _)| !deleted(number)).map(|(_, pod)| pod.clone());
    let targets: Vec<_> = large.into_iter().chain(kept).collect();
    let verdict = cluster.world.ledger().verdict_within(&targets, super::HEARD).await;
    // A deleted job may have replaced its pod once, and the new pod may have gone with the job.
    let strange = verdict.others_lost.iter().filter(|(name, _)| !name.starts_with("foo-")).count();
    ensure!(strange == 0 && verdict.targets.iter().all(|target| target.is_right()), "{verdict}");
    cluster.until_nothing_is_left().await
}

/// Writes to one pod after the other, again and again. Ignores pods that are gone.
async fn keep_writing(pods: Api<k8s_openapi::api::core::v1::Pod>, names: Vec<String>) {
    for (turn, name) in names.iter().cycle().enumerate() {
        let touched = json!({"metadata": {"labels": {"somebody.test/turn": turn.to_string()}}});
        drop(pods.patch(name, &PatchParams::default(), &Patch::Merge(touched)).await);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
