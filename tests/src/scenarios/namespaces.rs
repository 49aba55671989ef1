//! Namespaces that go with everything in them.

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
use crate::rig::{Ground, Rig, patiently};

const FEW: usize = 5;
const MANY: usize = 300;

/// A56: jobs of 5 and of 300 targets are in flight, in both modes.
pub async fn a_deleted_namespace_with_jobs_in_flight_is_gone_within_a_minute(rig: &mut Rig) -> anyhow::Result<()> {
    let (marked, evicted) = (settled_collaset(rig, FEW + MANY).await?, settled_deployment(rig, FEW + MANY).await?);
    rig.world.hold(Pause::Creation, Scope::World);
    rig.start_host().await?;
    let mut jobs = Vec::new();
    for (kind, pods) in [("marked", names(&marked)), ("evicted", names(&evicted))] {
        let (few, many) = pods.split_at(FEW);
        for (size, targets) in [("few", few), ("many", many)] {
            let name = format!("{kind}-{size}");
            rig.create_job(&name, replace(targets, json!({}))).await?;
            jobs.push((name, targets.len()));
        }
    }
    for (name, count) in &jobs {
        rig.until(name, "in flight", |job| job.count("processing") == *count).await?;
    }
    let namespaces: Api<Namespace> = Api::all(rig.client.clone());
    namespaces.delete(&rig.namespace, &DeleteParams::default()).await?;
    let deleted = Instant::now();
    let gone =
        patiently("the namespace is gone", async || Ok(namespaces.get_opt(&rig.namespace).await?.is_none())).await;
    let left = namespaces.get_opt(&rig.namespace).await?;
    gone.map_err(|error| error.context(format!("{:?}", left.map(|left| left.status))))?;
    // Where time is that of the machine, a busy one takes longer.
    let is_virtual = matches!(rig.ground, Ground::Sim(_));
    ensure!(!is_virtual || deleted.elapsed() <= Duration::from_secs(60), "gone after {:?}", deleted.elapsed());
    for (name, count) in &jobs {
        ended_as_it_had_to(rig, name, *count)?;
    }
    // The namespace controller deletes records and jobs in any order.
    let versions = rig.history().versions().into_iter();
    let records: BTreeSet<String> =
        versions.filter(|version| version.plural == "operationrecords").map(|version| version.name).collect();
    records.iter().for_each(|name| rig.removes_record(name));
    Ok(())
}

/// S2: each target in flight has an outcome, which says that job or namespace went.
fn ended_as_it_had_to(rig: &Rig, name: &str, count: usize) -> anyhow::Result<()> {
    let versions = rig.history().versions();
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
