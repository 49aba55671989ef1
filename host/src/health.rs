//! The health of the host over HTTP: `/livez`, `/readyz` and `/metrics`.
//!
//! Alive means that the controller runs; ready means that every part named at the start has reported ready. Nothing
//! here uses the cluster.

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

/// The reason why the endpoints cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum HealthError {
    /// The address is in use or not one of this machine.
    #[error("cannot listen on {address}: choose another with --listen ADDRESS:PORT (port 0 takes a free one)")]
    Listen {
        /// The requested address.
        address: SocketAddr,
        /// The error of the system.
        #[source]
        cause: std::io::Error,
    },
    /// Serving failed.
    #[error("serving /livez, /readyz and /metrics ended")]
    Serve(#[source] std::io::Error),
}

/// Readiness of a part; the error says what it waits for.
pub type Probe = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// The state of the parts of the process.
#[derive(Default)]
pub struct Health {
    parts: Vec<(&'static str, Probe)>,
    /// The reason why the process should be restarted.
    dead: Mutex<Option<String>>,
}

impl Health {
    /// A health that is ready while each of `parts` is.
    pub fn of(parts: Vec<(&'static str, Probe)>) -> Self {
        Self { parts, dead: Mutex::default() }
    }

    /// Marks the process as unable to recover by itself.
    pub fn dead(&self, why: impl Into<String>) {
        *self.why_dead() = Some(why.into());
    }

    fn why_dead(&self) -> MutexGuard<'_, Option<String>> {
        self.dead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn live(&self) -> (StatusCode, String) {
        match &*self.why_dead() {
            None => (StatusCode::OK, "ok\n".to_owned()),
            Some(why) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n")),
        }
    }

    fn readiness(&self) -> (StatusCode, String) {
        let mut text = String::new();
        let mut ready = self.why_dead().is_none();
        for (part, probe) in &self.parts {
            let found = probe();
            ready &= found.is_ok();
            // Writing to a string cannot fail.
            let _ = match found {
                Ok(()) => writeln!(text, "[+] {part} ok"),
                Err(why) => writeln!(text, "[-] {part}: {why}"),
            };
        }
        (if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, text)
    }
}

/// Binds the address, so that one in use is reported before anything else starts.
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
    use std::sync::atomic::{AtomicBool, Ordering};

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
        let listed = Arc::new(AtomicBool::new(false));
        let seen = listed.clone();
        let cache =
            move || if seen.load(Ordering::Relaxed) { Ok(()) } else { Err("pods are not listed yet".to_owned()) };
        let health = Arc::new(Health::of(vec![("cache", Box::new(cache)), ("plugins", Box::new(|| Ok(())))]));
        let metrics = Arc::new(Metrics::new(&Arc::default()));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serving = tokio::spawn(serve(listener, health.clone(), metrics, async move {
            let _ = stopped.await;
        }));
        let answer = ask(address, "/readyz").await;
        assert!(
            answer.starts_with("HTTP/1.1 503")
                && answer.contains("[-] cache: pods are not listed yet\n[+] plugins ok\n"),
            "{answer}"
        );
        listed.store(true, Ordering::Relaxed);
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
