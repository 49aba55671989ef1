//! The line between a host in this process and an API server: it can be cut, as SIGKILL would cut it.
//!
//! Takes requests of one life of a host; hands them to a known-bad variant where there is one, then past the counting
//! interceptor to the server. Once the life has ended nothing of it reaches the server any more, and nothing is answered.
//! May not change a request itself.

use std::future::pending;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use kube::client::Body as ClientBody;
use oarlock_bed::faults::Killer;
use oarlock_bed::interception::{Body, BoxError, Interceptor};
use oarlock_sim::ApiService;
use parking_lot::Mutex;
use tokio::sync::watch;
use tower::{Service, ServiceExt as _};

use crate::crash::mishap::Mishap;
use crate::variants::Variant;

/// What a request ends with.
pub type Reply = Result<Response<Body>, BoxError>;

/// No run makes as many writes: a host that repeats a write for ever is stopped here, for under paused time it would
/// never come to rest.
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
    /// Ends it: what is sent from now on reaches nobody.
    pub fn end(&self) {
        self.over.send_replace(true);
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    /// Resolves once it has ended.
    pub async fn over(&self) {
        // The sender lives in `self`, so it cannot be gone.
        let _ = self.over.subscribe().wait_for(|over| *over).await;
    }
}

/// The lives of one host, one after the other, and how to end the present one.
#[derive(Clone, Default)]
pub struct Lives {
    present: Arc<Mutex<Life>>,
}

impl Lives {
    /// The present life.
    #[must_use]
    pub fn present(&self) -> Life {
        self.present.lock().clone()
    }

    /// Begins another one.
    #[must_use]
    pub fn begin(&self) -> Life {
        let life = Life::default();
        *self.present.lock() = life.clone();
        life
    }

    /// Ends whichever life is the present one then.
    #[must_use]
    pub fn killer(&self) -> Killer {
        let present = self.present.clone();
        Arc::new(move || present.lock().end())
    }
}

/// An API server, to whoever has a request.
pub type Server = Arc<dyn Fn(Request<Bytes>) -> BoxFuture<'static, Reply> + Send + Sync>;

/// The in-memory API as a server.
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

/// The way to the server behind a variant: counted, with faults.
#[derive(Clone)]
pub struct Wire {
    server: Server,
    interceptor: Interceptor,
    mishap: Option<Mishap>,
}

impl Wire {
    /// A way to `server` that `interceptor` counts, on which `mishap` may strike.
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

/// The service that the client of one life of a host is constructed on.
#[derive(Clone)]
pub struct Line {
    /// Whose line it is.
    pub life: Life,
    /// The way to the server.
    pub wire: Wire,
    /// Who stands in between, if anybody.
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
        let Self { life, wire, variant } = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let request = Request::from_parts(parts, body.collect().await?.to_bytes());
            if life.is_over() {
                return pending().await;
            }
            let carried = async {
                match &variant {
                    Some(variant) => variant.carry(request, &wire).await,
                    None => wire.send(request).await,
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
