//! A served API: its process, its cluster, and requests with the tokens of accounts.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::{HeaderMap, Method, Request};
use http_body_util::BodyExt as _;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ObjectMeta, PostParams};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use oarlock::manifests::{GrantedAccess, HostAccount, PodPolicies, manifests_with, ops_manifests, rest_manifests};
use oarlock_scenarios::components::component;
use oarlock_scenarios::host_process::host_binary;
use oarlock_scenarios::test_cluster::patiently;
use oarlock_sim::world::{World, WorldOptions};
use oarlock_support::accounts::Account;
use oarlock_support::children::Child;
use oarlock_support::control_plane::{self, ControlPlane};
use oarlock_support::install::{self, Way};
use oarlock_support::small_disk::on_small_disk;
use serde_json::{Value, json};

use super::s3_server::{KEY, SECRET};

/// Returns the grants of the plugins. They allow everything in every namespace, and checks may mount one directory.
fn grants() -> String {
    let reboot = include_str!("../../../../plugins/reboot/grant.yaml");
    let preflight = include_str!("../../../../plugins/preflight/grant.yaml");
    let preflight = preflight.replace("{name: check-pod}", "{name: check-pod, hostPaths: [/var/log]}");
    // Only scripts of templates are granted.
    let addon = include_str!("../../../../plugins/addon/grant.yaml").replace("[template, input]", "[template]");
    let dumplog = include_str!("../../../../plugins/dumplog/grant.yaml");
    let exportimage = include_str!("../../../../plugins/exportimage/grant.yaml");
    format!("{reboot}\n---\n{preflight}\n---\n{addon}\n---\n{dumplog}\n---\n{exportimage}")
}

/// The namespace of the accounts.
pub(crate) const PEOPLE: &str = "people";
/// The controller that aggregates ClusterRoles.
const AGGREGATION: &str = "clusterrole-aggregation-controller";
/// The longest wait for a process to start.
const BEGUN_WITHIN: Duration = Duration::from_secs(120);

static NUMBER: AtomicUsize = AtomicUsize::new(0);

/// A served API.
pub(crate) struct Served {
    url: String,
    /// A client that may do everything.
    pub(crate) admin: Client,
    pub(crate) child: Child,
    /// The server, if it is its own process. On a real control plane, it writes into the host's log.
    pub(crate) server: Option<Child>,
    folder: PathBuf,
    _world: Option<World>,
    _plane: Option<Arc<ControlPlane>>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.server.iter_mut().for_each(Child::kill);
        self.child.kill();
        let _gone = std::fs::remove_dir_all(&self.folder);
    }
}

/// The body and the headers of a request.
pub(crate) struct Sent<'a> {
    pub(crate) body: Vec<u8>,
    pub(crate) headers: &'a [(&'a str, &'a str)],
}

/// The answer to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Answer {
    /// Returns the status, the code and the message of a refusal.
    pub(crate) fn refusal(&self) -> (u16, &str, &str) {
        let own = |field: &str| self.body.get(field).and_then(Value::as_str).unwrap_or_default();
        (self.status, own("errorCode"), own("errorMessage"))
    }

    /// Returns the value of a field.
    pub(crate) fn at(&self, pointer: &str) -> &Value {
        self.body.pointer(pointer).unwrap_or(&Value::Null)
    }

    /// Returns the value of an output of a job.
    pub(crate) fn output(&self, name: &str) -> &str {
        let outputs = self.at("/outputs").as_array().map(Vec::as_slice).unwrap_or_default();
        let found = outputs.iter().find(|output| output.get("name").is_some_and(|own| own == name));
        found.and_then(|output| output.get("value")?.as_str()).unwrap_or_default()
    }

    /// Returns true if the job of this answer has ended.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.text("/phase"), "Succeeded" | "Failed")
    }

    /// Returns the text of a field.
    pub(crate) fn text(&self, pointer: &str) -> &str {
        self.body.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }
}

/// Creates a folder with the plugins and their grants.
fn folder() -> anyhow::Result<PathBuf> {
    let number = NUMBER.fetch_add(1, Ordering::SeqCst);
    let folder = std::env::temp_dir().join(format!("oarlock-rest-{}-{number}", std::process::id()));
    let plugins = folder.join("plugins");
    std::fs::create_dir_all(&plugins)?;
    for name in ["addon", "dumplog", "exportimage", "reboot", "preflight"] {
        std::fs::write(plugins.join(format!("{name}.wasm")), component(name)?)?;
    }
    std::fs::write(folder.join("grants.yaml"), grants())?;
    Ok(folder)
}

/// Returns the command of a host, or of a host and server in one process.
fn command(folder: &std::path::Path, verb: &[&str], more: &[&str]) -> anyhow::Result<Command> {
    let mut command = Command::new(host_binary()?);
    command.args(verb).args(["--listen", "127.0.0.1:0"]).args(more);
    command.arg("--plugins").arg(folder.join("plugins")).arg("--grants").arg(folder.join("grants.yaml"));
    command.env("XDG_CACHE_HOME", folder.join("cache"));
    Ok(command)
}

/// Rate limits that no test reaches by accident.
pub(crate) const FAST: [&str; 2] = ["--write-rate=1000", "--read-rate=1000"];

/// The arguments of a process that is host and server at once, on a cluster in memory.
const DEV: [&str; 3] = ["dev", "--rest", "127.0.0.1:0"];

/// Returns the command of a server beside a host, with these arguments.
fn server(kubeconfig: &std::path::Path, more: &[&str]) -> anyhow::Result<Command> {
    let mut command = Command::new(host_binary()?);
    command.args(["server", "--listen", "127.0.0.1:0", "--health", "127.0.0.1:0", "--log", "info"]).args(more);
    command.arg("--kubeconfig").arg(kubeconfig);
    Ok(command)
}

/// Returns true if only the server has this argument. Both processes have the other arguments, except those of `is_of_host`.
fn is_of_server(argument: &str) -> bool {
    FAST.contains(&argument)
}

/// Returns true if only the host has this argument.
fn is_of_host(argument: &str) -> bool {
    ["--export", "--history-", "--audit-"].iter().any(|begin| argument.starts_with(begin))
}

impl Served {
    /// Starts a host and server in one process, on a cluster in memory, with these arguments.
    pub(crate) async fn in_memory(more: &[&str]) -> anyhow::Result<Self> {
        let folder = folder()?;
        let command = command(&folder, &DEV, more)?;
        Self::dev(folder, command).await
    }

    /// Starts `in_memory` with its history on a disk of 8 MB. Returns the folder of that disk too.
    pub(crate) async fn beside_small_disk(more: &[&str]) -> anyhow::Result<(Self, PathBuf)> {
        const MEGABYTES: u32 = 8;
        let folder = folder()?;
        let disk = folder.join("disk");
        std::fs::create_dir(&disk)?;
        let mut command = command(&folder, &DEV, more)?;
        command.arg(format!("--history=sqlite:{}", disk.join("history.db").display()));
        let command = on_small_disk(&command, &disk, MEGABYTES);
        Ok((Self::dev(folder, command).await?, disk))
    }

    async fn dev(folder: PathBuf, mut command: Command) -> anyhow::Result<Self> {
        let kubeconfig = folder.join("kubeconfig");
        if !command.get_args().any(|argument| argument == "--data") {
            command.arg("--data").arg(folder.join("data"));
        }
        command.arg("--kubeconfig-out").arg(&kubeconfig).args(["--log", "info"]);
        let mut child = Child::spawn("oarlock dev", command, folder.join("host.log"))?;
        let url = begun(&mut child).await?;
        let file = Kubeconfig::read_from(&kubeconfig)?;
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
        let admin = Client::try_from(config)?;
        Self { url, admin, child, server: None, folder, _world: None, _plane: None }.furnished().await
    }

    /// Starts a separate server beside the host, with these arguments. The server answers the requests from now on.
    pub(crate) async fn answer_by_server(&mut self, more: &[&str]) -> anyhow::Result<()> {
        let mut command = server(&self.folder.join("kubeconfig"), &[&FAST, more].concat())?;
        command.arg("--data").arg(self.folder.join("data"));
        let mut server = Child::spawn("oarlock server", command, self.folder.join("server.log"))?;
        self.url = begun(&mut server).await?;
        self.server = Some(server);
        Ok(())
    }

    /// Starts a host and a server on a real control plane, with the rights of their manifests and these arguments.
    pub(crate) async fn real(more: &[&str]) -> anyhow::Result<Self> {
        let folder = folder()?;
        let controllers = vec![AGGREGATION, control_plane::NAMESPACE];
        let plane = control_plane::start(control_plane::Options { controllers, ..Default::default() }).await?;
        let admin = plane.client(Account::Admin).await?;
        let (account, access) = (HostAccount::default(), GrantedAccess::of(oarlock_wasm::parse_grants(&grants())?));
        let parts = [manifests_with(&access, PodPolicies::USUAL)?, ops_manifests(&account), rest_manifests(&account)];
        install::install(&admin, &install::documents(&parts.join("---\n"))?, Way::Apply).await?;
        let options = WorldOptions::new(1, Arc::new(oarlock_sim::RealClock));
        let options = WorldOptions { runs_jobs: false, ..options };
        let world = World::start(plane.client(Account::World).await?, options).await?;
        let of = |is_other: fn(&str) -> bool| more.iter().copied().filter(|one| !is_other(one)).collect::<Vec<_>>();
        let mut command = command(&folder, &["host"], &of(is_of_server))?;
        command.arg("--kubeconfig").arg(plane.kubeconfig(Account::Host)?);
        let mut beside = server(&plane.kubeconfig(Account::Server)?, &of(is_of_host))?;
        for process in [&mut command, &mut beside] {
            // The credentials of a test's bucket.
            process.env("AWS_ACCESS_KEY_ID", KEY).env("AWS_SECRET_ACCESS_KEY", SECRET);
            process.args(["--cluster-id", "local"]);
            if !more.iter().any(|argument| argument.starts_with("--artefacts")) {
                process.arg("--data").arg(folder.join("data"));
            }
        }
        if !more.iter().any(|argument| argument.starts_with("--export-registry")) {
            command.args(["--export-registry", "127.0.0.1:9"]);
        }
        command.args(["--identity", "rest", "--task-image", "oarlock", "--log", "info"]);
        let log = folder.join("host.log");
        let child = Child::spawn("oarlock host", command, log.clone())?;
        let mut server = Child::spawn("oarlock server", beside, log)?;
        let url = begun(&mut server).await?;
        let (_world, _plane) = (Some(world), Some(Arc::new(plane)));
        Self { url, admin, child, server: Some(server), folder, _world, _plane }.furnished().await
    }

    /// Creates the accounts and waits until the server creates jobs of its types.
    async fn furnished(self) -> anyhow::Result<Self> {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PEOPLE}});
        let namespaces: Api<Namespace> = Api::all(self.admin.clone());
        namespaces.create(&PostParams::default(), &serde_json::from_value(namespace)?).await?;
        self.token("admin").await?;
        self.bind("admin", "cluster-admin").await?;
        self.until_served().await?;
        Ok(self)
    }

    /// Waits until the server creates jobs of its types.
    pub(crate) async fn until_served(&self) -> anyhow::Result<()> {
        let admin = self.token("admin").await?;
        let check = json!({"name": "a", "type": "preflight", "inputs": [{"name": "node", "value": "node-0"}], "image": "busybox",
            "entryPoint": "dHJ1ZQ=="});
        let reboot = json!({"name": "a", "type": "reboot", "inputs": [{"name": "node", "value": "node-0"}]});
        // The server answers 404 for the workload once it knows the plugin of this type.
        let logs = json!({"name": "a", "type": "dumplog", "inputs": [{"name": "workload", "value": "nobody"}]});
        for body in [check, reboot, logs] {
            let mut last = None;
            let served = patiently("the type is served", async || {
                let answer = self.ask(Some(&admin), Method::POST, "/api/v1/opsjobs?dryRun=All", Some(&body)).await?;
                let is_served = matches!(answer.status, 200 | 404);
                last = Some(answer);
                Ok(is_served)
            });
            let served = served.await;
            served.with_context(|| format!("{last:?}\n{}", self.child.tail(30)))?;
        }
        Ok(())
    }

    /// Returns a token of the account of this name. Creates the account if it does not exist.
    pub(crate) async fn token(&self, name: &str) -> anyhow::Result<String> {
        self.token_for(name, "oarlock").await
    }

    /// Returns a token of this account for another audience.
    pub(crate) async fn token_for(&self, name: &str, audience: &str) -> anyhow::Result<String> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.admin.clone(), PEOPLE);
        if accounts.get_opt(name).await?.is_none() {
            let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
            let account = ServiceAccount { metadata, ..ServiceAccount::default() };
            accounts.create(&PostParams::default(), &account).await?;
        }
        let spec = TokenRequestSpec { audiences: vec![audience.to_owned()], ..TokenRequestSpec::default() };
        let request = TokenRequest { metadata: ObjectMeta::default(), spec, status: None };
        let made = accounts.create_token_request(name, &PostParams::default(), &request).await?;
        Ok(made.status.context("the token request has no answer")?.token)
    }

    /// Gives an account a ClusterRole.
    pub(crate) async fn bind(&self, account: &str, role: &str) -> anyhow::Result<()> {
        let document = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": format!("{account}-{role}")},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": PEOPLE}]});
        install::apply(&self.admin, &document).await.map(drop)
    }

    /// Gives an account its own ClusterRole with these rules.
    pub(crate) async fn allow(&self, account: &str, rules: &Value) -> anyhow::Result<()> {
        let document = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": format!("of-{account}")}, "rules": rules});
        install::apply(&self.admin, &document).await?;
        self.bind(account, &format!("of-{account}")).await
    }

    /// Returns the address on which the API listens.
    pub(crate) fn address(&self) -> String {
        self.url.trim_start_matches("http://").to_owned()
    }

    /// Replaces the grant of the plugin exportimage by this text. The running host reads the change.
    pub(crate) fn grant(&self, more: &str) -> anyhow::Result<()> {
        let kept =
            grants().split("---\n").filter(|one| !one.contains("name: exportimage")).collect::<Vec<_>>().join("---\n");
        std::fs::write(self.folder.join("grants.yaml"), format!("{kept}\n---\n{more}")).map_err(Into::into)
    }

    /// Returns the path of the log of the process that answers.
    pub(crate) fn log(&self) -> PathBuf {
        let of_server = self.folder.join("server.log");
        if of_server.exists() { of_server } else { self.folder.join("host.log") }
    }

    /// Sends a request with this body and returns its answer.
    pub(crate) async fn ask(
        &self,
        token: Option<&str>,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Answer> {
        let body = body.map(Value::to_string).unwrap_or_default().into_bytes();
        self.send(token, method, path, Sent { body, headers: &[] }).await
    }

    /// Sends a request with these bytes and headers, and returns its answer.
    pub(crate) async fn send(
        &self,
        token: Option<&str>,
        method: Method,
        path: &str,
        sent: Sent<'_>,
    ) -> anyhow::Result<Answer> {
        let mut config = Config::new(self.url.parse()?);
        config.default_retry = false;
        let client = Client::try_from(config)?;
        let mut request = Request::builder().method(method).uri(path);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in sent.headers {
            request = request.header(*name, *value);
        }
        let answer = client.send(request.body(Body::from(sent.body))?).await?;
        let (head, body) = answer.into_parts();
        let bytes = body.collect().await.map_err(|error| anyhow::anyhow!(error))?.to_bytes();
        let text = || if bytes.is_empty() { Value::Null } else { String::from_utf8_lossy(&bytes).into() };
        let body = serde_json::from_slice(&bytes).unwrap_or_else(|_| text());
        Ok(Answer { status: head.status.as_u16(), headers: head.headers, body })
    }

    /// Sends a GET with these headers. Returns the answer before its body has ended.
    pub(crate) async fn begin(&self, path: &str, headers: &[(&str, &str)]) -> anyhow::Result<http::Response<Body>> {
        let mut config = Config::new(self.url.parse()?);
        config.read_timeout = None;
        let request =
            headers.iter().fold(Request::builder().uri(path), |request, (name, value)| request.header(*name, *value));
        Ok(Client::try_from(config)?.send(request.body(Body::from(Vec::new()))?).await?)
    }

    /// Waits until the cluster no longer has this OpsJob.
    pub(crate) async fn until_gone(&self, id: &str) -> anyhow::Result<()> {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("oarlock.dev", "v1alpha1", "OpsJob"));
        let jobs: Api<DynamicObject> = Api::all_with(self.admin.clone(), &kind);
        patiently("the OpsJob is gone", async || Ok(jobs.get_opt(id).await?.is_none())).await
    }

    /// Reads a job until `which` returns true for the answer.
    pub(crate) async fn until(&self, token: &str, id: &str, which: impl Fn(&Answer) -> bool) -> anyhow::Result<Answer> {
        let (path, mut last) = (format!("/api/v1/opsjobs/{id}"), None);
        let waited = patiently("the job is as it should be", async || {
            let answer = self.ask(Some(token), Method::GET, &path, None).await?;
            let is_so = which(&answer);
            last = Some(answer);
            Ok(is_so)
        });
        let waited = waited.await;
        waited.with_context(|| format!("{last:?}"))?;
        last.context("it was asked for")
    }
}

/// Waits until a process has started, and returns its address.
async fn begun(child: &mut Child) -> anyhow::Result<String> {
    let deadline = tokio::time::Instant::now() + BEGUN_WITHIN;
    loop {
        let log = child.tail(400);
        let of_dev = log.split_once("OpsJobs by REST are served at ").map(|(_, rest)| rest);
        let of_host = log.split_once("OpsJobs is served url=\"").map(|(_, rest)| rest);
        let address = of_dev.or(of_host).and_then(|rest| rest.split([',', '"']).next());
        if let Some(url) = address {
            return Ok(url.to_owned());
        }
        ensure!(child.ended()?.is_none(), "it ended: {log}");
        ensure!(tokio::time::Instant::now() < deadline, "it does not begin: {log}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
