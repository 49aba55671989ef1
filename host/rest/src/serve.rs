//! Runs the listener: connections, TLS, and the middleware of all requests. Source: docs/opsjob-rest.md 1 and 8.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::IntoResponse as _;
use axum::routing::{delete, get, post};
use axum_server::Handle;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto::Http2Builder;
use oarlock_core::ops_job::refusal::{Code, OpsRefusal};
use ring::rand::{SecureRandom as _, SystemRandom};
use rustls::ServerConfig;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use utoipa_swagger_ui::{Config, SwaggerUi};

use crate::audit::{Asked, Noted};
use crate::caller::Caller;
use crate::connections::{BoundedAcceptor, Paced, keep_little};
use crate::handlers::{self, Base};
use crate::state::{Rest, RestState};
use crate::{cors, errors, openapi};

/// How long a client may take to send the head of a request.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// The most bytes of a head, and the most headers.
pub(crate) const HEAD: usize = 32 * 1024;
const HEADERS: usize = 64;
/// The longest time of a request.
const ANSWER_TIME: Duration = Duration::from_secs(30);
/// The longest time for requests in progress after a stop.
const LAST_ANSWERS: Duration = Duration::from_secs(30);
/// The most connections that the kernel queues until they are accepted. A client without a place in the queue retries after a second.
const BACKLOG: i32 = 4_096;
/// The bounds of HTTP/2: the streams of a connection, the bytes of the head of a request, the buffers of a stream, and the largest frame.
const STREAMS: u32 = 32;
const HEAD_OF_STREAM: u32 = 32 * 1024;
pub(crate) const SENT_OF_STREAM: usize = 32 * 1024;
pub(crate) const RECEIVED: u32 = 64 * 1024;
pub(crate) const FRAME: u32 = 16 * 1024;
/// The time between two checks of the TLS files.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// The content security policies of the documentation page and of all other answers. The page sets styles on its own elements.
const OF_PAGE: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
    font-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const OF_REST: &str = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox";
/// The header of the id of a request.
const REQUEST_ID: &str = "x-request-id";

/// The paths of the certificate and its key.
#[derive(Clone, Debug)]
pub struct Tls {
    /// The certificate with its chain, in PEM.
    pub certificate: PathBuf,
    /// The key of the certificate, in PEM.
    pub key: PathBuf,
}

/// The reason why the API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum RestError {
    /// The address is in use, or does not belong to this machine.
    #[error("cannot listen on {address}: choose another ADDRESS:PORT (port 0 takes a free one)")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        #[source]
        cause: std::io::Error,
    },
    /// Clients would send tokens over the network unencrypted.
    #[error(
        "{0} can be reached from elsewhere, and tokens would be sent there in the clear: give --cert and --key, or listen on 127.0.0.1"
    )]
    Bare(SocketAddr),
    /// The certificate or its key cannot be used.
    #[error("cannot use the certificate {} with the key {}", .tls.certificate.display(), .tls.key.display())]
    Tls {
        /// The paths of the files.
        tls: Tls,
        /// The error of the TLS library or the file system.
        #[source]
        cause: std::io::Error,
    },
}

/// A listener that is bound but does not serve yet.
pub struct Listening {
    listener: std::net::TcpListener,
    address: SocketAddr,
    tls: Option<(Tls, RustlsConfig)>,
}

/// The parts of a process that a listener serves beside the API.
pub struct Beside {
    /// Returns whether the process is ready, and what it waits for.
    pub ready: Readiness,
    /// The pages for browsers. With pages, the listener also speaks HTTP/2, so that a browser needs only one connection.
    pub pages: Option<Router>,
}

/// Returns whether the process is ready, and what it waits for.
pub type Readiness = Arc<dyn Fn() -> (StatusCode, String) + Send + Sync>;

impl Listening {
    /// Binds an address.
    ///
    /// # Errors
    /// If the address cannot be bound, the files of the certificate cannot be used, or tokens would be sent unencrypted.
    pub async fn on(address: SocketAddr, tls: Option<Tls>) -> Result<Self, RestError> {
        if tls.is_none() && !address.ip().is_loopback() {
            return Err(RestError::Bare(address));
        }
        let tls = match tls {
            None => None,
            Some(tls) => match RustlsConfig::from_pem_file(&tls.certificate, &tls.key).await {
                Ok(config) => Some((tls, config)),
                Err(cause) => return Err(RestError::Tls { tls, cause }),
            },
        };
        let listen = || {
            let listener = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
            listener.set_reuse_address(true)?;
            keep_little(&SockRef::from(&listener))?;
            listener.bind(&address.into())?;
            listener.listen(BACKLOG)?;
            listener.set_nonblocking(true)?;
            let listener = std::net::TcpListener::from(listener);
            Ok((listener.local_addr()?, listener))
        };
        let (address, listener) = listen().map_err(|cause| RestError::Listen { address, cause })?;
        Ok(Self { listener, address, tls })
    }

    /// Returns the address of the listener.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the URL of the listener.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Serves the API until `stop` is cancelled, and then finishes the requests in progress.
    ///
    /// # Errors
    /// If the listener fails.
    pub async fn serve(self, rest: Rest, beside: Beside, stop: CancellationToken) -> std::io::Result<()> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let protocols = if beside.pages.is_some() { Protocols::Http2 } else { Protocols::Http1 };
        let connections = rest.parts().connections.clone();
        let app = router(rest, beside, scheme).into_make_service_with_connect_info::<SocketAddr>();
        let (app, bounded) = (Paced::of(app, &connections), BoundedAcceptor(connections));
        let handle = Handle::new();
        let ended = stop.clone();
        let ending = tokio::spawn({
            let handle = handle.clone();
            async move {
                ended.cancelled().await;
                handle.graceful_shutdown(Some(LAST_ANSWERS));
            }
        });
        // Without this timeout, a client that sends nothing would keep its connection while the server detects the protocol.
        let server = axum_server::from_tcp(self.listener)?.handle(handle).first_request_timeout(HEAD_TIME);
        let mut server = if protocols == Protocols::Http1 { server.http1_only() } else { server };
        let http = server.http_builder();
        http.http1().header_read_timeout(HEAD_TIME).max_buf_size(HEAD).max_headers(HEADERS);
        bound_http2(&mut http.http2());
        let served = match self.tls {
            None => server.acceptor(bounded).serve(app).await,
            Some((files, config)) => {
                protocols.offer(&config);
                let reloading = tokio::spawn(reload(files, config.clone(), protocols, stop));
                let acceptor = RustlsAcceptor::new(config).handshake_timeout(HEAD_TIME).acceptor(bounded);
                let served = server.acceptor(acceptor).serve(app).await;
                reloading.abort();
                served
            }
        };
        ending.abort();
        served
    }
}

/// The protocols that a listener offers to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocols {
    /// Only HTTP/1.1.
    Http1,
    /// HTTP/2 and HTTP/1.1.
    Http2,
}

impl Protocols {
    /// Offers the protocols in TLS handshakes.
    fn offer(self, config: &RustlsConfig) {
        let mut own = ServerConfig::clone(&config.get_inner());
        let offered: &[&[u8]] = match self {
            Self::Http1 => &[b"http/1.1"],
            Self::Http2 => &[b"h2", b"http/1.1"],
        };
        own.alpn_protocols = offered.iter().map(|name| name.to_vec()).collect();
        config.reload_from_config(Arc::new(own));
    }
}

/// Bounds the streams of a connection, and their buffers.
fn bound_http2(http: &mut Http2Builder<'_, TokioExecutor>) {
    http.max_concurrent_streams(STREAMS).max_header_list_size(HEAD_OF_STREAM).max_send_buf_size(SENT_OF_STREAM);
    http.initial_stream_window_size(RECEIVED).initial_connection_window_size(RECEIVED).max_frame_size(FRAME);
    http.keep_alive_interval(HEAD_TIME).keep_alive_timeout(HEAD_TIME).timer(TokioTimer::new());
}

/// Loads the certificate again when its files change. If the new certificate is unusable, the old one stays.
async fn reload(files: Tls, config: RustlsConfig, protocols: Protocols, stop: CancellationToken) {
    let mut before = contents(&files).await;
    while stop.run_until_cancelled(sleep(LOOK_AGAIN)).await.is_some() {
        let now = contents(&files).await;
        if now == before {
            continue;
        }
        let Some((certificate, key)) = now.clone() else { continue };
        match config.reload_from_pem(certificate, key).await {
            Ok(()) => {
                protocols.offer(&config);
                tracing::info!("the certificate of the REST API was read anew");
            }
            Err(error) => {
                tracing::error!(error = %error, "the new certificate of the REST API cannot be used; the old one stays")
            }
        }
        before = now;
    }
}

async fn contents(files: &Tls) -> Option<(Vec<u8>, Vec<u8>)> {
    let read = |path: &Path| tokio::fs::read(path.to_owned());
    let (certificate, key) = tokio::try_join!(read(&files.certificate), read(&files.key)).ok()?;
    Some((certificate, key))
}

fn router(rest: Rest, beside: Beside, scheme: &'static str) -> Router {
    let Beside { ready, pages } = beside;
    let no_method = handlers::no_method;
    let jobs = Router::new()
        .route("/api/v1/opsjobs", post(handlers::create).get(handlers::list).fallback(no_method))
        .route("/api/v1/opsjobs/{id}", get(handlers::get).merge(delete(handlers::delete)).fallback(no_method))
        .route("/api/v1/opsjobs/{id}/stop", post(handlers::stop).fallback(no_method))
        .layer(from_fn_with_state(rest.clone(), known))
        .with_state(rest.clone());
    let cross_origin = from_fn_with_state(cors::layer(&rest.parts().origins), cors::cross_origin);
    let file = || get(handlers::artifact).fallback(no_method);
    let files = Router::new()
        .route("/api/v1/artifacts/{job}/{file}", file())
        // An earlier version handed out these URLs.
        .route("/artifacts/{job}/{file}", file())
        .with_state(rest.clone());
    let whole = Whole { rest: rest.clone(), scheme };
    let readyz = move |headers: HeaderMap| {
        let ((code, parts), rest) = (ready(), rest.clone());
        async move { (code, readiness(code, parts, &rest, &headers).await) }
    };
    // The page must not contact any other server.
    let config = Config::new(["/openapi.json"]).validator_url("none");
    let docs = SwaggerUi::new("/docs").config(config);
    // All answers share one text, even if many clients do not read it.
    let document = Bytes::from(serde_json::to_vec(&openapi::document()).unwrap_or_default());
    let document = move || std::future::ready(([(header::CONTENT_TYPE, "application/json")], document.clone()));
    Router::new()
        .merge(jobs)
        .merge(files)
        .merge(docs)
        .merge(pages.unwrap_or_default())
        .route("/openapi.json", get(document).fallback(no_method))
        .route("/healthz", get(openapi::healthz).fallback(no_method))
        .route("/readyz", get(readyz).fallback(no_method))
        .fallback(handlers::no_path)
        .layer(from_fn_with_state(whole, all))
        .layer(cross_origin)
}

/// Returns the text of an answer to a readiness probe. An unauthenticated client gets only a fixed word. The full text may name missing
/// rights.
async fn readiness(code: StatusCode, parts: String, rest: &Rest, headers: &HeaderMap) -> String {
    let is_stranger = match headers.contains_key(header::AUTHORIZATION) {
        false => true,
        true => rest.parts().callers.of(headers, rest.parts().now().as_second()).await.is_err(),
    };
    let message = if code.is_success() { "ok\n" } else { "not ready\n" };
    if is_stranger { message.to_owned() } else { parts }
}

/// The state of the outermost middleware.
#[derive(Clone)]
struct Whole {
    rest: Rest,
    scheme: &'static str,
}

/// Gives every request an id, a deadline and security headers. It also finds the address of the client.
async fn all(State(whole): State<Whole>, mut request: Request<Body>, next: Next) -> Response<Body> {
    name_host(&mut request);
    let id = request_id(&request);
    request.extensions_mut().insert(RequestId(id.clone()));
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0);
    let reached = peer.map(|peer| whole.rest.parts().proxies.reached(peer, request.headers()));
    let is_secure = reached.as_ref().is_some_and(|reached| reached.is_secure);
    let base = base(request.headers(), if is_secure { "https" } else { whole.scheme });
    request.extensions_mut().insert(base);
    request.extensions_mut().insert(Client(reached.map(|reached| reached.client).unwrap_or_default()));
    let is_page = request.uri().path().starts_with("/docs");
    let has_form = request.uri().path() != "/readyz";
    let Some(_place) = whole.rest.parts().connections.stream_place(request.version()) else {
        return errors::answer(&OpsRefusal::new(Code::Unreachable, "too many requests at once".to_owned()).after(1));
    };
    // Probes are frequent and always quick. They would hide the answers to clients.
    let method = (has_form && request.uri().path() != "/healthz").then(|| request.method().clone());
    let began = Instant::now();
    let mut response = in_time(next.run(request)).await;
    if let Some(method) = method {
        whole.rest.parts().answered.count(&method, response.status(), began.elapsed());
    }
    if has_form {
        response = errors::with_body(response);
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    guard(response.headers_mut(), is_page);
    response
}

/// Gives a request of HTTP/2, which names the host in `:authority`, the header `Host` that all handlers read.
fn name_host(request: &mut Request<Body>) {
    let authority = request.uri().authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok());
    if let Some(host) = authority {
        request.headers_mut().insert(header::HOST, host);
    }
}

/// Restricts what a browser may do with an answer. Users paste tokens into the documentation page, and no other answer is a page.
fn guard(headers: &mut HeaderMap, is_page: bool) {
    let policy = if is_page { OF_PAGE } else { OF_REST };
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ] {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
}

/// Returns the scheme and the address by which a client reached this API.
fn base(headers: &HeaderMap, scheme: &str) -> Base {
    let told = |name: &str| headers.get(name).and_then(|own| own.to_str().ok());
    let host = told(header::HOST.as_str()).unwrap_or_default();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b':' | b'-' | b'[' | b']');
    let is_host = !host.is_empty() && host.bytes().all(is_plain);
    Base(if is_host { format!("{scheme}://{host}") } else { String::new() })
}

/// Returns the answer, or a refusal if the answer takes too long.
async fn in_time(answer: impl Future<Output = Response<Body>>) -> Response<Body> {
    match timeout(ANSWER_TIME, answer).await {
        Ok(response) => response,
        Err(_) => {
            let message = format!("the server had no answer within {} s", ANSWER_TIME.as_secs());
            errors::answer(&OpsRefusal::new(Code::Unreachable, message).after(1))
        }
    }
}

#[derive(Clone)]
struct RequestId(String);

/// The address of the client that sent a request.
#[derive(Clone)]
struct Client(String);

/// Returns the id that the client gave its request, or a random id.
fn request_id(request: &Request<Body>) -> String {
    let given = request.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok());
    let is_id = |id: &&str| {
        (1..=64).contains(&id.len())
            && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
    };
    given.filter(is_id).map_or_else(random_id, str::to_owned)
}

/// Returns 16 random characters: letters, digits, `_` and `-`.
pub(crate) fn random_id() -> String {
    let mut bytes = [0; 12];
    // If this fails, two requests get the same id. Then only their log lines are hard to tell apart.
    let _ = SystemRandom::new().fill(&mut bytes);
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Authenticates the caller of a request, applies the rate limits, and records writes.
async fn known(State(rest): State<Rest>, mut request: Request<Body>, next: Next) -> Response<Body> {
    let parts = rest.parts();
    let caller = match parts.callers.of(request.headers(), parts.now().as_second()).await {
        Ok(caller) => caller,
        Err(refusal) => return errors::answer(&refusal),
    };
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let id = request.extensions().get::<RequestId>().map_or_else(String::new, |id| id.0.clone());
    let peer = request.extensions().get::<Client>().map_or_else(String::new, |client| client.0.clone());
    let began = Instant::now();
    request.extensions_mut().insert(caller.clone());
    let is_write = !matches!(method, Method::GET | Method::HEAD);
    let noting = parts.audit.as_ref().filter(|_| is_write).map(|audit| {
        let asked = Asked {
            id: random_id(),
            time: parts.now(),
            request_id: id.clone(),
            caller: caller.clone(),
            address: peer.clone(),
            verb: if path.ends_with("/stop") { "stop".to_owned() } else { method.to_string() },
            has_row: Arc::default(),
        };
        request.extensions_mut().insert(asked.clone());
        (audit, asked)
    });
    let response = match parts.rates.take(&caller, &method).await {
        Err(refusal) => errors::answer(&refusal),
        Ok(()) if is_write => carried_out(request, next).await,
        Ok(()) => next.run(request).await,
    };
    if is_write {
        let is_begun = noting.as_ref().is_some_and(|(_, asked)| asked.has_row());
        let line = Line { id, address: peer, method, path, began, is_begun };
        let (noted, code) = line.write(parts, &caller, &response);
        let status = response.status();
        if let Some((audit, asked)) = noting {
            // The database must not fill up. Only few refused or ineffective requests get rows, and callers without any right get none. The
            // log has all of them.
            let has_place = asked.has_row()
                || noted.has_changed && status.is_success()
                || noted.is_entitled && parts.rates.take_idle(&caller).await;
            if has_place {
                audit.end(asked.answered(&noted, status, code));
            }
        }
    }
    response.into_response()
}

/// The facts for a request's log line that its answer does not contain.
struct Line {
    id: String,
    address: String,
    method: Method,
    path: String,
    began: Instant,
    /// True if the audit row was sent before the request had an answer.
    is_begun: bool,
}

impl Line {
    /// Writes the log line, if the request deserves one. Returns the noted facts and the code of the answer.
    fn write(self, parts: &RestState, caller: &Caller, response: &Response<Body>) -> (Noted, &'static str) {
        let status = response.status();
        // A request that timed out has no answer of its handler. If its row was sent, its caller has rights.
        let unknown = || Noted { is_entitled: self.is_begun, ..Noted::default() };
        let mut noted = response.extensions().get::<Noted>().cloned().unwrap_or_else(unknown);
        noted.is_entitled |= status.is_success();
        let code = response.extensions().get::<Code>().map_or("", |code| code.word());
        let unsaid = if noted.is_entitled { Some(0) } else { parts.unentitled.count() };
        if let Some(unsaid) = unsaid {
            tracing::info!(
                target: "oarlock::audit",
                request = self.id,
                user = caller.name,
                uid = caller.uid,
                address = self.address,
                verb = %self.method,
                path = self.path,
                job = noted.job,
                kind = noted.kind,
                status = status.as_u16(),
                code,
                body = noted.body,
                took_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
                unsaid,
                "a request that changes OpsJobs"
            );
        }
        (noted, code)
    }
}

/// Runs a write in its own task. So the write is finished and recorded even if the client disconnects.
async fn carried_out(request: Request<Body>, next: Next) -> Response<Body> {
    tokio::spawn(in_time(next.run(request))).await.unwrap_or_else(|error| {
        tracing::error!(error = %error, "a request ended by a fault of this process");
        errors::answer(&OpsRefusal::new(Code::Internal, "an internal error of the server; see its log"))
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertifiedKey, generate_simple_self_signed};

    use super::*;

    /// Returns the configuration that is served some time after the files got this content.
    async fn after(files: &Tls, content: [&str; 2], config: &RustlsConfig) -> Arc<rustls::ServerConfig> {
        tokio::fs::write(&files.certificate, content[0]).await.expect("a file");
        tokio::fs::write(&files.key, content[1]).await.expect("a file");
        sleep(3 * LOOK_AGAIN).await;
        config.get_inner()
    }

    #[test]
    fn a_request_of_http_2_names_its_host_as_one_of_http_1_does() {
        for (uri, sent, host) in [
            ("https://ops.example:8443/ui/login", None, Some("ops.example:8443")),
            ("https://ops.example/ui/login", Some("evil.example"), Some("ops.example")),
            ("/ui/login", Some("ops.example"), Some("ops.example")),
            ("/ui/login", None, None),
        ] {
            let mut request = Request::builder().uri(uri).body(Body::empty()).expect("a request");
            request.headers_mut().extend(sent.map(|sent| (header::HOST, HeaderValue::from_static(sent))));
            name_host(&mut request);
            let named = request.headers().get(header::HOST).map(|host| host.to_str().expect("a text"));
            assert_eq!(named, host, "{uri} {sent:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_certificate_is_taken_and_one_that_does_not_fit_its_key_is_not() {
        let folder = std::env::temp_dir().join(format!("oarlock-certificate-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let files = Tls { certificate: folder.join("tls.crt"), key: folder.join("tls.key") };
        let make = || {
            let CertifiedKey { cert, signing_key } =
                generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
            (cert.pem(), signing_key.serialize_pem())
        };
        let (old, new) = (make(), make());
        std::fs::write(&files.certificate, &old.0).expect("a file");
        std::fs::write(&files.key, &old.1).expect("a file");
        let config = RustlsConfig::from_pem_file(&files.certificate, &files.key).await.expect("a certificate");
        let stop = CancellationToken::new();
        let reloading = tokio::spawn(reload(files.clone(), config.clone(), Protocols::Http1, stop.clone()));
        let first = after(&files, [&old.0, &old.1], &config).await;
        for unfit in [[new.0.as_str(), old.1.as_str()], ["", ""], ["no certificate", "no key"]] {
            assert!(Arc::ptr_eq(&first, &after(&files, unfit, &config).await), "{unfit:?} was taken");
        }
        tokio::fs::remove_file(&files.key).await.expect("a file");
        sleep(3 * LOOK_AGAIN).await;
        assert!(Arc::ptr_eq(&first, &config.get_inner()));
        let second = after(&files, [&new.0, &new.1], &config).await;
        assert!(!Arc::ptr_eq(&first, &second), "the new certificate was not taken");
        stop.cancel();
        reloading.await.expect("it ends");
        std::fs::remove_dir_all(&folder).expect("the folder");
    }
}
