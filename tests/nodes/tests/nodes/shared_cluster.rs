//! The cluster that all scenarios share, and the means to use it.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use oarlock_nodes::layout::{
    BUCKET, DATABASE, DATABASE_PASSWORD, EXPORTS, Layout, PASSWORD, STORE, STORE_KEY, STORE_SECRET, USER, node_name,
};
use oarlock_nodes::states::ask;
use serde_json::{Value, json};

use crate::scenario::Scenario;

/// Number of nodes that no scenario disturbs. The host and ordinary pods run there.
const CALM: u8 = 2;
/// Number of nodes that one scenario at a time has for itself.
const ROUGH: u8 = 6;
/// The taint that keeps other pods off these nodes.
pub(crate) const TAINT: &str = "oarlock.dev/rough";
/// Time limit for each single thing on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);

/// The Secret of the registry for exports. [`AUTHORITIES`] is the ConfigMap of its CA certificates.
pub(crate) const EXPORT_SECRET: &str = "oarlock-export";
pub(crate) const AUTHORITIES: &str = "oarlock-ca";
/// The Secret of the bucket.
const FILES_SECRET: &str = "oarlock-files";
/// The Secret of the history.
const HISTORY_SECRET: &str = "oarlock-history";

/// The cluster that all scenarios share.
pub(crate) struct SharedCluster {
    layout: Layout,
    program: PathBuf,
    kubectl: PathBuf,
    oarlock: PathBuf,
    components: PathBuf,
    keeper: Mutex<Option<Child>>,
    pub(crate) free: Mutex<Vec<String>>,
    pub(crate) freed: Condvar,
}

/// Returns the path in a variable that `cargo xtask test nodes` sets.
pub(crate) fn variable(name: &str) -> anyhow::Result<PathBuf> {
    let value = std::env::var_os(name);
    value.map(PathBuf::from).with_context(|| format!("{name} is not set: run `cargo xtask test nodes`"))
}

/// Returns a Secret with the password of a registry, and with its CA certificates if `ca` is given.
pub(crate) fn pull_secret(name: &str, registry: &str, ca: Option<&str>) -> Value {
    let config = json!({"auths": {registry: {"username": USER, "password": PASSWORD, "auth": BASE64_STANDARD.encode(format!("{USER}:{PASSWORD}"))}}});
    let mut data = json!({".dockerconfigjson": config.to_string()});
    if let (Some(ca), Some(data)) = (ca, data.as_object_mut()) {
        data.insert("ca.crt".to_owned(), json!(ca));
    }
    json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson", "metadata": {"name": name},
        "stringData": data})
}

impl SharedCluster {
    /// Starts the cluster and deploys the host with the printed manifests, as a user does.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let program = PathBuf::from(env!("CARGO_BIN_EXE_oarlock-nodes"));
        let folder = variable("OARLOCK_NODES_FOLDER")?;
        let plane = variable("OARLOCK_NODES_PLANE")?;
        let mut up = Command::new(&program);
        up.arg("up").arg("--folder").arg(&folder).arg("--nodes").arg((CALM + ROUGH).to_string()).arg("--bound");
        up.arg("--node-binaries").arg(variable("OARLOCK_NODES_CONTAINERS")?);
        up.arg("--nerdctl")
            .arg(variable("OARLOCK_NODES_NERDCTL")?)
            .arg("--store")
            .arg(variable("OARLOCK_NODES_STORE")?)
            .arg("--database")
            .arg(variable("OARLOCK_NODES_DATABASE")?);
        up.arg("--kubelet").arg(variable("OARLOCK_NODES_KUBELET")?).arg("--plane-binaries").arg(&plane);
        for image in std::env::split_paths(&variable("OARLOCK_NODES_IMAGES")?) {
            up.arg("--image").arg(image);
        }
        // The cluster ends when this process ends, because that closes the cluster's standard input.
        let mut keeper = up.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start the cluster")?;
        let said = keeper.stdout.take().context("the cluster has no output")?;
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(said));
        let ready = lines.any(|line| line.is_ok_and(|line| line.starts_with("export KUBECONFIG")));
        ensure!(ready, "the cluster did not start");
        let rough = (CALM + 1..=CALM + ROUGH).map(node_name).collect();
        let cluster = Self {
            layout: Layout::new(&folder),
            program,
            kubectl: plane.join("kubectl"),
            oarlock: variable("OARLOCK_BINARY")?,
            components: variable("OARLOCK_COMPONENTS")?,
            keeper: Mutex::new(Some(keeper)),
            free: Mutex::new(rough),
            freed: Condvar::new(),
        };
        for number in CALM + 1..=CALM + ROUGH {
            cluster.kubectl(&["taint", "node", &node_name(number), &format!("{TAINT}=true:NoSchedule")])?;
        }
        cluster.deploy()?;
        Ok(cluster)
    }

    /// Applies the manifests that a user applies, with these flags for the host's files.
    fn apply_manifests(&self, files: &[&str]) -> anyhow::Result<()> {
        let grants = variable("OARLOCK_NODES_GRANTS")?;
        let grants = ["manifests", "--grants", &grants.display().to_string()];
        let served = ["--flows", "--ops", "--rest", "--deployment", "oarlock"];
        let exports = ["--export-registry", EXPORTS, "--export-secret", EXPORT_SECRET, "--ca", AUTHORITIES];
        let printed = self.oarlock(&[grants.as_slice(), &served, &exports, files].concat())?;
        ensure!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
        self.apply_text(&String::from_utf8_lossy(&printed.stdout))
    }

    /// Waits until all pods of the host are updated and ready.
    pub(crate) fn until_deployed(&self) -> anyhow::Result<()> {
        let status = ["rollout", "status", "deployment/oarlock", "--timeout=180s"];
        self.kubectl(&[["-n", "oarlock-system"].as_slice(), &status].concat()).map(drop)
    }

    /// Makes the host keep its files in a bucket.
    pub(crate) fn deploy_with_bucket(&self) -> anyhow::Result<()> {
        let keys = json!({"AWS_ACCESS_KEY_ID": STORE_KEY, "AWS_SECRET_ACCESS_KEY": STORE_SECRET,
            "OARLOCK_ARTEFACTS_ENDPOINT": format!("https://{STORE}")});
        let secret =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": FILES_SECRET}, "stringData": keys});
        self.apply_in("oarlock-system", &secret)?;
        let bucket = format!("s3://{BUCKET}/prefix");
        self.apply_manifests(&[
            "--data",
            &bucket,
            "--data-secret",
            FILES_SECRET,
            "--history-secret",
            HISTORY_SECRET,
            "--cluster-id",
            "local",
        ])?;
        let status = ["rollout", "status", "deployment/oarlock-server", "--timeout=180s"];
        self.kubectl(&[["-n", "oarlock-system"].as_slice(), &status].concat())?;
        self.until_deployed()
    }

    /// Makes one replica keep files and history on the volume.
    pub(crate) fn deploy_with_volume(&self) -> anyhow::Result<()> {
        self.apply_manifests(&["--data", "pvc/oarlock-data"])?;
        // In this setup the server runs in the host's pod.
        let own = ["delete", "deployment,poddisruptionbudget", "oarlock-server", "--ignore-not-found", "--wait=true"];
        self.kubectl(&[["-n", "oarlock-system"].as_slice(), &own].concat())?;
        self.until_deployed()
    }

    fn deploy(&self) -> anyhow::Result<()> {
        self.apply_manifests(&[
            "--data",
            "pvc/oarlock-data",
            "--history-secret",
            HISTORY_SECRET,
            "--cluster-id",
            "local",
        ])?;
        self.make_volume()?;
        let url = format!("postgres://{USER}:{DATABASE_PASSWORD}@{DATABASE}/postgres");
        let metadata = json!({"name": HISTORY_SECRET});
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"url": url}});
        self.apply_in("oarlock-system", &secret)?;
        // All nodes are this machine, so both replicas can mount the volume.
        self.kubectl(&["-n", "oarlock-system", "scale", "deployment/oarlock", "--replicas=2"])?;
        // The pods of the host wait for this Secret.
        let [cert, key] = ["crt", "key"].map(|suffix| self.layout.rest(suffix).display().to_string());
        let secret = ["create", "secret", "tls", "oarlock-rest-tls", "--cert", &cert, "--key", &key];
        self.kubectl(&[["-n", "oarlock-system"].as_slice(), &secret].concat())?;
        let ca = std::fs::read_to_string(self.layout.at("plane/ca.crt")).context("the cluster has no authority")?;
        let metadata = json!({"name": AUTHORITIES});
        let authorities =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"ca.crt": ca}});
        self.apply_in("oarlock-system", &authorities)?;
        self.apply_in("oarlock-system", &pull_secret(EXPORT_SECRET, EXPORTS, None))?;
        self.apply_in("oarlock-tasks", &pull_secret(EXPORT_SECRET, EXPORTS, Some(&ca)))?;
        self.until_deployed()
    }

    /// Creates the volume of the host's files.
    fn make_volume(&self) -> anyhow::Result<()> {
        let folder = self.files();
        std::fs::create_dir_all(&folder)?;
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777))?;
        let claim = json!({"namespace": "oarlock-system", "name": "oarlock-data"});
        let (size, modes) = (json!({"storage": "1Gi"}), json!(["ReadWriteMany"]));
        let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "oarlock-data"}, "spec": {
            "capacity": size, "accessModes": modes, "storageClassName": "", "claimRef": claim, "hostPath": {"path": folder}}});
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": claim, "spec": {
            "accessModes": modes, "storageClassName": "", "volumeName": "oarlock-data", "resources": {"requests": size}}});
        self.apply_text(&format!("{volume}\n---\n{claim}\n"))
    }

    /// Returns the folder of the cluster.
    pub(crate) fn root(&self) -> &Path {
        &self.layout.root
    }

    /// Returns the folder of the host's files on this machine.
    pub(crate) fn files(&self) -> PathBuf {
        self.layout.root.join("files")
    }

    /// Ends the cluster, and checks that nothing of it is left.
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

    /// Creates the namespace of a scenario, and waits until this many nodes are free for it.
    pub(crate) fn scenario(self: &Arc<Self>, name: &str, nodes: usize) -> anyhow::Result<Scenario> {
        let mut namespace = name.replace('_', "-");
        namespace.truncate(50);
        let namespace = namespace.trim_end_matches('-').to_owned();
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = Instant::now();
        while free.len() < nodes {
            ensure!(begun.elapsed() < 3 * PATIENCE, "{nodes} nodes never came free");
            free = self.freed.wait_timeout(free, PATIENCE).unwrap_or_else(PoisonError::into_inner).0;
        }
        let at = free.len() - nodes;
        let nodes = free.split_off(at);
        drop(free);
        let scenario = Scenario { cluster: self.clone(), namespace, nodes };
        let (namespace, nodes) = (&scenario.namespace, &scenario.nodes);
        self.kubectl(&["create", "namespace", namespace])?;
        self.kubectl(&["label", "namespace", namespace, "oarlock.dev/node-operations=true"])?;
        for node in nodes {
            self.kubectl(&["label", "node", node, &format!("scenario={namespace}"), "--overwrite"])?;
        }
        Ok(scenario)
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

    pub(crate) fn kubectl_command(&self) -> Command {
        let mut command = Command::new(&self.kubectl);
        command.arg("--kubeconfig").arg(self.layout.outside()).stdin(Stdio::null());
        command
    }

    /// Applies YAML documents.
    pub(crate) fn apply_text(&self, text: &str) -> anyhow::Result<()> {
        self.feed(&["apply", "-f", "-"], text).map(drop)
    }

    pub(crate) fn feed(&self, arguments: &[&str], text: &str) -> anyhow::Result<String> {
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

    /// Returns the log of a node's calls of `systemd-run` and `systemctl`.
    pub(crate) fn reboots_of(&self, node: &str) -> String {
        self.file_of(node, "reboots.log")
    }

    /// Returns the text of a node's file in `/var/lib/oarlock`. The text is empty if there is no file.
    pub(crate) fn file_of(&self, node: &str, name: &str) -> String {
        let path = self.layout.root.join("nodes").join(node).join("lib-oarlock").join(name);
        std::fs::read_to_string(path).unwrap_or_default()
    }

    /// Makes the kubelet of a node evict pods if less than this memory of the machine is free.
    pub(crate) fn have_kubelet_keep_free(&self, node: &str, memory: &str) -> anyhow::Result<()> {
        let path = self.layout.root.join("nodes").join(node).join("kubelet.json");
        let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut config: Value = serde_json::from_slice(&text).context("no JSON")?;
        if let Some(kept) = config.pointer_mut("/evictionHard/memory.available") {
            *kept = memory.into();
        }
        std::fs::write(&path, config.to_string()).with_context(|| format!("cannot write {}", path.display()))?;
        self.signal(&["kubelet --kubeconfig", &format!("--hostname-override={node} ")], "KILL")
    }

    /// Runs `oarlock`.
    pub(crate) fn oarlock(&self, arguments: &[&str]) -> anyhow::Result<Output> {
        let mut command = Command::new(&self.oarlock);
        command.args(arguments).env("KUBECONFIG", self.layout.outside()).stdin(Stdio::null());
        command.output().context("cannot run oarlock")
    }

    /// Runs a line of README in a shell, with `oarlock` and `kubectl` in its path.
    pub(crate) fn shell(&self, line: &str, namespace: &str) -> anyhow::Result<String> {
        let folders = [&self.oarlock, &self.kubectl].map(|program| program.parent().map(std::path::Path::to_owned));
        let path = std::env::join_paths(folders.into_iter().flatten()).context("a path has a colon")?;
        let path = format!("{}:{}", path.to_string_lossy(), std::env::var("PATH").unwrap_or_default());
        let context = format!("kubectl config set-context --current --namespace {namespace} && {line}");
        // README assumes a clone of the repository.
        let clone = self.folder_of(namespace)?;
        let built = clone.join("target/wasm32-wasip2/release");
        std::fs::create_dir_all(built.parent().unwrap_or(&clone)).context("cannot create a folder")?;
        if !built.exists() {
            std::os::unix::fs::symlink(&self.components, &built).context("cannot link the plugins")?;
        }
        let config = clone.join("kubeconfig");
        std::fs::copy(self.layout.outside(), &config).context("cannot copy the kubeconfig")?;
        let mut command = Command::new("sh");
        command.args(["-ec", &context]).current_dir(&clone).stdin(Stdio::null());
        let output = command.env("PATH", path).env("KUBECONFIG", config).output().context("cannot run a shell")?;
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "{line}\n{said}");
        Ok(said)
    }

    /// Returns a folder for the files of one scenario.
    pub(crate) fn folder_of(&self, namespace: &str) -> anyhow::Result<PathBuf> {
        let folder = self.layout.root.join("clones").join(namespace);
        std::fs::create_dir_all(&folder).context("cannot create a folder")?;
        Ok(folder)
    }

    /// Returns the path of the CA certificate that signs the servers' certificates.
    pub(crate) fn authority(&self) -> PathBuf {
        self.layout.at("plane").join("ca.crt")
    }

    /// Returns the path of the admin's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.layout.outside()
    }

    /// Returns the nodes that no scenario disturbs.
    pub(crate) fn calm() -> Vec<String> {
        (1..=CALM).map(node_name).collect()
    }

    /// Sends an order to the cluster, such as `kill node-3` or `restart etcd`.
    pub(crate) fn order(&self, line: &str) -> anyhow::Result<()> {
        ask(&self.layout, line).map(drop)
    }

    /// Returns the number of boots of a node, from its log.
    pub(crate) fn boots(&self, node: &str) -> anyhow::Result<usize> {
        let path = self.layout.root.join("nodes").join(node).join("node.log");
        let log = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(log.lines().filter(|line| line.contains(" booted with ")).count())
    }

    /// Returns the boot id of a node's current boot, from the node's own file.
    ///
    /// # Errors
    ///
    /// If the node has no power, or has not booted yet.
    pub(crate) fn boot_id(&self, node: &str) -> anyhow::Result<String> {
        let path = self.layout.boot_id(node);
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(text.trim().to_owned())
    }

    /// Returns the processes of the cluster whose command line has all of these words.
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

    /// Sends a signal to all processes of the cluster whose command line has these words.
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
