//! The logs of a workload by REST, in memory. A real API server without kubelets has no logs.

use anyhow::{Context as _, ensure};
use http::Method;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use oarlock_scenarios::test_cluster::patiently;
use serde_json::{Value, json};

use super::served::{FAST, Sent, Served};

const JOBS: &str = "/api/v1/opsjobs";

fn dumplog(workload: &str) -> Value {
    json!({"name": "dump-log", "type": "dumplog", "inputs": [{"name": "workload", "value": workload}], "timeoutSecond": 3600})
}

async fn talker(served: &Served, namespace: &str, name: &str) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::namespaced(served.admin.clone(), namespace);
    let container =
        json!({"name": "c", "image": "busybox", "command": ["sh", "-c", "seq -f 'line %g' 100; sleep 900"]});
    let pod = json!({"metadata": {"name": name}, "spec": {"containers": [container]}});
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    patiently("the pod is Ready", async || {
        let conditions = pods.get(name).await?.status.and_then(|status| status.conditions).unwrap_or_default();
        Ok(conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
    })
    .await
}

/// Returns the path and query of an address.
fn path_of(address: &str) -> anyhow::Result<&str> {
    address.find("/artifacts/").and_then(|at| address.get(at..)).with_context(|| address.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_logs_of_a_workload_are_a_file_for_whoever_may_read_its_logs() -> anyhow::Result<()> {
    let served = Served::in_memory(&FAST).await?;
    let admin = served.token("admin").await?;
    talker(&served, "default", "talker").await?;
    talker(&served, "people", "talker").await?;
    let ambiguous = served.ask(Some(&admin), Method::POST, JOBS, Some(&dumplog("talker"))).await?;
    let (status, _, message) = ambiguous.refusal();
    ensure!(status == 400 && message.contains("default/pod/talker, people/pod/talker"), "{ambiguous:?}");
    // This account may create such jobs and read the pod, but not its logs.
    let rules = json!([{"apiGroups": ["oarlock.dev"], "resources": ["opsjobs", "opsjobs/dumplog"], "verbs": ["create", "get"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    served.allow("curious", &rules).await?;
    let curious = served.token("curious").await?;
    let refused = served.ask(Some(&curious), Method::POST, JOBS, Some(&dumplog("default/pod/talker"))).await?;
    let (status, _, message) = refused.refusal();
    ensure!(status == 403 && message.contains("get pods/log of core in namespace default"), "{refused:?}");
    let made = served.ask(Some(&admin), Method::POST, JOBS, Some(&dumplog("default/pod/talker"))).await?;
    ensure!(made.status == 200, "{made:?}");
    let id = made.text("/jobId").to_owned();
    let done = served.until(&admin, &id, |job| matches!(job.text("/phase"), "Succeeded" | "Failed")).await?;
    ensure!(done.text("/phase") == "Succeeded" && done.text("/workspaceId") == "default", "{done:?}");
    ensure!((done.output("lines"), done.output("missing")) == ("100", "[]"), "{done:?}");
    let path = path_of(done.output("endpoint"))?.to_owned();
    let file = served.ask(None, Method::GET, &path, None).await?;
    let text = file.body.as_str().context("a text")?.to_owned();
    let lines: Vec<&str> = text.lines().collect();
    ensure!(lines.len() == 100 && lines.iter().all(|line| line.contains(" default/talker/c line ")), "{text}");
    ensure!(done.output("size") == text.len().to_string(), "{done:?}");
    let part = Sent { body: Vec::new(), headers: &[("range", "bytes=0-29")] };
    let part = served.send(None, Method::GET, &path, part).await?;
    ensure!(part.status == 206 && part.body == json!(text.get(..30)), "{part:?}");
    // A caller who may read the job but not the logs gets no address.
    let seen = served.ask(Some(&curious), Method::GET, &format!("{JOBS}/{id}"), None).await?;
    ensure!(seen.status == 200 && seen.output("endpoint").is_empty() && seen.output("lines") == "100", "{seen:?}");
    Ok(())
}
