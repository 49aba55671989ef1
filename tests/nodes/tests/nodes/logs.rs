//! Logs of real containers, as kubelets keep them.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};

use crate::documents::{is_ready, outputs_of, text_at};
use crate::scenario::Scenario;

/// Script of a container that ends once. After its restart it writes a line of a million bytes, and then a tick each
/// second.
const MAIN: &str = "if [ ! -e /state/ran ]; then touch /state/ran; echo first; exit 3; fi; echo second; \
                    head -c 1000000 /dev/zero | tr '\\0' x; echo; while true; do echo tick; sleep 1; done";

/// Collects the logs of the workload and returns the lines of the file. The job must report the pods in `unread` as
/// missing.
fn collect(scenario: &Scenario, name: &str, unread: &[&str]) -> anyhow::Result<Vec<String>> {
    let inputs = json!([{"name": "workload", "value": format!("{}/daemonset/talk", scenario.namespace)}]);
    let spec = json!({"type": "dumplog", "inputs": inputs});
    scenario.apply(
        &json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "OpsJob", "metadata": {"name": name}, "spec": spec}),
    )?;
    let job = scenario.until_is("opsjobs", name, "/status/phase", &["Succeeded", "Failed"])?;
    ensure!(text_at(&job, "/status/phase") == "Succeeded", "{job:#}");
    let outputs = outputs_of(&job);
    let reasons = "jsonpath={range .items[*]}{.metadata.name}: {.status.targetDetails[*].error.message} {end}";
    let is_missing = outputs.get("missing") == Some(&json!(unread).to_string());
    ensure!(is_missing, "{outputs:?}: {}", scenario.kubectl(&["get", "operationjobs", "-A", "-o", reasons])?);
    let text = std::fs::read_to_string(scenario.cluster.files().join("artefacts").join(file_of(&outputs)?))?;
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    ensure!(outputs.get("lines") == Some(&lines.len().to_string()), "{outputs:?}");
    ensure!(lines.iter().map(|line| line.get(..30)).is_sorted(), "lines are in the order of their times");
    scenario.kubectl(&["delete", "opsjobs", name, "--timeout=60s"])?;
    Ok(lines)
}

/// Returns the path of the file below the folder of all files.
fn file_of(outputs: &BTreeMap<String, String>) -> anyhow::Result<&str> {
    outputs.get("endpoint").and_then(|reference| reference.strip_prefix("artifact:")).context("no file")
}

/// Returns the lines of a container, of its previous run or of its current run.
fn said<'a>(lines: &'a [String], (place, is_previous): (&str, bool)) -> Vec<&'a str> {
    let label = format!(" {place} ");
    let texts = lines.iter().filter_map(|line| line.split_once(label.as_str()).map(|(_, text)| text));
    let of_run = |text: &'a str| match text.strip_prefix("previous ") {
        Some(before) => is_previous.then_some(before),
        None => (!is_previous).then_some(text),
    };
    texts.filter_map(of_run).collect()
}

/// Tests logs of one pod on each of two nodes. Each pod has a container that ended before and very long lines, and one
/// pod has an ephemeral container. Then one node dies, and the job must lose only the logs of that node.
pub(crate) fn the_logs_of_a_workload_are_one_file_and_a_node_that_is_dead_costs_only_its_own(
    scenario: &Scenario,
) -> anyhow::Result<()> {
    let [_, second] = scenario.nodes.as_slice() else { bail!("two nodes are needed") };
    let labels = json!({"app": "talk"});
    let shell = |name: &str, script: &str| json!({"name": name, "image": "busybox", "command": ["sh", "-c", script]});
    let main = json!({"name": "main", "image": "busybox", "command": ["sh", "-c", MAIN],
        "volumeMounts": [{"name": "state", "mountPath": "/state"}]});
    let pod = json!({"nodeSelector": {"scenario": scenario.namespace}, "tolerations": [{"operator": "Exists"}],
        "volumes": [{"name": "state", "emptyDir": {}}], "initContainers": [shell("init", "echo prepared")],
        "containers": [main, shell("side", "seq 1000; sleep 3600")]});
    scenario.apply(&json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "talk"}, "spec": {
        "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}}))?;
    let pods = scenario.until("both pods have restarted a container", || {
        let pods = scenario.list("pods")?;
        let restarted = |pod: &&Value| is_ready(pod) && pod.to_string().contains("\"restartCount\":1");
        Ok((pods.iter().filter(restarted).count() == 2).then_some(pods))
    })?;
    let names: Vec<&str> = pods.iter().map(|pod| text_at(pod, "/metadata/name")).collect();
    let [one, _] = names.as_slice() else { bail!("two pods: {names:?}") };
    let debug = ["debug", one, "--image=busybox", "--container=debug", "--", "sh", "-c", "echo debugging; sleep 3600"];
    scenario.kubectl(&debug)?;
    scenario.until("it is debugged", || {
        let pod = scenario.get("pods", one)?.unwrap_or_default();
        Ok(pod.pointer("/status/ephemeralContainerStatuses/0/state/running").map(|_| ()))
    })?;
    let whole = format!("logs-{}", scenario.namespace);
    let lines = collect(scenario, &whole, &[])?;
    for pod in &names {
        let place = |container: &str| format!("{}/{pod}/{container}", scenario.namespace);
        ensure!(said(&lines, (&place("init"), false)) == ["prepared"], "{pod}");
        ensure!(said(&lines, (&place("main"), true)) == ["first"], "{pod}");
        let now = said(&lines, (&place("main"), false));
        ensure!(now.first() == Some(&"second") && now.contains(&"tick"), "{pod}: {} lines", now.len());
        ensure!(now.iter().any(|line| line.len() == 1_000_000 && line.bytes().all(|byte| byte == b'x')), "{pod}");
        let numbers: Vec<String> = (1..=1_000).map(|number| number.to_string()).collect();
        ensure!(said(&lines, (&place("side"), false)) == numbers, "{pod}");
    }
    ensure!(said(&lines, (&format!("{}/{one}/debug", scenario.namespace), false)) == ["debugging"], "{one}");
    scenario.cluster.order(&format!("kill {second}"))?;
    let lost = pods.iter().find(|pod| text_at(pod, "/spec/nodeName") == second).context("no pod on the second node")?;
    let lines = collect(scenario, &format!("{whole}-too"), &[text_at(lost, "/metadata/name")])?;
    scenario.cluster.order(&format!("boot {second}"))?;
    ensure!(lines.iter().any(|line| line.ends_with(" tick")), "the other one is there");
    Ok(())
}

/// Tests that a job waits while the store is down as it writes the file, and that the file is in the bucket once the
/// store is back.
pub(crate) fn logs_are_in_a_bucket_although_its_store_goes_down(scenario: &Scenario) -> anyhow::Result<()> {
    scenario.cluster.deploy_with_bucket()?;
    let labels = json!({"app": "talk"});
    let talks = json!({"name": "main", "image": "busybox", "command": ["sh", "-c", "seq 100000; sleep 3600"]});
    scenario.apply(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "talk", "labels": labels}, "spec": {"containers": [talks]}}))?;
    scenario.until("it has said all", || {
        Ok(scenario.kubectl(&["logs", "talk", "--tail=1"])?.contains("100000").then_some(()))
    })?;
    let make = |name: &str| {
        let inputs = json!([{"name": "workload", "value": format!("{}/pod/talk", scenario.namespace)}]);
        scenario.apply(&json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "OpsJob", "metadata": {"name": name},
            "spec": {"type": "dumplog", "inputs": inputs}}))
    };
    let (whole, kept) = (format!("whole-{}", scenario.namespace), format!("kept-{}", scenario.namespace));
    let ended = |name: &str| {
        let job = scenario.until_is("opsjobs", name, "/status/phase", &["Succeeded", "Failed"])?;
        let outputs = outputs_of(&job);
        let path = scenario.cluster.root().join("store/files/prefix/artefacts").join(file_of(&outputs)?);
        let text = std::fs::read_to_string(&path).with_context(|| format!("no file: {job:#}"))?;
        ensure!(text.lines().count() == 100_000 && text.ends_with(" 100000\n"), "{} lines", text.lines().count());
        Ok(())
    };
    make(&whole)?;
    ended(&whole)?;
    // The host tries to read the pod for fifteen seconds, so the store must be down for less.
    scenario.cluster.order("stop store")?;
    make(&kept)?;
    scenario.until_is("opsjobs", &kept, "/status/phase", &["Running"])?;
    scenario.cluster.order("restart store")?;
    ended(&kept)?;
    [whole, kept].iter().try_for_each(|name| scenario.kubectl(&["delete", "opsjobs", name, "--timeout=60s"]).map(drop))
}
