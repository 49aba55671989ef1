//! What objects and clocks may say at worst: pods that never ran, late replies, grace periods and times without bound.

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
use crate::rig::{Ground, Rig};
use oarlock_bed::faults::Then;
use oarlock_bed::orders::Order;

/// The largest grace period that the API server takes, and one whose sum with a time wraps around.
const LONG: [i64; 2] = [i64::MAX, 1_000_000_000_000];

/// A57: nothing tells when such a pod was asked to go but the host's own request, and its clock is ahead.
pub async fn pods_that_never_ran_are_replaced_by_a_host_whose_clock_is_ahead(rig: &mut Rig) -> anyhow::Result<()> {
    rig.world.hold(Pause::Scheduling, Scope::World);
    let set = rig.seedbed.deployment("web", 3).await?;
    rig.world.until("the pods", SETTLED, |pods| pods.len() == 3).await?;
    let pods = identities(rig, &rig.pod_names("web").await?).await?;
    rig.clock_ahead = SignedDuration::from_millis(1_500);
    let mut begin = rig.host_named("host");
    // A grace period of none is granted by name alone.
    begin.grants = begin.grants.replacen("  anyVersion: true", "  anyVersion: true\n  minGracePeriodSeconds: 0", 1);
    ensure!(begin.grants.contains("minGracePeriodSeconds"), "{}", begin.grants);
    for method in [Method::GET, Method::POST, Method::PUT, Method::PATCH] {
        begin.wire.order(Order::all(method, "", Then::Delay(Duration::from_millis(1_500))).after_commit());
    }
    rig.start(begin).await?;
    let spec = json!({"parameters": {"gracePeriodSeconds": 0}, "activeDeadlineSeconds": 60});
    rig.create_job("n", replace(&names(&pods), spec)).await?;
    let old: BTreeSet<String> = pods.iter().map(|(_, uid)| uid.clone()).collect();
    let replaced = |all: &[std::sync::Arc<k8s_openapi::api::core::v1::Pod>]| {
        all.len() == 3 && all.iter().all(|pod| pod.metadata.uid.as_ref().is_some_and(|uid| !old.contains(uid)))
    };
    rig.world.until("new pods in place of all", SETTLED, replaced).await?;
    rig.world.release(Pause::Scheduling, Scope::World);
    rig.world.settled(&set, SETTLED).await?;
    let job = rig.until("n", "ended", has_ended).await?;
    ensure!(job.progress() == "Succeeded", "{:?}", job.data);
    all_replaced(rig, &pods).await
}

/// A51: eviction of pods with such a grace period. What was there before is nobody's new pod, whatever the sum says.
pub async fn pods_with_a_boundless_grace_period_are_evicted(rig: &mut Rig) -> anyhow::Result<()> {
    let others = settled_deployment(rig, 1).await?;
    rig.start_host().await?;
    for (number, seconds) in LONG.into_iter().enumerate() {
        let app = format!("long{number}");
        let set = rig.seedbed.with_grace(seconds).replica_set(&app, 2).await?;
        let pods = settled(rig, &set, &app).await?;
        // What is younger than the margin of the host's clock may be taken for what came after.
        tokio::time::sleep(Duration::from_secs(4)).await;
        let target = pods.get(..1).unwrap_or_default();
        rig.create_job(&app, replace(&names(target), json!({"activeDeadlineSeconds": 60}))).await?;
        let job = rig.until(&app, "ended", has_ended).await?;
        let told = job.data.pointer("/status/targetDetails/0").cloned().unwrap_or_default();
        ensure!(lasted(&told)? <= 62, "{told}");
        if job.progress() == "Succeeded" {
            let new = told.pointer("/extraInfo/NewPod").and_then(Value::as_str).context("no new pod")?;
            ensure!(pods.iter().all(|(name, _)| name != new), "{new} was there before: {told}");
        } else {
            ensure!(job.target(&names(target).join("")) == "Failed/DeadlineExceeded", "{told}");
        }
    }
    rig.create_job("other", replace(&names(&others), json!({}))).await?;
    rig.until_progress("other", "Succeeded").await?;
    rig.until_nothing_is_left().await
}

/// A51: such pods, marked for a CollaSet that does nothing, are deleted by hand.
pub async fn marked_pods_with_a_boundless_grace_period_are_deleted_by_hand(rig: &mut Rig) -> anyhow::Result<()> {
    let others = settled_deployment(rig, 1).await?;
    rig.start_host().await?;
    let mut targets = Vec::new();
    for (number, seconds) in LONG.into_iter().enumerate() {
        let name = format!("long{number}");
        rig.seedbed.with_grace(seconds).bare_pod(&name).await?;
        rig.until_pod(&name, "running", |pod| pod.data.pointer("/spec/nodeName").is_some()).await?;
        targets.push(name);
    }
    let spec = json!({"parameters": {"strategy": "CollaSet"}, "activeDeadlineSeconds": 5});
    rig.create_job("long", replace(&targets, spec)).await?;
    for name in &targets {
        rig.until_pod(name, "marked", is_held).await?;
        rig.pods().delete(name, &DeleteParams::default()).await?;
    }
    rig.create_job("other", replace(&names(&others), json!({}))).await?;
    rig.until_progress("other", "Succeeded").await?;
    let job = rig.until_progress("long", "Failed").await?;
    for told in job.targets().values() {
        ensure!(lasted(told)? <= 7, "{told}");
    }
    ensure!(rig.running()?.leads(), "the host runs on");
    rig.until_nothing_is_left().await
}

/// A51: somebody writes times of the last year of the calendar, and of the first, into a status.
pub async fn times_at_the_ends_of_the_calendar_in_a_status_cost_nothing(rig: &mut Rig) -> anyhow::Result<()> {
    rig.meddles();
    let pods = settled_collaset(rig, 3).await?;
    rig.world.hold(Pause::Creation, Scope::World);
    rig.start_host().await?;
    // The host's calendar ends a day before the API server's.
    let last = if matches!(rig.ground, Ground::Real(_)) { "9999-12-31T23:59:59Z" } else { "9999-12-30T22:00:00Z" };
    let times = [last, "9999-12-30T21:59:59Z", "0001-01-01T00:00:00Z"];
    let jobs: Vec<String> = (0..times.len()).map(|number| format!("t{number}")).collect();
    for (job, (name, _)) in jobs.iter().zip(&pods) {
        rig.create_job(job, replace(std::slice::from_ref(name), json!({"operationDelaySeconds": 1}))).await?;
        rig.until_pod(name, "marked", is_held).await?;
    }
    for (job, time) in jobs.iter().zip(times) {
        let mut details = rig.jobs().get(job).await?.data.pointer("/status/targetDetails").cloned().unwrap_or_default();
        let first = details.get_mut(0).and_then(Value::as_object_mut).context("no target")?;
        first.insert("startTime".to_owned(), json!(time));
        first.insert("extraInfo".to_owned(), json!({"EvictedAt": time}));
        let body = json!({"status": {"startTime": time, "targetDetails": details}});
        rig.jobs().patch_status(job, &PatchParams::default(), &Patch::Merge(body)).await?;
        rig.edit_job(job, json!({"activeDeadlineSeconds": i32::MAX})).await?;
    }
    let other = settled_deployment(rig, 1);
    rig.world.release(Pause::Creation, Scope::World);
    let other = other.await?;
    rig.create_job("other", replace(&names(&other), json!({}))).await?;
    rig.until_progress("other", "Succeeded").await?;
    for job in &jobs {
        rig.until(job, "ended", has_ended).await?;
        let body = json!({"status": {"endTime": last}});
        rig.jobs().patch_status(job, &PatchParams::default(), &Patch::Merge(body)).await?;
        rig.edit_job(job, json!({"TTLSecondsAfterFinished": i32::MAX})).await?;
    }
    rig.restart_host().await?;
    rig.create_job("last", replace(&rig.pod_names("web").await?, json!({}))).await?;
    rig.until_progress("last", "Succeeded").await?;
    rig.until_nothing_is_left().await
}

/// The largest job that the store takes has no room for its status: its owner is told, its pod stays, and nobody waits.
pub async fn a_job_that_leaves_no_room_for_its_status_is_told_and_costs_only_itself(
    rig: &mut Rig,
) -> anyhow::Result<()> {
    let pods = settled_deployment(rig, 2).await?;
    let [(large, uid), (good, _)] = pods.as_slice() else { anyhow::bail!("two pods") };
    rig.start_host().await?;
    let mut most = STORE_TAKES;
    // Any smaller one that is taken has less than a status to spare.
    while let Err(refused) = rig.create_job("large", filled(large, most)).await {
        ensure!(refused.to_string().contains("too large"), "{refused}");
        most = most.checked_sub(100).context("no size is taken")?;
    }
    rig.create_job("good", replace(std::slice::from_ref(good), json!({}))).await?;
    rig.until_progress("good", "Succeeded").await?;
    rig.until_told("StatusRefused", 1).await?;
    let left = rig.pods().get(large).await?;
    ensure!(left.metadata.uid.as_ref() == Some(uid) && left.metadata.deletion_timestamp.is_none(), "{large} stays");
    rig.jobs().delete("large", &DeleteParams::default()).await?;
    rig.until_gone("large").await
}

/// etcd's limit of a request, in bytes.
const STORE_TAKES: usize = 1_536 << 10;

/// A job on `pod` whose parameters have this many bytes.
fn filled(pod: &str, bytes: usize) -> Value {
    replace(&[pod.to_owned()], json!({"parameters": {"fill": "x".repeat(bytes)}}))
}
