//! The files that OpsJobs leave, below a folder or in a bucket that an admin gives: each is published whole or not at all. Source:
//! docs/opsjob.md 5.
//!
//! Takes a job, a name and bytes; yields the reference that an output has. May not hold a job up: what cannot be stored within a
//! moment is said in its place. What logs are put together of is kept beside the files until their job goes.

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

use crate::backend::Backend;
use crate::counts::OwnerCounts;
use crate::failed::{ArtefactsFailed, StoreFault};
use crate::merge::TURNS;
use crate::s3::S3Place;
use crate::space::{FilesShare, VolumeSpace};
use crate::upload::Upload;

/// The folder of parts. No job has this name.
const PARTS: &str = ".parts";
/// Where a bucket is tried.
const PROBE: &str = ".oarlock-probe";
/// For how long an address can be signed: S3 takes none that is good for longer than a week.
const SIGNED: Duration = Duration::from_secs(7 * 24 * 3_600);

/// Files. Clones share them.
#[derive(Clone, Debug)]
pub struct Artefacts {
    pub(crate) of: Arc<Backend>,
    pub(crate) searched: Arc<Mutex<Option<Instant>>>,
    pub(crate) counts: Arc<Mutex<OwnerCounts>>,
}

/// A part of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPart {
    pub(crate) place: Place,
    /// Its bytes.
    pub size: u64,
}

impl Artefacts {
    /// The files below this folder, in one of their own, which is made if it is not there.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn in_folder(folder: &Path) -> Result<Self, String> {
        // What else is in there belongs to somebody else.
        let folder = &folder.join("artefacts");
        let words =
            |error: &dyn std::error::Error| format!("failed to use {} for artefacts: {error}", folder.display());
        make_own(folder).map_err(|error| words(&error))?;
        let files = LocalFileSystem::new_with_prefix(folder).map_err(|error| words(&error))?;
        let files = files.with_automatic_cleanup(true).with_fsync(true);
        Ok(Self::of(Backend::of_folder(folder.clone(), files)))
    }

    /// The files in a bucket. It is tried first: a store that is down or slow is logged alone, since it may come back.
    ///
    /// What hosts that were killed have begun to upload stays there, unseen and paid for, until a lifecycle rule of the bucket removes it:
    /// give it `AbortIncompleteMultipartUpload` with `DaysAfterInitiation: 1`.
    ///
    /// # Errors
    /// What is wrong with the bucket or the credentials.
    pub async fn in_bucket(place: S3Place) -> Result<Self, String> {
        let (bucket, patience) = place.connect()?;
        let artefacts = Self::of(Backend::of_bucket(bucket, patience));
        match artefacts.probe().await {
            Err(failed) if failed.why() == StoreFault::Refused => Err(failed.to_string()),
            Err(failed) => {
                tracing::warn!(error = %failed, "artefacts cannot be stored yet");
                Ok(artefacts)
            }
            Ok(()) => Ok(artefacts),
        }
    }

    /// The files in a bucket, for a process whose credentials only read. It is tried first, and what is wrong is logged.
    ///
    /// # Errors
    /// Fails if the address or the credentials are wrong, as far as this shows without a request to the store.
    pub async fn in_bucket_to_read(place: S3Place) -> Result<Self, String> {
        let (bucket, patience) = place.connect()?;
        let artefacts = Self::of(Backend::of_bucket(bucket, patience));
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

    /// Takes what this says for the space of the volume of the files. To be called before they are used.
    #[must_use]
    pub fn on_volume(self, space: impl Fn() -> std::io::Result<VolumeSpace> + Send + Sync + 'static) -> Self {
        self.with(|backend| backend.on_volume(Box::new(space)))
    }

    /// The files of one owner take no more than this. To be called before they are used.
    #[must_use]
    pub fn with_share(self, share: FilesShare) -> Self {
        self.with(|backend| backend.with_share(share))
    }

    fn with(self, change: impl FnOnce(Backend) -> Backend) -> Self {
        match Arc::try_unwrap(self.of) {
            Ok(backend) => Self { of: Arc::new(change(backend)), ..self },
            // Somebody uses it already.
            Err(of) => Self { of, ..self },
        }
    }

    /// Does what is done to files with one of no use. Hosts that start at once do not meet.
    async fn probe(&self) -> Result<(), ArtefactsFailed> {
        let name = format!("{:016x}", RandomState::new().hash_one(PROBE));
        let place = Place::from_iter([PROBE, &name]);
        let store = &self.of.store;
        self.of.within(store.put(&place, Bytes::from_static(b"oarlock\n").into())).await?;
        self.read(&place, 0..1).await?;
        let _listed: Vec<ObjectMeta> = self.of.within(store.list(Some(&Place::from(PROBE))).try_collect()).await?;
        self.of.within(store.delete(&place)).await
    }

    /// Where the files are, one folder for each job; `None` where they are in a bucket.
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

    /// How many files may be written at once: together they hold 20 MiB in memory at most.
    pub fn streams(&self) -> usize {
        self.of.sizes().streams
    }

    /// The address at which whoever has it can read a file of a job for a while, without credentials; `None` where files are in a folder.
    /// It is not looked whether the file is there. Credentials that end before `valid` does end the address.
    ///
    /// # Errors
    /// Why it cannot be signed.
    pub async fn signed_url(
        &self,
        (job, file): (&str, &str),
        valid: Duration,
    ) -> Option<Result<String, ArtefactsFailed>> {
        let bucket = self.of.bucket()?;
        if valid > SIGNED {
            return Some(Err(ArtefactsFailed::new(format!(
                "an address cannot be good for {} s: at most {} s, which is a week",
                valid.as_secs(),
                SIGNED.as_secs()
            ))));
        }
        let place: Place = bucket.prefix.parts().chain(Place::from_iter([job, file]).parts()).collect();
        let signed = bucket.client.signed_url(reqwest::Method::GET, &place, valid);
        Some(self.of.within(signed).await.map(String::from))
    }

    /// The reference that an output has of a file of a job.
    pub fn reference(job: &str, file: &str) -> String {
        format!("artifact:{job}/{file}")
    }

    /// Publishes a file of a job, by their names, in place of any of its name, and removes what is too old. Yields its reference.
    ///
    /// # Errors
    /// Why it is not known to be there.
    pub async fn publish(
        &self,
        (job, file): (&str, &str),
        bytes: Vec<u8>,
        now: Timestamp,
    ) -> Result<String, ArtefactsFailed> {
        self.remove_old_when_due(now);
        self.of.within(self.of.store.put(&Place::from_iter([job, file]), bytes.into())).await?;
        Ok(Self::reference(job, file))
    }

    /// Begins to write a file of a job, by their names.
    ///
    /// # Errors
    /// Why the store does not take it.
    pub async fn write(&self, (job, file): (&str, &str), now: Timestamp) -> Result<Upload, ArtefactsFailed> {
        self.remove_old_when_due(now);
        self.begin(&Place::from_iter([job, file])).await
    }

    pub(crate) async fn begin(&self, place: &Place) -> Result<Upload, ArtefactsFailed> {
        Upload::begin(self.of.clone(), place.clone()).await
    }

    fn part(&self, (job, of, name): (&str, &str, &str)) -> Place {
        Place::from_iter([PARTS, job, of, name])
    }

    /// Begins to write a part of the logs of the job of this UID, by whose it is and its name.
    ///
    /// # Errors
    /// Why the store does not take it.
    pub async fn write_part(&self, part: (&str, &str, &str)) -> Result<Upload, ArtefactsFailed> {
        self.begin(&self.part(part)).await
    }

    /// A part that is there whole, and its beginning, at most so many bytes.
    ///
    /// # Errors
    /// Why it is not known.
    pub async fn find_part(
        &self,
        part: (&str, &str, &str),
        beginning: u64,
    ) -> Result<Option<(LogPart, Bytes)>, ArtefactsFailed> {
        let place = self.part(part);
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

    /// The parts of the logs of the job of this UID, by whose they are and their names.
    ///
    /// # Errors
    /// Why they are not known.
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
    /// Why they are not known to be gone.
    pub async fn drop_parts(&self, job: &str) -> Result<(), ArtefactsFailed> {
        self.of.remove(self.parts(job).await?.into_iter().map(|part| part.place).collect()).await
    }

    /// The UIDs of the jobs that have parts.
    ///
    /// # Errors
    /// Why they are not known.
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

/// Makes a folder that nobody else reads, or lets nobody else read it: logs are in there.
fn make_own(folder: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    if std::fs::metadata(folder)?.permissions().mode() & 0o077 != 0 {
        let closed = std::fs::set_permissions(folder, Permissions::from_mode(0o700));
        // One of another user is as that user has made it.
        closed.or_else(|error| if error.kind() == ErrorKind::PermissionDenied { Ok(()) } else { Err(error) })?;
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;

    use super::*;

    /// A folder of this name that is not there.
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
        // As an earlier version has left it.
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
        assert!(artefacts.publish(("a", "b"), Vec::new(), Timestamp::UNIX_EPOCH).await.is_err());
        fs::remove_file(folder).unwrap();
    }
}
