//! An upgrade from an earlier host to this one and back, on a real control plane. Each version removes the holds that the other has put on a pod.
//!
//! `OARLOCK_EARLIER_BINARY` names a binary of the earlier version. In the first test, the host of that version does not prove holds. The other
//! tests take the version before: each version goes on with the jobs of all kinds that the other has stored.

#![expect(clippy::indexing_slicing, reason = "a test fails loudly")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use oarlock::manifests::{GrantedAccess, PodPolicies, manifests_with};
use oarlock_history::{History, HistoryPlace};
use oarlock_scenarios::components::{GRANTS, REBOOT_GRANTS};
use oarlock_scenarios::flows::{step, unit, work};
use oarlock_scenarios::host_process::{HostProcess, host_binary};
use oarlock_scenarios::jobs::{Told, replace};
use oarlock_scenarios::mode::Mode;
use oarlock_scenarios::scenarios::drains::bootable;
use oarlock_scenarios::scenarios::on_nodes::{node, set_ready};
use oarlock_scenarios::test_cluster::{TestCluster, patiently};
use oarlock_sim::world::{Pause, Scope};
use oarlock_support::accounts::Account;
use oarlock_support::control_plane::{self, ControlPlane};
use oarlock_support::install::{self, Way};
use serde_json::{Value, json};

/// Returns the text of the only hold of a pod.
async fn hold(cluster: &TestCluster, pod: &str) -> anyhow::Result<String> {
    let pod = cluster.pods().get(pod).await?;
    let hold = pod.annotations().iter().find(|(key, _)| key.starts_with("hold.oarlock.dev/"));
    Ok(hold.map(|(_, text)| text.clone()).unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a binary: OARLOCK_EARLIER_BINARY=oarlock-0.1 cargo test --workspace --exclude hostile --exclude oarlock-bench --test earlier -- --ignored"]
async fn what_a_host_of_an_earlier_version_has_put_on_a_pod_this_one_takes_off_and_the_other_way() -> anyhow::Result<()>
{
    let earlier = earlier_binary()?;
    let plane = Arc::new(control_plane::start(control_plane::Options::default()).await?);
    let admin = plane.client(Account::Admin).await?;
    let printed = Command::new(&earlier).arg("manifests").output()?;
    install::install(&admin, &install::documents(&String::from_utf8(printed.stdout)?)?, Way::Apply).await?;
    let newer = || {
        let access = GrantedAccess::of(oarlock_wasm::parse_grants(GRANTS)?);
        install::documents(&manifests_with(&access, PodPolicies::ALL)?)
    };
    let cluster = TestCluster::real(plane.clone(), "team").await?;
    let earlier_host = HostProcess::prepare(&plane, plane.kubeconfig(Account::Host)?, "host-0")?;
    let host = HostProcess::prepare(&plane, plane.kubeconfig(Account::Host)?, "host-1")?;
    let set = Mode::CollaSet.plant(&cluster, 3).await?;
    cluster.world.settled(&set, Duration::from_secs(180)).await?;
    let names = cluster.pod_names(Mode::CollaSet.app()).await?;
    let held = async |pod: &str, proved: bool| {
        patiently("the pod is held", async || {
            let text = hold(&cluster, pod).await?;
            Ok(!text.is_empty() && text.contains("mac:") == proved)
        })
        .await
        .context(host.tail())
    };
    let secrets = Api::<Secret>::namespaced(admin.clone(), "oarlock-system");

    // Upgrade: the earlier host holds a pod. This host waits beside it, as in a rollout, and makes the key that the leader does not make. Then it
    // adopts the hold and ends the job.
    cluster.world.hold(Pause::Creation, Scope::World);
    earlier_host.begin_with(&earlier)?;
    cluster.create_job("up", replace(std::slice::from_ref(&names[0]), json!({}))).await?;
    held(&names[0], false).await?;
    install::install(&admin, &newer()?, Way::Apply).await?;
    host.begin()?;
    patiently("the host that waits makes the key", async || {
        let keys = secrets.get_opt("oarlock-holds").await?.and_then(|secret| secret.data);
        Ok(keys.is_some_and(|keys| keys.contains_key("key")))
    })
    .await
    .context(host.tail())?;
    ensure!(!hold(&cluster, &names[0]).await?.contains("mac:"), "the earlier host leads until it ends");
    (earlier_host.killer())();
    held(&names[0], true).await?;
    cluster.world.release(Pause::Creation, Scope::World);
    cluster.until_progress("up", "Succeeded").await.context(host.tail())?;
    cluster.until_nothing_is_left().await?;

    // The policy is removed before the downgrade, as the docs say.
    let mut old_policy = newer()?;
    old_policy.retain(|document| document["metadata"]["name"] == "pod-holds.oarlock.dev");
    install::remove(&admin, &old_policy).await?;

    // Downgrade: this host holds two pods and the job of one pod vanishes. The earlier host removes both holds.
    cluster.world.hold(Pause::Creation, Scope::World);
    cluster.create_job("down", replace(std::slice::from_ref(&names[1]), json!({}))).await?;
    cluster.create_job("gone", replace(std::slice::from_ref(&names[2]), json!({}))).await?;
    held(&names[1], true).await?;
    held(&names[2], true).await?;
    install::install(&admin, &newer()?, Way::Apply).await?;
    earlier_host.begin_with(&earlier)?;
    (host.killer())();
    let mut cluster = cluster;
    cluster.vanish("gone").await?;
    cluster.world.release(Pause::Creation, Scope::World);
    cluster.until_progress("down", "Succeeded").await.context(earlier_host.tail())?;
    cluster.until_nothing_is_left().await?;
    earlier_host.check()?;
    earlier_host.end();
    ensure!(cluster.leftovers().await?.is_empty());
    Ok(())
}

/// The number of targets whose pods do not exist. With so many targets, a job has OperationRecords.
const MISSING: usize = 300;
/// The namespace of the test. The simulated kubelets run its tasks in `oarlock-tasks`, which is the host's default.
const TEAM: &str = "oarlock";
/// The label of the nodes of the DaemonJob.
const OF_DAEMON: &str = "earlier.test/daemon";
const FLOW: &str = "JobFlow";
const DAEMON: &str = "DaemonJob";

/// A cluster on which one version begins jobs of each kind and the other version ends them.
struct Handover {
    plane: Arc<ControlPlane>,
    admin: Client,
    cluster: TestCluster,
    /// The names of the pods of the OperationJob.
    pods: Vec<String>,
    /// The nodes that OpsJobs reboot. The first version reboots the first node, the other version reboots the second.
    rebooted: [String; 2],
}

impl Handover {
    /// Prepares the cluster with the manifests of the first version.
    async fn prepare(first: &Path) -> anyhow::Result<Self> {
        let controllers = vec![
            control_plane::GARBAGE_COLLECTOR,
            control_plane::DISRUPTION,
            control_plane::JOB,
            control_plane::TTL_AFTER_FINISHED,
        ];
        let plane = control_plane::start(control_plane::Options { controllers, ..Default::default() }).await?;
        let plane = Arc::new(plane);
        let admin = plane.client(Account::Admin).await?;
        install::install(&admin, &printed(&plane, first)?, Way::Apply).await?;
        let cluster = TestCluster::real(plane.clone(), TEAM).await?;
        let set = Mode::CollaSet.plant(&cluster, 3).await?;
        cluster.world.settled(&set, Duration::from_secs(180)).await?;
        let pods = cluster.pod_names(Mode::CollaSet.app()).await?;
        let rebooted = [bootable(&cluster, "a").await?, bootable(&cluster, "b").await?];
        let nodes = Api::<Node>::all(admin.clone());
        for (suffix, is_ready) in [("c", true), ("d", false)] {
            let name = node(&cluster, suffix, is_ready).await?;
            let label = json!({"metadata": {"labels": {OF_DAEMON: "true"}}});
            nodes.patch(&name, &PatchParams::default(), &Patch::Merge(label)).await?;
        }
        Ok(Self { plane, admin, cluster, pods, rebooted })
    }

    /// Returns the address of the history of both hosts.
    fn history(&self) -> String {
        format!("sqlite:{}", self.plane.folder().join("history.db").display())
    }

    /// Prepares a host with Replace and reboot.
    fn host(&self, identity: &str) -> anyhow::Result<HostProcess> {
        let host = HostProcess::prepare(&self.plane, self.plane.kubeconfig(Account::Host)?, identity)?;
        host.drop_plugin("reboot", REBOOT_GRANTS)?;
        Ok(host.with(format!("--history={}", self.history())))
    }

    /// Creates jobs of each kind, and waits until the running host has stored the middle of each.
    async fn until_half_is_stored(&self) -> anyhow::Result<()> {
        let cluster = &self.cluster;
        let [ended, begun] = &self.rebooted;
        let reboot = |node: &String| json!({"type": "reboot", "inputs": [{"name": "node", "value": node}]});
        cluster.create_ops("ended", reboot(ended)).await?;
        cluster.until_ops_ended("ended", "Succeeded", "Succeed").await?;
        cluster.delete_ops("ended").await?;
        self.until_ops_is_gone("ended").await?;
        let steps = json!([step("a", "true", &[]), {"name": "b", "dependencies": ["a"], "jobTemplateRef": "late"},
            step("c", "true", &["b"])]);
        cluster.create_flow(FLOW, "steps", json!({ "flows": steps })).await?;
        let half = |flow: &Value| unit(flow, "a") == "Succeed" && unit(flow, "b") == "Blocked/JobTemplateNotFound";
        cluster.until_flow((FLOW, "steps"), "half of the steps are done", half).await?;

        for pause in PAUSES {
            cluster.world.hold(pause, Scope::World);
        }
        let missing = (0..MISSING).map(|number| format!("missing-{number}"));
        let targets: Vec<String> = self.pods.iter().cloned().chain(missing).collect();
        cluster.create_job("half", replace(&targets, json!({}))).await?;
        cluster.create_flow(FLOW, "runs", json!({"flows": [step("a", "true", &[])]})).await?;
        let mut daemon = work("true");
        daemon["rollout"] = json!({"concurrency": 1, "nodeSelector": {"matchLabels": {OF_DAEMON: "true"}}});
        cluster.create_flow(DAEMON, "daemon", daemon).await?;
        cluster.create_ops("begun", reboot(begun)).await?;
        patiently("a pod is held, and the outcomes are stored", async || {
            let stored = cluster.jobs().get("half").await?;
            Ok(!hold(cluster, &self.pods[0]).await?.is_empty() && stored.count("Failed") == MISSING)
        })
        .await?;
        cluster.until_flow((FLOW, "runs"), "its step is in flight", |flow| is_in_flight(flow, "a")).await?;
        let waits = |daemon: &Value| {
            unit(daemon, &format!("{TEAM}-c")) == "Succeed"
                && unit(daemon, &format!("{TEAM}-d")) == "Waiting/NodeNotReady"
        };
        cluster.until_flow((DAEMON, "daemon"), "it waits for a node", waits).await?;
        let runs = |job: &Value| job.pointer("/status/phase").is_some_and(|phase| phase == "Running");
        cluster.until_ops("begun", "it runs", runs).await.map(drop)
    }

    /// Lets the jobs go on, and waits until the running host has ended all of them, each with one attempt.
    async fn until_all_have_ended(&self) -> anyhow::Result<()> {
        let cluster = &self.cluster;
        for pause in PAUSES {
            cluster.world.release(pause, Scope::World);
        }
        cluster.create_flow("JobTemplate", "late", json!({"jobTemplate": work("true")})).await?;
        set_ready(cluster, &format!("{TEAM}-d"), true).await?;
        cluster.until_progress("half", "Failed").await?;
        let ended = cluster.jobs().get("half").await?;
        ensure!((ended.count("Succeeded"), ended.count("Failed")) == (3, MISSING), "{ended:?}");
        for (kind, name) in [(FLOW, "steps"), (FLOW, "runs"), (DAEMON, "daemon")] {
            cluster.until_state(kind, name, "Succeed").await?;
        }
        let jobs = cluster.batch_job_names().await?;
        let of_daemon = ["c", "d"].map(|suffix| format!("daemon-{TEAM}-{suffix}"));
        let of_flows = ["runs-a", "steps-a", "steps-b", "steps-c"].map(str::to_owned);
        ensure!(jobs == [of_daemon.as_slice(), &of_flows].concat(), "{jobs:?}");
        cluster.until_ops_ended("begun", "Succeeded", "Succeed").await?;
        let reboots = cluster.world.ledger().reboots();
        ensure!(self.rebooted.iter().all(|node| reboots.get(node) == Some(&1)), "{reboots:?}");
        cluster.delete_ops("begun").await?;
        self.until_ops_is_gone("begun").await?;
        cluster.until_nothing_is_left().await?;
        ensure!(cluster.leftovers().await?.is_empty());
        Ok(())
    }

    async fn until_ops_is_gone(&self, name: &str) -> anyhow::Result<()> {
        patiently("the OpsJob is gone", async || Ok(self.cluster.ops().get_opt(name).await?.is_none())).await
    }

    /// Checks that the history has both OpsJobs, each with its outcome.
    async fn check_history(&self) -> anyhow::Result<()> {
        let place = HistoryPlace::read(&self.history()).map_err(anyhow::Error::msg)?;
        let history = History::as_guest(place, "local")?;
        for name in ["ended", "begun"] {
            let job = history.job(name).await?.with_context(|| format!("{name} is not in the history"))?;
            ensure!(job.document.pointer("/status/phase").is_some_and(|phase| phase == "Succeeded"), "{job:?}");
        }
        Ok(())
    }
}

/// Returns true if the child of this unit exists and is not decided.
fn is_in_flight(object: &Value, name: &str) -> bool {
    let state = unit(object, name);
    state.starts_with("Pending") || state.starts_with("Running")
}

/// The pauses that keep jobs in flight: of replacements, of Jobs of flows, and of tasks on nodes.
const PAUSES: [Pause; 3] = [Pause::Creation, Pause::Scheduling, Pause::Tasks];

/// Returns the documents that a version prints for all kinds, and for Replace and reboot.
fn printed(plane: &ControlPlane, version: &Path) -> anyhow::Result<Vec<Value>> {
    let grants = plane.folder().join("granted.yaml");
    std::fs::write(&grants, format!("{GRANTS}\n---\n{REBOOT_GRANTS}"))?;
    let printed = Command::new(version).args(["manifests", "--flows", "--ops", "--grants"]).arg(&grants).output()?;
    ensure!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    install::documents(&String::from_utf8(printed.stdout)?)
}

/// Runs the second version on what the first version has stored.
async fn hand_over(first: &Path, second: &Path, applies_definitions: bool) -> anyhow::Result<()> {
    let handover = Handover::prepare(first).await?;
    let before = handover.host("host-0")?;
    before.begin_with(first)?;
    handover.until_half_is_stored().await.with_context(|| before.tail())?;
    before.check()?;
    (before.killer())();
    let mut documents = printed(&handover.plane, second)?;
    documents.retain(|document| applies_definitions || document["kind"] != "CustomResourceDefinition");
    install::install(&handover.admin, &documents, Way::Apply).await?;
    let after = handover.host("host-1")?;
    after.begin_with(second)?;
    handover.until_all_have_ended().await.with_context(|| after.tail())?;
    after.check()?;
    after.end();
    handover.check_history().await
}

fn earlier_binary() -> anyhow::Result<PathBuf> {
    std::env::var_os("OARLOCK_EARLIER_BINARY").map(PathBuf::from).context("OARLOCK_EARLIER_BINARY")
}

/// A rollback never applies older definitions, so the earlier version runs beside those of this version.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a binary, which `cargo xtask test release` builds"]
async fn the_version_before_reads_what_this_one_has_stored_and_goes_on() -> anyhow::Result<()> {
    hand_over(&host_binary()?, &earlier_binary()?, false).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a binary, which `cargo xtask test release` builds"]
async fn this_version_reads_what_the_one_before_has_stored_and_goes_on() -> anyhow::Result<()> {
    hand_over(&earlier_binary()?, &host_binary()?, true).await
}
