//! Caches the count of each owner's files, so that not every job lists all notes of its owner.
//!
//! Combines listings of notes with the notes that this process writes. A note that is written during a listing may count twice until the
//! next listing. No note of this process is missed. A listing expires after a minute. The next one finds removed files and the notes of
//! other processes.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// How long a listing is valid.
const BELIEVED: Duration = Duration::from_secs(60);
/// How long an owner is remembered after its last listing began. No listing takes that long.
const REMEMBERED: Duration = Duration::from_secs(600);
/// The bytes of a block. A file takes whole blocks.
const BLOCK: u64 = 4 * 1024;
/// The bytes that each file counts in addition to its content: for its folder, its inode and its note.
pub(crate) const BESIDE: u64 = 16 * 1024;

/// A number of files, and the bytes that they count for their owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) files: u64,
    /// The whole blocks of the files, and 16 KiB for each file.
    pub(crate) bytes: u64,
}

impl Counted {
    /// Returns the count of one file of this size. An empty file counts too, because it takes inodes.
    pub(crate) const fn of(size: u64) -> Self {
        Self { files: 1, bytes: size.div_ceil(BLOCK).saturating_mul(BLOCK).saturating_add(BESIDE) }
    }

    /// Returns the sum of two counts.
    pub(crate) const fn plus(self, other: Self) -> Self {
        Self { files: self.files.saturating_add(other.files), bytes: self.bytes.saturating_add(other.bytes) }
    }

    /// Returns the difference of two counts, at least 0.
    const fn minus(self, other: Self) -> Self {
        Self { files: self.files.saturating_sub(other.files), bytes: self.bytes.saturating_sub(other.bytes) }
    }
}

/// The counts of all owners, by the digests of their keys.
#[derive(Debug, Default)]
pub(crate) struct OwnerCounts(HashMap<String, OwnerCount>);

#[derive(Debug)]
struct OwnerCount {
    /// The time at which the last listing began.
    begun: Instant,
    /// All files noted since this owner is remembered.
    noted: Counted,
    /// The newest finished listing, with its result.
    listed: Option<(NotesListing, Counted)>,
}

/// A listing of the notes of an owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NotesListing {
    begun: Instant,
    /// All files that had been noted when the listing began.
    noted: Counted,
}

impl OwnerCounts {
    /// Returns the count of an owner, if its last listing is still valid.
    pub(crate) fn known(&self, owner: &str, now: Instant) -> Option<Counted> {
        let count = self.0.get(owner)?;
        let (listing, found) = count.listed.filter(|(listing, _)| now.duration_since(listing.begun) < BELIEVED)?;
        Some(found.plus(count.noted.minus(listing.noted)))
    }

    /// Begins a listing of the notes of an owner, and forgets owners without recent listings.
    pub(crate) fn begin(&mut self, owner: &str, now: Instant) -> NotesListing {
        self.0.retain(|_, count| now.duration_since(count.begun) < REMEMBERED);
        let new = || OwnerCount { begun: now, noted: Counted::default(), listed: None };
        let count = self.0.entry(owner.to_owned()).or_insert_with(new);
        count.begun = now;
        NotesListing { begun: now, noted: count.noted }
    }

    /// Ends a listing with its result, unless a listing that began later has already ended.
    pub(crate) fn end(&mut self, owner: &str, listing: NotesListing, found: Counted) {
        let Some(count) = self.0.get_mut(owner) else { return };
        if count.listed.is_none_or(|(last, _)| last.begun <= listing.begun) {
            count.listed = Some((listing, found));
        }
    }

    /// Adds a new file of an owner. Call it after the note is written: a listing that begins before the call may count the note too.
    pub(crate) fn add(&mut self, owner: &str, file: Counted) {
        if let Some(count) = self.0.get_mut(owner) {
            count.noted = count.noted.plus(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn files(files: u64) -> Counted {
        (0..files).fold(Counted::default(), |all, _| all.plus(Counted::of(0)))
    }

    #[test]
    fn a_file_counts_its_whole_blocks_and_what_is_beside_it() {
        assert_eq!([0, 1, 4_096, 4_097].map(|size| Counted::of(size).bytes), [16_384, 20_480, 20_480, 24_576]);
        assert!(Counted::of(u64::MAX).bytes > 1 << 62, "nothing overflows");
    }

    #[test]
    fn files_that_are_noted_after_a_listing_count_until_it_is_a_minute_old() {
        let (mut counts, begun) = (OwnerCounts::default(), Instant::now());
        assert_eq!(counts.known("a", begun), None);
        counts.add("a", files(1));
        let listing = counts.begin("a", begun);
        assert_eq!(counts.known("a", begun), None, "it goes on");
        counts.end("a", listing, files(5));
        counts.add("a", files(1));
        counts.add("b", files(1));
        assert_eq!(counts.known("a", begun + BELIEVED - SECOND), Some(files(6)));
        assert_eq!(counts.known("a", begun + BELIEVED), None);
        assert_eq!(counts.known("b", begun), None);
    }

    #[test]
    fn a_file_that_is_noted_during_a_listing_is_not_missed() {
        let (mut counts, begun) = (OwnerCounts::default(), Instant::now());
        let first = counts.begin("a", begun);
        counts.add("a", files(1));
        let second = counts.begin("a", begun + SECOND);
        counts.add("a", files(1));
        counts.end("a", first, files(5));
        assert_eq!(counts.known("a", begun), Some(files(7)));
        counts.end("a", second, files(6));
        assert_eq!(counts.known("a", begun), Some(files(7)));
        counts.end("a", first, files(5));
        assert_eq!(counts.known("a", begun + BELIEVED), Some(files(7)), "the older listing says nothing any more");
    }

    #[test]
    fn owners_that_nobody_asks_for_are_forgotten() {
        let (mut counts, begun) = (OwnerCounts::default(), Instant::now());
        counts.begin("a", begun);
        counts.begin("b", begun + REMEMBERED - SECOND);
        assert_eq!(counts.0.len(), 2);
        counts.begin("b", begun + REMEMBERED);
        assert_eq!(counts.0.keys().collect::<Vec<_>>(), ["b"]);
    }
}
