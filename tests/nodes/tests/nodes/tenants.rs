//! What bounds a tenant's namespace: of a Job whose pods are refused, Kubernetes says so in an event of the Job alone; the flow says it, and
//! ends by its timeout.

use anyhow::ensure;
use serde_json::{Value, json};

use crate::documents::{shell, text_at, with};
use crate::scene::Scene;

fn flow(pod: &Value) -> Value {
    let steps = json!([{"name": "a", "jobTemplate": {"template": {"spec": pod}}}]);
    json!({"apiVersion": "api.practice.com/v1alpha1", "kind": "JobFlow", "metadata": {"name": "f"}, "spec": {"flows": steps, "timeoutSeconds": 30}})
}

/// The flow says these words while it waits, and once it has ended.
fn until_ended(scene: &Scene, words: &str) -> anyhow::Result<()> {
    let says = |flow: &Value| text_at(flow, "/status/steps/0/message").contains(words);
    scene.until(&format!("the flow says {words}"), || {
        Ok(scene.get("jobflows", "f")?.filter(|flow| text_at(flow, "/status/state") != "Failed" && says(flow)))
    })?;
    let flow = scene.until_is("jobflows", "f", "/status/state", &["Failed"])?;
    ensure!(says(&flow), "{flow:#}");
    Ok(())
}

/// A namespace that enforces `restricted` takes no pod that may be root.
pub(crate) fn a_flow_whose_pods_pod_security_refuses_ends_in_time(scene: &Scene) -> anyhow::Result<()> {
    scene.bed.kubectl(&["label", "namespace", &scene.namespace, "pod-security.kubernetes.io/enforce=restricted"])?;
    scene.apply(&flow(&json!({"containers": [shell("true")]})))?;
    until_ended(scene, "PodSecurity")
}

/// A quota of no pods.
pub(crate) fn a_flow_whose_pods_a_quota_refuses_ends_in_time(scene: &Scene) -> anyhow::Result<()> {
    scene.apply(&json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}))?;
    scene.until("the quota counts", || {
        let quota = scene.get("resourcequota", "none")?;
        Ok(quota.filter(|quota| text_at(quota, "/status/hard/pods") == "0"))
    })?;
    scene.apply(&flow(&json!({"containers": [shell("true")]})))?;
    until_ended(scene, "exceeded quota")
}

/// A container that asks for more than the range allows.
pub(crate) fn a_flow_whose_pods_a_limit_range_refuses_ends_in_time(scene: &Scene) -> anyhow::Result<()> {
    let limits = json!([{"type": "Container", "max": {"memory": "16Mi"}}]);
    scene.apply(
        &json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "small"}, "spec": {"limits": limits}}),
    )?;
    let container = with(shell("true"), &json!({"resources": {"limits": {"memory": "64Mi"}}}));
    scene.apply(&flow(&json!({"containers": [container]})))?;
    until_ended(scene, "maximum memory usage")
}

/// A namespace is deleted while a flow and a replacement are under way: it goes, and nothing keeps it.
pub(crate) fn a_namespace_that_is_deleted_in_flight_leaves_nothing(scene: &Scene) -> anyhow::Result<()> {
    let inner = format!("{}-gone", scene.namespace);
    scene.bed.kubectl(&["create", "namespace", &inner])?;
    scene.bed.kubectl(&[
        "-n",
        &inner,
        "create",
        "deployment",
        "web",
        "--image=busybox",
        "--replicas=2",
        "--",
        "sleep",
        "3600",
    ])?;
    scene.bed.kubectl(&["-n", &inner, "rollout", "status", "deployment/web", "--timeout=120s"])?;
    // Nothing of it moves on until it goes.
    scene.bed.apply_in(
        &inner,
        &json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
            "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "web"}}}}),
    )?;
    scene.bed.apply_in(&inner, &flow(&json!({"containers": [shell("sleep 600")]})))?;
    let run = scene.bed.oarlock(&["run", "Replace", "--selector", "app=web", "--name", "all", "-n", &inner])?;
    ensure!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    scene.until("both are under way", || {
        let states = "jsonpath={.items[*].status.state} {.items[*].status.progress}";
        let told = scene.bed.kubectl(&["-n", &inner, "get", "jobflows,operationjobs", "-o", states])?;
        Ok((told.contains("Running") && told.contains("Processing")).then_some(()))
    })?;
    scene.bed.kubectl(&["delete", "namespace", &inner, "--timeout=180s"]).map(drop)
}
