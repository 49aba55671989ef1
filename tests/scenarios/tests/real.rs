//! Scenarios on a real etcd and API server, including those that need a real one: kubectl, and a server that is killed.
//!
//! A test run plays the scenarios in which the API server decides something; a soak plays all. The scenarios share one control plane. Each has its
//! own namespace, and a host that watches only that namespace with exactly the roles of `oarlock manifests`. Scenarios that kill the API server have
//! their own control plane.

use std::sync::Arc;

use anyhow::{Context as _, ensure};
use oarlock_history::HistoryPlace;
use oarlock_scenarios::is_soak;
use oarlock_scenarios::jobs::{Told, replace};
use oarlock_scenarios::scenarios::ops_crashes::{CrashRuns, Deed};
use oarlock_scenarios::scenarios::{all_replaced, documented, identities};
use oarlock_scenarios::test_cluster::{Backend, TestCluster, patiently, real_plane};
use oarlock_sim::world::{Pause, Scope};
use oarlock_support::accounts::Account;
use oarlock_support::control_plane::{self, ControlPlane};
use oarlock_support::faults::When;
use oarlock_support::postgres::Postgres;
use serde_json::json;
use tokio::sync::{OnceCell, Semaphore};

/// Returns the control plane of all scenarios, which ends with this process.
async fn plane() -> anyhow::Result<Arc<ControlPlane>> {
    static PLANE: OnceCell<Arc<ControlPlane>> = OnceCell::const_new();
    PLANE.get_or_try_init(|| real_plane(options())).await.cloned()
}

fn options() -> control_plane::Options {
    control_plane::Options {
        controllers: vec![
            control_plane::GARBAGE_COLLECTOR,
            control_plane::DISRUPTION,
            control_plane::NAMESPACE,
            control_plane::JOB,
            control_plane::TTL_AFTER_FINISHED,
        ],
        // By default the controller manager sends 20 requests a second, and each Job takes several requests.
        controller_manager_flags: ["--kube-api-qps=500", "--kube-api-burst=1000", "--concurrent-job-syncs=20"]
            .map(str::to_owned)
            .to_vec(),
        ..control_plane::Options::default()
    }
}

/// Bounds the scenarios that run at once. With more than 8, some scenarios exceed the times that they test.
static AT_ONCE: Semaphore = Semaphore::const_new(8);

async fn run(name: &str, scenario: impl AsyncFnOnce(&mut TestCluster) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let _place = AT_ONCE.acquire().await?;
    run_on(plane().await?, name, scenario).await
}

/// Runs a scenario that kills its API server, on its own control plane.
async fn run_alone(
    name: &str,
    scenario: impl AsyncFnOnce(&mut TestCluster) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let _place = AT_ONCE.acquire().await?;
    run_on(real_plane(options()).await?, name, scenario).await
}

async fn run_on(
    plane: Arc<ControlPlane>,
    name: &str,
    scenario: impl AsyncFnOnce(&mut TestCluster) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut namespace = name.replace('_', "-");
    namespace.truncate(50);
    let mut cluster = TestCluster::real(plane, namespace.trim_end_matches('-')).await?;
    scenario(&mut cluster).await?;
    cluster.finish().await
}

/// Makes a test for each scenario, under its own name.
macro_rules! on_real {
    ($($module:ident :: $scenario:ident),* $(,)?) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $scenario() -> anyhow::Result<()> {
            run(stringify!($scenario), oarlock_scenarios::scenarios::$module::$scenario).await
        }
    )*};
}

oarlock_scenarios::scenarios!(on_real);

/// Makes a test for each scenario that only a soak runs here.
macro_rules! in_a_soak {
    ($($module:ident :: $scenario:ident),* $(,)?) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        #[ignore = "only the host decides here: each run has it in memory, and a soak on this control plane"]
        async fn $scenario() -> anyhow::Result<()> {
            run(stringify!($scenario), oarlock_scenarios::scenarios::$module::$scenario).await
        }
    )*};
}

oarlock_scenarios::host_scenarios!(in_a_soak);

/// Makes a test for each scenario that needs its own control plane.
macro_rules! on_its_own {
    ($($module:ident :: $scenario:ident),* $(,)?) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $scenario() -> anyhow::Result<()> {
            run_alone(stringify!($scenario), oarlock_scenarios::scenarios::$module::$scenario).await
        }
    )*};
}

oarlock_scenarios::ops_scenarios!(on_its_own);

/// Kills a host at four writes of a deed, spread over the deed; in a soak, at each write. The history of the host is in a real PostgreSQL.
async fn killed(cluster: &mut TestCluster, deed: Deed) -> anyhow::Result<()> {
    let database = Postgres::start()?;
    cluster.rows = Some(HistoryPlace::read(&database.url()).map_err(anyhow::Error::msg)?);
    let mut runs = CrashRuns::begin(cluster, deed).await?;
    let writes = runs.run((0, When::BeforeSend)).await?;
    let last = writes.saturating_sub(1);
    let numbers: Vec<u64> =
        if is_soak() { (1..=writes).collect() } else { (0..4).map(|part| 1 + part * last / 3).collect() };
    for (number, when) in numbers.iter().zip([When::BeforeSend, When::AfterCommit].into_iter().cycle()) {
        let run = runs.run((*number, when)).await;
        run.with_context(|| format!("killed at write {number} of {writes}, {when:?}"))?;
    }
    println!("{deed:?}: a host was killed at the writes {numbers:?} of about {writes}");
    Ok(())
}

/// Makes a test for each deed.
macro_rules! killed_at {
    ($($name:ident: $deed:ident),* $(,)?) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() -> anyhow::Result<()> {
            run_alone(stringify!($name), async |cluster: &mut TestCluster| killed(cluster, Deed::$deed).await).await
        }
    )*};
}

killed_at! {
    a_reboot_of_an_ops_job_outlives_a_host_that_is_killed_at_its_writes: Reboot,
    a_stop_of_an_ops_job_outlives_a_host_that_is_killed_at_its_writes: Stopped,
    a_preflight_of_an_ops_job_outlives_a_host_that_is_killed_at_its_writes: Preflight,
    an_addon_of_an_ops_job_outlives_a_host_that_is_killed_at_its_writes: Addon,
    an_export_of_an_ops_job_outlives_a_host_that_is_killed_at_its_writes: Export,
}

fn server(cluster: &TestCluster) -> anyhow::Result<Arc<ControlPlane>> {
    match &cluster.backend {
        Backend::Real(plane) => Ok(plane.clone()),
        Backend::Sim(_) => anyhow::bail!("this scenario is for a real control plane"),
    }
}

async fn kubectl(cluster: &TestCluster, arguments: &[&str]) -> anyhow::Result<String> {
    let mut command = server(cluster)?.kubectl(Account::Admin)?;
    command.args(["--namespace", &cluster.namespace]).args(arguments);
    let output = tokio::task::spawn_blocking(move || command.output()).await?.context("kubectl does not run")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "kubectl {arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    Ok(text)
}

async fn an_operator_uses_kubectl(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let set = cluster.seedbed.collaset("foo", 2).await?;
    cluster.world.settled(&set, std::time::Duration::from_secs(120)).await?;
    let names = cluster.pod_names("foo").await?;
    let pods = identities(cluster, &names).await?;
    cluster.start_host().await?;
    let targets: Vec<_> = names.iter().map(|name| json!({ "name": name })).collect();
    let job = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob", "metadata": {"name": "x"},
        "spec": {"action": "Replace", "partition": 1, "targets": targets},
    });
    let file = server(cluster)?.folder().join("kubectl-job.json");
    std::fs::write(&file, job.to_string())?;
    kubectl(cluster, &["apply", "-f", &file.to_string_lossy()]).await?;
    kubectl(cluster, &["wait", "--timeout=60s", "--for=jsonpath={.status.succeededPodCount}=1", "opj/x"]).await?;
    let table = kubectl(cluster, &["get", "opj", "x"]).await?;
    for words in
        ["NAME", "ACTION", "PROGRESS", "DONE", "WAITS FOR", "AGE", "Replace ", "Processing ", "1/2 ", "Partition "]
    {
        ensure!(table.contains(words), "{words} is not in {table}");
    }
    kubectl(cluster, &["patch", "opj", "x", "--type=merge", "-p", r#"{"spec":{"partition":2}}"#]).await?;
    kubectl(cluster, &["wait", "--timeout=60s", "--for=condition=Complete", "opj/x"]).await?;
    let told = kubectl(cluster, &["wait", "--timeout=10s", "--for=jsonpath={.status.endTime}", "opj/x"]).await?;
    ensure!(told.contains("condition met"), "{told}");
    cluster.until_told("Completed", 1).await?;
    let described = kubectl(cluster, &["describe", "opj", "x"]).await?;
    for word in ["ReplaceOriginPod", "ReplaceNewPod", "Completed", "operationjob-controller", "Succeeded"] {
        ensure!(described.contains(word), "{word} is not in {described}");
    }
    kubectl(cluster, &["delete", "opj", "x", "--timeout=60s"]).await?;
    all_replaced(cluster, &pods).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_gets_waits_describes_and_deletes() -> anyhow::Result<()> {
    run("kubectl", an_operator_uses_kubectl).await
}

/// Factor of the sleeps in the documented manifests.
const HURRIED: f64 = 0.1;

/// This test has its own control plane, because the DaemonJob runs on every node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_manifests_run_as_they_stand() -> anyhow::Result<()> {
    let _place = AT_ONCE.acquire().await?;
    let mut cluster = TestCluster::hurried(real_plane(options()).await?, "documented", HURRIED).await?;
    documented::prepare(&mut cluster).await?;
    for (number, manifest) in documented::MANIFESTS.iter().enumerate() {
        let file = server(&cluster)?.folder().join(format!("documented-{number}.yaml"));
        std::fs::write(&file, manifest)?;
        kubectl(&cluster, &["apply", "-f", &file.to_string_lossy()]).await?;
    }
    documented::end_as_documented(&cluster, HURRIED).await?;
    for (kind, name) in [("jobflows", "jobflow-example"), ("daemonjobs", "daemonjob-example")] {
        let table = kubectl(&cluster, &["get", &format!("{kind}.api.practice.com")]).await?;
        let words: Vec<&str> = table.split_whitespace().collect();
        ensure!(words.starts_with(&["NAME", "STATUS", "AGE", name, "Succeed"]), "{table}");
    }
    cluster.finish().await
}

/// The API server limits the cost of the rules and messages of a policy.
async fn the_largest_job_is_taken(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let long = "a".repeat(94);
    let mut names: Vec<String> = (0..10_000).map(|number| format!("{long}-{number:05}")).collect();
    cluster.create_job("largest", replace(&names, json!({}))).await?;
    names.push("p4/status".to_owned());
    names.drain(..9_000);
    let refused =
        cluster.create_job("large", replace(&names, json!({}))).await.err().context("it names no pod")?.to_string();
    ensure!(refused.contains("spec.targets[].name: must be a DNS-1123 subdomain"), "{refused}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_targets_pass_the_admission_policy() -> anyhow::Result<()> {
    run("largest", the_largest_job_is_taken).await
}

async fn the_server_is_killed(cluster: &mut TestCluster) -> anyhow::Result<()> {
    // The history of versions has a gap while the API server is down.
    cluster.meddles();
    let set = cluster.seedbed.collaset("foo", 3).await?;
    cluster.world.settled(&set, std::time::Duration::from_secs(120)).await?;
    let names = cluster.pod_names("foo").await?;
    let pods = identities(cluster, &names).await?;
    cluster.world.hold(Pause::Creation, Scope::World);
    cluster.start_host().await?;
    cluster.create_job("k", replace(&names, json!({}))).await?;
    cluster.until("k", "begun", |job| job.count("processing") == 3).await?;
    let plane = server(cluster)?;
    plane.kill_api_server();
    cluster.world.release(Pause::Creation, Scope::World);
    patiently("the host has stepped down", async || Ok(!cluster.running()?.leads())).await?;
    plane.start_api_server().await?;
    cluster.until("k", "ended", |job| job.progress() == "Succeeded").await?;
    all_replaced(cluster, &pods).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_that_was_killed_and_came_back_costs_nothing() -> anyhow::Result<()> {
    run_alone("server-killed", the_server_is_killed).await
}

/// How long the API server is frozen: longer than the renewal interval of a lease, shorter than the lease.
const FROZEN: std::time::Duration = std::time::Duration::from_secs(6);

/// Lets the servers fail one after the other, each while evictions are under way.
async fn the_servers_fail_under_load(cluster: &mut TestCluster) -> anyhow::Result<()> {
    cluster.meddles();
    let set = cluster.seedbed.deployment("web", 60).await?;
    cluster.world.settled(&set, std::time::Duration::from_secs(120)).await?;
    let names = cluster.pod_names("web").await?;
    let pods = identities(cluster, &names).await?;
    cluster.start_host().await?;
    cluster.create_job("l", replace(&names, json!({"partition": 15}))).await?;
    let plane = server(cluster)?;
    for (failure, partition) in [("the server stands still", 30), ("its store is killed", 45), ("it is killed", 60)] {
        cluster.until("l", failure, |job| job.count("processing") + job.count("succeeded") >= partition - 15).await?;
        cluster.edit_job("l", json!({ "partition": partition })).await?;
        match partition {
            30 => {
                plane.freeze_api_server()?;
                tokio::time::sleep(FROZEN).await;
                plane.thaw_api_server()?;
            }
            45 => {
                plane.kill_store();
                plane.start_store().await?;
            }
            _ => {
                plane.kill_api_server();
                plane.start_api_server().await?;
            }
        }
    }
    cluster.until("l", "ended", |job| job.progress() == "Succeeded").await?;
    all_replaced(cluster, &pods).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_fail_under_load_cost_nothing() -> anyhow::Result<()> {
    run_alone("load", the_servers_fail_under_load).await
}
