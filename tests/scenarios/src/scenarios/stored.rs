//! Jobs that break a rule: stored before the rule, changed by someone else, or with parameters that the plugin refuses. The
//! host reports each job and does not delay others.

use anyhow::ensure;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::admission::refused;
use super::{SETTLED, all_replaced, identities};
use crate::jobs::{self, Told, replace};
use crate::test_cluster::TestCluster;

async fn store(cluster: &TestCluster, name: &str, data: Value) -> anyhow::Result<()> {
    let job = DynamicObject::new(name, &jobs::resource()).within(&cluster.namespace).data(data);
    cluster.jobs().create(&PostParams::default(), &job).await?;
    Ok(())
}

/// A4, A42: jobs from before the rules are invalid and can be deleted, and the other jobs go on.
pub async fn stored_jobs_that_break_a_rule_are_invalid_and_the_others_go_on(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let set = cluster.seedbed.stateful_set("db", 1).await?;
    cluster.world.settled(&set, SETTLED).await?;
    cluster.lift_admission().await?;
    let target = || json!([{"name": "a"}]);
    let bad = [
        (
            "negative",
            json!({"spec": {"action": "Replace", "targets": target(), "partition": -1}}),
            "InvalidValue",
            "spec.partition",
        ),
        ("empty", json!({"spec": {"action": "Replace"}}), "NoTargets", "spec.targets"),
        ("spec-less", json!({}), "InvalidValue", "spec: required"),
        (
            "path",
            json!({"spec": {"action": "Replace", "targets": [{"name": "p4/status"}]}}),
            "InvalidValue",
            "p4/status",
        ),
        (
            "twice",
            json!({"spec": {"action": "Replace", "targets": [{"name": "a"}, {"name": "a"}]}}),
            "DuplicateTarget",
            "a is listed twice",
        ),
        (
            "deadline",
            json!({"spec": {"action": "Replace", "targets": target(), "activeDeadlineSeconds": 0}}),
            "InvalidValue",
            "spec.activeDeadlineSeconds",
        ),
    ];
    for (name, data, ..) in &bad {
        store(cluster, name, data.clone()).await?;
    }
    cluster.start_host().await?;
    for (name, _, reason, words) in &bad {
        let job = cluster.until(name, "invalid", |job| job.condition("Valid") == format!("False/{reason}")).await?;
        ensure!(job.condition_message("Valid").contains(words), "{}", job.condition_message("Valid"));
        ensure!(job.condition("Stalled") == format!("True/{reason}"), "{:?}", job.data);
        ensure!(
            job.count("processing") == 0 && job.targets().values().all(|target| target.get("uid").is_none()),
            "{:?}",
            job.data
        );
    }
    let names = vec!["db-0".to_owned()];
    let targets = identities(cluster, &names).await?;
    cluster.create_job("good", replace(&names, json!({}))).await?;
    cluster.until_progress("good", "Succeeded").await?;
    all_replaced(cluster, &targets).await?;
    cluster.until_told("InvalidSpec", bad.len()).await?;
    for (name, ..) in &bad {
        cluster.delete_job(name).await?;
        cluster.until_gone(name).await?;
    }
    ensure!(cluster.told_times("InvalidSpec").await? == bad.len(), "one event for each");
    Ok(())
}

/// Only an edit that follows the rules repairs a job that was stored before them.
pub async fn a_stored_job_goes_on_once_its_spec_keeps_the_rules(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let set = cluster.seedbed.stateful_set("db", 1).await?;
    cluster.world.settled(&set, SETTLED).await?;
    cluster.lift_admission().await?;
    let asked = json!({"parallelism": "0%"});
    cluster.create_job("old", replace(&["db-0".to_owned()], asked)).await?;
    cluster.restore_admission().await?;
    cluster.start_host().await?;
    let words = "spec.parallelism: must be an integer >= 1 or 1% to 100%";
    cluster.until("old", "invalid", |job| job.condition_message("Valid") == words).await?;
    let label = Patch::Merge(json!({"metadata": {"labels": {"seen": "true"}}}));
    cluster.jobs().patch("old", &PatchParams::default(), &label).await?;
    refused(cluster.edit_job("old", json!({"partition": 1})).await, &[words])?;
    cluster.edit_job("old", json!({"parallelism": "1%"})).await?;
    cluster.until_progress("old", "Succeeded").await.map(drop)
}

async fn write_status(cluster: &TestCluster, name: &str, status: Value) -> anyhow::Result<()> {
    cluster.jobs().patch_status(name, &PatchParams::default(), &Patch::Merge(json!({ "status": status }))).await?;
    Ok(())
}

/// Unknown words in the status of a running job have no effect.
pub async fn garbage_in_a_status_costs_nothing(cluster: &mut TestCluster) -> anyhow::Result<()> {
    cluster.meddles();
    let set = cluster.seedbed.collaset("foo", 2).await?;
    cluster.world.settled(&set, SETTLED).await?;
    cluster.start_host().await?;
    let names = cluster.pod_names("foo").await?;
    let targets = identities(cluster, &names).await?;
    cluster.create_job("g", replace(&names, json!({"partition": 1}))).await?;
    cluster.until("g", "one succeeded", |job| job.count("succeeded") == 1).await?;
    write_status(cluster, "g", json!({"progress": "Bogus", "succeededPodCount": 77})).await?;
    cluster.edit_job("g", json!({"partition": 2})).await?;
    let job = cluster.until_progress("g", "Succeeded").await?;
    ensure!(job.count("succeeded") == 2, "{:?}", job.data);
    all_replaced(cluster, &targets).await
}

/// If someone clears the status of a job that has marked its pod, the host rebuilds the status from the holds.
pub async fn a_cleared_status_is_rebuilt_from_what_is_held(cluster: &mut TestCluster) -> anyhow::Result<()> {
    use oarlock_sim::world::{Pause, Scope};
    cluster.meddles();
    let set = cluster.seedbed.collaset("foo", 1).await?;
    cluster.world.settled(&set, SETTLED).await?;
    cluster.world.hold(Pause::Creation, Scope::World);
    cluster.start_host().await?;
    let names = cluster.pod_names("foo").await?;
    let targets = identities(cluster, &names).await?;
    cluster.create_job("c", replace(&names, json!({}))).await?;
    let name = names.first().cloned().unwrap_or_default();
    cluster.until_pod(&name, "marked", super::is_held).await?;
    write_status(cluster, "c", Value::Null).await?;
    cluster.until("c", "begun again", |job| job.progress() == "Processing").await?;
    cluster.world.release(Pause::Creation, Scope::World);
    cluster.until_progress("c", "Succeeded").await?;
    all_replaced(cluster, &targets).await
}
