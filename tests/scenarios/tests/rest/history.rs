//! OpsJobs that are gone from the cluster: in a file beside a cluster in memory, and in a real PostgreSQL beside a real control plane.

use anyhow::{Context as _, ensure};
use http::Method;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_core::ops_job::spec::Defaults;
use oarlock_history::{History, HistoryPlace, JobSnapshot};
use oarlock_scenarios::test_cluster::patiently;
use oarlock_support::postgres::{PASSWORD, Postgres};
use oarlock_support::small_disk;
use serde_json::{Value, json};

use super::served::{Answer, FAST, Sent, Served};

const JOBS: &str = "/api/v1/opsjobs";

fn reboot(node: &str, ttl: i64) -> Value {
    json!({"name": "Reboot 1", "type": "reboot", "ttlSecondsAfterFinished": ttl,
        "inputs": [{"name": "node", "value": node}, {"name": "label", "value": "a,\"{\n\u{1F680}"}]})
}

async fn make(served: &Served, token: &str, body: &Value) -> anyhow::Result<String> {
    let made = served.ask(Some(token), Method::POST, JOBS, Some(body)).await?;
    ensure!(made.status == 200, "{made:?}");
    Ok(made.text("/jobId").to_owned())
}

/// Stores a job that an earlier host has seen to its end and that was deleted a month ago. Returns when the job was created, ended and deleted.
async fn deleted_a_month_ago(address: &str) -> anyhow::Result<[Timestamp; 3]> {
    let history = History::at(HistoryPlace::read(address).map_err(anyhow::Error::msg)?, "local")?;
    let ago = |days: i64| Timestamp::now().checked_sub(SignedDuration::from_hours(24 * days));
    let [created, ended, deleted] = [ago(40)?, ago(39)?, ago(31)?];
    let document = json!({
        "metadata": {"name": "old-bcdfgh", "uid": "0b0e7d04-31a6-4d4e-9f3a-0c4f9f3b7d01", "creationTimestamp": created.to_string(),
            "deletionTimestamp": deleted.to_string()},
        "spec": {"type": "reboot", "jobName": "Old", "inputs": [{"name": "node", "value": "node-9"}]},
        "status": {"phase": "Failed", "revision": 3, "startedAt": created.to_string(), "finishedAt": ended.to_string(),
            "outputs": [{"name": "status", "value": "failed"}]}});
    history.store(&[JobSnapshot::of(&document, Defaults::default()).context("it is a job")?]).await?;
    Ok([created, ended, deleted])
}

/// Checks that the API returns the job, and lists it to a caller who asks for that time.
async fn knows_it(served: &Served, admin: &str, [created, ended, deleted]: [Timestamp; 3]) -> anyhow::Result<()> {
    let job = served.ask(Some(admin), Method::GET, &format!("{JOBS}/old-bcdfgh"), None).await?;
    let told = |time: Timestamp| time.strftime("%Y-%m-%dT%H:%M:%S").to_string();
    for (field, wanted) in [
        ("/phase", "Failed".to_owned()),
        ("/creationTime", told(created)),
        ("/endTime", told(ended)),
        ("/deletionTime", told(deleted)),
    ] {
        ensure!(job.text(field) == wanted, "{field} is not {wanted}: {job:?}");
    }
    ensure!(job.output("status") == "failed", "{job:?}");
    let since = created.strftime("%Y-%m-%dT%H:%M:%S");
    let listed =
        served.ask(Some(admin), Method::GET, &format!("{JOBS}?since={since}&type=reboot&order=asc"), None).await?;
    ensure!(listed.text("/items/0/jobId") == "old-bcdfgh", "{listed:?}");
    let lately = served.ask(Some(admin), Method::GET, JOBS, None).await?;
    ensure!(!lately.body.to_string().contains("old-bcdfgh"), "a list looks back 30 days: {lately:?}");
    Ok(())
}

async fn play(served: &Served) -> anyhow::Result<()> {
    let admin = served.token("admin").await?;
    let nobody = served.token("nobody").await?;
    // The test deletes one job, and the time to live removes the other.
    let (deleted, expired) =
        (make(served, &admin, &reboot("node-0", 3_600)).await?, make(served, &admin, &reboot("node-1", 2)).await?);
    let before = served.until(&admin, &deleted, Answer::has_ended).await?;
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

    // A live job is in the list together with the removed jobs, and each page has the right item.
    let lives = make(served, &admin, &reboot("node-2", 3_600)).await?;
    let listed = served.ask(Some(&admin), Method::GET, JOBS, None).await?;
    let has = |id: &str| listed.body.to_string().contains(id);
    ensure!(
        has(&expired) && has(&lives) && !has(&deleted),
        "deleted ones are listed where they are asked for: {listed:?}"
    );
    ensure!(*listed.at("/totalCount") == json!(2), "{listed:?}");
    let mut paged = Vec::new();
    for offset in 0..4 {
        let path = format!("{JOBS}?sortBy=jobId&order=asc&limit=1&offset={offset}&deleted=true");
        let page = served.ask(Some(&admin), Method::GET, &path, None).await?;
        ensure!(*page.at("/totalCount") == json!(3), "{page:?}");
        paged.extend(page.at("/items").as_array().context("items")?.iter().map(|item| item["jobId"].clone()));
    }
    let mut all = [deleted.as_str(), &expired, &lives];
    all.sort_unstable();
    ensure!(json!(paged) == json!(all), "{paged:?} is not {all:?}");
    let path_found = format!("{JOBS}?phase=Succeeded&jobName=BOOT%201&type=reboot&deleted=true");
    let found = served.ask(Some(&admin), Method::GET, &path_found, None).await?;
    ensure!(found.at("/totalCount").as_i64() >= Some(2), "{found:?}");

    // A repeated idempotency key returns the first job, even after that job is gone.
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

    // A caller without permission to see a job gets the same answer as for an unknown job.
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
    let path = std::env::temp_dir().join(format!("oarlock-rest-history-{}.db", std::process::id()));
    let address = format!("sqlite:{}", path.display());
    let times = deleted_a_month_ago(&address).await?;
    let served = Served::in_memory(&[FAST[0], FAST[1], &format!("--history={address}")]).await?;
    play(&served).await?;
    knows_it(&served, &served.token("admin").await?, times).await?;
    std::fs::remove_file(path).map_err(Into::into)
}

/// While the disk is full, jobs still end, and clients list, stop and delete them. REST creates no job, and no job is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_full_costs_new_jobs_alone_until_it_has_room() -> anyhow::Result<()> {
    let (served, disk) = Served::beside_small_disk(&FAST).await?;
    let admin = served.token("admin").await?;
    let ended = make(&served, &admin, &reboot("node-0", 3_600)).await?;
    let before = served.until(&admin, &ended, Answer::has_ended).await?;
    let gone = make(&served, &admin, &reboot("node-1", 0)).await?;
    served.until_gone(&gone).await?;
    let lives = make(&served, &admin, &reboot("node-2", 3_600)).await?;

    small_disk::fill(&served.child, &disk)?;
    served.until(&admin, &lives, Answer::has_ended).await?;
    // SQLite first fills the space that its files have reserved.
    let mut refused = None;
    let full = patiently("no job is made", async || {
        for _ in 0..50 {
            let unknown = served.ask(Some(&admin), Method::DELETE, &format!("{JOBS}/unknown-bcdfgh"), None).await?;
            ensure!(unknown.status == 404, "{unknown:?}");
        }
        let answer = served.ask(Some(&admin), Method::POST, JOBS, Some(&reboot("node-0", 1))).await?;
        let is_refused = answer.status == 503 && answer.text("/errorMessage").contains("history");
        refused = Some(answer);
        Ok(is_refused)
    });
    full.await.with_context(|| format!("{refused:?}"))?;
    let path = format!("{JOBS}/{ended}");
    let deleted = served.ask(Some(&admin), Method::DELETE, &path, None).await?;
    ensure!(deleted.status == 200, "{deleted:?}");
    let listed = served.ask(Some(&admin), Method::GET, &format!("{JOBS}?deleted=true"), None).await?;
    for id in [&ended, &gone, &lives] {
        ensure!(listed.body.to_string().contains(id.as_str()), "{id} is not in {listed:?}");
    }
    let waits = served.until(&admin, &ended, |job| !job.text("/deletionTime").is_empty()).await?;

    small_disk::make_room(&served.child, &disk)?;
    served.until_gone(&ended).await?;
    let after = served.ask(Some(&admin), Method::GET, &path, None).await?;
    ensure!(
        after.body == waits.body && after.text("/endTime") == before.text("/endTime"),
        "{after:?}\nis not\n{waits:?}"
    );
    make(&served, &admin, &reboot("node-0", 1)).await.map(drop)
}

/// Only jobs that were created and deleted after the copy are unknown. Live jobs and jobs of the copy are known.
#[tokio::test(flavor = "multi_thread")]
async fn a_history_that_is_restored_from_a_copy_of_an_hour_ago_has_all_that_lives_once_more() -> anyhow::Result<()> {
    let mut server = Postgres::start()?;
    let history = format!("--history={}", server.url());
    let served = Served::real(&[FAST[0], FAST[1], &history]).await?;
    let admin = served.token("admin").await?;
    let of = async |node: &str| {
        let id = make(&served, &admin, &reboot(node, 3_600)).await?;
        served.until(&admin, &id, Answer::has_ended).await?;
        anyhow::Ok(id)
    };
    let delete = async |id: &str| {
        let answer = served.ask(Some(&admin), Method::DELETE, &format!("{JOBS}/{id}"), None).await?;
        ensure!(answer.status == 200, "{answer:?}");
        Ok(())
    };
    let (lives, in_copy) = (of("node-0").await?, of("node-1").await?);
    // The end of the job is stored. The host removes the finalizer once the end is stored.
    let before_copy = of("node-2").await?;
    delete(&before_copy).await?;
    served.until_gone(&before_copy).await?;
    server.until("SELECT count(*) FROM ops_job WHERE phase = 'Succeeded'", "3")?;
    server.back_up()?;

    let (after_copy, unknown) = (of("node-2").await?, of("node-1").await?);
    for id in [&in_copy, &unknown] {
        delete(id).await?;
        served.until_gone(id).await?;
    }
    server.kill();
    delete(&lives).await?;
    patiently("the host has met it", async || {
        Ok(std::fs::read_to_string(served.log())?.contains("failed to write the history"))
    })
    .await?;
    server.restore()?;
    served.until_gone(&lives).await?;
    // A live job gets its row again, even if the job has not changed.
    server.until(&format!("SELECT phase FROM ops_job WHERE job_id = '{after_copy}'"), "Succeeded")?;
    for id in [&lives, &before_copy, &in_copy] {
        let known = served.until(&admin, id, |job| !job.text("/deletionTime").is_empty()).await?;
        ensure!(known.text("/phase") == "Succeeded", "{known:?}");
    }
    let answer = served.ask(Some(&admin), Method::GET, &format!("{JOBS}/{unknown}"), None).await?;
    ensure!(answer.status == 404, "{answer:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_are_gone_stay_known_in_postgresql_while_it_comes_and_goes() -> anyhow::Result<()> {
    let mut server = Postgres::start()?;
    let times = deleted_a_month_ago(&server.url()).await?;
    let history = format!("--history={}", server.url());
    let served = Served::real(&[FAST[0], FAST[1], &history]).await?;
    play(&served).await?;
    knows_it(&served, &served.token("admin").await?, times).await?;
    // Each request has a row with its caller, verb and status, refused or not.
    let asked = "SELECT verb, status, count(*) FROM audit WHERE user_name LIKE '%:admin' AND job_id <> '' GROUP BY 1, 2 ORDER BY 1, 2";
    server.until(asked, "DELETE|200|3\nPOST|200|5\nstop|200|1")?;
    // A caller without any right leaves no row.
    server.until("SELECT count(*) FROM audit WHERE user_name LIKE '%:nobody'", "0")?;

    // While the database is down, clients see, stop and delete live jobs, but cannot create a job.
    let admin = served.token("admin").await?;
    let sleeps = json!({"name": "sleeps", "type": "preflight", "inputs": [{"name": "node", "value": "node-0"}], "image": "busybox",
        "entryPoint": "IyBzaW06IHNsZWVwIDYwCnNsZWVwIDYwMA=="});
    // A caller with some right cannot fill the database with refused requests.
    let some = served.token("some").await?;
    let rules =
        json!([{"apiGroups": ["oarlock.dev"], "resources": ["opsjobs", "opsjobs/reboot"], "verbs": ["create"]}]);
    served.allow("some", &rules).await?;
    for _ in 0..110 {
        let answer = served.ask(Some(&some), Method::POST, JOBS, Some(&sleeps)).await?;
        ensure!(answer.status == 403, "{answer:?}");
    }
    // A stop of a job that has ended cannot fill the database either. The server answers it with 200 and changes nothing.
    let listed = served.ask(Some(&admin), Method::GET, &format!("{JOBS}?deleted=true&phase=Succeeded"), None).await?;
    let ended = format!("{JOBS}/{}/stop", listed.text("/items/0/jobId"));
    for _ in 0..30 {
        let answer = served.ask(Some(&admin), Method::POST, &ended, None).await?;
        ensure!(answer.status == 200, "{answer:?}");
    }
    // The history writes rows in order, so the row of this job proves that the earlier rows are written. All accounts of a namespace share one bound
    // on rows.
    let id = make(&served, &admin, &sleeps).await?;
    let rows =
        "SELECT count(*) BETWEEN 1 AND 105, max(length(body)), count(*) FROM audit WHERE user_name LIKE '%:some'";
    let rows = server.sql(rows)?;
    ensure!(rows.starts_with("t|0|"), "{rows}");
    let stops = server.sql("SELECT count(*) FROM audit WHERE user_name LIKE '%:admin' AND verb = 'stop'")?;
    ensure!(stops.parse::<u32>().is_ok_and(|stops| stops <= 6), "{stops}");
    served.until(&admin, &id, |job| job.text("/phase") == "Running").await?;
    server.kill();
    let listed = served.ask(Some(&admin), Method::GET, JOBS, None).await?;
    let warning = listed.headers.get("warning").and_then(|value| value.to_str().ok()).unwrap_or_default();
    ensure!(
        listed.body.to_string().contains(&id) && warning.contains("the list lacks jobs that no longer exist"),
        "{listed:?}"
    );
    let mut idle = sleeps.clone();
    idle["inputs"][0]["value"] = json!("node-1");
    let refused = served.ask(Some(&admin), Method::POST, JOBS, Some(&idle)).await?;
    ensure!(refused.status == 503 && refused.text("/errorMessage").contains("history"), "{refused:?}");
    let path = format!("{JOBS}/{id}");
    for (method, verb) in [(Method::POST, "/stop"), (Method::DELETE, "")] {
        let answer = served.ask(Some(&admin), method, &format!("{path}{verb}"), None).await?;
        ensure!(answer.status == 200, "{answer:?}");
    }
    let stopped = served.until(&admin, &id, |job| job.has_ended() && !job.text("/deletionTime").is_empty()).await?;
    ensure!(stopped.body.to_string().contains("\"reason\":\"Stopped\""), "{stopped:?}");
    let log = || std::fs::read_to_string(served.log());
    patiently("the host has met it", async || Ok(log()?.contains("failed to write the history"))).await?;
    server.run()?;
    served.until_gone(&id).await?;
    let after = served.ask(Some(&admin), Method::GET, &path, None).await?;
    // The signature of an address is valid for minutes.
    let lasting = |answer: &Answer| {
        let text = answer.body.to_string();
        let parts = text.split("?expires=").map(|part| part.find('"').map_or(part, |end| &part[end..]).to_owned());
        let first = text.split("?expires=").next().unwrap_or_default().to_owned();
        std::iter::once(first).chain(parts.skip(1)).collect::<String>()
    };
    ensure!(lasting(&after) == lasting(&stopped), "{after:?}\nis not\n{stopped:?}");
    server.until("SELECT count(*) FROM audit WHERE status = 0", "0")?;

    patiently("it is written again", async || Ok(log()?.contains("writes to the history succeed again"))).await?;
    ensure!(!log()?.contains(PASSWORD), "{}", log()?);
    Ok(())
}
