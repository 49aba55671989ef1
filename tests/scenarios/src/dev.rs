//! A running `oarlock dev`: its own process, which clients reach through its kubeconfig only.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use oarlock_support::children::Child;

use crate::components::component;
use crate::host_process::host_binary;

/// The time limit for readiness. On an idle machine `oarlock dev` is ready within a second.
pub const READY_WITHIN: Duration = Duration::from_secs(120);

/// A running `oarlock dev` and the files it wrote. The process ends when this value is dropped.
#[derive(Debug)]
pub struct Dev {
    /// The folder of the process: plugins, kubeconfig, log.
    pub folder: PathBuf,
    /// The process.
    pub child: Child,
    /// The kubectl binary of the control plane that tests use.
    pub kubectl: PathBuf,
}

impl Dev {
    /// Starts `oarlock dev` with the Replace plugin, in a folder of this name.
    ///
    /// # Errors
    ///
    /// Fails if the host, the plugin or kubectl is missing.
    pub fn start(name: &str) -> anyhow::Result<Self> {
        let folder = std::env::temp_dir().join(format!("oarlock-dev-{}-{name}", std::process::id()));
        let plugins = folder.join("plugins");
        std::fs::create_dir_all(&plugins)?;
        std::fs::write(plugins.join("replace.wasm"), component("replace")?)?;
        let mut command = Command::new(host_binary()?);
        command.arg("dev").arg("--plugins").arg(&plugins).arg("--kubeconfig-out").arg(folder.join("kubeconfig"));
        command.env("XDG_CACHE_HOME", folder.join("cache"));
        let child = Child::spawn("oarlock dev", command, folder.join("dev.log"))?;
        let kubectl = controlplane::binaries(&|line| eprintln!("control plane: {line}"))?.kubectl;
        Ok(Self { folder, child, kubectl })
    }

    /// Returns a kubectl command with these arguments for this cluster.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.kubectl);
        command.env("KUBECONFIG", self.folder.join("kubeconfig")).env("HOME", &self.folder).args(arguments);
        command
    }

    /// Runs kubectl and returns its output.
    ///
    /// # Errors
    ///
    /// Fails with all output if kubectl exits with an error.
    pub fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = self.command(arguments).output().context("kubectl does not run")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {arguments:?}: {text}{errors}\n{}", self.child.tail(30));
        Ok(text)
    }

    /// Runs `kubectl wait` until all pods exist and are ready.
    ///
    /// # Errors
    ///
    /// Fails if the pods are not ready in time, or if the process has ended.
    pub async fn until_ready(&mut self) -> anyhow::Result<()> {
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
