//! Invalid requests, each with the status, the code and the message of its refusal.

use std::time::Duration;

use anyhow::ensure;
use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::served::{FAST, Sent, Served};

const JOBS: &str = "/api/v1/opsjobs";

/// Returns a body of a reboot with these changes. `null` removes a field.
fn reboot(changes: Value) -> Value {
    changed(json!({"name": "a", "type": "reboot", "inputs": [{"name": "node", "value": "node-0"}]}), changes)
}

fn preflight(changes: Value) -> Value {
    let whole = json!({"name": "a", "type": "preflight", "inputs": [{"name": "cluster", "value": "local"}], "image": "busybox",
        "entryPoint": "dHJ1ZQ=="});
    changed(whole, changes)
}

fn of_type(kind: &str, inputs: &[(&str, &str)]) -> Value {
    reboot(json!({"type": kind, "inputs": inputs_of(inputs)}))
}

fn changed(mut body: Value, changes: Value) -> Value {
    for (field, value) in changes.as_object().into_iter().flatten() {
        match value {
            Value::Null => drop(body.as_object_mut().map(|fields| fields.remove(field))),
            value => drop(body.as_object_mut().map(|fields| fields.insert(field.clone(), value.clone()))),
        }
    }
    body
}

fn inputs_of(inputs: &[(&str, &str)]) -> Value {
    inputs.iter().map(|(name, value)| json!({"name": name, "value": value})).collect()
}

fn input(name: &str, value: &str) -> Value {
    json!({"inputs": inputs_of(&[(name, value)])})
}

/// Returns the bodies, each with the status, the code and the message of its answer.
fn bodies() -> Vec<(Value, u16, &'static str, &'static str)> {
    let long = "a".repeat(257);
    let script = "YQ".repeat(70_000);
    let bad = |body: Value, words: &'static str| (body, 400, "Primus.00002", words);
    vec![
        bad(json!([]), "the body must be a JSON object"),
        bad(reboot(json!({"inputs": "x"})), "inputs: a list"),
        bad(reboot(json!({"batchCount": "2"})), "batchCount: a whole number"),
        bad(reboot(json!({"timeoutSecond": 1.5})), "timeoutSecond: a whole number"),
        bad(reboot(json!({"timeoutSecond": 3_000_000_000_u32})), "timeoutSecond: a whole number of 32 bits"),
        bad(reboot(json!({"name": null})), "name: must have 1 to 256 bytes"),
        bad(reboot(json!({"name": ""})), "name: must have 1 to 256 bytes"),
        bad(reboot(json!({"name": "---"})), "name: must have 1 to 256 bytes"),
        bad(reboot(json!({"name": long})), "name: must have 1 to 256 bytes"),
        bad(reboot(json!({"type": null})), "type: required"),
        bad(
            reboot(json!({"type": "Reboot"})),
            "type: one of addon, preflight, dumplog, reboot, exportimage, and is \"Reboot\"; did you mean reboot?",
        ),
        bad(reboot(json!({"type": "prewarm"})), "type: one of"),
        bad(reboot(json!({"inputs": null})), "inputs: 1 to 5000"),
        bad(reboot(json!({"inputs": []})), "inputs: 1 to 5000"),
        bad(reboot(input("node", "")), "inputs[0].value: must have 1 to 65536 bytes"),
        bad(reboot(input("node", "a\0b")), "inputs[0].value: must have 1 to 65536 bytes without NUL bytes"),
        bad(reboot(input("foo", "x")), "inputs[0].name: foo is none of"),
        bad(reboot(input("image", "x")), "inputs[0].name: image is added by the host"),
        bad(
            reboot(input("label", "x")),
            "inputs: give at least one of node, node.host, workload, workspace or cluster",
        ),
        bad(of_type("addon", &[("node", "node-0")]), "inputs: an addon has an addon.template"),
        bad(of_type("dumplog", &[("node", "node-0")]), "inputs: dumplog needs exactly one workload"),
        bad(
            of_type("exportimage", &[("workload", "a"), ("workload", "b")]),
            "inputs: exportimage needs exactly one workload",
        ),
        bad(of_type("addon", &[("node", "node-0"), ("script", "%")]), "inputs[1]: must be a script"),
        bad(
            of_type("exportimage", &[("workload", "a"), ("mode", "x")]),
            "inputs[1]: mode is copy, copy-available or commit",
        ),
        bad(reboot(json!({"batchcounts": 1})), "batchcounts: no field of an OpsJob; did you mean batchCount?"),
        bad(reboot(json!({"workspace": "team"})), "workspace: no field of an OpsJob"),
        bad(reboot(json!({"image": "busybox"})), "image: for preflight"),
        bad(reboot(json!({"excludedNodes": ["nobody"]})), "excludedNodes: no node has the name or host nobody"),
        bad(preflight(json!({"entryPoint": "%"})), "entryPoint: a preflight needs a script"),
        bad(preflight(json!({"entryPoint": ""})), "entryPoint: a preflight needs a script"),
        bad(
            preflight(json!({"entryPoint": script})),
            "entryPoint: a preflight needs a script in Base64, of 1 byte to 96 KiB",
        ),
        bad(preflight(json!({"entryPoint": null})), "entryPoint: a preflight needs a script"),
        bad(preflight(json!({"image": null})), "image: a preflight needs the image of the check"),
        bad(preflight(json!({"image": "a/B"})), "image: a/B is no reference"),
        bad(preflight(json!({"resource": {"cpu": "lots"}})), "resource.cpu: lots is no amount"),
        bad(preflight(json!({"env": {"A": 1}})), "env.A: text"),
        bad(preflight(json!({"env": {"OARLOCK_X": "1"}})), "env.OARLOCK_X: text"),
        bad(preflight(json!({"hostpath": ["rel"]})), "hostpath: absolute paths"),
        bad(preflight(json!({"hostpath": ["/a/../b"]})), "hostpath: absolute paths"),
        bad(preflight(json!({"replica": -1})), "replica: 0 or more"),
        bad(preflight(json!({"replica": 1, "resource": {"replica": 2}})), "resource.replica: differs from replica"),
        bad(reboot(json!({"availableRatio": 1.1})), "availableRatio: a number above 0"),
        bad(reboot(json!({"availableRatio": -0.1})), "availableRatio: a number above 0"),
        bad(reboot(json!({"availableRatio": 0.123_456_789_1})), "availableRatio: a number above 0"),
        bad(reboot(json!({"batchCount": -1})), "batchCount: 0 or more"),
        bad(
            reboot(json!({"inputs": inputs_of(&[("node", "node-0"), ("drain", "maybe")])})),
            "inputs[1]: drain is true or false",
        ),
        // Only the cluster knows that these names do not exist.
        (reboot(input("node", "nobody")), 404, "Primus.03002", "there is no node nobody"),
        (reboot(input("node", "../pods")), 404, "Primus.03002", "there is no node ../pods"),
        (reboot(input("node", "node-0\n")), 404, "Primus.03002", "there is no node node-0"),
        (reboot(input("node.host", "nobody")), 404, "Primus.03002", "there is no node nobody"),
        (
            reboot(input("workspace", "nobody")),
            404,
            "Primus.02001",
            "no node has the workspace nobody: label its nodes with kubectl label node",
        ),
        (reboot(input("workload", "nobody")), 404, "Primus.01001", "there is no workload nobody"),
        (reboot(input("workload", "a/pod/nobody")), 404, "Primus.01001", "there is no workload a/pod/nobody"),
        (reboot(input("cluster", "other")), 404, "Primus.00005", "this cluster does not have the id other"),
        bad(
            reboot(json!({"inputs": inputs_of(&[("node", "node-0"), ("workspace", "team")])})),
            "node node-0 does not match the input workspace",
        ),
        bad(reboot(json!({"excludedNodes": ["node-0"]})), "no node is left: 1 Excluded"),
        (preflight(json!({"hostpath": ["/etc/x"]})), 403, "Primus.00003", "hostpath: /etc/x is not among"),
        (preflight(json!({"hostpath": ["/opt"]})), 403, "Primus.00003", "hostpath: /opt is not among"),
        bad(of_type("addon", &[("node", "node-0"), ("script", "dHJ1ZQ")]), "inputs[1]: must be a script"),
        bad(
            of_type("addon", &[("node", "node-0"), ("addon.template", "A b")]),
            "inputs[1]: A b is no name of a template",
        ),
        bad(
            of_type(
                "addon",
                &[
                    ("node", "node-0"),
                    ("addon.template", "a"),
                    ("addon.template", "b"),
                    ("addon.template", "c"),
                    ("node.template", "a"),
                    ("node.template", "b"),
                    ("script", "dHJ1ZQ=="),
                    ("script", "dHJ1ZQ=="),
                ],
            ),
            "inputs: at most 6 templates and scripts, and the job has 7",
        ),
        (
            of_type("addon", &[("node", "node-0"), ("addon.template", "nobody")]),
            404,
            "Primus.00005",
            "there is no AddonTemplate nobody",
        ),
        (
            of_type("addon", &[("node", "node-0"), ("node.template", "nobody")]),
            404,
            "Primus.00005",
            "there is no NodeTemplate nobody",
        ),
        (
            of_type("addon", &[("node", "node-0"), ("script", "dHJ1ZQ==")]),
            403,
            "Primus.00003",
            "inputs: the grant of addon only allows scripts of templates",
        ),
        (of_type("exportimage", &[("workload", "nobody")]), 404, "Primus.01001", "there is no workload nobody"),
        (of_type("dumplog", &[("workload", "nobody")]), 404, "Primus.01001", "there is no workload nobody"),
        (
            of_type("dumplog", &[("workload", "default/cm/a")]),
            404,
            "Primus.01001",
            "there is no workload default/cm/a: the kind cm is not",
        ),
    ]
}

/// Queries of a list that are refused, each with the start of its message.
const QUERIES: [(&str, &str); 13] = [
    ("limit=-1", "limit: "),
    ("limit=10001", "limit: "),
    ("limit=x", "limit: "),
    ("offset=-1", "offset: "),
    ("order=up", "order: "),
    ("phase=foo", "phase: "),
    ("since=yesterday", "since: "),
    ("until=2026-13-01T00:00:00Z", "until: "),
    ("since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z", "since: must not be later"),
    ("type=reboot&type=addon", "type: given twice"),
    ("userName=a&userName=a", "userName: given twice"),
    ("limit=1e3", "limit: "),
    ("offset=99999999999999999999999", "offset: "),
];

fn plain(body: &[u8]) -> Sent<'static> {
    Sent { body: body.to_vec(), headers: &[] }
}

async fn play(served: &Served) -> anyhow::Result<()> {
    // A request names node-0 beside this workspace, which has only node-2.
    let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(served.admin.clone());
    let label = json!({"metadata": {"labels": {"node-restriction.kubernetes.io/workspace": "team"}}});
    nodes.patch("node-2", &kube::api::PatchParams::default(), &kube::api::Patch::Merge(label)).await?;
    let token = served.token("admin").await?;
    for (body, status, code, words) in bodies() {
        let answer = served.ask(Some(&token), Method::POST, JOBS, Some(&body)).await?;
        let (told, of, message) = answer.refusal();
        ensure!((told, of) == (status, code) && message.starts_with(words), "{body}: {answer:?}");
    }
    for text in ["", "{", "{} {}", "null", "{\"name\": \"a\", \"type\": \"reboot\", \"type\": \"addon\"}"] {
        let answer = served.send(Some(&token), Method::POST, JOBS, plain(text.as_bytes())).await?;
        ensure!(answer.refusal().0 == 400, "{text}: {answer:?}");
    }
    let repeated = br#"{"name": "a", "type": "reboot", "inputs": [{"name": "node", "value": "node-0"}], "batchCount": 1, "batchCount": 2}"#;
    let answer = served.send(Some(&token), Method::POST, JOBS, plain(repeated)).await?;
    ensure!(answer.refusal().2.starts_with("batchCount: given twice"), "{answer:?}");
    let large = vec![b' '; 2 * 1024 * 1024 + 1];
    let answer = served.send(Some(&token), Method::POST, JOBS, plain(&large)).await?;
    ensure!((answer.refusal().0, answer.refusal().1) == (413, "Primus.00006"), "{answer:?}");
    for (query, words) in QUERIES {
        let answer = served.ask(Some(&token), Method::GET, &format!("{JOBS}?{query}"), None).await?;
        let (status, code, message) = answer.refusal();
        ensure!((status, code) == (400, "Primus.00002") && message.starts_with(words), "{query}: {answer:?}");
    }
    for query in ["fieldValidation=Loose", "dryRun=None", "dryRun=All&dryRun=All", "dryRun=", "fieldValidation="] {
        let answer =
            served.ask(Some(&token), Method::POST, &format!("{JOBS}?{query}"), Some(&reboot(json!({})))).await?;
        ensure!(answer.refusal().0 == 400, "{query}: {answer:?}");
    }
    for (method, path, status, code) in [
        (Method::GET, "/api/v1/opsjobs/nobody", 404, "Primus.00005"),
        (Method::GET, "/api/v1/opsjobs/%2e%2e", 404, "Primus.00005"),
        (Method::GET, "/api/v1/opsjobs/a%2Fb", 404, "Primus.00005"),
        (Method::POST, "/api/v1/opsjobs/nobody/stop", 404, "Primus.00005"),
        (Method::DELETE, "/api/v1/opsjobs/nobody", 404, "Primus.00005"),
        (Method::GET, "/api/v1/opsjobs/%ff", 400, "Primus.00002"),
        (Method::POST, "/docs/", 405, "Primus.00002"),
        (Method::GET, "/docs/nothing", 404, "Primus.00005"),
        (Method::GET, "/api/v1/opsjobs/", 404, "Primus.00005"),
        (Method::GET, "/api/v1/nothing", 404, "Primus.00005"),
        (Method::PUT, "/api/v1/opsjobs/nobody", 405, "Primus.00002"),
        (Method::OPTIONS, "/api/v1/opsjobs", 405, "Primus.00002"),
        (Method::GET, "/artifacts/a/b.json?expires=1&sig=x", 403, "Primus.00003"),
        (Method::GET, "/artifacts/a/b.json", 403, "Primus.00003"),
        (Method::GET, "/api/v1/artifacts/a/b.json", 403, "Primus.00003"),
        (Method::GET, "/api/v1/artifacts/a", 404, "Primus.00005"),
    ] {
        let answer = served.ask(Some(&token), method.clone(), path, None).await?;
        ensure!((answer.refusal().0, answer.refusal().1) == (status, code), "{method} {path}: {answer:?}");
    }
    let ignored = reboot(json!({"batchcounts": 1, "excludedNodes": ["nobody"]}));
    let path = format!("{JOBS}?fieldValidation=Warn&dryRun=All");
    let answer = served.ask(Some(&token), Method::POST, &path, Some(&ignored)).await?;
    let warnings: Vec<_> = answer.headers.get_all("warning").iter().filter_map(|text| text.to_str().ok()).collect();
    ensure!(
        answer.status == 200 && warnings.len() == 2 && warnings.iter().all(|text| text.starts_with("299 - \"")),
        "{answer:?}"
    );
    ensure!(answer.text("/targets/0/name") == "node-0", "{answer:?}");
    Ok(())
}

/// The server closes a connection that says nothing or speaks another protocol.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_says_nothing_ends() -> anyhow::Result<()> {
    let served = Served::in_memory(&FAST).await?;
    let address = served.address();
    for begin in ["", "P", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET / HTTP/1.1\r\nHost: a"] {
        let mut stream = tokio::net::TcpStream::connect(&address).await?;
        stream.write_all(begin.as_bytes()).await?;
        let mut said = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut said)).await;
        ensure!(ended.is_ok(), "{begin:?} is waited for");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_right_is_refused_with_its_code_and_what_is_at_fault() -> anyhow::Result<()> {
    play(&Served::in_memory(&FAST).await?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_right_is_refused_so_on_a_real_control_plane() -> anyhow::Result<()> {
    play(&Served::real(&FAST).await?).await
}
