//! The tables of the cache: each change makes dirty what it concerns, and nothing else.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use oarlock_core::child::fields::{list, text};
use oarlock_core::child::node::NodeView;
use oarlock_core::child::parent::{Parent, ParentKind};
use oarlock_core::child::view::{ChildKind, ChildView};
use oarlock_core::cluster::memory::{NamespaceShares, Room, memory_of};
use oarlock_core::flow::template::{StoredTemplate, of_annotation};
use serde_json::Value;

use crate::flows::children::{ByName, Families, Places};
use crate::flows::key::FlowKey;

/// Place of an object that may be a child: its kind, namespace and name.
pub(super) type Place = (ChildKind, String, String);

#[derive(Default)]
pub(super) struct Held {
    pub(super) parents: HashMap<FlowKey, Arc<Parent>>,
    pub(super) by_uid: HashMap<String, FlowKey>,
    pub(super) templates: HashMap<(String, String), Arc<StoredTemplate>>,
    /// The flows that name a template.
    named_by: HashMap<(String, String), BTreeSet<FlowKey>>,
    pub(super) families: Families,
    pub(super) places: Places,
    /// The Jobs that were made from a template.
    pub(super) made_from: HashMap<(String, String), BTreeSet<ByName>>,
    pub(super) nodes: Arc<BTreeMap<String, Arc<NodeView>>>,
    /// Objects whose name somebody waits for.
    pub(super) awaited: HashMap<Place, BTreeSet<FlowKey>>,
    /// Those of them for whom such an object has changed.
    pub(super) healed: HashSet<FlowKey>,
    pub(super) dirty: HashSet<FlowKey>,
    shares: NamespaceShares,
    /// Nobody makes rounds, which would judge what is gone.
    is_idle: bool,
    /// The memory of the specs of parents and templates, as `shares` has it.
    sizes: HashMap<FlowKey, usize>,
}

impl Held {
    pub(super) fn within(room: &Room) -> Self {
        Self { shares: NamespaceShares::within(room), ..Self::default() }
    }
}

/// The names of the templates that a flow names.
pub(super) fn named_templates(parent: &Parent) -> BTreeSet<&str> {
    let steps = list(&parent.spec, "/flows").iter().chain(list(&parent.spec, "/finally"));
    steps.filter_map(|step| text(step, "/jobTemplateRef")).filter(|name| !name.is_empty()).collect()
}

/// The memory of what the owner of a template wrote.
pub(super) fn bytes_of(job: &Value) -> usize {
    if job.is_null() { 0 } else { memory_of(job) }
}

/// The parent; without its spec where there is no room for that.
pub(super) fn parent_within(parent: Parent, room: Result<(), String>) -> Parent {
    match room {
        Ok(()) => parent,
        Err(why) => parent.without_spec(why),
    }
}

/// The same of a template.
pub(super) fn template_within(template: StoredTemplate, room: Result<(), String>) -> StoredTemplate {
    match room {
        Ok(()) => template,
        Err(why) => StoredTemplate { job: Value::Null, unread: Some(why), ..template },
    }
}

fn number(version: &str) -> u64 {
    version.parse().unwrap_or(0)
}

/// Keys of what is dirty that are kept while nobody leads.
const DIRTY: usize = 10_000;

impl Held {
    /// Forgets what is dirty and gone, where nobody takes it.
    pub(super) fn shed(&mut self) {
        if self.dirty.len() > DIRTY + 2 * (self.parents.len() + self.templates.len()) {
            let Self { dirty, parents, .. } = self;
            dirty.retain(|key| parents.contains_key(key));
        }
    }

    /// Notes whether rounds are made. Without them nothing is kept of what is gone.
    pub(super) fn rest(&mut self, is_idle: bool) {
        self.is_idle = is_idle;
        if is_idle {
            self.families.forget_gone();
        }
    }

    pub(super) fn put_parent(&mut self, parent: Parent) {
        let key = FlowKey::of(&parent);
        if let Some(before) = self.parents.get(&key) {
            if before.uid == parent.uid && number(&before.version) >= number(&parent.version) {
                return;
            }
            self.unname(&key);
        }
        let room = self.admit(&key, &parent.namespace, parent.bytes());
        let parent = parent_within(parent, room);
        for name in named_templates(&parent) {
            self.named_by.entry((parent.namespace.clone(), name.to_owned())).or_default().insert(key.clone());
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
    fn admit(&mut self, key: &FlowKey, namespace: &str, bytes: usize) -> Result<(), String> {
        let before = self.sizes.remove(key).unwrap_or(0);
        self.shares.admit(namespace, before, bytes)?;
        self.sizes.insert(key.clone(), bytes);
        Ok(())
    }

    fn release(&mut self, key: &FlowKey, namespace: &str) {
        let bytes = self.sizes.remove(key).unwrap_or(0);
        self.shares.count(namespace, bytes, 0);
    }

    pub(super) fn drop_parent(&mut self, key: &FlowKey) {
        self.unname(key);
        if let Some(before) = self.parents.remove(key) {
            self.release(key, &before.namespace);
            self.by_uid.remove(&before.uid);
            self.forget_children(&before);
        }
        self.healed.remove(key);
        self.awaited.retain(|_, waiting| {
            waiting.remove(key);
            !waiting.is_empty()
        });
        self.dirty.insert(key.clone());
    }

    /// Children that are gone are of no use without their owner.
    fn forget_children(&mut self, owner: &Parent) {
        self.families.retain(&owner.namespace, &owner.uid, |child| !child.gone);
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

    pub(super) fn put_template(&mut self, template: StoredTemplate) {
        let key = (template.namespace.clone(), template.name.clone());
        let before = self.templates.get(&key);
        if before
            .is_some_and(|before| before.uid == template.uid && number(&before.version) >= number(&template.version))
        {
            return;
        }
        let is_same = before.is_some_and(|before| before.uid == template.uid && before.job == template.job);
        let place = FlowKey::Template(key.0.clone(), key.1.clone());
        let room = self.admit(&place, &template.namespace, bytes_of(&template.job));
        let template = template_within(template, room);
        self.templates.insert(key.clone(), Arc::new(template));
        self.soil_template(&key, !is_same);
    }

    pub(super) fn drop_template(&mut self, key: &(String, String)) {
        if let Some(before) = self.templates.remove(key) {
            self.release(&FlowKey::Template(key.0.clone(), key.1.clone()), &before.namespace);
            self.soil_template(key, true);
        }
    }

    fn soil_template(&mut self, key: &(String, String), with_flows: bool) {
        self.dirty.insert(FlowKey::Template(key.0.clone(), key.1.clone()));
        if with_flows {
            self.dirty.extend(self.named_by.get(key).into_iter().flatten().cloned());
        }
    }

    pub(super) fn soil_daemons(&mut self) {
        let daemons = self.parents.keys().filter(|key| matches!(key, FlowKey::Parent(ParentKind::Daemon, ..)));
        self.dirty.extend(daemons.cloned());
    }

    /// The object that this child is of, in its namespace.
    pub(super) fn owner_of(&self, child: &ChildView) -> Option<&FlowKey> {
        let key = self.by_uid.get(child.owner_uid.as_ref()?)?;
        self.parents.get(key).is_some_and(|parent| parent.owns(child)).then_some(key)
    }

    fn soil_owner(&mut self, child: &ChildView) {
        let owner = self.owner_of(child).cloned();
        self.dirty.extend(owner);
        let place = (child.kind, child.namespace.clone(), child.name.clone());
        for waiting in self.awaited.remove(&place).into_iter().flatten() {
            self.healed.insert(waiting.clone());
            self.dirty.insert(waiting);
        }
    }

    pub(super) fn put_child(&mut self, child: ChildView) {
        let child = self.keep_owner(child);
        if self.families.get(&child).is_some_and(|known| known.gone || known.version >= child.version) {
            return;
        }
        if let Some(other) = self.places.at(&child).filter(|other| other.uid != child.uid).cloned() {
            if other.version > child.version {
                return;
            }
            self.drop_child((*other).clone());
        }
        self.soil_owner(&child);
        let child = Arc::new(child);
        let before = self.places.at(&child).cloned();
        if let Some(before) = before.as_ref().filter(|before| before.by_template != child.by_template) {
            self.forget_made(before);
        }
        self.note_made(&child);
        if let Some(before) = before.filter(|before| before.owner_uid != child.owner_uid) {
            self.leave(&before);
        }
        self.families.put(child.clone());
        if child.owner_uid.is_some() || child.by_template.is_some() {
            self.places.put(child);
        } else {
            self.places.clear(&child);
        }
    }

    /// A child whose owner reference was taken off stays with its owner as one that is disowned, its label or not.
    fn keep_owner(&self, child: ChildView) -> ChildView {
        let before = self.places.at(&child).filter(|before| before.uid == child.uid && child.owner_uid.is_none());
        let Some((kind, uid)) = before.map(|before| (before.owner_kind, before.owner_uid.clone())) else {
            return child;
        };
        ChildView { owner_kind: kind, owner_uid: uid, ..child }
    }

    pub(super) fn drop_child(&mut self, last: ChildView) {
        let last = self.keep_owner(last);
        if self.places.at(&last).is_some_and(|held| held.uid == last.uid) {
            self.places.clear(&last);
        }
        self.forget_made(&last);
        self.soil_owner(&last);
        self.leave(&last);
    }

    /// A child that is its owner's no more stays there as gone, until a round has judged it.
    fn leave(&mut self, last: &ChildView) {
        let parent = self.owner_of(last).cloned();
        let is_known = parent.is_some();
        self.dirty.extend(parent);
        if !is_known || self.is_idle {
            self.families.remove(last);
        } else if self.families.has_owner(last) {
            self.families.put(Arc::new(ChildView { gone: true, ..last.clone() }));
        }
    }

    /// Notes of which template a Job was made.
    fn note_made(&mut self, child: &Arc<ChildView>) {
        let Some(key) = template_of(child) else { return };
        if self.made_from.entry(key.clone()).or_default().replace(ByName(child.clone())).is_none() {
            self.soil_template(&key, false);
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
            self.soil_template(&key, false);
        }
    }
}

/// The template that a Job names, of its own namespace.
fn template_of(child: &ChildView) -> Option<(String, String)> {
    let (namespace, name) = child.by_template.as_deref().and_then(of_annotation)?;
    let is_own = child.kind == ChildKind::Job && namespace == child.namespace;
    is_own.then(|| (namespace.to_owned(), name.to_owned()))
}
