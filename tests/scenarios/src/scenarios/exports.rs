//! OpsJobs of the type exportimage: they copy the image of a workload to another registry.

#![expect(clippy::indexing_slicing, reason = "a test fails loudly")]

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use super::on_nodes::{Plugin, node};
use super::ops_jobs::{begin, end_well};
use crate::components::EXPORTIMAGE_GRANTS;
use crate::image_registry::LocalRegistry;
use crate::ops::{output, said};
use crate::test_cluster::{TestCluster, patiently};

pub(crate) const EXPORTIMAGE: Plugin = ("exportimage", EXPORTIMAGE_GRANTS);

/// Creates a pod on this node that runs an image, and waits until the pod runs.
pub(crate) async fn runs(cluster: &TestCluster, name: &str, node: &str, image: &str) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let pod = json!({"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [{"name": "app", "image": image}]}});
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    patiently("the pod runs", async || {
        let phase = pods.get(name).await?.status.and_then(|status| status.phase);
        Ok(phase.as_deref() == Some("Running"))
    })
    .await
}

pub(crate) fn export(cluster: &TestCluster, pod: &str) -> Value {
    json!({"type": "exportimage", "inputs": [{"name": "workload", "value": format!("{}/pod/{pod}", cluster.namespace)}]})
}

/// Checks that the registry has the image of a successful job, as its outputs say. Returns name and tag of the image.
pub(crate) fn exported(job: &Value, registry: &LocalRegistry) -> anyhow::Result<(String, String)> {
    ensure!(output(job, "status") == "completed", "{job:#}");
    let target = output(job, "target");
    let own = format!("{}/", registry.address);
    let place = target.as_str().and_then(|target| target.strip_prefix(&own)).context("it names the registry")?;
    let (name, tag) = place.rsplit_once(':').context("it has a tag")?;
    let digest = registry.images.pushed(name, tag);
    ensure!(digest.is_some() && output(job, "digest") == json!(digest), "{digest:?} {job:#}");
    Ok((name.to_owned(), tag.to_owned()))
}

/// An image that is already in the registry is not pushed as another. A different image of the same name and day gets the time in its tag.
pub async fn the_image_of_a_pod_is_in_the_registry_under_its_name_and_the_day(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let a = node(cluster, "a", true).await?;
    let registry = LocalRegistry::start()?;
    cluster.exports = Some(registry.of_host());
    let grants = EXPORTIMAGE_GRANTS.replace("[docker.io,", "[\"mine:5000\", docker.io,");
    let of_jobs = begin(cluster, ("exportimage", grants.leak())).await?;
    runs(cluster, "one", &a, "busybox:latest").await?;
    for name in ["first", "again"] {
        cluster.create_ops(name, export(cluster, "one")).await?;
        let job = cluster.until_ops_ended(name, "Succeeded", "Succeed").await?;
        let made = cluster.ops().get(name).await?.metadata.creation_timestamp.context("a time")?;
        let day = made.0.strftime("%Y%m%d").to_string();
        ensure!(exported(&job, &registry)? == ("custom/library/busybox".to_owned(), day), "{job:#}");
        ensure!(job["status"]["addedInputs"] == json!([{"name": "image", "value": "busybox:latest"}]), "{job:#}");
    }
    for (name, image) in [("two", "mine-5000/app"), ("three", "mine:5000/App:1.0")] {
        runs(cluster, name, &a, image).await?;
        cluster.create_ops(name, export(cluster, name)).await?;
        let job = cluster.until_ops_ended(name, "Succeeded", "Succeed").await?;
        let (of, tag) = exported(&job, &registry)?;
        ensure!((of.as_str(), tag.len()) == ("custom/mine-5000/app", if name == "two" { 8 } else { 15 }), "{job:#}");
    }
    end_well(cluster, &of_jobs).await
}

/// An export fails with a reason for a registry without a grant, for a container that the pod lacks, and for a commit without containers.
pub async fn an_export_that_cannot_be_says_why(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let a = node(cluster, "a", true).await?;
    let registry = LocalRegistry::start()?;
    cluster.exports = Some(registry.of_host());
    let of_jobs = begin(cluster, EXPORTIMAGE).await?;
    runs(cluster, "one", &a, "other.example.com/app:1.0").await?;
    cluster.create_ops("ungranted", export(cluster, "one")).await?;
    let job = cluster.until_ops_ended("ungranted", "Failed", "ToleranceExceeded").await?;
    let words = "registries: [\"other.example.com/app\"]";
    ensure!(
        said(&job, "one").contains(words) && said(&job, "one").contains("is not granted to plugin exportimage"),
        "{job:#}"
    );
    ensure!(output(&job, "status") == "failed" && output(&job, "target").is_null(), "{job:#}");
    let mut other = export(cluster, "one");
    other["inputs"].as_array_mut().context("inputs")?.push(json!({"name": "container", "value": "side"}));
    cluster.create_ops("nobody", other).await?;
    let job = cluster.until_ops_ended("nobody", "Failed", "Invalid").await?;
    ensure!(said(&job, "Failed").contains("pod one has no container side: it has app"), "{job:#}");
    let mut commit = export(cluster, "one");
    commit["inputs"].as_array_mut().context("inputs")?.push(json!({"name": "mode", "value": "commit"}));
    cluster.create_ops("commit", commit).await?;
    let job = cluster.until_ops_ended("commit", "Failed", "ToleranceExceeded").await?;
    ensure!(said(&job, "one").contains("take mode copy"), "{job:#}");
    end_well(cluster, &of_jobs).await
}
