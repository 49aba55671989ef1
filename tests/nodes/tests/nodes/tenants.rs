//! Limits of a tenant's namespace. If Kubernetes refuses the pods of a Job, it reports that only in an event of the
//! Job. The flow must repeat the reason, and end by its timeout.

use anyhow::ensure;
use serde_json::{Value, json};

use crate::documents::{shell, text_at, with};
use crate::scenario::Scenario;

fn flow(pod: &Value) -> Value {
    let steps = json!([{"name": "a", "jobTemplate": {"template": {"spec": pod}}}]);
    json!({"apiVersion": "api.practice.com/v1alpha1", "kind": "JobFlow", "metadata": {"name": "f"}, "spec": {"flows": steps, "timeoutSeconds": 30}})
}

/// Waits until the flow shows these words while it runs, and checks that it shows them after its end too.
fn until_ended(scenario: &Scenario, words: &str) -> anyhow::Result<()> {
    let says = |flow: &Value| text_at(flow, "/status/steps/0/message").contains(words);
    scenario.until(&format!("the flow says {words}"), || {
        Ok(scenario.get("jobflows", "f")?.filter(|flow| text_at(flow, "/status/state") != "Failed" && says(flow)))
    })?;
    let flow = scenario.until_is("jobflows", "f", "/status/state", &["Failed"])?;
    ensure!(says(&flow), "{flow:#}");
    Ok(())
}

/// Tests a namespace that enforces `restricted` and takes no pod that may run as root.
pub(crate) fn a_flow_whose_pods_pod_security_refuses_ends_in_time(scenario: &Scenario) -> anyhow::Result<()> {
    scenario.cluster.kubectl(&[
        "label",
        "namespace",
        &scenario.namespace,
        "pod-security.kubernetes.io/enforce=restricted",
    ])?;
    scenario.apply(&flow(&json!({"containers": [shell("true")]})))?;
    until_ended(scenario, "PodSecurity")
}

/// Tests a quota of no pods.
pub(crate) fn a_flow_whose_pods_a_quota_refuses_ends_in_time(scenario: &Scenario) -> anyhow::Result<()> {
    scenario.apply(&json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}))?;
    scenario.until("the quota counts", || {
        let quota = scenario.get("resourcequota", "none")?;
        Ok(quota.filter(|quota| text_at(quota, "/status/hard/pods") == "0"))
    })?;
    scenario.apply(&flow(&json!({"containers": [shell("true")]})))?;
    until_ended(scenario, "exceeded quota")
}

/// Tests a container that asks for more than the LimitRange allows.
pub(crate) fn a_flow_whose_pods_a_limit_range_refuses_ends_in_time(scenario: &Scenario) -> anyhow::Result<()> {
    let limits = json!([{"type": "Container", "max": {"memory": "16Mi"}}]);
    scenario.apply(
        &json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "small"}, "spec": {"limits": limits}}),
    )?;
    let container = with(shell("true"), &json!({"resources": {"limits": {"memory": "64Mi"}}}));
    scenario.apply(&flow(&json!({"containers": [container]})))?;
    until_ended(scenario, "maximum memory usage")
}

/// Tests that a namespace can be deleted while a flow and a replacement run in it.
pub(crate) fn a_namespace_that_is_deleted_in_flight_leaves_nothing(scenario: &Scenario) -> anyhow::Result<()> {
    let inner = format!("{}-gone", scenario.namespace);
    scenario.cluster.kubectl(&["create", "namespace", &inner])?;
    scenario.cluster.kubectl(&[
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
    scenario.cluster.kubectl(&["-n", &inner, "rollout", "status", "deployment/web", "--timeout=120s"])?;
    // With this budget the replacement stays in flight until the namespace goes.
    scenario.cluster.apply_in(
        &inner,
        &json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
            "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "web"}}}}),
    )?;
    scenario.cluster.apply_in(&inner, &flow(&json!({"containers": [shell("sleep 600")]})))?;
    let run = scenario.cluster.oarlock(&["run", "Replace", "--selector", "app=web", "--name", "all", "-n", &inner])?;
    ensure!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    scenario.until("both are under way", || {
        let states = "jsonpath={.items[*].status.state} {.items[*].status.progress}";
        let told = scenario.cluster.kubectl(&["-n", &inner, "get", "jobflows,operationjobs", "-o", states])?;
        Ok((told.contains("Running") && told.contains("Processing")).then_some(()))
    })?;
    scenario.cluster.kubectl(&["delete", "namespace", &inner, "--timeout=180s"]).map(drop)
}
