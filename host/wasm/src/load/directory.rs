//! The plugin directory, as last seen.
//!
//! Takes a look at it; yields the files that changed. May not be fooled by half-written files, or links out of the
//! directory.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};

use crate::load::stamp::{SETTLE, Settling, Stamp};
use crate::memory::MemoryShares;
use crate::rejection::Rejection;

/// The plugin directory, as last seen.
pub(crate) struct Directory {
    dir: PathBuf,
    memory: MemoryShares,
    seen: BTreeMap<String, Stamp>,
    /// Files that changed and were not whole yet.
    settling: BTreeMap<String, Settling>,
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
#[derive(Clone)]
pub(crate) struct ReadyFile {
    pub name: String,
    path: PathBuf,
    stamp: Stamp,
}

impl Directory {
    pub(crate) fn new(dir: PathBuf, memory: MemoryShares) -> Self {
        Self { dir, memory, seen: BTreeMap::new(), settling: BTreeMap::new() }
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }

    /// Scans the directory. The files in `renamed` are whole, and those in `retry` count as changed.
    pub(crate) fn scan(&mut self, renamed: &BTreeSet<OsString>, retry: &BTreeSet<String>) -> Scan {
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
            // Follows links, as a mounted ConfigMap consists of them. One that leads nowhere is seen itself.
            let followed = fs::metadata(&path);
            let Ok(metadata) = followed.as_ref().map(Clone::clone).or_else(|_| fs::symlink_metadata(&path)) else {
                continue;
            };
            present.insert(name.clone());
            let stamp = Stamp::of(&metadata);
            if self.seen.get(&name) == Some(&stamp) && !retry.contains(&name) {
                continue;
            }
            let place = match followed {
                Ok(_) => self.check_place(&path, &metadata),
                Err(error) => Err(broken_link(&error)),
            };
            if let Err(rejection) = place {
                self.seen.insert(name.clone(), stamp);
                scan.rejected.push((name, rejection));
            } else if renamed.contains(OsStr::new(&name)) || self.is_settled(&name, &metadata) {
                scan.ready.push(ReadyFile { name, path, stamp });
            } else {
                scan.unsettled.push(name);
            }
        }
        scan.removed = self.seen.keys().filter(|name| !present.contains(*name)).cloned().collect();
        self.seen.retain(|name, _| present.contains(name));
        self.settling.retain(|name, _| present.contains(name));
        scan
    }

    /// Reads a file; `None` if it changed since the scan.
    pub(crate) fn read(&mut self, file: &ReadyFile) -> Result<Option<Vec<u8>>, Rejection> {
        let read = file.stamp.read(&file.path, self.memory.file());
        let read = read.map_err(|error| {
            Rejection::for_now("Unreadable", format!("it cannot be read: {error}; let the host read it"))
        });
        if !matches!(read, Ok(None)) {
            self.seen.insert(file.name.clone(), file.stamp);
            self.settling.remove(&file.name);
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
        self.memory.check_file(metadata.len())
    }

    fn is_settled(&mut self, name: &str, metadata: &Metadata) -> bool {
        self.settling.entry(name.to_owned()).or_default().is_over(Some(metadata), SETTLE)
    }
}

fn broken_link(error: &std::io::Error) -> Rejection {
    Rejection::new("BrokenLink", format!("it is a link that leads nowhere: {error}; copy the file here instead"))
}
