//! An API server that is unreachable or late, or whose watches lag.

use std::time::Duration;

use anyhow::ensure;
use http::{Method, StatusCode};
use oarlock_sim::world::{Pause, Scope};
use serde_json::json;

use super::ending::begun;
use super::{all_replaced, names, settled_collaset, settled_deployment};
use crate::jobs::{Told, replace};
use crate::test_cluster::{TestCluster, patiently};
use oarlock_support::faults::Then;
use oarlock_support::orders::{Latch, Order};

/// A host that starts before its API server waits for it.
pub async fn a_host_that_starts_without_its_api_server_waits_for_it(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_deployment(cluster, 2).await?;
    let begin = cluster.host_named("host");
    let interceptor = begin.interceptor.clone();
    interceptor.cut(true);
    cluster.start(begin).await?;
    cluster.create_job("s", replace(&names(&pods), json!({}))).await?;
    cluster.pass(Duration::from_secs(120)).await;
    ensure!(interceptor.records().is_empty() && !cluster.running()?.leads(), "nothing was heard");
    interceptor.cut(false);
    cluster.until_progress("s", "Succeeded").await?;
    all_replaced(cluster, &pods).await
}

/// An outage while targets are in flight costs nothing, even if it lasts until the lease is lost.
pub async fn an_outage_in_the_middle_costs_nothing(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_collaset(cluster, 3).await?;
    cluster.world.hold(Pause::Creation, Scope::World);
    let mut begin = cluster.host_named("host");
    begin.lease = Duration::from_secs(6);
    cluster.start(begin).await?;
    cluster.create_job("o", replace(&names(&pods), json!({}))).await?;
    for (name, _) in &pods {
        begun(cluster, name).await?;
    }
    let interceptor = cluster.running()?.interceptor.clone();
    interceptor.cut(true);
    cluster.world.release(Pause::Creation, Scope::World);
    patiently("the host has stepped down", async || Ok(!cluster.running()?.leads())).await?;
    cluster.pass(Duration::from_secs(120)).await;
    interceptor.cut(false);
    cluster.until_progress("o", "Succeeded").await?;
    all_replaced(cluster, &pods).await
}

/// A8: the host reads a pod live if its cache does not have the pod.
pub async fn a_fresh_pod_that_the_watch_does_not_show_is_looked_at(cluster: &mut TestCluster) -> anyhow::Result<()> {
    cluster.start_host().await?;
    let interceptor = cluster.running()?.interceptor.clone();
    patiently("the host leads", async || Ok(cluster.running()?.leads())).await?;
    cluster.running()?.host.cluster.synced(&[oarlock_core::object::api_object::Kind::pod()]).await;
    interceptor.freeze("pods");
    let pods = settled_deployment(cluster, 2).await?;
    cluster.create_job("f", replace(&names(&pods), json!({}))).await?;
    cluster.until("f", "begun", |job| job.count("processing") == 2).await?;
    interceptor.thaw();
    cluster.until_progress("f", "Succeeded").await?;
    all_replaced(cluster, &pods).await
}

/// A41: if the outcome of an eviction is unknown at the deadline, the job reports the actual outcome.
pub async fn an_eviction_that_commits_late_is_told_as_it_was(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_deployment(cluster, 1).await?;
    cluster.start_host().await?;
    let interceptor = cluster.running()?.interceptor.clone();
    interceptor.order(Order::all(Method::POST, "/eviction", Then::Late(Duration::from_secs(12))));
    cluster.create_job("l", replace(&names(&pods), json!({"activeDeadlineSeconds": 8}))).await?;
    patiently("the eviction is under way", async || Ok(interceptor.caught() > 0)).await?;
    let job = cluster.until("l", "ended", |job| ["Succeeded", "Failed"].contains(&job.progress())).await?;
    patiently("the late eviction arrived", async || {
        Ok(interceptor.records().iter().any(|sent| sent.path.ends_with("/eviction") && sent.status.is_some()))
    })
    .await?;
    if job.progress() == "Succeeded" {
        return all_replaced(cluster, &pods).await;
    }
    let (name, uid) = pods.first().cloned().unwrap_or_default();
    ensure!(job.target(&name) == "Failed/DeadlineExceeded", "{:?}", job.data);
    let pod = cluster.pods().get(&name).await?;
    ensure!(
        pod.metadata.uid == Some(uid) && pod.metadata.deletion_timestamp.is_none(),
        "failed, and evicted after that"
    );
    cluster.until_nothing_is_left().await
}

/// A46: an eviction of an earlier term fails if the lease was lost and won back and the job was deleted meanwhile.
pub async fn an_eviction_of_an_earlier_term_comes_too_late(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_deployment(cluster, 1).await?;
    let mut begin = cluster.host_named("host");
    begin.lease = Duration::from_secs(6);
    cluster.start(begin).await?;
    let interceptor = cluster.running()?.interceptor.clone();
    interceptor.order(Order::all(Method::POST, "/eviction", Then::Late(Duration::from_secs(25))));
    cluster.create_job("l", replace(&names(&pods), json!({}))).await?;
    patiently("the eviction is under way", async || Ok(interceptor.caught() > 0)).await?;
    interceptor.order(Order::all(Method::PUT, "/leases/", Then::Refuse(http::StatusCode::INTERNAL_SERVER_ERROR)));
    patiently("the lease is lost", async || Ok(!cluster.running()?.leads())).await?;
    interceptor.lift();
    patiently("the lease is won back", async || Ok(cluster.running()?.leads())).await?;
    cluster.delete_job("l").await?;
    cluster.until_gone("l").await?;
    let arrived =
        || interceptor.records().into_iter().find(|sent| sent.path.ends_with("/eviction") && sent.status.is_some());
    ensure!(arrived().is_none(), "the job was gone first");
    patiently("the late eviction arrived", async || Ok(arrived().is_some())).await?;
    ensure!(arrived().and_then(|sent| sent.status) == Some(http::StatusCode::CONFLICT), "{:?}", arrived());
    let (name, uid) = pods.first().cloned().unwrap_or_default();
    let pod = cluster.pods().get(&name).await?;
    ensure!(pod.metadata.uid == Some(uid) && pod.metadata.deletion_timestamp.is_none(), "the pod stays");
    cluster.until_nothing_is_left().await
}

/// A36: a mark of a leader that was cut off fails if another host leads and the job was deleted meanwhile.
pub async fn a_mark_of_a_leader_that_was_superseded_comes_too_late(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_collaset(cluster, 1).await?;
    let mut first = cluster.host_named("first");
    first.lease = Duration::from_secs(6);
    let interceptor = first.interceptor.clone();
    cluster.start(first).await?;
    patiently("the first leads", async || Ok(cluster.running()?.leads())).await?;
    let mut second = cluster.host_named("second");
    second.lease = Duration::from_secs(6);
    cluster.start(second).await?;
    interceptor.order(Order::all(Method::PATCH, "/pods/", Then::Late(Duration::from_secs(40))));
    cluster.create_job("m", replace(&names(&pods), json!({}))).await?;
    patiently("the mark is under way", async || Ok(interceptor.caught() > 0)).await?;
    interceptor.order(Order::all(Method::PUT, "/leases/", Then::Refuse(http::StatusCode::INTERNAL_SERVER_ERROR)));
    patiently("the second leads", async || Ok(cluster.running()?.leads())).await?;
    cluster.delete_job("m").await?;
    cluster.until_gone("m").await?;
    let arrived =
        || interceptor.records().into_iter().find(|sent| sent.path.contains("/pods/") && sent.status.is_some());
    ensure!(arrived().is_none(), "the job was gone first");
    patiently("the late mark arrived", async || Ok(arrived().is_some())).await?;
    ensure!(arrived().and_then(|sent| sent.status) == Some(http::StatusCode::CONFLICT), "{:?}", arrived());
    cluster.until_nothing_is_left().await
}

/// A61: renewals hang for 11 s while writes go out. The host makes the withheld writes in its next term.
pub async fn what_was_held_back_while_renewals_hung_is_made_in_the_next_term(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    const HUNG: u32 = 11;
    let pods = settled_collaset(cluster, HUNG as usize + 1).await?;
    cluster.world.hold(Pause::Creation, Scope::World);
    cluster.start_host().await?;
    let interceptor = cluster.running()?.interceptor.clone();
    let all = names(&pods);
    cluster.create_job("before", replace(all.get(..1).unwrap_or_default(), json!({}))).await?;
    for name in all.iter().take(1) {
        begun(cluster, name).await?;
    }
    interceptor.order(Order::all(Method::PUT, "/leases/", Then::Hold(Latch::default())));
    patiently("a renewal hangs", async || Ok(interceptor.caught() > 0)).await?;
    let hung = tokio::time::Instant::now();
    for (name, number) in all.iter().skip(1).zip(0..) {
        cluster.create_job(&format!("meanwhile-{number}"), replace(std::slice::from_ref(name), json!({}))).await?;
        tokio::time::sleep_until(hung + Duration::from_secs(number + 1)).await;
    }
    let marked = async |names: &[String]| {
        let pods = cluster.pods().list(&kube::api::ListParams::default()).await?.items;
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
    interceptor.lift();
    let lifted = tokio::time::Instant::now();
    patiently("all are marked", async || Ok(marked(&all).await? == all.len())).await?;
    ensure!(lifted.elapsed() <= Duration::from_secs(5), "marked after {:?}", lifted.elapsed());
    let job = cluster.jobs().get("before").await?;
    ensure!(job.data.pointer("/status/epoch") == Some(&json!(2)), "in the next term: {:?}", job.data);
    cluster.world.release(Pause::Creation, Scope::World);
    for number in 0..HUNG {
        cluster.until_progress(&format!("meanwhile-{number}"), "Succeeded").await?;
    }
    cluster.until_progress("before", "Succeeded").await?;
    all_replaced(cluster, &pods).await
}

/// A job whose status a new term may not write delays no other job.
pub async fn a_job_that_may_not_be_written_keeps_no_neighbour_waiting(cluster: &mut TestCluster) -> anyhow::Result<()> {
    good_beside_bad(cluster, StatusCode::FORBIDDEN).await?;
    cluster.until_told("StatusRefused", 1).await?;
    ensure!(cluster.told_times("StatusRefused").await? == 1, "told once, however often it was refused");
    Ok(())
}

/// A job whose status write fails with a server error delays no other job.
pub async fn a_job_whose_status_the_server_fails_keeps_no_neighbour_waiting(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    good_beside_bad(cluster, StatusCode::INTERNAL_SERVER_ERROR).await
}

/// Runs a good and a bad job that exist before the host starts. The API server refuses the status of the bad job with `code`.
async fn good_beside_bad(cluster: &mut TestCluster, code: StatusCode) -> anyhow::Result<()> {
    let pods = settled_deployment(cluster, 2).await?;
    for (job, pod) in ["bad", "good"].into_iter().zip(names(&pods)) {
        cluster.create_job(job, replace(&[pod], json!({}))).await?;
    }
    let begin = cluster.host_named("host");
    let interceptor = begin.interceptor.clone();
    interceptor.order(Order::all(Method::PATCH, "/operationjobs/bad/status", Then::Refuse(code)));
    cluster.start(begin).await?;
    cluster.until_progress("good", "Succeeded").await?;
    ensure!(interceptor.caught() > 0, "the other job was tried");
    interceptor.lift();
    cluster.until_progress("bad", "Succeeded").await?;
    all_replaced(cluster, &pods).await
}
