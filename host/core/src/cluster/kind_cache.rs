//! The cached objects of one kind, with their indexes.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use oarlock_contract::marks::HOLD;
pub use oarlock_contract::proposal::NODE_NAME;

use crate::cluster::memory::{NamespaceShares, Room};
use crate::cluster::object::{Kept, Object, ObjectKey, Owner, Strings, may_be_held};
use crate::cluster::store::Indexed;

/// Namespace and name.
pub(crate) type Place = (Option<String>, String);
/// Namespace of its objects, and UID, of a controller. A UID alone is what anybody may name in a namespace of his own.
pub(crate) type OwnerId = (Option<String>, String);
/// Order of an object among those of one controller: oldest first.
pub(crate) type Age = (Option<Timestamp>, String);

/// The cached objects of one kind.
#[derive(Default)]
pub(crate) struct KindCache {
    indexed: Indexed,
    pub(crate) objects: HashMap<Place, Arc<Object>>,
    pub(crate) labels: NameIndex,
    pub(crate) fields: NameIndex,
    /// By node, if that is indexed.
    on_node: HashMap<String, BTreeSet<Place>>,
    /// By controller.
    pub(crate) families: HashMap<OwnerId, Family>,
    /// UIDs of controllers by their root.
    by_root: HashMap<OwnerId, BTreeSet<String>>,
    /// UIDs of ReplicaSets whose root is not known, by namespace.
    unresolved: HashMap<Option<String>, HashSet<String>>,
    /// Objects by an owner that is not their controller.
    owned: HashMap<OwnerId, BTreeSet<Place>>,
    /// Objects by UID of a job that holds them.
    held: HashMap<String, BTreeSet<Place>>,
    shares: NamespaceShares,
}

/// The objects of one controller.
pub(crate) struct Family {
    pub(crate) owner: Owner,
    root: Option<String>,
    pub(crate) members: BTreeSet<Age>,
}

impl KindCache {
    pub(crate) fn new(indexed: Indexed, room: &Room) -> Self {
        Self { indexed, shares: NamespaceShares::within(room), ..Self::default() }
    }

    /// The object as far as there is room for it in place of `old`.
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
        let (namespace, name) = place(&object.key);
        for key in &self.indexed.labels {
            if let Some(value) = object.labels.get(key) {
                let index = (key.clone(), namespace.clone(), value.to_owned());
                self.labels.entry(index).or_default().insert(name.clone());
            }
        }
        for pointer in &self.indexed.fields {
            if let Some(value) = object.text(pointer) {
                if pointer == NODE_NAME {
                    self.on_node.entry(value.clone()).or_default().insert(place(&object.key));
                }
                let index = (pointer.clone(), namespace.clone(), value);
                self.fields.entry(index).or_default().insert(name.clone());
            }
        }
        for owner in &object.owners {
            if owner.controller {
                self.join(owner, &object, roots);
            } else {
                self.owned.entry(controller(&object, owner)).or_default().insert(place(&object.key));
            }
        }
        for job in holders(&object) {
            self.held.entry(job.to_owned()).or_default().insert(place(&object.key));
        }
        self.objects.insert((namespace, name), object);
    }

    fn join(&mut self, owner: &Owner, object: &Object, roots: &HashMap<OwnerId, Owner>) {
        let age = (object.created, object.key.name.clone());
        let controller = controller(object, owner);
        if let Some(family) = self.families.get_mut(&controller) {
            family.members.insert(age);
            return;
        }
        let family = Family { owner: owner.clone(), root: None, members: BTreeSet::from([age]) };
        self.families.insert(controller.clone(), family);
        match root_of(owner, &controller, roots) {
            Some(root) => self.resolve(&controller, &root.uid),
            None => drop(self.unresolved.entry(controller.0).or_default().insert(controller.1)),
        }
    }

    /// Stores the root of a controller that has objects here.
    pub(crate) fn resolve(&mut self, controller: &OwnerId, root: &str) {
        let Some(family) = self.families.get_mut(controller) else { return };
        let (namespace, uid) = controller;
        if let Some(old) = family.root.replace(root.to_owned()) {
            drop_from(&mut self.by_root, &(namespace.clone(), old), uid);
        }
        self.by_root.entry((namespace.clone(), root.to_owned())).or_default().insert(uid.clone());
        self.settled(namespace, uid);
    }

    fn settled(&mut self, namespace: &Option<String>, controller: &str) {
        if let Some(waiting) = self.unresolved.get_mut(namespace) {
            waiting.remove(controller);
            if waiting.is_empty() {
                self.unresolved.remove(namespace);
            }
        }
    }

    /// Removes an object. Returns its controller if it was the last one of it.
    pub(crate) fn remove(&mut self, object: &Object) -> Option<OwnerId> {
        self.shares.count(object.share(), object.extra_bytes(), 0);
        let (namespace, name) = place(&object.key);
        for key in &self.indexed.labels {
            if let Some(value) = object.labels.get(key) {
                drop_name(&mut self.labels, (key.clone(), namespace.clone(), value.to_owned()), &name);
            }
        }
        for pointer in &self.indexed.fields {
            if let Some(value) = object.text(pointer) {
                if pointer == NODE_NAME {
                    drop_place(&mut self.on_node, value.as_str(), &object.key);
                }
                drop_name(&mut self.fields, (pointer.clone(), namespace.clone(), value), &name);
            }
        }
        let mut last = None;
        for owner in &object.owners {
            if owner.controller {
                last = self.leave(owner, object).or(last);
            } else {
                drop_place(&mut self.owned, &controller(object, owner), &object.key);
            }
        }
        holders(object).for_each(|job| drop_place(&mut self.held, job, &object.key));
        self.objects.remove(&(namespace, name));
        last
    }

    fn leave(&mut self, owner: &Owner, object: &Object) -> Option<OwnerId> {
        let controller = controller(object, owner);
        let family = self.families.get_mut(&controller)?;
        family.members.remove(&(object.created, object.key.name.clone()));
        if !family.members.is_empty() {
            return None;
        }
        let family = self.families.remove(&controller)?;
        if let Some(root) = family.root {
            drop_from(&mut self.by_root, &(controller.0.clone(), root), &owner.uid);
        }
        self.settled(&controller.0, &owner.uid);
        Some(controller)
    }

    /// True if a namespace has objects of ReplicaSets whose root is not known.
    pub(crate) fn has_unresolved(&self, namespace: &str) -> bool {
        self.unresolved.contains_key(&Some(namespace.to_owned()))
    }

    /// The controllers of a namespace whose root is not known.
    pub(crate) fn unresolved(&self, namespace: &str) -> Vec<Owner> {
        let namespace = Some(namespace.to_owned());
        let waiting = self.unresolved.get(&namespace).into_iter().flatten();
        let families = waiting.filter_map(|uid| self.families.get(&(namespace.clone(), uid.clone())));
        families.map(|family| family.owner.clone()).collect()
    }

    /// At most `limit` objects under a root controller that come after `from`, oldest first.
    pub(crate) fn siblings(&self, root: &OwnerId, from: &Age, limit: usize) -> Vec<Arc<Object>> {
        let namespace = &root.0;
        let controllers = self.by_root.get(root).into_iter().flatten();
        let families = controllers.filter_map(|uid| self.families.get(&(namespace.clone(), uid.clone())));
        let mut found: BTreeMap<Age, Arc<Object>> = BTreeMap::new();
        for family in families {
            let after = (std::ops::Bound::Excluded(from), std::ops::Bound::Unbounded);
            for age in family.members.range::<Age, _>(after).take(limit) {
                let object = self.objects.get(&(namespace.clone(), age.1.clone()));
                found.extend(object.map(|object| (age.clone(), object.clone())));
            }
        }
        found.into_values().take(limit).collect()
    }

    /// The objects of a namespace whose owner references name this UID, by name.
    pub(crate) fn owned_by(&self, owner: &OwnerId) -> Vec<Arc<Object>> {
        let family = self.families.get(owner).into_iter();
        let members = family.flat_map(|family| family.members.iter().map(|(_, name)| (owner.0.clone(), name.clone())));
        let places: BTreeSet<Place> = members.chain(self.owned.get(owner).into_iter().flatten().cloned()).collect();
        places.iter().filter_map(|place| self.objects.get(place).cloned()).collect()
    }

    /// The objects on a node, by namespace and name.
    pub(crate) fn on_node(&self, node: &str) -> Vec<Arc<Object>> {
        let places = self.on_node.get(node).into_iter().flatten();
        places.filter_map(|place| self.objects.get(place).cloned()).collect()
    }

    /// The objects that a job holds, by namespace and name.
    pub(crate) fn held_by(&self, job_uid: &str) -> Vec<Arc<Object>> {
        let places = self.held.get(job_uid).into_iter().flatten();
        places.filter_map(|place| self.objects.get(place).cloned()).collect()
    }

    /// UIDs of all jobs that have holds.
    pub(crate) fn holders(&self) -> impl Iterator<Item = &String> {
        self.held.keys()
    }

    pub(crate) fn named(&self, namespace: &Option<String>, names: Option<&Names>) -> Vec<Arc<Object>> {
        let names = names.into_iter().flat_map(Names::iter);
        names.filter_map(|name| self.objects.get(&(namespace.clone(), name.clone())).cloned()).collect()
    }
}

/// The root of a controller: itself, or the known root of a ReplicaSet.
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

/// An owner of an object as the indexes know it.
pub(crate) fn controller(object: &Object, owner: &Owner) -> OwnerId {
    (object.key.namespace.clone(), owner.uid.clone())
}

/// Namespace and name of an object.
pub(crate) fn place(key: &ObjectKey) -> Place {
    (key.namespace.clone(), key.name.clone())
}

/// The jobs that hold a pod or node: what looks like a hold on another object is none.
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

fn drop_place<K, Q>(index: &mut HashMap<K, BTreeSet<Place>>, key: &Q, object: &ObjectKey)
where
    K: Borrow<Q> + Hash + Eq,
    Q: Hash + Eq + ?Sized,
{
    if let Some(places) = index.get_mut(key) {
        places.remove(&place(object));
        if places.is_empty() {
            index.remove(key);
        }
    }
}

/// Names by label or field, namespace and value.
pub(crate) type NameIndex = HashMap<(String, Option<String>, String), Names>;

/// Names in order. Most values of an index have one, and a tree for it would be most of the index.
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

fn drop_name(index: &mut NameIndex, key: (String, Option<String>, String), name: &str) {
    if let Some(names) = index.get_mut(&key) {
        names.remove(name);
        if names.is_empty() {
            index.remove(&key);
        }
    }
}
