//! The progress of a copy.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The progress of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyProgress {
    /// The bytes at the target, both sent and found there. The number decreases if a blob is sent again.
    pub copied: u64,
    /// The bytes of the whole image.
    pub total: u64,
}

/// Counts bytes, and reports each change.
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

    /// Counts sent bytes.
    pub(crate) fn send(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Relaxed);
        self.tell();
    }

    /// Subtracts sent bytes of a failed try.
    pub(crate) fn uncount(&self, bytes: u64) {
        self.sent.fetch_sub(bytes, Relaxed);
        self.tell();
    }

    /// Counts bytes that the target already has.
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
