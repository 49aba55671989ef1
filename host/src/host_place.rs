//! The place of a host: its cluster, its node, its stores, and its own objects.

use std::sync::Arc;

use kube::Client;
use oarlock_artefacts::Artefacts;
use oarlock_core::ops_job::stored::StoredOps;
use oarlock_kube::kinds::KindObserver;

use crate::history::Recorder;
use crate::images::ExportRegistry;

/// The id of a cluster without an id of its own.
pub(crate) const LOCAL_CLUSTER: &str = "local";

/// The place of a host: its cluster, its node and its stores.
#[derive(Clone)]
pub struct HostLocation {
    /// The id of the cluster.
    pub cluster: String,
    /// The node of the host's pod, if known.
    pub node: Option<String>,
    /// The store for the files of OpsJobs, if there is one.
    pub artefacts: Option<Artefacts>,
    /// The registry to which OpsJobs export images, if there is one.
    pub exports: Option<ExportRegistry>,
    /// The recorder of the history, if there is one.
    pub recorder: Option<Recorder>,
}

impl Default for HostLocation {
    fn default() -> Self {
        Self { cluster: LOCAL_CLUSTER.to_owned(), node: None, artefacts: None, exports: None, recorder: None }
    }
}

impl HostLocation {
    /// Returns the observer of OpsJobs.
    pub fn observer(&self) -> Arc<dyn KindObserver<StoredOps>> {
        match &self.recorder {
            Some(recorder) => Arc::new(recorder.clone()),
            None => Arc::new(()),
        }
    }
}

/// The client and the namespace in which a host keeps its own objects.
#[derive(Clone)]
pub struct HostHome {
    /// A client of the API server.
    pub client: Client,
    /// The namespace of the host.
    pub namespace: String,
}
