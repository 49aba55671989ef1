//! Requests that the policies of `oarlock manifests` refuse to the host's account, to kubelets and to users, on a real API server.

use std::sync::Arc;

use anyhow::{Context as _, ensure};
use http::Method;
use kube::Client;
use oarlock::manifests::{GrantedAccess, PodPolicies, flow_manifests, flow_manifests_with, manifests_with};
use oarlock_scenarios::host_process::HostProcess;
use oarlock_scenarios::test_cluster::patiently;
use oarlock_support::accounts::Account;
use oarlock_support::control_plane::{self, ControlPlane};
use oarlock_support::install::{self, Way};
use serde_json::{Value, json};

use super::{AGGREGATION, NAMESPACES, allowed};

/// A plugin for pods and nodes that runs tasks.
const NODE_GRANTS: &str = "{apiVersion: oarlock.dev/v1alpha1, kind: ActionPlugin, metadata: {name: checks}, spec: {anyVersion: true, \
                           namespaces: [granted], tasks: [{name: run-on-node, scripts: true}]}}";

/// Starts a control plane with the manifests of these grants and the documents of flows or OpsJobs.
pub(super) async fn plane(flows: &str) -> anyhow::Result<Arc<ControlPlane>> {
    let options = control_plane::Options { controllers: vec![AGGREGATION], ..Default::default() };
    let plane = control_plane::start(options).await?;
    let access = GrantedAccess::of(oarlock_wasm::parse_grants(NODE_GRANTS)?);
    let mut documents = install::documents(&manifests_with(&access, PodPolicies::NONE)?)?;
    documents.extend(install::documents(flows)?);
    let namespace = |name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    documents.extend(NAMESPACES.into_iter().chain(["oarlock-ops"]).map(namespace));
    install::install(&plane.client(Account::Admin).await?, &documents, Way::Apply).await?;
    Ok(Arc::new(plane))
}

/// Sends a request as the client's account or as another user. Returns the refusal of the server, if there is one.
async fn refusal(
    client: &Client,
    user: Option<&str>,
    (method, path): (Method, &str),
    body: &Value,
) -> anyhow::Result<Option<String>> {
    let content = match body {
        Value::Array(_) => "application/json-patch+json",
        _ if method == Method::PATCH => "application/merge-patch+json",
        _ => "application/json",
    };
    let mut request = http::Request::builder().method(method).uri(path).header("content-type", content);
    if let Some(user) = user {
        request = request.header("impersonate-user", user);
    }
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    match client.request::<Value>(request.body(body)?).await {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) => Ok(Some(status.message)),
        Err(cause) => Err(cause.into()),
    }
}

fn jobs_of(namespace: &str) -> String {
    format!("/apis/batch/v1/namespaces/{namespace}/jobs")
}

pub(super) fn operations_of(namespace: &str) -> String {
    format!("/apis/apps.kusionstack.io/v1alpha1/namespaces/{namespace}/operationjobs")
}

fn job(name: &str, owners: &Value) -> Value {
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "ownerReferences": owners, "labels": {"a": "b"}},
        "spec": {"suspend": false, "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}})
}

pub(super) fn operation(name: &str, owners: &Value) -> Value {
    json!({"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob", "metadata": {"name": name,
        "ownerReferences": owners}, "spec": {"action": "Replace", "targets": [{"name": "p"}], "partition": 0}})
}

pub(super) fn owned(api_version: &str, kind: &str, controller: bool) -> Value {
    json!([{"apiVersion": api_version, "kind": kind, "name": "o", "uid": "00000000-0000-0000-0000-000000000001",
        "controller": controller}])
}

/// Sends the requests of one account to one server.
pub(super) struct Requests {
    pub(super) client: Client,
    pub(super) user: Option<&'static str>,
}

impl Requests {
    pub(super) async fn of(plane: &ControlPlane, account: Account) -> anyhow::Result<Self> {
        Ok(Self { client: plane.client(account).await?, user: None })
    }

    /// Waits until the server would refuse the request with these words, and sends it then.
    ///
    /// A policy is in force a moment after it is stored, and each policy at its own time. The tries are dry runs, so
    /// that an early one changes nothing.
    pub(super) async fn refused(&self, method: Method, path: &str, body: &Value, words: &str) -> anyhow::Result<()> {
        let dry = format!("{path}?dryRun=All");
        let mut last = None;
        patiently(words, async || {
            last = refusal(&self.client, self.user, (method.clone(), &dry), body).await?;
            Ok(last.as_deref().is_some_and(|said| said.contains(words)))
        })
        .await
        .with_context(|| format!("{path} {body}: {last:?}"))?;
        let said = refusal(&self.client, self.user, (method, path), body).await?;
        ensure!(said.as_deref().is_some_and(|said| said.contains(words)), "{path} {body}: {said:?}, and not {words:?}");
        Ok(())
    }

    pub(super) async fn accepted(&self, method: Method, path: &str, body: &Value) -> anyhow::Result<()> {
        let said = refusal(&self.client, self.user, (method, path), body).await?;
        ensure!(said.is_none(), "{path} {body}: {said:?}");
        Ok(())
    }

    /// Waits until the server accepts the request. A right is in force a moment after it is stored.
    pub(super) async fn once_accepted(&self, path: &str, body: &Value) -> anyhow::Result<()> {
        let path = format!("{path}?dryRun=All");
        patiently("it is accepted", async || {
            Ok(refusal(&self.client, self.user, (Method::POST, &path), body).await?.is_none())
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_host_has_jobs_of_flows_alone_and_none_where_the_cluster_or_itself_lives() -> anyhow::Result<()> {
    let plane = plane(&flow_manifests()?).await?;
    let (host, admin) = (Requests::of(&plane, Account::Host).await?, Requests::of(&plane, Account::Admin).await?);
    let (granted, flow) = (jobs_of(NAMESPACES[0]), owned("api.practice.com/v1alpha1", "JobFlow", true));
    let (child, elsewhere) = ("only as the child of a JobFlow", "Jobs in kube-* or in Oarlock's own namespaces");
    host.refused(Method::POST, &granted, &job("j", &json!([])), child).await?;
    host.refused(Method::POST, &granted, &job("j", &owned("apps/v1", "JobFlow", true)), child).await?;
    host.refused(Method::POST, &granted, &job("j", &owned("api.practice.com/v1alpha1", "JobFlow", false)), child)
        .await?;
    for closed in ["kube-system", "kube-public", "oarlock-system", "oarlock-tasks", "oarlock-ops"] {
        host.refused(Method::POST, &jobs_of(closed), &job("j", &flow), elsewhere).await?;
    }
    host.accepted(Method::POST, &granted, &job("j", &flow)).await?;
    admin.accepted(Method::POST, &granted, &job("theirs", &json!([]))).await?;
    admin.accepted(Method::POST, &jobs_of("kube-system"), &job("theirs", &json!([]))).await?;
    let (own, theirs) = (format!("{granted}/j"), format!("{granted}/theirs"));
    for spec in [json!({"activeDeadlineSeconds": 1}), json!({"ttlSecondsAfterFinished": 5})] {
        host.accepted(Method::PATCH, &own, &json!({ "spec": spec })).await?;
        host.refused(Method::PATCH, &theirs, &json!({ "spec": spec }), child).await?;
    }
    for spec in [json!({"suspend": true}), json!({"parallelism": 2}), json!({"backoffLimit": 1})] {
        host.refused(Method::PATCH, &own, &json!({ "spec": spec }), "only ttlSecondsAfterFinished and").await?;
    }
    admin.accepted(Method::PATCH, &own, &json!({"spec": {"suspend": true}})).await?;
    for spec in [json!({"suspend": false}), json!({"suspend": false, "parallelism": 2}), json!({"parallelism": 0})] {
        host.refused(Method::PATCH, &own, &json!({ "spec": spec }), "only ttlSecondsAfterFinished and").await?;
    }
    let ends = json!({"suspend": false, "parallelism": 0, "activeDeadlineSeconds": 1});
    host.accepted(Method::PATCH, &own, &json!({ "spec": ends })).await?;
    let others =
        [json!({"labels": {"a": "c"}}), json!({"annotations": {"a": "c"}}), json!({"finalizers": ["e.test/f"]})];
    for metadata in others.into_iter().chain([json!({"ownerReferences": []})]) {
        host.refused(Method::PATCH, &own, &json!({ "metadata": metadata }), "in the metadata of a Job").await?;
    }
    let taken_over = job("original", &owned("api.practice.com/v1alpha1", "DaemonJob", false));
    admin.accepted(Method::POST, &granted, &taken_over).await?;
    let place = "/metadata/ownerReferences/0";
    let adopt = json!([{"op": "add", "path": format!("{place}/controller"), "value": true},
        {"op": "add", "path": format!("{place}/blockOwnerDeletion"), "value": true}]);
    host.accepted(Method::PATCH, &format!("{granted}/original"), &adopt).await?;
    host.refused(Method::DELETE, &theirs, &Value::Null, child).await?;
    host.refused(Method::DELETE, &format!("{}/theirs", jobs_of("kube-system")), &Value::Null, elsewhere).await?;
    host.accepted(Method::DELETE, &own, &Value::Null).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_host_makes_operation_jobs_of_flows_and_ops_jobs_alone_and_changes_little_of_them() -> anyhow::Result<()> {
    let plane = plane(&flow_manifests()?).await?;
    let (host, admin) = (Requests::of(&plane, Account::Host).await?, Requests::of(&plane, Account::Admin).await?);
    let granted = operations_of(NAMESPACES[0]);
    let (flow, ops) =
        (owned("api.practice.com/v1alpha1", "JobFlow", true), owned("oarlock.dev/v1alpha1", "OpsJob", true));
    let (child, elsewhere) = ("only as the child of a JobFlow, DaemonJob or OpsJob", "OperationJobs in kube-*");
    host.refused(Method::POST, &granted, &operation("j", &json!([])), child).await?;
    for closed in ["kube-system", "oarlock-system", "oarlock-tasks"] {
        host.refused(Method::POST, &operations_of(closed), &operation("j", &flow), elsewhere).await?;
        host.refused(Method::POST, &operations_of(closed), &operation("j", &ops), elsewhere).await?;
    }
    host.refused(Method::POST, &operations_of("oarlock-ops"), &operation("j", &flow), elsewhere).await?;
    host.accepted(Method::POST, &operations_of("oarlock-ops"), &operation("j", &ops)).await?;
    host.accepted(Method::POST, &granted, &operation("of-ops", &ops)).await?;
    host.accepted(Method::POST, &granted, &operation("j", &flow)).await?;
    // The host serves the OperationJobs that people made, in every namespace.
    for namespace in [NAMESPACES[0], "kube-system"] {
        admin.accepted(Method::POST, &operations_of(namespace), &operation("theirs", &json!([]))).await?;
        let theirs = format!("{}/theirs", operations_of(namespace));
        host.accepted(Method::PATCH, &theirs, &json!({"metadata": {"finalizers": ["e.test/f"]}})).await?;
        host.accepted(Method::PATCH, &theirs, &json!({"metadata": {"finalizers": []}})).await?;
        host.accepted(Method::PATCH, &format!("{theirs}/status"), &json!({"status": {"progress": "Failed"}})).await?;
        for spec in [json!({"partition": 1}), json!({"parallelism": 9}), json!({"activeDeadlineSeconds": 9})] {
            host.refused(Method::PATCH, &theirs, &json!({ "spec": spec }), "only TTLSecondsAfterFinished and").await?;
        }
        for metadata in
            [json!({"labels": {"a": "c"}}), json!({"annotations": {"a": "c"}}), json!({"ownerReferences": flow})]
        {
            host.refused(Method::PATCH, &theirs, &json!({ "metadata": metadata }), "in the metadata of an").await?;
        }
        host.accepted(Method::DELETE, &theirs, &Value::Null).await?;
    }
    for spec in [json!({"TTLSecondsAfterFinished": 9}), json!({"paused": true})] {
        host.accepted(Method::PATCH, &format!("{granted}/j"), &json!({ "spec": spec })).await?;
    }
    Ok(())
}

/// Creates a role for a user in the whole cluster.
pub(super) async fn allow(admin: &Client, name: &str, user: &str, rules: &Value) -> anyhow::Result<()> {
    let api = "rbac.authorization.k8s.io";
    let role =
        json!({"apiVersion": format!("{api}/v1"), "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules});
    let binding = json!({"apiVersion": format!("{api}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": api, "kind": "User", "name": user}]});
    install::apply(admin, &role).await?;
    install::apply(admin, &binding).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_may_write_namespaces_may_not_let_their_jobs_work_on_nodes() -> anyhow::Result<()> {
    let plane = plane(&flow_manifests()?).await?;
    let (user, admin) = (Requests::of(&plane, Account::Visitor).await?, Requests::of(&plane, Account::Admin).await?);
    let resources = ["namespaces", "namespaces/status", "namespaces/finalize"];
    let rules = json!([{"apiGroups": [""], "resources": resources, "verbs": ["get", "create", "update", "patch"]}]);
    allow(&admin.client, "namespaces", Account::Visitor.user(), &rules).await?;
    let label = |value: &str| json!({"metadata": {"labels": {"oarlock.dev/node-operations": value}}});
    let labelled = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "new",
        "labels": {"oarlock.dev/node-operations": "true"}}});
    let (words, own) = ("lets jobs of this namespace work on every node", "/api/v1/namespaces/granted");
    user.refused(Method::POST, "/api/v1/namespaces", &labelled, words).await?;
    user.refused(Method::PATCH, own, &label("true"), words).await?;
    user.refused(Method::PATCH, &format!("{own}/status"), &label("true"), words).await?;
    let whole = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "granted",
        "labels": {"oarlock.dev/node-operations": "true"}}, "spec": {"finalizers": ["kubernetes"]}});
    user.refused(Method::PUT, own, &whole, words).await?;
    user.refused(Method::PUT, &format!("{own}/finalize"), &whole, words).await?;
    user.accepted(Method::PATCH, own, &json!({"metadata": {"labels": {"team": "a"}}})).await?;
    user.accepted(Method::PATCH, own, &label("false")).await?;
    user.refused(Method::PATCH, own, &label("true"), words).await?;
    admin.accepted(Method::PATCH, own, &label("true")).await?;
    user.accepted(Method::PATCH, own, &json!({"metadata": {"labels": {"team": "b"}}})).await?;
    user.accepted(Method::PATCH, own, &json!({"metadata": {"labels": {"oarlock.dev/node-operations": null}}})).await
}

/// Returns a pod, and a mirror pod that a kubelet creates for a file of its node.
fn pods() -> [Value; 2] {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
    let mut mirror = pod.clone();
    if let Some(metadata) = mirror.get_mut("metadata") {
        let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": true}]);
        *metadata = json!({"name": "m", "annotations": {"kubernetes.io/config.mirror": "x"}, "ownerReferences": owner});
    }
    [pod, mirror]
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_tasks_are_made_by_the_host_alone_and_deleted_by_whoever_may() -> anyhow::Result<()> {
    let plane = plane(&flow_manifests()?).await?;
    let (host, admin) = (Requests::of(&plane, Account::Host).await?, Requests::of(&plane, Account::Admin).await?);
    let pods_rule = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "delete"]}]);
    let controller = "system:serviceaccount:kube-system:replicaset-controller";
    let (kubelet, visitor) = ("system:node:n", Account::Visitor.user());
    for (name, user) in [("kubelet", kubelet), ("controller", controller), ("visitor", visitor)] {
        allow(&admin.client, name, user, &pods_rule).await?;
    }
    for namespace in ["oarlock-tasks", NAMESPACES[0]] {
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": namespace}});
        install::apply(&admin.client, &account).await?;
    }
    let (path, words, [pod, mirror]) =
        ("/api/v1/namespaces/oarlock-tasks/pods", "only the Oarlock host may create pods", pods());
    for user in [kubelet, controller, visitor] {
        let they = Requests { client: admin.client.clone(), user: Some(user) };
        they.refused(Method::POST, path, &pod, words).await?;
        they.refused(Method::POST, path, &mirror, words).await?;
        let elsewhere = format!("/api/v1/namespaces/{}/pods?dryRun=All", NAMESPACES[0]);
        they.accepted(Method::POST, &elsewhere, &pod).await?;
    }
    host.accepted(Method::POST, path, &pod).await?;
    let limited: Value = admin.client.request(http::Request::get(format!("{path}/p")).body(Vec::new())?).await?;
    let resources = limited.pointer("/spec/containers/0/resources").context("the LimitRange says nothing")?;
    ensure!(resources.pointer("/limits/memory") == Some(&json!("2Gi")), "{resources}");
    ensure!(resources.pointer("/requests/memory") == Some(&json!("0")), "{resources}");
    let visitor = Requests { client: admin.client.clone(), user: Some(visitor) };
    visitor.accepted(Method::DELETE, &format!("{path}/p?gracePeriodSeconds=0"), &Value::Null).await?;
    admin.accepted(Method::POST, path, &mirror).await
}

/// The rights of the host for flows in the namespaces to which they are bound, beyond its rights in other namespaces.
const BOUND: &[&str] = &[
    "api.practice.com/daemonjobs delete",
    "api.practice.com/jobflows delete",
    "apps.kusionstack.io/operationjobs create",
    "batch/jobs create",
    "batch/jobs delete",
    "batch/jobs patch",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_host_whose_flows_are_bound_to_a_namespace_makes_jobs_there_and_says_elsewhere_that_it_may_not()
-> anyhow::Result<()> {
    let [granted, other] = NAMESPACES;
    let plane = plane(&flow_manifests_with(&GrantedAccess::of(Vec::new()).host, &[granted.to_owned()])?).await?;
    let client = plane.client(Account::Host).await?;
    let (there, elsewhere) = (allowed(&client, granted).await?, allowed(&client, other).await?);
    let more: Vec<&str> = there.difference(&elsewhere).map(String::as_str).collect();
    ensure!(more == BOUND, "{more:?}");
    let admin = Requests::of(&plane, Account::Admin).await?;
    let host = HostProcess::prepare(&plane, plane.kubeconfig(Account::Host)?, "host-0")?;
    host.begin()?;
    let work = json!({"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}});
    let flow = json!({"apiVersion": "api.practice.com/v1alpha1", "kind": "JobFlow", "metadata": {"name": "f"},
        "spec": {"flows": [{"name": "a", "jobTemplate": work}]}});
    let flows = |namespace: &str| format!("/apis/api.practice.com/v1alpha1/namespaces/{namespace}/jobflows");
    for namespace in NAMESPACES {
        admin.accepted(Method::POST, &flows(namespace), &flow).await?;
    }
    let read = async |path: String| -> anyhow::Result<Value> {
        Ok(admin.client.request(http::Request::get(path).body(Vec::new())?).await?)
    };
    patiently("the Job is made where it is bound", async || {
        Ok(read(jobs_of(granted)).await?.pointer("/items/0/metadata/name").is_some())
    })
    .await
    .context(host.tail())?;
    patiently("the other flow says what it lacks", async || {
        let status = read(format!("{}/f", flows(other))).await?.get("status").map(Value::to_string).unwrap_or_default();
        Ok(status.contains("Blocked") && status.contains("cannot create resource"))
    })
    .await
    .context(host.tail())?;
    host.end();
    Ok(())
}
