//! Carries one request to the server and its reply back, and applies the fault that a plan or an order has for the request.

use std::future::pending;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};

use crate::faults::{Killer, Then, When};
use crate::interception::{Body, BoxError, Broken, Interceptor, is_dry_run};

/// How long a killer waits after the last byte of a reply, so that the reply leaves this process before its reader is killed.
const REPLY_LEAVES_WITHIN: Duration = Duration::from_millis(2);

/// One request on its way.
#[derive(Clone)]
pub(crate) struct Exchange<S> {
    pub(crate) interceptor: Interceptor,
    /// The number of the write, if this write is counted.
    pub(crate) number: Option<u64>,
    pub(crate) send: S,
}

impl<S, F, B> Exchange<S>
where
    S: Fn(Request<Bytes>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Response<B>, BoxError>> + Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    /// Carries the request, with its fault if there is one.
    pub(crate) async fn carry(
        self,
        request: Request<Bytes>,
        fault: Option<(When, Then)>,
    ) -> Result<Response<Body>, BoxError> {
        match fault {
            None => self.forward(&request).await,
            Some((When::BeforeSend, then)) => self.before_send(request, then).await,
            Some((When::AfterCommit, then)) => self.after_commit(&request, then).await,
            Some((When::AfterReply, then)) => self.after_reply(&request, then).await,
        }
    }

    /// Sends the request. For a write it reads the whole answer, which is short: only a whole answer proves that the write was
    /// committed.
    async fn forward(&self, request: &Request<Bytes>) -> Result<Response<Body>, BoxError> {
        let reply = (self.send)(request.clone()).await?;
        if !is_write(request.method()) {
            return Ok(reply.map(boxed));
        }
        let (parts, body) = reply.into_parts();
        let content = body.collect().await.map_err(Into::into)?.to_bytes();
        if let Some(number) = self.number {
            let empty = parts.status.is_success() && !is_dry_run(request) && is_the_same(request.body(), &content);
            self.interceptor.answered(number, parts.status, empty);
        }
        Ok(Response::from_parts(parts, whole(content)))
    }

    async fn before_send(self, request: Request<Bytes>, then: Then) -> Result<Response<Body>, BoxError> {
        match then {
            Then::Kill(kill) => die(&kill).await,
            Then::Delay(time) => {
                tokio::time::sleep(time).await;
                self.forward(&request).await
            }
            Then::Late(time) => {
                tokio::spawn(async move {
                    tokio::time::sleep(time).await;
                    drop(self.forward(&request).await);
                });
                pending().await
            }
            Then::Hold(latch) => {
                latch.pass().await;
                self.forward(&request).await
            }
            Then::Repeat => {
                self.forward(&request).await?;
                self.forward(&request).await
            }
            other => answered(other).await,
        }
    }

    async fn after_commit(&self, request: &Request<Bytes>, then: Then) -> Result<Response<Body>, BoxError> {
        let reply = self.forward(request).await?;
        match then {
            Then::Kill(kill) => die(&kill).await,
            Then::Delay(time) | Then::Late(time) => {
                tokio::time::sleep(time).await;
                Ok(reply)
            }
            Then::Hold(latch) => {
                latch.pass().await;
                Ok(reply)
            }
            Then::Repeat => {
                self.forward(request).await?;
                Ok(reply)
            }
            other => answered(other).await,
        }
    }

    /// Carries the request and kills the client after the reply. A plan allows no other fault at this moment.
    async fn after_reply(&self, request: &Request<Bytes>, then: Then) -> Result<Response<Body>, BoxError> {
        let reply = self.forward(request).await?;
        let Then::Kill(kill) = then else { return Ok(reply) };
        Ok(reply.map(|body| boxed(KillOnceRead { body, kill: Some(kill) })))
    }
}

/// Returns the answer of a fault that replaces the server's answer.
async fn answered(then: Then) -> Result<Response<Body>, BoxError> {
    match then {
        Then::Refuse(status) => refusal(status),
        Then::Answer(code, body) => reply(StatusCode::from_u16(code)?, &body),
        Then::Pieces(pieces) => Ok(Response::new(in_pieces(pieces))),
        Then::DropConnection => Err(Broken.into()),
        Then::Panic => panics(),
        // The callers handle these faults themselves.
        Then::Hang | Then::Kill(_) | Then::Delay(_) | Then::Late(_) | Then::Hold(_) | Then::Repeat => pending().await,
    }
}

#[allow(clippy::panic, reason = "a test of the host wants a client that panics")]
fn panics() -> ! {
    panic!("the client panics, as planned")
}

pub(crate) fn is_write(method: &Method) -> bool {
    [Method::POST, Method::PUT, Method::PATCH, Method::DELETE].contains(method)
}

/// Returns true if a write with a known resourceVersion left this version unchanged. A write that ends a terminating object is not
/// empty.
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

/// Kills the client. It then never returns, because a killed client sees neither a reply nor an error, even if it still lives for a
/// moment.
async fn die(kill: &Killer) -> Result<Response<Body>, BoxError> {
    kill();
    pending().await
}

/// Returns a refusal with the same body as a refusal of the API server.
pub(crate) fn refusal(status: StatusCode) -> Result<Response<Body>, BoxError> {
    let reason = match status.as_u16() {
        403 => "Forbidden",
        409 => "Conflict",
        410 => "Expired",
        422 => "Invalid",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "",
    };
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "refused, as the plan of faults wanted", "reason": reason, "code": status.as_u16(),
    });
    reply(status, &body)
}

fn reply(status: StatusCode, body: &Value) -> Result<Response<Body>, BoxError> {
    let reply = Response::builder().status(status).header("content-type", "application/json");
    Ok(reply.body(whole(Bytes::from(body.to_string())))?)
}

fn in_pieces(pieces: Vec<&'static str>) -> Body {
    let frames = pieces.into_iter().map(|piece| Ok::<_, BoxError>(Frame::data(Bytes::from_static(piece.as_bytes()))));
    StreamBody::new(futures::stream::iter(frames)).boxed_unsync()
}

fn whole(content: Bytes) -> Body {
    boxed(Full::new(content))
}

pub(crate) fn boxed<B>(body: B) -> Body
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(Into::into).boxed_unsync()
}

/// A body that kills the client once the client has read it.
struct KillOnceRead {
    body: Body,
    kill: Option<Killer>,
}

impl http_body::Body for KillOnceRead {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        std::pin::Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

impl Drop for KillOnceRead {
    fn drop(&mut self) {
        if let (Some(kill), Ok(runtime)) = (self.kill.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(async move {
                tokio::time::sleep(REPLY_LEAVES_WITHIN).await;
                kill();
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use kube::client::Body as ClientBody;
    use oarlock_sim::{Cluster, Options};
    use tower::ServiceExt as _;

    use super::*;
    use crate::faults::{Fault, Plan};
    use crate::orders::Order;

    fn clients(plan: Plan) -> (Interceptor, kube::Client, kube::Client) {
        let cluster = Cluster::new(Options::default());
        let interceptor = Interceptor::new(plan, &["leases"]);
        let (counting, server) = (interceptor.clone(), cluster.service());
        let counted = tower::service_fn(move |request: Request<ClientBody>| {
            let (counting, server) = (counting.clone(), server.clone());
            async move {
                let (parts, body) = request.into_parts();
                let request = Request::from_parts(parts, body.collect().await?.to_bytes());
                let send = move |request: Request<Bytes>| {
                    let server = server.clone();
                    async move { server.oneshot(request.map(ClientBody::from)).await.map_err(BoxError::from) }
                };
                counting.carry(request, send).await
            }
        });
        let past = kube::Client::new(cluster.service(), "default");
        (interceptor, kube::Client::new(counted, "default"), past)
    }

    fn create(name: &str) -> Request<Vec<u8>> {
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        Request::post("/api/v1/namespaces/default/configmaps")
            .header("content-type", "application/json")
            .body(body.to_string().into_bytes())
            .unwrap()
    }

    async fn exists(client: &kube::Client, name: &str) -> bool {
        let request = Request::get(format!("/api/v1/namespaces/default/configmaps/{name}")).body(Vec::new()).unwrap();
        client.request::<Value>(request).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn writes_of_an_in_process_client_are_counted() {
        let (interceptor, through, past) = clients(Plan::none());
        through.request::<Value>(create("a")).await.unwrap();
        assert!(exists(&through, "a").await && exists(&past, "a").await);
        let records = interceptor.records();
        assert_eq!(records.len(), 1);
        assert_eq!(records[0].status, Some(StatusCode::CREATED));
    }

    #[tokio::test(start_paused = true)]
    async fn kill_hits_at_each_of_its_three_moments() {
        for (when, stored, replied) in
            [(When::BeforeSend, false, false), (When::AfterCommit, true, false), (When::AfterReply, true, true)]
        {
            let killed = Arc::new(AtomicBool::new(false));
            let flag = killed.clone();
            let then = Then::Kill(Arc::new(move || flag.store(true, Ordering::SeqCst)));
            let (_, through, past) = clients(Plan::new([Fault { at: 1, when, then }]).unwrap());
            let limit = std::time::Duration::from_secs(1);
            let reply = tokio::time::timeout(limit, through.request::<Value>(create("a"))).await;
            assert_eq!(reply.is_ok(), replied, "{when:?}");
            // Time is paused, so this wait ends once every other task is idle.
            tokio::time::sleep(limit).await;
            assert!(killed.load(Ordering::SeqCst), "{when:?}");
            assert_eq!(exists(&past, "a").await, stored, "{when:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_and_count_can_be_waited_for() {
        let (interceptor, through, _) = clients(Plan::none());
        let writer = tokio::spawn(async move {
            for name in ["a", "b", "c"] {
                through.request::<Value>(create(name)).await.unwrap();
            }
        });
        interceptor.reached(3).await;
        interceptor.silent_for(std::time::Duration::from_secs(10)).await;
        assert_eq!(interceptor.count(), 3);
        writer.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_request_arrives_although_its_client_gave_it_up() {
        let (interceptor, through, past) = clients(Plan::none());
        let (part, says, then) = ("configmaps".to_owned(), "\"a\"".to_owned(), Then::Late(Duration::from_secs(30)));
        interceptor.order(Order { method: Method::POST, part, says, times: Some(1), when: When::BeforeSend, then });
        let reply = tokio::time::timeout(Duration::from_secs(10), through.request::<Value>(create("a"))).await;
        assert!(reply.is_err() && !exists(&past, "a").await);
        tokio::time::sleep(Duration::from_secs(25)).await;
        assert!(exists(&past, "a").await);
        assert_eq!(interceptor.records()[0].status, Some(StatusCode::CREATED));
    }

    #[tokio::test(start_paused = true)]
    async fn a_severed_kind_shows_nothing_of_what_happens_until_it_is_mended() {
        let (interceptor, through, past) = clients(Plan::none());
        let list = "/api/v1/namespaces/default/configmaps";
        let get = |query: &str| Request::get(format!("{list}{query}")).body(Vec::new()).unwrap();
        let mut watch = Box::pin(through.request_stream(get("?watch=true")).await.unwrap());
        interceptor.sever("configmaps");
        past.request::<Value>(create("a")).await.unwrap();
        let mut told = Vec::new();
        assert_eq!(futures::AsyncReadExt::read_to_end(&mut watch, &mut told).await.unwrap(), 0);
        let anew = through.request_text(get("?watch=true")).await.unwrap_err();
        assert!(matches!(anew, kube::Error::Api(status) if status.code == 410));
        let mut waits = Box::pin(through.request::<Value>(get("")));
        assert!(tokio::time::timeout(Duration::from_secs(9), &mut waits).await.is_err());
        interceptor.mend();
        assert_eq!(waits.await.unwrap()["items"][0]["metadata"]["name"], "a");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_passes_a_connection_that_is_cut() {
        let (interceptor, through, past) = clients(Plan::none());
        interceptor.cut(true);
        assert!(through.request::<Value>(create("a")).await.is_err() && !exists(&past, "a").await);
        interceptor.cut(false);
        assert!(through.request::<Value>(create("a")).await.is_ok());
    }
}
