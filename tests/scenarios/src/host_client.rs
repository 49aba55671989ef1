//! The connection between a scenario's host and the API server: an interceptor, and a filter by namespace.
//!
//! Takes a client of a cluster and an interceptor; yields a client for one host. The host sees only its own namespaces, so
//! that scenarios with one host each can share a control plane. May not change a request beyond that. May answer in the
//! server's place only if a scenario orders it.

mod narrowing;

use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body as ClientBody;
use oarlock_support::faults::Plan;
use oarlock_support::interception::{Body, BoxError, Interceptor};
use tower::Service;

pub(crate) use self::narrowing::Visible;
use crate::host_requests::{Server, Upstream};
use crate::variant::Variant;

/// Returns an interceptor that counts the writes of jobs. It ignores leases and events.
#[must_use]
pub fn interceptor() -> Interceptor {
    Interceptor::new(Plan::none(), &["leases", "events"])
}

/// Returns a client for a host, on the connection of `client` and through `interceptor`. The host sees only `visible`, if it
/// is given. A `variant` changes the requests of a known-bad host.
pub(crate) fn client(
    client: Client,
    interceptor: Interceptor,
    visible: Option<Visible>,
    variant: Option<Arc<dyn Variant>>,
) -> Client {
    Client::new(HostClient { client, interceptor, visible, variant }, "default")
}

#[derive(Clone)]
struct HostClient {
    client: Client,
    interceptor: Interceptor,
    visible: Option<Visible>,
    variant: Option<Arc<dyn Variant>>,
}

/// Returns a server that forwards to `client` and filters its answers by `visible`.
fn server(client: Client, visible: Option<Visible>) -> Server {
    Arc::new(move |request| {
        let (client, visible) = (client.clone(), visible.clone());
        Box::pin(async move {
            let asked = request.uri().clone();
            let reply = client.send(request.map(ClientBody::from)).await.map_err(BoxError::from)?;
            let reply = reply.map(|body| body.map_err(Into::into).boxed_unsync());
            match visible {
                Some(visible) => visible.filter(&asked, reply).await,
                None => Ok(reply),
            }
        })
    })
}

impl Service<Request<ClientBody>> for HostClient {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Body>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // The inner client waits by itself until it is ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ClientBody>) -> Self::Future {
        let Self { client, interceptor, visible, variant } = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let mut request = Request::from_parts(parts, body.collect().await?.to_bytes());
            if let Some(visible) = &visible {
                visible.narrow(&mut request);
            }
            let server = server(client, visible);
            match variant {
                Some(variant) => variant.carry(request, &Upstream::new(server, interceptor, None)).await,
                None => interceptor.carry(request, move |request| server(request)).await,
            }
        })
    }
}
