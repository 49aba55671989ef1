//! The watches of optional kinds, and of the kinds that their objects need.

use std::sync::Once;

use oarlock_core::object::api_object::Kind;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::link::Link;
use crate::watch::handler::EventHandler;
use crate::watch::health::{KindHealth, WatchHealth};
use crate::watch::objects::WatchedKind;
use crate::watch::reflector::Reflector;

/// The watches of optional kinds, which end when this value is dropped. The optional kinds come first. The watches of the kinds that their
/// objects need begin once an optional kind is served, so that they cost nothing if no optional kind is installed.
pub(crate) struct OnDemand {
    /// Records whether the watches of the needed kinds have begun.
    rest: Once,
    running: Mutex<Vec<(Kind, WatchHealth, JoinHandle<()>)>>,
    changes: watch::Sender<u64>,
}

impl Drop for OnDemand {
    fn drop(&mut self) {
        self.running.lock().iter().for_each(|(_, _, task)| task.abort());
    }
}

impl OnDemand {
    /// Returns a value without watches.
    pub(crate) fn begin() -> Self {
        Self { rest: Once::new(), running: Mutex::default(), changes: watch::Sender::new(0) }
    }

    /// Watches a kind from now on.
    pub(crate) fn watch<S: EventHandler>(&self, link: &Link, kind: Kind, handler: S) {
        let health = WatchHealth::new(self.changes.clone());
        let reflector = Reflector { link: link.clone(), kind: kind.clone(), handler, health: health.clone() };
        self.running.lock().push((kind, health, tokio::spawn(reflector.run())));
    }

    /// Waits until the API server serves one of the first `kinds` kinds. Then calls `rest` once, which begins further watches, and waits
    /// until all kinds are listed.
    pub(crate) async fn synced(&self, kinds: usize, rest: impl FnOnce()) {
        let mut changes = self.changes.subscribe();
        while !self.is_served(kinds) {
            if changes.changed().await.is_err() {
                return;
            }
        }
        self.rest.call_once(rest);
        while !self.running.lock().iter().all(|(_, health, _)| health.is_synced()) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Returns true if one of the first `kinds` kinds is listed and served.
    fn is_served(&self, kinds: usize) -> bool {
        let running = self.running.lock();
        let states = running.iter().map(|(kind, health, _)| health.of(kind, WatchedKind::default()));
        states.take(kinds).any(|state| state.synced && state.served)
    }

    /// Returns the state of each watch.
    pub(crate) fn health(&self) -> Vec<KindHealth> {
        let running = self.running.lock();
        running.iter().map(|(kind, health, _)| health.of(kind, WatchedKind::default())).collect()
    }
}
