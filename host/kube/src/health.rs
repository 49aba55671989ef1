//! Whether what is kept in memory is up to date.
//!
//! Takes notes of each list and each sign of life of a watch; yields what readiness is judged by. May not judge.

use std::sync::Arc;
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

/// Where one kind's watch notes how it is.
#[derive(Clone)]
pub(crate) struct Pulse {
    synced: watch::Sender<bool>,
    beat: Arc<Mutex<Beat>>,
}

#[derive(Default)]
struct Beat {
    unserved: bool,
    heard: Option<Instant>,
    listed: Option<Instant>,
    error: Option<String>,
}

impl Default for Pulse {
    fn default() -> Self {
        Self { synced: watch::Sender::new(false), beat: Arc::default() }
    }
}

impl Pulse {
    pub(crate) fn listed(&self) {
        let now = Instant::now();
        *self.beat.lock() = Beat { unserved: false, heard: Some(now), listed: Some(now), error: None };
        self.synced.send_replace(true);
    }

    pub(crate) fn heard(&self) {
        let mut beat = self.beat.lock();
        beat.heard = Some(Instant::now());
        beat.error = None;
    }

    pub(crate) fn failed(&self, message: String) {
        self.beat.lock().error = Some(message);
    }

    /// There are no objects of a kind that is not served, and that is known.
    pub(crate) fn unserved(&self) {
        self.beat.lock().unserved = true;
        self.synced.send_replace(true);
    }

    /// Resolves once the kind was listed.
    pub(crate) fn synced(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut synced = self.synced.subscribe();
        async move {
            // An error means that the watch was given up: nobody waits for it any more.
            let _ended = synced.wait_for(|synced| *synced).await.is_err();
        }
    }

    pub(crate) fn health(&self, kind: &Kind) -> KindHealth {
        let beat = self.beat.lock();
        KindHealth {
            kind: kind.clone(),
            synced: *self.synced.borrow(),
            served: !beat.unserved,
            heard: beat.heard.map(|at| at.elapsed()),
            listed: beat.listed.map(|at| at.elapsed()),
            error: beat.error.clone(),
        }
    }
}
