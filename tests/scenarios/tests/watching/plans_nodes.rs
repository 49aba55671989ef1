//! `oarlock plan` of jobs on nodes: the contents of the plan, the rights that it needs, and its messages if rights are missing.

use anyhow::ensure;
use oarlock_scenarios::components::MAINTAIN_GRANTS;
use serde_json::{Value, json};

use crate::planned::Planned;

const USER: &str = "planner";

fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "spec": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
}

/// Returns the spec of a Maintain job on these nodes.
fn maintain(nodes: &[&str]) -> Value {
    let targets: Vec<Value> = nodes.iter().map(|name| json!({ "name": name })).collect();
    json!({"action": "Maintain", "targetKind": "Node", "targets": targets})
}

/// Creates two nodes and the namespace `default`, with or without the label.
async fn planned(name: &str, labelled: bool) -> anyhow::Result<Planned> {
    let planned = Planned::new(name, "maintain", MAINTAIN_GRANTS).await?;
    let labels = if labelled { json!({"oarlock.dev/node-operations": "true"}) } else { json!({}) };
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "labels": labels}});
    planned.put(&[namespace, node("n1"), node("n2")]).await?;
    Ok(planned)
}

/// Allows the user one verb on one resource, in namespace `default` or in the whole cluster.
async fn allow(planned: &Planned, verb: &str, (group, resource): (&str, &str), namespaced: bool) -> anyhow::Result<()> {
    let kind = if namespaced { "Role" } else { "ClusterRole" };
    let api = "rbac.authorization.k8s.io";
    let version = format!("{api}/v1");
    let name = format!("{verb}-{resource}");
    let metadata = json!({"name": name, "namespace": namespaced.then_some("default")});
    let role = json!({"apiVersion": version, "kind": kind, "metadata": metadata,
        "rules": [{"verbs": [verb], "apiGroups": [group], "resources": [resource]}]});
    let binding = json!({"apiVersion": version, "kind": format!("{kind}Binding"), "metadata": metadata,
        "roleRef": {"apiGroup": api, "kind": kind, "name": name},
        "subjects": [{"apiGroup": api, "kind": "User", "name": USER}]});
    planned.put(&[role, binding]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_on_nodes_is_planned_with_every_change_of_each() -> anyhow::Result<()> {
    let planned = planned("nodes", true).await?;
    let document = planned.plan(None, ("web", &maintain(&["n1", "n2"])), &["--server"]).await?;
    ensure!(document["counts"]["changed"] == 2 && document["counts"]["accepted"] == 2, "{document:#}");
    let first = document["targets"][0]["first"].as_array().cloned().unwrap_or_default();
    let verbs: Vec<&Value> = first.iter().map(|change| &change["verb"]).collect();
    ensure!(verbs == ["cordon", "taint", "patch"], "{document:#}");
    ensure!(document["possible"][0] == "cordon/uncordon nodes", "{document:#}");
    ensure!(document["warnings"] == json!([]), "{document:#}");
    let text = planned.output(None, ("web", &maintain(&["n1", "n2"])), &["--server"]).await?;
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    ensure!(text.contains("would accept the job and the first changes of 2 targets\n"), "{text}");
    ensure!(text.contains("\n2 x n1, n2   now    cordon node, then taint node "), "{text}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_without_the_label_is_the_reason_for_no_plan_on_nodes() -> anyhow::Result<()> {
    let planned = planned("nodes-label", false).await?;
    let output = planned.output(None, ("web", &maintain(&["n1"])), &[]).await?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(1) && said.contains("oarlock.dev/node-operations=true"), "{said}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_on_nodes_needs_to_list_nodes_and_names_each_right_that_it_lacks_beside() -> anyhow::Result<()> {
    // The label is missing, and a user who may not read the namespace cannot know that.
    let planned = planned("nodes-rights", false).await?;
    let job = maintain(&["n1"]);
    let output = planned.output(Some(USER), ("web", &job), &[]).await?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(said.contains("you may not list nodes, which plugin maintain reads") && !said.contains("pods"), "{said}");
    allow(&planned, "list", ("", "nodes"), false).await?;
    let document = planned.plan(Some(USER), ("web", &job), &[]).await?;
    ensure!(document["targets"][0]["outcome"] == "Changed", "{document:#}");
    let warnings = document["warnings"].to_string();
    for words in [
        "namespace default was not read",
        "lacks the label oarlock.dev/node-operations=true",
        "`kubectl -n default create role oarlock-plan-namespace --verb=get --resource=namespaces`",
        "the jobs of other namespaces were not read, so the nodes that they work on do not count",
        "`kubectl create clusterrole oarlock-plan-jobs --verb=list --resource=operationjobs.apps.kusionstack.io,",
    ] {
        ensure!(warnings.contains(words), "{words:?} is missing in {warnings}");
    }
    allow(&planned, "list", ("apps.kusionstack.io", "operationjobs"), false).await?;
    let document = planned.plan(Some(USER), ("web", &job), &[]).await?;
    ensure!(!document["warnings"].to_string().contains("were not read"), "{document:#}");
    allow(&planned, "get", ("", "namespaces"), true).await?;
    let output = planned.output(Some(USER), ("web", &job), &[]).await?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(said.contains("which namespace default lacks"), "{said}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_the_same_name_is_named_and_its_holds_are_taken_as_gone() -> anyhow::Result<()> {
    let planned = planned("nodes-namesake", true).await?;
    let (job, status) = (maintain(&["n1"]), json!({"progress": "Processing"}));
    let held = |uid: &str| {
        let held = json!({"metadata": {"annotations": {format!("hold.oarlock.dev/{uid}"): "[\"cordon\"]"}},
            "spec": {"unschedulable": true}});
        let mut node = node("n1");
        json_merge(&mut node, &held);
        node
    };
    let uid = planned.put_job(("default", "web"), job.clone(), status).await?;
    planned.put(&[held(&uid)]).await?;
    let document = planned.plan(None, ("web", &job), &[]).await?;
    ensure!(
        document["warnings"].to_string().contains("there is a job web in namespace default already"),
        "{document:#}"
    );
    let target = &document["targets"][0];
    ensure!(target["outcome"] == "Changed" && target["first"][0]["verb"] == "cordon", "{document:#}");
    // For a job of another name, these holds are holds of another job.
    let document = planned.plan(None, ("other", &job), &[]).await?;
    let target = &document["targets"][0];
    ensure!(target["outcome"] == "Waiting" && target["waitsFor"] == "TargetBusy", "{document:#}");
    ensure!(document["warnings"] == json!([]), "{document:#}");
    Ok(())
}

/// Puts the fields of `more` into `object`.
fn json_merge(object: &mut Value, more: &Value) {
    match (object, more) {
        (Value::Object(object), Value::Object(more)) => {
            for (key, value) in more {
                json_merge(object.entry(key.as_str()).or_insert(Value::Null), value);
            }
        }
        (object, more) => *object = more.clone(),
    }
}
