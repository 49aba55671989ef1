//! Nodes that are rebooted.

use anyhow::ensure;
use serde_json::{Value, json};

use crate::documents::{pinned, targets_of, text_at, with};
use crate::scene::Scene;

/// Two pods on the nodes of a scene, and a budget for them.
fn load(scene: &Scene) -> anyhow::Result<()> {
    let container =
        json!({"name": "c", "image": "busybox", "command": ["sh", "-c", "trap exit TERM; sleep 3600 & wait"]});
    let pod = with(pinned(scene), &json!({"containers": [container]}));
    let labels = json!({"app": "web"});
    scene.apply(
        &json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": 2,
        "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}}),
    )?;
    scene.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"]).map(drop)
}

fn budget(scene: &Scene, least: u32) -> anyhow::Result<()> {
    scene.apply(&json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
        "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": "web"}}}}))
}

/// How often each node of the scene has booted.
pub(crate) fn boots(scene: &Scene) -> anyhow::Result<Vec<usize>> {
    scene.nodes.iter().map(|node| scene.bed.boots(node)).collect()
}

/// The most nodes of the scene that were out of service at once, as long as `goes_on` says so.
fn most_out(scene: &Scene, job: &str) -> anyhow::Result<(usize, Value)> {
    let mut most = 0;
    let ended = scene.until(&format!("{job} ends"), || {
        let text =
            scene.bed.kubectl(&["get", "nodes", "-l", &format!("scenario={}", scene.namespace), "-o", "json"])?;
        let list: Value = serde_json::from_str(&text)?;
        let nodes = list.pointer("/items").and_then(Value::as_array).cloned().unwrap_or_default();
        most = most.max(nodes.iter().filter(|node| node.pointer("/spec/unschedulable").is_some()).count());
        let job = scene.get("operationjobs", job)?;
        Ok(job.filter(|job| ["Succeeded", "Failed"].contains(&text_at(job, "/status/progress"))))
    })?;
    Ok((most, ended))
}

/// Each node is drained and boots once; never are more than two out of service; a budget holds a drain up until it is relaxed; and a
/// kubelet that is killed meanwhile changes nothing.
pub(crate) fn nodes_are_drained_and_rebooted_two_at_a_time_once_each(scene: &Scene) -> anyhow::Result<()> {
    load(scene)?;
    budget(scene, 2)?;
    let before = boots(scene)?;
    let flags = ["reboot", "--name", "all", "--parallelism", "2", "--param", "drain=true"];
    scene.run(&[flags.as_slice(), &scene.targets()].concat())?;
    scene.until("the budget holds the drain up", || {
        let output = scene.oarlock(&["get", "all"])?;
        Ok(String::from_utf8_lossy(&output.stdout).contains("budget").then_some(()))
    })?;
    let kubelet = scene.nodes.first().map(|node| format!("--hostname-override={node} ")).unwrap_or_default();
    scene.bed.signal(&["kubelet --kubeconfig", &kubelet], "KILL")?;
    budget(scene, 1)?;
    let (most, job) = most_out(scene, "all")?;
    ensure!(text_at(&job, "/status/progress") == "Succeeded", "{job:#}");
    let after = boots(scene)?;
    ensure!(before.iter().zip(&after).all(|(before, after)| before + 1 == *after), "{before:?} and {after:?}");
    ensure!(most <= 2, "{most} nodes were out of service at once");
    Ok(())
}

/// An admin takes the hold off a node whose drain a budget holds up, and deletes the job: the cordon of the job goes all the same.
pub(crate) fn a_hold_that_somebody_takes_off_leaves_no_cordon_behind(scene: &Scene) -> anyhow::Result<()> {
    let [node] = scene.nodes.as_slice() else { anyhow::bail!("one node is needed") };
    load(scene)?;
    budget(scene, 2)?;
    let flags = ["reboot", "--name", "all", "--param", "drain=true"];
    scene.run(&[flags.as_slice(), &scene.targets()].concat())?;
    scene.until_is("operationjobs", "all", "/status/targetDetails/0/error/reason", &["EvictionBlocked"])?;
    let uid = text_at(&scene.get("operationjobs", "all")?.unwrap_or_default(), "/metadata/uid").to_owned();
    let hold = format!("hold.oarlock.dev/{uid}");
    let of_node = || scene.bed.kubectl(&["get", "node", node, "-o", "json"]);
    ensure!(of_node()?.contains(&hold), "the node has no hold");
    scene.bed.kubectl(&["annotate", "node", node, &format!("{hold}-")])?;
    scene.kubectl(&["delete", "operationjob", "all", "--timeout=60s"])?;
    scene.until("nothing is left on the node", || {
        let text = of_node()?;
        Ok((!text.contains("unschedulable") && !text.contains(&uid)).then_some(()))
    })
}

/// A node whose power goes while it reboots: the job says so in time, and touches no further node.
pub(crate) fn a_node_that_does_not_come_back_fails_in_time_and_stops_the_job(scene: &Scene) -> anyhow::Result<()> {
    let [node] = scene.nodes.as_slice() else { anyhow::bail!("one node is needed") };
    let before = scene.bed.reboots_of(node);
    let flags = ["reboot", "--name", "all", "--param", "readyDeadlineSeconds=30"];
    scene.run(&[flags.as_slice(), &scene.targets()].concat())?;
    scene.until("its reboot was ordered", || Ok((scene.bed.reboots_of(node) != before).then_some(())))?;
    scene.bed.order(&format!("kill {node}"))?;
    let job = scene.until_ended("all")?;
    let found = targets_of(&job);
    let word = found.get(node).cloned().unwrap_or_default();
    ensure!(["Failed/NotRebooted", "Failed/NotReady"].contains(&word.as_str()), "{found:?}");
    scene.bed.order(&format!("boot {node}"))
}
