//! The contenders as separate processes: the host and the bare client.
//!
//! The bench observes a process through `/proc` and ends it by its own id. Linux only, like all benches.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use oarlock_support::{children, install};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::arguments::Mode;

/// The grants of replace.
pub(crate) const GRANTS: &str = include_str!("../../../plugins/replace/grant.yaml");

/// The grants of the hostile fixtures.
const HOSTILE_GRANTS: &str = include_str!("../../plugins/hostile/grants.yaml");

/// The grants of reboot.
const REBOOT_GRANTS: &str = include_str!("../../../plugins/reboot/grant.yaml");

/// The grants of preflight.
const PREFLIGHT_GRANTS: &str = include_str!("../../../plugins/preflight/grant.yaml");

/// The grants of addon.
const ADDON_GRANTS: &str = include_str!("../../../plugins/addon/grant.yaml");

/// The grants of dumplog.
const DUMPLOG_GRANTS: &str = include_str!("../../../plugins/dumplog/grant.yaml");

/// The plugins in the plugin directory of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// Replace alone.
    Replace,
    /// Replace, and the fixture that misbehaves on request.
    WithHostile,
    /// The plugin that reboots nodes.
    Reboot,
    /// The plugin that checks nodes.
    Preflight,
    /// The plugin that reboots nodes, for OpsJobs.
    Ops,
    /// The plugin that collects logs, for OpsJobs.
    Logs,
    /// The plugin that runs scripts of templates, for OpsJobs.
    Addon,
}

impl Dropped {
    fn files(self) -> &'static [&'static str] {
        match self {
            Self::Replace => &["replace.wasm"],
            Self::WithHostile => &["replace.wasm", "hostile.wasm"],
            Self::Reboot | Self::Ops => &["reboot.wasm"],
            Self::Preflight => &["preflight.wasm"],
            Self::Logs => &["dumplog.wasm"],
            Self::Addon => &["addon.wasm"],
        }
    }

    fn grants(self) -> String {
        match self {
            Self::Replace => GRANTS.to_owned(),
            Self::WithHostile => format!("{GRANTS}\n---\n{HOSTILE_GRANTS}"),
            Self::Reboot | Self::Ops => REBOOT_GRANTS.to_owned(),
            Self::Preflight => PREFLIGHT_GRANTS.to_owned(),
            Self::Logs => DUMPLOG_GRANTS.to_owned(),
            Self::Addon => ADDON_GRANTS.to_owned(),
        }
    }
}

/// How long a process may take to begin. A host may have to wait until the lease of a killed host expires.
const BEGINS_WITHIN: Duration = Duration::from_secs(120);
/// How long a host may take to end.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

/// Returns the path of the host's binary.
pub(crate) fn binary() -> anyhow::Result<PathBuf> {
    let named = std::env::var_os("OARLOCK_BINARY").map(PathBuf::from);
    named.context("OARLOCK_BINARY names no host binary: run this as `cargo xtask bench`")
}

/// Returns the documents that `oarlock manifests` prints.
pub(crate) async fn manifests() -> anyhow::Result<Vec<serde_json::Value>> {
    let printed = Command::new(binary()?).arg("manifests").output().await.context("cannot run `oarlock manifests`")?;
    install::documents(&String::from_utf8(printed.stdout)?)
}

/// Returns the documents that `oarlock manifests --flows` prints.
pub(crate) async fn manifests_with_flows() -> anyhow::Result<Vec<serde_json::Value>> {
    let printed = Command::new(binary()?).args(["manifests", "--flows"]).output().await;
    let printed = printed.context("cannot run `oarlock manifests --flows`")?;
    anyhow::ensure!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    install::documents(&String::from_utf8(printed.stdout)?)
}

/// Returns the documents that `oarlock manifests` prints for the grants of these plugins.
pub(crate) async fn manifests_for(dropped: Dropped) -> anyhow::Result<Vec<serde_json::Value>> {
    let file = std::env::temp_dir().join(format!("oarlock-bench-{}.grants.yaml", std::process::id()));
    std::fs::write(&file, dropped.grants())?;
    let ops = matches!(dropped, Dropped::Ops | Dropped::Logs | Dropped::Addon).then_some("--ops");
    let printed = Command::new(binary()?).arg("manifests").arg("--grants").arg(&file).args(ops).output().await;
    std::fs::remove_file(&file)?;
    let printed = printed.context("cannot run `oarlock manifests`")?;
    anyhow::ensure!(printed.status.success(), "`oarlock manifests`: {}", String::from_utf8_lossy(&printed.stderr));
    install::documents(&String::from_utf8(printed.stdout)?)
}

/// A running host that leads. The host ends with this process, even if this process is killed.
pub(crate) struct HostProcess {
    child: children::Child,
    folder: PathBuf,
    kubeconfig: PathBuf,
    /// The host's name in the lease. It stays the same when the host is killed and started again.
    identity: String,
    /// The address of the host's health checks and metrics.
    address: String,
}

impl HostProcess {
    /// Starts `oarlock host` with these plugins and waits until it is ready and leads.
    ///
    /// # Errors
    /// If the binary or a component is missing, or the host does not come to lead. The error then has the end of the log.
    pub(crate) async fn start(kubeconfig: &Path, components: &Path, dropped: Dropped) -> anyhow::Result<Self> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("oarlock-bench-{}-{number}", std::process::id()));
        let plugins = folder.join("plugins");
        std::fs::create_dir_all(&plugins)?;
        for file in dropped.files() {
            std::fs::copy(components.join(file), plugins.join(file))
                .with_context(|| format!("cannot copy {file}: run `cargo xtask plugins`"))?;
        }
        std::fs::write(folder.join("grants.yaml"), dropped.grants())?;
        let port = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let (kubeconfig, identity) = (kubeconfig.to_owned(), format!("bench-{number}"));
        let address = format!("127.0.0.1:{port}");
        let child = spawn(&folder, &kubeconfig, &identity, &address)?;
        let mut process = Self { child, folder, kubeconfig, identity, address };
        process.leads().await?;
        Ok(process)
    }

    /// Kills the host with SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill();
    }

    /// Starts the host again after it was killed, under the same name. It does not wait until the host leads.
    ///
    /// # Errors
    /// If the binary cannot be run.
    pub(crate) fn start_again(&mut self) -> anyhow::Result<()> {
        self.child = spawn(&self.folder, &self.kubeconfig, &self.identity, &self.address)?;
        Ok(())
    }

    /// Kills the host with SIGKILL and starts it again at once.
    ///
    /// # Errors
    /// If the binary cannot be run.
    pub(crate) fn kill_and_start(&mut self) -> anyhow::Result<()> {
        self.kill();
        self.start_again()
    }

    /// Waits until the host is ready and leads.
    ///
    /// # Errors
    /// If the host ends or does not come to lead. The error has the end of the log.
    pub(crate) async fn leads(&mut self) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            let leads = self.metrics().await.is_ok_and(|text| text.contains("oarlock_leading 1"));
            if leads && self.get("/readyz").await.is_ok() {
                return Ok(());
            }
            let waits = self.child.ended()?.is_none() && begun.elapsed() < BEGINS_WITHIN;
            anyhow::ensure!(waits, "the host does not lead; its log ends with\n{}", self.child.tail(20));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Returns the process id of the host.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the plugin directory of the host.
    pub(crate) fn plugins(&self) -> PathBuf {
        self.folder.join("plugins")
    }

    /// Returns the answer of `/metrics`.
    ///
    /// # Errors
    /// If the host does not answer.
    pub(crate) async fn metrics(&self) -> anyhow::Result<String> {
        self.get("/metrics").await
    }

    async fn get(&self, path: &str) -> anyhow::Result<String> {
        use http_body_util::{BodyExt as _, Empty};
        let client = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new())
            .build_http::<Empty<bytes::Bytes>>();
        let reply = client.get(format!("http://{}{path}", self.address).parse()?).await?;
        anyhow::ensure!(reply.status().is_success(), "{path} answers {}", reply.status());
        Ok(String::from_utf8(reply.into_body().collect().await?.to_bytes().to_vec())?)
    }

    /// Stops the host with SIGTERM, and waits for its end.
    ///
    /// # Errors
    /// If the host does not end.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        if let Some(id) = i32::try_from(self.id()).ok().and_then(Pid::from_raw) {
            kill_process(id, Signal::TERM)?;
        }
        let begun = Instant::now();
        while self.child.ended()?.is_none() {
            anyhow::ensure!(begun.elapsed() < ENDS_WITHIN, "the host does not stop: {}", self.child.tail(20));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        std::fs::remove_dir_all(&self.folder)?;
        Ok(())
    }
}

fn spawn(folder: &Path, kubeconfig: &Path, identity: &str, address: &str) -> anyhow::Result<children::Child> {
    let mut command = std::process::Command::new(binary()?);
    command.args(["host", "--identity", identity, "--listen", address, "--task-image", "oarlock"]);
    command.arg("--plugins").arg(folder.join("plugins")).arg("--kubeconfig").arg(kubeconfig);
    command.arg("--data").arg(folder.join("data"));
    children::Child::spawn("the host", command, folder.join("host.log"))
}

/// A bare client that knows its targets and waits for its start signal.
pub(crate) struct BareProcess {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl BareProcess {
    /// Starts this program as a bare client.
    ///
    /// # Errors
    /// If the bare client does not become ready.
    pub(crate) async fn start(kubeconfig: &Path, namespace: &str, mode: Mode) -> anyhow::Result<Self> {
        Self::start_with(kubeconfig, ["bare", "--namespace", namespace, "--mode", mode.word()]).await
    }

    /// Starts this program with these arguments, which make it a bare client.
    ///
    /// # Errors
    /// If the bare client does not become ready.
    pub(crate) async fn start_with<'a>(
        kubeconfig: &Path,
        arguments: impl IntoIterator<Item = &'a str>,
    ) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start the bare client")?;
        let input = child.stdin.take().context("the bare client has no input")?;
        let output = BufReader::new(child.stdout.take().context("the bare client has no output")?).lines();
        let mut process = Self { child, input, output };
        process.says("ready", BEGINS_WITHIN).await?;
        Ok(process)
    }

    /// Returns the process id of the bare client.
    ///
    /// # Errors
    /// If the bare client has ended.
    pub(crate) fn id(&self) -> anyhow::Result<u32> {
        self.child.id().context("the bare client has ended")
    }

    /// Starts the work of the bare client and waits until it is done. The process still lives then.
    ///
    /// # Errors
    /// If the bare client fails, or takes longer than `longest`.
    pub(crate) async fn work(&mut self, longest: Duration) -> anyhow::Result<()> {
        self.input.write_all(b"go\n").await.context("the bare client has ended")?;
        self.says("done", longest).await
    }

    async fn says(&mut self, word: &str, longest: Duration) -> anyhow::Result<()> {
        let line = tokio::time::timeout(longest, self.output.next_line()).await;
        let line = line.with_context(|| format!("the bare client is not {word} after {longest:?}"))??;
        anyhow::ensure!(line.as_deref() == Some(word), "the bare client failed instead of being {word}");
        Ok(())
    }

    /// Ends the bare client, and waits for its end.
    ///
    /// # Errors
    /// If the bare client fails.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.input.write_all(b"end\n").await.context("the bare client has ended")?;
        let status = self.child.wait().await?;
        anyhow::ensure!(status.success(), "the bare client ended with {status}");
        Ok(())
    }
}
