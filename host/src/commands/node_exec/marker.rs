//! The markers of commands on a node: a command with a marker does not start again.
//!
//! The markers are numbered in the order of their creation. A clock cannot give this order, because the clock of a node
//! may jump.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use super::command::NoResult;

/// The number of markers to keep, the newest ones. A node runs fewer commands within the time in which the host may
/// repeat a request.
pub(super) const KEPT: usize = 4096;
/// The file in a marker that holds its number.
const NUMBER: &str = "number";

/// Makes the marker of a command, a folder of its own. The marker is on the disk when this function returns.
///
/// # Errors
/// If the marker exists, because the command started before.
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
    let next = numbered(markers).into_iter().filter_map(|(number, _)| number).max().unwrap_or(0).saturating_add(1);
    std::fs::write(marker.join(NUMBER), next.to_string()).with_context(cannot)?;
    // The command may reboot the node, so the marker must be on the disk first.
    File::open(markers).and_then(|folder| folder.sync_all()).with_context(cannot)?;
    Ok(marker)
}

/// Removes the oldest markers above `most`; logs failures. Keeps a marker without a number, which another command is
/// making, or which an older host made.
pub(super) fn remove_oldest(markers: &Path, most: usize) {
    let mut all: Vec<(u64, PathBuf)> =
        numbered(markers).into_iter().filter_map(|(number, path)| Some((number?, path))).collect();
    all.sort();
    let surplus = all.len().saturating_sub(most);
    for (_, marker) in all.into_iter().take(surplus) {
        if let Err(error) = std::fs::remove_dir_all(&marker) {
            tracing::warn!(%error, marker = %marker.display(), "failed to remove an old marker");
        }
    }
}

/// Returns the existing markers, each with its number.
fn numbered(markers: &Path) -> Vec<(Option<u64>, PathBuf)> {
    let entries = std::fs::read_dir(markers).into_iter().flatten().flatten();
    let number = |path: &Path| std::fs::read_to_string(path.join(NUMBER)).ok()?.trim().parse().ok();
    entries.map(|entry| (number(&entry.path()), entry.path())).collect()
}
