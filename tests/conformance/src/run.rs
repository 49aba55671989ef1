//! Sends one script to one side, and records what each step answers.
//!
//! Values that differ between any two servers (ids, times, versions) are replaced by tokens that still tell equal from different.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures::future::BoxFuture;
use futures::{AsyncBufReadExt as _, StreamExt as _};
use http::Request;
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::normal::Normal;
use super::script::{Group, Script, Step};

/// The longest wait for a reply. The slowest reply is an eviction, which the API server itself retries for 10 s.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a watch may be silent before the script gives up on further events.
const SILENCE: Duration = Duration::from_secs(8);

/// The longest wait of a step that is repeated until a condition holds. A server's cache of roles is behind its store for less
/// time.
const CAUGHT_UP_WITHIN: Duration = Duration::from_secs(20);

/// The time between two repetitions of a step that waits.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// A function that makes a server forget earlier versions, as compaction does.
pub type Forget = Arc<dyn Fn() -> BoxFuture<'static, anyhow::Result<()>> + Send + Sync>;

/// One of the two servers.
#[derive(Clone)]
pub struct Side {
    /// A client that may do everything.
    pub client: kube::Client,
    /// A client without credentials, for steps that send a token of their own.
    pub anonymous: kube::Client,
    /// The function for the scripts that say `FORGET`. Without it, such a step fails.
    pub forget: Option<Forget>,
}

/// The answer to one step.
#[derive(Clone, Debug)]
pub(crate) struct Observation {
    /// The HTTP status, or 0 if there was no answer.
    pub(crate) status: u16,
    /// The body or the list of events, without ids, times and versions.
    pub(crate) body: Value,
}

/// The values that a script knows: its namespace, the constants and the values that it kept.
type Known = BTreeMap<String, String>;

/// Runs `script` from its first step to its last, regardless of the answers.
pub(crate) async fn script(side: &Side, group: &Group, script: &Script) -> Vec<Observation> {
    let mut known = Known::from([("ns".to_owned(), script.namespace())]);
    for (name, value) in &group.constants {
        known.insert(name.clone(), fill(value, &known));
    }
    let mut normal = Normal::new(&script.text);
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": script.namespace()}});
    let prepare = Step {
        verb: "POST".to_owned(),
        path: "/api/v1/namespaces".to_owned(),
        content: None,
        headers: Vec::new(),
        body: Some(namespace),
        keep: Vec::new(),
        until: Vec::new(),
        events: 0,
    };
    // If a side refuses the namespace, every later step shows it.
    let _ = send(side, &prepare, &known, &group.define).await;
    let mut seen = Vec::new();
    for step in &script.steps {
        let (status, body) = match send_until(side, step, &known, &group.define).await {
            Ok(answer) => answer,
            Err(cause) => (0, json!({"no answer": format!("{cause:#}")})),
        };
        for (name, pointer) in &step.keep {
            known.insert(name.clone(), text(body.pointer(pointer)));
        }
        seen.push(Observation { status, body: normal.normalise(body) });
    }
    seen
}

/// Sends a step, repeatedly if it waits for a value. The last answer counts.
async fn send_until(
    side: &Side,
    step: &Step,
    known: &Known,
    define: &Map<String, Value>,
) -> anyhow::Result<(u16, Value)> {
    let end = Instant::now() + CAUGHT_UP_WITHIN;
    loop {
        let answer = send(side, step, known, define).await?;
        let is_there = |(pointer, value): &(String, String)| text(answer.1.pointer(pointer)) == *value;
        if step.until.iter().all(is_there) || Instant::now() > end {
            return Ok(answer);
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

async fn send(side: &Side, step: &Step, known: &Known, define: &Map<String, Value>) -> anyhow::Result<(u16, Value)> {
    if step.verb == "FORGET" {
        let forget = side.forget.as_ref().context("this group of scripts has nobody who forgets")?;
        return forget().await.map(|()| (0, Value::Null));
    }
    let request = build(step, known, define)?;
    // A client with credentials replaces the token of a request.
    let client = if request.headers().contains_key("authorization") { &side.anonymous } else { &side.client };
    let reply = tokio::time::timeout(PATIENCE, client.send(request)).await.context("no reply in time")??;
    let status = reply.status().as_u16();
    if step.verb == "WATCH" && status == 200 {
        return Ok((status, events(reply.into_body(), step.events).await));
    }
    let content =
        tokio::time::timeout(PATIENCE, reply.into_body().collect()).await.context("no end of the reply in time")?;
    let content = content.map_err(|cause| anyhow::anyhow!(cause)).context("the reply broke off")?.to_bytes();
    let body = serde_json::from_slice(&content)
        .unwrap_or_else(|_| Value::from(String::from_utf8_lossy(&content).into_owned()));
    Ok((status, body))
}

/// Reads as many events as were asked for. If no event comes for a while, the list ends with a note.
async fn events(body: Body, wanted: usize) -> Value {
    let stream =
        futures::stream::TryStreamExt::map_err(http_body_util::BodyDataStream::new(body), std::io::Error::other);
    let mut lines = futures::stream::TryStreamExt::into_async_read(stream).lines();
    let mut seen = Vec::new();
    while seen.len() < wanted {
        match tokio::time::timeout(SILENCE, lines.next()).await {
            Ok(Some(Ok(line))) => seen.push(serde_json::from_str(&line).unwrap_or(Value::from(line))),
            Ok(_) => {
                seen.push("the watch ended".into());
                break;
            }
            Err(_) => {
                seen.push("no further event".into());
                break;
            }
        }
    }
    Value::Array(seen)
}

fn build(step: &Step, known: &Known, define: &Map<String, Value>) -> anyhow::Result<Request<Body>> {
    let (verb, path) = match step.verb.as_str() {
        "WATCH" => ("GET", format!("{}{}watch=true", step.path, if step.path.contains('?') { '&' } else { '?' })),
        verb => (verb, step.path.clone()),
    };
    let content_type = match step.content.as_deref() {
        None => "application/json",
        Some("merge") => "application/merge-patch+json",
        Some("json") => "application/json-patch+json",
        Some("strategic") => "application/strategic-merge-patch+json",
        Some("apply") => "application/apply-patch+yaml",
        Some(other) => other,
    };
    let mut builder = Request::builder().method(verb).uri(fill(&path, known)).header("accept", "application/json");
    if step.body.is_some() {
        builder = builder.header("content-type", content_type);
    }
    for (name, value) in &step.headers {
        if let (Some(headers), Ok(name), Ok(value)) =
            (builder.headers_mut(), http::HeaderName::try_from(name), http::HeaderValue::try_from(fill(value, known)))
        {
            headers.insert(name, value);
        }
    }
    let body = step.body.as_ref().map(|body| expand(body, known, define).to_string().into_bytes());
    builder
        .body(body.map_or_else(Body::empty, Body::from))
        .with_context(|| format!("cannot build {} {}", step.verb, step.path))
}

/// Replaces each `{name}` by its known value.
fn fill(text: &str, known: &Known) -> String {
    known.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
}

/// Fills in all strings. A map with `$: name` is merged over the object that is defined under that name.
fn expand(value: &Value, known: &Known, define: &Map<String, Value>) -> Value {
    match value {
        Value::String(text) => fill(text, known).into(),
        Value::Array(items) => items.iter().map(|item| expand(item, known, define)).collect(),
        Value::Object(map) => {
            let base = map.get("$").and_then(Value::as_str).and_then(|name| define.get(name));
            let own = map.iter().filter(|(key, _)| *key != "$");
            let own = Value::Object(own.map(|(key, value)| (fill(key, known), expand(value, known, define))).collect());
            base.map_or_else(|| own.clone(), |base| laid_over(expand(base, known, define), &own))
        }
        other => other.clone(),
    }
}

/// Merges maps recursively and replaces any other value. Nulls stay, because scripts send them.
fn laid_over(mut base: Value, own: &Value) -> Value {
    let (Some(into), Some(from)) = (base.as_object_mut(), own.as_object()) else { return own.clone() };
    for (key, value) in from {
        let merged = into.remove(key).map_or_else(|| value.clone(), |below| laid_over(below, value));
        into.insert(key.clone(), merged);
    }
    base
}

fn text(value: Option<&Value>) -> String {
    match value {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => "nothing-kept".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defined_object_is_merged_and_filled_in() {
        let define = json!({"pod": {"kind": "Pod", "metadata": {"labels": {"a": "b"}}}});
        let known = Known::from([("uid".to_owned(), "u-1".to_owned())]);
        let body = json!({"$": "pod", "metadata": {"name": "x-{uid}", "finalizers": null}});
        let wanted = json!({"kind": "Pod", "metadata": {"labels": {"a": "b"}, "name": "x-u-1", "finalizers": null}});
        assert_eq!(expand(&body, &known, define.as_object().unwrap()), wanted);
    }
}
