//! One blob, from the source to the target, without being held.
//!
//! ```text
//! source -> a chunk -> hashed, counted, and held back until the next one is there -> a channel of one chunk -> target
//! ```
//!
//! Takes a digest and a size; yields nothing but that the target has it. May not complete an upload whose bytes are others: the last
//! chunk goes out only once size and digest are those that were promised. Both ends are driven by the one future of the copy, so that
//! all stops where that is dropped.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use futures::stream::poll_fn;
use reqwest::Body;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;

use crate::digest::{Hash, Sha256};
use crate::exchange::HttpAnswer;
use crate::failed::{CopyFailed, Fault};
use crate::manifest::Content;
use crate::repository::{Repository, mismatch};
use crate::tally::CopyTally;

/// A registry that moves what it took needs a second for each 16 MiB.
const MOVED_PER_SECOND: u64 = 16 * 1024 * 1024;

/// Where blobs come from and go to.
pub(crate) struct Transfer<'a> {
    pub(crate) source: &'a Repository,
    pub(crate) target: &'a Repository,
    pub(crate) tally: &'a CopyTally<'a>,
}

/// One try of one blob.
struct Try<'a> {
    transfer: &'a Transfer<'a>,
    blob: &'a Content,
    sent: u64,
    is_done: bool,
}

impl Drop for Try<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.transfer.tally.take_back(self.sent);
        }
    }
}

impl Transfer<'_> {
    /// Copies blobs until none is left. `next` is the place of the next one, which several such share.
    pub(crate) async fn copy(&self, blobs: &[Content], next: &AtomicUsize) -> Result<(), CopyFailed> {
        while let Some(blob) = blobs.get(next.fetch_add(1, Relaxed)) {
            let mut tries = self.target.exchange.patience.tries();
            // After a try that failed too: its answer may be what was lost.
            loop {
                if self.target.has(blob).await? {
                    self.tally.skip(blob.size);
                    break;
                }
                match self.send(blob).await {
                    Ok(()) => break,
                    Err(failed) => tries.after(failed).await?,
                }
            }
        }
        Ok(())
    }

    /// One try of a blob that the target does not have.
    async fn send(&self, blob: &Content) -> Result<(), CopyFailed> {
        let mut attempt = Try { transfer: self, blob, sent: 0, is_done: false };
        attempt.run().await?;
        attempt.is_done = true;
        Ok(())
    }
}

impl Try<'_> {
    async fn run(&mut self) -> Result<(), CopyFailed> {
        let Transfer { source, target, .. } = self.transfer;
        let blob = self.blob;
        if blob.size == 0 {
            return self.send_nothing().await;
        }
        let answer = source.open(blob).await?;
        let place = target.begin_upload().await?;
        let (sender, receiver) = channel(1);
        let upload = pin!(target.upload(place, blob, body(receiver)));
        match select(pin!(self.pump(answer, sender)), upload).await {
            Either::Left((pumped, upload)) => {
                let is_whole = pumped?;
                let moved = Duration::from_secs(blob.size / MOVED_PER_SECOND);
                let wait = target.exchange.patience.head.saturating_add(moved);
                let silent = || target.exchange.silent("the end of an upload", wait);
                timeout(wait, upload).await.map_err(|_| silent())??;
                if is_whole { Ok(()) } else { Err(too_early(blob)) }
            }
            Either::Right((answered, _)) => {
                answered?;
                Err(too_early(blob))
            }
        }
    }

    /// A blob without bytes is known by its digest.
    async fn send_nothing(&self) -> Result<(), CopyFailed> {
        let target = self.transfer.target;
        if self.blob.digest != Sha256::of(b"") {
            return Err(mismatch(format!("{} is not the digest of 0 bytes", self.blob.digest)));
        }
        let place = target.begin_upload().await?;
        let upload = target.upload(place, self.blob, Body::from(Bytes::new()));
        let wait = target.exchange.patience.head;
        timeout(wait, upload).await.map_err(|_| target.exchange.silent("the end of an upload", wait))?
    }

    /// Moves chunks. Yields whether all were sent: if not, the target takes no more, and its answer says why.
    async fn pump(&mut self, mut answer: HttpAnswer, sender: Sender<Bytes>) -> Result<bool, CopyFailed> {
        let (mut hash, mut size, mut held) = (Hash::new(), 0_u64, None);
        while let Some(chunk) = self.transfer.source.exchange.chunk(&mut answer).await? {
            if chunk.is_empty() {
                continue;
            }
            size = size.saturating_add(chunk.len() as u64);
            if size > self.blob.size {
                return Err(self.other_size("more"));
            }
            hash.add(&chunk);
            if let Some(before) = held.replace(chunk)
                && !self.send(before, &sender).await?
            {
                return Ok(false);
            }
        }
        if size < self.blob.size {
            return Err(self.other_size("fewer"));
        }
        let digest = hash.digest();
        if digest != self.blob.digest {
            return Err(mismatch(format!("the source serves bytes with {digest} as blob {}", self.blob.digest)));
        }
        match held {
            Some(last) => self.send(last, &sender).await,
            None => Ok(true),
        }
    }

    /// Sends a chunk. Yields whether the target still listens.
    async fn send(&mut self, chunk: Bytes, sender: &Sender<Bytes>) -> Result<bool, CopyFailed> {
        let (target, bytes) = (&self.transfer.target.exchange, chunk.len() as u64);
        match timeout(target.patience.stall, sender.send(chunk)).await {
            Ok(Ok(())) => {
                self.sent = self.sent.saturating_add(bytes);
                self.transfer.tally.send(bytes);
                Ok(true)
            }
            Ok(Err(_)) => Ok(false),
            Err(_) => {
                let words = format!("the target takes no byte within {} s", target.patience.stall.as_secs());
                Err(CopyFailed::for_now(Fault::Push, words))
            }
        }
    }

    fn other_size(&self, comparison: &str) -> CopyFailed {
        mismatch(format!(
            "blob {} has {comparison} than the {} bytes that are promised",
            self.blob.digest, self.blob.size
        ))
    }
}

fn too_early(blob: &Content) -> CopyFailed {
    CopyFailed::for_good(Fault::Push, format!("the target says that it has blob {} before it was sent", blob.digest))
}

/// The body that a channel yields. It ends early where the sender goes.
fn body(mut receiver: Receiver<Bytes>) -> Body {
    Body::wrap_stream(poll_fn(move |context| receiver.poll_recv(context).map(|chunk| chunk.map(Ok::<_, Infallible>))))
}
