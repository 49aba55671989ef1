//! What one scenario has of the cluster: a namespace, and nodes for itself.

use std::process::Output;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use oarlock_nodes::run::pause;
use serde_json::Value;

use crate::bed::{Bed, PATIENCE};
use crate::documents::{is_ready, keys_at, text_at};

/// What one scenario has of the cluster.
pub(crate) struct Scene {
    pub(crate) bed: Arc<Bed>,
    pub(crate) namespace: String,
    /// The nodes that it has for itself.
    pub(crate) nodes: Vec<String>,
}

impl Scene {
    /// Runs kubectl in the namespace.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        self.bed.kubectl(&[&["--namespace", &self.namespace], arguments].concat())
    }

    /// Applies an object in the namespace.
    pub(crate) fn apply(&self, object: &Value) -> anyhow::Result<()> {
        self.bed.apply_in(&self.namespace, object)
    }

    /// Applies a document as a user wrote it.
    pub(crate) fn apply_yaml(&self, text: &str) -> anyhow::Result<()> {
        self.bed.feed(&["--namespace", &self.namespace, "apply", "-f", "-"], text).map(drop)
    }

    /// An object of the namespace, where it is there.
    pub(crate) fn get(&self, kind: &str, name: &str) -> anyhow::Result<Option<Value>> {
        let text = self.kubectl(&["get", kind, name, "-o", "json", "--ignore-not-found"])?;
        if text.trim().is_empty() {
            return Ok(None);
        }
        serde_json::from_str(&text).map(Some).context("kubectl prints no JSON")
    }

    /// All objects of a kind in the namespace.
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
                // A server that restarts or stands still is part of some scenarios.
                Err(cause) => last = format!("{cause:#}"),
            }
            pause(Duration::from_millis(700));
        }
        bail!("never: {what}; {last}\n{}", self.tell())
    }

    /// Waits until an object has this text at this place.
    pub(crate) fn until_is(&self, kind: &str, name: &str, pointer: &str, wanted: &[&str]) -> anyhow::Result<Value> {
        let look = || {
            let object = self.get(kind, name)?;
            Ok(object.filter(|object| wanted.iter().any(|text| text_at(object, pointer) == *text)))
        };
        self.until(&format!("{kind} {name} has {wanted:?} at {pointer}"), look)
    }

    /// Runs `oarlock` in the namespace.
    pub(crate) fn oarlock(&self, arguments: &[&str]) -> anyhow::Result<Output> {
        self.bed.oarlock(&[arguments, &["--namespace", &self.namespace]].concat())
    }

    /// Makes an OperationJob by `oarlock run`.
    pub(crate) fn run(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let output = self.oarlock(&[&["run"], arguments].concat())?;
        ensure!(output.status.success(), "oarlock run: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// The ended job of this name.
    pub(crate) fn until_ended(&self, job: &str) -> anyhow::Result<Value> {
        self.until_is("operationjobs", job, "/status/progress", &["Succeeded", "Failed"])
    }

    /// The node flags of `oarlock run` for all nodes of the scene.
    pub(crate) fn targets(&self) -> Vec<&str> {
        let nodes = self.nodes.iter().flat_map(|node| ["--target", node.as_str()]);
        ["--target-kind", "Node"].into_iter().chain(nodes).collect()
    }

    /// What the namespace has, for whoever reads why a scenario failed.
    fn tell(&self) -> String {
        let told = self
            .kubectl(&["get", "operationjobs,opsjobs,jobflows,daemonjobs,jobs,pods", "-o", "wide"])
            .unwrap_or_default();
        let pods = self.bed.kubectl(&["-n", "oarlock-tasks", "get", "pods", "-o", "wide"]).unwrap_or_default();
        format!("{told}\n{pods}")
    }

    /// Removes the namespace and gives the nodes back; nothing of the scene may be left on them.
    pub(crate) fn close(&self) -> anyhow::Result<()> {
        self.kubectl(&["delete", "operationjobs,jobflows,daemonjobs", "--all", "--timeout=120s"])?;
        for node in &self.nodes {
            self.until(&format!("{node} is Ready, and nothing is left on it"), || {
                let text = self.bed.kubectl(&["get", "node", node, "-o", "json"])?;
                let found: Value = serde_json::from_str(&text).context("no JSON")?;
                let has_hold =
                    keys_at(&found, "/metadata/annotations").iter().any(|key| key.starts_with("hold.oarlock.dev/"));
                let is_free = !has_hold && found.pointer("/spec/unschedulable").is_none();
                Ok((is_free && is_ready(&found)).then_some(()))
            })?;
        }
        self.kubectl(&["delete", "namespace", &self.namespace, "--wait=false"]).map(drop)
    }

    /// Gives the nodes of a scenario that failed to others, as far as they can be put right.
    pub(crate) fn abandon(&self) {
        let _ = self.kubectl(&["delete", "operationjobs,jobflows,daemonjobs", "--all", "--timeout=60s"]);
        for node in &self.nodes {
            // Each of these is needed after some failures alone.
            let _ = self.bed.signal(&["kubelet --kubeconfig", &format!("--hostname-override={node} ")], "CONT");
            let _ = self.bed.have_kubelet_keep_free(node, "100Mi");
            let _ = self.bed.order(&format!("boot {node}"));
            let _ = self.bed.kubectl(&["uncordon", node]);
            let _ = self.bed.kubectl(&["wait", "--for=condition=Ready", "node", node, "--timeout=60s"]);
        }
    }
}

impl Drop for Scene {
    /// Gives the nodes to others.
    fn drop(&mut self) {
        self.bed.free.lock().unwrap_or_else(PoisonError::into_inner).extend(self.nodes.iter().cloned());
        self.bed.freed.notify_all();
    }
}
