//! Watches the plugin directory and the file of grants.
//!
//! Takes file events and a slow rescan; yields the files that changed. May not be fooled by half-written files, links
//! out of the directory, or file systems without events.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use notify::event::{AccessKind, AccessMode, ModifyKind, RenameMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::load::vet;
use crate::rejection::Rejection;

/// Time between two scans without an event.
const RESCAN: Duration = Duration::from_secs(2);
/// Time without a change after which a file counts as whole.
const SETTLE: Duration = Duration::from_millis(100);

/// A fingerprint of a file's content, made without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

/// The plugin directory and the file of grants, as last seen.
pub(crate) struct Directory {
    dir: PathBuf,
    grants: Option<PathBuf>,
    seen: BTreeMap<String, Stamp>,
    grants_seen: Option<Stamp>,
    /// Files that arrived by rename since the last scan, and so are whole.
    renamed: BTreeSet<String>,
    /// Files with a time of change in the future, with the time when this stamp was first seen.
    of_future: BTreeMap<String, (Stamp, Instant)>,
}

/// The changes since the last scan.
#[derive(Default)]
pub(crate) struct Scan {
    /// Files that may not be used.
    pub rejected: Vec<(String, Rejection)>,
    /// Files that are still being written.
    pub unsettled: Vec<String>,
    pub removed: Vec<String>,
    /// Files that can be read.
    pub ready: Vec<ReadyFile>,
}

/// A file that changed and is whole.
pub(crate) struct ReadyFile {
    pub name: String,
    path: PathBuf,
    stamp: Stamp,
}

impl Directory {
    pub(crate) fn new(dir: PathBuf, grants: Option<PathBuf>) -> Self {
        Self {
            dir,
            grants,
            seen: BTreeMap::new(),
            grants_seen: None,
            renamed: BTreeSet::new(),
            of_future: BTreeMap::new(),
        }
    }

    /// The file of grants, if it changed since the last call.
    pub(crate) fn changed_grants(&mut self) -> Option<PathBuf> {
        let path = self.grants.as_ref()?;
        let stamp = fs::metadata(path).ok().map(|metadata| Stamp::of(&metadata));
        (std::mem::replace(&mut self.grants_seen, stamp) != stamp).then(|| path.clone())
    }

    /// Scans the directory. The files in `retry` count as changed.
    pub(crate) fn scan(&mut self, retry: &BTreeSet<String>) -> Scan {
        let mut scan = Scan::default();
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) => {
                // No reason to retire any plugin.
                let dir = self.dir.display();
                tracing::warn!(%dir, %error, "failed to read the plugin directory; the plugins loaded before stay");
                return scan;
            }
        };
        let mut present = BTreeSet::new();
        for entry in entries.flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name.starts_with('.') || !name.ends_with(".wasm") {
                continue;
            }
            let path = entry.path();
            // Follows links, as a mounted ConfigMap consists of them.
            let Ok(metadata) = fs::metadata(&path) else { continue };
            present.insert(name.clone());
            let stamp = Stamp::of(&metadata);
            if self.seen.get(&name) == Some(&stamp) && !retry.contains(&name) {
                continue;
            }
            if let Err(rejection) = self.check_place(&path, &metadata) {
                self.seen.insert(name.clone(), stamp);
                scan.rejected.push((name, rejection));
            } else if self.renamed.remove(&name) || self.is_settled(&name, &metadata) {
                scan.ready.push(ReadyFile { name, path, stamp });
            } else {
                scan.unsettled.push(name);
            }
        }
        scan.removed = self.seen.keys().filter(|name| !present.contains(*name)).cloned().collect();
        self.seen.retain(|name, _| present.contains(name));
        self.of_future.retain(|name, _| present.contains(name));
        self.renamed.clear();
        scan
    }

    /// Reads a file; `None` if it changed since the scan.
    pub(crate) fn read(&mut self, file: &ReadyFile) -> Result<Option<Vec<u8>>, Rejection> {
        let read = read(&file.path, file.stamp);
        if !matches!(read, Ok(None)) {
            self.seen.insert(file.name.clone(), file.stamp);
        }
        read
    }

    /// Rejects a directory entry that is no file, or that lies outside the directory.
    fn check_place(&self, path: &Path, metadata: &Metadata) -> Result<(), Rejection> {
        if !metadata.is_file() {
            return Err(Rejection::new("NotAFile", "it is not a file; drop a component here"));
        }
        let inside = match (fs::canonicalize(path), fs::canonicalize(&self.dir)) {
            (Ok(path), Ok(dir)) => path.starts_with(dir),
            _ => false,
        };
        if !inside {
            let sentence = "it is a link out of the plugin directory; copy the file here instead";
            return Err(Rejection::new("OutsideDirectory", sentence));
        }
        vet::check_size(metadata.len())
    }

    /// Returns `true` if a file did not change for a while. A time of change in the future says nothing of that; such a
    /// file is settled once its stamp stays the same.
    fn is_settled(&mut self, name: &str, metadata: &Metadata) -> bool {
        if let Some(age) = age(metadata) {
            self.of_future.remove(name);
            return age >= SETTLE;
        }
        let (stamp, now) = (Stamp::of(metadata), Instant::now());
        let first = self.of_future.entry(name.to_owned()).or_insert((stamp, now));
        if first.0 != stamp {
            *first = (stamp, now);
        }
        now.saturating_duration_since(first.1) >= SETTLE
    }

    fn note(&mut self, event: &Event) {
        if matches!(
            event.kind,
            EventKind::Modify(ModifyKind::Name(RenameMode::To | RenameMode::Both | RenameMode::Any))
        ) {
            let names = event.paths.iter().filter(|path| path.parent() == Some(&self.dir));
            self.renamed.extend(names.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())));
        }
    }
}

/// The time since a file's last change; `None` if that lies in the future.
#[allow(clippy::disallowed_methods, reason = "the age of a file's last change is known by the wall clock alone")]
fn age(metadata: &Metadata) -> Option<Duration> {
    metadata.modified().ok().and_then(|modified| SystemTime::now().duration_since(modified).ok())
}

/// The bytes of a file; `None` if it has another stamp.
fn read(path: &Path, stamp: Stamp) -> Result<Option<Vec<u8>>, Rejection> {
    let unreadable = |error: std::io::Error| {
        Rejection::for_now("Unreadable", format!("it cannot be read: {error}; let the host read it"))
    };
    let file = fs::File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::with_capacity(usize::try_from(stamp.bytes).unwrap_or_default());
    let read = (&file).take(vet::MAX_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    let same = Stamp::of(&file.metadata().map_err(unreadable)?) == stamp && read as u64 == stamp.bytes;
    Ok(same.then_some(bytes))
}

/// The file events of the directory.
pub(crate) struct FileEvents {
    receiver: UnboundedReceiver<Event>,
    _watcher: Option<RecommendedWatcher>,
}

impl FileEvents {
    /// Subscribes to file events. Without them the rescan finds everything, only later.
    pub(crate) fn subscribe(directory: &Directory) -> Self {
        let (sender, receiver) = unbounded_channel();
        let created = notify::recommended_watcher(move |event: notify::Result<Event>| {
            let event = event.ok().filter(|event| !is_read(event.kind));
            // The receiver is gone only while the host stops.
            let _ = event.map(|event| sender.send(event));
        });
        let watcher = created.and_then(|mut watcher| {
            watcher.watch(&directory.dir, RecursiveMode::NonRecursive)?;
            if let Some(dir) = directory.grants.as_deref().and_then(Path::parent).filter(|dir| dir.is_dir()) {
                watcher.watch(dir, RecursiveMode::NonRecursive)?;
            }
            Ok(watcher)
        });
        let failed = |error| tracing::warn!(%error, "failed to watch the plugin directory; it is scanned every 2 s");
        Self { receiver, _watcher: watcher.map_err(failed).ok() }
    }

    /// Waits for an event or for the next rescan. Returns `true` if no file changes or is being written.
    pub(crate) async fn next(&mut self, directory: &mut Directory, unsettled: bool) -> bool {
        let wait = if unsettled { SETTLE } else { RESCAN };
        let mut quiet = !unsettled;
        match tokio::time::timeout(wait, self.receiver.recv()).await {
            Ok(Some(event)) => {
                directory.note(&event);
                quiet = false;
            }
            // There are no events.
            Ok(None) => tokio::time::sleep(wait).await,
            Err(_) => {}
        }
        while let Ok(event) = self.receiver.try_recv() {
            directory.note(&event);
        }
        quiet
    }
}

/// Returns `true` for an event of reading a file, which each scan causes and which would start the next one for ever.
fn is_read(kind: EventKind) -> bool {
    matches!(kind, EventKind::Access(access) if access != AccessKind::Close(AccessMode::Write))
}

#[cfg(test)]
mod tests {
    use notify::event::{CreateKind, DataChange};

    use super::*;

    #[test]
    fn reading_a_file_starts_no_scan_and_changing_it_does() {
        assert!(is_read(EventKind::Access(AccessKind::Open(AccessMode::Any))));
        assert!(is_read(EventKind::Access(AccessKind::Close(AccessMode::Read))));
        for change in [
            EventKind::Create(CreateKind::File),
            EventKind::Modify(ModifyKind::Data(DataChange::Any)),
            EventKind::Modify(ModifyKind::Name(RenameMode::To)),
            EventKind::Access(AccessKind::Close(AccessMode::Write)),
        ] {
            assert!(!is_read(change), "{change:?}");
        }
    }
}
