//! OpsJobs on real nodes, created and read only with kubectl.

use anyhow::ensure;
use serde_json::{Value, json};

use crate::documents::text_at;
use crate::reboots::boots;
use crate::scenario::Scenario;

/// Creates an OpsJob for the nodes of a scenario.
fn make(scenario: &Scenario, name: &str, more: &Value) -> anyhow::Result<()> {
    let mut inputs: Vec<Value> = scenario.nodes.iter().map(|node| json!({"name": "node", "value": node})).collect();
    inputs.push(json!({"name": "label", "value": scenario.namespace}));
    let mut spec = json!({"inputs": inputs});
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    scenario.apply(
        &json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "OpsJob", "metadata": {"name": name}, "spec": spec}),
    )
}

fn until_ended(scenario: &Scenario, name: &str) -> anyhow::Result<Value> {
    scenario.until_is("opsjobs", name, "/status/phase", &["Succeeded", "Failed"])
}

/// Tests that OpsJobs check two nodes, and then reboot them one after the other, once each.
pub(crate) fn nodes_are_checked_and_rebooted_by_ops_jobs(scenario: &Scenario) -> anyhow::Result<()> {
    let (before, check, boot) =
        (boots(scenario)?, format!("check-{}", scenario.namespace), format!("boot-{}", scenario.namespace));
    // Base64 of `test $(nproc) -ge 1`.
    let more = json!({"type": "preflight", "image": "busybox", "entryPoint": "dGVzdCAkKG5wcm9jKSAtZ2UgMQo=", "isTolerateAll": true});
    make(scenario, &check, &more)?;
    let job = until_ended(scenario, &check)?;
    ensure!(text_at(&job, "/status/phase") == "Succeeded", "{job:#}");
    let result = job.pointer("/status/outputs").map(ToString::to_string).unwrap_or_default();
    ensure!(
        scenario.nodes.iter().all(|node| result.contains(node.as_str())) && result.contains("healthy_nodes"),
        "{result}"
    );
    make(scenario, &boot, &json!({"type": "reboot"}))?;
    let job = until_ended(scenario, &boot)?;
    ensure!(
        text_at(&job, "/status/phase") == "Succeeded" && text_at(&job, "/status/progress/done") == "2/2",
        "{job:#}"
    );
    let after = boots(scenario)?;
    ensure!(before.iter().zip(&after).all(|(before, after)| before + 1 == *after), "{before:?} and {after:?}");
    scenario.kubectl(&["delete", "opsjobs", &check, &boot, "--timeout=60s"]).map(drop)
}

/// Tests a reboot job for three nodes whose first node loses power as it reboots. The job times out, reports that, and
/// does not begin the others.
pub(crate) fn a_node_that_does_not_come_back_costs_its_ops_job_its_time(scenario: &Scenario) -> anyhow::Result<()> {
    let name = format!("boot-{}", scenario.namespace);
    let before = boots(scenario)?;
    let mut sorted = scenario.nodes.clone();
    sorted.sort();
    let Some(first) = sorted.first() else { anyhow::bail!("three nodes are needed") };
    let asked = scenario.cluster.reboots_of(first);
    // The time covers the start of the pod that orders the reboot, in parallel with all other scenarios.
    make(scenario, &name, &json!({"type": "reboot", "timeoutSecond": 120, "availableRatio": "0.3"}))?;
    scenario.until("its reboot was ordered", || Ok((scenario.cluster.reboots_of(first) != asked).then_some(())))?;
    scenario.cluster.order(&format!("kill {first}"))?;
    let job = until_ended(scenario, &name)?;
    let conditions = job.pointer("/status/conditions").map(ToString::to_string).unwrap_or_default();
    ensure!(text_at(&job, "/status/phase") == "Failed" && conditions.contains("timed out after 120 s"), "{job:#}");
    scenario.cluster.order(&format!("boot {first}"))?;
    let after = boots(scenario)?;
    let others = scenario.nodes.iter().zip(before.iter().zip(&after)).filter(|(node, _)| *node != first);
    ensure!(others.clone().count() == 2 && others.into_iter().all(|(_, (before, after))| before == after), "{after:?}");
    scenario.kubectl(&["delete", "opsjobs", &name, "--timeout=60s"]).map(drop)
}

/// Tests an addon script on five nodes, one of which loses power while the script runs. The script began once there and
/// did not end; on the other nodes it ran to its end.
pub(crate) fn the_scripts_of_an_addon_run_once_although_a_node_loses_its_power(
    scenario: &Scenario,
) -> anyhow::Result<()> {
    let [lost, others @ ..] = scenario.nodes.as_slice() else { anyhow::bail!("five nodes are needed") };
    let template = format!("mark-{}", scenario.namespace);
    let script = "echo begun >> /var/lib/oarlock/addon.log\nsleep 20\necho \"changed $(hostname)\" | tee -a /var/lib/oarlock/addon.log\n";
    let document = json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "AddonTemplate", "metadata": {"name": template},
        "spec": {"script": script, "interpreter": "/bin/sh"}});
    scenario.cluster.apply_text(&document.to_string())?;
    let name = format!("addon-{}", scenario.namespace);
    let mut inputs: Vec<Value> = scenario.nodes.iter().map(|node| json!({"name": "node", "value": node})).collect();
    inputs.push(json!({"name": "addon.template", "value": template}));
    let more =
        json!({"type": "addon", "inputs": inputs, "batchCount": 5, "availableRatio": "0.8", "isTolerateAll": true});
    make(scenario, &name, &more)?;
    scenario
        .until("its script runs", || Ok((scenario.cluster.file_of(lost, "addon.log") == "begun\n").then_some(())))?;
    scenario.cluster.order(&format!("kill {lost}"))?;
    scenario.cluster.order(&format!("boot {lost}"))?;
    let job = until_ended(scenario, &name)?;
    let nodes = job.pointer("/status/outputs").map(ToString::to_string).unwrap_or_default();
    ensure!(text_at(&job, "/status/phase") == "Succeeded" && nodes.contains("ResultLost"), "{job:#}");
    ensure!(text_at(&job, "/status/progress/done") == "5/5", "{job:#}");
    ensure!(
        scenario.cluster.file_of(lost, "addon.log") == "begun\n",
        "{}",
        scenario.cluster.file_of(lost, "addon.log")
    );
    for node in others {
        let log = scenario.cluster.file_of(node, "addon.log");
        ensure!(
            log == format!("begun\nchanged {node}\n") && nodes.contains(&format!("changed {node}")),
            "{node}: {log}"
        );
    }
    let taints = scenario.cluster.kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].spec.taints[*].key}"])?;
    ensure!(!taints.contains("oarlock.dev/opsjob"), "{taints}");
    scenario.cluster.kubectl(&["delete", "addontemplate", &template])?;
    scenario.kubectl(&["delete", "opsjobs", &name, "--timeout=60s"]).map(drop)
}
