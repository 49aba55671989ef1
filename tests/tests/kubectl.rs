//! kubectl against `oarlock dev`, as a user has both: a process of its own each, and nothing but the kubeconfig between them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use oarlock_bed::children::Child;
use oarlock_tests::components::component;
use oarlock_tests::crash::process::host_binary;
use serde_json::{Value, json};

/// It is ready within a second where nothing else runs.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// A running `oarlock dev` and what it wrote. It ends with this value.
struct Dev {
    folder: PathBuf,
    child: Child,
    kubectl: PathBuf,
}

impl Dev {
    fn start() -> anyhow::Result<Self> {
        let folder = std::env::temp_dir().join(format!("oarlock-kubectl-{}", std::process::id()));
        let plugins = folder.join("plugins");
        std::fs::create_dir_all(&plugins)?;
        std::fs::write(plugins.join("replace.wasm"), component("replace")?)?;
        let mut command = Command::new(host_binary()?);
        command.arg("dev").arg("--plugins").arg(&plugins).arg("--kubeconfig-out").arg(folder.join("kubeconfig"));
        command.env("XDG_CACHE_HOME", folder.join("cache"));
        let child = Child::spawn("oarlock dev", command, folder.join("dev.log"))?;
        // The one of the test's own control plane: the version that this API says it is.
        let kubectl = controlplane::binaries(&|line| eprintln!("control plane: {line}"))?.kubectl;
        Ok(Self { folder, child, kubectl })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.kubectl);
        command.env("KUBECONFIG", self.folder.join("kubeconfig")).env("HOME", &self.folder).args(arguments);
        command
    }

    fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = self.command(arguments).output().context("kubectl does not run")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {arguments:?}: {text}{errors}\n{}", self.child.tail(30));
        Ok(text)
    }

    /// Asks until all pods are there and ready.
    async fn until_ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        let wait = ["wait", "pods", "--all", "--for=condition=Ready", "--timeout=30s"];
        while let Err(cause) = self.kubectl(&wait) {
            if let Some(status) = self.child.ended()? {
                anyhow::bail!("it ended with {status}:\n{}", self.child.tail(30));
            }
            ensure!(Instant::now() < deadline, "{cause:#}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        self.child.kill();
        let _gone = std::fs::remove_dir_all(&self.folder).is_ok();
    }
}

fn write(path: &Path, value: &Value) -> anyhow::Result<String> {
    std::fs::write(path, value.to_string())?;
    Ok(path.to_string_lossy().into_owned())
}

#[tokio::test]
async fn a_user_of_oarlock_dev_applies_watches_edits_explains_and_deletes_a_job() -> anyhow::Result<()> {
    let mut dev = Dev::start()?;
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
