//! Evictions: which new pod belongs to which target, the effect of budgets, and pods that must not change.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::ensure;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use oarlock_sim::world::{Effect, Pause, Scope};
use oarlock_support::faults::Then;
use oarlock_support::interception::{Interceptor, WriteRecord};
use oarlock_support::orders::Order;
use serde_json::{Value, json};

use super::{SETTLED, all_replaced, is_held, names, settled, settled_deployment};
use crate::jobs::{Told, replace};
use crate::test_cluster::{Backend, TestCluster};

fn new_pods(job: &kube::api::DynamicObject) -> BTreeSet<String> {
    let named = |detail: &Value| Some(detail.pointer("/extraInfo/NewPod")?.as_str()?.to_owned());
    job.targets().values().filter_map(named).collect()
}

/// A27, A39: new pods appear together, and each belongs to one target.
pub async fn twenty_pods_of_one_replica_set_get_twenty_different_new_pods(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let set = cluster.seedbed.replica_set("web", 20).await?;
    let pods = settled(cluster, &set, "web").await?;
    cluster.world.hold(Pause::Creation, Scope::World);
    cluster.start_host().await?;
    cluster.create_job("all", replace(&names(&pods), json!({}))).await?;
    cluster.world.until("all to be evicted", super::SETTLED, |all| all.is_empty()).await?;
    cluster.world.release(Pause::Creation, Scope::World);
    let released = tokio::time::Instant::now();
    let job = cluster.until_progress("all", "Succeeded").await?;
    ensure!(new_pods(&job).len() == 20, "{:?}", new_pods(&job));
    // A target that lost its claim to another target would find its pod ten seconds later, by the plugin's own check.
    let took = released.elapsed();
    ensure!(matches!(cluster.backend, Backend::Real(_)) || took < std::time::Duration::from_secs(10), "{took:?}");
    all_replaced(cluster, &pods).await
}

/// A28: `minReadySeconds` counts from the Ready condition.
pub async fn a_new_pod_counts_once_it_was_ready_for_long_enough(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let set = cluster.seedbed.stateful_set("db", 1).await?;
    let pods = settled(cluster, &set, "db").await?;
    cluster.start_host().await?;
    cluster.create_job("s", replace(&names(&pods), json!({"parameters": {"minReadySeconds": 4}}))).await?;
    let job = cluster.until_progress("s", "Succeeded").await?;
    let new = job.data.pointer("/status/targetDetails/0/extraInfo/NewPod");
    ensure!(new == Some(&json!("db-0")), "it comes back under its name: {:?}", job.data);
    let pod = cluster.pods().get("db-0").await?;
    let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
    let ready = conditions.into_iter().find(|one| one.type_ == "Ready").and_then(|one| one.last_transition_time);
    let ended: k8s_openapi::jiff::Timestamp =
        serde_json::from_value(job.data.pointer("/status/endTime").cloned().unwrap_or_default())?;
    let waited = ready.map(|ready| ended.duration_since(ready.0).as_secs());
    ensure!(waited.is_some_and(|seconds| seconds >= 4), "{waited:?}");
    all_replaced(cluster, &pods).await
}

/// A29: the host does not evict a bare pod, which no controller would replace. It marks a bare pod if the job asks for marks.
pub async fn a_bare_pod_is_left_alone_unless_it_is_to_be_marked(cluster: &mut TestCluster) -> anyhow::Result<()> {
    cluster.seedbed.bare_pod("bare").await?;
    cluster.start_host().await?;
    let target = ["bare".to_owned()];
    cluster.create_job("auto", replace(&target, json!({}))).await?;
    let job = cluster.until_progress("auto", "Failed").await?;
    ensure!(job.target("bare") == "Failed/NoController", "{:?}", job.data);
    let pod = cluster.pods().get("bare").await?;
    ensure!(pod.metadata.deletion_timestamp.is_none() && pod.metadata.annotations.is_none(), "untouched: {pod:?}");
    let patches = || cluster.running().map(|running| patches(&running.interceptor, "/pods/bare"));
    ensure!(patches()? == 0, "untouched");
    cluster.create_job("marks", replace(&target, json!({"parameters": {"strategy": "CollaSet"}}))).await?;
    cluster.until_pod("bare", "marked", is_held).await?;
    ensure!(patches()? == 1, "marked in one patch");
    cluster.delete_job("marks").await?;
    cluster.until_gone("marks").await?;
    cluster.until_nothing_is_left().await
}

/// Returns the number of successful patches. A patch that conflicts with a newer version of a starting pod is repeated and does not count.
fn patches(interceptor: &Interceptor, part: &str) -> usize {
    let is_made = |sent: &WriteRecord| sent.status.is_none_or(|status| status.is_success());
    interceptor
        .records()
        .iter()
        .filter(|sent| sent.verb == http::Method::PATCH && sent.path.ends_with(part) && is_made(sent))
        .count()
}

/// Creates or changes a budget: at least this many pods of `web` must stay available.
///
/// # Errors
/// If the API server refuses a request.
pub async fn budget(cluster: &TestCluster, min_available: usize) -> anyhow::Result<()> {
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
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

/// A26: while the budget allows no eviction, the target waits and says so, and the host sends one Warning event.
pub async fn a_disruption_budget_is_waited_for_and_told_once(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_deployment(cluster, 2).await?;
    budget(cluster, 2).await?;
    cluster.start_host().await?;
    let target = pods.get(..1).unwrap_or_default();
    cluster.create_job("b", replace(&names(target), json!({}))).await?;
    let name = names(target).join("");
    cluster.until("b", "blocked", |job| job.target(&name) == "Processing/EvictionBlocked").await?;
    ensure!(cluster.figure("operationjob_eviction_blocked") == Some(1), "the gauge counts it");
    cluster.pass(Duration::from_secs(120)).await;
    cluster.until_told("EvictionBlocked", 1).await?;
    budget(cluster, 1).await?;
    cluster.until_progress("b", "Succeeded").await?;
    ensure!(cluster.figure("operationjob_eviction_blocked") == Some(0), "the gauge counts it no more");
    ensure!(cluster.told_times("EvictionBlocked").await? == 1, "told once");
    cluster.until_told("EvictedPod", 1).await?;
    all_replaced(cluster, target).await
}

/// If two budgets select a pod, the host names both, because the eviction API accepts only one. The job goes on once one
/// budget is gone. Source: kubernetes/kubernetes#75957.
pub async fn all_budgets_over_a_pod_are_named_where_there_are_several(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_deployment(cluster, 2).await?;
    budget(cluster, 1).await?;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    for (name, selector) in [
        ("all", json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]})),
        ("other", json!({"matchLabels": {"app": "other"}})),
    ] {
        let one = json!({"metadata": {"name": name}, "spec": {"minAvailable": 1, "selector": selector}});
        budgets.create(&PostParams::default(), &serde_json::from_value(one)?).await?;
    }
    cluster.start_host().await?;
    let target = pods.get(..1).unwrap_or_default();
    cluster.create_job("b", replace(&names(target), json!({}))).await?;
    let name = names(target).join("");
    let job = cluster.until("b", "blocked", |job| job.target(&name) == "Processing/EvictionBlocked").await?;
    let told = job.data.to_string();
    ensure!(told.contains("disruption budgets all and web select the pod, and an eviction takes one"), "{told}");
    ensure!(told.contains(&format!("disruption budgets all and web select {name}")), "{told}");
    budgets.delete("all", &Default::default()).await?;
    cluster.until_progress("b", "Succeeded").await?;
    all_replaced(cluster, target).await
}

/// A48: a pod that appeared before the eviction is not the target's new pod.
pub async fn a_pod_that_was_scaled_up_meanwhile_is_nobodys_new_pod(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let set = cluster.seedbed.replica_set("web", 2).await?;
    let pods = settled(cluster, &set, "web").await?;
    budget(cluster, 2).await?;
    cluster.start_host().await?;
    let target = pods.get(..1).unwrap_or_default();
    let name = names(target).join("");
    cluster.create_job("b", replace(&names(target), json!({}))).await?;
    cluster.until("b", "blocked", |job| job.target(&name) == "Processing/EvictionBlocked").await?;
    cluster.world.hold(oarlock_sim::world::Pause::Readiness, oarlock_sim::world::Scope::World);
    cluster.world.scale(&set, 3).await?;
    cluster.world.until("the third pod", SETTLED, |all| all.len() == 3).await?;
    let scaled: Vec<String> =
        cluster.pod_names("web").await?.into_iter().filter(|name| !names(&pods).contains(name)).collect();
    cluster.world.release(oarlock_sim::world::Pause::Readiness, oarlock_sim::world::Scope::World);
    cluster.world.settled(&set, SETTLED).await?;
    let job = cluster.until_progress("b", "Succeeded").await?;
    ensure!(new_pods(&job).iter().all(|name| !scaled.contains(name)), "{:?} took {scaled:?}", new_pods(&job));
    all_replaced(cluster, target).await
}

/// If the ReplicaSet has a surplus pod when it loses the target, it makes no new pod, and the surplus pod counts as the new one.
pub async fn a_pod_too_many_takes_the_place_of_a_target_that_none_was_made_for(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let set = cluster.seedbed.replica_set("web", 2).await?;
    let pods = settled(cluster, &set, "web").await?;
    budget(cluster, 2).await?;
    cluster.start_host().await?;
    let target = names(pods.get(..1).unwrap_or_default());
    let name = target.join("");
    cluster.create_job("s", replace(&target, json!({}))).await?;
    cluster.until("s", "blocked", |job| job.target(&name) == "Processing/EvictionBlocked").await?;
    cluster.world.hold(Pause::Readiness, Scope::World);
    cluster.world.scale(&set, 3).await?;
    cluster.world.until("the third pod", SETTLED, |all| all.len() == 3).await?;
    let surplus = cluster.pod_names("web").await?.into_iter().find(|name| !names(&pods).contains(name));
    cluster.world.hold(Pause::Creation, Scope::World);
    cluster.world.release(Pause::Readiness, Scope::World);
    cluster
        .world
        .until("the eviction", SETTLED, |all| all.iter().all(|pod| pod.metadata.name.as_ref() != Some(&name)))
        .await?;
    cluster.world.scale(&set, 2).await?;
    let sets: Api<k8s_openapi::api::apps::v1::ReplicaSet> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    crate::test_cluster::patiently("the controller knows that two are enough", async || {
        let set = sets.get("web").await?;
        Ok(set.status.and_then(|status| status.observed_generation) == set.metadata.generation)
    })
    .await?;
    cluster.world.release(Pause::Creation, Scope::World);
    let job = cluster.until_progress("s", "Succeeded").await?;
    ensure!(new_pods(&job).into_iter().next() == surplus, "{:?}, and not {surplus:?}", new_pods(&job));
    Ok(())
}

/// A target that never existed fails, and a target that vanished before its start fails too. The other targets go on.
pub async fn a_target_that_was_never_there_or_vanished_is_not_found(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_deployment(cluster, 1).await?;
    cluster.seedbed.bare_pod("late").await?;
    cluster.start_host().await?;
    let mut targets = names(&pods);
    let real = targets.join("");
    targets.extend(["never".to_owned(), "late".to_owned()]);
    cluster.create_job("m", replace(&targets, json!({"partition": 2}))).await?;
    let job = cluster.until("m", "both ended", |job| job.count("succeeded") == 1 && job.count("failed") == 1).await?;
    ensure!(job.target("never") == "Failed/PodNotFound" && job.target("late") == "Pending", "{:?}", job.data);
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    cluster.pods().delete("late", &now).await?;
    crate::test_cluster::patiently("the pod is gone", async || Ok(cluster.pods().get_opt("late").await?.is_none()))
        .await?;
    cluster.edit_job("m", json!({"partition": 3})).await?;
    let job = cluster.until_progress("m", "Failed").await?;
    ensure!(job.target("late") == "Failed/PodNotFound" && job.target(&real) == "Succeeded", "{:?}", job.data);
    ensure!(job.condition("Failed") == "True/TargetsFailed", "{:?}", job.data);
    Ok(())
}

/// If a pod is created again under its name while its eviction is refused, the new pod is not the target.
pub async fn a_namesake_that_came_later_is_never_touched(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let set = cluster.seedbed.stateful_set("web", 2).await?;
    let pods = settled(cluster, &set, "web").await?;
    budget(cluster, 2).await?;
    cluster.start_host().await?;
    let target = pods.get(..1).unwrap_or_default();
    let name = names(target).join("");
    cluster.create_job("n", replace(&names(target), json!({}))).await?;
    cluster.until("n", "blocked", |job| job.target(&name) == "Processing/EvictionBlocked").await?;
    let namesake = cluster.world.recreate_same_name(&cluster.namespace, &name).await?;
    budget(cluster, 0).await?;
    let job = cluster.until("n", "ended", |job| ["Succeeded", "Failed"].contains(&job.progress())).await?;
    ensure!(job.targets().get(&name).and_then(|target| target.get("uid")) != Some(&json!(namesake)), "{:?}", job.data);
    let entries = cluster.world.ledger().entries();
    ensure!(!entries.iter().any(|entry| entry.effect == Effect::PodEvicted), "nobody was evicted");
    ensure!(cluster.pods().get(&name).await?.metadata.uid == Some(namesake), "the namesake stays");
    Ok(())
}

/// If the Deployment is deleted after the eviction, no new pod comes, and the target fails before its deadline.
pub async fn a_target_whose_deployment_is_gone_does_not_wait_for_its_deadline(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let pods = settled_deployment(cluster, 1).await?;
    cluster.world.hold(Pause::Creation, Scope::World);
    cluster.start_host().await?;
    let name = names(&pods).join("");
    cluster.create_job("o", replace(&names(&pods), json!({}))).await?;
    cluster
        .world
        .until("the pod to go", SETTLED, |all| all.iter().all(|pod| pod.metadata.name.as_ref() != Some(&name)))
        .await?;
    let deployments: Api<k8s_openapi::api::apps::v1::Deployment> =
        Api::namespaced(cluster.client.clone(), &cluster.namespace);
    deployments.delete("web", &DeleteParams::default()).await?;
    let job = cluster.until_progress("o", "Failed").await?;
    ensure!(job.target(&name) == "Failed/OwnerGone", "{:?}", job.data);
    cluster.until_nothing_is_left().await
}

/// The new pod of a job's target never becomes the new pod of another job's target, even after the first job and the host are gone.
pub async fn what_replaced_a_target_is_nobody_elses_once_its_job_is_gone(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let pods = settled_deployment(cluster, 2).await?;
    let [first, second] = [&pods.get(..1), &pods.get(1..)].map(|pods| names(pods.unwrap_or_default()));
    cluster.start_host().await?;
    let refused = Then::Refuse(http::StatusCode::TOO_MANY_REQUESTS);
    let eviction = format!("{}/eviction", second.join(""));
    cluster.running()?.interceptor.order(Order::all(http::Method::POST, &eviction, refused));
    cluster.create_job("b", replace(&second, json!({}))).await?;
    cluster.until("b", "in flight", |job| job.count("processing") == 1).await?;
    cluster.create_job("a", replace(&first, json!({}))).await?;
    let taken = new_pods(&cluster.until_progress("a", "Succeeded").await?);
    cluster.delete_job("a").await?;
    cluster.until_gone("a").await?;
    let pod = cluster.pods().get(taken.first().map_or("", String::as_str)).await?;
    ensure!(pod.metadata.annotations.iter().flatten().any(|(_, marks)| marks.contains("barred")), "{pod:?}");
    cluster.restart_host().await?;
    let job = cluster.until_progress("b", "Succeeded").await?;
    ensure!(new_pods(&job).is_disjoint(&taken), "{:?} took {taken:?}", new_pods(&job));
    cluster.delete_job("b").await?;
    cluster.until_gone("b").await?;
    all_replaced(cluster, &pods).await
}
