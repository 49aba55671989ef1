//! The place for the bytes of a component.

use std::fs::File;
use std::io::{self, Seek as _, Write as _};

/// Takes the bytes of a component while they arrive.
///
/// The bytes are not verified before the download has succeeded. So a caller gives a file a temporary name, and renames it afterwards.
pub trait ComponentSink: Send {
    /// Discards all bytes, because the download begins anew.
    ///
    /// # Errors
    /// If the bytes cannot be discarded.
    fn restart(&mut self) -> io::Result<()>;

    /// Takes the next bytes.
    ///
    /// # Errors
    /// If the bytes cannot be stored.
    fn take(&mut self, bytes: &[u8]) -> io::Result<()>;
}

impl ComponentSink for Vec<u8> {
    fn restart(&mut self) -> io::Result<()> {
        self.clear();
        Ok(())
    }

    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.extend_from_slice(bytes);
        Ok(())
    }
}

/// Writes on the thread of the download, so a download belongs on a runtime that may block.
impl ComponentSink for File {
    fn restart(&mut self) -> io::Result<()> {
        self.set_len(0)?;
        self.rewind()
    }

    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }
}
