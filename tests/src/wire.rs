//! What a scenario's host speaks through: an interceptor of its own, and one namespace.
//!
//! Takes a client of a cluster and an interceptor; yields a client for one host, which sees one namespace only, so that
//! scenarios with a host each share a control plane. It may not change a request beyond that, nor answer in the server's
//! place unless a scenario orders it.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{Method, Request, Response, Uri};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body as ClientBody;
use oarlock_bed::faults::Plan;
use oarlock_bed::interception::{Body, BoxError, Interceptor};
use tower::Service;

use crate::crash::line::{self, Server};
use crate::variants::Variant;

/// An interceptor that counts the writes which belong to jobs: neither leases nor events.
#[must_use]
pub fn interceptor() -> Interceptor {
    Interceptor::new(Plan::none(), &["leases", "events"])
}

/// The client of a host that is to see `namespace` alone, through `interceptor`, on what `client` reaches. Of a known-bad host
/// its variant sends what the host would.
pub(crate) fn client(
    client: Client,
    interceptor: Interceptor,
    namespace: &str,
    variant: Option<Arc<dyn Variant>>,
) -> Client {
    Client::new(Wire { client, interceptor, namespace: namespace.to_owned(), variant }, "default")
}

#[derive(Clone)]
struct Wire {
    client: Client,
    interceptor: Interceptor,
    namespace: String,
    variant: Option<Arc<dyn Variant>>,
}

/// What `client` reaches as a server.
fn server(client: Client) -> Server {
    Arc::new(move |request| {
        let client = client.clone();
        Box::pin(async move {
            let reply = client.send(request.map(ClientBody::from)).await.map_err(BoxError::from)?;
            Ok(reply.map(|body| body.map_err(Into::into).boxed_unsync()))
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
        let Self { client, interceptor, namespace, variant } = self.clone();
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            if let Some(uri) = narrowed(&parts.uri, &namespace).filter(|_| parts.method == Method::GET) {
                parts.uri = uri;
            }
            let request = Request::from_parts(parts, body.collect().await?.to_bytes());
            let server = server(client);
            match variant {
                Some(variant) => variant.carry(request, &line::Wire::new(server, interceptor, None)).await,
                None => interceptor.carry(request, move |request| server(request)).await,
            }
        })
    }
}

/// The same request for one namespace, where it reads a kind across all of them.
fn narrowed(uri: &Uri, namespace: &str) -> Option<Uri> {
    let parts: Vec<&str> = uri.path().trim_start_matches('/').split('/').collect();
    let (root, plural) = match parts.as_slice() {
        ["api", version, plural] => (format!("/api/{version}"), *plural),
        ["apis", group, version, plural] => (format!("/apis/{group}/{version}"), *plural),
        _ => return None,
    };
    if ["nodes", "namespaces", "customresourcedefinitions"].contains(&plural) {
        return None;
    }
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    format!("{root}/namespaces/{namespace}/{plural}{query}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lists_of_what_lives_in_namespaces_are_narrowed() {
        let narrow = |path: &str| narrowed(&path.parse().unwrap(), "a").map(|uri| uri.to_string());
        assert_eq!(narrow("/api/v1/pods?watch=true").unwrap(), "/api/v1/namespaces/a/pods?watch=true");
        assert_eq!(narrow("/apis/apps/v1/replicasets").unwrap(), "/apis/apps/v1/namespaces/a/replicasets");
        for path in ["/api/v1/nodes", "/api/v1", "/apis/apps/v1", "/api/v1/namespaces/b/pods"] {
            assert_eq!(narrow(path), None, "{path}");
        }
    }
}
