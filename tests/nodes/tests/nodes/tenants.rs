//! What bounds a tenant's namespace: what is refused there says so on the object.

use anyhow::ensure;
use serde_json::{Value, json};

use crate::bed::{Scene, shell, text_at};

fn flow(pod: &Value) -> Value {
    let steps = json!([{"name": "a", "jobTemplate": {"template": {"spec": pod}}}]);
    json!({"apiVersion": "api.practice.com/v1alpha1", "kind": "JobFlow", "metadata": {"name": "f"}, "spec": {"flows": steps, "timeoutSeconds": 60}})
}

/// The flow says these words.
fn until_told(scene: &Scene, words: &str) -> anyhow::Result<()> {
    scene.until(&format!("the flow says {words}"), || {
        let flow = scene.get("jobflows", "f")?;
        Ok(flow.filter(|flow| flow.pointer("/status").is_some_and(|status| status.to_string().contains(words))))
    })?;
    Ok(())
}

/// A namespace that enforces `restricted` takes no pod that may be root.
pub(crate) fn what_pod_security_refuses_is_told_on_the_flow(scene: &Scene) -> anyhow::Result<()> {
    scene.bed.kubectl(&["label", "namespace", &scene.namespace, "pod-security.kubernetes.io/enforce=restricted"])?;
    scene.apply(&flow(&json!({"containers": [shell("true")]})))?;
    until_told(scene, "PodSecurity")
}

/// A quota of no pods.
pub(crate) fn what_a_quota_refuses_is_told_on_the_flow(scene: &Scene) -> anyhow::Result<()> {
    scene.apply(&json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}))?;
    scene.until("the quota counts", || {
        let quota = scene.get("resourcequota", "none")?;
        Ok(quota.filter(|quota| text_at(quota, "/status/hard/pods") == "0"))
    })?;
    scene.apply(&flow(&json!({"containers": [shell("true")]})))?;
    until_told(scene, "quota")
}

/// A container that asks for more than the range allows.
pub(crate) fn what_a_limit_range_refuses_is_told_on_the_flow(scene: &Scene) -> anyhow::Result<()> {
    let limits = json!([{"type": "Container", "max": {"memory": "16Mi"}}]);
    scene.apply(&json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "small"}, "spec": {"limits": limits}}))?;
    let mut container = shell("true");
    container["resources"] = json!({"limits": {"memory": "64Mi"}});
    scene.apply(&flow(&json!({"containers": [container]})))?;
    until_told(scene, "maximum memory usage")
}

/// A namespace is deleted while a flow and a replacement are under way: it goes, and nothing keeps it.
pub(crate) fn a_namespace_that_is_deleted_in_flight_leaves_nothing(scene: &Scene) -> anyhow::Result<()> {
    let inner = format!("{}-gone", scene.namespace);
    scene.bed.kubectl(&["create", "namespace", &inner])?;
    scene.bed.kubectl(&["-n", &inner, "create", "deployment", "web", "--image=busybox", "--replicas=2", "--", "sleep", "3600"])?;
    scene.bed.kubectl(&["-n", &inner, "rollout", "status", "deployment/web", "--timeout=120s"])?;
    scene.bed.apply_in(&inner, &flow(&json!({"containers": [shell("sleep 600")]})))?;
    let run = scene.bed.oarlock(&["run", "Replace", "--selector", "app=web", "--name", "all", "-n", &inner])?;
    ensure!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    scene.bed.kubectl(&["delete", "namespace", &inner, "--timeout=180s"]).map(drop)
}
