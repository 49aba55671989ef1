//! Access to the OpsJobs of a cluster, each with its OperationJob.

use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use oarlock_api::{OARLOCK_GROUP, VERSION};
use oarlock_core::object::own::OPS_NAMESPACE;
use oarlock_core::ops_job::names::OPS_KIND;
use oarlock_view::JobView;

use super::cluster_error::{Asked, explained};
use super::follow::{Followed, RecordsOf, read};
use super::stored::StoredJob;
use super::{JobClient, NamespaceArgs};

/// A client for the OpsJobs of a cluster.
#[derive(Clone)]
pub(in crate::commands) struct OpsClient(JobClient);

impl OpsClient {
    /// Makes a client for the cluster that the arguments name. Sends no request yet.
    pub(in crate::commands) async fn new(args: NamespaceArgs) -> anyhow::Result<Self> {
        Ok(Self(JobClient::new(args).await?.in_namespace(OPS_NAMESPACE)))
    }

    /// Reads one job. Without permission to read its OperationJob, takes the targets from the OpsJob's status.
    pub(in crate::commands) async fn view(&self, name: &str) -> anyhow::Result<JobView> {
        let (job, child) = read(self, name).await?;
        Ok(self.shown(&job, child.iter()))
    }
}

impl Followed for OpsClient {
    type Object = DynamicObject;
    type Record = StoredJob;
    type View = JobView;

    fn objects(&self) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(OARLOCK_GROUP, VERSION, OPS_KIND));
        Api::all_with(self.0.raw().clone(), &resource)
    }

    fn records(&self) -> Api<StoredJob> {
        self.0.jobs()
    }

    fn records_of(&self, object: &DynamicObject) -> Option<RecordsOf> {
        object.data.pointer("/status/operationJob")?;
        Some(RecordsOf::Name(object.name_any()))
    }

    fn shown<'a>(&self, object: &DynamicObject, mut records: impl Iterator<Item = &'a StoredJob>) -> JobView {
        let uid = object.metadata.uid.as_ref();
        let child = records.find(|job| job.owner_references().iter().any(|owner| Some(&owner.uid) == uid));
        JobView::of_ops(&serde_json::to_value(object).unwrap_or_default(), child.map(|job| &job.0))
    }

    fn explained(&self, cause: kube::Error, verb: &'static str, name: &str) -> anyhow::Error {
        let server = &self.0.server;
        explained(cause, &Asked { verb, kinds: "OpsJobs", short: "ops", name: Some(name), namespace: "", server })
    }
}
