//! The objects that the host watches, in memory, with the indexes that visits need.
//!
//! The store never goes back to an older view of an object. So the host sees its own writes at once, and no late watch event hides them. The store
//! locks inside, briefly, and runs no code of a caller under the lock.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, PoisonError, RwLock};

pub use crate::cache::kind_cache::NODE_NAME;
use crate::cache::kind_cache::{Age, KindCache, NamespacedName, OwnerId, controller, namespaced_name, root_of};
use crate::object::api_object::{Kind, Object, ObjectKey, Owner};
use crate::object::memory::MemoryBudget;

/// An object before and after a change. `new` is `None` if the object is gone.
#[derive(Clone, Debug)]
pub struct Change {
    /// The last view before the change.
    pub old: Option<Arc<Object>>,
    /// The view after the change.
    pub new: Option<Arc<Object>>,
}

impl Change {
    /// Returns true if only the version has changed, and nothing else that the host keeps of the object.
    pub fn is_of_version_only(&self) -> bool {
        let (Some(old), Some(new)) = (&self.old, &self.new) else { return false };
        // The most likely differences come first, so that most comparisons end early.
        old.fields == new.fields
            && old.labels == new.labels
            && old.annotations == new.annotations
            && (&old.key, &old.uid, &old.finalizers, &old.owners) == (&new.key, &new.uid, &new.finalizers, &new.owners)
            && (old.created, old.deleted, old.grace_seconds) == (new.created, new.deleted, new.grace_seconds)
            && (old.available, old.kept, &old.node, &old.task) == (new.available, new.kept, &new.node, &new.task)
    }
}

/// The indexes that the store keeps for one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Indexed {
    /// Keys of labels by which relations match.
    pub labels: BTreeSet<String>,
    /// Pointers of fields by which relations match.
    pub fields: BTreeSet<String>,
}

/// The identity of a root controller.
#[derive(Clone, Copy, Debug)]
pub struct RootUid<'a> {
    /// Namespace of the controller and of its objects.
    pub namespace: &'a str,
    /// UID of the controller.
    pub uid: &'a str,
}

/// The objects that the host watches.
#[derive(Default)]
pub struct Store {
    state: RwLock<State>,
    room: MemoryBudget,
}

#[derive(Default)]
struct State {
    kinds: HashMap<Kind, KindCache>,
    /// The root controller of each ReplicaSet that was read and has objects here. The root is its Deployment or the ReplicaSet itself.
    roots: HashMap<OwnerId, Owner>,
    tombstones: Tombstones,
}

/// UIDs of deleted objects. A late reply or watch event must not bring such an object back.
#[derive(Default)]
struct Tombstones {
    uids: HashSet<String>,
    /// The UIDs in the order of deletion. The store forgets the oldest.
    order: VecDeque<String>,
}

/// The most tombstones. More objects cannot be deleted while one reply or watch event is on its way. The UIDs take less than 2 MB.
const TOMBSTONES: usize = 16_384;

impl Store {
    /// Returns an empty store whose objects take no more memory than this room.
    pub fn within(room: MemoryBudget) -> Self {
        Self { room, ..Self::default() }
    }

    /// Starts to keep objects of `kind`, with these indexes. Indexes objects again that are already there.
    pub fn keep(&self, kind: &Kind, indexed: Indexed) {
        self.write(|state| {
            let State { kinds, roots, .. } = state;
            let cache = kinds.entry(kind.clone()).or_default();
            let old = std::mem::replace(cache, KindCache::new(indexed, &self.room));
            old.objects.into_values().for_each(|object| cache.insert(object, roots));
        });
    }

    /// Stops keeping objects of `kind`.
    pub fn forget(&self, kind: &Kind) {
        self.write(|state| state.kinds.remove(kind));
    }

    /// Stores a view of an object. Returns `None` if the store already has a view as new, or knows that the object is gone. A view of the same
    /// version with other content replaces the stored view: it was read after plugins declared more fields.
    pub fn apply(&self, object: Object) -> Option<Change> {
        self.write(|state| {
            if state.tombstones.uids.contains(&object.uid) {
                return None;
            }
            let cache = state.kinds.get(&object.key.kind)?;
            let old = cache.objects.get(&namespaced_name(&object.key)).cloned();
            let object = cache.fitting(object, old.as_deref());
            let known = |old: &Object| old.version() > object.version() || *old == object;
            if old.as_deref().is_some_and(known) {
                return None;
            }
            let State { kinds, roots, .. } = state;
            let cache = kinds.get_mut(&object.key.kind)?;
            let emptied = old.as_ref().and_then(|old| cache.remove(old));
            let new = Arc::new(object);
            cache.insert(new.clone(), roots);
            state.forget_root(&new.key.kind, emptied);
            Some(Change { old, new: Some(new) })
        })
    }

    /// Removes an object that a watch saw deleted. `last` is its last view.
    pub fn remove(&self, last: Object) -> Option<Change> {
        self.write(|state| {
            state.tombstones.add(&last.uid);
            // An object of the same name that was made since then is another object.
            state.drop_object(&last.key, &last.uid)?;
            Some(Change { old: Some(Arc::new(last)), new: None })
        })
    }

    /// Removes the object of this `uid` after the API server replied that it does not exist. A new object of the same name, which a watch showed
    /// meanwhile, stays.
    pub fn confirm_gone(&self, key: &ObjectKey, uid: &str) -> Option<Change> {
        self.write(|state| {
            state.tombstones.add(uid);
            let old = state.drop_object(key, uid)?;
            Some(Change { old: Some(old), new: None })
        })
    }

    /// Stores a complete list of `kind` as of `version`. Removes objects that are not in the list, unless the store has them from a later write.
    /// The version `u64::MAX` means that the API server does not serve the kind now. The objects come back with the next list then.
    pub fn reset(&self, kind: &Kind, objects: Vec<Object>, version: u64) -> Vec<Change> {
        let listed: HashSet<(NamespacedName, String)> =
            objects.iter().map(|o| (namespaced_name(&o.key), o.uid.clone())).collect();
        let mut changes: Vec<_> = objects.into_iter().filter_map(|object| self.apply(object)).collect();
        let stale: Vec<_> = self.read(|state| {
            let cached = state.kinds.get(kind).into_iter().flat_map(|cache| cache.objects.values());
            let missing = cached
                .filter(|o| o.version() <= version && !listed.contains(&(namespaced_name(&o.key), o.uid.clone())));
            missing.map(|object| Object::clone(object)).collect()
        });
        let is_served = version < u64::MAX;
        changes.extend(stale.into_iter().filter_map(|object| {
            self.write(|state| {
                if is_served {
                    state.tombstones.add(&object.uid);
                }
                state.drop_object(&object.key, &object.uid).map(|old| Change { old: Some(old), new: None })
            })
        }));
        changes
    }

    /// Returns the object with this key.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<Object>> {
        self.read(|state| state.kinds.get(&key.kind)?.objects.get(&namespaced_name(key)).cloned())
    }

    /// Returns true if the store keeps objects of `kind`.
    pub fn keeps(&self, kind: &Kind) -> bool {
        self.read(|state| state.kinds.contains_key(kind))
    }

    /// Returns the number of objects of `kind`.
    pub fn count(&self, kind: &Kind) -> usize {
        self.read(|state| state.kinds.get(kind).map_or(0, |cache| cache.objects.len()))
    }

    /// Returns all objects of `kind` in `namespace`, sorted by name.
    pub fn all(&self, kind: &Kind, namespace: Option<&str>) -> Vec<Arc<Object>> {
        let mut found: Vec<_> = self.read(|state| {
            let cached = state.kinds.get(kind).into_iter().flat_map(|cache| cache.objects.values());
            cached.filter(|o| namespace.is_none() || o.key.namespace.as_deref() == namespace).cloned().collect()
        });
        found.sort_by(|a: &Arc<Object>, b| a.key.cmp(&b.key));
        found
    }

    /// Returns the objects with this value of an indexed label, sorted by name.
    pub fn labelled(&self, kind: &Kind, namespace: &str, label: &str, value: &str) -> Vec<Arc<Object>> {
        let index = (label.to_owned(), Some(namespace.to_owned()), value.to_owned());
        self.of(kind, |cache| cache.named(&index.1, cache.labels.get(&index)))
    }

    /// Returns the objects with this string at an indexed field, sorted by name.
    pub fn with_field(&self, kind: &Kind, namespace: &str, pointer: &str, value: &str) -> Vec<Arc<Object>> {
        let index = (pointer.to_owned(), Some(namespace.to_owned()), value.to_owned());
        self.of(kind, |cache| cache.named(&index.1, cache.fields.get(&index)))
    }

    /// Returns the objects of a namespace whose owner references name `uid`, sorted by name.
    pub fn owned(&self, kind: &Kind, namespace: &str, uid: &str) -> Vec<Arc<Object>> {
        let owner = (Some(namespace.to_owned()), uid.to_owned());
        self.of(kind, |cache| cache.owned_by(&owner))
    }

    /// Returns the pods of a node in all namespaces, sorted by namespace and name. Returns no pods if [`NODE_NAME`] is not indexed.
    pub fn on_node(&self, node: &str) -> Vec<Arc<Object>> {
        self.of(&Kind::pod(), |cache| cache.on_node(node))
    }

    /// Returns the objects that a job holds.
    pub fn held_by(&self, kind: &Kind, job_uid: &str) -> Vec<Arc<Object>> {
        self.of(kind, |cache| cache.held_by(job_uid))
    }

    /// Returns the UIDs of all jobs that hold objects of a kind.
    pub fn holders(&self, kind: &Kind) -> BTreeSet<String> {
        self.read(|state| state.kinds.get(kind).into_iter().flat_map(KindCache::holders).cloned().collect())
    }

    /// Returns at most `limit` objects whose root controller is `root`, oldest first. The objects come after `from` (a creation time and a name).
    pub fn siblings(&self, kind: &Kind, root: RootUid<'_>, from: &Age, limit: usize) -> Vec<Arc<Object>> {
        let root = (Some(root.namespace.to_owned()), root.uid.to_owned());
        self.of(kind, |cache| cache.siblings(&root, from, limit))
    }

    /// Returns the root controller of an object: its controller, or the Deployment that controls its ReplicaSet. `Err` names a ReplicaSet that the
    /// host has not read yet.
    pub fn root(&self, object: &Object) -> Result<Option<Owner>, String> {
        let Some(owner) = object.controller() else { return Ok(None) };
        let controller = controller(object, owner);
        self.read(|state| {
            root_of(owner, &controller, &state.roots).cloned().map(Some).ok_or_else(|| owner.name.clone())
        })
    }

    /// Returns true if `namespace` has objects of `kind` under ReplicaSets that the host has not read yet.
    pub fn has_unresolved(&self, kind: &Kind, namespace: &str) -> bool {
        self.read(|state| state.kinds.get(kind).is_some_and(|cache| cache.has_unresolved(namespace)))
    }

    /// Returns the ReplicaSets with objects in `namespace` that the host has not read yet.
    pub fn unresolved(&self, kind: &Kind, namespace: &str) -> Vec<Owner> {
        self.of(kind, |cache| cache.unresolved(namespace))
    }

    /// Stores the root of a ReplicaSet: its Deployment, or the ReplicaSet itself. Does nothing if the ReplicaSet has no objects in the store.
    pub fn learn_root(&self, namespace: &str, replica_set: &str, root: &Owner) {
        let controller = (Some(namespace.to_owned()), replica_set.to_owned());
        self.write(|state| {
            let caches = state.kinds.values_mut().filter(|cache| cache.by_controller.contains_key(&controller));
            let mut known = false;
            for cache in caches {
                cache.resolve(&controller, &root.uid);
                known = true;
            }
            if known {
                state.roots.insert(controller, root.clone());
            }
        });
    }

    fn of<T>(&self, kind: &Kind, look: impl FnOnce(&KindCache) -> Vec<T>) -> Vec<T> {
        self.read(|state| state.kinds.get(kind).map(look).unwrap_or_default())
    }

    fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl State {
    fn drop_object(&mut self, key: &ObjectKey, uid: &str) -> Option<Arc<Object>> {
        let cache = self.kinds.get_mut(&key.kind)?;
        let old = cache.objects.get(&namespaced_name(key)).filter(|old| old.uid == uid).cloned()?;
        let emptied = cache.remove(&old);
        self.forget_root(&key.kind, emptied);
        Some(old)
    }

    /// Forgets the root of a controller that has no objects left.
    fn forget_root(&mut self, kind: &Kind, emptied: Option<OwnerId>) {
        let Some(controller) = emptied else { return };
        let again = self.kinds.get(kind).is_some_and(|cache| cache.by_controller.contains_key(&controller));
        if !again {
            self.roots.remove(&controller);
        }
    }
}

impl Tombstones {
    fn add(&mut self, uid: &str) {
        if !self.uids.insert(uid.to_owned()) {
            return;
        }
        self.order.push_back(uid.to_owned());
        if self.order.len() > TOMBSTONES
            && let Some(oldest) = self.order.pop_front()
        {
            self.uids.remove(&oldest);
        }
    }
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
    fn large_objects_of_a_namespace_take_no_more_than_its_share_and_those_of_another_are_whole() {
        let store = store();
        let pod = |name: &str, namespace: &str, version: u64| {
            let document = json!({"metadata": {"name": name, "namespace": namespace, "uid": format!("{namespace}/{name}"),
                "resourceVersion": version.to_string(), "annotations": {"a": "x".repeat(250_000)}}});
            Object::slim(&document, &Kind::pod(), &[]).unwrap()
        };
        let whole = |name: &str, namespace: &str| store.get(&ObjectKey::pod(namespace, name)).unwrap().is_whole();
        (0..200).for_each(|number| drop(store.apply(pod(&number.to_string(), "a", 1))));
        let all = (0..200).filter(|number| whole(&number.to_string(), "a")).count();
        assert!((130..140).contains(&all), "{all}");
        store.apply(pod("0", "b", 1));
        assert!(whole("0", "b"));
        assert!(store.apply(pod("199", "a", 1)).is_none(), "the same view is no change");
        store.remove(pod("0", "a", 2));
        store.apply(pod("199", "a", 3));
        assert!(whole("199", "a"));
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
    fn objects_come_back_after_a_server_did_not_serve_their_kind_for_a_moment() {
        let store = store();
        store.apply(pod("a", "1", 5, "rs"));
        assert_eq!(store.reset(&Kind::pod(), Vec::new(), u64::MAX).len(), 1);
        assert_eq!(store.count(&Kind::pod()), 0);
        assert_eq!(store.reset(&Kind::pod(), vec![pod("a", "1", 5, "rs")], 7).len(), 1);
        assert_eq!(store.count(&Kind::pod()), 1);
    }

    #[test]
    fn siblings_are_found_by_the_deployment_once_their_replica_set_was_looked_at() {
        let store = store();
        store.apply(pod("a", "1", 5, "rs"));
        assert!(store.has_unresolved(&Kind::pod(), "d"));
        let deployment =
            Owner { kind: Kind::new("apps/v1", "Deployment"), name: "w".into(), uid: "dep".into(), controller: true };
        store.learn_root("d", "rs", &deployment);
        let from = (None, String::new());
        let root = RootUid { namespace: "d", uid: "dep" };
        let seen: Vec<_> = store.siblings(&Kind::pod(), root, &from, 9).iter().map(|o| o.key.name.clone()).collect();
        assert_eq!(seen, ["a"]);
    }

    #[test]
    fn a_pod_of_another_namespace_is_no_sibling_whatever_controller_it_names_and_hides_none() {
        let store = store();
        let from = (None, String::new());
        let poison = |kind: &str, uid: &str| {
            let document = json!({"metadata": {"name": uid, "namespace": "aaa", "uid": format!("aaa-{uid}"),
                "resourceVersion": "4", "ownerReferences": [{"apiVersion": "x/v1", "kind": kind, "name": "x",
                    "uid": uid, "controller": true}]}});
            store.apply(Object::slim(&document, &Kind::pod(), &[]).unwrap());
        };
        // One object with the ReplicaSet's UID is there before, and one names the Deployment.
        poison("X", "rs");
        poison("X", "dep");
        store.apply(pod("a", "1", 5, "rs"));
        let deployment =
            Owner { kind: Kind::new("apps/v1", "Deployment"), name: "w".into(), uid: "dep".into(), controller: true };
        store.learn_root("d", "rs", &deployment);
        let found = |namespace: &str, root: &str| -> Vec<String> {
            let found = store.siblings(&Kind::pod(), RootUid { namespace, uid: root }, &from, 9);
            found.iter().map(|object| object.key.name.clone()).collect()
        };
        assert_eq!((found("d", "dep"), found("d", "rs")), (vec!["a".to_owned()], vec![]));
        let owned: Vec<_> = store.owned(&Kind::pod(), "d", "rs").iter().map(|o| o.key.clone()).collect();
        assert_eq!(owned, [ObjectKey::pod("d", "a")]);
    }

    #[test]
    fn a_replica_set_without_pods_leaves_nothing_behind() {
        let store = store();
        store.apply(pod("a", "1", 5, "rs"));
        let itself =
            Owner { kind: Kind::new("apps/v1", "ReplicaSet"), name: "rs".into(), uid: "rs".into(), controller: true };
        store.learn_root("d", "rs", &itself);
        assert!(!store.has_unresolved(&Kind::pod(), "d"));
        store.remove(pod("a", "1", 6, "rs"));
        store.apply(pod("b", "2", 7, "rs"));
        assert!(store.has_unresolved(&Kind::pod(), "d"), "its root is read anew");
    }

    #[test]
    fn objects_are_found_by_the_job_that_holds_them() {
        let store = store();
        let held = json!({"metadata": {"name": "a", "namespace": "d", "uid": "1", "resourceVersion": "5",
            "labels": {"oarlock.dev/held": "true"}, "annotations": {"hold.oarlock.dev/j": "[]"}}});
        store.apply(Object::slim(&held, &Kind::pod(), &[]).unwrap());
        assert_eq!(store.held_by(&Kind::pod(), "j").len(), 1);
        store.apply(pod("a", "1", 6, "rs"));
        assert!(store.held_by(&Kind::pod(), "j").is_empty() && store.holders(&Kind::pod()).is_empty());
    }
}
