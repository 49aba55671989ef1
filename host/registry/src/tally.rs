//! How far a copy is.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How far a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyProgress {
    /// Bytes that are at the target, sent or found there. It goes back where a blob is begun anew.
    pub copied: u64,
    /// Bytes of the whole image.
    pub total: u64,
}

/// Counts bytes, and tells of each change.
pub(crate) struct CopyTally<'a> {
    tell: &'a (dyn Fn(CopyProgress) + Send + Sync),
    total: u64,
    sent: AtomicU64,
    skipped: AtomicU64,
}

impl<'a> CopyTally<'a> {
    pub(crate) fn new(total: u64, tell: &'a (dyn Fn(CopyProgress) + Send + Sync)) -> Self {
        Self { tell, total, sent: AtomicU64::new(0), skipped: AtomicU64::new(0) }
    }

    /// Bytes were sent.
    pub(crate) fn send(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Relaxed);
        self.tell();
    }

    /// Bytes that were sent were in vain.
    pub(crate) fn take_back(&self, bytes: u64) {
        self.sent.fetch_sub(bytes, Relaxed);
        self.tell();
    }

    /// Bytes are there already.
    pub(crate) fn skip(&self, bytes: u64) {
        self.skipped.fetch_add(bytes, Relaxed);
        self.tell();
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    pub(crate) fn skipped(&self) -> u64 {
        self.skipped.load(Relaxed)
    }

    fn tell(&self) {
        let copied = self.sent().saturating_add(self.skipped());
        (self.tell)(CopyProgress { copied, total: self.total });
    }
}
