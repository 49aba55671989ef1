//! The requests of OpsJobs. Each request is sent once, and the cache takes its reply.

use std::sync::Arc;

use oarlock_core::cache::object_cache::View;
use oarlock_core::object::api_object::Kind;
use oarlock_core::object::fields::text;
use oarlock_core::ops_job::names::{OPS_KIND, ops_key, ops_kind};
use oarlock_core::ops_job::outcomes::{Outcomes, stored_outcomes};
use oarlock_core::ops_job::plan::Effect;
use oarlock_core::ops_job::spec::Defaults;
use oarlock_core::ops_job::stored::StoredOps;
use oarlock_core::ops_job::targets::Resolved;
use oarlock_core::ops_job::view::OpsChild;
use oarlock_core::requests::reads::ReadFailed;
use oarlock_core::requests::scripts;
use oarlock_core::requests::writes::{Stopped, Write};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::lease::fence::Fence;
use crate::ops::OpsJobObserver;
use crate::ops::cache::OpsCache;
use crate::ops::handlers::{OpsJobHandler, read_child};
use crate::read::past_cache::{ListPick, ListSelection};
use crate::transport::projection::Projection;
use crate::transport::shares::WriteOwner;
use crate::watch::handler::EventHandler as _;
use crate::watch::health::KindHealth;
use crate::watch::on_demand::OnDemand;

/// The OpsJobs of a cluster: their cache, watches and requests. It is cheap to clone.
#[derive(Clone)]
pub struct Ops {
    cluster: Cluster,
    handler: OpsJobHandler,
    watches: Arc<OnDemand>,
}

impl Ops {
    /// Watches OpsJobs as long as the returned value lives, and reports them to `observer`. Call it before [`Cluster::declare`].
    pub fn watch(cluster: Cluster, defaults: Defaults, observer: Arc<dyn OpsJobObserver>) -> Self {
        let (cache, watches) = (Arc::new(OpsCache::within(&cluster.link.room)), Arc::new(OnDemand::begin()));
        // A second `Ops` of this cluster would not see children.
        let _only = cluster.link.parents.ops.set(cache.clone());
        let handler = OpsJobHandler { cache, defaults, observer };
        watches.watch(&cluster.link, ops_kind(), handler.clone());
        Self { cluster, handler, watches }
    }

    /// Returns the cache.
    pub fn cache(&self) -> &Arc<OpsCache> {
        &self.handler.cache
    }

    /// Puts a job from a reply of the API server into the cache.
    pub fn take(&self, job: &Value) {
        self.read(job).into_iter().for_each(|job| self.cache().put_job(job));
    }

    /// Returns the defaults of the host for jobs that do not set a value.
    pub fn defaults(&self) -> Defaults {
        self.handler.defaults
    }

    fn read(&self, job: &Value) -> Option<StoredOps> {
        StoredOps::read(job, self.defaults())
    }

    /// Returns the cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Waits until the API server serves OpsJobs and all the kinds that they need are listed.
    pub async fn synced(&self) {
        self.watches.synced(1, || {}).await;
        self.cluster.synced(&[]).await;
    }

    /// Returns the state of each watch.
    pub fn health(&self) -> Vec<KindHealth> {
        self.watches.health()
    }

    /// Checks that all jobs are listed, so that the cache has them.
    ///
    /// # Errors
    /// If the jobs are not listed yet, with the reason.
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

    /// Reads all jobs live. The watch may be late, and the host must know which job has which target before another job gets a target.
    ///
    /// # Errors
    /// If the list fails, with the message of the API server.
    pub async fn read_all(&self) -> Result<(), ReadFailed> {
        let handler = &self.handler;
        let jobs =
            self.list(ops_kind(), ListSelection::default(), &handler.projection(), |item| handler.pick(item)).await?;
        jobs.into_iter().for_each(|job| self.cache().put_job(job));
        Ok(())
    }

    /// Returns the UIDs of all stored jobs from a live read.
    ///
    /// # Errors
    /// If the list fails or the API server does not serve OpsJobs, with its message.
    pub async fn stored_uids(&self) -> Result<Vec<String>, ReadFailed> {
        let uid = |document: Value| text(&document, "/metadata/uid").map(str::to_owned);
        self.list(ops_kind(), ListSelection::default(), &Projection::of_parts(&[]), uid).await
    }

    /// Reads a job live, puts it into the cache and reports it to the observer.
    ///
    /// # Errors
    /// If the read fails, with the message of the API server.
    pub async fn read_again(&self, name: &str) -> Result<(), ReadFailed> {
        let document = self.cluster.link.stored(&ops_key(name)).await?;
        let job = document.and_then(|document| self.handler.pick(document));
        job.into_iter().for_each(|job| self.cache().put_job(job));
        Ok(())
    }

    async fn list<T>(
        &self,
        kind: Kind,
        selected: ListSelection<'_>,
        projection: &Projection,
        pick: impl Fn(Value) -> Option<T>,
    ) -> Result<Vec<T>, ReadFailed> {
        let link = &self.cluster.link;
        link.all_stored(&kind, selected, ListPick { projection, pick, most: usize::MAX }).await
    }

    /// Returns the newest view of a job. Reads the job live if an earlier write of it had an unknown outcome.
    ///
    /// # Errors
    /// If the read fails, with the message of the API server.
    pub async fn certain_job(&self, name: &str) -> Result<Option<Arc<StoredOps>>, ReadFailed> {
        if let View::Certain(job) = self.cache().view(name) {
            return Ok(job);
        }
        let before = self.cache().job(name);
        let document = self.cluster.link.stored(&ops_key(name)).await?;
        self.cache().confirm_job(name, before.as_deref(), document.and_then(|document| self.read(&document)));
        Ok(self.cache().job(name))
    }

    /// Marks the view of a job uncertain if a write of it stopped so that the API server may have another version.
    fn doubt(&self, job: &StoredOps, stopped: &Stopped) {
        if matches!(stopped, Stopped::Gone | Stopped::Conflict | Stopped::Unknown { .. }) {
            self.cache().doubt_job(&job.view.name);
        }
    }

    /// Reads a job live. Returns false if no job has this name and UID.
    ///
    /// # Errors
    /// If the read fails, with the message of the API server.
    pub async fn read_job(&self, name: &str, uid: &str) -> Result<bool, ReadFailed> {
        let document = self.cluster.link.stored(&ops_key(name)).await?;
        let job = document.and_then(|document| self.read(&document));
        let Some(job) = job.filter(|job| job.view.uid == uid) else { return Ok(false) };
        self.cache().put_job(job);
        Ok(true)
    }

    /// Reads the child of a job live, if the child exists.
    ///
    /// # Errors
    /// If the read fails, with the message of the API server.
    pub async fn read_child(&self, job: &StoredOps) -> Result<(), ReadFailed> {
        let stored = self.cluster.link.stored(&job.view.child_key()).await?;
        let child = stored.as_ref().and_then(read_child).filter(|child| child.owner_uid == job.view.uid);
        child.into_iter().for_each(|child| self.cache().put_child(child));
        Ok(())
    }

    /// Reads the outcomes of the targets of a child from the stored child and its OperationRecords. Returns `None` if the child no longer
    /// exists.
    ///
    /// # Errors
    /// If a read fails, with the message of the API server.
    pub async fn read_outcomes(&self, job: &StoredOps, child: &OpsChild) -> Result<Option<Outcomes>, ReadFailed> {
        let found = self.cluster.ask(|answers| stored_outcomes(&job.view, &child.uid, answers)).await?;
        let Some((document, outcomes)) = found else {
            self.cache().drop_child(child);
            return Ok(None);
        };
        // The stored child is newer than the child that the watch has shown.
        read_child(&document).into_iter().for_each(|child| self.cache().put_child(child));
        Ok(Some(outcomes))
    }

    /// Replaces the status of a job at the version that the host saw.
    ///
    /// # Errors
    /// If it is unknown whether the status was written, with the reason.
    pub async fn write_status(&self, job: &StoredOps, status: &Value, fence: &Fence) -> Result<(), Stopped> {
        let write = Write::status(ops_key(&job.view.name), &job.view.version, status);
        let written = self.cluster.link.write_for(&write, owner(job), fence).await;
        self.replied(&written.inspect_err(|stopped| self.doubt(job, stopped))?);
        Ok(())
    }

    /// Makes an effect. An effect on an object that no longer exists counts as made.
    ///
    /// # Errors
    /// If it is unknown whether the effect was made, with the reason.
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
        let gone = || child.into_iter().for_each(|child| self.cache().drop_child(child));
        let owner = if is_own { owner(job) } else { WriteOwner::of_object(write.object()) };
        match self.cluster.link.write_for(&write, owner, fence).await {
            Ok(reply) if is_own => self.replied(&reply),
            // The reply to the deletion of a child without finalizers is a `Status`, and the child no longer exists.
            Ok(reply) if *effect == Effect::DeleteChild && reply.get("kind") == Some(&json!("Status")) => gone(),
            Ok(reply) => read_child(&reply).into_iter().for_each(|child| self.cache().put_child(child)),
            Err(Stopped::Gone) if !is_own => gone(),
            Err(stopped) => {
                if is_own {
                    self.doubt(job, &stopped);
                } else if stopped == Stopped::Conflict {
                    // Without a newer view, the next write would meet the same conflict.
                    let _ = self.read_child(job).await;
                }
                return if stopped == Stopped::Gone { Ok(()) } else { Err(stopped) };
            }
        }
        Ok(())
    }

    /// Checks that no user has stopped or deleted a job since the host saw it.
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
        // The reply to a deletion may be a `Status`.
        let is_job = reply.get("kind").and_then(Value::as_str) == Some(OPS_KIND);
        let job = self.read(reply).filter(|_| is_job);
        job.into_iter().for_each(|job| self.cache().put_job(job));
    }
}

/// Returns the owner of the write quota for writes of a job: its requester.
fn owner(job: &StoredOps) -> WriteOwner {
    WriteOwner::Requester(job.share())
}

/// Returns the request of an effect, or `None` if the effect needs no request any more.
fn write_of(effect: &Effect, job: &StoredOps, child: Option<&OpsChild>) -> Option<Write> {
    let of_child = job.view.child_key();
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

/// Returns a patch of a job at the version that the host saw.
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
