//! `oarlock dev`: serves an in-memory cluster on a local port, with a simulated cluster, a host and access for kubectl.
//!
//! The command runs until it is stopped. The command installs the documents that `oarlock manifests` prints. At its end
//! it removes all its files, except a kubeconfig that the user named.

use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};
use oarlock_core::operation_job::tasks::settings::TaskSettings;
use oarlock_kube::send::plugin_accounts::PluginAccountSettings;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::exports::ExportArgs;
use super::history::HistoryArgs;
use super::host::{GrantsFromArg, beside, made_up_identity, stop_on_signal};
use super::in_memory::{InMemory, NAMESPACE, create};
use super::scratch::Scratch;
use crate::controller::RESYNC;
use crate::health;
use crate::host::{GrantsSource, Host, HostOptions};
use crate::host_place::HostLocation;
use crate::images::ExportRegistry;
use crate::manifests::{HOST_NAMESPACE, SHIPPED_GRANTS};
use crate::rest::RestArgs;
use crate::traces::{self, OtlpArgs, TraceExport};
use oarlock_artefacts::Artefacts;

const EXAMPLES: &str = "\
Examples:
  oarlock dev --plugins ./plugins
  oarlock dev --plugins target/wasm32-wasip2/release --kubeconfig-out dev.kubeconfig --log info
  oarlock dev --plugins target/wasm32-wasip2/release --grant-all    while you develop a plugin

  oarlock dev --plugins target/wasm32-wasip2/release --grant-all --rest 127.0.0.1:8090    with the page and the REST API there

Then use the KUBECONFIG that the command prints, in another terminal:
  kubectl get pods,collasets,deployments
  kubectl apply -f job.yaml && kubectl get opj -w";

/// Arguments of `oarlock dev`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DevArgs {
    /// Port of the API server, on 127.0.0.1; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    port: u16,
    /// Directory of the plugin files
    #[arg(long, value_name = "DIR", default_value = "plugins")]
    plugins: PathBuf,
    /// Source of the grants: `cluster` takes them from the ActionPlugins
    #[arg(long, value_enum, default_value_t, value_name = "SOURCE")]
    grants_from: GrantsFromArg,
    /// Grants of the plugins [default: grants.yaml beside the plugin directory, created with the grants of the shipped
    /// plugins if it is missing]
    #[arg(long, value_name = "FILE")]
    grants: Option<PathBuf>,
    /// Grant each plugin everything that it asks for; a grants file still gives limits and configuration
    #[arg(long)]
    grant_all: bool,
    /// Path for the kubeconfig [default: a temporary file]
    #[arg(long, value_name = "FILE")]
    kubeconfig_out: Option<PathBuf>,
    /// Folder for the files of OpsJobs, such as preflight reports and collected logs, and for the history of OpsJobs
    /// [default: a temporary folder]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    #[command(flatten)]
    history: HistoryArgs,
    /// Number of the last visits to record for each plugin, for `oarlock plugin replay`
    #[arg(long, value_name = "N", default_value_t = 200)]
    record_visits: usize,
    /// Address that serves /livez, /readyz and /metrics
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0", value_parser = health::parse_address)]
    listen: SocketAddr,
    #[command(flatten)]
    exports: ExportArgs,
    /// Address that serves the page of jobs and the REST API of OpsJobs, from the process of the host
    ///
    /// On this machine the page needs no login. On another address it needs a certificate, and a token as `oarlock server` does.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0", value_parser = health::parse_address)]
    rest: SocketAddr,
    #[command(flatten)]
    requests: RestArgs,
    /// Path for an admin's token of the REST API [default: a temporary file]
    #[arg(long, value_name = "FILE")]
    rest_token_out: Option<PathBuf>,
    #[command(flatten)]
    otlp: OtlpArgs,
}

impl DevArgs {
    /// Returns the flags of traces.
    pub(super) fn otlp(&self) -> &OtlpArgs {
        &self.otlp
    }
}

/// Serves an in-memory cluster until a stop signal.
pub(crate) async fn run(args: DevArgs, traces: Option<TraceExport>) -> anyhow::Result<ExitCode> {
    let stop = stop_on_signal()?;
    let scratch = Scratch::new()?;
    let data = args.data.clone().unwrap_or_else(|| scratch.path().to_owned());
    let artefacts = Some(Artefacts::in_folder(&data).map_err(anyhow::Error::msg)?);
    let recorder = args.history.open(Some(&data), Some(&HostLocation::default().cluster)).await?;
    std::fs::create_dir_all(&args.plugins)
        .with_context(|| format!("cannot make the plugin directory {}", args.plugins.display()))?;
    let furnished = InMemory::start().await?;
    let address = furnished.serve(args.port, stop.clone()).await?;
    let exports = exports_of(args.exports, &furnished, stop.clone()).await?;
    let kubeconfig = args.kubeconfig_out.unwrap_or_else(|| scratch.path().join("kubeconfig"));
    write_kubeconfig(&kubeconfig, address)?;
    // The path is absolute, because the user's other terminals have other working directories.
    let kubeconfig = std::fs::canonicalize(&kubeconfig).unwrap_or(kubeconfig);
    let grants = args.grants_from.source(|| grants_file(args.grants, &args.plugins, args.grant_all), None)?;
    let listener = health::listen(args.listen).await?;
    let health_address = listener.local_addr().context("cannot read the address that serves /readyz")?;
    let granted = match &grants {
        _ if args.grant_all => "everything that a plugin asks for (--grant-all)".to_owned(),
        GrantsSource::Cluster => "kubectl edit actionplugin NAME".to_owned(),
        GrantsSource::File { path, .. } => format!("edit {}", path.display()),
    };
    let rest = args.requests.listen(args.rest).await?;
    let token = args.rest_token_out.unwrap_or_else(|| scratch.path().join("rest-token"));
    write_token(&furnished.client, &args.requests.audience, &token).await?;
    let token = std::fs::canonicalize(&token).unwrap_or(token);
    println!("{}", greeting(&Addresses { api: address, health: health_address }, &kubeconfig, &args.plugins, &granted));
    println!("{}", rest_greeting(&rest.url(), &token));
    println!("images are exported to {}", exports.registry);
    println!("visits are recorded: oarlock plugin record JOB --data {}", data.display());
    let options = HostOptions {
        client: furnished.client.clone(),
        plugins: args.plugins,
        grants,
        grant_all: args.grant_all,
        identity: made_up_identity(),
        namespace: HOST_NAMESPACE.to_owned(),
        resync: RESYNC,
        tasks: TaskSettings::default(),
        accounts: PluginAccountSettings::default(),
        place: HostLocation { artefacts, exports: Some(exports), recorder, ..HostLocation::default() },
        memory_limit: None,
        record_visits: args.record_visits,
    };
    let process = Host::start(options).await?;
    let serving =
        tokio::spawn(health::serve(listener, process.health(), process.metrics(), stop.clone().cancelled_owned()));
    let answering = process.answer(rest, &args.requests, stop.clone());
    let exporting = traces::export(traces, &process.metrics(), stop.clone());
    process.run(stop).await?;
    exporting.await.context("the export of traces panicked")?;
    answering.await.context("serving the REST API panicked")?;
    furnished.world.stop().await;
    serving.await.context("serving /livez, /readyz and /metrics panicked")?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the registry of the arguments, or serves one in memory.
async fn exports_of(args: ExportArgs, furnished: &InMemory, stop: CancellationToken) -> anyhow::Result<ExportRegistry> {
    match args.registry(HOST_NAMESPACE)? {
        None => furnished.serve_images(stop).await,
        Some(own) => Ok(own),
    }
}

/// Returns the grants file: the one that the user named, or the one beside the plugin directory.
///
/// Without `--grant-all`, writes a missing default file with the grants of the shipped plugins. Never overwrites it,
/// because it then belongs to the user.
fn grants_file(named: Option<PathBuf>, plugins: &Path, grant_all: bool) -> anyhow::Result<PathBuf> {
    let file = match named {
        Some(file) if file.is_file() => return Ok(file),
        Some(file) => bail!("there are no grants at {}: write them, or leave --grants out", file.display()),
        None => beside(plugins),
    };
    if grant_all {
        return Ok(file);
    }
    let made = std::fs::OpenOptions::new().write(true).create_new(true).open(&file);
    match made.and_then(|mut made| made.write_all(SHIPPED_GRANTS.as_bytes())) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error)
            .with_context(|| format!("cannot write the grants {}: name a file of yours with --grants", file.display())),
        _ => Ok(file),
    }
}

/// The service account of the written token.
const ADMIN: &str = "ops-admin";
/// The lifetime of the token, in seconds.
const TOKEN_SECONDS: i64 = 24 * 3_600;

/// Creates a service account with all permissions and writes a token of it for the REST API. Only this user of the
/// machine may read the file.
async fn write_token(client: &Client, audience: &str, path: &Path) -> anyhow::Result<()> {
    let subject = json!({"kind": "ServiceAccount", "name": ADMIN, "namespace": NAMESPACE});
    for document in [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ADMIN, "namespace": NAMESPACE}}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": ADMIN},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [subject]}),
    ] {
        create(client, &document).await?;
    }
    let spec = TokenRequestSpec {
        audiences: vec![audience.to_owned()],
        expiration_seconds: Some(TOKEN_SECONDS),
        ..TokenRequestSpec::default()
    };
    let request = TokenRequest { metadata: ObjectMeta::default(), spec, status: None };
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    let made = accounts.create_token_request(ADMIN, &PostParams::default(), &request).await;
    let made = made.context("cannot make a token for the REST API")?;
    let token = made.status.map(|status| status.token).context("the token request has no answer")?;
    let failed = || format!("cannot write the token {}: choose another file with --rest-token-out", path.display());
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path).with_context(failed)?;
    // An existing file keeps its old permissions when it is opened.
    file.set_permissions(std::fs::Permissions::from_mode(0o600)).with_context(failed)?;
    file.write_all(token.as_bytes()).with_context(failed)
}

fn rest_greeting(url: &str, token: &Path) -> String {
    let token = token.display();
    format!(
        "
Jobs are shown in a browser at {url}

OpsJobs by REST are served at {url}, with a page about it at {url}/docs:

  export OARLOCK_SERVER={url} OARLOCK_TOKEN_FILE={token}
  oarlock ops list
  curl -H \"Authorization: Bearer $(cat {token})\" {url}/api/v1/opsjobs"
    )
}

struct Addresses {
    api: SocketAddr,
    health: SocketAddr,
}

fn greeting(at: &Addresses, kubeconfig: &Path, plugins: &Path, granted: &str) -> String {
    let Addresses { api, health } = at;
    let (kubeconfig, plugins) = (kubeconfig.display(), plugins.display());
    format!(
        "A Kubernetes API in memory is served at http://{api}, with a CollaSet foo and a Deployment web.

  export KUBECONFIG={kubeconfig}
  kubectl get pods

Plugins:  drop, replace or remove .wasm files in {plugins}
Grants:   {granted}
Host:     curl http://{health}/readyz    (/livez and /metrics are there too)

Ctrl-C ends it all."
    )
}

/// Writes a kubeconfig without credentials, because the API listens only on this machine and does not authenticate.
fn write_kubeconfig(path: &Path, api: SocketAddr) -> anyhow::Result<()> {
    let text = format!(
        "apiVersion: v1
kind: Config
current-context: oarlock-dev
clusters:
- {{name: oarlock-dev, cluster: {{server: \"http://{api}\"}}}}
contexts:
- {{name: oarlock-dev, context: {{cluster: oarlock-dev, user: oarlock-dev, namespace: {NAMESPACE}}}}}
users:
- {{name: oarlock-dev, user: {{}}}}
"
    );
    std::fs::write(path, text).with_context(|| {
        format!("cannot write the kubeconfig {}: choose another with --kubeconfig-out", path.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::scratch::Scratch;

    #[test]
    fn the_kubeconfig_is_one_that_clients_can_read() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.path().join("kubeconfig");
        write_kubeconfig(&path, ([127, 0, 0, 1], 8001).into()).unwrap();
        let read = kube::config::Kubeconfig::read_from(&path).unwrap();
        assert_eq!(read.current_context.as_deref(), Some("oarlock-dev"));
        let server = read.clusters[0].cluster.as_ref().and_then(|cluster| cluster.server.clone());
        assert_eq!(server.as_deref(), Some("http://127.0.0.1:8001"));
    }

    #[test]
    fn grants_are_written_beside_the_plugin_directory_once_and_kept() {
        let scratch = Scratch::new().unwrap();
        let plugins = scratch.path().join("plugins");
        let file = grants_file(None, &plugins, false).unwrap();
        assert_eq!(
            (file.as_path(), std::fs::read_to_string(&file).unwrap().as_str()),
            (beside(&plugins).as_path(), SHIPPED_GRANTS)
        );
        std::fs::write(&file, "# mine\n").unwrap();
        assert_eq!(grants_file(None, &plugins, false).unwrap(), file);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "# mine\n");
    }

    #[test]
    fn granting_everything_writes_no_file_and_a_missing_file_that_was_named_is_refused() {
        let scratch = Scratch::new().unwrap();
        let file = grants_file(None, &scratch.path().join("plugins"), true).unwrap();
        assert!(!file.exists());
        let refused = grants_file(Some(file), &scratch.path().join("plugins"), true).unwrap_err();
        assert!(refused.to_string().starts_with("there are no grants at "), "{refused}");
    }
}
