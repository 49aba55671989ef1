//! Tasks on nodes: a script runs there once, and what is left of that is what its job says.

use anyhow::{bail, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, EvictParams, ListParams, PostParams};
use oarlock::manifests::{GrantedAccess, PodPolicies, manifests_with};
use oarlock_bed::install::{self, Way};
use oarlock_core::cluster::own::TASKS_NAMESPACE;
use oarlock_sim::world::{Pause, Scope};
use serde_json::{Value, json};

use super::on_nodes::{create, node, set_label};
use crate::components::RUN_SCRIPT_GRANTS;
use crate::jobs::Told;
use crate::rig::{Ground, Rig, patiently, tasks_namespace};

/// A script that never ends by itself.
const LONG: &str = "# sim: sleep 100000";

fn task_pods(rig: &Rig) -> Api<Pod> {
    Api::namespaced(rig.client.clone(), &tasks_namespace(&rig.namespace))
}

fn outputs(rig: &Rig) -> Api<ConfigMap> {
    Api::namespaced(rig.client.clone(), &tasks_namespace(&rig.namespace))
}

/// A job that runs this script on these nodes.
fn run(script: &str, targets: &[&String], more: &Value) -> Value {
    let targets: Vec<Value> = targets.iter().map(|name| json!({ "name": name })).collect();
    let mut spec =
        json!({"action": "RunScript", "targetKind": "Node", "targets": targets, "parameters": {"script": script}});
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    spec
}

/// The documents that the grant of the plugin needs, with a namespace of tasks for this scenario alone.
fn documents(rig: &Rig) -> anyhow::Result<Vec<Value>> {
    let grants = oarlock_wasm::parse_grants(RUN_SCRIPT_GRANTS)?;
    let access = GrantedAccess::of(grants);
    let text = manifests_with(&access, PodPolicies::NONE)?;
    let own = install::documents(&text)?.into_iter().filter(|one| {
        let name = one.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        name.contains("run-script") || name.starts_with(TASKS_NAMESPACE)
    });
    let renamed = own
        .map(|one| serde_json::from_str(&one.to_string().replace(TASKS_NAMESPACE, &tasks_namespace(&rig.namespace))));
    let own: Vec<Value> = renamed.collect::<Result<_, _>>()?;
    ensure!(own.len() >= 5, "roles with their bindings, the namespace, a role there and its binding: {own:?}");
    Ok(own)
}

async fn start(rig: &mut Rig) -> anyhow::Result<()> {
    let mut host = rig.host_named("host");
    host.plugins = vec!["run-script"];
    host.grants = RUN_SCRIPT_GRANTS.to_owned();
    rig.start(host).await
}

/// A namespace in which jobs may work on nodes, that of its tasks, and a host with the plugin.
async fn begin(rig: &mut Rig) -> anyhow::Result<()> {
    set_label(rig, Some("true")).await?;
    install::install(&rig.client, &documents(rig)?, Way::Apply).await?;
    start(rig).await
}

/// What is stored of the task of a target.
fn task(job: &DynamicObject, target: &str) -> Value {
    let all = job.targets();
    let text = all.get(target).and_then(|one| one.pointer("/extraInfo")?.get("Task/script")?.as_str());
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

fn field<'a>(value: &'a Value, name: &str) -> &'a Value {
    value.get(name).unwrap_or(&Value::Null)
}

async fn until_running(rig: &Rig, job: &str, target: &str) -> anyhow::Result<()> {
    rig.until(job, "the script runs", |job| *field(&task(job, target), "state") == "Running").await.map(drop)
}

async fn until_no_pods(rig: &Rig) -> anyhow::Result<()> {
    patiently("no pod of a task is left", async || {
        Ok(task_pods(rig).list(&ListParams::default()).await?.items.is_empty())
    })
    .await
}

async fn until_outputs(rig: &Rig, count: usize) -> anyhow::Result<()> {
    let mine = ListParams::default().labels("oarlock.dev/task");
    patiently(&format!("there are {count} outputs"), async || Ok(outputs(rig).list(&mine).await?.items.len() == count))
        .await
}

/// Three nodes, two at a time; each runs the script once, and what it printed is kept until the job goes.
pub async fn a_script_runs_once_on_each_node_and_its_outputs_go_with_the_job(rig: &mut Rig) -> anyhow::Result<()> {
    let (a, b, c) = (node(rig, "a", true).await?, node(rig, "b", true).await?, node(rig, "c", false).await?);
    begin(rig).await?;
    let script = "# sim: sleep 0.5\n# sim: output done here";
    create(rig, "m", run(script, &[&a, &b, &c], &json!({"parallelism": 2}))).await?;
    let job = rig.until_progress("m", "Succeeded").await?;
    for name in [&a, &b, &c] {
        let stored = task(&job, name);
        ensure!(*field(&stored, "exitCode") == 0 && *field(&stored, "output") == "done here\n", "{name}: {stored}");
        ensure!(rig.world.commands_begun(name) == 1, "{name} ran it {} times", rig.world.commands_begun(name));
    }
    until_no_pods(rig).await?;
    until_outputs(rig, 3).await?;
    // All of them mounted one object, which stays for whoever runs that text next.
    let scripts = outputs(rig).list(&ListParams::default().labels("oarlock.dev/script")).await?.items;
    let [map] = &scripts[..] else { bail!("one script: {scripts:?}") };
    let text = map.data.as_ref().and_then(|data| data.get("script"));
    ensure!(map.immutable == Some(true) && text.is_some_and(|text| text == script), "{map:?}");
    let kept = outputs(rig).list(&ListParams::default().labels("oarlock.dev/target-index=1")).await?;
    let text = kept.items.first().and_then(|map| map.data.as_ref()?.get("output"));
    ensure!(text.is_some_and(|text| text == "done here\n"), "{kept:?}");
    rig.delete_job("m").await?;
    rig.until_gone("m").await?;
    until_outputs(rig, 0).await
}

/// A script ends with another exit code, and one prints 10 MB: its end is kept, and says that the rest is not.
pub async fn a_script_that_fails_is_told_with_its_exit_code_and_the_end_of_its_output(
    rig: &mut Rig,
) -> anyhow::Result<()> {
    let (a, b) = (node(rig, "a", true).await?, node(rig, "b", true).await?);
    begin(rig).await?;
    create(rig, "fails", run("# sim: output not so\n# sim: exit 3", &[&a], &json!({}))).await?;
    let line = "x".repeat(99);
    let much = format!("# sim: output {line}\n# sim: repeat 100000\n# sim: output the end");
    create(rig, "prints", run(&much, &[&b], &json!({}))).await?;
    let job = rig.until_progress("fails", "Failed").await?;
    let (stored, error) = (task(&job, &a), job.target(&a));
    ensure!(
        error == "Failed/ScriptFailed" && *field(&stored, "exitCode") == 3 && *field(&stored, "output") == "not so\n",
        "{error} {stored}"
    );
    let job = rig.until_progress("prints", "Succeeded").await?;
    let stored = task(&job, &b);
    let output = field(&stored, "output").as_str().unwrap_or_default();
    ensure!(output.len() <= 512 && output.starts_with("[...]") && output.ends_with("the end\n"), "{stored}");
    until_no_pods(rig).await?;
    until_outputs(rig, 2).await?;
    for map in outputs(rig).list(&ListParams::default().labels("oarlock.dev/task")).await? {
        let text = map.data.as_ref().and_then(|data| data.get("output")).cloned().unwrap_or_default();
        ensure!(text == "not so\n" || text.starts_with("[...]") && text.len() <= 4096, "{} bytes", text.len());
    }
    Ok(())
}

/// Somebody deletes the pod of a task, and evicts another: nobody knows what became of the script, and it is not begun again.
pub async fn a_task_whose_pod_is_deleted_or_evicted_is_lost_and_not_begun_again(rig: &mut Rig) -> anyhow::Result<()> {
    let (a, b) = (node(rig, "a", true).await?, node(rig, "b", true).await?);
    begin(rig).await?;
    create(rig, "m", run(LONG, &[&a, &b], &json!({}))).await?;
    until_running(rig, "m", &a).await?;
    until_running(rig, "m", &b).await?;
    for pod in task_pods(rig).list(&ListParams::default()).await? {
        let name = pod.metadata.name.clone().unwrap_or_default();
        if pod.spec.and_then(|spec| spec.node_name).is_some_and(|node| node == a) {
            task_pods(rig).delete(&name, &DeleteParams::default()).await?;
        } else {
            task_pods(rig).evict(&name, &EvictParams::default()).await?;
        }
    }
    let job = rig.until_progress("m", "Failed").await?;
    for name in [&a, &b] {
        let (stored, error) = (task(&job, name), job.target(name));
        let lost = field(&stored, "message").as_str().is_some_and(|text| text.starts_with("lost: "));
        ensure!(error == "Failed/ScriptLost" && lost, "{error} {stored}");
        ensure!(rig.world.commands_begun(name) == 1, "{name} ran it {} times", rig.world.commands_begun(name));
    }
    until_no_pods(rig).await
}

/// A job is deleted before its pod starts, while its script runs, and after it.
pub async fn a_job_that_is_deleted_at_any_stage_leaves_nothing_of_its_tasks(rig: &mut Rig) -> anyhow::Result<()> {
    let a = node(rig, "a", true).await?;
    begin(rig).await?;
    rig.world.hold(Pause::Tasks, Scope::World);
    create(rig, "waits", run(LONG, &[&a], &json!({}))).await?;
    rig.until("waits", "the pod is seen", |job| field(&task(job, &a), "pod").is_string()).await?;
    rig.delete_job("waits").await?;
    rig.until_gone("waits").await?;
    until_no_pods(rig).await?;
    ensure!(rig.world.commands_begun(&a) == 0, "it was begun");
    rig.world.release(Pause::Tasks, Scope::World);
    create(rig, "runs", run(LONG, &[&a], &json!({}))).await?;
    until_running(rig, "runs", &a).await?;
    rig.delete_job("runs").await?;
    rig.until_gone("runs").await?;
    until_no_pods(rig).await?;
    create(rig, "ends", run("# sim: output done", &[&a], &json!({}))).await?;
    rig.until_progress("ends", "Succeeded").await?;
    until_outputs(rig, 1).await?;
    rig.delete_job("ends").await?;
    rig.until_gone("ends").await?;
    until_no_pods(rig).await?;
    until_outputs(rig, 0).await
}

/// A69: jobs vanish while a script runs, and once its output is kept.
pub async fn a_job_that_vanishes_leaves_nothing_of_its_tasks(rig: &mut Rig) -> anyhow::Result<()> {
    let (a, b) = (node(rig, "a", true).await?, node(rig, "b", true).await?);
    begin(rig).await?;
    create(rig, "ends", run("# sim: output done", &[&a], &json!({}))).await?;
    rig.until_progress("ends", "Succeeded").await?;
    until_outputs(rig, 1).await?;
    create(rig, "runs", run(LONG, &[&b], &json!({}))).await?;
    until_running(rig, "runs", &b).await?;
    for name in ["ends", "runs"] {
        rig.vanish(name).await?;
    }
    until_no_pods(rig).await?;
    until_outputs(rig, 0).await
}

/// A host is killed before the pod starts, while the script runs and right after; the next one finds the task again.
pub async fn a_task_goes_on_over_restarts_of_the_host_and_runs_once(rig: &mut Rig) -> anyhow::Result<()> {
    let a = node(rig, "a", true).await?;
    begin(rig).await?;
    rig.world.hold(Pause::Tasks, Scope::World);
    create(rig, "m", run("# sim: sleep 2\n# sim: output done", &[&a], &json!({}))).await?;
    patiently("the pod is made", async || Ok(!task_pods(rig).list(&ListParams::default()).await?.items.is_empty()))
        .await?;
    rig.kill_host("host").await?;
    start(rig).await?;
    rig.until("m", "the pod is seen", |job| field(&task(job, &a), "pod").is_string()).await?;
    rig.world.release(Pause::Tasks, Scope::World);
    until_running(rig, "m", &a).await?;
    rig.kill_host("host").await?;
    start(rig).await?;
    let job = rig.until_progress("m", "Succeeded").await?;
    rig.kill_host("host").await?;
    start(rig).await?;
    ensure!(*field(&task(&job, &a), "output") == "done\n", "{:?}", job.targets());
    ensure!(rig.world.commands_begun(&a) == 1, "it ran {} times", rig.world.commands_begun(&a));
    until_no_pods(rig).await?;
    until_outputs(rig, 1).await
}

/// Without the namespace of tasks no pod is made, and the target says so; on a real server, so where its rights are missing,
/// or its pods may not be privileged.
pub async fn a_namespace_of_tasks_that_is_missing_is_named_and_the_task_goes_on_once_it_is_there(
    rig: &mut Rig,
) -> anyhow::Result<()> {
    let a = node(rig, "a", true).await?;
    set_label(rig, Some("true")).await?;
    let all = documents(rig)?;
    let is_of_tasks = |one: &&Value| one.to_string().contains(&tasks_namespace(&rig.namespace));
    let roles: Vec<Value> = all.iter().filter(|one| !is_of_tasks(one)).cloned().collect();
    install::install(&rig.client, &roles, Way::Apply).await?;
    start(rig).await?;
    create(rig, "m", run("# sim: output done", &[&a], &json!({}))).await?;
    let told = |job: &DynamicObject| {
        let all = job.targets();
        let error = all.get(&a).and_then(|one| one.pointer("/error/message")?.as_str().map(str::to_owned));
        error.unwrap_or_default()
    };
    let name = tasks_namespace(&rig.namespace);
    let job = rig.until("m", "refused", |job| told(job).contains(&name)).await?;
    ensure!(job.target(&a) == "Processing/UpdateObjectFailed", "{}", job.target(&a));
    if let Ground::Real(_) = rig.ground {
        let namespaces: Api<Namespace> = Api::all(rig.client.clone());
        let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
        let restricted = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
        namespaces.create(&PostParams::default(), &serde_json::from_value(restricted)?).await?;
        rig.until("m", "without rights", |job| told(job).contains("cannot create resource")).await?;
        let rights: Vec<Value> = all.iter().filter(|one| *field(one, "kind") != "Namespace").cloned().collect();
        install::install(&rig.client, &rights, Way::Apply).await?;
        rig.until("m", "restricted", |job| told(job).contains("violates PodSecurity")).await?;
    }
    install::install(&rig.client, &all, Way::Apply).await?;
    rig.until_progress("m", "Succeeded").await?;
    ensure!(rig.world.commands_begun(&a) == 1, "it ran {} times", rig.world.commands_begun(&a));
    until_no_pods(rig).await
}
