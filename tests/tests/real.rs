//! Scenarios on a real etcd and API server, and what only a real one shows: kubectl, and a server that is killed.
//!
//! A test run has the scenarios in which the API server decides something; a soak has all. All scenarios share one control plane, each in a namespace of its own, with a host that sees that namespace alone and
//! has exactly the roles of `oarlock manifests`. Those that kill the API server have one of their own.

use std::sync::Arc;

use anyhow::{Context as _, ensure};
use oarlock_bed::accounts::Account;
use oarlock_bed::control_plane::{self, ControlPlane};
use oarlock_bed::faults::When;
use oarlock_bed::postgres::Postgres;
use oarlock_history::HistoryPlace;
use oarlock_sim::world::{Pause, Scope};
use oarlock_tests::crash::sweep::is_soak;
use oarlock_tests::jobs::{Told, replace};
use oarlock_tests::rig::{Ground, Rig, patiently, real_plane};
use oarlock_tests::scenarios::ops_crashes::{CrashGround, Deed};
use oarlock_tests::scenarios::{all_replaced, documented, identities};
use serde_json::json;
use tokio::sync::{OnceCell, Semaphore};

/// The control plane of all scenarios; it ends with this process.
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
        // By default it sends 20 requests a second, of which each Job takes several.
        controller_manager_flags: ["--kube-api-qps=500", "--kube-api-burst=1000", "--concurrent-job-syncs=20"]
            .map(str::to_owned)
            .to_vec(),
        ..control_plane::Options::default()
    }
}

/// Of more at once some miss times that they are about.
static AT_ONCE: Semaphore = Semaphore::const_new(8);

async fn run(name: &str, scenario: impl AsyncFnOnce(&mut Rig) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let _place = AT_ONCE.acquire().await?;
    run_on(plane().await?, name, scenario).await
}

/// For whoever kills an API server, which nobody else is to notice.
async fn run_alone(name: &str, scenario: impl AsyncFnOnce(&mut Rig) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let _place = AT_ONCE.acquire().await?;
    run_on(real_plane(options()).await?, name, scenario).await
}

async fn run_on(
    plane: Arc<ControlPlane>,
    name: &str,
    scenario: impl AsyncFnOnce(&mut Rig) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut namespace = name.replace('_', "-");
    namespace.truncate(50);
    let mut rig = Rig::real(plane, namespace.trim_end_matches('-')).await?;
    scenario(&mut rig).await?;
    rig.finish().await
}

/// A test for each scenario, under its own name.
macro_rules! on_real {
    ($($module:ident :: $scenario:ident),* $(,)?) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $scenario() -> anyhow::Result<()> {
            run(stringify!($scenario), oarlock_tests::scenarios::$module::$scenario).await
        }
    )*};
}

oarlock_tests::scenarios!(on_real);

/// A test for each scenario that a soak alone runs here.
macro_rules! in_a_soak {
    ($($module:ident :: $scenario:ident),* $(,)?) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        #[ignore = "only the host decides here: each run has it in memory, and a soak on this control plane"]
        async fn $scenario() -> anyhow::Result<()> {
            run(stringify!($scenario), oarlock_tests::scenarios::$module::$scenario).await
        }
    )*};
}

oarlock_tests::host_scenarios!(in_a_soak);

/// A test for each scenario that needs a control plane of its own.
macro_rules! on_its_own {
    ($($module:ident :: $scenario:ident),* $(,)?) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $scenario() -> anyhow::Result<()> {
            run_alone(stringify!($scenario), oarlock_tests::scenarios::$module::$scenario).await
        }
    )*};
}

oarlock_tests::ops_scenarios!(on_its_own);

/// A host is killed at four writes of a deed, spread over it; in soak at each. What it did is in the history, which is a real PostgreSQL.
async fn killed(rig: &mut Rig, deed: Deed) -> anyhow::Result<()> {
    let database = Postgres::start()?;
    rig.rows = Some(HistoryPlace::read(&database.url()).map_err(anyhow::Error::msg)?);
    let mut ground = CrashGround::begin(rig, deed).await?;
    let writes = ground.run((0, When::BeforeSend)).await?;
    let last = writes.saturating_sub(1);
    let numbers: Vec<u64> =
        if is_soak() { (1..=writes).collect() } else { (0..4).map(|part| 1 + part * last / 3).collect() };
    for (number, when) in numbers.iter().zip([When::BeforeSend, When::AfterCommit].into_iter().cycle()) {
        let run = ground.run((*number, when)).await;
        run.with_context(|| format!("killed at write {number} of {writes}, {when:?}"))?;
    }
    println!("{deed:?}: a host was killed at the writes {numbers:?} of about {writes}");
    Ok(())
}

/// A test for each deed.
macro_rules! killed_at {
    ($($name:ident: $deed:ident),* $(,)?) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() -> anyhow::Result<()> {
            run_alone(stringify!($name), async |rig: &mut Rig| killed(rig, Deed::$deed).await).await
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

fn server(rig: &Rig) -> anyhow::Result<Arc<ControlPlane>> {
    match &rig.ground {
        Ground::Real(plane) => Ok(plane.clone()),
        Ground::Sim(_) => anyhow::bail!("this scenario is for a real control plane"),
    }
}

async fn kubectl(rig: &Rig, arguments: &[&str]) -> anyhow::Result<String> {
    let mut command = server(rig)?.kubectl(Account::Admin)?;
    command.args(["--namespace", &rig.namespace]).args(arguments);
    let output = tokio::task::spawn_blocking(move || command.output()).await?.context("kubectl does not run")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "kubectl {arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    Ok(text)
}

async fn an_operator_uses_kubectl(rig: &mut Rig) -> anyhow::Result<()> {
    let set = rig.seedbed.collaset("foo", 2).await?;
    rig.world.settled(&set, std::time::Duration::from_secs(120)).await?;
    let names = rig.pod_names("foo").await?;
    let pods = identities(rig, &names).await?;
    rig.start_host().await?;
    let targets: Vec<_> = names.iter().map(|name| json!({ "name": name })).collect();
    let job = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob", "metadata": {"name": "x"},
        "spec": {"action": "Replace", "partition": 1, "targets": targets},
    });
    let file = server(rig)?.folder().join("kubectl-job.json");
    std::fs::write(&file, job.to_string())?;
    kubectl(rig, &["apply", "-f", &file.to_string_lossy()]).await?;
    kubectl(rig, &["wait", "--timeout=60s", "--for=jsonpath={.status.succeededPodCount}=1", "opj/x"]).await?;
    let table = kubectl(rig, &["get", "opj", "x"]).await?;
    for words in
        ["NAME", "ACTION", "PROGRESS", "DONE", "WAITS FOR", "AGE", "Replace ", "Processing ", "1/2 ", "Partition "]
    {
        ensure!(table.contains(words), "{words} is not in {table}");
    }
    kubectl(rig, &["patch", "opj", "x", "--type=merge", "-p", r#"{"spec":{"partition":2}}"#]).await?;
    kubectl(rig, &["wait", "--timeout=60s", "--for=condition=Complete", "opj/x"]).await?;
    let told = kubectl(rig, &["wait", "--timeout=10s", "--for=jsonpath={.status.endTime}", "opj/x"]).await?;
    ensure!(told.contains("condition met"), "{told}");
    rig.until_told("Completed", 1).await?;
    let described = kubectl(rig, &["describe", "opj", "x"]).await?;
    for word in ["ReplaceOriginPod", "ReplaceNewPod", "Completed", "operationjob-controller", "Succeeded"] {
        ensure!(described.contains(word), "{word} is not in {described}");
    }
    kubectl(rig, &["delete", "opj", "x", "--timeout=60s"]).await?;
    all_replaced(rig, &pods).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_gets_waits_describes_and_deletes() -> anyhow::Result<()> {
    run("kubectl", an_operator_uses_kubectl).await
}

/// Sleeps of the documented manifests take a tenth of their time.
const HURRIED: f64 = 0.1;

/// With a control plane of their own, for the DaemonJob runs on every node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_manifests_run_as_they_stand() -> anyhow::Result<()> {
    let _place = AT_ONCE.acquire().await?;
    let mut rig = Rig::hurried(real_plane(options()).await?, "documented", HURRIED).await?;
    documented::prepare(&mut rig).await?;
    for (number, manifest) in documented::MANIFESTS.iter().enumerate() {
        let file = server(&rig)?.folder().join(format!("documented-{number}.yaml"));
        std::fs::write(&file, manifest)?;
        kubectl(&rig, &["apply", "-f", &file.to_string_lossy()]).await?;
    }
    documented::end_as_documented(&rig, HURRIED).await?;
    for (kind, name) in [("jobflows", "jobflow-example"), ("daemonjobs", "daemonjob-example")] {
        let table = kubectl(&rig, &["get", &format!("{kind}.api.practice.com")]).await?;
        let words: Vec<&str> = table.split_whitespace().collect();
        ensure!(words.starts_with(&["NAME", "STATUS", "AGE", name, "Succeed"]), "{table}");
    }
    rig.finish().await
}

/// The API server bounds what the rules and messages of a policy may cost.
async fn the_largest_job_is_taken(rig: &mut Rig) -> anyhow::Result<()> {
    let long = "a".repeat(94);
    let mut names: Vec<String> = (0..10_000).map(|number| format!("{long}-{number:05}")).collect();
    rig.create_job("largest", replace(&names, json!({}))).await?;
    names.push("p4/status".to_owned());
    names.drain(..9_000);
    let refused =
        rig.create_job("large", replace(&names, json!({}))).await.err().context("it names no pod")?.to_string();
    ensure!(refused.contains("spec.targets[].name: must be a DNS-1123 subdomain"), "{refused}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_targets_pass_the_admission_policy() -> anyhow::Result<()> {
    run("largest", the_largest_job_is_taken).await
}

async fn the_server_is_killed(rig: &mut Rig) -> anyhow::Result<()> {
    // The record of versions has a gap while nobody can watch.
    rig.meddles();
    let set = rig.seedbed.collaset("foo", 3).await?;
    rig.world.settled(&set, std::time::Duration::from_secs(120)).await?;
    let names = rig.pod_names("foo").await?;
    let pods = identities(rig, &names).await?;
    rig.world.hold(Pause::Creation, Scope::World);
    rig.start_host().await?;
    rig.create_job("k", replace(&names, json!({}))).await?;
    rig.until("k", "begun", |job| job.count("processing") == 3).await?;
    let plane = server(rig)?;
    plane.kill_api_server();
    rig.world.release(Pause::Creation, Scope::World);
    patiently("the host has stepped down", async || Ok(!rig.running()?.leads())).await?;
    plane.start_api_server().await?;
    rig.until("k", "ended", |job| job.progress() == "Succeeded").await?;
    all_replaced(rig, &pods).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_that_was_killed_and_came_back_costs_nothing() -> anyhow::Result<()> {
    run_alone("server-killed", the_server_is_killed).await
}

/// How long the API server stands still: longer than a lease is renewed, shorter than it counts.
const FROZEN: std::time::Duration = std::time::Duration::from_secs(6);

/// One failure after the other, each while evictions are under way.
async fn the_servers_fail_under_load(rig: &mut Rig) -> anyhow::Result<()> {
    rig.meddles();
    let set = rig.seedbed.deployment("web", 60).await?;
    rig.world.settled(&set, std::time::Duration::from_secs(120)).await?;
    let names = rig.pod_names("web").await?;
    let pods = identities(rig, &names).await?;
    rig.start_host().await?;
    rig.create_job("l", replace(&names, json!({"partition": 15}))).await?;
    let plane = server(rig)?;
    for (failure, partition) in [("the server stands still", 30), ("its store is killed", 45), ("it is killed", 60)] {
        rig.until("l", failure, |job| job.count("processing") + job.count("succeeded") >= partition - 15).await?;
        rig.edit_job("l", json!({ "partition": partition })).await?;
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
    rig.until("l", "ended", |job| job.progress() == "Succeeded").await?;
    all_replaced(rig, &pods).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_fail_under_load_cost_nothing() -> anyhow::Result<()> {
    run_alone("load", the_servers_fail_under_load).await
}
