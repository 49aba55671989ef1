//! A real etcd and kube-apiserver, with kube-controller-manager if a scenario needs it.
//!
//! Each control plane starts with an empty store. It has clients and kubeconfigs for each account, and a test can kill, restart and
//! freeze its servers. All servers listen on the loopback interface and end when the [`ControlPlane`] is dropped. Nothing here may
//! use the machine's own Kubernetes configuration.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};
use controlplane::Binaries;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::accounts::{self, Account, ServiceAccountKeys};
use crate::audit::{self, Audit};
use crate::children::Child;
use crate::compaction;
use crate::server_flags::{self, Files, Ports};
use crate::workplace::{Workplace, free_port};

/// Deletes dependents whose owners are gone.
pub const GARBAGE_COLLECTOR: &str = "garbage-collector-controller";
/// Writes the status of PodDisruptionBudgets. Without this controller no eviction passes a budget.
pub const DISRUPTION: &str = "disruption-controller";
/// Creates pods for Jobs.
pub const JOB: &str = "job-controller";
/// Creates ReplicaSets for Deployments.
pub const DEPLOYMENT: &str = "deployment-controller";
/// Creates pods for ReplicaSets.
pub const REPLICA_SET: &str = "replicaset-controller";
/// Deletes finished Jobs after their time to live.
pub const TTL_AFTER_FINISHED: &str = "ttl-after-finished-controller";
/// Deletes pods of nodes that are gone.
pub const POD_GARBAGE_COLLECTOR: &str = "pod-garbage-collector-controller";
/// Empties a deleted namespace.
pub const NAMESPACE: &str = "namespace-controller";

/// How long a server may take until it answers. An idle machine needs 1 to 3 s, a busy machine much more.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// The time between two checks of readiness.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// The needs of a scenario: how its control plane is started.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// True if etcd syncs every write to disk, as in production. Performance figures need this; other runs are faster without it.
    pub durable_store: bool,
    /// The requests that the API server logs, for [`ControlPlane::audited`].
    pub audit: Audit,
    /// The controllers to run. An empty list means no controller manager.
    pub controllers: Vec<&'static str>,
    /// Further flags of the controller manager.
    pub controller_manager_flags: Vec<String>,
    /// Further flags of the API server.
    pub api_server_flags: Vec<String>,
}

/// A running control plane. Dropping it ends its processes.
#[derive(Debug)]
pub struct ControlPlane {
    // Fields are dropped in this order: the users of the API server end first, and the folder goes last.
    controller_manager: Option<Mutex<Child>>,
    api_server: Mutex<Child>,
    store: Mutex<Child>,
    ports: Ports,
    binaries: Binaries,
    options: Options,
    keys: ServiceAccountKeys,
    tokens: PathBuf,
    audit_policy: Option<PathBuf>,
    place: Workplace,
}

/// Starts a control plane and waits until it is ready.
///
/// # Errors
///
/// If the binaries cannot be found or built, or a server does not become ready. The message then has the end of its log.
pub async fn start(options: Options) -> anyhow::Result<ControlPlane> {
    let found = tokio::task::spawn_blocking(|| controlplane::binaries(&|line| eprintln!("control plane: {line}")));
    let binaries = found.await.context("the search for control plane binaries was aborted")??;
    let mut attempts = 0;
    loop {
        attempts += 1;
        match ControlPlane::start_once(binaries.clone(), options.clone()).await {
            // Another process may take a free port before the server uses it.
            Err(cause) if attempts < 3 && format!("{cause:#}").contains("address already in use") => {}
            outcome => return outcome,
        }
    }
}

impl ControlPlane {
    async fn start_once(binaries: Binaries, options: Options) -> anyhow::Result<Self> {
        let place = Workplace::new()?;
        let ports = Ports { store: free_port()?, store_peers: free_port()?, api: free_port()? };
        let keys = accounts::write_service_account_keys(&place)?;
        let tokens = accounts::write_tokens(&place)?;
        let audit_policy = audit::write_policy(&options.audit, &place)?;
        let log = |name: &str| place.path().join(name);
        let store = server_flags::store(&binaries, place.path(), ports, &options);
        let store = Child::spawn("etcd", store, log("etcd.log"))?;
        let files = Files { folder: place.path(), tokens: &tokens, keys: &keys, audit_policy: audit_policy.as_deref() };
        let api = server_flags::api_server(&binaries, &files, ports, &options);
        let api = Child::spawn("kube-apiserver", api, log("kube-apiserver.log"))?;
        let mut plane = Self {
            controller_manager: None,
            api_server: Mutex::new(api),
            store: Mutex::new(store),
            ports,
            binaries,
            options,
            keys,
            tokens,
            audit_policy,
            place,
        };
        plane.wait_until_ready().await?;
        plane.start_controllers()?;
        Ok(plane)
    }

    fn start_controllers(&mut self) -> anyhow::Result<()> {
        if self.options.controllers.is_empty() {
            return Ok(());
        }
        let kubeconfig = self.kubeconfig(Account::Admin)?;
        let command = server_flags::controller_manager(&self.binaries, &kubeconfig, &self.options);
        let log = self.place.path().join("kube-controller-manager.log");
        self.controller_manager = Some(Mutex::new(Child::spawn("kube-controller-manager", command, log)?));
        Ok(())
    }

    /// Returns the address of the API server.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.ports.api)
    }

    /// Returns the path of the certificate that clients verify the API server with.
    #[must_use]
    pub fn certificates(&self) -> PathBuf {
        self.place.path().join("certificates").join("apiserver.crt")
    }

    /// Returns the version and the path of each binary.
    #[must_use]
    pub fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// Returns a folder for files of a test. The folder is removed with the control plane.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.place.path()
    }

    /// Returns the process ids of all servers.
    #[must_use]
    pub fn process_ids(&self) -> Vec<u32> {
        let manager = self.controller_manager.iter().map(|child| child.lock().id());
        manager.chain([self.api_server.lock().id(), self.store.lock().id()]).collect()
    }

    /// Returns the process id of the API server, for figures about this process.
    #[must_use]
    pub fn api_server_id(&self) -> u32 {
        self.api_server.lock().id()
    }

    /// Returns a client configuration for `account`, without the client's own retries.
    ///
    /// # Errors
    ///
    /// If the API server's certificate cannot be read.
    pub async fn config(&self, account: Account) -> anyhow::Result<kube::Config> {
        accounts::config(accounts::kubeconfig(account, &self.url(), Some(&self.certificates()))?).await
    }

    /// Returns a client for `account`.
    ///
    /// # Errors
    ///
    /// If the API server's certificate cannot be read or used.
    pub async fn client(&self, account: Account) -> anyhow::Result<kube::Client> {
        kube::Client::try_from(self.config(account).await?).context("cannot make a client for the control plane")
    }

    /// Returns a client without credentials, for requests with a token of their own.
    ///
    /// # Errors
    ///
    /// If the API server's certificate cannot be read or used.
    pub async fn anonymous_client(&self) -> anyhow::Result<kube::Client> {
        let mut config = self.config(Account::Visitor).await?;
        config.auth_info = kube::config::AuthInfo::default();
        kube::Client::try_from(config).context("cannot make a client for the control plane")
    }

    /// Writes a kubeconfig for `account` and returns its path.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn kubeconfig(&self, account: Account) -> anyhow::Result<PathBuf> {
        let content = accounts::kubeconfig(account, &self.url(), Some(&self.certificates()))?;
        self.place.write(&format!("kubeconfig-{}.json", account.user().replace(':', "-")), &content.to_string())
    }

    /// Writes a kubeconfig for `account` that uses the plain HTTP server at `url`, a counting proxy, and returns its path.
    ///
    /// Only clients of the Rust crates can use this kubeconfig: kubectl sends no token without TLS.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn kubeconfig_via(&self, account: Account, url: &str) -> anyhow::Result<PathBuf> {
        let content = accounts::kubeconfig(account, url, None)?;
        let port = url.rsplit(':').next().unwrap_or_default();
        self.place
            .write(&format!("kubeconfig-{}-via-{port}.json", account.user().replace(':', "-")), &content.to_string())
    }

    /// Returns a command of the kubectl of the same version, with the rights of `account`.
    ///
    /// # Errors
    ///
    /// If the kubeconfig cannot be written.
    pub fn kubectl(&self, account: Account) -> anyhow::Result<Command> {
        let mut command = Command::new(&self.binaries.kubectl);
        command.env("KUBECONFIG", self.kubeconfig(account)?).env("HOME", self.place.path());
        Ok(command)
    }

    /// Kills the API server, like a crash. Its port stays unanswered.
    pub fn kill_api_server(&self) {
        self.api_server.lock().kill();
    }

    /// Starts the API server again on the same port and store, and waits until it is ready.
    ///
    /// # Errors
    ///
    /// If the API server does not become ready. The message has the end of its log.
    pub async fn start_api_server(&self) -> anyhow::Result<()> {
        let files = Files {
            folder: self.place.path(),
            tokens: &self.tokens,
            keys: &self.keys,
            audit_policy: self.audit_policy.as_deref(),
        };
        let command = server_flags::api_server(&self.binaries, &files, self.ports, &self.options);
        let child = Child::spawn("kube-apiserver", command, self.place.path().join("kube-apiserver.log"))?;
        *self.api_server.lock() = child;
        self.wait_until_ready().await
    }

    /// Kills etcd, like a crash. Every write that etcd has acknowledged is on its disk.
    pub fn kill_store(&self) {
        self.store.lock().kill();
    }

    /// Starts etcd again on the same ports and data, and waits until the API server is ready.
    ///
    /// # Errors
    ///
    /// If etcd or the API server does not become ready. The message has the end of the log.
    pub async fn start_store(&self) -> anyhow::Result<()> {
        let command = server_flags::store(&self.binaries, self.place.path(), self.ports, &self.options);
        let child = Child::spawn("etcd", command, self.place.path().join("etcd.log"))?;
        *self.store.lock() = child;
        self.wait_until_ready().await
    }

    /// Freezes the API server at any point. Connections stay open and get no answer.
    ///
    /// # Errors
    ///
    /// If the API server has ended.
    pub fn freeze_api_server(&self) -> anyhow::Result<()> {
        self.api_server.lock().freeze()
    }

    /// Lets a frozen API server continue.
    ///
    /// # Errors
    ///
    /// If the API server has ended.
    pub fn thaw_api_server(&self) -> anyhow::Result<()> {
        self.api_server.lock().thaw()
    }

    /// Compacts etcd to its present revision, and restarts the API server, whose watch cache also keeps earlier versions.
    ///
    /// # Errors
    ///
    /// If etcd refuses the compaction, or the API server does not become ready again.
    pub async fn forget_the_past(&self) -> anyhow::Result<()> {
        self.kill_api_server();
        compaction::compact(self.ports.store).await?;
        self.start_api_server().await
    }

    /// Returns the requests that the API server has logged so far, oldest first. This needs [`Options::audit`].
    ///
    /// # Errors
    ///
    /// If the log cannot be read, for example because [`Options::audit`] is off.
    pub fn audited(&self) -> anyhow::Result<Vec<audit::Request>> {
        audit::Tail::from_start(self.audit_log()).more()
    }

    /// Returns a reader of the requests that the API server logs from now on. This needs [`Options::audit`].
    ///
    /// # Errors
    ///
    /// If the log cannot be read, for example because [`Options::audit`] is off.
    pub fn audit_tail(&self) -> anyhow::Result<audit::Tail> {
        audit::Tail::from_end(self.audit_log())
    }

    fn audit_log(&self) -> PathBuf {
        self.place.path().join("audit.log")
    }

    /// Returns the API server's counts of requests since its start.
    ///
    /// # Errors
    ///
    /// If the API server does not answer.
    pub async fn request_totals(&self) -> anyhow::Result<Vec<audit::RequestTotal>> {
        let client = self.client(Account::Admin).await?;
        let request =
            http::Request::get("/metrics").body(Vec::new()).context("cannot build the request for metrics")?;
        let text = client.request_text(request).await.context("cannot read the API server's metrics")?;
        Ok(audit::request_totals(&text))
    }

    async fn wait_until_ready(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        let mut last = "it has not written its certificate yet".to_owned();
        while Instant::now() < deadline {
            self.check_alive()?;
            if self.certificates().is_file() {
                match self.ask_readiness().await {
                    Ok(()) => return Ok(()),
                    Err(cause) => last = format!("{cause:#}"),
                }
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
        bail!("the API server is not ready after {READY_WITHIN:?}: {last}\n{}", self.api_server.lock().tail(30))
    }

    async fn ask_readiness(&self) -> anyhow::Result<()> {
        let client = self.client(Account::Admin).await?;
        for path in ["/readyz", "/api/v1/namespaces/default"] {
            let request =
                http::Request::get(path).body(Vec::new()).context("cannot build the request for readiness")?;
            client.request_text(request).await.with_context(|| format!("no good answer from {path}"))?;
        }
        Ok(())
    }

    fn check_alive(&self) -> anyhow::Result<()> {
        for child in [&self.store, &self.api_server] {
            let mut child = child.lock();
            if let Some(status) = child.ended()? {
                bail!("{} ended with {status}; the end of its log:\n{}", child.name(), child.tail(30));
            }
        }
        Ok(())
    }
}
