//! The lists that a round of flows reads past the cache.

use std::collections::HashSet;
use std::time::Duration;

use oarlock_core::child::build::OWNER_UID;
use oarlock_core::child::fields::text;
use oarlock_core::child::parent::{Parent, ParentKind};
use oarlock_core::child::view::{ChildKind, ChildView};
use oarlock_core::cluster::live_reads::ReadFailure;
use oarlock_core::cluster::object::Kind;
use serde_json::Value;

use crate::flows::kinds;
use crate::flows::port::Flows;
use crate::flows::writes::key;
use crate::outcome::{asked_to_wait, sentence};
use crate::transport::call::Transport;
use crate::transport::discovery::DiscoverError;
use crate::transport::list::{Collection, ListError};
use crate::watch::projection::Projection;

/// Most pods of a failed Job that are read for its message.
const PODS: usize = 500;

/// The reason why there is no list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadFailed {
    /// What failed, and the API server's sentence.
    pub message: String,
    /// It will be refused again.
    pub is_refused: bool,
    /// Seconds to wait, if it names them.
    pub retry_after: Option<u32>,
}

impl From<&ListError> for ReadFailed {
    fn from(error: &ListError) -> Self {
        let retry_after = if let ListError::List { source, .. } = error { asked_to_wait(source) } else { None };
        Self { message: sentence(error), is_refused: error.is_refused(), retry_after }
    }
}

impl Flows {
    /// Whether a parent is stored as it is seen: a watch may be late.
    ///
    /// # Errors
    /// The API server's sentence.
    pub async fn is_current(&self, parent: &Parent) -> Result<bool, ReadFailed> {
        let what = format!("failed to read {} {}", parent.kind.name(), parent.name);
        let read = self.cluster.link.read(&key(kinds::parent(parent.kind), &parent.namespace, &parent.name)).await;
        let failed = |failed: ReadFailure| ReadFailed {
            message: format!("{what}: {}", failed.message),
            is_refused: failed.refused,
            retry_after: None,
        };
        match read.map_err(failed)? {
            Ok(stored) => Ok(text(&stored, "/metadata/resourceVersion") == Some(&*parent.version)),
            Err(error) if error.is(404) => Ok(false),
            Err(error) => {
                let (message, retry_after) = (format!("{what}: {}", sentence(&error)), asked_to_wait(&error));
                Err(ReadFailed { message, is_refused: false, retry_after })
            }
        }
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
            if !self.list(transport, kinds::child(kind), (&parent.namespace, &label), (pick, 0)).await?.is_empty() {
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
        self.list(transport, kinds::record(), (&parent.namespace, &label), (Some, usize::MAX)).await
    }

    /// Lists the pods of a Job. Each page is waited for as long as `patience` says.
    ///
    /// # Errors
    /// The API server's sentence.
    pub async fn read_pods(&self, job: &ChildView, patience: Duration) -> Result<Vec<Value>, ReadFailed> {
        let labels = format!("batch.kubernetes.io/controller-uid={}", job.uid);
        let transport = Transport { timeout: patience, ..self.cluster.link.transport.clone() };
        self.list(&transport, Kind::pod(), (&job.namespace, &labels), (Some, PODS)).await
    }

    async fn list<T>(
        &self,
        transport: &Transport,
        kind: Kind,
        (namespace, labels): (&str, &str),
        (pick, most): (impl Fn(Value) -> Option<T>, usize),
    ) -> Result<Vec<T>, ReadFailed> {
        let found = self.cluster.link.discovery.resource(transport, &kind).await;
        let failed = |error: DiscoverError| ReadFailed {
            message: sentence(&error),
            is_refused: error.is_refused(),
            retry_after: None,
        };
        let resource = found.map_err(failed)?;
        let from = Collection { resource: &resource, namespace: Some(namespace), labels: Some(labels), fields: None };
        let listed = transport.list_until(from, &Projection::everything(), pick, most).await;
        listed.map(|listed| listed.items).map_err(|error| ReadFailed::from(&error))
    }
}
