//! The commands of a scenario to the simulated cluster. They change the cluster and the pauses. The store and the event log
//! learn of the changes from the watches.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use super::World;
use super::cluster_setup::{PrepareFailed, create_node, install};
use super::kruise_crd::{recreate_request_crd, recreate_requests};
use super::labels;
use super::ledger::Cause;
use super::new_objects::anew;
use super::pauses::{Pause, Scope};
use super::pod_facts::PodFacts;
use super::reboots::{Return, boot_id};
use super::recreate_requests::RequestWatch;
use super::sets::{SetKey, SetKind};
use super::wait_until::{Overdue, wait_until};
use super::watch_stream::deliver;
use super::writer::only_if;

/// The longest wait for a deleted pod to be gone. A pod with finalizers stays, so it cannot be recreated.
const GONE_WITHIN: Duration = Duration::from_secs(30);

/// Error of a command.
#[derive(Debug, thiserror::Error)]
pub enum CommandFailed {
    /// The simulated cluster knows no pod with this name.
    #[error("there is no pod {namespace}/{name} to be made anew")]
    FindPod {
        /// Namespace of the pod.
        namespace: String,
        /// Name of the pod.
        name: String,
    },
    /// The API server refused to scale the set.
    #[error("failed to scale {set}")]
    Scale {
        /// The set to scale.
        set: SetKey,
        /// The API server's error.
        #[source]
        source: kube::Error,
    },
    /// The API server refused to delete the old pod.
    #[error("failed to delete pod {name}")]
    Delete {
        /// Name of the pod.
        name: String,
        /// The API server's error.
        #[source]
        source: kube::Error,
    },
    /// The old pod was not gone in time.
    #[error("pod {name} does not go; take its finalizers away first")]
    AwaitGone {
        /// Name of the pod.
        name: String,
        /// The wait that timed out.
        #[source]
        source: Overdue,
    },
    /// The API server refused to create the new pod.
    #[error("failed to create pod {name} anew")]
    Create {
        /// Name of the pod.
        name: String,
        /// The API server's error.
        #[source]
        source: kube::Error,
    },
}

impl World {
    /// Starts a pause.
    pub fn hold(&self, pause: Pause, scope: Scope) {
        self.watches.rounds.pauses.begin(pause, scope);
        self.watches.wake_all();
    }

    /// Ends a pause.
    pub fn release(&self, pause: Pause, scope: Scope) {
        self.watches.rounds.pauses.end(pause, scope);
        self.watches.wake_all();
    }

    /// Installs OpenKruise: the cluster serves ContainerRecreateRequests and restarts the containers that they name. One call is
    /// enough. A second call starts a second watch, which has no effect.
    ///
    /// # Errors
    /// If the API server refuses the definition or does not serve the kind.
    pub async fn install_kruise(&self) -> Result<(), PrepareFailed> {
        let (client, resource) = (self.watches.rounds.writer.client.clone(), recreate_requests());
        install(&client, recreate_request_crd(), &resource).await?;
        let mut watch = RequestWatch::new(self.watches.clone());
        self.tasks.lock().spawn(deliver(Api::all_with(client, &resource), move |event| watch.saw(event)));
        Ok(())
    }

    /// Makes OpenKruise fail to restart this container, with this reason, in every pod with this name from now on.
    pub fn break_container(&self, (namespace, pod): (&str, &str), container: &str, why: &str) {
        let key = ((namespace.to_owned(), pod.to_owned()), container.to_owned());
        self.watches.rounds.faults.lock().insert(key, why.to_owned());
        self.watches.wake_all();
    }

    /// Ends the effect of `break_container` on this container.
    pub fn mend_container(&self, (namespace, pod): (&str, &str), container: &str) {
        let key = ((namespace.to_owned(), pod.to_owned()), container.to_owned());
        self.watches.rounds.faults.lock().remove(&key);
        self.watches.wake_all();
    }

    /// Adds a Ready node with a boot id, unless a node with this name exists.
    ///
    /// # Errors
    /// If the API server refuses the node.
    pub async fn add_node(&self, name: &str) -> Result<(), PrepareFailed> {
        let (rounds, boot_id) = (&self.watches.rounds, boot_id(name, 0));
        let now = crate::clock::seconds(rounds.clock.now());
        let made = rounds.writer.within_bound(create_node(&rounds.writer.client, name, (&boot_id, &now))).await;
        made.map_err(|source| PrepareFailed::CreateNode { name: name.to_owned(), source })
    }

    /// Makes every check on this node end with this exit code from now on, whatever its script says. The same applies to
    /// the command of any other pod that ends by itself.
    pub fn fail_checks(&self, node: &str, exit_code: i32) {
        self.watches.rounds.ailments.add(node, exit_code);
    }

    /// Sets how a node returns from its reboots from now on.
    pub fn returns(&self, node: &str, how: Return) {
        self.watches.rounds.reboots.returns(node, how);
    }

    /// Reboots a node, as a task on the node would.
    pub fn reboot(&self, node: &str) {
        self.watches.rounds.reboot(node);
    }

    /// Sets the size of a set.
    ///
    /// # Errors
    /// `CommandFailed::Scale` if the API server refuses the change.
    pub async fn scale(&self, set: &SetKey, replicas: usize) -> Result<(), CommandFailed> {
        let api = self.watches.rounds.writer.sets(set);
        let body = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
        let patched = api.patch(&set.name, &PatchParams::default(), &body).await;
        patched.map(drop).map_err(|source| CommandFailed::Scale { set: set.clone(), source })
    }

    /// Deletes a pod at once and creates another pod with the same name, owner and labels. In the meantime its set creates no
    /// pods. Returns the new pod's uid.
    ///
    /// # Errors
    /// If the pod does not exist, if it is not gone in time, or if the API server refuses a write.
    pub async fn recreate_same_name(&self, namespace: &str, name: &str) -> Result<String, CommandFailed> {
        let rounds = &self.watches.rounds;
        let place = (namespace.to_owned(), name.to_owned());
        let old = rounds.store.pod(&place);
        let old = old.ok_or_else(|| CommandFailed::FindPod { namespace: place.0.clone(), name: place.1.clone() })?;
        let owner = rounds.store.lineage(old.controller().map(|owner| owner.uid.as_str())).into_iter().next();
        let pause = owner.map(|set| (Pause::Recreation, Scope::Set(set)));
        if let Some((pause, scope)) = pause.clone() {
            rounds.pauses.begin(pause, scope);
        }
        let made = self.make_anew(&old).await;
        if let Some((pause, scope)) = pause {
            self.release(pause, scope);
        }
        made
    }

    async fn make_anew(&self, old: &Arc<Pod>) -> Result<String, CommandFailed> {
        let rounds = &self.watches.rounds;
        let (api, name) = (rounds.writer.pods(old.pod_namespace()), old.pod_name().to_owned());
        rounds.writer.ledger.announce(old.uid(), Cause::Recreated);
        let at_once = only_if(old.uid(), DeleteParams::default().grace_period(0));
        let deleted = api.delete(&name, &at_once).await;
        deleted.map_err(|source| CommandFailed::Delete { name: name.clone(), source })?;
        let is_gone = |pods: &[Arc<Pod>]| pods.iter().all(|pod| pod.uid() != old.uid());
        let gone = self.until("the old pod to go", GONE_WITHIN, is_gone).await;
        gone.map_err(|source| CommandFailed::AwaitGone { name: name.clone(), source })?;
        let created = api.create(&PostParams::default(), &anew(old)).await;
        let created = created.map_err(|source| CommandFailed::Create { name, source })?;
        let uid = created.uid().to_owned();
        rounds.store.put_pod(created);
        Ok(uid)
    }

    /// Waits until the pods satisfy a condition.
    ///
    /// # Errors
    /// If the condition does not hold before the deadline.
    pub async fn until(
        &self,
        what: &str,
        deadline: Duration,
        condition: impl FnMut(&[Arc<Pod>]) -> bool,
    ) -> Result<(), Overdue> {
        let (store, mut condition) = (&self.watches.rounds.store, condition);
        wait_until(what, deadline, store.changes(), || condition(&store.pods())).await
    }

    /// Waits until a set has all its pods, and each pod is ready (and available, in a CollaSet), not leaving and not
    /// in a replacement.
    ///
    /// # Errors
    /// If the set has not settled before the deadline.
    pub async fn settled(&self, set: &SetKey, deadline: Duration) -> Result<(), Overdue> {
        let store = &self.watches.rounds.store;
        wait_until(&format!("{set} to settle"), deadline, store.changes(), || self.is_settled(set)).await
    }

    fn is_settled(&self, key: &SetKey) -> bool {
        let store = &self.watches.rounds.store;
        let Some(set) = store.set(key) else { return false };
        let mut members = store.members(&key.namespace, &set.uid);
        let children = store.replica_sets(&set.uid);
        members.extend(children.iter().flat_map(|child| store.members(&key.namespace, &child.uid)));
        let serves =
            |pod: &Pod| pod.is_ready() && (key.kind != SetKind::CollaSet || pod.bears(labels::SERVICE_AVAILABLE));
        let rests = |pod: &Pod| !pod.bears(labels::PAIR_ORIGIN_NAME) && !pod.bears(labels::PAIR_NEW_ID);
        members.len() == set.replicas && members.iter().all(|m| !m.is_leaving && serves(&m.pod) && rests(&m.pod))
    }
}
