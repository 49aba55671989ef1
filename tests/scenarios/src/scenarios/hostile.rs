//! A plugin that misbehaves, and its effect on others.

use std::time::Duration;

use anyhow::ensure;
use http::Method;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::{all_replaced, names, settled_collaset};
use crate::hosts::Begin;
use crate::jobs::{Told, replace};
use crate::test_cluster::{TestCluster, patiently};
use oarlock_support::faults::Then;
use oarlock_support::orders::{Latch, Order};

/// The grants of the hostile fixtures.
const GRANTS: &str = include_str!("../../../plugins/hostile/grants.yaml");

/// Returns the settings of the usual host with the hostile plugin in addition.
pub fn with_hostile(cluster: &TestCluster) -> Begin {
    let mut begin = cluster.host_named("host");
    begin.plugins.push("hostile");
    begin.grants = format!("{}\n---\n{GRANTS}", begin.grants);
    begin
}

/// Each misdeed costs only its own target an attempt, and the neighbours nothing.
pub async fn a_misdeed_costs_its_own_target_and_nobody_else(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let misdeeds = [
        ("trap-in-operate", "PluginTrapped"),
        ("trap-in-progress", "PluginTrapped"),
        ("loop-in-operate", "PluginLimitExceeded"),
        ("memory-bomb-in-operate", "PluginLimitExceeded"),
        ("deep-recursion-in-operate", "Plugin"),
        ("many-mutations-in-operate", "PluginLimitExceeded"),
        ("huge-output-in-operate", "PluginLimitExceeded"),
        ("ungranted-mutation-in-operate", "MutationDenied"),
        ("foreign-namespace-in-operate", "MutationDenied"),
        ("path-trick-name-in-operate", "MutationDenied"),
    ];
    for (deed, _) in misdeeds {
        cluster.seedbed.bare_pod(deed).await?;
        let body = json!({"metadata": {"labels": {"hostile.test/do": deed}}});
        cluster.pods().patch(deed, &PatchParams::default(), &Patch::Merge(body)).await?;
        cluster.seedbed.bare_pod(&format!("good-{deed}")).await?;
    }
    cluster.start(with_hostile(cluster)).await?;
    let names = misdeeds.iter().flat_map(|(deed, _)| [(*deed).to_owned(), format!("good-{deed}")]);
    let targets: Vec<_> = names.map(|name| json!({ "name": name })).collect();
    cluster.create_job("evil", json!({"action": "Hostile", "targets": targets})).await?;
    let job = cluster.until_progress("evil", "Failed").await?;
    for (deed, reason) in misdeeds {
        let target = job.target(deed);
        ensure!(target.starts_with(&format!("Failed/{reason}")), "{deed}: {target} {:?}", job.targets().get(deed));
        ensure!(job.target(&format!("good-{deed}")) == "Succeeded", "{deed}: its neighbour {:?}", job.data);
        ensure!(cluster.pods().get(deed).await?.metadata.deletion_timestamp.is_none(), "{deed}: its pod stays");
    }
    cluster.delete_job("evil").await?;
    cluster.until_gone("evil").await
}

/// A60: the host visits a plugin that asks for an immediate visit less and less often, and no other plugin waits.
pub async fn a_plugin_in_a_hurry_is_visited_less_and_less_often(cluster: &mut TestCluster) -> anyhow::Result<()> {
    cluster.seedbed.bare_pod("a").await?;
    cluster.start(with_hostile(cluster)).await?;
    let spec = json!({"action": "Hostile", "targets": [{"name": "a"}], "parameters": {"do": "hurry-in-progress"}});
    cluster.create_job("h", spec).await?;
    cluster.until("h", "in flight", |job| job.count("processing") == 1).await?;
    let minute = std::time::Duration::from_secs(60);
    let visits = || cluster.figure("operationjob_visits_total").unwrap_or_default();
    cluster.pass(minute).await;
    ensure!((5..40).contains(&visits()), "{} visits in the first minute", visits());
    let pods = settled_collaset(cluster, 2).await?;
    let (before, begun) = (visits(), tokio::time::Instant::now());
    cluster.create_job("r", replace(&names(&pods), json!({}))).await?;
    cluster.until_progress("r", "Succeeded").await?;
    ensure!(begun.elapsed() < minute, "the other job took {:?}", begun.elapsed());
    cluster.pass(minute).await;
    ensure!(visits() - before < 40, "{} visits in the second minute", visits() - before);
    cluster.delete_job("h").await?;
    cluster.until_gone("h").await?;
    all_replaced(cluster, &pods).await
}

/// A60: the host visits a plugin that makes another change at each visit less and less often, whether the watch or the reply
/// shows the change first. The target has a reason for it, and its deadline ends it as usual.
pub async fn a_plugin_that_never_converges_is_visited_less_and_less_often(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    cluster.seedbed.bare_pod("a").await?;
    let begin = with_hostile(cluster);
    begin
        .interceptor
        .order(Order::all(Method::PATCH, "/pods/a", Then::Delay(Duration::from_millis(50))).after_commit());
    cluster.start(begin).await?;
    let spec = json!({"action": "Hostile", "targets": [{"name": "a"}], "activeDeadlineSeconds": 200,
        "parameters": {"do": "another-label-in-operate"}});
    cluster.create_job("m", spec).await?;
    cluster.until("m", "in flight", |job| job.count("processing") == 1).await?;
    let visits = || cluster.figure("operationjob_visits_total").unwrap_or_default();
    let minute = Duration::from_secs(60);
    cluster.pass(minute).await;
    ensure!((5..40).contains(&visits()), "{} visits in the first minute", visits());
    let before = visits();
    cluster.pass(minute).await;
    ensure!((1..5).contains(&(visits() - before)), "{} visits in the second minute", visits() - before);
    let job = cluster.jobs().get("m").await?;
    ensure!(job.target("a") == "Processing/NotConverging", "{:?}", job.data);
    let job = cluster.until_progress("m", "Failed").await?;
    ensure!(job.target("a") == "Failed/DeadlineExceeded", "{:?}", job.data);
    cluster.delete_job("m").await?;
    cluster.until_gone("m").await?;
    cluster.until_nothing_is_left().await
}

/// While the host lists the kinds of one plugin, only the jobs of that plugin wait, and not other jobs in the same
/// namespace. This holds even for a host that has just begun to lead.
pub async fn a_plugin_whose_kinds_are_being_listed_keeps_no_other_job_waiting(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let pods = settled_collaset(cluster, 2).await?;
    cluster.seedbed.bare_pod("a").await?;
    cluster.create_job("x", json!({"action": "Reader", "targets": [{"name": "a"}]})).await?;
    let mut begin = with_hostile(cluster);
    begin.plugins.push("reader");
    begin.interceptor.order(Order::all(Method::GET, "/configmaps", Then::Hold(Latch::default())));
    let interceptor = begin.interceptor.clone();
    cluster.start(begin).await?;
    cluster.create_job("r", replace(&names(&pods), json!({}))).await?;
    cluster.until("r", "at work", |job| job.count("processing") > 0).await?;
    ensure!(
        interceptor.caught() > 0 && cluster.jobs().get("x").await?.progress().is_empty(),
        "its kind is still being listed"
    );
    interceptor.lift();
    cluster.until_progress("r", "Succeeded").await?;
    cluster.until("x", "in flight or ended", |job| !["", "Pending"].contains(&job.progress())).await?;
    cluster.delete_job("x").await?;
    cluster.until_gone("x").await?;
    all_replaced(cluster, &pods).await
}

/// Eight jobs have many targets of a plugin that uses all its time at each visit. A job of another plugin ends long before they do.
pub async fn a_slow_plugin_leaves_the_others_their_places(cluster: &mut TestCluster) -> anyhow::Result<()> {
    const JOBS: usize = 8;
    const TARGETS: usize = 40;
    let pods = settled_collaset(cluster, 2).await?;
    for name in (0..JOBS * TARGETS).map(|number| format!("slow-{number}")) {
        cluster.seedbed.bare_pod(&name).await?;
    }
    cluster.start(with_hostile(cluster)).await?;
    for job in 0..JOBS {
        let names = (job * TARGETS..(job + 1) * TARGETS).map(|number| json!({"name": format!("slow-{number}")}));
        let targets: Vec<_> = names.collect();
        let parameters = json!({"do": "loop-in-operate"});
        cluster
            .create_job(&format!("s{job}"), json!({"action": "Hostile", "targets": targets, "parameters": parameters}))
            .await?;
    }
    let visits = || cluster.figure("operationjob_visits_total").unwrap_or_default();
    patiently("the slow ones are at work", async || Ok(visits() > 20)).await?;
    cluster.create_job("r", replace(&names(&pods), json!({}))).await?;
    let before = visits();
    cluster.until_progress("r", "Succeeded").await?;
    let meanwhile = visits() - before;
    ensure!(meanwhile < 150, "{meanwhile} visits until the other job had ended");
    all_replaced(cluster, &pods).await
}
