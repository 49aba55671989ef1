//! The scheduler and the node controller for one pod: bind it, report why no node fits, and expel it from a tainted node.

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::labels;
use super::pod_facts::PodFacts;
use super::rounds::{Rounds, advance_failed};
use super::store::place_of;
use super::writer::{WriteFailed, only_if};
use crate::{clock, object};

impl Rounds {
    /// Binds a pod to a node, or writes in its conditions that no node fits. A change of the nodes retries it.
    pub(crate) async fn schedule(&self, pod: &Pod) -> Result<(), WriteFailed> {
        match self.writer.node_for(&place_of(pod), &pod.spec.clone().unwrap_or_default()) {
            Ok(node) => self.bind(pod, &node).await,
            Err(why) => {
                let known = pod.condition("PodScheduled").and_then(|condition| condition.message.as_deref());
                if known == Some(why.as_str()) {
                    return Ok(());
                }
                self.tell(pod, &why).await;
                let said =
                    json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why});
                self.say(pod, said).await
            }
        }
    }

    async fn bind(&self, pod: &Pod, node: &str) -> Result<(), WriteFailed> {
        let place = place_of(pod);
        let body = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": { "name": place.1, "namespace": place.0, "uid": pod.uid() },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node },
        });
        let api = self.writer.pods(&place.0);
        let parameters = PostParams::default();
        let request = api.create_subresource::<_, Value>("binding", &place.1, &parameters, &body);
        self.writer.within_bound(request).await.map(drop).map_err(|source| advance_failed(pod, source))
    }

    /// Deletes a pod that does not tolerate its node's taints, after setting the condition `DisruptionTarget`.
    pub(crate) async fn expel(&self, pod: &Pod) -> Result<(), WriteFailed> {
        self.say(
            pod,
            json!({
                "type": labels::DISRUPTION_TARGET, "status": "True", "reason": "DeletionByTaintManager",
                "message": "Taint manager: deleting due to NoExecute taint",
            }),
        )
        .await?;
        let (api, parameters) = (self.writer.pods(pod.pod_namespace()), only_if(pod.uid(), DeleteParams::default()));
        let deleted = self.writer.within_bound(api.delete(pod.pod_name(), &parameters)).await;
        deleted.map(drop).map_err(|source| advance_failed(pod, source))
    }

    /// Writes an event for a pod that cannot be scheduled, because `kubectl describe` does not show the messages of conditions.
    /// Each reason is written once. If the event is lost, the condition still has the reason.
    async fn tell(&self, pod: &Pod, why: &str) {
        let (namespace, name) = place_of(pod);
        let (now, draw) = (clock::seconds(self.clock.now()), self.writer.random.draw(&[pod.uid(), why]));
        let event = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": { "namespace": namespace, "name": format!("{name}.{draw:x}") },
            "type": "Warning", "reason": "FailedScheduling", "message": why, "count": 1,
            "firstTimestamp": now, "lastTimestamp": now, "source": { "component": "default-scheduler" },
            "involvedObject": {
                "apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": pod.uid(),
            },
        });
        let Ok(event) = serde_json::from_value::<Event>(event) else { return };
        let events: Api<Event> = Api::namespaced(self.writer.client.clone(), &namespace);
        if let Err(error) = self.writer.within_bound(events.create(&PostParams::default(), &event)).await {
            tracing::debug!(%error, "an event of the world was not taken");
        }
    }

    /// Writes one condition of a pod.
    async fn say(&self, pod: &Pod, mut condition: Value) -> Result<(), WriteFailed> {
        object::as_map(&mut condition).insert("lastTransitionTime".into(), json!(clock::seconds(self.clock.now())));
        let body = Patch::Strategic(json!({"metadata": {"uid": pod.uid()}, "status": {"conditions": [condition]}}));
        let (api, parameters) = (self.writer.pods(pod.pod_namespace()), PatchParams::default());
        let request = api.patch_status(pod.pod_name(), &parameters, &body);
        let patched = self.writer.within_bound(request).await.map_err(|source| advance_failed(pod, source))?;
        self.store.put_pod(patched);
        Ok(())
    }
}
