//! Stores the files that OpsJobs leave, in a folder or a bucket of the admin. Each file is published whole or not at all. Source:
//! docs/opsjob.md 5.
//!
//! Each request has a timeout, so that a slow store does not delay a job: the job reports the failure in place of the file. The parts of
//! logs are stored beside the files until their job is removed.

use std::fs::{DirBuilder, Permissions};
use std::hash::{BuildHasher as _, RandomState};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt as _;
use k8s_openapi::jiff::Timestamp;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Place;
use object_store::signer::Signer as _;
use object_store::{ObjectMeta, ObjectStoreExt as _};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::backend::{Backend, StoreRequestCounts};
use crate::counts::OwnerCounts;
use crate::failed::{ArtefactsFailed, StoreFault};
use crate::s3::S3Place;
use crate::upload::Upload;
use crate::volume::{FilesShare, VolumeSpace};

/// The folder of parts. No job has this name.
const PARTS: &str = ".parts";
/// The folder for the results of turns. No pod has this name. A restarted merge makes them again.
pub(crate) const TURNS: &str = ".turns";
/// The folder for the test file in a bucket.
const PROBE: &str = ".oarlock-probe";
/// The longest validity of a signed URL. S3 accepts at most a week.
const SIGNED: Duration = Duration::from_secs(7 * 24 * 3_600);

/// A store of files. Clones share it.
#[derive(Clone, Debug)]
pub struct Artefacts {
    pub(crate) of: Arc<Backend>,
    pub(crate) searched: Arc<Mutex<Option<Instant>>>,
    pub(crate) counts: Arc<Mutex<OwnerCounts>>,
}

/// The name of a file of a job.
#[derive(Clone, Copy, Debug)]
pub struct FileName<'a> {
    /// The name of the job.
    pub job: &'a str,
    /// The name of the file, which no other file of the job has.
    pub file: &'a str,
}

impl FileName<'_> {
    fn place(self) -> Place {
        Place::from_iter([self.job, self.file])
    }
}

/// The name of a part of a job's logs.
#[derive(Clone, Copy, Debug)]
pub struct PartName<'a> {
    /// The UID of the job.
    pub job: &'a str,
    /// The folder of the part, such as the name of a pod.
    pub folder: &'a str,
    /// The name of the part in its folder.
    pub name: &'a str,
}

impl PartName<'_> {
    fn place(self) -> Place {
        Place::from_iter([PARTS, self.job, self.folder, self.name])
    }
}

/// A part of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPart {
    pub(crate) place: Place,
    /// The bytes of the part.
    pub size: u64,
}

impl Artefacts {
    /// Opens the store in the subfolder `artefacts` of a folder. Creates the subfolder if it does not exist.
    ///
    /// # Errors
    /// If the folder cannot be used.
    pub fn in_folder(folder: &Path) -> Result<Self, String> {
        // Other files in the folder belong to other programs.
        let folder = &folder.join("artefacts");
        let words =
            |error: &dyn std::error::Error| format!("failed to use {} for artefacts: {error}", folder.display());
        make_own(folder).map_err(|error| words(&error))?;
        let files = LocalFileSystem::new_with_prefix(folder).map_err(|error| words(&error))?;
        let files = files.with_automatic_cleanup(true).with_fsync(true);
        Ok(Self::of(Backend::of_folder(folder.clone(), files)))
    }

    /// Opens a bucket and tests it first. If the store is down or slow, this is only logged, because the store may come back.
    ///
    /// Unfinished uploads of killed hosts stay in the bucket, invisible and paid for, until a lifecycle rule removes them. Give the bucket
    /// the rule `AbortIncompleteMultipartUpload` with `DaysAfterInitiation: 1`.
    ///
    /// # Errors
    /// If the bucket or the credentials are wrong.
    pub async fn in_bucket(place: S3Place) -> Result<Self, String> {
        let (bucket, timeout) = place.connect()?;
        let artefacts = Self::of(Backend::of_bucket(bucket, timeout));
        match artefacts.probe().await {
            Err(failed) if failed.why() == StoreFault::Refused => Err(failed.to_string()),
            Err(failed) => {
                tracing::warn!(error = %failed, "artefacts cannot be stored yet");
                Ok(artefacts)
            }
            Ok(()) => Ok(artefacts),
        }
    }

    /// Opens a bucket for a process that may only read. Tests the bucket first, and logs a failure.
    ///
    /// # Errors
    /// If the address or the credentials are wrong, as far as this shows without a request to the store.
    pub async fn in_bucket_to_read(place: S3Place) -> Result<Self, String> {
        let (bucket, timeout) = place.connect()?;
        let artefacts = Self::of(Backend::of_bucket(bucket, timeout));
        let store = &artefacts.of.store;
        let nothing = async {
            match store.head(&Place::from(PROBE)).await {
                Err(object_store::Error::NotFound { .. }) => Ok(()),
                other => other.map(drop),
            }
        };
        if let Err(failed) = artefacts.of.within(nothing).await {
            tracing::warn!(error = %failed, "artefacts cannot be read: the credentials need s3:GetObject and s3:ListBucket");
        }
        Ok(artefacts)
    }

    fn of(backend: Backend) -> Self {
        Self { of: Arc::new(backend), searched: Arc::default(), counts: Arc::default() }
    }

    /// Replaces the probe for the volume's space. Call it before the first use of the store.
    #[must_use]
    pub fn on_volume(self, space: impl Fn() -> std::io::Result<VolumeSpace> + Send + Sync + 'static) -> Self {
        self.with(|backend| backend.on_volume(Box::new(space)))
    }

    /// Limits the share of one owner's files. Call it before the first use of the store.
    #[must_use]
    pub fn with_share(self, share: FilesShare) -> Self {
        self.with(|backend| backend.with_share(share))
    }

    fn with(self, change: impl FnOnce(Backend) -> Backend) -> Self {
        match Arc::try_unwrap(self.of) {
            Ok(backend) => Self { of: Arc::new(change(backend)), ..self },
            // The store is already in use, so it stays unchanged.
            Err(of) => Self { of, ..self },
        }
    }

    /// Puts, reads, lists and deletes a test file. Its random name keeps hosts that start at the same time apart.
    async fn probe(&self) -> Result<(), ArtefactsFailed> {
        let name = format!("{:016x}", RandomState::new().hash_one(PROBE));
        let place = Place::from_iter([PROBE, &name]);
        let store = &self.of.store;
        self.of.within(store.put(&place, Bytes::from_static(b"oarlock\n").into())).await?;
        self.read(&place, 0..1).await?;
        let _listed: Vec<ObjectMeta> = self.of.within(store.list(Some(&Place::from(PROBE))).try_collect()).await?;
        self.of.within(store.delete(&place)).await
    }

    /// Returns the folder of the files, with one subfolder for each job. Returns `None` for a bucket.
    pub fn folder(&self) -> Option<&Path> {
        self.of.folder()
    }

    /// Returns the path of the folder, or the address of the bucket with its prefix.
    pub fn place(&self) -> String {
        match (self.of.folder(), self.of.bucket()) {
            (Some(folder), _) => folder.display().to_string(),
            (None, Some(bucket)) => format!("{}/{}", bucket.name, bucket.prefix),
            (None, None) => String::new(),
        }
    }

    /// Returns the numbers of requests to the store since the process began.
    pub fn request_counts(&self) -> StoreRequestCounts {
        self.of.request_counts()
    }

    /// Returns the most files that may be written at once. Together they hold at most 20 MiB in memory.
    pub fn streams(&self) -> usize {
        self.of.sizes().streams
    }

    /// Returns a URL at which anyone can read a file of a job for a while, without credentials. Returns `None` if files are in a folder. It
    /// does not check that the file exists. If the credentials expire before `valid` ends, the URL expires with them.
    ///
    /// # Errors
    /// If the URL cannot be signed.
    pub async fn signed_url(&self, file: FileName<'_>, valid: Duration) -> Option<Result<String, ArtefactsFailed>> {
        let bucket = self.of.bucket()?;
        if valid > SIGNED {
            return Some(Err(ArtefactsFailed::new(format!(
                "an address cannot be good for {} s: at most {} s, which is a week",
                valid.as_secs(),
                SIGNED.as_secs()
            ))));
        }
        let place: Place = bucket.prefix.parts().chain(file.place().parts()).collect();
        let signed = bucket.client.signed_url(reqwest::Method::GET, &place, valid);
        Some(self.of.within(signed).await.map(String::from))
    }

    /// Returns the reference to a file of a job that an output contains.
    pub fn reference(of: FileName<'_>) -> String {
        let FileName { job, file } = of;
        format!("artifact:{job}/{file}")
    }

    /// Publishes a file of a job, replaces a file of the same name, and removes old files. Returns the reference of the file.
    ///
    /// # Errors
    /// If the store does not confirm the file.
    pub async fn publish(&self, file: FileName<'_>, bytes: Vec<u8>, now: Timestamp) -> Result<String, ArtefactsFailed> {
        self.remove_old_when_due(now);
        self.of.within(self.of.store.put(&file.place(), bytes.into())).await?;
        Ok(Self::reference(file))
    }

    /// Begins to write a file of a job.
    ///
    /// # Errors
    /// If the store refuses the file.
    pub async fn write(&self, file: FileName<'_>, now: Timestamp) -> Result<Upload, ArtefactsFailed> {
        self.remove_old_when_due(now);
        self.begin(&file.place()).await
    }

    pub(crate) async fn begin(&self, place: &Place) -> Result<Upload, ArtefactsFailed> {
        Upload::begin(self.of.clone(), place.clone()).await
    }

    /// Begins to write a part of a job's logs.
    ///
    /// # Errors
    /// If the store refuses the part.
    pub async fn write_part(&self, part: PartName<'_>) -> Result<Upload, ArtefactsFailed> {
        self.begin(&part.place()).await
    }

    /// Returns a finished part, with at most this many bytes of its beginning. Returns `None` if there is no such part.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn find_part(
        &self,
        part: PartName<'_>,
        beginning: u64,
    ) -> Result<Option<(LogPart, Bytes)>, ArtefactsFailed> {
        let place = part.place();
        let head = async {
            match self.of.store.head(&place).await {
                Err(object_store::Error::NotFound { .. }) => Ok(None),
                other => other.map(Some),
            }
        };
        let Some(head) = self.of.within(head).await? else { return Ok(None) };
        let beginning = self.read(&place, 0..beginning.min(head.size)).await?;
        Ok(Some((LogPart { place, size: head.size }, beginning)))
    }

    /// Returns the parts of the logs of the job of this UID, sorted by folder and name.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn parts(&self, job: &str) -> Result<Vec<LogPart>, ArtefactsFailed> {
        let folder = Place::from_iter([PARTS, job]);
        let found: Vec<_> = self.of.within(self.of.store.list(Some(&folder)).try_collect()).await?;
        let mut parts: Vec<LogPart> =
            found.into_iter().map(|found: ObjectMeta| LogPart { place: found.location, size: found.size }).collect();
        parts.sort_by(|one, other| one.place.cmp(&other.place));
        Ok(parts)
    }

    pub(crate) async fn drop_turns(&self, job: &str) -> Result<(), ArtefactsFailed> {
        let folder = Place::from_iter([PARTS, job, TURNS]);
        let found: Vec<_> = self.of.within(self.of.store.list(Some(&folder)).try_collect()).await?;
        self.of.remove(found.into_iter().map(|turn: ObjectMeta| turn.location).collect()).await
    }

    /// Removes the parts of the job of this UID.
    ///
    /// # Errors
    /// If the store does not confirm the removal.
    pub async fn drop_parts(&self, job: &str) -> Result<(), ArtefactsFailed> {
        self.of.remove(self.parts(job).await?.into_iter().map(|part| part.place).collect()).await
    }

    /// Returns the UIDs of the jobs that have parts.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn jobs_with_parts(&self) -> Result<Vec<String>, ArtefactsFailed> {
        let all = self.of.within(self.of.store.list_with_delimiter(Some(&Place::from_iter([PARTS])))).await?;
        Ok(all.common_prefixes.iter().filter_map(|folder| Some(folder.filename()?.to_owned())).collect())
    }

    pub(crate) async fn read(&self, place: &Place, range: std::ops::Range<u64>) -> Result<Bytes, ArtefactsFailed> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        self.of.within(self.of.store.get_range(place, range)).await
    }
}

/// Creates a folder for the current user only, or restricts an existing folder, because it holds logs.
fn make_own(folder: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    if std::fs::metadata(folder)?.permissions().mode() & 0o077 != 0 {
        let closed = std::fs::set_permissions(folder, Permissions::from_mode(0o700));
        // A folder of another user keeps its mode.
        closed.or_else(|error| if error.kind() == ErrorKind::PermissionDenied { Ok(()) } else { Err(error) })?;
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;

    use super::*;

    /// Returns the path of a test folder that does not exist.
    pub(crate) fn folder(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("oarlock-artefacts-{name}-{}", std::process::id()));
        let _none = fs::remove_dir_all(&folder);
        folder
    }

    #[tokio::test]
    async fn nobody_but_its_owner_reads_the_files() {
        let folder = folder("modes");
        let mode = || fs::metadata(folder.join("artefacts")).unwrap().permissions().mode() & 0o777;
        Artefacts::in_folder(&folder).unwrap();
        assert_eq!(mode(), 0o700);
        // An earlier version left the folder with this mode.
        fs::set_permissions(folder.join("artefacts"), Permissions::from_mode(0o755)).unwrap();
        Artefacts::in_folder(&folder).unwrap();
        assert_eq!(mode(), 0o700);
        fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test]
    async fn a_folder_that_cannot_be_used_is_named() {
        let folder = folder("none");
        fs::write(&folder, "").unwrap();
        assert!(Artefacts::in_folder(&folder).unwrap_err().contains("failed to use"));
        fs::remove_file(&folder).unwrap();
        let artefacts = Artefacts::in_folder(&folder).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        fs::write(&folder, "").unwrap();
        assert!(artefacts.publish(FileName { job: "a", file: "b" }, Vec::new(), Timestamp::UNIX_EPOCH).await.is_err());
        fs::remove_file(folder).unwrap();
    }
}
