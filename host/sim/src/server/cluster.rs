//! The whole API server as one cheaply cloned value. Every change of state happens inside a request, under one
//! lock, in the order of arrival.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body_util::BodyExt;
use k8s_openapi::jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};

use crate::{
    access::token::TokenKey,
    clock::{self, Clock, VirtualClock},
    controllers::run,
    kinds::registry::Kinds,
    random::Random,
    server::{
        delays::{self, Delayed, Delays},
        handle,
        reply::{self, ApiBody},
        routing::{Call, Incoming, Route, Verb, route},
        status::Refusal,
    },
    storage::{LogEntry, Store},
};

/// Settings of a cluster.
#[derive(Debug)]
pub struct Options {
    /// Source of timestamps.
    pub clock: Arc<dyn Clock>,
    /// Seed of every UID and every generated name.
    pub seed: u64,
    /// Number of past writes that a watch can start from. Older resourceVersions get a 410.
    pub window: usize,
    /// Whether to keep every write for [`Cluster::history`]. The memory use then grows without a limit.
    pub history: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { clock: Arc::new(VirtualClock::default()), seed: 1, window: 100_000, history: false }
    }
}

/// One combination of request and response. The cluster counts requests by it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestKind {
    /// Verb of the request.
    pub verb: Verb,
    /// Qualified resource, such as `pods` or `deployments.apps`.
    pub resource: String,
    /// Subresource, empty for the main resource.
    pub subresource: String,
    /// HTTP status code of the response.
    pub code: u16,
}

/// An in-memory Kubernetes API server. Clones are handles to the same cluster.
#[derive(Clone)]
pub struct Cluster {
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<State>,
    clock: Arc<dyn Clock>,
    requests: Mutex<BTreeMap<RequestKind, u64>>,
}

/// The state behind the cluster's lock.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) store: Store,
    pub(crate) kinds: Kinds,
    pub(crate) random: Random,
    pub(crate) token_key: TokenKey,
    /// The time of the current request.
    pub(crate) now: Timestamp,
    pub(crate) controllers: run::Controllers,
}

impl State {
    /// Returns the time of the current request as a timestamp of an object.
    pub(crate) fn time(&self) -> String {
        clock::seconds(self.now)
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").finish_non_exhaustive()
    }
}

impl Cluster {
    /// Returns a cluster with the default namespaces and roles.
    pub fn new(options: Options) -> Self {
        let Options { clock, seed, window, history } = options;
        let mut state = State {
            store: Store::new(window, history),
            kinds: Kinds::built_in(),
            random: Random::seeded(seed),
            token_key: TokenKey::generate(),
            now: clock.now(),
            controllers: run::Controllers::default(),
        };
        run::bootstrap(&mut state);
        let requests = Mutex::new(BTreeMap::new());
        Self { inner: Arc::new(Inner { state: Mutex::new(state), clock, requests }) }
    }

    /// Returns the cluster as a tower service, for `kube::Client::new(cluster.service(), "default")`.
    pub fn service(&self) -> ApiService {
        ApiService { cluster: self.clone(), delayed: None }
    }

    /// Returns the cluster as a tower service for a distant client, with delayed requests and watches.
    pub fn delayed(&self, delays: Delays) -> ApiService {
        ApiService { cluster: self.clone(), delayed: Some(Delayed::new(delays)) }
    }

    /// Returns the number of answered requests of each kind.
    pub fn requests(&self) -> BTreeMap<RequestKind, u64> {
        self.inner.requests.lock().clone()
    }

    /// Returns every write since the cluster was created, in order. Empty unless [`Options::history`] is set.
    pub fn history(&self) -> Vec<Arc<LogEntry>> {
        self.inner.state.lock().store.history()
    }

    /// Returns the resourceVersion of the last write.
    pub fn resource_version(&self) -> u64 {
        self.inner.state.lock().store.rv()
    }

    /// Returns the table of a kind, by group and plural name, as a [`LogEntry`] names it.
    pub fn table(&self, group: &str, plural: &str) -> crate::kinds::registry::TableId {
        self.inner.state.lock().kinds.table(group, plural)
    }

    /// Drops all past writes. From now on, watches and pages from an older resourceVersion get a 410.
    pub fn compact(&self) {
        let mut state = self.inner.state.lock();
        let now = state.store.rv();
        state.store.compact(now);
    }

    /// Returns the current time of the cluster's clock.
    pub fn now(&self) -> Timestamp {
        self.inner.clock.now()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.inner.state.lock();
        state.now = self.inner.clock.now();
        state
    }

    fn answer(&self, incoming: Incoming<'_>) -> Response<ApiBody> {
        let routed = route(incoming, &self.lock());
        match routed {
            Err(refusal) => reply::refusal(&refusal),
            Ok(Route::Document(path, accept)) => reply::from_result(handle::document(self, &path, &accept)),
            Ok(Route::Resource(call)) => {
                let response = reply::from_result(handle::resource(self, &call));
                self.count(&call, response.status().as_u16());
                response
            }
        }
    }

    fn count(&self, call: &Call, code: u16) {
        let kind = RequestKind {
            verb: call.verb,
            resource: call.kind.resource(),
            subresource: call.subresource.clone(),
            code,
        };
        *self.inner.requests.lock().entry(kind).or_default() += 1;
    }

    /// Answers a request.
    pub async fn respond<B>(&self, request: Request<B>) -> Response<ApiBody>
    where
        B: http_body::Body,
        B::Error: std::fmt::Display,
    {
        let (parts, body) = request.into_parts();
        let mut response = match body.collect().await {
            Ok(body) => {
                let body: Bytes = body.to_bytes();
                self.answer(Incoming { method: &parts.method, uri: &parts.uri, headers: &parts.headers, body })
            }
            Err(cause) => reply::refusal(&Refusal::bad_request(format!("failed to read the request's body: {cause}"))),
        };
        if let Ok(date) = HeaderValue::from_str(&clock::http_date(self.now())) {
            response.headers_mut().insert(header::DATE, date);
        }
        response
    }
}

/// A [`Cluster`] as a tower service.
#[derive(Debug, Clone)]
pub struct ApiService {
    cluster: Cluster,
    delayed: Option<Delayed>,
}

impl<B> tower::Service<Request<B>> for ApiService
where
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: std::fmt::Display + Send,
{
    type Response = Response<ApiBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (cluster, delayed) = (self.cluster.clone(), self.delayed.clone());
        Box::pin(async move {
            let Some(delayed) = delayed else { return Ok(cluster.respond(request).await) };
            let watches = delays::watches(&request);
            delayed.way().await;
            let response = cluster.respond(request).await;
            delayed.way().await;
            Ok(delayed.lagging(watches, response))
        })
    }
}
