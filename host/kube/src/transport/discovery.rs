//! The kinds that the API server serves, and their resource names.
//!
//! The host never guesses plural names. It knows the names of built-in kinds and of its own kinds, and asks the API server for all other
//! names.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use oarlock_core::object::api_object::Kind;
use parking_lot::RwLock;
use tokio::time::Instant;

use crate::transport::call::{ApiCall, RequestError, Transport, refused};
use crate::transport::path::Resource;

/// The time for which an answer of discovery is valid. The host notices a new kind after at most this time. Source: docs/operationjob.md
/// 3.1.8.
const FRESH: Duration = Duration::from_secs(60);

/// The kinds that every API server serves, or that the host cannot work without.
const KNOWN: [(&str, &str, &str, bool); 10] = [
    ("v1", "Pod", "pods", true),
    ("v1", "Node", "nodes", false),
    ("v1", "Namespace", "namespaces", false),
    ("apps/v1", "ReplicaSet", "replicasets", true),
    ("apps/v1", "StatefulSet", "statefulsets", true),
    ("apps/v1", "DaemonSet", "daemonsets", true),
    ("apps/v1", "Deployment", "deployments", true),
    ("batch/v1", "Job", "jobs", true),
    ("apps.kusionstack.io/v1alpha1", "OperationJob", "operationjobs", true),
    ("oarlock.dev/v1alpha1", "OperationRecord", "operationrecords", true),
];

/// The answers of discovery so far.
#[derive(Default)]
pub(crate) struct Discovery {
    groups: RwLock<HashMap<String, GroupDiscovery>>,
}

struct GroupDiscovery {
    asked: Instant,
    kinds: HashMap<String, Resource>,
}

/// The reason why a kind has no resource.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiscoverError {
    #[error("failed to discover the kinds of {api_version}")]
    Discover {
        api_version: String,
        #[source]
        source: RequestError,
    },
    #[error("the API server does not serve {kind} of {api_version}: is its CustomResourceDefinition installed?")]
    NotServed { api_version: String, kind: String },
}

impl DiscoverError {
    /// Returns true if the kind stays unavailable until an admin installs or allows something.
    pub(crate) fn is_refused(&self) -> bool {
        match self {
            Self::NotServed { .. } => true,
            Self::Discover { source, .. } => refused(source),
        }
    }
}

impl Discovery {
    /// Returns the resource of `kind`.
    pub(crate) async fn resource(&self, transport: &Transport, kind: &Kind) -> Result<Resource, DiscoverError> {
        if let Some(known) = known(kind) {
            return Ok(known);
        }
        let found = match self.recall(kind) {
            Some(found) => found,
            None => self.discover(transport, kind).await?,
        };
        let not_served = || DiscoverError::NotServed { api_version: kind.api_version.clone(), kind: kind.kind.clone() };
        found.ok_or_else(not_served)
    }

    /// Returns true if the API server served `kind` at the last recent check.
    pub(crate) fn serves(&self, kind: &Kind) -> bool {
        known(kind).is_some() || self.recall(kind).flatten().is_some()
    }

    /// Returns the answer for `kind` if it is fresh.
    fn recall(&self, kind: &Kind) -> Option<Option<Resource>> {
        let groups = self.groups.read();
        let answer = groups.get(&kind.api_version).filter(|answer| answer.asked.elapsed() < FRESH)?;
        Some(answer.kinds.get(&kind.kind).cloned())
    }

    async fn discover(&self, transport: &Transport, kind: &Kind) -> Result<Option<Resource>, DiscoverError> {
        let api_version = &kind.api_version;
        let root = if api_version.contains('/') { "apis" } else { "api" };
        let request = http::Request::get(format!("/{root}/{api_version}")).body(Vec::new());
        let request = request.map_err(kube::core::request::Error::BuildRequest);
        let reply = transport.fetch::<APIResourceList>(ApiCall { verb: "get", resource: "discovery", request }).await;
        let list = match reply {
            Ok(list) => list.resources,
            Err(error) if error.is(404) => Vec::new(),
            Err(source) => return Err(DiscoverError::Discover { api_version: api_version.clone(), source }),
        };
        let main = list.into_iter().filter(|resource| !resource.name.contains('/'));
        let kinds: HashMap<_, _> = main
            .map(|resource| {
                let namespaced = resource.namespaced;
                (resource.kind, Resource { api_version: api_version.clone(), plural: resource.name, namespaced })
            })
            .collect();
        let found = kinds.get(&kind.kind).cloned();
        self.groups.write().insert(api_version.clone(), GroupDiscovery { asked: Instant::now(), kinds });
        Ok(found)
    }
}

fn known(kind: &Kind) -> Option<Resource> {
    let entry = KNOWN.iter().find(|(api_version, name, ..)| kind.api_version == *api_version && kind.kind == *name);
    entry.map(|(api_version, _, plural, namespaced)| Resource {
        api_version: (*api_version).to_owned(),
        plural: (*plural).to_owned(),
        namespaced: *namespaced,
    })
}
