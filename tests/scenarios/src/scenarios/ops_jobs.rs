//! OpsJobs that a user creates with kubectl: their targets, their phases and their ends.

#![expect(clippy::indexing_slicing, reason = "a test fails loudly")]

use anyhow::{Context as _, ensure};
use http::Method;
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion,
};
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use oarlock_sim::world::{History, Return};
use oarlock_support::faults::Then;
use oarlock_support::orders::Order;
use serde_json::{Value, json};

use super::drains::{REBOOT, bootable, workload};
use super::evicting::budget;
use super::on_nodes::{Plugin, change, cordon, grant, node, nodes, set_ready, start};
use super::reboots::{PREFLIGHT, reboots, until_free};
use crate::ops::{self, condition, judge, output, said};
use crate::test_cluster::{TestCluster, patiently};

pub(crate) async fn begin(cluster: &mut TestCluster, plugin: Plugin) -> anyhow::Result<History> {
    let history = ops::prepare(cluster).await?;
    grant(cluster, plugin).await?;
    start(cluster, plugin).await?;
    Ok(history)
}

/// Returns the spec of a reboot of these nodes.
fn reboot(names: &[&String], more: &Value) -> Value {
    let inputs: Vec<Value> = names.iter().map(|name| json!({"name": "node", "value": name})).collect();
    let mut spec = json!({"type": "reboot", "inputs": inputs});
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    spec
}

/// Waits until all OperationJobs of OpsJobs are gone, and checks the OpsJob invariants.
pub(crate) async fn end_well(cluster: &TestCluster, history: &History) -> anyhow::Result<()> {
    patiently("the OperationJobs are gone", async || {
        Ok(cluster.ops_children().list(&Default::default()).await?.items.is_empty())
    })
    .await?;
    let breaches = judge(history);
    ensure!(breaches.is_empty(), "never may this happen:\n{}", breaches.join("\n"));
    Ok(())
}

/// Two nodes are rebooted one after the other, the status tells each phase, and the job goes when its time to live is over.
pub async fn nodes_are_rebooted_and_each_phase_is_told(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let (a, b) = (bootable(cluster, "a").await?, bootable(cluster, "b").await?);
    let history = begin(cluster, REBOOT).await?;
    let excluded = node(cluster, "c", true).await?;
    let more = json!({"excludedNodes": [excluded], "inputs": [{"name": "node", "value": a}, {"name": "node", "value": b},
        {"name": "node", "value": excluded}, {"name": "drain", "value": "true"}], "ttlSecondsAfterFinished": 3});
    cluster.create_ops("boot", reboot(&[], &more)).await?;
    let job = cluster.until_ops_ended("boot", "Succeeded", "Succeed").await?;
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
    ensure!(reboots(cluster, &[&a, &b, &excluded]) == [1, 1, 0]);
    until_free(cluster, &a, false).await?;
    until_free(cluster, &b, false).await?;
    patiently("it is gone", async || Ok(cluster.ops().get_opt("boot").await?.is_none())).await?;
    end_well(cluster, &history).await
}

/// A node belongs to one job at a time, and the next job can take it once the first has ended.
pub async fn of_two_jobs_on_one_node_the_second_fails_and_names_the_first(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let (a, b) = (bootable(cluster, "a").await?, bootable(cluster, "b").await?);
    let history = begin(cluster, REBOOT).await?;
    cluster.create_ops("first", reboot(&[&a, &b], &json!({}))).await?;
    cluster.until_ops("first", "it holds its nodes", |job| condition(job, "TargetsResolved").is_some()).await?;
    cluster.create_ops("second", reboot(&[&b], &json!({}))).await?;
    let job = cluster.until_ops_ended("second", "Failed", "TargetBusy").await?;
    ensure!(said(&job, "Failed").contains("first") && said(&job, "Failed").contains(&*b), "{job:#}");
    cluster.until_ops_ended("first", "Succeeded", "Succeed").await?;
    cluster.create_ops("third", reboot(&[&b], &json!({}))).await?;
    cluster.until_ops_ended("third", "Succeeded", "Succeed").await?;
    ensure!(reboots(cluster, &[&a, &b]) == [1, 2]);
    end_well(cluster, &history).await
}

/// A job that is stopped, deleted or out of time releases its nodes. A budget blocks the drain, so no node is rebooted.
pub async fn a_job_that_is_stopped_deleted_or_out_of_time_lets_go_of_its_nodes(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let a = bootable(cluster, "a").await?;
    workload(cluster, "web", 1).await?;
    let b = bootable(cluster, "b").await?;
    budget(cluster, 1).await?;
    let history = begin(cluster, REBOOT).await?;
    let drain = json!({"inputs": [{"name": "node", "value": a}, {"name": "node", "value": b}, {"name": "drain", "value": "true"}]});
    for (name, how) in [("s", "stop"), ("t", "time"), ("d", "delete")] {
        let mut spec = reboot(&[], &drain);
        if how == "time" {
            spec["timeoutSecond"] = json!(4);
        }
        cluster.create_ops(name, spec).await?;
        cluster
            .until_ops(name, "it drains", |job| job.pointer("/status/phase").is_some_and(|is| is == "Running"))
            .await?;
        match how {
            "stop" => cluster.patch_ops(name, json!({"spec": {"stop": true}})).await?,
            "delete" => cluster.delete_ops(name).await?,
            _ => {}
        }
        if how == "delete" {
            patiently("it is gone", async || Ok(cluster.ops().get_opt(name).await?.is_none())).await?;
        } else {
            let (reason, words) =
                if how == "stop" { ("Stopped", "stopped") } else { ("Timeout", "timed out after 4 s") };
            let job = cluster.until_ops_ended(name, "Failed", reason).await?;
            ensure!(said(&job, "Failed").contains(words), "{job:#}");
        }
        until_free(cluster, &a, false).await?;
        until_free(cluster, &b, false).await?;
        ensure!(reboots(cluster, &[&a, &b]) == [0, 0], "{how}");
    }
    end_well(cluster, &history).await
}

/// With 4 nodes of which 3 must succeed, one failure is tolerated, and two are not.
pub async fn as_many_nodes_may_fail_as_the_ratio_leaves(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let mut names = Vec::new();
    for number in 0..4 {
        names.push(bootable(cluster, &format!("n{number}")).await?);
    }
    let all: Vec<&String> = names.iter().collect();
    let history = begin(cluster, REBOOT).await?;
    cluster.world.returns(&names[0], Return::Deleted);
    let more = json!({"availableRatio": "0.75", "batchCount": 4});
    cluster.create_ops("one", reboot(&all, &more)).await?;
    let job = cluster.until_ops_ended("one", "Succeeded", "Succeed").await?;
    ensure!(
        condition(&job, &names[0]).is_some_and(|one| one["status"] == "False" && one["reason"] == "NodeGone"),
        "{job:#}"
    );
    cluster.world.returns(&names[1], Return::Deleted);
    cluster.create_ops("two", reboot(&all[1..], &more)).await?;
    let job = cluster.until_ops_ended("two", "Failed", "ToleranceExceeded").await?;
    ensure!(job["status"]["progress"]["failed"] == 1 && said(&job, "Failed").contains("0 may"), "{job:#}");
    end_well(cluster, &history).await
}

/// A job fails if someone deletes its OperationJob. No second OperationJob repeats the work.
pub async fn a_child_that_somebody_deletes_fails_its_job(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let a = bootable(cluster, "a").await?;
    cluster.world.returns(&a, Return::Never);
    let history = begin(cluster, REBOOT).await?;
    cluster.create_ops("boot", reboot(&[&a], &json!({}))).await?;
    cluster.until_ops("boot", "it runs", |job| job.pointer("/status/phase").is_some_and(|is| is == "Running")).await?;
    cluster.ops_children().delete("boot", &DeleteParams::default()).await?;
    let job = cluster.until_ops_ended("boot", "Failed", "ChildLost").await?;
    ensure!(said(&job, "Failed").contains("oarlock-ops/boot"), "{job:#}");
    ensure!(reboots(cluster, &[&a])[0] <= 1);
    until_free(cluster, &a, false).await?;
    end_well(cluster, &history).await
}

/// The result names each node as healthy or failed, except for skipped nodes.
pub async fn nodes_are_checked_and_named_as_healthy_or_failed(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let (good, down, kept) =
        (node(cluster, "a", true).await?, node(cluster, "b", true).await?, node(cluster, "c", true).await?);
    set_ready(cluster, &down, false).await?;
    cordon(cluster, &kept, true).await?;
    let files = std::env::temp_dir().join(format!("oarlock-files-{}", std::process::id()));
    cluster.files = Some(files.clone());
    let history = begin(cluster, PREFLIGHT).await?;
    // The scripts are Base64 of `# sim: message ok` and `# sim: exit 1`. The first has 90 KB of comment, more than parameters may have.
    let (passes, fails) = (format!("IyBzaW06IG1lc3NhZ2Ugb2sK{}", "IyMj".repeat(30_000)), "IyBzaW06IGV4aXQgMQ==");
    let check = |script: &str, tolerate: bool| {
        let inputs: Vec<Value> = [&good, &down, &kept].map(|name| json!({"name": "node", "value": name})).into();
        json!({"type": "preflight", "inputs": inputs, "image": "check:1", "entryPoint": script, "isTolerateAll": tolerate})
    };
    cluster.create_ops("strict", check(&passes, false)).await?;
    let job = cluster.until_ops_ended("strict", "Failed", "NoTargets").await?;
    ensure!(said(&job, "Failed").contains("1 NotReady"), "{job:#}");
    cluster.create_ops("all", check(&passes, true)).await?;
    let job = cluster.until_ops_ended("all", "Succeeded", "Succeed").await?;
    ensure!(output(&job, "result") == json!({"failed_nodes": [], "healthy_nodes": [good, kept]}), "{job:#}");
    cluster.create_ops("none", check(fails, true)).await?;
    let job = cluster.until_ops_ended("none", "Failed", "ToleranceExceeded").await?;
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
    ensure!(
        nodes(cluster).get(&kept).await?.spec.is_some_and(|spec| spec.unschedulable == Some(true)),
        "its cordon stays"
    );
    end_well(cluster, &history).await
}

/// The host reports rules that the schema cannot express, with field and rule in the message. Other jobs are not affected.
pub async fn a_spec_that_breaks_a_rule_fails_in_words_that_name_it(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let a = bootable(cluster, "a").await?;
    let history = begin(cluster, REBOOT).await?;
    let with = |name: &str, value: &str| json!({"inputs": [{"name": name, "value": value}]});
    let cases = [
        ("foo", with("foo", "x"), "Invalid", "spec.inputs[0].name: foo is none of"),
        ("none", with("label", "x"), "Invalid", "give at least one of node, node.host, workload, workspace or cluster"),
        ("node", with("node", "nope"), "NodeNotFound", "there is no node nope"),
        ("host", with("node.host", "nope"), "NodeNotFound", "there is no node nope"),
        ("cluster", with("cluster", "nope"), "ClusterUnknown", "this cluster does not have the id nope"),
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
        cluster.create_ops(name, reboot(&[&a], &more)).await?;
        let job = cluster.until_ops_ended(name, "Failed", reason).await?;
        ensure!(said(&job, "Failed").contains(words), "{name}: {}", said(&job, "Failed"));
    }
    // The API server refuses these at their creation.
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
        let error =
            cluster.create_ops(name, reboot(&[&a], &more)).await.err().with_context(|| format!("{name} is taken"));
        let error = match error {
            Ok(error) => error.to_string(),
            // An admin may set any requester.
            Err(_) if name == "targets" => continue,
            Err(taken) => return Err(taken),
        };
        ensure!(error.contains(words), "{name}: {error}");
    }
    ensure!(reboots(cluster, &[&a]) == [0]);
    end_well(cluster, &history).await
}

/// The host refuses a directory without a grant even for jobs from kubectl, because no policy knows the grants.
pub async fn a_directory_that_is_not_granted_is_refused_before_anything_starts(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let a = node(cluster, "a", true).await?;
    let history = begin(cluster, PREFLIGHT).await?;
    let check = json!({"type": "preflight", "inputs": [{"name": "node", "value": a}], "image": "check:1", "entryPoint": "dHJ1ZQ==",
        "hostpath": ["/opt/x/"], "isTolerateAll": true});
    cluster.create_ops("sees", check).await?;
    let job = cluster.until_ops_ended("sees", "Failed", "Forbidden").await?;
    ensure!(said(&job, "Failed").starts_with("spec.hostpath: /opt/x is not among the directories"), "{job:#}");
    ensure!(job["spec"]["targets"].is_null() && job["status"]["operationJob"].is_null(), "{job:#}");
    end_well(cluster, &history).await
}

/// Every kind of the host that has a status has watch metrics. A new kind is included without a change here.
pub async fn the_watch_of_each_kind_of_the_host_has_figures(cluster: &mut TestCluster) -> anyhow::Result<()> {
    crate::flows::prepare(cluster).await?;
    let (history, mut kinds) = (begin(cluster, REBOOT).await?, Vec::new());
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    for crd in crds.list(&Default::default()).await?.items {
        let (group, kind) = (crd.spec.group, crd.spec.names.kind);
        let is_own = ["oarlock.dev", "api.practice.com"].contains(&group.as_str()) || kind == "OperationJob";
        let has_status = |version: &&CustomResourceDefinitionVersion| {
            version.subresources.as_ref().is_some_and(|subresources| subresources.status.is_some())
        };
        // The host process watches ActionPlugins, and the host of these scenarios gets its plugins from the test.
        let is_own = is_own && kind != "ActionPlugin";
        let Some(version) = crd.spec.versions.iter().find(has_status).filter(|_| is_own) else { continue };
        let labels = format!(r#"{{api_version="{group}/{}",kind="{kind}"}}"#, version.name);
        kinds.push(kind.clone());
        for figure in ["watch_synced", "watch_lists_total"] {
            patiently("it is listed and shown", async || {
                Ok(cluster.figure(&format!("{figure}{labels}")).is_some_and(|figure| figure >= 1))
            })
            .await
            .with_context(|| format!("{figure} of {kind}"))?;
        }
    }
    let known = ["OpsJob", "OperationJob"].iter().all(|kind| kinds.iter().any(|own| own == kind));
    ensure!(known, "{kinds:?}");
    end_well(cluster, &history).await
}

/// A pod that is bound to a node by its spec but waits there selects no target. A pod on a control plane node selects none either.
pub async fn a_pod_that_waits_chooses_no_node_for_a_reboot_by_workload(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let (own, plane) = (bootable(cluster, "a").await?, bootable(cluster, "b").await?);
    let of_plane = json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}});
    change(cluster, &plane, of_plane).await?;
    let history = begin(cluster, REBOOT).await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
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
    let of = |pod: &str| json!({"name": "workload", "value": format!("{}/pod/{pod}", cluster.namespace)});
    let spec = json!({"type": "reboot", "inputs": [of("runs"), of("of-plane")], "isTolerateAll": true});
    cluster.create_ops("both", spec).await?;
    let job = cluster.until_ops_ended("both", "Succeeded", "Succeed").await?;
    ensure!(job["spec"]["skipped"] == json!([{"node": plane, "reason": "ControlPlane"}]), "{job:#}");
    ensure!(reboots(cluster, &[&own, &plane]) == [1, 0], "{job:#}");
    let waits = Patch::Merge(json!({"status": {"phase": "Pending"}}));
    pods.patch_status("runs", &PatchParams::default(), &waits).await?;
    cluster.create_ops("waits", json!({"type": "reboot", "inputs": [of("runs")], "isTolerateAll": true})).await?;
    let job = cluster.until_ops_ended("waits", "Failed", "NoTargets").await?;
    ensure!(reboots(cluster, &[&own, &plane]) == [1, 0], "{job:#}");
    end_well(cluster, &history).await
}

/// The nodes of a workload are those of its pods. A node with a pod of a workload is busy, and a workspace can be narrowed.
pub async fn nodes_are_found_by_workload_and_workspace_and_busy_ones_are_spared(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let busy = bootable(cluster, "a").await?;
    workload(cluster, "web", 1).await?;
    let idle = bootable(cluster, "b").await?;
    for name in [&busy, &idle] {
        change(cluster, name, json!({"metadata": {"labels": {"node-restriction.kubernetes.io/workspace": "w"}}}))
            .await?;
    }
    let history = begin(cluster, REBOOT).await?;
    let input = |name: &str, value: &str| json!({"name": name, "value": value});
    let web = format!("{}/replicaset/web", cluster.namespace);
    cluster
        .create_ops(
            "of-workload",
            json!({"type": "reboot", "inputs": [input("workload", &web)], "isTolerateAll": true}),
        )
        .await?;
    let job = cluster.until_ops_ended("of-workload", "Succeeded", "Succeed").await?;
    ensure!(job["spec"]["targets"][0]["name"] == json!(busy) && job["spec"]["targets"][1].is_null(), "{job:#}");
    let missing = format!("{}/replicaset/nope", cluster.namespace);
    cluster.create_ops("missing", json!({"type": "reboot", "inputs": [input("workload", &missing)]})).await?;
    cluster.until_ops_ended("missing", "Failed", "WorkloadNotFound").await?;
    let outside = json!({"type": "reboot", "inputs": [input("node", &idle), input("workload", &web)]});
    cluster.create_ops("outside", outside).await?;
    let job = cluster.until_ops_ended("outside", "Failed", "Invalid").await?;
    ensure!(said(&job, "Failed").contains("does not match the input workload"), "{job:#}");
    let check = json!({"type": "preflight", "inputs": [input("workspace", "w")], "image": "check:1", "entryPoint": "dHJ1ZQ==",
        "isTolerateAll": true, "securityUpgrade": true});
    cluster.create_ops("spared", check).await?;
    let job =
        cluster.until_ops("spared", "its targets are known", |job| job.pointer("/spec/targets").is_some()).await?;
    ensure!(job["spec"]["targets"][0]["name"] == json!(idle), "{job:#}");
    ensure!(job["spec"]["skipped"] == json!([{"node": busy, "reason": "Busy"}]), "{job:#}");
    let large = json!({"type": "preflight", "inputs": [input("node", &busy)], "image": "check:1", "entryPoint": "dHJ1ZQ==",
        "env": {"LARGE": "x".repeat(20_000)}, "isTolerateAll": true});
    cluster.create_ops("large", large).await?;
    let job = cluster.until_ops_ended("large", "Failed", "Invalid").await?;
    ensure!(said(&job, "Failed").contains("spec.env: together with image, hostpath and resource it has"), "{job:#}");
    // The next create of an OperationJob is refused, so the one of this job has to be over.
    let is_followed = |job: &Value| job.pointer("/status/operationJob").is_some();
    cluster.until_ops("spared", "its OperationJob is created", is_followed).await?;
    // The job reports a create that the API server refuses, and the host repeats the create.
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403,
        "message": "exceeded quota: few"});
    cluster.running()?.interceptor.order(Order::next(Method::POST, "/operationjobs", Then::Answer(403, status)));
    cluster.create_ops("refused", json!({"type": "reboot", "inputs": [input("node", &busy)]})).await?;
    let refused = |job: &Value| condition(job, "OperationJobCreated").is_some_and(|one| one["status"] == "False");
    let job = cluster.until_ops("refused", "its child is refused", refused).await?;
    ensure!(said(&job, "OperationJobCreated").contains("exceeded quota: few"), "{job:#}");
    let job = cluster.until_ops_ended("refused", "Succeeded", "Succeed").await?;
    ensure!(condition(&job, "OperationJobCreated").is_some_and(|one| one["status"] == "True"), "{job:#}");
    // The job also reports an object that the host may not read.
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403,
        "message": "no role for that"});
    cluster.running()?.interceptor.order(Order::next(
        Method::GET,
        "/validatingadmissionpolicies",
        Then::Answer(403, status),
    ));
    cluster.create_ops("unread", json!({"type": "reboot", "inputs": [input("node", &busy)]})).await?;
    let unread = |job: &Value| condition(job, "TargetsResolved").is_some_and(|one| one["status"] == "False");
    let job = cluster.until_ops("unread", "what it cannot read is told", unread).await?;
    ensure!(said(&job, "TargetsResolved").contains("no role for that"), "{job:#}");
    cluster.until_ops_ended("unread", "Succeeded", "Succeed").await?;
    // No plugin serves preflight here. The job says so and can be stopped.
    let unserved = |job: &Value| condition(job, "ActionAvailable").is_some_and(|one| one["status"] == "False");
    let job = cluster.until_ops("spared", "nobody serves it", unserved).await?;
    ensure!(said(&job, "ActionAvailable").contains("preflight"), "{job:#}");
    cluster.patch_ops("spared", json!({"spec": {"stop": true}})).await?;
    cluster.until_ops_ended("spared", "Failed", "Stopped").await?;
    end_well(cluster, &history).await
}

/// The host does nothing for a job without its admission policy, because only that policy checks the permissions of the job's creator.
pub async fn a_job_whose_writer_was_asked_for_no_rights_does_nothing(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let a = bootable(cluster, "a").await?;
    let history = begin(cluster, REBOOT).await?;
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(cluster.client.clone());
    let shipped = policies.get("opsjob.oarlock.dev").await?;
    policies.delete("opsjob.oarlock.dev", &DeleteParams::default()).await?;
    cluster.create_ops("unasked", reboot(&[&a], &json!({}))).await?;
    let job = cluster.until_ops_ended("unasked", "Failed", "PolicyMissing").await?;
    ensure!(said(&job, "Failed").contains("opsjob.oarlock.dev is missing: ask a cluster admin"), "{job:#}");
    let mut weaker = shipped.clone();
    weaker.metadata = ObjectMeta { name: shipped.metadata.name.clone(), ..ObjectMeta::default() };
    weaker.spec.iter_mut().for_each(|spec| spec.failure_policy = Some("Ignore".to_owned()));
    policies.create(&PostParams::default(), &weaker).await?;
    cluster.create_ops("half-asked", reboot(&[&a], &json!({}))).await?;
    let job = cluster.until_ops_ended("half-asked", "Failed", "PolicyMissing").await?;
    ensure!(said(&job, "Failed").contains("belongs to another version of Oarlock"), "{job:#}");
    let strict = json!({"spec": {"failurePolicy": "Fail"}});
    policies.patch("opsjob.oarlock.dev", &PatchParams::default(), &Patch::Merge(strict)).await?;
    cluster.create_ops("asked", reboot(&[&a], &json!({}))).await?;
    cluster.until_ops_ended("asked", "Succeeded", "Succeed").await?;
    ensure!(reboots(cluster, &[&a]) == [1]);
    end_well(cluster, &history).await
}
