//! Steps of a JobFlow: the content and names of their Jobs, Jobs of several pods, queued Jobs, branches, and operations that
//! fail or have no plugin yet.

#![expect(clippy::indexing_slicing, reason = "a test fails loudly")]

use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DynamicObject, EvictParams, ListParams, Patch, PatchParams, PostParams};
use oarlock_sim::world::{Pause, Scope};
use serde_json::{Value, json};

use super::on_nodes::node;
use crate::components::component;
use crate::flows::{begin, prepare, resource, step, unit, work};
use crate::test_cluster::{TestCluster, patiently};

const FLOW: &str = "JobFlow";
const QUEUE: &str = "kueue.x-k8s.io/queue-name";

/// Returns the pods of a Job.
async fn pods_of(cluster: &TestCluster, job: &str) -> anyhow::Result<Vec<Pod>> {
    Ok(cluster.pods().list(&ListParams::default().labels(&format!("batch.kubernetes.io/job-name={job}"))).await?.items)
}

/// Returns the stored pod template of a Job.
async fn pod_spec(cluster: &TestCluster, job: &str) -> anyhow::Result<Value> {
    let job = serde_json::to_value(cluster.batch_jobs().get(job).await?)?;
    job.pointer("/spec/template/spec").cloned().context("it has a template")
}

/// All pods run on the node that the flow names. Only the steps that mount the shared volume have it.
pub async fn all_steps_run_on_one_node_and_two_of_them_share_a_volume(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    let node = node(cluster, "n", true).await?;
    let (mut writer, mut reader) = (step("writes", "true", &[]), step("reads", "true", &["writes"]));
    for shares in [&mut writer, &mut reader] {
        shares["shareVolumeMounts"] = json!([{"name": "shared", "mountPath": "/shared"}]);
    }
    let spec = json!({
        "globalParams": {"nodeName": node},
        "shareVolumes": [{"name": "shared", "emptyDir": {}}],
        "flows": [writer, reader, step("apart", "true", &[])],
    });
    cluster.create_flow(FLOW, "f", spec).await?;
    cluster.until_state(FLOW, "f", "Succeed").await?;
    for (job, shares) in [("f-writes", true), ("f-reads", true), ("f-apart", false)] {
        for pod in pods_of(cluster, job).await? {
            ensure!(pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_ref() == Some(&node)), "{pod:?}");
            let spec = pod.spec.unwrap_or_default();
            let volume = spec.volumes.iter().flatten().any(|volume| volume.name == "shared");
            let mounts = spec.containers.iter().flat_map(|one| one.volume_mounts.iter().flatten());
            let mount = mounts.into_iter().any(|mount| mount.name == "shared" && mount.mount_path == "/shared");
            ensure!((volume, mount) == (shares, shares), "{job} has volume {volume} and mount {mount}");
        }
        ensure!(!pods_of(cluster, job).await?.is_empty(), "{job} has no pod");
    }
    Ok(())
}

/// Values of a step win over global values, an equal volume appears once, and overrides change only the fields that they name.
pub async fn globals_volumes_and_overrides_come_together_in_a_job(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    let mut template = work("true");
    template["template"]["spec"]["containers"][0]["env"] = json!([{"name": "X", "value": "of the step"}]);
    template["template"]["spec"]["volumes"] = json!([{"name": "shared", "emptyDir": {}}]);
    cluster.create_flow("JobTemplate", "t", json!({"jobTemplate": template})).await?;
    template["template"]["spec"]["volumes"] = json!([{"name": "shared", "emptyDir": {"medium": "Memory"}}]);
    let mounts = json!([{"name": "shared", "mountPath": "/shared"}]);
    let overrides = json!({"template": {"spec": {"containers": [
        {"name": "c", "image": "busybox:2", "env": [{"name": "Z", "value": "overridden"}]}]}}});
    let spec = json!({
        "globalParams": {"mode": "Merge", "env": [{"name": "X", "value": "global"}, {"name": "Y", "value": "global"}]},
        "shareVolumes": [{"name": "shared", "emptyDir": {}}],
        "flows": [
            {"name": "same", "jobTemplateRef": "t", "shareVolumeMounts": mounts, "overrides": overrides},
            {"name": "other", "jobTemplate": template, "shareVolumeMounts": mounts},
        ],
    });
    cluster.create_flow(FLOW, "f", spec).await?;
    let wanted = |flow: &Value| unit(flow, "same") == "Succeed" && unit(flow, "other") == "Blocked/VolumeConflict";
    cluster.until_flow((FLOW, "f"), "one runs, one is blocked", wanted).await?;
    let pod = pod_spec(cluster, "f-same").await?;
    let container = &pod["containers"][0];
    let mut env: Vec<String> = Vec::new();
    for variable in container["env"].as_array().into_iter().flatten() {
        env.push(format!("{}={}", variable["name"].as_str().unwrap_or("?"), variable["value"].as_str().unwrap_or("?")));
    }
    env.sort();
    ensure!(env == ["X=of the step", "Y=global", "Z=overridden"], "{env:?}");
    ensure!(container["image"] == "busybox:2" && container["command"] == json!(["sh", "-c", "true"]), "{container:#}");
    ensure!(pod["volumes"].as_array().is_some_and(|all| all.len() == 1), "{pod:#}");
    ensure!(cluster.batch_job_names().await? == ["f-same"]);
    Ok(())
}

/// A step with three completions, two at a time, succeeds once all three have succeeded. Only then its dependent step starts.
pub async fn a_step_of_three_pods_is_done_when_all_three_are(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    let mut three = step("three", "sleep 1", &[]);
    three["jobTemplate"]["completions"] = json!(3);
    three["jobTemplate"]["parallelism"] = json!(2);
    cluster.create_flow(FLOW, "f", json!({"flows": [three, step("next", "true", &["three"])]})).await?;
    cluster.until_state(FLOW, "f", "Succeed").await?;
    let (three, next) = (cluster.batch_jobs().get("f-three").await?, cluster.batch_jobs().get("f-next").await?);
    let status = three.status.unwrap_or_default();
    let (done, made) = (status.completion_time, next.metadata.creation_timestamp);
    ensure!(status.succeeded == Some(3) && done <= made, "{:?} succeeded by {done:?}; next {made:?}", status.succeeded);
    Ok(())
}

/// The Job of two long names has a name of 63 bytes, which the host stores and which the next host finds again.
pub async fn a_job_of_two_long_names_is_found_again(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    let (flow, name) = ("f".repeat(60), "s".repeat(20));
    let flows = json!([step(&name, "sleep 5", &[]), step("next", "true", &[&name])]);
    cluster.create_flow(FLOW, &flow, json!({ "flows": flows })).await?;
    let running = cluster.until_flow((FLOW, &flow), "it runs", |flow| unit(flow, &name) == "Running").await?;
    let job = running.pointer("/status/steps/0/job").and_then(Value::as_str).unwrap_or_default().to_owned();
    let before = cluster.batch_jobs().get(&job).await?;
    ensure!(job.len() <= 63 && job.starts_with(&"f".repeat(52)), "{job}");
    cluster.restart_host().await?;
    let ended = cluster.until_state(FLOW, &flow, "Succeed").await?;
    ensure!(ended.pointer("/status/steps/0/jobUID").and_then(Value::as_str) == before.metadata.uid.as_deref());
    cluster.restart_host().await?;
    cluster.pass(Duration::from_secs(60)).await;
    ensure!(cluster.children_made() == 2 && cluster.batch_job_names().await?.len() == 2, "each is made once");
    Ok(())
}

/// A queued Job is pending until its queue controller unsuspends it. The host writes nothing to the Job.
pub async fn a_job_in_a_queue_is_left_to_whoever_admits_it(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    let mut queued = step("queued", "sleep 1", &[]);
    queued["jobTemplate"]["suspend"] = json!(true);
    let spec = json!({"flows": [queued, step("next", "true", &["queued"])]});
    let mut flow = DynamicObject::new("f", &resource(FLOW)).within(&cluster.namespace).data(json!({ "spec": spec }));
    flow.metadata.labels =
        Some([(QUEUE, "night"), ("other", "x")].map(|(key, of)| (key.to_owned(), of.to_owned())).into());
    cluster.flows(FLOW).create(&PostParams::default(), &flow).await?;
    cluster.until_flow((FLOW, "f"), "it is pending", |flow| unit(flow, "queued") == "Pending").await?;
    cluster.restart_host().await?;
    cluster.pass(Duration::from_secs(120)).await;
    let job = cluster.batch_jobs().get("f-queued").await?;
    let labels = job.metadata.labels.unwrap_or_default();
    let is_queued = labels.get(QUEUE).is_some_and(|name| name == "night") && !labels.contains_key("other");
    ensure!(is_queued && job.spec.is_some_and(|spec| spec.suspend == Some(true)), "it waits in its queue");
    let admitted = Patch::Merge(json!({"spec": {"suspend": false}}));
    cluster.batch_jobs().patch("f-queued", &PatchParams::default(), &admitted).await?;
    cluster.until_state(FLOW, "f", "Succeed").await?;
    let written = cluster.writes_to("/jobs/f-queued");
    ensure!(written.is_empty(), "the host wrote: {written:?}");
    Ok(())
}

/// A branch for failures is omitted after a success and does not delay the join. The last step for failures is omitted too.
pub async fn a_branch_for_failures_is_left_out_and_the_join_runs(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    let mut undo = step("undo", "true", &["a"]);
    undo["when"] = json!("failure");
    let last = |name: &str, when: &str| json!({"name": name, "when": when, "jobTemplate": work("true")});
    let spec = json!({
        "flows": [step("a", "true", &[]), undo, step("join", "true", &["a", "undo"])],
        "finally": [last("always", "finished"), last("alarm", "failure")],
    });
    cluster.create_flow(FLOW, "f", spec).await?;
    let flow = cluster.until_state(FLOW, "f", "Succeed").await?;
    let states: Vec<String> = ["undo", "join", "always", "alarm"].iter().map(|name| unit(&flow, name)).collect();
    ensure!(states == ["Omitted/NotNeeded", "Succeed", "Succeed", "Omitted/NotNeeded"], "{states:?}");
    ensure!(cluster.batch_job_names().await? == ["f-a", "f-always", "f-join"]);
    Ok(())
}

/// A tolerated failure lets dependent steps start, and the flow succeeds.
pub async fn a_tolerated_failure_fails_no_flow(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    let mut tolerated = step("a", "exit 3", &[]);
    tolerated["continueOnFailure"] = json!(true);
    cluster.create_flow(FLOW, "f", json!({"flows": [tolerated, step("next", "true", &["a"])]})).await?;
    let flow = cluster.until_completed(FLOW, "f").await?;
    ensure!(unit(&flow, "a") == "Failed/BackoffLimitExceeded" && unit(&flow, "next") == "Succeed", "{flow:#}");
    let tolerated = flow.pointer("/status/steps/0/tolerated") == Some(&json!(true));
    ensure!(tolerated && flow.pointer("/status/state") == Some(&json!("Succeed")), "{flow:#}");
    Ok(())
}

/// An eviction counts against another limit than failures of the work. The pod takes a while to end, and is gone when the Job has failed.
pub async fn an_evicted_attempt_does_not_count_as_a_failure_of_the_work(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    // The scenario evicts the pod itself.
    cluster.meddles();
    begin(cluster).await?;
    let template = |script: &str| json!({"jobTemplate": work(script)});
    cluster.create_flow("JobTemplate", "t", template("sleep 900")).await?;
    let retry = json!({"limit": 2, "backoffSeconds": 3, "maxBackoffSeconds": 3});
    let spec = json!({"flows": [{"name": "a", "jobTemplateRef": "t", "retryPolicy": retry}]});
    cluster.create_flow(FLOW, "f", spec).await?;
    cluster.until_flow((FLOW, "f"), "it runs", |flow| unit(flow, "a") == "Running").await?;
    cluster.patch_flow("JobTemplate", "t", json!({"spec": template("exit 1")})).await?;
    let pod = pods_of(cluster, "f-a").await?.pop().and_then(|pod| pod.metadata.name).context("it has a pod")?;
    cluster.world.hold(Pause::Termination, Scope::World);
    cluster.pods().evict(&pod, &EvictParams::default()).await?;
    let ends = |flow: &Value| unit(flow, "a") == "Running/InfrastructureFailure";
    cluster.until_flow((FLOW, "f"), "it is evicted", ends).await?;
    cluster.restart_host().await?;
    cluster.world.release(Pause::Termination, Scope::World);
    patiently("the third attempt", async || Ok(cluster.batch_jobs().get_opt("f-a-r2").await?.is_some())).await?;
    cluster.patch_flow("JobTemplate", "t", json!({"spec": template("true")})).await?;
    let flow = cluster.until_completed(FLOW, "f").await?;
    ensure!(unit(&flow, "a") == "Succeed", "{flow:#}");
    ensure!(cluster.batch_job_names().await? == ["f-a", "f-a-r1", "f-a-r2", "f-a-r3"], "{flow:#}");
    Ok(())
}

/// An operation with a failed target fails and names that target. Its retry has only that target.
pub async fn an_operation_is_retried_for_the_target_that_failed(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = super::settled_collaset(cluster, 2).await?;
    begin(cluster).await?;
    let mut targets = super::names(&pods);
    targets.push("missing".to_owned());
    let targets: Vec<Value> = targets.iter().map(|name| json!({ "name": name })).collect();
    let operation = json!({"name": "op", "operation": {"action": "Replace", "targets": targets},
        "retryPolicy": {"limit": 1, "backoffSeconds": 1}});
    cluster.create_flow(FLOW, "f", json!({"flows": [operation]})).await?;
    let flow = cluster.until_completed(FLOW, "f").await?;
    let told = flow.pointer("/status/steps/0/message").and_then(Value::as_str).unwrap_or_default();
    ensure!(unit(&flow, "op").starts_with("Failed") && told.contains("missing"), "{flow:#}");
    let again = cluster.jobs().get("f-op-r1").await?;
    ensure!(again.data.pointer("/spec/targets") == Some(&json!([{"name": "missing"}])), "{:#}", again.data);
    Ok(())
}

/// An operation without a plugin is blocked, and runs by itself once its plugin is there.
pub async fn an_operation_runs_once_its_plugin_is_there(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = super::settled_collaset(cluster, 1).await?;
    prepare(cluster).await?;
    let mut without = cluster.host_named("host");
    without.plugins.clear();
    cluster.start(without).await?;
    let targets: Vec<Value> = super::names(&pods).iter().map(|name| json!({ "name": name })).collect();
    let operation = json!({"name": "op", "operation": {"action": "Replace", "targets": targets}});
    cluster.create_flow(FLOW, "f", json!({"flows": [operation]})).await?;
    let blocked = |flow: &Value| unit(flow, "op") == "Blocked/OperationNotReady";
    let flow = cluster.until_flow((FLOW, "f"), "it is blocked", blocked).await?;
    let told = flow.pointer("/status/steps/0/message").and_then(Value::as_str).unwrap_or_default();
    ensure!(told.contains("Replace"), "{told}");
    cluster.running()?.host.plugins.publish("replace", component("replace")?).await;
    cluster.until_state(FLOW, "f", "Succeed").await?;
    super::all_replaced(cluster, &pods).await
}
