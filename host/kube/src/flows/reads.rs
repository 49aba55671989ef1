//! The lists that a round of flows reads past the cache.

use std::collections::HashSet;
use std::time::Duration;

use oarlock_core::child::build::OWNER_UID;
use oarlock_core::child::fields::text;
use oarlock_core::child::parent::{Parent, ParentKind};
use oarlock_core::child::view::{ChildKind, ChildView};
use oarlock_core::child::waiting::{Seen, UNFINISHED, last_warning, look_at};
use oarlock_core::cluster::object::Kind;
use serde_json::Value;

use crate::flows::kinds;
use crate::flows::port::Flows;
use crate::flows::writes::parent_key;
use crate::past_cache::{Picked, ReadFailed, Selected};
use crate::transport::call::Transport;
use crate::watch::projection::Projection;

/// Most pods of a failed Job that are read for its message.
const PODS: usize = 500;

/// Most pods of a Job, and most events of an object, that are read for what it waits for.
const LOOKED_AT: usize = 50;

/// The label of the pods of a Job.
fn of_job(job: &ChildView) -> String {
    format!("batch.kubernetes.io/controller-uid={}", job.uid)
}

/// The objects of a namespace with these labels.
const fn of_labels<'a>(namespace: &'a str, labels: &'a str) -> Selected<'a> {
    Selected { namespace: Some(namespace), labels: Some(labels), fields: None }
}

impl Flows {
    /// Whether a parent is stored as it is seen: a watch may be late.
    ///
    /// # Errors
    /// The API server's sentence.
    pub async fn is_current(&self, parent: &Parent) -> Result<bool, ReadFailed> {
        let stored = self.cluster.link.stored(&parent_key(parent)).await?;
        Ok(stored.is_some_and(|stored| text(&stored, "/metadata/resourceVersion") == Some(&*parent.version)))
    }

    /// Whether a child of a parent with one of these UIDs is stored: none of them was seen, and a watch may be late.
    ///
    /// # Errors
    /// The API server's sentence.
    pub async fn is_stored(&self, parent: &Parent, uids: &HashSet<&str>) -> Result<bool, ReadFailed> {
        let (transport, label) = (&self.cluster.link.transport, format!("{OWNER_UID}={}", parent.uid));
        for kind in [ChildKind::Job, ChildKind::Operation] {
            if parent.kind == ParentKind::Daemon && kind == ChildKind::Operation {
                continue;
            }
            let is_meant = |child: &ChildView| parent.owns(child) && uids.contains(&*child.uid);
            let pick = |child: Value| ChildView::read(kind, &child).filter(is_meant);
            if !self
                .list(transport, kinds::child(kind), of_labels(&parent.namespace, &label), (pick, 0))
                .await?
                .is_empty()
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads the JobRecords of a parent.
    ///
    /// # Errors
    /// The API server's sentence.
    pub async fn read_records(&self, parent: &Parent) -> Result<Vec<Value>, ReadFailed> {
        let (transport, label) = (&self.cluster.link.transport, format!("{OWNER_UID}={}", parent.uid));
        self.list(transport, kinds::record(), of_labels(&parent.namespace, &label), (Some, usize::MAX)).await
    }

    /// Lists the pods of a Job. Each page is waited for as long as `patience` says.
    ///
    /// # Errors
    /// The API server's sentence.
    pub async fn read_pods(&self, job: &ChildView, patience: Duration) -> Result<Vec<Value>, ReadFailed> {
        let labels = of_job(job);
        let transport = Transport { timeout: patience, ..self.cluster.link.transport.clone() };
        self.list(&transport, Kind::pod(), of_labels(&job.namespace, &labels), (Some, PODS)).await
    }

    /// What a Job without a pod at work waits for, in words: its pods say so, or the events of a pod or of the Job. Empty where nothing
    /// does. It is waited for as long as `patience` says.
    ///
    /// # Errors
    /// The API server's sentence.
    pub async fn what_it_waits_for(&self, job: &ChildView, patience: Duration) -> Result<String, ReadFailed> {
        let look = async {
            let transport = &self.cluster.link.transport;
            let labels = of_job(job);
            let unfinished = Selected { fields: Some(UNFINISHED), ..of_labels(&job.namespace, &labels) };
            let pods = self.list(transport, Kind::pod(), unfinished, (Some, LOOKED_AT)).await?;
            let uid = match look_at(&pods) {
                Seen::Told(told) => return Ok(told),
                Seen::AskJob => job.uid.clone(),
                Seen::AskPod(uid) => uid,
            };
            let fields = format!("regarding.uid={uid},type=Warning");
            let of_object = Selected { namespace: Some(&job.namespace), labels: None, fields: Some(&fields) };
            let kind = Kind::new("events.k8s.io/v1", "Event");
            let events = self.list(transport, kind, of_object, (Some, LOOKED_AT)).await?;
            Ok(last_warning(&events, self.cluster.clock().now()))
        };
        let late = |_| ReadFailed { message: "no answer in time".to_owned(), is_refused: false, retry_after: None };
        tokio::time::timeout(patience, look).await.map_err(late)?
    }

    async fn list<T>(
        &self,
        transport: &Transport,
        kind: Kind,
        selected: Selected<'_>,
        (pick, most): (impl Fn(Value) -> Option<T>, usize),
    ) -> Result<Vec<T>, ReadFailed> {
        let kept = Picked { projection: &Projection::everything(), pick, most };
        self.cluster.link.all_stored(transport, &kind, selected, kept).await
    }
}
