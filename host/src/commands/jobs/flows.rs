//! Access to the JobFlows and DaemonJobs of a cluster: the arguments that name them, and the requests that read and
//! annotate them.

use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use oarlock_api::{OARLOCK_GROUP, VERSION};
use oarlock_core::attempts::build::OWNER_UID;
use oarlock_view::{FlowKind, FlowView};
use serde_json::{Value, json};

use super::cluster_error::{Asked, explained};
use super::follow::{Followed, RecordsOf, read};
use super::{JobClient, NamespaceArgs};

/// The API group of JobFlow and DaemonJob.
pub(in crate::commands) const FLOW_GROUP: &str = "api.practice.com";
/// A client for the objects of one of these kinds in one namespace.
#[derive(Clone)]
pub(in crate::commands) struct FlowClient {
    client: JobClient,
    kind: FlowKind,
}

impl FlowClient {
    /// Makes a client for the cluster that the arguments name. Sends no request yet.
    pub(in crate::commands) async fn new(args: NamespaceArgs, kind: FlowKind) -> anyhow::Result<Self> {
        Ok(Self { client: JobClient::new(args).await?, kind })
    }

    pub(in crate::commands) fn namespace(&self) -> &str {
        self.client.namespace()
    }

    /// Reads one object with its records. Without permission to read records, returns the object without them.
    pub(in crate::commands) async fn view(&self, name: &str) -> anyhow::Result<FlowView> {
        let (object, records) = read(self, name).await?;
        Ok(self.shown(&object, records.iter()))
    }

    /// Sets an annotation of an object.
    pub(in crate::commands) async fn annotate(&self, name: &str, key: &str, value: &str) -> anyhow::Result<()> {
        let patch = json!({"metadata": {"annotations": {key: value}}});
        let sent = self.objects().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        sent.map(drop).map_err(|cause| self.explained(cause, "annotate", name))
    }

    fn api(&self, group: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk(group, VERSION, kind);
        let resource = ApiResource::from_gvk_with_plural(&kind, plural);
        Api::namespaced_with(self.client.raw().clone(), self.namespace(), &resource)
    }
}

impl Followed for FlowClient {
    type Object = DynamicObject;
    type Record = DynamicObject;
    type View = FlowView;

    fn objects(&self) -> Api<DynamicObject> {
        let plural = match self.kind {
            FlowKind::JobFlow => "jobflows",
            FlowKind::DaemonJob => "daemonjobs",
        };
        self.api(FLOW_GROUP, self.kind.word(), plural)
    }

    fn records(&self) -> Api<DynamicObject> {
        self.api(OARLOCK_GROUP, "JobRecord", "jobrecords")
    }

    fn records_of(&self, object: &DynamicObject) -> Option<RecordsOf> {
        let is_cut = object.data.pointer("/status/tableTruncated").and_then(Value::as_bool);
        let uid = object.metadata.uid.as_ref().filter(|_| is_cut.unwrap_or_default())?;
        Some(RecordsOf::Labels(format!("{OWNER_UID}={uid}")))
    }

    fn shown<'a>(&self, object: &DynamicObject, records: impl Iterator<Item = &'a DynamicObject>) -> FlowView {
        let mut value = serde_json::to_value(object).unwrap_or_default();
        // The items of a list carry no kind.
        if let Some(fields) = value.as_object_mut() {
            fields.insert("kind".to_owned(), json!(self.kind.word()));
        }
        let own = records.filter(|record| {
            record.owner_references().iter().any(|owner| Some(&owner.uid) == object.metadata.uid.as_ref())
        });
        let records: Vec<Value> = own.filter_map(|record| serde_json::to_value(record).ok()).collect();
        FlowView::new(&value, &records)
    }

    fn explained(&self, cause: kube::Error, verb: &'static str, name: &str) -> anyhow::Error {
        let (kinds, short) = match self.kind {
            FlowKind::JobFlow => ("JobFlows", "jf"),
            FlowKind::DaemonJob => ("DaemonJobs", "dj"),
        };
        let namespace = self.client.namespace();
        explained(cause, &Asked { verb, kinds, short, name: Some(name), namespace, server: &self.client.server })
    }
}
