//! The cache of compiled code, by the digest of the component.
//!
//! Entries run as native code, so a key that only this host has authenticates each entry. The host ignores a damaged, renamed or foreign
//! entry. Hosts may not share a cache.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::memory::MemoryShares;
use crate::rejection::Rejection;

const KEY_BYTES: usize = 32;
const TAG_BYTES: usize = 32;
/// The shortest and the longest pause after an expensive failure of a component, in seconds.
const FIRST_PAUSE: u64 = 600;
const LAST_PAUSE: u64 = 86_400;

/// The reason why the cache cannot be opened.
#[derive(Debug, Error)]
pub enum CacheError {
    /// The cache directory could not be created.
    #[error("failed to make the cache directory {path}; choose one that the host may write")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The cache directory does not belong to the user of the host. The user who created it may know the key.
    #[error("the cache directory {path} belongs to another user, or is a link; choose one of the host's own")]
    Foreign {
        /// The directory.
        path: PathBuf,
    },
    /// The key could not be read or created.
    #[error("failed to read or make the key {path} of the cache; remove it, and the host compiles all plugins again")]
    Key {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// The content of an entry for a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    /// The compiled code.
    Code,
    /// The manifest of a component whose interface was vetted.
    Manifest,
    /// An expensive failure to vet or compile the component.
    Failure,
}

/// An expensive failure of the helper for a component.
#[derive(Serialize, Deserialize)]
struct Failure {
    rejection: Rejection,
    /// The length of the pause, in seconds.
    pause: u64,
    /// The end of the pause, in seconds since 1970.
    again: u64,
}

/// The cache of compiled code.
pub(crate) struct Cache {
    dir: PathBuf,
    key: hmac::Key,
    fingerprint: String,
    /// The memory of the helper in MiB, or 0 without a limit.
    helper_mib: u64,
}

/// Returns the default directory of the cache, in the user's cache directory.
pub fn default_cache_dir() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    Some(base.join("oarlock").join("compiled"))
}

impl Cache {
    /// Opens the cache in `dir` for an engine with this fingerprint and a helper with these memory shares.
    pub(crate) fn open(dir: &Path, fingerprint: String, memory: MemoryShares) -> Result<Self, CacheError> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
        let found = made.and_then(|()| fs::symlink_metadata(dir));
        let found = found.map_err(|source| CacheError::Directory { path: dir.to_owned(), source })?;
        if !found.is_dir() || !is_own(&found) {
            return Err(CacheError::Foreign { path: dir.to_owned() });
        }
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))
            .map_err(|source| CacheError::Directory { path: dir.to_owned(), source })?;
        let path = dir.join("key");
        let key = key(&path).map_err(|source| CacheError::Key { path, source })?;
        let helper_mib = memory.helper().unwrap_or_default() >> 20;
        Ok(Self { dir: dir.to_owned(), key: hmac::Key::new(hmac::HMAC_SHA256, &key), fingerprint, helper_mib })
    }

    /// Returns the path of an entry that is complete and authentic.
    pub(crate) fn path(&self, digest: &str, kind: EntryKind) -> Option<PathBuf> {
        let name = self.name(digest, kind);
        let path = self.dir.join(&name);
        let file = File::open(&path).ok()?;
        let is_own = self.is_authentic(&name, &file).unwrap_or(false);
        if !is_own {
            tracing::warn!(entry = %name, "ignoring a damaged or unknown entry of the compile cache");
        }
        is_own.then_some(path)
    }

    /// Returns the content of an entry that is complete and authentic.
    pub(crate) fn load(&self, digest: &str, kind: EntryKind) -> Option<Vec<u8>> {
        let mut content = fs::read(self.path(digest, kind)?).ok()?;
        content.truncate(content.len().checked_sub(TAG_BYTES)?);
        Some(content)
    }

    /// Stores an entry. A failure is logged, and the host repeats the work after its next start.
    pub(crate) fn store(&self, digest: &str, kind: EntryKind, content: &[u8]) {
        let written = self.write(digest, kind, |file| {
            file.write_all(content).map_err(|error| Rejection::for_now("CacheFailed", error.to_string()))
        });
        if let Err(rejection) = written {
            tracing::warn!(dir = %self.dir.display(), error = %rejection.sentence, "failed to write to the compile cache; the next start compiles the plugin again");
        }
    }

    /// Creates an entry with the content that `write` writes. Returns the path of the entry.
    pub(crate) fn write(
        &self,
        digest: &str,
        kind: EntryKind,
        write: impl FnOnce(&mut File) -> Result<(), Rejection>,
    ) -> Result<PathBuf, Rejection> {
        let name = self.name(digest, kind);
        let path = self.dir.join(&name);
        let partial = partial(&path);
        let failed = |error: io::Error| {
            let sentence = format!("the cache entry {} cannot be written: {error}; make room there", path.display());
            Rejection::for_now("CacheFailed", sentence)
        };
        let made = private().read(true).open(&partial).map_err(failed).and_then(|mut file| {
            write(&mut file)?;
            self.seal(&name, &mut file).and_then(|()| fs::rename(&partial, &path)).map_err(failed)
        });
        if made.is_err() {
            // The partial file may not exist.
            let _ = fs::remove_file(&partial);
        }
        made.map(|()| path)
    }

    /// Appends the authentication tag.
    fn seal(&self, name: &str, file: &mut File) -> io::Result<()> {
        let length = file.metadata()?.len();
        let signed = signed(name, file, length)?;
        file.seek(SeekFrom::End(0))?;
        file.write_all(hmac::sign(&self.key, &signed).as_ref())
    }

    fn is_authentic(&self, name: &str, mut file: &File) -> io::Result<bool> {
        let Some(length) = file.metadata()?.len().checked_sub(TAG_BYTES as u64) else { return Ok(false) };
        let signed = signed(name, file, length)?;
        let mut tag = [0; TAG_BYTES];
        file.seek(SeekFrom::Start(length))?;
        file.read_exact(&mut tag)?;
        Ok(hmac::verify(&self.key, &signed, &tag).is_ok())
    }

    /// Returns the rejection of a component that was expensive before, until its pause ends.
    pub(crate) fn failure(&self, digest: &str) -> Option<Rejection> {
        let failure = self.last_failure(digest)?;
        (seconds_now() < failure.again).then_some(failure.rejection)
    }

    /// Records an expensive failure of a component. Each failure doubles the pause.
    pub(crate) fn failed(&self, digest: &str, rejection: &Rejection) {
        if rejection.retryable || !rejection.reason.starts_with("Compile") {
            return;
        }
        let before = self.last_failure(digest).map_or(FIRST_PAUSE / 2, |failure| failure.pause);
        let pause = before.saturating_mul(2).min(LAST_PAUSE);
        let failure = Failure { rejection: rejection.clone(), pause, again: seconds_now().saturating_add(pause) };
        if let Ok(failure) = serde_json::to_vec(&failure) {
            self.store(digest, EntryKind::Failure, &failure);
        }
    }

    fn last_failure(&self, digest: &str) -> Option<Failure> {
        serde_json::from_slice(&self.load(digest, EntryKind::Failure)?).ok()
    }

    fn name(&self, digest: &str, kind: EntryKind) -> String {
        let suffix = match kind {
            EntryKind::Code => "",
            EntryKind::Manifest => ".manifest",
            // A component gets another chance with another memory limit.
            EntryKind::Failure => &format!(".failure-{}", self.helper_mib),
        };
        format!("{}-{}{suffix}", digest.trim_start_matches("sha256:"), self.fingerprint)
    }
}

/// Returns the signed data: the digest of the content, and the name. The name prevents that one entry replaces another.
fn signed(name: &str, mut file: &File, length: u64) -> io::Result<Vec<u8>> {
    let mut content = Sha256::new();
    file.seek(SeekFrom::Start(0))?;
    io::copy(&mut file.take(length), &mut content)?;
    Ok([name.as_bytes(), b"\n", content.finalize().as_slice()].concat())
}

#[allow(clippy::disallowed_methods, reason = "a pause outlasts the process, so only the wall clock knows its end")]
fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns a name next to `path` that no other writer uses.
fn partial(path: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    path.with_extension(format!("{}.{}.partial", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)))
}

/// Returns the options for a new file that only this user can read.
fn private() -> fs::OpenOptions {
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    options
}

fn is_own(found: &fs::Metadata) -> bool {
    found.uid() == rustix::process::geteuid().as_raw()
}

/// Returns the key. Creates a new key if the key is missing or another user may know it.
fn key(path: &Path) -> io::Result<Vec<u8>> {
    let found = fs::symlink_metadata(path);
    if found.as_ref().is_ok_and(|found| found.is_file() && is_own(found) && found.mode() & 0o077 == 0) {
        let key = fs::read(path)?;
        if key.len() == KEY_BYTES {
            return Ok(key);
        }
    }
    let mut key = vec![0; KEY_BYTES];
    SystemRandom::new().fill(&mut key).map_err(|_| io::Error::other("no randomness"))?;
    let partial = partial(path);
    private().open(&partial)?.write_all(&key)?;
    // The first process to create a key wins, and other processes read that key. An unusable key is replaced.
    let linked = if found.is_ok() { fs::rename(&partial, path) } else { fs::hard_link(&partial, path) };
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(&partial)?;
            key = fs::read(path)?;
        }
        Err(error) => return Err(error),
        // A rename has moved the partial file already.
        Ok(()) => drop(fs::remove_file(&partial)),
    }
    Ok(key)
}
