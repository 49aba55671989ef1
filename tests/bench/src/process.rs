//! The host as a process of its own, and an in-memory cluster on a port for it.
//!
//! Takes a kubeconfig and components; yields a process that is watched through `/proc` and `/metrics`, and ended by its
//! id. Linux only, as the benches are.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use oarlock_bed::faults::Plan;
use oarlock_bed::install::{self, Way};
use oarlock_bed::interception::Interceptor;
use oarlock_bed::proxy::Proxy;
use tokio::process::{Child, Command};

/// What Replace may do.
pub(crate) const GRANTS: &str = include_str!("../../../plugins/replace/grant.yaml");

/// Clock ticks in a second, as `/proc/<pid>/stat` counts CPU time on every Linux.
const TICKS: u64 = 100;

/// The host's binary.
fn binary() -> anyhow::Result<PathBuf> {
    let named = std::env::var_os("OARLOCK_BINARY").map(PathBuf::from);
    named.context("OARLOCK_BINARY names no host binary: run this as `cargo xtask bench`")
}

/// What `oarlock manifests` prints.
pub(crate) async fn manifests() -> anyhow::Result<Vec<serde_json::Value>> {
    let printed = Command::new(binary()?).arg("manifests").output().await.context("cannot run `oarlock manifests`")?;
    install::documents(&String::from_utf8(printed.stdout)?)
}

/// A running host.
pub(crate) struct HostProcess {
    child: Child,
    folder: PathBuf,
    health: String,
}

impl HostProcess {
    /// Starts `oarlock host` with `replace.wasm` and waits until it is ready.
    ///
    /// # Errors
    /// Names the binary or component that is missing, or shows the end of the log.
    pub(crate) async fn start(kubeconfig: &Path, components: &Path) -> anyhow::Result<Self> {
        let binary = binary()?;
        let folder = std::env::temp_dir().join(format!("oarlock-bench-{}", std::process::id()));
        let plugins = folder.join("plugins");
        std::fs::create_dir_all(&plugins)?;
        std::fs::copy(components.join("replace.wasm"), plugins.join("replace.wasm"))
            .context("cannot copy replace.wasm: run `cargo xtask plugins`")?;
        std::fs::write(folder.join("grants.yaml"), GRANTS)?;
        let port = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let log = std::fs::File::create(folder.join("host.log"))?;
        let child = Command::new(binary)
            .args(["host", "--identity", "bench", "--listen", &format!("127.0.0.1:{port}")])
            .arg("--plugins")
            .arg(&plugins)
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?;
        let process = Self { child, folder, health: format!("http://127.0.0.1:{port}") };
        process.ready().await?;
        Ok(process)
    }

    async fn ready(&self) -> anyhow::Result<()> {
        let begun = std::time::Instant::now();
        while self.get("/readyz").await.is_err() {
            if begun.elapsed() > Duration::from_secs(60) {
                let log = std::fs::read_to_string(self.folder.join("host.log")).unwrap_or_default();
                anyhow::bail!(
                    "the host is never ready; its log ends with\n{}",
                    log.lines().rev().take(20).collect::<Vec<_>>().join("\n")
                );
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    async fn get(&self, path: &str) -> anyhow::Result<String> {
        use http_body_util::{BodyExt as _, Empty};
        let client = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new())
            .build_http::<Empty<bytes::Bytes>>();
        let reply = client.get(format!("{}{path}", self.health).parse()?).await?;
        anyhow::ensure!(reply.status().is_success(), "{path} answers {}", reply.status());
        Ok(String::from_utf8(reply.into_body().collect().await?.to_bytes().to_vec())?)
    }

    fn proc(&self, file: &str) -> anyhow::Result<String> {
        let id = self.child.id().context("the host has ended")?;
        Ok(std::fs::read_to_string(format!("/proc/{id}/{file}"))?)
    }

    /// CPU time so far, user and system.
    ///
    /// # Errors
    /// If it has ended.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        let stat = self.proc("stat")?;
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        Ok(Duration::from_millis((ticks(11) + ticks(12)) * 1000 / TICKS))
    }

    /// The most memory that was resident, in KiB.
    ///
    /// # Errors
    /// If it has ended.
    pub(crate) fn peak_rss_kib(&self) -> anyhow::Result<usize> {
        let status = self.proc("status")?;
        let line = status.lines().find(|line| line.starts_with("VmHWM")).context("no VmHWM")?;
        Ok(line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).unwrap_or(0))
    }

    /// The upper edge, in milliseconds, of the bucket in which 99 % of the times from event to action lie.
    ///
    /// # Errors
    /// If `/metrics` does not answer.
    pub(crate) async fn event_to_action_p99(&self) -> anyhow::Result<Option<f64>> {
        let text = self.get("/metrics").await?;
        let mut buckets = Vec::new();
        for line in text.lines().filter(|line| line.contains("event_to_action_seconds_bucket")) {
            let edge = line
                .split("le=\"")
                .nth(1)
                .and_then(|rest| rest.split('"').next())
                .and_then(|text| text.parse::<f64>().ok());
            let count = line.rsplit(' ').next().and_then(|text| text.parse::<f64>().ok());
            buckets.extend(edge.zip(count));
        }
        let all = buckets.last().map_or(0.0, |(_, count)| *count);
        Ok(buckets.into_iter().find(|(_, count)| *count >= 0.99 * all).map(|(edge, _)| edge * 1000.0))
    }

    /// Stops it as SIGTERM would, and waits.
    ///
    /// # Errors
    /// If it does not end.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        if let Some(id) = self.child.id() {
            Command::new("kill").arg("-TERM").arg(id.to_string()).status().await?;
        }
        tokio::time::timeout(Duration::from_secs(30), self.child.wait()).await.context("the host does not stop")??;
        std::fs::remove_dir_all(&self.folder)?;
        Ok(())
    }
}

/// An in-memory cluster on a port, behind a proxy that counts the host's writes.
pub(crate) struct ServedSim {
    /// The cluster.
    pub(crate) cluster: oarlock_sim::Cluster,
    /// How the host reaches it.
    pub(crate) kubeconfig: PathBuf,
    proxy: Proxy,
}

impl ServedSim {
    /// Starts one in real time, with everything installed.
    ///
    /// # Errors
    /// If it cannot be served or furnished.
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let options =
            oarlock_sim::Options { clock: Arc::new(oarlock_sim::RealClock), ..oarlock_sim::Options::default() };
        let cluster = oarlock_sim::Cluster::new(options);
        let client = kube::Client::new(cluster.service(), "default");
        install::install(&client, &manifests().await?, Way::CreateMissing).await?;
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
        let upstream = kube::Config::new(format!("http://{}", listener.local_addr()?).parse()?);
        let served = cluster.clone();
        tokio::spawn(async move { served.serve(listener).await });
        let proxy = Proxy::start(upstream, Interceptor::new(Plan::none(), &[])).await?;
        let kubeconfig = std::env::temp_dir().join(format!("oarlock-bench-{}.kubeconfig", std::process::id()));
        let text = serde_json::json!({"apiVersion": "v1", "kind": "Config", "current-context": "sim",
            "clusters": [{"name": "sim", "cluster": {"server": proxy.url()}}], "users": [{"name": "sim", "user": {}}],
            "contexts": [{"name": "sim", "context": {"cluster": "sim", "user": "sim", "namespace": "default"}}]});
        std::fs::write(&kubeconfig, text.to_string())?;
        Ok(Self { cluster, kubeconfig, proxy })
    }

    /// The host's writes so far: verb, resource with subresource, code.
    pub(crate) fn writes(&self) -> Vec<(String, String, u64)> {
        let records = self.proxy.interceptor().records();
        records
            .iter()
            .map(|write| {
                (verb(&write.verb), resource(&write.path), write.status.map_or(0, |code| u64::from(code.as_u16())))
            })
            .collect()
    }
}

fn verb(method: &http::Method) -> String {
    match method.as_str() {
        "POST" => "create".to_owned(),
        other => other.to_lowercase(),
    }
}

/// The plural name in a path, with the subresource.
fn resource(path: &str) -> String {
    let path = path.split('?').next().unwrap_or_default();
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let rest = match parts.iter().position(|part| *part == "namespaces") {
        Some(at) if parts.len() > at + 2 => parts.get(at + 2..).unwrap_or_default(),
        _ => parts.get(if path.starts_with("/api/") { 2 } else { 3 }..).unwrap_or_default(),
    };
    match rest {
        [plural, _, subresource, ..] => format!("{plural}/{subresource}"),
        [plural, ..] => (*plural).to_owned(),
        [] => String::new(),
    }
}
