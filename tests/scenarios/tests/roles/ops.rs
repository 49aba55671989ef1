//! Requests that the policies of OpsJobs allow and refuse, on a real API server.

use http::Method;
use kube::Client;
use oarlock::manifests::{HostAccount, ops_manifests, rest_manifests};
use oarlock_sim::Cluster;
use oarlock_support::accounts::Account;
use oarlock_support::install::{self, Way};
use serde_json::{Value, json};

use super::policies::{Requests, allow, operation, operations_of, owned, plane};

const JOBS: &str = "/apis/oarlock.dev/v1alpha1/opsjobs";

fn ops(name: &str, inputs: &[(&str, &str)], more: &Value) -> Value {
    let inputs: Vec<Value> = inputs.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    let mut job = json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "OpsJob", "metadata": {"name": name},
        "spec": {"type": "reboot", "inputs": inputs}});
    if let (Some(spec), Some(more)) = (job.pointer_mut("/spec").and_then(Value::as_object_mut), more.as_object()) {
        spec.extend(more.clone());
    }
    job
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_makes_an_ops_job_may_make_its_type_and_read_each_workload_that_it_names() -> anyhow::Result<()> {
    let plane = plane(&ops_manifests(&HostAccount::default())).await?;
    let (user, admin) = (Requests::of(&plane, Account::Visitor).await?, Requests::of(&plane, Account::Admin).await?);
    let name = Account::Visitor.user();
    let verbs = ["create", "get", "patch", "update"];
    let on_jobs = json!({"apiGroups": ["oarlock.dev"], "resources": ["opsjobs"], "verbs": verbs});
    allow(&admin.client, "jobs", name, &json!([on_jobs])).await?;
    let of_node = |name: &str, more: &Value| ops(name, &[("node", "a")], more);
    user.refused(Method::POST, JOBS, &of_node("a", &json!({})), "you may not create opsjobs/reboot of oarlock.dev")
        .await?;
    let of_type = json!({"apiGroups": ["oarlock.dev"], "resources": ["opsjobs/reboot"], "verbs": ["create"]});
    allow(&admin.client, "types", name, &json!([of_type])).await?;
    user.once_accepted(JOBS, &of_node("a", &json!({}))).await?;
    user.accepted(Method::POST, JOBS, &of_node("a", &json!({}))).await?;
    let check = json!({"type": "preflight", "image": "i", "entryPoint": "dHJ1ZQ=="});
    user.refused(Method::POST, JOBS, &of_node("b", &check), "you may not create opsjobs/preflight").await?;
    let script = ops("b", &[("node", "a"), (" Script", "x")], &json!({}));
    user.refused(Method::POST, JOBS, &script, "you may not create opsjobs/script").await?;
    let found = json!({"targets": [{"name": "a", "uid": "u"}]});
    user.refused(Method::POST, JOBS, &of_node("b", &found), "only the host sets these fields").await?;
    user.refused(Method::POST, JOBS, &of_node("b", &json!({"requester": {"name": "x"}})), "your own name").await?;
    let own = format!("{JOBS}/a");
    let patch = |spec: Value| json!({ "spec": spec });
    user.refused(Method::PATCH, &own, &patch(found), "only the host sets these fields, and only once").await?;
    user.refused(Method::PATCH, &own, &patch(json!({"batchCount": 9})), "only stop and ttlSecondsAfterFinished")
        .await?;
    user.accepted(Method::PATCH, &own, &patch(json!({"ttlSecondsAfterFinished": 9}))).await?;
    user.accepted(Method::PATCH, &own, &patch(json!({"stop": true}))).await?;
    // Rights on workloads.
    let workloads = ["granted/pod/a", "granted/pod/b", "granted/deployment/c", "granted/pod/d", "granted/pod/e"];
    let inputs = workloads.map(|workload| ("workload", workload));
    let pods = json!({"apiGroups": [""], "resources": ["pods"], "resourceNames": ["a", "b", "d"], "verbs": ["get"]});
    let deployments = json!({"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get"]});
    user.refused(Method::POST, JOBS, &ops("w", &inputs[..1], &json!({})), "you may not get the workload").await?;
    allow(&admin.client, "workloads", name, &json!([pods, deployments])).await?;
    user.once_accepted(JOBS, &ops("w", &inputs[..4], &json!({}))).await?;
    user.refused(Method::POST, JOBS, &ops("w", &inputs[1..], &json!({})), "you may not get the workload").await?;
    user.refused(Method::POST, JOBS, &ops("w", &inputs, &json!({})), "at most 4 workloads").await?;
    let many = [("workload", "granted/pod/a"); 300];
    user.refused(Method::POST, JOBS, &ops("w", &many, &json!({})), "at most 4 workloads").await?;
    user.refused(Method::POST, JOBS, &ops("w", &[("workload", "a")], &json!({})), "namespace/kind/name").await?;
    let commit = ops("x", &[("workload", "granted/pod/a"), ("mode", "commit")], &json!({"type": "exportimage"}));
    let of_type = json!({"apiGroups": ["oarlock.dev"], "resources": ["opsjobs/exportimage"], "verbs": ["create"]});
    allow(&admin.client, "exports", name, &json!([of_type])).await?;
    user.refused(Method::POST, JOBS, &commit, "you may not create pods/exec").await?;
    let exec = json!({"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]});
    allow(&admin.client, "exec", name, &json!([exec])).await?;
    user.once_accepted(JOBS, &commit).await?;
    // The policy recognises the host by its right.
    let host = Requests::of(&plane, Account::Host).await?;
    let targets = json!([{"op": "add", "path": "/spec/targets", "value": [{"name": "a", "uid": "u"}]}]);
    host.accepted(Method::PATCH, &own, &targets).await?;
    host.refused(Method::PATCH, &own, &patch(json!({"targets": [{"name": "b", "uid": "v"}]})), "once").await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operation_job_of_an_ops_job_is_what_the_host_says_whoever_may_write_there() -> anyhow::Result<()> {
    let plane = plane(&ops_manifests(&HostAccount::default())).await?;
    let (user, admin) = (Requests::of(&plane, Account::Visitor).await?, Requests::of(&plane, Account::Admin).await?);
    let collector = "system:serviceaccount:kube-system:generic-garbage-collector";
    let rules = json!([{"apiGroups": ["apps.kusionstack.io"], "resources": ["operationjobs", "operationjobs/status"], "verbs": ["*"]},
        {"apiGroups": ["oarlock.dev"], "resources": ["opsjobs", "opsjobs/finalizers"], "verbs": ["*"]}]);
    allow(&admin.client, "editor", Account::Visitor.user(), &rules).await?;
    let path = operations_of("oarlock-ops");
    let (words, owner) =
        ("may create or change OperationJobs in oarlock-ops", owned("oarlock.dev/v1alpha1", "OpsJob", true));
    user.refused(Method::POST, &path, &operation("j", &owner), words).await?;
    let host = Requests::of(&plane, Account::Host).await?;
    host.accepted(Method::POST, &path, &operation("j", &owner)).await?;
    let own = format!("{path}/j");
    let forged = json!({"status": {"progress": "Succeeded", "totalPodCount": 1, "succeededPodCount": 1}});
    host.accepted(Method::PATCH, &format!("{own}/status"), &json!({"status": {"progress": "Pending"}})).await?;
    user.refused(Method::PATCH, &format!("{own}/status"), &forged, words).await?;
    user.refused(Method::PATCH, &own, &json!({"spec": {"paused": true}}), words).await?;
    user.refused(Method::PATCH, &own, &json!({"metadata": {"ownerReferences": null}}), words).await?;
    user.refused(Method::PATCH, &own, &json!({"metadata": {"finalizers": ["e.test/f"]}}), words).await?;
    user.accepted(Method::PATCH, &own, &json!({"metadata": {"labels": {"a": "b"}}})).await?;
    let collector = Requests { client: admin.client.clone(), user: Some(collector) };
    collector.accepted(Method::PATCH, &own, &json!({"metadata": {"ownerReferences": null}})).await?;
    // OperationJobs on pods are in namespaces where other users may create OperationJobs too. A grant lets the host create them there.
    allow(&admin.client, "granted", Account::Host.user(), &rules).await?;
    let there = operations_of("default");
    let (words, mut logs) = ("may create or change OperationJobs of this action", operation("logs", &owner));
    user.accepted(Method::POST, &there, &operation("others", &owner)).await?;
    let spec = json!({"action": "dumplog", "targets": [{"name": "p"}]});
    logs.as_object_mut().and_then(|all| all.insert("spec".to_owned(), spec));
    user.refused(Method::POST, &there, &logs, words).await?;
    host.accepted(Method::POST, &there, &logs).await?;
    let own = format!("{there}/logs");
    user.refused(Method::PATCH, &format!("{own}/status"), &forged, words).await?;
    user.refused(Method::PATCH, &own, &json!({"spec": {"paused": true}}), words).await?;
    user.accepted(Method::PATCH, &own, &json!({"metadata": {"labels": {"a": "b"}}})).await
}

/// Creates OpsJobs for others as the REST server does, and tries what a thief of its account would try.
async fn play_server(admin: &Client) -> anyhow::Result<()> {
    let name = Account::Server.user();
    let server = Requests { client: admin.clone(), user: Some(name) };
    let for_another = json!({"requester": {"id": "7", "name": "ann"}, "workspace": "w",
        "targets": [{"name": "a", "uid": "u"}], "skipped": [{"node": "b", "reason": "Excluded"}]});
    let made = ops("a", &[("node", "a"), ("workload", "granted/pod/a"), ("script", "x")], &for_another);
    server.once_accepted(JOBS, &made).await?;
    server.accepted(Method::POST, JOBS, &made).await?;
    let secrets = json!({"type": "exportimage", "pullSecrets": [{"namespace": "granted", "name": "s"}]});
    let export = ops("b", &[("workload", "granted/pod/a"), ("mode", "commit")], &secrets);
    server.accepted(Method::POST, JOBS, &export).await?;
    let logs = ops("c", &[("workload", "granted/pod/a")], &json!({"type": "dumplog"}));
    server.accepted(Method::POST, JOBS, &logs).await?;
    // After the creation, the right allows no further change.
    let (own, alone) = (format!("{JOBS}/a"), "may change only spec.stop");
    let patch = |spec: Value| json!({ "spec": spec });
    let once = "only the host sets these fields, and only once";
    for change in [json!({"targets": [{"name": "b", "uid": "v"}]}), json!({"skipped": null}), json!({"workspace": "v"})]
    {
        server.refused(Method::PATCH, &own, &patch(change), once).await?;
    }
    server.refused(Method::PATCH, &format!("{JOBS}/b"), &patch(json!({"targets": []})), once).await?;
    server.refused(Method::PATCH, &own, &patch(json!({"requester": {"name": "bob"}})), "only stop and ttl").await?;
    server.refused(Method::PATCH, &own, &patch(json!({"ttlSecondsAfterFinished": 9})), alone).await?;
    server.refused(Method::PATCH, &own, &json!({"metadata": {"finalizers": ["e.test/f"]}}), alone).await?;
    server
        .refused(Method::PATCH, &own, &json!({"metadata": {"ownerReferences": owned("v1", "ConfigMap", false)}}), alone)
        .await?;
    server.accepted(Method::PATCH, &own, &patch(json!({"stop": true}))).await?;
    server
        .refused(Method::PATCH, &format!("{own}/status"), &json!({"status": {"phase": "Succeeded"}}), "forbidden")
        .await?;
    server.accepted(Method::DELETE, &own, &Value::Null).await?;
    // The right does not let the server act as the host for OperationJobs either.
    let path = operations_of("oarlock-ops");
    let child = operation("j", &owned("oarlock.dev/v1alpha1", "OpsJob", true));
    server.refused(Method::POST, &path, &child, "forbidden").await?;
    let rules = json!([{"apiGroups": ["apps.kusionstack.io"], "resources": ["operationjobs"], "verbs": ["*"]},
        {"apiGroups": ["oarlock.dev"], "resources": ["opsjobs/finalizers"], "verbs": ["*"]}]);
    allow(admin, "server-operations", name, &rules).await?;
    server.refused(Method::POST, &path, &child, "may create or change OperationJobs in oarlock-ops").await?;
    let mut logs = operation("logs", &json!([]));
    let spec = json!({"action": "dumplog", "targets": [{"name": "p"}]});
    logs.as_object_mut().and_then(|all| all.insert("spec".to_owned(), spec));
    server
        .refused(Method::POST, &operations_of("default"), &logs, "may create or change OperationJobs of this action")
        .await
}

fn served() -> String {
    let host = HostAccount::default();
    [ops_manifests(&host), rest_manifests(&host)].join("---\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_account_of_the_server_makes_ops_jobs_for_others_and_changes_nothing_but_stop() -> anyhow::Result<()> {
    let plane = plane(&served()).await?;
    play_server(&plane.client(Account::Admin).await?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_account_of_the_server_does_so_in_memory_too() -> anyhow::Result<()> {
    let clock = std::sync::Arc::new(oarlock_sim::RealClock);
    let cluster = Cluster::new(oarlock_sim::Options { clock, ..oarlock_sim::Options::default() });
    let admin = Client::new(cluster.service(), "default");
    let documents = install::documents(&[oarlock::manifests()?, served()].join("---\n"))?;
    install::install(&admin, &documents, Way::CreateMissing).await?;
    play_server(&admin).await
}
