//! Eviction: whose new pod is whose, what a budget allows, and whom nobody may touch.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::ensure;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use oarlock_bed::faults::Then;
use oarlock_bed::interception::{Interceptor, WriteRecord};
use oarlock_bed::orders::Order;
use oarlock_sim::world::{Effect, Pause, Scope};
use serde_json::{Value, json};

use super::{SETTLED, all_replaced, is_held, names, settled, settled_deployment};
use crate::jobs::{Told, replace};
use crate::rig::{Ground, Rig};

fn new_pods(job: &kube::api::DynamicObject) -> BTreeSet<String> {
    let named = |detail: &Value| Some(detail.pointer("/extraInfo/NewPod")?.as_str()?.to_owned());
    job.targets().values().filter_map(named).collect()
}

/// A27, A39: new pods appear together, and each belongs to one target.
pub async fn twenty_pods_of_one_replica_set_get_twenty_different_new_pods(rig: &mut Rig) -> anyhow::Result<()> {
    let set = rig.seedbed.replica_set("web", 20).await?;
    let pods = settled(rig, &set, "web").await?;
    rig.world.hold(Pause::Creation, Scope::World);
    rig.start_host().await?;
    rig.create_job("all", replace(&names(&pods), json!({}))).await?;
    rig.world.until("all to be evicted", super::SETTLED, |all| all.is_empty()).await?;
    rig.world.release(Pause::Creation, Scope::World);
    let released = tokio::time::Instant::now();
    let job = rig.until_progress("all", "Succeeded").await?;
    ensure!(new_pods(&job).len() == 20, "{:?}", new_pods(&job));
    // A target that had lost its claim to another would find its pod by the plugin's own check, ten seconds later.
    let took = released.elapsed();
    ensure!(matches!(rig.ground, Ground::Real(_)) || took < std::time::Duration::from_secs(10), "{took:?}");
    all_replaced(rig, &pods).await
}

/// A28: `minReadySeconds` counts from Ready.
pub async fn a_new_pod_counts_once_it_was_ready_for_long_enough(rig: &mut Rig) -> anyhow::Result<()> {
    let set = rig.seedbed.stateful_set("db", 1).await?;
    let pods = settled(rig, &set, "db").await?;
    rig.start_host().await?;
    rig.create_job("s", replace(&names(&pods), json!({"parameters": {"minReadySeconds": 4}}))).await?;
    let job = rig.until_progress("s", "Succeeded").await?;
    let pod = rig.pods().get("db-0").await?;
    let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
    let ready = conditions.into_iter().find(|one| one.type_ == "Ready").and_then(|one| one.last_transition_time);
    let ended: k8s_openapi::jiff::Timestamp =
        serde_json::from_value(job.data.pointer("/status/endTime").cloned().unwrap_or_default())?;
    let waited = ready.map(|ready| ended.duration_since(ready.0).as_secs());
    ensure!(waited.is_some_and(|seconds| seconds >= 4), "{waited:?}");
    all_replaced(rig, &pods).await
}

/// A29: nobody would make a bare pod anew; who asks for marks gets them.
pub async fn a_bare_pod_is_left_alone_unless_it_is_to_be_marked(rig: &mut Rig) -> anyhow::Result<()> {
    rig.seedbed.bare_pod("bare").await?;
    rig.start_host().await?;
    let target = ["bare".to_owned()];
    rig.create_job("auto", replace(&target, json!({}))).await?;
    let job = rig.until_progress("auto", "Failed").await?;
    ensure!(job.target("bare") == "Failed/NoController", "{:?}", job.data);
    let pod = rig.pods().get("bare").await?;
    ensure!(pod.metadata.deletion_timestamp.is_none() && pod.metadata.annotations.is_none(), "untouched: {pod:?}");
    let patches = || rig.running().map(|running| patches(&running.wire, "/pods/bare"));
    ensure!(patches()? == 0, "untouched");
    rig.create_job("marks", replace(&target, json!({"parameters": {"strategy": "CollaSet"}}))).await?;
    rig.until_pod("bare", "marked", is_held).await?;
    ensure!(patches()? == 1, "marked in one patch");
    rig.delete_job("marks").await?;
    rig.until_gone("marks").await?;
    rig.until_nothing_is_left().await
}

/// The patches that were made: one that met a newer version of its pod, which has just begun to run, is made again.
fn patches(wire: &Interceptor, part: &str) -> usize {
    let is_made = |sent: &WriteRecord| sent.status.is_none_or(|status| status.is_success());
    wire.records()
        .iter()
        .filter(|sent| sent.verb == http::Method::PATCH && sent.path.ends_with(part) && is_made(sent))
        .count()
}

/// At least so many pods of `web` must stay available.
pub(crate) async fn budget(rig: &Rig, min_available: usize) -> anyhow::Result<()> {
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(rig.client.clone(), &rig.namespace);
    if budgets.get_opt("web").await?.is_some() {
        let body = json!({"spec": {"minAvailable": min_available}});
        budgets.patch("web", &PatchParams::default(), &Patch::Merge(body)).await?;
        return Ok(());
    }
    let budget = json!({
        "metadata": {"name": "web"},
        "spec": {"minAvailable": min_available, "selector": {"matchLabels": {"app": "web"}}},
    });
    budgets.create(&PostParams::default(), &serde_json::from_value(budget)?).await?;
    Ok(())
}

/// A26: while the budget allows nothing, the target waits and says so, and one Warning is told.
pub async fn a_disruption_budget_is_waited_for_and_told_once(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_deployment(rig, 2).await?;
    budget(rig, 2).await?;
    rig.start_host().await?;
    let target = pods.get(..1).unwrap_or_default();
    rig.create_job("b", replace(&names(target), json!({}))).await?;
    let name = names(target).join("");
    rig.until("b", "blocked", |job| job.target(&name) == "Processing/EvictionBlocked").await?;
    ensure!(rig.figure("operationjob_eviction_blocked") == Some(1), "the gauge counts it");
    rig.pass(Duration::from_secs(120)).await;
    rig.until_told("EvictionBlocked", 1).await?;
    budget(rig, 1).await?;
    rig.until_progress("b", "Succeeded").await?;
    ensure!(rig.figure("operationjob_eviction_blocked") == Some(0), "the gauge counts it no more");
    ensure!(rig.told_times("EvictionBlocked").await? == 1, "told once");
    rig.until_told("EvictedPod", 1).await?;
    all_replaced(rig, target).await
}

/// Two budgets select the pod, and the eviction API takes one: both are named, and the job goes on once one of them is gone.
/// Source: kubernetes/kubernetes#75957.
pub async fn all_budgets_over_a_pod_are_named_where_there_are_several(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_deployment(rig, 2).await?;
    budget(rig, 1).await?;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(rig.client.clone(), &rig.namespace);
    for (name, selector) in [
        ("all", json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]})),
        ("other", json!({"matchLabels": {"app": "other"}})),
    ] {
        let one = json!({"metadata": {"name": name}, "spec": {"minAvailable": 1, "selector": selector}});
        budgets.create(&PostParams::default(), &serde_json::from_value(one)?).await?;
    }
    rig.start_host().await?;
    let target = pods.get(..1).unwrap_or_default();
    rig.create_job("b", replace(&names(target), json!({}))).await?;
    let name = names(target).join("");
    let job = rig.until("b", "blocked", |job| job.target(&name) == "Processing/EvictionBlocked").await?;
    let told = job.data.to_string();
    ensure!(told.contains("disruption budgets all and web select the pod, and an eviction takes one"), "{told}");
    ensure!(told.contains(&format!("disruption budgets all and web select {name}")), "{told}");
    budgets.delete("all", &Default::default()).await?;
    rig.until_progress("b", "Succeeded").await?;
    all_replaced(rig, target).await
}

/// A48: a pod that appeared before the eviction did not take the target's place.
pub async fn a_pod_that_was_scaled_up_meanwhile_is_nobodys_new_pod(rig: &mut Rig) -> anyhow::Result<()> {
    let set = rig.seedbed.replica_set("web", 2).await?;
    let pods = settled(rig, &set, "web").await?;
    budget(rig, 2).await?;
    rig.start_host().await?;
    let target = pods.get(..1).unwrap_or_default();
    let name = names(target).join("");
    rig.create_job("b", replace(&names(target), json!({}))).await?;
    rig.until("b", "blocked", |job| job.target(&name) == "Processing/EvictionBlocked").await?;
    rig.world.hold(oarlock_sim::world::Pause::Readiness, oarlock_sim::world::Scope::World);
    rig.world.scale(&set, 3).await?;
    rig.world.until("the third pod", SETTLED, |all| all.len() == 3).await?;
    let scaled: Vec<String> =
        rig.pod_names("web").await?.into_iter().filter(|name| !names(&pods).contains(name)).collect();
    rig.world.release(oarlock_sim::world::Pause::Readiness, oarlock_sim::world::Scope::World);
    rig.world.settled(&set, SETTLED).await?;
    let job = rig.until_progress("b", "Succeeded").await?;
    ensure!(new_pods(&job).iter().all(|name| !scaled.contains(name)), "{:?} took {scaled:?}", new_pods(&job));
    all_replaced(rig, target).await
}

/// The ReplicaSet has one pod too many when it loses the target, and so makes no other: that one has taken its place.
pub async fn a_pod_too_many_takes_the_place_of_a_target_that_none_was_made_for(rig: &mut Rig) -> anyhow::Result<()> {
    let set = rig.seedbed.replica_set("web", 2).await?;
    let pods = settled(rig, &set, "web").await?;
    budget(rig, 2).await?;
    rig.start_host().await?;
    let target = names(pods.get(..1).unwrap_or_default());
    let name = target.join("");
    rig.create_job("s", replace(&target, json!({}))).await?;
    rig.until("s", "blocked", |job| job.target(&name) == "Processing/EvictionBlocked").await?;
    rig.world.hold(Pause::Readiness, Scope::World);
    rig.world.scale(&set, 3).await?;
    rig.world.until("the third pod", SETTLED, |all| all.len() == 3).await?;
    let surplus = rig.pod_names("web").await?.into_iter().find(|name| !names(&pods).contains(name));
    rig.world.hold(Pause::Creation, Scope::World);
    rig.world.release(Pause::Readiness, Scope::World);
    rig.world
        .until("the eviction", SETTLED, |all| all.iter().all(|pod| pod.metadata.name.as_ref() != Some(&name)))
        .await?;
    rig.world.scale(&set, 2).await?;
    let sets: Api<k8s_openapi::api::apps::v1::ReplicaSet> = Api::namespaced(rig.client.clone(), &rig.namespace);
    crate::rig::patiently("the controller knows that two are enough", async || {
        let set = sets.get("web").await?;
        Ok(set.status.and_then(|status| status.observed_generation) == set.metadata.generation)
    })
    .await?;
    rig.world.release(Pause::Creation, Scope::World);
    let job = rig.until_progress("s", "Succeeded").await?;
    ensure!(new_pods(&job).into_iter().next() == surplus, "{:?}, and not {surplus:?}", new_pods(&job));
    Ok(())
}

/// A Pending target that is not there fails, one that vanished before its turn too; the others go on.
pub async fn a_target_that_was_never_there_or_vanished_is_not_found(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_deployment(rig, 1).await?;
    rig.seedbed.bare_pod("late").await?;
    rig.start_host().await?;
    let mut targets = names(&pods);
    let real = targets.join("");
    targets.extend(["never".to_owned(), "late".to_owned()]);
    rig.create_job("m", replace(&targets, json!({"partition": 2}))).await?;
    let job = rig.until("m", "both ended", |job| job.count("succeeded") == 1 && job.count("failed") == 1).await?;
    ensure!(job.target("never") == "Failed/PodNotFound" && job.target("late") == "Pending", "{:?}", job.data);
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    rig.pods().delete("late", &now).await?;
    crate::rig::patiently("the pod is gone", async || Ok(rig.pods().get_opt("late").await?.is_none())).await?;
    rig.edit_job("m", json!({"partition": 3})).await?;
    let job = rig.until_progress("m", "Failed").await?;
    ensure!(job.target("late") == "Failed/PodNotFound" && job.target(&real) == "Succeeded", "{:?}", job.data);
    ensure!(job.condition("Failed") == "True/TargetsFailed", "{:?}", job.data);
    Ok(())
}

/// The pod was made anew under its name while its eviction was refused: the new one is not the target.
pub async fn a_namesake_that_came_later_is_never_touched(rig: &mut Rig) -> anyhow::Result<()> {
    let set = rig.seedbed.stateful_set("web", 2).await?;
    let pods = settled(rig, &set, "web").await?;
    budget(rig, 2).await?;
    rig.start_host().await?;
    let target = pods.get(..1).unwrap_or_default();
    let name = names(target).join("");
    rig.create_job("n", replace(&names(target), json!({}))).await?;
    rig.until("n", "blocked", |job| job.target(&name) == "Processing/EvictionBlocked").await?;
    let namesake = rig.world.recreate_same_name(&rig.namespace, &name).await?;
    budget(rig, 0).await?;
    let job = rig.until("n", "ended", |job| ["Succeeded", "Failed"].contains(&job.progress())).await?;
    ensure!(job.targets().get(&name).and_then(|target| target.get("uid")) != Some(&json!(namesake)), "{:?}", job.data);
    let entries = rig.world.ledger().entries();
    ensure!(!entries.iter().any(|entry| entry.effect == Effect::PodEvicted), "nobody was evicted");
    ensure!(rig.pods().get(&name).await?.metadata.uid == Some(namesake), "the namesake stays");
    Ok(())
}

/// The Deployment goes after the eviction and before it made a new pod: none will come.
pub async fn a_target_whose_deployment_is_gone_does_not_wait_for_its_deadline(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_deployment(rig, 1).await?;
    rig.world.hold(Pause::Creation, Scope::World);
    rig.start_host().await?;
    let name = names(&pods).join("");
    rig.create_job("o", replace(&names(&pods), json!({}))).await?;
    rig.world
        .until("the pod to go", SETTLED, |all| all.iter().all(|pod| pod.metadata.name.as_ref() != Some(&name)))
        .await?;
    let deployments: Api<k8s_openapi::api::apps::v1::Deployment> = Api::namespaced(rig.client.clone(), &rig.namespace);
    deployments.delete("web", &DeleteParams::default()).await?;
    let job = rig.until_progress("o", "Failed").await?;
    ensure!(job.target(&name) == "Failed/OwnerGone", "{:?}", job.data);
    rig.until_nothing_is_left().await
}

/// The job that knew whose new pod it is goes, and so does the host; another job's target waits for a new pod.
pub async fn what_replaced_a_target_is_nobody_elses_once_its_job_is_gone(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_deployment(rig, 2).await?;
    let [first, second] = [&pods.get(..1), &pods.get(1..)].map(|pods| names(pods.unwrap_or_default()));
    rig.start_host().await?;
    let refused = Then::Refuse(http::StatusCode::TOO_MANY_REQUESTS);
    let eviction = format!("{}/eviction", second.join(""));
    rig.running()?.wire.order(Order::all(http::Method::POST, &eviction, refused));
    rig.create_job("b", replace(&second, json!({}))).await?;
    rig.until("b", "in flight", |job| job.count("processing") == 1).await?;
    rig.create_job("a", replace(&first, json!({}))).await?;
    let taken = new_pods(&rig.until_progress("a", "Succeeded").await?);
    rig.delete_job("a").await?;
    rig.until_gone("a").await?;
    let pod = rig.pods().get(taken.first().map_or("", String::as_str)).await?;
    ensure!(pod.metadata.annotations.iter().flatten().any(|(_, marks)| marks.contains("barred")), "{pod:?}");
    rig.restart_host().await?;
    let job = rig.until_progress("b", "Succeeded").await?;
    ensure!(new_pods(&job).is_disjoint(&taken), "{:?} took {taken:?}", new_pods(&job));
    rig.delete_job("b").await?;
    rig.until_gone("b").await?;
    all_replaced(rig, &pods).await
}
