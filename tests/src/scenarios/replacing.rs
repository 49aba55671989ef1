//! Replace, from a user's `kubectl apply` to the last pod.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use oarlock_sim::world::Seedbed;
use serde_json::json;

use super::{SETTLED, all_replaced, identities};
use crate::jobs::{Told, replace};
use crate::rig::Rig;

/// The pods of a CollaSet are replaced one partition after the other.
pub async fn collaset_pods_are_replaced_one_partition_after_the_other(rig: &mut Rig) -> anyhow::Result<()> {
    let set = rig.seedbed.collaset("foo", 3).await?;
    rig.world.settled(&set, SETTLED).await?;
    rig.start_host().await?;
    let names = rig.pod_names("foo").await?;
    let targets = identities(rig, &names).await?;
    rig.create_job("r", replace(&names, json!({"partition": 1}))).await?;
    let job = rig.until("r", "one succeeded", |job| job.count("succeeded") == 1).await?;
    anyhow::ensure!(job.progress() == "Processing" && job.count("pending") == 2, "{:?}", job.data);
    all_replaced(rig, targets.get(..1).unwrap_or_default()).await?;
    rig.edit_job("r", json!({"partition": 3})).await?;
    let job = rig.until_progress("r", "Succeeded").await?;
    anyhow::ensure!(job.condition("Complete") == "True/AllTargetsSucceeded", "{:?}", job.data);
    all_replaced(rig, &targets).await
}

/// The pods of a Deployment are evicted, and each waits for a new pod of its own.
pub async fn deployment_pods_are_evicted_and_each_gets_a_new_pod_of_its_own(rig: &mut Rig) -> anyhow::Result<()> {
    let set = rig.seedbed.deployment("web", 4).await?;
    rig.world.settled(&set, SETTLED).await?;
    rig.start_host().await?;
    let names = rig.pod_names("web").await?;
    let targets = identities(rig, &names).await?;
    rig.create_job("e", replace(&names, json!({}))).await?;
    let job = rig.until_progress("e", "Succeeded").await?;
    let new: std::collections::BTreeSet<String> = job
        .targets()
        .values()
        .filter_map(|detail| detail.pointer("/extraInfo/NewPod").and_then(|name| name.as_str()).map(str::to_owned))
        .collect();
    anyhow::ensure!(new.len() == 4, "four different new pods: {new:?}");
    all_replaced(rig, &targets).await
}

/// Pods of another namespace that name the Deployment, or its ReplicaSet, as their controller replace nobody and hide nobody, though
/// they are there first and their namespace comes first in each list.
pub async fn pods_of_another_namespace_replace_none(rig: &mut Rig) -> anyhow::Result<()> {
    let set = rig.seedbed.deployment("web", 3).await?;
    rig.world.settled(&set, SETTLED).await?;
    let elsewhere = format!("a-{}", rig.namespace);
    Seedbed::namespace(rig.client.clone(), &elsewhere).await?;
    let sets: Api<ReplicaSet> = Api::namespaced(rig.client.clone(), &rig.namespace);
    let deployments: Api<Deployment> = Api::namespaced(rig.client.clone(), &rig.namespace);
    let mut owners: Vec<Option<String>> =
        sets.list(&ListParams::default()).await?.items.into_iter().map(|set| set.metadata.uid).collect();
    owners.extend(deployments.list(&ListParams::default()).await?.items.into_iter().map(|one| one.metadata.uid));
    anyhow::ensure!(owners.len() == 2, "{owners:?}");
    let pods: Api<Pod> = Api::namespaced(rig.client.clone(), &elsewhere);
    for (number, uid) in owners.iter().enumerate() {
        let owner = json!({"apiVersion": "x/v1", "kind": "X", "name": "x", "uid": uid, "controller": true});
        let spec = json!({"containers": [{"name": "c", "image": "i"}], "schedulingGates": [{"name": "never/comes"}]});
        let metadata = json!({"name": format!("poison-{number}"), "ownerReferences": [owner], "finalizers": ["scenarios.test/keep"]});
        pods.create(&PostParams::default(), &serde_json::from_value(json!({"metadata": metadata, "spec": spec}))?)
            .await?;
    }
    rig.start_host().await?;
    let names = rig.pod_names("web").await?;
    let targets = identities(rig, &names).await?;
    rig.create_job("e", replace(&names, json!({"parallelism": 1}))).await?;
    rig.until_progress("e", "Succeeded").await?;
    all_replaced(rig, &targets).await?;
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

/// A StatefulSet's pod comes back under its name, with another UID.
pub async fn a_stateful_sets_pod_comes_back_under_its_name(rig: &mut Rig) -> anyhow::Result<()> {
    let set = rig.seedbed.stateful_set("db", 2).await?;
    rig.world.settled(&set, SETTLED).await?;
    rig.start_host().await?;
    let names = vec!["db-0".to_owned()];
    let targets = identities(rig, &names).await?;
    rig.create_job("s", replace(&names, json!({"parameters": {"minReadySeconds": 2}}))).await?;
    let job = rig.until_progress("s", "Succeeded").await?;
    anyhow::ensure!(
        job.data.pointer("/status/targetDetails/0/extraInfo/NewPod") == Some(&json!("db-0")),
        "{:?}",
        job.data
    );
    all_replaced(rig, &targets).await
}
