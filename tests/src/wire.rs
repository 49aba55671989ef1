//! What a scenario's host speaks through: an interceptor of its own, and its own namespaces.
//!
//! Takes a client of a cluster and an interceptor; yields a client for one host, which sees its own namespaces only, so that
//! scenarios with a host each share a control plane. It may not change a request beyond that, nor answer in the server's
//! place unless a scenario orders it.

mod narrowing;

use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body as ClientBody;
use oarlock_bed::faults::Plan;
use oarlock_bed::interception::{Body, BoxError, Interceptor};
use tower::Service;

pub(crate) use self::narrowing::Visible;
use crate::crash::line::{self, Server};
use crate::variants::Variant;

/// An interceptor that counts the writes which belong to jobs: neither leases nor events.
#[must_use]
pub fn interceptor() -> Interceptor {
    Interceptor::new(Plan::none(), &["leases", "events"])
}

/// The client of a host that is to see only what is `visible`, where that is given, through `interceptor`, on what `client`
/// reaches. Of a known-bad host its variant sends what the host would.
pub(crate) fn client(
    client: Client,
    interceptor: Interceptor,
    visible: Option<Visible>,
    variant: Option<Arc<dyn Variant>>,
) -> Client {
    Client::new(Wire { client, interceptor, visible, variant }, "default")
}

#[derive(Clone)]
struct Wire {
    client: Client,
    interceptor: Interceptor,
    visible: Option<Visible>,
    variant: Option<Arc<dyn Variant>>,
}

/// What `client` reaches as a server, and what is `visible` of it.
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

impl Service<Request<ClientBody>> for Wire {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Body>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // The client behind waits for itself.
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
                Some(variant) => variant.carry(request, &line::Wire::new(server, interceptor, None)).await,
                None => interceptor.carry(request, move |request| server(request)).await,
            }
        })
    }
}
