//! The cache of JobFlows, DaemonJobs and JobTemplates, with their children, and of the nodes.
//!
//! The handlers drop pod templates of children and managedFields while they read.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use oarlock_core::attempts::node::NodeView;
use oarlock_core::attempts::parent::{Parent, ParentKind};
use oarlock_core::attempts::plan::TemplateView;
use oarlock_core::attempts::view::{ChildKind, ChildView};
use oarlock_core::job_template::template::{StoredTemplate, template_key};
use oarlock_core::object::api_object::ObjectKey;
use oarlock_core::object::memory::MemoryBudget;
use parking_lot::Mutex;
use serde_json::Value;
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
            if self.state.lock().is_dirty() {
                return;
            }
            changed.await;
        }
    }

    /// Takes all dirty keys.
    pub fn take_dirty(&self) -> BTreeSet<ObjectKey> {
        self.state.lock().take_dirty()
    }

    /// Returns all known keys.
    pub fn keys(&self) -> Vec<ObjectKey> {
        let state = self.state.lock();
        let parents = state.parents.all().map(|parent| parent.key());
        parents.chain(state.templates.all().map(|template| template.key())).collect()
    }

    /// Returns true if the view of an object may be older than the host's last write of it.
    pub(super) fn is_uncertain(&self, key: &ObjectKey) -> bool {
        let state = self.state.lock();
        let is_parent = ParentKind::of_key(key).is_some();
        if is_parent { state.parents.view(key).is_uncertain() } else { state.templates.view(key).is_uncertain() }
    }

    /// Returns the UID of the cached object with this key.
    pub(super) fn uid(&self, key: &ObjectKey) -> Option<String> {
        let state = self.state.lock();
        let parent = state.parents.get(key).map(|parent| parent.uid.clone());
        parent.or_else(|| state.templates.get(key).map(|template| template.uid.clone()))
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
        let is_dirty = state.is_dirty();
        drop(state);
        if is_dirty {
            self.changed.notify_waiters();
        }
    }

    /// Marks a parent dirty.
    pub fn mark_dirty(&self, key: &ObjectKey) {
        self.change(|state| state.parents.mark_dirty(key));
    }

    /// Marks the view of an object uncertain, after a write with an unknown outcome.
    pub(super) fn doubt(&self, key: &ObjectKey) {
        self.change(|state| match ParentKind::of_key(key) {
            Some(_) => state.parents.doubt(key),
            None => state.templates.doubt(key),
        });
    }

    /// Takes the answer of the API server to a read of an object. `before` is the UID of the object that the cache had before the read.
    pub(super) fn confirm(&self, key: &ObjectKey, before: Option<&str>, document: Option<Value>) {
        self.change(|state| match ParentKind::of_key(key) {
            Some(kind) => {
                let parent = document.and_then(|document| Parent::read(kind, document));
                let dropped = state.parents.confirm(key, before, parent.as_ref());
                dropped.iter().for_each(|dropped| state.note_dropped(dropped));
                parent.into_iter().for_each(|parent| state.put_parent(parent));
            }
            None => {
                let template = document.and_then(StoredTemplate::read);
                if state.templates.confirm(key, before, template.as_ref()).is_some() {
                    state.mark_flows_dirty(key);
                }
                template.into_iter().for_each(|template| state.put_template(template));
            }
        });
    }

    /// Takes a parent from a watch event or a reply.
    pub(crate) fn put_parent(&self, parent: Parent) {
        self.change(|state| state.put_parent(parent));
    }

    pub(crate) fn reply_child(&self, child: ChildView) {
        self.change(|state| {
            if state.owner_of(&child).is_some() {
                state.put_child(child);
            }
        });
    }

    /// Takes the last view of a deleted parent.
    pub(crate) fn drop_parent(&self, last: &Parent) {
        self.change(|state| state.remove_parent(last));
    }

    /// Takes a complete list of the parents of one kind at this version.
    pub(crate) fn reset_parents(&self, kind: ParentKind, parents: Vec<Parent>, version: u64) {
        self.change(|state| {
            let listed = parents.iter().map(|parent| parent.uid.clone()).collect();
            let absent = state.parents.absent_from(&listed, version).into_iter().filter(|parent| parent.kind == kind);
            absent.for_each(|parent| state.forget_parent(&parent.key(), &parent.uid));
            parents.into_iter().for_each(|parent| state.put_parent(parent));
        });
    }

    /// Takes a template from a watch event or a reply.
    pub(crate) fn put_template(&self, template: StoredTemplate) {
        self.change(|state| state.put_template(template));
    }

    /// Takes the last view of a deleted template.
    pub(crate) fn drop_template(&self, last: &StoredTemplate) {
        self.change(|state| state.remove_template(last));
    }

    /// Takes a complete list of the templates at this version.
    pub(crate) fn reset_templates(&self, templates: Vec<StoredTemplate>, version: u64) {
        self.change(|state| {
            let listed = templates.iter().map(|template| template.uid.clone()).collect();
            let absent = state.templates.absent_from(&listed, version);
            absent.iter().for_each(|template| state.forget_template(&template.key(), &template.uid));
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
