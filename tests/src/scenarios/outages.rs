//! An API server that cannot be reached, is late, or is not heard.

use std::time::Duration;

use anyhow::ensure;
use http::{Method, StatusCode};
use oarlock_sim::world::{Pause, Scope};
use serde_json::json;

use super::ending::begun;
use super::{all_replaced, names, settled_collaset, settled_deployment};
use crate::jobs::{Told, replace};
use crate::rig::{Rig, patiently};
use oarlock_bed::faults::Then;
use oarlock_bed::orders::{Latch, Order};

/// The host starts first, the API server comes later.
pub async fn a_host_that_starts_without_its_api_server_waits_for_it(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_deployment(rig, 2).await?;
    let begin = rig.host_named("host");
    let wire = begin.wire.clone();
    wire.cut(true);
    rig.start(begin).await?;
    rig.create_job("s", replace(&names(&pods), json!({}))).await?;
    rig.pass(Duration::from_secs(120)).await;
    ensure!(wire.records().is_empty() && !rig.running()?.leads(), "nothing was heard");
    wire.cut(false);
    rig.until_progress("s", "Succeeded").await?;
    all_replaced(rig, &pods).await
}

/// The wire is cut while targets are in flight, for so long that the lease is lost.
pub async fn an_outage_in_the_middle_costs_nothing(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_collaset(rig, 3).await?;
    rig.world.hold(Pause::Creation, Scope::World);
    let mut begin = rig.host_named("host");
    begin.lease = Duration::from_secs(6);
    rig.start(begin).await?;
    rig.create_job("o", replace(&names(&pods), json!({}))).await?;
    for (name, _) in &pods {
        begun(rig, name).await?;
    }
    let wire = rig.running()?.wire.clone();
    wire.cut(true);
    rig.world.release(Pause::Creation, Scope::World);
    patiently("the host has stepped down", async || Ok(!rig.running()?.leads())).await?;
    rig.pass(Duration::from_secs(120)).await;
    wire.cut(false);
    rig.until_progress("o", "Succeeded").await?;
    all_replaced(rig, &pods).await
}

/// A8: the pod is there, but the cache does not know.
pub async fn a_fresh_pod_that_the_watch_does_not_show_is_looked_at(rig: &mut Rig) -> anyhow::Result<()> {
    rig.start_host().await?;
    let wire = rig.running()?.wire.clone();
    patiently("the host leads", async || Ok(rig.running()?.leads())).await?;
    rig.running()?.host.cluster.synced(&[oarlock_core::cluster::object::Kind::pod()]).await;
    wire.freeze("pods");
    let pods = settled_deployment(rig, 2).await?;
    rig.create_job("f", replace(&names(&pods), json!({}))).await?;
    rig.until("f", "begun", |job| job.count("processing") == 2).await?;
    wire.thaw();
    rig.until_progress("f", "Succeeded").await?;
    all_replaced(rig, &pods).await
}

/// A41: nobody knows what became of the eviction when the deadline strikes.
pub async fn an_eviction_that_commits_late_is_told_as_it_was(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_deployment(rig, 1).await?;
    rig.start_host().await?;
    let wire = rig.running()?.wire.clone();
    wire.order(Order::all(Method::POST, "/eviction", Then::Late(Duration::from_secs(12))));
    rig.create_job("l", replace(&names(&pods), json!({"activeDeadlineSeconds": 8}))).await?;
    patiently("the eviction is under way", async || Ok(wire.caught() > 0)).await?;
    let job = rig.until("l", "ended", |job| ["Succeeded", "Failed"].contains(&job.progress())).await?;
    patiently("the late eviction arrived", async || {
        Ok(wire.records().iter().any(|sent| sent.path.ends_with("/eviction") && sent.status.is_some()))
    })
    .await?;
    if job.progress() == "Succeeded" {
        return all_replaced(rig, &pods).await;
    }
    let (name, uid) = pods.first().cloned().unwrap_or_default();
    ensure!(job.target(&name) == "Failed/DeadlineExceeded", "{:?}", job.data);
    let pod = rig.pods().get(&name).await?;
    ensure!(
        pod.metadata.uid == Some(uid) && pod.metadata.deletion_timestamp.is_none(),
        "failed, and evicted after that"
    );
    rig.until_nothing_is_left().await
}

/// A46: the lease is lost and won back while an eviction of the first term is still under way, and the job is deleted.
pub async fn an_eviction_of_an_earlier_term_comes_too_late(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_deployment(rig, 1).await?;
    let mut begin = rig.host_named("host");
    begin.lease = Duration::from_secs(6);
    rig.start(begin).await?;
    let wire = rig.running()?.wire.clone();
    wire.order(Order::all(Method::POST, "/eviction", Then::Late(Duration::from_secs(25))));
    rig.create_job("l", replace(&names(&pods), json!({}))).await?;
    patiently("the eviction is under way", async || Ok(wire.caught() > 0)).await?;
    wire.order(Order::all(Method::PUT, "/leases/", Then::Refuse(http::StatusCode::INTERNAL_SERVER_ERROR)));
    patiently("the lease is lost", async || Ok(!rig.running()?.leads())).await?;
    wire.lift();
    patiently("the lease is won back", async || Ok(rig.running()?.leads())).await?;
    rig.delete_job("l").await?;
    rig.until_gone("l").await?;
    let arrived = || wire.records().into_iter().find(|sent| sent.path.ends_with("/eviction") && sent.status.is_some());
    ensure!(arrived().is_none(), "the job was gone first");
    patiently("the late eviction arrived", async || Ok(arrived().is_some())).await?;
    ensure!(arrived().and_then(|sent| sent.status) == Some(http::StatusCode::CONFLICT), "{:?}", arrived());
    let (name, uid) = pods.first().cloned().unwrap_or_default();
    let pod = rig.pods().get(&name).await?;
    ensure!(pod.metadata.uid == Some(uid) && pod.metadata.deletion_timestamp.is_none(), "the pod stays");
    rig.until_nothing_is_left().await
}

/// A36: the leader is cut off while its mark is under way; another one leads, and the job is deleted. The mark comes too
/// late.
pub async fn a_mark_of_a_leader_that_was_superseded_comes_too_late(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_collaset(rig, 1).await?;
    let mut first = rig.host_named("first");
    first.lease = Duration::from_secs(6);
    let wire = first.wire.clone();
    rig.start(first).await?;
    patiently("the first leads", async || Ok(rig.running()?.leads())).await?;
    let mut second = rig.host_named("second");
    second.lease = Duration::from_secs(6);
    rig.start(second).await?;
    wire.order(Order::all(Method::PATCH, "/pods/", Then::Late(Duration::from_secs(40))));
    rig.create_job("m", replace(&names(&pods), json!({}))).await?;
    patiently("the mark is under way", async || Ok(wire.caught() > 0)).await?;
    wire.order(Order::all(Method::PUT, "/leases/", Then::Refuse(http::StatusCode::INTERNAL_SERVER_ERROR)));
    patiently("the second leads", async || Ok(rig.running()?.leads())).await?;
    rig.delete_job("m").await?;
    rig.until_gone("m").await?;
    let arrived = || wire.records().into_iter().find(|sent| sent.path.contains("/pods/") && sent.status.is_some());
    ensure!(arrived().is_none(), "the job was gone first");
    patiently("the late mark arrived", async || Ok(arrived().is_some())).await?;
    ensure!(arrived().and_then(|sent| sent.status) == Some(http::StatusCode::CONFLICT), "{:?}", arrived());
    rig.until_nothing_is_left().await
}

/// A61: renewals hang for 11 s while writes go out. What was held back then is made in the next term.
pub async fn what_was_held_back_while_renewals_hung_is_made_in_the_next_term(rig: &mut Rig) -> anyhow::Result<()> {
    const HUNG: u32 = 11;
    let pods = settled_collaset(rig, HUNG as usize + 1).await?;
    rig.world.hold(Pause::Creation, Scope::World);
    rig.start_host().await?;
    let wire = rig.running()?.wire.clone();
    let all = names(&pods);
    rig.create_job("before", replace(all.get(..1).unwrap_or_default(), json!({}))).await?;
    for name in all.iter().take(1) {
        begun(rig, name).await?;
    }
    wire.order(Order::all(Method::PUT, "/leases/", Then::Hold(Latch::default())));
    patiently("a renewal hangs", async || Ok(wire.caught() > 0)).await?;
    let hung = tokio::time::Instant::now();
    for (name, number) in all.iter().skip(1).zip(0..) {
        rig.create_job(&format!("meanwhile-{number}"), replace(std::slice::from_ref(name), json!({}))).await?;
        tokio::time::sleep_until(hung + Duration::from_secs(number + 1)).await;
    }
    let marked = async |names: &[String]| {
        let pods = rig.pods().list(&kube::api::ListParams::default()).await?.items;
        let held = |pod: &k8s_openapi::api::core::v1::Pod| {
            pod.metadata.annotations.iter().flatten().any(|(key, _)| key.starts_with("hold.oarlock.dev/"))
        };
        let held: Vec<_> = pods.iter().filter(|pod| held(pod)).filter_map(|pod| pod.metadata.name.clone()).collect();
        anyhow::Ok(names.iter().filter(|name| held.contains(name)).count())
    };
    let before = marked(&all).await?;
    ensure!(
        before > 1 && before < all.len(),
        "some writes went out, and some were held back: {before} of {}",
        all.len()
    );
    wire.lift();
    let lifted = tokio::time::Instant::now();
    patiently("all are marked", async || Ok(marked(&all).await? == all.len())).await?;
    ensure!(lifted.elapsed() <= Duration::from_secs(5), "marked after {:?}", lifted.elapsed());
    let job = rig.jobs().get("before").await?;
    ensure!(job.data.pointer("/status/epoch") == Some(&json!(2)), "in the next term: {:?}", job.data);
    rig.world.release(Pause::Creation, Scope::World);
    for number in 0..HUNG {
        rig.until_progress(&format!("meanwhile-{number}"), "Succeeded").await?;
    }
    rig.until_progress("before", "Succeeded").await?;
    all_replaced(rig, &pods).await
}

/// A new term may not write the status of one job.
pub async fn a_job_that_may_not_be_written_keeps_no_neighbour_waiting(rig: &mut Rig) -> anyhow::Result<()> {
    good_beside_bad(rig, StatusCode::FORBIDDEN).await?;
    rig.until_told("StatusRefused", 1).await?;
    ensure!(rig.told_times("StatusRefused").await? == 1, "told once, however often it was refused");
    Ok(())
}

/// The server fails whenever a new term writes the status of one job.
pub async fn a_job_whose_status_the_server_fails_keeps_no_neighbour_waiting(rig: &mut Rig) -> anyhow::Result<()> {
    good_beside_bad(rig, StatusCode::INTERNAL_SERVER_ERROR).await
}

/// Both jobs are there before the host.
async fn good_beside_bad(rig: &mut Rig, code: StatusCode) -> anyhow::Result<()> {
    let pods = settled_deployment(rig, 2).await?;
    for (job, pod) in ["bad", "good"].into_iter().zip(names(&pods)) {
        rig.create_job(job, replace(&[pod], json!({}))).await?;
    }
    let begin = rig.host_named("host");
    let wire = begin.wire.clone();
    wire.order(Order::all(Method::PATCH, "/operationjobs/bad/status", Then::Refuse(code)));
    rig.start(begin).await?;
    rig.until_progress("good", "Succeeded").await?;
    ensure!(wire.caught() > 0, "the other job was tried");
    wire.lift();
    rig.until_progress("bad", "Succeeded").await?;
    all_replaced(rig, &pods).await
}
