//! A disk of a few megabytes that only one process and its children see.
//!
//! The wrapped command mounts the disk in a folder, and the disk goes with its processes. A test reaches the disk through `/proc`,
//! to fill it and to make room again.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::children::Child;

/// Returns the same command, with an empty disk in this folder.
#[must_use]
pub fn on_small_disk(command: &Command, folder: &Path, megabytes: u32) -> Command {
    let mut wrapped = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        wrapped.args(["--user", "--map-root-user"]);
    }
    let script = format!("mount -t tmpfs -o size={megabytes}m tmpfs \"$0\" && exec \"$@\"");
    wrapped.args(["--mount", "sh", "-c", &script]).arg(folder).arg(command.get_program()).args(command.get_args());
    wrapped.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    wrapped
}

/// Fills the disk that this process has in this folder.
///
/// # Errors
/// If there is no such disk, or a write fails for another reason than a full disk.
pub fn fill(process: &Child, folder: &Path) -> anyhow::Result<()> {
    let path = filler(process, folder);
    let mut file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    // Single bytes fill the rest of the disk.
    for piece in [vec![0; 65_536], vec![0; 1]] {
        loop {
            match file.write_all(&piece) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                Err(error) => return Err(error).with_context(|| format!("cannot fill {}", path.display())),
            }
        }
    }
    Ok(())
}

/// Frees the space that [`fill`] took.
///
/// # Errors
/// If the filling file cannot be removed.
pub fn make_room(process: &Child, folder: &Path) -> anyhow::Result<()> {
    let path = filler(process, folder);
    std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))
}

fn filler(process: &Child, folder: &Path) -> PathBuf {
    let root = format!("/proc/{}/root", process.id());
    Path::new(&root).join(folder.strip_prefix("/").unwrap_or(folder)).join("filler")
}
