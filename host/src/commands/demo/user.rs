//! The user of the demo: kubectl's operations, done by a client that sees only what any user sees.

use std::path::PathBuf;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{GroupVersionKind, TypeMeta};
use kube::discovery::Scope;
use kube::discovery::oneshot::pinned_kind;
use kube::{Api, Client};
use oarlock_api::{OPERATION_JOB_GROUP, OperationJob, VERSION};
use oarlock_view::{FlowKind, FlowView, JobPlan};
use serde_json::{Value, json};

use crate::commands::in_memory::{self, NAMESPACE};
use crate::commands::jobs::JobClient;
use crate::commands::jobs::flows::{FLOW_GROUP, FlowClient};
use crate::commands::plan::{self, Sources};
use crate::manifests::HOST_NAMESPACE;

/// A user with kubectl's rights.
#[derive(Clone)]
pub(super) struct User {
    client: Client,
}

impl User {
    pub(super) fn new(client: Client) -> Self {
        Self { client }
    }

    fn jobs(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk(OPERATION_JOB_GROUP, VERSION, "OperationJob");
        Api::namespaced_with(self.client.clone(), NAMESPACE, &ApiResource::from_gvk(&kind))
    }

    /// `kubectl apply -f -` of objects that are not there yet; those that name no namespace get the one of the context.
    pub(super) async fn apply(&self, yaml: &str) -> anyhow::Result<()> {
        let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).context("what is applied is not YAML")?;
        for mut document in documents {
            let types: TypeMeta = serde_json::from_value(document.clone()).context("a document has no kind")?;
            let kind = GroupVersionKind::try_from(&types).context("a document has an invalid apiVersion")?;
            let known = pinned_kind(&self.client, &kind).await;
            let (_, capabilities) = known.with_context(|| format!("the cluster has no kind {}", kind.kind))?;
            let metadata = document.get_mut("metadata").and_then(Value::as_object_mut);
            if let Some(metadata) = metadata.filter(|_| capabilities.scope == Scope::Namespaced) {
                metadata.entry("namespace").or_insert_with(|| json!(NAMESPACE));
            }
            in_memory::create(&self.client, &document).await?;
        }
        Ok(())
    }

    /// `oarlock get jf/NAME`, or that of a DaemonJob.
    pub(super) async fn flow(&self, kind: FlowKind, name: &str) -> anyhow::Result<FlowView> {
        let client = JobClient::of(self.client.clone(), "the cluster in memory", NAMESPACE);
        FlowClient::of(client, kind).view(name).await
    }

    /// `kubectl patch jt NAME --type json`.
    pub(super) async fn patch_template(&self, name: &str, patch: Value) -> anyhow::Result<()> {
        let failed = || format!("cannot patch the JobTemplate {name}");
        let kind = GroupVersionKind::gvk(FLOW_GROUP, VERSION, "JobTemplate");
        let templates: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), NAMESPACE, &ApiResource::from_gvk(&kind));
        let patch = Patch::<()>::Json(serde_json::from_value(patch).with_context(failed)?);
        templates.patch(name, &PatchParams::default(), &patch).await.map(drop).with_context(failed)
    }

    /// `oarlock plan job.yaml --plugins DIR --server`.
    pub(super) async fn plan(&self, yaml: &str, plugins: PathBuf) -> anyhow::Result<JobPlan> {
        let sources = Sources {
            job: serde_saphyr::from_str(yaml).context("the job is not YAML")?,
            plugins: Some(plugins),
            grants: None,
            server: true,
            host_namespace: HOST_NAMESPACE.to_owned(),
        };
        let client = JobClient::of(self.client.clone(), "the cluster in memory", NAMESPACE);
        plan::make(client, None, sources, &plan::Progress::on_terminal()).await
    }

    /// `kubectl patch --type merge` of a job's spec.
    pub(super) async fn patch(&self, job: &str, spec: &Value) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({ "spec": spec }));
        let patched = self.jobs().patch(job, &PatchParams::default(), &patch).await;
        patched.map(drop).with_context(|| format!("cannot patch {job}"))
    }

    /// `kubectl get opj`, as a number.
    pub(super) async fn jobs_there(&self) -> anyhow::Result<usize> {
        let listed = self.jobs().list(&ListParams::default()).await;
        Ok(listed.context("cannot list the jobs")?.items.len())
    }

    /// `kubectl get opj NAME -o yaml`.
    pub(super) async fn job(&self, name: &str) -> anyhow::Result<OperationJob> {
        let failed = || format!("cannot read job {name}");
        let object = self.jobs().get(name).await.with_context(failed)?;
        serde_json::from_value(serde_json::to_value(object).with_context(failed)?).with_context(failed)
    }

    /// `kubectl label namespace NAMESPACE oarlock.dev/node-operations=true`.
    pub(super) async fn allow_node_operations(&self) -> anyhow::Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({"metadata": {"labels": {"oarlock.dev/node-operations": "true"}}}));
        let patched = namespaces.patch(NAMESPACE, &PatchParams::default(), &patch).await;
        patched.map(drop).context("cannot label the namespace")
    }

    /// `kubectl cordon NODE` and `kubectl uncordon NODE`.
    pub(super) async fn cordon(&self, node: &str, cordoned: bool) -> anyhow::Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({"spec": {"unschedulable": cordoned}}));
        let patched = nodes.patch(node, &PatchParams::default(), &patch).await;
        patched.map(drop).with_context(|| format!("cannot cordon {node}"))
    }

    /// `kubectl create pdb APP`, or a change of how many of its pods have to stay.
    pub(super) async fn budget(&self, app: &str, min_available: i32) -> anyhow::Result<()> {
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(self.client.clone(), NAMESPACE);
        let failed = || format!("cannot write the disruption budget {app}");
        let spec = json!({"minAvailable": min_available, "selector": {"matchLabels": {"app": app}}});
        if budgets.get_opt(app).await.with_context(failed)?.is_some() {
            let patch = Patch::Merge(json!({ "spec": spec }));
            return budgets.patch(app, &PatchParams::default(), &patch).await.map(drop).with_context(failed);
        }
        let budget = serde_json::from_value(json!({"metadata": {"name": app}, "spec": spec})).with_context(failed)?;
        budgets.create(&PostParams::default(), &budget).await.map(drop).with_context(failed)
    }

    /// `kubectl get nodes`.
    pub(super) async fn nodes(&self) -> anyhow::Result<Vec<Node>> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        Ok(nodes.list(&ListParams::default()).await.context("cannot list the nodes")?.items)
    }

    /// `kubectl get pods -l app=APP`, oldest first.
    pub(super) async fn pods(&self, app: &str) -> anyhow::Result<Vec<Pod>> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let listed = api.list(&ListParams::default().labels(&format!("app={app}"))).await;
        let mut pods = listed.with_context(|| format!("cannot list the pods of {app}"))?.items;
        pods.sort_by(|a, b| {
            let age =
                |pod: &Pod| (pod.metadata.creation_timestamp.clone().map(|time| time.0), pod.metadata.name.clone());
            age(a).cmp(&age(b))
        });
        Ok(pods)
    }
}
