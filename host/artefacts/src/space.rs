//! The room for the files of one owner: its share, and what its files count. Source: docs/opsjob.md 5.
//!
//! The sentences are for callers that get no room. This module removes no file: files of one owner are never removed for another owner.

use futures::TryStreamExt as _;
use k8s_openapi::jiff::Timestamp;
use object_store::path::Path as Place;
use object_store::{ObjectMeta, ObjectStoreExt as _};
use tokio::time::Instant;

use crate::counts::Counted;
use crate::failed::ArtefactsFailed;
use crate::store::{Artefacts, FileName};
use crate::volume::{FilesShare, VolumeSpace, mebibytes};

/// The folder for notes about the owners and sizes of files. No job has this name.
const OWNERS: &str = ".owners";
/// The most bytes of one owner's files in a bucket, unless an admin sets another share.
const OF_BUCKET: u64 = 64 * 1024 * 1024 * 1024;
/// The most percent of a volume for one owner's files, unless an admin sets another share.
const OF_VOLUME: u8 = 25;
/// Two limits in percent of the volume. Below `KEPT_FOR_OTHERS` percent of free bytes, only owners whose files take at most `OF_LITTLE`
/// percent get room. So a few owners with full shares leave room for the others.
const KEPT_FOR_OTHERS: u8 = 40;
const OF_LITTLE: u8 = 5;
/// The most files of one owner, of any size.
const MOST_FILES: u64 = 10_000;

/// The room of one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerRoom {
    /// The number of files.
    pub files: u64,
    /// The bytes that the files count: their whole blocks, and 16 KiB for each file.
    pub used: u64,
    /// The most bytes that the files may take.
    pub most: u64,
}

impl OwnerRoom {
    /// Returns the bytes that are left for logs. Logs take their space twice: for their parts, and for the merged file.
    pub fn left_for_logs(self) -> u64 {
        self.most.saturating_sub(self.used) / 2
    }

    /// Returns the reason why the owner gets no room for another file of this size, or `None` if there is room.
    pub fn refusal(self, owner: &str, size: u64) -> Option<String> {
        let has_room = self.files < MOST_FILES && self.used.saturating_add(Counted::of(size).bytes) <= self.most;
        (!has_room).then(|| self.describe(owner))
    }

    /// Returns a sentence about the room that the owner uses, and about how room becomes free.
    pub fn describe(self, owner: &str) -> String {
        format!(
            "the files of {owner} take {} of {} MiB (--files-share) and are {} of {MOST_FILES}: each goes 30 days after it was \
             made, or once an admin removes it with its note .owners/*/*.JOB",
            mebibytes(self.used),
            mebibytes(self.most),
            self.files,
        )
    }
}

/// The owner of a file.
#[derive(Clone, Copy, Debug)]
pub struct FileOwner<'a> {
    /// The digest of the owner's key, which names the folder of its notes.
    pub digest: &'a str,
    /// The name of the owner for people, such as `namespace team`.
    pub name: &'a str,
}

impl Artefacts {
    /// Returns the space of the volume that holds the files. Returns `None` for a bucket, or if the volume does not answer.
    pub async fn space(&self) -> Option<VolumeSpace> {
        self.of.space().await
    }

    /// Returns the reason why no file may be begun, or `None` if there is room.
    pub async fn scarce(&self) -> Option<String> {
        self.space().await.and_then(VolumeSpace::scarce)
    }

    /// Publishes a file of a job that counts for an owner. Returns the reference of the file.
    ///
    /// # Errors
    /// If the volume or the share of the owner is full, or the store does not confirm the file.
    pub async fn publish_for(
        &self,
        owner: FileOwner<'_>,
        file: FileName<'_>,
        bytes: Vec<u8>,
        now: Timestamp,
    ) -> Result<String, ArtefactsFailed> {
        let (space, size) = (self.space().await, bytes.len() as u64);
        if let Some(why) = space.and_then(VolumeSpace::scarce) {
            return Err(ArtefactsFailed::full(why));
        }
        self.check_room(space, owner, size).await?;
        let reference = self.publish(file, bytes, now).await?;
        if let Err(error) = self.note_owner(owner.digest, file.job, size).await {
            tracing::warn!(job = file.job, %error, "failed to note whose a file is; it counts for nobody");
        }
        Ok(reference)
    }

    /// Returns the room of one owner, by the digest of its key.
    ///
    /// # Errors
    /// If the store does not list the notes of the owner.
    pub async fn room_of(&self, owner: &str) -> Result<OwnerRoom, ArtefactsFailed> {
        self.room_within(self.space().await, owner).await
    }

    /// Returns the room of one owner, by the digest of its key, on a volume with this space.
    async fn room_within(&self, space: Option<VolumeSpace>, owner: &str) -> Result<OwnerRoom, ArtefactsFailed> {
        let most = match (self.of.share(), space) {
            (Some(FilesShare::Bytes(bytes)), _) => bytes,
            (Some(FilesShare::Percent(percent)), Some(space)) => part(space.total, percent),
            (None, Some(space)) => part(space.total, OF_VOLUME),
            (_, None) => OF_BUCKET,
        };
        let Counted { files, bytes } = self.count_of(owner).await?;
        let is_kept_for_others = |space: VolumeSpace| {
            bytes > part(space.total, OF_LITTLE) && space.free < part(space.total, KEPT_FOR_OTHERS)
        };
        let most = if space.is_some_and(is_kept_for_others) { bytes.min(most) } else { most };
        Ok(OwnerRoom { files, used: bytes, most })
    }

    /// Counts the files of one owner. Lists its notes if the last listing is older than a minute.
    async fn count_of(&self, owner: &str) -> Result<Counted, ArtefactsFailed> {
        let now = Instant::now();
        let listing = {
            let mut counts = self.counts.lock();
            if let Some(known) = counts.known(owner, now) {
                return Ok(known);
            }
            counts.begin(owner, now)
        };
        let notes = self.of.store.list(Some(&Place::from_iter([OWNERS, owner]))).try_collect();
        let notes: Vec<ObjectMeta> = self.of.within(notes).await?;
        let size = |note: &ObjectMeta| note.location.filename()?.split_once('.')?.0.parse::<u64>().ok();
        let found = notes.iter().filter_map(size).map(Counted::of).fold(Counted::default(), Counted::plus);
        let mut counts = self.counts.lock();
        counts.end(owner, listing, found);
        Ok(counts.known(owner, now).unwrap_or(found))
    }

    /// Checks that an owner has room for at least one more empty file.
    ///
    /// # Errors
    /// If the owner has no room, or the store does not list the notes of the owner.
    pub async fn has_room(&self, owner: FileOwner<'_>) -> Result<(), ArtefactsFailed> {
        self.check_room(self.space().await, owner, 0).await
    }

    /// Checks that an owner has room for another file of this size, on a volume with this space.
    async fn check_room(
        &self,
        space: Option<VolumeSpace>,
        owner: FileOwner<'_>,
        size: u64,
    ) -> Result<(), ArtefactsFailed> {
        let refusal = self.room_within(space, owner.digest).await?.refusal(owner.name, size);
        refusal.map_or(Ok(()), |why| Err(ArtefactsFailed::full(why)))
    }

    /// Writes a note that an owner has a file of this job and size. The owner is given by its digest. The note expires with the file.
    ///
    /// # Errors
    /// If the store does not confirm the note.
    pub async fn note_owner(&self, owner: &str, job: &str, size: u64) -> Result<(), ArtefactsFailed> {
        let place = Place::from_iter([OWNERS, owner, &format!("{size}.{job}")]);
        self.of.within(self.of.store.put(&place, Vec::new().into())).await?;
        self.counts.lock().add(owner, Counted::of(size));
        Ok(())
    }
}

fn part(total: u64, percent: u8) -> u64 {
    (total / 100).saturating_mul(u64::from(percent))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::counts::BESIDE;
    use crate::store::tests::folder;

    #[tokio::test]
    async fn an_empty_file_counts_for_its_folder_and_its_note_whichever_version_has_noted_it() {
        let folder = folder("count");
        let artefacts = Artefacts::in_folder(&folder).unwrap();
        artefacts.note_owner("a", "job-1", 0).await.unwrap();
        // An earlier version left these notes.
        for note in ["0.job-2", "5000.job-3.log", "no-size"] {
            std::fs::write(folder.join("artefacts/.owners/a").join(note), "").unwrap();
        }
        let room = artefacts.room_of("a").await.unwrap();
        assert_eq!((room.files, room.used), (3, 2 * 16_384 + 24_576));
        // A listing finds the notes of other processes once a minute. The notes of this process count at once.
        std::fs::write(folder.join("artefacts/.owners/a/0.job-4"), "").unwrap();
        artefacts.note_owner("a", "job-5", 0).await.unwrap();
        let room = artefacts.room_of("a").await.unwrap();
        assert_eq!((room.files, room.used), (4, 3 * 16_384 + 24_576));
        assert_eq!(Artefacts::in_folder(&folder).unwrap().room_of("a").await.unwrap().files, 5);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn an_owner_has_ten_thousand_files_however_small_they_are_and_is_told_how_room_comes_back() {
        let room = OwnerRoom { files: 9_999, used: 9_999 * BESIDE, most: 1 << 40 };
        assert_eq!(room.refusal("namespace team", 0), None);
        let room = OwnerRoom { files: 10_000, used: 10_000 * BESIDE, ..room };
        let message = room.refusal("namespace team", 0).unwrap();
        let expected = "the files of namespace team take 156 of 1048576 MiB (--files-share) and are 10000 of 10000: each goes 30 days \
                        after it was made, or once an admin removes it with its note .owners/*/*.JOB";
        assert_eq!(message, expected);
        // The sentence goes into an output, which has at most 256 characters.
        assert!(message.len() < 220, "{}", message.len());
    }

    #[test]
    fn a_file_that_is_larger_than_what_is_left_of_the_share_is_refused() {
        let room = OwnerRoom { files: 1, used: 0, most: 24_576 };
        assert_eq!(room.refusal("user u", 8_192), None);
        assert!(room.refusal("user u", 8_193).is_some());
        assert!(OwnerRoom { used: 8_193, ..room }.refusal("user u", 0).is_some(), "an empty file counts too");
    }

    #[tokio::test]
    async fn a_report_above_the_count_or_the_share_of_its_owner_is_refused_with_words_and_leaves_nothing() {
        let folder = folder("reports");
        let space = VolumeSpace { total: 1_000 << 20, free: 1_000 << 20, ..VolumeSpace::default() };
        let artefacts = Artefacts::in_folder(&folder).unwrap().on_volume(move || Ok(space));
        let artefacts = artefacts.with_share(FilesShare::Bytes(1 << 30));
        let notes = folder.join("artefacts/.owners/a");
        std::fs::create_dir_all(&notes).unwrap();
        for number in 1..MOST_FILES {
            std::fs::write(notes.join(format!("0.job-{number}")), "").unwrap();
        }
        let publish = async |digest: &str, job: &str, size: usize| {
            let file = FileName { job, file: "report.json" };
            artefacts
                .publish_for(
                    FileOwner { digest, name: "namespace team" },
                    file,
                    vec![b'x'; size],
                    Timestamp::UNIX_EPOCH,
                )
                .await
        };
        assert_eq!(publish("a", "last", 10).await.unwrap(), "artifact:last/report.json");
        let failed = publish("a", "more", 0).await.unwrap_err();
        assert!(failed.is_full() && failed.to_string().contains("are 10000 of 10000: each goes"), "{failed}");
        assert!(artefacts.has_room(FileOwner { digest: "a", name: "namespace team" }).await.unwrap_err().is_full());
        artefacts.note_owner("b", "log", (1 << 30) - (1 << 20)).await.unwrap();
        let failed = publish("b", "large", 1 << 20).await.unwrap_err();
        assert!(failed.is_full() && failed.to_string().contains("take 1023 of 1024 MiB (--files-share)"), "{failed}");
        publish("b", "small", 1 << 10).await.unwrap();
        artefacts.has_room(FileOwner { digest: "b", name: "namespace team" }).await.unwrap();
        let there = ["last", "more", "large", "small"].map(|job| folder.join("artefacts").join(job).exists());
        assert_eq!(there, [true, false, false, true]);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test]
    async fn the_last_part_of_a_volume_is_for_owners_with_little() {
        let folder = folder("little");
        let free = Arc::new(AtomicU64::new(400 << 20));
        let said = free.clone();
        let artefacts = Artefacts::in_folder(&folder).unwrap().on_volume(move || {
            Ok(VolumeSpace { total: 1_000 << 20, free: said.load(Ordering::Relaxed), ..VolumeSpace::default() })
        });
        artefacts.note_owner("much", "log", 60 << 20).await.unwrap();
        artefacts.note_owner("little", "log", 40 << 20).await.unwrap();
        let has_room = async |digest: &str| artefacts.has_room(FileOwner { digest, name: "namespace team" }).await;
        assert!(has_room("much").await.is_ok() && has_room("little").await.is_ok());
        free.store(399 << 20, Ordering::Relaxed);
        assert!(has_room("much").await.unwrap_err().is_full() && has_room("little").await.is_ok());
        assert!(has_room("new").await.is_ok());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test]
    async fn a_report_is_refused_by_a_volume_without_room_too() {
        let folder = folder("scarce");
        let space = VolumeSpace { total: 1_000 << 20, free: 100 << 20, ..VolumeSpace::default() };
        let artefacts = Artefacts::in_folder(&folder).unwrap().on_volume(move || Ok(space));
        let published = artefacts
            .publish_for(
                FileOwner { digest: "a", name: "user u" },
                FileName { job: "job", file: "report.json" },
                Vec::new(),
                Timestamp::UNIX_EPOCH,
            )
            .await;
        let failed = published.unwrap_err();
        assert!(failed.is_full() && failed.to_string().contains("10 % free"), "{failed}");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test]
    async fn files_count_for_their_owner_and_a_file_that_fills_the_volume_ends_with_words() {
        let folder = folder("space");
        let free = Arc::new(AtomicU64::new(1_000 << 20));
        let said = free.clone();
        let probe = move || {
            Ok(VolumeSpace { total: 1_000 << 20, free: said.load(Ordering::Relaxed), ..VolumeSpace::default() })
        };
        let artefacts = Artefacts::in_folder(&folder).unwrap().on_volume(probe).with_share(FilesShare::Percent(10));
        artefacts.note_owner("a", "job-1", 30 << 20).await.unwrap();
        artefacts.note_owner("a", "job-2", 20 << 20).await.unwrap();
        artefacts.note_owner("b", "job-3", 1 << 20).await.unwrap();
        let room = artefacts.room_of("a").await.unwrap();
        let beside = 2 * BESIDE;
        assert_eq!((room.files, room.used, room.most), (2, (50 << 20) + beside, 100 << 20));
        assert_eq!(room.left_for_logs(), (25 << 20) - beside / 2);
        let message = room.describe("namespace team");
        assert!(
            message.contains("of namespace team take 50 of 100 MiB") && message.contains("are 2 of 10000"),
            "{message}"
        );
        assert_eq!(artefacts.room_of("nobody").await.unwrap().used, 0);
        let mut upload = artefacts.write(FileName { job: "job-4", file: "file" }, Timestamp::UNIX_EPOCH).await.unwrap();
        let piece = vec![b'x'; 4 << 20];
        upload.write(&piece).await.unwrap();
        free.store(100 << 20, Ordering::Relaxed);
        assert!(artefacts.scarce().await.unwrap().contains("10 % free"));
        let mut failed = None;
        for _ in 0..8 {
            failed = failed.or(upload.write(&piece).await.err());
        }
        let failed = failed.unwrap();
        assert!(failed.is_full() && failed.to_string().contains("10 % free"), "{failed}");
        drop(upload);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
