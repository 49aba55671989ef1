//! A fresh folder and free ports for one control plane.
//!
//! The folder is removed when its owner is dropped. The ports are on the loopback interface. A new `Workplace` also removes the
//! folders of processes that were killed, and no other folder.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context as _;

/// A folder named after this process, removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Workplace {
    path: PathBuf,
}

impl Workplace {
    pub(crate) fn new() -> anyhow::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let all = std::env::temp_dir().join("oarlock-controlplane");
        sweep(&all);
        let path = all.join(format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir_all(&path).with_context(|| format!("cannot create the working folder {}", path.display()))?;
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file in one step, because another test may read the file during the write.
    pub(crate) fn write(&self, name: &str, content: &str) -> anyhow::Result<PathBuf> {
        static WRITTEN: AtomicU32 = AtomicU32::new(0);
        let path = self.path.join(name);
        let draft = self.path.join(format!("{name}.{}", WRITTEN.fetch_add(1, Ordering::Relaxed)));
        let failed = || format!("cannot write {}", path.display());
        fs::write(&draft, content).with_context(failed)?;
        fs::rename(&draft, &path).with_context(failed)?;
        Ok(path)
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes the folders of processes that were killed. Without `/proc`, dead processes cannot be recognized, and all folders stay.
fn sweep(all: &Path) {
    if !Path::new("/proc/self").exists() {
        return;
    }
    for entry in fs::read_dir(all).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.split('-').next()).and_then(|pid| pid.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Returns a port that was free a moment ago. Another process may take the port first, so the caller must retry its start.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot find a free port on the loopback interface")?;
    Ok(listener.local_addr().context("cannot read the number of a free port")?.port())
}
