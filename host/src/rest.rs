//! The REST API of OpsJobs in a process: its flags, and its parts.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use ipnet::IpNet;
use kube::Client;
use oarlock_artefacts::Artefacts;
use oarlock_core::object::own::SYSTEM_NAMESPACES;
use oarlock_core::ops_job::quota::QuotaBounds;
use oarlock_history::History;
use oarlock_kube::ops::Ops;
use oarlock_rest::{Beside, HostOf, Listening, Origin, Readiness, Rest, RestError, RestOptions, Tls};

use crate::health::Health;

/// The time for which the address of a file is valid.
pub(crate) const URL_TTL: Duration = Duration::from_secs(15 * 60);

/// The flags of the REST API.
#[derive(Clone, Debug, Args)]
pub struct RestArgs {
    /// Certificate of the REST API with its chain, in PEM; read again when it changes
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// Private key of that certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// Audience that tokens must have: kubectl create token NAME --audience oarlock
    #[arg(long, value_name = "NAME", default_value = "oarlock", value_parser = NonEmptyStringValueParser::new())]
    pub audience: String,
    /// Also accept tokens for the API server itself, such as those of OIDC users and those in pods
    ///
    /// Anyone who intercepts such a token on its way to this API can use it with the API server.
    #[arg(long)]
    pub cluster_tokens: bool,
    /// Reads per second that one user may make by REST; a burst may have twice as many
    #[arg(long, value_name = "N", default_value = "50")]
    pub read_rate: NonZeroU32,
    /// Other requests per second that one user may make by REST; a burst may have four times as many
    #[arg(long, value_name = "N", default_value = "5")]
    pub write_rate: NonZeroU32,
    /// Longest `ttlSecondsAfterFinished` of callers without rights in the whole cluster; a longer or negative one is
    /// refused
    #[arg(long, value_name = "SECONDS", default_value_t = 7 * 24 * 3_600, value_parser = clap::value_parser!(i64).range(0..=i64::from(i32::MAX)))]
    pub max_ttl: i64,
    /// Addresses of proxies whose headers name the client's address and scheme, such as 10.0.0.0/8; may be repeated
    ///
    /// The server trusts the headers `Forwarded`, `X-Forwarded-For` and `X-Forwarded-Proto` only from these addresses.
    #[arg(long, value_name = "RANGE")]
    pub trusted_proxy: Vec<IpNet>,
    /// Origin of pages that may call the REST API from a browser, such as https://console.example; may be given several
    /// times
    ///
    /// A page sends its token itself: the server accepts no cookies, and tells browsers so.
    #[arg(long = "cors-origin", value_name = "ORIGIN", value_parser = Origin::read)]
    pub cors_origins: Vec<Origin>,
}

impl RestArgs {
    /// Binds the address.
    ///
    /// # Errors
    /// If the address cannot be served.
    pub async fn listen(&self, address: SocketAddr) -> Result<Listening, RestError> {
        let files = self.cert.clone().zip(self.key.clone());
        Listening::on(address, files.map(|(certificate, key)| Tls { certificate, key })).await
    }
}

/// The parts of the REST API.
pub(crate) struct RestParts {
    pub(crate) client: Client,
    pub(crate) ops: Ops,
    pub(crate) host: HostOf,
    pub(crate) cluster: String,
    pub(crate) artefacts: Option<Artefacts>,
    pub(crate) history: Option<History>,
    pub(crate) namespace: String,
}

impl RestParts {
    /// Returns the REST API.
    pub(crate) fn rest(self, args: &RestArgs) -> Rest {
        let Self { client, ops, host, cluster, artefacts, history, namespace } = self;
        Rest::new(RestOptions {
            client,
            ops,
            cluster,
            system: &SYSTEM_NAMESPACES,
            host,
            artefacts,
            history,
            namespace,
            audience: args.audience.clone(),
            takes_cluster_tokens: args.cluster_tokens,
            read_rate: args.read_rate,
            write_rate: args.write_rate,
            url_ttl: URL_TTL,
            quotas: QuotaBounds::default(),
            max_ttl: args.max_ttl,
            trusted_proxies: args.trusted_proxy.clone(),
            origins: args.cors_origins.clone(),
        })
    }
}

/// Serves the API until `stop`. Finishes running requests.
pub(crate) fn serve(
    listener: Listening,
    rest: Rest,
    beside: Beside,
    stop: tokio_util::sync::CancellationToken,
) -> tokio::task::JoinHandle<()> {
    let url = listener.url();
    tokio::spawn(async move {
        tracing::info!(url, "the REST API of OpsJobs is served");
        if let Err(error) = listener.serve(rest, beside, stop).await {
            tracing::error!(%error, "the REST API of OpsJobs has stopped");
        }
    })
}

/// Returns the function that tells the API whether the process is ready.
pub(crate) fn readiness(health: Arc<Health>) -> Readiness {
    Arc::new(move || health.readiness())
}
