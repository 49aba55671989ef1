//! OpsJobs whose host is killed at one of their writes, and whose work the next host completes.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, ensure};
use kube::api::DeleteParams;
use oarlock_core::ops_job::names::FINALIZER;
use oarlock_sim::world::History;
use oarlock_support::faults::{Fault, Plan, Then, When};
use oarlock_support::interception::Interceptor;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::addons::{ADDON, taints};
use super::drains::{REBOOT, bootable, workload};
use super::dumplogs::{DUMPLOG, dumplog, file_of, keep_files, no_parts, talker};
use super::exports::{EXPORTIMAGE, export, exported, runs};
use super::on_nodes::{Plugin, grant, nodes};
use super::ops_jobs::end_well;
use super::reboots::{PREFLIGHT, reboots, until_free};
use crate::image_registry::LocalRegistry;
use crate::ops::{condition, judge, output, prepare};
use crate::test_cluster::{TestCluster, patiently};
use crate::variant::Variant;

/// The action of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Two nodes are drained and rebooted, one after the other.
    Reboot,
    /// Two nodes are rebooted, and the job is stopped while the first node is in work.
    Stopped,
    /// Two nodes are checked.
    Preflight,
    /// Two scripts run on each of two nodes.
    Addon,
    /// The logs of a pod with two containers are collected.
    Dumplog,
    /// The image of a pod is exported.
    Export,
    /// Two nodes are rebooted, and the second node is deleted and created again under its name before its start.
    Namesake,
    /// Two nodes are rebooted, and another job asks for them meanwhile.
    Contended,
}

impl Deed {
    fn plugin(self) -> Plugin {
        match self {
            Self::Preflight => PREFLIGHT,
            Self::Addon => ADDON,
            Self::Dumplog => DUMPLOG,
            Self::Export => EXPORTIMAGE,
            Self::Reboot | Self::Stopped | Self::Namesake | Self::Contended => REBOOT,
        }
    }

    fn spec(self, nodes: &[String; 2]) -> Value {
        let mut inputs: Vec<Value> = nodes.iter().map(|name| json!({"name": "node", "value": name})).collect();
        if self == Self::Preflight {
            return json!({"type": "preflight", "inputs": inputs, "image": "check:1", "isTolerateAll": true,
                "entryPoint": "IyBzaW06IG1lc3NhZ2Ugb2s="});
        }
        if self == Self::Addon {
            // The scripts are Base64 of `# sim: output a` and `# sim: output b`.
            let scripts = ["IyBzaW06IG91dHB1dCBh", "IyBzaW06IG91dHB1dCBi"];
            inputs.extend(scripts.map(|script| json!({"name": "script", "value": script})));
            return json!({"type": "addon", "inputs": inputs, "isTolerateAll": true});
        }
        inputs.push(json!({"name": "drain", "value": "true"}));
        json!({"type": "reboot", "inputs": inputs})
    }
}

/// The number of the write and the moment at which a host is killed. The number 0 means no kill.
pub type Point = (u64, When);

/// A cluster for several runs, one after the other.
pub struct CrashRuns<'a> {
    cluster: &'a mut TestCluster,
    deed: Deed,
    history: History,
    runs: usize,
    /// The folder in which hosts keep files.
    folder: Option<PathBuf>,
    /// The registry to which hosts export images.
    registry: Option<LocalRegistry>,
    /// The history that the hosts write.
    rows: Option<oarlock_history::History>,
    /// The bug of the hosts, if they have one.
    pub variant: Option<Arc<dyn Variant>>,
}

impl<'a> CrashRuns<'a> {
    /// Prepares a cluster for runs of `deed`.
    ///
    /// # Errors
    /// If the manifests cannot be installed, or if the registry does not start.
    pub async fn begin(cluster: &'a mut TestCluster, deed: Deed) -> anyhow::Result<Self> {
        let history = prepare(cluster).await?;
        grant(cluster, deed.plugin()).await?;
        let folder = (deed == Deed::Dumplog).then(|| keep_files(cluster));
        let registry = (deed == Deed::Export).then(LocalRegistry::start).transpose()?;
        cluster.exports = registry.as_ref().map(LocalRegistry::of_host);
        let rows = cluster.rows.clone().map(|place| oarlock_history::History::at(place, "local")).transpose()?;
        Ok(Self { cluster, deed, history, runs: 0, folder, registry, rows, variant: None })
    }

    /// Runs the deed on new nodes with a host that is killed at `point`, and checks the result. Returns the number of writes.
    ///
    /// # Errors
    /// If a property did not hold. The error names it.
    pub async fn run(&mut self, point: Point) -> anyhow::Result<u64> {
        self.runs += 1;
        let (deed, name) = (self.deed, format!("j{}", self.runs));
        let nodes =
            [bootable(self.cluster, &format!("{name}-a")).await?, bootable(self.cluster, &format!("{name}-b")).await?];
        if deed == Deed::Dumplog {
            let [node, _] = &nodes;
            talker(
                self.cluster,
                &name,
                node,
                &[("a", "seq -f 'a %g' 3; sleep 900"), ("b", "seq -f 'b %g' 2; sleep 900")],
            )
            .await?;
        } else if deed == Deed::Export {
            runs(self.cluster, &name, &nodes[0], &format!("team/{name}:1")).await?;
        } else if self.runs == 1 {
            // In later runs these pods move between the nodes of earlier runs.
            workload(self.cluster, "web", 2).await?;
        }
        let killed = Arc::new(Notify::new());
        let plan = if point.0 == 0 { Plan::none() } else { kill_at(point, killed.clone())? };
        self.start(plan).await?;
        let spec = match deed {
            Deed::Dumplog => dumplog(self.cluster, &format!("pod/{name}")),
            Deed::Export => export(self.cluster, &name),
            deed => deed.spec(&nodes),
        };
        self.cluster.create_ops(&name, spec.clone()).await?;
        let is_disturbed = AtomicBool::new(false);
        let ended = async |cluster: &TestCluster| {
            let job = cluster.ops().get(&name).await?.data;
            let runs = job.pointer("/status/phase").is_some_and(|phase| phase == "Running");
            if runs && !is_disturbed.swap(true, Ordering::SeqCst) {
                disturb(cluster, deed, (&name, &spec)).await?;
            }
            Ok(job.pointer("/status/finishedAt").is_some() && !is_kept(cluster, &name).await?)
        };
        let over = tokio::select! {
            () = killed.notified() => false,
            ended = patiently("it has ended", async || ended(self.cluster).await) => { ended?; true }
        };
        let writes = self.cluster.running()?.interceptor.count();
        if !over {
            self.cluster.kill_host("host").await?;
            self.start(Plan::none()).await?;
            patiently("it has ended after all", async || ended(self.cluster).await).await?;
        }
        self.judge(&name, &nodes).await?;
        self.cluster.kill_host("host").await?;
        Ok(writes)
    }

    async fn start(&mut self, plan: Plan) -> anyhow::Result<()> {
        let mut host = self.cluster.host_named("host");
        let (plugin, grants) = self.deed.plugin();
        (host.plugins, host.grants) = (vec![plugin], grants.to_owned());
        host.interceptor = Interceptor::new(plan, &["leases", "events"]);
        host.variant.clone_from(&self.variant);
        self.cluster.start(host).await
    }

    async fn judge(&self, name: &str, nodes: &[String; 2]) -> anyhow::Result<()> {
        let job = self.cluster.ops().get(name).await?.data;
        let counts = reboots(self.cluster, &[&nodes[0], &nodes[1]]);
        let phase = job.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default();
        match self.deed {
            Deed::Reboot => ensure!(phase == "Succeeded" && counts == [1, 1], "{counts:?} {job:#}"),
            // A requested reboot cannot be undone, and no second node begins.
            Deed::Stopped => ensure!(phase == "Failed" && counts.iter().sum::<u64>() <= 1, "{counts:?} {job:#}"),
            Deed::Namesake => ensure!(phase == "Failed" && counts == [1, 0], "{counts:?} {job:#}"),
            Deed::Contended => {
                ensure!(phase == "Succeeded" && counts == [1, 1], "{counts:?} {job:#}");
                let decided =
                    |job: &Value| ["TargetsResolved", "Failed"].iter().any(|one| condition(job, one).is_some());
                let other = self.cluster.until_ops(&format!("{name}-too"), "it is decided", decided).await?;
                let breaches = judge(&self.history);
                ensure!(breaches.is_empty(), "{}", breaches.join("\n"));
                ensure!(condition(&other, "Failed").is_some_and(|one| one["reason"] == "TargetBusy"), "{other:#}");
            }
            Deed::Addon => {
                let counts =
                    [0, 1].map(|at: usize| nodes.get(at).map_or(0, |node| self.cluster.world.commands_begun(node)));
                ensure!(phase == "Succeeded" && counts == [2, 2], "{counts:?} {job:#}");
                for node in nodes {
                    ensure!(taints(self.cluster, node).await?.is_empty(), "{node} has its taint");
                }
            }
            Deed::Dumplog => {
                let folder = self.folder.as_deref().context("it keeps files")?;
                let lines = file_of(folder, &job)?;
                let texts: Vec<&str> = lines.iter().filter_map(|line| line.get(31..)).collect();
                let label = format!("{}/{name}", self.cluster.namespace);
                let of = |container: &str, count: usize| {
                    let expected: Vec<String> =
                        (1..=count).map(|n| format!("{label}/{container} {container} {n}")).collect();
                    expected.iter().all(|line| texts.iter().filter(|text| *text == line).count() == 1)
                };
                ensure!(phase == "Succeeded" && texts.len() == 5 && of("a", 3) && of("b", 2), "{lines:#?} {job:#}");
                no_parts(folder).await?;
            }
            Deed::Export => {
                let registry = self.registry.as_ref().context("it has a registry")?;
                let (of, tag) = exported(&job, registry)?;
                ensure!(phase == "Succeeded" && of == format!("custom/team/{name}") && tag.len() == 8, "{job:#}");
            }
            Deed::Preflight => {
                let healthy = output(&job, "result").pointer("/healthy_nodes").cloned();
                ensure!(phase == "Succeeded" && healthy == Some(json!(nodes)), "{job:#}");
            }
        }
        for node in nodes {
            until_free(self.cluster, node, false).await?;
        }
        self.outlives(name, &job).await?;
        end_well(self.cluster, &self.history).await
    }

    /// Deletes a job that has ended, and checks that the history has the same job.
    async fn outlives(&self, name: &str, job: &Value) -> anyhow::Result<()> {
        let Some(rows) = &self.rows else { return Ok(()) };
        self.cluster.ops().delete(name, &DeleteParams::default()).await?;
        patiently("it is gone", async || Ok(self.cluster.ops().get_opt(name).await?.is_none())).await?;
        let gone = rows.job(name).await?.context("it has no row")?;
        ensure!(gone.row.deleted.is_some(), "{gone:#?}");
        for part in ["spec", "status"] {
            ensure!(gone.document.get(part) == job.get(part), "{part}: {:#} is not {job:#}", gone.document);
        }
        Ok(())
    }
}

/// Disturbs the job once a node is in work, if the deed demands it.
async fn disturb(cluster: &TestCluster, deed: Deed, (name, spec): (&str, &Value)) -> anyhow::Result<()> {
    match deed {
        Deed::Reboot | Deed::Preflight | Deed::Addon | Deed::Dumplog | Deed::Export => {}
        Deed::Stopped => cluster.patch_ops(name, json!({"spec": {"stop": true}})).await?,
        Deed::Namesake => {
            let suffix = format!("{name}-b");
            nodes(cluster).delete(&format!("{}-{suffix}", cluster.namespace), &DeleteParams::default()).await?;
            bootable(cluster, &suffix).await?;
        }
        Deed::Contended => drop(cluster.create_ops(&format!("{name}-too"), spec.clone()).await?),
    }
    Ok(())
}

async fn is_kept(cluster: &TestCluster, name: &str) -> anyhow::Result<bool> {
    let finalizers = cluster.ops().get(name).await?.metadata.finalizers.unwrap_or_default();
    Ok(finalizers.iter().any(|name| name == FINALIZER))
}

fn kill_at((at, when): Point, killed: Arc<Notify>) -> anyhow::Result<Plan> {
    let then = Then::Kill(Arc::new(move || killed.notify_one()));
    Plan::new([Fault { at, when, then }])
}
