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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use http::StatusCode;
    use oarlock_sim::{Cluster, Options};
    use serde_json::{Value, json};

    use super::*;
    use crate::faults::{Fault, Plan, Then, When};

    fn clients(plan: Plan) -> (Interceptor, kube::Client, kube::Client) {
        let cluster = Cluster::new(Options::default());
        let interceptor = Interceptor::new(plan, &["leases"]);
        let counted = CountingLayer::new(interceptor.clone()).layer(cluster.service());
        let past = kube::Client::new(cluster.service(), "default");
        (interceptor, kube::Client::new(counted, "default"), past)
    }

    fn create(name: &str) -> Request<Vec<u8>> {
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        Request::post("/api/v1/namespaces/default/configmaps")
            .header("content-type", "application/json")
            .body(body.to_string().into_bytes())
            .unwrap()
    }

    async fn exists(client: &kube::Client, name: &str) -> bool {
        let request = Request::get(format!("/api/v1/namespaces/default/configmaps/{name}")).body(Vec::new()).unwrap();
        client.request::<Value>(request).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn writes_of_an_in_process_client_are_counted() {
        let (interceptor, through, past) = clients(Plan::none());
        through.request::<Value>(create("a")).await.unwrap();
        assert!(exists(&through, "a").await && exists(&past, "a").await);
        let records = interceptor.records();
        assert_eq!(records.len(), 1);
        assert_eq!(records[0].status, Some(StatusCode::CREATED));
    }

    #[tokio::test(start_paused = true)]
    async fn kill_hits_at_each_of_its_three_moments() {
        for (when, stored, replied) in
            [(When::BeforeSend, false, false), (When::AfterCommit, true, false), (When::AfterReply, true, true)]
        {
            let killed = Arc::new(AtomicBool::new(false));
            let flag = killed.clone();
            let then = Then::Kill(Arc::new(move || flag.store(true, Ordering::SeqCst)));
            let (_, through, past) = clients(Plan::new([Fault { at: 1, when, then }]).unwrap());
            let limit = std::time::Duration::from_secs(1);
            let reply = tokio::time::timeout(limit, through.request::<Value>(create("a"))).await;
            assert_eq!(reply.is_ok(), replied, "{when:?}");
            // Time is paused, so this passes once every other task is idle.
            tokio::time::sleep(limit).await;
            assert!(killed.load(Ordering::SeqCst), "{when:?}");
            assert_eq!(exists(&past, "a").await, stored, "{when:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_and_count_can_be_waited_for() {
        let (interceptor, through, _) = clients(Plan::none());
        let writer = tokio::spawn(async move {
            for name in ["a", "b", "c"] {
                through.request::<Value>(create(name)).await.unwrap();
            }
        });
        interceptor.reached(3).await;
        interceptor.silent_for(std::time::Duration::from_secs(10)).await;
        assert_eq!(interceptor.count(), 3);
        writer.await.unwrap();
    }
}
