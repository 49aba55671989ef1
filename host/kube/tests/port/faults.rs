//! A layer between the port and the in-memory API that answers, loses, delays or holds back chosen requests.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use kube::client::Body;
use oarlock_sim::{ApiBody, ApiService};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tower::ServiceExt;

/// The fate of a request.
#[derive(Clone)]
pub(crate) enum Then {
    /// It never arrives; this is the answer.
    Answer(u16, Value),
    /// It never arrives; the answer is 200 with a body that comes in these pieces, and then ends.
    Pieces(Vec<&'static str>),
    /// It arrives this much later.
    Late(Duration),
    /// It is carried out, and the connection breaks before the reply.
    LoseReply,
    /// It never arrives, and nothing comes back.
    Hang,
    /// The client itself panics.
    Panic,
}

struct Rule {
    method: Method,
    path: String,
    left: usize,
    then: Then,
}

/// The writes between their sending and their end.
#[derive(Default)]
struct InFlight {
    now: usize,
    most: usize,
}

/// The requests so far, and the faults to come.
#[derive(Clone, Default)]
pub(crate) struct Faults {
    rules: Arc<Mutex<Vec<Rule>>>,
    seen: Arc<Mutex<Vec<(Method, String)>>>,
    writes: Arc<Mutex<InFlight>>,
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

    /// The greatest number of writes that were in flight at once.
    pub(crate) fn most_writes_in_flight(&self) -> usize {
        self.writes.lock().most
    }

    fn next(&self, method: &Method, path: &str) -> Option<Then> {
        self.seen.lock().push((method.clone(), path.to_owned()));
        let mut rules = self.rules.lock();
        let fits = |rule: &&mut Rule| rule.left > 0 && rule.method == *method && path.contains(&rule.path);
        let rule = rules.iter_mut().find(fits)?;
        rule.left -= 1;
        Some(rule.then.clone())
    }

    /// A client on `service` whose requests meet the faults.
    pub(crate) fn client(&self, service: ApiService) -> kube::Client {
        let faults = self.clone();
        let faulty = tower::service_fn(move |request: Request<Body>| {
            let (faults, service) = (faults.clone(), service.clone());
            async move { faults.carry(request, service).await }
        });
        kube::Client::new(faulty, "default")
    }

    async fn carry(&self, request: Request<Body>, service: ApiService) -> Result<Reply, std::io::Error> {
        let _in_flight = (request.method() != Method::GET).then(|| Flight::begin(self));
        let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
        let fault = self.next(request.method(), &path);
        match &fault {
            Some(Then::Answer(code, body)) => return Ok(answer(*code, &body.to_string())),
            Some(Then::Pieces(pieces)) => return Ok(in_pieces(pieces.clone())),
            Some(Then::Hang) => return std::future::pending().await,
            Some(Then::Panic) => panic!("the client panics, as planned"),
            Some(Then::Late(delay)) => tokio::time::sleep(*delay).await,
            Some(Then::LoseReply) | None => {}
        }
        let reply = service.oneshot(request).await.unwrap();
        match fault {
            Some(Then::LoseReply) => Err(std::io::Error::other("the connection broke")),
            _ => Ok(reply),
        }
    }
}

/// One write in flight, also if the client gives it up.
struct Flight(Faults);

impl Flight {
    fn begin(faults: &Faults) -> Self {
        let mut writes = faults.writes.lock();
        writes.now += 1;
        writes.most = writes.most.max(writes.now);
        Self(faults.clone())
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.0.writes.lock().now -= 1;
    }
}

type Reply = Response<ApiBody>;

fn answer(code: u16, body: &str) -> Reply {
    let body = Full::from(body.to_owned()).boxed_unsync();
    Response::builder().status(code).body(body).unwrap()
}

fn in_pieces(pieces: Vec<&'static str>) -> Reply {
    let frames = pieces.into_iter().map(|piece| Ok(Frame::data(Bytes::from_static(piece.as_bytes()))));
    let body = StreamBody::new(futures::stream::iter(frames)).boxed_unsync();
    Response::builder().status(200).body(body).unwrap()
}

/// A Status as the API server sends it.
pub(crate) fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message})
}
