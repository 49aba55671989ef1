//! Removes old files, and unfinished files of killed hosts.
//!
//! If a file cannot be read or removed, the next run tries again. S3 does not list unfinished uploads, so a lifecycle rule of the bucket
//! has to remove them (`AbortIncompleteMultipartUpload`, see [`Artefacts::in_bucket`]).

use std::path::Path;
use std::time::Duration;

use futures::TryStreamExt as _;
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use crate::failed::ArtefactsFailed;
use crate::store::Artefacts;

/// The seconds that a file is kept.
const KEPT: i64 = 30 * 24 * 3_600;
/// The shortest time between two searches for old files.
const SEARCHED: Duration = Duration::from_secs(3_600);
/// The seconds without a write after which an unfinished file belongs to a host that is gone.
const UNFINISHED: u64 = 3_600;
/// The most files that are removed at once.
const AT_ONCE: usize = 1_000;

impl Artefacts {
    pub(crate) fn remove_old_when_due(&self, now: Timestamp) {
        let mut searched = self.searched.lock();
        if searched.is_none_or(|at| at.elapsed() >= SEARCHED) {
            *searched = Some(Instant::now());
            tokio::spawn(self.clone().remove_old(now));
        }
    }

    async fn remove_old(self, now: Timestamp) {
        if let Err(error) = self.remove_older(now.as_second().saturating_sub(KEPT)).await {
            tracing::warn!(error = %error, "failed to remove old artefacts; trying again in an hour");
        }
        let Some(folder) = self.folder().map(Path::to_owned) else { return };
        if let Err(error) = tokio::task::spawn_blocking(move || remove_unfinished(&folder)).await {
            tracing::warn!(error = %error, "failed to remove unfinished files; trying again in an hour");
        }
    }

    /// Removes the files that were written before this second. Goes on with the other files if one file cannot be removed.
    async fn remove_older(&self, second: i64) -> Result<(), ArtefactsFailed> {
        let mut files = self.of.store.list(None);
        let (mut old, mut failed) = (Vec::new(), Ok(()));
        while let Some(file) = self.of.within(files.try_next()).await? {
            if file.last_modified.timestamp() < second {
                old.push(file.location);
            }
            if old.len() >= AT_ONCE {
                failed = failed.and(self.of.remove(std::mem::take(&mut old)).await);
            }
        }
        failed.and(self.of.remove(old).await)
    }
}

/// Removes unfinished files of killed hosts from a folder. The store does not list such files.
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
    use crate::store::FileName;
    use crate::store::tests::folder;

    #[tokio::test]
    async fn a_file_is_there_whole_under_the_name_of_its_job_and_goes_after_thirty_days() {
        let folder = folder("kept");
        let artefacts = Artefacts::in_folder(&folder).unwrap();
        let now = Timestamp::UNIX_EPOCH;
        let kept = folder.join("artefacts");
        for text in ["first", "second"] {
            let told = artefacts.publish(FileName { job: "check-a", file: "report.json" }, text.into(), now).await;
            assert_eq!(told.unwrap(), "artifact:check-a/report.json");
            assert_eq!(fs::read_to_string(kept.join("check-a/report.json")).unwrap(), text);
        }
        assert_eq!(fs::read_dir(kept.join("check-a")).unwrap().count(), 1, "nothing half done is left");
        let file = File::open(kept.join("check-a/report.json")).unwrap();
        let modified = file.metadata().unwrap().modified().unwrap();
        let made = modified.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let made = Timestamp::from_second(i64::try_from(made).unwrap()).unwrap();
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
        later.publish(FileName { job: "check-b", file: "report.json" }, Vec::new(), made).await.unwrap();
        while kept.join("check-a").exists() || staged[0].exists() {
            tokio::task::yield_now().await;
        }
        assert!(kept.join("check-b/report.json").exists());
        assert!(staged[1].exists() && staged[2].exists(), "one is being written, the other is no such file");
        fs::remove_dir_all(folder).unwrap();
    }
}
