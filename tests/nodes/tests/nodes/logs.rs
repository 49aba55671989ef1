//! Logs of real containers, as kubelets have them.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};

use crate::documents::{is_ready, outputs_of, text_at};
use crate::scene::Scene;

/// Ends once, and then says much: a line of a million bytes, and a tick a second.
const MAIN: &str = "if [ ! -e /state/ran ]; then touch /state/ran; echo first; exit 3; fi; echo second; \
                    head -c 1000000 /dev/zero | tr '\\0' x; echo; while true; do echo tick; sleep 1; done";

/// Collects the logs of the workload. Yields the job's outputs and the lines of its file.
fn collect(scene: &Scene, name: &str) -> anyhow::Result<(BTreeMap<String, String>, Vec<String>)> {
    let inputs = json!([{"name": "workload", "value": format!("{}/daemonset/talk", scene.namespace)}]);
    let spec = json!({"type": "dumplog", "inputs": inputs});
    scene.apply(
        &json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "OpsJob", "metadata": {"name": name}, "spec": spec}),
    )?;
    let job = scene.until_is("opsjobs", name, "/status/phase", &["Succeeded", "Failed"])?;
    ensure!(text_at(&job, "/status/phase") == "Succeeded", "{job:#}");
    let outputs = outputs_of(&job);
    let text = std::fs::read_to_string(scene.bed.files().join("artefacts").join(file_of(&outputs)?))?;
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    ensure!(outputs.get("lines") == Some(&lines.len().to_string()), "{outputs:?}");
    ensure!(lines.iter().map(|line| line.get(..30)).is_sorted(), "lines are in the order of their times");
    scene.kubectl(&["delete", "opsjobs", name, "--timeout=60s"])?;
    Ok((outputs, lines))
}

/// The file, below the place of all files.
fn file_of(outputs: &BTreeMap<String, String>) -> anyhow::Result<&str> {
    outputs.get("endpoint").and_then(|reference| reference.strip_prefix("artifact:")).context("no file")
}

/// The texts of the lines of a container, of its run before or of the one that runs.
fn said<'a>(lines: &'a [String], (place, is_previous): (&str, bool)) -> Vec<&'a str> {
    let label = format!(" {place} ");
    let texts = lines.iter().filter_map(|line| line.split_once(label.as_str()).map(|(_, text)| text));
    let of_run = |text: &'a str| match text.strip_prefix("previous ") {
        Some(before) => is_previous.then_some(before),
        None => (!is_previous).then_some(text),
    };
    texts.filter_map(of_run).collect()
}

/// One pod on each of two nodes, each with a container that came to its end before, an ephemeral one in one of them, and very long
/// lines. Then one of the nodes is dead.
pub(crate) fn the_logs_of_a_workload_are_one_file_and_a_node_that_is_dead_costs_only_its_own(
    scene: &Scene,
) -> anyhow::Result<()> {
    let [_, second] = scene.nodes.as_slice() else { bail!("two nodes are needed") };
    let labels = json!({"app": "talk"});
    let shell = |name: &str, script: &str| json!({"name": name, "image": "busybox", "command": ["sh", "-c", script]});
    let main = json!({"name": "main", "image": "busybox", "command": ["sh", "-c", MAIN],
        "volumeMounts": [{"name": "state", "mountPath": "/state"}]});
    let pod = json!({"nodeSelector": {"scenario": scene.namespace}, "tolerations": [{"operator": "Exists"}],
        "volumes": [{"name": "state", "emptyDir": {}}], "initContainers": [shell("init", "echo prepared")],
        "containers": [main, shell("side", "seq 1000; sleep 3600")]});
    scene.apply(&json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "talk"}, "spec": {
        "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}}))?;
    let pods = scene.until("both pods have restarted a container", || {
        let pods = scene.list("pods")?;
        let restarted = |pod: &&Value| is_ready(pod) && pod.to_string().contains("\"restartCount\":1");
        Ok((pods.iter().filter(restarted).count() == 2).then_some(pods))
    })?;
    let names: Vec<&str> = pods.iter().map(|pod| text_at(pod, "/metadata/name")).collect();
    let [one, _] = names.as_slice() else { bail!("two pods: {names:?}") };
    let debug = ["debug", one, "--image=busybox", "--container=debug", "--", "sh", "-c", "echo debugging; sleep 3600"];
    scene.kubectl(&debug)?;
    scene.until("it is debugged", || {
        let pod = scene.get("pods", one)?.unwrap_or_default();
        Ok(pod.pointer("/status/ephemeralContainerStatuses/0/state/running").map(|_| ()))
    })?;
    let whole = format!("logs-{}", scene.namespace);
    let (outputs, lines) = collect(scene, &whole)?;
    ensure!(outputs.get("missing").map(String::as_str) == Some("[]"), "{outputs:?}");
    for pod in &names {
        let place = |container: &str| format!("{}/{pod}/{container}", scene.namespace);
        ensure!(said(&lines, (&place("init"), false)) == ["prepared"], "{pod}");
        ensure!(said(&lines, (&place("main"), true)) == ["first"], "{pod}");
        let now = said(&lines, (&place("main"), false));
        ensure!(now.first() == Some(&"second") && now.contains(&"tick"), "{pod}: {} lines", now.len());
        ensure!(now.iter().any(|line| line.len() == 1_000_000 && line.bytes().all(|byte| byte == b'x')), "{pod}");
        let numbers: Vec<String> = (1..=1_000).map(|number| number.to_string()).collect();
        ensure!(said(&lines, (&place("side"), false)) == numbers, "{pod}");
    }
    ensure!(said(&lines, (&format!("{}/{one}/debug", scene.namespace), false)) == ["debugging"], "{one}");
    scene.bed.order(&format!("kill {second}"))?;
    let (outputs, lines) = collect(scene, &format!("{whole}-too"))?;
    scene.bed.order(&format!("boot {second}"))?;
    let lost =
        pods.iter().find(|pod| text_at(pod, "/spec/nodeName") == second).map(|pod| text_at(pod, "/metadata/name"));
    ensure!(outputs.get("missing") == lost.map(|lost| json!([lost]).to_string()).as_ref(), "{outputs:?}");
    ensure!(lines.iter().any(|line| line.ends_with(" tick")), "the other one is there");
    Ok(())
}

/// A pod is read and the store is down when its file is put together: the job waits, and the file is in the bucket once that is back.
pub(crate) fn logs_are_in_a_bucket_although_its_store_goes_down(scene: &Scene) -> anyhow::Result<()> {
    scene.bed.deploy_with_bucket()?;
    let labels = json!({"app": "talk"});
    let talks = json!({"name": "main", "image": "busybox", "command": ["sh", "-c", "seq 100000; sleep 3600"]});
    scene.apply(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "talk", "labels": labels}, "spec": {"containers": [talks]}}))?;
    scene.until("it has said all", || {
        Ok(scene.kubectl(&["logs", "talk", "--tail=1"])?.contains("100000").then_some(()))
    })?;
    let make = |name: &str| {
        let inputs = json!([{"name": "workload", "value": format!("{}/pod/talk", scene.namespace)}]);
        scene.apply(&json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "OpsJob", "metadata": {"name": name},
            "spec": {"type": "dumplog", "inputs": inputs}}))
    };
    let (whole, kept) = (format!("whole-{}", scene.namespace), format!("kept-{}", scene.namespace));
    let ended = |name: &str| {
        let job = scene.until_is("opsjobs", name, "/status/phase", &["Succeeded", "Failed"])?;
        let outputs = outputs_of(&job);
        let path = scene.bed.root().join("store/files/prefix/artefacts").join(file_of(&outputs)?);
        let text = std::fs::read_to_string(&path).with_context(|| format!("no file: {job:#}"))?;
        ensure!(text.lines().count() == 100_000 && text.ends_with(" 100000\n"), "{} lines", text.lines().count());
        Ok(())
    };
    make(&whole)?;
    ended(&whole)?;
    // Its tries to read the pod last seven seconds, so it is down for less.
    scene.bed.order("stop store")?;
    make(&kept)?;
    scene.until_is("opsjobs", &kept, "/status/phase", &["Running"])?;
    scene.bed.order("restart store")?;
    ended(&kept)?;
    [whole, kept].iter().try_for_each(|name| scene.kubectl(&["delete", "opsjobs", name, "--timeout=60s"]).map(drop))
}
