//! The cache of the objects of one kind: the newest view of each object, from lists, watches and replies. Pure.
//!
//! The cache counts the memory of the objects, refuses older versions and deleted UIDs, and knows which objects changed. After a write with
//! an unknown outcome it says that its view is uncertain, until it has a newer one.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crate::object::api_object::ObjectKey;
use crate::object::memory::{MemoryBudget, NamespaceShares};

/// The number of remembered deletions. It is higher than the number of watch events that may come late.
const TOMBSTONES: usize = 4_096;
/// The number of dirty keys of deleted objects that the cache keeps while nobody takes them.
const DIRTY: usize = 10_000;

/// An object as a cache keeps it.
pub trait CachedObject: Send + Sync + 'static {
    /// Returns the key of the object.
    fn key(&self) -> ObjectKey;

    /// Returns the UID of the object.
    fn uid(&self) -> &str;

    /// Returns the resourceVersion of the object as a number.
    fn version(&self) -> u64;

    /// Returns the UID of the object that owns this one, if the cache has to find the objects of an owner.
    fn owner_uid(&self) -> Option<&str> {
        None
    }

    /// Returns the memory of the part that the object's author wrote, in bytes. It counts against the share of the namespace.
    fn bytes(&self) -> usize {
        0
    }

    /// Returns true if the cache keeps the whole object even without room. `before` is the earlier view of the same object.
    fn is_admitted(&self, before: Option<&Self>) -> bool {
        let _ = before;
        false
    }

    /// Returns the object without the part that its author wrote, because there is no room for it. `why` is for the author.
    #[must_use]
    fn without_spec(self, why: &str) -> Self
    where
        Self: Sized,
    {
        let _ = why;
        self
    }

    /// Returns the object with what only an earlier view of it showed.
    #[must_use]
    fn after(self, before: &Self) -> Self
    where
        Self: Sized,
    {
        let _ = before;
        self
    }
}

/// The view of an object in a cache.
#[derive(Debug)]
pub enum CachedView<O> {
    /// The newest view, or `None` if no such object exists. It is not older than the host's last write.
    Certain(Option<Arc<O>>),
    /// The view may be older than the host's last write, so the host must read the object.
    Uncertain,
}

impl<O> CachedView<O> {
    /// Returns true if the host must read the object.
    pub fn is_uncertain(&self) -> bool {
        matches!(self, Self::Uncertain)
    }
}

/// The change that an object made to a cache.
#[derive(Debug)]
pub enum CacheChange<O> {
    /// The object was older than the cached one, or is deleted.
    Older,
    /// The object is the first with its key, or a newer version.
    Newer,
    /// The object took the place of another object, which had its key.
    InPlaceOf(Arc<O>),
}

/// The objects of one kind.
#[derive(Debug)]
pub struct ObjectCache<O> {
    objects: HashMap<ObjectKey, Arc<O>>,
    by_uid: HashMap<String, ObjectKey>,
    by_owner: HashMap<String, BTreeSet<ObjectKey>>,
    gone: HashSet<String>,
    tombstones: VecDeque<String>,
    /// The versions that the next view must exceed.
    uncertain: HashMap<ObjectKey, u64>,
    dirty: BTreeSet<ObjectKey>,
    shares: NamespaceShares,
}

impl<O> Default for ObjectCache<O> {
    fn default() -> Self {
        Self {
            objects: HashMap::new(),
            by_uid: HashMap::new(),
            by_owner: HashMap::new(),
            gone: HashSet::new(),
            tombstones: VecDeque::new(),
            uncertain: HashMap::new(),
            dirty: BTreeSet::new(),
            shares: NamespaceShares::default(),
        }
    }
}

/// Returns an item of a list as far as there is room for it beside the items that were listed before.
pub fn fitting<O: CachedObject>(item: O, listed: &mut NamespaceShares) -> O {
    admitted(item, listed, None)
}

/// Counts an object in place of its earlier view. Leaves out the part that the author wrote if there is no room.
fn admitted<O: CachedObject>(object: O, shares: &mut NamespaceShares, before: Option<&O>) -> O {
    let namespace = object.key().namespace.unwrap_or_default();
    let was = before.map_or(0, O::bytes);
    if object.is_admitted(before.filter(|before| before.uid() == object.uid())) {
        shares.count(&namespace, was, object.bytes());
        return object;
    }
    match shares.admit(&namespace, was, object.bytes()) {
        Ok(()) => object,
        Err(why) => object.without_spec(&why),
    }
}

impl<O: CachedObject> ObjectCache<O> {
    /// Returns an empty cache whose objects count against this budget.
    pub fn within(room: &MemoryBudget) -> Self {
        Self { shares: NamespaceShares::within(room), ..Self::default() }
    }

    /// Returns the newest view of an object, unless it may be older than the host's last write.
    pub fn view(&self, key: &ObjectKey) -> CachedView<O> {
        let cached = self.objects.get(key);
        let version = cached.map_or(0, |cached| cached.version());
        match self.uncertain.get(key) {
            Some(exceeded) if version <= *exceeded => CachedView::Uncertain,
            _ => CachedView::Certain(cached.cloned()),
        }
    }

    /// Returns the newest view of an object, even if it is uncertain.
    pub fn get(&self, key: &ObjectKey) -> Option<&Arc<O>> {
        self.objects.get(key)
    }

    /// Returns the newest view of the object with this UID, even if it is uncertain.
    pub fn by_uid(&self, uid: &str) -> Option<&Arc<O>> {
        self.objects.get(self.by_uid.get(uid)?)
    }

    /// Returns the objects of an owner, by its UID, in the order of their keys.
    pub fn owned_by<'a>(&'a self, uid: &str) -> impl Iterator<Item = &'a Arc<O>> {
        self.by_owner.get(uid).into_iter().flatten().filter_map(|key| self.objects.get(key))
    }

    /// Returns all objects.
    pub fn all(&self) -> impl ExactSizeIterator<Item = &Arc<O>> {
        self.objects.values()
    }

    /// Returns true if the cache would take this view of an object.
    pub fn takes(&self, object: &O) -> bool {
        let is_older = |before: &Arc<O>| before.version() >= object.version() && object.version() > 0;
        !self.gone.contains(object.uid()) && !self.objects.get(&object.key()).is_some_and(is_older)
    }

    /// Takes a view of an object, from a list, a watch event or a reply.
    pub fn put(&mut self, object: O) -> CacheChange<O> {
        if !self.takes(&object) {
            return CacheChange::Older;
        }
        let (key, uid) = (object.key(), object.uid().to_owned());
        let before = self.objects.get(&key).cloned();
        let same = before.as_deref().filter(|before| before.uid() == uid);
        let object = match same {
            Some(same) => object.after(same),
            None => object,
        };
        let object = Arc::new(admitted(object, &mut self.shares, before.as_deref()));
        if let Some(before) = &before {
            self.unlink(&key, before);
        }
        if let Some(owner) = object.owner_uid() {
            self.by_owner.entry(owner.to_owned()).or_default().insert(key.clone());
        }
        self.by_uid.insert(uid.clone(), key.clone());
        self.dirty.insert(key.clone());
        self.objects.insert(key, object);
        self.shed();
        match before.filter(|before| before.uid() != uid) {
            // The name is free only after the deletion of the object that had it.
            Some(other) => {
                self.bury(other.uid());
                CacheChange::InPlaceOf(other)
            }
            None => CacheChange::Newer,
        }
    }

    /// Drops an object that was deleted, if its key still has this UID. Later views of the UID are ignored.
    pub fn remove(&mut self, key: &ObjectKey, uid: &str) -> Option<Arc<O>> {
        self.bury(uid);
        self.forget(key, uid)
    }

    /// Drops an object that the API server does not show now, if its key still has this UID. A later view brings it back: an API server that does not serve
    /// the kind for a moment shows no object of it.
    pub fn forget(&mut self, key: &ObjectKey, uid: &str) -> Option<Arc<O>> {
        let known = self.objects.get(key).filter(|known| known.uid() == uid).cloned()?;
        self.objects.remove(key);
        self.unlink(key, &known);
        self.shares.count(key.namespace.as_deref().unwrap_or_default(), known.bytes(), 0);
        self.uncertain.remove(key);
        self.dirty.insert(key.clone());
        self.shed();
        Some(known)
    }

    /// Returns the cached objects that a complete list at this version lacks. A newer object was made after the list.
    pub fn absent_from(&self, listed: &HashSet<String>, version: u64) -> Vec<Arc<O>> {
        let is_absent = |object: &&Arc<O>| object.version() <= version && !listed.contains(object.uid());
        self.objects.values().filter(is_absent).cloned().collect()
    }

    /// Marks an object uncertain: the next view must be newer than the cached one.
    pub fn doubt(&mut self, key: &ObjectKey) {
        let version = self.objects.get(key).map_or(0, |cached| cached.version());
        self.uncertain.insert(key.clone(), version);
    }

    /// Ends the uncertainty of a view, after a read of the object. `before` is the UID of the object that the cache had before the read. Drops that
    /// object if the answer is another one, or none, and returns it. The caller puts the answer.
    pub fn confirm(&mut self, key: &ObjectKey, before: Option<&str>, answer: Option<&O>) -> Option<Arc<O>> {
        self.uncertain.remove(key);
        let other = before.filter(|before| answer.is_none_or(|answer| answer.uid() != *before))?;
        self.forget(key, other)
    }

    /// Marks the object with this UID dirty, if the cache has it.
    pub fn mark_uid_dirty(&mut self, uid: &str) {
        self.dirty.extend(self.by_uid.get(uid).cloned());
    }

    /// Marks the object with this key dirty, if the cache has it.
    pub fn mark_dirty(&mut self, key: &ObjectKey) {
        if self.objects.contains_key(key) {
            self.dirty.insert(key.clone());
        }
    }

    /// Returns true if an object changed since the dirty keys were last taken.
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Takes the keys of the objects that changed since the last call.
    pub fn take_dirty(&mut self) -> BTreeSet<ObjectKey> {
        std::mem::take(&mut self.dirty)
    }

    /// Removes a view from the indexes.
    fn unlink(&mut self, key: &ObjectKey, known: &O) {
        self.by_uid.remove(known.uid());
        if let Some(owner) = known.owner_uid()
            && let Some(owned) = self.by_owner.get_mut(owner)
        {
            owned.remove(key);
            if owned.is_empty() {
                self.by_owner.remove(owner);
            }
        }
    }

    /// Remembers that the object with this UID is deleted.
    fn bury(&mut self, uid: &str) {
        if self.gone.insert(uid.to_owned()) {
            self.tombstones.push_back(uid.to_owned());
        }
        if self.tombstones.len() > TOMBSTONES
            && let Some(oldest) = self.tombstones.pop_front()
        {
            self.gone.remove(&oldest);
        }
    }

    /// Drops the dirty keys of deleted objects if they pile up, because no process of this host leads and takes them.
    fn shed(&mut self) {
        if self.dirty.len() > DIRTY + 2 * self.objects.len() {
            let Self { dirty, objects, .. } = self;
            dirty.retain(|key| objects.contains_key(key));
        }
    }
}

#[cfg(test)]
#[path = "object_cache_tests.rs"]
mod tests;
