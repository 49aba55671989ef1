//! `oarlock plan` beside jobs of other namespaces that use up the in-flight limit of the plugin.

use anyhow::ensure;
use k8s_openapi::api::apps::v1::ReplicaSet;
use kube::Api;
use oarlock_scenarios::components::GRANTS;
use serde_json::{Value, json};

use crate::planned::Planned;

/// Creates two pods of a ReplicaSet.
async fn put_pods(planned: &Planned) -> anyhow::Result<()> {
    let containers = json!({"containers": [{"name": "c", "image": "i"}]});
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": containers});
    let set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template}});
    planned.put(&[set]).await?;
    let sets: Api<ReplicaSet> = Api::default_namespaced(planned.client.clone());
    let uid = sets.get("web").await?.metadata.uid;
    let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": uid, "controller": true});
    let pod = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "spec": containers,
            "metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}, "ownerReferences": [owner]}})
    };
    planned.put(&[pod("a"), pod("b")]).await
}

fn replace(targets: &[&str]) -> Value {
    let targets: Vec<Value> = targets.iter().map(|name| json!({ "name": name })).collect();
    json!({"action": "Replace", "targets": targets})
}

/// Returns the status of a job with two targets in flight.
fn two_in_flight() -> Value {
    json!({"progress": "Processing", "processingPodCount": 2, "ranges": {"processing": "0-1"},
        "plugin": {"name": "replace", "version": "0.1.0", "digest": "sha256:a"}})
}

#[tokio::test(flavor = "multi_thread")]
async fn what_jobs_of_other_namespaces_have_in_flight_counts_unless_they_only_plan() -> anyhow::Result<()> {
    let limited = GRANTS.replace("  anyVersion: true\n", "  anyVersion: true\n  limits: {targetsInFlight: 3}\n");
    ensure!(limited != GRANTS, "{GRANTS}");
    let planned = Planned::new("in-flight", "replace", &limited).await?;
    let elsewhere = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "elsewhere"}});
    planned.put(&[elsewhere]).await?;
    put_pods(&planned).await?;
    let job = replace(&["a", "b"]);
    let waits = |document: &Value| -> Vec<Value> {
        (0..2).map(|index: usize| document["targets"][index]["waitsFor"].clone()).collect()
    };
    let mut dry = replace(&["x", "y"]);
    dry["dryRun"] = json!(true);
    planned.put_job(("elsewhere", "dry"), dry, two_in_flight()).await?;
    let document = planned.plan(None, ("web", &job), &[]).await?;
    ensure!(waits(&document) == [Value::Null, Value::Null], "{document:#}");
    planned.put_job(("elsewhere", "at-work"), replace(&["x", "y"]), two_in_flight()).await?;
    let document = planned.plan(None, ("web", &job), &[]).await?;
    ensure!(waits(&document) == [Value::Null, json!("TargetsInFlight")], "{document:#}");
    ensure!((&document["counts"]["changed"], &document["counts"]["waiting"]) == (&json!(1), &json!(1)), "{document:#}");
    ensure!(document["targets"][1]["outcome"] == "Waiting", "{document:#}");
    // Without a limit, other namespaces do not matter.
    planned.grant(GRANTS)?;
    let document = planned.plan(None, ("web", &job), &[]).await?;
    ensure!(waits(&document) == [Value::Null, Value::Null], "{document:#}");
    Ok(())
}
