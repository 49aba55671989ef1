//! OpsJobs by kubectl: their targets, their life and their ends.

#![expect(clippy::indexing_slicing, reason = "a test fails loudly")]

use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::Method;
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion,
};
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use oarlock_bed::faults::Then;
use oarlock_bed::orders::Order;
use oarlock_sim::world::{History, Return};
use serde_json::{Value, json};

use super::drains::{REBOOT, bootable, workload};
use super::evicting::budget;
use super::on_nodes::{Plugin, change, cordon, grant, node, nodes, set_ready, start};
use super::reboots::{PREFLIGHT, reboots, until_free};
use crate::ops::{self, condition, judge, output, said};
use crate::rig::{Rig, patiently};

pub(crate) async fn begin(rig: &mut Rig, plugin: Plugin) -> anyhow::Result<History> {
    let history = ops::prepare(rig).await?;
    grant(rig, plugin).await?;
    start(rig, plugin).await?;
    Ok(history)
}

/// A reboot of these nodes.
fn reboot(names: &[&String], more: &Value) -> Value {
    let inputs: Vec<Value> = names.iter().map(|name| json!({"name": "node", "value": name})).collect();
    let mut spec = json!({"type": "reboot", "inputs": inputs});
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    spec
}

/// Nothing of OpsJobs is left but they themselves, and nothing happened to them that must not.
pub(crate) async fn end_well(rig: &Rig, history: &History) -> anyhow::Result<()> {
    patiently("the OperationJobs are gone", async || {
        Ok(rig.ops_children().list(&Default::default()).await?.items.is_empty())
    })
    .await?;
    let breaches = judge(history);
    ensure!(breaches.is_empty(), "never may this happen:\n{}", breaches.join("\n"));
    Ok(())
}

/// Two nodes one after the other; what is told of that; and it goes when its time is over.
pub async fn nodes_are_rebooted_and_each_phase_is_told(rig: &mut Rig) -> anyhow::Result<()> {
    let (a, b) = (bootable(rig, "a").await?, bootable(rig, "b").await?);
    let history = begin(rig, REBOOT).await?;
    let excluded = node(rig, "c", true).await?;
    let more = json!({"excludedNodes": [excluded], "inputs": [{"name": "node", "value": a}, {"name": "node", "value": b},
        {"name": "node", "value": excluded}, {"name": "drain", "value": "true"}], "ttlSecondsAfterFinished": 3});
    rig.create_ops("boot", reboot(&[], &more)).await?;
    let job = rig.until_ops_ended("boot", "Succeeded", "Succeed").await?;
    let kinds: Vec<&str> = ["Pending", "TargetsResolved", "Running", "Succeeded"].into();
    for kind in kinds {
        ensure!(condition(&job, kind).is_some_and(|one| one["status"] == "True"), "{kind}: {job:#}");
    }
    let named: Vec<&Value> =
        job["spec"]["targets"].as_array().context("targets")?.iter().map(|one| &one["name"]).collect();
    ensure!(named == [&json!(a), &json!(b)], "{job:#}");
    ensure!(job["spec"]["skipped"] == json!([{"node": excluded, "reason": "Excluded"}]), "{job:#}");
    ensure!(output(&job, "result") == json!({"succeeded": 2, "failed": 0, "skipped": 1}), "{job:#}");
    ensure!(output(&job, "skipped") == json!([{"node": excluded, "reason": "Excluded"}]), "{job:#}");
    ensure!(job["status"]["progress"]["done"] == "2/2" && job["status"]["waitingFor"] == json!([]), "{job:#}");
    ensure!(reboots(rig, &[&a, &b, &excluded]) == [1, 1, 0]);
    until_free(rig, &a, false).await?;
    until_free(rig, &b, false).await?;
    patiently("it is gone", async || Ok(rig.ops().get_opt("boot").await?.is_none())).await?;
    end_well(rig, &history).await
}

/// A node is for one job at a time, and free for the next one once that has ended.
pub async fn of_two_jobs_on_one_node_the_second_fails_and_names_the_first(rig: &mut Rig) -> anyhow::Result<()> {
    let (a, b) = (bootable(rig, "a").await?, bootable(rig, "b").await?);
    let history = begin(rig, REBOOT).await?;
    rig.create_ops("first", reboot(&[&a, &b], &json!({}))).await?;
    rig.until_ops("first", "it holds its nodes", |job| condition(job, "TargetsResolved").is_some()).await?;
    rig.create_ops("second", reboot(&[&b], &json!({}))).await?;
    let job = rig.until_ops_ended("second", "Failed", "TargetBusy").await?;
    ensure!(said(&job, "Failed").contains("first") && said(&job, "Failed").contains(&*b), "{job:#}");
    rig.until_ops_ended("first", "Succeeded", "Succeed").await?;
    rig.create_ops("third", reboot(&[&b], &json!({}))).await?;
    rig.until_ops_ended("third", "Succeeded", "Succeed").await?;
    ensure!(reboots(rig, &[&a, &b]) == [1, 2]);
    end_well(rig, &history).await
}

/// While a budget holds up the drain, nothing has been rebooted, and nothing is.
pub async fn a_job_that_is_stopped_deleted_or_out_of_time_lets_go_of_its_nodes(rig: &mut Rig) -> anyhow::Result<()> {
    let a = bootable(rig, "a").await?;
    workload(rig, "web", 1).await?;
    let b = bootable(rig, "b").await?;
    budget(rig, 1).await?;
    let history = begin(rig, REBOOT).await?;
    let drain = json!({"inputs": [{"name": "node", "value": a}, {"name": "node", "value": b}, {"name": "drain", "value": "true"}]});
    for (name, how) in [("s", "stop"), ("t", "time"), ("d", "delete")] {
        let mut spec = reboot(&[], &drain);
        if how == "time" {
            spec["timeoutSecond"] = json!(4);
        }
        rig.create_ops(name, spec).await?;
        rig.until_ops(name, "it drains", |job| job.pointer("/status/phase").is_some_and(|is| is == "Running")).await?;
        match how {
            "stop" => rig.patch_ops(name, json!({"spec": {"stop": true}})).await?,
            "delete" => rig.delete_ops(name).await?,
            _ => {}
        }
        if how == "delete" {
            patiently("it is gone", async || Ok(rig.ops().get_opt(name).await?.is_none())).await?;
        } else {
            let (reason, words) =
                if how == "stop" { ("Stopped", "stopped") } else { ("Timeout", "timed out after 4 s") };
            let job = rig.until_ops_ended(name, "Failed", reason).await?;
            ensure!(said(&job, "Failed").contains(words), "{job:#}");
        }
        until_free(rig, &a, false).await?;
        until_free(rig, &b, false).await?;
        ensure!(reboots(rig, &[&a, &b]) == [0, 0], "{how}");
    }
    end_well(rig, &history).await
}

/// 4 nodes, of which 3 have to succeed: one failure is tolerated, and two are not.
pub async fn as_many_nodes_may_fail_as_the_ratio_leaves(rig: &mut Rig) -> anyhow::Result<()> {
    let mut names = Vec::new();
    for number in 0..4 {
        names.push(bootable(rig, &format!("n{number}")).await?);
    }
    let all: Vec<&String> = names.iter().collect();
    let history = begin(rig, REBOOT).await?;
    rig.world.returns(&names[0], Return::Deleted);
    let more = json!({"availableRatio": "0.75", "batchCount": 4});
    rig.create_ops("one", reboot(&all, &more)).await?;
    let job = rig.until_ops_ended("one", "Succeeded", "Succeed").await?;
    ensure!(
        condition(&job, &names[0]).is_some_and(|one| one["status"] == "False" && one["reason"] == "NodeGone"),
        "{job:#}"
    );
    rig.world.returns(&names[1], Return::Deleted);
    rig.create_ops("two", reboot(&all[1..], &more)).await?;
    let job = rig.until_ops_ended("two", "Failed", "ToleranceExceeded").await?;
    ensure!(job["status"]["progress"]["failed"] == 1 && said(&job, "Failed").contains("0 may"), "{job:#}");
    end_well(rig, &history).await
}

/// However often the host dies, each node reboots once for the job, and the job comes to its end.
pub async fn a_host_that_is_killed_again_and_again_reboots_each_node_once_for_a_job(
    rig: &mut Rig,
) -> anyhow::Result<()> {
    let mut names = Vec::new();
    for number in 0..3 {
        names.push(bootable(rig, &format!("n{number}")).await?);
    }
    let all: Vec<&String> = names.iter().collect();
    let history = begin(rig, REBOOT).await?;
    rig.create_ops("boot", reboot(&all, &json!({"batchCount": 2}))).await?;
    for kill in 0..30u64 {
        tokio::time::sleep(Duration::from_millis(40 + 23 * kill)).await;
        if rig.ops().get("boot").await?.data.pointer("/status/finishedAt").is_some() {
            break;
        }
        rig.kill_host("host").await?;
        start(rig, REBOOT).await?;
    }
    rig.until_ops_ended("boot", "Succeeded", "Succeed").await?;
    ensure!(reboots(rig, &all) == [1; 3], "{:?}", reboots(rig, &all));
    end_well(rig, &history).await
}

/// What a child did is not done again by another one.
pub async fn a_child_that_somebody_deletes_fails_its_job(rig: &mut Rig) -> anyhow::Result<()> {
    let a = bootable(rig, "a").await?;
    rig.world.returns(&a, Return::Never);
    let history = begin(rig, REBOOT).await?;
    rig.create_ops("boot", reboot(&[&a], &json!({}))).await?;
    rig.until_ops("boot", "it runs", |job| job.pointer("/status/phase").is_some_and(|is| is == "Running")).await?;
    rig.ops_children().delete("boot", &DeleteParams::default()).await?;
    let job = rig.until_ops_ended("boot", "Failed", "ChildLost").await?;
    ensure!(said(&job, "Failed").contains("oarlock-ops/boot"), "{job:#}");
    ensure!(reboots(rig, &[&a])[0] <= 1);
    until_free(rig, &a, false).await?;
    end_well(rig, &history).await
}

/// Each node is among the healthy or the failed ones, but those that were skipped.
pub async fn nodes_are_checked_and_named_as_healthy_or_failed(rig: &mut Rig) -> anyhow::Result<()> {
    let (good, down, kept) = (node(rig, "a", true).await?, node(rig, "b", true).await?, node(rig, "c", true).await?);
    set_ready(rig, &down, false).await?;
    cordon(rig, &kept, true).await?;
    let files = std::env::temp_dir().join(format!("oarlock-files-{}", std::process::id()));
    rig.files = Some(files.clone());
    let history = begin(rig, PREFLIGHT).await?;
    // Base64 of `# sim: message ok` and of `# sim: exit 1`. The first is longer than parameters may be, and has 90 KB of comment.
    let (passes, fails) = (format!("IyBzaW06IG1lc3NhZ2Ugb2sK{}", "IyMj".repeat(30_000)), "IyBzaW06IGV4aXQgMQ==");
    let check = |script: &str, tolerate: bool| {
        let inputs: Vec<Value> = [&good, &down, &kept].map(|name| json!({"name": "node", "value": name})).into();
        json!({"type": "preflight", "inputs": inputs, "image": "check:1", "entryPoint": script, "isTolerateAll": tolerate})
    };
    rig.create_ops("strict", check(&passes, false)).await?;
    let job = rig.until_ops_ended("strict", "Failed", "NoTargets").await?;
    ensure!(said(&job, "Failed").contains("1 NotReady"), "{job:#}");
    rig.create_ops("all", check(&passes, true)).await?;
    let job = rig.until_ops_ended("all", "Succeeded", "Succeed").await?;
    ensure!(output(&job, "result") == json!({"failed_nodes": [], "healthy_nodes": [good, kept]}), "{job:#}");
    rig.create_ops("none", check(fails, true)).await?;
    let job = rig.until_ops_ended("none", "Failed", "ToleranceExceeded").await?;
    ensure!(output(&job, "result") == json!({"failed_nodes": [good, kept], "healthy_nodes": []}), "{job:#}");
    let outputs = job.pointer("/status/outputs").and_then(Value::as_array).cloned().unwrap_or_default();
    let report = outputs.iter().find(|output| output["name"] == "report").and_then(|output| output["value"].as_str());
    let file = report.and_then(|reference| reference.strip_prefix("artifact:")).unwrap_or_default();
    ensure!(file.starts_with("none/report-"), "{outputs:?}");
    let report: Value = serde_json::from_slice(&std::fs::read(files.join("artefacts").join(file))?)?;
    ensure!(report["nodes"][1]["node"] == json!(kept) && report["total"] == 2, "{report:#}");
    std::fs::remove_dir_all(&files)?;
    let nodes_told = output(&job, "nodes");
    ensure!(nodes_told[0]["exitCode"] == 1 && nodes_told[0]["passed"] == false, "{nodes_told:#}");
    ensure!(nodes(rig).get(&kept).await?.spec.is_some_and(|spec| spec.unschedulable == Some(true)), "its cordon stays");
    end_well(rig, &history).await
}

/// What the schema cannot say, the host says, in the same words that name field and rule; nothing else is held up by it.
pub async fn a_spec_that_breaks_a_rule_fails_in_words_that_name_it(rig: &mut Rig) -> anyhow::Result<()> {
    let a = bootable(rig, "a").await?;
    let history = begin(rig, REBOOT).await?;
    let with = |name: &str, value: &str| json!({"inputs": [{"name": name, "value": value}]});
    let cases = [
        ("foo", with("foo", "x"), "Invalid", "spec.inputs[0].name: foo is none of"),
        ("none", with("label", "x"), "Invalid", "one of node, node.host, workload, workspace and cluster at least"),
        ("node", with("node", "nope"), "NodeNotFound", "there is no node nope"),
        ("host", with("node.host", "nope"), "NodeNotFound", "there is no node nope"),
        ("cluster", with("cluster", "nope"), "ClusterUnknown", "this is not cluster nope"),
        ("space", with("workspace", "nope"), "WorkspaceNotFound", "kubectl label node"),
        (
            "excluded",
            json!({"excludedNodes": ["nope"]}),
            "Invalid",
            "spec.excludedNodes: no node has the name or host nope",
        ),
        ("all", json!({"excludedNodes": [a]}), "NoTargets", "no node is left: 1 Excluded"),
    ];
    for (name, more, reason, words) in cases {
        rig.create_ops(name, reboot(&[&a], &more)).await?;
        let job = rig.until_ops_ended(name, "Failed", reason).await?;
        ensure!(said(&job, "Failed").contains(words), "{name}: {}", said(&job, "Failed"));
    }
    // These are refused when they are made.
    let refused = [
        ("type", json!({"type": "Reboot"}), "spec.type"),
        ("ratio", json!({"availableRatio": "1.1"}), "spec.availableRatio"),
        ("batch", json!({"batchCount": -1}), "spec.batchCount"),
        (
            "targets",
            json!({"targets": [{"name": "a", "uid": "b"}], "requester": {"name": "somebody"}}),
            "spec.requester",
        ),
    ];
    for (name, more, words) in refused {
        let error = rig.create_ops(name, reboot(&[&a], &more)).await.err().with_context(|| format!("{name} is taken"));
        let error = match error {
            Ok(error) => error.to_string(),
            // An admin may say what he likes of who asked.
            Err(_) if name == "targets" => continue,
            Err(taken) => return Err(taken),
        };
        ensure!(error.contains(words), "{name}: {error}");
    }
    ensure!(reboots(rig, &[&a]) == [0]);
    end_well(rig, &history).await
}

/// By kubectl, too: no policy knows what is granted.
pub async fn a_directory_that_is_not_granted_is_refused_before_anything_starts(rig: &mut Rig) -> anyhow::Result<()> {
    let a = node(rig, "a", true).await?;
    let history = begin(rig, PREFLIGHT).await?;
    let check = json!({"type": "preflight", "inputs": [{"name": "node", "value": a}], "image": "check:1", "entryPoint": "dHJ1ZQ==",
        "hostpath": ["/opt/x/"], "isTolerateAll": true});
    rig.create_ops("sees", check).await?;
    let job = rig.until_ops_ended("sees", "Failed", "Forbidden").await?;
    ensure!(said(&job, "Failed").starts_with("spec.hostpath: /opt/x is not among the directories"), "{job:#}");
    ensure!(job["spec"]["targets"].is_null() && job["status"]["operationJob"].is_null(), "{job:#}");
    end_well(rig, &history).await
}

/// Every kind that comes with the host and has a status is among the figures of the watches: one that is added is in here by itself.
pub async fn the_watch_of_each_kind_of_the_host_has_figures(rig: &mut Rig) -> anyhow::Result<()> {
    crate::flows::prepare(rig).await?;
    let (history, mut kinds) = (begin(rig, REBOOT).await?, Vec::new());
    let crds: Api<CustomResourceDefinition> = Api::all(rig.client.clone());
    for crd in crds.list(&Default::default()).await?.items {
        let (group, kind) = (crd.spec.group, crd.spec.names.kind);
        let is_own = ["oarlock.dev", "api.practice.com"].contains(&group.as_str()) || kind == "OperationJob";
        let has_status = |version: &&CustomResourceDefinitionVersion| {
            version.subresources.as_ref().is_some_and(|subresources| subresources.status.is_some())
        };
        let Some(version) = crd.spec.versions.iter().find(has_status).filter(|_| is_own) else { continue };
        let labels = format!(r#"{{api_version="{group}/{}",kind="{kind}"}}"#, version.name);
        kinds.push(kind.clone());
        for figure in ["watch_synced", "watch_lists_total"] {
            patiently("it is listed and shown", async || {
                Ok(rig.figure(&format!("{figure}{labels}")).is_some_and(|figure| figure >= 1))
            })
            .await
            .with_context(|| format!("{figure} of {kind}"))?;
        }
    }
    let known = ["OpsJob", "OperationJob"].iter().all(|kind| kinds.iter().any(|own| own == kind));
    ensure!(known, "{kinds:?}");
    end_well(rig, &history).await
}

/// A pod that is bound to a node by its own spec and waits there, and one that runs on a node of the control plane, name no target.
pub async fn a_pod_that_waits_chooses_no_node_for_a_reboot_by_workload(rig: &mut Rig) -> anyhow::Result<()> {
    let (own, plane) = (bootable(rig, "a").await?, bootable(rig, "b").await?);
    let of_plane = json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}});
    change(rig, &plane, of_plane).await?;
    let history = begin(rig, REBOOT).await?;
    let pods: Api<Pod> = Api::namespaced(rig.client.clone(), &rig.namespace);
    for (name, node) in [("runs", &own), ("of-plane", &plane)] {
        let pod = json!({"metadata": {"name": name}, "spec": {"nodeName": node, "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "image": "web"}]}});
        pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        patiently("the pod runs", async || {
            let phase = pods.get(name).await?.status.and_then(|status| status.phase);
            Ok(phase.as_deref() == Some("Running"))
        })
        .await?;
    }
    let of = |pod: &str| json!({"name": "workload", "value": format!("{}/pod/{pod}", rig.namespace)});
    let spec = json!({"type": "reboot", "inputs": [of("runs"), of("of-plane")], "isTolerateAll": true});
    rig.create_ops("both", spec).await?;
    let job = rig.until_ops_ended("both", "Succeeded", "Succeed").await?;
    ensure!(job["spec"]["skipped"] == json!([{"node": plane, "reason": "ControlPlane"}]), "{job:#}");
    ensure!(reboots(rig, &[&own, &plane]) == [1, 0], "{job:#}");
    let waits = Patch::Merge(json!({"status": {"phase": "Pending"}}));
    pods.patch_status("runs", &PatchParams::default(), &waits).await?;
    rig.create_ops("waits", json!({"type": "reboot", "inputs": [of("runs")], "isTolerateAll": true})).await?;
    let job = rig.until_ops_ended("waits", "Failed", "NoTargets").await?;
    ensure!(reboots(rig, &[&own, &plane]) == [1, 0], "{job:#}");
    end_well(rig, &history).await
}

/// A workload's nodes are those of its pods; a node with a pod of one is busy, and a workspace may be narrowed.
pub async fn nodes_are_found_by_workload_and_workspace_and_busy_ones_are_spared(rig: &mut Rig) -> anyhow::Result<()> {
    let busy = bootable(rig, "a").await?;
    workload(rig, "web", 1).await?;
    let idle = bootable(rig, "b").await?;
    for name in [&busy, &idle] {
        change(rig, name, json!({"metadata": {"labels": {"node-restriction.kubernetes.io/workspace": "w"}}})).await?;
    }
    let history = begin(rig, REBOOT).await?;
    let input = |name: &str, value: &str| json!({"name": name, "value": value});
    let web = format!("{}/replicaset/web", rig.namespace);
    rig.create_ops(
        "of-workload",
        json!({"type": "reboot", "inputs": [input("workload", &web)], "isTolerateAll": true}),
    )
    .await?;
    let job = rig.until_ops_ended("of-workload", "Succeeded", "Succeed").await?;
    ensure!(job["spec"]["targets"][0]["name"] == json!(busy) && job["spec"]["targets"][1].is_null(), "{job:#}");
    let missing = format!("{}/replicaset/nope", rig.namespace);
    rig.create_ops("missing", json!({"type": "reboot", "inputs": [input("workload", &missing)]})).await?;
    rig.until_ops_ended("missing", "Failed", "WorkloadNotFound").await?;
    let outside = json!({"type": "reboot", "inputs": [input("node", &idle), input("workload", &web)]});
    rig.create_ops("outside", outside).await?;
    let job = rig.until_ops_ended("outside", "Failed", "Invalid").await?;
    ensure!(said(&job, "Failed").contains("is not of the workload"), "{job:#}");
    let check = json!({"type": "preflight", "inputs": [input("workspace", "w")], "image": "check:1", "entryPoint": "dHJ1ZQ==",
        "isTolerateAll": true, "securityUpgrade": true});
    rig.create_ops("spared", check).await?;
    let job = rig.until_ops("spared", "its targets are known", |job| job.pointer("/spec/targets").is_some()).await?;
    ensure!(job["spec"]["targets"][0]["name"] == json!(idle), "{job:#}");
    ensure!(job["spec"]["skipped"] == json!([{"node": busy, "reason": "Busy"}]), "{job:#}");
    let large = json!({"type": "preflight", "inputs": [input("node", &busy)], "image": "check:1", "entryPoint": "dHJ1ZQ==",
        "env": {"LARGE": "x".repeat(20_000)}, "isTolerateAll": true});
    rig.create_ops("large", large).await?;
    let job = rig.until_ops_ended("large", "Failed", "Invalid").await?;
    ensure!(said(&job, "Failed").contains("spec.env: with image, hostpath and resource it takes"), "{job:#}");
    // What the API server refuses is told, and tried again.
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403,
        "message": "exceeded quota: few"});
    rig.running()?.wire.order(Order::next(Method::POST, "/operationjobs", Then::Answer(403, status)));
    rig.create_ops("refused", json!({"type": "reboot", "inputs": [input("node", &busy)]})).await?;
    let refused = |job: &Value| condition(job, "OperationJobCreated").is_some_and(|one| one["status"] == "False");
    let job = rig.until_ops("refused", "its child is refused", refused).await?;
    ensure!(said(&job, "OperationJobCreated").contains("exceeded quota: few"), "{job:#}");
    let job = rig.until_ops_ended("refused", "Succeeded", "Succeed").await?;
    ensure!(condition(&job, "OperationJobCreated").is_some_and(|one| one["status"] == "True"), "{job:#}");
    // So is what it cannot look up.
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403,
        "message": "no role for that"});
    rig.running()?.wire.order(Order::next(Method::GET, "/validatingadmissionpolicies", Then::Answer(403, status)));
    rig.create_ops("unread", json!({"type": "reboot", "inputs": [input("node", &busy)]})).await?;
    let unread = |job: &Value| condition(job, "TargetsResolved").is_some_and(|one| one["status"] == "False");
    let job = rig.until_ops("unread", "what it cannot read is told", unread).await?;
    ensure!(said(&job, "TargetsResolved").contains("no role for that"), "{job:#}");
    rig.until_ops_ended("unread", "Succeeded", "Succeed").await?;
    // No plugin serves checks here: the job says so, and can be stopped.
    let unserved = |job: &Value| condition(job, "ActionAvailable").is_some_and(|one| one["status"] == "False");
    let job = rig.until_ops("spared", "nobody serves it", unserved).await?;
    ensure!(said(&job, "ActionAvailable").contains("preflight"), "{job:#}");
    rig.patch_ops("spared", json!({"spec": {"stop": true}})).await?;
    rig.until_ops_ended("spared", "Failed", "Stopped").await?;
    end_well(rig, &history).await
}

/// Who may make which OpsJob nobody but its policy asks: without it, nothing is done for a job.
pub async fn a_job_whose_writer_was_asked_for_no_rights_does_nothing(rig: &mut Rig) -> anyhow::Result<()> {
    let a = bootable(rig, "a").await?;
    let history = begin(rig, REBOOT).await?;
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(rig.client.clone());
    let shipped = policies.get("opsjob.oarlock.dev").await?;
    policies.delete("opsjob.oarlock.dev", &DeleteParams::default()).await?;
    rig.create_ops("unasked", reboot(&[&a], &json!({}))).await?;
    let job = rig.until_ops_ended("unasked", "Failed", "PolicyMissing").await?;
    ensure!(said(&job, "Failed").contains("opsjob.oarlock.dev is missing: have a cluster admin"), "{job:#}");
    let mut weaker = shipped.clone();
    weaker.metadata = ObjectMeta { name: shipped.metadata.name.clone(), ..ObjectMeta::default() };
    weaker.spec.iter_mut().for_each(|spec| spec.failure_policy = Some("Ignore".to_owned()));
    policies.create(&PostParams::default(), &weaker).await?;
    rig.create_ops("half-asked", reboot(&[&a], &json!({}))).await?;
    let job = rig.until_ops_ended("half-asked", "Failed", "PolicyMissing").await?;
    ensure!(said(&job, "Failed").contains("is not the one of this version"), "{job:#}");
    let strict = json!({"spec": {"failurePolicy": "Fail"}});
    policies.patch("opsjob.oarlock.dev", &PatchParams::default(), &Patch::Merge(strict)).await?;
    rig.create_ops("asked", reboot(&[&a], &json!({}))).await?;
    rig.until_ops_ended("asked", "Succeeded", "Succeed").await?;
    ensure!(reboots(rig, &[&a]) == [1]);
    end_well(rig, &history).await
}
