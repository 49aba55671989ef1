//! The cached objects of one kind, with their indexes.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use oarlock_contract::marks::HOLD;
pub use oarlock_contract::proposal::NODE_NAME;

use crate::cache::store::Indexed;
use crate::object::api_object::{Kept, Object, ObjectKey, Owner, Strings, may_be_held};
use crate::object::memory::{MemoryBudget, NamespaceShares};

/// Namespace and name.
pub(crate) type NamespacedName = (Option<String>, String);
/// Identity of a controller: namespace of its objects, and its UID. The UID alone is not enough, because anyone may name any UID in their own
/// namespace.
pub(crate) type OwnerId = (Option<String>, String);
/// Order of the objects of one controller: oldest first.
pub(crate) type Age = (Option<Timestamp>, String);

/// The cached objects of one kind.
#[derive(Default)]
pub(crate) struct KindCache {
    indexed: Indexed,
    pub(crate) objects: HashMap<NamespacedName, Arc<Object>>,
    pub(crate) labels: NameIndex,
    pub(crate) fields: NameIndex,
    /// Objects by node, if the kind indexes nodes.
    on_node: HashMap<String, BTreeSet<NamespacedName>>,
    /// Objects by controller.
    pub(crate) by_controller: HashMap<OwnerId, ControlledObjects>,
    /// UIDs of controllers by their root controller.
    by_root: HashMap<OwnerId, BTreeSet<String>>,
    /// UIDs of ReplicaSets whose root is unknown, by namespace.
    unresolved: HashMap<Option<String>, HashSet<String>>,
    /// Objects by each owner that is not their controller.
    owned: HashMap<OwnerId, BTreeSet<NamespacedName>>,
    /// Objects by the UID of each job that holds them.
    by_holder: HashMap<String, BTreeSet<NamespacedName>>,
    shares: NamespaceShares,
}

/// The objects of one controller.
pub(crate) struct ControlledObjects {
    pub(crate) owner: Owner,
    root: Option<String>,
    pub(crate) members: BTreeSet<Age>,
}

impl KindCache {
    pub(crate) fn new(indexed: Indexed, room: &MemoryBudget) -> Self {
        Self { indexed, shares: NamespaceShares::within(room), ..Self::default() }
    }

    /// Returns the object as far as there is room for it in place of `old`.
    pub(crate) fn fitting(&self, object: Object, old: Option<&Object>) -> Object {
        let before = old.map_or(0, Object::extra_bytes);
        if self.shares.has_room(object.share(), before, object.extra_bytes()) {
            object
        } else {
            object.cut(Kept::NoRoom)
        }
    }

    pub(crate) fn insert(&mut self, object: Arc<Object>, roots: &HashMap<OwnerId, Owner>) {
        self.shares.count(object.share(), 0, object.extra_bytes());
        let (namespace, name) = namespaced_name(&object.key);
        for key in &self.indexed.labels {
            if let Some(value) = object.labels.get(key) {
                let index = (key.clone(), namespace.clone(), value.to_owned());
                self.labels.entry(index).or_default().insert(name.clone());
            }
        }
        for pointer in &self.indexed.fields {
            if let Some(value) = object.text(pointer) {
                if pointer == NODE_NAME {
                    self.on_node.entry(value.clone()).or_default().insert(namespaced_name(&object.key));
                }
                let index = (pointer.clone(), namespace.clone(), value);
                self.fields.entry(index).or_default().insert(name.clone());
            }
        }
        for owner in &object.owners {
            if owner.controller {
                self.join(owner, &object, roots);
            } else {
                self.owned.entry(controller(&object, owner)).or_default().insert(namespaced_name(&object.key));
            }
        }
        for job in holders(&object) {
            self.by_holder.entry(job.to_owned()).or_default().insert(namespaced_name(&object.key));
        }
        self.objects.insert((namespace, name), object);
    }

    fn join(&mut self, owner: &Owner, object: &Object, roots: &HashMap<OwnerId, Owner>) {
        let age = (object.created, object.key.name.clone());
        let controller = controller(object, owner);
        if let Some(family) = self.by_controller.get_mut(&controller) {
            family.members.insert(age);
            return;
        }
        let family = ControlledObjects { owner: owner.clone(), root: None, members: BTreeSet::from([age]) };
        self.by_controller.insert(controller.clone(), family);
        match root_of(owner, &controller, roots) {
            Some(root) => self.resolve(&controller, &root.uid),
            None => drop(self.unresolved.entry(controller.0).or_default().insert(controller.1)),
        }
    }

    /// Stores the root of a controller that has objects in this cache.
    pub(crate) fn resolve(&mut self, controller: &OwnerId, root: &str) {
        let Some(family) = self.by_controller.get_mut(controller) else { return };
        let (namespace, uid) = controller;
        if let Some(old) = family.root.replace(root.to_owned()) {
            drop_from(&mut self.by_root, &(namespace.clone(), old), uid);
        }
        self.by_root.entry((namespace.clone(), root.to_owned())).or_default().insert(uid.clone());
        self.drop_unresolved(namespace, uid);
    }

    fn drop_unresolved(&mut self, namespace: &Option<String>, controller: &str) {
        if let Some(waiting) = self.unresolved.get_mut(namespace) {
            waiting.remove(controller);
            if waiting.is_empty() {
                self.unresolved.remove(namespace);
            }
        }
    }

    /// Removes an object. Returns its controller if the object was the last of its controller.
    pub(crate) fn remove(&mut self, object: &Object) -> Option<OwnerId> {
        self.shares.count(object.share(), object.extra_bytes(), 0);
        let (namespace, name) = namespaced_name(&object.key);
        for key in &self.indexed.labels {
            if let Some(value) = object.labels.get(key) {
                drop_name(&mut self.labels, key, &namespace, value.to_owned(), &name);
            }
        }
        for pointer in &self.indexed.fields {
            if let Some(value) = object.text(pointer) {
                if pointer == NODE_NAME {
                    drop_namespaced_name(&mut self.on_node, value.as_str(), &object.key);
                }
                drop_name(&mut self.fields, pointer, &namespace, value, &name);
            }
        }
        let mut last = None;
        for owner in &object.owners {
            if owner.controller {
                last = self.leave(owner, object).or(last);
            } else {
                drop_namespaced_name(&mut self.owned, &controller(object, owner), &object.key);
            }
        }
        holders(object).for_each(|job| drop_namespaced_name(&mut self.by_holder, job, &object.key));
        self.objects.remove(&(namespace, name));
        last
    }

    fn leave(&mut self, owner: &Owner, object: &Object) -> Option<OwnerId> {
        let controller = controller(object, owner);
        let family = self.by_controller.get_mut(&controller)?;
        family.members.remove(&(object.created, object.key.name.clone()));
        if !family.members.is_empty() {
            return None;
        }
        let family = self.by_controller.remove(&controller)?;
        if let Some(root) = family.root {
            drop_from(&mut self.by_root, &(controller.0.clone(), root), &owner.uid);
        }
        self.drop_unresolved(&controller.0, &owner.uid);
        Some(controller)
    }

    /// Returns true if a namespace has objects of ReplicaSets whose root is unknown.
    pub(crate) fn has_unresolved(&self, namespace: &str) -> bool {
        self.unresolved.contains_key(&Some(namespace.to_owned()))
    }

    /// Returns the controllers of a namespace whose root is unknown.
    pub(crate) fn unresolved(&self, namespace: &str) -> Vec<Owner> {
        let namespace = Some(namespace.to_owned());
        let waiting = self.unresolved.get(&namespace).into_iter().flatten();
        let by_controller = waiting.filter_map(|uid| self.by_controller.get(&(namespace.clone(), uid.clone())));
        by_controller.map(|family| family.owner.clone()).collect()
    }

    /// Returns at most `limit` objects under a root controller that come after `from`, oldest first.
    pub(crate) fn siblings(&self, root: &OwnerId, from: &Age, limit: usize) -> Vec<Arc<Object>> {
        let namespace = &root.0;
        let controllers = self.by_root.get(root).into_iter().flatten();
        let by_controller = controllers.filter_map(|uid| self.by_controller.get(&(namespace.clone(), uid.clone())));
        let mut found: BTreeMap<Age, Arc<Object>> = BTreeMap::new();
        for family in by_controller {
            let after = (std::ops::Bound::Excluded(from), std::ops::Bound::Unbounded);
            for age in family.members.range::<Age, _>(after).take(limit) {
                let object = self.objects.get(&(namespace.clone(), age.1.clone()));
                found.extend(object.map(|object| (age.clone(), object.clone())));
            }
        }
        found.into_values().take(limit).collect()
    }

    /// Returns the objects of a namespace whose owner references name this UID, sorted by name.
    pub(crate) fn owned_by(&self, owner: &OwnerId) -> Vec<Arc<Object>> {
        let family = self.by_controller.get(owner).into_iter();
        let members = family.flat_map(|family| family.members.iter().map(|(_, name)| (owner.0.clone(), name.clone())));
        let places: BTreeSet<NamespacedName> =
            members.chain(self.owned.get(owner).into_iter().flatten().cloned()).collect();
        places.iter().filter_map(|namespaced_name| self.objects.get(namespaced_name).cloned()).collect()
    }

    /// Returns the objects on a node, sorted by namespace and name.
    pub(crate) fn on_node(&self, node: &str) -> Vec<Arc<Object>> {
        let places = self.on_node.get(node).into_iter().flatten();
        places.filter_map(|namespaced_name| self.objects.get(namespaced_name).cloned()).collect()
    }

    /// Returns the objects that a job holds, sorted by namespace and name.
    pub(crate) fn held_by(&self, job_uid: &str) -> Vec<Arc<Object>> {
        let names = self.by_holder.get(job_uid).into_iter().flatten();
        names.filter_map(|namespaced_name| self.objects.get(namespaced_name).cloned()).collect()
    }

    /// Returns the UIDs of all jobs that have holds.
    pub(crate) fn holders(&self) -> impl Iterator<Item = &String> {
        self.by_holder.keys()
    }

    pub(crate) fn named(&self, namespace: &Option<String>, names: Option<&Names>) -> Vec<Arc<Object>> {
        let names = names.into_iter().flat_map(Names::iter);
        names.filter_map(|name| self.objects.get(&(namespace.clone(), name.clone())).cloned()).collect()
    }
}

/// Returns the root of a controller: the controller itself, or the known root of a ReplicaSet.
pub(crate) fn root_of<'a>(
    owner: &'a Owner,
    controller: &OwnerId,
    roots: &'a HashMap<OwnerId, Owner>,
) -> Option<&'a Owner> {
    match owner.kind.kind.as_str() {
        "ReplicaSet" => roots.get(controller),
        _ => Some(owner),
    }
}

/// Returns the key of an object's owner in the indexes.
pub(crate) fn controller(object: &Object, owner: &Owner) -> OwnerId {
    (object.key.namespace.clone(), owner.uid.clone())
}

/// Returns the namespace and name of an object.
pub(crate) fn namespaced_name(key: &ObjectKey) -> NamespacedName {
    (key.namespace.clone(), key.name.clone())
}

/// Returns the jobs that hold a pod or node. An annotation on another object is never a hold.
fn holders(object: &Object) -> impl Iterator<Item = &str> {
    let annotations = may_be_held(&object.key.kind).then_some(&object.annotations).into_iter();
    annotations.flat_map(Strings::keys).filter_map(|key| key.strip_prefix(HOLD))
}

fn drop_from(index: &mut HashMap<OwnerId, BTreeSet<String>>, key: &OwnerId, item: &str) {
    if let Some(items) = index.get_mut(key) {
        items.remove(item);
        if items.is_empty() {
            index.remove(key);
        }
    }
}

fn drop_namespaced_name<K, Q>(index: &mut HashMap<K, BTreeSet<NamespacedName>>, key: &Q, object: &ObjectKey)
where
    K: Borrow<Q> + Hash + Eq,
    Q: Hash + Eq + ?Sized,
{
    if let Some(places) = index.get_mut(key) {
        places.remove(&namespaced_name(object));
        if places.is_empty() {
            index.remove(key);
        }
    }
}

/// Names by label or field, namespace and value.
pub(crate) type NameIndex = HashMap<(String, Option<String>, String), Names>;

/// A sorted set of names. Most index entries have one name. A tree for one name would be most of the index.
#[derive(Default)]
pub(crate) enum Names {
    #[default]
    None,
    One(String),
    Many(BTreeSet<String>),
}

impl Names {
    fn insert(&mut self, name: String) {
        *self = match std::mem::take(self) {
            Self::None => Self::One(name),
            Self::One(only) if only == name => Self::One(only),
            Self::One(only) => Self::Many([only, name].into()),
            Self::Many(mut names) => {
                names.insert(name);
                Self::Many(names)
            }
        };
    }

    fn remove(&mut self, name: &str) {
        match self {
            Self::One(only) if only == name => *self = Self::None,
            Self::Many(names) => drop(names.remove(name)),
            Self::None | Self::One(_) => {}
        }
    }

    fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    fn iter(&self) -> impl Iterator<Item = &String> {
        let (one, many) = match self {
            Self::None => (None, None),
            Self::One(name) => (Some(name), None),
            Self::Many(names) => (None, Some(names)),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

fn drop_name(index: &mut NameIndex, field: &str, namespace: &Option<String>, value: String, name: &str) {
    let key = (field.to_owned(), namespace.clone(), value);
    if let Some(names) = index.get_mut(&key) {
        names.remove(name);
        if names.is_empty() {
            index.remove(&key);
        }
    }
}
