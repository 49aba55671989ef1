//! The rounds of a rebooting node: it becomes not Ready, its containers restart, and it becomes Ready with a new
//! boot id.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use super::cluster_setup::create_node;
use super::deciders::kubelet;
use super::ledger::Effect;
use super::pod_facts::PodFacts;
use super::reboots::{RebootStep, Return, boot_id};
use super::rounds::{Rounds, WorkKey, advance_failed, told};
use super::store::place_of;
use super::writer::WriteFailed;
use crate::{clock, object};

impl Rounds {
    /// Reboots a node after a short notice, as a task on the node requests it. Every call while the node is up counts.
    pub(crate) fn reboot(&self, node: &str) {
        self.reboots.begin(node, self.writer.random.between(self.operations.reboot_notice, &["notice", node]));
    }

    /// Continues the reboot of a node. Returns the delay after which it needs another round.
    pub(crate) async fn node_round(&self, name: &str) -> Option<Duration> {
        let (step, wait) = self.reboots.next(name)?;
        if !wait.is_zero() {
            return Some(wait);
        }
        let result = match step {
            RebootStep::Down => self.go_down(name).await,
            RebootStep::Up(how) => self.come_up(name, how).await,
        };
        match result {
            Ok(()) => self.reboots.next(name).map(|(_, wait)| wait),
            failed => told(failed),
        }
    }

    async fn go_down(&self, name: &str) -> Result<(), WriteFailed> {
        let nodes = self.nodes();
        let node = self.writer.within_bound(nodes.get_opt(name)).await.map_err(|source| node_failed(name, source))?;
        let away = self.writer.random.between(self.operations.reboot, &["reboot", name]);
        let count = self.reboots.goes_down(name, away);
        let uid = node.and_then(|node| node.metadata.uid).unwrap_or_default();
        self.writer.ledger.note((name, &uid), Effect::NodeRebooted { count });
        // Acts as the node controller, which notices that the kubelet is silent. The node is down even if a write fails.
        let silent = self.ready("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.");
        let mut failed = self.write_node(name, json!({ "conditions": [silent] })).await.err();
        for pod in self.running_on(name) {
            let status = kubelet::running(&pod, false, self.second());
            failed = self.put_status(&pod, json!(status)).await.err().or(failed);
        }
        if let Some(failure) = failed {
            let _shown = told(Err(failure));
        }
        Ok(())
    }

    async fn come_up(&self, name: &str, how: Return) -> Result<(), WriteFailed> {
        let nodes = self.nodes();
        if matches!(how, Return::Deleted | Return::MadeAnew) {
            let deleted = self.writer.within_bound(nodes.delete(name, &DeleteParams::default())).await;
            if let Err(source) = deleted.map(drop)
                && !matches!(&source, kube::Error::Api(status) if status.code == 404)
            {
                return Err(node_failed(name, source));
            }
        }
        let count = self.reboots.counts().get(name).copied().unwrap_or_default();
        let now = clock::seconds(self.clock.now());
        match how {
            Return::Never | Return::Deleted => {}
            Return::MadeAnew => {
                let made = create_node(&self.writer.client, name, (&boot_id(name, count), &now)).await;
                made.map_err(|source| node_failed(name, source))?;
            }
            Return::Ready | Return::NotReady | Return::SameBootId => {
                for pod in self.running_on(name) {
                    self.put_status(&pod, json!(kubelet::restarted(&pod, self.second()))).await?;
                }
                let is_ready = if how == Return::NotReady { "False" } else { "True" };
                let ready = self.ready(is_ready, "KubeletReady", "the world's kubelet speaks again");
                let mut status = json!({ "conditions": [ready] });
                if how != Return::SameBootId {
                    object::as_map(&mut status).insert("nodeInfo".into(), json!({ "bootID": boot_id(name, count) }));
                }
                let node = self.write_node(name, status).await?;
                if how == Return::Ready {
                    let uid = node.and_then(|node| node.metadata.uid).unwrap_or_default();
                    self.writer.ledger.note((name, &uid), Effect::NodeReady { count });
                }
            }
        }
        self.reboots.came_up(name);
        for pod in self.on_node(name) {
            self.reboots.wake(WorkKey::Pod(place_of(&pod)), Duration::ZERO);
        }
        Ok(())
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.writer.client.clone())
    }

    fn second(&self) -> Time {
        let now = self.clock.now();
        Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
    }

    fn ready(&self, status: &str, reason: &str, message: &str) -> Value {
        let now = clock::seconds(self.clock.now());
        json!({ "type": "Ready", "status": status, "reason": reason, "message": message, "lastHeartbeatTime": now,
            "lastTransitionTime": now })
    }

    /// Writes a part of a node's status. Returns the node, or none if it is gone.
    async fn write_node(&self, name: &str, status: Value) -> Result<Option<Node>, WriteFailed> {
        let (nodes, parameters) = (self.nodes(), PatchParams::default());
        let body = Patch::Strategic(json!({ "status": status }));
        match self.writer.within_bound(nodes.patch_status(name, &parameters, &body)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            patched => patched.map(Some).map_err(|source| node_failed(name, source)),
        }
    }

    fn on_node(&self, name: &str) -> Vec<Arc<Pod>> {
        self.store.pods().into_iter().filter(|pod| pod.node() == Some(name)).collect()
    }

    /// Returns the pods of a node whose containers run.
    fn running_on(&self, name: &str) -> Vec<Arc<Pod>> {
        self.on_node(name).into_iter().filter(|pod| pod.phase() == "Running" && !pod.is_terminating()).collect()
    }

    /// Writes the status of a pod. Does nothing if the pod is gone.
    async fn put_status(&self, pod: &Pod, status: Value) -> Result<(), WriteFailed> {
        let (api, parameters) = (self.writer.pods(pod.pod_namespace()), PatchParams::default());
        let body = Patch::Merge(json!({ "metadata": { "uid": pod.uid() }, "status": status }));
        match self.writer.within_bound(api.patch_status(pod.pod_name(), &parameters, &body)).await {
            Ok(patched) => {
                self.store.put_pod(patched);
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(source) => Err(advance_failed(pod, source)),
        }
    }
}

fn node_failed(name: &str, source: kube::Error) -> WriteFailed {
    WriteFailed::ChangeNode { name: name.to_owned(), source }
}
