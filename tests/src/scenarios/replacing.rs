//! Replace, from a user's `kubectl apply` to the last pod.

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
