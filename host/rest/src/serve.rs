//! The listener: connections, TLS, and what all requests have in common. Source: docs/opsjob-rest.md 1 and 8.

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
use crate::{Parts, Rest, cors, errors, openapi};

/// Time that a client has for the head of a request.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Most bytes of a head, and most headers.
pub(crate) const HEAD: usize = 32 * 1024;
const HEADERS: usize = 64;
/// Longest time of a request.
const ANSWER_TIME: Duration = Duration::from_secs(30);
/// Longest time for the requests under way at the end.
const LAST_ANSWERS: Duration = Duration::from_secs(30);
/// Connections that the system keeps until they are taken: without a place there, a client tries again after a second.
const BACKLOG: i32 = 4_096;
/// How often the files of TLS are looked at.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// The content security policies of the page of the documentation, and of everything else. The page writes styles into its own elements.
const OF_PAGE: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
    font-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const OF_REST: &str = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox";
/// The header of the id of a request.
const REQUEST_ID: &str = "x-request-id";

/// Where the certificate and its key are.
#[derive(Clone, Debug)]
pub struct Tls {
    /// The certificate with its chain, in PEM.
    pub certificate: PathBuf,
    /// Its key, in PEM.
    pub key: PathBuf,
}

/// Why the API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum RestError {
    /// The address is in use or not one of this machine.
    #[error("cannot listen on {address}: choose another ADDRESS:PORT (port 0 takes a free one)")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        #[source]
        cause: std::io::Error,
    },
    /// Tokens would go over the network in the clear.
    #[error(
        "{0} can be reached from elsewhere, and tokens would be sent there in the clear: give --cert and --key, or listen on 127.0.0.1"
    )]
    Bare(SocketAddr),
    /// The certificate or its key cannot be used.
    #[error("cannot use the certificate {} with the key {}", .tls.certificate.display(), .tls.key.display())]
    Tls {
        /// The files.
        tls: Tls,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
}

/// A listener that takes connections once it is served.
pub struct Listening {
    listener: std::net::TcpListener,
    address: SocketAddr,
    tls: Option<(Tls, RustlsConfig)>,
}

/// Says whether the process is ready, and what it waits for.
pub type Readiness = Arc<dyn Fn() -> (StatusCode, String) + Send + Sync>;

impl Listening {
    /// Takes an address.
    ///
    /// # Errors
    /// Why it cannot be served.
    pub async fn on(address: SocketAddr, tls: Option<Tls>) -> Result<Self, RestError> {
        if tls.is_none() && !address.ip().is_loopback() {
            return Err(RestError::Bare(address));
        }
        let tls = match tls {
            None => None,
            Some(tls) => match RustlsConfig::from_pem_file(&tls.certificate, &tls.key).await {
                Ok(config) => {
                    speak_http1(&config);
                    Some((tls, config))
                }
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

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its address as clients write it.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Serves the API until `stop`, and then the requests under way.
    ///
    /// # Errors
    /// The error of the system.
    pub async fn serve(self, rest: Rest, ready: Readiness, stop: CancellationToken) -> std::io::Result<()> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let connections = rest.parts().connections.clone();
        let app = router(rest, ready, scheme).into_make_service_with_connect_info::<SocketAddr>();
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
        // To tell HTTP/2 apart, a connection would be waited for without end.
        let mut server = axum_server::from_tcp(self.listener)?.handle(handle).http1_only();
        let http = server.http_builder();
        http.http1().header_read_timeout(HEAD_TIME).max_buf_size(HEAD).max_headers(HEADERS);
        let served = match self.tls {
            None => server.acceptor(bounded).serve(app).await,
            Some((files, config)) => {
                let reloading = tokio::spawn(reload(files, config.clone(), stop));
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

/// Has clients told that there is no HTTP/2.
fn speak_http1(config: &RustlsConfig) {
    let mut own = ServerConfig::clone(&config.get_inner());
    own.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.reload_from_config(Arc::new(own));
}

/// Takes a new certificate when its files change. One that cannot be used leaves the old one in its place.
async fn reload(files: Tls, config: RustlsConfig, stop: CancellationToken) {
    let mut before = contents(&files).await;
    while stop.run_until_cancelled(sleep(LOOK_AGAIN)).await.is_some() {
        let now = contents(&files).await;
        if now == before {
            continue;
        }
        let Some((certificate, key)) = now.clone() else { continue };
        match config.reload_from_pem(certificate, key).await {
            Ok(()) => {
                speak_http1(&config);
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

fn router(rest: Rest, ready: Readiness, scheme: &'static str) -> Router {
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
        // Addresses that an earlier version handed out.
        .route("/artifacts/{job}/{file}", file())
        .with_state(rest.clone());
    let whole = Whole { rest: rest.clone(), scheme };
    let readyz = move |headers: HeaderMap| {
        let (ready, rest) = (ready(), rest.clone());
        async move { readiness(ready, &rest, &headers).await }
    };
    // The page asks nobody but this server.
    let config = Config::new(["/openapi.json"]).validator_url("none");
    let docs = SwaggerUi::new("/docs").config(config);
    // One text for all answers, however many clients do not read them.
    let document = Bytes::from(serde_json::to_vec(&openapi::document()).unwrap_or_default());
    let document = move || std::future::ready(([(header::CONTENT_TYPE, "application/json")], document.clone()));
    Router::new()
        .merge(jobs)
        .merge(files)
        .merge(docs)
        .route("/openapi.json", get(document).fallback(no_method))
        .route("/healthz", get(openapi::healthz).fallback(no_method))
        .route("/readyz", get(readyz).fallback(no_method))
        .fallback(handlers::no_path)
        .layer(from_fn_with_state(whole, all))
        .layer(cross_origin)
}

/// Answers whether the process is ready. A stranger gets the code alone, because the words may say which rights a part lacks.
async fn readiness(ready: (StatusCode, String), rest: &Rest, headers: &HeaderMap) -> (StatusCode, String) {
    let (code, parts) = ready;
    let is_stranger = match headers.contains_key(header::AUTHORIZATION) {
        false => true,
        true => rest.parts().callers.of(headers, rest.parts().now().as_second()).await.is_err(),
    };
    let words = if code.is_success() { "ok\n" } else { "not ready\n" };
    (code, if is_stranger { words.to_owned() } else { parts })
}

/// The state that all requests need.
#[derive(Clone)]
struct Whole {
    rest: Rest,
    scheme: &'static str,
}

/// What every request has: an id, a time in which it is answered, and a line where it would change something.
async fn all(State(whole): State<Whole>, mut request: Request<Body>, next: Next) -> Response<Body> {
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
    let mut response = in_time(next.run(request)).await;
    if has_form {
        response = errors::with_body(response);
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    guard(response.headers_mut(), is_page);
    response
}

/// Tells browsers what an answer may do: people put tokens into the page, and nothing else here is a page.
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

/// The scheme and the address by which a client has reached this API.
fn base(headers: &HeaderMap, scheme: &str) -> Base {
    let told = |name: &str| headers.get(name).and_then(|own| own.to_str().ok());
    let host = told(header::HOST.as_str()).unwrap_or_default();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b':' | b'-' | b'[' | b']');
    let is_host = !host.is_empty() && host.bytes().all(is_plain);
    Base(if is_host { format!("{scheme}://{host}") } else { String::new() })
}

/// The answer, or that it took too long.
async fn in_time(answer: impl Future<Output = Response<Body>>) -> Response<Body> {
    match timeout(ANSWER_TIME, answer).await {
        Ok(response) => response,
        Err(_) => {
            let words = format!("the answer was not there within {} s", ANSWER_TIME.as_secs());
            errors::answer(&OpsRefusal::new(Code::Unreachable, words).after(1))
        }
    }
}

#[derive(Clone)]
struct RequestId(String);

/// The address of whoever sent a request.
#[derive(Clone)]
struct Client(String);

/// The id that a client gives its request, or one of chance.
fn request_id(request: &Request<Body>) -> String {
    let given = request.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok());
    let is_id = |id: &&str| {
        (1..=64).contains(&id.len())
            && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
    };
    given.filter(is_id).map_or_else(random_id, str::to_owned)
}

/// A text of 16 letters, digits, `_` and `-` that nobody guesses.
pub(crate) fn random_id() -> String {
    let mut bytes = [0; 12];
    // Without chance it is the same as another's, which costs a line that is not found.
    let _ = SystemRandom::new().fill(&mut bytes);
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Lets nobody through whom the API server does not know, or who asks too often.
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
            // A database is no place for floods: requests that are refused or change nothing have few rows, and those of callers without
            // any right have none. All are in the log.
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

/// The parts of a request's line that its answer does not know.
struct Line {
    id: String,
    address: String,
    method: Method,
    path: String,
    began: Instant,
    /// Its row was sent before it had an answer.
    is_begun: bool,
}

impl Line {
    /// Writes it, if the request is worth one. Yields what is known of the request, and the code of its answer.
    fn write(self, parts: &Parts, caller: &Caller, response: &Response<Body>) -> (Noted, &'static str) {
        let status = response.status();
        // A request that took too long has no answer of its handler. If its row was sent, its caller has rights.
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

/// The answer to a request that changes something: that is done and noted though its client does not wait for it.
async fn carried_out(request: Request<Body>, next: Next) -> Response<Body> {
    tokio::spawn(in_time(next.run(request))).await.unwrap_or_else(|error| {
        tracing::error!(error = %error, "a request ended by a fault of this process");
        errors::answer(&OpsRefusal::new(Code::Internal, "a fault of the host; its log says more"))
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertifiedKey, generate_simple_self_signed};

    use super::*;

    /// The configuration that is served after the files had this content for a while.
    async fn after(files: &Tls, content: [&str; 2], config: &RustlsConfig) -> Arc<rustls::ServerConfig> {
        tokio::fs::write(&files.certificate, content[0]).await.expect("a file");
        tokio::fs::write(&files.key, content[1]).await.expect("a file");
        sleep(3 * LOOK_AGAIN).await;
        config.get_inner()
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
        let reloading = tokio::spawn(reload(files.clone(), config.clone(), stop.clone()));
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
