//! Reboots of nodes.

use anyhow::ensure;
use serde_json::{Value, json};

use crate::documents::{pinned, targets_of, text_at, with};
use crate::scenario::Scenario;

/// Runs two pods on the nodes of a scenario.
fn load(scenario: &Scenario) -> anyhow::Result<()> {
    let container =
        json!({"name": "c", "image": "busybox", "command": ["sh", "-c", "trap exit TERM; sleep 3600 & wait"]});
    let pod = with(pinned(scenario), &json!({"containers": [container]}));
    let labels = json!({"app": "web"});
    scenario.apply(
        &json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": 2,
        "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}}),
    )?;
    scenario.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"]).map(drop)
}

fn budget(scenario: &Scenario, least: u32) -> anyhow::Result<()> {
    scenario.apply(&json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
        "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": "web"}}}}))
}

/// Returns the number of boots of each node of the scenario.
pub(crate) fn boots(scenario: &Scenario) -> anyhow::Result<Vec<usize>> {
    scenario.nodes.iter().map(|node| scenario.cluster.boots(node)).collect()
}

/// Waits until the job ends. Returns the largest number of nodes of the scenario that were unschedulable at once, and the
/// job.
fn most_out(scenario: &Scenario, job: &str) -> anyhow::Result<(usize, Value)> {
    let mut most = 0;
    let ended = scenario.until(&format!("{job} ends"), || {
        let text = scenario.cluster.kubectl(&[
            "get",
            "nodes",
            "-l",
            &format!("scenario={}", scenario.namespace),
            "-o",
            "json",
        ])?;
        let list: Value = serde_json::from_str(&text)?;
        let nodes = list.pointer("/items").and_then(Value::as_array).cloned().unwrap_or_default();
        most = most.max(nodes.iter().filter(|node| node.pointer("/spec/unschedulable").is_some()).count());
        let job = scenario.get("operationjobs", job)?;
        Ok(job.filter(|job| ["Succeeded", "Failed"].contains(&text_at(job, "/status/progress"))))
    })?;
    Ok((most, ended))
}

/// Tests that each node is drained and boots once, at most two at a time. A budget blocks a drain until it is relaxed,
/// and a kubelet that is killed meanwhile changes nothing.
pub(crate) fn nodes_are_drained_and_rebooted_two_at_a_time_once_each(scenario: &Scenario) -> anyhow::Result<()> {
    load(scenario)?;
    budget(scenario, 2)?;
    let before = boots(scenario)?;
    let flags = ["reboot", "--name", "all", "--parallelism", "2", "--param", "drain=true"];
    scenario.run(&[flags.as_slice(), &scenario.targets()].concat())?;
    scenario.until("the budget holds the drain up", || {
        let output = scenario.oarlock(&["get", "all"])?;
        Ok(String::from_utf8_lossy(&output.stdout).contains("budget").then_some(()))
    })?;
    let kubelet = scenario.nodes.first().map(|node| format!("--hostname-override={node} ")).unwrap_or_default();
    scenario.cluster.signal(&["kubelet --kubeconfig", &kubelet], "KILL")?;
    budget(scenario, 1)?;
    let (most, job) = most_out(scenario, "all")?;
    ensure!(text_at(&job, "/status/progress") == "Succeeded", "{job:#}");
    let after = boots(scenario)?;
    ensure!(before.iter().zip(&after).all(|(before, after)| before + 1 == *after), "{before:?} and {after:?}");
    ensure!(most <= 2, "{most} nodes were out of service at once");
    Ok(())
}

/// Tests that the job's cordon goes although an admin removed the hold from the node. A budget blocks the drain, and
/// the admin deletes the job.
pub(crate) fn a_hold_that_somebody_takes_off_leaves_no_cordon_behind(scenario: &Scenario) -> anyhow::Result<()> {
    let [node] = scenario.nodes.as_slice() else { anyhow::bail!("one node is needed") };
    load(scenario)?;
    budget(scenario, 2)?;
    let flags = ["reboot", "--name", "all", "--param", "drain=true"];
    scenario.run(&[flags.as_slice(), &scenario.targets()].concat())?;
    scenario.until_is("operationjobs", "all", "/status/targetDetails/0/error/reason", &["EvictionBlocked"])?;
    let uid = text_at(&scenario.get("operationjobs", "all")?.unwrap_or_default(), "/metadata/uid").to_owned();
    let hold = format!("hold.oarlock.dev/{uid}");
    let of_node = || scenario.cluster.kubectl(&["get", "node", node, "-o", "json"]);
    ensure!(of_node()?.contains(&hold), "the node has no hold");
    scenario.cluster.kubectl(&["annotate", "node", node, &format!("{hold}-")])?;
    scenario.kubectl(&["delete", "operationjob", "all", "--timeout=60s"])?;
    scenario.until("nothing is left on the node", || {
        let text = of_node()?;
        Ok((!text.contains("unschedulable") && !text.contains(&uid)).then_some(()))
    })
}

/// Tests that a job fails in time if a node loses power while it reboots.
pub(crate) fn a_node_that_does_not_come_back_fails_in_time_and_stops_the_job(
    scenario: &Scenario,
) -> anyhow::Result<()> {
    let [node] = scenario.nodes.as_slice() else { anyhow::bail!("one node is needed") };
    let before = scenario.cluster.reboots_of(node);
    let flags = ["reboot", "--name", "all", "--param", "readyDeadlineSeconds=30"];
    scenario.run(&[flags.as_slice(), &scenario.targets()].concat())?;
    scenario.until("its reboot was ordered", || Ok((scenario.cluster.reboots_of(node) != before).then_some(())))?;
    scenario.cluster.order(&format!("kill {node}"))?;
    let job = scenario.until_ended("all")?;
    let found = targets_of(&job);
    let word = found.get(node).cloned().unwrap_or_default();
    ensure!(["Failed/NotRebooted", "Failed/NotReady"].contains(&word.as_str()), "{found:?}");
    scenario.cluster.order(&format!("boot {node}"))
}
