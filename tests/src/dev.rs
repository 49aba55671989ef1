//! A running `oarlock dev`: a process of its own, and nothing but its kubeconfig between it and those who use it.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use oarlock_bed::children::Child;

use crate::components::component;
use crate::crash::process::host_binary;

/// It is ready within a second where nothing else runs.
pub const READY_WITHIN: Duration = Duration::from_secs(120);

/// A running `oarlock dev` and what it wrote. It ends with this value.
#[derive(Debug)]
pub struct Dev {
    /// Its folder: plugins, kubeconfig, log.
    pub folder: PathBuf,
    /// The process.
    pub child: Child,
    /// The kubectl of the test's own control plane.
    pub kubectl: PathBuf,
}

impl Dev {
    /// Starts one with the Replace plugin, in a folder of this name.
    ///
    /// # Errors
    ///
    /// Fails if host, plugin or kubectl are missing.
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

    /// kubectl with these arguments, for this cluster.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.kubectl);
        command.env("KUBECONFIG", self.folder.join("kubeconfig")).env("HOME", &self.folder).args(arguments);
        command
    }

    /// Runs kubectl, and yields what it printed.
    ///
    /// # Errors
    ///
    /// Fails with all that it printed if it says that it did not succeed.
    pub fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = self.command(arguments).output().context("kubectl does not run")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {arguments:?}: {text}{errors}\n{}", self.child.tail(30));
        Ok(text)
    }

    /// Asks until all pods are there and ready.
    ///
    /// # Errors
    ///
    /// Fails if they are not in time, or if the process has ended.
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
