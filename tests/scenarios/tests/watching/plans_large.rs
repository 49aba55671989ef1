//! The plan of the largest job, on a cluster in memory that this process serves. No test asserts its durations.

use std::time::Instant;

use anyhow::{Context as _, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, PostParams};
use oarlock_scenarios::components::GRANTS;
use serde_json::{Value, json};

use crate::planned::Planned;

const TARGETS: usize = 10_000;

/// The API of pods and the UID of the ReplicaSet that owns them.
struct Set {
    pods: Api<Pod>,
    uid: String,
}

impl Set {
    async fn plant(client: &Client) -> anyhow::Result<Self> {
        let template =
            json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "template": template});
        let set: ReplicaSet = serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec}))?;
        let set = Api::default_namespaced(client.clone()).create(&PostParams::default(), &set).await?;
        Ok(Self { pods: Api::default_namespaced(client.clone()), uid: set.metadata.uid.context("a UID")? })
    }

    /// Creates one more pod.
    async fn create(&self, number: usize) -> anyhow::Result<()> {
        let owner =
            json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": self.uid, "controller": true});
        let metadata =
            json!({"name": format!("web-{number:05}"), "labels": {"app": "web"}, "ownerReferences": [owner]});
        let pod = json!({"metadata": metadata, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        self.pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        Ok(())
    }
}

/// Creates a cluster and a set of 10,000 pods.
async fn furnished() -> anyhow::Result<(Set, Planned)> {
    let planned = Planned::new("large", "replace", GRANTS).await?;
    let set = Set::plant(&planned.client).await?;
    let mut made = futures::stream::iter(0..TARGETS).map(|number| set.create(number)).buffer_unordered(16);
    while let Some(one) = made.next().await {
        one?;
    }
    drop(made);
    Ok((set, planned))
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_targets_are_planned_each_with_its_first_proposal() -> anyhow::Result<()> {
    let (set, planned) = furnished().await?;
    let spec = json!({"action": "Replace", "selector": {"labelSelector": {"matchLabels": {"app": "web"}}}});
    let plan = async |more: &[&str]| -> anyhow::Result<(Value, f64)> {
        let begun = Instant::now();
        let document = planned.plan(None, ("large", &spec), more).await?;
        Ok((document, begun.elapsed().as_secs_f64()))
    };
    // The first plan compiles the plugin and fills the cache.
    plan(&[]).await?;
    let (document, seconds) = plan(&[]).await?;
    let counts = &document["counts"];
    ensure!(counts["total"] == TARGETS && counts["changed"] == 1_000 && counts["waiting"] == 9_000, "{counts}");
    let targets = document["targets"].as_array().context("targets")?;
    let evicted = |target: &&Value| target["first"][0]["verb"] == "evict";
    ensure!(targets.iter().filter(evicted).count() == TARGETS, "each has its first proposal");
    ensure!(targets[TARGETS - 1]["waitsFor"] == "TargetsInFlight", "{}", targets[TARGETS - 1]);
    let (tried, with_server) = plan(&["--server"]).await?;
    ensure!(tried["counts"]["accepted"] == TARGETS, "{}", tried["counts"]);
    let rate = TARGETS as f64 / (with_server - seconds).max(0.001);
    println!(
        "plan of {TARGETS} targets: {seconds:.1} s (goal 5); with --server {with_server:.1} s, {rate:.0} targets/s (goal 500)"
    );
    // One pod more than a job may have.
    set.create(TARGETS).await?;
    let too_many = plan(&[]).await.expect_err("a plan of too many targets").to_string();
    ensure!(too_many.contains("more than 10000 pods"), "{too_many}");
    Ok(())
}
