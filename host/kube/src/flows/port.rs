//! The requests of flows. Each request is sent once, and the cache takes its reply.

use std::sync::Arc;

use oarlock_core::attempts::build::{JOB_TTL, OPERATION_TTL};
use oarlock_core::attempts::parent::{Parent, ParentKind};
use oarlock_core::attempts::plan::{ChildChange, Create};
use oarlock_core::attempts::view::{ChildKind, ChildView};
use oarlock_core::job_template::template::{StoredTemplate, template_kind};
use oarlock_core::object::api_object::{Kind, ObjectKey};
use oarlock_core::object::fields::{list, text};
use oarlock_core::requests::writes::{Lane, Stopped, Write};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::flows::cache::FlowCache;
use crate::flows::handlers::{BatchJobHandler, NodeHandler, ParentHandler, TemplateHandler, read_template};
use crate::flows::writes::{adopt, key_of, patch_child};
use crate::lease::fence::Fence;
use crate::link::Link;
use crate::transport::call::Transport;
use crate::transport::requests::Requests;
use crate::watch::health::KindHealth;
use crate::watch::on_demand::OnDemand;

/// The reason why a child does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateError {
    /// Another object has the name of the child. The text names the kind, namespace, name and owner of that object.
    Conflict(String),
    /// The API server refuses the child with this message.
    Rejected(String),
    /// The child may or may not exist, or the server is busy. The host repeats the round.
    Later(Stopped),
}

/// The flows of a cluster: their cache, watches and requests. It is cheap to clone.
#[derive(Clone)]
pub struct Flows {
    pub(super) cluster: Cluster,
    cache: Arc<FlowCache>,
    watches: Arc<OnDemand>,
    /// The link for the writes of JobFlows. The writes of each kind are counted apart.
    of_flows: Arc<Link>,
    of_daemons: Arc<Link>,
}

impl Flows {
    /// Watches the kinds of flows as long as the returned value lives. Call it before [`Cluster::declare`].
    pub fn watch(cluster: Cluster) -> Self {
        let cache = Arc::new(FlowCache::within(&cluster.link.room));
        cache.set_idle(true);
        // A second `Flows` of this cluster would not see OperationJobs.
        let _only = cluster.link.owners.flows.set(cache.clone());
        let watches = Arc::new(OnDemand::begin());
        for kind in [ParentKind::Flow, ParentKind::Daemon] {
            watches.watch(&cluster.link, kind.kind(), ParentHandler(cache.clone(), kind));
        }
        watches.watch(&cluster.link, template_kind(), TemplateHandler(cache.clone()));
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

    /// Returns the counts of writes for objects of this kind. The writes for JobTemplates count as writes of flows.
    pub fn requests(&self, kind: ParentKind) -> &Arc<Requests> {
        &self.link(kind).transport.requests
    }

    /// Returns the cache.
    pub fn cache(&self) -> &Arc<FlowCache> {
        &self.cache
    }

    /// Returns the cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Waits until the API server serves flows and all the kinds that they need are listed.
    pub async fn synced(&self) {
        let rest = || {
            self.watches.watch(&self.cluster.link, ChildKind::Job.kind(), BatchJobHandler(self.cache.clone()));
            self.watches.watch(&self.cluster.link, Kind::node(), NodeHandler(self.cache.clone()));
        };
        // The third kind, JobTemplate, needs no other kind.
        self.watches.synced(2, rest).await;
        self.cluster.synced(&[]).await;
    }

    /// Returns the state of each watch. The watches of Jobs and nodes begin when a process leads and the API server serves flows.
    pub fn health(&self) -> Vec<KindHealth> {
        self.watches.health()
    }

    /// Creates a child. An existing child of the same owner, unit and attempt counts as created.
    ///
    /// # Errors
    /// If the child was not created, with the reason in a [`CreateError`].
    pub async fn create(&self, parent: &Parent, create: &Create, fence: &Fence) -> Result<(), CreateError> {
        let object = create.kind.key(&parent.namespace, &create.name);
        let write =
            Write::Create { object: object.clone(), body: create.object.clone(), owner_uid: parent.uid.clone() };
        match self.link(parent.kind).write(&write, Lane::Change, fence).await {
            Ok(reply) => self.created(parent, create, &reply),
            Err(Stopped::Refused { message }) => Err(self.refused(parent, create, &object, message).await),
            Err(Stopped::Gone) => Err(CreateError::Rejected("the namespace is gone".to_owned())),
            // The API server also answers like this if two requests exceed a quota at once.
            Err(stopped) => Err(CreateError::Later(stopped)),
        }
    }

    fn created(&self, parent: &Parent, create: &Create, reply: &Value) -> Result<(), CreateError> {
        let Some(child) = ChildView::read(create.kind, reply) else { return Ok(()) };
        let is_same = child.unit.as_deref().is_none_or(|unit| unit == create.unit) && child.attempt == create.attempt;
        // Only the first of several owners of these kinds counts.
        if !is_same || child.orphaned || !parent.owns(&child) {
            return Err(self.conflict(parent, create, reply));
        }
        self.cache.reply_child(child);
        Ok(())
    }

    /// Returns why the API server refused a create: an object with the name exists, or the create itself is invalid.
    async fn refused(&self, parent: &Parent, create: &Create, object: &ObjectKey, message: String) -> CreateError {
        // The host awaits the name before the read, because the object may go right after the read.
        self.cache.requeue_on_name(create.kind, &parent.namespace, &create.name, parent.key());
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

    /// Changes a child, or deletes the object itself. An object that no longer exists counts as changed.
    ///
    /// # Errors
    /// If it is unknown whether the change was made, with the reason.
    pub async fn change(&self, parent: &Parent, change: &ChildChange, fence: &Fence) -> Result<(), Stopped> {
        let (write, kind) = match change {
            ChildChange::Adopt(child) => (adopt(child, parent), child.kind),
            ChildChange::Stop(child) => (patch_child(child, json!({"spec": stopped(child)})), child.kind),
            ChildChange::SetTtl(child, seconds) => {
                let field = if child.kind == ChildKind::Job { JOB_TTL } else { OPERATION_TTL };
                (patch_child(child, json!({"spec": {field: seconds}})), child.kind)
            }
            ChildChange::Delete(child) => (Write::delete(key_of(child), &child.uid, None), child.kind),
            // A user may resume the object meanwhile, so the host deletes only the version that it saw.
            ChildChange::DeleteSelf => {
                let version = Some(parent.version.clone());
                (Write::delete(parent.key(), &parent.uid, version), ChildKind::Job)
            }
        };
        // A Job is a workload, and a webhook on workloads may hang. OperationJobs and flows are records.
        let is_job = kind == ChildKind::Job && *change != ChildChange::DeleteSelf;
        let lane = if is_job { Lane::Change } else { Lane::Record };
        match self.link(parent.kind).write(&write, lane, fence).await {
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

    /// Replaces the status of a parent at the version that the host saw.
    ///
    /// # Errors
    /// If it is unknown whether the status was written, with the reason.
    pub async fn write_status(&self, parent: &Parent, status: &Value, fence: &Fence) -> Result<(), Stopped> {
        let write = Write::status(parent.key(), &parent.version, status);
        let reply = self.link(parent.kind).write(&write, Lane::Record, fence).await?;
        Parent::read(parent.kind, reply).into_iter().for_each(|parent| self.cache.reply_parent(parent));
        Ok(())
    }

    /// Replaces the status of a JobTemplate.
    ///
    /// # Errors
    /// If it is unknown whether the status was written, with the reason.
    pub async fn write_template_status(
        &self,
        template: &StoredTemplate,
        status: &Value,
        fence: &Fence,
    ) -> Result<(), Stopped> {
        let reply = self
            .link(ParentKind::Flow)
            .write(&Write::status(template.key(), &template.version, status), Lane::Record, fence)
            .await?;
        read_template(reply).into_iter().for_each(|template| self.cache.reply_template(template));
        Ok(())
    }
}

/// Returns the fields that end a Job but keep it. A suspended Job must start, without pods, because only then its deadline begins.
fn stopped(child: &ChildView) -> Value {
    match child.suspended {
        true => json!({"activeDeadlineSeconds": 1, "suspend": false, "parallelism": 0}),
        false => json!({"activeDeadlineSeconds": 1}),
    }
}
