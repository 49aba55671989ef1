//! One pod and several jobs: one after the other, beside each other, and a job that meets its own new pod.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};
use kube::api::DynamicObject;
use oarlock_sim::world::{Pause, Scope};
use serde_json::{Value, json};

use super::{all_replaced, names, settled};
use crate::jobs::replace;
use crate::rig::Rig;

/// The UID of a job's first target.
fn uid(job: &DynamicObject) -> anyhow::Result<String> {
    let uid = job.data.pointer("/status/targetDetails/0/uid").and_then(Value::as_str);
    Ok(uid.with_context(|| format!("no UID: {:?}", job.data))?.to_owned())
}

/// A49: the job that replaced the pod first still exists, and claims a pod of that name.
pub async fn a_stateful_sets_pod_is_replaced_again_and_again(rig: &mut Rig) -> anyhow::Result<()> {
    let set = rig.seedbed.stateful_set("db", 1).await?;
    let target = names(&settled(rig, &set, "db").await?);
    rig.start_host().await?;
    rig.create_job("a", replace(&target, json!({}))).await?;
    let mut uids = vec![uid(&rig.until_progress("a", "Succeeded").await?)?];
    rig.world.hold(Pause::Creation, Scope::World);
    rig.create_job("b", replace(&target, json!({}))).await?;
    rig.world.until("the pod to be evicted once more", super::SETTLED, |pods| pods.is_empty()).await?;
    rig.restart_host().await?;
    rig.world.release(Pause::Creation, Scope::World);
    uids.push(uid(&rig.until_progress("b", "Succeeded").await?)?);
    rig.restart_host().await?;
    rig.create_job("c", replace(&target, json!({}))).await?;
    uids.push(uid(&rig.until_progress("c", "Succeeded").await?)?);
    ensure!(uids.iter().collect::<BTreeSet<_>>().len() == 3, "three different pods: {uids:?}");
    rig.until_progress("a", "Succeeded").await?;
    let replaced: Vec<_> = uids.into_iter().map(|uid| (target.join(""), uid)).collect();
    all_replaced(rig, &replaced).await
}
