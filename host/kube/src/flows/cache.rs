//! The cache of JobFlows, DaemonJobs and JobTemplates, with their children, and of the nodes.
//!
//! The handlers drop pod templates of children and managedFields while they read.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use oarlock_core::attempts::node::NodeView;
use oarlock_core::attempts::parent::{Parent, ParentKind};
use oarlock_core::attempts::plan::TemplateView;
use oarlock_core::attempts::view::{ChildKind, ChildView};
use oarlock_core::job_template::template::{StoredTemplate, template_key};
use oarlock_core::object::api_object::ObjectKey;
use oarlock_core::object::memory::MemoryBudget;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::flows::cache_state::{FlowCacheState, named_templates};

/// The cache of JobFlows, DaemonJobs and JobTemplates.
#[derive(Default)]
pub struct FlowCache {
    state: Mutex<FlowCacheState>,
    changed: Notify,
}

/// The cached state of one parent.
pub struct ParentView {
    /// The object.
    pub parent: Arc<Parent>,
    /// The children of the parent.
    pub children: Vec<Arc<ChildView>>,
    /// The JobTemplates that the parent names and that exist.
    pub templates: HashMap<String, Arc<TemplateView>>,
    /// All nodes.
    pub nodes: Arc<BTreeMap<String, Arc<NodeView>>>,
}

impl FlowCache {
    /// Returns an empty cache whose objects count in this room.
    pub(super) fn within(room: &MemoryBudget) -> Self {
        Self { state: Mutex::new(FlowCacheState::within(room)), changed: Notify::new() }
    }

    /// Waits until a key is dirty.
    pub async fn until_dirty(&self) {
        loop {
            let changed = self.changed.notified();
            if !self.state.lock().dirty.is_empty() {
                return;
            }
            changed.await;
        }
    }

    /// Takes all dirty keys.
    pub fn take_dirty(&self) -> HashSet<ObjectKey> {
        std::mem::take(&mut self.state.lock().dirty)
    }

    /// Returns all known keys.
    pub fn keys(&self) -> Vec<ObjectKey> {
        let state = self.state.lock();
        state.parents.keys().chain(state.templates.keys()).cloned().collect()
    }

    /// Returns the cached state of a parent.
    pub fn view(&self, key: &ObjectKey) -> Option<ParentView> {
        let state = self.state.lock();
        let parent = state.parents.get(key)?.clone();
        let children = state.children_by_owner.of(&parent.namespace, &parent.uid).cloned().collect();
        let named = named_templates(&parent).into_iter();
        let templates = named.filter_map(|name| {
            let template = state.templates.get(&template_key(&parent.namespace, name))?;
            let version = format!("{}/{}", template.uid, template.generation);
            Some((
                name.to_owned(),
                Arc::new(TemplateView { version, unread: template.unread.clone(), job: template.job.clone() }),
            ))
        });
        Some(ParentView {
            templates: templates.collect(),
            children,
            nodes: state.nodes.clone(),
            parent: parent.clone(),
        })
    }

    /// Returns a template, and the sorted names of the Jobs that were made from it.
    pub fn template(&self, key: &ObjectKey) -> Option<(Arc<StoredTemplate>, Vec<String>)> {
        let state = self.state.lock();
        let jobs = state.made_from.get(key).into_iter().flatten().map(|job| job.0.name.clone()).collect();
        Some((state.templates.get(key)?.clone(), jobs))
    }

    /// Records whether rounds run. While no rounds run, the cache does not keep deleted children.
    pub fn set_idle(&self, is_idle: bool) {
        self.state.lock().set_idle(is_idle);
    }

    /// Drops these deleted children, after a round has judged them.
    pub fn forget_gone(&self, owner: &Parent, uids: &[String]) {
        let is_kept = |child: &ChildView| !(child.gone && uids.contains(&child.uid));
        self.state.lock().children_by_owner.retain(&owner.namespace, &owner.uid, is_kept);
    }

    /// Requeues a parent when the object of this name changes or goes.
    pub(crate) fn requeue_on_name(&self, kind: ChildKind, namespace: &str, name: &str, key: ObjectKey) {
        let place = (kind, namespace.to_owned(), name.to_owned());
        self.state.lock().awaited.entry(place).or_default().insert(key);
    }

    /// Returns true once after an object whose name a parent waits for has changed.
    pub fn take_name_change(&self, key: &ObjectKey) -> bool {
        self.state.lock().changed_names.remove(key)
    }

    fn change(&self, change: impl FnOnce(&mut FlowCacheState)) {
        let mut state = self.state.lock();
        change(&mut state);
        state.shed();
        let is_dirty = !state.dirty.is_empty();
        drop(state);
        if is_dirty {
            self.changed.notify_waiters();
        }
    }

    /// Marks a parent dirty.
    pub fn mark_dirty(&self, key: ObjectKey) {
        self.change(|state| {
            state.dirty.insert(key);
        });
    }

    pub(crate) fn put_parent(&self, parent: Parent) {
        self.change(|state| state.put_parent(parent));
    }

    /// Takes the parent from a reply. The cache ignores a reply for an object that has been deleted meanwhile.
    pub(crate) fn reply_parent(&self, parent: Parent) {
        self.change(|state| {
            if state.by_uid.contains_key(&parent.uid) {
                state.put_parent(parent);
            }
        });
    }

    pub(crate) fn reply_template(&self, template: StoredTemplate) {
        self.change(|state| {
            let key = template.key();
            if state.templates.get(&key).is_some_and(|before| before.uid == template.uid) {
                state.put_template(template);
            }
        });
    }

    pub(crate) fn reply_child(&self, child: ChildView) {
        self.change(|state| {
            if state.owner_of(&child).is_some() {
                state.put_child(child);
            }
        });
    }

    pub(crate) fn drop_parent(&self, key: &ObjectKey) {
        self.change(|state| state.drop_parent(key));
    }

    pub(crate) fn reset_parents(&self, kind: ParentKind, parents: Vec<Parent>) {
        self.change(|state| {
            let listed: HashSet<ObjectKey> = parents.iter().map(Parent::key).collect();
            let is_kind = |key: &&ObjectKey| ParentKind::of_key(key) == Some(kind);
            let absent: Vec<ObjectKey> =
                state.parents.keys().filter(is_kind).filter(|key| !listed.contains(key)).cloned().collect();
            absent.iter().for_each(|key| state.drop_parent(key));
            parents.into_iter().for_each(|parent| state.put_parent(parent));
        });
    }

    pub(crate) fn put_template(&self, template: StoredTemplate) {
        self.change(|state| state.put_template(template));
    }

    pub(crate) fn drop_template(&self, key: &ObjectKey) {
        self.change(|state| state.drop_template(key));
    }

    pub(crate) fn reset_templates(&self, templates: Vec<StoredTemplate>) {
        self.change(|state| {
            let listed: HashSet<ObjectKey> = templates.iter().map(StoredTemplate::key).collect();
            let absent: Vec<_> = state.templates.keys().filter(|key| !listed.contains(*key)).cloned().collect();
            absent.iter().for_each(|key| state.drop_template(key));
            templates.into_iter().for_each(|template| state.put_template(template));
        });
    }

    /// Takes a view of a child, from the watch or from a reply.
    pub(crate) fn put_child(&self, child: ChildView) {
        self.change(|state| state.put_child(child));
    }

    pub(crate) fn drop_child(&self, child: ChildView) {
        self.change(|state| state.drop_child(child));
    }

    pub(crate) fn reset_children(&self, kind: ChildKind, children: Vec<ChildView>, version: u64) {
        self.change(|state| {
            let listed: HashSet<&str> = children.iter().map(|child| child.uid.as_str()).collect();
            let is_absent = |child: &&Arc<ChildView>| child.version <= version && !listed.contains(child.uid.as_str());
            let absent: Vec<Arc<ChildView>> = state.children_by_name.all(kind).filter(is_absent).cloned().collect();
            absent.into_iter().for_each(|child| state.drop_child((*child).clone()));
            children.into_iter().for_each(|child| state.put_child(child));
        });
    }

    pub(crate) fn put_node(&self, node: NodeView) {
        self.change(|state| {
            if state.nodes.get(&node.name).is_some_and(|before| **before == node) {
                return;
            }
            Arc::make_mut(&mut state.nodes).insert(node.name.clone(), Arc::new(node));
            state.mark_daemon_jobs_dirty();
        });
    }

    pub(crate) fn drop_node(&self, name: &str) {
        self.change(|state| {
            if Arc::make_mut(&mut state.nodes).remove(name).is_some() {
                state.mark_daemon_jobs_dirty();
            }
        });
    }

    pub(crate) fn reset_nodes(&self, nodes: Vec<NodeView>) {
        self.change(|state| {
            let nodes: BTreeMap<String, Arc<NodeView>> =
                nodes.into_iter().map(|node| (node.name.clone(), Arc::new(node))).collect();
            if *state.nodes != nodes {
                state.nodes = Arc::new(nodes);
                state.mark_daemon_jobs_dirty();
            }
        });
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
