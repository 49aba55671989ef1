//! ActionPlugins on a real API server: who may write one, and a host that takes its grants from them.

use std::sync::Arc;

use anyhow::{Context as _, ensure};
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use oarlock::manifests::{GrantedAccess, PodPolicies, manifests_with};
use oarlock_scenarios::components::GRANTS;
use oarlock_scenarios::host_process::HostProcess;
use oarlock_scenarios::jobs::{Told, replace};
use oarlock_scenarios::mode::Mode;
use oarlock_scenarios::test_cluster::{TestCluster, patiently};
use oarlock_support::accounts::Account;
use oarlock_support::control_plane::{self, ControlPlane};
use oarlock_support::install::{self, Way};
use serde_json::{Value, json};

fn plugins(client: &Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("oarlock.dev", "v1alpha1", "ActionPlugin");
    Api::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&kind, "actionplugins"))
}

fn object(name: &str, spec: &Value) -> anyhow::Result<DynamicObject> {
    Ok(serde_json::from_value(json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "ActionPlugin",
        "metadata": {"name": name}, "spec": spec}))?)
}

/// Returns the spec of the shipped grant of Replace.
fn grant_of_replace() -> anyhow::Result<Value> {
    let mut documents = install::documents(GRANTS)?;
    documents.retain(|one| one["metadata"]["name"] == "replace");
    Ok(documents.pop().context("no grant of replace")?["spec"].take())
}

async fn installed(grants: &str) -> anyhow::Result<Arc<ControlPlane>> {
    let plane = Arc::new(control_plane::start(control_plane::Options::default()).await?);
    let access = GrantedAccess::of(oarlock_wasm::parse_grants(grants)?);
    let documents = install::documents(&manifests_with(&access, PodPolicies::USUAL)?)?;
    install::install(&plane.client(Account::Admin).await?, &documents, Way::Apply).await?;
    Ok(plane)
}

/// Returns the refusal of the API server, if it refuses.
fn refusal<T>(answer: Result<T, kube::Error>) -> anyhow::Result<String> {
    match answer {
        Ok(_) => Ok(String::new()),
        Err(kube::Error::Api(status)) => Ok(status.message),
        Err(cause) => Err(cause.into()),
    }
}

/// Gives a user a ClusterRole with these rules, and returns a client that acts as the user.
async fn user(plane: &ControlPlane, name: &str, rules: &Value) -> anyhow::Result<Client> {
    let admin = plane.client(Account::Admin).await?;
    let group = "rbac.authorization.k8s.io";
    let role =
        json!({"apiVersion": format!("{group}/v1"), "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules});
    let binding = json!({"apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": group, "kind": "User", "name": name}]});
    install::install(&admin, &[role, binding], Way::Apply).await?;
    let mut config = plane.config(Account::Admin).await?;
    config.auth_info.impersonate = Some(name.to_owned());
    Ok(Client::try_from(config)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_may_grant_writes_a_spec_and_tasks_on_nodes_need_one_more_right() -> anyhow::Result<()> {
    let plane = installed(GRANTS).await?;
    let write = json!({"apiGroups": ["oarlock.dev"], "resources": ["actionplugins"], "verbs": ["create", "patch", "update", "get"]});
    let grant = json!({"apiGroups": ["oarlock.dev"], "resources": ["actionplugins"], "verbs": ["grant"], "resourceNames": ["mine"]});
    let holds = json!({"apiGroups": ["oarlock.dev"], "resources": ["nodeholds"], "verbs": ["update"]});
    let editor = plugins(&user(&plane, "editor", &json!([write])).await?);
    let granter = plugins(&user(&plane, "granter", &json!([write, grant])).await?);
    let rooter = plugins(&user(&plane, "rooter", &json!([write, grant, holds])).await?);
    let (some, post) = (json!({"namespaces": ["*"], "anyVersion": true}), PostParams::default());
    let create = async |api: &Api<DynamicObject>, name: &str, spec: &Value| {
        refusal(api.create(&post, &object(name, spec)?).await)
    };
    let patch = async |api: &Api<DynamicObject>, spec: Value| {
        let body = Patch::Merge(json!({"spec": spec}));
        refusal(api.patch("mine", &PatchParams::default(), &body).await)
    };
    let nothing = String::new();
    ensure!(create(&editor, "mine", &json!({})).await? == nothing, "an empty spec grants nothing");
    let refused = patch(&editor, some.clone()).await?;
    ensure!(refused.contains("you may not grant anything"), "{refused}");
    let refused = create(&granter, "other", &some).await?;
    ensure!(refused.contains("you may not grant anything"), "the verb is for one name: {refused}");
    ensure!(patch(&granter, some).await? == nothing, "who may grant does");
    let labels = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    ensure!(refusal(editor.patch("mine", &PatchParams::default(), &labels).await)? == nothing, "labels grant nothing");
    ensure!(
        patch(&granter, json!({"tasks": [{"name": "collect-logs"}]})).await? == nothing,
        "the host does that itself"
    );
    for tasks in [json!([{"name": "run-on-node", "scripts": true}]), json!([{"name": "*"}])] {
        let refused = patch(&granter, json!({ "tasks": tasks.clone() })).await?;
        ensure!(refused.contains("nodeholds"), "{refused}");
        ensure!(patch(&rooter, json!({ "tasks": tasks })).await? == nothing, "who may hold nodes grants tasks on them");
    }
    let host = plugins(&plane.client(Account::Host).await?);
    ensure!(create(&host, "of-host", &json!({})).await? == nothing, "the host announces its files");
    let refused = create(&host, "of-host-2", &json!({"anyVersion": true})).await?;
    ensure!(refused.contains("you may not grant anything"), "{refused}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_may_record_has_a_job_recorded() -> anyhow::Result<()> {
    let plane = installed(GRANTS).await?;
    let group = "apps.kusionstack.io";
    let write = json!({"apiGroups": [group], "resources": ["operationjobs"], "verbs": ["create", "patch", "get"]});
    let record = json!({"apiGroups": [group], "resources": ["operationjobs"], "verbs": ["record"]});
    let kind =
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1alpha1", "OperationJob"), "operationjobs");
    let jobs = |client: Client| Api::<DynamicObject>::namespaced_with(client, "default", &kind);
    let editor = jobs(user(&plane, "editor", &json!([write])).await?);
    let recorder = jobs(user(&plane, "recorder", &json!([write, record])).await?);
    let job = json!({"apiVersion": format!("{group}/v1alpha1"), "kind": "OperationJob", "metadata": {"name": "j"},
        "spec": {"action": "Replace", "targets": [{"name": "p"}]}});
    editor.create(&PostParams::default(), &serde_json::from_value(job)?).await?;
    let annotate = async |api: &Api<DynamicObject>, value: Value| {
        let body = Patch::Merge(json!({"metadata": {"annotations": {"oarlock.dev/record": value}}}));
        refusal(api.patch("j", &PatchParams::default(), &body).await)
    };
    let refused = annotate(&editor, json!("true")).await?;
    ensure!(refused.contains("you may not have this job recorded"), "{refused}");
    ensure!(annotate(&recorder, json!("true")).await?.is_empty(), "who may record does");
    ensure!(annotate(&editor, json!(null)).await?.is_empty(), "whoever edits the job may end it");
    Ok(())
}

/// Returns a word of the status of an ActionPlugin.
fn told(object: &DynamicObject, pointer: &str) -> String {
    let found = object.data.pointer(&format!("/status{pointer}")).cloned().unwrap_or_default();
    found.as_str().map_or_else(|| found.to_string(), str::to_owned)
}

/// Returns the reason of a condition, or nothing.
fn condition(object: &DynamicObject, kind: &str) -> String {
    let all = object.data.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    let found = all.into_iter().find(|one| one["type"] == kind).unwrap_or_default();
    format!("{}/{}", found["status"].as_str().unwrap_or_default(), found["reason"].as_str().unwrap_or_default())
}

async fn until(
    plugins: &Api<DynamicObject>,
    what: &str,
    is: impl Fn(&DynamicObject) -> bool,
) -> anyhow::Result<DynamicObject> {
    patiently(what, async || Ok(plugins.get_opt("replace").await?.is_some_and(|object| is(&object)))).await?;
    Ok(plugins.get("replace").await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_with_grants_from_the_cluster_serves_what_an_object_grants_and_no_more() -> anyhow::Result<()> {
    let plane = installed("").await?;
    let cluster = TestCluster::real(plane.clone(), "team").await?;
    let plugins = plugins(&plane.client(Account::Admin).await?);
    let host = HostProcess::prepare(&plane, plane.kubeconfig(Account::Host)?, "host-0")?;
    let host = host.with("--grants-from=cluster".to_owned());
    host.begin()?;
    // The host announces the file. Nothing is granted.
    let waits = |object: &DynamicObject| told(object, "/state") == "AwaitingGrant";
    let object = until(&plugins, "the file is announced", waits).await.context(host.tail())?;
    ensure!(told(&object, "/rights").contains("evict v1 Pod"), "{:#}", object.data);
    ensure!(told(&object, "/missing").contains("anyVersion"), "{:#}", object.data);
    // The grant serves, and the host says which of its own rights are missing.
    let grant = json!({"spec": grant_of_replace()?});
    plugins.patch("replace", &PatchParams::default(), &Patch::Merge(grant)).await?;
    let lacks = |object: &DynamicObject| {
        condition(object, "HostMayNot") == "True/RightsMissing" && told(object, "/state") == "Serving"
    };
    let object = until(&plugins, "the host says what it may not do", lacks).await.context(host.tail())?;
    ensure!(object.data.to_string().contains("create pods/eviction in all namespaces"), "{:#}", object.data);
    ensure!(told(&object, "/observedGeneration") == "2", "{:#}", object.data);
    // The rights that `oarlock plugin roles` prints are enough.
    let access = GrantedAccess::of(oarlock_wasm::parse_grants(GRANTS)?);
    let roles = install::documents(&oarlock::manifests::plugin_roles(&access)?)?;
    install::install(&plane.client(Account::Admin).await?, &roles, Way::Apply).await?;
    let set = Mode::Evict.plant(&cluster, 1).await?;
    cluster.world.settled(&set, std::time::Duration::from_secs(180)).await?;
    cluster.create_job("job", replace(&cluster.pod_names(Mode::Evict.app()).await?, json!({}))).await?;
    cluster.until_progress("job", "Succeeded").await.context(host.tail())?;
    // A deleted object grants nothing, and the host announces the file again.
    plugins.delete("replace", &DeleteParams::default()).await?;
    until(&plugins, "nothing is granted", waits).await.context(host.tail())?;
    cluster.create_job("late", replace(&cluster.pod_names(Mode::Evict.app()).await?, json!({}))).await?;
    let unserved = |job: &DynamicObject| job.condition("ActionAvailable") == "False/AwaitingGrant";
    cluster.until("late", "unserved", unserved).await.context(host.tail())?;
    host.check()?;
    host.end();
    cluster.finish().await
}
