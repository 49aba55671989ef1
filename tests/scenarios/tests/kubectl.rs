//! kubectl against `oarlock dev`, as a user runs both: each in its own process, sharing nothing but the kubeconfig.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::ensure;
use oarlock_scenarios::dev::{Dev, READY_WITHIN};
use oarlock_support::children::Child;
use serde_json::{Value, json};

fn write(path: &Path, value: &Value) -> anyhow::Result<String> {
    std::fs::write(path, value.to_string())?;
    Ok(path.to_string_lossy().into_owned())
}

#[tokio::test]
async fn a_user_of_oarlock_dev_applies_watches_edits_explains_and_deletes_a_job() -> anyhow::Result<()> {
    let mut dev = Dev::start("kubectl")?;
    dev.until_ready().await?;
    let names = dev.kubectl(&["get", "pods", "-l", "app=foo", "-o", "jsonpath={.items[*].metadata.name}"])?;
    let targets: Vec<Value> = names.split_whitespace().take(2).map(|name| json!({ "name": name })).collect();
    ensure!(targets.len() == 2, "two pods of the CollaSet: {names:?}");
    let explained = dev.kubectl(&["explain", "opj.spec.partition"])?;
    ensure!(explained.contains("partition") && explained.contains("integer"), "{explained}");
    let job = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob", "metadata": {"name": "x"},
        "spec": {"action": "Replace", "partition": 1, "targets": targets},
    });
    let file = write(&dev.folder.join("job.json"), &job)?;
    dev.kubectl(&["apply", "-f", &file])?;
    dev.kubectl(&["wait", "--timeout=60s", "--for=jsonpath={.status.succeededPodCount}=1", "opj/x"])?;
    let log = dev.folder.join("watch.log");
    let watching = Child::spawn("kubectl get -w", dev.command(&["get", "opj", "x", "-w"]), log.clone())?;
    let more = json!({"apiVersion": job["apiVersion"], "kind": job["kind"], "metadata": job["metadata"],
        "spec": {"action": "Replace", "partition": 2, "targets": targets}});
    let file = write(&dev.folder.join("more.json"), &more)?;
    let changed = dev.kubectl(&["apply", "-f", &file])?;
    ensure!(changed.contains("configured"), "{changed}");
    dev.kubectl(&["wait", "--timeout=60s", "--for=condition=Complete", "opj/x"])?;
    let deadline = Instant::now() + READY_WITHIN;
    while !std::fs::read_to_string(&log)?.contains("Succeeded") {
        ensure!(Instant::now() < deadline, "the watch never showed the end: {}", watching.tail(30));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let edited = dev.command(&["edit", "opj", "x"]).env("KUBE_EDITOR", "sed -i s/partition:/partition:/").output()?;
    let said = String::from_utf8_lossy(&edited.stderr).into_owned() + &String::from_utf8_lossy(&edited.stdout);
    ensure!(edited.status.success() && said.contains("no changes made"), "edit: {said}");
    let refused = dev.command(&["patch", "opj", "x", "--type=merge", "-p", r#"{"spec":{"partition":0}}"#]).output()?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(!refused.status.success() && said.contains("partition"), "a partition is never lowered: {said}");
    let described = dev.kubectl(&["describe", "opj", "x"])?;
    for word in ["ReplaceOriginPod", "ReplaceNewPod", "Completed", "operationjob-controller", "Succeeded"] {
        ensure!(described.contains(word), "{word} is not in {described}");
    }
    dev.kubectl(&["delete", "opj", "x", "--timeout=60s"])?;
    let left = dev.kubectl(&["get", "opj", "-o", "name"])?;
    ensure!(left.trim().is_empty(), "{left}");
    Ok(())
}
