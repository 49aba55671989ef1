//! Carries requests to a server, counts the writes among them and lets a plan's faults happen.
//!
//! Takes a request and a way to send it; yields the reply, or the loss of the connection. Reads and watches pass untouched, and
//! replies to them are never held. The proxy and the layer in front of the in-memory API both stand on this one implementation.

use std::error::Error;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::faults::{Fault, Killer, Plan, Then, When};

/// Any error of a sender.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// A body that may be a stream without end.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// How long after the last byte was handed over a killer waits, so that it leaves this process before its reader is killed.
const REPLY_LEAVES_WITHIN: Duration = Duration::from_millis(2);

/// One write that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteRecord {
    /// Its number, from one, in order of arrival.
    pub number: u64,
    /// `POST`, `PUT`, `PATCH` or `DELETE`.
    pub verb: Method,
    /// Path and query.
    pub path: String,
    /// The status that the *server* answered with; absent if it was never asked or has not answered yet.
    pub status: Option<StatusCode>,
    /// Since counting began.
    pub arrived: Duration,
    /// From arrival to the server's answer, delays included.
    pub took: Option<Duration>,
    /// The fault that the plan had for it.
    pub fault: Option<String>,
}

/// Counts writes and lets faults happen. Clones share the count.
#[derive(Clone, Debug)]
pub struct Interceptor {
    state: Arc<State>,
}

/// The hold on one write: see [`Interceptor::hold_next`].
#[derive(Debug)]
pub struct Held {
    caught: watch::Receiver<bool>,
    open: watch::Sender<bool>,
}

impl Held {
    /// Resolves once the write has arrived and waits.
    pub async fn caught(&self) {
        // The sender lives in the interceptor until then.
        let _ = self.caught.clone().wait_for(|caught| *caught).await;
    }

    /// Lets it go on to the server.
    pub fn release(self) {
        self.open.send_replace(true);
    }
}

/// The other side of a [`Held`].
#[derive(Debug)]
struct Gate {
    part: String,
    caught: watch::Sender<bool>,
    open: watch::Receiver<bool>,
}

#[derive(Debug)]
struct State {
    gate: Mutex<Option<Gate>>,
    ignored: Vec<String>,
    counting: Mutex<Counting>,
    total: watch::Sender<u64>,
}

#[derive(Debug)]
struct Counting {
    began: Instant,
    plan: Plan,
    records: Vec<WriteRecord>,
}

/// The client's connection is to be closed without a reply.
#[derive(Debug)]
pub struct Broken;

impl std::fmt::Display for Broken {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("the connection was dropped, as the plan of faults wanted")
    }
}

impl Error for Broken {}

impl Interceptor {
    /// Counts every write but those to the given resources (plural names, such as `leases` and `events`).
    #[must_use]
    pub fn new(plan: Plan, ignored: &[&str]) -> Self {
        let counting = Counting { began: Instant::now(), plan, records: Vec::new() };
        let ignored = ignored.iter().map(ToString::to_string).collect();
        Self {
            state: Arc::new(State {
                gate: Mutex::default(),
                ignored,
                counting: Mutex::new(counting),
                total: watch::Sender::new(0),
            }),
        }
    }

    /// Forgets what was counted and follows `plan` from now on.
    pub fn restart(&self, plan: Plan) {
        *self.state.counting.lock() = Counting { began: Instant::now(), plan, records: Vec::new() };
        self.state.total.send_replace(0);
    }

    /// Holds the next write whose path contains `part`, whatever becomes of its client meanwhile.
    #[must_use]
    pub fn hold_next(&self, part: &str) -> Held {
        let (caught, is_caught) = watch::channel(false);
        let (open, is_open) = watch::channel(false);
        *self.state.gate.lock() = Some(Gate { part: part.to_owned(), caught, open: is_open });
        Held { caught: is_caught, open }
    }

    async fn pass_the_gate(&self, request: &Request<Bytes>) {
        let meant = |gate: &mut Gate| is_write(request.method()) && request.uri().path().contains(&gate.part);
        let gate = self.state.gate.lock().take_if(meant);
        if let Some(mut gate) = gate {
            gate.caught.send_replace(true);
            // Whoever dropped the other side no longer holds it.
            let _ = gate.open.wait_for(|open| *open).await;
        }
    }

    /// How many writes have arrived.
    #[must_use]
    pub fn count(&self) -> u64 {
        *self.state.total.borrow()
    }

    /// The writes so far, in order of arrival.
    #[must_use]
    pub fn records(&self) -> Vec<WriteRecord> {
        self.state.counting.lock().records.clone()
    }

    /// Waits until `number` writes have arrived.
    pub async fn reached(&self, number: u64) {
        // The sender lives in `self`, so it cannot be gone.
        let _ = self.state.total.subscribe().wait_for(|total| *total >= number).await;
    }

    /// Waits until no write has arrived for `quiet`.
    pub async fn silent_for(&self, quiet: Duration) {
        let mut total = self.state.total.subscribe();
        total.mark_unchanged();
        while tokio::time::timeout(quiet, total.changed()).await.is_ok() {}
    }

    /// Carries one request by means of `send`.
    ///
    /// # Errors
    ///
    /// Fails with [`Broken`] if the plan drops the connection, and with whatever `send` fails with.
    pub async fn carry<S, F, B>(&self, request: Request<Bytes>, send: S) -> Result<Response<Body>, BoxError>
    where
        S: Fn(Request<Bytes>) -> F,
        F: Future<Output = Result<Response<B>, BoxError>>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let Some((number, fault)) = self.admit(&request) else {
            return Ok(send(request).await?.map(boxed));
        };
        let exchange = Exchange { interceptor: self, number, send: &send };
        self.pass_the_gate(&request).await;
        match fault {
            None => exchange.forward(&request).await,
            Some(Fault { when: When::BeforeSend, then, .. }) => exchange.before_send(&request, then).await,
            Some(Fault { when: When::AfterCommit, then, .. }) => exchange.after_commit(&request, then).await,
            Some(Fault { when: When::AfterReply, then, .. }) => exchange.after_reply(&request, then).await,
        }
    }

    /// Gives a write its number; yields nothing for anything else.
    fn admit(&self, request: &Request<Bytes>) -> Option<(u64, Option<Fault>)> {
        if !is_write(request.method()) || self.is_ignored(request.uri().path()) {
            return None;
        }
        let mut counting = self.state.counting.lock();
        let number = counting.records.len() as u64 + 1;
        let fault = counting.plan.at(number).cloned();
        let record = WriteRecord {
            number,
            verb: request.method().clone(),
            path: request.uri().to_string(),
            status: None,
            arrived: counting.began.elapsed(),
            took: None,
            fault: fault.as_ref().map(|fault| format!("{:?} {:?}", fault.when, fault.then)),
        };
        counting.records.push(record);
        self.state.total.send_replace(number);
        Some((number, fault))
    }

    fn is_ignored(&self, path: &str) -> bool {
        path.split('/').any(|part| self.state.ignored.iter().any(|ignored| ignored == part))
    }

    fn answered(&self, number: u64, status: StatusCode) {
        let mut counting = self.state.counting.lock();
        let now = counting.began.elapsed();
        // After a restart of the count a late answer belongs to nothing.
        if let Some(record) = counting.records.iter_mut().find(|record| record.number == number) {
            record.status = Some(status);
            record.took = Some(now.saturating_sub(record.arrived));
        }
    }
}

/// One write on its way.
struct Exchange<'a, S> {
    interceptor: &'a Interceptor,
    number: u64,
    send: &'a S,
}

impl<S, F, B> Exchange<'_, S>
where
    S: Fn(Request<Bytes>) -> F,
    F: Future<Output = Result<Response<B>, BoxError>>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    /// Sends and reads the whole answer: what a write is answered with is short, and only a whole answer was surely committed.
    async fn forward(&self, request: &Request<Bytes>) -> Result<Response<Body>, BoxError> {
        let (parts, body) = (self.send)(request.clone()).await?.into_parts();
        let content = body.collect().await.map_err(Into::into)?.to_bytes();
        self.interceptor.answered(self.number, parts.status);
        Ok(Response::from_parts(parts, whole(content)))
    }

    async fn before_send(&self, request: &Request<Bytes>, then: Then) -> Result<Response<Body>, BoxError> {
        match then {
            Then::Kill(kill) => die(&kill).await,
            Then::Delay(time) => {
                tokio::time::sleep(time).await;
                self.forward(request).await
            }
            Then::Refuse(status) => refusal(status),
            Then::Repeat => {
                self.forward(request).await?;
                self.forward(request).await
            }
            Then::DropConnection => Err(Broken.into()),
        }
    }

    async fn after_commit(&self, request: &Request<Bytes>, then: Then) -> Result<Response<Body>, BoxError> {
        let reply = self.forward(request).await?;
        match then {
            Then::Kill(kill) => die(&kill).await,
            Then::Delay(time) => {
                tokio::time::sleep(time).await;
                Ok(reply)
            }
            Then::Refuse(status) => refusal(status),
            Then::Repeat => {
                self.forward(request).await?;
                Ok(reply)
            }
            Then::DropConnection => Err(Broken.into()),
        }
    }

    /// A plan allows nothing but a kill here.
    async fn after_reply(&self, request: &Request<Bytes>, then: Then) -> Result<Response<Body>, BoxError> {
        let reply = self.forward(request).await?;
        let Then::Kill(kill) = then else { return Ok(reply) };
        Ok(reply.map(|body| boxed(KillOnceRead { body, kill: Some(kill) })))
    }
}

fn is_write(method: &Method) -> bool {
    [Method::POST, Method::PUT, Method::PATCH, Method::DELETE].contains(method)
}

/// A killed client sees neither a reply nor an error, so neither is given even if it still lives for a moment.
async fn die(kill: &Killer) -> Result<Response<Body>, BoxError> {
    kill();
    pending().await
}

/// The body that the API server's own refusals have.
fn refusal(status: StatusCode) -> Result<Response<Body>, BoxError> {
    let reason = match status.as_u16() {
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
    let reply = Response::builder().status(status).header("content-type", "application/json");
    Ok(reply.body(whole(Bytes::from(body.to_string())))?)
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

/// Kills once whoever reads the reply is done with it.
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
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, BoxError>>> {
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
