//! The bare client: makes only the writes that an operation cannot do without. It has no host, no plugin and no records.
//!
//! The targets are the pods of the set in a namespace. The client is done once a watch shows that every target is gone and as many
//! other pods serve, as a controller would see it. It runs as its own process, so that it can be measured like the host. It says
//! `ready` when it knows the targets, waits for a line, works, says `done`, and stays until the next line.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Write as _;
use std::pin::pin;

use anyhow::Context as _;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines, Stdin};

use crate::arguments::Mode;

/// Requests in flight, of all kinds together. The host may have the same number.
pub(crate) const IN_FLIGHT: usize = 32;
/// The finalizer that holds an origin, the same as the host's.
const FINALIZER: &str = "finalizer.operationjob.kusionstack.io/replace-protected";
const TO_REPLACE: &str = "collaset.kusionstack.io/to-replace";
const HELD: &str = "oarlock.dev/held";
const AVAILABLE: &str = "podopslifecycle.kusionstack.io/service-available";

/// A request to send for a target.
enum Act {
    Evict(String),
    Mark(String),
    Unmark(String),
}

/// The state of the pods, as the watch shows it.
struct Work {
    mode: Mode,
    /// UIDs and names of the targets that still exist.
    left: BTreeMap<String, String>,
    /// UIDs of targets that were unmarked.
    unmarked: BTreeSet<String>,
    /// UIDs of other pods that serve.
    serving: BTreeSet<String>,
    wanted: usize,
    queue: VecDeque<Act>,
}

/// Runs the bare client on the pods of a namespace.
///
/// # Errors
/// If the server refuses a request, or the watch breaks.
pub(crate) async fn run(client: Client, namespace: &str, mode: Mode) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let mut events = pin!(watcher(pods.clone(), Config::default()));
    let mut work = Work::new(mode);
    loop {
        match events.next().await.context("the watch ended")?? {
            Event::InitApply(pod) => work.target(&pod),
            Event::InitDone => break,
            Event::Init | Event::Apply(_) | Event::Delete(_) => {}
        }
    }
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    say_and_wait("ready", &mut input).await?;
    work.begin();
    let mut flying = FuturesUnordered::<BoxFuture<'static, anyhow::Result<()>>>::new();
    while !work.is_done() || !flying.is_empty() {
        while flying.len() < IN_FLIGHT
            && let Some(act) = work.queue.pop_front()
        {
            flying.push(Box::pin(send(client.clone(), namespace.to_owned(), act)));
        }
        tokio::select! {
            event = events.next() => work.heard(event.context("the watch ended")??),
            Some(outcome) = flying.next(), if !flying.is_empty() => outcome?,
        }
    }
    say_and_wait("done", &mut input).await
}

/// Writes a word to the bench and waits for the next line. The client fails if the bench has ended meanwhile, so that it ends too.
pub(crate) async fn say_and_wait(word: &str, input: &mut Lines<BufReader<Stdin>>) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{word}").context("nobody listens any more")?;
    input.next_line().await?.map(drop).context("nobody listens any more")
}

impl Work {
    fn new(mode: Mode) -> Self {
        let (left, unmarked, serving) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Self { mode, left, unmarked, serving, wanted: 0, queue: VecDeque::new() }
    }

    fn target(&mut self, pod: &Pod) {
        self.left.insert(pod.uid().unwrap_or_default(), pod.name_any());
    }

    fn begin(&mut self) {
        self.wanted = self.left.len();
        let first = match self.mode {
            Mode::Evict => Act::Evict,
            Mode::CollaSet => Act::Mark,
        };
        self.queue.extend(self.left.values().cloned().map(first));
    }

    fn is_done(&self) -> bool {
        self.left.is_empty() && self.queue.is_empty() && self.serving.len() >= self.wanted
    }

    fn heard(&mut self, event: Event<Pod>) {
        match event {
            Event::Apply(pod) | Event::InitApply(pod) => self.saw(&pod),
            Event::Delete(pod) => {
                let uid = pod.uid().unwrap_or_default();
                self.left.remove(&uid);
                self.serving.remove(&uid);
            }
            Event::Init | Event::InitDone => {}
        }
    }

    fn saw(&mut self, pod: &Pod) {
        let uid = pod.uid().unwrap_or_default();
        let leaves = pod.metadata.deletion_timestamp.is_some();
        if self.left.contains_key(&uid) {
            let held = pod.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
            if leaves && held && self.unmarked.insert(uid) {
                // Unmarks go first, because other work waits for them.
                self.queue.push_front(Act::Unmark(pod.name_any()));
            }
        } else if !leaves && self.serves(pod) {
            self.serving.insert(uid);
        } else {
            self.serving.remove(&uid);
        }
    }

    fn serves(&self, pod: &Pod) -> bool {
        match self.mode {
            Mode::Evict => {
                let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
                conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
            }
            Mode::CollaSet => pod.labels().contains_key(AVAILABLE),
        }
    }
}

async fn send(client: Client, namespace: String, act: Act) -> anyhow::Result<()> {
    match act {
        Act::Evict(name) => evict(client, &namespace, &name).await,
        Act::Mark(name) => {
            let metadata = json!({"labels": {TO_REPLACE: "true", HELD: "true"}, "finalizers": [FINALIZER],
                "annotations": {"hold.oarlock.dev/bare": "[]"}});
            patch(client, &namespace, &name, metadata).await
        }
        Act::Unmark(name) => {
            let metadata =
                json!({"labels": {HELD: null}, "finalizers": null, "annotations": {"hold.oarlock.dev/bare": null}});
            patch(client, &namespace, &name, metadata).await
        }
    }
}

async fn evict(client: Client, namespace: &str, name: &str) -> anyhow::Result<()> {
    let body =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}});
    let request = http::Request::post(format!("/api/v1/namespaces/{namespace}/pods/{name}/eviction"))
        .header("Content-Type", "application/json")
        .body(serde_json::to_vec(&body)?)?;
    client.request_text(request).await.map(drop).with_context(|| format!("cannot evict {name}"))
}

async fn patch(client: Client, namespace: &str, name: &str, metadata: serde_json::Value) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::namespaced(client, namespace);
    let patched = pods.patch(name, &PatchParams::default(), &Patch::Merge(json!({ "metadata": metadata }))).await;
    patched.map(drop).with_context(|| format!("cannot patch {name}"))
}
