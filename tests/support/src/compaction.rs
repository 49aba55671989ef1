//! Compacts etcd, so that it forgets every version before the present one.
//!
//! It uses etcd's JSON gateway, so that no client for etcd's own protocol is needed.

use anyhow::Context as _;
use serde_json::{Value, json};

/// Compacts the store to its present revision.
pub(crate) async fn compact(port: u16) -> anyhow::Result<()> {
    let url = format!("http://127.0.0.1:{port}").parse().context("cannot build the address of the store")?;
    let client = kube::Client::try_from(kube::Config::new(url)).context("cannot make a client for the store")?;
    // The key is a zero byte: the smallest possible key.
    let read = call(&client, "/v3/kv/range", &json!({"key": "AA=="})).await?;
    let revision = read.pointer("/header/revision").context("the store did not say its revision")?;
    call(&client, "/v3/kv/compaction", &json!({"revision": revision, "physical": true})).await.map(|_| ())
}

async fn call(client: &kube::Client, path: &str, body: &Value) -> anyhow::Result<Value> {
    let request = http::Request::post(path)
        .header("content-type", "application/json")
        .body(body.to_string().into_bytes())
        .with_context(|| format!("cannot build the request for {path}"))?;
    client.request(request).await.with_context(|| format!("the store refused {path}"))
}
