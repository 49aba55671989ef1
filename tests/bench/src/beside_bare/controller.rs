//! The controller of one CollaSet: the whole simulated cluster of the scenario `beside-bare`.
//!
//! It follows one watch of the pods and makes the five writes for each origin that asks for them (`protocol.rs`), with few requests
//! in flight. It writes only what a real cluster writes for a replacement, so that the API server's work for the contender stays
//! visible. It must not write to a pod of another owner.

use std::collections::VecDeque;
use std::pin::pin;
use std::time::Duration;

use anyhow::Context as _;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::watcher::{Config, Event, watcher};
use oarlock_sim::world::labels;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::pods;
use super::protocol::{PodWrite, Progress, Protocol};

/// Requests in flight.
const IN_FLIGHT: usize = 16;
/// How long the first list may take.
const LISTED_WITHIN: Duration = Duration::from_secs(60);

/// The controller's work so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    /// True once the controller has seen every pod that existed at its start.
    listed: bool,
    pub(crate) progress: Progress,
    /// The number of sent requests.
    pub(crate) writes: usize,
}

/// A controller that works until it is dropped.
pub(crate) struct Controller {
    done: watch::Receiver<Done>,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Controller {
    /// Starts a controller for a CollaSet whose next pod gets the id `next_id`, and waits until it has seen the pods of the
    /// namespace.
    ///
    /// # Errors
    /// If the pods cannot be listed.
    pub(crate) async fn start(
        client: Client,
        namespace: &str,
        owner: OwnerReference,
        next_id: usize,
    ) -> anyhow::Result<Self> {
        let (sender, done) = watch::channel(Done::default());
        let pods = Api::namespaced(client, namespace);
        let task = tokio::spawn(run(PodWriter { pods, owner: owner.clone() }, Protocol::new(owner, next_id), sender));
        let mut controller = Self { done, task };
        controller.until("the first list of the pods", LISTED_WITHIN, |done| done.listed).await?;
        Ok(controller)
    }

    /// Waits until this many origins are gone, each after its pair served.
    ///
    /// # Errors
    /// If the controller fails, or the origins are not gone within `longest`.
    pub(crate) async fn until_gone(&mut self, origins: usize, longest: Duration) -> anyhow::Result<()> {
        self.until("the origins to be gone", longest, |done| done.progress.gone >= origins).await
    }

    /// Waits until all writes for this many origins were made.
    ///
    /// # Errors
    /// If the controller fails, or the writes are not made within `longest`.
    pub(crate) async fn until_finished(&mut self, origins: usize, longest: Duration) -> anyhow::Result<()> {
        self.until("the last writes of the controller", longest, |done| done.progress.finished >= origins).await
    }

    /// Returns the controller's work so far.
    pub(crate) fn done(&self) -> Done {
        *self.done.borrow()
    }

    async fn until(&mut self, what: &str, longest: Duration, holds: impl Fn(&Done) -> bool) -> anyhow::Result<()> {
        let waited = tokio::time::timeout(longest, self.done.wait_for(holds)).await.map(|found| found.is_ok());
        if waited.with_context(|| format!("waited {longest:?} for {what}, in vain: {:?}", self.done()))? {
            return Ok(());
        }
        (&mut self.task).await.context("the controller of the CollaSet panicked")??;
        anyhow::bail!("the controller of the CollaSet ended while the bench waited for {what}")
    }
}

/// Returns the options of a create by the controller. The controller has its own field manager, as any program has. The API
/// server's work for a patch grows with the number of managers, and a contender adds one more.
pub(super) fn as_controller() -> PostParams {
    PostParams { field_manager: Some("collaset-controller".to_owned()), ..PostParams::default() }
}

async fn run(writer: PodWriter, mut protocol: Protocol, sender: watch::Sender<Done>) -> anyhow::Result<()> {
    let mut events = pin!(watcher(writer.pods.clone(), Config::default()));
    let mut queue = VecDeque::new();
    let mut flying = FuturesUnordered::<BoxFuture<'static, anyhow::Result<()>>>::new();
    let mut done = Done::default();
    loop {
        while flying.len() < IN_FLIGHT
            && let Some(write) = queue.pop_front()
        {
            flying.push(Box::pin(writer.clone().send(write)));
            done.writes += 1;
        }
        tokio::select! {
            event = events.next() => match event.context("the watch of the pods ended")?? {
                Event::Apply(pod) | Event::InitApply(pod) => queue.extend(protocol.saw(&pod)),
                Event::Delete(pod) => queue.extend(protocol.saw_end(&pod)),
                // A second list would miss the pods that were deleted meanwhile.
                Event::Init => anyhow::ensure!(!done.listed, "the watch of the pods was cut off"),
                Event::InitDone => done.listed = true,
            },
            Some(outcome) = flying.next(), if !flying.is_empty() => outcome?,
        }
        done.progress = protocol.progress();
        sender.send_replace(done);
    }
}

/// Sends the requests of the controller.
#[derive(Clone)]
struct PodWriter {
    pods: Api<Pod>,
    owner: OwnerReference,
}

impl PodWriter {
    async fn send(self, write: PodWrite) -> anyhow::Result<()> {
        match write {
            PodWrite::CreatePair { id, origin } => {
                let pair = pods::pair(&self.owner, id, &origin);
                let created = self.pods.create(&as_controller(), &pair).await;
                created.map(drop).with_context(|| format!("cannot create the pair of {origin}"))
            }
            PodWrite::NamePair { origin, uid, id } => {
                self.patch(&origin, json!({"uid": uid, "labels": {labels::PAIR_NEW_ID: id.to_string()}})).await
            }
            PodWrite::MakeAvailable { pair } => {
                self.patch(&pair, json!({"labels": {labels::SERVICE_AVAILABLE: "true"}})).await
            }
            PodWrite::DeleteOrigin { origin, uid } => {
                let this_one = Preconditions { uid: Some(uid), resource_version: None };
                let deleted = self.pods.delete(&origin, &DeleteParams::default().preconditions(this_one)).await;
                deleted.map(drop).with_context(|| format!("cannot delete {origin}"))
            }
            PodWrite::Unpair { pair } => self.patch(&pair, json!({"labels": {labels::PAIR_ORIGIN_NAME: null}})).await,
        }
    }

    async fn patch(&self, name: &str, metadata: Value) -> anyhow::Result<()> {
        let options = PatchParams { field_manager: as_controller().field_manager, ..PatchParams::default() };
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        let patched = self.pods.patch(name, &options, &patch).await;
        patched.map(drop).with_context(|| format!("cannot patch {name}"))
    }
}
