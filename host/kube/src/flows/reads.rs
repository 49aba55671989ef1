//! The lists that a round of flows reads live.

use std::collections::HashSet;
use std::time::Duration;

use oarlock_core::attempts::build::OWNER_UID;
use oarlock_core::attempts::parent::{Parent, ParentKind, record_kind};
use oarlock_core::attempts::view::{ChildKind, ChildView};
use oarlock_core::attempts::waiting::{UNFINISHED, WaitLookup, last_warning, read_waiting_pods};
use oarlock_core::object::api_object::Kind;
use oarlock_core::object::fields::text;
use oarlock_core::requests::reads::ReadFailed;
use serde_json::Value;

use crate::flows::port::Flows;
use crate::read::past_cache::{ListPick, ListSelection};
use crate::transport::call::Transport;
use crate::transport::projection::Projection;

/// The most pods of a failed Job that the host reads for the Job's message.
const PODS: usize = 500;

/// The most pods of a Job, and the most events of an object, that the host reads to find out what the Job waits for.
const LOOKED_AT: usize = 50;

/// Returns the label selector of the pods of a Job.
fn of_job(job: &ChildView) -> String {
    format!("batch.kubernetes.io/controller-uid={}", job.uid)
}

/// Selects the objects of a namespace with these labels.
const fn of_labels<'a>(namespace: &'a str, labels: &'a str) -> ListSelection<'a> {
    ListSelection { namespace: Some(namespace), labels: Some(labels), fields: None }
}

impl Flows {
    /// Returns true if the API server stores a parent in the cached version. The watch may be late.
    ///
    /// # Errors
    /// If the read fails, with the message of the API server.
    pub async fn is_current(&self, parent: &Parent) -> Result<bool, ReadFailed> {
        let stored = self.cluster.link.stored(&parent.key()).await?;
        Ok(stored.is_some_and(|stored| text(&stored, "/metadata/resourceVersion") == Some(&*parent.version)))
    }

    /// Returns true if the API server stores a child of a parent with one of these UIDs. The cache lacks these children, but the watch may
    /// be late.
    ///
    /// # Errors
    /// If a read fails, with the message of the API server.
    pub async fn is_stored(&self, parent: &Parent, uids: &HashSet<&str>) -> Result<bool, ReadFailed> {
        let (transport, label) = (&self.cluster.link.transport, format!("{OWNER_UID}={}", parent.uid));
        let projection = &Projection::everything();
        for kind in [ChildKind::Job, ChildKind::Operation] {
            if parent.kind == ParentKind::Daemon && kind == ChildKind::Operation {
                continue;
            }
            let is_meant = |child: &ChildView| parent.owns(child) && uids.contains(&*child.uid);
            let pick = |child: Value| ChildView::read(kind, &child).filter(is_meant);
            let kept = ListPick { projection, pick, most: 0 };
            let selected = of_labels(&parent.namespace, &label);
            if !self.cluster.link.all_stored(transport, &kind.kind(), selected, kept).await?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads the JobRecords of a parent.
    ///
    /// # Errors
    /// If the read fails, with the message of the API server.
    pub async fn read_records(&self, parent: &Parent) -> Result<Vec<Value>, ReadFailed> {
        let (transport, label) = (&self.cluster.link.transport, format!("{OWNER_UID}={}", parent.uid));
        self.list(transport, record_kind(), of_labels(&parent.namespace, &label), usize::MAX).await
    }

    /// Lists the pods of a Job. The host waits at most `time_limit` for each page.
    ///
    /// # Errors
    /// If the read fails, with the message of the API server.
    pub async fn read_pods(&self, job: &ChildView, time_limit: Duration) -> Result<Vec<Value>, ReadFailed> {
        let labels = of_job(job);
        let transport = Transport { timeout: time_limit, ..self.cluster.link.transport.clone() };
        self.list(&transport, Kind::pod(), of_labels(&job.namespace, &labels), PODS).await
    }

    /// Returns a text that says what a Job without a running pod waits for. The text comes from the pods, or from the events of a pod or of
    /// the Job. It is empty if none of them says so. The reads take at most `time_limit`.
    ///
    /// # Errors
    /// If a read fails or takes longer than `time_limit`, with the message.
    pub async fn what_it_waits_for(&self, job: &ChildView, time_limit: Duration) -> Result<String, ReadFailed> {
        let look = async {
            let transport = &self.cluster.link.transport;
            let labels = of_job(job);
            let unfinished = ListSelection { fields: Some(UNFINISHED), ..of_labels(&job.namespace, &labels) };
            let pods = self.list(transport, Kind::pod(), unfinished, LOOKED_AT).await?;
            let uid = match read_waiting_pods(&pods) {
                WaitLookup::Reason(told) => return Ok(told),
                WaitLookup::ReadJobEvents => job.uid.clone(),
                WaitLookup::ReadPodEvents(uid) => uid,
            };
            let fields = format!("regarding.uid={uid},type=Warning");
            let of_object = ListSelection { namespace: Some(&job.namespace), labels: None, fields: Some(&fields) };
            let kind = Kind::new("events.k8s.io/v1", "Event");
            let events = self.list(transport, kind, of_object, LOOKED_AT).await?;
            Ok(last_warning(&events, self.cluster.clock().now()))
        };
        let late = |_| ReadFailed { message: "no answer in time".to_owned(), is_refused: false, retry_after: None };
        tokio::time::timeout(time_limit, look).await.map_err(late)?
    }

    /// Lists whole objects, and reads no further page once there are more than `most`.
    async fn list(
        &self,
        transport: &Transport,
        kind: Kind,
        selected: ListSelection<'_>,
        most: usize,
    ) -> Result<Vec<Value>, ReadFailed> {
        let kept = ListPick { projection: &Projection::everything(), pick: Some, most };
        self.cluster.link.all_stored(transport, &kind, selected, kept).await
    }
}
