//! One set of lists in place of watches, for callers that look at a cluster once.
//!
//! A snapshot takes the kinds that plugins declare and one namespace. It puts their objects into the [`Store`] and returns the jobs of the
//! namespace. It may not watch, and it sends writes only as dry runs.
//!
//! [`Store`]: oarlock_core::cache::store::Store

use std::sync::Arc;

use futures::StreamExt;
use oarlock_api::{OperationJob, OperationRecord};
use oarlock_core::cache::store::{Indexed, NODE_NAME};
use oarlock_core::object::api_object::{Kind, Object};
use oarlock_core::operation_job::shared::reads::ServedKinds;
use oarlock_core::requests::live_reads::{LiveRead, LiveReads};
use oarlock_core::requests::writes::{Stopped, Write};
use serde::de::DeserializeOwned;

use crate::cluster::Cluster;
use crate::error_chain::error_chain;
use crate::link::Link;
use crate::send::write::Purpose;
use crate::transport::list::{Collection, ListError};
use crate::transport::projection::Projection;
use crate::transport::shares::WriteOwner;
use crate::watch::objects::{WatchedKind, WatchedKinds};

/// The number of kinds that are listed at once.
const AT_ONCE: usize = 4;

/// The reason why the objects of a kind were not listed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnlistedKind {
    /// The API server does not serve the kind.
    #[error("{message}")]
    NotServed {
        /// The message of the API server.
        message: String,
    },
    /// The user may not list the kind.
    #[error("{message}")]
    Forbidden {
        /// The resource of the kind, such as `pods` or `deployments.apps`.
        resource: String,
        /// True for a kind whose objects are in namespaces.
        namespaced: bool,
        /// The message of the API server.
        message: String,
    },
    /// Any other reason, such as a missing answer.
    #[error("{message}")]
    Failed {
        /// The message of the API server.
        message: String,
    },
}

impl Cluster {
    /// Lists each of these kinds once, and namespaced kinds only in this namespace. Returns the number of objects of each kind, or the
    /// reason why it was not listed. The store keeps the declared fields and is never updated.
    pub async fn list_once(&self, declared: WatchedKinds, namespace: &str) -> Vec<(Kind, Result<usize, UnlistedKind>)> {
        let WatchedKinds { kinds, read } = declared;
        self.link.objects.keep(&kinds, read);
        let lists: Vec<_> =
            kinds.into_iter().map(|(kind, watched)| self.link.list_kind(kind, watched, namespace)).collect();
        futures::stream::iter(lists).buffered(AT_ONCE).collect().await
    }

    /// Lists the jobs of a namespace, or of all namespaces.
    ///
    /// # Errors
    /// If the jobs were not listed, with the reason.
    pub async fn jobs_once(&self, namespace: Option<&str>) -> Result<Vec<OperationJob>, UnlistedKind> {
        self.link.documents(&Kind::job(), namespace).await
    }

    /// Lists the OperationRecords of all jobs of a namespace, or of all namespaces.
    ///
    /// # Errors
    /// If the records were not listed, with the reason.
    pub async fn records_once(&self, namespace: Option<&str>) -> Result<Vec<OperationRecord>, UnlistedKind> {
        self.link.documents(&Kind::record(), namespace).await
    }

    /// Makes these live reads now.
    pub async fn read_once(&self, reads: &[LiveRead]) -> LiveReads {
        self.link.read_live(reads).await
    }

    /// Sends a write with its preconditions as a dry run (`dryRun=All`).
    ///
    /// # Errors
    /// If the API server would not make the write or does not answer, with the reason.
    pub async fn try_write(&self, write: &Write) -> Result<(), Stopped> {
        let permit = self.link.limiter.enter(WriteOwner::of_object(write.object())).await;
        let purpose = Purpose { dry_run: true, ..Purpose::default() };
        self.link.write_with(write, permit, || Ok(()), purpose).await.map(drop)
    }

    /// Returns the kinds that the API server served when the host last asked for them.
    pub fn served(&self) -> ServedKinds {
        let discovery = self.link.discovery.clone();
        Arc::new(move |kind| discovery.serves(kind))
    }
}

impl Link {
    async fn list_kind(
        &self,
        kind: Kind,
        watched: WatchedKind,
        namespace: &str,
    ) -> (Kind, Result<usize, UnlistedKind>) {
        let WatchedKind { labels_indexed, fields_indexed, .. } = watched;
        let projection = self.objects.projection(&kind);
        let pick = |item| self.objects.project(&item, &kind).filter(|object: &Object| object.key.kind == kind);
        // Objects that are indexed by their node may be in any namespace.
        let namespace = (!fields_indexed.contains(NODE_NAME)).then_some(namespace);
        let listed = self.items(&kind, namespace, &projection, pick).await;
        // The store also keeps a kind whose list failed, without objects.
        self.objects.store.keep(&kind, Indexed { labels: labels_indexed, fields: fields_indexed });
        let count = listed.map(|(objects, version)| {
            let count = objects.len();
            drop(self.objects.store.reset(&kind, objects, version));
            count
        });
        (kind, count)
    }

    async fn documents<T: DeserializeOwned>(
        &self,
        kind: &Kind,
        namespace: Option<&str>,
    ) -> Result<Vec<T>, UnlistedKind> {
        // An object that cannot be read is left out, as in the host.
        let pick = |item| serde_json::from_value(item).ok();
        self.items(kind, namespace, &Projection::everything(), pick).await.map(|(items, _)| items)
    }

    async fn items<T>(
        &self,
        kind: &Kind,
        namespace: Option<&str>,
        projection: &Projection,
        pick: impl Fn(serde_json::Value) -> Option<T>,
    ) -> Result<(Vec<T>, u64), UnlistedKind> {
        let found = self.discovery.resource(&self.transport, kind).await;
        let resource = found.map_err(|error| match error.is_refused() && !self.discovery.serves(kind) {
            true => UnlistedKind::NotServed { message: error_chain(&error) },
            false => UnlistedKind::Failed { message: error_chain(&error) },
        })?;
        let from = Collection { resource: &resource, namespace, labels: None, fields: None };
        let listed = self.transport.list(from, projection, pick).await.map_err(|error| match &error {
            ListError::Unknown { .. } => UnlistedKind::NotServed { message: error_chain(&error) },
            ListError::List { source, .. } if source.is(403) => {
                let group = resource.api_version.split_once('/').map(|(group, _)| group);
                let name =
                    group.map_or_else(|| resource.plural.clone(), |group| format!("{}.{group}", resource.plural));
                UnlistedKind::Forbidden {
                    resource: name,
                    namespaced: resource.namespaced,
                    message: error_chain(&error),
                }
            }
            ListError::List { .. } | ListError::Path { .. } => UnlistedKind::Failed { message: error_chain(&error) },
        })?;
        let version = listed.number();
        Ok((listed.items, version))
    }
}
