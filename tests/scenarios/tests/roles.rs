//! The roles of `oarlock manifests --grants` on a real API server. The host that runs with them lacks no right and has no other right. The roles of
//! people who may view or edit a namespace are tested too.

#[cfg(test)]
#[path = "roles/action_plugins.rs"]
mod action_plugins;
#[cfg(test)]
#[path = "roles/identities.rs"]
mod identities;
#[path = "roles/ops.rs"]
mod ops;
#[path = "roles/policies.rs"]
mod policies;

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectRulesReview, SelfSubjectRulesReviewSpec, SubjectAccessReview,
    SubjectAccessReviewSpec,
};
use kube::Client;
use kube::api::{Api, DynamicObject, PatchParams, PostParams};
use oarlock::manifests::{GrantedAccess, PodPolicies, manifests_with};
use oarlock_scenarios::components::GRANTS;
use oarlock_scenarios::host_process::HostProcess;
use oarlock_scenarios::jobs::{Told, replace};
use oarlock_scenarios::mode::Mode;
use oarlock_scenarios::test_cluster::{TestCluster, patiently};
use oarlock_sim::world::{Pause, Scope};
use oarlock_support::accounts::Account;
use oarlock_support::audit::Audit;
use oarlock_support::control_plane::{self, ControlPlane};
use oarlock_support::install::{self, Way};
use serde_json::{Value, json};

#[path = "roles/forged.rs"]
mod forged;
#[path = "roles/forged_holds.rs"]
mod forged_holds;

/// The namespace that the grants name, and a namespace without grants.
const NAMESPACES: [&str; 2] = ["granted", "other"];
/// The controller that adds the rules of labelled roles to the cluster's usual roles.
const AGGREGATION: &str = "clusterrole-aggregation-controller";

/// Returns the grants of the shipped plugin and of a plugin that reads ConfigMaps, both for one namespace.
fn grants() -> String {
    let reader = "apiVersion: oarlock.dev/v1alpha1\nkind: ActionPlugin\nmetadata: {name: reader}\nspec:\n  \
                  anyVersion: true\n  namespaces: [\"*\"]\n  reads: [{apiVersion: v1, kind: ConfigMap, fields: [/data]}]\n";
    format!("{GRANTS}\n---\n{reader}").replace("\"*\"", "granted")
}

/// Returns the documents that `oarlock manifests --grants` prints.
fn documents() -> anyhow::Result<Vec<Value>> {
    let grants = oarlock_wasm::parse_grants(&grants())?;
    let access = GrantedAccess::of(grants);
    install::documents(&manifests_with(&access, PodPolicies::USUAL)?)
}

/// Starts a control plane with the namespaces and these documents.
async fn plane() -> anyhow::Result<Arc<ControlPlane>> {
    let audit = Audit::RequestsOf(vec![Account::Host]);
    let controllers = vec![AGGREGATION, control_plane::DISRUPTION, control_plane::NAMESPACE];
    let plane = control_plane::start(control_plane::Options { audit, controllers, ..Default::default() }).await?;
    let namespace = |name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let client = plane.client(Account::Admin).await?;
    let mut documents = documents()?;
    documents.extend(NAMESPACES.map(namespace));
    install::install(&client, &documents, Way::Apply).await?;
    Ok(Arc::new(plane))
}

/// Runs jobs of both modes: one is deleted in flight, one has records, one expires, one reads the other kinds that its plugin is granted, and one is
/// in a namespace without grants.
async fn run_jobs(cluster: &TestCluster, elsewhere: &TestCluster, host: &HostProcess) -> anyhow::Result<()> {
    for mode in [Mode::CollaSet, Mode::Evict] {
        let set = mode.plant(cluster, 3).await?;
        cluster.world.settled(&set, std::time::Duration::from_secs(180)).await?;
        let names = cluster.pod_names(mode.app()).await?;
        let [first, second, third] = names.as_slice() else { anyhow::bail!("three pods: {names:?}") };
        let name = |what: &str| format!("{}-{what}", mode.app());
        cluster.create_job(&name("ends"), replace(std::slice::from_ref(first), json!({}))).await?;
        cluster.until_progress(&name("ends"), "Succeeded").await.context(host.tail())?;
        cluster.edit_job(&name("ends"), json!({"TTLSecondsAfterFinished": 1})).await?;
        cluster.until_gone(&name("ends")).await.context(host.tail())?;
        let reads = json!({"action": "Reader", "targets": [{"name": second}]});
        cluster.create_job(&name("reads"), reads).await?;
        cluster.until_progress(&name("reads"), "Succeeded").await.context(host.tail())?;
        cluster.world.hold(Pause::Creation, Scope::World);
        cluster.create_job(&name("goes"), replace(std::slice::from_ref(third), json!({}))).await?;
        cluster.until(&name("goes"), "begun", |job| job.count("processing") == 1).await.context(host.tail())?;
        cluster.delete_job(&name("goes")).await?;
        cluster.until_gone(&name("goes")).await.context(host.tail())?;
        cluster.world.release(Pause::Creation, Scope::World);
        cluster.until_nothing_is_left().await?;
    }
    let missing: Vec<String> = (0..251).map(|number| format!("missing-{number}")).collect();
    cluster.create_job("recorded", replace(&missing, json!({}))).await?;
    cluster.until_progress("recorded", "Failed").await.context(host.tail())?;
    elsewhere.create_job("refused", replace(&["missing".to_owned()], json!({}))).await?;
    let refused = |job: &DynamicObject| job.condition("Valid") == "False/NamespaceNotAllowed";
    elsewhere.until("refused", "refused", refused).await.context(host.tail())?;
    elsewhere.until_told("InvalidSpec", 1).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_with_the_roles_of_its_grants_is_forbidden_nothing_and_may_do_nothing_else() -> anyhow::Result<()> {
    let plane = plane().await?;
    let [granted, other] = NAMESPACES;
    let (cluster, elsewhere) =
        (TestCluster::real(plane.clone(), granted).await?, TestCluster::real(plane.clone(), other).await?);
    let host = HostProcess::prepare(&plane, plane.kubeconfig(Account::Host)?, "host-0")?;
    host.drop_plugin("reader", "")?;
    host.grant(&grants())?;
    host.begin()?;
    run_jobs(&cluster, &elsewhere, &host).await?;
    // A new term finds its lease and reads the records.
    (host.killer())();
    host.begin()?;
    cluster.create_job("again", replace(&["missing".to_owned()], json!({}))).await?;
    cluster.until_progress("again", "Failed").await.context(host.tail())?;
    host.check()?;
    host.end();
    let forbidden: Vec<_> = plane.audited()?.into_iter().filter(|request| request.code == 403).collect();
    ensure!(forbidden.is_empty(), "the host lacks: {forbidden:?}");
    let client = plane.client(Account::Host).await?;
    for (namespace, expected) in [(granted, GRANTED), (other, ELSEWHERE), ("oarlock-system", AT_HOME)] {
        let expected: BTreeSet<String> = EVERYWHERE.iter().chain(expected).map(|line| (*line).to_owned()).collect();
        let allowed = allowed(&client, namespace).await?;
        let (more, less) = (&allowed - &expected, &expected - &allowed);
        ensure!(more.is_empty() && less.is_empty(), "in {namespace} it may too: {more:?}; and may not: {less:?}");
    }
    nothing_dangerous(&plane.client(Account::Admin).await?).await?;
    elsewhere.finish().await?;
    cluster.finish().await
}

/// The rights of every role of the host, as `group/resource verb`, without the rights that every account has.
const EVERYWHERE: &[&str] = &[
    "apps.kusionstack.io/operationjobs delete",
    "apps.kusionstack.io/operationjobs get",
    "apps.kusionstack.io/operationjobs list",
    "apps.kusionstack.io/operationjobs patch",
    "apps.kusionstack.io/operationjobs watch",
    "apps.kusionstack.io/operationjobs/finalizers update",
    "apps.kusionstack.io/operationjobs/status patch",
    "oarlock.dev/actionplugins create",
    "oarlock.dev/actionplugins get",
    "oarlock.dev/actionplugins list",
    "oarlock.dev/actionplugins watch",
    "oarlock.dev/actionplugins/status patch",
    "oarlock.dev/operationrecords create",
    "oarlock.dev/operationrecords get",
    "oarlock.dev/operationrecords list",
    "oarlock.dev/operationrecords patch",
    "/configmaps get",
    "/configmaps list",
    "/configmaps watch",
    "/namespaces list",
    "/namespaces watch",
    "/pods get",
    "/pods list",
    "/pods watch",
    "apps/daemonsets get",
    "apps/daemonsets list",
    "apps/daemonsets watch",
    "apps/deployments get",
    "apps/deployments list",
    "apps/deployments watch",
    "apps/replicasets get",
    "apps/replicasets list",
    "apps/replicasets watch",
    "apps/statefulsets get",
    "apps/statefulsets list",
    "apps/statefulsets watch",
    "events.k8s.io/events create",
    "admissionregistration.k8s.io/validatingadmissionpolicies get pod-holds.oarlock.dev",
    "admissionregistration.k8s.io/validatingadmissionpolicybindings get pod-holds.oarlock.dev",
];
const GRANTED: &[&str] =
    &["/pods patch", "/pods/eviction create", "oarlock.dev/holds update", "policy/poddisruptionbudgets list"];
const ELSEWHERE: &[&str] = &[];
/// The lease of this host, the leases that the roles of the test rigs name, and the keys of holds.
const AT_HOME: &[&str] = &[
    "/secrets get oarlock-holds",
    "/secrets patch oarlock-holds",
    "coordination.k8s.io/leases create",
    "coordination.k8s.io/leases get oarlock",
    "coordination.k8s.io/leases get oarlock-granted",
    "coordination.k8s.io/leases get oarlock-other",
    "coordination.k8s.io/leases update oarlock",
    "coordination.k8s.io/leases update oarlock-granted",
    "coordination.k8s.io/leases update oarlock-other",
];

/// Returns the rights of the client's account in a namespace, as the API server lists them.
async fn allowed(client: &Client, namespace: &str) -> anyhow::Result<BTreeSet<String>> {
    let spec = SelfSubjectRulesReviewSpec { namespace: Some(namespace.to_owned()) };
    let asked = SelfSubjectRulesReview { spec, ..SelfSubjectRulesReview::default() };
    let api: Api<SelfSubjectRulesReview> = Api::all(client.clone());
    let answer = api.create(&PostParams::default(), &asked).await?.status.context("the server lists no rules")?;
    ensure!(!answer.incomplete, "the list is incomplete: {:?}", answer.evaluation_error);
    let mut lines = BTreeSet::new();
    for rule in answer.resource_rules {
        let names = rule.resource_names.unwrap_or_default();
        for (group, resource) in pairs(&rule.api_groups.unwrap_or_default(), &rule.resources.unwrap_or_default()) {
            for (verb, name) in pairs(&rule.verbs, &if names.is_empty() { vec![String::new()] } else { names.clone() })
            {
                lines.insert(format!("{group}/{resource} {verb} {name}").trim_end().to_owned());
            }
        }
    }
    lines.retain(|line| {
        !line.starts_with("authorization.k8s.io/self") && !line.starts_with("authentication.k8s.io/self")
    });
    Ok(lines)
}

fn pairs(one: &[String], other: &[String]) -> Vec<(String, String)> {
    one.iter().flat_map(|left| other.iter().map(move |right| (left.clone(), right.clone()))).collect()
}

/// Returns true if the account may do this, by its user name and its groups.
async fn may(admin: &Client, account: Account, what: ResourceAttributes) -> anyhow::Result<bool> {
    let spec = SubjectAccessReviewSpec {
        user: Some(account.user().to_owned()),
        groups: Some(vec!["system:authenticated".into(), "system:serviceaccounts".into()]),
        resource_attributes: Some(what),
        ..SubjectAccessReviewSpec::default()
    };
    let api: Api<SubjectAccessReview> = Api::all(admin.clone());
    let asked = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
    Ok(api.create(&PostParams::default(), &asked).await?.status.is_some_and(|status| status.allowed))
}

/// Parses `verb group/resource[/subresource] [namespace]`.
fn words(line: &str) -> ResourceAttributes {
    let mut words = line.split(' ').map(str::to_owned);
    let (verb, what) = (words.next(), words.next().unwrap_or_default());
    let mut parts = what.split('/').map(str::to_owned);
    let (group, resource, subresource) = (parts.next(), parts.next(), parts.next());
    ResourceAttributes { verb, group, resource, subresource, namespace: words.next(), ..ResourceAttributes::default() }
}

async fn nothing_dangerous(admin: &Client) -> anyhow::Result<()> {
    ensure!(may(admin, Account::Host, words("patch /pods granted")).await?, "the question itself is right");
    let never = [
        "get /secrets granted",
        "list /secrets oarlock-system",
        "create /pods granted",
        "update /pods granted",
        "delete /pods granted",
        "deletecollection /pods granted",
        "patch /pods other",
        "update oarlock.dev/holds other",
        "patch oarlock.dev/podspecs granted",
        "patch /pods kube-system",
        "create /pods/eviction other",
        "create /pods/exec granted",
        "get /pods/log granted",
        "patch /pods/status granted",
        "patch /pods/ephemeralcontainers granted",
        "patch /nodes",
        "patch /namespaces",
        "create /serviceaccounts/token oarlock-system",
        "impersonate /users",
        "create apps/deployments granted",
        "patch apps/deployments granted",
        "patch apps/deployments/scale granted",
        "create batch/jobs granted",
        "patch /configmaps granted",
        "create apps.kusionstack.io/operationjobs granted",
        "update apps.kusionstack.io/operationjobs granted",
        "delete oarlock.dev/operationrecords granted",
        "patch rbac.authorization.k8s.io/clusterroles",
        "create rbac.authorization.k8s.io/rolebindings granted",
        "patch admissionregistration.k8s.io/validatingadmissionpolicies",
        "patch apiextensions.k8s.io/customresourcedefinitions",
        "get coordination.k8s.io/leases kube-system",
        "delete coordination.k8s.io/leases oarlock-system",
    ];
    for line in never {
        ensure!(!may(admin, Account::Host, words(line)).await?, "the host may {line}");
    }
    Ok(())
}

/// Returns a fresh namespace with a job in flight, and the host that leads.
async fn in_flight(plane: &Arc<ControlPlane>) -> anyhow::Result<(TestCluster, HostProcess)> {
    let cluster = TestCluster::real(plane.clone(), NAMESPACES[0]).await?;
    let host = HostProcess::prepare(plane, plane.kubeconfig(Account::Host)?, "host-0")?;
    host.grant(&grants())?;
    host.begin()?;
    let set = Mode::CollaSet.plant(&cluster, 1).await?;
    cluster.world.settled(&set, std::time::Duration::from_secs(180)).await?;
    cluster.world.hold(Pause::Creation, Scope::World);
    cluster.create_job("j", replace(&cluster.pod_names(Mode::CollaSet.app()).await?, json!({}))).await?;
    patiently("the pod is marked", async || Ok(!cluster.leftovers().await?.is_empty())).await.context(host.tail())?;
    Ok((cluster, host))
}

/// Returns true if a document still exists.
async fn is_there(client: &Client, path: &str) -> anyhow::Result<bool> {
    let request = http::Request::get(path).body(Vec::new())?;
    match client.request::<Value>(request).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(cause) => Err(cause.into()),
    }
}

const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/operationjobs.apps.kusionstack.io";
const HOME: &str = "/api/v1/namespaces/oarlock-system";

/// docs/install.md: remove the jobs, then the host, then the rest.
#[tokio::test(flavor = "multi_thread")]
async fn removed_in_the_documented_order_nothing_stays_behind() -> anyhow::Result<()> {
    let plane = plane().await?;
    let admin = plane.client(Account::Admin).await?;
    let (cluster, host) = in_flight(&plane).await?;
    cluster.delete_job("j").await?;
    cluster.until_gone("j").await.context(host.tail())?;
    cluster.until_nothing_is_left().await?;
    host.end();
    install::remove(&admin, &documents()?).await?;
    patiently("all of it is gone", async || Ok(!is_there(&admin, DEFINITION).await? && !is_there(&admin, HOME).await?))
        .await
}

/// docs/install.md: without a host, the CRD of a job in flight stays. A host that starts again releases it.
#[tokio::test(flavor = "multi_thread")]
async fn definitions_that_were_deleted_before_the_jobs_go_once_a_host_runs_again() -> anyhow::Result<()> {
    let plane = plane().await?;
    let admin = plane.client(Account::Admin).await?;
    let (cluster, host) = in_flight(&plane).await?;
    (host.killer())();
    let defines = |document: &Value| document.get("kind").is_some_and(|kind| kind == "CustomResourceDefinition");
    let definitions: Vec<Value> = documents()?.into_iter().filter(defines).collect();
    install::remove(&admin, &definitions).await?;
    let deleted = |job: &DynamicObject| job.metadata.deletion_timestamp.is_some();
    cluster.until("j", "deleted, and held by its finalizer", deleted).await?;
    ensure!(is_there(&admin, DEFINITION).await? && !cluster.leftovers().await?.is_empty(), "without a host it stays");
    host.begin()?;
    patiently("the definition is gone", async || Ok(!is_there(&admin, DEFINITION).await?))
        .await
        .context(host.tail())?;
    cluster.until_nothing_is_left().await?;
    host.end();
    Ok(())
}

/// Binds one of the cluster's usual roles to the visitor, in the first namespace.
async fn bind(admin: &Client, role: &str) -> anyhow::Result<()> {
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": format!("visitor-{role}"), "namespace": NAMESPACES[0]},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": Account::Visitor.user()}],
    });
    install::apply(admin, &binding).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_may_view_or_edit_a_namespace_may_view_or_edit_its_jobs() -> anyhow::Result<()> {
    let plane = plane().await?;
    let admin = plane.client(Account::Admin).await?;
    let visitor = |line: &'static str| may(&admin, Account::Visitor, words(line));
    ensure!(!visitor("get apps.kusionstack.io/operationjobs granted").await?, "nobody is allowed anything at first");
    bind(&admin, "view").await?;
    patiently("whoever may view may view jobs", async || {
        Ok(visitor("watch apps.kusionstack.io/operationjobs granted").await?
            && visitor("list oarlock.dev/operationrecords granted").await?)
    })
    .await?;
    ensure!(!visitor("create apps.kusionstack.io/operationjobs granted").await?, "who may view may not create");
    bind(&admin, "edit").await?;
    patiently("whoever may edit may edit jobs", async || {
        Ok(visitor("create apps.kusionstack.io/operationjobs granted").await?
            && visitor("delete apps.kusionstack.io/operationjobs granted").await?)
    })
    .await?;
    for line in [
        "patch apps.kusionstack.io/operationjobs/status granted",
        "patch oarlock.dev/operationrecords granted",
        "create apps.kusionstack.io/operationjobs other",
    ] {
        ensure!(!visitor(line).await?, "who may edit may {line}");
    }
    Ok(())
}

/// Returns the parameters of a dry run. A test repeats a patch until a policy refuses it; a patch that was applied would change nothing the next
/// time, and the policy would not refuse it.
fn dry_run() -> PatchParams {
    PatchParams { dry_run: true, ..PatchParams::default() }
}

fn hold(list: &str) -> Value {
    json!({"metadata": {"annotations": {"hold.oarlock.dev/00000000-0000-0000-0000-000000000000": list}}})
}

/// Returns a patch of a hold on a pod with the label that marks the pod as held.
fn labelled(list: &str) -> Value {
    let mut body = hold(list);
    if let Some(metadata) = body.pointer_mut("/metadata").and_then(Value::as_object_mut) {
        metadata.insert("labels".to_owned(), json!({"oarlock.dev/held": "true"}));
    }
    body
}

#[test]
fn the_grants_of_this_test_name_one_namespace() {
    let grants = oarlock_wasm::parse_grants(&grants()).unwrap_or_default();
    let namespaces: BTreeSet<&str> = grants.iter().flat_map(|grant| &grant.namespaces).map(String::as_str).collect();
    assert_eq!((grants.len(), namespaces), (2, BTreeSet::from([NAMESPACES[0]])));
}
