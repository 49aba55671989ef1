//! The plugin directory in its last observed state.
//!
//! A scan reads the directory and returns the changed files. Half-written files or links out of the directory may not deceive it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use crate::load::stamp::{SETTLE, Settling, Stamp};
use crate::memory::MemoryShares;
use crate::rejection::Rejection;

/// The plugin directory in its last observed state.
pub(crate) struct Directory {
    dir: PathBuf,
    memory: MemoryShares,
    seen: BTreeMap<String, Stamp>,
    /// The files that changed and were not complete yet.
    settling: BTreeMap<String, Settling>,
}

/// The changes since the last scan.
#[derive(Default)]
pub(crate) struct Scan {
    /// Files that the host may not use.
    pub rejected: Vec<(String, Rejection)>,
    /// Files that are still being written.
    pub unsettled: Vec<String>,
    /// Files whose content is gone. If a link to the content remains, the link is also rejected.
    pub removed: Vec<String>,
    /// Files that can be read.
    pub ready: Vec<ReadyFile>,
}

/// A changed file that is complete.
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

    /// Returns the path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }

    /// Scans the directory. The files in `renamed` are complete, and the files in `retry` count as changed.
    pub(crate) fn scan(&mut self, renamed: &BTreeSet<OsString>, retry: &BTreeSet<String>) -> Scan {
        let mut scan = Scan::default();
        let names = match self.names() {
            Ok(names) => names,
            Err(error) => {
                // An unreadable directory is no reason to retire plugins.
                let dir = self.dir.display();
                tracing::warn!(%dir, %error, "failed to read the plugin directory; the loaded plugins stay");
                return scan;
            }
        };
        let mut present = BTreeSet::new();
        for name in names {
            let path = self.dir.join(&name);
            // The scan follows links, because a mounted ConfigMap consists of links. For a broken link it reads the link itself.
            let followed = fs::metadata(&path);
            let metadata = followed.as_ref().map(Clone::clone).or_else(|_| fs::symlink_metadata(&path));
            if metadata.as_ref().is_err_and(is_gone) {
                continue;
            }
            present.insert(name.clone());
            // A file that cannot be inspected now keeps its state.
            let Ok(metadata) = metadata else { continue };
            let stamp = Stamp::of(&metadata);
            if self.seen.get(&name) == Some(&stamp) && !retry.contains(&name) {
                continue;
            }
            let place = match followed {
                Ok(_) => self.check_place(&path, &metadata),
                Err(error) => {
                    scan.removed.extend(is_gone(&error).then(|| name.clone()));
                    Err(broken_link(&error))
                }
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
        scan.removed.extend(self.seen.keys().filter(|name| !present.contains(*name)).cloned());
        self.seen.retain(|name, _| present.contains(name));
        self.settling.retain(|name, _| present.contains(name));
        scan
    }

    /// Returns the names of the entries that may be plugins. An unreadable entry may be any of them, so it fails the whole scan.
    fn names(&self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.dir)?.map(|entry| Ok(entry?.file_name()));
        let names: Vec<OsString> = names.collect::<io::Result<_>>()?;
        let names = names.into_iter().filter_map(|name| name.into_string().ok());
        Ok(names.filter(|name| !name.starts_with('.') && name.ends_with(".wasm")).collect())
    }

    /// Reads a file. Returns `None` if the file changed or was removed since the scan. The next scan reports this.
    pub(crate) fn read(&mut self, file: &ReadyFile) -> Result<Option<Vec<u8>>, Rejection> {
        let read = match file.stamp.read(&file.path, self.memory.file()) {
            Err(error) if is_gone(&error) => Ok(None),
            read => read,
        };
        let read = read.map_err(|error| {
            Rejection::for_now("Unreadable", format!("it cannot be read: {error}; let the host read it"))
        });
        if !matches!(read, Ok(None)) {
            self.seen.insert(file.name.clone(), file.stamp);
            self.settling.remove(&file.name);
        }
        read
    }

    /// Rejects a directory entry that is not a file or that lies outside the directory.
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

/// Returns true if a file no longer exists. Any other error says nothing about its content.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

fn broken_link(error: &io::Error) -> Rejection {
    Rejection::new("BrokenLink", format!("it is a link that leads nowhere: {error}; copy the file here instead"))
}
