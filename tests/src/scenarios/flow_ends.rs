//! JobFlows that end otherwise than by their last step: deleted, out of time, or ended long ago under the original operator.

#![expect(clippy::indexing_slicing, reason = "a test fails loudly")]

use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::Method;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use oarlock_bed::faults::Then;
use oarlock_bed::orders::Order;
use serde_json::{Value, json};

use crate::flows::{begin, expiring, is_true, prepare, step, unit, work};
use crate::rig::{Ground, Rig, patiently};

const FLOW: &str = "JobFlow";

/// Children vanish one after the other while their flow is deleted, and nothing follows them.
pub async fn a_flow_that_is_being_deleted_replaces_no_child_that_vanishes(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let mut first = step("first", "sleep 900", &[]);
    first["retryPolicy"] = json!({"limit": 5, "backoffSeconds": 1});
    let mut then = step("then", "true", &["first"]);
    then["when"] = json!("finished");
    let spec = json!({"flows": [first, then], "finally": [{"name": "last", "jobTemplate": work("true")}]});
    rig.create_flow(FLOW, "f", spec).await?;
    rig.until_flow((FLOW, "f"), "it runs", |flow| unit(flow, "first") == "Running").await?;
    // The flow stays while the finalizer does, and its child goes before it.
    let finalizers = |names: Value| json!({"metadata": {"finalizers": names}});
    rig.patch_flow(FLOW, "f", finalizers(json!(["scenarios.test/held"]))).await?;
    rig.flows(FLOW).delete("f", &DeleteParams::foreground()).await?;
    patiently("its Job is gone", async || Ok(rig.batch_job_names().await?.is_empty())).await?;
    rig.until_state(FLOW, "f", "Terminating").await?;
    rig.restart_host().await?;
    rig.pass(Duration::from_secs(120)).await;
    ensure!(rig.batch_job_names().await?.is_empty() && rig.children_made() == 1, "nothing is made");
    rig.patch_flow(FLOW, "f", finalizers(json!(null))).await?;
    patiently("all is gone", async || Ok(rig.flows(FLOW).get_opt("f").await?.is_none())).await?;
    ensure!(rig.children_made() == 1, "nothing is made");
    Ok(())
}

/// A step whose pod finds no node says so, as the scheduler does, and still does once its time is over.
pub async fn a_step_whose_pod_finds_no_node_says_what_it_waits_for(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let mut lost = step("lost", "true", &[]);
    lost["jobTemplate"]["template"]["spec"]["nodeSelector"] = json!({"there-is": "no-such-node"});
    rig.create_flow(FLOW, "f", json!({"flows": [lost], "timeoutSeconds": 30})).await?;
    let says = |flow: &Value| {
        let told = flow.pointer("/status/steps/0/message").and_then(Value::as_str).unwrap_or_default();
        told.contains("has no node: Unschedulable: 0/")
    };
    let told = rig.until_flow((FLOW, "f"), "it says that no node takes its pod", says).await?;
    ensure!(told["status"]["conditions"].to_string().contains("waiting for lost (Running: pod f-lost-"), "{told:#}");
    rig.until_flow((FLOW, "f"), "it has failed, and says it still", |flow| {
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

/// Time in which the flow is suspended is not counted, and when its own is over its children are stopped.
pub async fn suspended_time_does_not_count_against_the_time_of_a_flow(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let (limit, held): (i64, i64) = if let Ground::Sim(_) = rig.ground { (60, 30) } else { (6, 3) };
    let spec = json!({
        "timeoutSeconds": limit,
        "flows": [step("long", "sleep 900", &[]), step("next", "true", &["long"])],
        "finally": [{"name": "last", "jobTemplate": work("true")}],
    });
    rig.create_flow(FLOW, "f", spec).await?;
    rig.until_flow((FLOW, "f"), "it runs", |flow| unit(flow, "long") == "Running").await?;
    rig.patch_flow(FLOW, "f", json!({"spec": {"suspend": true}})).await?;
    rig.until_flow((FLOW, "f"), "it is paused", |flow| is_true(flow, "Paused")).await?;
    rig.pass(Duration::from_secs(held.unsigned_abs())).await;
    rig.restart_host().await?;
    rig.patch_flow(FLOW, "f", json!({"spec": {"suspend": false}})).await?;
    let flow = rig.until_completed(FLOW, "f").await?;
    let states: Vec<String> = ["long", "next", "last"].iter().map(|name| unit(&flow, name)).collect();
    ensure!(states == ["Failed/FlowTimeout", "Omitted/FlowTimeout", "Succeed"], "{states:?}");
    let stopped = seconds_between(&flow, "/status/startTime", "/status/steps/0/completionTime")?;
    let (least, most) = (limit + held - 1, limit + held + 15);
    ensure!((least..=most).contains(&stopped), "stopped after {stopped} s, and not {least} to {most}: {flow:#}");
    ensure!(rig.batch_job_names().await? == ["f-last", "f-long"]);
    Ok(())
}

/// A Job of the flow as the original operator made it: owned, but not controlled, and without a word about its step.
async fn plant_job(rig: &Rig, flow: &str, name: &str) -> anyhow::Result<()> {
    let uid = rig.flows(FLOW).get(flow).await?.metadata.uid;
    let owner = json!({"apiVersion": "api.practice.com/v1alpha1", "kind": FLOW, "name": flow, "uid": uid});
    let mut spec = work("true");
    spec["template"]["spec"]["restartPolicy"] = json!("Never");
    let job: Job =
        serde_json::from_value(json!({"metadata": {"name": name, "ownerReferences": [owner]}, "spec": spec}))?;
    rig.batch_jobs().create(&PostParams::default(), &job).await?;
    Ok(())
}

/// Stores an object with the status that the original operator left.
async fn store(rig: &Rig, (kind, name): (&str, &str), spec: Value, status: Value) -> anyhow::Result<()> {
    rig.create_flow(kind, name, spec).await?;
    let status = Patch::Merge(json!({ "status": status }));
    rig.flows(kind).patch_status(name, &PatchParams::default(), &status).await?;
    Ok(())
}

/// What the original operator has finished stays so, although its Jobs are gone, and what it had begun goes on.
pub async fn objects_of_the_original_operator_are_taken_over_as_they_are(rig: &mut Rig) -> anyhow::Result<()> {
    prepare(rig).await?;
    let two = || json!({"flows": [step("a", "true", &[]), step("b", "true", &["a"])]});
    let complete = json!({"succeeded": 1, "conditions": [{"type": "Complete", "status": "True",
        "lastProbeTime": "2025-01-01T00:00:00Z", "lastTransitionTime": "2025-01-01T00:00:00Z"}]});
    let entry = |job: &str| json!({format!("{job}/{}", rig.namespace): complete});
    store(rig, (FLOW, "done"), two(), json!({"state": "Succeed", "jobStatusList": entry("done-a")})).await?;
    store(rig, (FLOW, "failed"), two(), json!({"state": "Failed", "jobStatusList": entry("failed-a")})).await?;
    store(rig, (FLOW, "begun"), two(), json!({"state": "Running", "jobStatusList": {}})).await?;
    plant_job(rig, "begun", "begun-a").await?;
    store(rig, ("DaemonJob", "daemon"), work("true"), json!({"state": "Succeed"})).await?;
    rig.start_host().await?;
    rig.until_flow((FLOW, "done"), "it is complete", |flow| is_true(flow, "Complete")).await?;
    rig.until_flow((FLOW, "failed"), "it has failed", |flow| is_true(flow, "Failed")).await?;
    rig.until_flow(("DaemonJob", "daemon"), "it is complete", |daemon| is_true(daemon, "Complete")).await?;
    rig.until_state(FLOW, "begun", "Succeed").await?;
    rig.restart_host().await?;
    rig.pass(Duration::from_secs(60)).await;
    ensure!(rig.batch_job_names().await? == ["begun-a", "begun-b"], "nothing else is created");
    let adopted = rig.batch_jobs().get("begun-a").await?.metadata.owner_references.unwrap_or_default();
    ensure!(adopted.len() == 1 && adopted.iter().all(|owner| owner.controller == Some(true)), "{adopted:?}");
    for (kind, name, state) in
        [(FLOW, "done", "Succeed"), (FLOW, "failed", "Failed"), ("DaemonJob", "daemon", "Succeed")]
    {
        let object = rig.flows(kind).get(name).await?.data;
        ensure!(object.pointer("/status/state") == Some(&json!(state)), "{object:#}");
    }
    Ok(())
}

/// Server errors block the step that they meet, keep nothing else of its flow waiting, and are over once they are over.
pub async fn a_create_that_only_meets_server_errors_blocks_its_step_alone(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let wire = rig.running()?.wire.clone();
    let broken = Then::Answer(
        500,
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500,
        "message": "Internal error occurred: failed calling webhook \"quota.example.com\": connection refused"}),
    );
    wire.order(Order::all(Method::POST, "/jobs", broken).saying("\"f-a\""));
    let steps = [step("a", "true", &[]), expiring("b", &[]), step("c", "true", &["b"])];
    rig.create_flow(FLOW, "f", json!({"flows": steps, "failurePolicy": {"type": "Continue"}})).await?;
    let alone = |flow: &Value| unit(flow, "a") == "Blocked/Rejected" && unit(flow, "c") == "Succeed";
    let flow = rig.until_flow((FLOW, "f"), "one blocked", alone).await?;
    ensure!(flow.to_string().contains("failed calling webhook") && is_true(&flow, "Stalled"), "{flow:#}");
    patiently("b expired", async || Ok(rig.batch_job_names().await? == ["f-c"])).await?;
    wire.lift();
    rig.until_state(FLOW, "f", "Succeed").await?;
    Ok(())
}

/// A change of a child that the server refuses is told of once, holds up nothing else, and is made once it is allowed.
pub async fn a_refused_time_to_live_is_told_of_and_begins_once_it_is_allowed(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let wire = rig.running()?.wire.clone();
    let refused = Then::Answer(
        422,
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 422, "reason": "Invalid",
        "message": "jobs.batch \"f-a\" is forbidden: ValidatingAdmissionPolicy 'keep' denied request: Jobs are kept"}),
    );
    wire.order(Order::all(Method::PATCH, "/jobs/f-a", refused));
    let steps = [expiring("a", &[]), expiring("b", &["a"]), expiring("c", &["b"])];
    rig.create_flow(FLOW, "f", json!({ "flows": steps })).await?;
    rig.until_state(FLOW, "f", "Succeed").await?;
    patiently("the others expired", async || Ok(rig.batch_job_names().await? == ["f-a"])).await?;
    rig.until_told("ChangeRefused", 1).await?;
    rig.pass(Duration::from_secs(12)).await;
    let tried = rig.writes_to("/jobs/f-a");
    ensure!((2..=4).contains(&tried.len()), "{tried:?}");
    let events = rig.events().await?;
    let told = events.iter().filter(|event| event.reason.as_deref() == Some("ChangeRefused"));
    let told: Vec<String> = told.filter_map(|event| event.note.clone()).collect();
    let says = "cannot set the time to live of f-a: jobs.batch \"f-a\" is forbidden";
    ensure!(told.len() == 1 && told[0].starts_with(says), "{told:?}");
    let in_status =
        |flow: &Value| flow.to_string().contains("; refused: cannot set the time to live of f-a: jobs.batch");
    rig.until_flow((FLOW, "f"), "status that says so", in_status).await?;
    wire.lift();
    patiently("it expired", async || Ok(rig.batch_job_names().await?.is_empty())).await?;
    rig.until_flow((FLOW, "f"), "status without it", |flow| !in_status(flow)).await?;
    Ok(())
}
