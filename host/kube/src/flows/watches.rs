//! The watches that keep the cache of flows up to date.

use std::sync::Arc;

use oarlock_core::child::parent::ParentKind;
use oarlock_core::child::view::ChildKind;
use oarlock_core::cluster::object::Kind;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::cluster::Link;
use crate::flows::cache::FlowCache;
use crate::flows::kinds;
use crate::flows::sinks::{ChildSink, NodeSink, ParentSink, TemplateSink};
use crate::watch::health::{KindHealth, WatchHealth};
use crate::watch::reflector::{ItemSink, Reflector};
use crate::watch::watches::WatchedKind;

/// The watches of flows. They end with it.
pub(crate) struct FlowWatches {
    running: Mutex<Vec<(Kind, WatchHealth, JoinHandle<()>)>>,
    changes: watch::Sender<u64>,
}

impl Drop for FlowWatches {
    fn drop(&mut self) {
        self.running.lock().iter().for_each(|(_, _, task)| task.abort());
    }
}

impl FlowWatches {
    /// Watches JobFlows, DaemonJobs and JobTemplates.
    pub(crate) fn begin(link: &Link, cache: &Arc<FlowCache>) -> Self {
        let watches = Self { running: Mutex::default(), changes: watch::Sender::new(0) };
        for kind in [ParentKind::Flow, ParentKind::Daemon] {
            watches.watch(link, kinds::parent(kind), ParentSink(cache.clone(), kind));
        }
        watches.watch(link, kinds::template(), TemplateSink(cache.clone()));
        watches
    }

    fn watch<S: ItemSink>(&self, link: &Link, kind: Kind, sink: S) {
        let health = WatchHealth::new(self.changes.clone());
        let reflector = Reflector { link: link.clone(), kind: kind.clone(), sink, health: health.clone() };
        self.running.lock().push((kind, health, tokio::spawn(reflector.run())));
    }

    /// Resolves once a kind is served whose objects may need children; Jobs, OperationJobs and nodes are watched from then on,
    /// and have been listed. Without these kinds installed, nobody pays for their watches.
    pub(crate) async fn synced(&self, link: &Link, cache: &Arc<FlowCache>) {
        let mut changes = self.changes.subscribe();
        while !self.is_served() {
            if changes.changed().await.is_err() {
                return;
            }
        }
        if self.running.lock().len() == 3 {
            for kind in [ChildKind::Job, ChildKind::Operation] {
                self.watch(link, kinds::child(kind), ChildSink(cache.clone(), kind));
            }
            self.watch(link, Kind::node(), NodeSink(cache.clone()));
        }
        while !self.running.lock().iter().all(|(_, health, _)| health.is_synced()) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// True once JobFlows or DaemonJobs were listed.
    fn is_served(&self) -> bool {
        let running = self.running.lock();
        let states = running.iter().map(|(kind, health, _)| health.of(kind, WatchedKind::default()));
        states.take(2).any(|state| state.synced && state.served)
    }

    /// The state of each watch.
    pub(crate) fn health(&self) -> Vec<KindHealth> {
        let running = self.running.lock();
        running.iter().map(|(kind, health, _)| health.of(kind, WatchedKind::default())).collect()
    }
}
