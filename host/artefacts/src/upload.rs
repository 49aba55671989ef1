//! Writes a file in pieces. The file exists as a whole once it is finished, and not at all before.

use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path as Place;
use object_store::{MultipartUpload, ObjectStoreExt as _};
use tokio::task::JoinHandle;

use crate::backend::Backend;
use crate::failed::ArtefactsFailed;
use crate::volume::{LOOKS_EACH, VolumeSpace};

/// A file that is being written. If it is dropped before it is finished, it leaves nothing.
#[derive(Debug)]
pub struct Upload {
    of: Arc<Backend>,
    place: Place,
    /// `None` before the first piece is sent to a bucket. A smaller file needs no pieces.
    upload: Option<Box<dyn MultipartUpload>>,
    /// The piece that is being written while the next one is filled.
    beside: Option<JoinHandle<Result<(), ArtefactsFailed>>>,
    buffer: Vec<u8>,
    written: u64,
    /// The number of bytes that were written at the last check of the free space.
    looked: u64,
}

impl Upload {
    /// Begins a file. In a folder, it creates the file at once, so that a failure shows before the caller reads any data for it.
    pub(crate) async fn begin(of: Arc<Backend>, place: Place) -> Result<Self, ArtefactsFailed> {
        let upload = match of.folder() {
            Some(_) => Some(of.within(of.store.put_multipart(&place)).await?),
            None => None,
        };
        Ok(Self { of, place, upload, beside: None, buffer: Vec::new(), written: 0, looked: 0 })
    }

    /// Adds bytes to the file.
    ///
    /// # Errors
    /// If the store refuses the bytes.
    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<(), ArtefactsFailed> {
        let piece = self.of.sizes().piece;
        while !bytes.is_empty() {
            let room = piece.saturating_sub(self.buffer.len());
            // The previous piece has left the buffer, so the buffer never holds more than one piece.
            self.buffer.reserve_exact(room);
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
            if self.buffer.len() >= piece {
                self.send().await?;
            }
        }
        Ok(())
    }

    fn take(&mut self) -> Bytes {
        let piece = Bytes::from(std::mem::take(&mut self.buffer));
        self.written = self.written.saturating_add(piece.len() as u64);
        piece
    }

    async fn send(&mut self) -> Result<(), ArtefactsFailed> {
        if self.written.saturating_sub(self.looked) >= LOOKS_EACH {
            self.looked = self.written;
            if let Some(why) = self.of.space().await.and_then(VolumeSpace::scarce) {
                return Err(ArtefactsFailed::full(why));
            }
        }
        let piece = self.take();
        let upload = match &mut self.upload {
            Some(upload) => upload,
            none => none.insert(self.of.within(self.of.store.put_multipart(&self.place)).await?),
        };
        let writing = upload.put_part(piece.into());
        if !self.of.sizes().writes_beside {
            return self.of.within_piece(writing).await;
        }
        self.written_beside().await?;
        let of = self.of.clone();
        self.beside = Some(tokio::spawn(async move { of.within_piece(writing).await }));
        Ok(())
    }

    /// Waits for the piece that is being written.
    async fn written_beside(&mut self) -> Result<(), ArtefactsFailed> {
        let Some(beside) = self.beside.take() else { return Ok(()) };
        beside.await.unwrap_or_else(|lost| Err(ArtefactsFailed::new(format!("writing a piece of a file: {lost}"))))
    }

    /// Publishes the file. Returns its number of bytes.
    ///
    /// # Errors
    /// If the store does not confirm the file.
    pub async fn finish(mut self) -> Result<u64, ArtefactsFailed> {
        if self.upload.is_none() {
            let whole = self.take();
            self.of.within_piece(self.of.store.put(&self.place, whole.into())).await?;
            return Ok(self.written);
        }
        if !self.buffer.is_empty() {
            self.send().await?;
        }
        self.written_beside().await?;
        if let Some(upload) = &mut self.upload {
            self.of.within_piece(upload.complete()).await?;
        }
        self.upload = None;
        Ok(self.written)
    }
}

impl Drop for Upload {
    /// Removes the uploaded pieces from a bucket. A folder removes an unfinished file by itself.
    fn drop(&mut self) {
        let (Some(mut upload), None) = (self.upload.take(), self.of.folder()) else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (of, place) = (self.of.clone(), self.place.clone());
        runtime.spawn(async move {
            if let Err(error) = of.within(upload.abort()).await {
                tracing::debug!(error = %error, file = %place, "failed to abort an upload: the rule of the bucket is left");
            }
        });
    }
}
