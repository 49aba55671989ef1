//! The files of OpsJobs in a bucket: a real S3 server, a host on a real control plane, and addresses that the store itself answers.

use anyhow::{Context as _, ensure};
use http::{Method, Request};
use kube::client::Body;
use kube::{Client, Config};
use oarlock_scenarios::test_cluster::patiently;
use serde_json::json;

use super::s3_server::{BUCKET, Server};
use super::served::{FAST, Served};

/// Returns the answer of the store at an address to a client without a key or a token.
async fn read(address: &str) -> anyhow::Result<(u16, String)> {
    let uri: http::Uri = address.parse()?;
    let authority = uri.authority().context("an address")?;
    let mut config = Config::new(format!("http://{authority}").parse()?);
    config.default_retry = false;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let answer = Client::try_from(config)?.send(Request::get(path).body(Body::empty())?).await?;
    let status = answer.status().as_u16();
    let bytes = http_body_util::BodyExt::collect(answer.into_body()).await.map_err(|error| anyhow::anyhow!(error))?;
    Ok((status, String::from_utf8_lossy(&bytes.to_bytes()).into_owned()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_is_in_the_bucket_and_read_at_an_address_of_the_store() -> anyhow::Result<()> {
    let mut store = Server::start("rest").await;
    let endpoint = store.options().endpoint.context("an address")?;
    let (place, endpoint) = (format!("--artefacts=s3://{BUCKET}/oarlock"), format!("--artefacts-endpoint={endpoint}"));
    let served = Served::real(&[FAST[0], FAST[1], &place, &endpoint]).await?;
    let admin = served.token("admin").await?;
    let body = json!({"name": "check", "type": "preflight", "inputs": [{"name": "node", "value": "node-0"}], "image": "busybox",
        "entryPoint": "dHJ1ZQ=="});
    let made = served.ask(Some(&admin), Method::POST, "/api/v1/opsjobs", Some(&body)).await?;
    ensure!(made.status == 200, "{made:?}");
    let id = made.text("/jobId");
    let job = served.until(&admin, id, |job| matches!(job.text("/phase"), "Succeeded" | "Failed")).await?;
    let address = job.output("report");
    ensure!(
        address.contains(&format!("/{BUCKET}/oarlock/artefacts/{id}/report-")) && address.contains("X-Amz-Signature="),
        "{job:?}"
    );
    let (status, text) = read(address).await?;
    ensure!(status == 200 && text.contains("node-0"), "{status} {text}");
    let (status, _) = read(&address.replace("X-Amz-Signature=", "X-Amz-Signature=0")).await?;
    ensure!(status == 403, "{status}");
    // The API itself has no file to serve.
    let own = served.ask(None, Method::GET, &format!("/artifacts/{id}/report.json?expires=1&sig=a"), None).await?;
    ensure!(matches!(own.status, 403 | 404), "{own:?}");

    // While the store is down, a check ends and says that its report could not be stored.
    store.kill();
    let made = served.ask(Some(&admin), Method::POST, "/api/v1/opsjobs", Some(&body)).await?;
    let job =
        served.until(&admin, made.text("/jobId"), |job| matches!(job.text("/phase"), "Succeeded" | "Failed")).await?;
    ensure!(job.output("report").contains("could not be stored"), "{job:?}");
    store.restart().await;
    patiently("a report is stored again", async || {
        let made = served.ask(Some(&admin), Method::POST, "/api/v1/opsjobs", Some(&body)).await?;
        let job = served.until(&admin, made.text("/jobId"), |job| matches!(job.text("/phase"), "Succeeded" | "Failed"));
        Ok(job.await?.output("report").contains("X-Amz-Signature="))
    })
    .await
}
