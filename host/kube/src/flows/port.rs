//! The requests of flows. Each request is sent once, and the cache takes its reply.

use std::sync::Arc;

use oarlock_core::attempts::parent::{Parent, ParentKind};
use oarlock_core::attempts::plan::{ChildChange, Create};
use oarlock_core::attempts::results::CreateError;
use oarlock_core::attempts::view::{ChildKind, ChildView};
use oarlock_core::job_template::template::{StoredTemplate, template_kind};
use oarlock_core::kind::plan::NewStatus;
use oarlock_core::object::api_object::{Kind, ObjectKey};
use oarlock_core::requests::reads::ReadFailed;
use oarlock_core::requests::writes::{Lane, Recorded, Stopped, Write};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::flows::cache::{FlowCache, ParentView};
use crate::flows::handlers::{BatchJobHandler, NodeHandler, ParentHandler, TemplateHandler};
use crate::lease::fence::Fence;
use crate::link::Link;
use crate::transport::call::Transport;
use crate::transport::requests::Requests;
use crate::watch::health::KindHealth;
use crate::watch::on_demand::OnDemand;

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

    /// Returns a JobFlow or DaemonJob with what its plan needs. Reads the object live if an earlier write of it had an unknown outcome.
    ///
    /// # Errors
    /// If the read fails, with the message of the API server.
    pub async fn certain(&self, key: &ObjectKey) -> Result<Option<ParentView>, ReadFailed> {
        self.resolve_doubt(key).await?;
        Ok(self.cache.view(key))
    }

    /// Returns a JobTemplate, and the sorted names of the Jobs that were made from it. Reads the template live if an earlier write of it had an unknown
    /// outcome.
    ///
    /// # Errors
    /// If the read fails, with the message of the API server.
    pub async fn certain_template(
        &self,
        key: &ObjectKey,
    ) -> Result<Option<(Arc<StoredTemplate>, Vec<String>)>, ReadFailed> {
        self.resolve_doubt(key).await?;
        Ok(self.cache.template(key))
    }

    async fn resolve_doubt(&self, key: &ObjectKey) -> Result<(), ReadFailed> {
        if !self.cache.is_uncertain(key) {
            return Ok(());
        }
        let before = self.cache.uid(key);
        let document = self.cluster.link.stored(key).await?;
        self.cache.confirm(key, before.as_deref(), document);
        Ok(())
    }

    /// Creates a child. An existing child of the same owner, unit and attempt counts as created.
    ///
    /// # Errors
    /// If the child was not created, with the reason in a [`CreateError`].
    pub async fn create(&self, parent: &Parent, create: &Create, fence: &Fence) -> Result<(), CreateError> {
        let write = create.write(parent);
        match self.link(parent.kind).write(&write, Lane::Change, fence).await {
            Ok(reply) => self.created(parent, create, &reply),
            Err(Stopped::Refused { message }) => Err(self.refused(parent, create, write.object(), message).await),
            Err(Stopped::Gone) => Err(CreateError::Rejected("the namespace is gone".to_owned())),
            // The API server also answers like this if two requests exceed a quota at once.
            Err(stopped) => Err(CreateError::Later(stopped)),
        }
    }

    fn created(&self, parent: &Parent, create: &Create, reply: &Value) -> Result<(), CreateError> {
        let Some(child) = ChildView::read(create.kind, reply) else { return Ok(()) };
        if !create.is_made_by(&child, parent) {
            return Err(CreateError::Conflict(create.conflict_with(reply, parent)));
        }
        self.cache.reply_child(child);
        Ok(())
    }

    /// Returns why the API server refused a create: an object with the name exists, or the create itself is invalid.
    async fn refused(&self, parent: &Parent, create: &Create, object: &ObjectKey, message: String) -> CreateError {
        // The host awaits the name before the read, because the object may go right after the read.
        self.cache.requeue_on_name(create.kind, &parent.namespace, &create.name, parent.key());
        match self.cluster.link.read(object).await {
            Ok(Ok(stored)) => CreateError::Conflict(create.conflict_with(&stored, parent)),
            _ => CreateError::Rejected(message),
        }
    }

    /// Changes a child, or deletes the object itself. An object that no longer exists counts as changed.
    ///
    /// # Errors
    /// If it is unknown whether the change was made, with the reason.
    pub async fn change(&self, parent: &Parent, change: &ChildChange, fence: &Fence) -> Result<(), Stopped> {
        match self.link(parent.kind).write(&change.write(parent), change.lane(), fence).await {
            Ok(reply) => {
                let changed = change.child().filter(|_| !matches!(change, ChildChange::Delete(_)));
                let view = changed.and_then(|child| ChildView::read(child.kind, &reply));
                view.into_iter().for_each(|child| self.cache.reply_child(child));
                Ok(())
            }
            Err(Stopped::Gone) => Ok(()),
            Err(stopped) => Err(stopped),
        }
    }

    /// Stores the status of a JobFlow or DaemonJob at the version that the plan saw. Returns the proof, with what may follow.
    ///
    /// # Errors
    /// If the status is not known to be stored. Nothing that follows may be done then.
    pub async fn persist<T>(
        &self,
        parent: &Parent,
        status: &NewStatus,
        then: T,
        fence: &Fence,
    ) -> Result<Recorded<T>, Stopped> {
        let write = Write::status(parent.key(), &parent.version, &status.body);
        let reply = self.store(parent.kind, &write, fence).await?;
        Parent::read(parent.kind, reply).into_iter().for_each(|parent| self.cache.put_parent(parent));
        Ok(status.confirmed(then))
    }

    /// Stores the status of a JobTemplate at the version that the plan saw.
    ///
    /// # Errors
    /// If the status is not known to be stored.
    pub async fn persist_template(
        &self,
        template: &StoredTemplate,
        status: &NewStatus,
        fence: &Fence,
    ) -> Result<Recorded<()>, Stopped> {
        let write = Write::status(template.key(), &template.version, &status.body);
        let reply = self.store(ParentKind::Flow, &write, fence).await?;
        StoredTemplate::read(reply).into_iter().for_each(|template| self.cache.put_template(template));
        Ok(status.confirmed(()))
    }

    /// Writes a status. After an unknown outcome, the cached view of the object is uncertain.
    async fn store(&self, counted: ParentKind, write: &Write, fence: &Fence) -> Result<Value, Stopped> {
        let written = self.link(counted).write(write, Lane::Record, fence).await;
        if written.as_ref().is_err_and(Stopped::leaves_doubt) {
            self.cache.doubt(write.object());
        }
        written
    }
}
