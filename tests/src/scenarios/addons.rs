//! OpsJobs of the type addon: the scripts of templates on nodes.

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
use crate::rig::{Rig, patiently};

pub(crate) const ADDON: Plugin = ("addon", ADDON_GRANTS);
/// The taint of the nodes of a job.
const TAINT: &str = "oarlock.dev/opsjob";

fn templates(rig: &Rig, kind: &str) -> Api<DynamicObject> {
    Api::all_with(rig.client.clone(), &ApiResource::from_gvk(&GroupVersionKind::gvk("oarlock.dev", "v1alpha1", kind)))
}

/// Makes a template, whose name begins with that of the namespace. Yields its name.
pub(crate) async fn template(rig: &Rig, kind: &str, name: &str, spec: Value) -> anyhow::Result<String> {
    let name = format!("{}-{name}", rig.namespace);
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("oarlock.dev", "v1alpha1", kind));
    let object = DynamicObject::new(&name, &resource).data(json!({ "spec": spec }));
    templates(rig, kind).create(&PostParams::default(), &object).await?;
    Ok(name)
}

/// An addon on these nodes, of these inputs.
pub(crate) fn addon(nodes: &[&String], inputs: &[(&str, &str)], more: &Value) -> Value {
    let mut all: Vec<Value> = nodes.iter().map(|name| json!({"name": "node", "value": name})).collect();
    all.extend(inputs.iter().map(|(name, value)| json!({"name": name, "value": value})));
    let mut spec = json!({"type": "addon", "inputs": all, "isTolerateAll": true});
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    spec
}

/// The taints of jobs on a node.
pub(crate) async fn taints(rig: &Rig, name: &str) -> anyhow::Result<Vec<String>> {
    let taints = nodes(rig).get(name).await?.spec.and_then(|spec| spec.taints).unwrap_or_default();
    Ok(taints.into_iter().filter(|taint| taint.key == TAINT).filter_map(|taint| taint.value).collect())
}

/// The values that the taint had on a node.
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

/// What a job says of the steps of a node: exit code and output of each.
fn steps(job: &Value, node: &str) -> Vec<(Value, String)> {
    let nodes = output(job, "nodes");
    let found = nodes.as_array().into_iter().flatten().find(|one| one["node"] == node).cloned().unwrap_or_default();
    let steps = found["steps"].as_array().cloned().unwrap_or_default();
    let said = |step: &Value| step["output"].as_str().unwrap_or_default().to_owned();
    steps.iter().map(|step| (step["exitCode"].clone(), said(step))).collect()
}

/// A NodeTemplate, an AddonTemplate for GPUs and a script of the job's own, of which one is not required and fails.
pub async fn the_scripts_of_templates_run_on_each_node_once_and_in_order(rig: &mut Rig) -> anyhow::Result<()> {
    let (plain, gpu) = (node(rig, "a", true).await?, node(rig, "b", true).await?);
    let capacity = Patch::Merge(json!({"status": {"capacity": {"amd.com/gpu": "8"}}}));
    nodes(rig).patch_status(&gpu, &PatchParams::default(), &capacity).await?;
    let of_jobs = begin(rig, ADDON).await?;
    let of_nodes = history(rig);
    let kernel = template(rig, "AddonTemplate", "kernel", json!({"script": "# sim: output kernel"})).await?;
    let of_gpu = json!({"script": "# sim: output driver", "gpuChip": "amd"});
    let driver = template(rig, "AddonTemplate", "driver", of_gpu).await?;
    let fails = json!({"script": "# sim: output no\n# sim: exit 3", "required": false});
    let base = json!({"steps": [{"template": kernel}, fails]});
    let base = template(rig, "NodeTemplate", "base", base).await?;
    // Base64 of `# sim: output mine`. The template that is named twice runs once.
    let inputs = [
        ("script", "IyBzaW06IG91dHB1dCBtaW5l"),
        ("node.template", &base),
        ("addon.template", &driver),
        ("addon.template", &kernel),
    ];
    rig.create_ops("all", addon(&[&plain, &gpu], &inputs, &json!({}))).await?;
    let job = rig.until_ops_ended("all", "Succeeded", "Succeed").await?;
    ensure!(output(&job, "result") == json!({"succeeded": 2, "failed": 0, "skipped": 0}), "{job:#}");
    let step = |code: i32, said: &str| (json!(code), said.to_owned());
    let on_plain = [step(0, "kernel"), step(3, "no"), step(0, "mine")];
    ensure!(steps(&job, &plain) == on_plain, "{job:#}");
    let on_gpu = [step(0, "kernel"), step(3, "no"), step(0, "driver"), step(0, "mine")];
    ensure!(steps(&job, &gpu) == on_gpu, "{job:#}");
    for (name, count) in [(&plain, 3), (&gpu, 4)] {
        ensure!(rig.world.commands_begun(name) == count, "{name} ran {}", rig.world.commands_begun(name));
        ensure!(taints(rig, name).await?.is_empty() && tainted_by(&of_nodes, name) == ["all"], "{name}");
    }
    end_well(rig, &of_jobs).await
}

/// Twenty nodes at once with a script of a second, in a time in which no machine is slow: from the first pod to the end of the last, the job
/// takes at most 15 % longer than the scripts need.
pub async fn scripts_of_a_second_take_nearly_all_of_the_time_of_an_addon(rig: &mut Rig) -> anyhow::Result<()> {
    let mut names = Vec::new();
    for number in 0..100 {
        names.push(node(rig, &format!("n{number:02}"), true).await?);
    }
    let history = begin(rig, ADDON).await?;
    let second = template(rig, "AddonTemplate", "second", json!({"script": "# sim: sleep 1"})).await?;
    let all: Vec<&String> = names.iter().collect();
    rig.create_ops("many", addon(&all, &[("addon.template", &second)], &json!({"batchCount": 20}))).await?;
    rig.until_ops_ended("many", "Succeeded", "Succeed").await?;
    let (mut created, mut scripts) = (BTreeMap::new(), Vec::new());
    for Entry { uid, time, effect, .. } in rig.world.ledger().entries() {
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
    end_well(rig, &history).await
}

/// Two nodes of three are cordoned: the result counts them as skipped. Source: ansible/ansible#7686.
pub async fn cordoned_nodes_of_an_addon_are_counted_as_skipped_in_its_result(rig: &mut Rig) -> anyhow::Result<()> {
    let names = [node(rig, "a", true).await?, node(rig, "b", true).await?, node(rig, "c", true).await?];
    // Without the taint that keeps pods of others off them.
    change(rig, &names[0], json!({"spec": {"taints": []}})).await?;
    for name in &names[1..] {
        cordon(rig, name, true).await?;
    }
    let history = begin(rig, ADDON).await?;
    let kernel = template(rig, "AddonTemplate", "kernel", json!({"script": "# sim: output done"})).await?;
    let all: Vec<&String> = names.iter().collect();
    let spec = addon(&all, &[("addon.template", &kernel)], &json!({"isTolerateAll": false}));
    rig.create_ops("some", spec).await?;
    let job = rig.until_ops_ended("some", "Succeeded", "Succeed").await?;
    ensure!(output(&job, "result") == json!({"succeeded": 1, "failed": 0, "skipped": 2}), "{job:#}");
    ensure!(output(&job, "skipped").as_array().is_some_and(|skipped| skipped.len() == 2), "{job:#}");
    end_well(rig, &history).await
}

/// Two nodes one after the other, and the template changes while the first has its script; then it is deleted, too.
pub async fn a_template_that_changes_meanwhile_runs_as_it_was(rig: &mut Rig) -> anyhow::Result<()> {
    let (a, b) = (node(rig, "a", true).await?, node(rig, "b", true).await?);
    let history = begin(rig, ADDON).await?;
    let script = json!({"script": "# sim: sleep 2\n# sim: output old"});
    let kernel = template(rig, "AddonTemplate", "kernel", script).await?;
    rig.create_ops("slow", addon(&[&a, &b], &[("addon.template", &kernel)], &json!({}))).await?;
    rig.until_ops("slow", "it runs", |job| job.pointer("/status/phase").is_some_and(|is| is == "Running")).await?;
    let all = templates(rig, "AddonTemplate");
    let edit = Patch::Merge(json!({"spec": {"script": "# sim: output new"}}));
    all.patch(&kernel, &PatchParams::default(), &edit).await?;
    all.delete(&kernel, &Default::default()).await?;
    let job = rig.until_ops_ended("slow", "Succeeded", "Succeed").await?;
    for name in [&a, &b] {
        ensure!(steps(&job, name) == [(json!(0), "old".to_owned())], "{job:#}");
    }
    rig.create_ops("late", addon(&[&a], &[("addon.template", &kernel)], &json!({}))).await?;
    let job = rig.until_ops_ended("late", "Failed", "TemplateNotFound").await?;
    ensure!(said(&job, "Failed").contains(&kernel), "{job:#}");
    end_well(rig, &history).await
}

/// A node with a pod of a workload: a job that waits for it says so, one that is stopped has run nothing, and another goes on once it goes.
pub async fn a_busy_node_is_awaited_and_no_pod_is_evicted(rig: &mut Rig) -> anyhow::Result<()> {
    let (a, idle) = (node(rig, "a", true).await?, node(rig, "b", true).await?);
    let pods: Api<Pod> = Api::namespaced(rig.client.clone(), &rig.namespace);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {"nodeName": a, "tolerations": [{"key": RESERVED, "operator": "Exists"}],
            "containers": [{"name": "c", "image": "web"}]}});
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    let history = begin(rig, ADDON).await?;
    let kernel = template(rig, "AddonTemplate", "kernel", json!({"script": "# sim: output done"})).await?;
    let waits = json!({"securityUpgrade": true});
    let waits_for =
        |job: &Value| job.pointer("/status/waitingFor").is_some_and(|told| told.to_string().contains("/web"));
    for (name, nodes) in [("stopped", vec![&a]), ("goes-on", vec![&a, &idle])] {
        rig.create_ops(name, addon(&nodes, &[("addon.template", &kernel)], &waits)).await?;
        rig.until_ops(name, "it says what it waits for", waits_for).await?;
        ensure!(taints(rig, &a).await? == [name] && rig.world.commands_begun(&a) == 0);
        if name == "stopped" {
            rig.patch_ops(name, json!({"spec": {"stop": true}})).await?;
            rig.until_ops_ended(name, "Failed", "Stopped").await?;
            ensure!(taints(rig, &a).await?.is_empty() && rig.world.commands_begun(&a) == 0);
        }
    }
    // Idle nodes come first.
    ensure!(rig.world.commands_begun(&idle) == 1);
    ensure!(pods.get("web").await?.metadata.deletion_timestamp.is_none(), "it was evicted");
    pods.delete("web", &Default::default()).await?;
    rig.until_ops_ended("goes-on", "Succeeded", "Succeed").await?;
    ensure!(rig.world.commands_begun(&a) == 1 && taints(rig, &a).await?.is_empty());
    end_well(rig, &history).await
}

/// A job that is stopped amid a script says on which node it ran: it may have been done in part. Source:
/// rancher/system-upgrade-controller#71.
pub async fn an_addon_that_is_stopped_amid_a_script_names_its_node(rig: &mut Rig) -> anyhow::Result<()> {
    let (a, b) = (node(rig, "a", true).await?, node(rig, "b", true).await?);
    let history = begin(rig, ADDON).await?;
    let slow = template(rig, "AddonTemplate", "slow", json!({"script": "# sim: sleep 600"})).await?;
    rig.create_ops("s", addon(&[&a, &b], &[("addon.template", &slow)], &json!({}))).await?;
    patiently("its script runs", async || Ok(rig.world.commands_begun(&a) == 1)).await?;
    rig.until_ops("s", "it runs", |job| job.pointer("/status/phase") == Some(&json!("Running"))).await?;
    rig.patch_ops("s", json!({"spec": {"stop": true}})).await?;
    let job = rig.until_ops_ended("s", "Failed", "Stopped").await?;
    ensure!(said(&job, &a).starts_with("its task step-0 had not ended"), "{job:#}");
    let ran = &output(&job, "nodes")[0];
    ensure!(ran["node"] == json!(a) && ran["reason"] == "Interrupted" && ran["passed"] == false, "{ran:#}");
    ensure!(rig.world.commands_begun(&b) == 0 && !said(&job, &b).contains("had not ended"), "{job:#}");
    patiently("its taint is gone", async || Ok(taints(rig, &a).await?.is_empty())).await?;
    end_well(rig, &history).await
}

/// A script that fails, one that takes too long, and a node that gets no further one of the job.
pub async fn a_node_whose_script_fails_says_how_and_loses_its_taint(rig: &mut Rig) -> anyhow::Result<()> {
    let (a, b) = (node(rig, "a", true).await?, node(rig, "b", true).await?);
    let history = begin(rig, ADDON).await?;
    let fails =
        template(rig, "AddonTemplate", "fails", json!({"script": "# sim: output no disk\n# sim: exit 4"})).await?;
    rig.create_ops("fails", addon(&[&a, &b], &[("addon.template", &fails)], &json!({}))).await?;
    let job = rig.until_ops_ended("fails", "Failed", "ToleranceExceeded").await?;
    ensure!(said(&job, &a).contains("exit code 4: no disk"), "{job:#}");
    ensure!((rig.world.commands_begun(&a), rig.world.commands_begun(&b)) == (1, 0));
    let slow = json!({"script": "# sim: sleep 60", "timeoutSeconds": 1});
    let slow = template(rig, "AddonTemplate", "slow", slow).await?;
    rig.create_ops("slow", addon(&[&b], &[("addon.template", &slow)], &json!({}))).await?;
    let job = rig.until_ops_ended("slow", "Failed", "ToleranceExceeded").await?;
    ensure!(output(&job, "nodes")[0]["reason"] == "ScriptTimeout", "{job:#}");
    rig.create_ops("late", addon(&[&b], &[("addon.template", &slow)], &json!({"timeoutSecond": 5}))).await?;
    rig.until_ops("late", "it has ended", |job| job.pointer("/status/finishedAt").is_some()).await?;
    for name in [&a, &b] {
        patiently("its taint is gone", async || Ok(taints(rig, name).await?.is_empty())).await?;
    }
    end_well(rig, &history).await
}
