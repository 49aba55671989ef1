//! The store of files: a folder or a bucket, with its sizes and its timeouts.
//!
//! Wraps each request to the store with a timeout, and turns its errors into sentences for admins.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use object_store::ObjectStore;
use object_store::aws::AmazonS3;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Place;
use object_store::prefix::PrefixStore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::failed::{ArtefactsFailed, StoreFault};
use crate::volume::{FilesShare, SpaceProbe, VolumeSpace};

/// The longest time for an answer of the store.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
/// The factor on this time for a request that carries a piece: 60 s. Within it, 5 MiB arrive at 0.1 MiB a second.
pub(crate) const OF_PIECE: u32 = 6;

/// The buffer sizes for a kind of store.
#[derive(Debug)]
pub(crate) struct Sizes {
    /// The bytes of one piece of a file that is written.
    pub(crate) piece: usize,
    /// The most files that may be written at once. Each file holds one piece, or two pieces if `writes_beside` is set.
    pub(crate) streams: usize,
    /// True if a piece is written while the next one is filled.
    pub(crate) writes_beside: bool,
    /// The smallest and the largest window of a part that is read, in bytes.
    pub(crate) least_window: usize,
    pub(crate) most_window: usize,
}

/// The sizes for a folder. 48 pieces are 12 MiB.
pub(crate) const OF_FOLDER: Sizes =
    Sizes { piece: 256 * 1024, streams: 24, writes_beside: true, least_window: 16 * 1024, most_window: 512 * 1024 };
/// The sizes for a bucket. S3 takes at most 10,000 pieces for a file, each of at least 5 MiB except the last one. So a file has at most 48
/// GiB. 4 pieces are 20 MiB. A merge also holds 16 MiB of windows, one piece, and the bytes that are being read. A request takes as long as
/// the transfer of many bytes, so windows are large.
pub(crate) const OF_BUCKET: Sizes = Sizes {
    piece: 5 * 1024 * 1024,
    streams: 4,
    writes_beside: false,
    least_window: 1024 * 1024,
    most_window: 4 * 1024 * 1024,
};

/// A store with its kind and its limits.
pub(crate) struct Backend {
    pub(crate) store: Box<dyn ObjectStore>,
    kind: Kind,
    timeout: Duration,
    space: Option<Arc<SpaceProbe>>,
    share: Option<FilesShare>,
    ok: AtomicU64,
    failed: AtomicU64,
}

/// Numbers of requests to the store since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreRequestCounts {
    /// The requests that the store answered, also with the answer that there is no such file.
    pub ok: u64,
    /// The requests that the store refused, failed, or did not answer in time.
    pub failed: u64,
}

enum Kind {
    Folder(PathBuf),
    Bucket(Bucket),
}

/// A bucket, or a prefix within a bucket.
pub(crate) struct Bucket {
    /// The name of the bucket in error messages.
    pub(crate) name: String,
    pub(crate) prefix: Place,
    pub(crate) client: AmazonS3,
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Backend").field(&self.name()).finish()
    }
}

impl Backend {
    pub(crate) fn of_folder(folder: PathBuf, files: LocalFileSystem) -> Self {
        let asked = folder.clone();
        let space: SpaceProbe = Box::new(move || VolumeSpace::of(&asked));
        let (store, kind) = (Box::new(files), Kind::Folder(folder));
        Self { space: Some(Arc::new(space)), ..Self::of(store, kind, TIMEOUT) }
    }

    fn of(store: Box<dyn ObjectStore>, kind: Kind, timeout: Duration) -> Self {
        Self { store, kind, timeout, space: None, share: None, ok: AtomicU64::new(0), failed: AtomicU64::new(0) }
    }

    /// Returns the numbers of requests so far.
    pub(crate) fn request_counts(&self) -> StoreRequestCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        StoreRequestCounts { ok: read(&self.ok), failed: read(&self.failed) }
    }

    pub(crate) fn of_bucket(bucket: Bucket, timeout: Duration) -> Self {
        let store = Box::new(PrefixStore::new(bucket.client.clone(), bucket.prefix.clone()));
        Self::of(store, Kind::Bucket(bucket), timeout)
    }

    /// Replaces the probe for the space of the volume.
    pub(crate) fn on_volume(self, space: SpaceProbe) -> Self {
        Self { space: Some(Arc::new(space)), ..self }
    }

    pub(crate) fn with_share(self, share: FilesShare) -> Self {
        Self { share: Some(share), ..self }
    }

    pub(crate) fn share(&self) -> Option<FilesShare> {
        self.share
    }

    /// Returns the total and free bytes and inodes of the volume. Returns `None` for a bucket, or if the volume does not answer.
    pub(crate) async fn space(&self) -> Option<VolumeSpace> {
        match &self.space {
            Some(probe) => ask(probe.clone()).await,
            None => None,
        }
    }

    pub(crate) fn folder(&self) -> Option<&Path> {
        match &self.kind {
            Kind::Folder(folder) => Some(folder),
            Kind::Bucket(_) => None,
        }
    }

    pub(crate) fn bucket(&self) -> Option<&Bucket> {
        match &self.kind {
            Kind::Folder(_) => None,
            Kind::Bucket(bucket) => Some(bucket),
        }
    }

    pub(crate) fn sizes(&self) -> &'static Sizes {
        match self.kind {
            Kind::Folder(_) => &OF_FOLDER,
            Kind::Bucket(_) => &OF_BUCKET,
        }
    }

    /// Waits for a result of the store, with the usual timeout.
    pub(crate) async fn within<T>(
        &self,
        answer: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, ArtefactsFailed> {
        self.at_most(self.timeout, answer).await
    }

    /// Waits for a result of a request that carries a piece, with the longer timeout.
    pub(crate) async fn within_piece<T>(
        &self,
        answer: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, ArtefactsFailed> {
        self.at_most(self.timeout.saturating_mul(OF_PIECE), answer).await
    }

    async fn at_most<T>(
        &self,
        most: Duration,
        answer: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, ArtefactsFailed> {
        let answered = timeout(most, answer).await;
        let count = match &answered {
            Ok(Ok(_) | Err(object_store::Error::NotFound { .. })) => &self.ok,
            Ok(Err(_)) | Err(_) => &self.failed,
        };
        count.fetch_add(1, Ordering::Relaxed);
        match answered {
            Ok(answered) => answered.map_err(|error| self.failed(&error)),
            Err(_) => Err(ArtefactsFailed::silent(self.name(), most.as_secs_f32())),
        }
    }

    fn name(&self) -> &str {
        match &self.kind {
            Kind::Folder(_) => "the folder of artefacts",
            Kind::Bucket(bucket) => &bucket.name,
        }
    }

    fn failed(&self, error: &object_store::Error) -> ArtefactsFailed {
        match &self.kind {
            Kind::Folder(_) => ArtefactsFailed::of_folder(error),
            Kind::Bucket(bucket) => ArtefactsFailed::of_bucket(&bucket.name, error),
        }
    }

    /// Removes files, several at once. Goes on with the other files if one file cannot be removed.
    pub(crate) async fn remove(&self, places: Vec<Place>) -> Result<(), ArtefactsFailed> {
        let places = futures::stream::iter(places.into_iter().map(Ok)).boxed();
        let mut removed = self.store.delete_stream(places).map(|removed| match removed {
            Err(object_store::Error::NotFound { .. }) => Ok(()),
            other => other.map(drop),
        });
        let mut all = Ok(());
        loop {
            match self.within(removed.try_next()).await {
                Ok(Some(())) => {}
                Ok(None) => return all,
                Err(failed) if failed.why() == StoreFault::Silent => return Err(failed),
                Err(failed) => all = all.and(Err(failed)),
            }
        }
    }
}

/// Calls the probe on a blocking thread, so that a hung volume does not block the runtime.
async fn ask(probe: Arc<SpaceProbe>) -> Option<VolumeSpace> {
    match timeout(TIMEOUT, spawn_blocking(move || probe())).await {
        Ok(Ok(Ok(space))) => Some(space),
        _ => None,
    }
}
