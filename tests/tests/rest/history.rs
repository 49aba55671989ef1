//! OpsJobs that are gone: in a file beside a cluster in memory, and in a real PostgreSQL beside a real control plane.

use anyhow::{Context as _, ensure};
use http::Method;
use oarlock_bed::postgres::{PASSWORD, Postgres};
use serde_json::{Value, json};

use super::served::{Answer, FAST, Sent, Served};

const JOBS: &str = "/api/v1/opsjobs";

fn reboot(node: &str, ttl: i64) -> Value {
    json!({"name": "Reboot 1", "type": "reboot", "ttlSecondsAfterFinished": ttl,
        "inputs": [{"name": "node", "value": node}, {"name": "label", "value": "a,\"{\n\u{1F680}"}]})
}

fn has_ended(job: &Answer) -> bool {
    matches!(job.text("/phase"), "Succeeded" | "Failed")
}

async fn make(served: &Served, token: &str, body: &Value) -> anyhow::Result<String> {
    let made = served.ask(Some(token), Method::POST, JOBS, Some(body)).await?;
    ensure!(made.status == 200, "{made:?}");
    Ok(made.text("/jobId").to_owned())
}

async fn play(served: &Served) -> anyhow::Result<()> {
    let admin = served.token("admin").await?;
    let nobody = served.token("nobody").await?;
    // One is deleted by hand, one goes by itself.
    let (deleted, expired) =
        (make(served, &admin, &reboot("node-0", 3_600)).await?, make(served, &admin, &reboot("node-1", 2)).await?);
    let before = served.until(&admin, &deleted, has_ended).await?;
    ensure!(before.text("/phase") == "Succeeded", "{before:?}");
    let path = format!("{JOBS}/{deleted}");
    for _ in 0..2 {
        let answer = served.ask(Some(&admin), Method::DELETE, &path, None).await?;
        ensure!(answer.status == 200 && answer.body.is_null(), "{answer:?}");
        served.until_gone(&deleted).await?;
    }
    served.until_gone(&expired).await?;
    let after = served.ask(Some(&admin), Method::GET, &path, None).await?;
    ensure!(after.text("/deletionTime").len() == "2026-01-01T00:00:00".len(), "{after:?}");
    let without_deletion = |answer: &Answer| {
        let mut body = answer.body.clone();
        body.as_object_mut().map(|fields| fields.remove("deletionTime"));
        body
    };
    ensure!(without_deletion(&after) == without_deletion(&before), "{after:?}\nis not\n{before:?}");
    for (method, verb) in [(Method::DELETE, ""), (Method::POST, "/stop")] {
        let answer = served.ask(Some(&admin), method, &format!("{path}{verb}"), None).await?;
        ensure!(answer.status == 200 && answer.body.is_null(), "{answer:?}");
    }

    // One that lives is in the list with them, and a page has what is on it.
    let lives = make(served, &admin, &reboot("node-2", 3_600)).await?;
    let mut paged = Vec::new();
    for offset in 0..4 {
        let path = format!("{JOBS}?sortBy=jobId&order=asc&limit=1&offset={offset}");
        let page = served.ask(Some(&admin), Method::GET, &path, None).await?;
        ensure!(*page.at("/totalCount") == json!(3), "{page:?}");
        paged.extend(page.at("/items").as_array().context("items")?.iter().map(|item| item["jobId"].clone()));
    }
    let mut all = [deleted.as_str(), &expired, &lives];
    all.sort_unstable();
    ensure!(json!(paged) == json!(all), "{paged:?} is not {all:?}");
    let path_found = format!("{JOBS}?phase=Succeeded&jobName=BOOT%201&type=reboot");
    let found = served.ask(Some(&admin), Method::GET, &path_found, None).await?;
    ensure!(found.at("/totalCount").as_i64() >= Some(2), "{found:?}");

    // A request under a key is the same one although its job is gone.
    let send = async |body: Value| {
        let sent = Sent { body: body.to_string().into_bytes(), headers: &[("idempotency-key", "k-1")] };
        served.send(Some(&admin), Method::POST, JOBS, sent).await
    };
    let first = send(reboot("node-0", 0)).await?;
    served.until_gone(first.text("/jobId")).await?;
    let second = send(reboot("node-0", 0)).await?;
    ensure!(second.status == 200 && second.body == first.body, "{second:?} is not {first:?}");
    let other = send(reboot("node-1", 0)).await?;
    ensure!(other.refusal().0 == 409, "{other:?}");

    // What somebody may not see is not there, gone or not.
    let hidden = served.ask(Some(&nobody), Method::GET, &path, None).await?;
    let unknown = served.ask(Some(&nobody), Method::GET, &format!("{JOBS}/unknown-bcdfgh"), None).await?;
    let words = |answer: &Answer, id: &str| (answer.status, answer.body.to_string().replace(id, ""));
    ensure!(words(&hidden, &deleted) == words(&unknown, "unknown-bcdfgh"), "{hidden:?} {unknown:?}");
    let listed = served.ask(Some(&nobody), Method::GET, JOBS, None).await?;
    ensure!(*listed.at("/totalCount") == json!(0), "{listed:?}");
    let refused = served.ask(Some(&nobody), Method::POST, JOBS, Some(&reboot("node-0", 1))).await?;
    ensure!(refused.status == 403, "{refused:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_are_gone_stay_known_in_a_file() -> anyhow::Result<()> {
    play(&Served::in_memory(&FAST).await?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_are_gone_stay_known_in_postgresql_while_it_comes_and_goes() -> anyhow::Result<()> {
    let mut server = Postgres::start()?;
    let history = format!("--history={}", server.url());
    let served = Served::real(&[FAST[0], FAST[1], &history]).await?;
    play(&served).await?;
    // Who asked for what, refused or not, with the end of each.
    let asked = "SELECT verb, status, count(*) FROM audit WHERE user_name LIKE '%:admin' AND job_id <> '' GROUP BY 1, 2 ORDER BY 1, 2";
    server.until(asked, "DELETE|200|3\nPOST|200|5\nstop|200|1")?;
    server.until(
        "SELECT count(*) FROM audit WHERE user_name LIKE '%:nobody' AND status = 403 AND code = 'Primus.00003'",
        "1",
    )?;

    // While it is down, what lives is seen, stopped and deleted; nothing is made.
    let admin = served.token("admin").await?;
    let sleeps = json!({"name": "sleeps", "type": "preflight", "inputs": [{"name": "node", "value": "node-0"}], "image": "busybox",
        "entryPoint": "IyBzaW06IHNsZWVwIDYwCnNsZWVwIDYwMA=="});
    let id = make(&served, &admin, &sleeps).await?;
    served.until(&admin, &id, |job| job.text("/phase") == "Running").await?;
    server.kill();
    let listed = served.ask(Some(&admin), Method::GET, JOBS, None).await?;
    let warning = listed.headers.get("warning").and_then(|value| value.to_str().ok()).unwrap_or_default();
    ensure!(listed.body.to_string().contains(&id) && warning.contains("jobs that are gone are missing"), "{listed:?}");
    let refused = served.ask(Some(&admin), Method::POST, JOBS, Some(&sleeps)).await?;
    ensure!(refused.status == 503 && refused.text("/errorMessage").contains("history"), "{refused:?}");
    let path = format!("{JOBS}/{id}");
    for (method, verb) in [(Method::POST, "/stop"), (Method::DELETE, "")] {
        let answer = served.ask(Some(&admin), method, &format!("{path}{verb}"), None).await?;
        ensure!(answer.status == 200, "{answer:?}");
    }
    let stopped = served.until(&admin, &id, |job| has_ended(job) && !job.text("/deletionTime").is_empty()).await?;
    ensure!(stopped.body.to_string().contains("\"reason\":\"Stopped\""), "{stopped:?}");
    server.run()?;
    served.until_gone(&id).await?;
    let after = served.ask(Some(&admin), Method::GET, &path, None).await?;
    // The signature of an address lasts for minutes.
    let lasting = |answer: &Answer| {
        let text = answer.body.to_string();
        let parts = text.split("?expires=").map(|part| part.find('"').map_or(part, |end| &part[end..]).to_owned());
        let first = text.split("?expires=").next().unwrap_or_default().to_owned();
        std::iter::once(first).chain(parts.skip(1)).collect::<String>()
    };
    ensure!(lasting(&after) == lasting(&stopped), "{after:?}\nis not\n{stopped:?}");
    server.until("SELECT count(*) FROM audit WHERE status = 0", "0")?;

    let log = std::fs::read_to_string(served.log())?;
    ensure!(!log.contains(PASSWORD) && log.contains("the history is written again"), "{log}");
    Ok(())
}
