//! JobFlows: the order of steps, failures and their effects, times to live, and hosts that end meanwhile.

#![expect(clippy::indexing_slicing, reason = "a test fails loudly")]

use std::time::Duration;

use anyhow::ensure;
use k8s_openapi::api::batch::v1::Job;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use oarlock_sim::world::Seedbed;
use serde_json::{Value, json};

use crate::flows::{begin, is_true, step, unit, work};
use crate::test_cluster::{TestCluster, patiently};

const FLOW: &str = "JobFlow";

fn created(job: &Job) -> Option<String> {
    job.metadata.creation_timestamp.as_ref().map(|time| time.0.to_string())
}

/// A step without its JobTemplate is blocked alone, and starts by itself once the template exists. The template then lists its Job.
pub async fn a_missing_template_blocks_one_step_and_heals(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    let steps = json!([{"name": "late", "jobTemplateRef": "a.b"}, step("root", "true", &[])]);
    cluster.create_flow(FLOW, "f", json!({ "flows": steps })).await?;
    let blocked = |flow: &Value| unit(flow, "late") == "Blocked/JobTemplateNotFound" && unit(flow, "root") == "Succeed";
    cluster.until_flow((FLOW, "f"), "one blocked", blocked).await?;
    cluster.create_flow("JobTemplate", "a.b", json!({"jobTemplate": work("true")})).await?;
    cluster.until_state(FLOW, "f", "Succeed").await?;
    let job = cluster.batch_jobs().get("f-late").await?;
    let wanted = format!("{}.a.b", cluster.namespace);
    ensure!(job.metadata.annotations.is_some_and(|all| all.get("createByJobTemplate") == Some(&wanted)));
    let lists = |template: &Value, names: Value| template.pointer("/status/dependencyList") == Some(&names);
    cluster.until_flow(("JobTemplate", "a.b"), "it lists the Job", |one| lists(one, json!(["f-late"]))).await?;
    cluster.delete_batch_job("f-late").await?;
    cluster.until_flow(("JobTemplate", "a.b"), "it lists nothing", |one| lists(one, json!([]))).await?;
    ensure!(cluster.batch_job_names().await? == ["f-root"], "what has ended is not made again");
    Ok(())
}

/// If one of two roots fails, the flow fails and the other root ends. A retry by hand runs the failed and the omitted steps.
pub async fn a_failed_flow_is_mended_and_retried_by_hand(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    cluster.create_flow("JobTemplate", "t", json!({"jobTemplate": work("exit 7")})).await?;
    let steps =
        json!([{"name": "bad", "jobTemplateRef": "t"}, step("slow", "sleep 3", &[]), step("next", "true", &["bad"])]);
    cluster.create_flow(FLOW, "f", json!({ "flows": steps })).await?;
    let flow = cluster.until_completed(FLOW, "f").await?;
    ensure!(is_true(&flow, "Failed") && unit(&flow, "slow") == "Succeed", "{flow:#}");
    ensure!(
        unit(&flow, "bad") == "Failed/BackoffLimitExceeded" && unit(&flow, "next") == "Omitted/DependencyNotMet",
        "{flow:#}"
    );
    let told = flow.pointer("/status/steps/0/message").and_then(Value::as_str).unwrap_or_default();
    ensure!(told.contains("exited with 7"), "{told}");
    cluster.patch_flow("JobTemplate", "t", json!({"spec": {"jobTemplate": work("true")}})).await?;
    cluster.patch_flow(FLOW, "f", json!({"metadata": {"annotations": {"oarlock.dev/retry": "1"}}})).await?;
    cluster.until_state(FLOW, "f", "Succeed").await?;
    ensure!(cluster.batch_job_names().await? == ["f-bad", "f-bad-r1", "f-next", "f-slow"]);
    Ok(())
}

/// The host stores the outcome of a Job with a time to live of 0 before the Job goes, even if the Job ended while no host ran.
pub async fn a_job_that_expires_at_once_is_recorded_and_runs_once(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    let mut first = step("a", "sleep 2", &[]);
    first["jobTemplate"]["ttlSecondsAfterFinished"] = json!(0);
    cluster.create_flow(FLOW, "f", json!({"flows": [first, step("b", "true", &["a"])]})).await?;
    let runs = |flow: &Value| unit(flow, "a") == "Running";
    cluster.until_flow((FLOW, "f"), "it runs", runs).await?;
    cluster.kill_host("host").await?;
    patiently("the Job has ended", async || {
        let job = cluster.batch_jobs().get_opt("f-a").await?;
        Ok(job.and_then(|job| job.status?.completion_time).is_some())
    })
    .await?;
    cluster.start_host().await?;
    let flow = cluster.until_state(FLOW, "f", "Succeed").await?;
    patiently("it expired", async || Ok(cluster.batch_jobs().get_opt("f-a").await?.is_none())).await?;
    ensure!(unit(&flow, "a") == "Succeed", "{flow:#}");
    cluster.restart_host().await?;
    cluster.pass(Duration::from_secs(60)).await;
    ensure!(cluster.batch_job_names().await? == ["f-b"], "it is not made again");
    Ok(())
}

/// A running Job that someone deletes counts as failed. With a retry, another attempt follows.
pub async fn a_running_job_that_is_deleted_has_failed(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    let mut again = step("again", "sleep 4", &[]);
    again["retryPolicy"] = json!({"limit": 1, "backoffSeconds": 1});
    let flows = json!([step("once", "sleep 600", &[]), again]);
    cluster.create_flow(FLOW, "f", json!({"flows": flows, "failurePolicy": {"type": "Continue"}})).await?;
    let both = |flow: &Value| unit(flow, "once") == "Running" && unit(flow, "again") == "Running";
    cluster.until_flow((FLOW, "f"), "both run", both).await?;
    cluster.delete_batch_job("f-once").await?;
    cluster.delete_batch_job("f-again").await?;
    let flow = cluster.until_completed(FLOW, "f").await?;
    ensure!(unit(&flow, "once") == "Failed/JobDeleted" && unit(&flow, "again") == "Succeed", "{flow:#}");
    ensure!(cluster.batch_job_names().await? == ["f-again-r1"]);
    Ok(())
}

/// The host does not touch a foreign Job that has the name of a step. The step starts once the foreign Job is gone.
pub async fn a_foreign_job_is_never_touched(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    let mut spec = work("true");
    spec["template"]["spec"]["restartPolicy"] = json!("Never");
    let foreign: Job = serde_json::from_value(json!({"metadata": {"name": "f-a"}, "spec": spec}))?;
    let before = cluster.batch_jobs().create(&PostParams::default(), &foreign).await?;
    patiently("it has ended", async || {
        Ok(cluster.batch_jobs().get("f-a").await?.status.and_then(|status| status.completion_time).is_some())
    })
    .await?;
    cluster.create_flow(FLOW, "f", json!({"flows": [step("a", "true", &[])]})).await?;
    cluster.until_flow((FLOW, "f"), "it is blocked", |flow| unit(flow, "a") == "Blocked/NameConflict").await?;
    let now = cluster.batch_jobs().get("f-a").await?;
    ensure!(now.metadata.uid == before.metadata.uid && now.metadata.owner_references.is_none());
    // The host takes the free name at once, so the Job's name is never missing.
    cluster.batch_jobs().delete("f-a", &DeleteParams::background()).await?;
    cluster.until_state(FLOW, "f", "Succeed").await?;
    Ok(())
}

/// A forged Job that names the flow as its owner decides no step, neither in another namespace nor under an attempt that was never made.
pub async fn a_forged_job_decides_no_step(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    let elsewhere = format!("{}-forger", cluster.namespace);
    Seedbed::namespace(cluster.client.clone(), &elsewhere).await?;
    let flow = cluster
        .create_flow(FLOW, "f", json!({"flows": [step("a", "sleep 20", &[]), step("b", "true", &["a"])]}))
        .await?;
    cluster.until_flow((FLOW, "f"), "a runs", |flow| unit(flow, "a") == "Running").await?;
    let owner = json!({"apiVersion": "api.practice.com/v1alpha1", "kind": FLOW, "name": "f", "uid": flow.metadata.uid});
    let mut forged = Vec::new();
    for (namespace, name, attempt) in [
        (&elsewhere, "f-b", "0"),
        (&elsewhere, "f-a-r1", "4294967295"),
        (&cluster.namespace, "mine", "0"),
        (&cluster.namespace, "f-b-r7", "7"),
        (&cluster.namespace, "f-b-r4294967295", "4294967295"),
    ] {
        let mut spec = work("true");
        spec["completions"] = json!(0);
        spec["template"]["spec"]["restartPolicy"] = json!("Never");
        let step = if name == "f-a-r1" { "a" } else { "b" };
        let metadata = json!({"name": name, "ownerReferences": [owner], "finalizers": ["scenarios.test/keep"],
            "labels": {"oarlock.dev/attempt": attempt, "oarlock.dev/owner-uid": flow.metadata.uid},
            "annotations": {"oarlock.dev/step": step}});
        let job: Job = serde_json::from_value(json!({ "metadata": metadata, "spec": spec }))?;
        let jobs = kube::Api::<Job>::namespaced(cluster.client.clone(), namespace);
        jobs.create(&PostParams::default(), &job).await?;
        forged.push((jobs, name));
    }
    for (jobs, name) in &forged {
        patiently("the forged Job has ended, or goes", async || {
            let job = jobs.get(name).await?;
            let has_ended = job.status.is_some_and(|status| status.completion_time.is_some());
            Ok(has_ended || job.metadata.deletion_timestamp.is_some())
        })
        .await?;
    }
    let flow = cluster.until_state(FLOW, "f", "Succeed").await?;
    let (a, b) = (cluster.batch_jobs().get("f-a").await?, cluster.batch_jobs().get("f-b").await?);
    let done = a.status.as_ref().and_then(|status| status.completion_time.as_ref()).map(|time| time.0.to_string());
    ensure!(created(&b) >= done, "b came at {:?}, and a ended at {done:?}", created(&b));
    for (step, job) in [("a", &a), ("b", &b)] {
        let steps = flow.pointer("/status/steps").and_then(Value::as_array).into_iter().flatten();
        let named = steps.into_iter().find(|one| one["name"] == step).map(|one| one["jobUID"].clone());
        ensure!(named == job.metadata.uid.clone().map(Value::from), "{step} is decided by its own Job: {flow:#}");
    }
    for (jobs, name) in forged {
        jobs.patch(name, &PatchParams::default(), &Patch::Merge(json!({"metadata": {"finalizers": null}}))).await?;
        jobs.delete(name, &DeleteParams::background()).await.map(drop).or_else(|error| match error {
            kube::Error::Api(status) if status.code == 404 => Ok(()),
            error => Err(error),
        })?;
    }
    Ok(())
}

/// The status of a flow with a cycle names the cycle, no step starts, and an edit repairs the flow.
pub async fn a_cycle_is_spelled_and_an_edit_heals_it(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    let steps = [step("a", "true", &["c"]), step("b", "true", &["a"]), step("c", "true", &["b"])];
    cluster.create_flow(FLOW, "f", json!({ "flows": steps })).await?;
    let flow = cluster.until_state(FLOW, "f", "Failed").await?;
    let told = flow.pointer("/status/conditions").map(Value::to_string).unwrap_or_default();
    ensure!(told.contains("a -> c -> b -> a") && cluster.batch_job_names().await?.is_empty(), "{told}");
    cluster
        .patch_flow(FLOW, "f", json!({"spec": {"flows": [step("a", "true", &[]), step("b", "true", &["a"])]}}))
        .await?;
    cluster.until_state(FLOW, "f", "Succeed").await?;
    Ok(())
}
