//! Drains of nodes: which pods go, which stay and are named, and what that costs.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::ensure;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use oarlock_sim::world::{Effect, Pause, Scope, SetKey, SetKind};
use serde_json::{Value, json};

use super::SETTLED;
use super::evicting::budget;
use super::on_nodes::{Plugin, RESERVED, begin, create, node, nodes, start};
use crate::components::REBOOT_GRANTS;
use crate::jobs::Told;
use crate::rig::{Rig, patiently};

/// The plugin that drains.
pub(crate) const REBOOT: Plugin = ("reboot", REBOOT_GRANTS);

/// A job that drains and reboots these nodes.
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

/// A new node of this scenario, with a boot id.
pub(crate) async fn bootable(rig: &Rig, suffix: &str) -> anyhow::Result<String> {
    let name = node(rig, suffix, true).await?;
    let info = json!({"bootID": "00000000-0000-4000-8000-000000000000", "architecture": "", "containerRuntimeVersion": "",
        "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "",
        "osImage": "", "systemUUID": ""});
    let body = json!({"status": {"nodeInfo": info}});
    nodes(rig).patch_status(&name, &PatchParams::default(), &Patch::Merge(body)).await?;
    Ok(name)
}

/// A ReplicaSet whose pods run on the nodes of this scenario.
pub(crate) async fn workload(rig: &Rig, name: &str, replicas: usize) -> anyhow::Result<SetKey> {
    workload_with(rig, (name, replicas), &json!({})).await
}

/// The same, with more of the spec of its pods.
async fn workload_with(rig: &Rig, (name, replicas): (&str, usize), more: &Value) -> anyhow::Result<SetKey> {
    let mut template = json!({"metadata": {"labels": {"app": name}}, "spec": {"automountServiceAccountToken": false,
        "containers": [{"name": "app", "image": "i"}], "nodeSelector": {"scenario": rig.namespace},
        "tolerations": [{"key": RESERVED, "operator": "Exists"}]}});
    if let Some(spec) = template.get_mut("spec") {
        extend(spec, more);
    }
    let spec = json!({"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template});
    let sets = ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", "ReplicaSet"));
    let object = DynamicObject::new(name, &sets).data(json!({ "spec": spec }));
    let api: Api<DynamicObject> = Api::namespaced_with(rig.client.clone(), &rig.namespace, &sets);
    api.create(&PostParams::default(), &object).await?;
    let key = SetKey::new(SetKind::ReplicaSet, rig.namespace.clone(), name);
    rig.world.settled(&key, SETTLED).await?;
    Ok(key)
}

/// A pod on a node, with more fields.
async fn pod(rig: &Rig, (name, node): (&str, &str), more: &Value) -> anyhow::Result<()> {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"nodeName": node,
        "automountServiceAccountToken": false, "containers": [{"name": "app", "image": "i"}]}});
    for part in ["metadata", "spec"] {
        if let (Some(fields), Some(more)) = (pod.get_mut(part), more.get(part)) {
            extend(fields, more);
        }
    }
    rig.pods().create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    Ok(())
}

/// A DaemonSet, for a pod to belong to.
async fn daemon_set(rig: &Rig) -> anyhow::Result<Value> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", "DaemonSet"));
    let template =
        json!({"metadata": {"labels": {"app": "none"}}, "spec": {"containers": [{"name": "app", "image": "i"}]}});
    let spec = json!({"selector": {"matchLabels": {"app": "none"}}, "template": template});
    let object = DynamicObject::new("owner", &resource).data(json!({ "spec": spec }));
    let api: Api<DynamicObject> = Api::namespaced_with(rig.client.clone(), &rig.namespace, &resource);
    let uid = api.create(&PostParams::default(), &object).await?.metadata.uid;
    let owner = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "owner", "uid": uid, "controller": true});
    Ok(json!({"metadata": {"ownerReferences": [owner]}}))
}

/// How far the drain of a target is.
pub(crate) fn drain(job: &DynamicObject, target: &str) -> Value {
    let targets = job.targets();
    let extra = targets.get(target).and_then(|detail| detail.pointer("/extraInfo/Drain")).and_then(Value::as_str);
    extra.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

pub(crate) async fn until_drained(rig: &Rig, job: &str, target: &str) -> anyhow::Result<DynamicObject> {
    rig.until(job, "drained", |job| drain(job, target) == json!({"state": "Drained"})).await
}

async fn until_blocked(rig: &Rig, job: &str, target: &str, pods: &[String]) -> anyhow::Result<DynamicObject> {
    rig.until(job, "blocked", |job| drain(job, target).pointer("/blocked") == Some(&json!(pods))).await
}

/// Number of evictions of each pod, by name.
fn evicted(rig: &Rig) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for entry in rig.world.ledger().entries().into_iter().filter(|entry| entry.effect == Effect::PodEvicted) {
        *found.entry(entry.name).or_default() += 1;
    }
    found
}

pub(crate) async fn on(rig: &Rig, name: &str) -> Vec<String> {
    let pods = rig.pods().list(&kube::api::ListParams::default().fields(&format!("spec.nodeName={name}"))).await;
    pods.into_iter().flat_map(|list| list.items).filter_map(|pod| pod.metadata.name).collect()
}

async fn until_uncordoned(rig: &Rig, name: &str) -> anyhow::Result<()> {
    patiently("the cordon is off", async || {
        let node = nodes(rig).get(name).await?;
        let cordoned = node.spec.is_some_and(|spec| spec.unschedulable == Some(true));
        let held = node.metadata.annotations.iter().flatten().any(|(key, _)| key.starts_with("hold.oarlock.dev/"));
        Ok(!cordoned && !held)
    })
    .await
}

/// The pods of a workload go, one by one as its budget allows, and those of a DaemonSet, of a file and those that have ended stay.
pub async fn a_node_is_drained_of_all_pods_that_have_to_go_and_their_budget_is_waited_for(
    rig: &mut Rig,
) -> anyhow::Result<()> {
    let a = bootable(rig, "a").await?;
    workload(rig, "web", 3).await?;
    let b = bootable(rig, "b").await?;
    pod(rig, ("daemon", &a), &daemon_set(rig).await?).await?;
    pod(rig, ("static", &a), &json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}})).await?;
    budget(rig, 3).await?;
    begin(rig, REBOOT).await?;
    create(rig, "r", reboot(&[&a], &json!({}), &json!({}))).await?;
    let web: Vec<String> = on(rig, &a).await.into_iter().filter(|name| name.starts_with("web-")).collect();
    let blocked: Vec<String> = web.iter().map(|name| format!("{}/{name}", rig.namespace)).collect();
    ensure!(web.len() == 3, "{web:?}");
    let job = until_blocked(rig, "r", &a, &blocked).await?;
    ensure!(job.target(&a) == "Processing/EvictionBlocked" && evicted(rig).is_empty(), "{:?}", job.targets());
    budget(rig, 1).await?;
    until_drained(rig, "r", &a).await?;
    let left = on(rig, &a).await;
    ensure!(left == ["daemon", "static"], "{left:?}");
    ensure!(evicted(rig).len() == 3 && evicted(rig).values().all(|times| *times == 1), "{:?}", evicted(rig));
    rig.world.settled(&SetKey::new(SetKind::ReplicaSet, rig.namespace.clone(), "web"), SETTLED).await?;
    ensure!(on(rig, &b).await.len() == 3, "they run elsewhere");
    Ok(())
}

/// A pod without controller and one with local data stay, unless the job lets them go; another node is drained meanwhile.
pub async fn pods_that_may_not_go_are_named_and_cost_their_own_node_its_time(rig: &mut Rig) -> anyhow::Result<()> {
    let a = bootable(rig, "a").await?;
    pod(rig, ("bare", &a), &json!({})).await?;
    workload_with(rig, ("scratch", 1), &json!({"volumes": [{"name": "v", "emptyDir": {}}]})).await?;
    let b = bootable(rig, "b").await?;
    let there = on(rig, &a).await;
    begin(rig, REBOOT).await?;
    // Longer than a busy machine takes until somebody has seen what blocks it.
    create(rig, "r", reboot(&[&a, &b], &json!({"drainTimeoutSeconds": 30}), &json!({}))).await?;
    let stay: Vec<String> = there.iter().map(|name| format!("{}/{name}", rig.namespace)).collect();
    ensure!(stay.len() == 2, "{stay:?}");
    until_blocked(rig, "r", &a, &stay).await?;
    until_drained(rig, "r", &b).await?;
    let job = rig.until("r", "given up", |job| job.target(&a) == "Failed/DrainTimeout").await?;
    let targets = job.targets();
    let told =
        targets.get(&a).and_then(|one| one.pointer("/error/message")).and_then(Value::as_str).unwrap_or_default();
    ensure!(stay.iter().all(|pod| told.contains(pod)), "{told}");
    until_uncordoned(rig, &a).await?;
    ensure!(on(rig, &a).await == there && evicted(rig).is_empty(), "{:?}", evicted(rig));
    let all = json!({"force": true, "deleteEmptyDirData": true});
    create(rig, "all", reboot(&[&a], &all, &json!({}))).await?;
    until_drained(rig, "all", &a).await?;
    ensure!(on(rig, &a).await.is_empty());
    Ok(())
}

/// A pod that is asked to go and stays is evicted once; its node fails, and is let go.
pub async fn a_pod_that_does_not_terminate_costs_its_own_node_its_time(rig: &mut Rig) -> anyhow::Result<()> {
    let a = bootable(rig, "a").await?;
    workload(rig, "stuck", 1).await?;
    let b = bootable(rig, "b").await?;
    rig.world.hold(Pause::Termination, Scope::World);
    begin(rig, REBOOT).await?;
    create(rig, "r", reboot(&[&a, &b], &json!({"drainTimeoutSeconds": 4}), &json!({}))).await?;
    until_drained(rig, "r", &b).await?;
    rig.until("r", "given up", |job| job.target(&a) == "Failed/DrainTimeout").await?;
    ensure!(evicted(rig).values().sum::<usize>() == 1, "{:?}", evicted(rig));
    until_uncordoned(rig, &a).await?;
    rig.world.release(Pause::Termination, Scope::World);
    patiently("it goes", async || Ok(on(rig, &a).await.is_empty())).await
}

/// A host is killed again and again while pods go: the next one drains on.
pub async fn a_host_that_is_killed_while_it_drains_evicts_no_pod_twice(rig: &mut Rig) -> anyhow::Result<()> {
    let a = bootable(rig, "a").await?;
    workload(rig, "web", 6).await?;
    bootable(rig, "b").await?;
    // An eviction that is cut off between the budget and the pod uses up one disruption of the budget for two minutes:
    // there are more of them than kills.
    budget(rig, 2).await?;
    begin(rig, REBOOT).await?;
    create(rig, "r", reboot(&[&a], &json!({}), &json!({}))).await?;
    for gone in 1..=3 {
        let some = |entries: &[oarlock_sim::world::Entry]| {
            entries.iter().filter(|entry| entry.effect == Effect::PodEvicted).count() >= gone
        };
        rig.world.ledger().until("another eviction", SETTLED, some).await?;
        rig.kill_host("host").await?;
        start(rig, REBOOT).await?;
    }
    until_drained(rig, "r", &a).await?;
    let times = evicted(rig);
    ensure!(times.len() == 6 && times.values().all(|times| *times == 1), "{times:?}");
    Ok(())
}

/// A job that is deleted while it drains evicts nothing more and leaves nothing on its node.
pub async fn a_drain_ends_with_its_job(rig: &mut Rig) -> anyhow::Result<()> {
    let a = bootable(rig, "a").await?;
    workload(rig, "web", 2).await?;
    budget(rig, 2).await?;
    begin(rig, REBOOT).await?;
    create(rig, "r", reboot(&[&a], &json!({}), &json!({}))).await?;
    rig.until("r", "blocked", |job| drain(job, &a).pointer("/blocked").is_some()).await?;
    rig.delete_job("r").await?;
    rig.until_gone("r").await?;
    until_uncordoned(rig, &a).await?;
    budget(rig, 1).await?;
    rig.pass(Duration::from_secs(120)).await;
    ensure!(evicted(rig).is_empty() && on(rig, &a).await.len() == 2, "{:?}", evicted(rig));
    nodes(rig).delete(&a, &DeleteParams::default()).await?;
    Ok(())
}
