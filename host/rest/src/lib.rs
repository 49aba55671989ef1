//! OpsJobs over HTTP: the API that clients of the OpsJob API know. Source: docs/opsjob-rest.md.
//!
//! Who asks, the API server says; what he may do, it says as well; and whether a body is right, the rules of the controller say. What
//! this crate makes is an OpsJob, as kubectl does; it has no memory of its own but answers that are kept for seconds.

mod answer_room;
mod answers;
mod artefacts;
mod audit;
mod audit_log;
mod bodies;
mod caller;
mod connections;
mod cors;
mod counters;
mod create;
mod errors;
mod file_answer;
mod handlers;
mod issuer;
mod keyed;
pub mod openapi;
mod proxies;
mod query;
mod quotas;
mod ranges;
mod rates;
mod reservations;
mod rights;
mod room;
mod serve;
mod signatures;
mod turns;
mod visible;
mod workloads;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use oarlock_artefacts::Artefacts;
use oarlock_core::ops_job::child::{API_VERSION, OPS_KIND};
use oarlock_core::ops_job::published::{Published, Unpublished};
use oarlock_core::ops_job::quota::QuotaBounds;
use oarlock_core::ops_job::refusal::{Code, OpsRefusal};
use oarlock_history::History;
use oarlock_kube::ops::Ops;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::answer_room::AnswerRoom;
use crate::audit_log::AuditLog;
use crate::bodies::Bodies;
pub use crate::caller::Caller;
use crate::caller::Callers;
use crate::connections::Connections;
pub use crate::cors::Origin;
pub use crate::counters::RestCounts;
use crate::counters::Unentitled;
use crate::errors::{of_read, of_request};
use crate::proxies::Proxies;
use crate::quotas::Quotas;
use crate::rates::Rates;
use crate::reservations::Reservations;
use crate::rights::Rights;
pub use crate::serve::{Listening, Readiness, RestError, Tls};
use crate::signatures::Signatures;
pub use crate::signatures::make_first_key;
use crate::turns::{JobTurns, Lists, Lookups};

/// For how long it is believed that the policies are in force.
const POLICIES_KEPT: Duration = Duration::from_secs(10);

/// The label that lets a namespace give rights over the nodes of its workspace.
const NODE_OPERATIONS: &str = "oarlock.dev/node-operations";

/// Says what the host that leads serves, or why that cannot be relied on.
pub type HostOf = Box<dyn Fn() -> Result<Arc<Published>, Unpublished> + Send + Sync>;

/// What the API is made of.
pub struct RestOptions {
    /// A client of the API server.
    pub client: Client,
    /// The OpsJobs that this process watches.
    pub ops: Ops,
    /// The id of this cluster.
    pub cluster: String,
    /// The namespaces whose pods make no node busy.
    pub system: &'static [&'static str],
    /// The services of the host that leads.
    pub host: HostOf,
    /// The files that jobs leave.
    pub artefacts: Option<Artefacts>,
    /// What is known of jobs that are gone.
    pub history: Option<History>,
    /// The host's namespace, where the key of signatures is.
    pub namespace: String,
    /// The audience of tokens.
    pub audience: String,
    /// Tokens for the API server itself are taken too.
    pub takes_cluster_tokens: bool,
    /// JobTurns a second of one user.
    pub read_rate: NonZeroU32,
    /// The same of all other requests.
    pub write_rate: NonZeroU32,
    /// For how long the address of a file is good.
    pub url_ttl: Duration,
    /// The bounds of the jobs that callers without rights in the whole cluster keep.
    pub quotas: QuotaBounds,
    /// The longest time to live of these, in seconds.
    pub max_ttl: i64,
    /// The addresses of proxies whose word for a client's address and scheme is taken.
    pub trusted_proxies: Vec<IpNet>,
    /// The origins of pages that may call this API.
    pub origins: Vec<Origin>,
}

/// Most bytes that requests take together, whatever they ask for: connections, heads, tokens, and buffers of TLS and files, bodies with what they are read
/// into, answers, lists, single jobs, and look-ups.
pub const MOST_MEMORY: usize = connections::MOST_BYTES
    + connections::ALL * (serve::HEAD + OF_TOKEN + OF_TLS + 3 * file_answer::CHUNK)
    + bodies::ROOM / 2 * 3
    + answer_room::ROOM
    + turns::MOST_JOBS * OF_LISTED_JOB
    + 2 * turns::JOBS * OF_JOB
    + turns::LOOKUPS * OF_LOOKUP;
/// Bytes of an object that is looked up, at most: the API server stores 1.5 MiB, which take ten times as much when they are read.
const OF_LOOKUP: usize = 16 * 1024 * 1024;
/// Bytes of a job that is read: its names and texts take up to five times the 1.5 MiB that the API server stores.
const OF_JOB: usize = 8 * 1024 * 1024;
/// Bytes of a token that is being checked, with its parts.
const OF_TOKEN: usize = 32 * 1024;
/// Bytes of the buffers of a connection by TLS.
const OF_TLS: usize = 40 * 1024;
/// Bytes of a job in a list, with its row.
const OF_LISTED_JOB: usize = 2_500;

/// The API. Clones share it.
#[derive(Clone)]
pub struct Rest(Arc<Parts>);

struct Parts {
    client: Client,
    ops: Ops,
    cluster: String,
    system: &'static [&'static str],
    host: HostOf,
    artefacts: Option<Artefacts>,
    history: Option<History>,
    audit: Option<AuditLog>,
    url_ttl: Duration,
    callers: Callers,
    rights: Rights,
    rates: Rates,
    lists: Lists,
    reads: JobTurns,
    /// The turns of those who stop or delete a job: no reader keeps them waiting.
    changes: JobTurns,
    lookups: Lookups,
    answers: AnswerRoom,
    bodies: Bodies,
    proxies: Proxies,
    connections: Connections,
    unentitled: Unentitled,
    reservations: Reservations,
    quotas: Quotas,
    signatures: Signatures,
    origins: Vec<Origin>,
    /// When all policies were last seen in force.
    policies: Mutex<Option<Instant>>,
}

impl Rest {
    /// An API that is ready to be served. To be made where tasks can be spawned.
    pub fn new(options: RestOptions) -> Self {
        let RestOptions { client, ops, cluster, system, host, artefacts, history, .. } = options;
        let proxies = Proxies::of(options.trusted_proxies);
        Self(Arc::new(Parts {
            bodies: Bodies::default(),
            connections: Connections::of(proxies.clone()),
            proxies,
            unentitled: Unentitled::default(),
            callers: Callers::new(client.clone(), options.audience, options.takes_cluster_tokens),
            rights: Rights::new(client.clone()),
            rates: Rates::new(options.read_rate, options.write_rate),
            lists: Lists::default(),
            reads: JobTurns::default(),
            changes: JobTurns::default(),
            lookups: Lookups::default(),
            answers: AnswerRoom::default(),
            reservations: Reservations::default(),
            quotas: Quotas::new(options.quotas, options.max_ttl),
            signatures: Signatures::new(client.clone(), options.namespace, options.url_ttl),
            policies: Mutex::default(),
            client,
            ops,
            cluster,
            system,
            host,
            artefacts,
            audit: history.clone().map(AuditLog::of),
            history,
            url_ttl: options.url_ttl,
            origins: options.origins,
        }))
    }

    /// Returns its counts since the process began.
    pub fn counts(&self) -> RestCounts {
        let Parts { unentitled, connections, .. } = self.parts();
        RestCounts { unentitled: unentitled.all(), closed_connections: connections.closed() }
    }

    fn parts(&self) -> &Parts {
        &self.0
    }
}

impl Parts {
    /// The OpsJobs of the cluster.
    fn jobs(&self) -> Api<DynamicObject> {
        let (group, version) = API_VERSION.split_once('/').unwrap_or_default();
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, OPS_KIND));
        Api::all_with(self.client.clone(), &resource)
    }

    fn now(&self) -> k8s_openapi::jiff::Timestamp {
        self.ops.cluster().clock().now()
    }

    /// Refuses what needs all OpsJobs until they were listed.
    fn check_listed(&self) -> Result<(), OpsRefusal> {
        let unlisted = |why| OpsRefusal::new(Code::Unreachable, why).after(1);
        self.ops.is_listed().map_err(unlisted)
    }

    /// Why whoever makes a job may not be asked for his rights by the API server. While that is so, this API makes none either: the
    /// controller would do nothing for it.
    async fn policy_gap(&self) -> Result<Option<String>, OpsRefusal> {
        if self.policies.lock().is_some_and(|since| since.elapsed() < POLICIES_KEPT) {
            return Ok(None);
        }
        let gap = self.ops.policy_gap(None).await.map_err(|failed| of_read(&failed))?;
        // What is missing is looked for anew each time, so that it is seen at once when it comes.
        *self.policies.lock() = gap.is_none().then(Instant::now);
        Ok(gap)
    }

    /// Whether a namespace gives rights over the nodes of the workspace of its name. Who may label it so is guarded.
    async fn gives_node_operations(&self, namespace: &str) -> Result<bool, OpsRefusal> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let stored = api.get_opt(namespace).await.map_err(|error| of_request(&error, "read the namespace"))?;
        let labels = stored.and_then(|stored| stored.metadata.labels).unwrap_or_default();
        Ok(labels.get(NODE_OPERATIONS).is_some_and(|value| value == "true"))
    }
}
