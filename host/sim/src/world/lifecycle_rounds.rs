//! One round of the PodOpsLifecycle for one pod: the writes of KusionStack's webhook and controller. Each write applies only to
//! the version that was decided on, because a label that is written after its ID was cleared would stay forever.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::deciders::lifecycle::{LifecycleStep, StepChange, StepKind, controller, webhook};
use super::labels;
use super::pauses::Pause;
use super::pod_facts::PodFacts;
use super::rounds::{Rounds, advance_failed, told};
use super::store::Place;
use super::writer::WriteFailed;
use crate::clock;

impl Rounds {
    /// Reconciles the lifecycle of a pod. Returns the delay after which it needs another round.
    pub(crate) async fn lifecycle_round(&self, place: &Place) -> Option<Duration> {
        let pod = self.store.pod(place)?;
        let lineage = self.store.lineage(pod.controller().map(|owner| owner.uid.as_str()));
        let holds = |pause| self.pauses.hold(pause, Some(place), &lineage);
        let is_held = |step: &LifecycleStep| match step.kind {
            StepKind::PreCheck => holds(Pause::Rules),
            StepKind::Drain => holds(Pause::Draining),
            StepKind::PostCheck | StepKind::Readiness => false,
        };
        let now = self.clock.now().as_nanosecond().to_string();
        let (changes, steps) =
            if holds(Pause::Lifecycle) { Default::default() } else { (webhook(&pod, &now), controller(&pod, &now)) };
        let kinds: BTreeSet<StepKind> = steps.iter().map(|step| step.kind).collect();
        let since = self.lifecycle_since.note((place.clone(), pod.uid().to_owned()), &kinds);
        if !changes.is_empty() {
            return told(self.patch_pod(&pod, json!({ "labels": changes })).await);
        }
        let mut waits = Vec::new();
        for step in steps.into_iter().filter(|step| !is_held(step)) {
            let begun = since.get(&step.kind).copied().unwrap_or_else(Instant::now);
            let wait = (begun + self.delay(&pod, step.kind)).saturating_duration_since(Instant::now());
            if wait.is_zero() {
                return told(self.make_step(&pod, step.change).await);
            }
            waits.push(wait);
        }
        waits.into_iter().min()
    }

    fn delay(&self, pod: &Pod, kind: StepKind) -> Duration {
        let (span, word) = match kind {
            StepKind::PreCheck => (self.operations.check, "pre-check"),
            StepKind::PostCheck => (self.operations.check, "post-check"),
            StepKind::Readiness => (self.timings.react, "service-ready"),
            StepKind::Drain => (self.operations.drain, "drain"),
        };
        self.writer.random.between(span, &[word, pod.pod_namespace(), pod.pod_name()])
    }

    async fn make_step(&self, pod: &Pod, change: StepChange) -> Result<(), WriteFailed> {
        match change {
            StepChange::Labels(labels) => self.patch_pod(pod, json!({ "labels": labels })).await,
            StepChange::Finalizers(stay) => self.patch_pod(pod, json!({ "finalizers": stay })).await,
            StepChange::ServiceReady(ready) => {
                let condition = json!({
                    "type": labels::SERVICE_READY,
                    "status": if ready { "True" } else { "False" },
                    "lastTransitionTime": clock::seconds(self.clock.now()),
                    "message": "updated by PodOpsLifecycle",
                });
                self.say_at_version(pod, json!({ "conditions": [condition] })).await
            }
        }
    }

    /// Changes the metadata of exactly this version of a pod.
    async fn patch_pod(&self, pod: &Pod, mut metadata: Value) -> Result<(), WriteFailed> {
        only_this_version(&mut metadata, pod);
        let body = Patch::Merge(json!({ "metadata": metadata }));
        let (api, parameters) = (self.writer.pods(pod.pod_namespace()), PatchParams::default());
        let patched = self.writer.within_bound(api.patch(pod.pod_name(), &parameters, &body)).await;
        self.store.put_pod(patched.map_err(|source| advance_failed(pod, source))?);
        Ok(())
    }

    /// Changes the status of exactly this version of a pod. Lists merge by their keys.
    pub(crate) async fn say_at_version(&self, pod: &Pod, status: Value) -> Result<(), WriteFailed> {
        let mut metadata = json!({});
        only_this_version(&mut metadata, pod);
        let body = Patch::Strategic(json!({ "metadata": metadata, "status": status }));
        let (api, parameters) = (self.writer.pods(pod.pod_namespace()), PatchParams::default());
        let patched = self.writer.within_bound(api.patch_status(pod.pod_name(), &parameters, &body)).await;
        self.store.put_pod(patched.map_err(|source| advance_failed(pod, source))?);
        Ok(())
    }
}

fn only_this_version(metadata: &mut Value, pod: &Pod) {
    let fields = crate::object::as_map(metadata);
    fields.insert("uid".to_owned(), json!(pod.uid()));
    fields.insert("resourceVersion".to_owned(), json!(pod.metadata.resource_version));
}
