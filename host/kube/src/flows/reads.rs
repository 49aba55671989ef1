//! The lists that a round of flows reads past the cache.

use std::collections::HashSet;

use oarlock_core::child::build::OWNER_UID;
use oarlock_core::child::fields::text;
use oarlock_core::child::parent::{Parent, ParentKind};
use oarlock_core::child::view::{ChildKind, ChildView};
use oarlock_core::cluster::object::Kind;
use serde_json::Value;

use crate::flows::kinds;
use crate::flows::port::Flows;
use crate::flows::writes::key;
use crate::outcome::sentence;
use crate::transport::list::{Collection, ListError};
use crate::watch::projection::Projection;

/// Most pods of a failed Job that are read for its message.
const PODS: usize = 500;

/// The reason why there is no list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadFailed {
    /// The API server's sentence.
    pub message: String,
    /// It will be refused again.
    pub is_refused: bool,
}

impl Flows {
    /// Whether a parent is stored as it is seen: a watch may be late.
    ///
    /// # Errors
    /// The API server's sentence.
    pub async fn is_current(&self, parent: &Parent) -> Result<bool, ReadFailed> {
        let read = self.cluster.link.read(&key(kinds::parent(parent.kind), &parent.namespace, &parent.name)).await;
        let read = read.map_err(|failed| ReadFailed { message: failed.message, is_refused: failed.refused })?;
        match read {
            Ok(stored) => Ok(text(&stored, "/metadata/resourceVersion") == Some(&*parent.version)),
            Err(error) if error.is(404) => Ok(false),
            Err(error) => Err(ReadFailed { message: sentence(&error), is_refused: false }),
        }
    }

    /// Whether a child of a parent with one of these UIDs is stored: none of them was seen, and a watch may be late.
    ///
    /// # Errors
    /// The API server's sentence.
    pub async fn is_stored(&self, parent: &Parent, uids: &HashSet<&str>) -> Result<bool, ReadFailed> {
        let label = format!("{OWNER_UID}={}", parent.uid);
        for kind in [ChildKind::Job, ChildKind::Operation] {
            if parent.kind == ParentKind::Daemon && kind == ChildKind::Operation {
                continue;
            }
            let is_meant =
                |child: &ChildView| child.owner_uid.as_ref() == Some(&parent.uid) && uids.contains(&*child.uid);
            let pick = |child: Value| ChildView::read(kind, &child).filter(is_meant);
            if !self.list(kinds::child(kind), &parent.namespace, &label, (pick, 0)).await?.is_empty() {
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
        self.list(kinds::record(), &parent.namespace, &format!("{OWNER_UID}={}", parent.uid), (Some, usize::MAX)).await
    }

    /// Lists the pods of a Job.
    ///
    /// # Errors
    /// The API server's sentence.
    pub async fn read_pods(&self, job: &ChildView) -> Result<Vec<Value>, ReadFailed> {
        let labels = format!("batch.kubernetes.io/controller-uid={}", job.uid);
        self.list(Kind::pod(), &job.namespace, &labels, (Some, PODS)).await
    }

    async fn list<T>(
        &self,
        kind: Kind,
        namespace: &str,
        labels: &str,
        (pick, most): (impl Fn(Value) -> Option<T>, usize),
    ) -> Result<Vec<T>, ReadFailed> {
        let link = &self.cluster.link;
        let found = link.discovery.resource(&link.transport, &kind).await;
        let resource =
            found.map_err(|error| ReadFailed { message: sentence(&error), is_refused: error.is_refused() })?;
        let from = Collection { resource: &resource, namespace: Some(namespace), labels: Some(labels), fields: None };
        let listed = link.transport.list_until(from, &Projection::everything(), pick, most).await;
        let failed = |error: ListError| ReadFailed { message: sentence(&error), is_refused: error.is_refused() };
        listed.map(|listed| listed.items).map_err(failed)
    }
}
