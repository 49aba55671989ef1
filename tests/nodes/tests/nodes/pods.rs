//! Pods of real workloads that jobs replace and restart.

use std::collections::BTreeSet;

use anyhow::ensure;
use serde_json::{Value, json};

use crate::documents::{is_ready, text_at};
use crate::scenario::Scenario;

/// Returns a workload whose pods run until they are ended, with further fields of its spec.
pub(crate) fn workload(kind: &str, more: &Value) -> Value {
    let labels = json!({"app": "web"});
    let container =
        json!({"name": "c", "image": "busybox", "command": ["sh", "-c", "trap exit TERM; sleep 3600 & wait"]});
    let mut spec = json!({"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}}});
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "web"}, "spec": spec})
}

/// Waits until this many pods are Ready and none is terminating. Returns their UIDs.
pub(crate) fn until_pods(scenario: &Scenario, count: usize) -> anyhow::Result<BTreeSet<String>> {
    scenario.until(&format!("{count} pods are Ready"), || {
        let pods = scenario.list("pods")?;
        let going = pods.iter().any(|pod| pod.pointer("/metadata/deletionTimestamp").is_some());
        let uids: BTreeSet<String> =
            pods.iter().filter(|pod| is_ready(pod)).map(|pod| text_at(pod, "/metadata/uid").to_owned()).collect();
        Ok((!going && uids.len() == count && pods.len() == count).then_some(uids))
    })
}

fn replaced(scenario: &Scenario, action: &str) -> anyhow::Result<()> {
    let before = until_pods(scenario, 2)?;
    scenario.run(&[action, "--selector", "app=web", "--name", "all", "--parallelism", "1"])?;
    let job = scenario.until_ended("all")?;
    ensure!(text_at(&job, "/status/progress") == "Succeeded", "{job:#}");
    let after = until_pods(scenario, 2)?;
    ensure!(before.is_disjoint(&after), "{before:?} and {after:?}");
    Ok(())
}

/// Tests that a job replaces the pods of a Deployment.
pub(crate) fn pods_of_a_deployment_are_replaced(scenario: &Scenario) -> anyhow::Result<()> {
    scenario.apply(&workload("Deployment", &json!({"replicas": 2})))?;
    replaced(scenario, "Replace")
}

/// Tests that a job replaces the pods of a StatefulSet, whose new pods have the old names.
pub(crate) fn pods_of_a_stateful_set_are_replaced(scenario: &Scenario) -> anyhow::Result<()> {
    scenario.apply(&workload("StatefulSet", &json!({"replicas": 2, "serviceName": "web"})))?;
    replaced(scenario, "Replace")
}

/// Tests that a job replaces the pods of a DaemonSet. It has one pod on each node that no scenario uses.
pub(crate) fn pods_of_a_daemon_set_are_replaced(scenario: &Scenario) -> anyhow::Result<()> {
    scenario.apply(&workload("DaemonSet", &json!({})))?;
    replaced(scenario, "Replace")
}

/// Tests that a job restarts pods by eviction. In this cluster nothing restarts containers in place.
pub(crate) fn pods_are_restarted_by_eviction(scenario: &Scenario) -> anyhow::Result<()> {
    scenario.apply(&workload("Deployment", &json!({"replicas": 2})))?;
    replaced(scenario, "Restart")
}

/// Tests that no pod goes against a disruption budget, that the job names the budget, and that it continues once the
/// budget allows it.
pub(crate) fn a_budget_holds_a_replacement_up_until_it_is_relaxed(scenario: &Scenario) -> anyhow::Result<()> {
    scenario.apply(&workload("Deployment", &json!({"replicas": 2})))?;
    let budget = |least: u32| {
        json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
            "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": "web"}}}})
    };
    scenario.apply(&budget(2))?;
    let before = until_pods(scenario, 2)?;
    scenario.run(&["Replace", "--selector", "app=web", "--name", "all"])?;
    scenario.until_is("operationjobs", "all", "/status/waitsFor", &["Budget web"])?;
    ensure!(until_pods(scenario, 2)? == before, "a pod went against its budget");
    scenario.apply(&budget(1))?;
    let job = scenario.until_ended("all")?;
    ensure!(text_at(&job, "/status/progress") == "Succeeded", "{job:#}");
    ensure!(until_pods(scenario, 2)?.is_disjoint(&before));
    Ok(())
}

/// Tests that a job leaves its pods unchanged if a user deletes it while it waits for a disruption budget.
pub(crate) fn a_job_that_is_deleted_in_flight_leaves_its_pods_as_they_were(scenario: &Scenario) -> anyhow::Result<()> {
    scenario.apply(&workload("Deployment", &json!({"replicas": 2})))?;
    let spec = json!({"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}});
    scenario.apply(
        &json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"}, "spec": spec}),
    )?;
    let before = until_pods(scenario, 2)?;
    scenario.run(&["Replace", "--selector", "app=web", "--name", "all"])?;
    scenario.until_is("operationjobs", "all", "/status/waitsFor", &["Budget web"])?;
    scenario.kubectl(&["delete", "operationjob", "all", "--timeout=60s"])?;
    ensure!(until_pods(scenario, 2)? == before);
    for pod in scenario.list("pods")? {
        ensure!(!pod.to_string().contains("oarlock.dev/"), "{pod:#}");
    }
    Ok(())
}
