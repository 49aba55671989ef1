//! The cluster that all scenarios share, and what each has of it.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use oarlock_nodes::layout::{Layout, node_name};
use oarlock_nodes::run::pause;
use oarlock_nodes::states::ask;
pub(crate) use oarlock_nodes::states::is_ready;
use serde_json::{Value, json};

/// Nodes that nobody disturbs: the host and ordinary pods run there.
const CALM: u8 = 2;
/// Nodes that one scenario at a time has for itself.
const ROUGH: u8 = 6;
/// What keeps others from them.
const TAINT: &str = "oarlock.dev/rough";
/// How long anything may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);

/// The cluster.
pub(crate) struct Bed {
    layout: Layout,
    program: PathBuf,
    kubectl: PathBuf,
    oarlock: PathBuf,
    keeper: Mutex<Option<Child>>,
    free: Mutex<Vec<String>>,
    freed: Condvar,
}

fn variable(name: &str) -> anyhow::Result<PathBuf> {
    let value = std::env::var_os(name);
    value.map(PathBuf::from).with_context(|| format!("{name} is not set: run `cargo xtask test nodes`"))
}

impl Bed {
    /// Starts the cluster and deploys the host as a user would, by the printed manifests.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let program = PathBuf::from(env!("CARGO_BIN_EXE_oarlock-nodes"));
        let folder = variable("OARLOCK_NODES_FOLDER")?;
        let plane = variable("OARLOCK_NODES_PLANE")?;
        let mut up = Command::new(&program);
        up.arg("up").arg("--folder").arg(&folder).arg("--nodes").arg((CALM + ROUGH).to_string()).arg("--bound");
        up.arg("--node-binaries").arg(variable("OARLOCK_NODES_CONTAINERS")?);
        up.arg("--kubelet").arg(variable("OARLOCK_NODES_KUBELET")?).arg("--plane-binaries").arg(&plane);
        for image in std::env::split_paths(&variable("OARLOCK_NODES_IMAGES")?) {
            up.arg("--image").arg(image);
        }
        // It ends when this process ends and nobody holds the other end any more.
        let mut keeper = up.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start the cluster")?;
        let said = keeper.stdout.take().context("the cluster has no output")?;
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(said));
        let ready = lines.any(|line| line.is_ok_and(|line| line.starts_with("export KUBECONFIG")));
        ensure!(ready, "the cluster did not start");
        let rough = (CALM + 1..=CALM + ROUGH).map(node_name).collect();
        let bed = Self {
            layout: Layout::new(&folder),
            program,
            kubectl: plane.join("kubectl"),
            oarlock: variable("OARLOCK_BINARY")?,
            keeper: Mutex::new(Some(keeper)),
            free: Mutex::new(rough),
            freed: Condvar::new(),
        };
        for number in CALM + 1..=CALM + ROUGH {
            bed.kubectl(&["taint", "node", &node_name(number), &format!("{TAINT}=true:NoSchedule")])?;
        }
        bed.deploy()?;
        Ok(bed)
    }

    fn deploy(&self) -> anyhow::Result<()> {
        let grants = variable("OARLOCK_NODES_GRANTS")?;
        let printed = self.oarlock(&[
            "manifests",
            "--grants",
            &grants.display().to_string(),
            "--flows",
            "--deployment",
            "oarlock",
        ])?;
        ensure!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
        self.apply_text(&String::from_utf8_lossy(&printed.stdout))?;
        self.kubectl(&["-n", "oarlock-system", "rollout", "status", "deployment/oarlock", "--timeout=180s"]).map(drop)
    }

    /// Ends the cluster, of which nothing may be left.
    pub(crate) fn end(&self) -> anyhow::Result<()> {
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take();
        let status = Command::new(&self.program)
            .arg("down")
            .arg(&self.layout.root)
            .status()
            .context("cannot end the cluster")?;
        if let Some(mut keeper) = keeper {
            keeper.wait().context("cannot wait for the keeper")?;
        }
        ensure!(status.success() && !self.layout.root.exists(), "{} is still there", self.layout.root.display());
        Ok(())
    }

    /// The place of one scenario: a namespace, and so many nodes as soon as they are free.
    pub(crate) fn scene(self: &Arc<Self>, name: &str, nodes: usize) -> anyhow::Result<Scene> {
        let mut namespace = name.replace('_', "-");
        namespace.truncate(50);
        let namespace = namespace.trim_end_matches('-').to_owned();
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while free.len() < nodes {
            free = self.freed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        let at = free.len() - nodes;
        let nodes = free.split_off(at);
        drop(free);
        self.kubectl(&["create", "namespace", &namespace])?;
        self.kubectl(&["label", "namespace", &namespace, "oarlock.dev/node-operations=true"])?;
        for node in &nodes {
            self.kubectl(&["label", "node", node, &format!("scenario={namespace}"), "--overwrite"])?;
        }
        Ok(Scene { bed: self.clone(), namespace, nodes })
    }

    /// Runs kubectl as the admin.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = self.kubectl_command().args(arguments).output().context("cannot run kubectl")?;
        ensure!(
            output.status.success(),
            "kubectl {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn kubectl_command(&self) -> Command {
        let mut command = Command::new(&self.kubectl);
        command.arg("--kubeconfig").arg(self.layout.outside()).stdin(Stdio::null());
        command
    }

    /// Applies documents as YAML.
    pub(crate) fn apply_text(&self, text: &str) -> anyhow::Result<()> {
        self.feed(&["apply", "-f", "-"], text).map(drop)
    }

    fn feed(&self, arguments: &[&str], text: &str) -> anyhow::Result<String> {
        let mut command = self.kubectl_command();
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot run kubectl")?;
        child
            .stdin
            .take()
            .context("kubectl has no input")?
            .write_all(text.as_bytes())
            .context("cannot write to kubectl")?;
        let output = child.wait_with_output().context("cannot wait for kubectl")?;
        ensure!(output.status.success(), "kubectl: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Applies an object in a namespace.
    pub(crate) fn apply_in(&self, namespace: &str, object: &Value) -> anyhow::Result<()> {
        self.feed(&["--namespace", namespace, "apply", "-f", "-"], &object.to_string()).map(drop)
    }

    /// What was asked of a node's `systemd-run` and `systemctl`.
    pub(crate) fn reboots_of(&self, node: &str) -> String {
        let path = self.layout.root.join("nodes").join(node).join("lib-oarlock/reboots.log");
        std::fs::read_to_string(path).unwrap_or_default()
    }

    /// Runs `oarlock`.
    pub(crate) fn oarlock(&self, arguments: &[&str]) -> anyhow::Result<Output> {
        let mut command = Command::new(&self.oarlock);
        command.args(arguments).env("KUBECONFIG", self.layout.outside()).stdin(Stdio::null());
        command.output().context("cannot run oarlock")
    }

    /// What the cluster itself is asked for: `kill node-3`, `restart etcd`.
    pub(crate) fn order(&self, line: &str) -> anyhow::Result<()> {
        ask(&self.layout, line).map(drop)
    }

    /// The boots of a node so far, as it tells them.
    pub(crate) fn boots(&self, node: &str) -> anyhow::Result<usize> {
        let path = self.layout.root.join("nodes").join(node).join("node.log");
        let log = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(log.lines().filter(|line| line.contains(" booted with ")).count())
    }

    /// The processes of the cluster whose command line has all of these words.
    pub(crate) fn processes(&self, words: &[&str]) -> Vec<u32> {
        let own = self.layout.root.display().to_string();
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        ids.filter(|id| {
            let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            line.contains(&own) && words.iter().all(|word| line.contains(word))
        })
        .collect()
    }

    /// Sends a signal to all of them.
    pub(crate) fn signal(&self, words: &[&str], signal: &str) -> anyhow::Result<()> {
        let ids = self.processes(words);
        ensure!(!ids.is_empty(), "no process has {words:?}");
        for id in ids {
            let status = Command::new("kill").arg(format!("-{signal}")).arg(id.to_string()).status();
            ensure!(status.context("cannot run kill")?.success(), "process {id} takes no {signal}");
        }
        Ok(())
    }
}

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
        let told =
            self.kubectl(&["get", "operationjobs,jobflows,daemonjobs,jobs,pods", "-o", "wide"]).unwrap_or_default();
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
        self.kubectl(&["delete", "namespace", &self.namespace, "--wait=false"])?;
        self.give_back();
        Ok(())
    }

    /// Gives the nodes of a scenario that failed to others, as far as they can be put right.
    pub(crate) fn abandon(&self) {
        for node in &self.nodes {
            // Each of these is needed after some failures alone.
            let _ = self.bed.signal(&["kubelet --kubeconfig", &format!("--hostname-override={node} ")], "CONT");
            let _ = self.bed.order(&format!("boot {node}"));
            let _ = self.bed.kubectl(&["uncordon", node]);
        }
        self.give_back();
    }

    fn give_back(&self) {
        self.bed.free.lock().unwrap_or_else(PoisonError::into_inner).extend(self.nodes.iter().cloned());
        self.bed.freed.notify_all();
    }
}

/// The text at a place of a document, empty where there is none.
pub(crate) fn text_at<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn keys_at(object: &Value, pointer: &str) -> Vec<String> {
    object.pointer(pointer).and_then(Value::as_object).into_iter().flatten().map(|(key, _)| key.clone()).collect()
}

/// The targets of a job: of each its progress and the reason of its error.
pub(crate) fn targets_of(job: &Value) -> BTreeMap<String, String> {
    let details = job.pointer("/status/targetDetails").and_then(Value::as_array);
    let word = |one: &Value| {
        let reason = text_at(one, "/error/reason");
        let progress = text_at(one, "/progress");
        (
            text_at(one, "/name").to_owned(),
            if reason.is_empty() { progress.to_owned() } else { format!("{progress}/{reason}") },
        )
    };
    details.into_iter().flatten().map(word).collect()
}

/// A container that runs this in a shell.
pub(crate) fn shell(script: &str) -> Value {
    json!({"name": "c", "image": "busybox", "command": ["sh", "-c", script]})
}

/// What has a pod run on a node of a scene.
pub(crate) fn pinned(scene: &Scene) -> Value {
    json!({"nodeSelector": {"scenario": scene.namespace}, "tolerations": [{"key": TAINT, "operator": "Exists"}]})
}

/// A document with the fields of another one.
pub(crate) fn with(mut document: Value, more: &Value) -> Value {
    if let (Some(fields), Some(more)) = (document.as_object_mut(), more.as_object()) {
        fields.extend(more.clone());
    }
    document
}
