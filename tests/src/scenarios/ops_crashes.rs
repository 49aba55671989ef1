//! A host that is killed at one of the writes of an OpsJob, and what the next one makes of it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, ensure};
use kube::api::DeleteParams;
use oarlock_bed::faults::{Fault, Plan, Then, When};
use oarlock_bed::interception::Interceptor;
use oarlock_core::ops_job::plan::FINALIZER;
use oarlock_sim::world::History;
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
use crate::rig::{Rig, patiently};
use crate::variants::Variant;

/// What is done in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Two nodes are drained and rebooted, one after the other.
    Reboot,
    /// The same, stopped while the first one is in work.
    Stopped,
    /// Two nodes are checked.
    Preflight,
    /// Two scripts run on two nodes each.
    Addon,
    /// The logs of a pod with two containers are collected.
    Dumplog,
    /// The image of a pod is exported.
    Export,
    /// Two nodes are rebooted, and the second one is made anew under its name before its turn.
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
            // Base64 of `# sim: output a` and of `# sim: output b`.
            let scripts = ["IyBzaW06IG91dHB1dCBh", "IyBzaW06IG91dHB1dCBi"];
            inputs.extend(scripts.map(|script| json!({"name": "script", "value": script})));
            return json!({"type": "addon", "inputs": inputs, "isTolerateAll": true});
        }
        inputs.push(json!({"name": "drain", "value": "true"}));
        json!({"type": "reboot", "inputs": inputs})
    }
}

/// Where a host is killed: at the write of this number, at this moment; nowhere at 0.
pub type Point = (u64, When);

/// A cluster on which runs follow one another.
pub struct CrashGround<'a> {
    rig: &'a mut Rig,
    deed: Deed,
    history: History,
    runs: usize,
    /// Where hosts keep files.
    folder: Option<PathBuf>,
    /// Where they export images to.
    registry: Option<LocalRegistry>,
    /// The rows that they write.
    rows: Option<oarlock_history::History>,
    /// The bug of the hosts, if they have one.
    pub variant: Option<Arc<dyn Variant>>,
}

impl<'a> CrashGround<'a> {
    /// Prepares a cluster for runs of `deed`.
    ///
    /// # Errors
    /// If it cannot be furnished.
    pub async fn begin(rig: &'a mut Rig, deed: Deed) -> anyhow::Result<Self> {
        let history = prepare(rig).await?;
        grant(rig, deed.plugin()).await?;
        let folder = (deed == Deed::Dumplog).then(|| keep_files(rig));
        let registry = (deed == Deed::Export).then(LocalRegistry::start).transpose()?;
        rig.exports = registry.as_ref().map(LocalRegistry::of_host);
        let rows = rig.rows.clone().map(|place| oarlock_history::History::at(place, "local")).transpose()?;
        Ok(Self { rig, deed, history, runs: 0, folder, registry, rows, variant: None })
    }

    /// Runs the deed on new nodes with a host that is killed at `point`, and judges what came of it. Yields the number of writes.
    ///
    /// # Errors
    /// Says what must never happen and did.
    pub async fn run(&mut self, point: Point) -> anyhow::Result<u64> {
        self.runs += 1;
        let (deed, name) = (self.deed, format!("j{}", self.runs));
        let nodes = [bootable(self.rig, &format!("{name}-a")).await?, bootable(self.rig, &format!("{name}-b")).await?];
        if deed == Deed::Dumplog {
            let [node, _] = &nodes;
            talker(self.rig, &name, node, &[("a", "seq -f 'a %g' 3; sleep 900"), ("b", "seq -f 'b %g' 2; sleep 900")])
                .await?;
        } else if deed == Deed::Export {
            runs(self.rig, &name, &nodes[0], &format!("team/{name}:1")).await?;
        } else if self.runs == 1 {
            // Later they go back and forth between the nodes of earlier runs.
            workload(self.rig, "web", 2).await?;
        }
        let killed = Arc::new(Notify::new());
        let plan = if point.0 == 0 { Plan::none() } else { kill_at(point, killed.clone())? };
        self.start(plan).await?;
        let spec = match deed {
            Deed::Dumplog => dumplog(self.rig, &format!("pod/{name}")),
            Deed::Export => export(self.rig, &name),
            deed => deed.spec(&nodes),
        };
        self.rig.create_ops(&name, spec.clone()).await?;
        let is_disturbed = AtomicBool::new(false);
        let ended = async |rig: &Rig| {
            let job = rig.ops().get(&name).await?.data;
            let runs = job.pointer("/status/phase").is_some_and(|phase| phase == "Running");
            if runs && !is_disturbed.swap(true, Ordering::SeqCst) {
                disturb(rig, deed, (&name, &spec)).await?;
            }
            Ok(job.pointer("/status/finishedAt").is_some() && !is_kept(rig, &name).await?)
        };
        let over = tokio::select! {
            () = killed.notified() => false,
            ended = patiently("it has ended", async || ended(self.rig).await) => { ended?; true }
        };
        let writes = self.rig.running()?.wire.count();
        if !over {
            self.rig.kill_host("host").await?;
            self.start(Plan::none()).await?;
            patiently("it has ended after all", async || ended(self.rig).await).await?;
        }
        self.judge(&name, &nodes).await?;
        self.rig.kill_host("host").await?;
        Ok(writes)
    }

    async fn start(&mut self, plan: Plan) -> anyhow::Result<()> {
        let mut host = self.rig.host_named("host");
        let (plugin, grants) = self.deed.plugin();
        (host.plugins, host.grants) = (vec![plugin], grants.to_owned());
        host.wire = Interceptor::new(plan, &["leases", "events"]);
        host.variant.clone_from(&self.variant);
        self.rig.start(host).await
    }

    async fn judge(&self, name: &str, nodes: &[String; 2]) -> anyhow::Result<()> {
        let job = self.rig.ops().get(name).await?.data;
        let counts = reboots(self.rig, &[&nodes[0], &nodes[1]]);
        let phase = job.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default();
        match self.deed {
            Deed::Reboot => ensure!(phase == "Succeeded" && counts == [1, 1], "{counts:?} {job:#}"),
            // A reboot that was asked for is not taken back, and no second node begins.
            Deed::Stopped => ensure!(phase == "Failed" && counts.iter().sum::<u64>() <= 1, "{counts:?} {job:#}"),
            Deed::Namesake => ensure!(phase == "Failed" && counts == [1, 0], "{counts:?} {job:#}"),
            Deed::Contended => {
                ensure!(phase == "Succeeded" && counts == [1, 1], "{counts:?} {job:#}");
                let decided =
                    |job: &Value| ["TargetsResolved", "Failed"].iter().any(|one| condition(job, one).is_some());
                let other = self.rig.until_ops(&format!("{name}-too"), "it is decided", decided).await?;
                let breaches = judge(&self.history);
                ensure!(breaches.is_empty(), "{}", breaches.join("\n"));
                ensure!(condition(&other, "Failed").is_some_and(|one| one["reason"] == "TargetBusy"), "{other:#}");
            }
            Deed::Addon => {
                let counts =
                    [0, 1].map(|at: usize| nodes.get(at).map_or(0, |node| self.rig.world.commands_begun(node)));
                ensure!(phase == "Succeeded" && counts == [2, 2], "{counts:?} {job:#}");
                for node in nodes {
                    ensure!(taints(self.rig, node).await?.is_empty(), "{node} has its taint");
                }
            }
            Deed::Dumplog => {
                let folder = self.folder.as_deref().context("it keeps files")?;
                let lines = file_of(folder, &job)?;
                let texts: Vec<&str> = lines.iter().filter_map(|line| line.get(31..)).collect();
                let label = format!("{}/{name}", self.rig.namespace);
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
            until_free(self.rig, node, false).await?;
        }
        self.outlives(name, &job).await?;
        end_well(self.rig, &self.history).await
    }

    /// Deletes a job that has ended, and looks for it as it was in the history.
    async fn outlives(&self, name: &str, job: &Value) -> anyhow::Result<()> {
        let Some(rows) = &self.rows else { return Ok(()) };
        self.rig.ops().delete(name, &DeleteParams::default()).await?;
        patiently("it is gone", async || Ok(self.rig.ops().get_opt(name).await?.is_none())).await?;
        let gone = rows.job(name).await?.context("it has no row")?;
        ensure!(gone.row.deleted.is_some(), "{gone:#?}");
        for part in ["spec", "status"] {
            ensure!(gone.document.get(part) == job.get(part), "{part}: {:#} is not {job:#}", gone.document);
        }
        Ok(())
    }
}

/// What happens to a job once a node is in work.
async fn disturb(rig: &Rig, deed: Deed, (name, spec): (&str, &Value)) -> anyhow::Result<()> {
    match deed {
        Deed::Reboot | Deed::Preflight | Deed::Addon | Deed::Dumplog | Deed::Export => {}
        Deed::Stopped => rig.patch_ops(name, json!({"spec": {"stop": true}})).await?,
        Deed::Namesake => {
            let suffix = format!("{name}-b");
            nodes(rig).delete(&format!("{}-{suffix}", rig.namespace), &DeleteParams::default()).await?;
            bootable(rig, &suffix).await?;
        }
        Deed::Contended => drop(rig.create_ops(&format!("{name}-too"), spec.clone()).await?),
    }
    Ok(())
}

async fn is_kept(rig: &Rig, name: &str) -> anyhow::Result<bool> {
    let finalizers = rig.ops().get(name).await?.metadata.finalizers.unwrap_or_default();
    Ok(finalizers.iter().any(|name| name == FINALIZER))
}

fn kill_at((at, when): Point, killed: Arc<Notify>) -> anyhow::Result<Plan> {
    let then = Then::Kill(Arc::new(move || killed.notify_one()));
    Plan::new([Fault { at, when, then }])
}
