//! Plugins with an identity, on a real API server: the host makes their changes as their accounts, and everything else as itself.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::Method;
use kube::Client;
use oarlock::manifests::{GrantedAccess, Impersonation, PodPolicies, manifests_with};
use oarlock_scenarios::components::GRANTS;
use oarlock_scenarios::host_process::HostProcess;
use oarlock_scenarios::jobs::{Told, replace};
use oarlock_scenarios::mode::Mode;
use oarlock_scenarios::test_cluster::{TestCluster, patiently};
use oarlock_sim::world::{Pause, Scope};
use oarlock_support::accounts::Account;
use oarlock_support::audit::{Audit, Request};
use oarlock_support::control_plane::{self, ControlPlane};
use oarlock_support::install::{self, Way};
use serde_json::{Value, json};

use super::NAMESPACES;
use super::policies::Requests;

/// The account of the plugin, as the audit log names it.
const PLUGIN: &str = "system:serviceaccount:oarlock-plugins:swap";
const EVICTIONS: &str = "    - {verb: evict, apiVersion: v1, kind: Pod}\n";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// Returns the grant of Replace with an identity, in one namespace.
fn grants() -> String {
    let identity = "spec:\n  identity: {serviceAccount: swap}\n";
    GRANTS.replace("\"*\"", NAMESPACES[0]).replacen("spec:\n", identity, 1)
}

fn documents(grants: &str, impersonation: Impersonation) -> anyhow::Result<Vec<Value>> {
    let access = GrantedAccess { impersonation, ..GrantedAccess::of(oarlock_wasm::parse_grants(grants)?) };
    install::documents(&manifests_with(&access, PodPolicies::ALL)?)
}

/// Starts a control plane with the manifests of these grants, and prepares a host with the grants of [`grants`].
async fn begun(of_roles: &str, way: Impersonation) -> anyhow::Result<(Arc<ControlPlane>, TestCluster, HostProcess)> {
    let (audit, controllers) = (Audit::RequestsOf(vec![Account::Host]), vec![control_plane::DISRUPTION]);
    let plane = control_plane::start(control_plane::Options { audit, controllers, ..Default::default() }).await?;
    let mut all = documents(of_roles, way)?;
    all.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACES[0]}}));
    install::install(&plane.client(Account::Admin).await?, &all, Way::Apply).await?;
    let plane = Arc::new(plane);
    let cluster = TestCluster::real(plane.clone(), NAMESPACES[0]).await?;
    let host = HostProcess::prepare(&plane, plane.kubeconfig(Account::Host)?, "host-0")?;
    host.grant(&grants())?;
    host.begin()?;
    Ok((plane, cluster, host))
}

/// Creates pods of a mode and returns their names.
async fn pods(cluster: &TestCluster, mode: Mode, count: usize) -> anyhow::Result<Vec<String>> {
    let set = mode.plant(cluster, count).await?;
    cluster.world.settled(&set, Duration::from_secs(180)).await?;
    cluster.pod_names(mode.app()).await
}

async fn remove(admin: &Client, path: &str) -> anyhow::Result<()> {
    let request = http::Request::delete(format!("{RBAC}{path}")).body(Vec::new())?;
    admin.request::<Value>(request).await.map(drop).with_context(|| path.to_owned())
}

/// Waits until the first target of a job shows this reason, and returns its message.
async fn trouble(cluster: &TestCluster, job: &str, reason: &str) -> anyhow::Result<String> {
    let mut message = String::new();
    patiently(reason, async || {
        let stored = cluster.jobs().get(job).await?;
        let error = stored.data.pointer("/status/targetDetails/0/error").cloned().unwrap_or_default();
        message = error["message"].as_str().unwrap_or_default().to_owned();
        Ok(error["reason"] == reason)
    })
    .await?;
    Ok(message)
}

/// Fails unless the host made exactly the changes of the plugin as the account of the plugin.
fn attributed(requests: &[Request]) -> anyhow::Result<()> {
    let forbidden: Vec<_> = requests.iter().filter(|request| request.code == 403).collect();
    ensure!(forbidden.is_empty(), "a right is missing: {forbidden:?}");
    let made_as: Vec<_> = requests.iter().filter(|request| !request.as_user.is_empty()).collect();
    for request in &made_as {
        ensure!(request.as_user == PLUGIN && request.resource == "pods", "not of the plugin: {request:?}");
    }
    let count = |subresource: &str| made_as.iter().filter(|request| request.subresource == subresource).count();
    ensure!(count("") > 0 && count("eviction") > 0, "the plugin marks and evicts: {made_as:?}");
    let evicted = requests.iter().filter(|request| request.subresource == "eviction" && request.verb == "create");
    ensure!(evicted.count() == count("eviction"), "the host itself may evict nothing");
    let own = |verb: &str| requests.iter().any(|r| r.as_user.is_empty() && r.resource == "pods" && r.verb == verb);
    ensure!(own("patch"), "the host releases as itself");
    Ok(())
}

/// Replaces a pod in each mode, and lets a deleted job be released.
async fn replaced_and_released(cluster: &TestCluster, host: &HostProcess) -> anyhow::Result<()> {
    for mode in [Mode::CollaSet, Mode::Evict] {
        let names = pods(cluster, mode, 2).await?;
        let job = |what: &str| format!("{}-{what}", mode.app());
        cluster.create_job(&job("ends"), replace(&names[..1], json!({}))).await?;
        cluster.until_progress(&job("ends"), "Succeeded").await.context(host.tail())?;
        cluster.world.hold(Pause::Creation, Scope::World);
        cluster.create_job(&job("goes"), replace(&names[1..], json!({}))).await?;
        cluster.until(&job("goes"), "begun", |job| job.count("processing") == 1).await.context(host.tail())?;
        if mode == Mode::CollaSet {
            patiently("the pod is marked", async || Ok(!cluster.leftovers().await?.is_empty())).await?;
        }
        cluster.delete_job(&job("goes")).await?;
        cluster.until_gone(&job("goes")).await.context(host.tail())?;
        cluster.world.release(Pause::Creation, Scope::World);
        cluster.until_nothing_is_left().await?;
    }
    Ok(())
}

/// Runs jobs to their ends, and checks in the audit log who made each change.
async fn replaces_and_is_attributed(impersonation: Impersonation) -> anyhow::Result<()> {
    let (plane, cluster, host) = begun(&grants(), impersonation).await?;
    replaced_and_released(&cluster, &host).await?;
    host.check()?;
    host.end();
    attributed(&plane.audited()?)?;
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_names_the_plugin_for_its_changes_and_the_host_for_the_rest() -> anyhow::Result<()> {
    replaces_and_is_attributed(Impersonation::Constrained).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_old_verb_of_impersonation_is_enough() -> anyhow::Result<()> {
    replaces_and_is_attributed(Impersonation::Legacy).await
}

#[tokio::test(flavor = "multi_thread")]
async fn rbac_alone_stops_a_write_that_a_wrong_grant_lets_through() -> anyhow::Result<()> {
    // The roles are those of a narrower grant than the one of the host.
    let (_plane, cluster, host) = begun(&grants().replace(EVICTIONS, ""), Impersonation::Legacy).await?;
    let names = pods(&cluster, Mode::Evict, 1).await?;
    cluster.create_job("j", replace(&names, json!({}))).await?;
    let message = trouble(&cluster, "j", "MutationDenied").await.context(host.tail())?;
    ensure!(message.starts_with("apply the roles of plugin replace") && message.contains("pods/eviction"), "{message}");
    ensure!(cluster.pod_names(Mode::Evict.app()).await? == names, "the pod is still there");
    host.end();
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_of_the_host_is_told_as_its_own_and_the_job_goes_on_once_it_is_back() -> anyhow::Result<()> {
    let (plane, cluster, host) = begun(&grants(), Impersonation::Constrained).await?;
    let admin = plane.client(Account::Admin).await?;
    remove(&admin, "/namespaces/oarlock-plugins/rolebindings/oarlock-plugin-replace-impersonate").await?;
    let names = pods(&cluster, Mode::Evict, 1).await?;
    cluster.create_job("j", replace(&names, json!({}))).await?;
    let message = trouble(&cluster, "j", "HostMayNotImpersonate").await.context(host.tail())?;
    ensure!(message.starts_with("apply Role oarlock-plugins/oarlock-plugin-replace-impersonate"), "{message}");
    install::install(&admin, &documents(&grants(), Impersonation::Constrained)?, Way::Apply).await?;
    cluster.until_progress("j", "Succeeded").await.context(host.tail())?;
    host.check()?;
    host.end();
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_host_releases_what_a_plugin_holds_that_lost_its_grant_and_its_rights() -> anyhow::Result<()> {
    let (plane, cluster, host) = begun(&grants(), Impersonation::Constrained).await?;
    let names = pods(&cluster, Mode::CollaSet, 1).await?;
    cluster.world.hold(Pause::Creation, Scope::World);
    cluster.create_job("j", replace(&names, json!({}))).await?;
    patiently("the pod is marked", async || Ok(!cluster.leftovers().await?.is_empty())).await.context(host.tail())?;
    let admin = plane.client(Account::Admin).await?;
    remove(&admin, "/namespaces/granted/rolebindings/oarlock-plugin-replace-account-writes").await?;
    remove(&admin, "/namespaces/oarlock-plugins/rolebindings/oarlock-plugin-replace-impersonate").await?;
    host.grant("")?;
    cluster.delete_job("j").await?;
    cluster.until_gone("j").await.context(host.tail())?;
    cluster.until_nothing_is_left().await?;
    host.check()?;
    host.end();
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_accounts_of_plugins_have_no_pods_tokens_or_secrets_and_do_no_more_than_the_host() -> anyhow::Result<()> {
    let (plane, cluster, host) = begun(&grants(), Impersonation::Constrained).await?;
    host.end();
    let admin = Requests::of(&plane, Account::Admin).await?;
    let home = "/api/v1/namespaces/oarlock-plugins";
    // Pod Security accepts this pod, so that the policy decides.
    let context = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": true,
        "seccompProfile": {"type": "RuntimeDefault"}});
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i", "securityContext": context}]}});
    let only = "this namespace has only the accounts of plugins";
    admin.refused(Method::POST, &format!("{home}/pods"), &pod, only).await?;
    admin.refused(Method::POST, &format!("{home}/secrets"), &json!({"metadata": {"name": "s"}}), only).await?;
    let swap = json!({"metadata": {"name": "swap"}});
    admin.accepted(Method::POST, &format!("{home}/serviceaccounts"), &swap).await?;
    let token = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    admin.refused(Method::POST, &format!("{home}/serviceaccounts/swap/token"), &token, only).await?;
    // The policy of pods asks both accounts for the same right.
    let names = pods(&cluster, Mode::Evict, 1).await?;
    let plugin = Requests { client: plane.client(Account::Admin).await?, user: Some(PLUGIN) };
    let path = format!("/api/v1/namespaces/granted/pods/{}", names[0]);
    let image = json!([{"op": "replace", "path": "/spec/containers/0/image", "value": "other"}]);
    plugin.refused(Method::PATCH, &path, &image, "may change only labels, annotations and finalizers of pods").await?;
    cluster.finish().await
}
