//! The requests of OpsJobs: each is sent once, and what it shows goes into the cache.

use std::sync::Arc;

use oarlock_core::child::fields::{number, text};
use oarlock_core::cluster::object::{Kind, ObjectKey};
use oarlock_core::cluster::scripts;
use oarlock_core::cluster::task_pod::JOB_UID;
use oarlock_core::cluster::writes::{Stopped, Write};
use oarlock_core::job::key::JobKey;
use oarlock_core::ops_job::child::{OPS_KIND, ops_key, ops_kind};
use oarlock_core::ops_job::outcomes::Outcomes;
use oarlock_core::ops_job::plan::Effect;
use oarlock_core::ops_job::spec::Defaults;
use oarlock_core::ops_job::stored::StoredOps;
use oarlock_core::ops_job::targets::Resolved;
use oarlock_core::ops_job::view::{OpsChild, OpsJobView};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::lease::Fence;
use crate::ops::OpsTap;
use crate::ops::cache::OpsCache;
use crate::ops::sinks::{JobSink, read_child};
use crate::past_cache::{Picked, ReadFailed, Selected};
use crate::transport::shares::WriteOwner;
use crate::watch::health::KindHealth;
use crate::watch::on_demand::OnDemand;
use crate::watch::projection::Projection;
use crate::watch::reflector::ItemSink as _;

/// The OpsJobs of a cluster: their cache, watches and requests. Cheap to clone.
#[derive(Clone)]
pub struct Ops {
    pub(super) cluster: Cluster,
    sink: JobSink,
    watches: Arc<OnDemand>,
}

/// The child of a job.
fn child_key(job: &OpsJobView) -> ObjectKey {
    JobKey { namespace: job.child_namespace().to_owned(), name: job.name.clone() }.object()
}

impl Ops {
    /// Watches OpsJobs from now on, as long as it lives, and tells of them. To be made before the cluster is told what to watch.
    pub fn watch(cluster: Cluster, defaults: Defaults, tap: Arc<dyn OpsTap>) -> Self {
        let (cache, watches) = (Arc::new(OpsCache::within(&cluster.link.room)), Arc::new(OnDemand::begin()));
        // Another one of this cluster would see no children.
        let _only = cluster.link.parents.ops.set(cache.clone());
        let sink = JobSink { cache, defaults, tap };
        watches.watch(&cluster.link, ops_kind(), sink.clone());
        Self { cluster, sink, watches }
    }

    /// What is known.
    pub fn cache(&self) -> &Arc<OpsCache> {
        &self.sink.cache
    }

    /// Takes a job as the API server has just told it.
    pub fn take(&self, job: &Value) {
        self.read(job).into_iter().for_each(|job| self.cache().put_job(job));
    }

    /// What a host has for jobs that do not say it.
    pub fn defaults(&self) -> Defaults {
        self.sink.defaults
    }

    fn read(&self, job: &Value) -> Option<StoredOps> {
        StoredOps::read(job, self.defaults())
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Resolves once OpsJobs are served and everything that they need was listed.
    pub async fn synced(&self) {
        self.watches.synced(1, || {}).await;
        self.cluster.synced(&[]).await;
    }

    /// The state of each watch.
    pub fn health(&self) -> Vec<KindHealth> {
        self.watches.health()
    }

    /// Checks that all jobs were listed, so that the cache has them.
    ///
    /// # Errors
    /// Says what the list waits for.
    pub fn is_listed(&self) -> Result<(), String> {
        match self.health().into_iter().find(|health| !health.synced || !health.served) {
            None => Ok(()),
            Some(KindHealth { synced: true, .. }) => {
                Err("the API server does not serve OpsJobs: a cluster admin applies `oarlock manifests --ops`"
                    .to_owned())
            }
            Some(KindHealth { error, .. }) => {
                let why = error.unwrap_or_else(|| "the API server has not answered yet".to_owned());
                Err(format!("the OpsJobs are not listed: {why}"))
            }
        }
    }

    /// Reads all jobs past the cache: a watch may be late, and who has which target must be known before another gets one.
    ///
    /// # Errors
    /// The API server's sentence.
    pub async fn read_all(&self) -> Result<(), ReadFailed> {
        let sink = &self.sink;
        let jobs = self.list(ops_kind(), Selected::default(), &sink.projection(), |item| sink.pick(item)).await?;
        jobs.into_iter().for_each(|job| self.cache().put_job(job));
        Ok(())
    }

    /// The UIDs of all jobs that are stored, past the cache.
    ///
    /// # Errors
    /// The API server's sentence, also where it does not serve their kind.
    pub async fn stored_uids(&self) -> Result<Vec<String>, ReadFailed> {
        let uid = |document: Value| text(&document, "/metadata/uid").map(str::to_owned);
        self.list(ops_kind(), Selected::default(), &Projection::of_parts(&[]), uid).await
    }

    /// Reads a job past the cache and tells of it.
    ///
    /// # Errors
    /// The API server's sentence.
    pub async fn read_again(&self, name: &str) -> Result<(), ReadFailed> {
        let document = self.cluster.link.stored(&ops_key(name)).await?;
        let job = document.and_then(|document| self.sink.pick(document));
        job.into_iter().for_each(|job| self.cache().put_job(job));
        Ok(())
    }

    pub(super) async fn list<T>(
        &self,
        kind: Kind,
        selected: Selected<'_>,
        projection: &Projection,
        pick: impl Fn(Value) -> Option<T>,
    ) -> Result<Vec<T>, ReadFailed> {
        let link = &self.cluster.link;
        link.all_stored(&link.transport, &kind, selected, Picked { projection, pick, most: usize::MAX }).await
    }

    /// Reads a job past the cache. False where there is none of this UID.
    ///
    /// # Errors
    /// The API server's sentence.
    pub async fn read_job(&self, name: &str, uid: &str) -> Result<bool, ReadFailed> {
        let document = self.cluster.link.stored(&ops_key(name)).await?;
        let job = document.and_then(|document| self.read(&document));
        let Some(job) = job.filter(|job| job.view.uid == uid) else { return Ok(false) };
        self.cache().put_job(job);
        Ok(true)
    }

    /// Reads the child of a job past the cache, where it is there.
    ///
    /// # Errors
    /// The API server's sentence.
    pub async fn read_child(&self, job: &StoredOps) -> Result<(), ReadFailed> {
        let stored = self.cluster.link.stored(&child_key(&job.view)).await?;
        let child = stored.as_ref().and_then(read_child).filter(|(owner, _)| *owner == job.view.uid);
        child.into_iter().for_each(|(owner, child)| self.cache().put_child(owner, child));
        Ok(())
    }

    /// What became of the targets of a child, as it is stored, with its OperationRecords; `None` where it is gone.
    ///
    /// # Errors
    /// The API server's sentence.
    pub async fn read_outcomes(&self, job: &StoredOps, child: &OpsChild) -> Result<Option<Outcomes>, ReadFailed> {
        let document = self.cluster.link.stored(&child_key(&job.view)).await?;
        let is_it = |document: &Value| text(document, "/metadata/uid") == Some(&child.uid);
        let Some(document) = document.filter(is_it) else {
            self.cache().drop_child(&job.view.uid, child);
            return Ok(None);
        };
        // It is newer than what a watch has shown.
        read_child(&document).into_iter().for_each(|(owner, child)| self.cache().put_child(owner, child));
        if number(&document, "/status/records/count").unwrap_or(0) <= 0 {
            return Ok(Some(Outcomes::read(&document, &[])));
        }
        let labels = format!("{JOB_UID}={}", child.uid);
        let of_child = Selected { namespace: Some(job.view.child_namespace()), labels: Some(&labels), fields: None };
        let records = self.list(Kind::record(), of_child, &Projection::everything(), Some).await?;
        Ok(Some(Outcomes::read(&document, &records)))
    }

    /// Replaces the status of a job, at the version that was seen.
    ///
    /// # Errors
    /// The reason why it is not known to be written.
    pub async fn write_status(&self, job: &StoredOps, status: &Value, fence: &Fence) -> Result<(), Stopped> {
        let write = Write::status(ops_key(&job.view.name), &job.view.version, status);
        self.replied(&self.cluster.link.write_for(&write, owner(job), fence).await?);
        Ok(())
    }

    /// Makes an effect. What is gone already counts as made.
    ///
    /// # Errors
    /// The reason why it is not known to be made.
    pub async fn make(
        &self,
        effect: &Effect,
        job: &StoredOps,
        child: Option<&OpsChild>,
        fence: &Fence,
    ) -> Result<(), Stopped> {
        if *effect == Effect::UnpauseChild {
            self.is_as_seen(job).await?;
        }
        if let Effect::StoreScript(text) = effect {
            let write = scripts::create(text, &self.cluster.tasks().namespace, &job.view.uid);
            return self.cluster.link.write(&write, fence).await.map(drop);
        }
        let Some(write) = write_of(effect, job, child) else { return Ok(()) };
        let is_own = write.object().kind == ops_kind();
        let gone = || child.into_iter().for_each(|child| self.cache().drop_child(&job.view.uid, child));
        let owner = if is_own { owner(job) } else { WriteOwner::of_object(write.object()) };
        match self.cluster.link.write_for(&write, owner, fence).await {
            Ok(reply) if is_own => self.replied(&reply),
            // In reply to a deletion, a child that holds nothing is a Status, and gone.
            Ok(reply) if *effect == Effect::DeleteChild && reply.get("kind") == Some(&json!("Status")) => gone(),
            Ok(reply) => read_child(&reply).into_iter().for_each(|(owner, child)| self.cache().put_child(owner, child)),
            Err(Stopped::Gone) if !is_own => gone(),
            Err(Stopped::Gone) => {}
            Err(stopped) => {
                // Without a newer view it would meet the same conflict again.
                if stopped == Stopped::Conflict && !is_own {
                    let _ = self.read_child(job).await;
                }
                return Err(stopped);
            }
        }
        Ok(())
    }

    /// Somebody may have stopped a job a moment ago.
    async fn is_as_seen(&self, job: &StoredOps) -> Result<(), Stopped> {
        let unknown = |failed: ReadFailed| Stopped::Unknown { message: failed.message };
        let document = self.cluster.link.stored(&ops_key(&job.view.name)).await.map_err(unknown)?;
        let stored = document.and_then(|document| self.read(&document));
        let stored = stored.filter(|stored| stored.view.uid == job.view.uid).ok_or(Stopped::Gone)?;
        let is_stopped = stored.view.deleting || stored.view.stops;
        self.cache().put_job(stored);
        if is_stopped { Err(Stopped::Conflict) } else { Ok(()) }
    }

    fn replied(&self, reply: &Value) {
        // The reply to a deletion may be a Status.
        let is_job = reply.get("kind").and_then(Value::as_str) == Some(OPS_KIND);
        let job = self.read(reply).filter(|_| is_job);
        job.into_iter().for_each(|job| self.cache().put_job(job));
    }
}

/// Returns the payer for the writes of a job: its requester.
fn owner(job: &StoredOps) -> WriteOwner {
    WriteOwner::Requester(job.share())
}

/// The request of an effect; none where there is nothing to do any more.
fn write_of(effect: &Effect, job: &StoredOps, child: Option<&OpsChild>) -> Option<Write> {
    let of_child = child_key(&job.view);
    let paused = |paused: bool| {
        let uid = &child?.uid;
        Some(Write::patch(&of_child, json!({"metadata": {"uid": uid}, "spec": {"paused": paused}})))
    };
    match effect {
        Effect::AddFinalizers(names) => Some(own_patch(
            job,
            &match job.finalizers {
                None => json!([{"op": "add", "path": "/metadata/finalizers", "value": names}]),
                Some(_) => {
                    let add = |name| json!({"op": "add", "path": "/metadata/finalizers/-", "value": name});
                    names.iter().map(add).collect()
                }
            },
        )),
        Effect::StoreTargets(resolved, workspace) => {
            Some(own_patch(job, &stored_targets(resolved, workspace.as_deref())))
        }
        Effect::CreateChild(body) => {
            let (body, owner_uid) = (body.clone(), job.view.uid.clone());
            Some(Write::Create { object: of_child.clone(), body, owner_uid })
        }
        Effect::StoreScript(_) => None,
        Effect::UnpauseChild => paused(false),
        Effect::PauseChild => paused(true),
        Effect::DeleteChild => {
            let OpsChild { uid, version, .. } = child?;
            Some(Write::delete(of_child.clone(), uid, Some(version.to_string())))
        }
        Effect::DropFinalizer(name) => {
            let place = job.finalizers?.place(name)?;
            Some(own_patch(job, &json!([{"op": "remove", "path": format!("/metadata/finalizers/{place}")}])))
        }
        Effect::DeleteSelf => {
            Some(Write::delete(ops_key(&job.view.name), &job.view.uid, Some(job.view.version.clone())))
        }
    }
}

/// A patch of a job as it was seen.
fn own_patch(job: &StoredOps, changes: &Value) -> Write {
    let test = json!({"op": "test", "path": "/metadata/resourceVersion", "value": job.view.version});
    let changes = changes.as_array().into_iter().flatten().cloned();
    Write::patch(&ops_key(&job.view.name), std::iter::once(test).chain(changes).collect())
}

fn stored_targets(resolved: &Resolved, workspace: Option<&str>) -> Value {
    let mut changes = Vec::new();
    for (field, value) in resolved.fields(workspace) {
        changes.push(json!({"op": "add", "path": format!("/spec/{field}"), "value": value}));
    }
    Value::Array(changes)
}
