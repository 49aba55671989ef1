//! Checks of nodes: the results must come from the node, and not from a claim about it.

use anyhow::ensure;
use serde_json::Value;

use crate::documents::{is_ready, processes_of, targets_of, text_at};
use crate::scenario::Scenario;

/// Runs a check on all nodes of the scenario. Returns the ended job.
fn check(scenario: &Scenario, name: &str, parameters: &[&str]) -> anyhow::Result<Value> {
    let parameters: Vec<&str> = parameters.iter().flat_map(|one| ["--param", one]).collect();
    let flags = ["preflight", "--name", name, "--param", "tolerateAll=true"];
    scenario.run(&[flags.as_slice(), &parameters, &scenario.targets()].concat())?;
    scenario.until_ended(name)
}

fn words_of(job: &Value) -> String {
    text_at(job, "/status/targetDetails/0/error/message").to_owned()
}

/// Tests exit codes, termination messages, a missing image, and directories of the node.
pub(crate) fn a_check_is_what_its_program_and_its_message_say(scenario: &Scenario) -> anyhow::Result<()> {
    let [node] = scenario.nodes.as_slice() else { anyhow::bail!("one node is needed") };
    let cases: [(&str, &str, &str, &str); 5] = [
        ("fine", "image=busybox", "script=test -e /etc/passwd", "Succeeded"),
        ("exits", "image=busybox", "script=echo bad disk > /dev/termination-log; exit 3", "Failed/CheckFailed"),
        (
            "says",
            "image=busybox",
            "script=echo '{\"passed\": false, \"message\": \"no fan\"}' > /dev/termination-log",
            "Failed/ReportedFailure",
        ),
        // The timeout is shorter than the host's limit for a start. A kubelet that ends a pod forgets the reason why
        // the pod waited.
        ("missing", "image=nowhere.example/none:1", "script=exit 0", "Failed/ImagePull"),
        ("refused", "image=busybox", "hostPaths=[\"/etc\"]", "Failed"),
    ];
    for (name, image, script, wanted) in cases {
        let job = check(scenario, name, &[image, script, "timeoutSeconds=30"])?;
        let found = targets_of(&job).remove(node).unwrap_or_default();
        ensure!(found.starts_with(wanted), "{name}: {found}, {}", words_of(&job));
    }
    let exits = scenario.get("operationjobs", "exits")?.unwrap_or_default();
    ensure!(words_of(&exits).contains("exit code 3: bad disk"), "{}", words_of(&exits));
    // The host covers the logs of pods below a granted directory.
    let script =
        "script=test -d /var/log && test -z \"$(ls -A /var/log/pods)\" && test -z \"$(ls -A /var/log/containers)\"";
    let job = check(scenario, "logs", &["image=busybox", "hostPaths=[\"/var/log\"]", script])?;
    ensure!(text_at(&job, "/status/progress") == "Succeeded", "{job:#}");
    Ok(())
}

/// Tests that a check continues and reports its end if kubelet and containerd are killed while it runs.
pub(crate) fn a_check_ends_well_although_kubelet_and_containerd_are_killed(scenario: &Scenario) -> anyhow::Result<()> {
    let [node] = scenario.nodes.as_slice() else { anyhow::bail!("one node is needed") };
    let flags = ["preflight", "--name", "check", "--param", "tolerateAll=true", "--param", "image=busybox"];
    let script = ["--param", "script=sleep 20; echo well > /dev/termination-log"];
    scenario.run(&[flags.as_slice(), &script, &scenario.targets()].concat())?;
    scenario.until("the check runs", || {
        let job = scenario.get("operationjobs", "check")?.unwrap_or_default();
        Ok(job.to_string().contains("\\\"state\\\":\\\"Running\\\"").then_some(()))
    })?;
    scenario.cluster.signal(&["kubelet --kubeconfig", &format!("--hostname-override={node} ")], "KILL")?;
    scenario.cluster.signal(&["containerd --config", &format!("/{node}/containerd.toml")], "KILL")?;
    let job = scenario.until_ended("check")?;
    ensure!(text_at(&job, "/status/progress") == "Succeeded", "{job:#}");
    Ok(())
}

/// Tests that no check passes on a node whose kubelet is stopped. Such a node becomes not Ready after a while.
pub(crate) fn a_node_whose_kubelet_stands_still_is_no_healthy_one(scenario: &Scenario) -> anyhow::Result<()> {
    let [node] = scenario.nodes.as_slice() else { anyhow::bail!("one node is needed") };
    let kubelet = ["kubelet --kubeconfig", &format!("--hostname-override={node} ")];
    scenario.cluster.signal(&kubelet, "STOP")?;
    scenario.until("the node is not Ready", || {
        let text = scenario.cluster.kubectl(&["get", "node", node, "-o", "json"])?;
        Ok((!is_ready(&serde_json::from_str(&text)?)).then_some(()))
    })?;
    let job = check(scenario, "check", &["image=busybox", "script=exit 0"])?;
    scenario.cluster.signal(&kubelet, "CONT")?;
    let found = targets_of(&job).remove(node).unwrap_or_default();
    ensure!(found == "Failed/NodeNotReady", "{found}, {}", words_of(&job));
    Ok(())
}

/// Tests that a check that takes too long reports that, and leaves no process on the node.
pub(crate) fn a_check_that_takes_too_long_leaves_no_process(scenario: &Scenario) -> anyhow::Result<()> {
    let [node] = scenario.nodes.as_slice() else { anyhow::bail!("one node is needed") };
    // No other process sleeps for this time.
    let long = "sleep 987654";
    let script = format!("script={long} & setsid {long} & {long}");
    let parameters = ["image=busybox", &script, "timeoutSeconds=10", "tolerateAll=true"];
    let parameters: Vec<&str> = parameters.iter().flat_map(|one| ["--param", one]).collect();
    scenario.run(&[["preflight", "--name", "check"].as_slice(), &parameters, &scenario.targets()].concat())?;
    scenario.until("the check runs", || Ok((!processes_of(long).is_empty()).then_some(())))?;
    let job = scenario.until_ended("check")?;
    let found = targets_of(&job).remove(node).unwrap_or_default();
    ensure!(found == "Failed/CheckTimeout", "{found}, {}", words_of(&job));
    scenario.until("no process is left", || Ok(processes_of(long).is_empty().then_some(())))
}
