//! The objects of one kind of the engine: their cache, watches and requests. Each write is sent once, and the cache takes its reply.

use std::sync::Arc;

use oarlock_core::cache::object_cache::{CachedObject as _, CachedView};
use oarlock_core::kind::plan::NewStatus;
use oarlock_core::kind::plan_kind::PlanKind;
use oarlock_core::object::api_object::{Kind, ObjectKey};
use oarlock_core::requests::reads::ReadFailed;
use oarlock_core::requests::writes::{Lane, Recorded, Stopped, Write};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::kinds::cache::{EngineCache, KindObserver};
use crate::kinds::handlers::{ChildHandler, KindHandler, projection_of};
use crate::lease::fence::Fence;
use crate::read::past_cache::{ListPick, ListSelection};
use crate::transport::shares::WriteOwner;
use crate::watch::health::KindHealth;
use crate::watch::on_demand::OnDemand;

/// The objects of one kind in a cluster. It is cheap to clone.
pub struct KindPort<K: PlanKind> {
    cluster: Cluster,
    cache: Arc<EngineCache<K>>,
    watches: Arc<OnDemand>,
}

impl<K: PlanKind> Clone for KindPort<K> {
    fn clone(&self) -> Self {
        Self { cluster: self.cluster.clone(), cache: self.cache.clone(), watches: self.watches.clone() }
    }
}

impl<K: PlanKind> KindPort<K> {
    /// Watches the objects of a kind as long as the returned value lives, and reports them to `observer`. Call it before
    /// [`Cluster::declare`].
    pub fn watch(cluster: Cluster, kind: K, observer: Arc<dyn KindObserver<K::Object>>) -> Self {
        let (objects, children) = (kind.objects().kind, kind.children());
        let cache = Arc::new(EngineCache::within(&cluster.link.room, Arc::new(kind), observer));
        let watches = Arc::new(OnDemand::begin());
        watches.watch(&cluster.link, objects, KindHandler(cache.clone()));
        if children.is_some_and(|children| children.kind == Kind::job()) {
            // OperationJobs are watched once, for all that own some.
            cluster.link.owners.add(cache.clone());
        }
        Self { cluster, cache, watches }
    }

    /// Returns the kind.
    pub fn kind(&self) -> &Arc<K> {
        self.cache.kind()
    }

    /// Returns the cache.
    pub fn cache(&self) -> &Arc<EngineCache<K>> {
        &self.cache
    }

    /// Returns the cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Waits until the API server serves the kind and all the kinds that its objects need are listed.
    pub async fn synced(&self) {
        let rest = || {
            let others = self.kind().children().filter(|children| children.kind != Kind::job());
            others.into_iter().for_each(|children| {
                self.watches.watch(&self.cluster.link, children.kind, ChildHandler(self.cache.clone()));
            });
        };
        self.watches.synced(1, rest).await;
        self.cluster.synced(&[]).await;
    }

    /// Waits until the objects of the kind are listed. The kinds of plugins may still be missing.
    pub async fn listed(&self) {
        self.watches.synced(1, || {}).await;
    }

    /// Returns the state of each watch.
    pub fn health(&self) -> Vec<KindHealth> {
        self.watches.health()
    }

    /// Reads all objects live. The watch may be late, and a term must know the locks of all objects before it gives one away.
    ///
    /// # Errors
    /// If the list fails, with the message of the API server.
    pub async fn read_all(&self) -> Result<(), ReadFailed> {
        let (link, watched) = (&self.cluster.link, self.kind().objects());
        let pick = |document: Value| {
            self.cache.observer().seen(&document);
            self.kind().read(&document)
        };
        let kept = ListPick { projection: &projection_of(&watched), pick, most: usize::MAX };
        let objects = link.all_stored(&watched.kind, ListSelection::default(), kept).await?;
        objects.into_iter().for_each(|object| self.cache.put(object));
        Ok(())
    }

    /// Reads an object live, puts it into the cache and reports it to the observer. Returns the UID of the stored object, if it exists.
    ///
    /// # Errors
    /// If the read fails, with the message of the API server.
    pub async fn read_again(&self, key: &ObjectKey) -> Result<Option<String>, ReadFailed> {
        let before = self.cache.get(key);
        let document = self.cluster.link.stored(key).await?;
        document.iter().for_each(|document| self.cache.observer().seen(document));
        let object = document.and_then(|document| self.kind().read(&document));
        let uid = object.as_ref().map(|object| object.uid().to_owned());
        self.cache.confirm(key, before.as_deref(), object);
        Ok(uid)
    }

    /// Returns the newest view of an object. Reads the object live if an earlier write of it had an unknown outcome.
    ///
    /// # Errors
    /// If the read fails, with the message of the API server.
    pub async fn certain(&self, key: &ObjectKey) -> Result<Option<Arc<K::Object>>, ReadFailed> {
        match self.cache.view(key) {
            CachedView::Certain(object) => Ok(object),
            CachedView::Uncertain => {
                self.read_again(key).await?;
                Ok(self.cache.get(key))
            }
        }
    }

    /// Stores the status of an object at the version that the plan saw. Returns the proof, with what may follow.
    ///
    /// # Errors
    /// If the status is not known to be stored. Nothing that follows may be done then.
    pub async fn persist<T>(
        &self,
        object: &K::Object,
        status: &NewStatus,
        then: T,
        fence: &Fence,
    ) -> Result<Recorded<T>, Stopped> {
        let write = Write::status(object.key(), &object.version().to_string(), &status.body);
        self.send_once(object, &write, fence).await?;
        Ok(status.confirmed(then))
    }

    /// Creates an object of the kind that no user asked for. An existing object counts as created.
    ///
    /// # Errors
    /// If it is not known that the object exists, with the reason.
    pub async fn create(&self, object: ObjectKey, body: Value, fence: &Fence) -> Result<(), Stopped> {
        let write = Write::Create { object, body, owner_uid: String::new() };
        match self.cluster.link.write(&write, Lane::Change, fence).await {
            Ok(reply) => self.take_reply(&reply),
            Err(Stopped::Conflict) => {}
            Err(stopped) => return Err(stopped),
        }
        Ok(())
    }

    /// Puts a whole document of an object into the cache, after a live read.
    pub fn take(&self, document: &Value) {
        self.kind().read(document).into_iter().for_each(|object| self.cache.put(object));
    }

    /// Sends one write for an object. The change of an object that no longer exists counts as made.
    ///
    /// # Errors
    /// If the write was not made, or if its outcome is unknown, with the reason.
    pub async fn send(&self, object: &K::Object, write: &Write, fence: &Fence) -> Result<(), Stopped> {
        match self.send_once(object, write, fence).await {
            Err(Stopped::Gone) => Ok(()),
            sent => sent,
        }
    }

    async fn send_once(&self, object: &K::Object, write: &Write, fence: &Fence) -> Result<(), Stopped> {
        let (key, target) = (object.key(), write.object());
        let is_own = target.kind == key.kind;
        let owner = match &target.namespace {
            Some(namespace) => WriteOwner::Namespace(namespace.clone()),
            None => WriteOwner::Requester(self.kind().share(object).text()),
        };
        // OperationJobs are objects of the host, as those of the kind. Other children are workloads, whose webhooks may hang.
        let is_of_host = is_own || target.kind == Kind::job();
        let lane = if is_of_host && !matches!(write, Write::Create { .. }) { Lane::Record } else { Lane::Change };
        match self.cluster.link.write_for(write, owner, lane, fence).await {
            Ok(reply) if is_own => self.take_reply(&reply),
            Ok(reply) => self.take_reply_of_child(write, &reply),
            Err(stopped) => {
                self.note_failure(write, &stopped, is_own).await;
                return Err(stopped);
            }
        }
        Ok(())
    }

    fn take_reply(&self, reply: &Value) {
        // The reply to a deletion may be a `Status`.
        let is_object = reply.get("kind").and_then(Value::as_str) == Some(self.kind().objects().kind.kind.as_str());
        let object = Some(reply).filter(|_| is_object).and_then(|reply| self.kind().read(reply));
        object.into_iter().for_each(|object| self.cache.put(object));
    }

    fn take_reply_of_child(&self, write: &Write, reply: &Value) {
        match write {
            // The reply to the deletion of an object without finalizers is a `Status`, and the object no longer exists.
            Write::Delete { object, uid, .. } if reply.get("kind").and_then(Value::as_str) == Some("Status") => {
                self.cache.child_is_absent(object, uid);
            }
            _ if !self.is_of_child(write.object()) => {}
            _ => self.kind().read_child(reply).into_iter().for_each(|child| self.cache.put_child(child)),
        }
    }

    /// Returns true if a child may have this key.
    fn is_of_child(&self, key: &ObjectKey) -> bool {
        self.kind().children().is_some_and(|children| children.kind == key.kind)
    }

    async fn note_failure(&self, write: &Write, stopped: &Stopped, is_own: bool) {
        let target = write.object();
        match stopped {
            _ if is_own && stopped.leaves_doubt() => self.cache.doubt(target),
            _ if is_own => {}
            Stopped::Gone => write.uid().into_iter().for_each(|uid| self.cache.child_is_absent(target, uid)),
            // Without a newer view, the next write would meet the same conflict.
            Stopped::Conflict if self.is_of_child(target) => {
                if let Ok(Some(document)) = self.cluster.link.stored(target).await {
                    self.kind().read_child(&document).into_iter().for_each(|child| self.cache.put_child(child));
                }
            }
            _ => {}
        }
    }
}
