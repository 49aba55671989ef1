//! The troubles of a host in memory. Each test causes one trouble, and names all alerts that fire in it.

use std::time::Duration;

use http::{Method, StatusCode};
use oarlock_scenarios::flows;
use oarlock_scenarios::hosts::Begin;
use oarlock_scenarios::jobs::{Told, replace};
use oarlock_scenarios::scenarios::{evicting, hostile, lifecycle, names, settled_collaset, settled_deployment};
use oarlock_scenarios::test_cluster::{TestCluster, patiently};
use oarlock_sim::world::{Pause, Scope};
use oarlock_support::faults::Then;
use oarlock_support::interception::Interceptor;
use oarlock_support::orders::Order;
use serde_json::json;

use oarlock_scenarios::monitoring::scene::Scene;

/// A wait for a leader, or for the end of its term.
async fn until_leading(cluster: &TestCluster, leads: bool) -> anyhow::Result<()> {
    patiently("it leads, or not", async || Ok(cluster.running()?.leads() == leads)).await
}

/// Returns the interceptor of the last host.
fn interceptor(cluster: &TestCluster) -> anyhow::Result<Interceptor> {
    Ok(cluster.running()?.interceptor.clone())
}

/// Begins a scene with the usual host and a CollaSet of some pods, and lets some calm minutes pass.
async fn with_host(pods: usize) -> anyhow::Result<(Scene, Vec<String>)> {
    let mut scene = Scene::begin().await?;
    let pods = names(&settled_collaset(&scene.cluster, pods).await?);
    scene.cluster.start_host().await?;
    until_leading(&scene.cluster, true).await?;
    scene.pass(2).await?;
    Ok((scene, pods))
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_killed_without_a_standby_leaves_no_leader() -> anyhow::Result<()> {
    let (mut scene, _) = with_host(1).await?;
    scene.cluster.kill_host("host").await?;
    scene.pass(5).await?;
    scene.fires(&["OarlockNoLeader"])
}

#[tokio::test(start_paused = true)]
async fn a_host_that_may_not_write_the_lease_does_not_lead() -> anyhow::Result<()> {
    let (mut scene, _) = with_host(1).await?;
    interceptor(&scene.cluster)?.order(Order::all(Method::PUT, "/leases/", Then::Refuse(StatusCode::FORBIDDEN)));
    scene.pass(12).await?;
    scene.fires(&["OarlockNoLeader", "OarlockWritesRefused"])
}

#[tokio::test(start_paused = true)]
async fn two_installations_with_different_leases_both_lead() -> anyhow::Result<()> {
    let (mut scene, _) = with_host(1).await?;
    let second = Begin { lease_name: "another-lease".to_owned(), ..scene.cluster.host_named("second") };
    scene.cluster.start(second).await?;
    scene.pass(5).await?;
    scene.fires(&["OarlockSeveralLeaders"])
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_loses_its_lease_again_and_again_changes_often() -> anyhow::Result<()> {
    let mut scene = Scene::begin().await?;
    let begin = Begin { lease: Duration::from_secs(6), ..scene.cluster.host_named("host") };
    scene.cluster.start(begin).await?;
    let interceptor = interceptor(&scene.cluster)?;
    for _ in 0..5 {
        until_leading(&scene.cluster, true).await?;
        scene.pass(6).await?;
        interceptor.order(Order::all(Method::PUT, "/leases/", Then::Refuse(StatusCode::INTERNAL_SERVER_ERROR)));
        until_leading(&scene.cluster, false).await?;
        interceptor.lift();
    }
    until_leading(&scene.cluster, true).await?;
    scene.pass(2).await?;
    scene.fires(&["OarlockLeaderChanges"])
}

#[tokio::test(start_paused = true)]
async fn a_status_that_the_api_server_refuses_fails_its_rounds() -> anyhow::Result<()> {
    let (mut scene, pods) = with_host(2).await?;
    let status = Order::all(Method::PATCH, "/operationjobs/bad/status", Then::Refuse(StatusCode::FORBIDDEN));
    interceptor(&scene.cluster)?.order(status);
    for (job, pod) in ["bad", "good"].into_iter().zip(&pods) {
        scene.cluster.create_job(job, replace(std::slice::from_ref(pod), json!({}))).await?;
    }
    scene.pass(20).await?;
    scene.fires(&["OarlockRoundsFail", "OarlockWritesRefused"])
}

#[tokio::test(start_paused = true)]
async fn rounds_that_panic_are_reported_although_they_are_repeated() -> anyhow::Result<()> {
    let (mut scene, pods) = with_host(1).await?;
    interceptor(&scene.cluster)?.order(Order::next(Method::PATCH, "/operationjobs/p/status", Then::Panic));
    scene.cluster.create_job("p", replace(&pods, json!({}))).await?;
    scene.pass(5).await?;
    scene.fires(&["OarlockRoundPanics"])
}

#[tokio::test(start_paused = true)]
async fn a_slow_api_server_lets_jobs_wait_for_their_rounds() -> anyhow::Result<()> {
    const JOBS: usize = 400;
    let (mut scene, _) = with_host(1).await?;
    let slow = Order::all(Method::PATCH, "/status", Then::Delay(Duration::from_secs(8)));
    interceptor(&scene.cluster)?.order(slow);
    for number in 0..JOBS {
        scene.cluster.create_job(&format!("j{number}"), replace(&["missing".to_owned()], json!({}))).await?;
    }
    scene.pass(40).await?;
    scene.fires(&["OarlockQueueGrows"])
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_fails_all_requests_is_reported() -> anyhow::Result<()> {
    let (mut scene, _) = with_host(1).await?;
    let interceptor = interceptor(&scene.cluster)?;
    for method in [Method::GET, Method::PUT, Method::PATCH, Method::POST] {
        interceptor.order(Order::all(method, "/", Then::Refuse(StatusCode::INTERNAL_SERVER_ERROR)));
    }
    scene.pass(30).await?;
    scene.fires(&["OarlockApiServerErrors", "OarlockNoLeader", "OarlockWatchSilent"])
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_busy_is_reported() -> anyhow::Result<()> {
    let (mut scene, pods) = with_host(8).await?;
    // The API server itself answers without a Status. The Status of a webhook counts for its namespace alone.
    let busy = Then::Answer(429, json!("too many requests"));
    interceptor(&scene.cluster)?.order(Order::all(Method::PATCH, "/pods/", busy));
    scene.cluster.create_job("j", replace(&pods, json!({}))).await?;
    scene.pass(14).await?;
    scene.fires(&["OarlockApiServerBusy"])
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_the_host_may_not_list_is_named() -> anyhow::Result<()> {
    let mut scene = Scene::begin().await?;
    flows::prepare(&mut scene.cluster).await?;
    let begin = scene.cluster.host_named("host");
    begin.interceptor.order(Order::all(Method::GET, "/daemonjobs", Then::Refuse(StatusCode::FORBIDDEN)));
    scene.cluster.start(begin).await?;
    scene.pass(15).await?;
    scene.fires(&["OarlockKindNotListed"])
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_the_api_server_fails_is_named() -> anyhow::Result<()> {
    let (mut scene, _) = with_host(1).await?;
    let refused = Order::all(Method::GET, "/api/v1/pods?", Then::Refuse(StatusCode::INTERNAL_SERVER_ERROR));
    interceptor(&scene.cluster)?.order(refused);
    scene.pass(35).await?;
    scene.fires(&["OarlockWatchSilent"])
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_traps_is_named() -> anyhow::Result<()> {
    let mut scene = Scene::begin().await?;
    let pods = names(&settled_collaset(&scene.cluster, 2).await?);
    scene.cluster.start(hostile::with_hostile(&scene.cluster)).await?;
    scene.pass(2).await?;
    for (number, deed) in ["chance", "ungranted-mutation-in-operate", "trap-in-operate"].into_iter().enumerate() {
        let targets: Vec<_> = pods.iter().map(|name| json!({ "name": name })).collect();
        let spec = json!({"action": "Hostile", "targets": targets, "parameters": {"do": deed},
            "activeDeadlineSeconds": 100});
        scene.cluster.create_job(&format!("h{number}"), spec).await?;
        scene.pass(3).await?;
    }
    scene.fires(&["OarlockPluginBreaksBounds"])
}

#[tokio::test(start_paused = true)]
async fn a_release_that_the_api_server_refuses_is_reported() -> anyhow::Result<()> {
    let mut scene = Scene::begin().await?;
    let pods = names(&settled_collaset(&scene.cluster, 2).await?);
    scene.cluster.world.hold(Pause::Creation, Scope::World);
    scene.cluster.start_host().await?;
    scene.cluster.create_job("r", replace(&pods, json!({"activeDeadlineSeconds": 60}))).await?;
    scene.cluster.until("r", "in flight", |job| job.count("processing") == 2).await?;
    let refused = Order::all(Method::PATCH, "/pods/", Then::Refuse(StatusCode::FORBIDDEN));
    interceptor(&scene.cluster)?.order(refused);
    scene.pass(20).await?;
    scene.fires(&["OarlockReleasePending"])
}

#[tokio::test(start_paused = true)]
async fn a_disruption_budget_that_blocks_for_an_hour_is_reported() -> anyhow::Result<()> {
    let mut scene = Scene::begin().await?;
    let pods = names(&settled_deployment(&scene.cluster, 2).await?);
    evicting::budget(&scene.cluster, 2).await?;
    scene.cluster.start_host().await?;
    scene.cluster.create_job("b", replace(pods.get(..1).unwrap_or_default(), json!({}))).await?;
    scene.pass(65).await?;
    scene.fires(&["OarlockEvictionBlocked"])
}

#[tokio::test(start_paused = true)]
async fn a_lifecycle_that_nobody_drives_for_an_hour_is_reported() -> anyhow::Result<()> {
    let mut scene = Scene::begin().await?;
    scene.cluster.world.install_kruise().await?;
    let pods = names(&settled_collaset(&scene.cluster, 2).await?);
    scene.cluster.world.hold(Pause::Lifecycle, Scope::World);
    lifecycle::start(&mut scene.cluster).await?;
    scene.cluster.create_job("r", lifecycle::restart(&pods, json!({}))).await?;
    scene.pass(66).await?;
    scene.fires(&["OarlockLifecycleWaiting"])
}

#[tokio::test(start_paused = true)]
async fn a_flow_whose_template_is_missing_blocks_its_step() -> anyhow::Result<()> {
    let mut scene = Scene::begin().await?;
    flows::begin(&mut scene.cluster).await?;
    scene.pass(2).await?;
    let late = json!({"name": "late", "jobTemplateRef": "absent"});
    scene.cluster.create_flow("JobFlow", "f", json!({"flows": [late]})).await?;
    scene.pass(20).await?;
    scene.fires(&["OarlockUnitsBlocked"])
}
