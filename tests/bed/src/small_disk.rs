//! A disk of few megabytes, which one process and its children alone see.
//!
//! Takes a command and a folder; yields the command with a disk in that folder, which goes with its processes. Others reach it through
//! `/proc`: to fill it, and to make room again.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::children::Child;

/// The same command, with an empty disk in this folder.
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
/// Fails if there is no such disk, or it ends otherwise than full.
pub fn fill(process: &Child, folder: &Path) -> anyhow::Result<()> {
    let path = filler(process, folder);
    let mut file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    // The last bytes too.
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

/// Makes the room again that was filled.
///
/// # Errors
/// Fails if that cannot be done.
pub fn make_room(process: &Child, folder: &Path) -> anyhow::Result<()> {
    let path = filler(process, folder);
    std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))
}

fn filler(process: &Child, folder: &Path) -> PathBuf {
    let root = format!("/proc/{}/root", process.id());
    Path::new(&root).join(folder.strip_prefix("/").unwrap_or(folder)).join("filler")
}
