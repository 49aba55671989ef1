//! The wire between one host and its API server, which a scenario can cut, freeze and listen on.
//!
//! Takes a client of a cluster; yields a client for one host, which sees one namespace only, so that scenarios with a
//! host each share a control plane. It notes every write and whether the write changed anything. It may not change a
//! request beyond that, nor answer in the server's place unless a scenario orders it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tower::Service;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

/// A write as the server saw it.
#[derive(Clone, Debug)]
pub struct Sent {
    /// Its method.
    pub method: Method,
    /// Its path.
    pub path: String,
    /// The server's answer; `None` where there was none.
    pub status: Option<StatusCode>,
    /// Whether it was accepted and changed nothing.
    pub empty: bool,
}

/// What becomes of a request that a scenario waits for.
#[derive(Clone, Copy, Debug)]
pub enum Fate {
    /// It is refused with this status, and the server never sees it.
    Refused(StatusCode),
    /// It waits until the rule is lifted.
    Held,
    /// The client gets no answer, and the server sees it after so long.
    Late(Duration),
    /// The server sees it at once, and the client gets the answer after so long.
    Answered(Duration),
}

#[derive(Clone, Debug)]
struct Rule {
    method: Method,
    part: String,
    /// What its body contains.
    says: String,
    /// Whether one request alone meets it.
    once: bool,
    fate: Fate,
}

impl Rule {
    fn concerns(&self, request: &Request<Bytes>) -> bool {
        let says = || String::from_utf8_lossy(request.body()).contains(&self.says);
        self.method == request.method() && request.uri().path().contains(&self.part) && says()
    }
}

#[derive(Debug)]
struct State {
    namespace: String,
    cut: watch::Sender<bool>,
    frozen: watch::Sender<BTreeSet<String>>,
    rules: watch::Sender<Vec<Rule>>,
    caught: watch::Sender<usize>,
    sent: Mutex<Vec<Sent>>,
}

/// A wire. Clones are the same wire.
#[derive(Clone, Debug)]
pub struct Wire {
    state: Arc<State>,
}

impl Wire {
    /// A wire for a host that is to see this namespace alone.
    pub fn new(namespace: &str) -> Self {
        let state = State {
            namespace: namespace.to_owned(),
            cut: watch::Sender::new(false),
            frozen: watch::Sender::default(),
            rules: watch::Sender::default(),
            caught: watch::Sender::new(0),
            sent: Mutex::default(),
        };
        Self { state: Arc::new(state) }
    }

    /// The client that the host gets, on what `client` reaches.
    pub fn client(&self, client: Client) -> Client {
        Client::new(Wired { wire: self.clone(), client }, "default")
    }

    /// Nothing passes any more, and running watches end.
    pub fn cut(&self) {
        self.state.cut.send_replace(true);
    }

    /// Everything passes again.
    pub fn mend(&self) {
        self.state.cut.send_replace(false);
    }

    /// Watches of this kind bring nothing until the thaw.
    pub fn freeze(&self, plural: &str) {
        self.state.frozen.send_modify(|frozen| frozen.extend([plural.to_owned()]));
    }

    /// Watches bring everything again.
    pub fn thaw(&self) {
        self.state.frozen.send_modify(BTreeSet::clear);
    }

    /// From now on, a request of this method whose path contains `part` meets this fate.
    pub fn order(&self, method: Method, part: &str, fate: Fate) {
        self.rule(Rule { method, part: part.to_owned(), says: String::new(), once: false, fate });
    }

    /// The next request of this method whose path contains `part` and whose body contains `says` meets this fate.
    pub fn order_next(&self, method: Method, part: &str, says: &str, fate: Fate) {
        self.rule(Rule { method, part: part.to_owned(), says: says.to_owned(), once: true, fate });
    }

    fn rule(&self, rule: Rule) {
        self.state.rules.send_modify(|rules| rules.push(rule));
    }

    /// Lifts every order.
    pub fn lift(&self) {
        self.state.rules.send_modify(Vec::clear);
    }

    /// How many requests met an order.
    pub fn caught(&self) -> usize {
        *self.state.caught.borrow()
    }

    /// All writes so far, those of leases and events left out: they belong to no job.
    pub fn writes(&self) -> Vec<Sent> {
        self.state.sent.lock().clone()
    }

    fn fate(&self, request: &Request<Bytes>) -> Option<Fate> {
        let mut met = None;
        self.state.rules.send_if_modified(|rules| {
            let Some(at) = rules.iter().position(|rule| rule.concerns(request)) else { return false };
            met = rules.get(at).map(|rule| (rule.fate, rule.once));
            met.is_some_and(|(_, once)| once && rules.remove(at).once)
        });
        let (fate, _) = met?;
        self.state.caught.send_modify(|caught| *caught += 1);
        Some(fate)
    }

    async fn until_cut(&self) {
        // The sender lives as long as this wire.
        drop(self.state.cut.subscribe().wait_for(|cut| *cut).await);
    }

    async fn carry(self, client: Client, request: Request<Bytes>) -> Result<Answer, BoxError> {
        if *self.state.cut.borrow() {
            return Err(off());
        }
        let fate = self.fate(&request);
        match fate {
            Some(Fate::Refused(status)) => return refusal(status),
            Some(Fate::Late(after)) => return self.late(client, request, after).await,
            Some(Fate::Held) => drop(self.state.rules.subscribe().wait_for(Vec::is_empty).await),
            Some(Fate::Answered(_)) | None => {}
        }
        let answer = tokio::select! {
            biased;
            () = self.until_cut() => Err(off()),
            answer = self.clone().send(client, request) => answer,
        };
        if let Some(Fate::Answered(after)) = fate {
            tokio::time::sleep(after).await;
        }
        answer
    }

    async fn late(self, client: Client, request: Request<Bytes>, after: Duration) -> Result<Answer, BoxError> {
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            drop(self.send(client, request).await);
        });
        std::future::pending().await
    }

    async fn send(self, client: Client, request: Request<Bytes>) -> Result<Answer, BoxError> {
        let (method, uri, asked) = (request.method().clone(), request.uri().clone(), request.body().clone());
        let response = client.send(request.map(Body::from)).await?;
        if method == Method::GET {
            return Ok(match watched(&uri) {
                Some(plural) => response.map(|body| self.stream(body, plural)),
                None => response.map(|body| body.map_err(Into::into).boxed_unsync()),
            });
        }
        let (parts, body) = response.into_parts();
        let answer = body.collect().await?.to_bytes();
        let path = uri.path().to_owned();
        if !["/leases", "/events"].iter().any(|part| path.contains(part)) {
            let empty = parts.status.is_success() && is_the_same(&asked, &answer);
            self.state.sent.lock().push(Sent { method, path, status: Some(parts.status), empty });
        }
        Ok(Response::from_parts(parts, whole(answer)))
    }

    /// A watch, which ends when the wire is cut and brings nothing while its kind is frozen.
    fn stream(self, body: Body, plural: String) -> UnsyncBoxBody<Bytes, BoxError> {
        let begun = Some((self, body, plural));
        let frames = futures::stream::unfold(begun, |state| async {
            let (wire, mut body, plural) = state?;
            let next = async {
                let frame = body.frame().await;
                drop(wire.state.frozen.subscribe().wait_for(|frozen| !frozen.contains(&plural)).await);
                frame
            };
            let frame: Result<Frame<Bytes>, BoxError> = tokio::select! {
                biased;
                () = wire.until_cut() => return Some((Err(off()), None)),
                frame = next => frame?.map_err(Into::into),
            };
            Some((frame, Some((wire, body, plural))))
        });
        StreamBody::new(frames).boxed_unsync()
    }
}

/// The kind that a request watches, if it does.
fn watched(uri: &Uri) -> Option<String> {
    let watches =
        uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "watch=true" || pair == "watch=1"));
    watches.then(|| uri.path().rsplit('/').next().unwrap_or_default().to_owned())
}

/// Whether a write of a known version left that version. One that ends a terminating object leaves no other.
fn is_the_same(asked: &[u8], answer: &[u8]) -> bool {
    let text = |value: &Value, field: &str| Some(value.pointer(field)?.as_str()?.to_owned());
    let (Ok(asked), Ok(answer)) = (serde_json::from_slice::<Value>(asked), serde_json::from_slice::<Value>(answer))
    else {
        return false;
    };
    let known = text(&asked, "/metadata/resourceVersion");
    let ends = text(&answer, "/metadata/deletionTimestamp").is_some();
    !ends && known.is_some() && known == text(&answer, "/metadata/resourceVersion")
}

/// The same request for one namespace, where it reads a kind across all of them.
fn narrowed(uri: &Uri, namespace: &str) -> Option<Uri> {
    let parts: Vec<&str> = uri.path().trim_start_matches('/').split('/').collect();
    let (root, plural) = match parts.as_slice() {
        ["api", version, plural] => (format!("/api/{version}"), *plural),
        ["apis", group, version, plural] => (format!("/apis/{group}/{version}"), *plural),
        _ => return None,
    };
    if ["nodes", "namespaces", "customresourcedefinitions"].contains(&plural) {
        return None;
    }
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    format!("{root}/namespaces/{namespace}/{plural}{query}").parse().ok()
}

fn refusal(status: StatusCode) -> Result<Answer, BoxError> {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "refused, as the scenario wants", "reason": "InternalError", "code": status.as_u16(),
    });
    let response = Response::builder().status(status).header("content-type", "application/json");
    Ok(response.body(whole(Bytes::from(body.to_string())))?)
}

/// What a client gets from a wire that is cut.
fn off() -> BoxError {
    std::io::Error::new(std::io::ErrorKind::ConnectionReset, "the wire is cut").into()
}

fn whole(content: Bytes) -> UnsyncBoxBody<Bytes, BoxError> {
    Full::new(content).map_err(|never| match never {}).boxed_unsync()
}

/// The client's side of a wire.
struct Wired {
    wire: Wire,
    client: Client,
}

impl Service<Request<Body>> for Wired {
    type Response = Answer;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Answer, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // The client behind waits for itself.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (wire, client) = (self.wire.clone(), self.client.clone());
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            if let Some(uri) = narrowed(&parts.uri, &wire.state.namespace).filter(|_| parts.method == Method::GET) {
                parts.uri = uri;
            }
            let request = Request::from_parts(parts, body.collect().await?.to_bytes());
            wire.carry(client, request).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lists_of_what_lives_in_namespaces_are_narrowed() {
        let narrow = |path: &str| narrowed(&path.parse().unwrap(), "a").map(|uri| uri.to_string());
        assert_eq!(narrow("/api/v1/pods?watch=true").unwrap(), "/api/v1/namespaces/a/pods?watch=true");
        assert_eq!(narrow("/apis/apps/v1/replicasets").unwrap(), "/apis/apps/v1/namespaces/a/replicasets");
        for path in ["/api/v1/nodes", "/api/v1", "/apis/apps/v1", "/api/v1/namespaces/b/pods"] {
            assert_eq!(narrow(path), None, "{path}");
        }
    }
}
