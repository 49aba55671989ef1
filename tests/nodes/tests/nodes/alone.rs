//! What is killed or stands still while nodes reboot: the host, the API server, the store.

use std::time::Duration;

use anyhow::{bail, ensure};
use oarlock_nodes::run::pause;
use serde_json::json;

use crate::documents::{kill_pod, text_at};
use crate::reboots::boots;
use crate::rest::as_ops_bot;
use crate::scene::Scene;

/// How long a server stands still.
const STILL: Duration = Duration::from_secs(30);

/// Reboots the nodes of the scene one after the other, and disturbs it once the first has begun.
fn amid_reboots(scene: &Scene, disturb: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let before = boots(scene)?;
    let flags = ["reboot", "--name", "all", "--parallelism", "1", "--param", "drain=true"];
    scene.run(&[flags.as_slice(), &scene.targets()].concat())?;
    scene.until("a node is cordoned", || {
        let text = scene.bed.kubectl(&["get", "nodes", "-l", &format!("scenario={}", scene.namespace)])?;
        Ok(text.contains("SchedulingDisabled").then_some(()))
    })?;
    disturb()?;
    let job = scene.until_ended("all")?;
    ensure!(text_at(&job, "/status/progress") == "Succeeded", "{job:#}");
    let after = boots(scene)?;
    ensure!(before.iter().zip(&after).all(|(before, after)| before + 1 == *after), "{before:?} and {after:?}");
    Ok(())
}

/// The leader is killed by SIGKILL at four points of a reboot: once its node is cordoned, once its task runs, once the reboot was
/// ordered, and once the node is there again. Another process goes on each time. A soak kills it so at each node.
pub(crate) fn a_leader_that_is_killed_at_each_point_of_the_reboots_costs_nothing(scene: &Scene) -> anyhow::Result<()> {
    let before = boots(scene)?;
    let orders =
        |scene: &Scene| scene.nodes.iter().map(|node| scene.bed.reboots_of(node).lines().count()).sum::<usize>();
    let ordered = orders(scene);
    let reached = |point: usize, node: usize| match point {
        0 => {
            let text = scene.bed.kubectl(&["get", "nodes", "-l", &format!("scenario={}", scene.namespace)])?;
            Ok(text.contains("SchedulingDisabled"))
        }
        1 => {
            let text = scene.bed.kubectl(&[
                "-n",
                "oarlock-tasks",
                "get",
                "pods",
                "-o",
                "jsonpath={.items[*].spec.nodeName}",
            ])?;
            Ok(scene.nodes.iter().any(|node| text.contains(node.as_str())))
        }
        2 => Ok(orders(scene) > ordered + node),
        _ => Ok(boots(scene)?.iter().sum::<usize>() > before.iter().sum::<usize>() + node),
    };
    amid_reboots(scene, || {
        let rounds = if std::env::var_os("OARLOCK_SOAK").is_some() { scene.nodes.len() } else { 1 };
        for (node, point) in (0..rounds).flat_map(|node| (0..4).map(move |point| (node, point))) {
            scene
                .until(&format!("point {point} of node {node}"), || reached(point, node).map(|is| is.then_some(())))?;
            kill_leader(scene)?;
        }
        Ok(())
    })
}

/// A leader is killed while a check runs, and the next one once the job is deleted: its row has it as it ended all the same.
pub(crate) fn an_ops_job_is_known_by_the_next_leader_although_two_were_killed(scene: &Scene) -> anyhow::Result<()> {
    let [node] = scene.nodes.as_slice() else { bail!("one node is needed") };
    let name = format!("killed-{}", scene.namespace);
    let spec = json!({"type": "preflight", "image": "busybox", "isTolerateAll": true, "entryPoint": "c2xlZXAgMTAK",
        "inputs": [{"name": "node", "value": node}]});
    scene.apply(
        &json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "OpsJob", "metadata": {"name": name}, "spec": spec}),
    )?;
    scene.until_is("opsjobs", &name, "/status/phase", &["Running"])?;
    kill_leader(scene)?;
    let ended = scene.until_is("opsjobs", &name, "/status/phase", &["Succeeded", "Failed"])?;
    ensure!(text_at(&ended, "/status/phase") == "Succeeded", "{ended:#}");
    scene.kubectl(&["delete", "opsjobs", &name, "--wait=false"])?;
    kill_leader(scene)?;
    scene.kubectl(&["wait", "opsjobs", &name, "--for=delete", "--timeout=120s"])?;
    let known = as_ops_bot(scene, |client| client.until(&name, &["Succeeded"]))?;
    ensure!(text_at(&known, "/phase") == "Succeeded" && !text_at(&known, "/deletionTime").is_empty(), "{known:#}");
    Ok(())
}

/// The API server is killed and comes back.
pub(crate) fn an_api_server_that_restarts_amid_reboots_costs_nothing(scene: &Scene) -> anyhow::Result<()> {
    amid_reboots(scene, || scene.bed.order("restart kube-apiserver"))
}

/// Each of the servers stands still for half a minute.
pub(crate) fn servers_that_stand_still_amid_reboots_cost_nothing(scene: &Scene) -> anyhow::Result<()> {
    amid_reboots(scene, || {
        for words in [["etcd --data-dir"], ["kube-apiserver --etcd"]] {
            scene.bed.signal(&words, "STOP")?;
            pause(STILL);
            scene.bed.signal(&words, "CONT")?;
        }
        Ok(())
    })
}

/// The node of the leader loses its power: the other replica leads, and the reboots go on.
pub(crate) fn a_leader_whose_node_loses_its_power_amid_reboots_costs_nothing(scene: &Scene) -> anyhow::Result<()> {
    let mut lost = String::new();
    let went = amid_reboots(scene, || {
        let leader = leader(scene)?;
        let path = "jsonpath={.spec.nodeName}";
        lost = scene.bed.kubectl(&["-n", "oarlock-system", "get", "pod", &leader, "-o", path])?;
        scene.bed.order(&format!("kill {lost}"))
    });
    // Others need it as well.
    scene.bed.order(&format!("boot {lost}"))?;
    went
}

/// The pod that leads; a host that ends well leaves the lease to the next one.
fn leader(scene: &Scene) -> anyhow::Result<String> {
    scene.until("a pod leads", || holder(scene))
}

/// Kills the processes of the pod that leads.
fn kill_leader(scene: &Scene) -> anyhow::Result<()> {
    // The lease may be of one that was just killed, and is not there again.
    scene.until("the leader is killed", || {
        let Some(leader) = holder(scene)? else { return Ok(None) };
        let path = "jsonpath={.metadata.uid}";
        let uid = scene.bed.kubectl(&["-n", "oarlock-system", "get", "pod", &leader, "-o", path])?;
        kill_pod(&uid).map(Some)
    })
}

fn holder(scene: &Scene) -> anyhow::Result<Option<String>> {
    let list = |kind: &str, path: &str| {
        scene.bed.kubectl(&["-n", "oarlock-system", "get", kind, "-o", &format!("jsonpath={path}")])
    };
    let holder = list("lease", "{.items[*].spec.holderIdentity}")?;
    let pods = list("pods", "{.items[*].metadata.name}")?;
    Ok(pods.split(' ').find(|pod| !pod.is_empty() && holder.contains(*pod)).map(str::to_owned))
}
