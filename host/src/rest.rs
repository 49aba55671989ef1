//! The REST API of OpsJobs in a process: how requests are taken, and what the API is made of.

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
use oarlock_core::ops_job::quota::QuotaBounds;
use oarlock_history::History;
use oarlock_kube::ops::Ops;
use oarlock_rest::{HostOf, Listening, Origin, Readiness, Rest, RestError, RestOptions, Tls};

use crate::health::Health;
use crate::ops_job::SYSTEM_NAMESPACES;

/// For how long the address of a file is good.
pub(crate) const URL_TTL: Duration = Duration::from_secs(15 * 60);

/// How the REST API takes requests.
#[derive(Clone, Debug, Args)]
pub struct RestArgs {
    /// Certificate of the REST API with its chain, in PEM; read again when it changes
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// Key of that certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// Audience that tokens have to be for: kubectl create token NAME --audience oarlock
    #[arg(long, value_name = "NAME", default_value = "oarlock", value_parser = NonEmptyStringValueParser::new())]
    pub audience: String,
    /// Take tokens for the API server itself, too, such as those of OIDC users and those in pods
    ///
    /// Whoever reads such a token on its way to this API can use it with the API server.
    #[arg(long)]
    pub cluster_tokens: bool,
    /// Reads a second that one user may make by REST; a burst may have twice as many
    #[arg(long, value_name = "N", default_value = "50")]
    pub read_rate: NonZeroU32,
    /// Other requests a second that one user may make by REST; a burst may have four times as many
    #[arg(long, value_name = "N", default_value = "5")]
    pub write_rate: NonZeroU32,
    /// Longest `ttlSecondsAfterFinished` of callers without rights in the whole cluster; more than that, and below 0, is refused
    #[arg(long, value_name = "SECONDS", default_value_t = 7 * 24 * 3_600, value_parser = clap::value_parser!(i64).range(0..=i64::from(i32::MAX)))]
    pub max_ttl: i64,
    /// Addresses of proxies that may say from where and by which scheme a request came, such as 10.0.0.0/8; may be repeated
    ///
    /// Their headers `Forwarded`, `X-Forwarded-For` and `X-Forwarded-Proto` count, and nobody else's.
    #[arg(long, value_name = "RANGE")]
    pub trusted_proxy: Vec<IpNet>,
    /// Origin of pages that may call the REST API from a browser, such as https://console.example; may be given several times
    ///
    /// A page sends its token itself: the server takes no cookies, and says so to browsers.
    #[arg(long = "cors-origin", value_name = "ORIGIN", value_parser = Origin::read)]
    pub cors_origins: Vec<Origin>,
}

impl RestArgs {
    /// Without a certificate, with the usual rates.
    pub fn usual() -> Self {
        #[derive(clap::Parser)]
        struct Usual {
            #[command(flatten)]
            args: RestArgs,
        }
        <Usual as clap::Parser>::parse_from([""]).args
    }

    /// Takes the address.
    ///
    /// # Errors
    /// Why it cannot be served.
    pub async fn listen(&self, address: SocketAddr) -> Result<Listening, RestError> {
        let files = self.cert.clone().zip(self.key.clone());
        Listening::on(address, files.map(|(certificate, key)| Tls { certificate, key })).await
    }
}

/// The parts that the API is made of.
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
    /// The API.
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

/// Serves the API until `stop`. Requests under way are finished.
pub(crate) fn serve(
    listener: Listening,
    rest: Rest,
    health: Arc<Health>,
    stop: tokio_util::sync::CancellationToken,
) -> tokio::task::JoinHandle<()> {
    let (ready, url) = (readiness(health), listener.url());
    tokio::spawn(async move {
        tracing::info!(url, "the REST API of OpsJobs is served");
        if let Err(error) = listener.serve(rest, ready, stop).await {
            tracing::error!(%error, "the REST API of OpsJobs is no longer served");
        }
    })
}

/// Returns the function that says whether the process is ready.
fn readiness(health: Arc<Health>) -> Readiness {
    Arc::new(move || health.readiness())
}
