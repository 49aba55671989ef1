//! Watches the plugin directory and the grants.
//!
//! Takes file events and a slow rescan; yields files that stand still. May not be fooled by half-written files, links
//! out of the directory, or file systems without events.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use notify::event::{AccessKind, AccessMode, ModifyKind, RenameMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::load::vet;
use crate::plugins::Shelf;
use crate::rejection::Rejection;

/// How often the directory is looked at without an event.
const RESCAN: Duration = Duration::from_secs(2);
/// How long a file has to stand still.
const SETTLE: Duration = Duration::from_millis(100);

/// What tells one content of a file from another, without reading it.
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

/// The directory, as last seen.
pub(crate) struct Watched {
    dir: PathBuf,
    grants: Option<PathBuf>,
    taken: BTreeMap<String, Stamp>,
    grants_stamp: Option<Stamp>,
    /// Files that arrived by rename, and so are whole.
    renamed: BTreeSet<String>,
}

/// What a look at the directory found.
#[derive(Default)]
struct Look {
    /// Files that changed and stand still.
    settled: Vec<(String, PathBuf, Stamp)>,
    /// Whether some file is still being written.
    unsettled: bool,
    present: BTreeSet<String>,
}

impl Watched {
    pub(crate) fn new(dir: PathBuf, grants: Option<PathBuf>) -> Self {
        Self { dir, grants, taken: BTreeMap::new(), grants_stamp: None, renamed: BTreeSet::new() }
    }

    /// Looks once, and takes what stands still. Whether some file does not yet.
    pub(crate) async fn scan(&mut self, shelf: &Arc<Shelf>) -> bool {
        self.scan_grants(shelf).await;
        let look = self.look(shelf).await;
        let gone: Vec<_> = self.taken.keys().filter(|name| !look.present.contains(*name)).cloned().collect();
        for name in gone {
            self.taken.remove(&name);
            shelf.remove(&name).await;
        }
        let mut unsettled = look.unsettled;
        for (name, path, stamp) in look.settled {
            match read(&path, stamp) {
                Ok(Some(bytes)) => {
                    self.taken.insert(name.clone(), stamp);
                    shelf.take(&name, bytes).await;
                }
                // It changed while it was read.
                Ok(None) => unsettled = true,
                Err(rejection) => {
                    self.taken.insert(name.clone(), stamp);
                    shelf.reject(&name, rejection).await;
                }
            }
        }
        unsettled
    }

    async fn scan_grants(&mut self, shelf: &Arc<Shelf>) {
        let Some(path) = &self.grants else { return };
        let stamp = fs::metadata(path).ok().map(|metadata| Stamp::of(&metadata));
        if stamp != self.grants_stamp {
            self.grants_stamp = stamp;
            shelf.read_grants(path).await;
        }
    }

    async fn look(&mut self, shelf: &Arc<Shelf>) -> Look {
        let mut look = Look::default();
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) => {
                tracing::warn!(dir = %self.dir.display(), %error, "failed to read the plugin directory");
                // Not a reason to retire anything.
                look.present = self.taken.keys().cloned().collect();
                return look;
            }
        };
        for entry in entries.flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name.starts_with('.') || !name.ends_with(".wasm") {
                continue;
            }
            let path = entry.path();
            // Follows links, as a mounted ConfigMap consists of them.
            let Ok(metadata) = fs::metadata(&path) else { continue };
            look.present.insert(name.clone());
            let stamp = Stamp::of(&metadata);
            if self.taken.get(&name) == Some(&stamp) && !shelf.wants_again(&name).await {
                continue;
            }
            if let Err(rejection) = self.check_place(&path, &metadata) {
                self.taken.insert(name.clone(), stamp);
                shelf.reject(&name, rejection).await;
            } else if self.renamed.remove(&name) || stands_still(&metadata) {
                look.settled.push((name, path, stamp));
            } else {
                shelf.unsettled(&name).await;
                look.unsettled = true;
            }
        }
        look
    }

    /// Refuses what is no file, or lies elsewhere.
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

#[allow(clippy::disallowed_methods, reason = "only the wall clock tells how old the last change of a file is")]
fn stands_still(metadata: &Metadata) -> bool {
    let age = metadata.modified().ok().and_then(|modified| SystemTime::now().duration_since(modified).ok());
    age.is_some_and(|age| age >= SETTLE)
}

/// The bytes of a file; `None` where it is not the one that was looked at.
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

/// Watches until it is dropped.
pub(crate) async fn watch(mut watched: Watched, shelf: Arc<Shelf>, mut unsettled: bool) {
    let (_watcher, mut events) = subscribe(&watched);
    loop {
        let wait = if unsettled { SETTLE } else { RESCAN };
        let mut swept = false;
        match tokio::time::timeout(wait, events.recv()).await {
            Ok(Some(event)) => watched.note(&event),
            Ok(None) => tokio::time::sleep(wait).await,
            Err(_) => swept = !unsettled,
        }
        while let Ok(event) = events.try_recv() {
            watched.note(&event);
        }
        unsettled = watched.scan(&shelf).await;
        if swept {
            shelf.sweep().await;
        }
    }
}

/// Whether something was only looked at: by the last look at the directory, which would wake the next one for ever.
fn is_a_look(kind: EventKind) -> bool {
    matches!(kind, EventKind::Access(access) if access != AccessKind::Close(AccessMode::Write))
}

/// Without events the rescan finds everything, only later.
fn subscribe(watched: &Watched) -> (Option<RecommendedWatcher>, UnboundedReceiver<Event>) {
    let (sender, events) = unbounded_channel();
    let told = notify::recommended_watcher(move |event: notify::Result<Event>| {
        let event = event.ok().filter(|event| !is_a_look(event.kind));
        // The receiver is gone only while the host stops.
        let _ = event.map(|event| sender.send(event));
    });
    let watcher = told.and_then(|mut watcher| {
        watcher.watch(&watched.dir, RecursiveMode::NonRecursive)?;
        if let Some(dir) = watched.grants.as_deref().and_then(Path::parent).filter(|dir| dir.is_dir()) {
            watcher.watch(dir, RecursiveMode::NonRecursive)?;
        }
        Ok(watcher)
    });
    match watcher {
        Ok(watcher) => (Some(watcher), events),
        Err(error) => {
            tracing::warn!(%error, "no file events; the plugin directory is looked at every 2 s");
            (None, events)
        }
    }
}

#[cfg(test)]
mod tests {
    use notify::event::{CreateKind, DataChange};

    use super::*;

    #[test]
    fn a_look_wakes_nobody_and_whatever_changes_a_file_does() {
        assert!(is_a_look(EventKind::Access(AccessKind::Open(AccessMode::Any))));
        assert!(is_a_look(EventKind::Access(AccessKind::Close(AccessMode::Read))));
        for change in [
            EventKind::Create(CreateKind::File),
            EventKind::Modify(ModifyKind::Data(DataChange::Any)),
            EventKind::Modify(ModifyKind::Name(RenameMode::To)),
            EventKind::Access(AccessKind::Close(AccessMode::Write)),
        ] {
            assert!(!is_a_look(change), "{change:?}");
        }
    }
}
