//! The counting reverse proxy between a host process and a real API server.
//!
//! The proxy listens for plain HTTP on the loopback interface and forwards over TLS with the caller's own token. It streams
//! watches. An [`Interceptor`] counts writes and injects faults, so the host needs no switch for tests.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context as _;
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

use crate::interception::{Body, BoxError, Interceptor};

/// A running proxy; dropping it closes its port and every connection.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    interceptor: Interceptor,
    server: AbortHandle,
}

impl Proxy {
    /// Starts a proxy in front of `upstream`. It ignores the account of that configuration: each caller brings its own token.
    ///
    /// # Errors
    ///
    /// If no port is free, or `upstream` cannot be used.
    pub async fn start(mut upstream: kube::Config, interceptor: Interceptor) -> anyhow::Result<Self> {
        upstream.auth_info = kube::config::AuthInfo::default();
        upstream.default_retry = false;
        // A watch may be silent for longer than any timeout.
        upstream.read_timeout = None;
        let upstream = kube::Client::try_from(upstream).context("cannot make the proxy's client for the API server")?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("cannot open a port for the proxy")?;
        let address = listener.local_addr().context("cannot read the proxy's port")?;
        let server = tokio::spawn(accept(listener, upstream, interceptor.clone())).abort_handle();
        Ok(Self { address, interceptor, server })
    }

    /// Returns the address of the proxy.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the interceptor, which counts writes and injects faults.
    #[must_use]
    pub fn interceptor(&self) -> &Interceptor {
        &self.interceptor
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Accepts connections. They belong to this task, so they end with it.
async fn accept(listener: TcpListener, upstream: kube::Client, interceptor: Interceptor) -> Infallible {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Ok((stream, _)) = listener.accept() => {
                connections.spawn(serve(stream, upstream.clone(), interceptor.clone()));
            }
            Some(_) = connections.join_next() => {}
            else => tokio::task::yield_now().await,
        }
    }
}

async fn serve(stream: TcpStream, upstream: kube::Client, interceptor: Interceptor) {
    let _ = stream.set_nodelay(true);
    let service = hyper::service::service_fn(move |request| answer(request, upstream.clone(), interceptor.clone()));
    // An error here means that a client went away, or that a fault dropped the connection.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(
    request: Request<Incoming>,
    upstream: kube::Client,
    interceptor: Interceptor,
) -> Result<Response<Body>, BoxError> {
    let (mut parts, body) = request.into_parts();
    // These headers describe the connection to the proxy, not the connection to the server.
    for header in [HOST, CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING] {
        parts.headers.remove(header);
    }
    let request = Request::from_parts(parts, body.collect().await?.to_bytes());
    let send = move |request: Request<Bytes>| {
        let upstream = upstream.clone();
        async move { Ok(upstream.send(request.map(kube::client::Body::from)).await?) }
    };
    let mut reply = interceptor.carry(request, send).await?;
    reply.headers_mut().remove(CONNECTION);
    reply.headers_mut().remove(TRANSFER_ENCODING);
    *reply.version_mut() = http::Version::HTTP_11;
    Ok(reply)
}
