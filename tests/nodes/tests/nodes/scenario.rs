//! The part of the cluster that one scenario has: a namespace, and nodes for itself.

use std::process::Output;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use oarlock_nodes::run::pause;
use serde_json::Value;

use crate::documents::{is_ready, keys_at, text_at};
use crate::shared_cluster::{PATIENCE, SharedCluster};

/// The part of the cluster that one scenario has.
pub(crate) struct Scenario {
    pub(crate) cluster: Arc<SharedCluster>,
    pub(crate) namespace: String,
    /// The nodes that only this scenario uses.
    pub(crate) nodes: Vec<String>,
}

impl Scenario {
    /// Runs kubectl in the namespace.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        self.cluster.kubectl(&[&["--namespace", &self.namespace], arguments].concat())
    }

    /// Applies an object in the namespace.
    pub(crate) fn apply(&self, object: &Value) -> anyhow::Result<()> {
        self.cluster.apply_in(&self.namespace, object)
    }

    /// Applies a document as a user wrote it.
    pub(crate) fn apply_yaml(&self, text: &str) -> anyhow::Result<()> {
        self.cluster.feed(&["--namespace", &self.namespace, "apply", "-f", "-"], text).map(drop)
    }

    /// Returns an object of the namespace, or `None` if there is none.
    pub(crate) fn get(&self, kind: &str, name: &str) -> anyhow::Result<Option<Value>> {
        let text = self.kubectl(&["get", kind, name, "-o", "json", "--ignore-not-found"])?;
        if text.trim().is_empty() {
            return Ok(None);
        }
        serde_json::from_str(&text).map(Some).context("kubectl prints no JSON")
    }

    /// Returns all objects of a kind in the namespace.
    pub(crate) fn list(&self, kind: &str) -> anyhow::Result<Vec<Value>> {
        let list: Value = serde_json::from_str(&self.kubectl(&["get", kind, "-o", "json"])?).context("no JSON")?;
        Ok(list.pointer("/items").and_then(Value::as_array).cloned().unwrap_or_default())
    }

    /// Waits until `look` finds something.
    pub(crate) fn until<T>(
        &self,
        what: &str,
        mut look: impl FnMut() -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        let begun = Instant::now();
        let mut last = String::new();
        while begun.elapsed() < PATIENCE {
            match look() {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => last.clear(),
                // In some scenarios a server restarts or is stopped.
                Err(cause) => last = format!("{cause:#}"),
            }
            pause(Duration::from_millis(700));
        }
        bail!("never: {what}; {last}\n{}", self.tell())
    }

    /// Waits until an object has one of these texts at this JSON pointer. Returns the object.
    pub(crate) fn until_is(&self, kind: &str, name: &str, pointer: &str, wanted: &[&str]) -> anyhow::Result<Value> {
        let look = || {
            let object = self.get(kind, name)?;
            Ok(object.filter(|object| wanted.iter().any(|text| text_at(object, pointer) == *text)))
        };
        self.until(&format!("{kind} {name} has {wanted:?} at {pointer}"), look)
    }

    /// Runs `oarlock` in the namespace.
    pub(crate) fn oarlock(&self, arguments: &[&str]) -> anyhow::Result<Output> {
        self.cluster.oarlock(&[arguments, &["--namespace", &self.namespace]].concat())
    }

    /// Creates an OperationJob with `oarlock run`.
    pub(crate) fn run(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let output = self.oarlock(&[&["run"], arguments].concat())?;
        ensure!(output.status.success(), "oarlock run: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Waits until the job ends. Returns the job.
    pub(crate) fn until_ended(&self, job: &str) -> anyhow::Result<Value> {
        self.until_is("operationjobs", job, "/status/progress", &["Succeeded", "Failed"])
    }

    /// Returns the flags of `oarlock run` that name all nodes of the scenario.
    pub(crate) fn targets(&self) -> Vec<&str> {
        let nodes = self.nodes.iter().flat_map(|node| ["--target", node.as_str()]);
        ["--target-kind", "Node"].into_iter().chain(nodes).collect()
    }

    /// Returns the objects of the namespace, for the error of a failed scenario.
    fn tell(&self) -> String {
        let told = self
            .kubectl(&["get", "operationjobs,opsjobs,jobflows,daemonjobs,jobs,pods", "-o", "wide"])
            .unwrap_or_default();
        let pods = self.cluster.kubectl(&["-n", "oarlock-tasks", "get", "pods", "-o", "wide"]).unwrap_or_default();
        format!("{told}\n{pods}")
    }

    /// Removes the namespace. Waits until the nodes are Ready and nothing of the scenario is left on them.
    pub(crate) fn close(&self) -> anyhow::Result<()> {
        self.kubectl(&["delete", "operationjobs,jobflows,daemonjobs", "--all", "--timeout=120s"])?;
        for node in &self.nodes {
            self.until(&format!("{node} is Ready, and nothing is left on it"), || {
                let text = self.cluster.kubectl(&["get", "node", node, "-o", "json"])?;
                let found: Value = serde_json::from_str(&text).context("no JSON")?;
                let has_hold =
                    keys_at(&found, "/metadata/annotations").iter().any(|key| key.starts_with("hold.oarlock.dev/"));
                let is_free = !has_hold && found.pointer("/spec/unschedulable").is_none();
                // Until the kubelet of a new boot reports, the API shows a node that is Ready in its last boot.
                let has_booted = text_at(&found, "/status/nodeInfo/bootID") == self.cluster.boot_id(node)?;
                Ok((is_free && has_booted && is_ready(&found)).then_some(()))
            })?;
        }
        self.kubectl(&["delete", "namespace", &self.namespace, "--wait=false"]).map(drop)
    }

    /// Repairs the nodes of a failed scenario as far as possible, because other scenarios get them.
    pub(crate) fn abandon(&self) {
        let _ = self.kubectl(&["delete", "operationjobs,jobflows,daemonjobs", "--all", "--timeout=60s"]);
        for node in &self.nodes {
            // Each of these steps is needed only after some failures.
            let _ = self.cluster.signal(&["kubelet --kubeconfig", &format!("--hostname-override={node} ")], "CONT");
            let _ = self.cluster.have_kubelet_keep_free(node, "100Mi");
            let _ = self.cluster.order(&format!("boot {node}"));
            let _ = self.cluster.kubectl(&["uncordon", node]);
            let _ = self.cluster.kubectl(&["wait", "--for=condition=Ready", "node", node, "--timeout=60s"]);
        }
    }
}

impl Drop for Scenario {
    /// Gives the nodes back to the cluster.
    fn drop(&mut self) {
        self.cluster.free.lock().unwrap_or_else(PoisonError::into_inner).extend(self.nodes.iter().cloned());
        self.cluster.freed.notify_all();
    }
}
