//! Watches the Jobs of a namespace and the JobFlows or DaemonJobs that own them.
//!
//! It records when each Job existed, when it was decided, and when each owner had succeeded.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures::StreamExt as _;
use kube::api::{Api, ApiResource};
use kube::core::{GroupVersionKind, NotUsed, Object};
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Client, ResourceExt as _};
use oarlock_core::attempts::parent::ParentKind;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::flows::bare::{JobWithStatus, is_decided, jobs};

/// The wait before a failed watch is retried.
const AGAIN: Duration = Duration::from_millis(100);

/// An object without its spec.
type ParentWithStatus = Object<NotUsed, Value>;

/// The moments at which a watch delivered each event.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// When each Job first existed, by its name.
    pub(crate) created: BTreeMap<String, Instant>,
    /// When each Job succeeded or failed, by its name.
    pub(crate) decided: BTreeMap<String, Instant>,
    /// When the state of each object was `Succeed`, by its name.
    pub(crate) succeeded: BTreeMap<String, Instant>,
    /// The state of each object.
    states: BTreeMap<String, String>,
}

/// Watches that run until they are dropped.
pub(crate) struct FlowWatch {
    seen: Arc<Mutex<Seen>>,
    changes: watch::Receiver<()>,
    tasks: [AbortHandle; 2],
}

impl Drop for FlowWatch {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl FlowWatch {
    /// Begins to watch.
    pub(crate) fn start(client: &Client, namespace: &str, kind: ParentKind) -> Self {
        let seen = Arc::<Mutex<Seen>>::default();
        let (sender, changes) = watch::channel(());
        let sender = Arc::new(sender);
        let of_jobs = follow(jobs(client.clone(), namespace), seen.clone(), sender.clone(), saw_job);
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("api.practice.com", "v1alpha1", kind.name()));
        let parents: Api<ParentWithStatus> = Api::namespaced_with(client.clone(), namespace, &kind);
        let of_parents = follow(parents, seen.clone(), sender, saw_parent);
        let tasks = [tokio::spawn(of_jobs).abort_handle(), tokio::spawn(of_parents).abort_handle()];
        Self { seen, changes, tasks }
    }

    /// Returns everything that was seen so far.
    pub(crate) fn seen(&self) -> Seen {
        self.seen.lock().clone()
    }

    /// Waits until the observed state satisfies a condition.
    ///
    /// # Errors
    /// If `longest` passes first. The error names the awaited condition.
    pub(crate) async fn until(
        &self,
        what: &str,
        longest: Duration,
        condition: impl Fn(&Seen) -> bool,
    ) -> anyhow::Result<()> {
        let mut changes = self.changes.clone();
        let held = async {
            loop {
                changes.mark_unchanged();
                if condition(&self.seen.lock()) {
                    return Ok(());
                }
                changes.changed().await.context("the watches have ended")?;
            }
        };
        let waited = tokio::time::timeout(longest, held).await;
        waited.with_context(|| format!("waited {longest:?} for {what}, in vain: {}", self.described()))?
    }

    fn described(&self) -> String {
        let seen = self.seen.lock();
        let counts = [seen.created.len(), seen.decided.len(), seen.succeeded.len()];
        format!("created, decided, succeeded: {counts:?}; {:?}", seen.states.iter().take(3).collect::<Vec<_>>())
    }
}

fn saw_job(seen: &mut Seen, job: &JobWithStatus) {
    let (now, name) = (Instant::now(), job.name_any());
    if is_decided(job) {
        seen.decided.entry(name.clone()).or_insert(now);
    }
    seen.created.entry(name).or_insert(now);
}

fn saw_parent(seen: &mut Seen, parent: &ParentWithStatus) {
    let state = parent.status.as_ref().and_then(|status| status.get("state")?.as_str()).unwrap_or_default();
    if state == "Succeed" {
        seen.succeeded.entry(parent.name_any()).or_insert_with(Instant::now);
    }
    seen.states.insert(parent.name_any(), state.to_owned());
}

/// Records the events of a watch. After a failure, it waits and the watch retries.
async fn follow<U>(
    api: Api<Object<NotUsed, U>>,
    seen: Arc<Mutex<Seen>>,
    changes: Arc<watch::Sender<()>>,
    saw: fn(&mut Seen, &Object<NotUsed, U>),
) where
    U: Clone + Default + std::fmt::Debug + k8s_openapi::serde::de::DeserializeOwned + Send + Sync + 'static,
{
    let mut events = pin!(watcher(api, Config::default()));
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => saw(&mut seen.lock(), &object),
            Ok(Event::Init | Event::InitDone | Event::Delete(_)) => {}
            Err(_) => tokio::time::sleep(AGAIN).await,
        }
        changes.send_replace(());
    }
}
