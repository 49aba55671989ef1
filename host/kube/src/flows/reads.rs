//! The lists that a round of flows reads past the cache.

use std::collections::HashSet;
use std::time::Duration;

use oarlock_core::child::build::OWNER_UID;
use oarlock_core::child::fields::text;
use oarlock_core::child::parent::{Parent, ParentKind};
use oarlock_core::child::view::{ChildKind, ChildView};
use oarlock_core::child::waiting::{Seen, UNFINISHED, last_warning, look_at};
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

/// Most pods of a Job, and most events of an object, that are read for what it waits for.
const LOOKED_AT: usize = 50;

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

/// Which objects a list has.
#[derive(Clone, Copy)]
struct Selector<'a> {
    labels: Option<&'a str>,
    fields: Option<&'a str>,
}

impl<'a> Selector<'a> {
    const fn of_labels(labels: &'a str) -> Self {
        Self { labels: Some(labels), fields: None }
    }
}

/// The label of the pods of a Job.
fn of_job(job: &ChildView) -> String {
    format!("batch.kubernetes.io/controller-uid={}", job.uid)
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
            if !self
                .list(transport, kinds::child(kind), (&parent.namespace, Selector::of_labels(&label)), (pick, 0))
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
        self.list(transport, kinds::record(), (&parent.namespace, Selector::of_labels(&label)), (Some, usize::MAX))
            .await
    }

    /// Lists the pods of a Job. Each page is waited for as long as `patience` says.
    ///
    /// # Errors
    /// The API server's sentence.
    pub async fn read_pods(&self, job: &ChildView, patience: Duration) -> Result<Vec<Value>, ReadFailed> {
        let labels = of_job(job);
        let transport = Transport { timeout: patience, ..self.cluster.link.transport.clone() };
        self.list(&transport, Kind::pod(), (&job.namespace, Selector::of_labels(&labels)), (Some, PODS)).await
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
            let unfinished = Selector { labels: Some(&labels), fields: Some(UNFINISHED) };
            let pods = self.list(transport, Kind::pod(), (&job.namespace, unfinished), (Some, LOOKED_AT)).await?;
            let uid = match look_at(&pods) {
                Seen::Told(told) => return Ok(told),
                Seen::AskJob => job.uid.clone(),
                Seen::AskPod(uid) => uid,
            };
            let fields = format!("regarding.uid={uid},type=Warning");
            let of_object = Selector { labels: None, fields: Some(&fields) };
            let kind = Kind::new("events.k8s.io/v1", "Event");
            let events = self.list(transport, kind, (&job.namespace, of_object), (Some, LOOKED_AT)).await?;
            Ok(last_warning(&events, self.cluster.clock().now()))
        };
        let late = |_| ReadFailed { message: "no answer in time".to_owned(), is_refused: false, retry_after: None };
        tokio::time::timeout(patience, look).await.map_err(late)?
    }

    async fn list<T>(
        &self,
        transport: &Transport,
        kind: Kind,
        (namespace, selector): (&str, Selector<'_>),
        (pick, most): (impl Fn(Value) -> Option<T>, usize),
    ) -> Result<Vec<T>, ReadFailed> {
        let found = self.cluster.link.discovery.resource(transport, &kind).await;
        let failed = |error: DiscoverError| ReadFailed {
            message: sentence(&error),
            is_refused: error.is_refused(),
            retry_after: None,
        };
        let resource = found.map_err(failed)?;
        let Selector { labels, fields } = selector;
        let from = Collection { resource: &resource, namespace: Some(namespace), labels, fields };
        let listed = transport.list_until(from, &Projection::everything(), pick, most).await;
        listed.map(|listed| listed.items).map_err(|error| ReadFailed::from(&error))
    }
}
