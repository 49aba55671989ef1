//! The manifests that the original operator documents, as they stand, and the end that its document shows.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use oarlock_bed::install;
use serde_json::{Value, json};

use super::on_nodes::nodes;
use crate::flows::{begin, is_true};
use crate::rig::Rig;

/// A JobFlow of five steps and a DaemonJob.
pub const MANIFESTS: [&str; 2] = [include_str!("documented/jobflow.yaml"), include_str!("documented/daemonjob.yaml")];

/// The nodes that the document speaks of; the DaemonJob leaves out the last two.
const NODES: [&str; 5] = ["minikube", "vm-0-12-centos", "vm-0-17-centos", "node1", "node2"];
/// The Jobs of the flow, and those that each of them comes after.
const STEPS: [(&str, &[&str]); 5] =
    [("job1", &[]), ("job2", &["job1"]), ("job3", &["job1", "job2"]), ("job4", &[]), ("job5", &["job4", "job2"])];

/// The nodes of the document, and a host.
///
/// # Errors
/// What the API server says.
pub async fn prepare(rig: &mut Rig) -> anyhow::Result<()> {
    for name in NODES {
        rig.world.add_node(name).await?;
    }
    begin(rig).await
}

/// In memory: applied, and seen to their end.
pub async fn the_documented_manifests_run_as_they_stand(rig: &mut Rig) -> anyhow::Result<()> {
    prepare(rig).await?;
    for manifest in MANIFESTS {
        for mut document in install::documents(manifest)? {
            let metadata = document.get_mut("metadata").and_then(Value::as_object_mut).context("it has metadata")?;
            metadata.insert("namespace".to_owned(), json!(rig.namespace));
            install::apply(&rig.client, &document).await?;
        }
    }
    end_as_documented(rig, 1.0).await
}

/// Waits for the end of both, where sleeps take `sleep_factor` of their time.
///
/// # Errors
/// Says what is not as the document has it.
pub async fn end_as_documented(rig: &Rig, sleep_factor: f64) -> anyhow::Result<()> {
    let flow = rig.until_state("JobFlow", "jobflow-example", "Succeed").await?;
    let daemon = rig.until_state("DaemonJob", "daemonjob-example", "Succeed").await?;
    ensure!(is_true(&flow, "Complete") && is_true(&daemon, "Complete"), "{flow:#}\n{daemon:#}");
    let least = Duration::from_secs(210).mul_f64(sleep_factor);
    let took = time(&flow, "/status/completionTime")?.duration_since(time(&flow, "/status/startTime")?);
    // Times are of whole seconds.
    ensure!(Duration::try_from(took)? + Duration::from_secs(1) >= least, "the flow took {took}, and not {least:?}");
    for (step, after) in STEPS {
        let job = of_flow(rig, step).await?;
        for earlier in after {
            let ended = of_flow(rig, earlier).await?.status.and_then(|status| status.completion_time);
            ensure!(job.metadata.creation_timestamp >= ended, "{step} was made before {earlier} ended");
        }
        look_at(rig, &job, "minikube").await?;
    }
    let listed = nodes(rig).list(&ListParams::default()).await?.items;
    // The host does not see nodes of other scenarios.
    let seen =
        listed.into_iter().filter(|node| node.metadata.labels.iter().flatten().all(|(key, _)| key != "scenario"));
    let names = seen.filter_map(|node| node.metadata.name);
    let names: Vec<String> = names.filter(|name| name != "node1" && name != "node2").collect();
    for name in &names {
        let job = rig.batch_jobs().get(&format!("daemonjob-example-{name}")).await?;
        look_at(rig, &job, name).await?;
    }
    let wanted: BTreeSet<String> = STEPS.map(|(step, _)| format!("jobflow-example-{step}")).into();
    let wanted: BTreeSet<String> =
        wanted.into_iter().chain(names.iter().map(|name| format!("daemonjob-example-{name}"))).collect();
    ensure!(rig.batch_job_names().await?.into_iter().collect::<BTreeSet<_>>() == wanted);
    ensure!(rig.children_made() == wanted.len(), "each is made once");
    Ok(())
}

fn time(object: &Value, pointer: &str) -> anyhow::Result<Timestamp> {
    Ok(object.pointer(pointer).and_then(Value::as_str).context("it has no such time")?.parse()?)
}

async fn of_flow(rig: &Rig, step: &str) -> anyhow::Result<Job> {
    Ok(rig.batch_jobs().get(&format!("jobflow-example-{step}")).await?)
}

/// A Job and its pods have the global parameters of both manifests, and never restart.
async fn look_at(rig: &Rig, job: &Job, node: &str) -> anyhow::Result<()> {
    let name = job.metadata.name.clone().unwrap_or_default();
    let ours = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={name}"));
    let pods = rig.pods().list(&ours).await?.items;
    ensure!(pods.len() == 1, "{name} has {} pods", pods.len());
    let object = serde_json::to_value(job)?;
    for object in pods.iter().map(serde_json::to_value).chain([Ok(object)]) {
        let object = object?;
        for place in ["/metadata/labels", "/metadata/annotations"] {
            let has = |key: &str, value: &str| object.pointer(&format!("{place}/{key}")) == Some(&json!(value));
            ensure!(has("key1", "value1") && has("key2", "value2"), "{place} of {object:#}");
        }
    }
    for pod in pods {
        let spec = pod.spec.unwrap_or_default();
        let env = serde_json::to_value(spec.containers.first().and_then(|container| container.env.as_ref()))?;
        ensure!(env == json!([{"name": "FOO", "value": "bar"}, {"name": "QUE", "value": "pasa"}]), "{name} has {env}");
        ensure!(spec.restart_policy.as_deref() == Some("Never"), "{name} restarts {:?}", spec.restart_policy);
        ensure!(spec.node_name.as_deref() == Some(node), "{name} runs on {:?}", spec.node_name);
    }
    Ok(())
}
