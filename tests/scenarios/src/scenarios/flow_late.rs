//! JobFlows and DaemonJobs with requests that arrive late or whose answers are lost.

#![expect(clippy::indexing_slicing, reason = "a test fails loudly")]

use std::time::Duration;

use anyhow::ensure;
use http::Method;
use oarlock_support::faults::Then;
use oarlock_support::orders::{Latch, Order};
use serde_json::{Value, json};

use crate::flows::{begin, expiring, step, unit, work};
use crate::test_cluster::{TestCluster, patiently};

const FLOW: &str = "JobFlow";
/// A delay after which the host has given the request up and tried again.
const LATE: Duration = Duration::from_secs(20);

/// Returns a flow with more steps than a status holds. All steps but the last end soon, and their Jobs expire.
fn many(script: &str) -> Value {
    let brief = (0..90).map(|number| {
        let mut brief = expiring(&format!("s{number:02}"), &[]);
        brief["jobTemplate"]["template"] = work(script)["template"].clone();
        brief
    });
    let steps: Vec<Value> = brief.chain([step("last", "sleep 900", &[])]).collect();
    json!({ "flows": steps })
}

fn succeeded(count: usize) -> impl Fn(&Value) -> bool {
    move |flow| flow.pointer("/status/counts/succeeded") == Some(&json!(count))
}

/// A write of a JobRecord that arrives late, after a newer one, changes nothing.
pub async fn a_write_of_a_record_that_comes_late_changes_no_newer_one(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    let interceptor = cluster.running()?.interceptor.clone();
    interceptor.order(Order::next(Method::PATCH, "/jobrecords/", Then::Late(LATE)).saying("Running"));
    cluster.create_flow(FLOW, "f", many("sleep 5")).await?;
    cluster.until_flow((FLOW, "f"), "all but one succeeded", succeeded(90)).await?;
    patiently("they expired", async || Ok(cluster.batch_job_names().await? == ["f-last"])).await?;
    let refused = async || Ok(cluster.writes_to("-0").iter().any(|sent| sent.ends_with("Some(409)")));
    patiently("the late one is refused", refused).await?;
    ensure!(interceptor.caught() == 1, "{} writes were late", interceptor.caught());
    cluster.restart_host().await?;
    cluster.patch_flow(FLOW, "f", json!({"metadata": {"annotations": {"oarlock.dev/retry": "1/last"}}})).await?;
    let again = |flow: &Value| flow.pointer("/status/retryToken").is_some();
    let flow = cluster.until_flow((FLOW, "f"), "the new term has written", again).await?;
    ensure!(succeeded(90)(&flow) && cluster.children_made() == 91, "{:#}", flow["status"]["counts"]);
    Ok(())
}

/// A late create of a Job makes no second Job: the host keeps the ended Job of this name until the create has its answer.
pub async fn a_create_that_comes_late_makes_no_other_job(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    let interceptor = cluster.running()?.interceptor.clone();
    interceptor.order(Order::next(Method::POST, "/jobs", Then::Late(LATE)).saying("\"f-a\""));
    cluster.create_flow(FLOW, "f", json!({"flows": [expiring("a", &[])]})).await?;
    cluster.until_state(FLOW, "f", "Succeed").await?;
    let answered =
        async || Ok(cluster.writes_to("/jobs").len() == 2 && !cluster.writes_to("/jobs").join(" ").contains("None"));
    patiently("the late one is answered", answered).await?;
    ensure!(cluster.children_made() == 1, "{:?}", cluster.writes_to("/jobs"));
    Ok(())
}

/// The host reports the first status of a term even if the answer to its write is lost.
pub async fn a_first_status_whose_answer_is_lost_is_told_of(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    let interceptor = cluster.running()?.interceptor.clone();
    interceptor.order(Order::next(Method::PATCH, "/jobflows/f/status", Then::DropConnection).after_commit());
    cluster.create_flow(FLOW, "f", json!({"flows": []})).await?;
    cluster.until_told("Succeed", 1).await?;
    ensure!(interceptor.caught() == 1, "{} replies were lost", interceptor.caught());
    Ok(())
}

/// If the pods of a failed Job cannot be listed, the host decides only that step later. The other steps go on.
pub async fn pods_that_cannot_be_listed_hold_up_their_own_step_alone(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    let interceptor = cluster.running()?.interceptor.clone();
    let broken = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500,
        "message": "Internal error occurred: unable to decode an object"});
    interceptor.order(Order::next(Method::GET, "controller-uid", Then::Hang));
    interceptor.order(Order::all(Method::GET, "controller-uid", Then::Answer(500, broken)));
    let steps = [step("a", "exit 1", &[]), step("b", "sleep 5", &[]), step("c", "true", &["b"])];
    cluster.create_flow(FLOW, "f", json!({"flows": steps, "failurePolicy": {"type": "Continue"}})).await?;
    let told = |flow: &Value| unit(flow, "c") == "Succeed" && flow.to_string().contains("its pods cannot be listed");
    let flow = cluster.until_flow((FLOW, "f"), "the others ended", told).await?;
    ensure!(unit(&flow, "a") == "Running", "{:#}", flow["status"]["steps"]);
    interceptor.lift();
    let flow = cluster.until_state(FLOW, "f", "Failed").await?;
    ensure!(unit(&flow, "a").starts_with("Failed"), "{:#}", flow["status"]["steps"]);
    Ok(())
}

/// A retry by hand wins over the deletion of an object whose time to live is over.
pub async fn a_retry_by_hand_wins_over_the_time_to_live(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    let (interceptor, latch) = (cluster.running()?.interceptor.clone(), Latch::default());
    interceptor.order(Order::next(Method::DELETE, "/jobflows/f", Then::Hold(latch.clone())));
    cluster.create_flow(FLOW, "f", json!({"flows": [step("a", "exit 1", &[])], "cleanup": {"ttlSeconds": 0}})).await?;
    latch.caught().await;
    cluster.patch_flow(FLOW, "f", json!({"metadata": {"annotations": {"oarlock.dev/retry": "1"}}})).await?;
    latch.release();
    patiently("it is gone", async || Ok(cluster.flows(FLOW).get_opt("f").await?.is_none())).await?;
    ensure!(cluster.children_made() == 2, "the retry made no Job");
    cluster.until_told("CleanedUp", 1).await?;
    Ok(())
}

/// The outcomes of many steps survive if the last status is stored, its answer is lost, and the host is killed.
pub async fn many_outcomes_whose_write_had_no_answer_outlive_the_host(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    cluster.create_flow(FLOW, "f", many("sleep 20")).await?;
    cluster
        .until_flow((FLOW, "f"), "they run", |flow| flow.pointer("/status/counts/running") == Some(&json!(91)))
        .await?;
    let interceptor = cluster.running()?.interceptor.clone();
    let lost = Order::next(Method::PATCH, "/jobflows/f/status", Then::DropConnection);
    interceptor.order(lost.saying("\"succeeded\":90").after_commit());
    cluster.until_flow((FLOW, "f"), "all but one succeeded", succeeded(90)).await?;
    patiently("they expired", async || Ok(cluster.batch_job_names().await? == ["f-last"])).await?;
    ensure!(interceptor.caught() == 1, "{} replies were lost", interceptor.caught());
    cluster.restart_host().await?;
    cluster.delete_batch_job("f-last").await?;
    let flow = cluster.until_state(FLOW, "f", "Failed").await?;
    ensure!(succeeded(90)(&flow) && cluster.children_made() == 91, "{:#}", flow["status"]["counts"]);
    Ok(())
}

/// If another client changes an object of many steps while its status write is in flight, the conflict moves no record.
pub async fn a_conflict_moves_no_record(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    let (interceptor, of_record, latch) = (cluster.running()?.interceptor.clone(), Latch::default(), Latch::default());
    interceptor.order(Order::next(Method::PATCH, "/jobrecords/", Then::Hold(of_record.clone())).saying("Succeed"));
    let mut flow = many("sleep 20");
    // These steps end after the conflict, so each record has something to write.
    let later = flow["flows"].as_array_mut().into_iter().flatten().take(45);
    later.for_each(|step| step["jobTemplate"]["template"] = work("sleep 24")["template"].clone());
    cluster.create_flow(FLOW, "f", flow).await?;
    of_record.caught().await;
    interceptor.order(Order::next(Method::PATCH, "/jobflows/f/status", Then::Hold(latch.clone())));
    of_record.release();
    latch.caught().await;
    patiently("the others have ended", async || Ok(cluster.succeeded_jobs().await? == 90)).await?;
    cluster.patch_flow(FLOW, "f", json!({"metadata": {"labels": {"seen": "yes"}}})).await?;
    latch.release();
    let flow = cluster.until_flow((FLOW, "f"), "all but one succeeded", succeeded(90)).await?;
    let statuses = cluster.writes_to("/jobflows/f/status");
    ensure!(statuses.iter().any(|sent| !sent.ends_with("Some(200)")), "no conflict: {statuses:?}");
    ensure!(flow.pointer("/status/firstRecord").is_none(), "{:#}", flow["status"]["firstRecord"]);
    Ok(())
}

/// A new term writes no JobRecord of an unchanged object, and none because of a label.
pub async fn records_of_what_is_over_are_written_by_no_new_term(cluster: &mut TestCluster) -> anyhow::Result<()> {
    begin(cluster).await?;
    let steps: Vec<Value> = (0..91).map(|number| step(&format!("s{number:02}"), "true", &[])).collect();
    cluster.create_flow(FLOW, "f", json!({ "flows": steps })).await?;
    cluster.until_state(FLOW, "f", "Succeed").await?;
    let written =
        |cluster: &TestCluster| cluster.writes_to("").into_iter().filter(|sent| sent.contains("/jobrecords")).count();
    let before = written(cluster);
    cluster.restart_host().await?;
    patiently("it is seen to have succeeded", async || {
        Ok(cluster.figure(r#"jobflow_objects{state="Succeed"}"#) == Some(1))
    })
    .await?;
    for label in ["one", "two"] {
        cluster.patch_flow(FLOW, "f", json!({"metadata": {"labels": {"seen": label}}})).await?;
        cluster.pass(Duration::from_secs(2)).await;
    }
    ensure!(before > 0 && written(cluster) == before, "{} writes more", written(cluster) - before);
    Ok(())
}
