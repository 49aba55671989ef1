//! The file events of one directory, or of one file in it.
//!
//! An event starts a scan at once. The host may not rely on events, because some file systems have none. So each wait has an end.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, ModifyKind, RenameMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::load::stamp::SETTLE;

/// The time between two scans without an event.
const RESCAN: Duration = Duration::from_secs(2);
/// The time after an event in which further events join it. One copy of a file causes dozens of events.
const GATHER: Duration = Duration::from_millis(50);
/// The most remembered names of renamed files. Further renamed files settle like other files.
const MAX_RENAMED: usize = 10_000;

/// The file events of a directory.
pub(crate) struct FileEvents {
    heard: Arc<Heard>,
    _watcher: Option<RecommendedWatcher>,
}

#[derive(Default)]
struct Heard {
    renamed: Mutex<BTreeSet<OsString>>,
    changed: Notify,
}

/// The events of one wait.
pub(crate) struct FileNews {
    /// True if no file changes and no file is being written.
    pub quiet: bool,
    /// The names of files that arrived by rename and are therefore complete.
    pub renamed: BTreeSet<OsString>,
}

impl FileEvents {
    /// Subscribes to the events of the files in `dir`, or of only the file `only` in it. Without events, the next scan finds all changes,
    /// but later.
    pub(crate) fn subscribe(dir: &Path, only: Option<&OsStr>) -> Self {
        let heard = Arc::new(Heard::default());
        let (hears, only) = (heard.clone(), only.map(OsStr::to_owned));
        let created = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if let Ok(event) = event {
                hears.note(&event, only.as_deref());
            }
        });
        let watcher = created.and_then(|mut watcher| {
            watcher.watch(dir, RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        let failed = |error| {
            tracing::warn!(dir = %dir.display(), %error, "failed to watch a directory; scanning it every 2 s");
        };
        Self { heard, _watcher: watcher.map_err(failed).ok() }
    }

    /// Waits for an event or for the next scan. The next scan is soon if a file is unsettled.
    pub(crate) async fn next(&mut self, unsettled: bool) -> FileNews {
        let wait = if unsettled { SETTLE } else { RESCAN };
        let heard = tokio::time::timeout(wait, self.heard.changed.notified()).await.is_ok();
        if heard {
            tokio::time::sleep(GATHER).await;
        }
        FileNews { quiet: !unsettled && !heard, renamed: std::mem::take(&mut self.heard.renamed.lock()) }
    }
}

impl Heard {
    fn note(&self, event: &Event, only: Option<&OsStr>) {
        let names = event.paths.iter().filter_map(|path| path.file_name());
        let concerned: Vec<&OsStr> = names.filter(|name| only.is_none_or(|only| is_of(name, only))).collect();
        if is_read(event.kind) || concerned.is_empty() {
            return;
        }
        if let EventKind::Modify(ModifyKind::Name(RenameMode::To | RenameMode::Both | RenameMode::Any)) = event.kind {
            // The first of two names is the old name of the file.
            let arrived = event.paths.last().and_then(|path| path.file_name()).filter(|name| concerned.contains(name));
            let mut renamed = self.renamed.lock();
            if renamed.len() < MAX_RENAMED {
                renamed.extend(arrived.map(OsStr::to_owned));
            }
        }
        self.changed.notify_one();
    }
}

/// Returns true for the file itself, and for the links through which a mounted ConfigMap replaces it.
fn is_of(name: &OsStr, file: &OsStr) -> bool {
    name == file || name.as_encoded_bytes().starts_with(b"..")
}

/// Returns true for a read of a file. Each scan causes reads, and these events would start scans forever.
fn is_read(kind: EventKind) -> bool {
    matches!(kind, EventKind::Access(access) if access != AccessKind::Close(AccessMode::Write))
}

#[cfg(test)]
mod tests {
    use notify::event::{CreateKind, DataChange};

    use super::*;

    #[test]
    fn a_file_that_is_moved_away_has_not_arrived() {
        let heard = Heard::default();
        let both = EventKind::Modify(ModifyKind::Name(RenameMode::Both));
        heard.note(&Event::new(both).add_path("/p/grants.yaml".into()).add_path("/p/grants.bak".into()), None);
        assert_eq!(*heard.renamed.lock(), BTreeSet::from(["grants.bak".into()]));
    }

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

    /// Returns the news until a file was renamed to `name`.
    async fn news_until_renamed(events: &mut FileEvents, name: &str) -> Vec<FileNews> {
        let mut all = Vec::new();
        while all.iter().all(|news: &FileNews| !news.renamed.contains(OsStr::new(name))) {
            all.push(events.next(false).await);
        }
        all
    }

    fn folder(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("oarlock-events-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[tokio::test]
    async fn files_beside_the_one_that_is_watched_start_no_scan() {
        let folder = folder("beside");
        let mut events = FileEvents::subscribe(&folder, Some(OsStr::new("grants.yaml")));
        for number in 0..1_000 {
            std::fs::write(folder.join(format!("{number}.yaml")), "").unwrap();
            tokio::task::yield_now().await;
        }
        std::fs::rename(folder.join("0.yaml"), folder.join("grants.yaml")).unwrap();
        let news = news_until_renamed(&mut events, "grants.yaml").await;
        assert!(news.iter().filter(|news| !news.quiet).count() == 1, "{} scans", news.len());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test]
    async fn many_events_start_few_scans() {
        let folder = folder("many");
        let mut events = FileEvents::subscribe(&folder, None);
        let writing = std::thread::spawn({
            let folder = folder.clone();
            move || {
                for number in 0..1_000 {
                    std::fs::write(folder.join("a.wasm"), number.to_string()).unwrap();
                    std::thread::yield_now();
                }
                std::fs::rename(folder.join("a.wasm"), folder.join("b.wasm")).unwrap();
            }
        });
        let began = std::time::Instant::now();
        let scans = news_until_renamed(&mut events, "b.wasm").await.len() as u128;
        writing.join().unwrap();
        assert!(scans <= began.elapsed().as_millis() / GATHER.as_millis() + 1, "{scans} scans for 3,000 events");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
