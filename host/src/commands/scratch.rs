//! A temporary folder that is removed when its command ends. Only this user may read it.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::host::made_up_identity;

/// A temporary folder.
#[derive(Debug)]
pub(super) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Creates an empty folder in the system's folder for temporary files.
    pub(super) fn new() -> anyhow::Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        let path = std::env::temp_dir().join(made_up_identity());
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| {
            format!("cannot make the folder {}: set TMPDIR to one that can be written", path.display())
        })?;
        Ok(Self { path })
    }

    /// Returns the path of the folder.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "failed to remove a temporary folder");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_of_it_in_the_end() {
        let scratch = Scratch::new().unwrap();
        std::fs::write(scratch.path().join("a"), "text").unwrap();
        let path = scratch.path().to_owned();
        drop(scratch);
        assert!(!path.exists());
    }
}
