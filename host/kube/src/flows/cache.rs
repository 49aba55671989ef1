//! JobFlows, DaemonJobs and JobTemplates in memory, with their children, and the nodes.
//!
//! Pod templates of children and managedFields are dropped while they are read.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use oarlock_core::child::node::NodeView;
use oarlock_core::child::parent::{Parent, ParentKind};
use oarlock_core::child::plan::TemplateView;
use oarlock_core::child::view::{ChildKind, ChildView};
use oarlock_core::cluster::memory::Room;
use oarlock_core::flow::template::StoredTemplate;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::flows::held::{Held, named_templates};
use crate::flows::key::FlowKey;

/// JobFlows, DaemonJobs and JobTemplates in memory.
#[derive(Default)]
pub struct FlowCache {
    held: Mutex<Held>,
    changed: Notify,
}

/// Everything that is known of one parent.
pub struct ParentView {
    /// The object.
    pub parent: Arc<Parent>,
    /// Its children.
    pub children: Vec<Arc<ChildView>>,
    /// The JobTemplates that it names, as far as they exist.
    pub templates: HashMap<String, Arc<TemplateView>>,
    /// All nodes.
    pub nodes: Arc<BTreeMap<String, Arc<NodeView>>>,
}

impl FlowCache {
    /// Nothing yet, within this room.
    pub(super) fn within(room: &Room) -> Self {
        Self { held: Mutex::new(Held::within(room)), changed: Notify::new() }
    }

    /// Resolves once something is dirty.
    pub async fn dirtied(&self) {
        loop {
            let changed = self.changed.notified();
            if !self.held.lock().dirty.is_empty() {
                return;
            }
            changed.await;
        }
    }

    /// Takes what is dirty.
    pub fn take_dirty(&self) -> HashSet<FlowKey> {
        std::mem::take(&mut self.held.lock().dirty)
    }

    /// Every key that is known.
    pub fn keys(&self) -> Vec<FlowKey> {
        let held = self.held.lock();
        let templates =
            held.templates.keys().map(|(namespace, name)| FlowKey::Template(namespace.clone(), name.clone()));
        held.parents.keys().cloned().chain(templates).collect()
    }

    /// What is known of a parent.
    pub fn view(&self, key: &FlowKey) -> Option<ParentView> {
        let held = self.held.lock();
        let parent = held.parents.get(key)?.clone();
        let children = held.families.of(&parent.namespace, &parent.uid).cloned().collect();
        let named = named_templates(&parent).into_iter();
        let templates = named.filter_map(|name| {
            let template = held.templates.get(&(parent.namespace.clone(), name.to_owned()))?;
            let version = format!("{}/{}", template.uid, template.generation);
            Some((
                name.to_owned(),
                Arc::new(TemplateView { version, unread: template.unread.clone(), job: template.job.clone() }),
            ))
        });
        Some(ParentView { templates: templates.collect(), children, nodes: held.nodes.clone(), parent: parent.clone() })
    }

    /// A template, and the names of the Jobs that were made from it, sorted.
    pub fn template(&self, namespace: &str, name: &str) -> Option<(Arc<StoredTemplate>, Vec<String>)> {
        let held = self.held.lock();
        let key = (namespace.to_owned(), name.to_owned());
        let jobs = held.made_from.get(&key).into_iter().flatten().map(|job| job.0.name.clone()).collect();
        Some((held.templates.get(&key)?.clone(), jobs))
    }

    /// Notes whether somebody makes rounds. Without them nothing is kept of children that are gone.
    pub fn rest(&self, is_idle: bool) {
        self.held.lock().rest(is_idle);
    }

    /// Drops children that are gone, once a round has judged them.
    pub fn forget_gone(&self, owner: &Parent, uids: &[String]) {
        let is_kept = |child: &ChildView| !(child.gone && uids.contains(&child.uid));
        self.held.lock().families.retain(&owner.namespace, &owner.uid, is_kept);
    }

    /// Has a parent told when the object of this name changes or goes.
    pub(crate) fn await_name(&self, kind: ChildKind, namespace: &str, name: &str, key: FlowKey) {
        let place = (kind, namespace.to_owned(), name.to_owned());
        self.held.lock().awaited.entry(place).or_default().insert(key);
    }

    /// True once after an object whose name a parent waits for has changed.
    pub fn take_healed(&self, key: &FlowKey) -> bool {
        self.held.lock().healed.remove(key)
    }

    fn change(&self, change: impl FnOnce(&mut Held)) {
        let mut held = self.held.lock();
        change(&mut held);
        held.shed();
        let is_dirty = !held.dirty.is_empty();
        drop(held);
        if is_dirty {
            self.changed.notify_waiters();
        }
    }

    /// Makes a parent dirty.
    pub fn soil(&self, key: FlowKey) {
        self.change(|held| {
            held.dirty.insert(key);
        });
    }

    pub(crate) fn put_parent(&self, parent: Parent) {
        self.change(|held| held.put_parent(parent));
    }

    /// Takes a reply: of an object that is gone meanwhile it is too late.
    pub(crate) fn reply_parent(&self, parent: Parent) {
        self.change(|held| {
            if held.by_uid.contains_key(&parent.uid) {
                held.put_parent(parent);
            }
        });
    }

    pub(crate) fn reply_template(&self, template: StoredTemplate) {
        self.change(|held| {
            let key = (template.namespace.clone(), template.name.clone());
            if held.templates.get(&key).is_some_and(|before| before.uid == template.uid) {
                held.put_template(template);
            }
        });
    }

    pub(crate) fn reply_child(&self, child: ChildView) {
        self.change(|held| {
            if held.owner_of(&child).is_some() {
                held.put_child(child);
            }
        });
    }

    pub(crate) fn drop_parent(&self, key: &FlowKey) {
        self.change(|held| held.drop_parent(key));
    }

    pub(crate) fn reset_parents(&self, kind: ParentKind, parents: Vec<Parent>) {
        self.change(|held| {
            let listed: HashSet<FlowKey> = parents.iter().map(FlowKey::of).collect();
            let is_kind = |key: &&FlowKey| matches!(key, FlowKey::Parent(of, ..) if *of == kind);
            let absent: Vec<FlowKey> =
                held.parents.keys().filter(is_kind).filter(|key| !listed.contains(key)).cloned().collect();
            absent.iter().for_each(|key| held.drop_parent(key));
            parents.into_iter().for_each(|parent| held.put_parent(parent));
        });
    }

    pub(crate) fn put_template(&self, template: StoredTemplate) {
        self.change(|held| held.put_template(template));
    }

    pub(crate) fn drop_template(&self, key: &(String, String)) {
        self.change(|held| held.drop_template(key));
    }

    pub(crate) fn reset_templates(&self, templates: Vec<StoredTemplate>) {
        self.change(|held| {
            let listed: HashSet<(String, String)> =
                templates.iter().map(|one| (one.namespace.clone(), one.name.clone())).collect();
            let absent: Vec<_> = held.templates.keys().filter(|key| !listed.contains(*key)).cloned().collect();
            absent.iter().for_each(|key| held.drop_template(key));
            templates.into_iter().for_each(|template| held.put_template(template));
        });
    }

    /// Takes a view of a child, from the watch or from a reply.
    pub(crate) fn put_child(&self, child: ChildView) {
        self.change(|held| held.put_child(child));
    }

    pub(crate) fn drop_child(&self, child: ChildView) {
        self.change(|held| held.drop_child(child));
    }

    pub(crate) fn reset_children(&self, kind: ChildKind, children: Vec<ChildView>, version: u64) {
        self.change(|held| {
            let listed: HashSet<&str> = children.iter().map(|child| child.uid.as_str()).collect();
            let is_absent = |child: &&Arc<ChildView>| child.version <= version && !listed.contains(child.uid.as_str());
            let absent: Vec<Arc<ChildView>> = held.places.all(kind).filter(is_absent).cloned().collect();
            absent.into_iter().for_each(|child| held.drop_child((*child).clone()));
            children.into_iter().for_each(|child| held.put_child(child));
        });
    }

    pub(crate) fn put_node(&self, node: NodeView) {
        self.change(|held| {
            if held.nodes.get(&node.name).is_some_and(|before| **before == node) {
                return;
            }
            Arc::make_mut(&mut held.nodes).insert(node.name.clone(), Arc::new(node));
            held.soil_daemons();
        });
    }

    pub(crate) fn drop_node(&self, name: &str) {
        self.change(|held| {
            if Arc::make_mut(&mut held.nodes).remove(name).is_some() {
                held.soil_daemons();
            }
        });
    }

    pub(crate) fn reset_nodes(&self, nodes: Vec<NodeView>) {
        self.change(|held| {
            let nodes: BTreeMap<String, Arc<NodeView>> =
                nodes.into_iter().map(|node| (node.name.clone(), Arc::new(node))).collect();
            if *held.nodes != nodes {
                held.nodes = Arc::new(nodes);
                held.soil_daemons();
            }
        });
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
