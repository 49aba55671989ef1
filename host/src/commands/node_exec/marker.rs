//! The markers of commands on a node: a command whose marker is there is not begun.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, ensure};

use super::command::NoResult;

/// How long a marker stays: longer than any job.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// Makes the marker of a command, a folder of its own. It is on the disk when this returns.
///
/// # Errors
/// If it is there: the command was begun before.
pub(super) fn make(markers: &Path, id: &str) -> anyhow::Result<PathBuf> {
    let is_plain =
        !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    ensure!(is_plain, "{id:?} is no id of a command");
    let cannot = || format!("cannot make a marker in {}", markers.display());
    DirBuilder::new().recursive(true).mode(0o700).create(markers).with_context(cannot)?;
    let marker = markers.join(id);
    match DirBuilder::new().mode(0o700).create(&marker) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(NoResult::BegunBefore.into()),
        Err(error) => return Err(error).with_context(cannot),
    }
    // The command may reboot the node.
    File::open(markers).and_then(|folder| folder.sync_all()).with_context(cannot)?;
    Ok(marker)
}

/// Removes old markers, as far as that goes.
pub(super) fn remove_old(markers: &Path, now: SystemTime) {
    let Ok(entries) = std::fs::read_dir(markers) else { return };
    for entry in entries.flatten() {
        let made = entry.metadata().and_then(|meta| meta.modified());
        let is_old = made.is_ok_and(|made| now.duration_since(made).is_ok_and(|age| age > KEPT));
        if is_old && let Err(error) = std::fs::remove_dir_all(entry.path()) {
            tracing::warn!(%error, marker = %entry.path().display(), "failed to remove an old marker");
        }
    }
}
