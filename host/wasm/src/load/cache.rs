//! The cache of compiled code, by the digest of the component.
//!
//! Entries run as native code, so each is authenticated with a key that only this host has: one that is damaged,
//! renamed or foreign is ignored. May not be shared between hosts.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use thiserror::Error;

const KEY_BYTES: usize = 32;
const TAG_BYTES: usize = 32;

/// The cache could not be opened.
#[derive(Debug, Error)]
pub enum CacheError {
    /// Its directory could not be made.
    #[error("failed to make the cache directory {path}; choose one that the host may write")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Its directory is not the host's own: whoever made it may know the key.
    #[error("the cache directory {path} belongs to another user, or is a link; choose one of the host's own")]
    Foreign {
        /// The directory.
        path: PathBuf,
    },
    /// Its key could not be read or made.
    #[error("failed to read or make the key {path} of the cache; remove it, and the host compiles all plugins again")]
    Key {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// The cache.
pub(crate) struct Cache {
    dir: PathBuf,
    key: hmac::Key,
    fingerprint: String,
}

/// The default directory of the cache, under the user's cache directory.
pub fn default_cache_dir() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    Some(base.join("oarlock").join("compiled"))
}

impl Cache {
    /// Opens the cache in `dir` for an engine of this fingerprint.
    pub(crate) fn open(dir: &Path, fingerprint: String) -> Result<Self, CacheError> {
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
        Ok(Self { dir: dir.to_owned(), key: hmac::Key::new(hmac::HMAC_SHA256, &key), fingerprint })
    }

    /// The code compiled from the component of `digest`.
    pub(crate) fn load(&self, digest: &str) -> Option<Vec<u8>> {
        let name = self.name(digest);
        let mut entry = fs::read(self.dir.join(&name)).ok()?;
        let code = entry.split_off(TAG_BYTES.min(entry.len()));
        if hmac::verify(&self.key, &signed(&name, &code), &entry).is_err() {
            tracing::warn!(entry = %name, "ignoring a damaged or foreign entry of the compile cache");
            return None;
        }
        Some(code)
    }

    /// Keeps `code`. A failure is logged and costs only a compilation after the next start.
    pub(crate) fn store(&self, digest: &str, code: &[u8]) {
        let name = self.name(digest);
        let tag = hmac::sign(&self.key, &signed(&name, code));
        let path = self.dir.join(&name);
        let partial = partial(&path);
        let written = write_private(&partial, &[tag.as_ref(), code]).and_then(|()| fs::rename(&partial, &path));
        if let Err(error) = written {
            tracing::warn!(path = %path.display(), %error, "failed to write compiled code to the cache; the plugin is compiled again at the next start");
        }
    }

    fn name(&self, digest: &str) -> String {
        format!("{}-{}", digest.trim_start_matches("sha256:"), self.fingerprint)
    }
}

/// The name is signed too, so that one entry cannot stand in for another.
fn signed(name: &str, code: &[u8]) -> Vec<u8> {
    [name.as_bytes(), b"\n", code].concat()
}

/// A name beside `path` that no other writer uses.
fn partial(path: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    path.with_extension(format!("{}.{}.partial", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)))
}

fn write_private(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    parts.iter().try_for_each(|part| file.write_all(part))
}

fn is_own(found: &fs::Metadata) -> bool {
    found.uid() == rustix::process::geteuid().as_raw()
}

/// The key, made anew where it is missing or somebody else may know it.
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
    write_private(&partial, &[&key])?;
    // The first process to make a key wins, and others read that one. A key that is not to be used is replaced.
    let linked = if found.is_ok() { fs::rename(&partial, path) } else { fs::hard_link(&partial, path) };
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(&partial)?;
            key = fs::read(path)?;
        }
        Err(error) => return Err(error),
        // A rename took it along.
        Ok(()) => drop(fs::remove_file(&partial)),
    }
    Ok(key)
}
