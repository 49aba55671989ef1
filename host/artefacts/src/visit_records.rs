//! The records of plugins' visits, in files beside those of OpsJobs. Each file has some records of one OperationJob.

use bytes::Bytes;
use futures::TryStreamExt as _;
use k8s_openapi::jiff::Timestamp;
use object_store::path::Path as Place;
use object_store::{ObjectMeta, ObjectStoreExt as _};

use crate::failed::ArtefactsFailed;
use crate::store::Artefacts;

/// The folder of records. No OpsJob has this name.
const VISITS: &str = ".visits";
/// The bytes of the largest file of records that is read.
const MOST_BYTES: u64 = 16 << 20;

/// The OperationJob whose visits are recorded.
#[derive(Clone, Copy, Debug)]
pub struct VisitsOf<'a> {
    /// The namespace of the job.
    pub namespace: &'a str,
    /// The name of the job.
    pub job: &'a str,
}

impl VisitsOf<'_> {
    fn folder(self) -> Place {
        Place::from_iter([VISITS, self.namespace, self.job])
    }
}

impl Artefacts {
    /// Stores a file with records of a job. Files are sorted by `now` and `number`, and are removed after 30 days.
    ///
    /// # Errors
    /// If the store does not confirm the file.
    pub async fn put_visits(
        &self,
        of: VisitsOf<'_>,
        file: Vec<u8>,
        now: Timestamp,
        number: u64,
    ) -> Result<(), ArtefactsFailed> {
        self.remove_old_when_due(now);
        let name = format!("{:015}-{number:09}.jsonl.gz", now.as_millisecond());
        let place = of.folder().join(name);
        self.of.within(self.of.store.put(&place, file.into())).await.map(drop)
    }

    /// Returns the files with records of a job, oldest first. Leaves out files larger than any that a host writes.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn visits(&self, of: VisitsOf<'_>) -> Result<Vec<Bytes>, ArtefactsFailed> {
        let found: Vec<ObjectMeta> = self.of.within(self.of.store.list(Some(&of.folder())).try_collect()).await?;
        let mut found: Vec<ObjectMeta> = found.into_iter().filter(|file| file.size <= MOST_BYTES).collect();
        found.sort_by(|one, other| one.location.cmp(&other.location));
        let mut files = Vec::new();
        for file in found {
            files.push(self.read(&file.location, 0..file.size).await?);
        }
        Ok(files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::folder;

    #[tokio::test]
    async fn the_records_of_a_job_are_read_in_their_order_and_no_others() {
        let folder = folder("visits");
        let artefacts = Artefacts::in_folder(&folder).unwrap();
        let at = |second| Timestamp::from_second(second).unwrap();
        let now = Timestamp::now().as_second();
        let web = VisitsOf { namespace: "shop", job: "web" };
        artefacts.put_visits(web, b"2".to_vec(), at(now + 1), 0).await.unwrap();
        artefacts.put_visits(web, b"1".to_vec(), at(now), 7).await.unwrap();
        for other in [VisitsOf { namespace: "shop", job: "web-2" }, VisitsOf { namespace: "..", job: "../web" }] {
            artefacts.put_visits(other, b"3".to_vec(), at(now), 0).await.unwrap();
        }
        assert_eq!(artefacts.visits(web).await.unwrap(), [Bytes::from_static(b"1"), Bytes::from_static(b"2")]);
        assert!(artefacts.visits(VisitsOf { namespace: "other", job: "web" }).await.unwrap().is_empty());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
