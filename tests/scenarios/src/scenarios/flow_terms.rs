//! JobFlows across a change of the leader, and with leftovers of an earlier term.

#![expect(clippy::indexing_slicing, reason = "a test fails loudly")]

use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::{Method, StatusCode};
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams};
use oarlock_support::faults::Then;
use oarlock_support::orders::Order;
use serde_json::{Value, json};

use crate::flows::{begin, expiring, prepare, step, unit, work};
use crate::hosts::{Begin, Running};
use crate::test_cluster::{TestCluster, patiently};

const FLOW: &str = "JobFlow";

/// Starts two hosts. The first leads, and the second is the last that was started.
async fn begin_two(cluster: &mut TestCluster) -> anyhow::Result<()> {
    prepare(cluster).await?;
    for name in ["first", "second"] {
        let begin = Begin { lease: Duration::from_secs(6), ..cluster.host_named(name) };
        cluster.start(begin).await?;
        patiently("one leads", async || Ok(cluster.running.iter().any(Running::leads))).await?;
    }
    Ok(())
}

/// A host that leads again does not run a step twice if its watch of Jobs has not shown the running Job.
pub async fn a_host_that_leads_again_and_does_not_see_a_running_job_makes_no_other(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    begin_two(cluster).await?;
    cluster.create_flow(FLOW, "seen", json!({"flows": [step("a", "true", &[])]})).await?;
    cluster.until_state(FLOW, "seen", "Succeed").await?;
    let interceptor = cluster.running.first().context("the first runs")?.interceptor.clone();
    interceptor.freeze("jobs");
    interceptor.order(Order::all(Method::PUT, "/leases/", Then::Refuse(StatusCode::INTERNAL_SERVER_ERROR)));
    patiently("the second leads", async || Ok(cluster.running()?.leads())).await?;
    let mut long = step("a", "sleep 30", &[]);
    long["retryPolicy"] = json!({"limit": 3, "backoffSeconds": 1});
    cluster.create_flow(FLOW, "f", json!({"flows": [long, step("b", "true", &["a"])]})).await?;
    cluster.until_flow((FLOW, "f"), "it runs", |flow| unit(flow, "a") == "Running").await?;
    interceptor.lift();
    cluster.kill_host("second").await?;
    patiently("the first leads again", async || Ok(cluster.running()?.leads())).await?;
    cluster.pass(Duration::from_secs(5)).await;
    interceptor.thaw();
    let flow = cluster.until_state(FLOW, "f", "Succeed").await?;
    ensure!(cluster.children_made() == 3, "{:#}", flow["status"]);
    Ok(())
}

/// A new leader does not start a step by an old view: the step ended under the last leader, its Job expired, and the watch lags.
pub async fn a_new_leader_whose_view_is_old_starts_no_step_by_it(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin_two(cluster).await?;
    let mut brief = expiring("a", &[]);
    brief["jobTemplate"]["template"] = work("sleep 20")["template"].clone();
    let mut otherwise = step("c", "true", &["a"]);
    otherwise["when"] = json!("failure");
    cluster.create_flow(FLOW, "f", json!({"flows": [brief, step("b", "sleep 900", &["a"]), otherwise]})).await?;
    cluster.until_flow((FLOW, "f"), "it runs", |flow| unit(flow, "a") == "Running").await?;
    cluster.pass(Duration::from_secs(1)).await;
    let interceptor = cluster.running()?.interceptor.clone();
    interceptor.freeze("jobflows");
    cluster.until_flow((FLOW, "f"), "the next one runs", |flow| unit(flow, "b") == "Running").await?;
    patiently("the first Job expired", async || Ok(cluster.batch_job_names().await? == ["f-b"])).await?;
    cluster.kill_host("first").await?;
    patiently("the second leads", async || Ok(cluster.running()?.leads())).await?;
    cluster.pass(Duration::from_secs(10)).await;
    interceptor.thaw();
    let token = json!({"metadata": {"labels": {"seen": "yes"}}});
    cluster.patch_flow(FLOW, "f", token).await?;
    cluster.delete_batch_job("f-b").await?;
    let flow =
        cluster.until_flow((FLOW, "f"), "b was seen to go", |flow| unit(flow, "b").starts_with("Failed")).await?;
    ensure!(unit(&flow, "a") == "Succeed" && cluster.children_made() == 2, "{:#}", flow["status"]);
    Ok(())
}

/// After a restart the host does not repeat steps whose JobRecord was deleted. A retry by hand repeats a step.
pub async fn steps_whose_record_was_deleted_are_not_run_again(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    let brief = (0..90).map(|number| expiring(&format!("s{number:02}"), &[]));
    let steps: Vec<Value> = brief.chain([step("last", "sleep 900", &[])]).collect();
    cluster.create_flow(FLOW, "f", json!({ "flows": steps })).await?;
    let all = |flow: &Value| flow.pointer("/status/counts/succeeded") == Some(&json!(90));
    cluster.until_flow((FLOW, "f"), "all but one succeeded", all).await?;
    patiently("they expired", async || Ok(cluster.batch_job_names().await? == ["f-last"])).await?;
    cluster.stop_host().await?;
    records(cluster).delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    cluster.start_host().await?;
    let lost =
        |flow: &Value| flow.pointer("/status/counts/failed") == Some(&json!(90)) && unit(flow, "last") == "Running";
    let flow = cluster.until_flow((FLOW, "f"), "they are given up", lost).await?;
    ensure!(unit(&flow, "s00") == "Failed/RecordLost", "{:#}", flow["status"]["steps"]);
    ensure!(
        cluster.batch_job_names().await? == ["f-last"] && cluster.children_made() == 91,
        "{}",
        cluster.children_made()
    );
    cluster.patch_flow(FLOW, "f", json!({"metadata": {"annotations": {"oarlock.dev/retry": "1/s00"}}})).await?;
    let again = |flow: &Value| flow.pointer("/status/counts/succeeded") == Some(&json!(1));
    cluster.until_flow((FLOW, "f"), "one is run again", again).await?;
    ensure!(cluster.children_made() == 92, "{}", cluster.children_made());
    Ok(())
}

fn records(cluster: &TestCluster) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("oarlock.dev", "v1alpha1", "JobRecord"));
    Api::namespaced_with(cluster.client.clone(), &cluster.namespace, &kind)
}

/// If a JobRecord seems missing and its create finds it, the record still has all earlier outcomes.
pub async fn a_record_that_was_there_after_all_holds_what_is_counted(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    let steps = (0..90).map(|number| step(&format!("s{number:02}"), "true", &[]));
    let steps: Vec<Value> = steps.chain([step("last", "sleep 30", &[])]).collect();
    cluster.create_flow(FLOW, "f", json!({ "flows": steps })).await?;
    let all = |flow: &Value| flow.pointer("/status/counts/succeeded") == Some(&json!(90));
    cluster.until_flow((FLOW, "f"), "all but one succeeded", all).await?;
    let interceptor = cluster.running()?.interceptor.clone();
    interceptor.order(Order::next(Method::PATCH, "/jobrecords/", Then::Refuse(StatusCode::NOT_FOUND)));
    cluster.until_state(FLOW, "f", "Succeed").await?;
    let held = records(cluster).list(&ListParams::default()).await?.items;
    let lines = held.iter().flat_map(|record| record.data["units"].as_array().cloned().unwrap_or_default());
    let ended = lines.filter(|line| line.as_str().is_some_and(|line| line.contains("Succeed"))).count();
    ensure!(
        interceptor.caught() == 1 && ended == 91,
        "{ended} steps have ended by the records, {} caught",
        interceptor.caught()
    );
    Ok(())
}

/// The host reports the end of a flow once if the status is stored and its answer is lost.
pub async fn an_end_whose_write_had_no_answer_is_told_of_once(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    cluster.create_flow(FLOW, "f", json!({"flows": [step("a", "sleep 20", &[])]})).await?;
    cluster.until_flow((FLOW, "f"), "it runs", |flow| unit(flow, "a") == "Running").await?;
    let interceptor = cluster.running()?.interceptor.clone();
    interceptor
        .order(Order::all(Method::PATCH, "/jobflows/f/status", Then::DropConnection).saying("Succeed").after_commit());
    cluster.until_state(FLOW, "f", "Succeed").await?;
    cluster.until_told("Succeed", 1).await?;
    ensure!(interceptor.caught() == 1 && cluster.children_made() == 1, "{} replies were lost", interceptor.caught());
    Ok(())
}
