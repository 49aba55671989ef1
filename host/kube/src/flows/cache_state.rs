//! The tables of the flow cache. Each change marks only the affected flows dirty.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use oarlock_core::attempts::node::NodeView;
use oarlock_core::attempts::parent::{Parent, ParentKind};
use oarlock_core::attempts::view::{ChildKind, ChildView};
use oarlock_core::job_template::template::{StoredTemplate, of_annotation, template_key};
use oarlock_core::object::api_object::ObjectKey;
use oarlock_core::object::fields::{list, text};
use oarlock_core::object::memory::{MemoryBudget, NamespaceShares, memory_of};
use serde_json::Value;

use crate::flows::children::{ByName, ChildrenByName, ChildrenByOwner};

/// The place of an object that may be a child: its kind, namespace and name.
pub(super) type ChildLocation = (ChildKind, String, String);

#[derive(Default)]
pub(super) struct FlowCacheState {
    pub(super) parents: HashMap<ObjectKey, Arc<Parent>>,
    pub(super) by_uid: HashMap<String, ObjectKey>,
    pub(super) templates: HashMap<ObjectKey, Arc<StoredTemplate>>,
    /// The flows that name a template.
    named_by: HashMap<ObjectKey, BTreeSet<ObjectKey>>,
    pub(super) children_by_owner: ChildrenByOwner,
    pub(super) children_by_name: ChildrenByName,
    /// The Jobs that were made from a template.
    pub(super) made_from: HashMap<ObjectKey, BTreeSet<ByName>>,
    pub(super) nodes: Arc<BTreeMap<String, Arc<NodeView>>>,
    /// Flows that wait for the name of an object, by the place of that object.
    pub(super) awaited: HashMap<ChildLocation, BTreeSet<ObjectKey>>,
    /// Waiting flows for which such an object has changed.
    pub(super) changed_names: HashSet<ObjectKey>,
    pub(super) dirty: HashSet<ObjectKey>,
    shares: NamespaceShares,
    /// No rounds run, so the cache need not keep deleted children.
    is_idle: bool,
    /// The memory of the specs of parents and templates, as `shares` counts it.
    sizes: HashMap<ObjectKey, usize>,
}

impl FlowCacheState {
    pub(super) fn within(room: &MemoryBudget) -> Self {
        Self { shares: NamespaceShares::within(room), ..Self::default() }
    }
}

/// Returns the names of the templates that a flow names.
pub(super) fn named_templates(parent: &Parent) -> BTreeSet<&str> {
    let steps = list(&parent.spec, "/flows").iter().chain(list(&parent.spec, "/finally"));
    steps.filter_map(|step| text(step, "/jobTemplateRef")).filter(|name| !name.is_empty()).collect()
}

/// Returns the memory of the part of a template that its owner wrote.
pub(super) fn bytes_of(job: &Value) -> usize {
    if job.is_null() { 0 } else { memory_of(job) }
}

/// Returns the parent, without its spec if there is no room for the spec.
pub(super) fn parent_within(parent: Parent, room: Result<(), String>) -> Parent {
    match room {
        Ok(()) => parent,
        Err(why) => parent.without_spec(why),
    }
}

/// Returns the template, without its job if there is no room for the job.
pub(super) fn template_within(template: StoredTemplate, room: Result<(), String>) -> StoredTemplate {
    match room {
        Ok(()) => template,
        Err(why) => StoredTemplate { job: Value::Null, unread: Some(why), ..template },
    }
}

fn number(version: &str) -> u64 {
    version.parse().unwrap_or(0)
}

/// The number of dirty keys of deleted objects that the cache keeps while no process leads.
const DIRTY: usize = 10_000;

impl FlowCacheState {
    /// Drops all dirty keys except those of existing parents, if too many keys pile up because no process takes them.
    pub(super) fn shed(&mut self) {
        if self.dirty.len() > DIRTY + 2 * (self.parents.len() + self.templates.len()) {
            let Self { dirty, parents, .. } = self;
            dirty.retain(|key| parents.contains_key(key));
        }
    }

    /// Records whether rounds run. While no rounds run, the cache does not keep deleted children.
    pub(super) fn set_idle(&mut self, is_idle: bool) {
        self.is_idle = is_idle;
        if is_idle {
            self.children_by_owner.forget_gone();
        }
    }

    pub(super) fn put_parent(&mut self, parent: Parent) {
        let key = parent.key();
        if let Some(before) = self.parents.get(&key) {
            if before.uid == parent.uid && number(&before.version) >= number(&parent.version) {
                return;
            }
            self.unname(&key);
        }
        let room = self.admit(&key, &parent.namespace, parent.bytes());
        let parent = parent_within(parent, room);
        for name in named_templates(&parent) {
            self.named_by.entry(template_key(&parent.namespace, name)).or_default().insert(key.clone());
        }
        self.by_uid.insert(parent.uid.clone(), key.clone());
        let before = self.parents.insert(key.clone(), Arc::new(parent));
        if let Some(before) = before.filter(|before| self.parents.get(&key).is_none_or(|now| now.uid != before.uid)) {
            self.by_uid.remove(&before.uid);
            self.forget_children(&before);
        }
        self.dirty.insert(key);
    }

    /// Counts the memory of the spec of an object.
    fn admit(&mut self, key: &ObjectKey, namespace: &str, bytes: usize) -> Result<(), String> {
        let before = self.sizes.remove(key).unwrap_or(0);
        self.shares.admit(namespace, before, bytes)?;
        self.sizes.insert(key.clone(), bytes);
        Ok(())
    }

    fn release(&mut self, key: &ObjectKey, namespace: &str) {
        let bytes = self.sizes.remove(key).unwrap_or(0);
        self.shares.count(namespace, bytes, 0);
    }

    pub(super) fn drop_parent(&mut self, key: &ObjectKey) {
        self.unname(key);
        if let Some(before) = self.parents.remove(key) {
            self.release(key, &before.namespace);
            self.by_uid.remove(&before.uid);
            self.forget_children(&before);
        }
        self.changed_names.remove(key);
        self.awaited.retain(|_, waiting| {
            waiting.remove(key);
            !waiting.is_empty()
        });
        self.dirty.insert(key.clone());
    }

    /// Drops the deleted children of an owner, which are of no use without the owner.
    fn forget_children(&mut self, owner: &Parent) {
        self.children_by_owner.retain(&owner.namespace, &owner.uid, |child| !child.gone);
    }

    fn unname(&mut self, key: &ObjectKey) {
        let Some(before) = self.parents.get(key).cloned() else { return };
        for name in named_templates(&before) {
            let place = template_key(&before.namespace, name);
            if let Some(flows) = self.named_by.get_mut(&place) {
                flows.remove(key);
                if flows.is_empty() {
                    self.named_by.remove(&place);
                }
            }
        }
    }

    pub(super) fn put_template(&mut self, template: StoredTemplate) {
        let key = template.key();
        let before = self.templates.get(&key);
        if before
            .is_some_and(|before| before.uid == template.uid && number(&before.version) >= number(&template.version))
        {
            return;
        }
        let is_same = before.is_some_and(|before| before.uid == template.uid && before.job == template.job);
        let place = key.clone();
        let room = self.admit(&place, &template.namespace, bytes_of(&template.job));
        let template = template_within(template, room);
        self.templates.insert(key.clone(), Arc::new(template));
        self.mark_template_dirty(&key, !is_same);
    }

    pub(super) fn drop_template(&mut self, key: &ObjectKey) {
        if let Some(before) = self.templates.remove(key) {
            self.release(key, &before.namespace);
            self.mark_template_dirty(key, true);
        }
    }

    fn mark_template_dirty(&mut self, key: &ObjectKey, with_flows: bool) {
        self.dirty.insert(key.clone());
        if with_flows {
            self.dirty.extend(self.named_by.get(key).into_iter().flatten().cloned());
        }
    }

    pub(super) fn mark_daemon_jobs_dirty(&mut self) {
        let daemons = self.parents.keys().filter(|key| ParentKind::of_key(key) == Some(ParentKind::Daemon));
        self.dirty.extend(daemons.cloned());
    }

    /// Returns the object that owns this child, in the namespace of the child.
    pub(super) fn owner_of(&self, child: &ChildView) -> Option<&ObjectKey> {
        let key = self.by_uid.get(child.owner_uid.as_ref()?)?;
        self.parents.get(key).is_some_and(|parent| parent.owns(child)).then_some(key)
    }

    fn mark_owner_dirty(&mut self, child: &ChildView) {
        let owner = self.owner_of(child).cloned();
        self.dirty.extend(owner);
        let place = (child.kind, child.namespace.clone(), child.name.clone());
        for waiting in self.awaited.remove(&place).into_iter().flatten() {
            self.changed_names.insert(waiting.clone());
            self.dirty.insert(waiting);
        }
    }

    pub(super) fn put_child(&mut self, child: ChildView) {
        let child = self.keep_owner(child);
        if self.children_by_owner.get(&child).is_some_and(|known| known.gone || known.version >= child.version) {
            return;
        }
        if let Some(other) = self.children_by_name.at(&child).filter(|other| other.uid != child.uid).cloned() {
            if other.version > child.version {
                return;
            }
            self.drop_child((*other).clone());
        }
        self.mark_owner_dirty(&child);
        let child = Arc::new(child);
        let before = self.children_by_name.at(&child).cloned();
        if let Some(before) = before.as_ref().filter(|before| before.by_template != child.by_template) {
            self.forget_made(before);
        }
        self.note_made(&child);
        if let Some(before) = before.filter(|before| before.owner_uid != child.owner_uid) {
            self.leave(&before);
        }
        self.children_by_owner.put(child.clone());
        if child.owner_uid.is_some() || child.by_template.is_some() {
            self.children_by_name.put(child);
        } else {
            self.children_by_name.clear(&child);
        }
    }

    /// Returns a child without an owner reference as a disowned child of its former owner, with or without the label.
    fn keep_owner(&self, child: ChildView) -> ChildView {
        let before =
            self.children_by_name.at(&child).filter(|before| before.uid == child.uid && child.owner_uid.is_none());
        let Some((kind, uid)) = before.map(|before| (before.owner_kind, before.owner_uid.clone())) else {
            return child;
        };
        ChildView { owner_kind: kind, owner_uid: uid, ..child }
    }

    pub(super) fn drop_child(&mut self, last: ChildView) {
        let last = self.keep_owner(last);
        if self.children_by_name.at(&last).is_some_and(|held| held.uid == last.uid) {
            self.children_by_name.clear(&last);
        }
        self.forget_made(&last);
        self.mark_owner_dirty(&last);
        self.leave(&last);
    }

    /// Keeps a child that its owner has lost as gone, until a round has judged it.
    fn leave(&mut self, last: &ChildView) {
        let parent = self.owner_of(last).cloned();
        let is_known = parent.is_some();
        self.dirty.extend(parent);
        if !is_known || self.is_idle {
            self.children_by_owner.remove(last);
        } else if self.children_by_owner.has_owner(last) {
            self.children_by_owner.put(Arc::new(ChildView { gone: true, ..last.clone() }));
        }
    }

    /// Records the template from which a Job was made.
    fn note_made(&mut self, child: &Arc<ChildView>) {
        let Some(key) = template_of(child) else { return };
        if self.made_from.entry(key.clone()).or_default().replace(ByName(child.clone())).is_none() {
            self.mark_template_dirty(&key, false);
        }
    }

    fn forget_made(&mut self, child: &ChildView) {
        let Some(key) = template_of(child) else { return };
        let Some(jobs) = self.made_from.get_mut(&key) else { return };
        let was_there = jobs.remove(child.name.as_str());
        if jobs.is_empty() {
            self.made_from.remove(&key);
        }
        if was_there {
            self.mark_template_dirty(&key, false);
        }
    }
}

/// Returns the template that a Job names, if the template is in the namespace of the Job.
fn template_of(child: &ChildView) -> Option<ObjectKey> {
    let (namespace, name) = child.by_template.as_deref().and_then(of_annotation)?;
    let is_own = child.kind == ChildKind::Job && namespace == child.namespace;
    is_own.then(|| template_key(namespace, name))
}
