//! The counting proxy without sockets: a layer in front of an in-process API.
//!
//! Takes the service that a Kubernetes client is built on; yields the same with writes counted and faults injected. It needs
//! neither ports nor real time, so it works in tests that pause the clock.

use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use kube::client::Body as ClientBody;
use tower::{Layer, Service, ServiceExt as _};

use crate::interception::{Body, BoxError, Interceptor};

/// Puts an [`Interceptor`] in front of a service.
#[derive(Clone, Debug)]
pub struct CountingLayer {
    interceptor: Interceptor,
}

impl CountingLayer {
    /// Counts with `interceptor`, which the test keeps a clone of.
    #[must_use]
    pub fn new(interceptor: Interceptor) -> Self {
        Self { interceptor }
    }
}

impl<S> Layer<S> for CountingLayer {
    type Service = Counting<S>;

    fn layer(&self, inner: S) -> Counting<S> {
        Counting { inner, interceptor: self.interceptor.clone() }
    }
}

/// A service whose writes are counted.
#[derive(Clone, Debug)]
pub struct Counting<S> {
    inner: S,
    interceptor: Interceptor,
}

impl<S, B> Service<Request<ClientBody>> for Counting<S>
where
    S: Service<Request<ClientBody>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Body>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // Each request waits for a clone of its own to become ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ClientBody>) -> Self::Future {
        let (inner, interceptor) = (self.inner.clone(), self.interceptor.clone());
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let request = Request::from_parts(parts, body.collect().await?.to_bytes());
            let send = |request: Request<Bytes>| {
                let inner = inner.clone();
                async move { inner.oneshot(request.map(ClientBody::from)).await.map_err(Into::into) }
            };
            interceptor.carry(request, send).await
        })
    }
}
