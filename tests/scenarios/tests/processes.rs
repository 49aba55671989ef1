//! Host processes on a real control plane: a host whose role lacks a kind, and leaders that are frozen for a while.
//!
//! Each host has exactly the rights that `oarlock manifests` gives it. Its requests go through a proxy that can hold a write. Only processes that a
//! test has started are frozen, by their ids.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::Method;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{Api, ApiResource, Patch, PatchParams};
use kube::core::GroupVersionKind;
use oarlock_scenarios::host_process::HostProcess;
use oarlock_scenarios::jobs::{Told, replace};
use oarlock_scenarios::mode::Mode;
use oarlock_scenarios::scenarios::{all_replaced, identities};
use oarlock_scenarios::test_cluster::{TestCluster, patiently, real_plane};
use oarlock_sim::world::{History, Pause, Scope, Version};
use oarlock_support::accounts::Account;
use oarlock_support::control_plane::{self, ControlPlane};
use oarlock_support::faults::Plan;
use oarlock_support::interception::{Interceptor, WriteRecord};
use oarlock_support::proxy::Proxy;
use serde_json::{Value, json};
use tokio::time::Instant;

const SETTLED: Duration = Duration::from_secs(180);
const IGNORED: [&str; 2] = ["leases", "events"];
/// The grants of the fixtures.
const FIXTURES: &str = include_str!("../../plugins/hostile/grants.yaml");

/// Creates a set of pods, waits until they are ready, and returns their names and UIDs.
async fn planted(
    plane: &Arc<ControlPlane>,
    mode: Mode,
    count: usize,
) -> anyhow::Result<(TestCluster, Vec<(String, String)>)> {
    let cluster = TestCluster::real(plane.clone(), mode.app()).await?;
    let set = mode.plant(&cluster, count).await?;
    cluster.world.settled(&set, SETTLED).await?;
    let pods = identities(&cluster, &cluster.pod_names(mode.app()).await?).await?;
    Ok((cluster, pods))
}

fn names(pods: &[(String, String)]) -> Vec<String> {
    pods.iter().map(|(name, _)| name.clone()).collect()
}

async fn proxy(plane: &ControlPlane) -> anyhow::Result<Proxy> {
    Proxy::start(plane.config(Account::Host).await?, Interceptor::new(Plan::none(), &IGNORED)).await
}

/// A53: a granted plugin reads ConfigMaps, which the role of the host lacks.
#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_whose_kind_the_role_lacks_says_so_and_the_others_serve() -> anyhow::Result<()> {
    let plane = real_plane(control_plane::Options::default()).await?;
    let (cluster, pods) = planted(&plane, Mode::Evict, 2).await?;
    let proxy = proxy(&plane).await?;
    let host = HostProcess::start(&plane, &proxy.url())?;
    let all = names(&pods);
    let (one, other) = all.split_at(1);
    host.drop_plugin("reader", FIXTURES)?;
    (host.killer())();
    host.begin()?;
    let targets: Vec<_> = one.iter().map(|name| json!({ "name": name })).collect();
    cluster.create_job("reads", json!({"action": "Reader", "targets": targets})).await?;
    let unavailable = |job: &kube::api::DynamicObject| job.condition("ActionAvailable") == "False/KindNotReadable";
    let job = cluster.until("reads", "unavailable", unavailable).await.context(host.tail())?;
    let message = job.condition_message("ActionAvailable");
    ensure!(message.contains("ConfigMap") && message.contains("reader"), "{message}");
    cluster.create_job("replaces", replace(other, json!({}))).await?;
    cluster.until_progress("replaces", "Succeeded").await.context(host.tail())?;
    let roles: Api<ClusterRole> = Api::all(cluster.client.clone());
    let rule = json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]});
    let add = serde_json::from_value(json!([{"op": "add", "path": "/rules/-", "value": rule}]))?;
    roles.patch("oarlock", &PatchParams::default(), &Patch::<()>::Json(add)).await?;
    let mended = Instant::now();
    cluster.until_progress("reads", "Succeeded").await.context(host.tail())?;
    ensure!(mended.elapsed() <= Duration::from_secs(60), "healed after {:?}", mended.elapsed());
    host.check()?;
    host.end();
    cluster.finish().await
}

fn records() -> ApiResource {
    let kind = GroupVersionKind::gvk("oarlock.dev", "v1alpha1", "OperationRecord");
    ApiResource::from_gvk_with_plural(&kind, "operationrecords")
}

/// Two hosts with different identities. The first host leads.
struct Pair {
    first: HostProcess,
    to_first: Proxy,
    second: HostProcess,
    // This proxy carries the requests of the second host as long as it lives.
    _to_second: Proxy,
}

impl Pair {
    async fn start(plane: &ControlPlane) -> anyhow::Result<Self> {
        let (to_first, to_second) = (proxy(plane).await?, proxy(plane).await?);
        let first = HostProcess::start_as(plane, &to_first.url(), "first")?;
        let leases: Api<k8s_openapi::api::coordination::v1::Lease> =
            Api::namespaced(plane.client(Account::Admin).await?, "oarlock-system");
        patiently("the first leads", async || {
            let lease = leases.get_opt("oarlock").await?.and_then(|lease| lease.spec?.holder_identity);
            Ok(lease.as_deref() == Some("first"))
        })
        .await?;
        let second = HostProcess::start_as(plane, &to_second.url(), "second")?;
        Ok(Self { first, to_first, second, _to_second: to_second })
    }

    /// Returns the writes of the first host, from number `number` on, that the server accepted.
    fn accepted_from(&self, number: usize) -> Vec<WriteRecord> {
        let all = self.to_first.interceptor().records();
        let late = all.into_iter().skip(number);
        late.filter(|write| write.status.is_some_and(|status| status.is_success())).collect()
    }
}

/// A59: the first leader is frozen after it has sent a write of a record. The write arrives at the server after the second host has led.
#[tokio::test(flavor = "multi_thread")]
async fn no_record_says_less_after_a_frozen_leader_thaws() -> anyhow::Result<()> {
    const TARGETS: usize = 300;
    let plane = real_plane(control_plane::Options::default()).await?;
    let (cluster, pods) = planted(&plane, Mode::Evict, TARGETS).await?;
    let history = History::record(&cluster.client, vec![records()]);
    let hosts = Pair::start(&plane).await?;
    cluster.create_job("r", replace(&names(&pods), json!({}))).await?;
    cluster.until("r", "some way on", |job| job.count("succeeded") >= 20).await?;
    let held = hosts.to_first.interceptor().hold_next(Method::PATCH, "/operationrecords");
    held.caught().await;
    hosts.first.freeze()?;
    let job = cluster.until_progress("r", "Succeeded").await.context(hosts.second.tail())?;
    let epoch = job.data.pointer("/status/epoch").and_then(Value::as_i64).context("it has an epoch")?;
    ensure!(epoch >= 2, "another term ended it: {epoch}");
    held.release();
    tokio::time::sleep(Duration::from_secs(2)).await;
    // Writes that the first host sent together with the held write were accepted before the second host led.
    let sent = hosts.to_first.interceptor().records().len();
    hosts.first.thaw()?;
    tokio::time::sleep(Duration::from_secs(20)).await;
    hosts.first.check()?;
    let late: Vec<_> = hosts.accepted_from(sent);
    ensure!(late.is_empty(), "the first wrote after it had thawed: {late:?}");
    ensure!(
        hosts.to_first.interceptor().records().iter().any(|write| write.verb == Method::PATCH
            && write.path.contains("/operationrecords")
            && write.status.is_some_and(|status| status == http::StatusCode::CONFLICT)),
        "the held write came too late"
    );
    says_less(&history.versions())?;
    all_replaced(&cluster, &pods).await?;
    hosts.first.end();
    hosts.second.end();
    cluster.finish().await
}

/// Fails if a version of a record says less than the version before or has an older epoch.
fn says_less(versions: &[Version]) -> anyhow::Result<()> {
    let mut seen: BTreeMap<&str, &Version> = BTreeMap::new();
    ensure!(versions.len() > 2, "records were seen");
    for version in versions.iter().filter(|version| !version.is_end) {
        if let Some(before) = seen.insert(&version.name, version) {
            let epoch = |version: &Version| version.at("/epoch").as_i64().unwrap_or(0);
            ensure!(epoch(before) <= epoch(version), "{}: its epoch fell", version.name);
            let list = |version: &Version| version.at("/targets").as_array().cloned().unwrap_or_default();
            for (old, new) in list(before).iter().zip(list(version)) {
                let (old, new) = (how_far(old)?, how_far(&new)?);
                ensure!(old.0 <= new.0 && (old.0 < 2 || old == new), "{}: {old:?} became {new:?}", version.name);
            }
        }
    }
    Ok(())
}

/// Returns how far a target has come, read from its JSON line in a record.
fn how_far(line: &Value) -> anyhow::Result<(usize, String)> {
    let target: Value = serde_json::from_str(line.as_str().context("a target is a line")?)?;
    let word = target.get("progress").and_then(Value::as_str).unwrap_or("Pending");
    let far = ["Pending", "Processing"].iter().position(|known| *known == word).unwrap_or(2);
    Ok((far, word.to_owned()))
}

/// A36: the leader is frozen for a minute after it has sent a mark. Its job is deleted meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn the_mark_of_a_leader_that_was_frozen_for_a_minute_comes_too_late() -> anyhow::Result<()> {
    let plane = real_plane(control_plane::Options::default()).await?;
    let (cluster, pods) = planted(&plane, Mode::CollaSet, 1).await?;
    cluster.world.hold(Pause::Creation, Scope::World);
    let hosts = Pair::start(&plane).await?;
    let held = hosts.to_first.interceptor().hold_next(Method::PATCH, "/pods/");
    cluster.create_job("m", replace(&names(&pods), json!({}))).await?;
    held.caught().await;
    hosts.first.freeze()?;
    let frozen = Instant::now();
    let sent = hosts.to_first.interceptor().records().len() - 1;
    cluster
        .until("m", "of the next term", |job| job.data.pointer("/status/epoch") == Some(&json!(2)))
        .await
        .context(hosts.second.tail())?;
    cluster.delete_job("m").await?;
    cluster.until_gone("m").await?;
    tokio::time::sleep_until(frozen + Duration::from_secs(60)).await;
    held.release();
    hosts.first.thaw()?;
    tokio::time::sleep(Duration::from_secs(20)).await;
    hosts.first.check()?;
    let late = hosts.accepted_from(sent);
    ensure!(late.is_empty(), "the first wrote after it had thawed: {late:?}");
    cluster.until_nothing_is_left().await?;
    hosts.first.end();
    hosts.second.end();
    cluster.finish().await
}
