//! OpsJobs of the type addon: they run the scripts of templates on nodes.

#![expect(clippy::indexing_slicing, reason = "a test fails loudly")]

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use oarlock_sim::world::{Effect, Entry, History};
use serde_json::{Value, json};

use super::on_nodes::{Plugin, RESERVED, change, cordon, node, nodes};
use super::ops_jobs::{begin, end_well};
use super::reboots::history;
use crate::components::ADDON_GRANTS;
use crate::ops::{output, said};
use crate::test_cluster::{TestCluster, patiently};

pub(crate) const ADDON: Plugin = ("addon", ADDON_GRANTS);
/// The key of the taint on the nodes of a job.
const TAINT: &str = "oarlock.dev/opsjob";

fn templates(cluster: &TestCluster, kind: &str) -> Api<DynamicObject> {
    Api::all_with(
        cluster.client.clone(),
        &ApiResource::from_gvk(&GroupVersionKind::gvk("oarlock.dev", "v1alpha1", kind)),
    )
}

/// Creates a template and returns its name, which begins with the name of the namespace.
pub(crate) async fn template(cluster: &TestCluster, kind: &str, name: &str, spec: Value) -> anyhow::Result<String> {
    let name = format!("{}-{name}", cluster.namespace);
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("oarlock.dev", "v1alpha1", kind));
    let object = DynamicObject::new(&name, &resource).data(json!({ "spec": spec }));
    templates(cluster, kind).create(&PostParams::default(), &object).await?;
    Ok(name)
}

/// Returns the spec of an addon on these nodes with these inputs.
pub(crate) fn addon(nodes: &[&String], inputs: &[(&str, &str)], more: &Value) -> Value {
    let mut all: Vec<Value> = nodes.iter().map(|name| json!({"name": "node", "value": name})).collect();
    all.extend(inputs.iter().map(|(name, value)| json!({"name": name, "value": value})));
    let mut spec = json!({"type": "addon", "inputs": all, "isTolerateAll": true});
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    spec
}

/// Returns the values of the taints that jobs have put on a node.
pub(crate) async fn taints(cluster: &TestCluster, name: &str) -> anyhow::Result<Vec<String>> {
    let taints = nodes(cluster).get(name).await?.spec.and_then(|spec| spec.taints).unwrap_or_default();
    Ok(taints.into_iter().filter(|taint| taint.key == TAINT).filter_map(|taint| taint.value).collect())
}

/// Returns the values that the taint has had on a node.
fn tainted_by(history: &History, name: &str) -> Vec<String> {
    let versions = history.versions();
    let of_node = versions.iter().filter(|version| version.name == name);
    let taints = of_node.flat_map(|version| version.at("/spec/taints").as_array().cloned().unwrap_or_default());
    let mut values: Vec<String> = taints
        .filter(|taint| taint["key"] == TAINT)
        .filter_map(|taint| taint["value"].as_str().map(str::to_owned))
        .collect();
    values.dedup();
    values
}

/// Returns the exit code and the output of each step on a node, from the outputs of a job.
fn steps(job: &Value, node: &str) -> Vec<(Value, String)> {
    let nodes = output(job, "nodes");
    let found = nodes.as_array().into_iter().flatten().find(|one| one["node"] == node).cloned().unwrap_or_default();
    let steps = found["steps"].as_array().cloned().unwrap_or_default();
    let said = |step: &Value| step["output"].as_str().unwrap_or_default().to_owned();
    steps.iter().map(|step| (step["exitCode"].clone(), said(step))).collect()
}

/// Each node runs the scripts of a NodeTemplate, of an AddonTemplate for GPUs and of the job itself, once and in order. One
/// script is not required and fails.
pub async fn the_scripts_of_templates_run_on_each_node_once_and_in_order(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let (plain, gpu) = (node(cluster, "a", true).await?, node(cluster, "b", true).await?);
    let capacity = Patch::Merge(json!({"status": {"capacity": {"amd.com/gpu": "8"}}}));
    nodes(cluster).patch_status(&gpu, &PatchParams::default(), &capacity).await?;
    let of_jobs = begin(cluster, ADDON).await?;
    let of_nodes = history(cluster);
    let kernel = template(cluster, "AddonTemplate", "kernel", json!({"script": "# sim: output kernel"})).await?;
    let of_gpu = json!({"script": "# sim: output driver", "gpuChip": "amd"});
    let driver = template(cluster, "AddonTemplate", "driver", of_gpu).await?;
    let fails = json!({"script": "# sim: output no\n# sim: exit 3", "required": false});
    let base = json!({"steps": [{"template": kernel}, fails]});
    let base = template(cluster, "NodeTemplate", "base", base).await?;
    // The value of `script` is Base64 of `# sim: output mine`. A template that is named twice runs once.
    let inputs = [
        ("script", "IyBzaW06IG91dHB1dCBtaW5l"),
        ("node.template", &base),
        ("addon.template", &driver),
        ("addon.template", &kernel),
    ];
    cluster.create_ops("all", addon(&[&plain, &gpu], &inputs, &json!({}))).await?;
    let job = cluster.until_ops_ended("all", "Succeeded", "Succeed").await?;
    ensure!(output(&job, "result") == json!({"succeeded": 2, "failed": 0, "skipped": 0}), "{job:#}");
    let step = |code: i32, said: &str| (json!(code), said.to_owned());
    let on_plain = [step(0, "kernel"), step(3, "no"), step(0, "mine")];
    ensure!(steps(&job, &plain) == on_plain, "{job:#}");
    let on_gpu = [step(0, "kernel"), step(3, "no"), step(0, "driver"), step(0, "mine")];
    ensure!(steps(&job, &gpu) == on_gpu, "{job:#}");
    for (name, count) in [(&plain, 3), (&gpu, 4)] {
        ensure!(cluster.world.commands_begun(name) == count, "{name} ran {}", cluster.world.commands_begun(name));
        ensure!(taints(cluster, name).await?.is_empty() && tainted_by(&of_nodes, name) == ["all"], "{name}");
    }
    end_well(cluster, &of_jobs).await
}

/// With a script of one second on 100 nodes, twenty at once, the addon takes at most 15 % longer than its scripts. The time
/// runs from the first pod to the end of the last. Virtual time excludes the speed of the machine.
pub async fn scripts_of_a_second_take_nearly_all_of_the_time_of_an_addon(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let mut names = Vec::new();
    for number in 0..100 {
        names.push(node(cluster, &format!("n{number:02}"), true).await?);
    }
    let history = begin(cluster, ADDON).await?;
    let second = template(cluster, "AddonTemplate", "second", json!({"script": "# sim: sleep 1"})).await?;
    let all: Vec<&String> = names.iter().collect();
    cluster.create_ops("many", addon(&all, &[("addon.template", &second)], &json!({"batchCount": 20}))).await?;
    cluster.until_ops_ended("many", "Succeeded", "Succeed").await?;
    let (mut created, mut scripts) = (BTreeMap::new(), Vec::new());
    for Entry { uid, time, effect, .. } in cluster.world.ledger().entries() {
        match effect {
            Effect::PodCreated { .. } => drop(created.insert(uid, time)),
            Effect::PodEnded { .. } => scripts.push((created.get(&uid).copied().context("it was made")?, time)),
            _ => {}
        }
    }
    let begun = scripts.iter().map(|(begun, _)| *begun).min().context("scripts ran")?;
    let ended = scripts.iter().map(|(_, ended)| *ended).max().context("scripts ran")?;
    let needed: f64 = scripts.iter().map(|(begun, ended)| (*ended - *begun).as_secs_f64()).sum();
    let ratio = (ended - begun).as_secs_f64() / (needed / 20.0);
    ensure!(scripts.len() == 100 && ratio <= 1.15, "{} scripts, {ratio:.3} of the ideal", scripts.len());
    eprintln!("{ratio:.3} of the ideal, and {:.3} s for each script", needed / 100.0);
    end_well(cluster, &history).await
}

/// Two of three nodes are cordoned, and the result counts them as skipped. Source: ansible/ansible#7686.
pub async fn cordoned_nodes_of_an_addon_are_counted_as_skipped_in_its_result(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let names = [node(cluster, "a", true).await?, node(cluster, "b", true).await?, node(cluster, "c", true).await?];
    // Remove the taint that keeps the pods of other scenarios away.
    change(cluster, &names[0], json!({"spec": {"taints": []}})).await?;
    for name in &names[1..] {
        cordon(cluster, name, true).await?;
    }
    let history = begin(cluster, ADDON).await?;
    let kernel = template(cluster, "AddonTemplate", "kernel", json!({"script": "# sim: output done"})).await?;
    let all: Vec<&String> = names.iter().collect();
    let spec = addon(&all, &[("addon.template", &kernel)], &json!({"isTolerateAll": false}));
    cluster.create_ops("some", spec).await?;
    let job = cluster.until_ops_ended("some", "Succeeded", "Succeed").await?;
    ensure!(output(&job, "result") == json!({"succeeded": 1, "failed": 0, "skipped": 2}), "{job:#}");
    ensure!(output(&job, "skipped").as_array().is_some_and(|skipped| skipped.len() == 2), "{job:#}");
    end_well(cluster, &history).await
}

/// A job runs the template as it was at its start, even if the template changes and is deleted while the first of two nodes runs its script.
pub async fn a_template_that_changes_meanwhile_runs_as_it_was(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let (a, b) = (node(cluster, "a", true).await?, node(cluster, "b", true).await?);
    let history = begin(cluster, ADDON).await?;
    let script = json!({"script": "# sim: sleep 2\n# sim: output old"});
    let kernel = template(cluster, "AddonTemplate", "kernel", script).await?;
    cluster.create_ops("slow", addon(&[&a, &b], &[("addon.template", &kernel)], &json!({}))).await?;
    cluster.until_ops("slow", "it runs", |job| job.pointer("/status/phase").is_some_and(|is| is == "Running")).await?;
    let all = templates(cluster, "AddonTemplate");
    let edit = Patch::Merge(json!({"spec": {"script": "# sim: output new"}}));
    all.patch(&kernel, &PatchParams::default(), &edit).await?;
    all.delete(&kernel, &Default::default()).await?;
    let job = cluster.until_ops_ended("slow", "Succeeded", "Succeed").await?;
    for name in [&a, &b] {
        ensure!(steps(&job, name) == [(json!(0), "old".to_owned())], "{job:#}");
    }
    cluster.create_ops("late", addon(&[&a], &[("addon.template", &kernel)], &json!({}))).await?;
    let job = cluster.until_ops_ended("late", "Failed", "TemplateNotFound").await?;
    ensure!(said(&job, "Failed").contains(&kernel), "{job:#}");
    end_well(cluster, &history).await
}

/// A job waits for a node with a pod of a workload and says so. A stopped job has run nothing there. Another job goes on once the pod goes.
pub async fn a_busy_node_is_awaited_and_no_pod_is_evicted(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let (a, idle) = (node(cluster, "a", true).await?, node(cluster, "b", true).await?);
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {"nodeName": a, "tolerations": [{"key": RESERVED, "operator": "Exists"}],
            "containers": [{"name": "c", "image": "web"}]}});
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    let history = begin(cluster, ADDON).await?;
    let kernel = template(cluster, "AddonTemplate", "kernel", json!({"script": "# sim: output done"})).await?;
    let waits = json!({"securityUpgrade": true});
    let waits_for =
        |job: &Value| job.pointer("/status/waitingFor").is_some_and(|told| told.to_string().contains("/web"));
    for (name, nodes) in [("stopped", vec![&a]), ("goes-on", vec![&a, &idle])] {
        cluster.create_ops(name, addon(&nodes, &[("addon.template", &kernel)], &waits)).await?;
        cluster.until_ops(name, "it says what it waits for", waits_for).await?;
        ensure!(taints(cluster, &a).await? == [name] && cluster.world.commands_begun(&a) == 0);
        if name == "stopped" {
            cluster.patch_ops(name, json!({"spec": {"stop": true}})).await?;
            cluster.until_ops_ended(name, "Failed", "Stopped").await?;
            ensure!(taints(cluster, &a).await?.is_empty() && cluster.world.commands_begun(&a) == 0);
        }
    }
    // The host starts with idle nodes.
    ensure!(cluster.world.commands_begun(&idle) == 1);
    ensure!(pods.get("web").await?.metadata.deletion_timestamp.is_none(), "it was evicted");
    pods.delete("web", &Default::default()).await?;
    cluster.until_ops_ended("goes-on", "Succeeded", "Succeed").await?;
    ensure!(cluster.world.commands_begun(&a) == 1 && taints(cluster, &a).await?.is_empty());
    end_well(cluster, &history).await
}

/// A job that is stopped during a script names the node of the script, which may have run in part. Source: rancher/system-upgrade-controller#71.
pub async fn an_addon_that_is_stopped_amid_a_script_names_its_node(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let (a, b) = (node(cluster, "a", true).await?, node(cluster, "b", true).await?);
    let history = begin(cluster, ADDON).await?;
    let slow = template(cluster, "AddonTemplate", "slow", json!({"script": "# sim: sleep 600"})).await?;
    cluster.create_ops("s", addon(&[&a, &b], &[("addon.template", &slow)], &json!({}))).await?;
    patiently("its script runs", async || Ok(cluster.world.commands_begun(&a) == 1)).await?;
    cluster.until_ops("s", "it runs", |job| job.pointer("/status/phase") == Some(&json!("Running"))).await?;
    cluster.patch_ops("s", json!({"spec": {"stop": true}})).await?;
    let job = cluster.until_ops_ended("s", "Failed", "Stopped").await?;
    ensure!(said(&job, &a).starts_with("its task step-0 had not ended"), "{job:#}");
    let ran = &output(&job, "nodes")[0];
    ensure!(ran["node"] == json!(a) && ran["reason"] == "Interrupted" && ran["passed"] == false, "{ran:#}");
    ensure!(cluster.world.commands_begun(&b) == 0 && !said(&job, &b).contains("had not ended"), "{job:#}");
    patiently("its taint is gone", async || Ok(taints(cluster, &a).await?.is_empty())).await?;
    end_well(cluster, &history).await
}

/// A failed script and a script that takes too long end the job with a reason and remove the taint. Further nodes of the job do not start.
pub async fn a_node_whose_script_fails_says_how_and_loses_its_taint(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let (a, b) = (node(cluster, "a", true).await?, node(cluster, "b", true).await?);
    let history = begin(cluster, ADDON).await?;
    let fails =
        template(cluster, "AddonTemplate", "fails", json!({"script": "# sim: output no disk\n# sim: exit 4"})).await?;
    cluster.create_ops("fails", addon(&[&a, &b], &[("addon.template", &fails)], &json!({}))).await?;
    let job = cluster.until_ops_ended("fails", "Failed", "ToleranceExceeded").await?;
    ensure!(said(&job, &a).contains("exit code 4: no disk"), "{job:#}");
    ensure!((cluster.world.commands_begun(&a), cluster.world.commands_begun(&b)) == (1, 0));
    let slow = json!({"script": "# sim: sleep 60", "timeoutSeconds": 1});
    let slow = template(cluster, "AddonTemplate", "slow", slow).await?;
    cluster.create_ops("slow", addon(&[&b], &[("addon.template", &slow)], &json!({}))).await?;
    let job = cluster.until_ops_ended("slow", "Failed", "ToleranceExceeded").await?;
    ensure!(output(&job, "nodes")[0]["reason"] == "ScriptTimeout", "{job:#}");
    cluster.create_ops("late", addon(&[&b], &[("addon.template", &slow)], &json!({"timeoutSecond": 5}))).await?;
    cluster.until_ops("late", "it has ended", |job| job.pointer("/status/finishedAt").is_some()).await?;
    for name in [&a, &b] {
        patiently("its taint is gone", async || Ok(taints(cluster, name).await?.is_empty())).await?;
    }
    end_well(cluster, &history).await
}
