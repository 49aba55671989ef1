//! Carries requests to a server, counts the writes and injects faults.
//!
//! A plan has faults for the n-th write. An order has a fault for requests with certain words. A read passes untouched unless an
//! order matches it. The proxy before a real API server and every layer before the in-memory server use this implementation.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::connection::{Connection, last_of, watched};
use crate::exchange::{Exchange, is_write, refusal};
use crate::faults::{Fault, Plan, Then, When};
use crate::orders::{Latch, Order, Orders};

/// Any error of a sender.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// A body that may be an endless stream.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// The record of one write that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteRecord {
    /// The number of the write, from one, in order of arrival.
    pub number: u64,
    /// `POST`, `PUT`, `PATCH` or `DELETE`.
    pub verb: Method,
    /// The path of the request, without the query.
    pub path: String,
    /// The status that the *server* answered with. `None` if the server was not asked or has not answered yet.
    pub status: Option<StatusCode>,
    /// True if the server accepted the write and its resourceVersion did not change, as far as the two bodies tell.
    pub empty: bool,
    /// True for a dry run.
    pub dry_run: bool,
    /// The time of arrival, since counting began.
    pub arrived: Duration,
    /// The time from arrival to the server's answer, delays included.
    pub took: Option<Duration>,
    /// The fault that the plan had for this write.
    pub fault: Option<String>,
}

/// Counts writes and injects faults. Clones share the count.
#[derive(Clone, Debug)]
pub struct Interceptor {
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    connection: Connection,
    orders: Orders,
    ignored: Vec<String>,
    counting: Mutex<Counting>,
    total: watch::Sender<u64>,
    under_way: Mutex<UnderWay>,
}

/// Returns true if a write is a dry run. The query says so; for a deletion and an eviction, the body may say so instead.
pub(crate) fn is_dry_run(request: &Request<Bytes>) -> bool {
    let in_query = request.uri().query().is_some_and(|query| query.split('&').any(|part| part == "dryRun=All"));
    let in_body = || String::from_utf8_lossy(request.body()).contains(r#""dryRun":["All"]"#);
    let departs = request.method() == Method::DELETE || request.uri().path().ends_with("/eviction");
    in_query || departs && in_body()
}

#[derive(Debug)]
struct Counting {
    began: Instant,
    plan: Plan,
    records: Vec<WriteRecord>,
}

/// The writes between their sending and their end.
#[derive(Debug, Default)]
struct UnderWay {
    now: usize,
    most: usize,
}

/// One write on its way. It counts until the write ends, even if the client gives up.
struct Passage(Arc<State>);

impl Passage {
    fn begin(state: &Arc<State>) -> Self {
        let mut writes = state.under_way.lock();
        writes.now += 1;
        writes.most = writes.most.max(writes.now);
        Self(Arc::clone(state))
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        let mut writes = self.0.under_way.lock();
        writes.now = writes.now.saturating_sub(1);
    }
}

/// The error that closes the client's connection without a reply.
#[derive(Debug)]
pub struct Broken;

impl std::fmt::Display for Broken {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("the connection was dropped, as the plan of faults wanted")
    }
}

impl Error for Broken {}

impl Interceptor {
    /// Counts every write except writes to the ignored resources (plural names, such as `leases` and `events`).
    #[must_use]
    pub fn new(plan: Plan, ignored: &[&str]) -> Self {
        let counting = Counting { began: Instant::now(), plan, records: Vec::new() };
        let state = State {
            connection: Connection::default(),
            orders: Orders::default(),
            ignored: ignored.iter().map(ToString::to_string).collect(),
            counting: Mutex::new(counting),
            total: watch::Sender::new(0),
            under_way: Mutex::default(),
        };
        Self { state: Arc::new(state) }
    }

    /// Resets the count and follows `plan` from now on.
    pub fn restart(&self, plan: Plan) {
        *self.state.counting.lock() = Counting { began: Instant::now(), plan, records: Vec::new() };
        self.state.total.send_replace(0);
    }

    /// Keeps the count and follows `plan` from now on.
    pub fn follow(&self, plan: Plan) {
        self.state.counting.lock().plan = plan;
    }

    /// Applies this order to matching requests from now on, reads included. An order takes precedence over the plan.
    pub fn order(&self, order: Order) {
        self.state.orders.add(order);
    }

    /// Removes every order, and releases the requests that an order holds.
    pub fn lift(&self) {
        self.state.orders.lift();
    }

    /// Returns the number of requests that matched an order.
    #[must_use]
    pub fn caught(&self) -> usize {
        self.state.orders.caught()
    }

    /// Holds the next request of this method whose path contains `part`, even if its client gives up meanwhile.
    #[must_use]
    pub fn hold_next(&self, method: Method, part: &str) -> Latch {
        let (latch, part, says) = (Latch::default(), part.to_owned(), String::new());
        let then = Then::Hold(latch.clone());
        self.order(Order { method, part, says, times: Some(1), when: When::BeforeSend, then });
        latch
    }

    /// Cuts the connection, which also ends running watches, or restores it.
    pub fn cut(&self, cut: bool) {
        self.state.connection.cut(cut);
    }

    /// Freezes the watches of this kind. They deliver nothing until [`Interceptor::thaw`].
    pub fn freeze(&self, plural: &str) {
        self.state.connection.freeze(plural);
    }

    /// Lets all frozen watches deliver again.
    pub fn thaw(&self) {
        self.state.connection.thaw();
    }

    /// Severs a kind: its watches end, a new watch gets 410 Gone, and its lists wait. The client never learns of changes that
    /// happen before [`Interceptor::mend`].
    pub fn sever(&self, plural: &str) {
        self.state.connection.sever(plural);
    }

    /// Mends all severed kinds: a client can list and watch them again.
    pub fn mend(&self) {
        self.state.connection.mend();
    }

    /// Returns the number of writes that have arrived.
    #[must_use]
    pub fn count(&self) -> u64 {
        *self.state.total.borrow()
    }

    /// Returns the highest number of writes that were on their way at once.
    #[must_use]
    pub fn most_at_once(&self) -> usize {
        self.state.under_way.lock().most
    }

    /// Returns the writes so far, in order of arrival.
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

    /// Carries one request with the function `send`.
    ///
    /// # Errors
    ///
    /// [`Broken`] if the plan drops the connection, and every error of `send`.
    pub async fn carry<S, F, B>(&self, request: Request<Bytes>, send: S) -> Result<Response<Body>, BoxError>
    where
        S: Fn(Request<Bytes>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<Response<B>, BoxError>> + Send + 'static,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let plural = watched(request.uri()).filter(|_| request.method() == Method::GET);
        let listed = (request.method() == Method::GET).then(|| last_of(request.uri()));
        let carried = async {
            match listed.filter(|kind| self.state.connection.is_severed(kind)) {
                Some(_) if plural.is_some() => return refusal(StatusCode::GONE),
                Some(kind) => self.state.connection.until_mended(&kind).await,
                None => {}
            }
            let _passage = is_write(request.method()).then(|| Passage::begin(&self.state));
            let ordered = self.state.orders.of(&request);
            let (number, planned) = self.admit(&request).unzip();
            let fault = ordered.or_else(|| planned.flatten().map(|Fault { when, then, .. }| (when, then)));
            Exchange { interceptor: self.clone(), number, send }.carry(request, fault).await
        };
        let reply = self.state.connection.unless_cut(carried).await?;
        Ok(match plural {
            Some(plural) => reply.map(|body| self.state.connection.stream(body, plural)),
            None => reply,
        })
    }

    /// Gives a write its number, and returns the number with the planned fault. Returns `None` for a read and an ignored resource.
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
            path: request.uri().path().to_owned(),
            status: None,
            empty: false,
            dry_run: is_dry_run(request),
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

    pub(crate) fn answered(&self, number: u64, status: StatusCode, empty: bool) {
        let mut counting = self.state.counting.lock();
        let now = counting.began.elapsed();
        // After a restart of the count, a late answer belongs to no record.
        if let Some(record) = counting.records.iter_mut().find(|record| record.number == number) {
            record.status = Some(status);
            record.empty = empty;
            record.took = Some(now.saturating_sub(record.arrived));
        }
    }
}
