//! The whole objects of some kinds, for pages that show them. Only lists and watches fill this cache, so a page costs the API server nothing.

use std::sync::Arc;

use oarlock_core::cache::object_cache::{CachedObject, ObjectCache, fitting};
use oarlock_core::object::api_object::{Kind, ObjectKey, unread};
use oarlock_core::object::memory::NamespaceShares;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;

use crate::cluster::Cluster;
use crate::transport::projection::Projection;
use crate::watch::handler::EventHandler;
use crate::watch::health::KindHealth;
use crate::watch::on_demand::OnDemand;

/// A kind of which a mirror keeps the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirroredKind {
    /// The `apiVersion`, such as `oarlock.dev/v1alpha1`.
    pub api_version: &'static str,
    /// The `kind`, such as `OpsJob`.
    pub kind: &'static str,
    /// RFC 6901 pointers of the kept fields, such as `/status`. The mirror always keeps the metadata.
    pub fields: &'static [&'static str],
    /// The RFC 6901 pointer of the UID of the owning object. Empty if no page asks for the objects of an owner.
    pub owner: &'static str,
    /// A field selector that limits the objects, such as `involvedObject.kind=JobFlow`. Empty for all objects of the kind.
    pub selector: &'static str,
}

impl MirroredKind {
    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        Kind::new(self.api_version, self.kind)
    }
}

/// An object as the API server sent it.
#[derive(Debug)]
pub struct MirroredObject {
    key: ObjectKey,
    uid: String,
    version: u64,
    owner: Option<String>,
    document: Result<Box<[u8]>, String>,
}

impl MirroredObject {
    fn read(document: &Value, of: &MirroredKind) -> Option<Self> {
        let text = |pointer: &str| document.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let key = ObjectKey { kind: of.kind(), namespace: text("/metadata/namespace"), name: text("/metadata/name")? };
        let version = text("/metadata/resourceVersion").and_then(|version| version.parse().ok()).unwrap_or(0);
        let owner = Some(of.owner).filter(|pointer| !pointer.is_empty()).and_then(text);
        let whole = match unread(document) {
            Some(why) => Err(why.to_owned()),
            None => serde_json::to_vec(document).map(Vec::into_boxed_slice).map_err(|error| error.to_string()),
        };
        Some(Self { key, uid: text("/metadata/uid")?, version, owner, document: whole })
    }

    /// Returns the UID of the object.
    #[must_use]
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Returns the name of the object.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.key.name
    }

    /// Returns the namespace of the object. Empty for an object without a namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.key.namespace.as_deref().unwrap_or_default()
    }

    /// Returns the UID of the object that owns this one.
    #[must_use]
    pub fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    /// Returns the object as JSON, with its kept fields.
    ///
    /// # Errors
    /// If the mirror has no room for the object, or could not read it. The error is a sentence for the object's owner.
    pub fn document(&self) -> Result<Value, String> {
        let text = self.document.as_ref().map_err(String::clone)?;
        serde_json::from_slice(text).map_err(|error| error.to_string())
    }
}

impl CachedObject for MirroredObject {
    fn key(&self) -> ObjectKey {
        self.key.clone()
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn owner_uid(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    fn bytes(&self) -> usize {
        self.document.as_ref().map_or(0, |document| document.len())
    }

    fn without_spec(self, why: &str) -> Self {
        Self { document: Err(why.to_owned()), ..self }
    }
}

type Caches = Vec<(&'static MirroredKind, Mutex<ObjectCache<MirroredObject>>)>;

/// The objects of some kinds. It is cheap to clone. The watches end when the last clone is dropped.
#[derive(Clone)]
pub struct Mirror {
    caches: Arc<Caches>,
    changed: Arc<Notify>,
    watches: Arc<OnDemand>,
}

impl Mirror {
    /// Watches these kinds. Call it within a tokio runtime.
    #[must_use]
    pub fn watch(cluster: &Cluster, kinds: &'static [MirroredKind]) -> Self {
        let cache = || Mutex::new(ObjectCache::within(&cluster.link.room));
        let caches: Arc<Caches> = Arc::new(kinds.iter().map(|of| (of, cache())).collect());
        let (changed, watches) = (Arc::<Notify>::default(), Arc::new(OnDemand::begin()));
        for of in kinds {
            let handler = MirrorHandler { of, caches: caches.clone(), changed: changed.clone() };
            watches.watch(&cluster.link, of.kind(), handler);
        }
        Self { caches, changed, watches }
    }

    fn cache(&self, of: &MirroredKind) -> Option<&Mutex<ObjectCache<MirroredObject>>> {
        self.caches.iter().find(|(kind, _)| *kind == of).map(|(_, cache)| cache)
    }

    /// Returns the newest view of an object. `namespace` is empty for an object without a namespace.
    #[must_use]
    pub fn get(&self, of: &MirroredKind, namespace: &str, name: &str) -> Option<Arc<MirroredObject>> {
        let namespace = Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty());
        let key = ObjectKey { kind: of.kind(), namespace, name: name.to_owned() };
        self.cache(of)?.lock().get(&key).cloned()
    }

    /// Returns the objects that the object with this UID owns, in the order of their keys.
    #[must_use]
    pub fn owned_by(&self, of: &MirroredKind, uid: &str) -> Vec<Arc<MirroredObject>> {
        self.cache(of).map(|cache| cache.lock().owned_by(uid).cloned().collect()).unwrap_or_default()
    }

    /// Returns true if the mirror has all objects of a kind: the kind was listed, or the API server does not serve it.
    #[must_use]
    pub fn is_listed(&self, of: &MirroredKind) -> bool {
        let place = self.caches.iter().position(|(kind, _)| *kind == of);
        let health = place.and_then(|place| self.watches.health().into_iter().nth(place));
        health.is_some_and(|health| health.synced && !health.unread)
    }

    /// Waits until an object may have changed. Only one task may wait.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Takes the keys of the objects that were created, changed or deleted since the last call, with the UIDs of their owners.
    #[must_use]
    pub fn take_changed(&self) -> Vec<Changed> {
        let of_cache = |(of, cache): &(&'static MirroredKind, Mutex<ObjectCache<MirroredObject>>)| {
            let (of, mut cache) = (*of, cache.lock());
            let keys = cache.take_dirty().into_iter();
            keys.map(|key| Changed { of, object: cache.get(&key).cloned(), key }).collect::<Vec<_>>()
        };
        self.caches.iter().flat_map(of_cache).collect()
    }

    /// Returns the state of each watch.
    #[must_use]
    pub fn health(&self) -> Vec<KindHealth> {
        self.watches.health()
    }
}

/// An object that was created, changed or deleted.
#[derive(Debug)]
pub struct Changed {
    /// The kind of which the object is one.
    pub of: &'static MirroredKind,
    /// The key of the object.
    pub key: ObjectKey,
    /// The newest view. `None` if the object was deleted.
    pub object: Option<Arc<MirroredObject>>,
}

/// The handler that puts the objects of one kind into a mirror.
struct MirrorHandler {
    of: &'static MirroredKind,
    caches: Arc<Caches>,
    changed: Arc<Notify>,
}

impl MirrorHandler {
    fn change(&self, change: impl FnOnce(&mut ObjectCache<MirroredObject>)) {
        if let Some((_, cache)) = self.caches.iter().find(|(of, _)| *of == self.of) {
            change(&mut cache.lock());
            self.changed.notify_one();
        }
    }
}

impl EventHandler for MirrorHandler {
    type Item = MirroredObject;

    fn projection(&self) -> Arc<Projection> {
        let fields: Vec<String> = self.of.fields.iter().map(|field| (*field).to_owned()).collect();
        Arc::new(Projection::of_parts(&fields))
    }

    fn selector(&self) -> Option<&str> {
        Some(self.of.selector).filter(|selector| !selector.is_empty())
    }

    fn pick(&self, document: Value) -> Option<MirroredObject> {
        MirroredObject::read(&document, self.of)
    }

    fn fitting(&self, item: MirroredObject, listed: &mut NamespaceShares) -> MirroredObject {
        fitting(item, listed)
    }

    fn listed(&self, items: Vec<MirroredObject>, version: u64) {
        self.change(|cache| {
            let uids = items.iter().map(|item| item.uid.clone()).collect();
            for absent in cache.absent_from(&uids, version) {
                cache.forget(&absent.key, &absent.uid);
            }
            items.into_iter().for_each(|item| drop(cache.put(item)));
        });
    }

    fn changed(&self, item: MirroredObject) {
        self.change(|cache| drop(cache.put(item)));
    }

    fn deleted(&self, item: MirroredObject) {
        self.change(|cache| drop(cache.remove(&item.key, &item.uid)));
    }
}
