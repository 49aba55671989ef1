//! One round of an OpsJob: observes the job, plans, makes the effects, and writes the status.
//!
//! The status is the claim on the job's targets and the record of their outcomes. So the host makes an effect only
//! after the stored status holds the facts that the effect relies on. A term reads from these statuses, at its start,
//! which job has which target.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use oarlock_artefacts::{FileName, FileOwner};
use oarlock_core::cache::object_cache::CachedObject as _;
use oarlock_core::object::api_object::ObjectKey;
use oarlock_core::ops_job::create_decision::ungranted;
use oarlock_core::ops_job::events::events;
use oarlock_core::ops_job::found::{Found, found_of};
use oarlock_core::ops_job::names::RESOLVED;
use oarlock_core::ops_job::outcomes::{JobFile, Outcomes, StoredFile, log_file, report, report_file};
use oarlock_core::ops_job::phases::OpsStatus;
use oarlock_core::ops_job::plan::{Attempt, Effect, OpsObservation, OpsPlan, OpsRead, RowState, plan, with_refusal};
use oarlock_core::ops_job::spec::{OpsSpec, OpsType};
use oarlock_core::ops_job::stored::StoredOps;
use oarlock_core::ops_job::target_locks::TargetLocks;
use oarlock_core::ops_job::targets::Here;
use oarlock_core::ops_job::view::OpsChild;
use oarlock_core::ops_job::workload::name_of;
use oarlock_core::plugin::lookup::PluginLookup;
use oarlock_core::requests::reads::{Answers, ReadFailed};
use oarlock_core::requests::writes::Stopped;
use oarlock_kube::lease::fence::Fence;
use oarlock_kube::ops::{Ops, shipped_policies};
use oarlock_wasm::Plugins;
use parking_lot::Mutex;
use tokio::time::{Duration, Instant, sleep};

use crate::history::{Leading, Recorder};
use crate::host_place::{HostLocation, SYSTEM_NAMESPACES};
use crate::logs::{FileFailed, LogFileOf, Logs, MadeFile, digest_of};
use crate::metrics::Metrics;
use crate::ports::Ports;
use crate::reconcilers::{NextRound, Reconcile};
use crate::round_trouble::RoundTrouble;
use crate::status_rate_limit::{SharedRateLimit, StatusRateLimit, StatusWrite};

/// The wait before the next attempt to list the jobs, if a list failed at the start of a term.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// The state that all OpsJob rounds of one term share.
pub(crate) struct OpsTerm {
    ops: Ops,
    fence: Fence,
    place: HostLocation,
    metrics: Arc<Metrics>,
    plugins: Plugins,
    logs: Option<Logs>,
    target_locks: Mutex<TargetLocks>,
    shared_limit: SharedRateLimit<ObjectKey>,
    /// Writes the history until the term ends.
    _writes: Option<Leading>,
}

/// The state that a term keeps of a job between two rounds.
#[derive(Debug, Default)]
pub(crate) struct OpsMemory {
    /// The UID of the job.
    uid: String,
    pace: StatusRateLimit,
}

/// The observed state of a round: a job, its child, and the results of its reads.
struct Seen {
    job: Arc<StoredOps>,
    child: Option<Arc<OpsChild>>,
    found: Option<Found>,
    outcomes: Option<Outcomes>,
    file: Option<MadeFile>,
    /// The reason why no file is started.
    scarce: Option<String>,
}

impl OpsTerm {
    /// Begins the term that `fence` guards.
    pub(crate) fn begin(ops: Ops, place: HostLocation, fence: Fence, ports: &Ports) -> Self {
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
            target_locks: Mutex::default(),
            shared_limit: SharedRateLimit::default(),
            _writes,
        }
    }
}

impl Reconcile for OpsTerm {
    type Memory = OpsMemory;

    fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    async fn ready(&self) {
        self.ops.synced().await;
        while let Err(failed) = self.ops.read_all().await {
            tracing::warn!(error = failed.message, "failed to list the OpsJobs; retrying");
            sleep(READ_AGAIN).await;
        }
        self.place.recorder.iter().for_each(Recorder::has_seen_all);
        let mut jobs = self.ops.cache().jobs();
        // If two jobs claim a target, the older job has it.
        jobs.sort_by_cached_key(|job| (job.view.created, job.view.name.clone()));
        let mut target_locks = self.target_locks.lock();
        jobs.iter().for_each(|job| job.view.restore_locks(&mut target_locks));
    }

    /// OpsJobs have no namespace, so the jobs of one requester share their rounds.
    fn share(&self, key: &ObjectKey) -> String {
        self.ops.cache().job(&key.name).map(|job| job.share()).unwrap_or_default()
    }

    fn all(&self) -> Vec<ObjectKey> {
        self.ops.cache().jobs().iter().map(|job| job.key()).collect()
    }

    fn take_changed(&self) -> Vec<ObjectKey> {
        self.ops.cache().take_dirty().into_iter().collect()
    }

    async fn changed(&self) {
        self.ops.cache().until_dirty().await;
    }

    async fn round(
        &self,
        key: &ObjectKey,
        memory: &mut OpsMemory,
        _since: Option<Instant>,
    ) -> Result<NextRound, RoundTrouble> {
        let job = self.ops.certain_job(&key.name).await.map_err(RoundTrouble::of_read)?;
        let uid = job.as_ref().map_or("", |job| &job.view.uid);
        if uid != memory.uid || uid.is_empty() {
            self.forget_others(&key.name, uid).await?;
            *memory = OpsMemory::default();
        }
        let Some(job) = job else { return Ok(NextRound::Gone) };
        memory.uid.clone_from(&job.view.uid);
        let mut seen = self.see(job).await.map_err(RoundTrouble::of_read)?;
        let mut plan = self.plan(&seen);
        while let Some(need) = plan.pending_read {
            if let Err(failed) = self.look_up(need, &mut seen).await {
                // The effects that do not need this read are made anyway, so that a stop does not wait for it.
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

    fn ended(&self, _key: &ObjectKey, _memory: &mut OpsMemory, _took: Duration) {}

    fn is_gone(&self, _key: &ObjectKey) {}
}

impl OpsTerm {
    fn now(&self) -> Timestamp {
        self.ops.cluster().clock().now()
    }

    /// Releases the targets of other jobs of this name, after a live read shows that they are deleted. The watch alone
    /// is not enough, because the API server may not serve the kind for a moment. This term may never have had a round
    /// of such a job.
    async fn forget_others(&self, name: &str, uid: &str) -> Result<(), RoundTrouble> {
        let others = self.target_locks.lock().others(name, uid);
        for other in others {
            if !self.ops.read_job(name, &other).await.map_err(RoundTrouble::of_read)? {
                self.target_locks.lock().release(&other);
            }
        }
        Ok(())
    }

    /// Observes a job with its child.
    async fn see(&self, job: Arc<StoredOps>) -> Result<Seen, ReadFailed> {
        let (cache, status) = (self.ops.cache(), &job.view.status);
        let mut child = cache.child(&job.view.uid);
        // A recorded child without a cache entry may only be late in the cache, so it is read live.
        if child.is_none() && status.other_fields.contains_key("operationJob") && !status.has_ended() {
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

    async fn look_up(&self, need: OpsRead, seen: &mut Seen) -> Result<(), ReadFailed> {
        match need {
            OpsRead::Targets => {
                let find = |answers: &Answers| found_of(&seen.job, shipped_policies(), &SYSTEM_NAMESPACES, answers);
                seen.found = Some(self.ops.cluster().ask(find).await?);
            }
            OpsRead::Outcomes => {
                let Some(child) = &seen.child else { return Ok(()) };
                seen.outcomes = self.ops.read_outcomes(&seen.job, child).await?;
                // The reads may have found a newer child than the cache had before.
                seen.child = self.ops.cache().child(&seen.job.view.uid);
            }
            OpsRead::File => seen.file = self.make_file(seen).await,
        }
        Ok(())
    }

    /// Makes the file of a job, or starts making it.
    async fn make_file(&self, seen: &Seen) -> Option<MadeFile> {
        let job = &seen.job.view;
        if job.kind == Some(OpsType::Dumplog) {
            let spec = seen.job.spec.as_ref().ok()?;
            let file = log_file(name_of(spec.scope.workloads.first()?), &job.uid);
            let (ops, uid) = (self.ops.clone(), job.uid.clone());
            let of = LogFileOf { child: &seen.child.as_ref()?.uid, owner: job.owner(), job: &job.name, file: &file };
            let made = self.logs.as_ref()?.file(&of, self.now(), move || ops.cache().mark_dirty(&uid));
            return Some(match made {
                // The job retries, because this file is its only purpose.
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
        let named = FileName { job: &job.name, file: &file };
        let made = artefacts.publish_for(owner, named, report, self.now()).await;
        let made = made.map(|reference| StoredFile { reference, size, lines: 0 });
        Some(MadeFile::Over(made.map_err(FileFailed::from)))
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
            history_row: self
                .place
                .recorder
                .as_ref()
                .map_or(RowState::NotKept, |recorder| recorder.row_state(&job.view)),
            here: Here { cluster: &self.place.cluster, node: self.place.node.as_deref() },
            now: self.now(),
        };
        plan(observed, &mut self.target_locks.lock())
    }

    /// Returns a directory of the nodes that the job asks for and the plugin's grant does not cover. A policy cannot
    /// check this, because it does not know the grants. While no plugin serves the type, returns `None`, and the job's
    /// targets fail.
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
        key: &ObjectKey,
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
                // The effect made another version of the job, which leads to another round.
                Ok(()) if effect.is_on_job() => return Ok(NextRound::After(None)),
                Ok(()) => {}
                Err(stopped) => {
                    if let Stopped::Refused { message } = &stopped {
                        let told = status.take().unwrap_or_else(|| before.clone());
                        status = Some(with_refusal(&told, Attempt::Make(effect), message, self.now()));
                    }
                    trouble = Some(RoundTrouble::of(effect.describe(), &stopped));
                    break;
                }
            }
        }
        // The observed state is valid even if an effect failed.
        let due = self.store(key, seen, status, memory).await?;
        if let Some(trouble) = trouble {
            return Err(trouble);
        }
        let now = self.now();
        let requeue_at = plan.requeue_at.map(|due| Duration::try_from(due.duration_since(now)).unwrap_or_default());
        Ok(NextRound::After(requeue_at.into_iter().chain(due).min()))
    }

    /// Writes the status of a job that has not ended, if it differs. Returns the wait if the write must wait.
    async fn store(
        &self,
        key: &ObjectKey,
        seen: &Seen,
        status: Option<OpsStatus>,
        memory: &mut OpsMemory,
    ) -> Result<Option<Duration>, RoundTrouble> {
        let (job, before) = (&seen.job, &seen.job.view.status);
        let changed = status.filter(|_| !before.has_ended()).and_then(|status| status.changed_from(before));
        let Some(status) = changed else { return Ok(None) };
        let can_wait = !status.differs_visibly_from(before);
        let owed = self.ops.cache().meter(|meter, now| meter.status_waits(&job.view.uid, now));
        let owed = owed.filter(|_| !status.has_ended()).map(|wait| Instant::now() + wait);
        let waits = memory.pace.next(false, status.has_ended()).max(owed).filter(|_| can_wait);
        if let Some(due) = waits {
            return Ok(Some(due.saturating_duration_since(Instant::now())));
        }
        let began = Instant::now();
        let written = self.ops.write_status(job, &status.write(), &self.fence).await;
        let write = StatusWrite { key, owner: job.view.owner(), ended: self.now(), took: began.elapsed() };
        memory.pace.wrote(write, &self.shared_limit);
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
