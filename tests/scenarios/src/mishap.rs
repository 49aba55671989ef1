//! A mishap between a host's decision and the arrival of its write: a pod is deleted and created again under its name.
//!
//! Takes the first write that concerns a pod; holds the write until a scenario has created the pod again. Strikes once. May not change the write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::Request;
use tokio::sync::{mpsc, oneshot};

use crate::variant::Deed;

/// A request to create a pod again.
#[derive(Debug)]
pub struct Wish {
    /// The name of the pod.
    pub pod: String,
    /// The sender that tells the waiting write that the pod was created again.
    pub done: oneshot::Sender<()>,
}

/// Holds the first write that marks or evicts a pod.
#[derive(Clone, Debug)]
pub struct Mishap {
    wishes: mpsc::UnboundedSender<Wish>,
    struck: Arc<AtomicBool>,
}

impl Mishap {
    /// Returns a mishap, and the requests that a scenario must fulfil.
    #[must_use]
    pub fn new() -> (Self, mpsc::UnboundedReceiver<Wish>) {
        let (wishes, heard) = mpsc::unbounded_channel();
        (Self { wishes, struck: Arc::default() }, heard)
    }

    /// Holds this request if it is the first write to a pod, until the pod was created again.
    pub async fn before(&self, request: &Request<Bytes>) {
        let (Deed::Evicts(pod) | Deed::Marks(pod)) = Deed::of(request) else { return };
        if self.struck.swap(true, Ordering::SeqCst) {
            return;
        }
        let (done, told) = oneshot::channel();
        if self.wishes.send(Wish { pod, done }).is_ok() {
            // A scenario that ends meanwhile drops the sender.
            let _ended = told.await.is_err();
        }
    }
}
