//! The binary `oarlock host` as a process that is killed with SIGKILL and started again.
//!
//! Takes a control plane and the address of a counting proxy; yields a process that uses the proxy with the host's own
//! account. Kills only this process, by its id. May not help the process: a restarted process has nothing but the same name.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context as _;
use oarlock_support::accounts::Account;
use oarlock_support::children::Child;
use oarlock_support::control_plane::ControlPlane;
use oarlock_support::faults::Killer;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::components::{GRANTS, component};

/// A host process and its successors.
#[derive(Clone)]
pub struct HostProcess {
    identity: String,
    folder: PathBuf,
    kubeconfig: PathBuf,
    arguments: Vec<String>,
    child: Arc<Mutex<Option<Child>>>,
    killed: Arc<Notify>,
    kills: Arc<AtomicUsize>,
}

impl HostProcess {
    /// Starts a host with the Replace plugin that uses `plane` through the proxy at `url`.
    ///
    /// # Errors
    /// If a file or the binary is missing. The error names it.
    pub fn start(plane: &ControlPlane, url: &str) -> anyhow::Result<Self> {
        Self::start_as(plane, url, "host-0")
    }

    /// Starts such a host under this name.
    ///
    /// # Errors
    /// If a file or the binary is missing. The error names it.
    pub fn start_as(plane: &ControlPlane, url: &str, identity: &str) -> anyhow::Result<Self> {
        let process = Self::prepare(plane, plane.kubeconfig_via(Account::Host, url)?, identity)?;
        process.begin()?;
        Ok(process)
    }

    /// Prepares a host with the Replace plugin that uses this kubeconfig. Does not start the host.
    ///
    /// # Errors
    /// If a file is missing. The error names it.
    pub fn prepare(plane: &ControlPlane, kubeconfig: PathBuf, identity: &str) -> anyhow::Result<Self> {
        let folder = plane.folder().join(identity);
        let plugins = folder.join("plugins");
        std::fs::create_dir_all(&plugins).context("cannot create the plugin directory")?;
        std::fs::write(plugins.join("replace.wasm"), component("replace")?).context("cannot write the plugin")?;
        std::fs::write(folder.join("grants.yaml"), GRANTS).context("cannot write the grants")?;
        let (identity, arguments) = (identity.to_owned(), Vec::new());
        let (child, killed, kills) = (Arc::default(), Arc::default(), Arc::default());
        Ok(Self { identity, folder, kubeconfig, arguments, child, killed, kills })
    }

    /// Gives each later start of the process one more argument.
    #[must_use]
    pub fn with(mut self, argument: String) -> Self {
        self.arguments.push(argument);
        self
    }

    /// Starts the process.
    ///
    /// # Errors
    /// If the binary cannot be started.
    pub fn begin(&self) -> anyhow::Result<()> {
        self.begin_with(&host_binary()?)
    }

    /// Starts the process with this binary.
    ///
    /// # Errors
    /// If the binary cannot be started.
    pub fn begin_with(&self, binary: &Path) -> anyhow::Result<()> {
        let mut command = Command::new(binary);
        command.args(["host", "--identity", &self.identity, "--listen", "127.0.0.1:0", "--task-image", "oarlock"]);
        command.arg("--plugins").arg(self.folder.join("plugins")).arg("--kubeconfig").arg(&self.kubeconfig);
        command.args(&self.arguments);
        // A cache in the folder keeps compiled plugins for the next start and leaves the user's own cache alone.
        command.env("XDG_CACHE_HOME", self.folder.join("cache"));
        let child = Child::spawn("oarlock", command, self.folder.join("host.log"))?;
        *self.child.lock() = Some(child);
        Ok(())
    }

    /// Adds a plugin to the plugin folder, and these grants to the grant of Replace.
    ///
    /// # Errors
    /// If a file is missing. The error names it.
    pub fn drop_plugin(&self, name: &str, grants: &str) -> anyhow::Result<()> {
        let file = self.folder.join("plugins").join(format!("{name}.wasm"));
        std::fs::write(file, component(name)?).context("cannot write the plugin")?;
        self.grant(&format!("{GRANTS}\n---\n{grants}"))
    }

    /// Replaces the grants.
    ///
    /// # Errors
    /// If the grants cannot be written.
    pub fn grant(&self, grants: &str) -> anyhow::Result<()> {
        std::fs::write(self.folder.join("grants.yaml"), grants).context("cannot write the grants")
    }

    /// Stops the process, as SIGSTOP does.
    ///
    /// # Errors
    /// If the process does not run.
    pub fn freeze(&self) -> anyhow::Result<()> {
        self.child.lock().as_ref().context("the host does not run")?.freeze()
    }

    /// Lets a stopped process go on.
    ///
    /// # Errors
    /// If the process does not run.
    pub fn thaw(&self) -> anyhow::Result<()> {
        self.child.lock().as_ref().context("the host does not run")?.thaw()
    }

    /// Returns a function that kills the process that runs at its call.
    #[must_use]
    pub fn killer(&self) -> Killer {
        let (child, killed, kills) = (self.child.clone(), self.killed.clone(), self.kills.clone());
        Arc::new(move || {
            let running = child.lock().take();
            if let Some(mut running) = running {
                running.kill();
                kills.fetch_add(1, Ordering::SeqCst);
                killed.notify_one();
            }
        })
    }

    /// Returns the number of kills.
    #[must_use]
    pub fn kills(&self) -> usize {
        self.kills.load(Ordering::SeqCst)
    }

    /// Waits until the process was killed.
    pub async fn killed(&self) {
        self.killed.notified().await;
    }

    /// Fails if the process has ended by itself.
    ///
    /// # Errors
    /// If the process has ended. The error shows the end of its log.
    pub fn check(&self) -> anyhow::Result<()> {
        let mut child = self.child.lock();
        let Some(running) = child.as_mut() else { return Ok(()) };
        match running.ended()? {
            Some(status) => anyhow::bail!("the host ended by itself with {status}:\n{}", running.tail(30)),
            None => Ok(()),
        }
    }

    /// Returns the end of the log.
    #[must_use]
    pub fn tail(&self) -> String {
        self.child.lock().as_ref().map(|running| running.tail(40)).unwrap_or_default()
    }

    /// Ends the process for good.
    pub fn end(&self) {
        self.child.lock().take();
    }
}

/// Returns the path in `OARLOCK_BINARY`, or the path to which `cargo build` writes the host.
///
/// # Errors
/// If there is no such file. The error names the command that builds it.
pub fn host_binary() -> anyhow::Result<PathBuf> {
    let named = std::env::var_os("OARLOCK_BINARY").map(PathBuf::from);
    let built = || {
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target")), PathBuf::from);
        target.join("debug").join("oarlock")
    };
    let path = named.unwrap_or_else(built);
    anyhow::ensure!(
        path.is_file(),
        "there is no host at {}: run `cargo build`, or name one in OARLOCK_BINARY",
        path.display()
    );
    Ok(path)
}
