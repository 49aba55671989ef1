//! One round of an OpsJob: observe, plan, write its status, make the effects.
//!
//! Its status is the claim on its targets and the record of what came of them, so an effect is asked for only once the status says
//! what it rests on. What a term knows of who has which target is read from these statuses when it begins.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use oarlock_artefacts::{Artefacts, FileOwner};
use oarlock_core::cluster::own::TASKS_NAMESPACE;
use oarlock_core::cluster::writes::Stopped;
use oarlock_core::ops_job::events::events;
use oarlock_core::ops_job::holders::Holders;
use oarlock_core::ops_job::outcomes::{JobFile, Outcomes, StoredFile, log_file, report, report_file};
use oarlock_core::ops_job::phases::OpsStatus;
use oarlock_core::ops_job::plan::{
    Attempt, Effect, Found, OpsNeed, OpsObservation, OpsPlan, RESOLVED, RowState, plan, with_refusal,
};
use oarlock_core::ops_job::spec::{OpsSpec, OpsType};
use oarlock_core::ops_job::stored::StoredOps;
use oarlock_core::ops_job::targets::Here;
use oarlock_core::ops_job::verdict::ungranted;
use oarlock_core::ops_job::view::OpsChild;
use oarlock_core::ops_job::workload::name_of;
use oarlock_core::plugin::lookup::PluginLookup;
use oarlock_kube::ReadFailed;
use oarlock_kube::lease::Fence;
use oarlock_kube::ops::{Ops, OpsKey, OpsTap};
use oarlock_wasm::Plugins;
use parking_lot::Mutex;
use tokio::time::{Duration, Instant, sleep};

use crate::history::{Leading, Recorder};
use crate::images::ExportRegistry;
use crate::logs::{FileFailed, LogFileOf, Logs, MadeFile, digest_of};
use crate::manifests::HOST_NAMESPACE;
use crate::metrics::Metrics;
use crate::ports::Ports;
use crate::reconcilers::{NextRound, Reconcile};
use crate::round_trouble::RoundTrouble;
use crate::status_pace::{Pace, Together};

/// Wait before the jobs are read again if that failed at the start of a term.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// Where a host runs.
#[derive(Clone)]
pub struct HostPlace {
    /// The id of its cluster.
    pub cluster: String,
    /// The node of its pod, where it is known.
    pub node: Option<String>,
    /// Where the files of OpsJobs are kept, where it was given one.
    pub artefacts: Option<Artefacts>,
    /// The registry to which they export images, where it was given one.
    pub exports: Option<ExportRegistry>,
    /// What writes the history, where it was given one.
    pub recorder: Option<Recorder>,
}

/// What all rounds of one term share.
pub(crate) struct OpsTerm {
    ops: Ops,
    fence: Fence,
    place: HostPlace,
    metrics: Arc<Metrics>,
    plugins: Plugins,
    logs: Option<Logs>,
    holders: Mutex<Holders>,
    together: Together<OpsKey>,
    /// The history is written as long as it lasts.
    _writes: Option<Leading>,
}

/// What a term remembers of a job between two rounds.
#[derive(Debug, Default)]
pub(crate) struct OpsMemory {
    /// The UID that it is of.
    uid: String,
    pace: Pace,
}

/// What a round sees: a job, its child, and what it looked up.
struct Seen {
    job: Arc<StoredOps>,
    child: Option<Arc<OpsChild>>,
    found: Option<Found>,
    outcomes: Option<Outcomes>,
    file: Option<MadeFile>,
    /// Why no file is begun.
    scarce: Option<String>,
}

/// The namespaces whose pods make no node busy.
pub(crate) const SYSTEM_NAMESPACES: [&str; 3] = ["kube-system", HOST_NAMESPACE, TASKS_NAMESPACE];

/// The id of a cluster that has no other.
pub(crate) const LOCAL_CLUSTER: &str = "local";

impl Default for HostPlace {
    fn default() -> Self {
        Self { cluster: LOCAL_CLUSTER.to_owned(), node: None, artefacts: None, exports: None, recorder: None }
    }
}

impl HostPlace {
    /// Who hears of OpsJobs.
    pub fn tap(&self) -> Arc<dyn OpsTap> {
        match &self.recorder {
            Some(recorder) => Arc::new(recorder.clone()),
            None => Arc::new(()),
        }
    }
}

impl OpsTerm {
    /// The term that `fence` stands for.
    pub(crate) fn begin(ops: Ops, place: HostPlace, fence: Fence, ports: &Ports) -> Self {
        let (metrics, logs) = (ports.metrics.clone(), ports.logs.get().cloned());
        let plugins = ports.plugins.clone();
        let _writes = place.recorder.as_ref().map(|recorder| recorder.lead(ops.clone()));
        Self {
            ops,
            fence,
            place,
            metrics,
            plugins,
            logs,
            holders: Mutex::default(),
            together: Together::default(),
            _writes,
        }
    }
}

impl Reconcile for OpsTerm {
    type Key = OpsKey;
    type Memory = OpsMemory;

    fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    async fn ready(&self) {
        self.ops.synced().await;
        while let Err(failed) = self.ops.read_all().await {
            tracing::warn!(error = failed.message, "failed to list the OpsJobs; trying again");
            sleep(READ_AGAIN).await;
        }
        self.place.recorder.iter().for_each(Recorder::has_seen_all);
        let mut jobs = self.ops.cache().jobs();
        // Of two that say so, the older one has a target.
        jobs.sort_by_cached_key(|job| (job.view.created, job.view.name.clone()));
        let mut holders = self.holders.lock();
        jobs.iter().for_each(|job| job.view.take_held(&mut holders));
    }

    fn all(&self) -> Vec<OpsKey> {
        self.ops.cache().jobs().iter().map(|job| OpsKey::of(job)).collect()
    }

    fn take_changed(&self) -> Vec<OpsKey> {
        self.ops.cache().take_dirty().into_iter().collect()
    }

    async fn changed(&self) {
        self.ops.cache().dirtied().await;
    }

    async fn round(
        &self,
        key: &OpsKey,
        memory: &mut OpsMemory,
        _since: Option<Instant>,
    ) -> Result<NextRound, RoundTrouble> {
        // Another job of this name may be somebody else's.
        let job = self.ops.cache().job(&key.name).filter(|job| OpsKey::of(job) == *key);
        let uid = job.as_ref().map_or("", |job| &job.view.uid);
        if uid != memory.uid || uid.is_empty() {
            self.forget_others(&key.name, uid).await?;
            *memory = OpsMemory::default();
        }
        let Some(job) = job else { return Ok(NextRound::Gone) };
        memory.uid.clone_from(&job.view.uid);
        let mut seen = self.see(job).await.map_err(RoundTrouble::of_read)?;
        let mut plan = self.plan(&seen);
        while let Some(need) = plan.needs {
            if let Err(failed) = self.look_up(need, &mut seen).await {
                // What does not rest on it is done all the same: a stop is not to wait for it.
                if failed.is_refused {
                    let told = plan.status.take().unwrap_or_else(|| seen.job.view.status.clone());
                    plan.status = Some(with_refusal(&told, Attempt::LookUp(need), &failed.message, self.now()));
                }
                self.carry_out(key, &seen, plan, memory).await?;
                return Err(RoundTrouble::of_read(failed));
            }
            plan = self.plan(&seen);
        }
        self.carry_out(key, &seen, plan, memory).await
    }

    fn ended(&self, _key: &OpsKey, _memory: &mut OpsMemory, _took: Duration) {}

    fn is_gone(&self, _key: &OpsKey) {}
}

impl OpsTerm {
    fn now(&self) -> Timestamp {
        self.ops.cluster().clock().now()
    }

    /// Other jobs of this name have nothing any more, once they are known to be gone: for a moment, the API server may not serve their
    /// kind. This term may never have had a round of one.
    async fn forget_others(&self, name: &str, uid: &str) -> Result<(), RoundTrouble> {
        let others = self.holders.lock().others(name, uid);
        for other in others {
            if !self.ops.read_job(name, &other).await.map_err(RoundTrouble::of_read)? {
                self.holders.lock().give_back(&other);
            }
        }
        Ok(())
    }

    /// Sees a job with its child.
    async fn see(&self, job: Arc<StoredOps>) -> Result<Seen, ReadFailed> {
        let (cache, status) = (self.ops.cache(), &job.view.status);
        let mut child = cache.child(&job.view.uid);
        // One that is recorded and not seen may only not be seen yet.
        if child.is_none() && status.rest.contains_key("operationJob") && !status.has_ended() {
            self.ops.read_child(&job).await?;
            child = cache.child(&job.view.uid);
        }
        let begins_file = job.view.kind == Some(OpsType::Dumplog) && !status.is(RESOLVED) && !status.has_ended();
        let scarce = match self.place.artefacts.as_ref().filter(|_| begins_file) {
            Some(artefacts) => artefacts.scarce().await,
            None => None,
        };
        Ok(Seen { job, child, found: None, outcomes: None, file: None, scarce })
    }

    async fn look_up(&self, need: OpsNeed, seen: &mut Seen) -> Result<(), ReadFailed> {
        match need {
            OpsNeed::Targets => seen.found = Some(self.find(&seen.job).await?),
            OpsNeed::Outcomes => {
                let Some(child) = &seen.child else { return Ok(()) };
                seen.outcomes = self.ops.read_outcomes(&seen.job, child).await?;
                // What was read may be newer than what was seen.
                seen.child = self.ops.cache().child(&seen.job.view.uid);
            }
            OpsNeed::File => seen.file = self.make_file(seen).await,
        }
        Ok(())
    }

    /// Makes the file of a job, or has it made.
    async fn make_file(&self, seen: &Seen) -> Option<MadeFile> {
        let job = &seen.job.view;
        if job.kind == Some(OpsType::Dumplog) {
            let spec = seen.job.spec.as_ref().ok()?;
            let file = log_file(name_of(spec.scope.workloads.first()?), &job.uid);
            let (ops, uid) = (self.ops.clone(), job.uid.clone());
            let of = LogFileOf { child: &seen.child.as_ref()?.uid, owner: job.owner(), job: &job.name, file: &file };
            let made = self.logs.as_ref()?.file(&of, self.now(), move || ops.cache().soil(&uid));
            return Some(match made {
                // It is tried again: it is all that the job is for.
                MadeFile::Over(Err(FileFailed::ForNow(why))) => {
                    MadeFile::Underway(format!("failed to store the logs: {why}"))
                }
                made => made,
            });
        }
        let (artefacts, outcomes) = (self.place.artefacts.as_ref()?, seen.outcomes.as_ref()?);
        let (file, report) = (report_file(&job.uid), report(job, outcomes).to_string().into_bytes());
        let size = report.len() as u64;
        let (digest, name) = (digest_of(&job.owner()), job.owner().to_string());
        let owner = FileOwner { digest: &digest, name: &name };
        let made = artefacts.publish_for(owner, (&job.name, &file), report, self.now()).await;
        let made = made.map(|reference| StoredFile { reference, size, lines: 0 });
        Some(MadeFile::Over(made.map_err(FileFailed::from)))
    }

    /// Looks up what the targets of a job are found by, and whether its writer was asked for his rights; once that is known, what an addon
    /// runs.
    async fn find(&self, job: &StoredOps) -> Result<Found, ReadFailed> {
        if job.view.status.is(RESOLVED) {
            let steps = match &job.spec {
                Ok(spec) => self.ops.steps(spec).await?,
                Err(_) => Ok(Vec::new()),
            };
            return Ok(Found { steps, ..Found::default() });
        }
        let gap = self.ops.policy_gap(job.view.created).await?;
        // Of an export, the pod says what is copied, though it is chosen.
        let is_due = |spec: &&OpsSpec| job.view.targets.is_none() || spec.kind == OpsType::Exportimage;
        let Some(spec) = job.spec.as_ref().ok().filter(|_| gap.is_none()).filter(is_due) else {
            return Ok(Found { gap, ..Found::default() });
        };
        // By REST, its workload may have been named by less than its place.
        let chosen = job.view.targets.as_ref().and_then(|resolved| Some((resolved, resolved.namespace.as_ref()?)));
        let chosen = chosen.map(|(resolved, namespace)| {
            let pods = resolved.targets.iter().map(|(pod, _)| format!("{namespace}/pod/{pod}"));
            pods.collect::<Vec<_>>()
        });
        let workloads = chosen.as_ref().unwrap_or(&spec.scope.workloads);
        self.ops.find(spec, workloads, &SYSTEM_NAMESPACES).await
    }

    fn plan(&self, seen: &Seen) -> OpsPlan {
        let Seen { job, child, found, outcomes, file, .. } = seen;
        let ungranted = job.spec.as_ref().ok().and_then(|spec| self.ungranted(spec));
        let observed = OpsObservation {
            job: &job.view,
            spec: job.spec.as_ref(),
            child: child.as_deref(),
            found: found.as_ref(),
            outcomes: outcomes.as_ref(),
            file: match (file, &self.place.artefacts) {
                (_, None) => JobFile::NotKept,
                (None, _) => seen.scarce.as_deref().map_or(JobFile::Due, JobFile::NoRoom),
                (Some(MadeFile::Underway(how)), _) => JobFile::Underway(how),
                (Some(MadeFile::Over(Ok(file))), _) => JobFile::Stored(file),
                (Some(MadeFile::Over(Err(FileFailed::ForNow(why) | FileFailed::NoRoom(why)))), _) => JobFile::Lost(why),
            },
            exports: self.place.exports.as_ref().map(|exports| exports.registry.as_str()),
            ungranted: ungranted.as_deref(),
            recorded: self.place.recorder.as_ref().map_or(RowState::NotKept, |recorder| recorder.recorded(&job.view)),
            here: Here { cluster: &self.place.cluster, node: self.place.node.as_deref() },
            now: self.now(),
        };
        plan(observed, &mut self.holders.lock())
    }

    /// The directory of nodes that the grant of its plugin does not cover, where it asks for one: a policy knows no grants. While no plugin
    /// serves it, nobody knows, and its targets fail.
    fn ungranted(&self, spec: &OpsSpec) -> Option<String> {
        if spec.host_paths().is_empty() {
            return None;
        }
        match self.plugins.find(spec.kind.word(), None) {
            PluginLookup::Serving(plugin) => ungranted(spec, |path| plugin.grant.shows_host_path(path), true, true),
            PluginLookup::NotServing { .. } | PluginLookup::Unknown { .. } => None,
        }
    }

    async fn carry_out(
        &self,
        key: &OpsKey,
        seen: &Seen,
        plan: OpsPlan,
        memory: &mut OpsMemory,
    ) -> Result<NextRound, RoundTrouble> {
        let Seen { job, child, .. } = seen;
        let before = &job.view.status;
        let (mut status, mut trouble) = (plan.status, None);
        for effect in &plan.effects {
            if *effect == Effect::DeleteSelf {
                self.place.recorder.iter().for_each(|recorder| recorder.expires(&job.view.uid));
            }
            match self.ops.make(effect, job, child.as_deref(), &self.fence).await {
                // It made another version of the job, and another round is due.
                Ok(()) if effect.is_on_job() => return Ok(NextRound::After(None)),
                Ok(()) => {}
                Err(stopped) => {
                    if let Stopped::Refused { message } = &stopped {
                        let told = status.take().unwrap_or_else(|| before.clone());
                        status = Some(with_refusal(&told, Attempt::Make(effect), message, self.now()));
                    }
                    trouble = Some(RoundTrouble::of(effect.words(), &stopped));
                    break;
                }
            }
        }
        // What was seen is true whatever became of the effects.
        let due = self.store(key, seen, status, memory).await?;
        if let Some(trouble) = trouble {
            return Err(trouble);
        }
        let now = self.now();
        let wake = plan.wake.map(|due| Duration::try_from(due.duration_since(now)).unwrap_or_default());
        Ok(NextRound::After(wake.into_iter().chain(due).min()))
    }

    /// Writes the status of a job that has not ended, if it differs. Yields when that is due where it has to wait.
    async fn store(
        &self,
        key: &OpsKey,
        seen: &Seen,
        status: Option<OpsStatus>,
        memory: &mut OpsMemory,
    ) -> Result<Option<Duration>, RoundTrouble> {
        let (job, before) = (&seen.job, &seen.job.view.status);
        let changed = status.filter(|_| !before.has_ended()).and_then(|status| status.changed_from(before));
        let Some(status) = changed else { return Ok(None) };
        let can_wait = !status.is_news_to(before);
        let owed = self.ops.cache().meter(|meter, now| meter.status_waits(&job.view.uid, now));
        let owed = owed.filter(|_| !status.has_ended()).map(|wait| Instant::now() + wait);
        let waits = memory.pace.next(false, status.has_ended()).max(owed).filter(|_| can_wait);
        if let Some(due) = waits {
            return Ok(Some(due.saturating_duration_since(Instant::now())));
        }
        let began = Instant::now();
        let written = self.ops.write_status(job, &status.write(), &self.fence).await;
        memory.pace.wrote(key, &self.together, (self.now(), began.elapsed()));
        written.map_err(|stopped| RoundTrouble::of("write the status", &stopped))?;
        let kind = job.spec.as_ref().map_or("", |spec| spec.kind.word());
        self.metrics.ops.reported(kind, before, &status);
        let notes = events(&job.view, &status);
        if !notes.is_empty() {
            self.ops.cluster().emit(notes);
        }
        Ok(None)
    }
}
