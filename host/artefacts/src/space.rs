//! The room for files: the free space of their volume, and the share of one owner. Source: docs/opsjob.md 5.
//!
//! Takes what the volume and the notes of an owner say; yields sentences for whoever gets no room. Nothing here removes a file: those of
//! one owner are never removed for another one's.

use std::fmt;
use std::io;
use std::path::Path;
use std::str::FromStr;

use futures::TryStreamExt as _;
use k8s_openapi::jiff::Timestamp;
use object_store::path::Path as Place;
use object_store::{ObjectMeta, ObjectStoreExt as _};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

use crate::backend::PATIENCE;
use crate::counts::Counted;
use crate::failed::ArtefactsFailed;
use crate::store::Artefacts;

/// The folder of notes of whose files are how large. No job has this name.
const OWNERS: &str = ".owners";
/// The part of the bytes and of the inodes of a volume that has to be free before a file is begun: one of so many. The history, which may
/// be on the same volume, has it.
const FREE: u64 = 5;
/// Bytes that are written between two looks at what is free.
pub(crate) const LOOKS_EACH: u64 = 16 * 1024 * 1024;
/// Bytes that the files of one owner take at most in a bucket, unless an admin sets another share.
const OF_BUCKET: u64 = 64 * 1024 * 1024 * 1024;
/// The same of a volume, in percent.
const OF_VOLUME: u8 = 25;
/// Below so many percent of free bytes, only an owner whose files take at most so many percent of the volume has room: a few owners with
/// their whole shares leave no other one without.
const KEPT_FOR_OTHERS: u8 = 40;
const OF_LITTLE: u8 = 5;
/// Most files of one owner, whatever their sizes are.
const MOST_FILES: u64 = 10_000;

/// The room of a volume, in bytes and in inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeSpace {
    /// The used and the free bytes. Blocks that are reserved for other users do not count, as in `df`.
    pub total: u64,
    /// The bytes that this process may still write.
    pub free: u64,
    /// The used and the free inodes. 0 where the filesystem makes inodes as it needs them, as btrfs does.
    pub inodes: u64,
    /// The inodes that this process may still take.
    pub free_inodes: u64,
}

impl VolumeSpace {
    /// Asks the volume of a folder.
    ///
    /// # Errors
    /// Why it does not say.
    pub fn of(folder: &Path) -> io::Result<Self> {
        let said = rustix::fs::statvfs(folder)?;
        let bytes = |blocks: u64| blocks.saturating_mul(said.f_frsize);
        let with_used = |all: u64, free: u64, available: u64| all.saturating_sub(free).saturating_add(available);
        Ok(Self {
            total: bytes(with_used(said.f_blocks, said.f_bfree, said.f_bavail)),
            free: bytes(said.f_bavail),
            inodes: with_used(said.f_files, said.f_ffree, said.f_favail),
            free_inodes: said.f_favail,
        })
    }

    /// Says why no file is begun or goes on: too few bytes or inodes are free. `None` if there is room.
    pub fn scarce(self) -> Option<String> {
        let percent = |free: u64, all: u64| u128::from(free).saturating_mul(100).checked_div(u128::from(all));
        let (all, free, of_what) = match self {
            Self { total, free, .. } if free < total / FREE => (total, free, ""),
            Self { inodes, free_inodes, .. } if free_inodes < inodes / FREE => (inodes, free_inodes, "of its inodes "),
            _ => return None,
        };
        // No more than that changes each time it is looked at: it is in a status, which would be written as often.
        Some(format!(
            "the volume of files has {} % {of_what}free, and below {} % none is written: an admin removes some or enlarges it",
            percent(free, all).unwrap_or(100),
            100 / FREE
        ))
    }
}

const fn mebibytes(bytes: u64) -> u64 {
    bytes / (1024 * 1024)
}

/// A function that asks a volume for its room.
pub(crate) type SpaceProbe = Box<dyn Fn() -> io::Result<VolumeSpace> + Send + Sync>;

/// The largest share that the files of one owner take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilesShare {
    /// So many percent of their volume.
    Percent(u8),
    /// So many bytes.
    Bytes(u64),
}

impl FromStr for FilesShare {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write a part of the volume such as 25%, or a size such as 64Gi".to_owned();
        if let Some(percent) = text.strip_suffix('%') {
            let percent = percent.parse().ok().filter(|percent| (1..=100).contains(percent));
            return percent.map(Self::Percent).ok_or_else(wrong);
        }
        let units = [("Mi", 20_u32), ("Gi", 30), ("Ti", 40)];
        let found = units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
        let (number, shift) = found.ok_or_else(wrong)?;
        let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1_u64.checked_shl(shift)?));
        bytes.filter(|bytes| *bytes > 0).map(Self::Bytes).ok_or_else(wrong)
    }
}

impl fmt::Display for FilesShare {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent(percent) => write!(out, "{percent}%"),
            Self::Bytes(bytes) => write!(out, "{}Mi", mebibytes(*bytes)),
        }
    }
}

/// The files of one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerRoom {
    /// How many files there are.
    pub files: u64,
    /// Bytes that the files count: their whole blocks, and 16 KiB for each.
    pub used: u64,
    /// Bytes that they may take.
    pub most: u64,
}

impl OwnerRoom {
    /// Bytes that are left. Logs take it twice: they are collected, and then put together.
    pub fn left_for_logs(self) -> u64 {
        self.most.saturating_sub(self.used) / 2
    }

    /// Says why the owner gets no room for one more file of this size; `None` if it does.
    pub fn refusal(self, owner: &str, size: u64) -> Option<String> {
        let has_room = self.files < MOST_FILES && self.used.saturating_add(Counted::of(size).bytes) <= self.most;
        (!has_room).then(|| self.words(owner))
    }

    /// Says what the owner uses of its room, and how room comes back.
    pub fn words(self, owner: &str) -> String {
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
    /// The digest of its key, which names the folder of its notes.
    pub digest: &'a str,
    /// Its name for people, such as `namespace team`.
    pub name: &'a str,
}

impl Artefacts {
    /// Returns the room of the volume that holds the files; `None` for a bucket, or if the volume does not answer.
    pub async fn space(&self) -> Option<VolumeSpace> {
        self.of.space().await
    }

    /// Why no file is begun; `None` where there is room.
    pub async fn scarce(&self) -> Option<String> {
        self.space().await.and_then(VolumeSpace::scarce)
    }

    /// Publishes a file of a job, by their names, that counts for an owner. Returns the reference of the file.
    ///
    /// # Errors
    /// Says why the volume or the share of the owner has no room, or why the file is not known to be there.
    pub async fn publish_for(
        &self,
        owner: FileOwner<'_>,
        (job, file): (&str, &str),
        bytes: Vec<u8>,
        now: Timestamp,
    ) -> Result<String, ArtefactsFailed> {
        let (space, size) = (self.space().await, bytes.len() as u64);
        if let Some(why) = space.and_then(VolumeSpace::scarce) {
            return Err(ArtefactsFailed::full(why));
        }
        self.check_room(space, owner, size).await?;
        let reference = self.publish((job, file), bytes, now).await?;
        if let Err(error) = self.note_owner(owner.digest, job, size).await {
            tracing::warn!(job, %error, "failed to note whose a file is; it counts for nobody");
        }
        Ok(reference)
    }

    /// Returns the room of one owner, by the digest of its key.
    ///
    /// # Errors
    /// Why that is not known.
    pub async fn room_of(&self, owner: &str) -> Result<OwnerRoom, ArtefactsFailed> {
        self.room_within(self.space().await, owner).await
    }

    /// Returns the room of one owner, by the digest of its key, on a volume of this space.
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

    /// Counts the files of one owner. Lists its notes if that was not done within a minute.
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

    /// Fails unless an owner has room for one more file, an empty one at least.
    ///
    /// # Errors
    /// Says what the files of the owner take, or why that is not known.
    pub async fn has_room(&self, owner: FileOwner<'_>) -> Result<(), ArtefactsFailed> {
        self.check_room(self.space().await, owner, 0).await
    }

    /// Fails unless an owner has room for one more file of this size, on a volume of this space.
    async fn check_room(
        &self,
        space: Option<VolumeSpace>,
        owner: FileOwner<'_>,
        size: u64,
    ) -> Result<(), ArtefactsFailed> {
        let refusal = self.room_within(space, owner.digest).await?.refusal(owner.name, size);
        refusal.map_or(Ok(()), |why| Err(ArtefactsFailed::full(why)))
    }

    /// Notes that an owner, by its digest, has a file of this job and size. The note goes with the file.
    ///
    /// # Errors
    /// Why that is not known to be noted.
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

/// Asks without keeping the runtime waiting for a volume that does not answer.
pub(crate) async fn ask(probe: std::sync::Arc<SpaceProbe>) -> Option<VolumeSpace> {
    match timeout(PATIENCE, spawn_blocking(move || probe())).await {
        Ok(Ok(Ok(space))) => Some(space),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::counts::BESIDE;
    use crate::store::tests::folder;

    #[test]
    fn a_volume_with_less_than_a_fifth_free_takes_no_file() {
        let space = |free: u64| VolumeSpace { total: 1_000 << 20, free: free << 20, ..VolumeSpace::default() };
        assert_eq!(space(200).scarce(), None);
        let words = space(199).scarce().unwrap();
        assert!(words.contains("has 19 % free, and below 20 %"), "{words}");
        assert_eq!(VolumeSpace::default().scarce(), None);
        assert!(VolumeSpace::of(Path::new("/")).unwrap().total > 0);
    }

    #[test]
    fn a_volume_with_less_than_a_fifth_of_its_inodes_free_takes_no_file_unless_it_has_no_number_of_them() {
        let space = |inodes: u64, free_inodes: u64| VolumeSpace { total: 10, free: 10, inodes, free_inodes };
        assert_eq!(space(1_000, 200).scarce(), None);
        let words = space(1_000, 199).scarce().unwrap();
        assert!(words.contains("has 19 % of its inodes free, and below 20 %"), "{words}");
        assert!(space(1_000, 0).scarce().unwrap().contains("has 0 % of its inodes free"));
        assert_eq!(space(0, 0).scarce(), None, "btrfs has no number of inodes");
        assert_eq!(space(u64::MAX, u64::MAX).scarce(), None, "CephFS knows no number of free inodes");
        let full = VolumeSpace { free: 1, ..space(1_000, 0) };
        assert!(full.scarce().unwrap().contains("has 10 % free"), "bytes are named first");
        let root = VolumeSpace::of(Path::new("/")).unwrap();
        assert!(root.free_inodes <= root.inodes);
    }

    #[test]
    fn a_share_is_a_part_of_the_volume_or_a_size() {
        for (text, share) in [("25%", FilesShare::Percent(25)), ("64Gi", FilesShare::Bytes(64 << 30))] {
            assert_eq!(text.parse::<FilesShare>().unwrap(), share);
            assert_eq!(share.to_string().parse::<FilesShare>().unwrap(), share);
        }
        for wrong in ["", "0%", "101%", "25", "0Gi", "-1Gi", "99999999999999999Ti"] {
            assert!(wrong.parse::<FilesShare>().is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn an_empty_file_counts_for_its_folder_and_its_note_whichever_version_has_noted_it() {
        let folder = folder("count");
        let artefacts = Artefacts::in_folder(&folder).unwrap();
        artefacts.note_owner("a", "job-1", 0).await.unwrap();
        // As an earlier version has left them.
        for note in ["0.job-2", "5000.job-3.log", "no-size"] {
            std::fs::write(folder.join("artefacts/.owners/a").join(note), "").unwrap();
        }
        let room = artefacts.room_of("a").await.unwrap();
        assert_eq!((room.files, room.used), (3, 2 * 16_384 + 24_576));
        // Notes of others are listed once a minute; those of this process count at once.
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
        let words = room.refusal("namespace team", 0).unwrap();
        let expected = "the files of namespace team take 156 of 1048576 MiB (--files-share) and are 10000 of 10000: each goes 30 days \
                        after it was made, or once an admin removes it with its note .owners/*/*.JOB";
        assert_eq!(words, expected);
        // It is in an output, which has 256 characters.
        assert!(words.len() < 220, "{}", words.len());
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
            let file = (job, "report.json");
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
                ("job", "report.json"),
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
        let words = room.words("namespace team");
        assert!(words.contains("of namespace team take 50 of 100 MiB") && words.contains("are 2 of 10000"), "{words}");
        assert_eq!(artefacts.room_of("nobody").await.unwrap().used, 0);
        let mut upload = artefacts.write(("job-4", "file"), Timestamp::UNIX_EPOCH).await.unwrap();
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
