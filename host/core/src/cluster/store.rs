//! The objects the host watches, in memory, with the indexes that visits need.
//!
//! Takes objects from watches, replies and looks; yields the newest view of each. It never goes back to an older view
//! of an object than the one it has, so the host's own writes are seen at once and no late watch event hides them. May
//! not talk to a cluster; locking is inside and short.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, PoisonError, RwLock};

use k8s_openapi::jiff::Timestamp;

use crate::cluster::object::{Kind, Object, ObjectKey, Owner};

/// An object before and after a change; `new` is `None` where it is gone.
#[derive(Clone, Debug)]
pub struct Change {
    /// The last view before.
    pub old: Option<Arc<Object>>,
    /// The view now.
    pub new: Option<Arc<Object>>,
}

/// What is to be indexed for one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Indexed {
    /// Keys of labels that relations match by.
    pub labels: BTreeSet<String>,
    /// Pointers of fields that relations match by.
    pub fields: BTreeSet<String>,
}

/// The objects the host watches.
#[derive(Default)]
pub struct Store {
    shelves: RwLock<Shelves>,
}

type Place = (Option<String>, String);
type Siblings = BTreeSet<(Option<Timestamp>, String)>;

#[derive(Default)]
struct Shelves {
    kinds: HashMap<Kind, Shelf>,
    /// The root controller of each ReplicaSet that was looked at: its Deployment, or itself.
    roots: HashMap<String, Owner>,
    /// UIDs of objects known to be gone, so that a reply or watch event still under way does not bring one back.
    gone: HashSet<String>,
    /// The same in the order of their going; the oldest are forgotten.
    graves: VecDeque<String>,
}

/// More than can go while a reply or a watch event is under way, and less than 2 MB of UIDs.
const GRAVES: usize = 16_384;

#[derive(Default)]
struct Shelf {
    indexed: Indexed,
    objects: HashMap<Place, Arc<Object>>,
    labels: NameIndex,
    fields: NameIndex,
    /// Names and creation times by namespace and UID of the controller.
    controlled: HashMap<String, (Option<String>, Owner, Siblings)>,
}

impl Store {
    /// Starts keeping objects of `kind`, with these indexes. Objects already there are indexed anew.
    pub fn keep(&self, kind: &Kind, indexed: Indexed) {
        self.write(|shelves| {
            let shelf = shelves.kinds.entry(kind.clone()).or_default();
            let objects: Vec<_> = shelf.objects.values().cloned().collect();
            *shelf = Shelf { indexed, ..Shelf::default() };
            objects.into_iter().for_each(|object| shelf.insert(object));
        });
    }

    /// Keeps objects of `kind` no longer.
    pub fn forget(&self, kind: &Kind) {
        self.write(|shelves| shelves.kinds.remove(kind));
    }

    /// Takes a view of an object. `None` where the store has it as new already, or knows that it is gone. A view of the
    /// same version with other content replaces what is there: it was read after more fields had been declared.
    pub fn apply(&self, object: Object) -> Option<Change> {
        self.write(|shelves| {
            if shelves.gone.contains(&object.uid) {
                return None;
            }
            let shelf = shelves.kinds.get_mut(&object.key.kind)?;
            let old = shelf.objects.get(&place(&object.key)).cloned();
            let known = |old: &Object| old.version() > object.version() || *old == object;
            if old.as_deref().is_some_and(known) {
                return None;
            }
            old.iter().for_each(|old| shelf.forget(old));
            let new = Arc::new(object);
            shelf.insert(new.clone());
            Some(Change { old, new: Some(new) })
        })
    }

    /// Takes the last view of an object that a watch saw deleted.
    pub fn remove(&self, last: Object) -> Option<Change> {
        self.write(|shelves| {
            shelves.bury(&last.uid);
            let shelf = shelves.kinds.get_mut(&last.key.kind)?;
            let old = shelf.objects.get(&place(&last.key)).cloned()?;
            // A namesake made since is another object.
            if old.uid != last.uid {
                return None;
            }
            shelf.forget(&old);
            Some(Change { old: Some(Arc::new(last)), new: None })
        })
    }

    /// The API server answered that there is no such object: the one of this `uid`, which the store showed before it
    /// was asked, is gone. A namesake that a watch showed meanwhile stays, and a watch event of that UID still under way
    /// changes nothing.
    pub fn confirm_gone(&self, key: &ObjectKey, uid: &str) -> Option<Change> {
        self.write(|shelves| {
            shelves.bury(uid);
            let shelf = shelves.kinds.get_mut(&key.kind)?;
            let old = shelf.objects.get(&place(key)).filter(|old| old.uid == uid).cloned()?;
            shelf.forget(&old);
            Some(Change { old: Some(old), new: None })
        })
    }

    /// Takes a complete list of `kind` as of `version`. Objects that are not in it are gone, unless the store has
    /// them from a later write.
    pub fn reset(&self, kind: &Kind, objects: Vec<Object>, version: u64) -> Vec<Change> {
        let listed: HashSet<(Place, String)> = objects.iter().map(|o| (place(&o.key), o.uid.clone())).collect();
        let mut changes: Vec<_> = objects.into_iter().filter_map(|object| self.apply(object)).collect();
        let stale: Vec<_> = self.read(|shelves| {
            let held = shelves.kinds.get(kind).into_iter().flat_map(|shelf| shelf.objects.values());
            let missing = held.filter(|o| o.version() <= version && !listed.contains(&(place(&o.key), o.uid.clone())));
            missing.map(|object| Object::clone(object)).collect()
        });
        changes.extend(stale.into_iter().filter_map(|object| self.remove(object)));
        changes
    }

    /// The object of that name.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<Object>> {
        self.read(|shelves| shelves.kinds.get(&key.kind)?.objects.get(&place(key)).cloned())
    }

    /// Whether objects of `kind` are kept.
    pub fn keeps(&self, kind: &Kind) -> bool {
        self.read(|shelves| shelves.kinds.contains_key(kind))
    }

    /// How many objects of `kind` there are.
    pub fn count(&self, kind: &Kind) -> usize {
        self.read(|shelves| shelves.kinds.get(kind).map_or(0, |shelf| shelf.objects.len()))
    }

    /// Every object of `kind` in `namespace`, by name.
    pub fn all(&self, kind: &Kind, namespace: Option<&str>) -> Vec<Arc<Object>> {
        self.read(|shelves| {
            let held = shelves.kinds.get(kind).into_iter().flat_map(|shelf| shelf.objects.values());
            let mut found: Vec<_> =
                held.filter(|o| namespace.is_none() || o.key.namespace.as_deref() == namespace).cloned().collect();
            found.sort_by(|a, b| a.key.cmp(&b.key));
            found
        })
    }

    /// Objects by the value of an indexed label, sorted by name.
    pub fn labelled(&self, kind: &Kind, namespace: &str, label: &str, value: &str) -> Vec<Arc<Object>> {
        let index = (label.to_owned(), Some(namespace.to_owned()), value.to_owned());
        self.read(|shelves| {
            let Some(shelf) = shelves.kinds.get(kind) else { return Vec::new() };
            shelf.named(&index.1, shelf.labels.get(&index))
        })
    }

    /// Objects by the string at an indexed field, sorted by name.
    pub fn with_field(&self, kind: &Kind, namespace: &str, pointer: &str, value: &str) -> Vec<Arc<Object>> {
        let index = (pointer.to_owned(), Some(namespace.to_owned()), value.to_owned());
        self.read(|shelves| {
            let Some(shelf) = shelves.kinds.get(kind) else { return Vec::new() };
            shelf.named(&index.1, shelf.fields.get(&index))
        })
    }

    /// Objects whose owner references name `uid`, sorted by namespace and name.
    pub fn owned(&self, kind: &Kind, namespace: &str, uid: &str) -> Vec<Arc<Object>> {
        self.all(kind, Some(namespace)).into_iter().filter(|o| o.owners.iter().any(|owner| owner.uid == uid)).collect()
    }

    /// Visits objects whose root controller is `root`, made at or after `since`, oldest first, until `take` says
    /// enough by `false`.
    pub fn siblings(&self, kind: &Kind, root: &str, since: Timestamp, mut take: impl FnMut(&Arc<Object>) -> bool) {
        self.read(|shelves| {
            let Some(shelf) = shelves.kinds.get(kind) else { return };
            let mut found: BTreeMap<(Option<Timestamp>, String), &Arc<Object>> = BTreeMap::new();
            for (uid, (namespace, owner, siblings)) in &shelf.controlled {
                if shelves.root_of(uid, owner).is_none_or(|o| o.uid != root) {
                    continue;
                }
                for sibling in siblings.range((Some(since), String::new())..) {
                    let object = shelf.objects.get(&(namespace.clone(), sibling.1.clone()));
                    found.extend(object.map(|object| (sibling.clone(), object)));
                }
            }
            for object in found.into_values() {
                if !take(object) {
                    return;
                }
            }
        });
    }

    /// The root controller of an object: its controller, or the Deployment that controls its ReplicaSet. `Err` names
    /// a ReplicaSet that was not looked at yet.
    pub fn root(&self, object: &Object) -> Result<Option<Owner>, String> {
        let Some(owner) = object.controller() else { return Ok(None) };
        self.read(|shelves| shelves.root_of(&owner.uid, owner).cloned().map(Some).ok_or_else(|| owner.name.clone()))
    }

    /// Whether `namespace` has objects of `kind` under ReplicaSets that were not looked at yet.
    pub fn unresolved(&self, kind: &Kind, namespace: &str) -> bool {
        self.read(|shelves| {
            let Some(shelf) = shelves.kinds.get(kind) else { return false };
            let mut controllers = shelf.controlled.iter().filter(|(_, (ns, ..))| ns.as_deref() == Some(namespace));
            controllers.any(|(uid, (_, owner, _))| shelves.root_of(uid, owner).is_none())
        })
    }

    /// Remembers the root of a ReplicaSet: its Deployment, or the ReplicaSet itself.
    pub fn learn_root(&self, replica_set: &str, root: Owner) {
        self.write(|shelves| shelves.roots.insert(replica_set.to_owned(), root));
    }

    fn read<T>(&self, look: impl FnOnce(&Shelves) -> T) -> T {
        look(&self.shelves.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, change: impl FnOnce(&mut Shelves) -> T) -> T {
        change(&mut self.shelves.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Shelves {
    fn bury(&mut self, uid: &str) {
        if !self.gone.insert(uid.to_owned()) {
            return;
        }
        self.graves.push_back(uid.to_owned());
        if self.graves.len() > GRAVES
            && let Some(oldest) = self.graves.pop_front()
        {
            self.gone.remove(&oldest);
        }
    }

    fn root_of<'a>(&'a self, uid: &str, owner: &'a Owner) -> Option<&'a Owner> {
        match owner.kind.kind.as_str() {
            "ReplicaSet" => self.roots.get(uid),
            _ => Some(owner),
        }
    }
}

impl Shelf {
    fn insert(&mut self, object: Arc<Object>) {
        let namespace = object.key.namespace.clone();
        let name = object.key.name.clone();
        for key in &self.indexed.labels {
            if let Some(value) = object.labels.get(key) {
                let index = (key.clone(), namespace.clone(), value.to_owned());
                self.labels.entry(index).or_default().insert(name.clone());
            }
        }
        for pointer in &self.indexed.fields {
            if let Some(value) = object.text(pointer) {
                let index = (pointer.clone(), namespace.clone(), value);
                self.fields.entry(index).or_default().insert(name.clone());
            }
        }
        if let Some(owner) = object.controller() {
            let entry = || (namespace.clone(), owner.clone(), Siblings::new());
            let family = self.controlled.entry(owner.uid.clone()).or_insert_with(entry);
            family.2.insert((object.created, name.clone()));
        }
        self.objects.insert((namespace, name), object);
    }

    fn forget(&mut self, object: &Object) {
        let namespace = object.key.namespace.clone();
        let name = &object.key.name;
        for key in &self.indexed.labels {
            if let Some(value) = object.labels.get(key) {
                drop_name(&mut self.labels, (key.clone(), namespace.clone(), value.to_owned()), name);
            }
        }
        for pointer in &self.indexed.fields {
            if let Some(value) = object.text(pointer) {
                drop_name(&mut self.fields, (pointer.clone(), namespace.clone(), value), name);
            }
        }
        if let Some(owner) = object.controller()
            && let Some(family) = self.controlled.get_mut(&owner.uid)
        {
            family.2.remove(&(object.created, name.clone()));
            if family.2.is_empty() {
                self.controlled.remove(&owner.uid);
            }
        }
        self.objects.remove(&(namespace, name.clone()));
    }

    fn named(&self, namespace: &Option<String>, names: Option<&Names>) -> Vec<Arc<Object>> {
        let names = names.into_iter().flat_map(Names::iter);
        names.filter_map(|name| self.objects.get(&(namespace.clone(), name.clone())).cloned()).collect()
    }
}

type NameIndex = HashMap<(String, Option<String>, String), Names>;

/// Names in order. Most values of an index have one, and a tree for it would be most of the index.
#[derive(Default)]
enum Names {
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

fn place(key: &ObjectKey) -> Place {
    (key.namespace.clone(), key.name.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, uid: &str, version: u64, owner: &str) -> Object {
        let document = json!({"metadata": {"name": name, "namespace": "d", "uid": uid,
            "resourceVersion": version.to_string(), "labels": {"l": "v"}, "creationTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": owner,
                "controller": true}]}});
        Object::slim(&document, &Kind::pod(), &[]).unwrap()
    }

    fn store() -> Store {
        let store = Store::default();
        store.keep(&Kind::pod(), Indexed { labels: ["l".to_owned()].into(), fields: BTreeSet::new() });
        store
    }

    #[test]
    fn a_late_watch_event_never_hides_an_own_write() {
        let store = store();
        assert!(store.apply(pod("a", "1", 7, "rs")).is_some());
        assert!(store.apply(pod("a", "1", 5, "rs")).is_none());
        assert_eq!(store.get(&ObjectKey::pod("d", "a")).unwrap().version(), 7);
    }

    #[test]
    fn what_the_server_confirmed_gone_stays_gone_though_the_watch_lags() {
        let store = store();
        store.apply(pod("a", "1", 7, "rs"));
        store.confirm_gone(&ObjectKey::pod("d", "a"), "1");
        assert!(store.apply(pod("a", "1", 8, "rs")).is_none());
        assert!(store.apply(pod("a", "2", 9, "rs")).is_some());
        assert!(store.confirm_gone(&ObjectKey::pod("d", "a"), "1").is_none());
        assert!(store.remove(pod("a", "1", 10, "rs")).is_none());
        assert_eq!(store.labelled(&Kind::pod(), "d", "l", "v").len(), 1);
    }

    #[test]
    fn a_late_reply_does_not_bring_back_what_was_deleted() {
        let store = store();
        store.apply(pod("a", "1", 7, "rs"));
        store.remove(pod("a", "1", 9, "rs"));
        assert!(store.apply(pod("a", "1", 8, "rs")).is_none());
    }

    #[test]
    fn a_view_with_more_fields_replaces_one_of_the_same_version() {
        let store = store();
        store.apply(pod("a", "1", 7, "rs"));
        assert!(store.apply(pod("a", "1", 7, "rs")).is_none());
        let wider = Object { fields: json!({"spec": {"nodeName": "n"}}).into(), ..pod("a", "1", 7, "rs") };
        assert!(store.apply(wider).is_some());
    }

    #[test]
    fn a_list_drops_what_it_lacks_but_not_what_is_newer_than_it() {
        let store = store();
        store.apply(pod("old", "1", 5, "rs"));
        store.apply(pod("own", "2", 9, "rs"));
        let changes = store.reset(&Kind::pod(), vec![pod("listed", "3", 6, "rs")], 7);
        assert_eq!(changes.len(), 2);
        let names: Vec<_> = store.all(&Kind::pod(), Some("d")).iter().map(|o| o.key.name.clone()).collect();
        assert_eq!(names, ["listed", "own"]);
    }

    #[test]
    fn siblings_are_found_by_the_deployment_once_their_replica_set_was_looked_at() {
        let store = store();
        store.apply(pod("a", "1", 5, "rs"));
        assert!(store.unresolved(&Kind::pod(), "d"));
        let deployment =
            Owner { kind: Kind::new("apps/v1", "Deployment"), name: "w".into(), uid: "dep".into(), controller: true };
        store.learn_root("rs", deployment);
        let mut seen = Vec::new();
        store.siblings(&Kind::pod(), "dep", Timestamp::UNIX_EPOCH, |object| {
            seen.push(object.key.name.clone());
            true
        });
        assert_eq!(seen, ["a"]);
    }
}
