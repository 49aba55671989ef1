//! Holds forged by kubelets, by schedulers, and by users who may write the status of pods, on a real API server with NodeRestriction.

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use oarlock::manifests::{GrantedAccess, HOST_NAMESPACE, PodPolicies, manifests_with};
use oarlock_core::object::api_object::{Kind, Object, ObjectKey};
use oarlock_core::operation_job::holds::holders;
use oarlock_core::requests::writes::Write;
use oarlock_kube::lease::fence::Fence;
use oarlock_kube::transport::client::{Source, connect};
use oarlock_kube::watch::objects::{WatchedKind, WatchedKinds};
use oarlock_kube::{Cluster, Setup};
use oarlock_scenarios::components::{GRANTS, MAINTAIN_GRANTS};
use oarlock_scenarios::test_cluster::patiently;
use oarlock_support::accounts::Account;
use oarlock_support::control_plane::{self, ControlPlane};
use oarlock_support::install::{self, Way};
use serde_json::{Value, json};

use super::{dry_run, hold, labelled};

const NAMESPACE: &str = "granted";
/// Words of the refusal for each kind of object.
const OF_NODES: &str = "only the Oarlock host may add or change hold.oarlock.dev/*";
const OF_PODS: &str = "only the Oarlock host may add the label oarlock.dev/held";

/// Starts a control plane whose kubelets have the usual rights, with these policies for pods and the policy for nodes.
async fn plane(policies: PodPolicies) -> anyhow::Result<ControlPlane> {
    // RBAC is enabled already.
    let flags = ["--authorization-mode=Node", "--enable-admission-plugins=NodeRestriction"];
    let api_server_flags = flags.map(str::to_owned).into();
    let plane = control_plane::start(control_plane::Options { api_server_flags, ..Default::default() }).await?;
    let grants = format!("{GRANTS}\n---\n{MAINTAIN_GRANTS}").replace("\"*\"", NAMESPACE);
    let grants = oarlock_wasm::parse_grants(&grants)?;
    let access = GrantedAccess::of(grants);
    let mut documents = install::documents(&manifests_with(&access, policies)?)?;
    documents.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}));
    let group = "rbac.authorization.k8s.io";
    let rules =
        json!([{"apiGroups": [""], "resources": ["pods/status", "pods/binding"], "verbs": ["patch", "create"]}]);
    let metadata = json!({"name": "operator", "namespace": NAMESPACE});
    documents.push(json!({"apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": metadata, "rules": rules}));
    documents.push(json!({"apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "operator"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": Account::Visitor.user()}]}));
    let taints = json!([{"key": "quarantine", "effect": "NoExecute"}]);
    documents.push(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {"taints": taints}}));
    for (name, node) in [("bound", Some("n")), ("pending", None)] {
        let spec = json!({"nodeName": node, "containers": [{"name": "c", "image": "none"}]});
        let metadata = json!({"name": name, "namespace": NAMESPACE});
        documents.push(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}));
    }
    install::install(&plane.client(Account::Admin).await?, &documents, Way::CreateMissing).await?;
    Ok(plane)
}

/// Returns a client for the kubelet of the node.
async fn kubelet(plane: &ControlPlane) -> anyhow::Result<Client> {
    let mut config = plane.config(Account::Admin).await?;
    config.auth_info.impersonate = Some("system:node:n".to_owned());
    config.auth_info.impersonate_groups = Some(vec!["system:nodes".to_owned()]);
    Client::try_from(config).context("cannot make a client for the kubelet")
}

/// Returns the refusal of the server to a request, or an empty text if the server accepts the request.
fn against<T>(answer: kube::Result<T>) -> anyhow::Result<String> {
    match answer {
        Ok(_) => Ok(String::new()),
        Err(kube::Error::Api(status)) => Ok(status.message),
        Err(cause) => Err(cause.into()),
    }
}

/// SECURITY.md, docs/grants.md: a kubelet cannot name what the host removes from a node.
#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_adds_no_hold_to_its_node_by_its_status_either() -> anyhow::Result<()> {
    let plane = plane(PodPolicies::USUAL).await?;
    let options = PatchParams::default();
    let nodes: Api<Node> = Api::all(kubelet(&plane).await?);
    patiently("the policy is in force", async || {
        let said = against(nodes.patch_status("n", &dry_run(), &Patch::Merge(hold("[]"))).await)?;
        Ok(said.contains(OF_NODES))
    })
    .await?;
    let by_status = async |body: Value| against(nodes.patch_status("n", &options, &Patch::Merge(body)).await);
    let directly = async |body: Value| against(nodes.patch("n", &options, &Patch::Merge(body)).await);
    let forged = hold("[\"taint:quarantine:NoExecute\",\"cordon\"]");
    for said in [by_status(forged.clone()).await?, directly(forged.clone()).await?] {
        ensure!(said.contains(OF_NODES), "{said}");
    }
    let gone = json!({"metadata": {"annotations": null}});
    ensure!(directly(gone.clone()).await?.is_empty(), "it may remove them");
    let conditions =
        json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "x", "message": "x"}]}});
    ensure!(by_status(conditions.clone()).await?.is_empty(), "a status is none of our business");
    let host: Api<Node> = Api::all(plane.client(Account::Host).await?);
    let held = hold("[\"cordon\"]");
    patiently("the host holds the node", async || {
        Ok(against(host.patch("n", &options, &Patch::Merge(held.clone())).await)?.is_empty())
    })
    .await?;
    ensure!(by_status(conditions).await?.is_empty(), "nor is one of a node that is held");
    let said = by_status(forged).await?;
    ensure!(said.contains(OF_NODES), "it widens no hold: {said}");
    ensure!(by_status(gone).await?.is_empty(), "it may remove one");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_policy_of_holds_nobody_makes_a_pod_held_by_its_status_or_its_binding() -> anyhow::Result<()> {
    let plane = plane(PodPolicies::ALL).await?;
    let options = PatchParams::default();
    let pods: Api<Pod> = Api::namespaced(plane.client(Account::Visitor).await?, NAMESPACE);
    patiently("the policy is in force", async || {
        let said = against(pods.patch_status("bound", &dry_run(), &Patch::Merge(labelled("[]"))).await)?;
        Ok(said.contains(OF_PODS))
    })
    .await?;
    let by_status = async |body: Value| against(pods.patch_status("bound", &options, &Patch::Merge(body)).await);
    let admin: Api<Pod> = Api::namespaced(plane.client(Account::Admin).await?, NAMESPACE);
    ensure!(by_status(hold("[\"finalizer:x\"]")).await?.is_empty(), "without the label it is no hold");
    let said = by_status(json!({"metadata": {"labels": {"oarlock.dev/held": "true"}}})).await?;
    ensure!(said.contains(OF_PODS), "{said}");
    let of_node: Api<Pod> = Api::namespaced(kubelet(&plane).await?, NAMESPACE);
    let said = against(of_node.patch_status("bound", &options, &Patch::Merge(labelled("[\"finalizer:x\"]"))).await)?;
    ensure!(!said.is_empty(), "NodeRestriction or the policy refuses a kubelet");
    let mut binding = binding();
    let said = bind(&plane, &binding).await?;
    ensure!(said.contains(OF_PODS), "{said}");
    binding["metadata"]["labels"] = Value::Null;
    let said = bind(&plane, &binding).await?;
    ensure!(said.is_empty(), "a scheduler binds: {said}");
    let bound = admin.get("pending").await?;
    ensure!(bound.metadata.labels.is_none_or(|labels| !labels.contains_key("oarlock.dev/held")), "and it is not held");
    Ok(())
}

/// Returns a binding of the pending pod with a hold. The server copies the labels and annotations of a binding to the pod, and no policy sees that
/// pod.
fn binding() -> Value {
    let metadata = json!({"name": "pending", "labels": {"oarlock.dev/held": "true"},
        "annotations": {"hold.oarlock.dev/00000000-0000-0000-0000-000000000000": "[\"finalizer:x\"]"}});
    let target = json!({"apiVersion": "v1", "kind": "Node", "name": "n"});
    json!({"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target})
}

async fn bind(plane: &ControlPlane, body: &Value) -> anyhow::Result<String> {
    let request = http::Request::post(format!("/api/v1/namespaces/{NAMESPACE}/pods/pending/binding"))
        .header("Content-Type", "application/json")
        .body(serde_json::to_vec(body)?)?;
    against(plane.client(Account::Visitor).await?.request::<Value>(request).await)
}

/// SECURITY.md: a user who may write a pod can remove a hold, but cannot make one.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_may_write_a_pod_its_status_or_its_binding_makes_no_hold() -> anyhow::Result<()> {
    let plane = plane(PodPolicies::NONE).await?;
    let path = plane.kubeconfig(Account::Host)?;
    let (client, _server) = connect(&Source::Kubeconfig { path, context: None }).await?;
    let setup = Setup { client, clock: std::sync::Arc::new(Timestamp::now), identity: "host-0".into() };
    let (cluster, _events) = Cluster::open(setup);
    cluster.prove_holds_in(HOST_NAMESPACE);
    patiently("the host may read its keys", async || Ok(cluster.keep_hold_keys().await.is_ok())).await?;
    let kinds = [(Kind::pod(), WatchedKind::default())].into();
    cluster.declare(WatchedKinds { kinds, ..WatchedKinds::default() }).await;
    cluster.synced(&[Kind::pod()]).await;
    let own = json!({"metadata": {"uid": shown(&cluster, "bound").context("the pod")?.uid,
        "annotations": {"hold.oarlock.dev/own": "[\"label:l\"]"}}});
    let failed = cluster.clean_up(vec![Write::patch(&ObjectKey::pod(NAMESPACE, "bound"), own)], &Fence::open()).await;
    ensure!(failed.is_empty(), "the host holds a pod, and no policy asks by what right");
    let options = PatchParams::default();
    let (tenant, kubelet) = (plane.client(Account::Admin).await?, kubelet(&plane).await?);
    let pods = |client: Client| Api::<Pod>::namespaced(client, NAMESPACE);
    let proof = pods(tenant.clone()).get("bound").await?.annotations()["hold.oarlock.dev/own"].clone();
    let forged = labelled("[\"finalizer:x\"]");
    let by_tenant = against(pods(tenant.clone()).patch("bound", &options, &Patch::Merge(&forged)).await)?;
    let by_operator = pods(plane.client(Account::Visitor).await?);
    let by_status =
        against(by_operator.patch_status("bound", &options, &Patch::Merge(labelled("[\"label:app\"]"))).await)?;
    // NodeRestriction may refuse a kubelet that writes any metadata.
    let of_kubelet = pods(kubelet).patch_status("bound", &options, &Patch::Merge(&forged)).await;
    ensure!(by_tenant.is_empty() && by_status.is_empty(), "{by_tenant} {by_status} {of_kubelet:?}");
    ensure!(bind(&plane, &binding()).await?.is_empty(), "a scheduler binds");
    let copy =
        json!({"metadata": {"labels": {"oarlock.dev/held": "true"}, "annotations": {"hold.oarlock.dev/own": proof}}});
    ensure!(against(pods(tenant.clone()).patch("pending", &options, &Patch::Merge(copy)).await)?.is_empty());
    let last = pods(tenant).get("pending").await?.metadata.resource_version;
    patiently("the host sees all of that", async || {
        Ok(shown(&cluster, "pending").is_some_and(|pod| Some(&pod.resource_version) == last.as_ref()))
    })
    .await?;
    for (name, expected) in [("bound", vec!["own"]), ("pending", vec![])] {
        let pod = shown(&cluster, name).context("the pod")?;
        let found: Vec<&str> = holders(&pod).collect();
        ensure!(found == expected, "{name} is held by {found:?}: {:?}", pod.stray_holds);
    }
    ensure!(
        cluster.old_hold_policy().is_none()
            && cluster.adopt_holds(&Fence::open()).await.is_ok_and(|left| left.is_none())
    );
    Ok(())
}

fn shown(cluster: &Cluster, name: &str) -> Option<std::sync::Arc<Object>> {
    cluster.store().get(&ObjectKey::pod(NAMESPACE, name))
}
