//! Tasks on nodes: a script runs once on each node, and the job reports its result.

use anyhow::{bail, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, EvictParams, ListParams, PostParams};
use oarlock::manifests::{GrantedAccess, PodPolicies, manifests_with};
use oarlock_core::object::own::TASKS_NAMESPACE;
use oarlock_sim::world::{Pause, Scope};
use oarlock_support::install::{self, Way};
use serde_json::{Value, json};

use super::on_nodes::{create, node, set_label};
use crate::components::RUN_SCRIPT_GRANTS;
use crate::jobs::Told;
use crate::test_cluster::{Backend, TestCluster, patiently, tasks_namespace};

/// A script that never ends by itself.
const LONG: &str = "# sim: sleep 100000";

fn task_pods(cluster: &TestCluster) -> Api<Pod> {
    Api::namespaced(cluster.client.clone(), &tasks_namespace(&cluster.namespace))
}

fn outputs(cluster: &TestCluster) -> Api<ConfigMap> {
    Api::namespaced(cluster.client.clone(), &tasks_namespace(&cluster.namespace))
}

/// Returns the spec of a job that runs this script on these nodes.
fn run(script: &str, targets: &[&String], more: &Value) -> Value {
    let targets: Vec<Value> = targets.iter().map(|name| json!({ "name": name })).collect();
    let mut spec =
        json!({"action": "RunScript", "targetKind": "Node", "targets": targets, "parameters": {"script": script}});
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    spec
}

/// Returns the manifests that the grant of the plugin needs. The namespace of tasks belongs to this scenario alone.
fn documents(cluster: &TestCluster) -> anyhow::Result<Vec<Value>> {
    let grants = oarlock_wasm::parse_grants(RUN_SCRIPT_GRANTS)?;
    let access = GrantedAccess::of(grants);
    let text = manifests_with(&access, PodPolicies::NONE)?;
    let own = install::documents(&text)?.into_iter().filter(|one| {
        let name = one.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        name.contains("run-script") || name.starts_with(TASKS_NAMESPACE)
    });
    let renamed = own.map(|one| {
        serde_json::from_str(&one.to_string().replace(TASKS_NAMESPACE, &tasks_namespace(&cluster.namespace)))
    });
    let own: Vec<Value> = renamed.collect::<Result<_, _>>()?;
    ensure!(own.len() >= 5, "roles with their bindings, the namespace, a role there and its binding: {own:?}");
    Ok(own)
}

async fn start(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let mut host = cluster.host_named("host");
    host.plugins = vec!["run-script"];
    host.grants = RUN_SCRIPT_GRANTS.to_owned();
    cluster.start(host).await
}

/// Allows jobs on nodes in the namespace, creates the namespace of tasks, and starts a host with the plugin.
async fn begin(cluster: &mut TestCluster) -> anyhow::Result<()> {
    set_label(cluster, Some("true")).await?;
    install::install(&cluster.client, &documents(cluster)?, Way::Apply).await?;
    start(cluster).await
}

/// Returns the stored state of a target's task.
fn task(job: &DynamicObject, target: &str) -> Value {
    let all = job.targets();
    let text = all.get(target).and_then(|one| one.pointer("/extraInfo")?.get("Task/script")?.as_str());
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

fn field<'a>(value: &'a Value, name: &str) -> &'a Value {
    value.get(name).unwrap_or(&Value::Null)
}

async fn until_running(cluster: &TestCluster, job: &str, target: &str) -> anyhow::Result<()> {
    cluster.until(job, "the script runs", |job| *field(&task(job, target), "state") == "Running").await.map(drop)
}

async fn until_no_pods(cluster: &TestCluster) -> anyhow::Result<()> {
    patiently("no pod of a task is left", async || {
        Ok(task_pods(cluster).list(&ListParams::default()).await?.items.is_empty())
    })
    .await
}

async fn until_outputs(cluster: &TestCluster, count: usize) -> anyhow::Result<()> {
    let mine = ListParams::default().labels("oarlock.dev/task");
    patiently(&format!("there are {count} outputs"), async || {
        Ok(outputs(cluster).list(&mine).await?.items.len() == count)
    })
    .await
}

/// Each of three nodes, two at a time, runs the script once. The output is kept until the job goes.
pub async fn a_script_runs_once_on_each_node_and_its_outputs_go_with_the_job(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let (a, b, c) =
        (node(cluster, "a", true).await?, node(cluster, "b", true).await?, node(cluster, "c", false).await?);
    begin(cluster).await?;
    let script = "# sim: sleep 0.5\n# sim: output done here";
    create(cluster, "m", run(script, &[&a, &b, &c], &json!({"parallelism": 2}))).await?;
    let job = cluster.until_progress("m", "Succeeded").await?;
    for name in [&a, &b, &c] {
        let stored = task(&job, name);
        ensure!(*field(&stored, "exitCode") == 0 && *field(&stored, "output") == "done here\n", "{name}: {stored}");
        ensure!(cluster.world.commands_begun(name) == 1, "{name} ran it {} times", cluster.world.commands_begun(name));
    }
    until_no_pods(cluster).await?;
    until_outputs(cluster, 3).await?;
    // All tasks mounted the same ConfigMap, which stays for later tasks with the same script.
    let scripts = outputs(cluster).list(&ListParams::default().labels("oarlock.dev/script")).await?.items;
    let [map] = &scripts[..] else { bail!("one script: {scripts:?}") };
    let text = map.data.as_ref().and_then(|data| data.get("script"));
    ensure!(map.immutable == Some(true) && text.is_some_and(|text| text == script), "{map:?}");
    let kept = outputs(cluster).list(&ListParams::default().labels("oarlock.dev/target-index=1")).await?;
    let text = kept.items.first().and_then(|map| map.data.as_ref()?.get("output"));
    ensure!(text.is_some_and(|text| text == "done here\n"), "{kept:?}");
    cluster.delete_job("m").await?;
    cluster.until_gone("m").await?;
    until_outputs(cluster, 0).await
}

/// A failed script is reported with its exit code. If a script prints 10 MB, only the end is kept, with a note that the rest is missing.
pub async fn a_script_that_fails_is_told_with_its_exit_code_and_the_end_of_its_output(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let (a, b) = (node(cluster, "a", true).await?, node(cluster, "b", true).await?);
    begin(cluster).await?;
    create(cluster, "fails", run("# sim: output not so\n# sim: exit 3", &[&a], &json!({}))).await?;
    let line = "x".repeat(99);
    let much = format!("# sim: output {line}\n# sim: repeat 100000\n# sim: output the end");
    create(cluster, "prints", run(&much, &[&b], &json!({}))).await?;
    let job = cluster.until_progress("fails", "Failed").await?;
    let (stored, error) = (task(&job, &a), job.target(&a));
    ensure!(
        error == "Failed/ScriptFailed" && *field(&stored, "exitCode") == 3 && *field(&stored, "output") == "not so\n",
        "{error} {stored}"
    );
    let job = cluster.until_progress("prints", "Succeeded").await?;
    let stored = task(&job, &b);
    let output = field(&stored, "output").as_str().unwrap_or_default();
    ensure!(output.len() <= 512 && output.starts_with("[...]") && output.ends_with("the end\n"), "{stored}");
    until_no_pods(cluster).await?;
    until_outputs(cluster, 2).await?;
    for map in outputs(cluster).list(&ListParams::default().labels("oarlock.dev/task")).await? {
        let text = map.data.as_ref().and_then(|data| data.get("output")).cloned().unwrap_or_default();
        ensure!(text == "not so\n" || text.starts_with("[...]") && text.len() <= 4096, "{} bytes", text.len());
    }
    Ok(())
}

/// If the pod of a task is deleted or evicted, the outcome of the script is unknown, and the host does not run the script again.
pub async fn a_task_whose_pod_is_deleted_or_evicted_is_lost_and_not_begun_again(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let (a, b) = (node(cluster, "a", true).await?, node(cluster, "b", true).await?);
    begin(cluster).await?;
    create(cluster, "m", run(LONG, &[&a, &b], &json!({}))).await?;
    until_running(cluster, "m", &a).await?;
    until_running(cluster, "m", &b).await?;
    for pod in task_pods(cluster).list(&ListParams::default()).await? {
        let name = pod.metadata.name.clone().unwrap_or_default();
        if pod.spec.and_then(|spec| spec.node_name).is_some_and(|node| node == a) {
            task_pods(cluster).delete(&name, &DeleteParams::default()).await?;
        } else {
            task_pods(cluster).evict(&name, &EvictParams::default()).await?;
        }
    }
    let job = cluster.until_progress("m", "Failed").await?;
    for name in [&a, &b] {
        let (stored, error) = (task(&job, name), job.target(name));
        let lost = field(&stored, "message").as_str().is_some_and(|text| text.starts_with("lost: "));
        ensure!(error == "Failed/ScriptLost" && lost, "{error} {stored}");
        ensure!(cluster.world.commands_begun(name) == 1, "{name} ran it {} times", cluster.world.commands_begun(name));
    }
    until_no_pods(cluster).await
}

/// A job that is deleted before its pod starts, while its script runs or afterwards leaves nothing of its tasks.
pub async fn a_job_that_is_deleted_at_any_stage_leaves_nothing_of_its_tasks(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let a = node(cluster, "a", true).await?;
    begin(cluster).await?;
    cluster.world.hold(Pause::Tasks, Scope::World);
    create(cluster, "waits", run(LONG, &[&a], &json!({}))).await?;
    cluster.until("waits", "the pod is seen", |job| field(&task(job, &a), "pod").is_string()).await?;
    cluster.delete_job("waits").await?;
    cluster.until_gone("waits").await?;
    until_no_pods(cluster).await?;
    ensure!(cluster.world.commands_begun(&a) == 0, "it was begun");
    cluster.world.release(Pause::Tasks, Scope::World);
    create(cluster, "runs", run(LONG, &[&a], &json!({}))).await?;
    until_running(cluster, "runs", &a).await?;
    cluster.delete_job("runs").await?;
    cluster.until_gone("runs").await?;
    until_no_pods(cluster).await?;
    create(cluster, "ends", run("# sim: output done", &[&a], &json!({}))).await?;
    cluster.until_progress("ends", "Succeeded").await?;
    until_outputs(cluster, 1).await?;
    cluster.delete_job("ends").await?;
    cluster.until_gone("ends").await?;
    until_no_pods(cluster).await?;
    until_outputs(cluster, 0).await
}

/// A69: a job that vanishes while a script runs, or after its output is kept, leaves nothing of its tasks.
pub async fn a_job_that_vanishes_leaves_nothing_of_its_tasks(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let (a, b) = (node(cluster, "a", true).await?, node(cluster, "b", true).await?);
    begin(cluster).await?;
    create(cluster, "ends", run("# sim: output done", &[&a], &json!({}))).await?;
    cluster.until_progress("ends", "Succeeded").await?;
    until_outputs(cluster, 1).await?;
    create(cluster, "runs", run(LONG, &[&b], &json!({}))).await?;
    until_running(cluster, "runs", &b).await?;
    for name in ["ends", "runs"] {
        cluster.vanish(name).await?;
    }
    until_no_pods(cluster).await?;
    until_outputs(cluster, 0).await
}

/// If a host is killed before the pod starts, while the script runs or afterwards, the next host finds the task, and it runs once.
pub async fn a_task_goes_on_over_restarts_of_the_host_and_runs_once(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let a = node(cluster, "a", true).await?;
    begin(cluster).await?;
    cluster.world.hold(Pause::Tasks, Scope::World);
    create(cluster, "m", run("# sim: sleep 2\n# sim: output done", &[&a], &json!({}))).await?;
    patiently("the pod is made", async || Ok(!task_pods(cluster).list(&ListParams::default()).await?.items.is_empty()))
        .await?;
    cluster.kill_host("host").await?;
    start(cluster).await?;
    cluster.until("m", "the pod is seen", |job| field(&task(job, &a), "pod").is_string()).await?;
    cluster.world.release(Pause::Tasks, Scope::World);
    until_running(cluster, "m", &a).await?;
    cluster.kill_host("host").await?;
    start(cluster).await?;
    let job = cluster.until_progress("m", "Succeeded").await?;
    cluster.kill_host("host").await?;
    start(cluster).await?;
    ensure!(*field(&task(&job, &a), "output") == "done\n", "{:?}", job.targets());
    ensure!(cluster.world.commands_begun(&a) == 1, "it ran {} times", cluster.world.commands_begun(&a));
    until_no_pods(cluster).await?;
    until_outputs(cluster, 1).await
}

/// Without the namespace of tasks the host creates no pod, and the target says so. On a real server the target also reports
/// missing rights and a namespace that forbids privileged pods.
pub async fn a_namespace_of_tasks_that_is_missing_is_named_and_the_task_goes_on_once_it_is_there(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let a = node(cluster, "a", true).await?;
    set_label(cluster, Some("true")).await?;
    let all = documents(cluster)?;
    let is_of_tasks = |one: &&Value| one.to_string().contains(&tasks_namespace(&cluster.namespace));
    let roles: Vec<Value> = all.iter().filter(|one| !is_of_tasks(one)).cloned().collect();
    install::install(&cluster.client, &roles, Way::Apply).await?;
    start(cluster).await?;
    create(cluster, "m", run("# sim: output done", &[&a], &json!({}))).await?;
    let told = |job: &DynamicObject| {
        let all = job.targets();
        let error = all.get(&a).and_then(|one| one.pointer("/error/message")?.as_str().map(str::to_owned));
        error.unwrap_or_default()
    };
    let name = tasks_namespace(&cluster.namespace);
    let job = cluster.until("m", "refused", |job| told(job).contains(&name)).await?;
    ensure!(job.target(&a) == "Processing/UpdateObjectFailed", "{}", job.target(&a));
    if let Backend::Real(_) = cluster.backend {
        let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
        let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
        let restricted = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
        namespaces.create(&PostParams::default(), &serde_json::from_value(restricted)?).await?;
        cluster.until("m", "without rights", |job| told(job).contains("cannot create resource")).await?;
        let rights: Vec<Value> = all.iter().filter(|one| *field(one, "kind") != "Namespace").cloned().collect();
        install::install(&cluster.client, &rights, Way::Apply).await?;
        cluster.until("m", "restricted", |job| told(job).contains("violates PodSecurity")).await?;
    }
    install::install(&cluster.client, &all, Way::Apply).await?;
    cluster.until_progress("m", "Succeeded").await?;
    ensure!(cluster.world.commands_begun(&a) == 1, "it ran {} times", cluster.world.commands_begun(&a));
    until_no_pods(cluster).await
}
