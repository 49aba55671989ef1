//! Releases on a real API server: install, upgrade, roll back, uninstall, and adopt what kubectl has installed.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use oarlock_support::accounts::Account;
use oarlock_support::control_plane::{ControlPlane, Options, start};
use serde_json::{Value, json};

use crate::program::{chart, helm, text, with_values};

const NAMESPACE: &str = "oarlock-system";
const OPS_CRD: &str = "opsjobs.oarlock.dev";
/// Time limit for one step on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// A cluster without nodes.
struct Cluster {
    plane: ControlPlane,
    ends: Arc<AtomicBool>,
    hooks: Option<std::thread::JoinHandle<()>>,
}

impl Cluster {
    async fn start() -> Self {
        let plane = start(Options::default()).await.unwrap();
        let ends = Arc::new(AtomicBool::new(false));
        let (kubectl, kubeconfig, stop) =
            (plane.binaries().kubectl.clone(), plane.kubeconfig(Account::Admin).unwrap(), ends.clone());
        let hooks = std::thread::spawn(move || run_hooks(&Kubectl { program: kubectl, kubeconfig }, &stop));
        Self { plane, ends, hooks: Some(hooks) }
    }

    fn kubectl(&self) -> Kubectl {
        Kubectl {
            program: self.plane.binaries().kubectl.clone(),
            kubeconfig: self.plane.kubeconfig(Account::Admin).unwrap(),
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = helm(self.plane.folder());
        command.env("KUBECONFIG", self.plane.kubeconfig(Account::Admin).unwrap());
        command.args(arguments).args(["--namespace", NAMESPACE]);
        command
    }

    /// Installs or upgrades the release.
    fn apply(&self, verb: &str, values: &[&str], more: &[&str]) -> Output {
        self.apply_chart(&chart(), verb, values, more)
    }

    /// Installs the release by the earlier chart, if `OARLOCK_EARLIER_CHART` names one.
    fn apply_first(&self, values: &[&str], more: &[&str]) -> Output {
        let first = std::env::var_os("OARLOCK_EARLIER_CHART").map_or_else(chart, PathBuf::from);
        self.apply_chart(&first, "install", values, more)
    }

    fn apply_chart(&self, chart: &Path, verb: &str, values: &[&str], more: &[&str]) -> Output {
        let mut command = self.command(&[verb, "oarlock"]);
        command.arg(chart).args(more).args(["--set", "drain.timeout=1s"]);
        with_values(&mut command, values).output().unwrap()
    }

    fn helm(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn crd(&self) -> Value {
        self.kubectl().get(&["crd", OPS_CRD])
    }

    /// Makes the definition of OpsJobs as a later release would: with a higher level and one more field.
    fn raise(&self) {
        let crd = self.crd();
        let mut versions = crd["spec"]["versions"].clone();
        versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["later"] =
            json!({"type": "string"});
        let patch =
            json!({"metadata": {"annotations": {"oarlock.dev/crd-level": "99"}}, "spec": {"versions": versions}});
        self.kubectl().run(&["patch", "crd", OPS_CRD, "--type=merge", "-p", &patch.to_string()]);
    }

    fn is_later(&self) -> bool {
        let crd = self.crd();
        crd["metadata"]["annotations"]["oarlock.dev/crd-level"] == "99"
            && crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["later"]
                .is_object()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ended = self.hooks.take().map(std::thread::JoinHandle::join);
    }
}

/// kubectl with the rights of an admin.
struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
}

impl Kubectl {
    fn output(&self, arguments: &[&str]) -> Output {
        Command::new(&self.program).arg("--kubeconfig").arg(&self.kubeconfig).args(arguments).output().unwrap()
    }

    fn run(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(output.status.success(), "kubectl {arguments:?}: {}", text(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    fn get(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.run(&[&["get", "-o", "json"], arguments].concat())).unwrap()
    }

    fn exists(&self, arguments: &[&str]) -> bool {
        self.output(&[&["get"], arguments].concat()).status.success()
    }

    fn apply(&self, more: &[&str], documents: &str) -> Output {
        let mut command = Command::new(&self.program);
        command.arg("--kubeconfig").arg(&self.kubeconfig).arg("apply").args(more).args(["-f", "-"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(documents.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }
}

/// The path of the host's program.
fn oarlock() -> PathBuf {
    let own = || std::env::current_exe().unwrap().parent().and_then(Path::parent).unwrap().join("oarlock");
    std::env::var_os("OARLOCK_BINARY").map_or_else(own, PathBuf::from)
}

/// Runs the programs of hooks until `ends`, and writes their results into the statuses of the Jobs.
fn run_hooks(kubectl: &Kubectl, ends: &AtomicBool) {
    while !ends.load(Ordering::Relaxed) {
        let output = kubectl.output(&["get", "jobs", "-n", NAMESPACE, "-o", "json"]);
        let jobs: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        for job in
            jobs["items"].as_array().into_iter().flatten().filter(|job| job.pointer("/status/conditions").is_none())
        {
            let arguments = job["spec"]["template"]["spec"]["containers"][0]["args"].as_array().unwrap().clone();
            let mut command = Command::new(oarlock());
            command.args(arguments.iter().filter_map(Value::as_str)).env("KUBECONFIG", &kubectl.kubeconfig);
            let output = command.output().unwrap();
            eprintln!("hook {arguments:?}: {}", text(&output));
            let now = job["metadata"]["creationTimestamp"].clone();
            let of = |kind: &str| json!({"type": kind, "status": "True", "reason": "Test", "message": text(&output), "lastTransitionTime": now});
            let status = if output.status.success() {
                json!({"startTime": now, "completionTime": now, "succeeded": 1, "conditions": [of("SuccessCriteriaMet"), of("Complete")]})
            } else {
                json!({"startTime": now, "failed": 1, "conditions": [of("FailureTarget"), of("Failed")]})
            };
            let name = job["metadata"]["name"].as_str().unwrap();
            let patch = json!({"status": status}).to_string();
            let written = kubectl.output(&[
                "patch",
                "job",
                name,
                "-n",
                NAMESPACE,
                "--subresource=status",
                "--type=merge",
                "-p",
                &patch,
            ]);
            assert!(written.status.success(), "{}", text(&written));
        }
        std::thread::park_timeout(Duration::from_millis(100));
    }
}

#[track_caller]
fn succeeds(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(output));
    text(output)
}

#[track_caller]
fn fails(output: &Output) -> String {
    assert!(!output.status.success(), "{}", text(output));
    text(output)
}

/// Returns the message of the hook's Job, which its log would say.
fn said(cluster: &Cluster, job: &str) -> String {
    cluster.kubectl().get(&["job", job, "-n", NAMESPACE])["status"]["conditions"].to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_is_installed_upgraded_rolled_back_and_uninstalled() {
    let cluster = Cluster::start().await;
    let kubectl = cluster.kubectl();
    succeeds(&cluster.apply_first(&["ops.enabled=true"], &["--create-namespace"]));
    kubectl.run(&["patch", "secret", "oarlock-holds", "-n", NAMESPACE, "-p", r#"{"data": {"key": "a2V5"}}"#]);
    let grants = || {
        kubectl.run(&["get", "configmaps", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=grants", "-o", "name"])
    };
    let first = grants();
    succeeds(&cluster.apply("upgrade", &["ops.enabled=true", "plugins.restart.enabled=true"], &[]));
    assert!(
        grants().contains(first.trim()) && grants().lines().count() == 2,
        "pods of the older Deployment need {first}"
    );
    assert!(kubectl.exists(&["clusterrole", "oarlock-plugin-restart-reads"]));
    assert_eq!(
        kubectl.get(&["secret", "oarlock-holds", "-n", NAMESPACE])["data"]["key"],
        "a2V5",
        "Helm leaves the key"
    );

    succeeds(&cluster.helm(&["rollback", "oarlock", "1"]));
    assert!(!kubectl.exists(&["clusterrole", "oarlock-plugin-restart-reads"]));
    assert!(!kubectl.exists(&["clusterrole", "oarlock-rollback"]), "the hook leaves nothing");

    // A later release has newer definitions. To go back to the older ones would remove a field from stored objects.
    cluster.raise();
    let refused = fails(&cluster.helm(&["rollback", "oarlock", "2"]));
    let why = said(&cluster, "oarlock-rollback");
    assert!(
        why.contains("opsjobs.oarlock.dev: the cluster has level 99, and the older release has level 1"),
        "{refused} {why}"
    );
    assert!(why.contains("helm upgrade") && cluster.is_later());
    let pending = "owner=helm,name=oarlock,status=pending-rollback";
    assert!(
        why.contains("kubectl delete secret -n NAMESPACE -l owner=helm,name=RELEASE,status=pending-rollback"),
        "{why}"
    );
    kubectl.run(&["delete", "secret", "-n", NAMESPACE, "-l", pending]);
    succeeds(&cluster.apply("upgrade", &["ops.enabled=true", "replicas=3"], &[]));
    assert!(cluster.is_later(), "the older chart leaves the newer definition");
    succeeds(&cluster.apply("upgrade", &["ops.enabled=true"], &[]));
    let revision = |output: &Output| -> u64 {
        let all: Value = serde_json::from_slice(&output.stdout).unwrap();
        all.as_array().unwrap().iter().filter_map(|one| one["revision"].as_u64()).max().unwrap()
    };
    let last = revision(&cluster.helm(&["history", "oarlock", "-o", "json"]));
    succeeds(&cluster.helm(&["rollback", "oarlock", &(last - 1).to_string()]));
    assert_eq!(kubectl.get(&["deployment", "oarlock", "-n", NAMESPACE])["spec"]["replicas"], 3);
    assert!(cluster.is_later(), "a revision with the newer definition can be rolled back to");

    // A job in flight needs the host.
    let job = json!({"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob", "metadata": {"name": "web", "namespace": "default",
        "finalizers": ["finalizer.operating.kusionstack.io/protected"]}, "spec": {"action": "Replace", "targets": [{"name": "web-1"}]}});
    succeeds(&kubectl.apply(&[], &job.to_string()));
    fails(&cluster.helm(&["uninstall", "oarlock"]));
    let why = said(&cluster, "oarlock-drain");
    assert!(why.contains("operationjob default/web") && why.contains("--no-hooks"), "{why}");
    assert!(kubectl.exists(&["deployment", "oarlock", "-n", NAMESPACE]), "nothing was removed");
    // Helm has marked the release as being uninstalled. A rollback to its last revision takes that back.
    let last = revision(&cluster.helm(&["history", "oarlock", "-o", "json"]));
    succeeds(&cluster.helm(&["rollback", "oarlock", &last.to_string()]));
    succeeds(&cluster.apply("upgrade", &["ops.enabled=true"], &[]));
    fails(&cluster.helm(&["uninstall", "oarlock"]));
    // A job that has ended keeps its finalizer, and holds nothing.
    let ended = r#"{"status": {"progress": "Succeeded"}}"#;
    kubectl.run(&["patch", "operationjob", "web", "--subresource=status", "--type=merge", "-p", ended]);
    succeeds(&cluster.helm(&["uninstall", "oarlock"]));
    assert!(
        !kubectl.exists(&["deployment", "oarlock", "-n", NAMESPACE]) && !kubectl.exists(&["clusterrole", "oarlock"])
    );
    assert!(kubectl.exists(&["operationjob", "web"]) && cluster.is_later(), "jobs and their kinds stay");
    assert_eq!(kubectl.get(&["secret", "oarlock-holds", "-n", NAMESPACE])["data"]["key"], "a2V5");

    // The chart takes over what it has left.
    succeeds(&cluster.apply("install", &["ops.enabled=true"], &[]));
    assert!(cluster.is_later());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_kubectl_has_installed_is_adopted_and_an_upgrade_that_was_killed_is_repaired() {
    let cluster = Cluster::start().await;
    let kubectl = cluster.kubectl();
    // An earlier release had no levels.
    let printed = Command::new(oarlock())
        .args(["manifests", "--ops", "--deployment", "registry.example/oarlock:0.0.1", "--grants"])
        .arg(oarlock_chart::root().join("plugins/replace/grant.yaml"))
        .output()
        .unwrap();
    assert!(printed.status.success(), "{}", text(&printed));
    let printed = String::from_utf8(printed.stdout).unwrap().replace("annotations: {oarlock.dev/crd-level: \"1\"}", "");
    succeeds(&kubectl.apply(&[], &printed));
    let uid = |kind: &str, name: &str| kubectl.get(&[kind, name, "-n", NAMESPACE])["metadata"]["uid"].clone();
    let before =
        [uid("deployment", "oarlock"), uid("secret", "oarlock-holds"), cluster.crd()["metadata"]["uid"].clone()];

    let refused = fails(&cluster.apply("install", &["ops.enabled=true"], &[]));
    assert!(refused.contains("take-ownership") || refused.contains("ownership"), "{refused}");
    // If Helm 4 applied on the server, each later upgrade would conflict with the fields that kubectl has set.
    let version = text(&cluster.helm(&["version", "--short"]));
    let adopts: &[&str] =
        if version.starts_with("v3") { &["--take-ownership"] } else { &["--take-ownership", "--server-side=false"] };
    succeeds(&cluster.apply_first(&["ops.enabled=true"], adopts));
    let after =
        [uid("deployment", "oarlock"), uid("secret", "oarlock-holds"), cluster.crd()["metadata"]["uid"].clone()];
    assert_eq!(before, after, "the objects are the same, and none was replaced");
    assert_eq!(cluster.crd()["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
    succeeds(&cluster.apply("upgrade", &["ops.enabled=true"], &[]));

    // No pod becomes ready here, so an upgrade that waits is in the middle when it is killed.
    let mut command = cluster.command(&["upgrade", "oarlock", "--wait", "--timeout", "10m"]);
    command.arg(chart());
    let mut child = with_values(&mut command, &["ops.enabled=true", "replicas=3"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stored = until_stored(&cluster, &mut child);
    child.kill().unwrap();
    let ended = text(&child.wait_with_output().unwrap());
    assert!(stored, "the upgrade ended too early: {ended}");
    let refused = fails(&cluster.apply("upgrade", &["ops.enabled=true"], &[]));
    assert!(refused.contains("in progress"), "{refused}");
    succeeds(&cluster.helm(&["rollback", "oarlock", "2"]));
    assert_eq!(kubectl.get(&["deployment", "oarlock", "-n", NAMESPACE])["spec"]["replicas"], 2);
    succeeds(&cluster.apply("upgrade", &["ops.enabled=true", "replicas=3"], &[]));

    // Without the annotation of crds.keep, Helm would delete the definitions that it no longer renders.
    succeeds(&cluster.apply("upgrade", &["ops.enabled=true", "crds.keep=false"], &[]));
    assert!(cluster.crd()["metadata"]["annotations"].get("helm.sh/resource-policy").is_none());
    let refused = fails(&cluster.apply("upgrade", &["ops.enabled=true", "crds.enabled=false"], &[]));
    assert!(refused.contains("crds.enabled=true and crds.keep=true"), "{refused}");
    succeeds(&cluster.apply("upgrade", &["ops.enabled=true"], &[]));
    succeeds(&cluster.apply("upgrade", &["ops.enabled=true", "crds.enabled=false"], &[]));
    assert_eq!(cluster.crd()["metadata"]["uid"], before[2], "the definition stays, with all jobs");

    // Without the host, a job that has ended would keep its kind from being deleted.
    succeeds(&cluster.apply("upgrade", &["ops.enabled=true", "crds.keep=false"], &[]));
    let job = json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "OpsJob", "spec": {"type": "reboot", "inputs": [{"name": "node", "value": "a"}]},
        "metadata": {"name": "ended", "finalizers": ["oarlock.dev/history"]}});
    succeeds(&kubectl.apply(&[], &job.to_string()));
    fails(&cluster.helm(&["uninstall", "oarlock"]));
    let why = said(&cluster, "oarlock-drain");
    assert!(
        why.contains("opsjob ended: has ended, and only the host removes its finalizer oarlock.dev/history"),
        "{why}"
    );
    kubectl.run(&["patch", "opsjob", "ended", "--type=merge", "-p", r#"{"metadata": {"finalizers": null}}"#]);
    succeeds(&cluster.helm(&["uninstall", "oarlock"]));
    kubectl.run(&["wait", "crd", OPS_CRD, "--for=delete", "--timeout=60s"]);
}

/// Waits until an upgrade that runs has changed the Deployment. Returns false if it ends before.
fn until_stored(cluster: &Cluster, child: &mut Child) -> bool {
    let began = Instant::now();
    while cluster.kubectl().get(&["deployment", "oarlock", "-n", NAMESPACE])["spec"]["replicas"] != 3 {
        assert!(began.elapsed() < PATIENCE, "the upgrade hangs");
        if child.try_wait().unwrap().is_some() {
            return false;
        }
    }
    true
}

/// Values that together reach each template.
const WIDE: [&[&str]; 6] = [
    &[],
    &[
        "flows.enabled=true",
        "flows.allNamespaces=true",
        "replicas=1",
        "priorityClass.create=false",
        "priorityClass.name=",
        "podDisruptionBudget.enabled=false",
        "networkPolicy.enabled=false",
    ],
    &[
        "flows.enabled=true",
        "flows.namespaces={default}",
        "plugins.restart.enabled=true",
        "plugins.restart.namespaces={default}",
        "nodeSelector.a=b",
        "tolerations=[{\"operator\":\"Exists\"}]",
        "imagePullSecrets=[{\"name\":\"registry\"}]",
        "podAnnotations={\"a\":\"1\"}",
    ],
    &[
        "ops.enabled=true",
        "data.claim=files",
        "server.enabled=true",
        "server.web.enabled=true",
        "plugins.reboot.enabled=true",
        "plugins.preflight.enabled=true",
        "plugins.preflight.hostPaths={/var/log}",
        "tasks.egress={all}",
    ],
    &[
        "ops.enabled=true",
        "data.bucket=s3://b/p",
        "data.secret=k",
        "server.enabled=true",
        "clusterId=c",
        "history.secret=h",
        "ca=a",
        "export.registry=r:5",
        "export.secret=e",
        "plugins.exportimage.enabled=true",
        "plugins.exportimage.namespaces={default}",
        "plugins.addon.enabled=true",
    ],
    &[
        "metrics.dashboards.enabled=true",
        "policies.guardHolds=true",
        "policies.guardPodWrites=false",
        "crds.keep=false",
        "topologySpreadConstraints=[]",
        "extraArgs={--memory-limit=1Gi}",
        "plugins.dumplog.enabled=true",
        "plugins.dumplog.namespaces={*}",
    ],
];

#[tokio::test(flavor = "multi_thread")]
async fn all_that_the_chart_renders_is_valid() {
    let cluster = Cluster::start().await;
    let kubectl = cluster.kubectl();
    for namespace in [NAMESPACE, "oarlock-tasks", "oarlock-ops"] {
        kubectl.run(&["create", "namespace", namespace]);
    }
    for values in WIDE {
        let documents = crate::program::rendered(values, &[]).unwrap();
        succeeds(
            &kubectl
                .apply(&["--server-side", "--dry-run=server", "--field-manager=test", "--validate=strict"], &documents),
        );
    }
    let base = Command::new(&cluster.plane.binaries().kubectl)
        .arg("kustomize")
        .arg(oarlock_chart::root().join("deploy/kustomize/base"))
        .output()
        .unwrap();
    let base = String::from_utf8(base.stdout).unwrap();
    succeeds(
        &kubectl.apply(&["--server-side", "--dry-run=server", "--field-manager=test", "--validate=strict"], &base),
    );
}
