//! A server in its own process beside a host: its answers, even while it cannot rely on the text that the host publishes.

use anyhow::{Context as _, ensure};
use http::Method;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::Timestamp;
use kube::api::Api;
use oarlock_scenarios::test_cluster::patiently;
use oarlock_support::install;
use serde_json::{Value, json};

use super::served::{Answer, FAST, Served};

const JOBS: &str = "/api/v1/opsjobs";
/// The namespace of a server that reads the text that the test publishes.
const ELSEWHERE: &str = "elsewhere";

fn reboot() -> Value {
    json!({"name": "a", "type": "reboot", "inputs": [{"name": "node", "value": "node-0"}], "ttlSecondsAfterFinished": 3600})
}

/// Reads the text that the host has published.
async fn published(served: &Served) -> anyhow::Result<Value> {
    let maps: Api<ConfigMap> = Api::namespaced(served.admin.clone(), "oarlock-system");
    let mut text = None;
    let until = patiently("the host publishes", async || {
        text = maps.get("oarlock-host").await?.data.unwrap_or_default().remove("host.json");
        Ok(text.is_some())
    });
    until.await?;
    serde_json::from_str(&text.context("a text")?).map_err(Into::into)
}

/// Publishes this text for the server.
async fn publish(served: &Served, text: &str) -> anyhow::Result<()> {
    let document = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "oarlock-host", "namespace": ELSEWHERE}, "data": {"host.json": text}});
    install::apply(&served.admin, &document).await.map(drop)
}

/// Asks for a job until the answer has this status and these words.
async fn until_said(served: &Served, token: &str, status: u16, words: &str) -> anyhow::Result<()> {
    let (path, mut last) = (format!("{JOBS}?dryRun=All"), None);
    let until = patiently("it is said", async || {
        let answer = served.ask(Some(token), Method::POST, &path, Some(&reboot())).await?;
        let is_so = answer.status == status && answer.body.to_string().contains(words);
        last = Some(answer);
        Ok(is_so)
    });
    let until = until.await;
    until.with_context(|| format!("{status} {words}: {last:?}"))
}

/// Checks the reads that need no host.
async fn reads(served: &Served, token: &str, id: &str) -> anyhow::Result<()> {
    let listed = served.ask(Some(token), Method::GET, JOBS, None).await?;
    ensure!(listed.status == 200 && listed.text("/items/0/jobId") == id, "{listed:?}");
    let one = served.ask(Some(token), Method::GET, &format!("{JOBS}/{id}"), None).await?;
    ensure!(one.status == 200 && one.text("/jobId") == id, "{one:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_host_is_gone_or_set_otherwise_says_so_and_still_reads_stops_and_deletes() -> anyhow::Result<()>
{
    let mut served = Served::in_memory(&FAST).await?;
    let admin = served.token("admin").await?;
    let made = served.ask(Some(&admin), Method::POST, JOBS, Some(&reboot())).await?;
    let id = made.text("/jobId").to_owned();
    served.until(&admin, &id, Answer::has_ended).await?;
    let host = published(&served).await?;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": ELSEWHERE}});
    install::apply(&served.admin, &namespace).await?;
    served.answer_by_server(&["--namespace", ELSEWHERE]).await?;

    until_said(&served, &admin, 503, "no host has published its settings: check that the host runs").await?;
    reads(&served, &admin, &id).await?;
    let ready = served.ask(None, Method::GET, "/readyz", None).await?;
    ensure!(ready.status == 200, "{ready:?}");

    let with = |renewal: u64, more: &[(&str, Value)]| {
        let mut own = host.clone();
        own["renewal"] = json!(renewal);
        own["renewedAt"] = json!(Timestamp::now().as_second());
        for (pointer, value) in more {
            own.pointer_mut(pointer).into_iter().for_each(|at| *at = value.clone());
        }
        own.to_string()
    };
    publish(&served, &with(1, &[("/renewedAt", json!(1_000_000))])).await?;
    until_said(&served, &admin, 503, "the host has not renewed its settings for 90 s").await?;
    reads(&served, &admin, &id).await?;
    publish(&served, &with(2, &[("/settings/--history", json!("sha256:other"))])).await?;
    until_said(&served, &admin, 503, "the host and this server have different settings: --history;").await?;
    reads(&served, &admin, &id).await?;
    publish(&served, "no host").await?;
    until_said(&served, &admin, 503, "this version cannot read the settings of the host").await?;

    // The clock of the host differs by ten minutes.
    publish(&served, &with(3, &[("/renewedAt", json!(Timestamp::now().as_second() - 600))])).await?;
    until_said(&served, &admin, 200, "node-0").await?;
    publish(&served, &with(4, &[("/types/reboot", json!({"missing": "no plugin serves reboot: gone"}))])).await?;
    until_said(&served, &admin, 501, "no plugin serves reboot: gone").await?;
    publish(&served, "no host").await?;
    until_said(&served, &admin, 503, "this version cannot read the settings of the host").await?;
    let stopped = served.ask(Some(&admin), Method::POST, &format!("{JOBS}/{id}/stop"), None).await?;
    ensure!(stopped.status == 200, "{stopped:?}");
    let deleted = served.ask(Some(&admin), Method::DELETE, &format!("{JOBS}/{id}"), None).await?;
    ensure!(deleted.status == 200, "{deleted:?}");
    served.until_gone(&id).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_other_settings_than_its_host_makes_no_job_and_names_them() -> anyhow::Result<()> {
    let mut served = Served::in_memory(&FAST).await?;
    let admin = served.token("admin").await?;
    published(&served).await?;
    served.answer_by_server(&["--cluster-id", "other", "--history", "sqlite:/nowhere/history.db"]).await?;
    until_said(&served, &admin, 503, "different settings: --cluster-id, --history; give both the same").await?;
    // The server checks rights first.
    let nobody = served.token("nobody").await?;
    let refused = served.ask(Some(&nobody), Method::POST, JOBS, Some(&reboot())).await?;
    ensure!(refused.status == 403, "{refused:?}");
    Ok(())
}
