//! The connection between a host in this process and an API server. A test can cut it, as SIGKILL would.
//!
//! Takes the requests of one life of a host; hands them to a known-bad variant if there is one, then through the counting interceptor to
//! the server. After the life has ended, no request reaches the server and no answer reaches the host. May not change a request itself.

use std::future::pending;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use kube::client::Body as ClientBody;
use oarlock_sim::ApiService;
use oarlock_support::faults::Killer;
use oarlock_support::interception::{Body, BoxError, Interceptor};
use parking_lot::Mutex;
use tokio::sync::watch;
use tower::{Service, ServiceExt as _};

use crate::mishap::Mishap;
use crate::variant::Variant;

/// The answer to a request.
pub type Reply = Result<Response<Body>, BoxError>;

/// The limit of writes in a run, which no correct run reaches. A host that repeats a write forever is stopped here, because
/// under paused time it would never come to rest.
const MOST_WRITES: u64 = 5_000;

/// One life of a host, from its start to its kill.
#[derive(Clone, Debug)]
pub struct Life {
    over: Arc<watch::Sender<bool>>,
}

impl Default for Life {
    fn default() -> Self {
        Self { over: Arc::new(watch::Sender::new(false)) }
    }
}

impl Life {
    /// Ends the life: later requests reach no server.
    pub fn end(&self) {
        self.over.send_replace(true);
    }

    /// Returns true if the life has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    /// Waits until the life has ended.
    pub async fn over(&self) {
        // The sender lives in `self`, so the wait cannot fail.
        let _ = self.over.subscribe().wait_for(|over| *over).await;
    }
}

/// The lives of one host, one after the other, and the means to end the present one.
#[derive(Clone, Default)]
pub struct Lives {
    present: Arc<Mutex<Life>>,
}

impl Lives {
    /// Returns the present life.
    #[must_use]
    pub fn present(&self) -> Life {
        self.present.lock().clone()
    }

    /// Begins another life.
    #[must_use]
    pub fn begin(&self) -> Life {
        let life = Life::default();
        *self.present.lock() = life.clone();
        life
    }

    /// Returns a function that ends the life that is present at its call.
    #[must_use]
    pub fn killer(&self) -> Killer {
        let present = self.present.clone();
        Arc::new(move || present.lock().end())
    }
}

/// An API server, as a function of a request.
pub type Server = Arc<dyn Fn(Request<Bytes>) -> BoxFuture<'static, Reply> + Send + Sync>;

/// Returns the in-memory API as a server.
#[must_use]
pub fn in_memory(service: ApiService) -> Server {
    Arc::new(move |request| {
        let service = service.clone();
        Box::pin(async move {
            let reply = service.oneshot(request.map(ClientBody::from)).await.map_err(BoxError::from)?;
            Ok(reply.map(|body| body.map_err(Into::into).boxed_unsync()))
        })
    })
}

/// The connection to the server behind a variant. It counts writes and injects faults.
#[derive(Clone)]
pub struct Upstream {
    server: Server,
    interceptor: Interceptor,
    mishap: Option<Mishap>,
}

impl Upstream {
    /// Returns a connection to `server` that `interceptor` counts and that `mishap` may delay.
    #[must_use]
    pub fn new(server: Server, interceptor: Interceptor, mishap: Option<Mishap>) -> Self {
        Self { server, interceptor, mishap }
    }

    /// Sends one request.
    ///
    /// # Errors
    /// If the plan of faults drops the connection.
    pub async fn send(&self, request: Request<Bytes>) -> Reply {
        if self.interceptor.count() > MOST_WRITES {
            return pending().await;
        }
        if let Some(mishap) = &self.mishap {
            mishap.before(&request).await;
        }
        let server = self.server.clone();
        self.interceptor.carry(request, move |request| server(request)).await
    }
}

/// The service under the client of one life of a host.
#[derive(Clone)]
pub struct Line {
    /// The life of the host that uses this service.
    pub life: Life,
    /// The connection to the server.
    pub upstream: Upstream,
    /// The known-bad variant, if there is one.
    pub variant: Option<Arc<dyn Variant>>,
}

impl Service<Request<ClientBody>> for Line {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Reply>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ClientBody>) -> Self::Future {
        let Self { life, upstream, variant } = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let request = Request::from_parts(parts, body.collect().await?.to_bytes());
            if life.is_over() {
                return pending().await;
            }
            let carried = async {
                match &variant {
                    Some(variant) => variant.carry(request, &upstream).await,
                    None => upstream.send(request).await,
                }
            };
            tokio::select! {
                biased;
                reply = carried => if life.is_over() { pending().await } else { reply },
                () = life.over() => pending().await,
            }
        })
    }
}
