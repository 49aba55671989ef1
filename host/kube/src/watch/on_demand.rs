//! Watches of kinds that need not be installed, and of what their objects need.

use std::sync::Once;

use oarlock_core::cluster::object::Kind;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::cluster::Link;
use crate::watch::health::{KindHealth, WatchHealth};
use crate::watch::reflector::{ItemSink, Reflector};
use crate::watch::watches::WatchedKind;

/// Watches that end with it. Those of the kinds themselves come first; what their objects need is watched once one of these is served:
/// without them installed, nobody pays for it.
pub(crate) struct OnDemand {
    /// Whether what objects need is watched.
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
    /// None yet.
    pub(crate) fn begin() -> Self {
        Self { rest: Once::new(), running: Mutex::default(), changes: watch::Sender::new(0) }
    }

    /// Watches a kind from now on.
    pub(crate) fn watch<S: ItemSink>(&self, link: &Link, kind: Kind, sink: S) {
        let health = WatchHealth::new(self.changes.clone());
        let reflector = Reflector { link: link.clone(), kind: kind.clone(), sink, health: health.clone() };
        self.running.lock().push((kind, health, tokio::spawn(reflector.run())));
    }

    /// Resolves once one of so many first kinds is served, and everything was listed that is watched from then on, which `rest`
    /// begins, once.
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

    /// True once one of so many first kinds was listed.
    fn is_served(&self, kinds: usize) -> bool {
        let running = self.running.lock();
        let states = running.iter().map(|(kind, health, _)| health.of(kind, WatchedKind::default()));
        states.take(kinds).any(|state| state.synced && state.served)
    }

    /// The state of each watch.
    pub(crate) fn health(&self) -> Vec<KindHealth> {
        let running = self.running.lock();
        running.iter().map(|(kind, health, _)| health.of(kind, WatchedKind::default())).collect()
    }
}
