//! A host that is killed at every write of an OpsJob, alternately before the write is sent and after it is committed. A soak kills it at both moments
//! of each write. No work is lost and none is done twice.

use std::sync::Arc;

use kube::api::{Patch, PatchParams};
use oarlock_scenarios::is_soak;
use oarlock_scenarios::ops::{judge, prepare};
use oarlock_scenarios::scenarios::ops_crashes::{CrashRuns, Deed};
use oarlock_scenarios::test_cluster::{TestCluster, patiently};
use oarlock_scenarios::variant::Variant;
use oarlock_search::variants::nodes::LeavesItsCordon;
use oarlock_search::variants::ops::{ForgetsUids, GoesOnAfterAStop, MovesAnEnd, TakesABusyNode};
use oarlock_support::faults::When;
use serde_json::json;

async fn killed_everywhere(deed: Deed) -> anyhow::Result<()> {
    let mut cluster = TestCluster::sim(1).await?;
    let mut runs = CrashRuns::begin(&mut cluster, deed).await?;
    let writes = runs.run((0, When::BeforeSend)).await?;
    let both = [When::BeforeSend, When::AfterCommit];
    let points = (1..=writes).flat_map(|number| both.map(|when| (number, when)));
    let played: Vec<(u64, When)> =
        if is_soak() { points.collect() } else { (1..=writes).zip(both.into_iter().cycle()).collect() };
    for (number, when) in &played {
        let run = runs.run((*number, *when)).await;
        run.map_err(|error| error.context(format!("killed at write {number}, {when:?}")))?;
    }
    println!("{deed:?}: a host was killed at {writes} writes, {} times", played.len());
    anyhow::ensure!(writes >= 10, "a run has {writes} writes");
    cluster.finish().await
}

#[tokio::test(start_paused = true)]
async fn a_reboot_outlives_a_host_that_is_killed_at_any_write() -> anyhow::Result<()> {
    killed_everywhere(Deed::Reboot).await
}

#[tokio::test(start_paused = true)]
async fn a_stop_outlives_a_host_that_is_killed_at_any_write() -> anyhow::Result<()> {
    killed_everywhere(Deed::Stopped).await
}

#[tokio::test(start_paused = true)]
async fn a_preflight_outlives_a_host_that_is_killed_at_any_write() -> anyhow::Result<()> {
    killed_everywhere(Deed::Preflight).await
}

#[tokio::test(start_paused = true)]
async fn an_addon_outlives_a_host_that_is_killed_at_any_write() -> anyhow::Result<()> {
    killed_everywhere(Deed::Addon).await
}

#[tokio::test(start_paused = true)]
async fn a_dumplog_outlives_a_host_that_is_killed_at_any_write() -> anyhow::Result<()> {
    killed_everywhere(Deed::Dumplog).await
}

#[tokio::test(start_paused = true)]
async fn an_export_outlives_a_host_that_is_killed_at_any_write() -> anyhow::Result<()> {
    killed_everywhere(Deed::Export).await
}

/// Returns the failure that a run finds in a host with a bug. The host without the bug must pass first.
async fn found(deed: Deed, bug: impl Variant + 'static) -> anyhow::Result<String> {
    let mut cluster = TestCluster::sim(1).await?;
    let mut runs = CrashRuns::begin(&mut cluster, deed).await?;
    runs.run((0, When::BeforeSend)).await?;
    runs.variant = Some(Arc::new(bug));
    match runs.run((0, When::BeforeSend)).await {
        Ok(_) => anyhow::bail!("{deed:?}: nothing is found in a host with a bug"),
        Err(found) => Ok(format!("{found:#}")),
    }
}

#[tokio::test(start_paused = true)]
async fn hosts_with_a_bug_are_found() -> anyhow::Result<()> {
    let finds = [
        (found(Deed::Reboot, MovesAnEnd::default()).await?, "I2: "),
        (found(Deed::Contended, TakesABusyNode).await?, "I7: "),
        (found(Deed::Stopped, GoesOnAfterAStop).await?, "[1, 1]"),
        (found(Deed::Namesake, ForgetsUids).await?, "[1, 1]"),
        (found(Deed::Reboot, LeavesItsCordon).await?, "never: "),
    ];
    for (found, words) in finds {
        anyhow::ensure!(found.contains(words), "{words:?} is not in: {found}");
    }
    Ok(())
}

/// Tests the judge itself with statuses that no host may write.
#[tokio::test(start_paused = true)]
async fn the_judge_sees_an_end_that_changes_a_phase_that_goes_back_and_a_node_of_two_jobs() -> anyhow::Result<()> {
    let mut cluster = TestCluster::sim(1).await?;
    let history = prepare(&mut cluster).await?;
    let resolved = json!([{"type": "TargetsResolved", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    for name in ["one", "two"] {
        let target = json!([{"name": "n", "uid": "u"}]);
        let spec = json!({"type": "reboot", "inputs": [{"name": "node", "value": "n"}], "targets": target});
        cluster.create_ops(name, spec).await?;
        cluster.patch_ops(name, json!({"metadata": {"finalizers": ["oarlock.dev/opsjob"]}})).await?;
    }
    let status = async |name: &str, status: serde_json::Value| {
        let patch = Patch::Merge(json!({ "status": status }));
        cluster.ops().patch_status(name, &PatchParams::default(), &patch).await.map(drop)
    };
    let end = "2026-01-01T00:00:09Z";
    status("one", json!({"phase": "Running", "conditions": resolved})).await?;
    assert!(judge(&history).is_empty(), "{:?}", judge(&history));
    status("two", json!({"phase": "Running", "conditions": resolved})).await?;
    status("two", json!({"phase": "Pending"})).await?;
    status("one", json!({"phase": "Failed", "finishedAt": end})).await?;
    status("one", json!({"outputs": [{"name": "a", "value": "b"}]})).await?;
    let seen = || judge(&history).join("\n");
    let all = ["I1: one", "I2: two", "I7: two"];
    patiently("it sees all three", async || Ok(all.iter().all(|rule| seen().contains(rule)))).await?;
    cluster.finish().await
}
