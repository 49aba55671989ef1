//! A temporary folder that lives as long as the command that made it, readable by this user alone.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::host::made_up_identity;

/// A temporary folder.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes an empty one in the system's folder for temporary files.
    pub(crate) fn new() -> anyhow::Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        let path = std::env::temp_dir().join(made_up_identity());
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| {
            format!("cannot make the folder {}: set TMPDIR to one that can be written", path.display())
        })?;
        Ok(Self { path })
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file into it.
    pub(crate) fn write(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.path.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
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
        let file = scratch.write("a", "text").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "text");
        let path = scratch.path().to_owned();
        drop(scratch);
        assert!(!path.exists());
    }
}
