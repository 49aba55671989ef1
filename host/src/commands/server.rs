//! `oarlock server`: serves OpsJobs by REST beside a host, with an account of its own, until it is stopped.

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
use oarlock_kube::{Cluster, Setup};
use rustix::process::{Resource, getrlimit, setrlimit};

use super::artefacts::ArtefactArgs;
use super::history::HistoryUrl;
use super::host::{ClusterArgs, stop_on_signal};
use super::memory;
use crate::health::{self, Health, Heartbeat, Probe};
use crate::manifests::HOST_NAMESPACE;
use crate::metrics::Metrics;
use crate::ops_job::LOCAL_CLUSTER;
use crate::published::{HostWatch, shared_settings};
use crate::rest::{self, RestArgs, RestParts};

const EXAMPLES: &str = "\
Examples:
  oarlock manifests --grants grants.yaml --ops --rest --deployment registry.example/oarlock:0.1.0 | kubectl apply -f -
      host and server in a cluster, with the certificate of the Secret oarlock-rest-tls
  oarlock server --data ./data
      on this machine, against the cluster of the current kubectl context, beside `oarlock host --data ./data`
  oarlock server --listen :8443 --cert tls.crt --key tls.key --artefacts s3://files --cluster-id blue
      for other machines, beside a host with the same --artefacts, --cluster-id and OARLOCK_HISTORY
  curl http://127.0.0.1:8081/readyz
      what it still waits for; /livez and /metrics are there too
  export OARLOCK_SERVER=http://127.0.0.1:8090 OARLOCK_TOKEN=$(kubectl create token NAME --audience oarlock)
  oarlock ops list
      what a client does

The server makes OpsJobs, and the host that leads carries them out. What the host serves is in the ConfigMap oarlock-host of
its namespace. Give both the same --cluster-id, --history and --data or --artefacts: with other settings the server makes no
job, and says which differ. It never changes the tables of the history, and its credentials for a bucket need to read only.";

/// Arguments of `oarlock server`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RestServerArgs {
    /// Address that serves the REST API of OpsJobs; `:8443` is port 8443 of each address, which needs a certificate
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8090", value_parser = health::parse_address)]
    listen: SocketAddr,
    #[command(flatten)]
    rest: RestArgs,
    /// Address that serves /livez, /readyz and /metrics; `:8081` is port 8081 of each address
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8081", value_parser = health::parse_address)]
    health: SocketAddr,
    /// Namespace of the host, which has the ConfigMap oarlock-host and the Secret oarlock-rest
    #[arg(long, value_name = "NAMESPACE", default_value = HOST_NAMESPACE)]
    namespace: String,
    /// Id of this cluster, as the host has it [default: local; with --history postgres://.. there is none]
    #[arg(long, value_name = "ID", env = "OARLOCK_CLUSTER_ID", value_parser = NonEmptyStringValueParser::new())]
    cluster_id: Option<String>,
    #[command(flatten)]
    artefacts: ArtefactArgs,
    #[command(flatten)]
    history: HistoryUrl,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Serves until it is stopped.
pub(crate) async fn run(args: RestServerArgs) -> anyhow::Result<ExitCode> {
    let RestServerArgs { listen, rest, health, namespace, cluster_id, artefacts, history, cluster } = args;
    raise_descriptors();
    // As the host does, which may share a folder with it.
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
    // Nothing is declared, so there are no events.
    let (cluster, _) = Cluster::open(setup);
    memory::of_container().into_iter().for_each(|limit| cluster.bound_memory(limit));
    tracing::info!(version = env!("CARGO_PKG_VERSION"), server, namespace, cluster = id, "the server begins");
    let ops = Ops::watch(cluster.clone(), Defaults::default(), Arc::new(()));
    let watch = HostWatch::with(shared_settings(&id, history.as_ref(), artefacts.as_ref()));
    let (heart, metrics) = (Arc::new(Heartbeat::default()), Arc::new(Metrics::new(cluster.requests())));
    let health = Arc::new(health_of(&ops, &watch, heart.clone()));
    let reading = tokio::spawn(watch.clone().run(ops.clone(), namespace.clone(), heart));
    let parts = RestParts { client, ops, host: watch.host(), cluster: id, artefacts, history, namespace };
    let rest = parts.rest(&rest);
    metrics.shows_rest(&rest);
    let answering = rest::serve(listener, rest, health.clone(), stop.clone());
    health::serve(probes, health, metrics, stop.cancelled_owned()).await;
    answering.await.context("serving the REST API panicked")?;
    reading.abort();
    Ok(ExitCode::SUCCESS)
}

/// Ready once the OpsJobs were listed. Without a host the server still reads, and stops and deletes jobs.
fn health_of(ops: &Ops, watch: &HostWatch, heart: Arc<Heartbeat>) -> Health {
    let (ops, watch) = (ops.clone(), watch.clone());
    let listed: Probe = Box::new(move || ops.is_listed());
    let host: Probe = Box::new(move || watch.now().map(drop).map_err(|why| why.words()));
    Health::of(vec![("opsjobs", listed)], heart).with_optional(vec![("host", host)])
}

/// Lets this process have as many file descriptors as the system allows: each connection is one.
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, raised)
    {
        tracing::warn!(%error, "the limit of file descriptors stays as it is");
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
