//! JobFlows over a change of leader, and with what a term before left behind.

#![expect(clippy::indexing_slicing, reason = "a test fails loudly")]

use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::{Method, StatusCode};
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams};
use oarlock_bed::faults::Then;
use oarlock_bed::orders::Order;
use serde_json::{Value, json};

use crate::flows::{begin, expiring, prepare, step, unit, work};
use crate::hosts::{Begin, Running};
use crate::rig::{Rig, patiently};

const FLOW: &str = "JobFlow";

/// Two hosts, of which the first leads, and the last that was started is the other one.
async fn begin_two(rig: &mut Rig) -> anyhow::Result<()> {
    prepare(rig).await?;
    for name in ["first", "second"] {
        let begin = Begin { lease: Duration::from_secs(6), ..rig.host_named(name) };
        rig.start(begin).await?;
        patiently("one leads", async || Ok(rig.running.iter().any(Running::leads))).await?;
    }
    Ok(())
}

/// A host leads again, and its watch of Jobs has brought it nothing of one that runs.
pub async fn a_host_that_leads_again_and_does_not_see_a_running_job_makes_no_other(
    rig: &mut Rig,
) -> anyhow::Result<()> {
    begin_two(rig).await?;
    rig.create_flow(FLOW, "seen", json!({"flows": [step("a", "true", &[])]})).await?;
    rig.until_state(FLOW, "seen", "Succeed").await?;
    let wire = rig.running.first().context("the first runs")?.wire.clone();
    wire.freeze("jobs");
    wire.order(Order::all(Method::PUT, "/leases/", Then::Refuse(StatusCode::INTERNAL_SERVER_ERROR)));
    patiently("the second leads", async || Ok(rig.running()?.leads())).await?;
    let mut long = step("a", "sleep 30", &[]);
    long["retryPolicy"] = json!({"limit": 3, "backoffSeconds": 1});
    rig.create_flow(FLOW, "f", json!({"flows": [long, step("b", "true", &["a"])]})).await?;
    rig.until_flow((FLOW, "f"), "it runs", |flow| unit(flow, "a") == "Running").await?;
    wire.lift();
    rig.kill_host("second").await?;
    patiently("the first leads again", async || Ok(rig.running()?.leads())).await?;
    rig.pass(Duration::from_secs(5)).await;
    wire.thaw();
    let flow = rig.until_state(FLOW, "f", "Succeed").await?;
    ensure!(rig.children_made() == 3, "{:#}", flow["status"]);
    Ok(())
}

/// The watch of JobFlows brings a new leader nothing of a step that ended under the last one, and whose Job has expired since.
pub async fn a_new_leader_whose_view_is_old_starts_no_step_by_it(rig: &mut Rig) -> anyhow::Result<()> {
    begin_two(rig).await?;
    let mut brief = expiring("a", &[]);
    brief["jobTemplate"]["template"] = work("sleep 20")["template"].clone();
    let mut otherwise = step("c", "true", &["a"]);
    otherwise["when"] = json!("failure");
    rig.create_flow(FLOW, "f", json!({"flows": [brief, step("b", "sleep 900", &["a"]), otherwise]})).await?;
    rig.until_flow((FLOW, "f"), "it runs", |flow| unit(flow, "a") == "Running").await?;
    rig.pass(Duration::from_secs(1)).await;
    let wire = rig.running()?.wire.clone();
    wire.freeze("jobflows");
    rig.until_flow((FLOW, "f"), "the next one runs", |flow| unit(flow, "b") == "Running").await?;
    patiently("the first Job expired", async || Ok(rig.batch_job_names().await? == ["f-b"])).await?;
    rig.kill_host("first").await?;
    patiently("the second leads", async || Ok(rig.running()?.leads())).await?;
    rig.pass(Duration::from_secs(10)).await;
    wire.thaw();
    let token = json!({"metadata": {"labels": {"seen": "yes"}}});
    rig.patch_flow(FLOW, "f", token).await?;
    rig.delete_batch_job("f-b").await?;
    let flow = rig.until_flow((FLOW, "f"), "b was seen to go", |flow| unit(flow, "b").starts_with("Failed")).await?;
    ensure!(unit(&flow, "a") == "Succeed" && rig.children_made() == 2, "{:#}", flow["status"]);
    Ok(())
}

/// The steps of a JobRecord that somebody deleted are not run again after a restart, but by a retry.
pub async fn steps_whose_record_was_deleted_are_not_run_again(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let brief = (0..90).map(|number| expiring(&format!("s{number:02}"), &[]));
    let steps: Vec<Value> = brief.chain([step("last", "sleep 900", &[])]).collect();
    rig.create_flow(FLOW, "f", json!({ "flows": steps })).await?;
    let all = |flow: &Value| flow.pointer("/status/counts/succeeded") == Some(&json!(90));
    rig.until_flow((FLOW, "f"), "all but one succeeded", all).await?;
    patiently("they expired", async || Ok(rig.batch_job_names().await? == ["f-last"])).await?;
    rig.stop_host().await?;
    records(rig).delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    rig.start_host().await?;
    let lost =
        |flow: &Value| flow.pointer("/status/counts/failed") == Some(&json!(90)) && unit(flow, "last") == "Running";
    let flow = rig.until_flow((FLOW, "f"), "they are given up", lost).await?;
    ensure!(unit(&flow, "s00") == "Failed/RecordLost", "{:#}", flow["status"]["steps"]);
    ensure!(rig.batch_job_names().await? == ["f-last"] && rig.children_made() == 91, "{}", rig.children_made());
    rig.patch_flow(FLOW, "f", json!({"metadata": {"annotations": {"oarlock.dev/retry": "1/s00"}}})).await?;
    let again = |flow: &Value| flow.pointer("/status/counts/succeeded") == Some(&json!(1));
    rig.until_flow((FLOW, "f"), "one is run again", again).await?;
    ensure!(rig.children_made() == 92, "{}", rig.children_made());
    Ok(())
}

fn records(rig: &Rig) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("oarlock.dev", "v1alpha1", "JobRecord"));
    Api::namespaced_with(rig.client.clone(), &rig.namespace, &kind)
}

/// A JobRecord that seems to be missing is created, and found to be there: what it holds is from before.
pub async fn a_record_that_was_there_after_all_holds_what_is_counted(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let steps = (0..90).map(|number| step(&format!("s{number:02}"), "true", &[]));
    let steps: Vec<Value> = steps.chain([step("last", "sleep 30", &[])]).collect();
    rig.create_flow(FLOW, "f", json!({ "flows": steps })).await?;
    let all = |flow: &Value| flow.pointer("/status/counts/succeeded") == Some(&json!(90));
    rig.until_flow((FLOW, "f"), "all but one succeeded", all).await?;
    let wire = rig.running()?.wire.clone();
    wire.order(Order::next(Method::PATCH, "/jobrecords/", Then::Refuse(StatusCode::NOT_FOUND)));
    rig.until_state(FLOW, "f", "Succeed").await?;
    let held = records(rig).list(&ListParams::default()).await?.items;
    let lines = held.iter().flat_map(|record| record.data["units"].as_array().cloned().unwrap_or_default());
    let ended = lines.filter(|line| line.as_str().is_some_and(|line| line.contains("Succeed"))).count();
    ensure!(wire.caught() == 1 && ended == 91, "{ended} steps have ended by the records, {} caught", wire.caught());
    Ok(())
}

/// The status with the end of a flow is stored, and the reply to it lost.
pub async fn an_end_whose_write_had_no_answer_is_told_of_once(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    rig.create_flow(FLOW, "f", json!({"flows": [step("a", "sleep 20", &[])]})).await?;
    rig.until_flow((FLOW, "f"), "it runs", |flow| unit(flow, "a") == "Running").await?;
    let wire = rig.running()?.wire.clone();
    wire.order(Order::all(Method::PATCH, "/jobflows/f/status", Then::DropConnection).saying("Succeed").after_commit());
    rig.until_state(FLOW, "f", "Succeed").await?;
    rig.until_told("Succeed", 1).await?;
    ensure!(wire.caught() == 1 && rig.children_made() == 1, "{} replies were lost", wire.caught());
    Ok(())
}
