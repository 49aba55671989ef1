//! The nodes of a run, and what a job may have done to them.
//!
//! Takes a rig; yields nodes with a workload on them, and what is wrong with them once their job has ended. Judges by what the
//! API server has and what the world did.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::{Api, ListParams};
use kube::{Resource, ResourceExt as _};
use oarlock_core::cluster::own::TASKS_NAMESPACE;
use oarlock_sim::world::labels;

use super::mode::Mode;
use crate::rig::Rig;
use crate::scenarios::drains::bootable;
use crate::scenarios::on_nodes::{cordon, nodes};

/// The node that somebody else cordoned before the job began.
const CORDONED: &str = "n0";

/// Nodes that can be rebooted, of which the first is cordoned where there is another one for its pods.
pub(super) async fn plant(rig: &Rig, count: usize) -> anyhow::Result<()> {
    for number in 0..count {
        bootable(rig, &format!("n{number}")).await?;
    }
    if count > 1 {
        cordon(rig, &format!("{}-{CORDONED}", rig.namespace), true).await?;
    }
    Ok(())
}

async fn own(rig: &Rig) -> anyhow::Result<Vec<Node>> {
    let own = ListParams::default().labels(&format!("scenario={}", rig.namespace));
    Ok(nodes(rig).list(&own).await?.items)
}

/// Names and UIDs of the nodes.
pub(super) async fn identities(rig: &Rig) -> anyhow::Result<Vec<(String, String)>> {
    Ok(own(rig).await?.into_iter().map(|node| (node.name_any(), node.uid().unwrap_or_default())).collect())
}

/// What is wrong with the nodes and with what tasks left, of a job that has ended or is gone.
pub(super) async fn wrong(rig: &Rig, mode: Mode, is_gone: bool) -> anyhow::Result<Vec<String>> {
    let mut wrong = Vec::new();
    let reboots = rig.world.ledger().reboots();
    let all = own(rig).await?;
    let has_cordoned = all.len() > 1;
    for node in all {
        let name = node.name_any();
        let times = reboots.get(&name).copied().unwrap_or(0);
        let right = match mode {
            Mode::Reboot if is_gone => times <= 1,
            Mode::Reboot => times == 1,
            _ => times == 0,
        };
        if !right {
            wrong.push(format!("S1: {name} was rebooted {times} times"));
        }
        let held = node.annotations().keys().filter(|key| key.starts_with("hold.oarlock.dev/"));
        wrong.extend(held.map(|key| format!("L3: left behind on {name}: {key}")));
        let cordoned = node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true));
        match (cordoned, has_cordoned && name.ends_with(CORDONED)) {
            (true, false) => wrong.push(format!("L3: {name} is still cordoned")),
            (false, true) => wrong.push(format!("the cordon of somebody else is off {name}")),
            _ => {}
        }
    }
    wrong.extend(of_tasks::<Pod>(rig).await?.into_iter().map(|name| format!("L3: the pod {name} is left")));
    if is_gone {
        let outputs = of_tasks::<ConfigMap>(rig).await?;
        wrong.extend(outputs.into_iter().map(|name| format!("L3: the output {name} is left")));
    }
    Ok(wrong)
}

async fn of_tasks<K>(rig: &Rig) -> anyhow::Result<BTreeSet<String>>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(rig.client.clone(), TASKS_NAMESPACE);
    let all = api.list(&ListParams::default().labels(labels::TASK)).await?;
    Ok(all.items.iter().map(kube::ResourceExt::name_any).collect())
}
