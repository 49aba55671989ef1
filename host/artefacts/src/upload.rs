//! A file that is being written: it is there whole once it is finished, and else not at all.

use bytes::Bytes;
use object_store::MultipartUpload;
use tokio::time::{Duration, timeout};

use crate::store::ArtefactsFailed;

/// Longest time that the store may take for a piece.
const PATIENCE: Duration = Duration::from_secs(60);

/// A file that is being written. Dropped before it is finished, it leaves nothing.
#[derive(Debug)]
pub struct Upload {
    upload: Box<dyn MultipartUpload>,
    buffer: Vec<u8>,
    piece: usize,
    written: u64,
}

impl Upload {
    pub(crate) fn begin(upload: Box<dyn MultipartUpload>, piece: usize) -> Self {
        Self { upload, buffer: Vec::with_capacity(piece), piece, written: 0 }
    }

    /// Adds bytes.
    ///
    /// # Errors
    /// Why the store does not take them.
    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<(), ArtefactsFailed> {
        while !bytes.is_empty() {
            let room = self.piece.saturating_sub(self.buffer.len());
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
            if self.buffer.len() >= self.piece {
                self.send().await?;
            }
        }
        Ok(())
    }

    async fn send(&mut self) -> Result<(), ArtefactsFailed> {
        let piece = Bytes::from(std::mem::replace(&mut self.buffer, Vec::with_capacity(self.piece)));
        self.written = self.written.saturating_add(piece.len() as u64);
        within(self.upload.put_part(piece.into())).await
    }

    /// Publishes the file. Yields its bytes.
    ///
    /// # Errors
    /// Why it is not known to be there.
    pub async fn finish(mut self) -> Result<u64, ArtefactsFailed> {
        if !self.buffer.is_empty() {
            self.send().await?;
        }
        within(self.upload.complete()).await?;
        Ok(self.written)
    }
}

/// An answer of a store, within the time that it may take.
async fn within<T>(answer: impl Future<Output = object_store::Result<T>>) -> Result<T, ArtefactsFailed> {
    match timeout(PATIENCE, answer).await {
        Ok(answered) => answered.map_err(ArtefactsFailed::from),
        Err(_) => Err(ArtefactsFailed::silent(PATIENCE)),
    }
}
