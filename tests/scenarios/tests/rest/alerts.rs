//! The alerts of the REST server, of the history and of the store of artefacts fire in their troubles, and in no other.

use anyhow::{Context as _, ensure};
use http::Method;
use oarlock_scenarios::monitoring::processes::Scraped;
use oarlock_scenarios::monitoring::promtool;
use oarlock_scenarios::monitoring::timeline::Timeline;
use oarlock_scenarios::test_cluster::patiently;
use oarlock_support::small_disk;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::served::{Answer, FAST, Served};

const JOBS: &str = "/api/v1/opsjobs";
/// More connections than one address may have.
const CROWD: usize = 64;

fn reboot(node: &str, ttl: i64) -> Value {
    json!({"name": "a", "type": "reboot", "inputs": [{"name": "node", "value": node}], "ttlSecondsAfterFinished": ttl})
}

fn check(node: &str) -> Value {
    json!({"name": "a", "type": "preflight", "inputs": [{"name": "node", "value": node}], "image": "busybox",
        "entryPoint": "dHJ1ZQ==", "ttlSecondsAfterFinished": 3_600})
}

/// Creates a job and returns its id.
async fn make(served: &Served, token: &str, body: &Value) -> anyhow::Result<String> {
    let made = served.ask(Some(token), Method::POST, JOBS, Some(body)).await?;
    ensure!(made.status == 200, "{made:?}");
    Ok(made.text("/jobId").to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_alert_fires_while_rest_is_used() -> anyhow::Result<()> {
    let mut served = Served::in_memory(&FAST).await?;
    let (host, mut timeline) = (Scraped::of(&mut served.child).await?, Timeline::default());
    let admin = served.token("admin").await?;
    timeline.scrape("host", &host.until_calm().await?)?;
    timeline.pass(10);
    for body in [reboot("node-0", 3_600), check("node-1")] {
        let id = make(&served, &admin, &body).await?;
        served.until(&admin, &id, Answer::has_ended).await?;
    }
    for (method, path, status) in [(Method::GET, "/api/v1/opsjobs/none", 404), (Method::PUT, JOBS, 405)] {
        let refused = served.ask(Some(&admin), method, path, None).await?;
        ensure!(refused.status == status, "{refused:?}");
    }
    timeline.scrape("host", &host.until_calm().await?)?;
    timeline.pass(30);
    promtool::fires(&timeline, &[])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_host_has_published_nothing_is_reported() -> anyhow::Result<()> {
    let mut served = Served::in_memory(&FAST).await?;
    let admin = served.token("admin").await?;
    let (host, mut timeline) = (Scraped::of(&mut served.child).await?, Timeline::default());
    served.answer_by_server(&["--namespace", "elsewhere"]).await?;
    let server = Scraped::of(served.server.as_mut().context("a server runs")?).await?;
    for _ in 0..3 {
        let refused = served.ask(Some(&admin), Method::POST, JOBS, Some(&reboot("node-0", 60))).await?;
        ensure!(refused.status == 503, "{refused:?}");
        timeline.scrape("host", &host.until_calm().await?)?;
        timeline.scrape("server", &server.text().await?)?;
        timeline.pass(12);
    }
    promtool::fires(&timeline, &["OarlockRestErrors", "OarlockRestHostMissing"])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_of_connections_is_reported() -> anyhow::Result<()> {
    let mut served = Served::in_memory(&FAST).await?;
    let (host, mut timeline) = (Scraped::of(&mut served.child).await?, Timeline::default());
    timeline.scrape("host", &host.until_calm().await?)?;
    timeline.pass(10);
    let mut held = Vec::new();
    for _ in 0..CROWD {
        // The server may close a connection before it is open here.
        held.extend(TcpStream::connect(served.address()).await);
    }
    timeline.scrape("host", &host.until_above("oarlock_rest_connections_closed_total", 0.0).await?)?;
    drop(held);
    promtool::fires(&timeline, &["OarlockRestConnectionsRefused"])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_that_cannot_be_written_is_reported() -> anyhow::Result<()> {
    let (mut served, disk) = Served::beside_small_disk(&FAST).await?;
    let admin = served.token("admin").await?;
    let (host, mut timeline) = (Scraped::of(&mut served.child).await?, Timeline::default());
    let lives = make(&served, &admin, &reboot("node-2", 3_600)).await?;
    timeline.scrape("host", &host.until_calm().await?)?;
    timeline.pass(5);
    small_disk::fill(&served.child, &disk)?;
    served.until(&admin, &lives, Answer::has_ended).await?;
    // SQLite first fills the space that its files have reserved.
    let full = patiently("the history is full", async || {
        for _ in 0..50 {
            served.ask(Some(&admin), Method::DELETE, &format!("{JOBS}/unknown-bcdfgh"), None).await?;
        }
        Ok(served.ask(Some(&admin), Method::POST, JOBS, Some(&reboot("node-0", 1))).await?.status == 503)
    });
    full.await?;
    served.ask(Some(&admin), Method::DELETE, &format!("{JOBS}/{lives}"), None).await?;
    timeline.scrape("host", &host.until_above("oarlock_history_jobs_waiting", 0.0).await?)?;
    timeline.pass(20);
    promtool::fires(&timeline, &["OarlockHistoryBehind"])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_artefacts_that_is_away_is_reported() -> anyhow::Result<()> {
    let data = std::env::temp_dir().join(format!("oarlock-alerts-{}-data", std::process::id()));
    std::fs::create_dir_all(&data)?;
    let path = data.display().to_string();
    let mut served = Served::in_memory(&[&FAST[..], &["--data", &path]].concat()).await?;
    let admin = served.token("admin").await?;
    let (host, mut timeline) = (Scraped::of(&mut served.child).await?, Timeline::default());
    timeline.scrape("host", &host.until_calm().await?)?;
    timeline.pass(20);
    // The folder is a file now, as if the volume was replaced.
    std::fs::remove_dir_all(data.join("artefacts"))?;
    std::fs::write(data.join("artefacts"), "")?;
    make(&served, &admin, &check("node-1")).await?;
    let failed = r#"oarlock_artefact_requests_total{outcome="failed"}"#;
    timeline.scrape("host", &host.until_above(failed, 0.0).await?)?;
    std::fs::remove_dir_all(&data)?;
    promtool::fires(&timeline, &["OarlockArtefactsFail"])
}
