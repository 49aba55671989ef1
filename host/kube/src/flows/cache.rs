//! JobFlows, DaemonJobs and JobTemplates in memory, with their children, and the nodes.
//!
//! Pod templates of children and managedFields are dropped while they are read. Every change makes dirty what it
//! concerns, and nothing else.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use oarlock_core::child::fields::{list, text};
use oarlock_core::child::node::NodeView;
use oarlock_core::child::parent::{Parent, ParentKind};
use oarlock_core::child::plan::TemplateView;
use oarlock_core::child::view::{ChildKind, ChildView};
use oarlock_core::flow::template::{StoredTemplate, of_annotation};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// A JobFlow, a DaemonJob or a JobTemplate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlowKey {
    /// A JobFlow or DaemonJob: its kind, namespace and name.
    Parent(ParentKind, String, String),
    /// A JobTemplate: its namespace and name.
    Template(String, String),
}

impl FlowKey {
    /// The key of a parent.
    pub fn of(parent: &Parent) -> Self {
        Self::Parent(parent.kind, parent.namespace.clone(), parent.name.clone())
    }
}

impl std::fmt::Display for FlowKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Parent(kind, namespace, name) => write!(f, "{} {namespace}/{name}", kind.name()),
            Self::Template(namespace, name) => write!(f, "JobTemplate {namespace}/{name}"),
        }
    }
}

/// Place of a child: its kind, namespace and name.
type Place = (ChildKind, String, String);

#[derive(Default)]
struct Held {
    parents: HashMap<FlowKey, Arc<Parent>>,
    by_uid: HashMap<String, FlowKey>,
    templates: HashMap<(String, String), Arc<StoredTemplate>>,
    /// The flows that name a template.
    named_by: HashMap<(String, String), BTreeSet<FlowKey>>,
    /// The children of each owner, by their UID; those that are gone until a round has judged them.
    children: HashMap<String, BTreeMap<String, Arc<ChildView>>>,
    places: HashMap<Place, Arc<ChildView>>,
    /// The names of the Jobs that were made from a template.
    made_from: HashMap<(String, String), BTreeSet<String>>,
    nodes: Arc<BTreeMap<String, Arc<NodeView>>>,
    /// Objects whose name somebody waits for.
    awaited: HashMap<Place, BTreeSet<FlowKey>>,
    /// Those of them for whom such an object has changed.
    healed: HashSet<FlowKey>,
    dirty: HashSet<FlowKey>,
}

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
        let children = held.children.get(&parent.uid).map(|all| all.values().cloned().collect()).unwrap_or_default();
        let named = named_templates(&parent).into_iter();
        let templates = named.filter_map(|name| {
            let template = held.templates.get(&(parent.namespace.clone(), name.to_owned()))?;
            let version = format!("{}/{}", template.uid, template.generation);
            Some((name.to_owned(), Arc::new(TemplateView { version, job: template.job.clone() })))
        });
        Some(ParentView { templates: templates.collect(), children, nodes: held.nodes.clone(), parent: parent.clone() })
    }

    /// A template, and the names of the Jobs that were made from it, sorted.
    pub fn template(&self, namespace: &str, name: &str) -> Option<(Arc<StoredTemplate>, Vec<String>)> {
        let held = self.held.lock();
        let key = (namespace.to_owned(), name.to_owned());
        let jobs = held.made_from.get(&key).map(|jobs| jobs.iter().cloned().collect()).unwrap_or_default();
        Some((held.templates.get(&key)?.clone(), jobs))
    }

    /// Drops children that are gone, once a round has judged them.
    pub fn forget_gone(&self, owner: &str, uids: &[String]) {
        let mut held = self.held.lock();
        if let Some(children) = held.children.get_mut(owner) {
            children.retain(|uid, child| !(child.gone && uids.contains(uid)));
            if children.is_empty() {
                held.children.remove(owner);
            }
        }
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
            if child.owner_uid.as_ref().is_some_and(|owner| held.by_uid.contains_key(owner)) {
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
            let is_absent = |child: &&Arc<ChildView>| {
                child.kind == kind && child.version <= version && !listed.contains(child.uid.as_str())
            };
            let absent: Vec<Arc<ChildView>> = held.places.values().filter(is_absent).cloned().collect();
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

/// The names of the templates that a flow names.
fn named_templates(parent: &Parent) -> BTreeSet<&str> {
    let steps = list(&parent.spec, "/flows").iter().chain(list(&parent.spec, "/finally"));
    steps.filter_map(|step| text(step, "/jobTemplateRef")).filter(|name| !name.is_empty()).collect()
}

fn number(version: &str) -> u64 {
    version.parse().unwrap_or(0)
}

/// Keys of what is dirty that are kept while nobody leads.
const DIRTY: usize = 10_000;

impl Held {
    /// Forgets what is dirty and gone, where nobody takes it.
    fn shed(&mut self) {
        if self.dirty.len() > DIRTY + 2 * (self.parents.len() + self.templates.len()) {
            let Self { dirty, parents, .. } = self;
            dirty.retain(|key| parents.contains_key(key));
        }
    }

    fn put_parent(&mut self, parent: Parent) {
        let key = FlowKey::of(&parent);
        if let Some(before) = self.parents.get(&key) {
            if before.uid == parent.uid && number(&before.version) >= number(&parent.version) {
                return;
            }
            self.unname(&key);
        }
        for name in named_templates(&parent) {
            self.named_by.entry((parent.namespace.clone(), name.to_owned())).or_default().insert(key.clone());
        }
        self.by_uid.insert(parent.uid.clone(), key.clone());
        let before = self.parents.insert(key.clone(), Arc::new(parent));
        if let Some(before) = before.filter(|before| self.parents.get(&key).is_none_or(|now| now.uid != before.uid)) {
            self.by_uid.remove(&before.uid);
            self.forget_children(&before.uid);
        }
        self.dirty.insert(key);
    }

    fn drop_parent(&mut self, key: &FlowKey) {
        self.unname(key);
        if let Some(before) = self.parents.remove(key) {
            self.by_uid.remove(&before.uid);
            self.forget_children(&before.uid);
        }
        self.healed.remove(key);
        self.awaited.retain(|_, waiting| {
            waiting.remove(key);
            !waiting.is_empty()
        });
        self.dirty.insert(key.clone());
    }

    /// Children that are gone are of no use without their owner.
    fn forget_children(&mut self, owner: &str) {
        let Some(children) = self.children.get_mut(owner) else { return };
        children.retain(|_, child| !child.gone);
        if children.is_empty() {
            self.children.remove(owner);
        }
    }

    fn unname(&mut self, key: &FlowKey) {
        let Some(before) = self.parents.get(key).cloned() else { return };
        for name in named_templates(&before) {
            let place = (before.namespace.clone(), name.to_owned());
            if let Some(flows) = self.named_by.get_mut(&place) {
                flows.remove(key);
                if flows.is_empty() {
                    self.named_by.remove(&place);
                }
            }
        }
    }

    fn put_template(&mut self, template: StoredTemplate) {
        let key = (template.namespace.clone(), template.name.clone());
        let before = self.templates.get(&key);
        if before
            .is_some_and(|before| before.uid == template.uid && number(&before.version) >= number(&template.version))
        {
            return;
        }
        let is_same = before.is_some_and(|before| before.uid == template.uid && before.job == template.job);
        self.templates.insert(key.clone(), Arc::new(template));
        self.soil_template(&key, !is_same);
    }

    fn drop_template(&mut self, key: &(String, String)) {
        if self.templates.remove(key).is_some() {
            self.soil_template(key, true);
        }
    }

    fn soil_template(&mut self, key: &(String, String), with_flows: bool) {
        self.dirty.insert(FlowKey::Template(key.0.clone(), key.1.clone()));
        if with_flows {
            self.dirty.extend(self.named_by.get(key).into_iter().flatten().cloned());
        }
    }

    fn soil_daemons(&mut self) {
        let daemons = self.parents.keys().filter(|key| matches!(key, FlowKey::Parent(ParentKind::Daemon, ..)));
        self.dirty.extend(daemons.cloned());
    }

    fn soil_owner(&mut self, child: &ChildView) {
        let owner = child.owner_uid.as_ref().and_then(|uid| self.by_uid.get(uid));
        self.dirty.extend(owner.cloned());
        let place = (child.kind, child.namespace.clone(), child.name.clone());
        for waiting in self.awaited.remove(&place).into_iter().flatten() {
            self.healed.insert(waiting.clone());
            self.dirty.insert(waiting);
        }
    }

    fn put_child(&mut self, child: ChildView) {
        let child = self.keep_owner(child);
        let owned = child.owner_uid.clone();
        let known = owned.as_ref().and_then(|owner| self.children.get(owner)?.get(&child.uid));
        if known.is_some_and(|known| known.gone || known.version >= child.version) {
            return;
        }
        let place = (child.kind, child.namespace.clone(), child.name.clone());
        if let Some(other) = self.places.get(&place).filter(|other| other.uid != child.uid).cloned() {
            if other.version > child.version {
                return;
            }
            self.drop_child((*other).clone());
        }
        self.soil_owner(&child);
        let child = Arc::new(child);
        let before = self.places.get(&place).cloned();
        if let Some(before) = before.as_ref().filter(|before| before.by_template != child.by_template) {
            self.note_template(before, false);
        }
        self.note_template(&child, true);
        if let Some(before) = before.filter(|before| before.owner_uid != child.owner_uid) {
            self.leave(&before);
        }
        if let Some(owner) = owned {
            self.children.entry(owner).or_default().insert(child.uid.clone(), child.clone());
        }
        if child.owner_uid.is_some() || child.by_template.is_some() {
            self.places.insert(place, child);
        } else {
            self.places.remove(&place);
        }
    }

    /// A child whose owner reference was taken off stays with its owner as one that is disowned, its label or not.
    fn keep_owner(&self, child: ChildView) -> ChildView {
        let place = (child.kind, child.namespace.clone(), child.name.clone());
        let before = self.places.get(&place).filter(|before| before.uid == child.uid && child.owner_uid.is_none());
        let owner_uid = before.map_or_else(|| child.owner_uid.clone(), |before| before.owner_uid.clone());
        ChildView { owner_uid, ..child }
    }

    fn drop_child(&mut self, last: ChildView) {
        let last = self.keep_owner(last);
        let place = (last.kind, last.namespace.clone(), last.name.clone());
        if self.places.get(&place).is_some_and(|held| held.uid == last.uid) {
            self.places.remove(&place);
        }
        self.note_template(&last, false);
        self.soil_owner(&last);
        self.leave(&last);
    }

    /// A child that is its owner's no more stays there as gone, until a round has judged it.
    fn leave(&mut self, last: &ChildView) {
        let Some(owner) = &last.owner_uid else { return };
        let parent = self.by_uid.get(owner).cloned();
        self.dirty.extend(parent.clone());
        let Some(children) = self.children.get_mut(owner) else { return };
        if parent.is_some() {
            children.insert(last.uid.clone(), Arc::new(ChildView { gone: true, ..last.clone() }));
        } else {
            children.remove(&last.uid);
        }
        if children.is_empty() {
            self.children.remove(owner);
        }
    }

    fn note_template(&mut self, child: &ChildView, is_there: bool) {
        let Some((namespace, name)) = child.by_template.as_deref().and_then(of_annotation) else { return };
        if child.kind != ChildKind::Job || namespace != child.namespace {
            return;
        }
        let key = (namespace.to_owned(), name.to_owned());
        let jobs = self.made_from.entry(key.clone()).or_default();
        let changed = if is_there { jobs.insert(child.name.clone()) } else { jobs.remove(&child.name) };
        if jobs.is_empty() {
            self.made_from.remove(&key);
        }
        if changed {
            self.soil_template(&key, false);
        }
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
