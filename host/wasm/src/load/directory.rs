//! The plugin directory, as last seen.
//!
//! Takes a look at it; yields the files that changed. May not be fooled by half-written files, or links out of the
//! directory.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io;
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
    /// Files whose content is gone, whether or not a link to it is left, which is rejected too.
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
        let names = match self.names() {
            Ok(names) => names,
            Err(error) => {
                // No reason to retire any plugin.
                let dir = self.dir.display();
                tracing::warn!(%dir, %error, "failed to read the plugin directory; the plugins loaded before stay");
                return scan;
            }
        };
        let mut present = BTreeSet::new();
        for name in names {
            let path = self.dir.join(&name);
            // Follows links, as a mounted ConfigMap consists of them. One that leads nowhere is seen itself.
            let followed = fs::metadata(&path);
            let metadata = followed.as_ref().map(Clone::clone).or_else(|_| fs::symlink_metadata(&path));
            if metadata.as_ref().is_err_and(is_gone) {
                continue;
            }
            present.insert(name.clone());
            // What cannot be looked at now stays as it was.
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

    /// Names of the entries that may be plugins. An entry that cannot be read may be any of them, so it fails the whole.
    fn names(&self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.dir)?.map(|entry| Ok(entry?.file_name()));
        let names: Vec<OsString> = names.collect::<io::Result<_>>()?;
        let names = names.into_iter().filter_map(|name| name.into_string().ok());
        Ok(names.filter(|name| !name.starts_with('.') && name.ends_with(".wasm")).collect())
    }

    /// Reads a file; `None` if it changed since the scan, or is gone, which the next scan tells.
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

/// Whether a file is not there any more. Any other error says nothing of its content.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

fn broken_link(error: &io::Error) -> Rejection {
    Rejection::new("BrokenLink", format!("it is a link that leads nowhere: {error}; copy the file here instead"))
}
