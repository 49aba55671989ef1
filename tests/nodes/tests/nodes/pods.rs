//! Pods of real workloads, replaced and restarted.

use std::collections::BTreeSet;

use anyhow::ensure;
use serde_json::{Value, json};

use crate::documents::{is_ready, text_at};
use crate::scene::Scene;

fn workload(kind: &str, more: &Value) -> Value {
    let labels = json!({"app": "web"});
    let container =
        json!({"name": "c", "image": "busybox", "command": ["sh", "-c", "trap exit TERM; sleep 3600 & wait"]});
    let mut spec = json!({"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}}});
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "web"}, "spec": spec})
}

/// The UIDs of its pods once so many are Ready and none is going.
fn until_pods(scene: &Scene, count: usize) -> anyhow::Result<BTreeSet<String>> {
    scene.until(&format!("{count} pods are Ready"), || {
        let pods = scene.list("pods")?;
        let going = pods.iter().any(|pod| pod.pointer("/metadata/deletionTimestamp").is_some());
        let uids: BTreeSet<String> =
            pods.iter().filter(|pod| is_ready(pod)).map(|pod| text_at(pod, "/metadata/uid").to_owned()).collect();
        Ok((!going && uids.len() == count && pods.len() == count).then_some(uids))
    })
}

fn replaced(scene: &Scene, action: &str) -> anyhow::Result<()> {
    let before = until_pods(scene, 2)?;
    scene.run(&[action, "--selector", "app=web", "--name", "all", "--parallelism", "1"])?;
    let job = scene.until_ended("all")?;
    ensure!(text_at(&job, "/status/progress") == "Succeeded", "{job:#}");
    let after = until_pods(scene, 2)?;
    ensure!(before.is_disjoint(&after), "{before:?} and {after:?}");
    Ok(())
}

/// Pods of a Deployment are others afterwards.
pub(crate) fn pods_of_a_deployment_are_replaced(scene: &Scene) -> anyhow::Result<()> {
    scene.apply(&workload("Deployment", &json!({"replicas": 2})))?;
    replaced(scene, "Replace")
}

/// Those of a StatefulSet, which have their names again.
pub(crate) fn pods_of_a_stateful_set_are_replaced(scene: &Scene) -> anyhow::Result<()> {
    scene.apply(&workload("StatefulSet", &json!({"replicas": 2, "serviceName": "web"})))?;
    replaced(scene, "Replace")
}

/// Those of a DaemonSet, one on each node that nobody keeps for himself.
pub(crate) fn pods_of_a_daemon_set_are_replaced(scene: &Scene) -> anyhow::Result<()> {
    scene.apply(&workload("DaemonSet", &json!({})))?;
    replaced(scene, "Replace")
}

/// A restart of pods is an eviction where nothing restarts containers in place.
pub(crate) fn pods_are_restarted_by_eviction(scene: &Scene) -> anyhow::Result<()> {
    scene.apply(&workload("Deployment", &json!({"replicas": 2})))?;
    replaced(scene, "Restart")
}

/// No pod goes that a disruption budget keeps, and the job says which budget; then it goes on.
pub(crate) fn a_budget_holds_a_replacement_up_until_it_is_relaxed(scene: &Scene) -> anyhow::Result<()> {
    scene.apply(&workload("Deployment", &json!({"replicas": 2})))?;
    let budget = |least: u32| {
        json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
            "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": "web"}}}})
    };
    scene.apply(&budget(2))?;
    let before = until_pods(scene, 2)?;
    scene.run(&["Replace", "--selector", "app=web", "--name", "all"])?;
    scene.until_is("operationjobs", "all", "/status/waitsFor", &["Budget web"])?;
    ensure!(until_pods(scene, 2)? == before, "a pod went against its budget");
    scene.apply(&budget(1))?;
    let job = scene.until_ended("all")?;
    ensure!(text_at(&job, "/status/progress") == "Succeeded", "{job:#}");
    ensure!(until_pods(scene, 2)?.is_disjoint(&before));
    Ok(())
}

/// A job that is deleted while a budget holds it up lets its pods go, and no pod has gone.
pub(crate) fn a_job_that_is_deleted_in_flight_leaves_its_pods_as_they_were(scene: &Scene) -> anyhow::Result<()> {
    scene.apply(&workload("Deployment", &json!({"replicas": 2})))?;
    let spec = json!({"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}});
    scene.apply(
        &json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"}, "spec": spec}),
    )?;
    let before = until_pods(scene, 2)?;
    scene.run(&["Replace", "--selector", "app=web", "--name", "all"])?;
    scene.until_is("operationjobs", "all", "/status/waitsFor", &["Budget web"])?;
    scene.kubectl(&["delete", "operationjob", "all", "--timeout=60s"])?;
    ensure!(until_pods(scene, 2)? == before);
    for pod in scene.list("pods")? {
        ensure!(!pod.to_string().contains("oarlock.dev/"), "{pod:#}");
    }
    Ok(())
}
