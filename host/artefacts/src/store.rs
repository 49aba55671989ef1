//! The files that OpsJobs leave, below a folder that an admin gives: each is published whole or not at all. Source: docs/opsjob.md 5.
//!
//! Takes a job, a name and bytes; yields the reference that an output has. May not hold a job up: what cannot be stored within a
//! moment is said in its place. What logs are put together of is kept beside the files until their job goes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::jiff::Timestamp;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Place;
use object_store::{ObjectStore, ObjectStoreExt as _};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use crate::merge::TURNS;
use crate::upload::Upload;

/// Longest time that the folder may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Seconds that a file stays.
const KEPT: i64 = 30 * 24 * 3_600;
/// Least time between two searches for files that are older.
const SEARCHED: Duration = Duration::from_secs(3_600);
/// Seconds after which a file that is not finished, and to which nothing was added, belongs to a host that is gone.
const UNFINISHED: u64 = 3_600;
/// The folder of parts. No job has this name.
const PARTS: &str = ".parts";
/// Bytes of a piece of a file that is written.
const PIECE: usize = 512 * 1024;

/// Files. Clones share them.
#[derive(Clone, Debug)]
pub struct Artefacts {
    store: Arc<dyn ObjectStore>,
    path: Arc<Path>,
    searched: Arc<Mutex<Option<Instant>>>,
}

/// Why a file is not known to be stored or read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ArtefactsFailed(String);

impl ArtefactsFailed {
    pub(crate) fn silent(after: Duration) -> Self {
        Self(format!("the folder of artefacts does not answer within {} s", after.as_secs()))
    }
}

impl From<object_store::Error> for ArtefactsFailed {
    fn from(error: object_store::Error) -> Self {
        Self(error.to_string())
    }
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
        std::fs::create_dir_all(folder).map_err(|error| words(&error))?;
        let files = LocalFileSystem::new_with_prefix(folder).map_err(|error| words(&error))?;
        let files = files.with_automatic_cleanup(true).with_fsync(true);
        Ok(Self { store: Arc::new(files), path: folder.as_path().into(), searched: Arc::default() })
    }

    /// Where the files are: one folder for each job.
    pub fn folder(&self) -> &Path {
        &self.path
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
        self.within(self.store.put(&Place::from_iter([job, file]), bytes.into())).await?;
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
        Ok(Upload::begin(self.within(self.store.put_multipart(place)).await?, PIECE))
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
        let head = match timeout(PATIENCE, self.store.head(&place)).await {
            Err(_) => return Err(ArtefactsFailed::silent(PATIENCE)),
            Ok(Err(object_store::Error::NotFound { .. })) => return Ok(None),
            Ok(head) => head?,
        };
        let beginning = self.read(&place, 0..beginning.min(head.size)).await?;
        Ok(Some((LogPart { place, size: head.size }, beginning)))
    }

    /// The parts of the logs of the job of this UID, by whose they are and their names.
    ///
    /// # Errors
    /// Why they are not known.
    pub async fn parts(&self, job: &str) -> Result<Vec<LogPart>, ArtefactsFailed> {
        let folder = Place::from_iter([PARTS, job]);
        let found: Vec<_> = self.within(self.store.list(Some(&folder)).try_collect()).await?;
        let mut parts: Vec<LogPart> = found
            .into_iter()
            .map(|found: object_store::ObjectMeta| LogPart { place: found.location, size: found.size })
            .collect();
        parts.sort_by(|one, other| one.place.cmp(&other.place));
        Ok(parts)
    }

    pub(crate) async fn drop_turns(&self, job: &str) -> Result<(), ArtefactsFailed> {
        let folder = Place::from_iter([PARTS, job, TURNS]);
        let found: Vec<_> = self.within(self.store.list(Some(&folder)).try_collect()).await?;
        for turn in found {
            let turn: object_store::ObjectMeta = turn;
            self.within(self.store.delete(&turn.location)).await?;
        }
        Ok(())
    }

    /// Removes the parts of the job of this UID.
    ///
    /// # Errors
    /// Why they are not known to be gone.
    pub async fn drop_parts(&self, job: &str) -> Result<(), ArtefactsFailed> {
        for part in self.parts(job).await? {
            self.within(self.store.delete(&part.place)).await?;
        }
        Ok(())
    }

    /// The UIDs of the jobs that have parts.
    ///
    /// # Errors
    /// Why they are not known.
    pub async fn jobs_with_parts(&self) -> Result<Vec<String>, ArtefactsFailed> {
        let all = self.within(self.store.list_with_delimiter(Some(&Place::from_iter([PARTS])))).await?;
        Ok(all.common_prefixes.iter().filter_map(|folder| Some(folder.filename()?.to_owned())).collect())
    }

    pub(crate) async fn read(&self, place: &Place, range: std::ops::Range<u64>) -> Result<Bytes, ArtefactsFailed> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        self.within(self.store.get_range(place, range)).await
    }

    async fn within<T>(&self, answer: impl Future<Output = object_store::Result<T>>) -> Result<T, ArtefactsFailed> {
        match timeout(PATIENCE, answer).await {
            Ok(answered) => Ok(answered?),
            Err(_) => Err(ArtefactsFailed::silent(PATIENCE)),
        }
    }

    fn remove_old_when_due(&self, now: Timestamp) {
        let mut searched = self.searched.lock();
        if searched.is_none_or(|at| at.elapsed() >= SEARCHED) {
            *searched = Some(Instant::now());
            tokio::spawn(self.clone().remove_old(now));
        }
    }

    /// Removes files that are too old. What cannot be read or removed is left for the next time.
    async fn remove_old(self, now: Timestamp) {
        let oldest = now.as_second().saturating_sub(KEPT);
        let mut files = self.store.list(None);
        while let Some(file) = files.next().await {
            let removed = match file {
                Ok(file) if file.last_modified.timestamp() < oldest => self.store.delete(&file.location).await,
                Ok(_) => Ok(()),
                Err(error) => Err(error),
            };
            if let Err(error) = removed {
                tracing::warn!(error = %error, "failed to remove an old artefact; trying again in an hour");
            }
        }
        let folder = self.path.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || remove_unfinished(&folder)).await {
            tracing::warn!(error = %error, "failed to remove unfinished files; trying again in an hour");
        }
    }
}

/// Removes what hosts that were killed have not finished: the store lists no such file.
fn remove_unfinished(folder: &Path) {
    let is_unfinished = |name: &str| {
        name.rsplit_once('#')
            .is_some_and(|(_, number)| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
    };
    let files = walkdir::WalkDir::new(folder).into_iter().filter_map(Result::ok);
    for file in files.filter(|file| file.file_type().is_file() && file.file_name().to_str().is_some_and(is_unfinished))
    {
        let age = file.metadata().ok().and_then(|about| about.modified().ok()?.elapsed().ok());
        if age.is_none_or(|age| age.as_secs() < UNFINISHED) {
            continue;
        }
        if let Err(error) = std::fs::remove_file(file.path()) {
            tracing::warn!(error = %error, file = %file.path().display(), "failed to remove an unfinished file");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    fn folder(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("oarlock-artefacts-{name}-{}", std::process::id()));
        let _none = fs::remove_dir_all(&folder);
        folder
    }

    #[tokio::test]
    async fn a_file_is_there_whole_under_the_name_of_its_job_and_goes_after_thirty_days() {
        let folder = folder("kept");
        let artefacts = Artefacts::in_folder(&folder).unwrap();
        let now = Timestamp::UNIX_EPOCH;
        let kept = folder.join("artefacts");
        for text in ["first", "second"] {
            let told = artefacts.publish(("check-a", "report.json"), text.into(), now).await;
            assert_eq!(told.unwrap(), "artifact:check-a/report.json");
            assert_eq!(fs::read_to_string(kept.join("check-a/report.json")).unwrap(), text);
        }
        assert_eq!(fs::read_dir(kept.join("check-a")).unwrap().count(), 1, "nothing half done is left");
        let file = File::open(kept.join("check-a/report.json")).unwrap();
        let modified = file.metadata().unwrap().modified().unwrap();
        let made = Timestamp::try_from(modified).unwrap();
        let ago = Duration::from_secs(u64::try_from(KEPT).unwrap() + 60);
        file.set_modified(modified - ago).unwrap();
        fs::create_dir_all(kept.join("check-b")).unwrap();
        let staged = [("r#1", 2 * UNFINISHED), ("r#2", 0), ("r#x", 2 * UNFINISHED)].map(|(name, age)| {
            let path = kept.join("check-b").join(name);
            let file = File::create(&path).unwrap();
            let made = file.metadata().unwrap().modified().unwrap();
            file.set_modified(made - Duration::from_secs(age)).unwrap();
            path
        });
        let later = Artefacts::in_folder(&folder).unwrap();
        later.publish(("check-b", "report.json"), Vec::new(), made).await.unwrap();
        while kept.join("check-a").exists() || staged[0].exists() {
            tokio::task::yield_now().await;
        }
        assert!(kept.join("check-b/report.json").exists());
        assert!(staged[1].exists() && staged[2].exists(), "one is being written, the other is no such file");
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
