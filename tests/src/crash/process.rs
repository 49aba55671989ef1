//! The binary `oarlock host` as a process that is killed with SIGKILL and started again.
//!
//! Takes a control plane and the address of a counting proxy; yields a process that speaks through it with the host's own
//! account. Only that one process is ever killed, by its id. May not help it: a restart has nothing but the same name.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context as _;
use oarlock_bed::accounts::Account;
use oarlock_bed::children::Child;
use oarlock_bed::control_plane::ControlPlane;
use oarlock_bed::faults::Killer;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::components::{GRANTS, component};

/// A host process, and those that come after it.
#[derive(Clone)]
pub struct HostProcess {
    identity: String,
    folder: PathBuf,
    kubeconfig: PathBuf,
    child: Arc<Mutex<Option<Child>>>,
    killed: Arc<Notify>,
    kills: Arc<AtomicUsize>,
}

impl HostProcess {
    /// Starts a host with the Replace plugin that speaks to `plane` through the proxy at `url`.
    ///
    /// # Errors
    /// Names what is missing.
    pub fn start(plane: &ControlPlane, url: &str) -> anyhow::Result<Self> {
        Self::start_as(plane, url, "host-0")
    }

    /// The same, under this name.
    ///
    /// # Errors
    /// Names what is missing.
    pub fn start_as(plane: &ControlPlane, url: &str, identity: &str) -> anyhow::Result<Self> {
        let process = Self::prepare(plane, plane.kubeconfig_via(Account::Host, url)?, identity)?;
        process.begin()?;
        Ok(process)
    }

    /// A host with the Replace plugin that uses this kubeconfig and was not started yet.
    ///
    /// # Errors
    /// Names what is missing.
    pub fn prepare(plane: &ControlPlane, kubeconfig: PathBuf, identity: &str) -> anyhow::Result<Self> {
        let folder = plane.folder().join(identity);
        let plugins = folder.join("plugins");
        std::fs::create_dir_all(&plugins).context("cannot create the plugin directory")?;
        std::fs::write(plugins.join("replace.wasm"), component("replace")?).context("cannot write the plugin")?;
        std::fs::write(folder.join("grants.yaml"), GRANTS).context("cannot write the grants")?;
        let identity = identity.to_owned();
        Ok(Self { identity, folder, kubeconfig, child: Arc::default(), killed: Arc::default(), kills: Arc::default() })
    }

    /// Starts it once more.
    ///
    /// # Errors
    /// If the binary cannot be started.
    pub fn begin(&self) -> anyhow::Result<()> {
        self.begin_with(&host_binary()?)
    }

    /// Starts it once more, with this binary.
    ///
    /// # Errors
    /// If the binary cannot be started.
    pub fn begin_with(&self, binary: &Path) -> anyhow::Result<()> {
        let mut command = Command::new(binary);
        command.args(["host", "--identity", &self.identity, "--listen", "127.0.0.1:0", "--task-image", "oarlock"]);
        command.arg("--plugins").arg(self.folder.join("plugins")).arg("--kubeconfig").arg(&self.kubeconfig);
        // What was compiled is found again, and the user's own cache is left alone.
        command.env("XDG_CACHE_HOME", self.folder.join("cache"));
        let child = Child::spawn("oarlock", command, self.folder.join("host.log"))?;
        *self.child.lock() = Some(child);
        Ok(())
    }

    /// Drops one more plugin into its directory, and these grants beside those that are there.
    ///
    /// # Errors
    /// Names what is missing.
    pub fn drop_plugin(&self, name: &str, grants: &str) -> anyhow::Result<()> {
        let file = self.folder.join("plugins").join(format!("{name}.wasm"));
        std::fs::write(file, component(name)?).context("cannot write the plugin")?;
        self.grant(&format!("{GRANTS}\n---\n{grants}"))
    }

    /// These grants instead of those that are there.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn grant(&self, grants: &str) -> anyhow::Result<()> {
        std::fs::write(self.folder.join("grants.yaml"), grants).context("cannot write the grants")
    }

    /// Stops it where it stands, as SIGSTOP does.
    ///
    /// # Errors
    /// If it does not run.
    pub fn freeze(&self) -> anyhow::Result<()> {
        self.child.lock().as_ref().context("the host does not run")?.freeze()
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// If it does not run.
    pub fn thaw(&self) -> anyhow::Result<()> {
        self.child.lock().as_ref().context("the host does not run")?.thaw()
    }

    /// Kills whichever process runs then.
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

    /// How often it was killed.
    #[must_use]
    pub fn kills(&self) -> usize {
        self.kills.load(Ordering::SeqCst)
    }

    /// Resolves once it was killed.
    pub async fn killed(&self) {
        self.killed.notified().await;
    }

    /// Fails if it has ended by itself.
    ///
    /// # Errors
    /// Shows the end of its log.
    pub fn check(&self) -> anyhow::Result<()> {
        let mut child = self.child.lock();
        let Some(running) = child.as_mut() else { return Ok(()) };
        match running.ended()? {
            Some(status) => anyhow::bail!("the host ended by itself with {status}:\n{}", running.tail(30)),
            None => Ok(()),
        }
    }

    /// The end of its log.
    #[must_use]
    pub fn tail(&self) -> String {
        self.child.lock().as_ref().map(|running| running.tail(40)).unwrap_or_default()
    }

    /// Ends it for good.
    pub fn end(&self) {
        self.child.lock().take();
    }
}

/// `OARLOCK_BINARY`, or what `cargo build` leaves.
///
/// # Errors
/// Names the command that builds it.
pub fn host_binary() -> anyhow::Result<PathBuf> {
    let named = std::env::var_os("OARLOCK_BINARY").map(PathBuf::from);
    let built = || {
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target")), PathBuf::from);
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
