//! Deleted namespaces that contain jobs in flight.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::ensure;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DeleteParams};
use oarlock_sim::world::{Pause, Scope, Version};
use serde_json::json;
use tokio::time::Instant;

use super::{names, settled_collaset, settled_deployment};
use crate::jobs::{Told, replace};
use crate::test_cluster::{Backend, TestCluster, patiently};

const FEW: usize = 5;
const MANY: usize = 300;

/// A56: a deleted namespace is gone within a minute although jobs of 5 and of 300 targets are in flight, in both modes.
pub async fn a_deleted_namespace_with_jobs_in_flight_is_gone_within_a_minute(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let (marked, evicted) =
        (settled_collaset(cluster, FEW + MANY).await?, settled_deployment(cluster, FEW + MANY).await?);
    cluster.world.hold(Pause::Creation, Scope::World);
    cluster.start_host().await?;
    let mut jobs = Vec::new();
    for (kind, pods) in [("marked", names(&marked)), ("evicted", names(&evicted))] {
        let (few, many) = pods.split_at(FEW);
        for (size, targets) in [("few", few), ("many", many)] {
            let name = format!("{kind}-{size}");
            cluster.create_job(&name, replace(targets, json!({}))).await?;
            jobs.push((name, targets.len()));
        }
    }
    for (name, count) in &jobs {
        cluster.until(name, "in flight", |job| job.count("processing") == *count).await?;
    }
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    namespaces.delete(&cluster.namespace, &DeleteParams::default()).await?;
    let deleted = Instant::now();
    let gone =
        patiently("the namespace is gone", async || Ok(namespaces.get_opt(&cluster.namespace).await?.is_none())).await;
    let left = namespaces.get_opt(&cluster.namespace).await?;
    gone.map_err(|error| error.context(format!("{:?}", left.map(|left| left.status))))?;
    // On a real control plane a busy machine takes longer.
    let is_virtual = matches!(cluster.backend, Backend::Sim(_));
    ensure!(!is_virtual || deleted.elapsed() <= Duration::from_secs(60), "gone after {:?}", deleted.elapsed());
    for (name, count) in &jobs {
        ended_as_it_had_to(cluster, name, *count)?;
    }
    // The namespace controller deletes records and jobs in any order.
    let versions = cluster.history().versions().into_iter();
    let records: BTreeSet<String> =
        versions.filter(|version| version.plural == "operationrecords").map(|version| version.name).collect();
    records.iter().for_each(|name| cluster.removes_record(name));
    Ok(())
}

/// Checks S2: each target in flight has an outcome, whose reason is the end of the job or of the namespace.
fn ended_as_it_had_to(cluster: &TestCluster, name: &str, count: usize) -> anyhow::Result<()> {
    let versions = cluster.history().versions();
    let last = versions.iter().rev().find(|version| version.plural == "operationjobs" && version.name == name);
    let Some(last) = last else { anyhow::bail!("nothing is known of {name}") };
    let number = |field: &str| last.at(field).as_u64().unwrap_or(0);
    let ended = number("/status/failedPodCount") + number("/status/succeededPodCount");
    ensure!(ended == count as u64, "{name}: {ended} of {count} have ended: {}", last.at("/status"));
    for reason in reasons(last) {
        ensure!(["NamespaceTerminating", "JobDeleted"].contains(&reason.as_str()), "{name}: {reason}");
    }
    Ok(())
}

fn reasons(job: &Version) -> Vec<String> {
    let list = |field: &str| job.at(field).as_array().cloned().unwrap_or_default();
    let inline =
        list("/status/targetDetails").into_iter().filter_map(|detail| detail.pointer("/error/reason").cloned());
    let failures = list("/status/failures").into_iter().filter_map(|failure| failure.get("reason").cloned());
    inline.chain(failures).filter_map(|reason| reason.as_str().map(str::to_owned)).collect::<Vec<_>>()
}
