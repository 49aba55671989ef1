//! The markers of commands on a node: a command whose marker is there is not begun.
//!
//! They are numbered in the order in which they are made, and no clock says when one goes: that of a node may jump.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use super::command::NoResult;

/// How many markers stay, the newest: more commands than a node runs in the time in which one may be asked for once more.
pub(super) const KEPT: usize = 4096;
/// The file in a marker with its number.
const NUMBER: &str = "number";

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
    let next = numbered(markers).into_iter().filter_map(|(number, _)| number).max().unwrap_or(0).saturating_add(1);
    std::fs::write(marker.join(NUMBER), next.to_string()).with_context(cannot)?;
    // The command may reboot the node.
    File::open(markers).and_then(|folder| folder.sync_all()).with_context(cannot)?;
    Ok(marker)
}

/// Removes the oldest markers where there are more than `most`, as far as that goes. One without a number is being made now, or
/// was made by a host that gave none: it stays.
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

/// The markers that are there, each with its number.
fn numbered(markers: &Path) -> Vec<(Option<u64>, PathBuf)> {
    let entries = std::fs::read_dir(markers).into_iter().flatten().flatten();
    let number = |path: &Path| std::fs::read_to_string(path.join(NUMBER)).ok()?.trim().parse().ok();
    entries.map(|entry| (number(&entry.path()), entry.path())).collect()
}
