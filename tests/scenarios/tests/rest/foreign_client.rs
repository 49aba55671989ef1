//! Requests of a client of this API that was written elsewhere: its pages, its MCP tools, its Go types and a script. Each row of the table is one of
//! its requests, with the answer that the client can work with.

use anyhow::{Context as _, ensure};
use http::Method;
use serde_json::{Value, json};

use super::served::{Answer, FAST, Sent, Served};

const JOBS: &str = "/api/v1/opsjobs";
const PAGE: &str = "https://console.example";

/// A request to create a job, and its expected answer.
struct Post {
    /// The part of the client that sends the request.
    by: &'static str,
    query: &'static str,
    body: String,
    status: u16,
    /// A part of the message of a refusal, or the names of the targets.
    has: &'static str,
}

fn post(by: &'static str, body: &Value, has: &'static str) -> Post {
    Post { by, query: "?dryRun=All", body: body.to_string(), status: 200, has }
}

fn refused(by: &'static str, body: &Value, status: u16, has: &'static str) -> Post {
    Post { status, ..post(by, body, has) }
}

/// Returns a preflight as the form of the client's page sends it, with these changes.
fn preflight(changes: &Value) -> Value {
    let mut body = json!({"name": "preflight-check", "type": "preflight", "inputs": [{"name": "cluster", "value": "local"}],
        "image": "busybox:latest", "entryPoint": "dHJ1ZQ==", "env": {}, "hostpath": [], "resource": {"cpu": "1", "gpu": "",
        "memory": "1Gi", "ephemeralStorage": "", "replica": 0}, "timeoutSecond": 3600, "ttlSecondsAfterFinished": 3600,
        "excludedNodes": [], "isTolerateAll": false, "workspaceId": ""});
    body.as_object_mut().into_iter().for_each(|all| all.extend(changes.as_object().cloned().unwrap_or_default()));
    body
}

/// Returns an addon as the client's Go types write it, with every field set.
fn addon(inputs: &Value) -> Value {
    json!({"Name": "addon-upgrade", "Type": "addon", "Inputs": inputs, "TimeoutSecond": 1800, "TTLSecondsAfterFinished": 600,
        "ExcludedNodes": null, "IsTolerateAll": false, "BatchCount": 1, "AvailableRatio": 1.0, "SecurityOperation": true})
}

fn reboot(changes: &Value) -> Value {
    let mut body = json!({"name": "reboot", "type": "reboot", "inputs": [{"name": "node", "value": "node-0"}]});
    body.as_object_mut().into_iter().for_each(|all| all.extend(changes.as_object().cloned().unwrap_or_default()));
    body
}

fn posts() -> Vec<Post> {
    let node = json!({"name": "node", "value": "node-1"});
    let in_mode = |query, post| Post { query, ..post };
    let team = preflight(&json!({"workspaceId": "team-a"}));
    let outside = json!({"workspaceId": "team-a", "inputs": [{"name": "node", "value": "node-2"}]});
    vec![
        // 1 and 2: the workspace of a preflight.
        post("the page for preflights", &preflight(&json!({})), "node-0 node-1 node-2"),
        post("the page, in a workspace", &team, "node-0 node-1"),
        refused(
            "the page, a node outside of it",
            &preflight(&outside),
            400,
            "node node-2 does not match the input workspace",
        ),
        in_mode("?dryRun=All&fieldValidation=Warn", post("the MCP tool", &team, "node-0 node-1")),
        in_mode("?dryRun=All&fieldValidation=Ignore", post("the MCP tool", &team, "node-0 node-1")),
        in_mode(
            "?dryRun=All&fieldValidation=Ignore",
            refused(
                "the MCP tool, for a reboot",
                &reboot(&json!({"workspaceId": "team-a"})),
                400,
                "workspaceId: only for preflight",
            ),
        ),
        // 5: names.
        post("the Go types", &addon(&json!([{"Name": "addon_template", "Value": "greet"}, node])), "node-1"),
        post("the Go types", &addon(&json!([{"name": "node_template", "value": "all"}, node])), "node-1"),
        post(
            "the page for images",
            &json!({"name": "export", "type": "exportimage", "inputs": [{"name": "workloadId", "value": "default/pod/web"}]}),
            "web",
        ),
        post("the page, in another script", &reboot(&json!({"name": "\u{91cd}\u{542f}"})), "node-0"),
        // 7: numbers below 0 stay refused.
        refused("the script", &reboot(&json!({"batchCount": -1})), 400, "batchCount: 0 or more"),
        refused("the script", &reboot(&json!({"availableRatio": -0.5})), 400, "availableRatio: a number above 0"),
        refused(
            "the form, two of three",
            &reboot(&json!({"availableRatio": 0.666_666_666_666_666_6})),
            400,
            "9 decimals",
        ),
        post("the form, as the documents say", &reboot(&json!({"availableRatio": 0.666_666_666})), "node-0"),
        // 8: a template that does not exist.
        refused(
            "the script",
            &addon(
                &json!([{"name": "node.template", "value": "nothing"}, {"name": "addon.template", "value": "greet"}, node]),
            ),
            404,
            "nothing",
        ),
        // 9: types that this API does not have.
        refused(
            "the page for prewarms",
            &reboot(&json!({"type": "prewarm"})),
            400,
            "addon, preflight, dumplog, reboot, exportimage",
        ),
        refused("the page for downloads", &reboot(&json!({"type": "download"})), 400, "type: one of addon"),
        refused("the page for evaluations", &reboot(&json!({"type": "evaluation"})), 400, "type: one of addon"),
        // Bodies that people wrote by hand.
        refused(
            "a person",
            &json!({"name": "log", "type": "dumplog", "inputs": [{"name": "workload", "value": "default/cronjob/nightly"}]}),
            404,
            "the kind cronjob is not supported",
        ),
        refused("a person", &reboot(&json!({"excludedNodes": ["node-0x"]})), 400, "did you mean node-0?"),
    ]
}

/// Queries of a list, and how many of the three created jobs each returns.
const LISTS: [(&str, i64); 9] = [
    ("", 3),
    ("?limit=100&offset=0&sortBy=creation_time&order=desc", 3),
    ("?sortBy=whatever", 3),
    ("?type=reboot&phase=", 3),
    ("?type=download", 0),
    ("?type=prewarm&limit=20", 0),
    ("?type=evaluation", 0),
    ("?clusterId=local&userName=&jobName=", 3),
    ("?since=2020-01-01T00:00:00.000Z&until=&workspaceId=", 3),
];

async fn furnish(served: &Served) -> anyhow::Result<()> {
    use k8s_openapi::api::core::v1::{Node, Pod};
    use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
    let nodes: Api<Node> = Api::all(served.admin.clone());
    for node in ["node-0", "node-1"] {
        let labels = json!({"metadata": {"labels": {"node-restriction.kubernetes.io/workspace": "team-a"}}});
        nodes.patch(node, &PatchParams::default(), &Patch::Merge(labels)).await?;
    }
    let pods: Api<Pod> = Api::namespaced(served.admin.clone(), "default");
    let pod = json!({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "c", "image": "busybox"}]}});
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    for (kind, spec) in
        [("AddonTemplate", json!({"script": "true"})), ("NodeTemplate", json!({"steps": [{"template": "greet"}]}))]
    {
        let of_kind = ApiResource::from_gvk(&GroupVersionKind::gvk("oarlock.dev", "v1alpha1", kind));
        let api: Api<DynamicObject> = Api::all_with(served.admin.clone(), &of_kind);
        let name = if kind == "AddonTemplate" { "greet" } else { "all" };
        let document =
            json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
        api.create(&PostParams::default(), &serde_json::from_value(document)?).await?;
    }
    Ok(())
}

async fn posts_are_taken(served: &Served, token: &str) -> anyhow::Result<()> {
    for Post { by, query, body, status, has } in posts() {
        let sent = Sent {
            body: body.clone().into_bytes(),
            headers: &[("content-type", "application/json"), ("origin", PAGE)],
        };
        let answer = served.send(Some(token), Method::POST, &format!("{JOBS}{query}"), sent).await?;
        ensure!(answer.status == status, "{by}: {body}\n{answer:?}");
        let named = answer.at("/targets").as_array().map(Vec::as_slice).unwrap_or_default();
        let named: Vec<&str> = named.iter().filter_map(|target| target.get("name")?.as_str()).collect();
        let is_so = if status == 200 { named.join(" ") == has } else { answer.text("/errorMessage").contains(has) };
        ensure!(is_so, "{by}: {body}\n{answer:?}");
        ensure!(answer.headers.get("access-control-allow-origin").is_some_and(|origin| origin == PAGE), "{answer:?}");
    }
    Ok(())
}

/// After a DELETE, the client's list no longer has the job, and its page of the job still opens.
async fn lists_are_its_own(served: &Served, token: &str) -> anyhow::Result<()> {
    let mut made = Vec::new();
    // The jobs are created within about a second, and their names are in reverse order.
    for (number, name) in ["c", "b", "a"].into_iter().enumerate() {
        let body = reboot(&json!({"name": name, "inputs": [{"name": "node", "value": format!("node-{number}")}]}));
        let answer = served.ask(Some(token), Method::POST, JOBS, Some(&body)).await?;
        ensure!(answer.status == 200, "{answer:?}");
        made.push(answer.text("/jobId").to_owned());
    }
    let ids = async |query: &str| {
        let answer = served.ask(Some(token), Method::GET, &format!("{JOBS}{query}"), None).await?;
        ensure!(answer.status == 200, "{query}: {answer:?}");
        let items = answer.at("/items").as_array().context("items")?.iter();
        let ids = items.filter_map(|item| item.get("jobId")?.as_str().map(str::to_owned)).collect::<Vec<_>>();
        Ok((answer.at("/totalCount").as_i64().unwrap_or(-1), ids))
    };
    for (query, count) in LISTS {
        ensure!(ids(query).await?.0 == count, "{query}: {:?}", ids(query).await?);
    }
    ensure!(ids("?order=asc").await?.1 == made, "{:?} is not {made:?}", ids("?order=asc").await?.1);
    ensure!(ids("?limit=1").await?.1.as_slice() == made.get(2..).unwrap_or_default(), "the newest");
    let [first, deleted, ..] = made.as_slice() else { anyhow::bail!("three were made") };
    for id in &made {
        served.until(token, id, Answer::has_ended).await?;
    }
    let path = format!("{JOBS}/{deleted}");
    ensure!(served.ask(Some(token), Method::DELETE, &path, None).await?.status == 200, "an ended job is deleted");
    ensure!(!ids("").await?.1.contains(deleted) && ids("").await?.0 == 2, "it is listed no more");
    served.until_gone(deleted).await?;
    ensure!(
        !ids("").await?.1.contains(deleted) && ids("?deleted=true&order=asc").await?.1 == made,
        "nor once it is gone"
    );
    let read = served.ask(Some(token), Method::GET, &path, None).await?;
    ensure!(read.text("/phase") == "Succeeded" && !read.text("/deletionTime").is_empty(), "{read:?}");
    let user = read.text("/userName");
    ensure!(user == "system:serviceaccount:people:admin", "{user}");
    // A job that was removed by its time to live stays listed.
    let quick = reboot(&json!({"ttlSecondsAfterFinished": 0}));
    let quick = served.ask(Some(token), Method::POST, JOBS, Some(&quick)).await?;
    let quick = quick.text("/jobId").to_owned();
    served.until_gone(&quick).await?;
    ensure!(ids("?limit=1").await?.1 == [quick], "{:?}", ids("").await?);
    ensure!(ids("?stop=x").await?.1.contains(first), "words that are unknown here are ignored");
    Ok(())
}

/// The client's proxy routes only `/api/` and ends TLS. The client's pages open the address that the API returns.
async fn files_are_behind_its_proxy(served: &Served, token: &str) -> anyhow::Result<()> {
    let made = preflight(&json!({"inputs": [{"name": "node", "value": "node-2"}]}));
    let made = served.ask(Some(token), Method::POST, JOBS, Some(&made)).await?;
    let id = made.text("/jobId").to_owned();
    served.until(token, &id, Answer::has_ended).await?;
    let proxied = [("x-forwarded-proto", "HTTPS, http"), ("host", "console.example:8443")];
    let sent = Sent { body: Vec::new(), headers: &proxied };
    let read = served.send(Some(token), Method::GET, &format!("{JOBS}/{id}"), sent).await?;
    let address = read.output("report").to_owned();
    let path = address.strip_prefix("https://console.example:8443").with_context(|| address.clone())?;
    ensure!(path.starts_with("/api/v1/artifacts/"), "{path}");
    let old = path.replacen("/api/v1/artifacts/", "/artifacts/", 1);
    for path in [path, &old] {
        let file =
            served.send(None, Method::GET, path, Sent { body: Vec::new(), headers: &[("origin", PAGE)] }).await?;
        ensure!(file.status == 200 && file.headers.get("access-control-allow-origin").is_some(), "{path}: {file:?}");
        let parts = Sent { body: Vec::new(), headers: &[("range", "bytes=0-0,2-3")] };
        let parts = served.send(None, Method::GET, path, parts).await?;
        let kind = parts.headers.get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        ensure!(parts.status == 206 && kind.starts_with("multipart/byteranges"), "{parts:?}");
    }
    let question = [
        ("origin", PAGE),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization"),
    ];
    for (origin, allowed) in [(PAGE, PAGE), ("https://evil.example", "")] {
        let mut headers = question;
        headers[0].1 = origin;
        let answer = served.send(None, Method::OPTIONS, JOBS, Sent { body: Vec::new(), headers: &headers }).await?;
        let said = |name: &str| answer.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        ensure!(answer.status == 200 && said("access-control-allow-origin") == allowed, "{origin}: {answer:?}");
        ensure!(said("access-control-allow-credentials").is_empty(), "{answer:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_that_api_that_was_written_elsewhere_works_as_it_is() -> anyhow::Result<()> {
    let data = std::env::temp_dir().join(format!("oarlock-rest-foreign-{}", std::process::id()));
    let data = data.display().to_string();
    let served = Served::in_memory(&[
        FAST[0],
        FAST[1],
        "--data",
        &data,
        "--cors-origin",
        PAGE,
        "--trusted-proxy",
        "127.0.0.0/8",
    ])
    .await?;
    let token = served.token("admin").await?;
    lists_are_its_own(&served, &token).await?;
    furnish(&served).await?;
    posts_are_taken(&served, &token).await?;
    files_are_behind_its_proxy(&served, &token).await?;
    std::fs::remove_dir_all(data).map_err(Into::into)
}
