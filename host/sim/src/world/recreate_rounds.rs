//! One round for one ContainerRecreateRequest: the writes of OpenKruise's webhook and node daemon, and the restart of
//! the containers.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::deciders::recreate::{RecreateStep, recreate};
use super::kruise_crd::recreate_requests;
use super::pauses::Pause;
use super::pod_facts::PodFacts;
use super::recreate_requests::RecreateRequest;
use super::rounds::{Rounds, told};
use super::store::Place;
use super::writer::WriteFailed;
use crate::clock;

/// The kind of a delayed step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum RecreateDelay {
    /// The daemon starts to work on the request.
    Begin,
    /// The containers stop.
    Stop,
}

impl Rounds {
    /// Reconciles a request. Returns the delay after which it needs another round.
    pub(crate) async fn recreate_round(&self, place: &Place) -> Option<Duration> {
        let request = self.requests.get(place)?;
        let about = (place.0.clone(), request.spec.pod_name.clone());
        let pod = self.store.pod(&about);
        let fault = |container: &str| self.faults.lock().get(&(about.clone(), container.to_owned())).cloned();
        let step = match recreate(&request, pod.as_deref(), &fault, self.clock.now()) {
            // The daemon works on one request per pod at a time.
            RecreateStep::Begin(_) if !self.requests.has_its_turn(&request) => RecreateStep::Rest,
            step => step,
        };
        let delay = match step {
            RecreateStep::Begin(_) => Some(RecreateDelay::Begin),
            RecreateStep::Restart(_) => Some(RecreateDelay::Stop),
            _ => None,
        };
        let delays: BTreeSet<RecreateDelay> = delay.into_iter().collect();
        let since = self.recreate_since.note((place.clone(), request.uid.clone()), &delays);
        if let Some(delay) = delay {
            let lineage = self.store.lineage(pod.as_ref().and_then(|pod| Some(pod.controller()?.uid.as_str())));
            if self.pauses.hold(Pause::Restart, Some(&about), &lineage) {
                return None;
            }
            let (span, word) = match delay {
                RecreateDelay::Begin => (self.operations.accept, "accept"),
                RecreateDelay::Stop => (self.operations.stop, "stop"),
            };
            let due = since.get(&delay).copied().unwrap_or_else(Instant::now)
                + self.writer.random.between(span, &[word, &place.0, &place.1]);
            let wait = due.saturating_duration_since(Instant::now());
            if !wait.is_zero() {
                return Some(wait);
            }
        }
        match (step, pod) {
            (RecreateStep::Wait(wait), _) => Some(wait),
            (RecreateStep::Begin(status) | RecreateStep::Say(status), _) => told(self.say_of(&request, status).await),
            (RecreateStep::Accept { labels, containers }, _) => told(self.accept(&request, labels, containers).await),
            (RecreateStep::Restart(names), Some(pod)) => told(self.restart(&pod, &names).await),
            (RecreateStep::Rest | RecreateStep::Restart(_), _) => None,
        }
    }

    async fn accept(&self, request: &RecreateRequest, labels: Value, containers: Value) -> Result<(), WriteFailed> {
        let metadata = json!({ "uid": request.uid, "resourceVersion": request.version.to_string(), "labels": labels });
        let body = Patch::Merge(json!({ "metadata": metadata, "spec": { "containers": containers } }));
        let (api, parameters) = (self.requests_api(&request.place.0), PatchParams::default());
        self.remember(request, self.writer.within_bound(api.patch(&request.place.1, &parameters, &body)).await)
    }

    async fn say_of(&self, request: &RecreateRequest, status: Value) -> Result<(), WriteFailed> {
        let metadata = json!({ "resourceVersion": request.version.to_string() });
        let body = Patch::Merge(json!({ "metadata": metadata, "status": status }));
        let (api, parameters) = (self.requests_api(&request.place.0), PatchParams::default());
        self.remember(request, self.writer.within_bound(api.patch_status(&request.place.1, &parameters, &body)).await)
    }

    /// Restarts containers. They run again, and are not ready until the kubelet reports them ready.
    async fn restart(&self, pod: &Pod, names: &[String]) -> Result<(), WriteFailed> {
        let now = clock::seconds(self.clock.now());
        let statuses = pod.status.iter().flat_map(|status| &status.container_statuses).flatten();
        let restarted = statuses.filter(|status| names.contains(&status.name)).map(|status| {
            let began = status.state.as_ref().and_then(|state| state.running.as_ref()?.started_at.clone());
            json!({
                "name": status.name, "ready": false, "started": true, "restartCount": status.restart_count.saturating_add(1),
                "image": status.image, "imageID": status.image_id,
                "state": { "running": { "startedAt": now } },
                "lastState": { "terminated": { "exitCode": 0, "reason": "Completed", "startedAt": began, "finishedAt": now } },
            })
        });
        let restarted: Vec<Value> = restarted.collect();
        let unready = |kind: &str| json!({ "type": kind, "status": "False", "reason": "ContainersNotReady", "lastTransitionTime": now });
        let conditions = ["Ready", "ContainersReady"].map(unready);
        self.say_at_version(pod, json!({ "containerStatuses": restarted, "conditions": conditions })).await
    }

    fn requests_api(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.writer.client.clone(), namespace, &recreate_requests())
    }

    fn remember(&self, request: &RecreateRequest, reply: kube::Result<DynamicObject>) -> Result<(), WriteFailed> {
        let object = reply.map_err(|source| WriteFailed::ChangeRequest { name: request.place.1.clone(), source })?;
        if let Some(request) = RecreateRequest::read(&object) {
            self.requests.put(request);
        }
        Ok(())
    }
}
