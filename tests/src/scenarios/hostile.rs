//! A plugin that does what plugins must not.

use std::time::Duration;

use anyhow::ensure;
use http::Method;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::{all_replaced, names, settled_collaset};
use crate::hosts::Begin;
use crate::jobs::{Told, replace};
use crate::rig::{Rig, patiently};
use oarlock_bed::faults::Then;
use oarlock_bed::orders::{Latch, Order};

/// The grants of the fixtures.
const GRANTS: &str = include_str!("../../hostile/grants.yaml");

/// The usual host, with the plugin of the misdeeds beside the usual one.
pub(crate) fn with_hostile(rig: &Rig) -> Begin {
    let mut begin = rig.host_named("host");
    begin.plugins.push("hostile");
    begin.grants = format!("{}\n---\n{GRANTS}", begin.grants);
    begin
}

/// Each misdeed costs the target that it is done to its attempt, and its neighbours nothing.
pub async fn a_misdeed_costs_its_own_target_and_nobody_else(rig: &mut Rig) -> anyhow::Result<()> {
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
        rig.seedbed.bare_pod(deed).await?;
        let body = json!({"metadata": {"labels": {"hostile.test/do": deed}}});
        rig.pods().patch(deed, &PatchParams::default(), &Patch::Merge(body)).await?;
        rig.seedbed.bare_pod(&format!("good-{deed}")).await?;
    }
    rig.start(with_hostile(rig)).await?;
    let names = misdeeds.iter().flat_map(|(deed, _)| [(*deed).to_owned(), format!("good-{deed}")]);
    let targets: Vec<_> = names.map(|name| json!({ "name": name })).collect();
    rig.create_job("evil", json!({"action": "Hostile", "targets": targets})).await?;
    let job = rig.until_progress("evil", "Failed").await?;
    for (deed, reason) in misdeeds {
        let target = job.target(deed);
        ensure!(target.starts_with(&format!("Failed/{reason}")), "{deed}: {target} {:?}", job.targets().get(deed));
        ensure!(job.target(&format!("good-{deed}")) == "Succeeded", "{deed}: its neighbour {:?}", job.data);
        ensure!(rig.pods().get(deed).await?.metadata.deletion_timestamp.is_none(), "{deed}: its pod stays");
    }
    rig.delete_job("evil").await?;
    rig.until_gone("evil").await
}

/// A60: whoever wants to be asked again at once is asked less and less often, and nobody else waits for it.
pub async fn a_plugin_in_a_hurry_is_visited_less_and_less_often(rig: &mut Rig) -> anyhow::Result<()> {
    rig.seedbed.bare_pod("a").await?;
    rig.start(with_hostile(rig)).await?;
    let spec = json!({"action": "Hostile", "targets": [{"name": "a"}], "parameters": {"do": "hurry-in-progress"}});
    rig.create_job("h", spec).await?;
    rig.until("h", "in flight", |job| job.count("processing") == 1).await?;
    let minute = std::time::Duration::from_secs(60);
    let visits = || rig.figure("operationjob_visits_total").unwrap_or_default();
    rig.pass(minute).await;
    ensure!((5..40).contains(&visits()), "{} visits in the first minute", visits());
    let pods = settled_collaset(rig, 2).await?;
    let (before, begun) = (visits(), tokio::time::Instant::now());
    rig.create_job("r", replace(&names(&pods), json!({}))).await?;
    rig.until_progress("r", "Succeeded").await?;
    ensure!(begun.elapsed() < minute, "the other job took {:?}", begun.elapsed());
    rig.pass(minute).await;
    ensure!(visits() - before < 40, "{} visits in the second minute", visits() - before);
    rig.delete_job("h").await?;
    rig.until_gone("h").await?;
    all_replaced(rig, &pods).await
}

/// A60: whoever makes another change at each visit is visited less and less often, whichever comes first of each change:
/// the watch that shows it or the reply. Its target says so, and its time ends as any other's.
pub async fn a_plugin_that_never_converges_is_visited_less_and_less_often(rig: &mut Rig) -> anyhow::Result<()> {
    rig.seedbed.bare_pod("a").await?;
    let begin = with_hostile(rig);
    begin.wire.order(Order::all(Method::PATCH, "/pods/a", Then::Delay(Duration::from_millis(50))).after_commit());
    rig.start(begin).await?;
    let spec = json!({"action": "Hostile", "targets": [{"name": "a"}], "activeDeadlineSeconds": 200,
        "parameters": {"do": "another-label-in-operate"}});
    rig.create_job("m", spec).await?;
    rig.until("m", "in flight", |job| job.count("processing") == 1).await?;
    let visits = || rig.figure("operationjob_visits_total").unwrap_or_default();
    let minute = Duration::from_secs(60);
    rig.pass(minute).await;
    ensure!((5..40).contains(&visits()), "{} visits in the first minute", visits());
    let before = visits();
    rig.pass(minute).await;
    ensure!((1..5).contains(&(visits() - before)), "{} visits in the second minute", visits() - before);
    let job = rig.jobs().get("m").await?;
    ensure!(job.target("a") == "Processing/NotConverging", "{:?}", job.data);
    let job = rig.until_progress("m", "Failed").await?;
    ensure!(job.target("a") == "Failed/DeadlineExceeded", "{:?}", job.data);
    rig.delete_job("m").await?;
    rig.until_gone("m").await?;
    rig.until_nothing_is_left().await
}

/// While the kinds of one plugin are being listed, its jobs wait, and those of others in the same namespace do not: also not
/// of a host that has just begun to lead.
pub async fn a_plugin_whose_kinds_are_being_listed_keeps_no_other_job_waiting(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_collaset(rig, 2).await?;
    rig.seedbed.bare_pod("a").await?;
    rig.create_job("x", json!({"action": "Reader", "targets": [{"name": "a"}]})).await?;
    let mut begin = with_hostile(rig);
    begin.plugins.push("reader");
    begin.wire.order(Order::all(Method::GET, "/configmaps", Then::Hold(Latch::default())));
    let wire = begin.wire.clone();
    rig.start(begin).await?;
    rig.create_job("r", replace(&names(&pods), json!({}))).await?;
    rig.until("r", "at work", |job| job.count("processing") > 0).await?;
    ensure!(wire.caught() > 0 && rig.jobs().get("x").await?.progress().is_empty(), "its kind is still being listed");
    wire.lift();
    rig.until_progress("r", "Succeeded").await?;
    rig.until("x", "in flight or ended", |job| !["", "Pending"].contains(&job.progress())).await?;
    rig.delete_job("x").await?;
    rig.until_gone("x").await?;
    all_replaced(rig, &pods).await
}

/// Eight jobs with many targets of a plugin that uses all its time at each visit, and one of another plugin: the other one
/// ends while they are far from their end.
pub async fn a_slow_plugin_leaves_the_others_their_places(rig: &mut Rig) -> anyhow::Result<()> {
    const JOBS: usize = 8;
    const TARGETS: usize = 40;
    let pods = settled_collaset(rig, 2).await?;
    for name in (0..JOBS * TARGETS).map(|number| format!("slow-{number}")) {
        rig.seedbed.bare_pod(&name).await?;
    }
    rig.start(with_hostile(rig)).await?;
    for job in 0..JOBS {
        let names = (job * TARGETS..(job + 1) * TARGETS).map(|number| json!({"name": format!("slow-{number}")}));
        let targets: Vec<_> = names.collect();
        let parameters = json!({"do": "loop-in-operate"});
        rig.create_job(&format!("s{job}"), json!({"action": "Hostile", "targets": targets, "parameters": parameters}))
            .await?;
    }
    let visits = || rig.figure("operationjob_visits_total").unwrap_or_default();
    patiently("the slow ones are at work", async || Ok(visits() > 20)).await?;
    rig.create_job("r", replace(&names(&pods), json!({}))).await?;
    let before = visits();
    rig.until_progress("r", "Succeeded").await?;
    let meanwhile = visits() - before;
    ensure!(meanwhile < 150, "{meanwhile} visits until the other job had ended");
    all_replaced(rig, &pods).await
}
