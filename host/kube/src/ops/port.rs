//! The requests of OpsJobs: each is sent once, and what it shows goes into the cache.

use std::sync::Arc;

use oarlock_core::cluster::object::{Kind, ObjectKey};
use oarlock_core::cluster::task_pod::JOB_UID;
use oarlock_core::cluster::writes::{Stopped, Write};
use oarlock_core::ops_job::child::{API_VERSION, OPS_KIND, OPS_NAMESPACE};
use oarlock_core::ops_job::outcomes::{TargetOutcome, outcomes};
use oarlock_core::ops_job::plan::{Effect, FINALIZER};
use oarlock_core::ops_job::spec::Defaults;
use oarlock_core::ops_job::stored::StoredOps;
use oarlock_core::ops_job::targets::Resolved;
use oarlock_core::ops_job::view::OpsChild;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::flows::ReadFailed;
use crate::flows::writes::{delete, status_patch};
use crate::lease::Fence;
use crate::ops::cache::OpsCache;
use crate::ops::sinks::{ChildSink, JobSink, NodeSink, read_child};
use crate::outcome::{asked_to_wait, sentence};
use crate::transport::list::{Collection, ListError};
use crate::watch::health::KindHealth;
use crate::watch::on_demand::OnDemand;
use crate::watch::projection::Projection;
use crate::watch::reflector::ItemSink as _;

/// The OpsJobs of a cluster: their cache, watches and requests. Cheap to clone.
#[derive(Clone)]
pub struct Ops {
    pub(super) cluster: Cluster,
    cache: Arc<OpsCache>,
    watches: Arc<OnDemand>,
    defaults: Defaults,
}

/// The kind OpsJob.
pub(super) fn kind() -> Kind {
    Kind::new(API_VERSION, OPS_KIND)
}

fn key(name: &str) -> ObjectKey {
    ObjectKey { kind: kind(), namespace: None, name: name.to_owned() }
}

/// The child of a job.
pub(super) fn child_key(name: &str) -> ObjectKey {
    ObjectKey { kind: Kind::job(), namespace: Some(OPS_NAMESPACE.to_owned()), name: name.to_owned() }
}

impl Ops {
    /// Watches OpsJobs from now on, as long as it lives.
    pub fn watch(cluster: Cluster, defaults: Defaults) -> Self {
        let (cache, watches) = (Arc::new(OpsCache::default()), Arc::new(OnDemand::begin()));
        watches.watch(&cluster.link, kind(), JobSink(cache.clone(), defaults));
        Self { cluster, cache, watches, defaults }
    }

    /// What is known.
    pub fn cache(&self) -> &Arc<OpsCache> {
        &self.cache
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Resolves once OpsJobs are served and everything that they need was listed.
    pub async fn synced(&self) {
        let rest = || {
            self.watches.watch(&self.cluster.link, Kind::job(), ChildSink(self.cache.clone()));
            self.watches.watch(&self.cluster.link, Kind::node(), NodeSink(self.cache.clone()));
        };
        self.watches.synced((1, 1), rest).await;
    }

    /// The state of each watch. Those of OperationJobs and nodes begin once somebody leads and OpsJobs are served.
    pub fn health(&self) -> Vec<KindHealth> {
        self.watches.health()
    }

    /// Reads all jobs past the cache: a watch may be late, and who has which target must be known before another gets one.
    ///
    /// # Errors
    /// The API server's sentence.
    pub async fn read_all(&self) -> Result<(), ReadFailed> {
        let (link, sink) = (&self.cluster.link, JobSink(self.cache.clone(), self.defaults));
        let failed = |message| ReadFailed { message, is_refused: false, retry_after: None };
        let resource = link.discovery.resource(&link.transport, &kind()).await;
        let resource = resource.map_err(|error| failed(sentence(&error)))?;
        let from = Collection { resource: &resource, namespace: None, labels: None, fields: None };
        let listed = link.transport.list(from, &sink.projection(), |item| sink.pick(item)).await;
        let listed = listed.map_err(|error: ListError| failed(sentence(&error)))?;
        listed.items.into_iter().for_each(|job| self.cache.put_job(job));
        Ok(())
    }

    /// Reads the child of a job past the cache. True where it is there.
    ///
    /// # Errors
    /// The API server's sentence.
    pub async fn read_child(&self, job: &StoredOps) -> Result<bool, ReadFailed> {
        let Some(document) = self.read(&child_key(&job.view.name)).await? else { return Ok(false) };
        let child = read_child(&document).filter(|(owner, _)| *owner == job.view.uid);
        let is_there = child.is_some();
        child.into_iter().for_each(|child| self.cache.put_child(child));
        Ok(is_there)
    }

    /// What became of the targets of a child, as it is stored, with its OperationRecords.
    ///
    /// # Errors
    /// The API server's sentence.
    pub async fn read_outcomes(&self, job: &StoredOps, child: &OpsChild) -> Result<Vec<TargetOutcome>, ReadFailed> {
        let link = &self.cluster.link;
        let failed = |message| ReadFailed { message, is_refused: false, retry_after: None };
        let document = self.read(&child_key(&job.view.name)).await?.unwrap_or_default();
        let has_records =
            document.pointer("/status/records/count").and_then(Value::as_u64).is_some_and(|count| count > 0);
        if !has_records {
            return Ok(outcomes(&document, &[]));
        }
        let resource = link.discovery.resource(&link.transport, &Kind::record()).await;
        let resource = resource.map_err(|error| failed(sentence(&error)))?;
        let labels = format!("{JOB_UID}={}", child.uid);
        let namespace = Some(OPS_NAMESPACE);
        let from = Collection { resource: &resource, namespace, labels: Some(&labels), fields: None };
        let listed = link.transport.list(from, &Projection::everything(), Some).await;
        let records = listed.map_err(|error: ListError| failed(sentence(&error)))?.items;
        Ok(outcomes(&document, &records))
    }

    /// An object as it is stored, where it is.
    pub(super) async fn read(&self, object: &ObjectKey) -> Result<Option<Value>, ReadFailed> {
        let what = format!("failed to read {} {}", object.kind.kind, object.name);
        let failed = |message: String, retry_after| ReadFailed {
            message: format!("{what}: {message}"),
            is_refused: false,
            retry_after,
        };
        match self.cluster.link.read(object).await.map_err(|error| failed(error.message, None))? {
            Ok(document) => Ok(Some(document)),
            Err(error) if error.is(404) => Ok(None),
            Err(error) => Err(failed(sentence(&error), asked_to_wait(&error))),
        }
    }

    /// Replaces the status of a job, at the version that was seen.
    ///
    /// # Errors
    /// The reason why it is not known to be written.
    pub async fn write_status(&self, job: &StoredOps, status: &Value, fence: &Fence) -> Result<(), Stopped> {
        let write = status_patch(key(&job.view.name), &job.view.version, status);
        self.replied(&self.cluster.link.write(&write, fence).await?);
        Ok(())
    }

    /// Makes an effect. What is gone already counts as made.
    ///
    /// # Errors
    /// The reason why it is not known to be made.
    pub async fn make(
        &self,
        effect: &Effect,
        on: (&StoredOps, Option<&OpsChild>),
        fence: &Fence,
    ) -> Result<(), Stopped> {
        let (job, child) = on;
        if *effect == Effect::UnpauseChild {
            self.is_as_seen(job).await?;
        }
        let Some(write) = write_of(effect, job, child) else { return Ok(()) };
        let is_own = write.object().kind == kind();
        let gone = || child.into_iter().for_each(|child| self.cache.drop_child(&(job.view.uid.clone(), child.clone())));
        match self.cluster.link.write(&write, fence).await {
            Ok(reply) if is_own => self.replied(&reply),
            // In reply to a deletion, a child that holds nothing is a Status, and gone.
            Ok(reply) if *effect == Effect::DeleteChild && reply.get("kind") == Some(&json!("Status")) => gone(),
            Ok(reply) => read_child(&reply).into_iter().for_each(|child| self.cache.put_child(child)),
            Err(Stopped::Gone) if !is_own => gone(),
            Err(Stopped::Gone) => {}
            Err(stopped) => return Err(stopped),
        }
        Ok(())
    }

    /// Somebody may have stopped a job a moment ago.
    async fn is_as_seen(&self, job: &StoredOps) -> Result<(), Stopped> {
        let unknown = |failed: ReadFailed| Stopped::Unknown { message: failed.message };
        let document = self.read(&key(&job.view.name)).await.map_err(unknown)?;
        let stored = document.and_then(|document| StoredOps::read(&document, self.defaults));
        let stored = stored.filter(|stored| stored.view.uid == job.view.uid).ok_or(Stopped::Gone)?;
        let stops = |job: &StoredOps| job.view.deleting || job.spec.as_ref().is_ok_and(|spec| spec.stops);
        let is_stopped = stops(&stored);
        self.cache.put_job(stored);
        if is_stopped { Err(Stopped::Conflict) } else { Ok(()) }
    }

    fn replied(&self, reply: &Value) {
        // The reply to a deletion may be a Status.
        let is_job = reply.get("kind").and_then(Value::as_str) == Some(OPS_KIND);
        let job = StoredOps::read(reply, self.defaults).filter(|_| is_job);
        job.into_iter().for_each(|job| self.cache.put_job(job));
    }
}

/// The request of an effect; none where there is nothing to do any more.
fn write_of(effect: &Effect, job: &StoredOps, child: Option<&OpsChild>) -> Option<Write> {
    let of_child = child_key(&job.view.name);
    let paused = |paused: bool| {
        let uid = &child?.uid;
        Some(Write::patch(&of_child, json!({"metadata": {"uid": uid}, "spec": {"paused": paused}})))
    };
    match effect {
        Effect::AddFinalizer => Some(own_patch(
            job,
            &match job.finalizers {
                None => json!([{"op": "add", "path": "/metadata/finalizers", "value": [FINALIZER]}]),
                Some(_) => json!([{"op": "add", "path": "/metadata/finalizers/-", "value": FINALIZER}]),
            },
        )),
        Effect::StoreTargets(resolved) => Some(own_patch(job, &stored_targets(resolved))),
        Effect::CreateChild(body) => {
            let (body, owner_uid) = (body.clone(), job.view.uid.clone());
            Some(Write::Create { object: of_child.clone(), body, owner_uid })
        }
        Effect::UnpauseChild => paused(false),
        Effect::PauseChild => paused(true),
        Effect::DeleteChild => {
            let OpsChild { uid, version, .. } = child?;
            Some(delete(of_child.clone(), uid, Some(version.to_string())))
        }
        Effect::DropFinalizer => {
            let place = job.finalizers.flatten()?;
            Some(own_patch(job, &json!([{"op": "remove", "path": format!("/metadata/finalizers/{place}")}])))
        }
        Effect::DeleteSelf => Some(delete(key(&job.view.name), &job.view.uid, Some(job.view.version.clone()))),
    }
}

/// A patch of a job as it was seen.
fn own_patch(job: &StoredOps, changes: &Value) -> Write {
    let test = json!({"op": "test", "path": "/metadata/resourceVersion", "value": job.view.version});
    let changes = changes.as_array().into_iter().flatten().cloned();
    Write::patch(&key(&job.view.name), std::iter::once(test).chain(changes).collect())
}

fn stored_targets(resolved: &Resolved) -> Value {
    let targets: Vec<Value> = resolved.targets.iter().map(|(name, uid)| json!({"name": name, "uid": uid})).collect();
    let skipped = resolved.skipped.iter();
    let skipped: Vec<Value> =
        skipped.map(|skipped| json!({"node": skipped.node, "reason": format!("{:?}", skipped.reason)})).collect();
    json!([
        {"op": "add", "path": "/spec/targets", "value": targets},
        {"op": "add", "path": "/spec/skipped", "value": skipped},
    ])
}
