//! Disturbances during reboots: the host, the API server or the store is killed or stopped.

use std::time::Duration;

use anyhow::{bail, ensure};
use oarlock_nodes::run::pause;
use serde_json::json;

use crate::documents::{kill_pod, text_at};
use crate::reboots::boots;
use crate::rest::as_ops_bot;
use crate::scenario::Scenario;

/// Time for which a server is stopped.
const STILL: Duration = Duration::from_secs(30);

/// Reboots the nodes of the scenario one after the other, and runs `disturb` once the first node is cordoned.
fn amid_reboots(scenario: &Scenario, disturb: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let before = boots(scenario)?;
    let flags = ["reboot", "--name", "all", "--parallelism", "1", "--param", "drain=true"];
    scenario.run(&[flags.as_slice(), &scenario.targets()].concat())?;
    scenario.until("a node is cordoned", || {
        let text = scenario.cluster.kubectl(&["get", "nodes", "-l", &format!("scenario={}", scenario.namespace)])?;
        Ok(text.contains("SchedulingDisabled").then_some(()))
    })?;
    disturb()?;
    let job = scenario.until_ended("all")?;
    ensure!(text_at(&job, "/status/progress") == "Succeeded", "{job:#}");
    let after = boots(scenario)?;
    ensure!(before.iter().zip(&after).all(|(before, after)| before + 1 == *after), "{before:?} and {after:?}");
    Ok(())
}

/// Tests that reboots succeed if the leader gets SIGKILL at four points: once the node is cordoned, once the task runs,
/// once the reboot was ordered, and once the node is back. Another process continues each time. A soak does this for
/// each node.
pub(crate) fn a_leader_that_is_killed_at_each_point_of_the_reboots_costs_nothing(
    scenario: &Scenario,
) -> anyhow::Result<()> {
    let before = boots(scenario)?;
    let orders = |scenario: &Scenario| {
        scenario.nodes.iter().map(|node| scenario.cluster.reboots_of(node).lines().count()).sum::<usize>()
    };
    let ordered = orders(scenario);
    let reached = |point: usize, node: usize| match point {
        0 => {
            let text =
                scenario.cluster.kubectl(&["get", "nodes", "-l", &format!("scenario={}", scenario.namespace)])?;
            Ok(text.contains("SchedulingDisabled"))
        }
        1 => {
            let text = scenario.cluster.kubectl(&[
                "-n",
                "oarlock-tasks",
                "get",
                "pods",
                "-o",
                "jsonpath={.items[*].spec.nodeName}",
            ])?;
            Ok(scenario.nodes.iter().any(|node| text.contains(node.as_str())))
        }
        2 => Ok(orders(scenario) > ordered + node),
        _ => Ok(boots(scenario)?.iter().sum::<usize>() > before.iter().sum::<usize>() + node),
    };
    amid_reboots(scenario, || {
        let rounds = if std::env::var_os("OARLOCK_SOAK").is_some() { scenario.nodes.len() } else { 1 };
        for (node, point) in (0..rounds).flat_map(|node| (0..4).map(move |point| (node, point))) {
            scenario
                .until(&format!("point {point} of node {node}"), || reached(point, node).map(|is| is.then_some(())))?;
            kill_leader(scenario)?;
        }
        Ok(())
    })
}

/// Tests that the history has a job as ended although one leader was killed during the job, and the next leader after
/// its deletion.
pub(crate) fn an_ops_job_is_known_by_the_next_leader_although_two_were_killed(
    scenario: &Scenario,
) -> anyhow::Result<()> {
    let [node] = scenario.nodes.as_slice() else { bail!("one node is needed") };
    let name = format!("killed-{}", scenario.namespace);
    let spec = json!({"type": "preflight", "image": "busybox", "isTolerateAll": true, "entryPoint": "c2xlZXAgMTAK",
        "inputs": [{"name": "node", "value": node}]});
    scenario.apply(
        &json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "OpsJob", "metadata": {"name": name}, "spec": spec}),
    )?;
    scenario.until_is("opsjobs", &name, "/status/phase", &["Running"])?;
    kill_leader(scenario)?;
    let ended = scenario.until_is("opsjobs", &name, "/status/phase", &["Succeeded", "Failed"])?;
    ensure!(text_at(&ended, "/status/phase") == "Succeeded", "{ended:#}");
    scenario.kubectl(&["delete", "opsjobs", &name, "--wait=false"])?;
    kill_leader(scenario)?;
    scenario.kubectl(&["wait", "opsjobs", &name, "--for=delete", "--timeout=120s"])?;
    let known = as_ops_bot(scenario, |client| client.until(&name, &["Succeeded"]))?;
    ensure!(text_at(&known, "/phase") == "Succeeded" && !text_at(&known, "/deletionTime").is_empty(), "{known:#}");
    Ok(())
}

/// Tests that reboots succeed if the API server is killed and restarts.
pub(crate) fn an_api_server_that_restarts_amid_reboots_costs_nothing(scenario: &Scenario) -> anyhow::Result<()> {
    amid_reboots(scenario, || scenario.cluster.order("restart kube-apiserver"))
}

/// Tests that reboots succeed if etcd and the API server are stopped for half a minute each.
pub(crate) fn servers_that_stand_still_amid_reboots_cost_nothing(scenario: &Scenario) -> anyhow::Result<()> {
    amid_reboots(scenario, || {
        for words in [["etcd --data-dir"], ["kube-apiserver --etcd"]] {
            scenario.cluster.signal(&words, "STOP")?;
            pause(STILL);
            scenario.cluster.signal(&words, "CONT")?;
        }
        Ok(())
    })
}

/// Tests that the other replica becomes leader and continues the reboots if the leader's node loses power.
pub(crate) fn a_leader_whose_node_loses_its_power_amid_reboots_costs_nothing(
    scenario: &Scenario,
) -> anyhow::Result<()> {
    let mut lost = String::new();
    let went = amid_reboots(scenario, || {
        let leader = leader(scenario)?;
        let path = "jsonpath={.spec.nodeName}";
        lost = scenario.cluster.kubectl(&["-n", "oarlock-system", "get", "pod", &leader, "-o", path])?;
        scenario.cluster.order(&format!("kill {lost}"))
    });
    // The scenarios after this one need the node too.
    scenario.cluster.order(&format!("boot {lost}"))?;
    went
}

/// Waits until a pod leads. Returns the name of the pod. The lease is free for a moment after a host has ended well.
fn leader(scenario: &Scenario) -> anyhow::Result<String> {
    scenario.until("a pod leads", || holder(scenario))
}

/// Kills the processes of the leading pod.
fn kill_leader(scenario: &Scenario) -> anyhow::Result<()> {
    // The holder of the lease may be a pod that was just killed and has not restarted.
    scenario.until("the leader is killed", || {
        let Some(leader) = holder(scenario)? else { return Ok(None) };
        let path = "jsonpath={.metadata.uid}";
        let uid = scenario.cluster.kubectl(&["-n", "oarlock-system", "get", "pod", &leader, "-o", path])?;
        kill_pod(&uid).map(Some)
    })
}

fn holder(scenario: &Scenario) -> anyhow::Result<Option<String>> {
    let list = |kind: &str, path: &str| {
        scenario.cluster.kubectl(&["-n", "oarlock-system", "get", kind, "-o", &format!("jsonpath={path}")])
    };
    let holder = list("lease", "{.items[*].spec.holderIdentity}")?;
    let pods = list("pods", "{.items[*].metadata.name}")?;
    Ok(pods.split(' ').find(|pod| !pod.is_empty() && holder.contains(*pod)).map(str::to_owned))
}
