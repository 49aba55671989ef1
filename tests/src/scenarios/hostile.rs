//! A plugin that does what plugins must not.

use anyhow::ensure;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::hosts::Begin;
use crate::jobs::Told;
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
