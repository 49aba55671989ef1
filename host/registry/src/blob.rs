//! Copies one blob from the source to the target without holding it in memory.
//!
//! ```text
//! source -> a chunk -> hashed, counted, and held back until the next one is there -> a channel of one chunk -> target
//! ```
//!
//! An upload must not complete with wrong bytes. So the last chunk goes out only after the size and the digest of all bytes were checked.
//! One future drives both ends, so dropping it stops the whole copy.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use futures::stream::poll_fn;
use oarlock_signature::{Hash, Sha256};
use reqwest::Body;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;

use crate::exchange::HttpAnswer;
use crate::failed::{CopyFailed, Fault};
use crate::manifest::Content;
use crate::repository::{Repository, mismatch};
use crate::tally::CopyTally;

/// The rate at which a registry moves an uploaded blob into place: 16 MiB a second.
const MOVED_PER_SECOND: u64 = 16 * 1024 * 1024;

/// The source and the target of blobs.
pub(crate) struct Transfer<'a> {
    pub(crate) source: &'a Repository,
    pub(crate) target: &'a Repository,
    pub(crate) tally: &'a CopyTally<'a>,
}

/// One try to copy one blob.
struct Try<'a> {
    transfer: &'a Transfer<'a>,
    blob: &'a Content,
    sent: u64,
    is_done: bool,
}

impl Drop for Try<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.transfer.tally.uncount(self.sent);
        }
    }
}

impl Transfer<'_> {
    /// Copies blobs until none is left. Concurrent callers share `next`, the index of the next blob.
    pub(crate) async fn copy(&self, blobs: &[Content], next: &AtomicUsize) -> Result<(), CopyFailed> {
        while let Some(blob) = blobs.get(next.fetch_add(1, Relaxed)) {
            let mut tries = self.target.exchange.timeouts.tries();
            // The check also runs after a failed try, because only its answer may be lost.
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

    /// Tries once to send a blob that the target does not have.
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
                let wait = target.exchange.timeouts.head.saturating_add(moved);
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

    /// Sends an empty blob. Its digest is known without a request to the source.
    async fn send_nothing(&self) -> Result<(), CopyFailed> {
        let target = self.transfer.target;
        if self.blob.digest != Sha256::of(b"") {
            return Err(mismatch(format!("{} is not the digest of 0 bytes", self.blob.digest)));
        }
        let place = target.begin_upload().await?;
        let upload = target.upload(place, self.blob, Body::from(Bytes::new()));
        let wait = target.exchange.timeouts.head;
        timeout(wait, upload).await.map_err(|_| target.exchange.silent("the end of an upload", wait))?
    }

    /// Moves chunks to the upload. Returns false if the target stopped reading. Then the answer of the target says why.
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

    /// Sends a chunk. Returns false if the target stopped reading.
    async fn send(&mut self, chunk: Bytes, sender: &Sender<Bytes>) -> Result<bool, CopyFailed> {
        let (target, bytes) = (&self.transfer.target.exchange, chunk.len() as u64);
        match timeout(target.timeouts.stall, sender.send(chunk)).await {
            Ok(Ok(())) => {
                self.sent = self.sent.saturating_add(bytes);
                self.transfer.tally.send(bytes);
                Ok(true)
            }
            Ok(Err(_)) => Ok(false),
            Err(_) => {
                let message = format!("the target takes no byte within {} s", target.timeouts.stall.as_secs());
                Err(CopyFailed::for_now(Fault::Push, message))
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

/// Returns a body that streams from a channel. The body ends early if the sender is dropped.
fn body(mut receiver: Receiver<Bytes>) -> Body {
    Body::wrap_stream(poll_fn(move |context| receiver.poll_recv(context).map(|chunk| chunk.map(Ok::<_, Infallible>))))
}
