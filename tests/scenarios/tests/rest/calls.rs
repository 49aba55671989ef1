//! The calls of the documented API, from the creation of a job to its end.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};
use http::Method;
use serde_json::{Value, json};

use super::served::{Answer, FAST, Sent, Served};

const JOBS: &str = "/api/v1/opsjobs";

async fn create(served: &Served, token: &str, body: &Value) -> anyhow::Result<String> {
    let answer = served.ask(Some(token), Method::POST, JOBS, Some(body)).await?;
    ensure!(answer.status == 200, "{body}: {answer:?}");
    Ok(answer.text("/jobId").to_owned())
}

fn reboot(name: &str, node: &str) -> Value {
    json!({"name": name, "type": "reboot", "inputs": [{"name": "node", "value": node}], "ttlSecondsAfterFinished": 3600})
}

async fn play(served: &Served) -> anyhow::Result<()> {
    let token = served.token("admin").await?;
    // The documented reboot and preflight, with names of this cluster.
    let id = create(served, &token, &reboot("Reboot_Node 1", "node-0")).await?;
    ensure!(id.starts_with("reboot-node-1-") && id.len() == "reboot-node-1-".len() + 6, "{id}");
    let busy = served.ask(Some(&token), Method::POST, JOBS, Some(&reboot("b", "node-0"))).await?;
    let (status, code, message) = busy.refusal();
    ensure!((status, code) == (409, "Primus.00010") && message.contains(&id) && message.contains("node-0"), "{busy:?}");
    let check = br#"{"name": "preflight-check", "type": "preflight", "inputs": [{"name": "node", "value": "node-1"},
        {"name": "label", "value": "a, \"quoted\" {brace}\nline \ud83d\ude00"}],
        "resource": {"cpu": "100m", "memory": "32Mi"}, "image": "busybox", "entryPoint": "ZWNobyBvaw==", "env": {"CHECK_DISK": "true"},
        "hostpath": ["/var/log"], "ttlSecondsAfterFinished": 3600, "timeoutSecond": 7200, "isTolerateAll": true, "hostpath": ["/var/log/x"]}"#;
    let answer = served
        .send(
            Some(&token),
            Method::POST,
            JOBS,
            Sent { body: check.to_vec(), headers: &[("content-type", "text/plain")] },
        )
        .await?;
    ensure!(answer.status == 200, "{answer:?}");
    let checked = answer.text("/jobId").to_owned();
    let done = served.until(&token, &checked, Answer::has_ended).await?;
    ensure!(done.text("/phase") == "Succeeded", "{done:?}");
    ensure!(*done.at("/hostpath") == json!(["/var/log", "/var/log/x"]), "{done:?}");
    ensure!(done.text("/inputs/1/value") == "a, \"quoted\" {brace}\nline \u{1f600}", "{done:?}");
    ensure!(done.text("/outputs/0/value") == r#"{"failed_nodes":[],"healthy_nodes":["node-1"]}"#, "{done:?}");
    let done = served.until(&token, &id, Answer::has_ended).await?;
    ensure!((done.text("/phase"), done.text("/jobName")) == ("Succeeded", "Reboot_Node 1"), "{done:?}");
    let fields: BTreeSet<&str> = done.body.as_object().context("an object")?.keys().map(String::as_str).collect();
    for field in [
        "jobId",
        "conditions",
        "inputs",
        "outputs",
        "env",
        "resource",
        "image",
        "entryPoint",
        "isTolerateAll",
        "hostpath",
        "waitingFor",
    ] {
        ensure!(fields.contains(field), "{field}: {done:?}");
    }
    ensure!(done.body.as_object().is_some_and(|fields| fields.values().all(|value| !value.is_null())), "{done:?}");
    // Lists of jobs.
    let listed =
        served.ask(Some(&token), Method::GET, &format!("{JOBS}?type=reboot&phase=Succeeded&limit=1"), None).await?;
    ensure!(*listed.at("/totalCount") == json!(1) && listed.text("/items/0/jobId") == id, "{listed:?}");
    let listed =
        served.ask(Some(&token), Method::GET, &format!("{JOBS}?sortBy=jobName&order=asc&offset=1"), None).await?;
    ensure!(
        *listed.at("/totalCount") == json!(2)
            && listed.text("/items/0/jobId") == checked
            && listed.at("/items/1").is_null(),
        "{listed:?}"
    );
    // The test stops and deletes a running job.
    let sleeps = json!({"name": "sleeps", "type": "preflight", "inputs": [{"name": "node", "value": "node-2"}], "image": "busybox",
        "entryPoint": "IyBzaW06IHNsZWVwIDYwCnNsZWVwIDYwMA=="});
    let sleeping = create(served, &token, &sleeps).await?;
    served.until(&token, &sleeping, |job| job.text("/phase") == "Running").await?;
    let stop = format!("{JOBS}/{sleeping}/stop");
    for _ in 0..2 {
        let stopped = served.ask(Some(&token), Method::POST, &stop, None).await?;
        ensure!(stopped.status == 200 && stopped.body.is_null(), "{stopped:?}");
    }
    let stopped = served.until(&token, &sleeping, Answer::has_ended).await?;
    ensure!(stopped.body.to_string().contains("\"reason\":\"Stopped\""), "{stopped:?}");
    let again = create(served, &token, &sleeps).await?;
    served.until(&token, &again, |job| job.text("/phase") == "Running").await?;
    let path = format!("{JOBS}/{again}");
    ensure!(served.ask(Some(&token), Method::DELETE, &path, None).await?.status == 200, "a job in work is deleted");
    served.until_gone(&again).await?;
    let gone = served.ask(Some(&token), Method::GET, &path, None).await?;
    ensure!(gone.text("/phase") == "Failed" && !gone.text("/deletionTime").is_empty(), "{gone:?}");
    // A repeated idempotency key returns the first job.
    let keyed = json!({"name": "keyed", "type": "reboot", "inputs": [{"name": "node", "value": "node-2"}]});
    let send = async |body: &Value| {
        let headers = [("idempotency-key", "k-1"), ("x-request-id", "mine")];
        served
            .send(Some(&token), Method::POST, JOBS, Sent { body: body.to_string().into_bytes(), headers: &headers })
            .await
    };
    let (first, second) = (send(&keyed).await?, send(&keyed).await?);
    ensure!(first.status == 200 && first.text("/jobId") == second.text("/jobId"), "{first:?} {second:?}");
    ensure!(first.headers.get("x-request-id").is_some_and(|id| id == "mine"), "{first:?}");
    let other =
        send(&json!({"name": "keyed", "type": "reboot", "inputs": [{"name": "node", "value": "node-1"}]})).await?;
    ensure!((other.refusal().0, other.refusal().1) == (409, "Primus.00012"), "{other:?}");
    // Two requests for one node at one instant: one wins.
    let one = reboot("at-once", "node-1");
    let both = futures::try_join!(
        served.ask(Some(&token), Method::POST, JOBS, Some(&one)),
        served.ask(Some(&token), Method::POST, JOBS, Some(&one))
    )?;
    let statuses = BTreeSet::from([both.0.status, both.1.status]);
    ensure!(statuses == BTreeSet::from([200, 409]), "{both:?}");
    let log = std::fs::read_to_string(served.log())?;
    ensure!(
        log.contains("a request that changes OpsJobs") && log.contains("code=\"Primus.00010\""),
        "each of them is a line"
    );
    ensure!(!log.contains("dHJ1ZQ") && !log.contains(&token), "nothing that is private is in there");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_made_followed_stopped_and_deleted_as_the_api_is_documented() -> anyhow::Result<()> {
    play(&Served::in_memory(&FAST).await?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_made_followed_stopped_and_deleted_on_a_real_control_plane() -> anyhow::Result<()> {
    play(&Served::real(&FAST).await?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_is_read_by_an_address_that_is_signed_and_in_parts() -> anyhow::Result<()> {
    let served = Served::in_memory(&[
        FAST[0],
        FAST[1],
        "--data",
        &std::env::temp_dir().join(format!("oarlock-rest-data-{}", std::process::id())).display().to_string(),
    ])
    .await?;
    let token = served.token("admin").await?;
    let check = json!({"name": "check", "type": "preflight", "inputs": [{"name": "cluster", "value": "local"}], "image": "busybox",
        "entryPoint": "ZWNobyBvaw=="});
    let id = create(&served, &token, &check).await?;
    let done = served.until(&token, &id, Answer::has_ended).await?;
    let outputs = done.at("/outputs").as_array().context("outputs")?;
    let report = outputs.iter().find(|output| output["name"] == "report").context("a report")?;
    let url = report["value"].as_str().unwrap_or_default();
    let path = url.find("/artifacts/").map(|at| &url[at..]).context(url.to_owned())?;
    let whole = served.ask(None, Method::GET, path, None).await?;
    ensure!(whole.status == 200 && whole.body.is_array() | whole.body.is_object(), "{whole:?}");
    let part =
        served.send(None, Method::GET, path, Sent { body: Vec::new(), headers: &[("range", "bytes=0-0")] }).await?;
    ensure!(part.status == 206, "{part:?}");
    let forged = path.replace(".json", ".txt");
    ensure!(served.ask(None, Method::GET, &forged, None).await?.refusal().0 == 403, "a signature is of one file");
    let later = path.replacen("expires=1", "expires=2", 1);
    ensure!(served.ask(None, Method::GET, &later, None).await?.refusal().0 == 403, "and of one time");
    Ok(())
}
