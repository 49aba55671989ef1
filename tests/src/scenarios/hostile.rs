//! A plugin that does what plugins must not.

use anyhow::ensure;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::{all_replaced, names, settled_collaset};
use crate::hosts::Begin;
use crate::jobs::{Told, replace};
use crate::rig::Rig;

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
