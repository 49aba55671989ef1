//! A layer between the port and the in-memory API that answers, loses or holds back chosen requests.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{Either, Full};
use kube::client::Body;
use oarlock_sim::{ApiBody, ApiService};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tower::ServiceExt;

/// What happens to a request.
#[derive(Clone)]
pub(crate) enum Then {
    /// It never arrives; this is the answer.
    Answer(u16, Value),
    /// It is carried out, and the connection breaks before the reply.
    LoseReply,
    /// It never arrives, and nothing comes back.
    Hang,
}

struct Rule {
    method: Method,
    path: String,
    left: usize,
    then: Then,
}

/// The requests so far, and the faults to come.
#[derive(Clone, Default)]
pub(crate) struct Faults {
    rules: Arc<Mutex<Vec<Rule>>>,
    seen: Arc<Mutex<Vec<(Method, String)>>>,
}

impl Faults {
    /// The next requests of `method` whose path and query contain `path` end like this, as many as `then` says.
    pub(crate) fn plan(&self, method: Method, path: &str, (left, then): (usize, Then)) {
        self.rules.lock().push(Rule { method, path: path.to_owned(), left, then });
    }

    /// No more faults.
    pub(crate) fn heal(&self) {
        self.rules.lock().clear();
    }

    /// How many requests of `method` with `path` in their path and query there were.
    pub(crate) fn count(&self, method: Method, path: &str) -> usize {
        self.seen.lock().iter().filter(|(m, p)| *m == method && p.contains(path)).count()
    }

    fn next(&self, method: &Method, path: &str) -> Option<Then> {
        self.seen.lock().push((method.clone(), path.to_owned()));
        let mut rules = self.rules.lock();
        let fits = |rule: &&mut Rule| rule.left > 0 && rule.method == *method && path.contains(&rule.path);
        let rule = rules.iter_mut().find(fits)?;
        rule.left -= 1;
        Some(rule.then.clone())
    }

    /// A client on `service` that suffers the faults.
    pub(crate) fn client(&self, service: ApiService) -> kube::Client {
        let faults = self.clone();
        let faulty = tower::service_fn(move |request: Request<Body>| {
            let (faults, service) = (faults.clone(), service.clone());
            async move { faults.carry(request, service).await }
        });
        kube::Client::new(faulty, "default")
    }

    async fn carry(&self, request: Request<Body>, service: ApiService) -> Result<Reply, std::io::Error> {
        let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
        match self.next(request.method(), &path) {
            Some(Then::Answer(code, body)) => Ok(answer(code, &body)),
            Some(Then::Hang) => std::future::pending().await,
            fault => {
                let reply = service.oneshot(request).await.unwrap();
                match fault {
                    Some(Then::LoseReply) => Err(std::io::Error::other("the connection broke")),
                    _ => Ok(reply.map(Either::Left)),
                }
            }
        }
    }
}

type Reply = Response<Either<ApiBody, Full<Bytes>>>;

fn answer(code: u16, body: &Value) -> Reply {
    Response::builder().status(code).body(Either::Right(Full::from(body.to_string()))).unwrap()
}

/// A Status as the API server sends it.
pub(crate) fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message})
}
