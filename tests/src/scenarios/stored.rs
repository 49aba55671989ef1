//! Jobs that are not as they should be: stored before a rule, written by somebody else, or asking for what this version
//! does not do. Each is told so, and costs the others nothing.

use anyhow::ensure;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::admission::refused;
use super::{SETTLED, all_replaced, identities};
use crate::jobs::{self, Told, replace};
use crate::rig::Rig;

async fn store(rig: &Rig, name: &str, data: Value) -> anyhow::Result<()> {
    let job = DynamicObject::new(name, &jobs::resource()).within(&rig.namespace).data(data);
    rig.jobs().create(&PostParams::default(), &job).await?;
    Ok(())
}

/// A4, A42: jobs that predate the rules are invalid, can be deleted, and the others go on.
pub async fn stored_jobs_that_break_a_rule_are_invalid_and_the_others_go_on(rig: &mut Rig) -> anyhow::Result<()> {
    let set = rig.seedbed.stateful_set("db", 1).await?;
    rig.world.settled(&set, SETTLED).await?;
    rig.lift_admission().await?;
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
        store(rig, name, data.clone()).await?;
    }
    rig.start_host().await?;
    for (name, _, reason, words) in &bad {
        let job = rig.until(name, "invalid", |job| job.condition("Valid") == format!("False/{reason}")).await?;
        ensure!(job.condition_message("Valid").contains(words), "{}", job.condition_message("Valid"));
        ensure!(job.condition("Stalled") == format!("True/{reason}"), "{:?}", job.data);
        ensure!(
            job.count("processing") == 0 && job.targets().values().all(|target| target.get("uid").is_none()),
            "{:?}",
            job.data
        );
    }
    let names = vec!["db-0".to_owned()];
    let targets = identities(rig, &names).await?;
    rig.create_job("good", replace(&names, json!({}))).await?;
    rig.until_progress("good", "Succeeded").await?;
    all_replaced(rig, &targets).await?;
    rig.until_told("InvalidSpec", bad.len()).await?;
    for (name, ..) in &bad {
        rig.delete_job(name).await?;
        rig.until_gone(name).await?;
    }
    ensure!(rig.told_times("InvalidSpec").await? == bad.len(), "one event for each");
    Ok(())
}

/// A job that was stored before a rule is repaired by an edit that keeps the rule, and by no other.
pub async fn a_stored_job_goes_on_once_its_spec_keeps_the_rules(rig: &mut Rig) -> anyhow::Result<()> {
    let set = rig.seedbed.stateful_set("db", 1).await?;
    rig.world.settled(&set, SETTLED).await?;
    rig.lift_admission().await?;
    let asked = json!({"parallelism": "0%"});
    rig.create_job("old", replace(&["db-0".to_owned()], asked)).await?;
    rig.restore_admission().await?;
    rig.start_host().await?;
    let words = "spec.parallelism: must be an integer >= 1 or 1% to 100%";
    rig.until("old", "invalid", |job| job.condition_message("Valid") == words).await?;
    let label = Patch::Merge(json!({"metadata": {"labels": {"seen": "true"}}}));
    rig.jobs().patch("old", &PatchParams::default(), &label).await?;
    refused(rig.edit_job("old", json!({"partition": 1})).await, &[words])?;
    rig.edit_job("old", json!({"parallelism": "1%"})).await?;
    rig.until_progress("old", "Succeeded").await.map(drop)
}

/// Parameters must fit what the plugin says it takes.
pub async fn parameters_that_the_plugin_does_not_take_are_named(rig: &mut Rig) -> anyhow::Result<()> {
    rig.seedbed.bare_pod("a").await?;
    rig.start_host().await?;
    rig.create_job("p", replace(&["a".to_owned()], json!({"parameters": {"strategy": "Nope"}}))).await?;
    let job = rig.until("p", "refused", |job| job.condition("Valid") == "False/ParametersInvalid").await?;
    ensure!(job.condition_message("Valid").contains("strategy"), "{}", job.condition_message("Valid"));
    rig.delete_job("p").await?;
    rig.until_gone("p").await
}

async fn write_status(rig: &Rig, name: &str, status: Value) -> anyhow::Result<()> {
    rig.jobs().patch_status(name, &PatchParams::default(), &Patch::Merge(json!({ "status": status }))).await?;
    Ok(())
}

/// Somebody writes words that nobody knows into the status of a running job.
pub async fn garbage_in_a_status_costs_nothing(rig: &mut Rig) -> anyhow::Result<()> {
    rig.meddles();
    let set = rig.seedbed.collaset("foo", 2).await?;
    rig.world.settled(&set, SETTLED).await?;
    rig.start_host().await?;
    let names = rig.pod_names("foo").await?;
    let targets = identities(rig, &names).await?;
    rig.create_job("g", replace(&names, json!({"partition": 1}))).await?;
    rig.until("g", "one succeeded", |job| job.count("succeeded") == 1).await?;
    write_status(rig, "g", json!({"progress": "Bogus", "succeededPodCount": 77})).await?;
    rig.edit_job("g", json!({"partition": 2})).await?;
    let job = rig.until_progress("g", "Succeeded").await?;
    ensure!(job.count("succeeded") == 2, "{:?}", job.data);
    all_replaced(rig, &targets).await
}

/// Somebody clears the status of a job that has marked its pod.
pub async fn a_cleared_status_is_rebuilt_from_what_is_held(rig: &mut Rig) -> anyhow::Result<()> {
    use oarlock_sim::world::{Pause, Scope};
    rig.meddles();
    let set = rig.seedbed.collaset("foo", 1).await?;
    rig.world.settled(&set, SETTLED).await?;
    rig.world.hold(Pause::Creation, Scope::World);
    rig.start_host().await?;
    let names = rig.pod_names("foo").await?;
    let targets = identities(rig, &names).await?;
    rig.create_job("c", replace(&names, json!({}))).await?;
    let name = names.first().cloned().unwrap_or_default();
    rig.until_pod(&name, "marked", super::is_held).await?;
    write_status(rig, "c", Value::Null).await?;
    rig.until("c", "begun again", |job| job.progress() == "Processing").await?;
    rig.world.release(Pause::Creation, Scope::World);
    rig.until_progress("c", "Succeeded").await?;
    all_replaced(rig, &targets).await
}
