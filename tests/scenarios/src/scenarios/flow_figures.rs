//! The metrics of flows at `/metrics`: exact values for a small flow and a DaemonJob, even after the end of their host.

use std::time::Duration;

use anyhow::ensure;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use super::on_nodes::node;
use crate::flows::{begin, step, unit, work};
use crate::test_cluster::{TestCluster, patiently};

const FLOW: &str = "JobFlow";
const DAEMON: &str = "DaemonJob";

/// Checks the values of metrics once the host is at rest. `None` means a metric that the host does not export.
async fn shows(cluster: &TestCluster, expected: &[(&str, Option<i64>)]) -> anyhow::Result<()> {
    cluster.pass(Duration::from_secs(60)).await;
    let text = || cluster.running().map(|running| running.host.metrics.text()).unwrap_or_default();
    for (series, value) in expected {
        ensure!(
            cluster.figure(series) == *value,
            "{series} is {:?}, not {value:?}:\n{}",
            cluster.figure(series),
            text()
        );
    }
    Ok(())
}

/// Runs a flow in which one step fails twice, one step follows another, and one step has no template yet.
async fn small_flow(cluster: &TestCluster) -> anyhow::Result<()> {
    let mut bad = step("bad", "exit 1", &[]);
    if let Some(fields) = bad.as_object_mut() {
        fields.insert("retryPolicy".to_owned(), json!({"limit": 1, "backoffSeconds": 1}));
    }
    let late = json!({"name": "late", "jobTemplateRef": "absent"});
    let steps = [bad, late, step("first", "sleep 3", &[]), step("next", "true", &["first"])];
    cluster.create_flow(FLOW, "f", json!({"flows": steps, "failurePolicy": {"type": "Continue"}})).await?;
    let at_rest = |flow: &Value| unit(flow, "next") == "Succeed" && unit(flow, "bad") == "Failed/BackoffLimitExceeded";
    cluster.until_flow((FLOW, "f"), "all but one step ended", at_rest).await?;
    Ok(())
}

/// Runs a DaemonJob on two nodes, one after the other.
async fn small_daemon_job(cluster: &TestCluster) -> anyhow::Result<()> {
    node(cluster, "a", true).await?;
    node(cluster, "b", true).await?;
    let mut spec = work("sleep 2");
    if let Some(fields) = spec.as_object_mut() {
        fields.insert(
            "rollout".to_owned(),
            json!({"concurrency": 1, "nodeSelector": {"matchLabels": {"scenario": cluster.namespace}}}),
        );
        fields.insert("ttlSecondsAfterFinished".to_owned(), json!(600));
    }
    cluster.create_flow(DAEMON, "d", spec).await?;
    cluster.until_state(DAEMON, "d", "Succeed").await?;
    Ok(())
}

/// Each end is counted once, even by another host. Gauges go with the objects that they count, and with the term.
pub async fn figures_of_flows_are_exact_and_go_with_their_objects_and_their_host(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    begin(cluster).await?;
    small_flow(cluster).await?;
    small_daemon_job(cluster).await?;
    shows(
        cluster,
        &[
            (r#"jobflow_objects{state="Running"}"#, Some(1)),
            (r#"jobflow_blocked{reason="JobTemplateNotFound"}"#, Some(1)),
            ("jobflow_units_in_flight", Some(0)),
            (r#"jobflow_units_total{outcome="Succeed",reason=""}"#, Some(2)),
            (r#"jobflow_units_total{outcome="Failed",reason="BackoffLimitExceeded"}"#, Some(1)),
            (r#"jobflow_attempts_total{infra="false"}"#, Some(4)),
            (r#"jobflow_attempts_total{infra="true"}"#, Some(0)),
            ("jobflow_unit_duration_seconds_count", Some(3)),
            ("jobflow_start_delay_seconds_count", Some(1)),
            (r#"jobflow_writes_total{resource="jobs",verb="create",code="201"}"#, Some(4)),
            (r#"daemonjob_objects{state="Succeed"}"#, Some(1)),
            ("daemonjob_units_in_flight", Some(0)),
            (r#"daemonjob_units_total{outcome="Succeed",reason=""}"#, Some(2)),
            (r#"daemonjob_attempts_total{infra="false"}"#, Some(2)),
            ("daemonjob_start_delay_seconds_count", Some(1)),
            (r#"daemonjob_writes_total{resource="jobs",verb="create",code="201"}"#, Some(2)),
            (r#"daemonjob_writes_total{resource="jobs",verb="patch",code="200"}"#, Some(2)),
            (r#"operationjob_writes_total{resource="jobs",verb="create",code="201"}"#, None),
            (r#"watch_synced{api_version="api.practice.com/v1alpha1",kind="JobFlow"}"#, Some(1)),
            (r#"watch_synced{api_version="batch/v1",kind="Job"}"#, Some(1)),
        ],
    )
    .await?;
    ensure!(cluster.figure("jobflow_round_duration_seconds_count").is_some_and(|rounds| rounds > 4));
    from_their_controllers(cluster).await?;
    another_host(cluster).await
}

async fn from_their_controllers(cluster: &TestCluster) -> anyhow::Result<()> {
    let events = cluster.events().await?;
    for (kind, controller) in [(FLOW, "jobflow-controller"), (DAEMON, "daemonjob-controller")] {
        let of_kind = |one: &&k8s_openapi::api::events::v1::Event| {
            one.regarding.as_ref().is_some_and(|regarding| regarding.kind.as_deref() == Some(kind))
        };
        let mut told = events.iter().filter(of_kind).peekable();
        ensure!(told.peek().is_some(), "nothing is told of the {kind}");
        ensure!(told.all(|event| event.reporting_controller.as_deref() == Some(controller)), "{events:?}");
    }
    Ok(())
}

/// Checks the metrics of a host that takes over, and of a host that leads no more.
async fn another_host(cluster: &mut TestCluster) -> anyhow::Result<()> {
    cluster.restart_host().await?;
    patiently("it leads flows", async || Ok(cluster.figure(r#"jobflow_objects{state="Running"}"#) == Some(1))).await?;
    shows(
        cluster,
        &[
            (r#"jobflow_blocked{reason="JobTemplateNotFound"}"#, Some(1)),
            (r#"jobflow_units_total{outcome="Succeed",reason=""}"#, None),
            (r#"jobflow_units_total{outcome="Failed",reason="BackoffLimitExceeded"}"#, None),
            (r#"jobflow_attempts_total{infra="false"}"#, Some(0)),
            ("jobflow_unit_duration_seconds_count", Some(0)),
            (r#"daemonjob_objects{state="Succeed"}"#, Some(1)),
            (r#"daemonjob_units_total{outcome="Succeed",reason=""}"#, None),
        ],
    )
    .await?;
    cluster.create_flow("JobTemplate", "absent", json!({"jobTemplate": work("true")})).await?;
    cluster.until_completed(FLOW, "f").await?;
    cluster.flows(DAEMON).delete("d", &DeleteParams::background()).await?;
    shows(
        cluster,
        &[
            (r#"jobflow_objects{state="Failed"}"#, Some(1)),
            (r#"jobflow_objects{state="Running"}"#, None),
            (r#"jobflow_blocked{reason="JobTemplateNotFound"}"#, None),
            (r#"jobflow_units_total{outcome="Succeed",reason=""}"#, Some(1)),
            ("jobflow_start_delay_seconds_count", Some(0)),
            (r#"daemonjob_objects{state="Succeed"}"#, None),
        ],
    )
    .await?;
    let ports = cluster.running()?.host.clone();
    cluster.stop_host().await?;
    patiently("nothing is shown any more", async || Ok(!ports.metrics.text().contains("oarlock_jobflow_objects{")))
        .await
}
