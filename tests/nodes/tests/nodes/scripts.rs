//! Scripts that run on a node as root, each in its own process group.

use std::time::Duration;

use anyhow::ensure;
use oarlock_nodes::run::pause;

use crate::documents::{processes_of, targets_of, text_at};
use crate::scenario::Scenario;

fn start(scenario: &Scenario, script: &str, more: &[&str]) -> anyhow::Result<()> {
    let script = format!("script={script}");
    let flags = ["RunScript", "--name", "script", "--param", &script];
    scenario.run(&[flags.as_slice(), more, &scenario.targets()].concat())
}

/// Tests that a script runs once although kubelet and containerd are killed. It writes a line each time it begins.
pub(crate) fn a_script_runs_once_although_kubelet_and_containerd_are_killed(scenario: &Scenario) -> anyhow::Result<()> {
    let [node] = scenario.nodes.as_slice() else { anyhow::bail!("one node is needed") };
    let file = format!("{}.log", scenario.namespace);
    start(
        scenario,
        &format!("echo begun >> /var/lib/oarlock/{file}; sleep 20; echo done >> /var/lib/oarlock/{file}"),
        &[],
    )?;
    scenario.until("the script has begun", || Ok((!scenario.cluster.file_of(node, &file).is_empty()).then_some(())))?;
    scenario.cluster.signal(&["kubelet --kubeconfig", &format!("--hostname-override={node} ")], "KILL")?;
    pause(Duration::from_secs(5));
    scenario.cluster.signal(&["containerd --config", &format!("/{node}/containerd.toml")], "KILL")?;
    let job = scenario.until_ended("script")?;
    ensure!(text_at(&job, "/status/progress") == "Succeeded", "{job:#}");
    ensure!(scenario.cluster.file_of(node, &file) == "begun\ndone\n", "{}", scenario.cluster.file_of(node, &file));
    Ok(())
}

/// Tests that a timeout ends the whole process group of a script, background processes included.
pub(crate) fn a_script_that_takes_too_long_leaves_no_process(scenario: &Scenario) -> anyhow::Result<()> {
    let [node] = scenario.nodes.as_slice() else { anyhow::bail!("one node is needed") };
    // No other process sleeps for this time.
    let long = "sleep 876543";
    start(scenario, &format!("{long} & {long}"), &["--param", "timeoutSeconds=5"])?;
    scenario.until("the script runs", || Ok((processes_of(long).len() == 2).then_some(())))?;
    let job = scenario.until_ended("script")?;
    let found = targets_of(&job).remove(node).unwrap_or_default();
    ensure!(found.starts_with("Failed/"), "{job:#}");
    ensure!(text_at(&job, "/status/targetDetails/0/error/message").contains("timed out after 5 s"), "{job:#}");
    scenario.until("no process is left", || Ok(processes_of(long).is_empty().then_some(())))
}
