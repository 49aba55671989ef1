//! What may happen in a cluster between a host's decision and the arrival of its write: a pod comes back under its name.
//!
//! Takes the first write that concerns the pod; holds it until a scenario has made the pod anew. Strikes once. May not
//! change the write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::Request;
use tokio::sync::{mpsc, oneshot};

use crate::variants::Deed;

/// Somebody waits until this pod was made anew.
#[derive(Debug)]
pub struct Wish {
    /// The pod's name.
    pub pod: String,
    /// To be told once it is done.
    pub done: oneshot::Sender<()>,
}

/// Strikes at the first write that marks or evicts a pod.
#[derive(Clone, Debug)]
pub struct Mishap {
    wishes: mpsc::UnboundedSender<Wish>,
    struck: Arc<AtomicBool>,
}

impl Mishap {
    /// A mishap, and the wishes that a scenario must fulfil.
    #[must_use]
    pub fn new() -> (Self, mpsc::UnboundedReceiver<Wish>) {
        let (wishes, heard) = mpsc::unbounded_channel();
        (Self { wishes, struck: Arc::default() }, heard)
    }

    /// Strikes if this is the write, and resolves once the pod was made anew.
    pub async fn before(&self, request: &Request<Bytes>) {
        let (Deed::Evicts(pod) | Deed::Marks(pod)) = Deed::of(request) else { return };
        if self.struck.swap(true, Ordering::SeqCst) {
            return;
        }
        let (done, told) = oneshot::channel();
        if self.wishes.send(Wish { pod, done }).is_ok() {
            // A scenario that ends meanwhile waits for nothing.
            let _ended = told.await.is_err();
        }
    }
}
