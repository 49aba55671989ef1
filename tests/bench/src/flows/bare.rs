//! The bare client of the bench of flows. It makes the creates of the host as soon as their dependencies have succeeded, and
//! nothing else.
//!
//! It reads the creates from a file. It runs as its own process and speaks the protocol of `bare.rs`.

use std::collections::{HashMap, VecDeque};
use std::path::Path;

use anyhow::Context as _;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesUnordered};
use futures::{StreamExt as _, stream};
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use kube::api::{Api, ApiResource};
use kube::core::{NotUsed, Object};
use kube::runtime::watcher::{Config, Error, Event, watcher};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::bare::{IN_FLIGHT, say_and_wait};

/// A Job without its spec.
pub(crate) type JobWithStatus = Object<NotUsed, JobStatus>;

/// Returns the API for the Jobs of a namespace, without their specs.
pub(crate) fn jobs(client: Client, namespace: &str) -> Api<JobWithStatus> {
    Api::namespaced_with(client, namespace, &ApiResource::erase::<Job>(&()))
}

/// Returns true once a Job has succeeded or failed.
pub(crate) fn is_decided(job: &JobWithStatus) -> bool {
    let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|one| ["Complete", "Failed"].contains(&one.type_.as_str()) && one.status == "True")
}

/// A create to make.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// The name of the Job.
    pub(crate) name: String,
    /// The names of the Jobs that must succeed first.
    pub(crate) after: Vec<String>,
    pub(crate) object: Value,
}

impl Wanted {
    /// Returns the create as it is written to the file.
    pub(crate) fn to_json(&self) -> Value {
        json!({"name": self.name, "after": self.after, "object": self.object})
    }

    fn read(line: &Value) -> Option<Self> {
        let after = line.get("after")?.as_array()?.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        Some(Self { name: line.get("name")?.as_str()?.to_owned(), after, object: line.get("object")?.clone() })
    }
}

/// Runs the bare client.
///
/// # Errors
/// If the file is missing, the server refuses a create, or the watch breaks.
pub(crate) async fn run(client: Client, namespace: &str, file: &Path) -> anyhow::Result<()> {
    let lines: Vec<Value> = serde_json::from_slice(&std::fs::read(file).context("cannot read the creates")?)?;
    let wanted: Vec<Wanted> = lines.iter().filter_map(Wanted::read).collect();
    let mut events: BoxStream<'_, Result<Event<JobWithStatus>, Error>> =
        if wanted.iter().all(|one| one.after.is_empty()) {
            stream::pending().boxed()
        } else {
            let mut events = watcher(jobs(client.clone(), namespace), Config::default()).boxed();
            while !matches!(events.next().await.context("the watch ended")??, Event::InitDone) {}
            events
        };
    let mut work = Work::new(wanted);
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    say_and_wait("ready", &mut input).await?;
    let mut flying = FuturesUnordered::<BoxFuture<'static, anyhow::Result<()>>>::new();
    while work.left > 0 || !flying.is_empty() {
        while flying.len() < IN_FLIGHT
            && let Some(body) = work.ready.pop_front()
        {
            work.left -= 1;
            flying.push(Box::pin(create(client.clone(), namespace.to_owned(), body)));
        }
        tokio::select! {
            event = events.next() => if let Event::Apply(job) = event.context("the watch ended")??
                && is_decided(&job)
            {
                work.decided(&job.name_any());
            },
            Some(outcome) = flying.next(), if !flying.is_empty() => outcome?,
        }
    }
    say_and_wait("done", &mut input).await
}

/// The creates that are still to be made.
struct Work {
    ready: VecDeque<Vec<u8>>,
    /// Creates that wait: for how many Jobs, and the body.
    waiting: Vec<(usize, Vec<u8>)>,
    /// Indexes of the creates that wait for a Job, by the name of the Job.
    dependants: HashMap<String, Vec<usize>>,
    /// The number of creates that were not sent yet.
    left: usize,
}

impl Work {
    fn new(wanted: Vec<Wanted>) -> Self {
        let left = wanted.len();
        let mut work = Self { ready: VecDeque::new(), waiting: Vec::new(), dependants: HashMap::new(), left };
        for Wanted { after, object, .. } in wanted {
            let body = object.to_string().into_bytes();
            if after.is_empty() {
                work.ready.push_back(body);
                continue;
            }
            for name in &after {
                work.dependants.entry(name.clone()).or_default().push(work.waiting.len());
            }
            work.waiting.push((after.len(), body));
        }
        work
    }

    fn decided(&mut self, name: &str) {
        for index in self.dependants.remove(name).unwrap_or_default() {
            let Some((waits_for, body)) = self.waiting.get_mut(index) else { continue };
            *waits_for -= 1;
            if *waits_for == 0 {
                self.ready.push_back(std::mem::take(body));
            }
        }
    }
}

async fn create(client: Client, namespace: String, body: Vec<u8>) -> anyhow::Result<()> {
    let request = http::Request::post(format!("/apis/batch/v1/namespaces/{namespace}/jobs"))
        .header("Content-Type", "application/json")
        .body(body)?;
    client.request_text(request).await.map(drop).context("cannot create a Job")
}
