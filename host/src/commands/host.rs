//! `oarlock host`: runs the controller against a Kubernetes cluster until it is stopped.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use oarlock_core::operation_job::tasks::settings::TaskSettings;
use oarlock_core::plugin::grant::PLUGIN_ACCOUNTS_NAMESPACE;
use oarlock_kube::send::plugin_accounts::PluginAccountSettings;
use oarlock_kube::transport::client::{Source, connect, impersonates};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::artefacts::ArtefactArgs;
use super::exports::ExportArgs;
use super::history::HistoryArgs;
use super::manifests::label;
use super::memory;
use crate::controller::RESYNC;
use crate::health;
use crate::host::{GrantsSource, Host, HostOptions};
use crate::host_place::HostLocation;
use crate::host_place::LOCAL_CLUSTER;
use crate::manifests::HOST_NAMESPACE;
use crate::traces::{self, OtlpArgs, TraceExport};

const EXAMPLES: &str = "\
Examples:
  oarlock manifests | kubectl apply -f -
  oarlock host --plugins ./plugins --identity laptop
      run against the cluster of the current kubectl context, with the grants in ./grants.yaml beside the plugin directory
  oarlock host --plugins /plugins --grants /etc/oarlock/grants.yaml --identity $POD_NAME --log-format json
      run in a pod, with the service account of the pod
  curl http://127.0.0.1:8080/readyz
      show what the host still waits for; the same address serves /livez and /metrics

A plugin is a file <name>.wasm. You can add, replace or remove plugins while the host runs. The host serves a plugin once the
grants allow everything that it asks for. `oarlock plugin inspect FILE` shows the requests of a plugin.";

/// Arguments of `oarlock host`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HostArgs {
    /// Directory of the plugin files
    #[arg(long, value_name = "DIR")]
    plugins: PathBuf,
    /// Source of the grants of all plugins: `file` takes them from --grants, `cluster` from the specs of the ActionPlugins
    #[arg(long, value_enum, default_value_t, value_name = "SOURCE")]
    grants_from: GrantsFromArg,
    /// Grants of the plugins; the host reads a changed file again [default: grants.yaml beside the plugin directory]
    #[arg(long, value_name = "FILE")]
    grants: Option<PathBuf>,
    /// Digest of the only accepted grants, as in the Deployment of `oarlock manifests` [default: accept any grants in
    /// that file]
    #[arg(long, value_name = "DIGEST", requires = "grants")]
    grants_digest: Option<String>,
    /// Name of this process in the lease, such as the pod's name; no two running processes may share a name
    ///
    /// A process that finds its own name in the lease leads at once, so a restart costs no time. Without a name, it
    /// waits until the lease of its predecessor expires.
    #[arg(long, value_name = "NAME", env = "POD_NAME", value_parser = NonEmptyStringValueParser::new())]
    identity: Option<String>,
    /// Namespace of the lease; all hosts of a cluster must share it, since two hosts with different namespaces would
    /// both lead
    #[arg(long, value_name = "NAMESPACE", default_value = HOST_NAMESPACE)]
    namespace: String,
    /// Seconds between two complete lists of all objects, in case the host missed a change
    #[arg(long, value_name = "SECONDS", default_value_t = RESYNC.as_secs(), value_parser = clap::value_parser!(u64).range(1..))]
    resync: u64,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Memory that the host, its plugins and the compiler share, such as 512Mi [default: the limit of the container]
    ///
    /// The plugins get a quarter, and the compiler gets three eighths. The host refuses a plugin that needs more, and
    /// names it.
    #[arg(long, value_name = "SIZE", value_parser = memory::parse)]
    memory_limit: Option<u64>,
    /// Image of the pods that run commands on nodes, with this program as /oarlock; the pods are in the namespace
    /// oarlock-tasks
    ///
    /// Without it, no command starts, so no node reboots. Checks have their own images.
    #[arg(long, value_name = "IMAGE", env = "OARLOCK_TASK_IMAGE", value_parser = NonEmptyStringValueParser::new())]
    task_image: Option<String>,
    /// Namespace of the accounts of plugins whose grants have `identity`, as in `oarlock manifests`
    #[arg(long, value_name = "NAMESPACE", default_value = PLUGIN_ACCOUNTS_NAMESPACE, value_parser = label)]
    plugin_accounts_namespace: String,
    /// Id of this cluster. An OpsJob for all nodes names it, and clusters that share a history are told apart by it
    /// [default: local; --history postgres://.. needs an id]
    #[arg(long, value_name = "ID", env = "OARLOCK_CLUSTER_ID", value_parser = NonEmptyStringValueParser::new())]
    cluster_id: Option<String>,
    /// Node that the host runs on; an OpsJob works on this node last
    #[arg(long, value_name = "NAME", env = "NODE_NAME", value_parser = NonEmptyStringValueParser::new())]
    node: Option<String>,
    #[command(flatten)]
    artefacts: ArtefactArgs,
    #[command(flatten)]
    history: HistoryArgs,
    #[command(flatten)]
    exports: ExportArgs,
    /// Number of the last visits to record for each plugin, for `oarlock plugin replay`; 0 records only jobs with the
    /// annotation oarlock.dev/record: "true"
    #[arg(long, value_name = "N", default_value_t = 0)]
    record_visits: usize,
    /// Address that serves /livez, /readyz and /metrics; `:8080` is port 8080 on all addresses
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080", value_parser = health::parse_address)]
    listen: SocketAddr,
    #[command(flatten)]
    otlp: OtlpArgs,
}

/// The values of `--grants-from`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum GrantsFromArg {
    /// A file of grants
    #[default]
    File,
    /// The ActionPlugins of the cluster
    Cluster,
}

impl GrantsFromArg {
    /// Returns the source of the grants. `path` and `digest` are those of the file.
    pub(super) fn source(
        self,
        path: impl FnOnce() -> anyhow::Result<PathBuf>,
        digest: Option<String>,
    ) -> anyhow::Result<GrantsSource> {
        Ok(match self {
            Self::File => GrantsSource::File { path: path()?, digest },
            Self::Cluster => GrantsSource::Cluster,
        })
    }
}

impl HostArgs {
    /// Returns the flags of traces.
    pub(super) fn otlp(&self) -> &OtlpArgs {
        &self.otlp
    }
}

/// The flags of the cluster.
#[derive(Clone, Debug, Args)]
pub(crate) struct ClusterArgs {
    /// Kubeconfig file [default: $KUBECONFIG, ~/.kube/config, or the pod's service account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig [default: its current context]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

impl ClusterArgs {
    pub(crate) fn source(self) -> anyhow::Result<Source> {
        let Self { kubeconfig, context } = self;
        match (kubeconfig, context) {
            (None, None) => Ok(Source::Infer),
            (Some(path), context) => Ok(Source::Kubeconfig { path, context }),
            (None, context) => Ok(Source::Kubeconfig { path: usual_kubeconfig()?, context }),
        }
    }
}

/// Returns the kubeconfig that kubectl reads first.
fn usual_kubeconfig() -> anyhow::Result<PathBuf> {
    let named =
        std::env::var_os("KUBECONFIG").and_then(|list| std::env::split_paths(&list).find(|path| path.is_file()));
    let at_home = || std::env::home_dir().map(|home| home.join(".kube").join("config"));
    named.or_else(at_home).context("--context needs a kubeconfig: give --kubeconfig FILE or set KUBECONFIG")
}

/// Runs the host until it is stopped.
pub(crate) async fn run(args: HostArgs, traces: Option<TraceExport>) -> anyhow::Result<ExitCode> {
    let HostArgs {
        plugins,
        grants_from,
        grants,
        grants_digest,
        identity,
        namespace,
        resync,
        cluster,
        memory_limit,
        task_image,
        plugin_accounts_namespace,
        cluster_id,
        node,
        artefacts,
        history,
        exports,
        record_visits,
        listen,
        otlp: _,
    } = args;
    // The host writes files with logs and scripts, which other users must not read.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let recorder = history.open(artefacts.data.as_deref(), cluster_id.as_deref()).await?;
    let artefacts = artefacts.open().await?;
    let exports = exports.registry(&namespace)?;
    let stop = stop_on_signal()?;
    let listener = health::listen(listen).await?;
    let source = cluster.source()?;
    let accounts = PluginAccountSettings {
        namespace: plugin_accounts_namespace,
        kubeconfig_impersonates: impersonates(&source).await?,
    };
    let (client, server) = connect(&source).await?;
    anyhow::ensure!(
        grants_from == GrantsFromArg::File || grants.is_none(),
        "--grants-from cluster takes the grants from the ActionPlugins, so leave out --grants"
    );
    let grants = grants_from.source(|| Ok(known_grants(grants.unwrap_or_else(|| beside(&plugins)))), grants_digest)?;
    let options = HostOptions {
        client,
        grants,
        grant_all: false,
        plugins,
        identity: identity.unwrap_or_else(made_up_identity),
        namespace,
        resync: Duration::from_secs(resync),
        tasks: TaskSettings { image: task_image, ..TaskSettings::default() },
        accounts,
        place: HostLocation {
            cluster: cluster_id.unwrap_or_else(|| LOCAL_CLUSTER.to_owned()),
            node,
            artefacts,
            exports,
            recorder,
        },
        memory_limit: memory_limit.or_else(memory::of_container),
        record_visits,
    };
    announce(&options, &server, listener.local_addr().context("cannot read the address that serves /readyz")?);
    let process = Host::start(options).await?;
    let serving =
        tokio::spawn(health::serve(listener, process.health(), process.metrics(), stop.clone().cancelled_owned()));
    let exporting = traces::export(traces, &process.metrics(), stop.clone());
    process.run(stop).await?;
    exporting.await.context("the export of traces panicked")?;
    serving.await.context("serving /livez, /readyz and /metrics panicked")?;
    Ok(ExitCode::SUCCESS)
}

/// Logs the settings at the start.
fn announce(options: &HostOptions, server: &str, listen: SocketAddr) {
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        server,
        identity = options.identity,
        namespace = options.namespace,
        plugins = %options.plugins.display(),
        grants = %options.grants,
        %listen,
        "oarlock begins"
    );
}

/// Returns the path of the grants. Warns if the file is missing, because no plugin serves without grants.
fn known_grants(path: PathBuf) -> PathBuf {
    if !path.is_file() {
        let path = path.display();
        tracing::warn!(%path, "the grants file is missing, so no plugin serves: create the file, or name another file with --grants");
    }
    path
}

/// Returns the path of `grants.yaml` beside the plugin directory. The file is never in it, because a user who may add a
/// plugin may not grant it anything.
pub(crate) fn beside(plugins: &std::path::Path) -> PathBuf {
    let absolute = std::path::absolute(plugins).unwrap_or_else(|_| plugins.to_owned());
    absolute.parent().map_or_else(|| PathBuf::from("grants.yaml"), |parent| parent.join("grants.yaml"))
}

/// Returns a name that no other process has. The machine's name would not do, because two hosts may run on one machine.
pub(crate) fn made_up_identity() -> String {
    let now = k8s_openapi::jiff::Timestamp::now().as_nanosecond();
    format!("oarlock-{}-{:x}", std::process::id(), now)
}

/// Returns a token that SIGTERM or SIGINT cancels. A second signal ends the process at once.
pub(crate) fn stop_on_signal() -> anyhow::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let stop = CancellationToken::new();
    let told = stop.clone();
    tokio::spawn(async move {
        for asked_before in [false, true] {
            tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
            if asked_before {
                tracing::warn!("second stop signal: exiting without releasing the lease");
                // 128 plus the number of SIGINT, as a shell reports it.
                std::process::exit(130);
            }
            tracing::info!("stop signal: finishing the running rounds");
            told.cancel();
        }
    });
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn grants_are_beside_the_plugin_directory_and_never_in_it() {
        assert_eq!(beside(Path::new("/srv/oarlock/plugins")), Path::new("/srv/oarlock/grants.yaml"));
        assert_eq!(beside(Path::new("/srv/oarlock/plugins/")), Path::new("/srv/oarlock/grants.yaml"));
        assert_eq!(beside(Path::new("plugins")), std::env::current_dir().unwrap().join("grants.yaml"));
    }

    #[test]
    fn a_context_alone_is_looked_for_in_the_usual_kubeconfig() {
        let given = ClusterArgs { kubeconfig: Some("k".into()), context: Some("c".into()) };
        assert_eq!(given.source().unwrap(), Source::Kubeconfig { path: "k".into(), context: Some("c".into()) });
        assert_eq!(ClusterArgs { kubeconfig: None, context: None }.source().unwrap(), Source::Infer);
    }
}
