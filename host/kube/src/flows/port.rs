//! The requests of flows: each is sent once, and what it shows goes into the cache.

use std::sync::Arc;

use oarlock_core::child::build::{JOB_TTL, OPERATION_TTL};
use oarlock_core::child::fields::{list, text};
use oarlock_core::child::parent::{Parent, ParentKind};
use oarlock_core::child::plan::{ChildChange, Create};
use oarlock_core::child::view::{ChildKind, ChildView};
use oarlock_core::cluster::object::{Kind, ObjectKey};
use oarlock_core::cluster::writes::{Stopped, Write};
use oarlock_core::flow::template::StoredTemplate;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Link};
use crate::flows::cache::FlowCache;
use crate::flows::key::FlowKey;
use crate::flows::kinds;
use crate::flows::sinks::{BatchJobSink, NodeSink, ParentSink, TemplateSink, read_template};
use crate::flows::writes::{adopt, child_key, key, key_of, parent_key, patch_child};
use crate::lease::Fence;
use crate::transport::call::Transport;
use crate::transport::requests::Requests;
use crate::watch::health::KindHealth;
use crate::watch::on_demand::OnDemand;

/// The reason why there is no child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateError {
    /// Another object has its name: kind, namespace and name of it, and whose it is.
    Conflict(String),
    /// The API server refuses it, with this sentence.
    Rejected(String),
    /// It may exist or not, or the server is busy: the round is repeated.
    Later(Stopped),
}

/// The flows of a cluster: their cache, watches and requests. Cheap to clone.
#[derive(Clone)]
pub struct Flows {
    pub(super) cluster: Cluster,
    cache: Arc<FlowCache>,
    watches: Arc<OnDemand>,
    /// For the writes of each kind, which are counted apart.
    of_flows: Arc<Link>,
    of_daemons: Arc<Link>,
}

impl Flows {
    /// Watches the kinds of flows from now on, as long as it lives. To be made before the cluster is told what to watch.
    pub fn watch(cluster: Cluster) -> Self {
        let cache = Arc::new(FlowCache::within(&cluster.link.room));
        cache.rest(true);
        // Another one of this cluster would see no OperationJobs.
        let _only = cluster.link.parents.flows.set(cache.clone());
        let watches = Arc::new(OnDemand::begin());
        for kind in [ParentKind::Flow, ParentKind::Daemon] {
            watches.watch(&cluster.link, kinds::parent(kind), ParentSink(cache.clone(), kind));
        }
        watches.watch(&cluster.link, kinds::template(), TemplateSink(cache.clone()));
        let counted = || {
            let transport = Transport { requests: cluster.requests().part(), ..cluster.link.transport.clone() };
            Arc::new(Link { transport, ..cluster.link.clone() })
        };
        let (of_flows, of_daemons) = (counted(), counted());
        Self { cluster, cache, watches, of_flows, of_daemons }
    }

    pub(super) fn link(&self, kind: ParentKind) -> &Link {
        match kind {
            ParentKind::Flow => &self.of_flows,
            ParentKind::Daemon => &self.of_daemons,
        }
    }

    /// The writes for objects of this kind, and for the JobTemplates of flows.
    pub fn requests(&self, kind: ParentKind) -> &Arc<Requests> {
        &self.link(kind).transport.requests
    }

    /// What is known.
    pub fn cache(&self) -> &Arc<FlowCache> {
        &self.cache
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Resolves once flows are served and everything that they need was listed.
    pub async fn synced(&self) {
        let rest = || {
            self.watches.watch(&self.cluster.link, kinds::child(ChildKind::Job), BatchJobSink(self.cache.clone()));
            self.watches.watch(&self.cluster.link, Kind::node(), NodeSink(self.cache.clone()));
        };
        // Of the three, a JobTemplate needs nothing.
        self.watches.synced(2, rest).await;
        self.cluster.synced(&[]).await;
    }

    /// The state of each watch. Those of Jobs and nodes begin once somebody leads and flows are served.
    pub fn health(&self) -> Vec<KindHealth> {
        self.watches.health()
    }

    /// Creates a child. One that exists already and is of the same owner, unit and attempt counts as created.
    ///
    /// # Errors
    /// As [`CreateError`] says.
    pub async fn create(&self, parent: &Parent, create: &Create, fence: &Fence) -> Result<(), CreateError> {
        let object = child_key(create.kind, &parent.namespace, &create.name);
        let write =
            Write::Create { object: object.clone(), body: create.object.clone(), owner_uid: parent.uid.clone() };
        match self.link(parent.kind).write(&write, fence).await {
            Ok(reply) => self.created(parent, create, &reply),
            Err(Stopped::Refused { message }) => Err(self.refused(parent, create, &object, message).await),
            Err(Stopped::Gone) => Err(CreateError::Rejected("the namespace is gone".to_owned())),
            // A quota that is exceeded by two at once is answered so.
            Err(stopped) => Err(CreateError::Later(stopped)),
        }
    }

    fn created(&self, parent: &Parent, create: &Create, reply: &Value) -> Result<(), CreateError> {
        let Some(child) = ChildView::read(create.kind, reply) else { return Ok(()) };
        let is_same = child.unit.as_deref().is_none_or(|unit| unit == create.unit) && child.attempt == create.attempt;
        // Of several owners of these kinds, only the first counts.
        if !is_same || child.disowned || !parent.owns(&child) {
            return Err(self.conflict(parent, create, reply));
        }
        self.cache.reply_child(child);
        Ok(())
    }

    /// Why a create was refused: because of the object that has its name, or for itself.
    async fn refused(&self, parent: &Parent, create: &Create, object: &ObjectKey, message: String) -> CreateError {
        // Before the read: it may go right after.
        self.cache.await_name(create.kind, &parent.namespace, &create.name, FlowKey::of(parent));
        match self.cluster.link.read(object).await {
            Ok(Ok(stored)) => self.conflict(parent, create, &stored),
            _ => CreateError::Rejected(message),
        }
    }

    fn conflict(&self, parent: &Parent, create: &Create, stored: &Value) -> CreateError {
        let owners = list(stored, "/metadata/ownerReferences").iter().map(|owner| {
            let named = |field: &str| text(owner, field).unwrap_or("?").to_owned();
            format!("{} {}", named("/kind"), named("/name"))
        });
        let owners: Vec<String> = owners.take(3).collect();
        let of = if owners.is_empty() { "nobody's".to_owned() } else { format!("owned by {}", owners.join(", ")) };
        let (_, kind) = create.kind.api();
        CreateError::Conflict(format!(
            "{kind} {}/{} exists already and is {of}; delete or rename it",
            parent.namespace, create.name
        ))
    }

    /// Changes a child, or deletes the object itself. What is gone already counts as changed.
    ///
    /// # Errors
    /// The reason why it is not known to be done.
    pub async fn change(&self, parent: &Parent, change: &ChildChange, fence: &Fence) -> Result<(), Stopped> {
        let (write, kind) = match change {
            ChildChange::Adopt(child) => (adopt(child, parent), child.kind),
            ChildChange::Stop(child) => (patch_child(child, json!({"spec": stopped(child)})), child.kind),
            ChildChange::SetTtl(child, seconds) => {
                let field = if child.kind == ChildKind::Job { JOB_TTL } else { OPERATION_TTL };
                (patch_child(child, json!({"spec": {field: seconds}})), child.kind)
            }
            ChildChange::Delete(child) => (Write::delete(key_of(child), &child.uid, None), child.kind),
            // Somebody may have it go on meanwhile: only what was seen is deleted.
            ChildChange::DeleteSelf => {
                let version = Some(parent.version.clone());
                (Write::delete(parent_key(parent), &parent.uid, version), ChildKind::Job)
            }
        };
        match self.link(parent.kind).write(&write, fence).await {
            Ok(reply) => {
                let is_child = !matches!(change, ChildChange::DeleteSelf | ChildChange::Delete(_));
                let view = ChildView::read(kind, &reply).filter(|_| is_child);
                view.into_iter().for_each(|child| self.cache.reply_child(child));
                Ok(())
            }
            Err(Stopped::Gone) => Ok(()),
            Err(stopped) => Err(stopped),
        }
    }

    /// Replaces the status of a parent, at the version that was seen.
    ///
    /// # Errors
    /// The reason why it is not known to be written.
    pub async fn write_status(&self, parent: &Parent, status: &Value, fence: &Fence) -> Result<(), Stopped> {
        let write = Write::status(parent_key(parent), &parent.version, status);
        let reply = self.link(parent.kind).write(&write, fence).await?;
        Parent::read(parent.kind, reply).into_iter().for_each(|parent| self.cache.reply_parent(parent));
        Ok(())
    }

    /// Replaces the status of a JobTemplate.
    ///
    /// # Errors
    /// The reason why it is not known to be written.
    pub async fn write_template_status(
        &self,
        template: &StoredTemplate,
        status: &Value,
        fence: &Fence,
    ) -> Result<(), Stopped> {
        let object = key(kinds::template(), &template.namespace, &template.name);
        let reply = self.link(ParentKind::Flow).write(&Write::status(object, &template.version, status), fence).await?;
        read_template(reply).into_iter().for_each(|template| self.cache.reply_template(template));
        Ok(())
    }
}

/// The fields by which a Job ends and stays. One that has not started starts without pods: else its time would not begin.
fn stopped(child: &ChildView) -> Value {
    match child.suspended {
        true => json!({"activeDeadlineSeconds": 1, "suspend": false, "parallelism": 0}),
        false => json!({"activeDeadlineSeconds": 1}),
    }
}
