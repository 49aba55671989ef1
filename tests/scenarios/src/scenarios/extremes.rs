//! Extreme objects and clocks: pods that never ran, late replies, and grace periods and times without bounds.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::Method;
use k8s_openapi::jiff::SignedDuration;
use kube::api::{DeleteParams, Patch, PatchParams};
use oarlock_sim::world::{Pause, Scope};
use serde_json::{Value, json};

use super::deadlines::{has_ended, lasted};
use super::{SETTLED, all_replaced, identities, is_held, names, settled, settled_collaset, settled_deployment};
use crate::jobs::{Told, replace};
use crate::test_cluster::{Backend, TestCluster};
use oarlock_support::faults::Then;
use oarlock_support::orders::Order;

/// The largest grace period that the API server accepts, and a grace period whose sum with a time overflows.
const LONG: [i64; 2] = [i64::MAX, 1_000_000_000_000];

/// A57: the deletion of a pod that never ran shows only in the host's own request, and the host's clock is ahead.
pub async fn pods_that_never_ran_are_replaced_by_a_host_whose_clock_is_ahead(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    cluster.world.hold(Pause::Scheduling, Scope::World);
    let set = cluster.seedbed.deployment("web", 3).await?;
    cluster.world.until("the pods", SETTLED, |pods| pods.len() == 3).await?;
    let pods = identities(cluster, &cluster.pod_names("web").await?).await?;
    cluster.clock_ahead = SignedDuration::from_millis(1_500);
    let mut begin = cluster.host_named("host");
    // A grant allows a grace period of zero only if it says so explicitly.
    begin.grants = begin.grants.replacen("  anyVersion: true", "  anyVersion: true\n  minGracePeriodSeconds: 0", 1);
    ensure!(begin.grants.contains("minGracePeriodSeconds"), "{}", begin.grants);
    for method in [Method::GET, Method::POST, Method::PUT, Method::PATCH] {
        begin.interceptor.order(Order::all(method, "", Then::Delay(Duration::from_millis(1_500))).after_commit());
    }
    cluster.start(begin).await?;
    let spec = json!({"parameters": {"gracePeriodSeconds": 0}, "activeDeadlineSeconds": 60});
    cluster.create_job("n", replace(&names(&pods), spec)).await?;
    let old: BTreeSet<String> = pods.iter().map(|(_, uid)| uid.clone()).collect();
    let replaced = |all: &[std::sync::Arc<k8s_openapi::api::core::v1::Pod>]| {
        all.len() == 3 && all.iter().all(|pod| pod.metadata.uid.as_ref().is_some_and(|uid| !old.contains(uid)))
    };
    cluster.world.until("new pods in place of all", SETTLED, replaced).await?;
    cluster.world.release(Pause::Scheduling, Scope::World);
    cluster.world.settled(&set, SETTLED).await?;
    let job = cluster.until("n", "ended", has_ended).await?;
    ensure!(job.progress() == "Succeeded", "{:?}", job.data);
    all_replaced(cluster, &pods).await
}

/// A51: the host evicts pods with a huge grace period. A pod that existed before is never the new pod, even if the sum overflows.
pub async fn pods_with_a_boundless_grace_period_are_evicted(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let others = settled_deployment(cluster, 1).await?;
    cluster.start_host().await?;
    for (number, seconds) in LONG.into_iter().enumerate() {
        let app = format!("long{number}");
        let set = cluster.seedbed.with_grace(seconds).replica_set(&app, 2).await?;
        let pods = settled(cluster, &set, &app).await?;
        // The host may take a pod that is younger than its clock margin for a new pod.
        tokio::time::sleep(Duration::from_secs(4)).await;
        let target = pods.get(..1).unwrap_or_default();
        cluster.create_job(&app, replace(&names(target), json!({"activeDeadlineSeconds": 60}))).await?;
        let job = cluster.until(&app, "ended", has_ended).await?;
        let told = job.data.pointer("/status/targetDetails/0").cloned().unwrap_or_default();
        ensure!(lasted(&told)? <= 62, "{told}");
        if job.progress() == "Succeeded" {
            let new = told.pointer("/extraInfo/NewPod").and_then(Value::as_str).context("no new pod")?;
            ensure!(pods.iter().all(|(name, _)| name != new), "{new} was there before: {told}");
        } else {
            ensure!(job.target(&names(target).join("")) == "Failed/DeadlineExceeded", "{told}");
        }
    }
    cluster.create_job("other", replace(&names(&others), json!({}))).await?;
    cluster.until_progress("other", "Succeeded").await?;
    cluster.until_nothing_is_left().await
}

/// A51: a user deletes pods with a huge grace period that are marked for a CollaSet which does nothing.
pub async fn marked_pods_with_a_boundless_grace_period_are_deleted_by_hand(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let others = settled_deployment(cluster, 1).await?;
    cluster.start_host().await?;
    let mut targets = Vec::new();
    for (number, seconds) in LONG.into_iter().enumerate() {
        let name = format!("long{number}");
        cluster.seedbed.with_grace(seconds).bare_pod(&name).await?;
        cluster.until_pod(&name, "running", |pod| pod.data.pointer("/spec/nodeName").is_some()).await?;
        targets.push(name);
    }
    let spec = json!({"parameters": {"strategy": "CollaSet"}, "activeDeadlineSeconds": 5});
    cluster.create_job("long", replace(&targets, spec)).await?;
    for name in &targets {
        cluster.until_pod(name, "marked", is_held).await?;
        cluster.pods().delete(name, &DeleteParams::default()).await?;
    }
    cluster.create_job("other", replace(&names(&others), json!({}))).await?;
    cluster.until_progress("other", "Succeeded").await?;
    let job = cluster.until_progress("long", "Failed").await?;
    for told in job.targets().values() {
        ensure!(lasted(told)? <= 7, "{told}");
    }
    ensure!(cluster.running()?.leads(), "the host runs on");
    cluster.until_nothing_is_left().await
}

/// A51: a user writes times of the last and the first year of the calendar into a status, and no job is affected.
pub async fn times_at_the_ends_of_the_calendar_in_a_status_cost_nothing(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    cluster.meddles();
    let pods = settled_collaset(cluster, 3).await?;
    cluster.world.hold(Pause::Creation, Scope::World);
    cluster.start_host().await?;
    // The host's calendar ends a day before the API server's.
    let last =
        if matches!(cluster.backend, Backend::Real(_)) { "9999-12-31T23:59:59Z" } else { "9999-12-30T22:00:00Z" };
    let times = [last, "9999-12-30T21:59:59Z", "0001-01-01T00:00:00Z"];
    let jobs: Vec<String> = (0..times.len()).map(|number| format!("t{number}")).collect();
    for (job, (name, _)) in jobs.iter().zip(&pods) {
        cluster.create_job(job, replace(std::slice::from_ref(name), json!({"operationDelaySeconds": 1}))).await?;
        cluster.until_pod(name, "marked", is_held).await?;
    }
    for (job, time) in jobs.iter().zip(times) {
        let mut details =
            cluster.jobs().get(job).await?.data.pointer("/status/targetDetails").cloned().unwrap_or_default();
        let first = details.get_mut(0).and_then(Value::as_object_mut).context("no target")?;
        first.insert("startTime".to_owned(), json!(time));
        first.insert("extraInfo".to_owned(), json!({"EvictedAt": time}));
        let body = json!({"status": {"startTime": time, "targetDetails": details}});
        cluster.jobs().patch_status(job, &PatchParams::default(), &Patch::Merge(body)).await?;
        cluster.edit_job(job, json!({"activeDeadlineSeconds": i32::MAX})).await?;
    }
    let other = settled_deployment(cluster, 1);
    cluster.world.release(Pause::Creation, Scope::World);
    let other = other.await?;
    cluster.create_job("other", replace(&names(&other), json!({}))).await?;
    cluster.until_progress("other", "Succeeded").await?;
    for job in &jobs {
        cluster.until(job, "ended", has_ended).await?;
        let body = json!({"status": {"endTime": last}});
        cluster.jobs().patch_status(job, &PatchParams::default(), &Patch::Merge(body)).await?;
        cluster.edit_job(job, json!({"TTLSecondsAfterFinished": i32::MAX})).await?;
    }
    cluster.restart_host().await?;
    cluster.create_job("last", replace(&cluster.pod_names("web").await?, json!({}))).await?;
    cluster.until_progress("last", "Succeeded").await?;
    cluster.until_nothing_is_left().await
}

/// If the largest job that etcd accepts has no room for its status, its owner gets an event, its pod stays, and no other job waits.
pub async fn a_job_that_leaves_no_room_for_its_status_is_told_and_costs_only_itself(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let pods = settled_deployment(cluster, 2).await?;
    let [(large, uid), (good, _)] = pods.as_slice() else { anyhow::bail!("two pods") };
    cluster.start_host().await?;
    let mut most = STORE_TAKES;
    // A smaller job that etcd accepts would have less than a status to spare.
    while let Err(refused) = cluster.create_job("large", filled(large, most)).await {
        ensure!(refused.to_string().contains("too large"), "{refused}");
        most = most.checked_sub(100).context("no size is taken")?;
    }
    cluster.create_job("good", replace(std::slice::from_ref(good), json!({}))).await?;
    cluster.until_progress("good", "Succeeded").await?;
    cluster.until_told("StatusRefused", 1).await?;
    let left = cluster.pods().get(large).await?;
    ensure!(left.metadata.uid.as_ref() == Some(uid) && left.metadata.deletion_timestamp.is_none(), "{large} stays");
    cluster.jobs().delete("large", &DeleteParams::default()).await?;
    cluster.until_gone("large").await
}

/// The limit of a request in etcd, in bytes.
const STORE_TAKES: usize = 1_536 << 10;

/// Returns a job on `pod` whose parameters have this many bytes.
fn filled(pod: &str, bytes: usize) -> Value {
    replace(&[pod.to_owned()], json!({"parameters": {"fill": "x".repeat(bytes)}}))
}
