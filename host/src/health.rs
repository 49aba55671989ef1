//! The health of the host over HTTP: `/livez`, `/readyz` and `/metrics`.
//!
//! The process is alive while the controller's loop runs. The process is ready after each part named at the start has
//! reported ready, except optional parts. No request here uses the cluster.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::future::Future;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet, yield_now};
use tokio::time::{Instant, sleep, timeout};

use crate::metrics::{MEDIA_TYPE, Metrics};

/// The number of open connections: a kubelet, a few scrapers, an admin. A further one closes the oldest, so that a
/// client that holds connections cannot block a probe.
const MOST_CONNECTIONS: usize = 64;

/// The time in which a client must send the head of its request.
const HEAD_TIME: Duration = Duration::from_secs(2);
/// The time for one request and its answer.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// The wait after the system refused a connection, for example because no file descriptor was free.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// The longest wait for running answers at the end.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// The interval of the controller's heartbeats.
const BEAT: Duration = Duration::from_secs(10);
/// The age of the last heartbeat after which the controller counts as stuck.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// The reason why the endpoints cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum HealthError {
    /// The address is in use, or belongs to another machine.
    #[error("cannot listen on {address}: choose another with --listen ADDRESS:PORT (port 0 takes a free one)")]
    Listen {
        /// The requested address.
        address: SocketAddr,
        /// The error of the system.
        #[source]
        cause: std::io::Error,
    },
}

/// A function that reports whether a part is ready. The error says what the part waits for.
pub type Probe = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// A part of the process whose readiness `/readyz` shows.
pub struct HealthPart {
    /// The name of the part.
    pub name: Cow<'static, str>,
    /// Reports whether the part is ready.
    pub probe: Probe,
}

/// The heartbeat of the controller's loop.
#[derive(Debug, Default)]
pub struct Heartbeat(Mutex<Option<Instant>>);

impl Heartbeat {
    /// Records a beat, and resolves when the next beat is due. Each wait of the loop has this as a branch.
    pub async fn beat(&self) {
        *self.latest() = Some(Instant::now());
        sleep(BEAT).await;
    }

    /// Returns the age of the last beat; `None` before the first.
    fn age(&self) -> Option<Duration> {
        self.latest().map(|beat| beat.elapsed())
    }

    fn latest(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The health of the process and its parts.
#[derive(Default)]
pub struct Health {
    parts: Vec<HealthPart>,
    optional: Vec<HealthPart>,
    heart: Arc<Heartbeat>,
    /// The reason why the process should be restarted.
    dead: Mutex<Option<String>>,
}

impl Health {
    /// Makes a health that is ready while each of `parts` is ready, and alive while `heart` beats.
    pub fn of(parts: Vec<HealthPart>, heart: Arc<Heartbeat>) -> Self {
        Self { parts, heart, ..Self::default() }
    }

    /// Returns the health with optional parts. `/readyz` names a failed optional part, and the process works without
    /// it.
    #[must_use]
    pub fn with_optional(self, optional: Vec<HealthPart>) -> Self {
        Self { optional, ..self }
    }

    /// Marks the process as unable to recover by itself.
    pub fn dead(&self, why: impl Into<String>) {
        *self.why_dead() = Some(why.into());
    }

    fn why_dead(&self) -> MutexGuard<'_, Option<String>> {
        self.dead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn live(&self) -> (StatusCode, String) {
        let stuck = self.heart.age().filter(|age| *age > STUCK_AFTER);
        let stuck = stuck.map(|age| format!("the controller has been stuck for {} s", age.as_secs()));
        match self.why_dead().clone().or(stuck) {
            None => (StatusCode::OK, "ok\n".to_owned()),
            Some(why) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n")),
        }
    }

    /// Returns the name of each part, and whether the part is ready.
    pub(crate) fn readiness_of_parts(&self) -> impl Iterator<Item = (&str, bool)> {
        self.parts.iter().chain(&self.optional).map(|part| (&*part.name, (part.probe)().is_ok()))
    }

    pub(crate) fn readiness(&self) -> (StatusCode, String) {
        let mut text = String::new();
        let mut ready = self.why_dead().is_none();
        let needed = self.parts.iter().map(|part| (part, "-"));
        for (HealthPart { name: part, probe }, mark) in needed.chain(self.optional.iter().map(|part| (part, "!"))) {
            let found = probe();
            ready &= found.is_ok() || mark == "!";
            // Writing to a string cannot fail.
            let _ = match found {
                Ok(()) => writeln!(text, "[+] {part} ok"),
                Err(why) => writeln!(text, "[{mark}] {part}: {why}"),
            };
        }
        (if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, text)
    }
}

/// Parses an address: `127.0.0.1:8080`, `localhost:8080`, or `:8080` for all addresses of the machine.
///
/// # Errors
///
/// If the text is no address, or if the name has no address. The error shows the format.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let all = text.strip_prefix(':').map(|port| format!("[::]:{port}"));
    let mut found = all.as_deref().unwrap_or(text).to_socket_addrs().map_err(|error| {
        format!("{error}: write ADDRESS:PORT, such as 127.0.0.1:8080, or :8080 for each address of the machine")
    })?;
    found.next().ok_or_else(|| format!("{text} has no address"))
}

/// Binds the address early, so that an address in use is reported before anything else starts.
///
/// # Errors
///
/// If the address cannot be bound. The error names the address and the fix.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, HealthError> {
    let bound = match TcpListener::bind(address).await {
        // The machine may have no IPv6.
        Err(error) if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) && error.kind() != ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        bound => bound,
    };
    bound.map_err(|cause| HealthError::Listen { address, cause })
}

/// The open connections.
#[derive(Default)]
struct Connections {
    answers: JoinSet<()>,
    oldest_first: VecDeque<AbortHandle>,
}

impl Connections {
    /// Answers one more client. Closes the oldest connection if there are too many.
    fn take(&mut self, answer: impl Future<Output = ()> + Send + 'static) {
        self.oldest_first.retain(|answer| !answer.is_finished());
        if self.oldest_first.len() >= MOST_CONNECTIONS
            && let Some(oldest) = self.oldest_first.pop_front()
        {
            oldest.abort();
            tracing::debug!("too many clients of /livez, /readyz and /metrics; closing the oldest connection");
        }
        self.oldest_first.push_back(self.answers.spawn(answer));
    }
}

/// Answers on `listener` until `stop` ends: one request for each connection, with a limited number of connections.
pub async fn serve(
    listener: TcpListener,
    health: Arc<Health>,
    metrics: Arc<Metrics>,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    let routes = Router::new()
        .route("/livez", get(|State((health, _)): State<(Arc<Health>, Arc<Metrics>)>| async move { health.live() }))
        .route(
            "/readyz",
            get(|State((health, _)): State<(Arc<Health>, Arc<Metrics>)>| async move { health.readiness() }),
        )
        .route(
            "/metrics",
            get(|State((_, metrics)): State<(Arc<Health>, Arc<Metrics>)>| async move { figures(&metrics) }),
        )
        .with_state((health, metrics));
    if let Ok(address) = listener.local_addr() {
        tracing::info!(%address, "serving /livez, /readyz and /metrics");
    }
    let mut connections = Connections::default();
    tokio::pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            Some(_ended) = connections.answers.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.take(answer(stream, routes.clone()));
                    // Lets the new answer run before the next connection, which may close it.
                    yield_now().await;
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a connection to /livez, /readyz or /metrics; retrying");
                    sleep(ACCEPT_AGAIN).await;
                }
            },
        }
    }
    let all = async { while connections.answers.join_next().await.is_some() {} };
    let _late = timeout(LAST_ANSWERS, all).await.is_err();
}

/// Answers one request. Closes the connection of a client that is too slow.
async fn answer(stream: TcpStream, routes: Router) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    match timeout(ANSWER_TIME, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a client of /livez, /readyz or /metrics closed the connection"),
        Err(_) => tracing::debug!("a client of /livez, /readyz or /metrics was too slow"),
    }
}

fn figures(metrics: &Metrics) -> Response {
    ([(header::CONTENT_TYPE, MEDIA_TYPE)], metrics.text()).into_response()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    async fn ask(address: SocketAddr, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: oarlock\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn an_address_may_have_a_name_or_stand_for_every_address() {
        assert!(parse_address("localhost:0").unwrap().ip().is_loopback());
        assert_eq!(parse_address("127.0.0.1:8080").unwrap(), ([127, 0, 0, 1], 8080).into());
        let everywhere = listen(parse_address(":0").unwrap()).await.unwrap();
        let port = everywhere.local_addr().unwrap().port();
        assert!(tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok());
        assert!(parse_address("8080").unwrap_err().contains("write ADDRESS:PORT"));
    }

    #[tokio::test]
    async fn readiness_waits_for_every_part_and_names_those_missing() {
        let listener = listen(([127, 0, 0, 1], 0).into()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let listed = Arc::new(AtomicBool::new(false));
        let seen = listed.clone();
        let cache =
            move || if seen.load(Ordering::Relaxed) { Ok(()) } else { Err("pods are not listed yet".to_owned()) };
        let health = Arc::new(Health::of(
            vec![
                HealthPart { name: "cache".into(), probe: Box::new(cache) },
                HealthPart { name: "plugins".into(), probe: Box::new(|| Ok(())) },
            ],
            Arc::default(),
        ));
        let metrics = Arc::new(Metrics::new(&Arc::default()));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serving = tokio::spawn(serve(listener, health.clone(), metrics, async move {
            let _ = stopped.await;
        }));
        let answer = ask(address, "/readyz").await;
        assert!(
            answer.starts_with("HTTP/1.1 503")
                && answer.contains("[-] cache: pods are not listed yet\n[+] plugins ok\n"),
            "{answer}"
        );
        listed.store(true, Ordering::Relaxed);
        assert!(ask(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        assert!(ask(address, "/livez").await.starts_with("HTTP/1.1 200"));
        assert!(ask(address, "/metrics").await.contains("# EOF"));
        health.dead("the controller ended");
        assert!(ask(address, "/livez").await.starts_with("HTTP/1.1 500"));
        stop.send(()).unwrap();
        serving.await.unwrap();
    }

    #[test]
    fn an_optional_part_that_is_missing_is_named_and_takes_no_readiness() {
        let no_flows = || Err("JobFlow not listed: forbidden".to_owned());
        let health = Health::of(vec![HealthPart { name: "cache".into(), probe: Box::new(|| Ok(())) }], Arc::default());
        let health = health.with_optional(vec![HealthPart { name: "flows".into(), probe: Box::new(no_flows) }]);
        let (code, text) = health.readiness();
        assert_eq!((code, text.as_str()), (StatusCode::OK, "[+] cache ok\n[!] flows: JobFlow not listed: forbidden\n"));
    }

    /// Serves the endpoints until the test ends.
    async fn serving() -> SocketAddr {
        let listener = listen(([127, 0, 0, 1], 0).into()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let metrics = Arc::new(Metrics::new(&Arc::default()));
        tokio::spawn(serve(listener, Arc::default(), metrics, std::future::pending()));
        address
    }

    /// Connects a client that sends half of a request, and then nothing.
    async fn half_a_request(address: SocketAddr) -> tokio::net::TcpStream {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /livez HTTP/1.1\r\nhost: oar").await.unwrap();
        stream
    }

    #[tokio::test(start_paused = true)]
    async fn a_controller_whose_loop_stands_still_for_a_minute_is_not_alive() {
        let heart = Arc::new(Heartbeat::default());
        let health = Health::of(Vec::new(), heart.clone());
        tokio::time::advance(Duration::from_secs(600)).await;
        assert_eq!(health.live().0, StatusCode::OK, "it has not begun");
        for _ in 0..30 {
            heart.beat().await;
            assert_eq!(health.live().0, StatusCode::OK);
        }
        tokio::time::advance(Duration::from_secs(60)).await;
        let (code, why) = health.live();
        assert!(code == StatusCode::INTERNAL_SERVER_ERROR && why.contains("stuck for 70 s"), "{why}");
        heart.beat().await;
        assert_eq!(health.live().0, StatusCode::OK);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_half_a_request_or_nothing_is_let_go_soon() {
        let address = serving().await;
        let nothing = tokio::net::TcpStream::connect(address).await.unwrap();
        for mut stream in [half_a_request(address).await, nothing] {
            let mut answer = Vec::new();
            let ended = timeout(HEAD_TIME + Duration::from_secs(1), stream.read_to_end(&mut answer)).await;
            assert!(ended.is_ok(), "it may stay for ever");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_hold_connections_keep_no_probe_waiting_however_many_they_are() {
        let address = serving().await;
        let mut held = Vec::new();
        for held_in_all in [MOST_CONNECTIONS, 1_000] {
            while held.len() < held_in_all {
                held.push(half_a_request(address).await);
            }
            for path in ["/livez", "/readyz", "/metrics"] {
                let answer = timeout(Duration::from_secs(1), ask(address, path)).await;
                assert!(answer.unwrap_or_default().starts_with("HTTP/1.1 200"), "{path} beside {held_in_all}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_connection_too_many_closes_the_oldest_and_no_other() {
        let address = serving().await;
        let mut held = Vec::new();
        for _ in 0..=MOST_CONNECTIONS {
            held.push(half_a_request(address).await);
        }
        let mut closed = Vec::new();
        for (number, stream) in held.iter_mut().enumerate() {
            let ended = timeout(Duration::from_millis(1), stream.read_u8()).await;
            closed.extend(ended.is_ok().then_some(number));
        }
        assert_eq!(closed, [0]);
    }

    #[tokio::test]
    async fn an_address_that_is_taken_is_named_with_the_fix() {
        let first = listen(([127, 0, 0, 1], 0).into()).await.unwrap();
        let refused = listen(first.local_addr().unwrap()).await.unwrap_err().to_string();
        assert!(refused.contains("--listen"), "{refused}");
    }
}
