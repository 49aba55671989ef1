//! JobFlows that do not end by their last step: deleted, out of time, blocked, or ended long ago under the original operator.

#![expect(clippy::indexing_slicing, reason = "a test fails loudly")]

use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::Method;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use oarlock_support::faults::Then;
use oarlock_support::orders::Order;
use serde_json::{Value, json};

use crate::flows::{begin, expiring, is_true, prepare, step, unit, work};
use crate::test_cluster::{Backend, TestCluster, patiently};

const FLOW: &str = "JobFlow";

/// While a flow is deleted and its children vanish one after the other, the host creates no further child.
pub async fn a_flow_that_is_being_deleted_replaces_no_child_that_vanishes(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    begin(cluster).await?;
    let mut first = step("first", "sleep 900", &[]);
    first["retryPolicy"] = json!({"limit": 5, "backoffSeconds": 1});
    let mut then = step("then", "true", &["first"]);
    then["when"] = json!("finished");
    let spec = json!({"flows": [first, then], "finally": [{"name": "last", "jobTemplate": work("true")}]});
    cluster.create_flow(FLOW, "f", spec).await?;
    cluster.until_flow((FLOW, "f"), "it runs", |flow| unit(flow, "first") == "Running").await?;
    // The flow stays while it has the finalizer. Foreground deletion removes its child before the flow.
    let finalizers = |names: Value| json!({"metadata": {"finalizers": names}});
    cluster.patch_flow(FLOW, "f", finalizers(json!(["scenarios.test/held"]))).await?;
    cluster.flows(FLOW).delete("f", &DeleteParams::foreground()).await?;
    patiently("its Job is gone", async || Ok(cluster.batch_job_names().await?.is_empty())).await?;
    cluster.until_state(FLOW, "f", "Terminating").await?;
    cluster.restart_host().await?;
    cluster.pass(Duration::from_secs(120)).await;
    ensure!(cluster.batch_job_names().await?.is_empty() && cluster.children_made() == 1, "nothing is made");
    cluster.patch_flow(FLOW, "f", finalizers(json!(null))).await?;
    patiently("all is gone", async || Ok(cluster.flows(FLOW).get_opt("f").await?.is_none())).await?;
    ensure!(cluster.children_made() == 1, "nothing is made");
    Ok(())
}

/// A step whose pod finds no node has the scheduler's message, even after the flow is out of time.
pub async fn a_step_whose_pod_finds_no_node_says_what_it_waits_for(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    let mut lost = step("lost", "true", &[]);
    lost["jobTemplate"]["template"]["spec"]["nodeSelector"] = json!({"there-is": "no-such-node"});
    cluster.create_flow(FLOW, "f", json!({"flows": [lost], "timeoutSeconds": 30})).await?;
    let says = |flow: &Value| {
        let told = flow.pointer("/status/steps/0/message").and_then(Value::as_str).unwrap_or_default();
        told.contains("has no node: Unschedulable: 0/")
    };
    let told = cluster.until_flow((FLOW, "f"), "it says that no node takes its pod", says).await?;
    ensure!(told["status"]["conditions"].to_string().contains("waiting for lost (Running: pod f-lost-"), "{told:#}");
    cluster
        .until_flow((FLOW, "f"), "it has failed, and says it still", |flow| {
            unit(flow, "lost") == "Failed/FlowTimeout" && says(flow)
        })
        .await?;
    Ok(())
}

fn seconds_between(status: &Value, from: &str, to: &str) -> anyhow::Result<i64> {
    let at = |field: &str| -> anyhow::Result<Timestamp> {
        Ok(status.pointer(field).and_then(Value::as_str).context("it has a time")?.parse()?)
    };
    let (from, to) = (at(from)?, at(to)?);
    Ok(to.duration_since(from).as_secs())
}

/// Time in which a flow is suspended does not count. The host stops the children when the flow's own time is over.
pub async fn suspended_time_does_not_count_against_the_time_of_a_flow(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    let (limit, held): (i64, i64) = if let Backend::Sim(_) = cluster.backend { (60, 30) } else { (6, 3) };
    let spec = json!({
        "timeoutSeconds": limit,
        "flows": [step("long", "sleep 900", &[]), step("next", "true", &["long"])],
        "finally": [{"name": "last", "jobTemplate": work("true")}],
    });
    cluster.create_flow(FLOW, "f", spec).await?;
    cluster.until_flow((FLOW, "f"), "it runs", |flow| unit(flow, "long") == "Running").await?;
    cluster.patch_flow(FLOW, "f", json!({"spec": {"suspend": true}})).await?;
    cluster.until_flow((FLOW, "f"), "it is paused", |flow| is_true(flow, "Paused")).await?;
    cluster.pass(Duration::from_secs(held.unsigned_abs())).await;
    cluster.restart_host().await?;
    cluster.patch_flow(FLOW, "f", json!({"spec": {"suspend": false}})).await?;
    let flow = cluster.until_completed(FLOW, "f").await?;
    let states: Vec<String> = ["long", "next", "last"].iter().map(|name| unit(&flow, name)).collect();
    ensure!(states == ["Failed/FlowTimeout", "Omitted/FlowTimeout", "Succeed"], "{states:?}");
    let stopped = seconds_between(&flow, "/status/startTime", "/status/steps/0/completionTime")?;
    let (least, most) = (limit + held - 1, limit + held + 15);
    ensure!((least..=most).contains(&stopped), "stopped after {stopped} s, and not {least} to {most}: {flow:#}");
    ensure!(cluster.batch_job_names().await? == ["f-last", "f-long"]);
    Ok(())
}

/// Creates a Job of the flow as the original operator did: with an owner that is no controller, and without the name of its step.
async fn plant_job(cluster: &TestCluster, flow: &str, name: &str) -> anyhow::Result<()> {
    let uid = cluster.flows(FLOW).get(flow).await?.metadata.uid;
    let owner = json!({"apiVersion": "api.practice.com/v1alpha1", "kind": FLOW, "name": flow, "uid": uid});
    let mut spec = work("true");
    spec["template"]["spec"]["restartPolicy"] = json!("Never");
    let job: Job =
        serde_json::from_value(json!({"metadata": {"name": name, "ownerReferences": [owner]}, "spec": spec}))?;
    cluster.batch_jobs().create(&PostParams::default(), &job).await?;
    Ok(())
}

/// Stores an object with the status that the original operator left.
async fn store(cluster: &TestCluster, (kind, name): (&str, &str), spec: Value, status: Value) -> anyhow::Result<()> {
    cluster.create_flow(kind, name, spec).await?;
    let status = Patch::Merge(json!({ "status": status }));
    cluster.flows(kind).patch_status(name, &PatchParams::default(), &status).await?;
    Ok(())
}

/// An object that the original operator finished stays finished although its Jobs are gone. An object that it started goes on.
pub async fn objects_of_the_original_operator_are_taken_over_as_they_are(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    prepare(cluster).await?;
    let two = || json!({"flows": [step("a", "true", &[]), step("b", "true", &["a"])]});
    let complete = json!({"succeeded": 1, "conditions": [{"type": "Complete", "status": "True",
        "lastProbeTime": "2025-01-01T00:00:00Z", "lastTransitionTime": "2025-01-01T00:00:00Z"}]});
    let entry = |job: &str| json!({format!("{job}/{}", cluster.namespace): complete});
    store(cluster, (FLOW, "done"), two(), json!({"state": "Succeed", "jobStatusList": entry("done-a")})).await?;
    store(cluster, (FLOW, "failed"), two(), json!({"state": "Failed", "jobStatusList": entry("failed-a")})).await?;
    store(cluster, (FLOW, "begun"), two(), json!({"state": "Running", "jobStatusList": {}})).await?;
    plant_job(cluster, "begun", "begun-a").await?;
    store(cluster, ("DaemonJob", "daemon"), work("true"), json!({"state": "Succeed"})).await?;
    cluster.start_host().await?;
    cluster.until_flow((FLOW, "done"), "it is complete", |flow| is_true(flow, "Complete")).await?;
    cluster.until_flow((FLOW, "failed"), "it has failed", |flow| is_true(flow, "Failed")).await?;
    cluster.until_flow(("DaemonJob", "daemon"), "it is complete", |daemon| is_true(daemon, "Complete")).await?;
    cluster.until_state(FLOW, "begun", "Succeed").await?;
    cluster.restart_host().await?;
    cluster.pass(Duration::from_secs(60)).await;
    ensure!(cluster.batch_job_names().await? == ["begun-a", "begun-b"], "nothing else is created");
    let adopted = cluster.batch_jobs().get("begun-a").await?.metadata.owner_references.unwrap_or_default();
    ensure!(adopted.len() == 1 && adopted.iter().all(|owner| owner.controller == Some(true)), "{adopted:?}");
    for (kind, name, state) in
        [(FLOW, "done", "Succeed"), (FLOW, "failed", "Failed"), ("DaemonJob", "daemon", "Succeed")]
    {
        let object = cluster.flows(kind).get(name).await?.data;
        ensure!(object.pointer("/status/state") == Some(&json!(state)), "{object:#}");
    }
    Ok(())
}

/// Server errors block only the step that they hit. The other steps go on, and the step runs once the errors end.
pub async fn a_create_that_only_meets_server_errors_blocks_its_step_alone(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    begin(cluster).await?;
    let interceptor = cluster.running()?.interceptor.clone();
    let broken = Then::Answer(
        500,
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500,
        "message": "Internal error occurred: failed calling webhook \"quota.example.com\": connection refused"}),
    );
    interceptor.order(Order::all(Method::POST, "/jobs", broken).saying("\"f-a\""));
    let steps = [step("a", "true", &[]), expiring("b", &[]), step("c", "true", &["b"])];
    cluster.create_flow(FLOW, "f", json!({"flows": steps, "failurePolicy": {"type": "Continue"}})).await?;
    let alone = |flow: &Value| unit(flow, "a") == "Blocked/Rejected" && unit(flow, "c") == "Succeed";
    let flow = cluster.until_flow((FLOW, "f"), "one blocked", alone).await?;
    ensure!(flow.to_string().contains("failed calling webhook") && is_true(&flow, "Stalled"), "{flow:#}");
    patiently("b expired", async || Ok(cluster.batch_job_names().await? == ["f-c"])).await?;
    interceptor.lift();
    cluster.until_state(FLOW, "f", "Succeed").await?;
    Ok(())
}

/// If the API server refuses a change of a child, the host reports it once, goes on with the rest, and makes the change once it is allowed.
pub async fn a_refused_time_to_live_is_told_of_and_begins_once_it_is_allowed(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    begin(cluster).await?;
    let interceptor = cluster.running()?.interceptor.clone();
    let refused = Then::Answer(
        422,
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 422, "reason": "Invalid",
        "message": "jobs.batch \"f-a\" is forbidden: ValidatingAdmissionPolicy 'keep' denied request: Jobs are kept"}),
    );
    interceptor.order(Order::all(Method::PATCH, "/jobs/f-a", refused));
    let steps = [expiring("a", &[]), expiring("b", &["a"]), expiring("c", &["b"])];
    cluster.create_flow(FLOW, "f", json!({ "flows": steps })).await?;
    cluster.until_state(FLOW, "f", "Succeed").await?;
    patiently("the others expired", async || Ok(cluster.batch_job_names().await? == ["f-a"])).await?;
    cluster.until_told("ChangeRefused", 1).await?;
    cluster.pass(Duration::from_secs(12)).await;
    let tried = cluster.writes_to("/jobs/f-a");
    ensure!((2..=4).contains(&tried.len()), "{tried:?}");
    let events = cluster.events().await?;
    let told = events.iter().filter(|event| event.reason.as_deref() == Some("ChangeRefused"));
    let told: Vec<String> = told.filter_map(|event| event.note.clone()).collect();
    let says = "cannot set the time to live of f-a: jobs.batch \"f-a\" is forbidden";
    ensure!(told.len() == 1 && told[0].starts_with(says), "{told:?}");
    let in_status =
        |flow: &Value| flow.to_string().contains("; refused: cannot set the time to live of f-a: jobs.batch");
    cluster.until_flow((FLOW, "f"), "status that says so", in_status).await?;
    interceptor.lift();
    patiently("it expired", async || Ok(cluster.batch_job_names().await?.is_empty())).await?;
    cluster.until_flow((FLOW, "f"), "status without it", |flow| !in_status(flow)).await?;
    Ok(())
}
