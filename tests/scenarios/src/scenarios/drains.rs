//! Drains of nodes: which pods are evicted, which pods stay and are named, and the effect on the target.

use std::collections::BTreeMap;

use anyhow::ensure;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use oarlock_sim::world::{Effect, Pause, Scope, SetKey, SetKind};
use serde_json::{Value, json};

use super::SETTLED;
use super::evicting::budget;
use super::on_nodes::{Plugin, RESERVED, begin, create, node, nodes, start};
use crate::components::REBOOT_GRANTS;
use crate::jobs::Told;
use crate::test_cluster::{TestCluster, patiently};

/// The plugin that drains and reboots nodes.
pub(crate) const REBOOT: Plugin = ("reboot", REBOOT_GRANTS);

/// Returns the spec of a job that drains and reboots these nodes.
pub(crate) fn reboot(targets: &[&String], parameters: &Value, more: &Value) -> Value {
    let targets: Vec<Value> = targets.iter().map(|name| json!({ "name": name })).collect();
    let mut all = json!({"drain": true});
    extend(&mut all, parameters);
    let mut spec = json!({"action": "reboot", "targetKind": "Node", "targets": targets, "parameters": all});
    extend(&mut spec, more);
    spec
}

fn extend(value: &mut Value, more: &Value) {
    if let (Some(fields), Some(more)) = (value.as_object_mut(), more.as_object()) {
        fields.extend(more.clone());
    }
}

/// Creates a node of this scenario with a boot ID.
///
/// # Errors
/// If the API server refuses a request.
pub async fn bootable(cluster: &TestCluster, suffix: &str) -> anyhow::Result<String> {
    let name = node(cluster, suffix, true).await?;
    let info = json!({"bootID": "00000000-0000-4000-8000-000000000000", "architecture": "", "containerRuntimeVersion": "",
        "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "",
        "osImage": "", "systemUUID": ""});
    let body = json!({"status": {"nodeInfo": info}});
    nodes(cluster).patch_status(&name, &PatchParams::default(), &Patch::Merge(body)).await?;
    Ok(name)
}

/// Creates a ReplicaSet whose pods run on the nodes of this scenario.
///
/// # Errors
/// If the API server refuses a request.
pub(crate) async fn workload(cluster: &TestCluster, name: &str, replicas: usize) -> anyhow::Result<SetKey> {
    workload_with(cluster, (name, replicas), &json!({})).await
}

/// Creates a ReplicaSet as [`workload`] does, with further fields in the spec of its pods.
async fn workload_with(cluster: &TestCluster, (name, replicas): (&str, usize), more: &Value) -> anyhow::Result<SetKey> {
    let mut template = json!({"metadata": {"labels": {"app": name}}, "spec": {"automountServiceAccountToken": false,
        "containers": [{"name": "app", "image": "i"}], "nodeSelector": {"scenario": cluster.namespace},
        "tolerations": [{"key": RESERVED, "operator": "Exists"}]}});
    if let Some(spec) = template.get_mut("spec") {
        extend(spec, more);
    }
    let spec = json!({"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template});
    let sets = ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", "ReplicaSet"));
    let object = DynamicObject::new(name, &sets).data(json!({ "spec": spec }));
    let api: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), &cluster.namespace, &sets);
    api.create(&PostParams::default(), &object).await?;
    let key = SetKey::new(SetKind::ReplicaSet, cluster.namespace.clone(), name);
    cluster.world.settled(&key, SETTLED).await?;
    Ok(key)
}

/// Creates a pod on a node, with further fields.
async fn pod(cluster: &TestCluster, (name, node): (&str, &str), more: &Value) -> anyhow::Result<()> {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"nodeName": node,
        "automountServiceAccountToken": false, "containers": [{"name": "app", "image": "i"}]}});
    for part in ["metadata", "spec"] {
        if let (Some(fields), Some(more)) = (pod.get_mut(part), more.get(part)) {
            extend(fields, more);
        }
    }
    cluster.pods().create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    Ok(())
}

/// Creates a DaemonSet and returns the owner reference for a pod of it.
async fn daemon_set(cluster: &TestCluster) -> anyhow::Result<Value> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", "DaemonSet"));
    let template =
        json!({"metadata": {"labels": {"app": "none"}}, "spec": {"containers": [{"name": "app", "image": "i"}]}});
    let spec = json!({"selector": {"matchLabels": {"app": "none"}}, "template": template});
    let object = DynamicObject::new("owner", &resource).data(json!({ "spec": spec }));
    let api: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), &cluster.namespace, &resource);
    let uid = api.create(&PostParams::default(), &object).await?.metadata.uid;
    let owner = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "owner", "uid": uid, "controller": true});
    Ok(json!({"metadata": {"ownerReferences": [owner]}}))
}

/// Returns the stored drain state of a target.
pub(crate) fn drain(job: &DynamicObject, target: &str) -> Value {
    let targets = job.targets();
    let extra = targets.get(target).and_then(|detail| detail.pointer("/extraInfo/Drain")).and_then(Value::as_str);
    extra.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

pub(crate) async fn until_drained(cluster: &TestCluster, job: &str, target: &str) -> anyhow::Result<DynamicObject> {
    cluster.until(job, "drained", |job| drain(job, target) == json!({"state": "Drained"})).await
}

async fn until_blocked(
    cluster: &TestCluster,
    job: &str,
    target: &str,
    pods: &[String],
) -> anyhow::Result<DynamicObject> {
    cluster.until(job, "blocked", |job| drain(job, target).pointer("/blocked") == Some(&json!(pods))).await
}

/// Returns the number of evictions of each pod, by name.
fn evicted(cluster: &TestCluster) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for entry in cluster.world.ledger().entries().into_iter().filter(|entry| entry.effect == Effect::PodEvicted) {
        *found.entry(entry.name).or_default() += 1;
    }
    found
}

pub(crate) async fn on(cluster: &TestCluster, name: &str) -> Vec<String> {
    let pods = cluster.pods().list(&kube::api::ListParams::default().fields(&format!("spec.nodeName={name}"))).await;
    pods.into_iter().flat_map(|list| list.items).filter_map(|pod| pod.metadata.name).collect()
}

async fn until_uncordoned(cluster: &TestCluster, name: &str) -> anyhow::Result<()> {
    patiently("the cordon is off", async || {
        let node = nodes(cluster).get(name).await?;
        let cordoned = node.spec.is_some_and(|spec| spec.unschedulable == Some(true));
        let held = node.metadata.annotations.iter().flatten().any(|(key, _)| key.starts_with("hold.oarlock.dev/"));
        Ok(!cordoned && !held)
    })
    .await
}

/// A drain evicts the pods of a workload, one by one as the budget allows. It leaves pods of a DaemonSet, static pods and ended pods.
pub async fn a_node_is_drained_of_all_pods_that_have_to_go_and_their_budget_is_waited_for(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let a = bootable(cluster, "a").await?;
    workload(cluster, "web", 3).await?;
    let b = bootable(cluster, "b").await?;
    pod(cluster, ("daemon", &a), &daemon_set(cluster).await?).await?;
    pod(cluster, ("static", &a), &json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}})).await?;
    budget(cluster, 3).await?;
    begin(cluster, REBOOT).await?;
    create(cluster, "r", reboot(&[&a], &json!({}), &json!({}))).await?;
    let web: Vec<String> = on(cluster, &a).await.into_iter().filter(|name| name.starts_with("web-")).collect();
    let blocked: Vec<String> = web.iter().map(|name| format!("{}/{name}", cluster.namespace)).collect();
    ensure!(web.len() == 3, "{web:?}");
    let job = until_blocked(cluster, "r", &a, &blocked).await?;
    ensure!(job.target(&a) == "Processing/EvictionBlocked" && evicted(cluster).is_empty(), "{:?}", job.targets());
    budget(cluster, 1).await?;
    until_drained(cluster, "r", &a).await?;
    let left = on(cluster, &a).await;
    ensure!(left == ["daemon", "static"], "{left:?}");
    ensure!(
        evicted(cluster).len() == 3 && evicted(cluster).values().all(|times| *times == 1),
        "{:?}",
        evicted(cluster)
    );
    cluster.world.settled(&SetKey::new(SetKind::ReplicaSet, cluster.namespace.clone(), "web"), SETTLED).await?;
    ensure!(on(cluster, &b).await.len() == 3, "they run elsewhere");
    Ok(())
}

/// A drain leaves a pod without a controller and a pod with local data, unless the job forces them. Another node is drained meanwhile.
pub async fn pods_that_may_not_go_are_named_and_cost_their_own_node_its_time(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let a = bootable(cluster, "a").await?;
    pod(cluster, ("bare", &a), &json!({})).await?;
    workload_with(cluster, ("scratch", 1), &json!({"volumes": [{"name": "v", "emptyDir": {}}]})).await?;
    let b = bootable(cluster, "b").await?;
    let there = on(cluster, &a).await;
    begin(cluster, REBOOT).await?;
    // The drain timeout is longer than a busy machine needs until the blocked pods are observed.
    create(cluster, "r", reboot(&[&a, &b], &json!({"drainTimeoutSeconds": 30}), &json!({}))).await?;
    let stay: Vec<String> = there.iter().map(|name| format!("{}/{name}", cluster.namespace)).collect();
    ensure!(stay.len() == 2, "{stay:?}");
    until_blocked(cluster, "r", &a, &stay).await?;
    until_drained(cluster, "r", &b).await?;
    let job = cluster.until("r", "given up", |job| job.target(&a) == "Failed/DrainTimeout").await?;
    let targets = job.targets();
    let told =
        targets.get(&a).and_then(|one| one.pointer("/error/message")).and_then(Value::as_str).unwrap_or_default();
    ensure!(stay.iter().all(|pod| told.contains(pod)), "{told}");
    until_uncordoned(cluster, &a).await?;
    ensure!(on(cluster, &a).await == there && evicted(cluster).is_empty(), "{:?}", evicted(cluster));
    let all = json!({"force": true, "deleteEmptyDirData": true});
    create(cluster, "all", reboot(&[&a], &all, &json!({}))).await?;
    until_drained(cluster, "all", &a).await?;
    ensure!(on(cluster, &a).await.is_empty());
    Ok(())
}

/// A drain evicts a pod that does not terminate only once. Its node fails and is released.
pub async fn a_pod_that_does_not_terminate_costs_its_own_node_its_time(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let a = bootable(cluster, "a").await?;
    workload(cluster, "stuck", 1).await?;
    let b = bootable(cluster, "b").await?;
    cluster.world.hold(Pause::Termination, Scope::World);
    begin(cluster, REBOOT).await?;
    create(cluster, "r", reboot(&[&a, &b], &json!({"drainTimeoutSeconds": 4}), &json!({}))).await?;
    until_drained(cluster, "r", &b).await?;
    cluster.until("r", "given up", |job| job.target(&a) == "Failed/DrainTimeout").await?;
    ensure!(evicted(cluster).values().sum::<usize>() == 1, "{:?}", evicted(cluster));
    until_uncordoned(cluster, &a).await?;
    cluster.world.release(Pause::Termination, Scope::World);
    patiently("it goes", async || Ok(on(cluster, &a).await.is_empty())).await
}

/// If a host is killed repeatedly during a drain, the next host continues it and evicts no pod twice.
pub async fn a_host_that_is_killed_while_it_drains_evicts_no_pod_twice(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let a = bootable(cluster, "a").await?;
    workload(cluster, "web", 6).await?;
    bootable(cluster, "b").await?;
    // An eviction that is cut off between budget and pod uses one disruption of the budget for two minutes. The budget
    // allows more disruptions than there are kills.
    budget(cluster, 2).await?;
    begin(cluster, REBOOT).await?;
    create(cluster, "r", reboot(&[&a], &json!({}), &json!({}))).await?;
    for gone in 1..=3 {
        let some = |entries: &[oarlock_sim::world::Entry]| {
            entries.iter().filter(|entry| entry.effect == Effect::PodEvicted).count() >= gone
        };
        cluster.world.ledger().until("another eviction", SETTLED, some).await?;
        cluster.kill_host("host").await?;
        start(cluster, REBOOT).await?;
    }
    until_drained(cluster, "r", &a).await?;
    let times = evicted(cluster);
    ensure!(times.len() == 6 && times.values().all(|times| *times == 1), "{times:?}");
    Ok(())
}
