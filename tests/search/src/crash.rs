//! Runs a job on the in-memory API, kills its host at one chosen write, and checks the properties that must hold at the end.
//!
//! Takes a [`Script`]; yields the writes and every property that did not hold. After a kill the cluster goes on as a real
//! cluster does, and another process with the same identity starts. May not help the host.

pub mod flows;

pub mod plan;
pub mod plan_run;
pub mod points;

pub mod schedule;
pub mod script;
pub mod series;
pub mod sweep;

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Context as _;
use http::Method;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DynamicObject;
use oarlock_sim::world::{History, LedgerCheck, Pause, Scope, SetKey, Version, labels};
use oarlock_support::interception::WriteRecord;
use oarlock_wasm::Plugins;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::crash::script::{BARE, NOBODY, Plot, Script};
use crate::crash::series::{HostSeries, SeriesSetup};
use oarlock_scenarios::components::component;
use oarlock_scenarios::jobs::Told;
use oarlock_scenarios::killable_host::Serves;
use oarlock_scenarios::mishap::{Mishap, Wish};
use oarlock_scenarios::mode::Mode;
use oarlock_scenarios::node_targets;
use oarlock_scenarios::oracle;
use oarlock_scenarios::test_cluster::{Backend, TestCluster, published};

/// The name of the job.
pub const JOB: &str = "r";
const SETTLED: Duration = Duration::from_secs(60);
/// The time limit of a job. Every job takes far less, kills included.
const ENDED: Duration = Duration::from_secs(120);
/// The time that each trouble adds to the limit.
const PATIENCE: Duration = Duration::from_secs(30);
/// The time for which the host must write nothing after the job has ended (L2).
const QUIET: Duration = Duration::from_secs(10);
/// The time limit for the last events and releases.
const LAST_WRITES: Duration = Duration::from_secs(5);

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The writes of the host, in order.
    pub writes: Vec<WriteRecord>,
    /// True if the host was killed.
    pub crashed: bool,
    /// The properties that did not hold. Empty if the run is right.
    pub breaches: Vec<String>,
}

/// Returns the plugins of a mode. Each mode's plugins are compiled once for all runs of this process.
///
/// # Errors
/// If a component was not built.
pub fn plugins(mode: Mode) -> anyhow::Result<Plugins> {
    static FOR_PODS: OnceLock<Plugins> = OnceLock::new();
    static FOR_NODES: OnceLock<Plugins> = OnceLock::new();
    let compiled = if mode.is_on_nodes() { &FOR_NODES } else { &FOR_PODS };
    if let Some(plugins) = compiled.get() {
        return Ok(plugins.clone());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    let (names, grants) = mode.plugins();
    let components = names.iter().map(|name| component(name)).collect::<Result<Vec<_>, _>>()?;
    let published = runtime.block_on(published(&components, &grants.join("---\n")))?;
    Ok(compiled.get_or_init(|| published).clone())
}

/// Runs `script` in its own runtime and under paused time, so that no state of one run reaches the next.
///
/// # Errors
/// If the run cannot be set up. Faults of the host are in the outcome, not in the error.
pub fn run(script: Script) -> anyhow::Result<Outcome> {
    let plugins = plugins(script.mode)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.context("no runtime")?.block_on(async { CrashRun::set(script, plugins).await?.play().await })
}

/// A cluster with a workload, a recorder, and a host that can be killed.
pub struct CrashRun {
    script: Script,
    /// The cluster and its simulated controllers.
    pub cluster: TestCluster,
    set: SetKey,
    series: HostSeries,
    wishes: Option<UnboundedReceiver<Wish>>,
    /// The name of the target that was deleted and created again.
    anew: Option<String>,
    /// Names and UIDs of the targets.
    pub targets: Vec<(String, String)>,
}

impl CrashRun {
    /// Sets up the run: the workload is ready and the host runs, but the job does not exist yet.
    ///
    /// # Errors
    /// If the CRDs, workloads or policies cannot be installed.
    pub async fn set(script: Script, plugins: Plugins) -> anyhow::Result<Self> {
        let cluster = TestCluster::sim(script.seed).await?;
        let set = script.mode.plant(&cluster, script.targets).await?;
        cluster.world.settled(&set, SETTLED).await?;
        let targets = script.mode.targets(&cluster).await?;
        let (mishap, wishes) = Mishap::new();
        if script.plot == Plot::NeverServes {
            cluster.world.hold(Pause::Readiness, Scope::World);
        }
        if script.plot.has_a_bare_pod() {
            cluster.seedbed.bare_pod(BARE).await?;
        }
        let Backend::Sim(sim) = &cluster.backend else { anyhow::bail!("these runs are on the in-memory API") };
        let series = HostSeries::begin(SeriesSetup {
            cluster: sim.clone(),
            plugins,
            serves: Serves::Jobs,
            troubles: script.troubles.clone(),
            delays: script.delays,
            fails_over: script.plot == Plot::Failover,
            variant: script.variant.clone(),
            mishap: (script.plot == Plot::Namesake).then_some(mishap),
        })?;
        Ok(Self { script, cluster, set, series, wishes: Some(wishes), anew: None, targets })
    }

    /// Creates the job and waits until the job has ended and nothing changes any more.
    ///
    /// # Errors
    /// If the API server refuses the job, or if no other host can be started.
    pub async fn play(mut self) -> anyhow::Result<Outcome> {
        let plot = self.script.plot;
        let spec = self.script.mode.job(&plot.names(&self.targets), &plot.spec());
        self.cluster.create_job(JOB, spec).await?;
        let mut wishes = self.wishes.take().context("a run is played once")?;
        let (mut crashed, mut deleted) = (false, false);
        let delete_at = if let Plot::Deleted { at } = plot { at } else { u64::MAX };
        let ended = loop {
            let life = self.series.present();
            tokio::select! {
                () = life.over() => {
                    crashed = true;
                    self.series.restart().await?;
                }
                () = self.series.interceptor().reached(delete_at), if !deleted => {
                    deleted = true;
                    self.cluster.delete_job(JOB).await?;
                }
                Some(Wish { pod, done }) = wishes.recv() => {
                    self.cluster.world.recreate_same_name(&self.cluster.namespace, &pod).await?;
                    self.anew = Some(pod);
                    let _killed_meanwhile = done.send(()).is_err();
                }
                ended = self.ended(deleted) => break ended,
            }
        };
        let mut breaches: Vec<String> = ended.err().into_iter().map(|error| format!("{error:#}")).collect();
        breaches.extend(self.judge(deleted).await?);
        let writes = self.series.interceptor().records();
        if self.script.tells {
            tell(&writes, self.cluster.history());
        }
        self.series.kill().await?;
        Ok(Outcome { writes, crashed, breaches })
    }

    /// Waits for L1 and L2: the job ends, and afterwards the host writes only its lease.
    async fn ended(&self, deleted: bool) -> anyhow::Result<()> {
        let over = |job: &Version| if deleted { job.is_end } else { job.at("/status/endTime").is_string() };
        let is_job = |version: &&Version| version.plural == "operationjobs" && version.name == JOB;
        let newest = |versions: &[Version]| versions.iter().rev().find(is_job).is_some_and(over);
        let bound = ENDED + PATIENCE * u32::try_from(self.script.troubles.len()).unwrap_or(0);
        self.cluster.history().until("L1: the job to end", bound, newest).await?;
        let is_of_task = |write: &WriteRecord| ["/pods", "/configmaps"].iter().any(|kind| write.path.ends_with(kind));
        let is_late = |write: &WriteRecord| write.verb == Method::POST && is_of_task(write) && went_astray(write);
        let has_late_object = self.series.acts().iter().any(is_late);
        tokio::time::sleep(LAST_WRITES + self.script.holds_up(has_late_object)).await;
        let before = self.series.acts();
        tokio::time::sleep(QUIET).await;
        let late: Vec<WriteRecord> = self.series.acts().into_iter().skip(before.len()).collect();
        anyhow::ensure!(late.is_empty(), "L2: writes after the end: {late:?}");
        Ok(())
    }

    /// Returns true if all pods serve and the only pods above the replica count belong to abandoned pairs. A CollaSet keeps
    /// both pods of a pair if a job gives up the replacement after the new pod serves. Source: docs/operationjob.md 6.1.7.
    async fn rests_in_pairs(&self) -> anyhow::Result<bool> {
        let pods = self.cluster.pods().list(&kube::api::ListParams::default()).await?.items;
        let says = |pod: &Pod, key: &str| pod.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(key));
        let given_up = [labels::TO_REPLACE, labels::TO_DELETE];
        let rests = |pod: &Pod| says(pod, labels::SERVICE_AVAILABLE) && !given_up.iter().any(|key| says(pod, key));
        let count = |key: &str| pods.iter().filter(|pod| says(pod, key)).count();
        let pairs = count(labels::PAIR_ORIGIN_NAME);
        Ok(pairs == count(labels::PAIR_NEW_ID) && pods.len() == self.script.targets + pairs && pods.iter().all(rests))
    }

    async fn judge(&self, deleted: bool) -> anyhow::Result<Vec<String>> {
        let mut breaches = Vec::new();
        match self.cluster.jobs().get_opt(JOB).await? {
            None if deleted => {}
            Some(job) => breaches.extend(ended_wrong(&job, self.script.plot, self.anew.as_deref())),
            None => breaches.push("the job is gone".to_owned()),
        }
        let broken_off = deleted || self.script.plot == Plot::NeverServes;
        breaches.extend(if self.script.mode.is_on_nodes() {
            node_targets::wrong(&self.cluster, self.script.mode, deleted).await?
        } else {
            self.replaced_wrong(broken_off)
        });
        self.cluster.world.release(Pause::Readiness, Scope::World);
        let settled = self.cluster.world.settled(&self.set, SETTLED).await;
        if !(broken_off && self.rests_in_pairs().await?) {
            breaches.extend(settled.err().map(|error| format!("S1: {error}")));
        }
        let left = self.cluster.leftovers().await?;
        if !left.is_empty() {
            breaches.push(format!("L3: left behind: {left:?}"));
        }
        breaches.extend(evicted_twice(&self.series.interceptor().records()));
        breaches.extend(oracle::judge(self.cluster.history(), &self.cluster.namespace, &oracle::Meddling::default()));
        Ok(breaches)
    }
}

impl CrashRun {
    /// Returns the effects on pods that this plot does not allow.
    fn replaced_wrong(&self, broken_off: bool) -> Vec<String> {
        let verdict = self.cluster.world.ledger().verdict(&self.targets);
        let right = match self.script.plot {
            Plot::DryRun => untouched(&verdict),
            _ if broken_off => harmless(&verdict),
            _ => verdict.is_clean(),
        };
        if right { Vec::new() } else { vec![format!("S1: {verdict}")] }
    }
}

/// Prints everything that happened, for someone who replays a run.
pub(crate) fn tell(writes: &[WriteRecord], history: &History) {
    for WriteRecord { number, verb, path, status, arrived, fault, .. } in writes {
        println!("{arrived:>9.2?} write {number:>3} {verb} {path} {status:?} {}", fault.as_deref().unwrap_or_default());
    }
    for Version { resource_version, plural, name, object, is_end, .. } in history.versions() {
        println!("{resource_version:>5} {plural} {name} {} {object}", if is_end { "is gone" } else { "" });
    }
}

/// Returns the outcomes of an ended job that this plot does not explain. A target that was created again may end as lost.
#[must_use]
pub fn ended_wrong(job: &DynamicObject, plot: Plot, anew: Option<&str>) -> Option<String> {
    let right = |name: &str| match (plot, job.target(name).as_str()) {
        (Plot::NeverServes, end) => end == "Failed/DeadlineExceeded",
        (Plot::Bounded, end) if name == BARE => end == "Failed/NoController" && attempt(job, name) == 2,
        (Plot::DryRun, end) if name == BARE => end == "Failed/NoController" && attempt(job, name) == 1,
        (Plot::DryRun, end) => end == "Succeeded" && plans(job, name),
        (_, "Succeeded") => name != NOBODY,
        (_, "Failed/PodNotFound") => anew == Some(name) || name == NOBODY,
        (_, _) => false,
    };
    let told = job.targets();
    let wrong: Vec<String> =
        told.iter().filter(|(name, _)| !right(name)).map(|(_, target)| target.to_string()).collect();
    let failed = told.keys().any(|name| job.target(name) != "Succeeded");
    let progress = if failed { "Failed" } else { "Succeeded" };
    let ended = job.progress() == progress && wrong.is_empty();
    (!ended).then(|| {
        format!("S3: the job is {:?}, and these targets did not end as they should: {wrong:?}", job.progress())
    })
}

fn plans(job: &DynamicObject, name: &str) -> bool {
    job.targets().get(name).is_some_and(|target| target.pointer("/extraInfo/Plan").is_some())
}

fn attempt(job: &DynamicObject, name: &str) -> i64 {
    job.targets().get(name).and_then(|target| target.get("attempt")?.as_i64()).unwrap_or(1)
}

/// Returns true if a job that was broken off deleted only its targets, each at most once. A new pod that was made for a
/// target may go with the abandoned replacement.
#[must_use]
pub fn harmless(verdict: &LedgerCheck) -> bool {
    let made = |lost: &(String, String)| verdict.targets.iter().any(|target| target.replacements.contains(lost));
    verdict.others_lost.iter().all(made) && verdict.targets.iter().all(|target| target.times_gone <= 1)
}

/// Returns true if no pod was deleted.
#[must_use]
pub fn untouched(verdict: &LedgerCheck) -> bool {
    verdict.others_lost.is_empty() && verdict.targets.iter().all(|target| target.times_gone == 0)
}

/// Checks S1: once the host knows that the API server accepted the eviction of a pod, the host evicts that pod no more. If
/// the host cannot know it, the API server accepts no second eviction. Evictions with dry run do not count.
#[must_use]
pub fn evicted_twice(writes: &[WriteRecord]) -> Vec<String> {
    let (mut told, mut untold) = (BTreeSet::new(), BTreeSet::new());
    let mut breaches = Vec::new();
    for write in writes.iter().filter(|write| write.path.contains("/eviction") && !write.dry_run) {
        let accepted = write.status.is_some_and(|status| status.is_success());
        if told.contains(&write.path) || accepted && untold.contains(&write.path) {
            breaches.push(format!("S1: write {} evicts once more: {}", write.number, write.path));
        }
        if accepted {
            let heard = if went_astray(write) { &mut untold } else { &mut told };
            heard.insert(&write.path);
        }
    }
    breaches
}

/// Returns true if the write arrived after its sender had given up.
fn went_astray(write: &WriteRecord) -> bool {
    write.fault.as_ref().is_some_and(|fault| fault.contains("Late"))
}
