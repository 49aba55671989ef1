//! The example manifests from the documentation of the original operator, unchanged, with the result that the documentation shows.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use oarlock_support::install;
use serde_json::{Value, json};

use super::on_nodes::nodes;
use crate::flows::{begin, is_true};
use crate::test_cluster::TestCluster;

/// The manifests of a JobFlow with five steps and of a DaemonJob.
pub const MANIFESTS: [&str; 2] = [include_str!("documented/jobflow.yaml"), include_str!("documented/daemonjob.yaml")];

/// The nodes in the documentation. The DaemonJob excludes the last two.
const NODES: [&str; 5] = ["minikube", "vm-0-12-centos", "vm-0-17-centos", "node1", "node2"];
/// The steps of the flow, each with the steps that must end before it.
const STEPS: [(&str, &[&str]); 5] =
    [("job1", &[]), ("job2", &["job1"]), ("job3", &["job1", "job2"]), ("job4", &[]), ("job5", &["job4", "job2"])];

/// Creates the nodes of the documentation and starts a host.
///
/// # Errors
/// If the API server refuses a request, or if the host does not start.
pub async fn prepare(cluster: &mut TestCluster) -> anyhow::Result<()> {
    for name in NODES {
        cluster.world.add_node(name).await?;
    }
    begin(cluster).await
}

/// The documented manifests run to their end in memory.
pub async fn the_documented_manifests_run_as_they_stand(cluster: &mut TestCluster) -> anyhow::Result<()> {
    prepare(cluster).await?;
    for manifest in MANIFESTS {
        for mut document in install::documents(manifest)? {
            let metadata = document.get_mut("metadata").and_then(Value::as_object_mut).context("it has metadata")?;
            metadata.insert("namespace".to_owned(), json!(cluster.namespace));
            install::apply(&cluster.client, &document).await?;
        }
    }
    end_as_documented(cluster, 1.0).await
}

/// Waits until both objects have ended, and checks them. Sleeps take `sleep_factor` of their time.
///
/// # Errors
/// If a result differs from the documentation. The error names the difference.
pub async fn end_as_documented(cluster: &TestCluster, sleep_factor: f64) -> anyhow::Result<()> {
    let flow = cluster.until_state("JobFlow", "jobflow-example", "Succeed").await?;
    let daemon = cluster.until_state("DaemonJob", "daemonjob-example", "Succeed").await?;
    ensure!(is_true(&flow, "Complete") && is_true(&daemon, "Complete"), "{flow:#}\n{daemon:#}");
    let least = Duration::from_secs(210).mul_f64(sleep_factor);
    let took = time(&flow, "/status/completionTime")?.duration_since(time(&flow, "/status/startTime")?);
    // Stored times have whole seconds.
    ensure!(Duration::try_from(took)? + Duration::from_secs(1) >= least, "the flow took {took}, and not {least:?}");
    for (step, after) in STEPS {
        let job = of_flow(cluster, step).await?;
        for earlier in after {
            let ended = of_flow(cluster, earlier).await?.status.and_then(|status| status.completion_time);
            ensure!(job.metadata.creation_timestamp >= ended, "{step} was made before {earlier} ended");
        }
        look_at(cluster, &job, "minikube").await?;
    }
    let listed = nodes(cluster).list(&ListParams::default()).await?.items;
    // The host does not see nodes of other scenarios.
    let seen =
        listed.into_iter().filter(|node| node.metadata.labels.iter().flatten().all(|(key, _)| key != "scenario"));
    let names = seen.filter_map(|node| node.metadata.name);
    let names: Vec<String> = names.filter(|name| name != "node1" && name != "node2").collect();
    for name in &names {
        let job = cluster.batch_jobs().get(&format!("daemonjob-example-{name}")).await?;
        look_at(cluster, &job, name).await?;
    }
    let wanted: BTreeSet<String> = STEPS.map(|(step, _)| format!("jobflow-example-{step}")).into();
    let wanted: BTreeSet<String> =
        wanted.into_iter().chain(names.iter().map(|name| format!("daemonjob-example-{name}"))).collect();
    ensure!(cluster.batch_job_names().await?.into_iter().collect::<BTreeSet<_>>() == wanted);
    ensure!(cluster.children_made() == wanted.len(), "each is made once");
    Ok(())
}

fn time(object: &Value, pointer: &str) -> anyhow::Result<Timestamp> {
    Ok(object.pointer(pointer).and_then(Value::as_str).context("it has no such time")?.parse()?)
}

async fn of_flow(cluster: &TestCluster, step: &str) -> anyhow::Result<Job> {
    Ok(cluster.batch_jobs().get(&format!("jobflow-example-{step}")).await?)
}

/// Checks that a Job and its pod have the global parameters of both manifests and never restart.
async fn look_at(cluster: &TestCluster, job: &Job, node: &str) -> anyhow::Result<()> {
    let name = job.metadata.name.clone().unwrap_or_default();
    let ours = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={name}"));
    let pods = cluster.pods().list(&ours).await?.items;
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
