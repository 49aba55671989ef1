//! Everything that the host reads, forged one field at a time, on a real API server with NodeRestriction. Each row of SECURITY.md's table that the
//! server refuses is tested here. The scenarios that SECURITY.md names test the rows that the server accepts and the host does not believe.

use std::time::Duration;

use anyhow::ensure;
use http::Method;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::Api;
use oarlock::manifests::{GrantedAccess, PodPolicies, flow_manifests, manifests_with};
use oarlock_scenarios::components::{GRANTS, MAINTAIN_GRANTS};
use oarlock_scenarios::test_cluster::patiently;
use oarlock_support::accounts::Account;
use oarlock_support::control_plane::{self, ControlPlane};
use oarlock_support::install::{self, Way};
use serde_json::{Value, json};

use super::{AGGREGATION, bind};

const OWN: &str = "granted";
/// The longest time until a stored policy or role is in force.
const IN_FORCE: Duration = Duration::from_secs(15);
const TASKS: &str = "{apiVersion: oarlock.dev/v1alpha1, kind: ActionPlugin, metadata: {name: checks}, spec: {anyVersion: true, \
                     namespaces: [granted], tasks: [{name: run-on-node, scripts: true}]}}";

/// The account that forges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// A user with the role `edit` in one namespace.
    Editor,
    /// The kubelet of the node `n`.
    Kubelet,
    /// The account of the pods that run tasks.
    Task,
    /// A thief of the host's account.
    Host,
}

impl Who {
    fn user(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Editor => (Account::Visitor.user(), &["visitors"]),
            Self::Kubelet => ("system:node:n", &["system:nodes"]),
            Self::Task => ("system:serviceaccount:oarlock-tasks:default", &["system:serviceaccounts"]),
            Self::Host => (Account::Host.user(), &["system:serviceaccounts"]),
        }
    }
}

/// One forgery: the account, the forged thing, the request, and a word of the refusal.
struct Row {
    who: Who,
    what: &'static str,
    request: (Method, String, Value),
    word: &'static str,
}

/// Returns the refusal of the server to a dry run of the request, if there is one.
async fn refusal(client: &Client, row: &Row) -> anyhow::Result<Option<String>> {
    let (method, path, body) = &row.request;
    let content = if *method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let dry_run = if *method == Method::GET { "" } else { "?dryRun=All" };
    let (user, groups) = row.who.user();
    let mut request = http::Request::builder().method(method).uri(format!("{path}{dry_run}"));
    request = request.header("content-type", content).header("impersonate-user", user);
    for group in groups.iter().chain(&["system:authenticated"]) {
        request = request.header("impersonate-group", *group);
    }
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    match client.request::<Value>(request.body(body)?).await {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) => Ok(Some(status.message)),
        Err(cause) => Err(cause.into()),
    }
}

fn of(group: &str, namespace: &str, rest: &str) -> String {
    match group {
        "" => format!("/api/v1/namespaces/{namespace}/{rest}"),
        group => format!("/apis/{group}/namespaces/{namespace}/{rest}"),
    }
}

const OPERATIONS: &str = "apps.kusionstack.io/v1alpha1";
const FLOWS: &str = "api.practice.com/v1alpha1";
const OARLOCK: &str = "oarlock.dev/v1alpha1";

fn held() -> Value {
    json!({"metadata": {"labels": {"oarlock.dev/held": "true"}, "annotations": {"hold.oarlock.dev/x": "[\"taint:quarantine:NoExecute\"]"}}})
}

fn object(api_version: &str, kind: &str, metadata: Value, rest: Value) -> Value {
    let mut object = json!({"apiVersion": api_version, "kind": kind, "metadata": metadata});
    if let (Some(fields), Value::Object(rest)) = (object.as_object_mut(), rest) {
        fields.extend(rest);
    }
    object
}

fn pod(metadata: Value) -> Value {
    object("v1", "Pod", metadata, json!({"spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}}))
}

fn mirror(labels: Value, node: &str) -> Value {
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": node, "controller": true}]);
    pod(
        json!({"name": "m", "labels": labels, "annotations": {"kubernetes.io/config.mirror": "x"}, "ownerReferences": owner}),
    )
}

fn job(owners: Value) -> Value {
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    object("batch/v1", "Job", json!({"name": "j", "ownerReferences": owners}), json!({"spec": {"template": template}}))
}

fn flow_as_owner() -> Value {
    json!([{"apiVersion": FLOWS, "kind": "JobFlow", "name": "f", "uid": "00000000-0000-0000-0000-000000000001", "controller": true}])
}

fn operation(more: Value) -> Value {
    let mut spec = json!({"action": "Replace", "targets": [{"name": "p"}]});
    if let (Some(fields), Value::Object(more)) = (spec.as_object_mut(), more) {
        fields.extend(more);
    }
    object(OPERATIONS, "OperationJob", json!({"name": "new"}), json!({ "spec": spec }))
}

/// Forgeries of a user with `edit` in the namespace.
fn by_editor() -> Vec<Row> {
    let status = json!({"status": {"progress": "Succeeded", "state": "Succeed"}});
    let record = |kind: &str| object(OARLOCK, kind, json!({"name": "x"}), json!({}));
    let script = object("v1", "ConfigMap", json!({"name": "oarlock-script-x"}), json!({"data": {"script": "reboot"}}));
    let (patch, post) = (Method::PATCH, Method::POST);
    let cannot = "cannot ";
    let held_label = "only the Oarlock host may add the label oarlock.dev/held";
    let rows = [
        (
            "the status of an OperationJob",
            patch.clone(),
            of(OPERATIONS, OWN, "operationjobs/j/status"),
            status.clone(),
            cannot,
        ),
        ("the status of a JobFlow", patch.clone(), of(FLOWS, OWN, "jobflows/f/status"), status.clone(), cannot),
        ("the status of a DaemonJob", patch.clone(), of(FLOWS, OWN, "daemonjobs/d/status"), status.clone(), cannot),
        ("the status of a JobTemplate", patch.clone(), of(FLOWS, OWN, "jobtemplates/t/status"), status.clone(), cannot),
        ("the status of a Job", patch.clone(), of("batch/v1", OWN, "jobs/j/status"), status, cannot),
        ("an OperationRecord", post.clone(), of(OARLOCK, OWN, "operationrecords"), record("OperationRecord"), cannot),
        ("a change of an OperationRecord", patch.clone(), of(OARLOCK, OWN, "operationrecords/x"), json!({}), cannot),
        ("a JobRecord", post.clone(), of(OARLOCK, OWN, "jobrecords"), record("JobRecord"), cannot),
        ("a change of a JobRecord", patch.clone(), of(OARLOCK, OWN, "jobrecords/x"), json!({}), cannot),
        ("a hold of a pod", patch.clone(), of("", OWN, "pods/p"), held(), held_label),
        (
            "the label of a held pod",
            patch.clone(),
            of("", OWN, "pods/p"),
            json!({"metadata": {"labels": {"oarlock.dev/held": "true"}}}),
            held_label,
        ),
        (
            "a pod that is made with a hold",
            post.clone(),
            of("", OWN, "pods"),
            pod(
                json!({"name": "new", "labels": {"oarlock.dev/held": "true"}, "annotations": {"hold.oarlock.dev/x": "[]"}}),
            ),
            held_label,
        ),
        ("a hold by a pod's status", patch.clone(), of("", OWN, "pods/p/status"), held(), cannot),
        (
            "a hold by a binding",
            post.clone(),
            of("", OWN, "pods/p/binding"),
            object(
                "v1",
                "Binding",
                json!({"name": "p", "labels": {"oarlock.dev/held": "true"}}),
                json!({"target": {"kind": "Node", "name": "n"}}),
            ),
            cannot,
        ),
        ("the pod of a task", post.clone(), of("", "oarlock-tasks", "pods"), pod(json!({"name": "t"})), cannot),
        ("the script or the output of a task", post.clone(), of("", "oarlock-tasks", "configmaps"), script, cannot),
        ("a hold of a node", patch.clone(), "/api/v1/nodes/n".to_owned(), held(), cannot),
        ("a hold by a node's status", patch.clone(), "/api/v1/nodes/n/status".to_owned(), held(), cannot),
        (
            "the label of a namespace for nodes",
            patch.clone(),
            format!("/api/v1/namespaces/{OWN}"),
            json!({"metadata": {"labels": {"oarlock.dev/node-operations": "true"}}}),
            cannot,
        ),
        (
            "the lease",
            patch.clone(),
            of("coordination.k8s.io/v1", "oarlock-system", "leases/oarlock"),
            json!({"spec": {"holderIdentity": "me"}}),
            cannot,
        ),
        (
            "the grants",
            patch.clone(),
            of("", "oarlock-system", "configmaps/oarlock-grants"),
            json!({"data": {}}),
            cannot,
        ),
        ("the host", patch, of("apps/v1", "oarlock-system", "deployments/oarlock"), json!({}), cannot),
        (
            "a job on nodes without the label",
            post.clone(),
            of(OPERATIONS, OWN, "operationjobs"),
            operation(json!({"targetKind": "Node"})),
            "oarlock.dev/node-operations=true",
        ),
        (
            "an OperationJob of another namespace",
            post.clone(),
            of(OPERATIONS, "other", "operationjobs"),
            operation(json!({})),
            cannot,
        ),
        (
            "an OperationJob of an OpsJob",
            post.clone(),
            of(OPERATIONS, "oarlock-ops", "operationjobs"),
            operation(json!({})),
            cannot,
        ),
        ("a Job of another namespace", post, of("batch/v1", "other", "jobs"), job(flow_as_owner()), cannot),
    ];
    rows.map(|(what, method, path, body, word)| Row { who: Who::Editor, what, request: (method, path, body), word })
        .into()
}

/// Forgeries of the kubelet of a node.
fn by_kubelet(node: &str) -> Vec<Row> {
    let of_nodes = "only the Oarlock host may add or change hold.oarlock.dev/*";
    let held_label = "only the Oarlock host may add the label oarlock.dev/held";
    let of_tasks = "only the Oarlock host may create pods";
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "x", "message": "x"}]}});
    let of_task = json!({"oarlock.dev/task": "check", "oarlock.dev/job-uid": "00000000-0000-0000-0000-000000000001"});
    let restricted = json!({"metadata": {"labels": {"node-restriction.kubernetes.io/workspace": "a"}}});
    let (patch, post) = (Method::PATCH, Method::POST);
    let rows = [
        ("a hold of its node", patch.clone(), "/api/v1/nodes/n".to_owned(), held(), of_nodes),
        ("a hold by its node's status", patch.clone(), "/api/v1/nodes/n/status".to_owned(), held(), of_nodes),
        (
            "the end of its quarantine",
            patch.clone(),
            "/api/v1/nodes/n".to_owned(),
            json!({"spec": {"taints": []}}),
            "not allowed to modify taints",
        ),
        (
            "a label that is kept from nodes",
            patch.clone(),
            "/api/v1/nodes/n".to_owned(),
            restricted,
            "not allowed to modify labels",
        ),
        (
            "the status of another node",
            patch.clone(),
            "/api/v1/nodes/other/status".to_owned(),
            ready.clone(),
            "forbidden",
        ),
        (
            "the result of a task, by a mirror pod",
            post.clone(),
            of("", "oarlock-tasks", "pods"),
            mirror(of_task, node),
            of_tasks,
        ),
        (
            "a held mirror pod",
            post.clone(),
            of("", OWN, "pods"),
            mirror(json!({"oarlock.dev/held": "true"}), node),
            held_label,
        ),
        (
            "a hold by the status of its pod",
            patch.clone(),
            of("", OWN, "pods/p/status"),
            held(),
            "cannot update labels through pod status",
        ),
        (
            "the status of a pod of another node",
            patch.clone(),
            of("", OWN, "pods/q/status"),
            ready,
            "can only update pod status for pods with spec.nodeName set to itself",
        ),
        ("a Job of a flow", post.clone(), of("batch/v1", OWN, "jobs"), job(flow_as_owner()), "cannot "),
        (
            "the status of an OperationJob",
            patch.clone(),
            of(OPERATIONS, OWN, "operationjobs/j/status"),
            json!({"status": {}}),
            "cannot ",
        ),
        (
            "the script or the output of a task",
            post,
            of("", "oarlock-tasks", "configmaps"),
            object("v1", "ConfigMap", json!({"name": "x"}), json!({})),
            "forbidden",
        ),
        (
            "the lease",
            patch,
            of("coordination.k8s.io/v1", "oarlock-system", "leases/oarlock"),
            json!({"spec": {"holderIdentity": "me"}}),
            "forbidden",
        ),
    ];
    rows.map(|(what, method, path, body, word)| Row { who: Who::Kubelet, what, request: (method, path, body), word })
        .into()
}

/// Forgeries of the account of the pods that run tasks, which has no rights.
fn by_task() -> Vec<Row> {
    let rows = [
        ("the pod of another task", Method::POST, of("", "oarlock-tasks", "pods"), pod(json!({"name": "t"}))),
        (
            "the output of another task",
            Method::POST,
            of("", "oarlock-tasks", "configmaps"),
            object("v1", "ConfigMap", json!({"name": "x"}), json!({})),
        ),
        (
            "the status of an OperationJob",
            Method::PATCH,
            of(OPERATIONS, OWN, "operationjobs/j/status"),
            json!({"status": {}}),
        ),
        ("its node", Method::PATCH, "/api/v1/nodes/n".to_owned(), held()),
        ("a Secret", Method::GET, of("", "oarlock-system", "secrets"), Value::Null),
    ];
    rows.map(|(what, method, path, body)| Row { who: Who::Task, what, request: (method, path, body), word: "cannot " })
        .into()
}

/// Forgeries of a thief of the host's account.
fn by_host() -> Vec<Row> {
    let label = json!({"metadata": {"labels": {"oarlock.dev/node-operations": "true"}}});
    let admin = object(
        "rbac.authorization.k8s.io/v1",
        "ClusterRoleBinding",
        json!({"name": "x"}),
        json!({"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}}),
    );
    let (patch, post, cannot) = (Method::PATCH, Method::POST, "cannot ");
    let rows = [
        (
            "a Job where the cluster lives",
            post.clone(),
            of("batch/v1", "kube-system", "jobs"),
            job(flow_as_owner()),
            "denied request",
        ),
        (
            "a Job beside the host",
            post.clone(),
            of("batch/v1", "oarlock-system", "jobs"),
            job(flow_as_owner()),
            "denied request",
        ),
        (
            "a Job beside the tasks",
            post.clone(),
            of("batch/v1", "oarlock-tasks", "jobs"),
            job(flow_as_owner()),
            "denied request",
        ),
        ("a Job of nobody", post.clone(), of("batch/v1", OWN, "jobs"), job(json!([])), "denied request"),
        (
            "an OperationJob of nobody",
            post.clone(),
            of(OPERATIONS, OWN, "operationjobs"),
            operation(json!({})),
            "denied request",
        ),
        (
            "the image of a pod",
            patch.clone(),
            of("", OWN, "pods/p"),
            json!({"spec": {"containers": [{"name": "c", "image": "mine"}]}}),
            "denied request",
        ),
        (
            "the owner of a pod",
            patch.clone(),
            of("", OWN, "pods/p"),
            json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "u"}]}}),
            "only labels, annotations and finalizers of pods",
        ),
        ("a pod of a namespace without grants", patch.clone(), of("", "other", "pods/p"), held(), cannot),
        ("the label of a namespace for nodes", patch.clone(), format!("/api/v1/namespaces/{OWN}"), label, cannot),
        (
            "the grants",
            patch.clone(),
            of("", "oarlock-system", "configmaps/oarlock-grants"),
            json!({"data": {}}),
            cannot,
        ),
        ("its own Deployment", patch, of("apps/v1", "oarlock-system", "deployments/oarlock"), json!({}), cannot),
        (
            "the token of another account",
            post.clone(),
            of("", OWN, "serviceaccounts/default/token"),
            object("authentication.k8s.io/v1", "TokenRequest", json!({}), json!({"spec": {}})),
            cannot,
        ),
        ("all rights", post, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings".to_owned(), admin, cannot),
        ("a Secret", Method::GET, of("", OWN, "secrets"), Value::Null, cannot),
    ];
    rows.map(|(what, method, path, body, word)| Row { who: Who::Host, what, request: (method, path, body), word })
        .into()
}

async fn plane() -> anyhow::Result<ControlPlane> {
    // RBAC is enabled already.
    let flags = ["--authorization-mode=Node", "--enable-admission-plugins=NodeRestriction"];
    let api_server_flags = flags.map(str::to_owned).into();
    let options = control_plane::Options { api_server_flags, controllers: vec![AGGREGATION], ..Default::default() };
    let plane = control_plane::start(options).await?;
    let grants = format!("{GRANTS}\n---\n{MAINTAIN_GRANTS}").replace("\"*\"", OWN);
    let access = GrantedAccess::of(oarlock_wasm::parse_grants(&format!("{grants}\n---\n{TASKS}"))?);
    let mut documents = install::documents(&manifests_with(&access, PodPolicies::ALL)?)?;
    documents.extend(install::documents(&flow_manifests()?)?);
    for name in [OWN, "other", "oarlock-ops"] {
        documents.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
    }
    for name in ["n", "other"] {
        let taints = json!([{"key": "quarantine", "effect": "NoExecute"}]);
        documents
            .push(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"taints": taints}}));
    }
    for namespace in [OWN, "oarlock-tasks"] {
        documents.push(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": namespace}}));
    }
    for (name, node) in [("p", "n"), ("q", "other")] {
        let spec = json!({"nodeName": node, "containers": [{"name": "c", "image": "none"}]});
        documents.push(object("v1", "Pod", json!({"name": name, "namespace": OWN}), json!({ "spec": spec })));
    }
    let admin = plane.client(Account::Admin).await?;
    install::install(&admin, &documents, Way::CreateMissing).await?;
    bind(&admin, "edit").await?;
    Ok(plane)
}

/// SECURITY.md: the writes that the API server refuses.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_writes_what_the_host_would_believe() -> anyhow::Result<()> {
    let plane = plane().await?;
    let client = plane.client(Account::Admin).await?;
    let node = Api::<Node>::all(client.clone()).get("n").await?.metadata.uid.unwrap_or_default();
    let rows: Vec<Row> = [by_editor(), by_kubelet(&node), by_task(), by_host()].into_iter().flatten().collect();
    // A control: an editor may create a Job that names a flow as its owner, because the host does not believe it. Thus the server does not refuse the
    // rows merely because rights are missing.
    let allowed = Row {
        who: Who::Editor,
        what: "a Job that names a flow as its owner",
        request: (Method::POST, of("batch/v1", OWN, "jobs"), job(flow_as_owner())),
        word: "",
    };
    patiently("the roles are in force", async || Ok(refusal(&client, &allowed).await?.is_none())).await?;
    let mut believed = Vec::new();
    for row in &rows {
        // A policy is in force a moment after it is stored.
        let refused = async || Ok(refusal(&client, row).await?.is_some_and(|said| said.contains(row.word)));
        if tokio::time::timeout(IN_FORCE, patiently(row.what, refused)).await.is_err() {
            let said = refusal(&client, row).await?;
            believed.push(format!("{:?} forges {}: {said:?}, and not {:?}", row.who, row.what, row.word));
        }
    }
    ensure!(believed.is_empty(), "{}", believed.join("\n"));
    println!("{} forgeries tried, all refused", rows.len());
    ensure!(rows.len() >= 40, "{} rows", rows.len());
    Ok(())
}
