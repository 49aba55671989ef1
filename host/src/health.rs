//! What the host says of itself over HTTP: `/livez`, `/readyz` and `/metrics`.
//!
//! Takes a listener and what the rest of the process reports; answers until it is told to stop. Alive means that the
//! controller runs; ready means that every part that was named at the start has said so. May not touch the cluster.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use crate::metrics::{MEDIA_TYPE, Metrics};

/// Why the host cannot say how it is.
#[derive(Debug, thiserror::Error)]
pub enum HealthError {
    /// The address is taken or not ours.
    #[error("cannot listen on {address}: choose another with --listen ADDRESS:PORT (port 0 takes a free one)")]
    Listen {
        /// As it was asked for.
        address: SocketAddr,
        /// What the system said.
        #[source]
        cause: std::io::Error,
    },
    /// Serving broke off.
    #[error("serving /livez, /readyz and /metrics ended")]
    Serve(#[source] std::io::Error),
}

/// What the parts of the process report of themselves.
#[derive(Debug, Default)]
pub struct Health {
    parts: Mutex<Parts>,
}

#[derive(Debug, Default)]
struct Parts {
    /// Why the process should be restarted.
    dead: Option<String>,
    /// Each part that must be ready, with what it waits for.
    waiting: BTreeMap<&'static str, Option<String>>,
}

impl Health {
    /// Something that is ready once each of `parts` has said so.
    pub fn waiting_for(parts: &[&'static str]) -> Self {
        let waiting = parts.iter().map(|part| (*part, Some("not started".to_owned()))).collect();
        Self { parts: Mutex::new(Parts { dead: None, waiting }) }
    }

    /// `part` is ready.
    pub fn ready(&self, part: &'static str) {
        self.parts().waiting.insert(part, None);
    }

    /// `part` is not ready, and why.
    pub fn not_ready(&self, part: &'static str, why: impl Into<String>) {
        self.parts().waiting.insert(part, Some(why.into()));
    }

    /// The process cannot go on by itself.
    pub fn dead(&self, why: impl Into<String>) {
        self.parts().dead = Some(why.into());
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn live(&self) -> (StatusCode, String) {
        match &self.parts().dead {
            None => (StatusCode::OK, "ok\n".to_owned()),
            Some(why) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n")),
        }
    }

    fn readiness(&self) -> (StatusCode, String) {
        let mut text = String::new();
        let parts = self.parts();
        for (part, why) in &parts.waiting {
            // Writing to a string cannot fail.
            let _ = match why {
                None => writeln!(text, "[+] {part} ok"),
                Some(why) => writeln!(text, "[-] {part} {why}"),
            };
        }
        let all = parts.waiting.values().all(Option::is_none) && parts.dead.is_none();
        (if all { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, text)
    }
}

/// Takes the address, so that one that is taken is known before anything else starts.
///
/// # Errors
///
/// Names the address and the fix.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, HealthError> {
    TcpListener::bind(address).await.map_err(|cause| HealthError::Listen { address, cause })
}

/// Answers on `listener` until `stop` ends.
///
/// # Errors
///
/// Fails if the listener breaks.
pub async fn serve(
    listener: TcpListener,
    health: Arc<Health>,
    metrics: Arc<Metrics>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), HealthError> {
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
    axum::serve(listener, routes).with_graceful_shutdown(stop).await.map_err(HealthError::Serve)
}

fn figures(metrics: &Metrics) -> Response {
    ([(header::CONTENT_TYPE, MEDIA_TYPE)], metrics.text()).into_response()
}

#[cfg(test)]
mod tests {
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
    async fn readiness_waits_for_every_part_and_names_those_missing() {
        let listener = listen(([127, 0, 0, 1], 0).into()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let health = Arc::new(Health::waiting_for(&["cache", "plugins"]));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serving = tokio::spawn(serve(listener, health.clone(), Arc::default(), async move {
            let _ = stopped.await;
        }));
        health.ready("cache");
        let answer = ask(address, "/readyz").await;
        assert!(
            answer.starts_with("HTTP/1.1 503") && answer.contains("[+] cache ok\n[-] plugins not started\n"),
            "{answer}"
        );
        health.ready("plugins");
        assert!(ask(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        assert!(ask(address, "/livez").await.starts_with("HTTP/1.1 200"));
        assert!(ask(address, "/metrics").await.contains("# EOF"));
        health.dead("the controller ended");
        assert!(ask(address, "/livez").await.starts_with("HTTP/1.1 500"));
        stop.send(()).unwrap();
        serving.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn an_address_that_is_taken_is_named_with_the_fix() {
        let first = listen(([127, 0, 0, 1], 0).into()).await.unwrap();
        let refused = listen(first.local_addr().unwrap()).await.unwrap_err().to_string();
        assert!(refused.contains("--listen"), "{refused}");
    }
}
