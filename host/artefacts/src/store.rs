//! The files that OpsJobs leave, below a folder that an admin gives: each is published whole or not at all. Source: docs/opsjob.md 5.
//!
//! Takes a job, a name and bytes; yields the reference that an output has. May not hold a job up: what cannot be stored within a
//! moment is said in its place.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::jiff::Timestamp;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Place;
use object_store::{ObjectStore, ObjectStoreExt as _};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

/// Longest time that the folder may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Seconds that a file stays.
const KEPT: i64 = 30 * 24 * 3_600;
/// Least time between two searches for files that are older.
const SEARCHED: Duration = Duration::from_secs(3_600);

/// A folder of files. Clones share it.
#[derive(Clone, Debug)]
pub struct Artefacts {
    folder: Arc<LocalFileSystem>,
    path: Arc<Path>,
    searched: Arc<Mutex<Option<Instant>>>,
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
        Ok(Self { folder: Arc::new(files), path: folder.as_path().into(), searched: Arc::default() })
    }

    /// Where the files are: one folder for each job.
    pub fn folder(&self) -> &Path {
        &self.path
    }

    /// Publishes a file of a job, by their names, in place of any of its name, and removes what is too old. Yields its reference.
    ///
    /// # Errors
    /// Why it is not known to be there.
    pub async fn publish(&self, (job, file): (&str, &str), bytes: Vec<u8>, now: Timestamp) -> Result<String, String> {
        let place = Place::from_iter([job, file]);
        if self.is_due() {
            tokio::spawn(self.clone().remove_old(now));
        }
        match timeout(PATIENCE, self.folder.put(&place, bytes.into())).await {
            Ok(Ok(_put)) => Ok(format!("artifact:{place}")),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("the folder of artefacts does not answer within {} s", PATIENCE.as_secs())),
        }
    }

    fn is_due(&self) -> bool {
        let mut searched = self.searched.lock();
        let is_due = searched.is_none_or(|at| at.elapsed() >= SEARCHED);
        if is_due {
            *searched = Some(Instant::now());
        }
        is_due
    }

    /// Removes files that are too old. What cannot be read or removed is left for the next time.
    async fn remove_old(self, now: Timestamp) {
        let oldest = now.as_second().saturating_sub(KEPT);
        let mut files = self.folder.list(None);
        while let Some(file) = files.next().await {
            let removed = match file {
                Ok(file) if file.last_modified.timestamp() < oldest => self.folder.delete(&file.location).await,
                Ok(_) => Ok(()),
                Err(error) => Err(error),
            };
            if let Err(error) = removed {
                tracing::warn!(error = %error, "failed to remove an old artefact; trying again in an hour");
            }
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
            assert_eq!(told.as_deref(), Ok("artifact:check-a/report.json"));
            assert_eq!(fs::read_to_string(kept.join("check-a/report.json")).unwrap(), text);
        }
        assert_eq!(fs::read_dir(kept.join("check-a")).unwrap().count(), 1, "nothing half done is left");
        let file = File::open(kept.join("check-a/report.json")).unwrap();
        let modified = file.metadata().unwrap().modified().unwrap();
        let made = Timestamp::try_from(modified).unwrap();
        let ago = Duration::from_secs(u64::try_from(KEPT).unwrap() + 60);
        file.set_modified(modified - ago).unwrap();
        let later = Artefacts::in_folder(&folder).unwrap();
        later.publish(("check-b", "report.json"), Vec::new(), made).await.unwrap();
        while kept.join("check-a").exists() {
            tokio::task::yield_now().await;
        }
        assert!(kept.join("check-b/report.json").exists());
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
