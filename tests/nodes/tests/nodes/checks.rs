//! Checks of nodes: what the node says, and not what somebody claims.

use anyhow::ensure;
use serde_json::Value;

use crate::documents::{is_ready, processes_of, targets_of, text_at};
use crate::scene::Scene;

/// The ended job of a check of all nodes of the scene.
fn check(scene: &Scene, name: &str, parameters: &[&str]) -> anyhow::Result<Value> {
    let parameters: Vec<&str> = parameters.iter().flat_map(|one| ["--param", one]).collect();
    let flags = ["preflight", "--name", name, "--param", "tolerateAll=true"];
    scene.run(&[flags.as_slice(), &parameters, &scene.targets()].concat())?;
    scene.until_ended(name)
}

fn words_of(job: &Value) -> String {
    text_at(job, "/status/targetDetails/0/error/message").to_owned()
}

/// Exit codes, termination messages, an image that is not there, and directories of the node.
pub(crate) fn a_check_is_what_its_program_and_its_message_say(scene: &Scene) -> anyhow::Result<()> {
    let [node] = scene.nodes.as_slice() else { anyhow::bail!("one node is needed") };
    let cases: [(&str, &str, &str, &str); 5] = [
        ("fine", "image=busybox", "script=test -e /etc/passwd", "Succeeded"),
        ("exits", "image=busybox", "script=echo bad disk > /dev/termination-log; exit 3", "Failed/CheckFailed"),
        (
            "says",
            "image=busybox",
            "script=echo '{\"passed\": false, \"message\": \"no fan\"}' > /dev/termination-log",
            "Failed/ReportedFailure",
        ),
        // Its time is over before the host gives up its start, and a kubelet that ends a pod forgets what that waited for.
        ("missing", "image=nowhere.example/none:1", "script=exit 0", "Failed/ImagePull"),
        ("refused", "image=busybox", "hostPaths=[\"/etc\"]", "Failed"),
    ];
    for (name, image, script, wanted) in cases {
        let job = check(scene, name, &[image, script, "timeoutSeconds=30"])?;
        let found = targets_of(&job).remove(node).unwrap_or_default();
        ensure!(found.starts_with(wanted), "{name}: {found}, {}", words_of(&job));
    }
    let exits = scene.get("operationjobs", "exits")?.unwrap_or_default();
    ensure!(words_of(&exits).contains("exit code 3: bad disk"), "{}", words_of(&exits));
    // The logs of pods below a directory that is granted are covered.
    let script =
        "script=test -d /var/log && test -z \"$(ls -A /var/log/pods)\" && test -z \"$(ls -A /var/log/containers)\"";
    let job = check(scene, "logs", &["image=busybox", "hostPaths=[\"/var/log\"]", script])?;
    ensure!(text_at(&job, "/status/progress") == "Succeeded", "{job:#}");
    Ok(())
}

/// kubelet and containerd are killed while a check runs, which goes on, and its end is seen.
pub(crate) fn a_check_ends_well_although_kubelet_and_containerd_are_killed(scene: &Scene) -> anyhow::Result<()> {
    let [node] = scene.nodes.as_slice() else { anyhow::bail!("one node is needed") };
    let flags = ["preflight", "--name", "check", "--param", "tolerateAll=true", "--param", "image=busybox"];
    let script = ["--param", "script=sleep 20; echo well > /dev/termination-log"];
    scene.run(&[flags.as_slice(), &script, &scene.targets()].concat())?;
    scene.until("the check runs", || {
        let job = scene.get("operationjobs", "check")?.unwrap_or_default();
        Ok(job.to_string().contains("\\\"state\\\":\\\"Running\\\"").then_some(()))
    })?;
    scene.bed.signal(&["kubelet --kubeconfig", &format!("--hostname-override={node} ")], "KILL")?;
    scene.bed.signal(&["containerd --config", &format!("/{node}/containerd.toml")], "KILL")?;
    let job = scene.until_ended("check")?;
    ensure!(text_at(&job, "/status/progress") == "Succeeded", "{job:#}");
    Ok(())
}

/// A kubelet that stands still is not Ready after a while, and no check passes on its node.
pub(crate) fn a_node_whose_kubelet_stands_still_is_no_healthy_one(scene: &Scene) -> anyhow::Result<()> {
    let [node] = scene.nodes.as_slice() else { anyhow::bail!("one node is needed") };
    let kubelet = ["kubelet --kubeconfig", &format!("--hostname-override={node} ")];
    scene.bed.signal(&kubelet, "STOP")?;
    scene.until("the node is not Ready", || {
        let text = scene.bed.kubectl(&["get", "node", node, "-o", "json"])?;
        Ok((!is_ready(&serde_json::from_str(&text)?)).then_some(()))
    })?;
    let job = check(scene, "check", &["image=busybox", "script=exit 0"])?;
    scene.bed.signal(&kubelet, "CONT")?;
    let found = targets_of(&job).remove(node).unwrap_or_default();
    ensure!(found == "Failed/NodeNotReady", "{found}, {}", words_of(&job));
    Ok(())
}

/// A check that runs for too long says so, and none of its processes is left on the node.
pub(crate) fn a_check_that_takes_too_long_leaves_no_process(scene: &Scene) -> anyhow::Result<()> {
    let [node] = scene.nodes.as_slice() else { anyhow::bail!("one node is needed") };
    // Nobody else sleeps for so long.
    let long = "sleep 987654";
    let script = format!("script={long} & setsid {long} & {long}");
    let parameters = ["image=busybox", &script, "timeoutSeconds=10", "tolerateAll=true"];
    let parameters: Vec<&str> = parameters.iter().flat_map(|one| ["--param", one]).collect();
    scene.run(&[["preflight", "--name", "check"].as_slice(), &parameters, &scene.targets()].concat())?;
    scene.until("the check runs", || Ok((!processes_of(long).is_empty()).then_some(())))?;
    let job = scene.until_ended("check")?;
    let found = targets_of(&job).remove(node).unwrap_or_default();
    ensure!(found == "Failed/CheckTimeout", "{found}, {}", words_of(&job));
    scene.until("no process is left", || Ok(processes_of(long).is_empty().then_some(())))
}
