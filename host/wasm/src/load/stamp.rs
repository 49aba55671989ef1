//! The state of a file: a stamp of its content, and whether it still changes.
//!
//! A writer may remove a file, empty it and fill it again, in any number of steps. The states between these steps do not count.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::OFlags;

/// The time without a change after which a file counts as complete.
pub(crate) const SETTLE: Duration = Duration::from_millis(100);

/// A fingerprint of a file's content, made without reading the content. It includes the time of the last change of the inode, because a
/// writer can set back the time of modification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Reads the file at `path`, at most `limit` bytes. Returns `None` if the file has another stamp.
    pub(crate) fn read(self, path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
        // A blocking open of a pipe in place of the file would wait for a writer.
        let file = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(self.bytes.min(limit)).unwrap_or_default());
        let read = (&file).take(limit).read_to_end(&mut bytes)?;
        let same = Self::of(&file.metadata()?) == self && read as u64 == self.bytes;
        Ok(same.then_some(bytes))
    }
}

/// The time for which a file has not changed.
#[derive(Default)]
pub(crate) struct Settling {
    /// The last state of the file, and the time at which it was first seen. The state is `None` if the file was missing.
    since: Option<(Option<Stamp>, Instant)>,
}

impl Settling {
    /// Returns true if a file did not change for `wait`. `metadata` is its current state, or `None` if the file is missing.
    ///
    /// The time of the last change is in the metadata. If the file is missing or its time is in the future, its state must be observed for
    /// `wait`.
    pub(crate) fn is_over(&mut self, metadata: Option<&Metadata>, wait: Duration) -> bool {
        let (stamp, now) = (metadata.map(Stamp::of), Instant::now());
        let since = self.since.get_or_insert((stamp, now));
        if since.0 != stamp {
            *since = (stamp, now);
        }
        now.saturating_duration_since(since.1) >= wait || metadata.and_then(age).is_some_and(|age| age >= wait)
    }
}

/// Returns the time since the last change of a file, or `None` if that change is in the future.
#[allow(clippy::disallowed_methods, reason = "the age of a file's last change is known by the wall clock alone")]
fn age(metadata: &Metadata) -> Option<Duration> {
    metadata.modified().ok().and_then(|modified| SystemTime::now().duration_since(modified).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_that_came_into_the_place_of_a_file_is_not_waited_for() {
        let folder = std::env::temp_dir().join(format!("oarlock-stamp-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a.wasm");
        std::fs::write(&path, "content").unwrap();
        let stamp = Stamp::of(&path.metadata().unwrap());
        assert_eq!(stamp.read(&path, 100).unwrap().as_deref(), Some(b"content".as_slice()));
        std::fs::remove_file(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let (read, answer) = std::sync::mpsc::channel();
        let pipe = path.clone();
        std::thread::spawn(move || read.send(stamp.read(&pipe, 100)));
        let refused = answer.recv_timeout(Duration::from_secs(30)).expect("it waits for a writer");
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
