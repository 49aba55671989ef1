//! The nodes of a run, and the checks of a job's effects on them.
//!
//! Takes a test cluster; yields nodes with a workload, and the errors on them once their job has ended. Judges by the objects of the
//! API server and by the event log of the simulated cluster.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::{Api, ListParams};
use kube::{Resource, ResourceExt as _};
use oarlock_core::object::own::TASKS_NAMESPACE;
use oarlock_sim::world::labels;

use crate::mode::Mode;
use crate::scenarios::drains::bootable;
use crate::scenarios::on_nodes::{cordon, nodes};
use crate::test_cluster::TestCluster;

/// The suffix of the node that someone else cordoned before the job began.
const CORDONED: &str = "n0";

/// Creates nodes that can be rebooted. Cordons the first node if another node can take its pods.
pub(crate) async fn plant(cluster: &TestCluster, count: usize) -> anyhow::Result<()> {
    for number in 0..count {
        bootable(cluster, &format!("n{number}")).await?;
    }
    if count > 1 {
        cordon(cluster, &format!("{}-{CORDONED}", cluster.namespace), true).await?;
    }
    Ok(())
}

async fn own(cluster: &TestCluster) -> anyhow::Result<Vec<Node>> {
    let own = ListParams::default().labels(&format!("scenario={}", cluster.namespace));
    Ok(nodes(cluster).list(&own).await?.items)
}

/// Returns the names and UIDs of the nodes.
pub(crate) async fn identities(cluster: &TestCluster) -> anyhow::Result<Vec<(String, String)>> {
    Ok(own(cluster).await?.into_iter().map(|node| (node.name_any(), node.uid().unwrap_or_default())).collect())
}

/// Returns the errors on nodes and the leftovers of tasks, for a job that has ended or is gone.
///
/// # Errors
/// If the API server refuses a request.
pub async fn wrong(cluster: &TestCluster, mode: Mode, is_gone: bool) -> anyhow::Result<Vec<String>> {
    let mut wrong = Vec::new();
    let reboots = cluster.world.ledger().reboots();
    let all = own(cluster).await?;
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
    wrong.extend(of_tasks::<Pod>(cluster).await?.into_iter().map(|name| format!("L3: the pod {name} is left")));
    if is_gone {
        let outputs = of_tasks::<ConfigMap>(cluster).await?;
        wrong.extend(outputs.into_iter().map(|name| format!("L3: the output {name} is left")));
    }
    Ok(wrong)
}

async fn of_tasks<K>(cluster: &TestCluster) -> anyhow::Result<BTreeSet<String>>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(cluster.client.clone(), TASKS_NAMESPACE);
    let all = api.list(&ListParams::default().labels(labels::TASK)).await?;
    Ok(all.items.iter().map(kube::ResourceExt::name_any).collect())
}
