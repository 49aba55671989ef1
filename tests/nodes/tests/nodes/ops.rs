//! OpsJobs on real nodes, made by kubectl and told by it alone.

use anyhow::ensure;
use serde_json::{Value, json};

use crate::documents::text_at;
use crate::reboots::boots;
use crate::scene::Scene;

/// An OpsJob on the nodes of a scene.
fn make(scene: &Scene, name: &str, more: &Value) -> anyhow::Result<()> {
    let mut inputs: Vec<Value> = scene.nodes.iter().map(|node| json!({"name": "node", "value": node})).collect();
    inputs.push(json!({"name": "label", "value": scene.namespace}));
    let mut spec = json!({"inputs": inputs});
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    scene.apply(
        &json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "OpsJob", "metadata": {"name": name}, "spec": spec}),
    )
}

fn until_ended(scene: &Scene, name: &str) -> anyhow::Result<Value> {
    scene.until_is("opsjobs", name, "/status/phase", &["Succeeded", "Failed"])
}

/// Two nodes are checked, and then rebooted one after the other, once each.
pub(crate) fn nodes_are_checked_and_rebooted_by_ops_jobs(scene: &Scene) -> anyhow::Result<()> {
    let (before, check, boot) =
        (boots(scene)?, format!("check-{}", scene.namespace), format!("boot-{}", scene.namespace));
    // Base64 of `test $(nproc) -ge 1`.
    let more = json!({"type": "preflight", "image": "busybox", "entryPoint": "dGVzdCAkKG5wcm9jKSAtZ2UgMQo=", "isTolerateAll": true});
    make(scene, &check, &more)?;
    let job = until_ended(scene, &check)?;
    ensure!(text_at(&job, "/status/phase") == "Succeeded", "{job:#}");
    let result = job.pointer("/status/outputs").map(ToString::to_string).unwrap_or_default();
    ensure!(
        scene.nodes.iter().all(|node| result.contains(node.as_str())) && result.contains("healthy_nodes"),
        "{result}"
    );
    make(scene, &boot, &json!({"type": "reboot"}))?;
    let job = until_ended(scene, &boot)?;
    ensure!(
        text_at(&job, "/status/phase") == "Succeeded" && text_at(&job, "/status/progress/done") == "2/2",
        "{job:#}"
    );
    let after = boots(scene)?;
    ensure!(before.iter().zip(&after).all(|(before, after)| before + 1 == *after), "{before:?} and {after:?}");
    scene.kubectl(&["delete", "opsjobs", &check, &boot, "--timeout=60s"]).map(drop)
}

/// Of three nodes the first loses its power as it reboots: the job runs out of time, says so, and begins none of the others.
pub(crate) fn a_node_that_does_not_come_back_costs_its_ops_job_its_time(scene: &Scene) -> anyhow::Result<()> {
    let name = format!("boot-{}", scene.namespace);
    let before = boots(scene)?;
    let mut sorted = scene.nodes.clone();
    sorted.sort();
    let Some(first) = sorted.first() else { anyhow::bail!("three nodes are needed") };
    let asked = scene.bed.reboots_of(first);
    // The time covers the start of the pod that orders the reboot, beside all other scenarios.
    make(scene, &name, &json!({"type": "reboot", "timeoutSecond": 120, "availableRatio": "0.3"}))?;
    scene.until("its reboot was ordered", || Ok((scene.bed.reboots_of(first) != asked).then_some(())))?;
    scene.bed.order(&format!("kill {first}"))?;
    let job = until_ended(scene, &name)?;
    let conditions = job.pointer("/status/conditions").map(ToString::to_string).unwrap_or_default();
    ensure!(text_at(&job, "/status/phase") == "Failed" && conditions.contains("timed out after 120 s"), "{job:#}");
    scene.bed.order(&format!("boot {first}"))?;
    let after = boots(scene)?;
    let others = scene.nodes.iter().zip(before.iter().zip(&after)).filter(|(node, _)| *node != first);
    ensure!(others.clone().count() == 2 && others.into_iter().all(|(_, (before, after))| before == after), "{after:?}");
    scene.kubectl(&["delete", "opsjobs", &name, "--timeout=60s"]).map(drop)
}

/// A script that changes five nodes, of which one loses its power under it: that one has it once and no end, the others have both.
pub(crate) fn the_scripts_of_an_addon_run_once_although_a_node_loses_its_power(scene: &Scene) -> anyhow::Result<()> {
    let [lost, others @ ..] = scene.nodes.as_slice() else { anyhow::bail!("five nodes are needed") };
    let template = format!("mark-{}", scene.namespace);
    let script = "echo begun >> /var/lib/oarlock/addon.log\nsleep 20\necho \"changed $(hostname)\" | tee -a /var/lib/oarlock/addon.log\n";
    let document = json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "AddonTemplate", "metadata": {"name": template},
        "spec": {"script": script, "interpreter": "/bin/sh"}});
    scene.bed.apply_text(&document.to_string())?;
    let name = format!("addon-{}", scene.namespace);
    let mut inputs: Vec<Value> = scene.nodes.iter().map(|node| json!({"name": "node", "value": node})).collect();
    inputs.push(json!({"name": "addon.template", "value": template}));
    let more =
        json!({"type": "addon", "inputs": inputs, "batchCount": 5, "availableRatio": "0.8", "isTolerateAll": true});
    make(scene, &name, &more)?;
    scene.until("its script runs", || Ok((scene.bed.file_of(lost, "addon.log") == "begun\n").then_some(())))?;
    scene.bed.order(&format!("kill {lost}"))?;
    scene.bed.order(&format!("boot {lost}"))?;
    let job = until_ended(scene, &name)?;
    let nodes = job.pointer("/status/outputs").map(ToString::to_string).unwrap_or_default();
    ensure!(text_at(&job, "/status/phase") == "Succeeded" && nodes.contains("ResultLost"), "{job:#}");
    ensure!(text_at(&job, "/status/progress/done") == "5/5", "{job:#}");
    ensure!(scene.bed.file_of(lost, "addon.log") == "begun\n", "{}", scene.bed.file_of(lost, "addon.log"));
    for node in others {
        let log = scene.bed.file_of(node, "addon.log");
        ensure!(
            log == format!("begun\nchanged {node}\n") && nodes.contains(&format!("changed {node}")),
            "{node}: {log}"
        );
    }
    let taints = scene.bed.kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].spec.taints[*].key}"])?;
    ensure!(!taints.contains("oarlock.dev/opsjob"), "{taints}");
    scene.bed.kubectl(&["delete", "addontemplate", &template])?;
    scene.kubectl(&["delete", "opsjobs", &name, "--timeout=60s"]).map(drop)
}
