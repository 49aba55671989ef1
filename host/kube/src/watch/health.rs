//! Whether the objects in memory are up to date.
//!
//! Readiness, and whether a plugin may be used, are judged by it elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oarlock_core::cluster::object::Kind;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

/// The state of one kind's watch.
#[derive(Clone, Debug, PartialEq)]
pub struct KindHealth {
    /// The kind.
    pub kind: Kind,
    /// Whether it was listed with the fields that are declared now.
    pub synced: bool,
    /// Whether the API server serves it.
    pub served: bool,
    /// How long ago the watch last gave a sign of life.
    pub heard: Option<Duration>,
    /// How long ago it was last listed.
    pub listed: Option<Duration>,
    /// What failed since the last sign of life.
    pub error: Option<String>,
}

/// The state of one kind's watch, as the watch itself notes it.
#[derive(Clone)]
pub(crate) struct WatchPulse {
    synced: Arc<AtomicBool>,
    beat: Arc<Mutex<Beat>>,
    /// Rises with each change that others wait for.
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct Beat {
    unserved: bool,
    heard: Option<Instant>,
    listed: Option<Instant>,
    error: Option<String>,
}

impl WatchPulse {
    pub(crate) fn new(changes: watch::Sender<u64>) -> Self {
        Self { synced: Arc::default(), beat: Arc::default(), changes }
    }

    fn tell(&self) {
        self.changes.send_modify(|number| *number = number.wrapping_add(1));
    }

    pub(crate) fn listed(&self) {
        let now = Instant::now();
        *self.beat.lock() = Beat { unserved: false, heard: Some(now), listed: Some(now), error: None };
        self.synced.store(true, Ordering::Release);
        self.tell();
    }

    pub(crate) fn heard(&self) {
        let mut beat = self.beat.lock();
        beat.heard = Some(Instant::now());
        beat.error = None;
    }

    pub(crate) fn failed(&self, message: String) {
        self.beat.lock().error = Some(message);
        if !self.synced.load(Ordering::Acquire) {
            self.tell();
        }
    }

    /// There are no objects of a kind that is not served, and that is known.
    pub(crate) fn unserved(&self) {
        self.beat.lock().unserved = true;
        self.synced.store(true, Ordering::Release);
        self.tell();
    }

    /// Whether the kind was listed.
    pub(crate) fn is_synced(&self) -> bool {
        self.synced.load(Ordering::Acquire)
    }

    pub(crate) fn health(&self, kind: &Kind) -> KindHealth {
        let beat = self.beat.lock();
        KindHealth {
            kind: kind.clone(),
            synced: self.synced.load(Ordering::Acquire),
            served: !beat.unserved,
            heard: beat.heard.map(|at| at.elapsed()),
            listed: beat.listed.map(|at| at.elapsed()),
            error: beat.error.clone(),
        }
    }
}
