//! One set of lists in place of watches, for whoever looks at a cluster once.
//!
//! Takes the kinds that plugins declare and one namespace; yields their objects in the [`Store`], and the jobs of that
//! namespace. May not watch, and writes only what the API server is asked not to make.
//!
//! [`Store`]: oarlock_core::cluster::store::Store

use std::sync::Arc;

use futures::StreamExt;
use oarlock_api::{OperationJob, OperationRecord};
use oarlock_core::cluster::live_reads::{LiveRead, LiveReads};
use oarlock_core::cluster::object::{Kind, Object};
use oarlock_core::cluster::store::{Indexed, NODE_NAME};
use oarlock_core::cluster::writes::{Stopped, Write};
use oarlock_core::shared::reads::ServedKinds;
use serde::de::DeserializeOwned;

use crate::cluster::{Cluster, Link};
use crate::outcome::sentence;
use crate::transport::list::{Collection, ListError};
use crate::transport::shares::WriteOwner;
use crate::watch::projection::Projection;
use crate::watch::watches::{WatchedKind, WatchedKinds};
use crate::write::Purpose;

/// Kinds that are listed at once.
const AT_ONCE: usize = 4;

/// The reason why the objects of a kind were not listed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnlistedKind {
    /// The API server does not serve the kind.
    #[error("{message}")]
    NotServed {
        /// What the API server said.
        message: String,
    },
    /// The user may not list it.
    #[error("{message}")]
    Forbidden {
        /// Its resource, such as `pods` or `deployments.apps`.
        resource: String,
        /// True for a kind whose objects are in namespaces.
        namespaced: bool,
        /// What the API server said.
        message: String,
    },
    /// Anything else, such as no answer.
    #[error("{message}")]
    Failed {
        /// What the API server said.
        message: String,
    },
}

impl Cluster {
    /// Lists each of these kinds once: those in namespaces in this one alone. Yields the number of objects of each, or why
    /// there is none. The store has the fields that are declared, and is never brought up to date.
    pub async fn list_once(&self, declared: WatchedKinds, namespace: &str) -> Vec<(Kind, Result<usize, UnlistedKind>)> {
        let WatchedKinds { kinds, read } = declared;
        self.link.objects.keep(&kinds, read);
        let lists: Vec<_> =
            kinds.into_iter().map(|(kind, watched)| self.link.list_kind(kind, watched, namespace)).collect();
        futures::stream::iter(lists).buffered(AT_ONCE).collect().await
    }

    /// The jobs of a namespace, or of all.
    ///
    /// # Errors
    /// Why they were not listed.
    pub async fn jobs_once(&self, namespace: Option<&str>) -> Result<Vec<OperationJob>, UnlistedKind> {
        self.link.documents(&Kind::job(), namespace).await
    }

    /// The OperationRecords of all jobs of a namespace, or of all.
    ///
    /// # Errors
    /// Why they were not listed.
    pub async fn records_once(&self, namespace: Option<&str>) -> Result<Vec<OperationRecord>, UnlistedKind> {
        self.link.documents(&Kind::record(), namespace).await
    }

    /// Makes these reads now.
    pub async fn read_once(&self, reads: &[LiveRead]) -> LiveReads {
        self.link.read_live(reads).await
    }

    /// Has the API server try a write with its preconditions, and not make it (`dryRun=All`).
    ///
    /// # Errors
    /// Why it would not be made, or that it was not answered.
    pub async fn try_write(&self, write: &Write) -> Result<(), Stopped> {
        let permit = self.link.limiter.enter(WriteOwner::of_object(write.object())).await;
        let purpose = Purpose { dry_run: true, ..Purpose::default() };
        self.link.write_with(write, permit, || Ok(()), purpose).await.map(drop)
    }

    /// The kinds that the API server served when it was last asked.
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
        // What is found by its node is in any namespace.
        let namespace = (!fields_indexed.contains(NODE_NAME)).then_some(namespace);
        let listed = self.items(&kind, namespace, &projection, pick).await;
        // Also where it was not listed: it has no objects then.
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
        // One that cannot be read costs itself, as in the host.
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
            true => UnlistedKind::NotServed { message: sentence(&error) },
            false => UnlistedKind::Failed { message: sentence(&error) },
        })?;
        let from = Collection { resource: &resource, namespace, labels: None, fields: None };
        let listed = self.transport.list(from, projection, pick).await.map_err(|error| match &error {
            ListError::Unknown { .. } => UnlistedKind::NotServed { message: sentence(&error) },
            ListError::List { source, .. } if source.is(403) => {
                let group = resource.api_version.split_once('/').map(|(group, _)| group);
                let name =
                    group.map_or_else(|| resource.plural.clone(), |group| format!("{}.{group}", resource.plural));
                UnlistedKind::Forbidden { resource: name, namespaced: resource.namespaced, message: sentence(&error) }
            }
            ListError::List { .. } | ListError::Path { .. } => UnlistedKind::Failed { message: sentence(&error) },
        })?;
        let version = listed.number();
        Ok((listed.items, version))
    }
}
