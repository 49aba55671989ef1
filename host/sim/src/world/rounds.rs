//! One round for one pod or one set: read (store), decide (deciders), act (writer). It returns the delay after which
//! the key needs another round.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use super::action::{Action, Member, PodName, SetContext};
use super::deciders::collaset::{collaset, next_id};
use super::deciders::deployment::deployment;
use super::deciders::ending;
use super::deciders::kubelet::{self, Stage, Timings};
use super::deciders::lifecycle::StepKind;
use super::deciders::replicas::{replica_set, stateful_set};
use super::jobs::Jobs;
use super::labels;
use super::node_tasks::{Ailments, Markers, Scripts};
use super::operation_timings::OperationTimings;
use super::pauses::{Pause, Pauses};
use super::pod_facts::PodFacts;
use super::reboots::Reboots;
use super::recreate_requests::RecreateRequests;
use super::recreate_rounds::RecreateDelay;
use super::sets::{SetKey, SetKind, SetView};
use super::since::Since;
use super::store::{Place, WorldStore};
use super::writer::{IN_FLIGHT, WriteFailed, Writer, only_if};
use crate::clock::Clock;

/// The delay after a refused write. The cache is usually slightly stale then, so an immediate retry would be refused too.
const AFTER_FAILURE: Duration = Duration::from_millis(200);

/// The key of a pod, a set or another object in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WorkKey {
    /// A pod, for the scheduler and the kubelet.
    Pod(Place),
    /// A workload, for its controller.
    Set(SetKey),
    /// A ContainerRecreateRequest, for OpenKruise.
    Request(Place),
    /// A rebooting node, by name.
    Node(String),
    /// A batch Job, for the Job controller.
    Job(Place),
}

/// The state and the settings that the rounds use.
pub(crate) struct Rounds {
    pub(crate) store: Arc<WorldStore>,
    pub(crate) writer: Writer,
    pub(crate) pauses: Arc<Pauses>,
    pub(crate) timings: Timings,
    pub(crate) operations: OperationTimings,
    pub(crate) clock: Arc<dyn Clock>,
    /// Possible lifecycle steps, by place and uid of their pod.
    pub(crate) lifecycle_since: Since<(Place, String), StepKind>,
    /// The commands that were started on nodes.
    pub(crate) markers: Markers,
    pub(crate) ailments: Ailments,
    pub(crate) scripts: Scripts,
    pub(crate) requests: RecreateRequests,
    pub(crate) reboots: Reboots,
    /// Possible steps of requests, by place and uid of the request.
    pub(crate) recreate_since: Since<(Place, String), RecreateDelay>,
    /// The reasons why containers of pods cannot be restarted.
    pub(crate) faults: Mutex<HashMap<(Place, String), String>>,
    pub(crate) jobs: Jobs,
    /// Factor of the sleeps in the commands of pods.
    pub(crate) sleep_factor: f64,
    entered: Mutex<HashMap<Place, Entered>>,
    /// The lowest instance id that a set has never used, by the set's uid. An id must not return after its pod is gone.
    next_ids: Mutex<HashMap<String, u64>>,
}

/// The uid of a pod, its stage, its number of restarts, and the time at which the stage began.
type Entered = (String, Stage, i32, Instant);

/// The parts of [`Rounds`].
pub(crate) struct RoundsParts {
    pub(crate) writer: Writer,
    pub(crate) timings: Timings,
    pub(crate) operations: OperationTimings,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) sleep_factor: f64,
}

impl Rounds {
    pub(crate) fn new(parts: RoundsParts) -> Self {
        let RoundsParts { writer, timings, operations, clock, sleep_factor } = parts;
        let (store, pauses) = (writer.store.clone(), writer.pauses.clone());
        Self {
            store,
            writer,
            pauses,
            timings,
            operations,
            clock,
            lifecycle_since: Since::default(),
            markers: Markers::default(),
            ailments: Ailments::default(),
            scripts: Scripts::default(),
            requests: RecreateRequests::default(),
            reboots: Reboots::default(),
            recreate_since: Since::default(),
            faults: Mutex::default(),
            jobs: Jobs::default(),
            sleep_factor: if sleep_factor.is_finite() { sleep_factor.max(0.0) } else { 1.0 },
            entered: Mutex::default(),
            next_ids: Mutex::default(),
        }
    }

    /// Runs one round of a key.
    pub(crate) async fn round(self: Arc<Self>, key: WorkKey) -> Option<Duration> {
        match key {
            WorkKey::Pod(place) => self.pod_round(&place).await,
            WorkKey::Set(key) => self.set_round(&key).await,
            WorkKey::Request(place) => self.recreate_round(&place).await,
            WorkKey::Node(name) => self.node_round(&name).await,
            WorkKey::Job(place) => self.job_round(&place).await,
        }
    }

    async fn pod_round(&self, place: &Place) -> Option<Duration> {
        let Some(pod) = self.store.pod(place) else {
            self.entered.lock().remove(place);
            return None;
        };
        let may_stay = self.writer.nodes.time_left(&pod).filter(|_| !pod.is_terminating() && !pod.is_finished());
        if may_stay == Some(Duration::ZERO) {
            return told(self.expel(&pod).await);
        }
        let staged = self.stage_round(place, &pod).await;
        [may_stay, staged, self.lifecycle_round(place).await].into_iter().flatten().min()
    }

    async fn stage_round(&self, place: &Place, pod: &Pod) -> Option<Duration> {
        let lineage = self.store.lineage(pod.controller().map(|owner| owner.uid.as_str()));
        let holds = |pause| self.pauses.hold(pause, Some(place), &lineage);
        let stage = kubelet::stage(pod, holds(Pause::Health));
        let is_held = match stage {
            Stage::Unscheduled => holds(Pause::Scheduling),
            Stage::Starting => pod.bears(labels::TASK) && holds(Pause::Tasks),
            Stage::Unready => holds(Pause::Readiness),
            Stage::Terminating => holds(Pause::Termination),
            _ => false,
        };
        if is_held || pod.node().is_some_and(|node| self.reboots.is_down(node)) {
            return None;
        }
        if let Some(time) = self.task_time(pod, stage) {
            let wait = (self.entered_at(place, pod, stage) + time).saturating_duration_since(Instant::now());
            return if wait.is_zero() { told(self.finish_task(pod).await) } else { Some(wait) };
        }
        let due = self.entered_at(place, pod, stage) + kubelet::stay(pod, stage, &self.timings, self.writer.random);
        let wait = due.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            return Some(wait);
        }
        told(self.advance(pod, stage).await)
    }

    /// Returns the time at which the pod was first observed in this stage.
    fn entered_at(&self, place: &Place, pod: &Pod, stage: Stage) -> Instant {
        let mut entered = self.entered.lock();
        // A restarted command takes its full time again. The containers of other pods restart within a stage.
        let run = if ending::ends_by_itself(pod) { ending::restarts(pod) } else { 0 };
        let now = (pod.uid().to_owned(), stage, run, Instant::now());
        let known = entered.entry(place.clone()).or_insert_with(|| now.clone());
        if (known.0.as_str(), known.1, known.2) != (pod.uid(), stage, run) {
            *known = now;
        }
        known.3
    }

    /// Moves a pod to its next stage.
    async fn advance(&self, pod: &Pod, stage: Stage) -> Result<(), WriteFailed> {
        match stage {
            Stage::Settled => Ok(()),
            Stage::Unscheduled => self.schedule(pod).await,
            Stage::Starting => match self.begin_task(pod).await {
                Some(begun) => begun,
                None => self.write_status(pod, false).await,
            },
            Stage::Unready => self.write_status(pod, true).await,
            Stage::Failing => self.write_status(pod, false).await,
            Stage::Unavailable => {
                let label = BTreeMap::from([(labels::SERVICE_AVAILABLE.to_owned(), Some("true".to_owned()))]);
                self.writer.label_pod(pod.pod_namespace(), &PodName::of(pod), &label).await
            }
            Stage::Terminating | Stage::Lingering => self.finish(pod).await,
        }
    }

    pub(crate) async fn write_status(&self, pod: &Pod, is_ready: bool) -> Result<(), WriteFailed> {
        let now = self.clock.now();
        let now = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
        let meta = json!({ "uid": pod.uid(), "resourceVersion": pod.metadata.resource_version });
        let body = Patch::Merge(json!({ "metadata": meta, "status": kubelet::running(pod, is_ready, now) }));
        let (api, parameters) = (self.writer.pods(pod.pod_namespace()), PatchParams::default());
        let request = api.patch_status(pod.pod_name(), &parameters, &body);
        let patched = self.writer.within_bound(request).await.map_err(|source| advance_failed(pod, source))?;
        self.store.put_pod(patched);
        Ok(())
    }

    /// Sends the kubelet's last request: the containers have ended, so the API server may remove the pod.
    async fn finish(&self, pod: &Pod) -> Result<(), WriteFailed> {
        let (api, parameters) = (self.writer.pods(pod.pod_namespace()), DeleteParams::default().grace_period(0));
        let parameters = only_if(pod.uid(), parameters);
        let deleted = self.writer.within_bound(api.delete(pod.pod_name(), &parameters)).await;
        deleted.map(drop).map_err(|source| advance_failed(pod, source))
    }

    async fn set_round(&self, key: &SetKey) -> Option<Duration> {
        let set = self.store.set(key).filter(|set| !set.is_terminating)?;
        let actions = self.decide(&set);
        let performed = futures::stream::iter(actions).map(|action| self.writer.perform(&set, action));
        let failures: Vec<WriteFailed> =
            performed.buffer_unordered(IN_FLIGHT).filter_map(|result| async { result.err() }).collect().await;
        failures.into_iter().filter_map(|failure| told(Err(failure))).min()
    }

    fn decide(&self, set: &SetView) -> Vec<Action> {
        let members = self.store.members(&set.key.namespace, &set.uid);
        let lineage = self.store.lineage(Some(&set.uid));
        let creation_held =
            [Pause::Creation, Pause::Recreation].into_iter().any(|pause| self.pauses.hold(pause, None, &lineage));
        let context = SetContext { next_id: self.next_id(set, &members), creation_held };
        let actions = match set.key.kind {
            SetKind::Deployment => deployment(set, &self.store.replica_sets(&set.uid)),
            SetKind::ReplicaSet => replica_set(set, &members, context),
            SetKind::StatefulSet => stateful_set(set, &members, context),
            SetKind::CollaSet => collaset(set, &members, context),
        };
        let spent = actions
            .iter()
            .filter(|action| matches!(action, Action::ReplaceOrigin { .. } | Action::CreatePod(_)))
            .count();
        let spent = u64::try_from(spent).unwrap_or(u64::MAX);
        self.next_ids.lock().insert(set.uid.clone(), context.next_id.saturating_add(spent));
        actions
    }

    fn next_id(&self, set: &SetView, members: &[Member]) -> u64 {
        let known = self.next_ids.lock().get(&set.uid).copied().unwrap_or(0);
        known.max(next_id(members))
    }
}

/// Returns the delay before a retry, if a write was refused. The refusal is only logged: the object changed or is gone, or the
/// scenario broke the server. A permanent refusal shows as a scenario that does not end.
pub(crate) fn told(result: Result<(), WriteFailed>) -> Option<Duration> {
    let failure = result.err()?;
    let cause = std::error::Error::source(&failure).map(ToString::to_string).unwrap_or_default();
    tracing::debug!(%failure, cause, "a write of the world was refused");
    Some(AFTER_FAILURE)
}

pub(crate) fn advance_failed(pod: &Pod, source: kube::Error) -> WriteFailed {
    WriteFailed::AdvancePod { name: pod.pod_name().to_owned(), source }
}
