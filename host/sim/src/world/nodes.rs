//! The cache of nodes, and the watch that fills it.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod, PodSpec};
use kube::ResourceExt;
use kube::runtime::watcher::Event;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::deciders::scheduler::{self, NodeView};
use super::pod_facts::PodFacts;
use super::watches::Watches;

/// The last observed nodes, each with the time of the last change of its taints.
#[derive(Default)]
pub(crate) struct Nodes {
    all: Mutex<BTreeMap<String, (NodeView, Instant)>>,
}

impl Nodes {
    /// Stores a node. Returns true if the change can affect pods.
    fn put(&self, node: &Node) -> bool {
        let spec = node.spec.clone().unwrap_or_default();
        let view = NodeView {
            name: node.name_any(),
            labels: node.labels().clone(),
            unschedulable: spec.unschedulable.unwrap_or_default(),
            taints: spec.taints.unwrap_or_default(),
        };
        let mut all = self.all.lock();
        match all.get_mut(&view.name) {
            Some((known, _)) if *known == view => false,
            Some(known) => {
                let since = if known.0.taints == view.taints { known.1 } else { Instant::now() };
                *known = (view, since);
                true
            }
            None => {
                all.insert(view.name.clone(), (view, Instant::now()));
                true
            }
        }
    }

    fn remove(&self, name: &str) {
        self.all.lock().remove(name);
    }

    fn only_these_exist(&self, names: &HashSet<String>) {
        self.all.lock().retain(|name, _| names.contains(name));
    }

    /// Chooses a node for a pod by a drawn number, or returns the reason why no node fits.
    pub(crate) fn choose(&self, pod: &PodSpec, draw: u64) -> Result<String, String> {
        let nodes: Vec<NodeView> = self.all.lock().values().map(|(view, _)| view.clone()).collect();
        scheduler::choose(pod, &nodes, draw)
    }

    /// Returns the time that a pod has left on its node, or none if it may stay forever.
    pub(crate) fn time_left(&self, pod: &Pod) -> Option<Duration> {
        let (spec, all) = (pod.spec.as_ref()?, self.all.lock());
        let (view, since) = all.get(pod.node()?)?;
        Some(scheduler::stay(spec, view)?.saturating_sub(since.elapsed()))
    }
}

/// The state of the node watch.
pub(crate) struct NodeWatch {
    watches: Watches,
    seen: HashSet<String>,
    has_synced: bool,
}

impl NodeWatch {
    pub(crate) fn new(watches: Watches) -> Self {
        Self { watches, seen: HashSet::new(), has_synced: false }
    }

    /// Handles a watch event.
    pub(crate) fn saw(&mut self, event: Event<Node>) {
        let nodes = self.watches.rounds.writer.nodes.clone();
        match event {
            Event::Init => self.seen.clear(),
            Event::InitApply(node) => {
                self.seen.insert(node.name_any());
                nodes.put(&node);
            }
            Event::InitDone => {
                nodes.only_these_exist(&self.seen);
                self.watches.wake_all();
                self.watches.count_sync(&mut self.has_synced);
            }
            Event::Apply(node) => {
                if nodes.put(&node) {
                    self.watches.wake_all();
                }
            }
            Event::Delete(node) => nodes.remove(&node.name_any()),
        }
    }
}
