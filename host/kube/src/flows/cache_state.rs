//! The tables of the flow cache. Each change marks only the affected flows dirty.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use oarlock_core::attempts::node::NodeView;
use oarlock_core::attempts::parent::{Parent, ParentKind};
use oarlock_core::attempts::view::{ChildKind, ChildView};
use oarlock_core::cache::object_cache::{CacheChange, ObjectCache};
use oarlock_core::job_template::template::{StoredTemplate, of_annotation, template_key};
use oarlock_core::object::api_object::ObjectKey;
use oarlock_core::object::fields::{list, text};
use oarlock_core::object::memory::MemoryBudget;

use crate::flows::children::{ByName, ChildrenByName, ChildrenByOwner};

/// The place of an object that may be a child: its kind, namespace and name.
pub(super) type ChildLocation = (ChildKind, String, String);

#[derive(Default)]
pub(super) struct FlowCacheState {
    pub(super) parents: ObjectCache<Parent>,
    pub(super) templates: ObjectCache<StoredTemplate>,
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
    /// No rounds run, so the cache need not keep deleted children.
    is_idle: bool,
}

impl FlowCacheState {
    pub(super) fn within(room: &MemoryBudget) -> Self {
        Self { parents: ObjectCache::within(room), templates: ObjectCache::within(room), ..Self::default() }
    }
}

/// Returns the names of the templates that a flow names.
pub(super) fn named_templates(parent: &Parent) -> BTreeSet<&str> {
    let steps = list(&parent.spec, "/flows").iter().chain(list(&parent.spec, "/finally"));
    steps.filter_map(|step| text(step, "/jobTemplateRef")).filter(|name| !name.is_empty()).collect()
}

impl FlowCacheState {
    /// Records whether rounds run. While no rounds run, the cache does not keep deleted children.
    pub(super) fn set_idle(&mut self, is_idle: bool) {
        self.is_idle = is_idle;
        if is_idle {
            self.children_by_owner.forget_gone();
        }
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.parents.is_dirty() || self.templates.is_dirty()
    }

    pub(super) fn take_dirty(&mut self) -> BTreeSet<ObjectKey> {
        let mut dirty = self.parents.take_dirty();
        dirty.append(&mut self.templates.take_dirty());
        dirty
    }

    pub(super) fn put_parent(&mut self, parent: Parent) {
        let key = parent.key();
        let before = self.parents.get(&key).cloned();
        let change = self.parents.put(parent);
        if matches!(change, CacheChange::Older) {
            return;
        }
        before.iter().for_each(|before| self.unname(before));
        let now = self.parents.get(&key).cloned();
        for name in now.iter().flat_map(|now| named_templates(now)) {
            let template = template_key(key.namespace.as_deref().unwrap_or_default(), name);
            self.named_by.entry(template).or_default().insert(key.clone());
        }
        if let CacheChange::InPlaceOf(other) = change {
            self.forget_children(&other);
        }
    }

    /// Takes the last view of a deleted parent.
    pub(super) fn remove_parent(&mut self, last: &Parent) {
        let dropped = self.parents.remove(&last.key(), &last.uid);
        dropped.iter().for_each(|parent| self.note_dropped(parent));
    }

    /// Drops a parent that the API server does not show now.
    pub(super) fn forget_parent(&mut self, key: &ObjectKey, uid: &str) {
        let dropped = self.parents.forget(key, uid);
        dropped.iter().for_each(|parent| self.note_dropped(parent));
    }

    pub(super) fn note_dropped(&mut self, parent: &Parent) {
        let key = parent.key();
        self.unname(parent);
        self.forget_children(parent);
        self.changed_names.remove(&key);
        self.awaited.retain(|_, waiting| {
            waiting.remove(&key);
            !waiting.is_empty()
        });
    }

    /// Drops the deleted children of an owner, which are of no use without the owner.
    fn forget_children(&mut self, owner: &Parent) {
        self.children_by_owner.retain(&owner.namespace, &owner.uid, |child| !child.gone);
    }

    /// Removes a flow from the flows that name its templates.
    fn unname(&mut self, flow: &Parent) {
        let key = flow.key();
        for name in named_templates(flow) {
            let place = template_key(&flow.namespace, name);
            if let Some(flows) = self.named_by.get_mut(&place) {
                flows.remove(&key);
                if flows.is_empty() {
                    self.named_by.remove(&place);
                }
            }
        }
    }

    pub(super) fn put_template(&mut self, template: StoredTemplate) {
        let key = template.key();
        let before = self.templates.get(&key).cloned();
        if matches!(self.templates.put(template), CacheChange::Older) {
            return;
        }
        let is_same = before.zip(self.templates.get(&key)).is_some_and(|(before, now)| {
            (&before.uid, &before.job, &before.unread) == (&now.uid, &now.job, &now.unread)
        });
        if !is_same {
            self.mark_flows_dirty(&key);
        }
    }

    /// Takes the last view of a deleted template.
    pub(super) fn remove_template(&mut self, last: &StoredTemplate) {
        let key = last.key();
        if self.templates.remove(&key, &last.uid).is_some() {
            self.mark_flows_dirty(&key);
        }
    }

    /// Drops a template that the API server does not show now.
    pub(super) fn forget_template(&mut self, key: &ObjectKey, uid: &str) {
        if self.templates.forget(key, uid).is_some() {
            self.mark_flows_dirty(key);
        }
    }

    /// Marks the flows dirty that name this template.
    pub(super) fn mark_flows_dirty(&mut self, template: &ObjectKey) {
        let Self { named_by, parents, .. } = self;
        named_by.get(template).into_iter().flatten().for_each(|flow| parents.mark_dirty(flow));
    }

    pub(super) fn mark_daemon_jobs_dirty(&mut self) {
        let daemons = self.parents.all().filter(|parent| parent.kind == ParentKind::Daemon);
        let keys: Vec<ObjectKey> = daemons.map(|daemon| daemon.key()).collect();
        keys.iter().for_each(|key| self.parents.mark_dirty(key));
    }

    /// Returns the object that owns this child, in the namespace of the child.
    pub(super) fn owner_of(&self, child: &ChildView) -> Option<&Arc<Parent>> {
        self.parents.by_uid(child.owner_uid.as_ref()?).filter(|parent| parent.owns(child))
    }

    fn mark_owner_dirty(&mut self, child: &ChildView) {
        let owner = self.owner_of(child).map(|owner| owner.key());
        owner.iter().for_each(|owner| self.parents.mark_dirty(owner));
        let place = (child.kind, child.namespace.clone(), child.name.clone());
        for waiting in self.awaited.remove(&place).into_iter().flatten() {
            self.parents.mark_dirty(&waiting);
            self.changed_names.insert(waiting);
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
        let owner = self.owner_of(last).map(|owner| owner.key());
        owner.iter().for_each(|owner| self.parents.mark_dirty(owner));
        if owner.is_none() || self.is_idle {
            self.children_by_owner.remove(last);
        } else if self.children_by_owner.has_owner(last) {
            self.children_by_owner.put(Arc::new(ChildView { gone: true, ..last.clone() }));
        }
    }

    /// Records the template from which a Job was made.
    fn note_made(&mut self, child: &Arc<ChildView>) {
        let Some(key) = template_of(child) else { return };
        if self.made_from.entry(key.clone()).or_default().replace(ByName(child.clone())).is_none() {
            self.templates.mark_dirty(&key);
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
            self.templates.mark_dirty(&key);
        }
    }
}

/// Returns the template that a Job names, if the template is in the namespace of the Job.
fn template_of(child: &ChildView) -> Option<ObjectKey> {
    let (namespace, name) = child.by_template.as_deref().and_then(of_annotation)?;
    let is_own = child.kind == ChildKind::Job && namespace == child.namespace;
    is_own.then(|| template_key(namespace, name))
}
