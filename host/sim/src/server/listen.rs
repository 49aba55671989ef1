//! Serves HTTP/1.1 connections of a listener, so that kubectl can reach the in-memory API. Dropping the future closes
//! every connection.

use std::{convert::Infallible, io};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{net::TcpListener, task::JoinSet};
use tower::Service as _;

use crate::server::{
    callers,
    cluster::Cluster,
    reply::{self, ApiBody},
};

/// Serves a service, such as [`Cluster::service`] with layers around it, until the listener fails or the caller drops the
/// future.
///
/// # Errors
///
/// If the listener can accept no further connection.
pub async fn serve<S>(listener: TcpListener, service: S) -> io::Result<()>
where
    S: tower::Service<Request<Incoming>, Response = Response<ApiBody>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let service = TowerToHyperService::new(service.clone());
        connections.spawn(async move {
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), service);
            if let Err(error) = connection.await {
                // Clients often disconnect in the middle of a watch.
                tracing::debug!(%error, "connection ended");
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

impl Cluster {
    /// Serves the cluster over plain HTTP until the listener fails or the caller drops the future. It refuses requests from pages of
    /// other sites and requests for other machines.
    ///
    /// # Errors
    ///
    /// If the listener can accept no further connection.
    pub async fn serve(&self, listener: TcpListener) -> io::Result<()> {
        let (own, api) = (listener.local_addr()?, self.service());
        let guarded = tower::service_fn(move |request: Request<Incoming>| {
            let mut api = api.clone();
            async move {
                match callers::refusal(&request, own) {
                    Some(refusal) => Ok(reply::refusal(&refusal)),
                    None => api.call(request).await,
                }
            }
        });
        serve(listener, guarded).await
    }
}
