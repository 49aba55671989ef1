//! The REST API of OpsJobs in a host: who serves which type, and the listener.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use kube::Client;
use oarlock_core::cluster::own::OPS_NAMESPACE;
use oarlock_core::ops_job::plan::{NO_FILES, NO_REGISTRY};
use oarlock_core::ops_job::spec::{OpsSpec, OpsType};
use oarlock_core::ops_job::verdict::{Service, ungranted};
use oarlock_core::ops_job::workload::WorkloadName;
use oarlock_core::plugin::grant::{Grant, ScriptRule};
use oarlock_core::plugin::lookup::PluginLookup;
use oarlock_kube::ops::Ops;
use oarlock_rest::{Listening, Readiness, Rest, RestError, RestOptions, Tls};
use oarlock_wasm::Plugins;

use crate::health::{Health, parse_address};
use crate::ops_job::{HostPlace, SYSTEM_NAMESPACES};

/// For how long the address of a file is good.
const URL_TTL: Duration = Duration::from_secs(15 * 60);

/// How the REST API is served.
#[derive(Clone, Debug, Args)]
pub struct RestArgs {
    /// Address that serves the REST API of OpsJobs; `:8443` is port 8443 of each address [default: it is not served]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_address)]
    pub rest: Option<SocketAddr>,
    /// Certificate of that address with its chain, in PEM; read again when it changes
    #[arg(long, value_name = "FILE", requires = "rest", requires = "rest_key")]
    pub rest_cert: Option<PathBuf>,
    /// Key of that certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "rest", requires = "rest_cert")]
    pub rest_key: Option<PathBuf>,
    /// Audience that tokens have to be for: kubectl create token NAME --audience oarlock
    #[arg(long, value_name = "NAME", default_value = "oarlock", value_parser = NonEmptyStringValueParser::new())]
    pub rest_audience: String,
    /// Take tokens for the API server itself, too, such as those of OIDC users and those in pods
    ///
    /// Whoever reads such a token on its way to this API can use it with the API server.
    #[arg(long, requires = "rest")]
    pub rest_cluster_tokens: bool,
    /// Reads a second that one user may make by REST; a burst may have twice as many
    #[arg(long, value_name = "N", default_value = "50")]
    pub rest_read_rate: NonZeroU32,
    /// Other requests a second that one user may make by REST; a burst may have four times as many
    #[arg(long, value_name = "N", default_value = "5")]
    pub rest_write_rate: NonZeroU32,
}

impl RestArgs {
    /// On a free port of this machine, with the rates of a host.
    pub fn on_this_machine() -> Self {
        #[derive(clap::Parser)]
        struct Usual {
            #[command(flatten)]
            args: RestArgs,
        }
        <Usual as clap::Parser>::parse_from(["", "--rest", "127.0.0.1:0"]).args
    }

    /// Takes the address, if one is given.
    ///
    /// # Errors
    /// Why it cannot be served.
    pub async fn listen(&self) -> Result<Option<Listening>, RestError> {
        let Some(address) = self.rest else { return Ok(None) };
        let files = self.rest_cert.clone().zip(self.rest_key.clone());
        let tls = files.map(|(certificate, key)| Tls { certificate, key });
        Listening::on(address, tls).await.map(Some)
    }
}

/// The parts of a host that its API is made of.
pub(crate) struct OfHost {
    pub(crate) client: Client,
    pub(crate) ops: Ops,
    pub(crate) plugins: Plugins,
    pub(crate) place: HostPlace,
    pub(crate) namespace: String,
}

impl OfHost {
    /// The API.
    pub(crate) fn rest(self, args: &RestArgs) -> Rest {
        let Self { client, ops, plugins, place, namespace } = self;
        let (keeps_files, exports) = (place.artefacts.is_some(), place.exports.is_some());
        Rest::new(RestOptions {
            client,
            ops,
            cluster: place.cluster,
            node: place.node,
            system: &SYSTEM_NAMESPACES,
            service: Box::new(move |asked| match asked.kind {
                OpsType::Dumplog if !keeps_files => Service::None(NO_FILES.to_owned()),
                OpsType::Exportimage if !exports => Service::None(NO_REGISTRY.to_owned()),
                _ => service(&plugins, asked),
            }),
            artefacts: place.artefacts,
            history: place.recorder.map(|recorder| recorder.history().clone()),
            namespace,
            audience: args.rest_audience.clone(),
            takes_cluster_tokens: args.rest_cluster_tokens,
            read_rate: args.rest_read_rate,
            write_rate: args.rest_write_rate,
            url_ttl: URL_TTL,
        })
    }
}

/// What this process has for a type. Its plugins are those of the host that leads, unless somebody is changing them.
fn service(plugins: &Plugins, asked: &OpsSpec) -> Service {
    let word = asked.kind.word();
    // That of a workload which is named without its namespace is not known here.
    let place = match asked.kind.is_for_nodes() {
        true => Some(OPS_NAMESPACE.to_owned()),
        false => asked.scope.workloads.first().and_then(|words| WorkloadName::read(words)).map(|own| own.namespace),
    };
    let is_reached = |grant: &Grant| place.as_ref().is_none_or(|place| grant.allows_namespace(place));
    match plugins.find(word, None) {
        PluginLookup::Serving(plugin) if !is_reached(&plugin.grant) => {
            let place = place.unwrap_or_default();
            Service::None(format!("the grant of the plugin for {word} does not reach the namespace {place}"))
        }
        PluginLookup::Serving(plugin) => {
            let grant = &plugin.grant;
            let takes_scripts = grant.tasks.iter().any(|rule| rule.scripts >= ScriptRule::Inputs);
            let takes_commits = grant.tasks.iter().any(|rule| rule.takes_commits());
            let shows = |path: &str| grant.shows_host_path(path);
            Service::Plugin { ungranted: ungranted(asked, shows, takes_scripts, takes_commits) }
        }
        PluginLookup::NotServing { message, .. } => Service::None(format!("no plugin serves {word}: {message}")),
        PluginLookup::Unknown { .. } => Service::None(format!("no plugin serves {word}: a cluster admin adds one")),
    }
}

/// Whether the host is ready.
pub(crate) fn readiness(health: Arc<Health>) -> Readiness {
    Arc::new(move || health.readiness())
}
