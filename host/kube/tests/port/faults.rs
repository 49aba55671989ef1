//! The way between the port and the in-memory API, on which chosen requests are answered, lost, delayed or held back.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request};
use http_body_util::BodyExt;
use kube::client::Body;
pub(crate) use oarlock_bed::faults::Then;
use oarlock_bed::faults::{Plan, When};
use oarlock_bed::interception::{BoxError, Interceptor};
use oarlock_bed::orders::Order;
use oarlock_sim::ApiService;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tower::ServiceExt;

/// The requests so far, and the faults to come.
#[derive(Clone)]
pub(crate) struct Faults {
    interceptor: Interceptor,
    seen: Arc<Mutex<Vec<(Method, String)>>>,
}

impl Default for Faults {
    fn default() -> Self {
        Self { interceptor: Interceptor::new(Plan::none(), &[]), seen: Arc::default() }
    }
}

impl Faults {
    /// The next requests of `method` whose path and query contain `path` end like this, as many as `then` says. A
    /// connection drops once the request was carried out.
    pub(crate) fn plan(&self, method: Method, path: &str, (left, then): (usize, Then)) {
        let when = if matches!(then, Then::DropConnection) { When::AfterCommit } else { When::BeforeSend };
        let (part, says) = (path.to_owned(), String::new());
        self.interceptor.order(Order { method, part, says, times: Some(left), when, then });
    }

    /// The next request like this is carried out at once, and its reply comes this much later.
    pub(crate) fn late_reply(&self, method: Method, path: &str, delay: Duration) {
        let (part, says) = (path.to_owned(), String::new());
        let then = Then::Delay(delay);
        self.interceptor.order(Order { method, part, says, times: Some(1), when: When::AfterCommit, then });
    }

    /// No more faults.
    pub(crate) fn heal(&self) {
        self.interceptor.lift();
    }

    /// How many requests of `method` with `path` in their path and query there were.
    pub(crate) fn count(&self, method: Method, path: &str) -> usize {
        self.seen.lock().iter().filter(|(m, p)| *m == method && p.contains(path)).count()
    }

    /// The greatest number of writes that were in flight at once.
    pub(crate) fn most_writes_in_flight(&self) -> usize {
        self.interceptor.most_at_once()
    }

    /// A client on `service` whose requests meet the faults.
    pub(crate) fn client(&self, service: ApiService) -> kube::Client {
        let faults = self.clone();
        let faulty = tower::service_fn(move |request: Request<Body>| {
            let (faults, service) = (faults.clone(), service.clone());
            async move {
                let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
                faults.seen.lock().push((request.method().clone(), path));
                let (parts, body) = request.into_parts();
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

/// A Status as the API server sends it.
pub(crate) fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message})
}
