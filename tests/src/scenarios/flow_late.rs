//! JobFlows and DaemonJobs, and requests that are made late, or whose answers are lost.

#![expect(clippy::indexing_slicing, reason = "a test fails loudly")]

use std::time::Duration;

use anyhow::ensure;
use http::Method;
use oarlock_bed::faults::Then;
use oarlock_bed::orders::{Latch, Order};
use serde_json::{Value, json};

use crate::flows::{begin, expiring, step, unit, work};
use crate::rig::{Rig, patiently};

const FLOW: &str = "JobFlow";
/// After the host has given up, and tried again.
const LATE: Duration = Duration::from_secs(20);

/// More steps than a status holds, of which all but the last end soon and go.
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

/// A write of a JobRecord that has no answer is made once a newer one is stored.
pub async fn a_write_of_a_record_that_comes_late_changes_no_newer_one(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let wire = rig.running()?.wire.clone();
    wire.order(Order::next(Method::PATCH, "/jobrecords/", Then::Late(LATE)).saying("Running"));
    rig.create_flow(FLOW, "f", many("sleep 5")).await?;
    rig.until_flow((FLOW, "f"), "all but one succeeded", succeeded(90)).await?;
    patiently("they expired", async || Ok(rig.batch_job_names().await? == ["f-last"])).await?;
    let refused = async || Ok(rig.writes_to("-0").iter().any(|sent| sent.ends_with("Some(409)")));
    patiently("the late one is refused", refused).await?;
    ensure!(wire.caught() == 1, "{} writes were late", wire.caught());
    rig.restart_host().await?;
    rig.patch_flow(FLOW, "f", json!({"metadata": {"annotations": {"oarlock.dev/retry": "1/last"}}})).await?;
    let again = |flow: &Value| flow.pointer("/status/retryToken").is_some();
    let flow = rig.until_flow((FLOW, "f"), "the new term has written", again).await?;
    ensure!(succeeded(90)(&flow) && rig.children_made() == 91, "{:#}", flow["status"]["counts"]);
    Ok(())
}

/// The create of a Job that has no answer is made after another one of its name ended: that is kept until then.
pub async fn a_create_that_comes_late_makes_no_other_job(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let wire = rig.running()?.wire.clone();
    wire.order(Order::next(Method::POST, "/jobs", Then::Late(LATE)).saying("\"f-a\""));
    rig.create_flow(FLOW, "f", json!({"flows": [expiring("a", &[])]})).await?;
    rig.until_state(FLOW, "f", "Succeed").await?;
    let answered = async || Ok(rig.writes_to("/jobs").len() == 2 && !rig.writes_to("/jobs").join(" ").contains("None"));
    patiently("the late one is answered", answered).await?;
    ensure!(rig.children_made() == 1, "{:?}", rig.writes_to("/jobs"));
    Ok(())
}

/// What a term says first of an object is told although the answer to that is lost.
pub async fn a_first_status_whose_answer_is_lost_is_told_of(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let wire = rig.running()?.wire.clone();
    wire.order(Order::next(Method::PATCH, "/jobflows/f/status", Then::DropConnection).after_commit());
    rig.create_flow(FLOW, "f", json!({"flows": []})).await?;
    rig.until_told("Succeed", 1).await?;
    ensure!(wire.caught() == 1, "{} replies were lost", wire.caught());
    Ok(())
}

/// Pods of a failed Job that cannot be listed keep its step from being judged, and no other step from anything.
pub async fn pods_that_cannot_be_listed_hold_up_their_own_step_alone(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let wire = rig.running()?.wire.clone();
    let broken = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500,
        "message": "Internal error occurred: unable to decode an object"});
    wire.order(Order::next(Method::GET, "controller-uid", Then::Hang));
    wire.order(Order::all(Method::GET, "controller-uid", Then::Answer(500, broken)));
    let steps = [step("a", "exit 1", &[]), step("b", "sleep 5", &[]), step("c", "true", &["b"])];
    rig.create_flow(FLOW, "f", json!({"flows": steps, "failurePolicy": {"type": "Continue"}})).await?;
    let told = |flow: &Value| unit(flow, "c") == "Succeed" && flow.to_string().contains("its pods cannot be listed");
    let flow = rig.until_flow((FLOW, "f"), "the others ended", told).await?;
    ensure!(unit(&flow, "a") == "Running", "{:#}", flow["status"]["steps"]);
    wire.lift();
    let flow = rig.until_state(FLOW, "f", "Failed").await?;
    ensure!(unit(&flow, "a").starts_with("Failed"), "{:#}", flow["status"]["steps"]);
    Ok(())
}

/// The deletion of an object whose time is over meets a retry by hand: that wins.
pub async fn a_retry_by_hand_wins_over_the_time_to_live(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let (wire, latch) = (rig.running()?.wire.clone(), Latch::default());
    wire.order(Order::next(Method::DELETE, "/jobflows/f", Then::Hold(latch.clone())));
    rig.create_flow(FLOW, "f", json!({"flows": [step("a", "exit 1", &[])], "cleanup": {"ttlSeconds": 0}})).await?;
    latch.caught().await;
    rig.patch_flow(FLOW, "f", json!({"metadata": {"annotations": {"oarlock.dev/retry": "1"}}})).await?;
    latch.release();
    patiently("it is gone", async || Ok(rig.flows(FLOW).get_opt("f").await?.is_none())).await?;
    ensure!(rig.children_made() == 2, "the retry made no Job");
    rig.until_told("CleanedUp", 1).await?;
    Ok(())
}

/// The last status of many steps is stored, the reply to it is lost, and the host with it.
pub async fn many_outcomes_whose_write_had_no_answer_outlive_the_host(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    rig.create_flow(FLOW, "f", many("sleep 20")).await?;
    rig.until_flow((FLOW, "f"), "they run", |flow| flow.pointer("/status/counts/running") == Some(&json!(91))).await?;
    let wire = rig.running()?.wire.clone();
    let lost = Order::next(Method::PATCH, "/jobflows/f/status", Then::DropConnection);
    wire.order(lost.saying("\"succeeded\":90").after_commit());
    rig.until_flow((FLOW, "f"), "all but one succeeded", succeeded(90)).await?;
    patiently("they expired", async || Ok(rig.batch_job_names().await? == ["f-last"])).await?;
    ensure!(wire.caught() == 1, "{} replies were lost", wire.caught());
    rig.restart_host().await?;
    rig.delete_batch_job("f-last").await?;
    let flow = rig.until_state(FLOW, "f", "Failed").await?;
    ensure!(succeeded(90)(&flow) && rig.children_made() == 91, "{:#}", flow["status"]["counts"]);
    Ok(())
}

/// Somebody else changes an object of many steps while its status is under way.
pub async fn a_conflict_moves_no_record(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let (wire, of_record, latch) = (rig.running()?.wire.clone(), Latch::default(), Latch::default());
    wire.order(Order::next(Method::PATCH, "/jobrecords/", Then::Hold(of_record.clone())).saying("Succeed"));
    let mut flow = many("sleep 20");
    // What they come to is written after the conflict, so that no record is written as it is.
    let later = flow["flows"].as_array_mut().into_iter().flatten().take(45);
    later.for_each(|step| step["jobTemplate"]["template"] = work("sleep 24")["template"].clone());
    rig.create_flow(FLOW, "f", flow).await?;
    of_record.caught().await;
    wire.order(Order::next(Method::PATCH, "/jobflows/f/status", Then::Hold(latch.clone())));
    of_record.release();
    latch.caught().await;
    patiently("the others have ended", async || Ok(rig.succeeded_jobs().await? == 90)).await?;
    rig.patch_flow(FLOW, "f", json!({"metadata": {"labels": {"seen": "yes"}}})).await?;
    latch.release();
    let flow = rig.until_flow((FLOW, "f"), "all but one succeeded", succeeded(90)).await?;
    let statuses = rig.writes_to("/jobflows/f/status");
    ensure!(statuses.iter().any(|sent| !sent.ends_with("Some(200)")), "no conflict: {statuses:?}");
    ensure!(flow.pointer("/status/firstRecord").is_none(), "{:#}", flow["status"]["firstRecord"]);
    Ok(())
}

/// A new term writes no JobRecord of an object of which nothing changed, and none for a label.
pub async fn records_of_what_is_over_are_written_by_no_new_term(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let steps: Vec<Value> = (0..91).map(|number| step(&format!("s{number:02}"), "true", &[])).collect();
    rig.create_flow(FLOW, "f", json!({ "flows": steps })).await?;
    rig.until_state(FLOW, "f", "Succeed").await?;
    let written = |rig: &Rig| rig.writes_to("").into_iter().filter(|sent| sent.contains("/jobrecords")).count();
    let before = written(rig);
    rig.restart_host().await?;
    patiently(
        "it is seen to have succeeded",
        async || Ok(rig.figure(r#"jobflow_objects{state="Succeed"}"#) == Some(1)),
    )
    .await?;
    for label in ["one", "two"] {
        rig.patch_flow(FLOW, "f", json!({"metadata": {"labels": {"seen": label}}})).await?;
        rig.pass(Duration::from_secs(2)).await;
    }
    ensure!(before > 0 && written(rig) == before, "{} writes more", written(rig) - before);
    Ok(())
}
