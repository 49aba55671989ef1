//! `oarlock server`: serves OpsJobs by REST beside a host, with its own account, until it is stopped.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use k8s_openapi::jiff::Timestamp;
use oarlock_core::ops_job::spec::Defaults;
use oarlock_kube::ops::Ops;
use oarlock_kube::transport::client::connect;
use oarlock_kube::watch::mirror::Mirror;
use oarlock_kube::{Cluster, Setup};
use oarlock_rest::Beside;
use oarlock_web::{PageAdmission, WebOptions};
use rustix::process::{Resource, getrlimit, setrlimit};

use super::artefacts::ArtefactArgs;
use super::history::HistoryUrl;
use super::host::{ClusterArgs, stop_on_signal};
use super::memory;
use crate::health::{self, Health, HealthPart, Heartbeat, Probe};
use crate::host_place::LOCAL_CLUSTER;
use crate::manifests::HOST_NAMESPACE;
use crate::metrics::Metrics;
use crate::published::{HostWatch, shared_settings};
use crate::rest::{self, RestArgs, RestParts, readiness};

const EXAMPLES: &str = "\
Examples:
  oarlock manifests --grants grants.yaml --ops --rest --deployment registry.example/oarlock:0.1.0 | kubectl apply -f -
      install host and server in a cluster, with the certificate in the Secret oarlock-rest-tls
  oarlock server --data ./data
      serve on this machine for the cluster of the current kubectl context, beside `oarlock host --data ./data`
  oarlock server --listen :8443 --cert tls.crt --key tls.key --artefacts s3://files --cluster-id blue
      serve other machines, beside a host with the same --artefacts, --cluster-id and OARLOCK_HISTORY
  oarlock server --web --listen :8443 --cert tls.crt --key tls.key
      also serve the page of all jobs, at https://NAME:8443; people log in with: kubectl create token NAME --audience oarlock
  curl http://127.0.0.1:8081/readyz
      show what the server still waits for; the same address serves /livez and /metrics
  export OARLOCK_SERVER=http://127.0.0.1:8090 OARLOCK_TOKEN=$(kubectl create token NAME --audience oarlock)
  oarlock ops list
      list OpsJobs as a client

The server creates OpsJobs, and the leading host runs them. The host publishes its settings in the ConfigMap oarlock-host of its
namespace. Give host and server the same --cluster-id, --history, and --data or --artefacts. If a setting differs, the server
creates no jobs and names the setting. The server never changes the tables of the history. It only needs to read from a bucket.";

/// Arguments of `oarlock server`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RestServerArgs {
    /// Address that serves the REST API of OpsJobs; `:8443` is port 8443 on all addresses, which needs a certificate
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8090", value_parser = health::parse_address)]
    listen: SocketAddr,
    #[command(flatten)]
    rest: RestArgs,
    /// Serve the page of all jobs at the same address, for people with a browser
    ///
    /// The page asks for a token for the audience of this server, and shows what the token's owner may read with kubectl. It changes nothing.
    #[arg(long)]
    web: bool,
    /// Let the page show the last lines of the logs of failed Jobs, to viewers who may read these logs with kubectl
    #[arg(long, requires = "web")]
    web_logs: bool,
    /// Address that serves /livez, /readyz and /metrics; `:8081` is port 8081 on all addresses
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8081", value_parser = health::parse_address)]
    health: SocketAddr,
    /// Namespace of the host, where the ConfigMap oarlock-host and the Secret oarlock-rest are
    #[arg(long, value_name = "NAMESPACE", default_value = HOST_NAMESPACE)]
    namespace: String,
    /// Id of this cluster, the same as the host's [default: local; --history postgres://.. needs an id]
    #[arg(long, value_name = "ID", env = "OARLOCK_CLUSTER_ID", value_parser = NonEmptyStringValueParser::new())]
    cluster_id: Option<String>,
    #[command(flatten)]
    artefacts: ArtefactArgs,
    #[command(flatten)]
    history: HistoryUrl,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Serves until a stop signal.
pub(crate) async fn run(args: RestServerArgs) -> anyhow::Result<ExitCode> {
    let RestServerArgs { listen, rest, web, web_logs, health, namespace, cluster_id, artefacts, history, cluster } =
        args;
    raise_descriptors();
    // The host sets the same umask. The server may share a folder with it.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let stop = stop_on_signal()?;
    let probes = health::listen(health).await?;
    let listener = rest.listen(listen).await?;
    let history = history.open_as_guest(artefacts.data.as_deref(), cluster_id.as_deref()).await?;
    let artefacts = artefacts.open_to_read().await?;
    let id = cluster_id.unwrap_or_else(|| LOCAL_CLUSTER.to_owned());
    let (client, server) = connect(&cluster.source()?).await?;
    let setup =
        Setup { client: client.clone(), clock: Arc::new(Timestamp::now), identity: "oarlock-server".to_owned() };
    // The server declares no kinds, so there are no events.
    let (cluster, _) = Cluster::open(setup);
    let memory_limit = memory::of_container();
    memory_limit.into_iter().for_each(|limit| cluster.bound_memory(limit));
    tracing::info!(version = env!("CARGO_PKG_VERSION"), server, namespace, cluster = id, "the server begins");
    let ops = Ops::watch(cluster.clone(), Defaults::default(), Arc::new(()));
    let watch = HostWatch::with(shared_settings(&id, history.as_ref(), artefacts.as_ref()));
    let (heart, metrics) = (Arc::new(Heartbeat::default()), Arc::new(Metrics::new(cluster.requests())));
    let health = Arc::new(health_of(&ops, &watch, heart.clone()));
    metrics.shows_health(&health);
    memory_limit.into_iter().for_each(|limit| metrics.shows_memory_limit(limit));
    artefacts.iter().for_each(|artefacts| metrics.shows_artefacts(artefacts));
    let reading = tokio::spawn(watch.clone().run(ops.clone(), namespace.clone(), heart));
    let parts = RestParts { client, ops, host: watch.host(), cluster: id, artefacts, history, namespace };
    let rest = parts.rest(&rest);
    metrics.shows_rest(&rest);
    let pages = web.then(|| {
        oarlock_web::pages(WebOptions {
            rest: rest.clone(),
            mirror: Mirror::watch(&cluster, &oarlock_web::KINDS),
            host: watch.host(),
            logs: web_logs.then(|| cluster.clone()),
            admission: PageAdmission::Login,
            stop: stop.clone(),
        })
    });
    let beside = Beside { ready: readiness(health.clone()), pages };
    let answering = rest::serve(listener, rest, beside, stop.clone());
    health::serve(probes, health, metrics, stop.cancelled_owned()).await;
    answering.await.context("serving the REST API panicked")?;
    reading.abort();
    Ok(ExitCode::SUCCESS)
}

/// Returns the health of the server. The server is ready after its first list of OpsJobs. Without a host, it still
/// reads, stops and deletes jobs.
fn health_of(ops: &Ops, watch: &HostWatch, heart: Arc<Heartbeat>) -> Health {
    let (ops, watch) = (ops.clone(), watch.clone());
    let listed: Probe = Box::new(move || ops.is_listed());
    let host: Probe = Box::new(move || watch.now().map(drop).map_err(|why| why.describe()));
    let needed = vec![HealthPart { name: "opsjobs".into(), probe: listed }];
    Health::of(needed, heart).with_optional(vec![HealthPart { name: "host".into(), probe: host }])
}

/// Raises the limit of file descriptors to the system's maximum, because each connection needs a descriptor.
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, raised)
    {
        tracing::warn!(%error, "failed to raise the limit of open files");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_may_have_as_many_descriptors_as_the_system_allows() {
        raise_descriptors();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
