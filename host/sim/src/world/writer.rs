//! Performs the actions of sets. The replies go to the store at once, so no decision uses a view older than the simulation's own
//! writes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::action::{Action, NewPod, PodName};
use super::deciders::collaset::pod_labels;
use super::labels;
use super::ledger::Ledger;
use super::new_objects::{pod_of, replica_set_of};
use super::nodes::Nodes;
use super::pauses::{Pause, Pauses};
use super::random::SeededRandom;
use super::sets::{SetKey, SetView};
use super::store::{Place, WorldStore};

/// The most requests in flight. More requests only add latency on a small API server.
pub(crate) const IN_FLIGHT: usize = 16;

/// The most names that are drawn for a pod in one round.
const NAME_DRAWS: usize = 8;

/// A write of the simulation that the API server refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteFailed {
    #[error("failed to create pod {name}")]
    CreatePod { name: String, source: kube::Error },
    #[error("failed to label pod {name}")]
    LabelPod { name: String, source: kube::Error },
    #[error("failed to delete pod {name}")]
    DeletePod { name: String, source: kube::Error },
    #[error("failed to create ReplicaSet {name}")]
    CreateReplicaSet { name: String, source: kube::Error },
    #[error("failed to resize or to number {set}")]
    ChangeSet { set: SetKey, source: kube::Error },
    #[error("failed to write the status of {set}")]
    WriteSetStatus { set: SetKey, source: kube::Error },
    #[error("failed to write or to delete Job {name}")]
    ChangeJob { name: String, source: kube::Error },
    #[error("failed to bring ContainerRecreateRequest {name} on")]
    ChangeRequest { name: String, source: kube::Error },
    #[error("failed to bring node {name} on in its reboot")]
    ChangeNode { name: String, source: kube::Error },
    #[error("failed to bring pod {name} to its next stage")]
    AdvancePod { name: String, source: kube::Error },
}

/// The writer of all controllers of the simulation. It limits the requests in flight.
pub(crate) struct Writer {
    pub(crate) client: Client,
    pub(crate) store: Arc<WorldStore>,
    pub(crate) ledger: Ledger,
    pub(crate) random: SeededRandom,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) pauses: Arc<Pauses>,
    permits: Semaphore,
    drawn: Mutex<HashMap<String, DrawnNames>>,
}

/// The names drawn for the pods of a set.
#[derive(Debug, Default)]
struct DrawnNames {
    count: u64,
    names: HashSet<String>,
}

impl DrawnNames {
    /// Draws a name that depends on the seed, the set and the number of earlier draws. No pod of the set ever had this name,
    /// because a CollaSet takes a new pod with an old name for the old pod.
    fn next(&mut self, random: SeededRandom, key: &SetKey) -> String {
        loop {
            self.count = self.count.saturating_add(1);
            let suffix = random.suffix(&["pod", &key.to_string(), &self.count.to_string()]);
            let name = format!("{}-{suffix}", key.name);
            if self.names.insert(name.clone()) {
                return name;
            }
        }
    }
}

/// The parts of a [`Writer`].
pub(crate) struct WriterParts {
    pub(crate) client: Client,
    pub(crate) store: Arc<WorldStore>,
    pub(crate) ledger: Ledger,
    pub(crate) random: SeededRandom,
    pub(crate) nodes: Arc<Nodes>,
}

impl Writer {
    pub(crate) fn new(parts: WriterParts) -> Self {
        let WriterParts { client, store, ledger, random, nodes } = parts;
        let (pauses, permits, drawn) = (Arc::default(), Semaphore::new(IN_FLIGHT), Mutex::default());
        Self { client, store, ledger, random, nodes, pauses, permits, drawn }
    }

    /// Performs one action of a set.
    pub(crate) async fn perform(&self, set: &SetView, action: Action) -> Result<(), WriteFailed> {
        match action {
            Action::CreatePod(new) => self.create_pod(set, &new).await,
            Action::ReplaceOrigin { origin, id } => self.replace_origin(set, origin, id).await,
            Action::LabelPod { pod, labels } => self.label_pod(&set.key.namespace, &pod, &labels).await,
            Action::DeletePod { pod, cause } => {
                self.ledger.announce(&pod.uid, cause);
                self.delete_pod(&set.key.namespace, &pod).await
            }
            Action::SetRevision { set, uid, revision } => {
                let annotation = json!({ labels::DEPLOYMENT_REVISION: revision.to_string() });
                let body = json!({ "metadata": { "uid": uid, "annotations": annotation } });
                self.change_set(&set, body).await
            }
            Action::CreateReplicaSet { name, hash, replicas, revision } => {
                let object = replica_set_of(set, (&name, &hash), replicas, revision);
                self.create_replica_set(set, name, object).await
            }
            Action::Resize { set: key, uid, replicas } => self.resize(&key, &uid, replicas).await,
            Action::WriteStatus(status) => self.write_set_status(set, &status).await,
        }
    }

    pub(crate) fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub(crate) fn sets(&self, key: &SetKey) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &key.namespace, &key.kind.resource())
    }

    /// Runs a request within the limit of requests in flight.
    pub(crate) async fn within_bound<T>(&self, request: impl Future<Output = T>) -> T {
        // The semaphore is never closed, so this cannot fail. If it did, the request would run without the limit.
        let _permit = self.permits.acquire().await.ok();
        request.await
    }

    /// Returns the node for a pod with this name and spec, or the reason why no node fits.
    pub(crate) fn node_for(&self, place: &Place, pod: &PodSpec) -> Result<String, String> {
        self.nodes.choose(pod, self.random.draw(&["node", &place.0, &place.1]))
    }

    async fn create_pod(&self, set: &SetView, new: &NewPod) -> Result<(), WriteFailed> {
        let mut result = self.create_named(set, new).await;
        for _ in 1..NAME_DRAWS {
            let is_taken = matches!(&result, Err(WriteFailed::CreatePod { source, .. }) if is_already_there(source));
            if !is_taken || new.name.is_some() {
                break;
            }
            result = self.create_named(set, new).await;
        }
        result
    }

    async fn create_named(&self, set: &SetView, new: &NewPod) -> Result<(), WriteFailed> {
        let namespace = &set.key.namespace;
        let name = new.name.clone().unwrap_or_else(|| self.draw_name(&set.key));
        let place = (namespace.clone(), name.clone());
        let is_held = self.pauses.hold(Pause::Scheduling, Some(&place), &self.store.lineage(Some(&set.uid)));
        let spec = set.template.spec.clone().unwrap_or_default();
        let node = (!is_held).then(|| self.node_for(&place, &spec).ok()).flatten();
        let pod = pod_of(set, new, name.clone(), node);
        let (api, parameters) = (self.pods(namespace), PostParams::default());
        let created = self.within_bound(api.create(&parameters, &pod)).await;
        self.store.put_pod(created.map_err(|source| WriteFailed::CreatePod { name, source })?);
        Ok(())
    }

    fn draw_name(&self, key: &SetKey) -> String {
        self.drawn.lock().entry(key.to_string()).or_default().next(self.random, key)
    }

    async fn replace_origin(&self, set: &SetView, origin: PodName, id: u64) -> Result<(), WriteFailed> {
        let mut labels = pod_labels(set, id);
        labels.insert(labels::PAIR_ORIGIN_NAME.to_owned(), origin.name.clone());
        self.create_pod(set, &NewPod { name: None, labels }).await?;
        let pairing = BTreeMap::from([(labels::PAIR_NEW_ID.to_owned(), Some(id.to_string()))]);
        self.label_pod(&set.key.namespace, &origin, &pairing).await
    }

    pub(crate) async fn label_pod(
        &self,
        namespace: &str,
        pod: &PodName,
        labels: &BTreeMap<String, Option<String>>,
    ) -> Result<(), WriteFailed> {
        let body = json!({ "metadata": { "uid": pod.uid, "labels": labels } });
        let (api, parameters) = (self.pods(namespace), PatchParams::default());
        let patched = self.within_bound(api.patch(&pod.name, &parameters, &Patch::Merge(body))).await;
        self.store.put_pod(patched.map_err(|source| WriteFailed::LabelPod { name: pod.name.clone(), source })?);
        Ok(())
    }

    pub(crate) async fn delete_pod(&self, namespace: &str, pod: &PodName) -> Result<(), WriteFailed> {
        let api = self.pods(namespace);
        let parameters = only_if(&pod.uid, DeleteParams::default());
        let deleted = self.within_bound(api.delete(&pod.name, &parameters)).await;
        deleted.map_err(|source| WriteFailed::DeletePod { name: pod.name.clone(), source })?;
        self.store.mark_leaving(&pod.uid);
        Ok(())
    }

    async fn create_replica_set(&self, set: &SetView, name: String, object: DynamicObject) -> Result<(), WriteFailed> {
        let kind = super::sets::SetKind::ReplicaSet;
        let key = SetKey::new(kind, set.key.namespace.clone(), name.clone());
        let (api, parameters) = (self.sets(&key), PostParams::default());
        let created = self.within_bound(api.create(&parameters, &object)).await;
        let created = created.map_err(|source| WriteFailed::CreateReplicaSet { name, source })?;
        self.remember_set(&key, &created);
        Ok(())
    }

    async fn resize(&self, key: &SetKey, uid: &str, replicas: usize) -> Result<(), WriteFailed> {
        self.change_set(key, json!({ "metadata": { "uid": uid }, "spec": { "replicas": replicas } })).await
    }

    async fn change_set(&self, key: &SetKey, body: Value) -> Result<(), WriteFailed> {
        let (api, parameters) = (self.sets(key), PatchParams::default());
        let patched = self.within_bound(api.patch(&key.name, &parameters, &Patch::Merge(body))).await;
        let patched = patched.map_err(|source| WriteFailed::ChangeSet { set: key.clone(), source })?;
        self.remember_set(key, &patched);
        Ok(())
    }

    async fn write_set_status(&self, set: &SetView, status: &Value) -> Result<(), WriteFailed> {
        let body = json!({ "status": status });
        let (api, parameters) = (self.sets(&set.key), PatchParams::default());
        let patched = self.within_bound(api.patch_status(&set.key.name, &parameters, &Patch::Merge(body))).await;
        let patched = patched.map_err(|source| WriteFailed::WriteSetStatus { set: set.key.clone(), source })?;
        self.remember_set(&set.key, &patched);
        Ok(())
    }

    fn remember_set(&self, key: &SetKey, object: &DynamicObject) {
        if let Some(view) = SetView::read(key.kind, object) {
            self.store.put_set(view);
        }
    }
}

/// Returns delete parameters with the uid as a precondition.
pub(crate) fn only_if(uid: &str, parameters: DeleteParams) -> DeleteParams {
    parameters.preconditions(Preconditions { uid: Some(uid.to_owned()), resource_version: None })
}

/// Returns true if the API server refused a create because the name is taken.
pub(crate) fn is_already_there(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason == "AlreadyExists")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::sets::SetKind;

    #[test]
    fn of_twenty_thousand_names_that_are_drawn_no_two_are_the_same() {
        let key = SetKey { kind: SetKind::CollaSet, namespace: "d".into(), name: "set".into() };
        let mut drawn = DrawnNames::default();
        let names: HashSet<String> = (0..20_000).map(|_| drawn.next(SeededRandom::new(1), &key)).collect();
        assert_eq!(names.len(), 20_000);
        assert!(drawn.count > 20_000, "five letters and digits repeat themselves in so many");
    }
}
