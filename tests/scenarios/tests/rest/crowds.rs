//! Clients that could make other clients wait: large, wide, deep and compressed bodies, idle connections, forged tokens, and accounts without rights.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use super::served::{FAST, PEOPLE, Sent, Served};

const JOBS: &str = "/api/v1/opsjobs";
/// Connections of each kind, far above the number that the server accepts.
const CROWD: u32 = 700;
/// The longest wait for anything in this file.
const PATIENCE: Duration = Duration::from_secs(60);

/// Opens a connection from its own address on this machine.
async fn connection(served: &Served, number: u32) -> anyhow::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    let host = Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 1, 0, 1)) + number);
    socket.bind(SocketAddr::new(host.into(), 0))?;
    Ok(socket.connect(served.address().parse()?).await?)
}

/// Sends bytes as they are, and returns everything that arrives until the connection ends.
async fn raw(served: &Served, bytes: &[u8]) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(served.address()).await?;
    // The server answers a client even if it refuses the client before all bytes have arrived.
    let _sent = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    let read = read.context("it is waited for")?;
    ensure!(read.is_ok() || !answer.is_empty(), "there is no answer: {read:?}");
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn reboot(inputs: Value) -> Value {
    json!({"name": "a", "type": "reboot", "inputs": inputs})
}

/// Returns the token of an account that may reboot the nodes of the workspace `team`.
async fn tenant(served: &Served) -> anyhow::Result<String> {
    let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(served.admin.clone());
    let label = json!({"metadata": {"labels": {"node-restriction.kubernetes.io/workspace": "team"}}});
    nodes.patch("node-2", &kube::api::PatchParams::default(), &kube::api::Patch::Merge(label)).await?;
    let token = served.token("tenant").await?;
    for document in [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "labels": {"oarlock.dev/node-operations": "true"}}}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "ops", "namespace": "team"},
            "rules": [{"apiGroups": ["oarlock.dev"], "resources": ["opsjobs", "opsjobs/reboot"], "verbs": ["create"]}]}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "ops", "namespace": "team"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "ops"},
            "subjects": [{"kind": "ServiceAccount", "name": "tenant", "namespace": PEOPLE}]}),
    ] {
        oarlock_support::install::apply(&served.admin, &document).await?;
    }
    Ok(token)
}

/// Returns the peak memory of the process in kilobytes since the last call. Returns `None` on systems other than Linux.
fn peak(served: &Served) -> Option<u64> {
    let folder = format!("/proc/{}", served.child.id());
    let status = std::fs::read_to_string(format!("{folder}/status")).ok()?;
    std::fs::write(format!("{folder}/clear_refs"), "5").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_a_million_numbers_costs_no_more_than_its_bytes() -> anyhow::Result<()> {
    let served = Served::in_memory(&FAST).await?;
    let numbers = format!(r#"{{"a":[{}0]}}"#, "0,".repeat(1_040_000));
    let mut tokens = Vec::new();
    for account in 0..10 {
        tokens.push(served.token(&format!("stranger-{account}")).await?);
    }
    let before = peak(&served).and_then(|_| peak(&served));
    let asked = (0..20).map(|number| {
        let (served, token) = (&served, tokens.get(number % 10).map(String::as_str));
        let body = numbers.clone().into_bytes();
        async move { served.send(token, Method::POST, JOBS, Sent { body, headers: &[] }).await }
    });
    for answer in futures::future::try_join_all(asked).await? {
        ensure!((answer.refusal().0, answer.refusal().1) == (403, "Primus.00003"), "{answer:?}");
    }
    if let (Some(before), Some(after)) = (before, peak(&served)) {
        let grown = after.saturating_sub(before) / 1_024;
        println!("the process had {} MB, and {grown} MB more at the most", before / 1_024);
        ensure!(grown < 64, "{grown} MB more than {before} kB");
    }
    // A caller who may create jobs in the whole cluster is told at once that the body has too many values.
    let admin = served.token("admin").await?;
    let answer =
        served.send(Some(&admin), Method::POST, JOBS, Sent { body: numbers.into_bytes(), headers: &[] }).await?;
    ensure!(answer.refusal().0 == 413 && answer.refusal().2.contains("25000 values"), "{answer:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_come_before_the_size_the_shape_and_the_key_of_a_request() -> anyhow::Result<()> {
    let served = Served::in_memory(&FAST).await?;
    let (tenant, stranger) = (tenant(&served).await?, served.token("stranger").await?);
    let admin = served.token("admin").await?;
    let own = json!([{"name": "workspace", "value": "team"}]);
    let large = reboot(json!([{"name": "workspace", "value": "team"}, {"name": "label", "value": "x".repeat(70_000)}]));
    let mut wide = reboot(own.clone());
    wide["excludedNodes"] = json!(vec!["a"; 2_000]);
    let mut wrong = reboot(own.clone());
    wrong["batchcounts"] = json!(1);
    let other = reboot(json!([{"name": "workspace", "value": "others"}]));
    type Header = (&'static str, &'static str);
    let (no_key, bad_key): (&[Header], &[Header]) = (&[], &[("idempotency-key", "not a key")]);
    let cases = [
        (&large, no_key, [403, 413, 400]),
        (&wide, no_key, [403, 413, 400]),
        (&wrong, no_key, [403, 400, 400]),
        (&other, bad_key, [403, 403, 400]),
        (&reboot(own.clone()), bad_key, [403, 400, 400]),
        (&json!({"a": 1}), no_key, [403, 403, 400]),
    ];
    for (body, headers, statuses) in cases {
        for (token, status) in [&stranger, &tenant, &admin].into_iter().zip(statuses) {
            let sent = Sent { body: body.to_string().into_bytes(), headers };
            let answer = served.send(Some(token), Method::POST, &format!("{JOBS}?dryRun=All"), sent).await?;
            let shown: String = body.to_string().chars().take(100).collect();
            ensure!(answer.status == status, "{shown} is not {status}: {answer:?}");
            let told = answer.refusal().2;
            ensure!(status != 413 || told.contains("in the whole cluster may send more"), "{answer:?}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_is_read_in_chunks_and_with_a_mark_and_not_packed_or_deep() -> anyhow::Result<()> {
    let served = Served::in_memory(&FAST).await?;
    for token in [served.token("admin").await?, tenant(&served).await?] {
        let body = reboot(json!([{"name": "workspace", "value": "team"}])).to_string();
        let head = format!(
            "POST {JOBS}?dryRun=All HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n"
        );
        let chunks: String = body.chars().map(|one| format!("1\r\n{one}\r\n")).collect();
        let answer =
            raw(&served, format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n").as_bytes()).await?;
        ensure!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        // Chunks without end, each of them small.
        let endless = "1\r\n \r\n".repeat(3 * 1024 * 1024);
        let answer = raw(&served, format!("{head}Transfer-Encoding: chunked\r\n\r\n{endless}").as_bytes()).await?;
        ensure!(answer.starts_with("HTTP/1.1 4"), "{answer}");
        let send = async |body: String, headers: &'static [(&'static str, &'static str)]| {
            let sent = Sent { body: body.into_bytes(), headers };
            served.send(Some(&token), Method::POST, &format!("{JOBS}?dryRun=All"), sent).await
        };
        ensure!(send(format!("\u{feff}{body}"), &[]).await?.status == 200, "a byte order mark");
        ensure!(send(body.clone(), &[("content-encoding", "Identity")]).await?.status == 200, "it is not packed");
        for packed in [&[("content-encoding", "gzip")][..], &[("content-encoding", "identity, br")]] {
            let answer = send(body.clone(), packed).await?;
            ensure!((answer.refusal().0, answer.refusal().1) == (415, "Primus.00002"), "{answer:?}");
            ensure!(answer.refusal().2.contains("send the body uncompressed"), "{answer:?}");
        }
        let deep = format!("{},\"a\":{}{}}}", body.trim_end_matches('}'), "[".repeat(20_000), "]".repeat(20_000));
        ensure!(send(deep, &[]).await?.refusal().0 == 400, "it is deep");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_no_right_is_counted_and_leaves_no_row_and_few_lines() -> anyhow::Result<()> {
    let folder = std::env::temp_dir().join(format!("oarlock-rest-rows-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let file = folder.join("history.db");
    let served = Served::in_memory(&[FAST[0], FAST[1], &format!("--history=sqlite:{}", file.display())]).await?;
    let mut refused = 0;
    for account in 0..20 {
        let token = served.token(&format!("stranger-{account}")).await?;
        for number in 0..10 {
            let (method, path, body) = match number % 5 {
                0 => (Method::POST, JOBS.to_owned(), Some(reboot(json!([{"name": "cluster", "value": "local"}])))),
                1 => (Method::POST, JOBS.to_owned(), None),
                2 => (Method::DELETE, format!("{JOBS}/nobody"), None),
                3 => (Method::POST, format!("{JOBS}/nobody/stop"), None),
                _ => (Method::PUT, format!("{JOBS}/nobody"), None),
            };
            let answer = served.ask(Some(&token), method, &path, body.as_ref()).await?;
            ensure!(matches!(answer.status, 403..=405 | 429), "{answer:?}");
            refused += 1;
        }
    }
    // A right on one type suffices for a row.
    let checker = served.token("checker").await?;
    let rules =
        json!([{"apiGroups": ["oarlock.dev"], "resources": ["opsjobs", "opsjobs/preflight"], "verbs": ["create"]}]);
    served.allow("checker", &rules).await?;
    oarlock_scenarios::test_cluster::patiently("it has a row", async || {
        let body = reboot(json!([{"name": "cluster", "value": "local"}]));
        let answer = served.ask(Some(&checker), Method::POST, JOBS, Some(&body)).await?;
        ensure!(answer.status == 403, "{answer:?}");
        Ok(stored(&folder)?.contains("people:checker"))
    })
    .await?;
    ensure!(!stored(&folder)?.contains("people:stranger"), "somebody without rights has a row");
    let log = std::fs::read_to_string(served.log())?;
    let lines = log.lines().filter(|line| line.contains("a request that changes") && line.contains("stranger")).count();
    ensure!((1..refused).contains(&lines), "{lines} lines of {refused} requests");
    std::fs::remove_dir_all(&folder).map_err(Into::into)
}

/// Returns the contents of all files of a history.
fn stored(folder: &std::path::Path) -> anyhow::Result<String> {
    let mut all = String::new();
    for file in std::fs::read_dir(folder)? {
        all.push_str(&String::from_utf8_lossy(&std::fs::read(file?.path())?));
    }
    Ok(all)
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_say_or_read_nothing_keep_nobody_waiting() -> anyhow::Result<()> {
    let served = Served::in_memory(&FAST).await?;
    let mut held = Vec::new();
    for number in 0..CROWD {
        let silent = connection(&served, 2 * number).await?;
        let mut unread = connection(&served, 2 * number + 1).await?;
        let _sent = unread.write_all(b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: a\r\n\r\n").await;
        held.extend([silent, unread]);
        if number % 100 == 99 {
            let answer = raw(&served, b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await?;
            ensure!(answer.starts_with("HTTP/1.1 200 "), "{number}: {answer}");
        }
    }
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", served.child.id())).map(Iterator::count);
    ensure!(descriptors.as_ref().map_or(true, |open| *open < 900), "{descriptors:?} are open");
    // The server has closed the oldest connections.
    let first = held.first_mut().context("the first")?;
    let mut said = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, first.read_to_end(&mut said)).await;
    ensure!(ended.is_ok(), "the oldest is held");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_address_has_few_connections_and_another_one_its_own() -> anyhow::Result<()> {
    let served = Served::in_memory(&FAST).await?;
    let mut calm = connection(&served, 7).await?;
    let mut held = Vec::new();
    for _ in 0..200 {
        // The server may close a connection to make room for another one before its client knows that it was open.
        held.extend(connection(&served, 8).await.ok());
    }
    ensure!(held.len() > 100, "{}", held.len());
    calm.write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    calm.read_to_string(&mut answer).await?;
    ensure!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_sent_at_once_are_answered_in_their_order() -> anyhow::Result<()> {
    let served = Served::in_memory(&FAST).await?;
    let token = served.token("admin").await?;
    let mut all = String::new();
    for number in 0..50 {
        let path = if number % 2 == 0 { "/healthz" } else { JOBS };
        let close = if number == 49 { "Connection: close\r\n" } else { "" };
        all += &format!(
            "GET {path} HTTP/1.1\r\nHost: a\r\n{close}X-Request-Id: n{number}\r\nAuthorization: Bearer {token}\r\n\r\n"
        );
    }
    let answer = raw(&served, all.as_bytes()).await?;
    let ids: Vec<&str> = answer.lines().filter_map(|line| line.strip_prefix("x-request-id: ")).collect();
    let wanted: Vec<String> = (0..50).map(|number| format!("n{number}")).collect();
    ensure!(ids == wanted && answer.matches("HTTP/1.1 200 ").count() == 50, "{ids:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_that_somebody_made_up_keep_no_new_one_out() -> anyhow::Result<()> {
    let served = Served::in_memory(&FAST).await?;
    let real = served.token("somebody").await?;
    let (signed, signature) = real.rsplit_once('.').context("a token")?;
    // Each forged token has another signature.
    let forged = |number: usize| {
        let mut own = signature.to_owned();
        own.replace_range(..4, &format!("{:04}", number % 10_000));
        format!("{signed}.{own}")
    };
    let flood = (0..4).map(|client| {
        let served = &served;
        async move {
            let mut statuses = BTreeSet::new();
            for number in 0..100 {
                statuses
                    .insert(served.ask(Some(&forged(client * 100 + number)), Method::GET, JOBS, None).await?.status);
            }
            anyhow::Ok(statuses)
        }
    });
    let calm = async {
        let mut admitted = 0;
        for number in 0..20 {
            let token = served.token(&format!("calm-{number}")).await?;
            admitted += u32::from(served.ask(Some(&token), Method::GET, JOBS, None).await?.status == 200);
        }
        anyhow::Ok(admitted)
    };
    let (flooded, admitted) = futures::try_join!(futures::future::try_join_all(flood), calm)?;
    println!("{admitted} of 20 new tokens were admitted");
    ensure!(admitted == 20, "{admitted} of 20 were admitted");
    ensure!(flooded.iter().all(|statuses| *statuses == BTreeSet::from([401])), "{flooded:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_is_that_of_the_client_where_a_trusted_proxy_says_it() -> anyhow::Result<()> {
    for (more, address) in
        [(&["--trusted-proxy=127.0.0.0/8"][..], "address=\"192.0.2.7\""), (&[], "address=\"127.0.0.1:")]
    {
        let served = Served::in_memory(&[&FAST[..], more].concat()).await?;
        let token = served.token("admin").await?;
        let headers = &[("x-forwarded-for", "1.1.1.1, 192.0.2.7, 127.0.0.9"), ("x-request-id", "mine")];
        let sent = Sent { body: b"{}".to_vec(), headers };
        let answer = served.send(Some(&token), Method::POST, JOBS, sent).await?;
        ensure!(answer.status == 400, "{answer:?}");
        oarlock_scenarios::test_cluster::patiently("its line is there", async || {
            let log = std::fs::read_to_string(served.log())?;
            Ok(log.lines().any(|line| line.contains("request=\"mine\"") && line.contains(address)))
        })
        .await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_may_be_in_no_frame_and_strangers_hear_no_more_than_whether_it_is_ready() -> anyhow::Result<()> {
    let served = Served::in_memory(&FAST).await?;
    let page = served.ask(None, Method::GET, "/docs/", None).await?;
    let header = |name: &str| page.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    ensure!(page.status == 200 && header("content-security-policy").contains("frame-ancestors 'none'"), "{page:?}");
    ensure!(header("content-security-policy").contains("script-src 'self';"), "{page:?}");
    ensure!(header("x-content-type-options") == "nosniff" && header("referrer-policy") == "no-referrer", "{page:?}");
    let text = page.body.as_str().unwrap_or_default();
    ensure!(!text.contains("<script>"), "a script in the page would not run: {text}");
    let until = oarlock_scenarios::test_cluster::patiently("it is ready", async || {
        let stranger = served.ask(None, Method::GET, "/readyz", None).await?;
        let told = (stranger.status, stranger.body.as_str());
        ensure!(matches!(told, (200, Some("ok\n")) | (503, Some("not ready\n"))), "{stranger:?}");
        Ok(stranger.status == 200)
    });
    until.await?;
    let token = served.token("somebody").await?;
    let known = served.ask(Some(&token), Method::GET, "/readyz", None).await?;
    ensure!(known.status == 200 && known.body.as_str().is_some_and(|text| text.contains("[+] ")), "{known:?}");
    let forged = served.ask(Some(&format!("{}x", &token[..token.len() - 2])), Method::GET, "/readyz", None).await?;
    ensure!((forged.status, forged.body.as_str()) == (200, Some("ok\n")), "{forged:?}");
    Ok(())
}
