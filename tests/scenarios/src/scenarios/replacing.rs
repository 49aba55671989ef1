//! Replace, from a user's `kubectl apply` to the last replaced pod.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use oarlock_sim::world::Seedbed;
use serde_json::json;

use super::{SETTLED, all_replaced, identities};
use crate::jobs::{Told, replace};
use crate::test_cluster::TestCluster;

/// The pods of a CollaSet are replaced one partition after the other.
pub async fn collaset_pods_are_replaced_one_partition_after_the_other(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let set = cluster.seedbed.collaset("foo", 3).await?;
    cluster.world.settled(&set, SETTLED).await?;
    cluster.start_host().await?;
    let names = cluster.pod_names("foo").await?;
    let targets = identities(cluster, &names).await?;
    cluster.create_job("r", replace(&names, json!({"partition": 1}))).await?;
    let job = cluster.until("r", "one succeeded", |job| job.count("succeeded") == 1).await?;
    anyhow::ensure!(job.progress() == "Processing" && job.count("pending") == 2, "{:?}", job.data);
    all_replaced(cluster, targets.get(..1).unwrap_or_default()).await?;
    cluster.edit_job("r", json!({"partition": 3})).await?;
    let job = cluster.until_progress("r", "Succeeded").await?;
    anyhow::ensure!(job.condition("Complete") == "True/AllTargetsSucceeded", "{:?}", job.data);
    all_replaced(cluster, &targets).await
}

/// Pods of another namespace that name the Deployment or its ReplicaSet as their controller replace no target and hide no
/// new pod. The foreign pods exist first, and their namespace comes first in each list.
pub async fn pods_of_another_namespace_replace_none(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let set = cluster.seedbed.deployment("web", 3).await?;
    cluster.world.settled(&set, SETTLED).await?;
    let elsewhere = format!("a-{}", cluster.namespace);
    Seedbed::namespace(cluster.client.clone(), &elsewhere).await?;
    let sets: Api<ReplicaSet> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let deployments: Api<Deployment> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let mut owners: Vec<Option<String>> =
        sets.list(&ListParams::default()).await?.items.into_iter().map(|set| set.metadata.uid).collect();
    owners.extend(deployments.list(&ListParams::default()).await?.items.into_iter().map(|one| one.metadata.uid));
    anyhow::ensure!(owners.len() == 2, "{owners:?}");
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &elsewhere);
    for (number, uid) in owners.iter().enumerate() {
        let owner = json!({"apiVersion": "x/v1", "kind": "X", "name": "x", "uid": uid, "controller": true});
        let spec = json!({"containers": [{"name": "c", "image": "i"}], "schedulingGates": [{"name": "never/comes"}]});
        let metadata = json!({"name": format!("poison-{number}"), "ownerReferences": [owner], "finalizers": ["scenarios.test/keep"]});
        pods.create(&PostParams::default(), &serde_json::from_value(json!({"metadata": metadata, "spec": spec}))?)
            .await?;
    }
    cluster.start_host().await?;
    let names = cluster.pod_names("web").await?;
    let targets = identities(cluster, &names).await?;
    cluster.create_job("e", replace(&names, json!({"parallelism": 1}))).await?;
    cluster.until_progress("e", "Succeeded").await?;
    all_replaced(cluster, &targets).await?;
    for number in 0..owners.len() {
        let name = format!("poison-{number}");
        let kept = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        pods.patch(&name, &PatchParams::default(), &kept).await?;
        pods.delete(&name, &DeleteParams::default().grace_period(0)).await.map(drop).or_else(|error| match error {
            kube::Error::Api(status) if status.code == 404 => Ok(()),
            error => Err(error),
        })?;
    }
    Ok(())
}
