//! Scripts that run on a node as root, each in a process group of its own.

use std::time::Duration;

use anyhow::ensure;
use oarlock_nodes::run::pause;

use crate::documents::{processes_of, targets_of, text_at};
use crate::scene::Scene;

fn start(scene: &Scene, script: &str, more: &[&str]) -> anyhow::Result<()> {
    let script = format!("script={script}");
    let flags = ["RunScript", "--name", "script", "--param", &script];
    scene.run(&[flags.as_slice(), more, &scene.targets()].concat())
}

/// The script writes a line each time that it begins.
pub(crate) fn a_script_runs_once_although_kubelet_and_containerd_are_killed(scene: &Scene) -> anyhow::Result<()> {
    let [node] = scene.nodes.as_slice() else { anyhow::bail!("one node is needed") };
    let file = format!("{}.log", scene.namespace);
    start(
        scene,
        &format!("echo begun >> /var/lib/oarlock/{file}; sleep 20; echo done >> /var/lib/oarlock/{file}"),
        &[],
    )?;
    scene.until("the script has begun", || Ok((!scene.bed.file_of(node, &file).is_empty()).then_some(())))?;
    scene.bed.signal(&["kubelet --kubeconfig", &format!("--hostname-override={node} ")], "KILL")?;
    pause(Duration::from_secs(5));
    scene.bed.signal(&["containerd --config", &format!("/{node}/containerd.toml")], "KILL")?;
    let job = scene.until_ended("script")?;
    ensure!(text_at(&job, "/status/progress") == "Succeeded", "{job:#}");
    ensure!(scene.bed.file_of(node, &file) == "begun\ndone\n", "{}", scene.bed.file_of(node, &file));
    Ok(())
}

/// Its whole process group is ended, and what it had put into the background.
pub(crate) fn a_script_that_takes_too_long_leaves_no_process(scene: &Scene) -> anyhow::Result<()> {
    let [node] = scene.nodes.as_slice() else { anyhow::bail!("one node is needed") };
    // Nobody else sleeps for so long.
    let long = "sleep 876543";
    start(scene, &format!("{long} & {long}"), &["--param", "timeoutSeconds=5"])?;
    scene.until("the script runs", || Ok((processes_of(long).len() == 2).then_some(())))?;
    let job = scene.until_ended("script")?;
    let found = targets_of(&job).remove(node).unwrap_or_default();
    ensure!(found.starts_with("Failed/"), "{job:#}");
    ensure!(text_at(&job, "/status/targetDetails/0/error/message").contains("timed out after 5 s"), "{job:#}");
    scene.until("no process is left", || Ok(processes_of(long).is_empty().then_some(())))
}
