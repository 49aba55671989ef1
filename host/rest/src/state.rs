//! The state of the API: its clients, its caches of seconds, and its limits.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use oarlock_artefacts::Artefacts;
use oarlock_core::ops_job::access::Access;
use oarlock_core::ops_job::found::policy_gap;
use oarlock_core::ops_job::names::{API_VERSION, OPS_KIND};
use oarlock_core::ops_job::published::{Published, Unpublished};
use oarlock_core::ops_job::quota::QuotaBounds;
use oarlock_core::ops_job::refusal::{Code, OpsRefusal};
use oarlock_history::History;
use oarlock_kube::ops::{Ops, shipped_policies};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::answer_room::AnswerRoom;
use crate::audit_log::AuditLog;
use crate::bodies::Bodies;
use crate::caller::{Caller, Callers};
use crate::connections::Connections;
use crate::cors::Origin;
use crate::counters::{AnswerTimes, Answered, RestCounts, Unentitled};
use crate::errors::{of_read, of_request};
use crate::issuer::TokenParts;
use crate::proxies::Proxies;
use crate::quotas::Quotas;
use crate::rates::Rates;
use crate::reservations::Reservations;
use crate::rights::Rights;
use crate::signatures::Signatures;
use crate::turns::{JobTurns, Lists, Lookups};

/// How long the answer that all policies are in force is cached.
const POLICIES_KEPT: Duration = Duration::from_secs(10);

/// The label that lets a namespace grant rights over the nodes of its workspace.
const NODE_OPERATIONS: &str = "oarlock.dev/node-operations";

/// Returns the services of the leading host, or why they are unknown.
pub type HostOf = Box<dyn Fn() -> Result<Arc<Published>, Unpublished> + Send + Sync>;

/// The parts and settings of the API.
pub struct RestOptions {
    /// A client of the API server.
    pub client: Client,
    /// The OpsJobs that this process watches.
    pub ops: Ops,
    /// The id of this cluster.
    pub cluster: String,
    /// The namespaces whose pods do not make a node busy.
    pub system: &'static [&'static str],
    /// The services of the leading host.
    pub host: HostOf,
    /// The files that jobs leave.
    pub artefacts: Option<Artefacts>,
    /// The history of jobs that are gone.
    pub history: Option<History>,
    /// The host's namespace, which has the Secret with the signing keys.
    pub namespace: String,
    /// The audience that tokens need.
    pub audience: String,
    /// True if tokens for the API server itself are accepted too.
    pub takes_cluster_tokens: bool,
    /// The most reads a second of one user.
    pub read_rate: NonZeroU32,
    /// The most other requests a second of one user.
    pub write_rate: NonZeroU32,
    /// How long the URL of a file is valid.
    pub url_ttl: Duration,
    /// The limits on the jobs of callers without rights in the whole cluster.
    pub quotas: QuotaBounds,
    /// The longest time to live of the jobs of such callers, in seconds.
    pub max_ttl: i64,
    /// The addresses of proxies whose forwarding headers are trusted.
    pub trusted_proxies: Vec<IpNet>,
    /// The origins whose pages may call this API.
    pub origins: Vec<Origin>,
}

/// The REST API. Clones share its state.
#[derive(Clone)]
pub struct Rest(Arc<RestState>);

/// The state of the API.
pub(crate) struct RestState {
    pub(crate) client: Client,
    pub(crate) ops: Ops,
    pub(crate) cluster: String,
    pub(crate) system: &'static [&'static str],
    pub(crate) host: HostOf,
    pub(crate) artefacts: Option<Artefacts>,
    pub(crate) history: Option<History>,
    pub(crate) audit: Option<AuditLog>,
    pub(crate) url_ttl: Duration,
    pub(crate) callers: Callers,
    pub(crate) rights: Rights,
    pub(crate) rates: Rates,
    pub(crate) lists: Lists,
    pub(crate) reads: JobTurns,
    /// The turns of requests that stop or delete a job, so that reads do not delay them.
    pub(crate) changes: JobTurns,
    pub(crate) lookups: Lookups,
    pub(crate) answers: AnswerRoom,
    pub(crate) bodies: Bodies,
    pub(crate) proxies: Proxies,
    pub(crate) connections: Connections,
    pub(crate) unentitled: Unentitled,
    pub(crate) answered: AnswerTimes,
    pub(crate) reservations: Reservations,
    pub(crate) quotas: Quotas,
    pub(crate) signatures: Signatures,
    pub(crate) origins: Vec<Origin>,
    /// The last time when all policies were in force.
    pub(crate) policies: Mutex<Option<Instant>>,
}

impl Rest {
    /// Makes an API that is ready to be served. Call it inside a tokio runtime, because it spawns tasks.
    pub fn new(options: RestOptions) -> Self {
        let RestOptions { client, ops, cluster, system, host, artefacts, history, .. } = options;
        let proxies = Proxies::of(options.trusted_proxies);
        Self(Arc::new(RestState {
            bodies: Bodies::default(),
            connections: Connections::of(proxies.clone()),
            proxies,
            unentitled: Unentitled::default(),
            answered: AnswerTimes::default(),
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

    /// Returns the counts since the process began.
    pub fn counts(&self) -> RestCounts {
        let RestState { unentitled, connections, .. } = self.parts();
        RestCounts { unentitled: unentitled.all(), closed_connections: connections.closed() }
    }

    /// Returns the caller with this token.
    ///
    /// # Errors
    /// If the token is invalid, if it has expired, or if the API server does not answer.
    pub async fn caller(&self, token: &str) -> Result<Arc<Caller>, OpsRefusal> {
        self.0.callers.of_token(token, self.0.now().as_second()).await
    }

    /// Returns the second since 1970 at which a token expires, as the token says.
    pub fn token_expires(&self, token: &str) -> Option<i64> {
        TokenParts::of(token)?.claims.exp?.as_i64()
    }

    /// Returns true if a caller has this right. The answer may be 10 s old.
    ///
    /// # Errors
    /// If the API server does not answer, or if the caller's namespace has asked too often.
    pub async fn has(&self, caller: &Caller, access: &Access) -> Result<bool, OpsRefusal> {
        self.0.rights.has(caller, access).await
    }

    /// Counts a read against the rate limits of a caller.
    ///
    /// # Errors
    /// If the caller, its namespace, or all callers together have made too many reads. The refusal says when to try again.
    pub async fn count_read(&self, caller: &Caller) -> Result<(), OpsRefusal> {
        self.0.rates.take(caller, &Method::GET).await
    }

    /// Returns the current key of the Secret and, after a rotation, the previous one. Each has at least 32 bytes.
    ///
    /// # Errors
    /// If the Secret cannot be read, or has no key yet.
    pub async fn keys(&self) -> Result<Vec<Vec<u8>>, OpsRefusal> {
        self.0.signatures.keys().await
    }

    /// Returns the answers since the process began, by method and status code, without those to probes.
    pub fn answers(&self) -> Vec<Answered> {
        self.parts().answered.all()
    }

    pub(crate) fn parts(&self) -> &RestState {
        &self.0
    }
}

impl RestState {
    /// Returns a client for the OpsJobs of the cluster.
    pub(crate) fn jobs(&self) -> Api<DynamicObject> {
        let (group, version) = API_VERSION.split_once('/').unwrap_or_default();
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, OPS_KIND));
        Api::all_with(self.client.clone(), &resource)
    }

    pub(crate) fn now(&self) -> k8s_openapi::jiff::Timestamp {
        self.ops.cluster().clock().now()
    }

    /// Refuses a request that needs all OpsJobs until the watch has listed them.
    pub(crate) fn check_listed(&self) -> Result<(), OpsRefusal> {
        let unlisted = |why| OpsRefusal::new(Code::Unreachable, why).after(1);
        self.ops.is_listed().map_err(unlisted)
    }

    /// Returns why admission does not check the rights of job creators, or `None` if all policies are in force. Without the policies, this
    /// API makes no jobs either, because the controller would not run them.
    pub(crate) async fn policy_gap(&self) -> Result<Option<String>, OpsRefusal> {
        if self.policies.lock().is_some_and(|since| since.elapsed() < POLICIES_KEPT) {
            return Ok(None);
        }
        let gap = self.ops.cluster().ask(|answers| policy_gap(None, shipped_policies(), answers)).await;
        let gap = gap.map_err(|failed| of_read(&failed))?;
        // A missing policy is looked up each time, so that it counts as soon as it exists.
        *self.policies.lock() = gap.is_none().then(Instant::now);
        Ok(gap)
    }

    /// Returns true if a namespace grants rights over the nodes of the workspace of its name. A policy guards this label.
    pub(crate) async fn gives_node_operations(&self, namespace: &str) -> Result<bool, OpsRefusal> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let stored = api.get_opt(namespace).await.map_err(|error| of_request(&error, "read the namespace"))?;
        let labels = stored.and_then(|stored| stored.metadata.labels).unwrap_or_default();
        Ok(labels.get(NODE_OPERATIONS).is_some_and(|value| value == "true"))
    }
}
