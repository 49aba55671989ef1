//! The cache of one kind of the engine: the newest view of its objects and of their children, and the objects that changed.

use std::collections::BTreeSet;
use std::sync::Arc;

use oarlock_core::cache::object_cache::{CacheChange, CachedObject as _, CachedView, ObjectCache};
use oarlock_core::kind::plan_kind::PlanKind;
use oarlock_core::object::api_object::ObjectKey;
use oarlock_core::object::memory::MemoryBudget;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;

/// The source from which a cache learned of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LearnedFrom {
    /// A list. The object may have been written long ago.
    List,
    /// A watch event or a reply. The object was written just now.
    News,
}

/// An observer of the objects of a kind. Its functions run under the lock of the cache, so they must be quick.
pub trait KindObserver<O>: Send + Sync {
    /// Handles a document of a list or a watch, whole. The observer may have seen this version before.
    fn seen(&self, _document: &Value) {}

    /// Handles an object that the cache takes.
    fn takes(&self, _object: &O, _from: LearnedFrom) {}

    /// Handles the deletion of the object with this UID.
    fn gone(&self, _uid: &str) {}

    /// Handles a complete list of the objects, by UID.
    fn listed(&self, _uids: Vec<String>) {}
}

/// An observer that ignores everything.
impl<O> KindObserver<O> for () {}

/// The objects of a kind, and their children.
pub struct EngineCache<K: PlanKind> {
    kind: Arc<K>,
    state: Mutex<KindState<K>>,
    observer: Arc<dyn KindObserver<K::Object>>,
    changed: Notify,
}

struct KindState<K: PlanKind> {
    objects: ObjectCache<K::Object>,
    children: ObjectCache<K::Child>,
}

impl<K: PlanKind> KindState<K> {
    fn put_child(&mut self, child: K::Child) {
        let owner = child.owner_uid().map(str::to_owned);
        let before = self.children.get(&child.key()).and_then(|before| before.owner_uid().map(str::to_owned));
        if !matches!(self.children.put(child), CacheChange::Older) {
            owner.iter().chain(&before).for_each(|owner| self.objects.mark_uid_dirty(owner));
        }
        // Only the objects of the kind have rounds.
        self.children.take_dirty();
    }

    /// Drops a child that was deleted.
    fn remove_child(&mut self, child: &K::Child) {
        let dropped = self.children.remove(&child.key(), child.uid());
        self.note_dropped(dropped);
    }

    /// Drops a child that the API server does not show now.
    fn forget_child(&mut self, child: &K::Child) {
        let dropped = self.children.forget(&child.key(), child.uid());
        self.note_dropped(dropped);
    }

    /// Marks the owner of a dropped child dirty.
    fn note_dropped(&mut self, dropped: Option<Arc<K::Child>>) {
        let owner = dropped.as_ref().and_then(|child| child.owner_uid());
        owner.iter().for_each(|owner| self.objects.mark_uid_dirty(owner));
        self.children.take_dirty();
    }
}

impl<K: PlanKind> EngineCache<K> {
    /// Returns an empty cache whose objects count in this room. It reports them to `observer`.
    pub(crate) fn within(room: &MemoryBudget, kind: Arc<K>, observer: Arc<dyn KindObserver<K::Object>>) -> Self {
        let state = KindState { objects: ObjectCache::within(room), children: ObjectCache::default() };
        Self { kind, state: Mutex::new(state), observer, changed: Notify::new() }
    }

    /// Returns the kind.
    pub fn kind(&self) -> &Arc<K> {
        &self.kind
    }

    pub(crate) fn observer(&self) -> &dyn KindObserver<K::Object> {
        &*self.observer
    }

    fn change<T>(&self, change: impl FnOnce(&mut KindState<K>) -> T) -> T {
        let result = change(&mut self.state.lock());
        self.changed.notify_one();
        result
    }

    /// Returns the newest view of an object, even if it is uncertain.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K::Object>> {
        self.state.lock().objects.get(key).cloned()
    }

    /// Returns the newest view of an object, unless it may be older than the host's last write.
    pub fn view(&self, key: &ObjectKey) -> CachedView<K::Object> {
        self.state.lock().objects.view(key)
    }

    /// Returns all objects.
    pub fn all(&self) -> Vec<Arc<K::Object>> {
        self.state.lock().objects.all().cloned().collect()
    }

    /// Returns the children of an object, in the order of their keys.
    pub fn children(&self, object: &K::Object) -> Vec<Arc<K::Child>> {
        let state = self.state.lock();
        let owned = state.children.owned_by(object.uid());
        owned.filter(|child| self.kind.is_child(object, child)).cloned().collect()
    }

    /// Returns the object whose child has this UID.
    pub fn owner_of(&self, child: &str) -> Option<Arc<K::Object>> {
        let state = self.state.lock();
        let child = state.children.by_uid(child)?;
        let object = state.objects.by_uid(child.owner_uid()?)?;
        self.kind.is_child(object, child).then(|| object.clone())
    }

    /// Marks the object with this UID dirty.
    pub fn mark_dirty(&self, uid: &str) {
        self.change(|state| state.objects.mark_uid_dirty(uid));
    }

    /// Takes the keys of the objects that changed since the last call.
    pub fn take_dirty(&self) -> BTreeSet<ObjectKey> {
        self.state.lock().objects.take_dirty()
    }

    /// Waits until an object may have changed.
    pub async fn until_dirty(&self) {
        self.changed.notified().await;
    }

    /// Takes an object from a watch event or a reply.
    pub fn put(&self, object: K::Object) {
        self.change(|state| self.take(state, object, LearnedFrom::News));
    }

    fn take(&self, state: &mut KindState<K>, object: K::Object, from: LearnedFrom) {
        if !state.objects.takes(&object) {
            return;
        }
        self.observer.takes(&object, from);
        if let CacheChange::InPlaceOf(other) = state.objects.put(object) {
            self.observer.gone(other.uid());
        }
    }

    /// Drops an object that the API server does not show now.
    fn forget(&self, state: &mut KindState<K>, object: &K::Object) {
        self.observer.gone(object.uid());
        state.objects.forget(&object.key(), object.uid());
    }

    /// Takes the last view of a deleted object.
    pub(crate) fn drop_object(&self, object: &K::Object) {
        self.change(|state| {
            self.observer.gone(object.uid());
            state.objects.remove(&object.key(), object.uid());
        });
    }

    /// Takes a complete list at this version.
    pub(crate) fn reset(&self, objects: Vec<K::Object>, version: u64) {
        self.change(|state| {
            let uids: Vec<String> = objects.iter().map(|object| object.uid().to_owned()).collect();
            let absent = state.objects.absent_from(&uids.iter().cloned().collect(), version);
            self.observer.listed(uids);
            absent.iter().for_each(|object| self.forget(state, object));
            objects.into_iter().for_each(|object| self.take(state, object, LearnedFrom::List));
        });
    }

    /// Marks the view of an object uncertain, after a write with an unknown outcome.
    pub(crate) fn doubt(&self, key: &ObjectKey) {
        self.change(|state| state.objects.doubt(key));
    }

    /// Takes the answer of the API server to a read of an object. `before` is the object that the cache had before the read.
    pub(crate) fn confirm(&self, key: &ObjectKey, before: Option<&K::Object>, answer: Option<K::Object>) {
        self.change(|state| {
            let dropped = state.objects.confirm(key, before.map(K::Object::uid), answer.as_ref());
            dropped.iter().for_each(|dropped| self.observer.gone(dropped.uid()));
            answer.into_iter().for_each(|object| self.take(state, object, LearnedFrom::News));
        });
    }

    /// Takes a child from a watch event or a reply.
    pub(crate) fn put_child(&self, child: K::Child) {
        self.change(|state| state.put_child(child));
    }

    /// Takes the last view of a deleted child.
    pub(crate) fn drop_child(&self, child: &K::Child) {
        self.change(|state| state.remove_child(child));
    }

    /// Drops the child with this key, if it has this UID, after the API server did not show it.
    pub(crate) fn child_is_absent(&self, key: &ObjectKey, uid: &str) {
        self.change(|state| {
            let known = state.children.by_uid(uid).filter(|child| child.key() == *key).cloned();
            known.iter().for_each(|child| state.forget_child(child));
        });
    }

    /// Returns the UID of the cached child with this key.
    pub(crate) fn child_uid(&self, key: &ObjectKey) -> Option<String> {
        self.state.lock().children.get(key).map(|child| child.uid().to_owned())
    }

    /// Takes a complete list of the children at this version.
    pub(crate) fn reset_children(&self, children: Vec<K::Child>, version: u64) {
        self.change(|state| {
            let listed = children.iter().map(|child| child.uid().to_owned()).collect();
            state.children.absent_from(&listed, version).iter().for_each(|child| state.forget_child(child));
            children.into_iter().for_each(|child| state.put_child(child));
        });
    }
}
