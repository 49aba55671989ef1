//! A connection from the port to the in-memory API on which chosen requests are answered, lost, delayed or held back.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request};
use http_body_util::BodyExt;
use kube::client::Body;
use oarlock_sim::ApiService;
pub(crate) use oarlock_support::faults::Then;
use oarlock_support::faults::{Plan, When};
use oarlock_support::interception::{BoxError, Interceptor};
use oarlock_support::orders::Order;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tower::ServiceExt;

/// The requests so far, and the planned faults.
#[derive(Clone)]
pub(crate) struct Faults {
    interceptor: Interceptor,
    seen: Arc<Mutex<Vec<(Method, String)>>>,
    /// The token that the client sends. Without a token, the client is the administrator.
    token: Arc<Mutex<Option<String>>>,
}

impl Default for Faults {
    fn default() -> Self {
        Self { interceptor: Interceptor::new(Plan::none(), &[]), seen: Arc::default(), token: Arc::default() }
    }
}

impl Faults {
    /// Plans the end of the next `left` requests of `method` whose path and query contain `path`. A dropped connection drops after the request was
    /// carried out.
    pub(crate) fn plan(&self, method: Method, path: &str, (left, then): (usize, Then)) {
        let when = if matches!(then, Then::DropConnection) { When::AfterCommit } else { When::BeforeSend };
        let (part, says) = (path.to_owned(), String::new());
        self.interceptor.order(Order { method, part, says, times: Some(left), when, then });
    }

    /// Carries out the next such request at once and delays its reply.
    pub(crate) fn late_reply(&self, method: Method, path: &str, delay: Duration) {
        let (part, says) = (path.to_owned(), String::new());
        let then = Then::Delay(delay);
        self.interceptor.order(Order { method, part, says, times: Some(1), when: When::AfterCommit, then });
    }

    /// Removes all planned faults.
    pub(crate) fn heal(&self) {
        self.interceptor.lift();
    }

    /// Returns the number of requests of `method` with `path` in their path and query.
    pub(crate) fn count(&self, method: Method, path: &str) -> usize {
        self.seen.lock().iter().filter(|(m, p)| *m == method && p.contains(path)).count()
    }

    /// Returns the number of all requests.
    pub(crate) fn total(&self) -> usize {
        self.seen.lock().len()
    }

    /// Makes the client send this token from now on.
    pub(crate) fn send_token(&self, token: &str) {
        *self.token.lock() = Some(token.to_owned());
    }

    /// Returns the greatest number of writes that were in flight at once.
    pub(crate) fn most_writes_in_flight(&self) -> usize {
        self.interceptor.most_at_once()
    }

    /// Returns a client of `service` whose requests meet the faults.
    pub(crate) fn client(&self, service: ApiService) -> kube::Client {
        let faults = self.clone();
        let faulty = tower::service_fn(move |request: Request<Body>| {
            let (faults, service) = (faults.clone(), service.clone());
            async move {
                let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
                faults.seen.lock().push((request.method().clone(), path));
                let (mut parts, body) = request.into_parts();
                if let Some(token) = faults.token.lock().as_deref() {
                    parts.headers.insert("authorization", format!("Bearer {token}").parse()?);
                }
                let request = Request::from_parts(parts, body.collect().await?.to_bytes());
                let send = move |request: Request<bytes::Bytes>| {
                    let service = service.clone();
                    async move { service.oneshot(request.map(Body::from)).await.map_err(BoxError::from) }
                };
                faults.interceptor.carry(request, send).await
            }
        });
        kube::Client::new(faulty, "default")
    }
}

/// Returns a Status as the API server sends it.
pub(crate) fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message})
}
