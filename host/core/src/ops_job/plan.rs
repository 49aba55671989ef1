//! One reconcile of an OpsJob: the next status and the changes to make. Source: docs/opsjob.md 4 and 6.
//!
//! Takes the stored and observed state of one time; yields a status and effects. Each reconcile requests the same change until the cache shows it. If one
//! reconcile is lost, the next repeats the request. Starts nothing before the stored status has `TargetsResolved`, because this condition locks the
//! targets for the job.

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::kind::locks::{LockChange, TargetLocks};
use crate::object::bound::shown_cause;
use crate::object::time::{after_seconds, earliest};
use crate::ops_job::addon::StepsRefused;
use crate::ops_job::child::child_of;
use crate::ops_job::export::ExportedImage;
use crate::ops_job::found::Found;
use crate::ops_job::messages::{locked_message, skipped_output, unresolved_message};
use crate::ops_job::names::{AVAILABLE, CREATED, ENDED, FINALIZER, HISTORY, OPERATION_JOB, RESOLVED, STOPPING};
use crate::ops_job::outcomes::{JobFile, Outcomes, OutputFacts, explained, outputs};
use crate::ops_job::phases::{OpsStatus, Phase, PhaseReason};
use crate::ops_job::spec::{OpsSpec, OpsType, RuleBroken};
use crate::ops_job::stage::{Stage, StageInputs, record_of, stage};
use crate::ops_job::targets::{Here, Resolved};
use crate::ops_job::view::{OpsChild, OpsJobView, TargetCounts};
use crate::ops_job::workload::missing_message;

/// The condition of a job for whose file the volume had no room.
const FILES: &str = "FilesWritable";
/// The message of a host that collects no logs, because it keeps no files.
pub const NO_FILES: &str =
    "this host keeps no files: an admin has to start it with `--data DIR` or `--artefacts s3://BUCKET`";
/// The message of a host that exports no images, because it has no registry.
pub const NO_REGISTRY: &str =
    "this host has no registry to export to: an admin has to start it with `--export-registry HOST`";
/// The reason for which an OperationJob waits after the host itself paused it.
const PAUSED: &str = "Paused";
/// Seconds that the release of targets may take. After them, the job ends even if targets are still held.
const CANCEL_GRACE: i64 = 120;
/// Seconds between two looks at a file in progress, and before a failed file is made anew.
const FILE_AGAIN: i64 = 10;
/// The most bytes of a job with its targets. etcd takes 1.5 MiB. The rest is for the status and for the managed fields of the API server.
pub(super) const ROOM: usize = 1_056 * 1024;

/// A change to make for a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Adds these finalizers to the job.
    AddFinalizers(Vec<&'static str>),
    /// Stores the targets in the job's spec, with the workspace that they share.
    StoreTargets(Resolved, Option<String>),
    /// Stores a script that the OperationJob names by its digest.
    StoreScript(String),
    /// Creates the OperationJob.
    CreateChild(Value),
    /// Lets the OperationJob start targets, once a live read of the job shows that nobody stopped it.
    UnpauseChild,
    /// Keeps the OperationJob from starting more targets.
    PauseChild,
    /// Deletes the OperationJob, which releases its targets.
    DeleteChild,
    /// Removes this finalizer from the job.
    DropFinalizer(&'static str),
    /// Deletes the job, because its time to live is over.
    DeleteSelf,
}

impl Effect {
    /// Returns the effect in words that follow `failed to`.
    pub const fn describe(&self) -> &'static str {
        match self {
            Self::AddFinalizers(_) => "put the finalizers on the job",
            Self::StoreTargets(..) => "store the targets",
            Self::StoreScript(_) => "store the script",
            Self::CreateChild(_) => "create the OperationJob",
            Self::UnpauseChild => "let the OperationJob begin",
            Self::PauseChild => "pause the OperationJob",
            Self::DeleteChild => "delete the OperationJob",
            Self::DropFinalizer(_) => "take the finalizer off the job",
            Self::DeleteSelf => "delete the job",
        }
    }

    /// Returns true if the effect changes the job itself, not its OperationJob.
    pub const fn is_on_job(&self) -> bool {
        matches!(self, Self::AddFinalizers(_) | Self::StoreTargets(..) | Self::DropFinalizer(_) | Self::DeleteSelf)
    }
}

/// The result of a reconcile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpsPlan {
    /// The status to write. `None` if it is unchanged.
    pub status: Option<OpsStatus>,
    /// The change of the job's locks on targets.
    pub locks: LockChange,
    /// The changes to make now.
    pub effects: Vec<Effect>,
    /// The data that the next reconcile needs. The host reads it and reconciles again.
    pub pending_read: Option<OpsRead>,
    /// The time at which the host must reconcile again, even without an event.
    pub requeue_at: Option<Timestamp>,
}

/// How much of a job the history has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RowState {
    /// The host keeps no history.
    #[default]
    NotKept,
    /// The history lacks something of the job.
    InPart,
    /// The history has everything about the job.
    Whole,
}

/// The data without which a reconcile cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpsRead {
    /// The objects by which the targets are found.
    Targets,
    /// The outcomes of the targets.
    Outcomes,
    /// The job's file, which the host has to publish.
    File,
}

/// The inputs of a reconcile, as of one time.
#[derive(Clone, Copy)]
pub struct OpsObservation<'a> {
    /// The job.
    pub job: &'a OpsJobView,
    /// The checked spec, or the rule that it breaks.
    pub spec: Result<&'a OpsSpec, &'a RuleBroken>,
    /// The OperationJob, if it exists.
    pub child: Option<&'a OpsChild>,
    /// The data for finding the targets, if the host has read it.
    pub found: Option<&'a Found>,
    /// The outcomes of the targets, if the host has read them.
    pub outcomes: Option<&'a Outcomes>,
    /// State of the file that the job leaves.
    pub file: JobFile<'a>,
    /// How much of the job the history has.
    pub history_row: RowState,
    /// The registry to which the host exports images, as `host[:port]`, if there is one.
    pub exports: Option<&'a str>,
    /// The part of the spec that the plugin's grant does not cover.
    pub ungranted: Option<&'a str>,
    /// The cluster of this host, and its node.
    pub here: Here<'a>,
    /// The current time.
    pub now: Timestamp,
}

/// An attempt that the API server may refuse.
#[derive(Clone, Copy, Debug)]
pub enum Attempt<'a> {
    /// The host makes an effect.
    Make(&'a Effect),
    /// The host reads data.
    LookUp(OpsRead),
}

/// Returns the status that reports a refusal of the API server. The host tries again.
pub fn with_refusal(status: &OpsStatus, attempt: Attempt<'_>, message: &str, now: Timestamp) -> OpsStatus {
    let mut told = status.clone();
    let (condition, what) = match attempt {
        // The condition of the targets locks them, so it stays.
        Attempt::LookUp(OpsRead::Targets) if status.has_locked_targets() => (Some(CREATED), "read the scripts"),
        Attempt::LookUp(OpsRead::Targets) => (Some(RESOLVED), "find the targets"),
        Attempt::LookUp(OpsRead::Outcomes) => (None, "read what became of the targets"),
        Attempt::LookUp(OpsRead::File) => (None, "publish the file"),
        Attempt::Make(effect @ Effect::StoreTargets(..)) => (Some(RESOLVED), effect.describe()),
        Attempt::Make(effect @ (Effect::StoreScript(_) | Effect::CreateChild(_))) => (Some(CREATED), effect.describe()),
        Attempt::Make(effect) => (None, effect.describe()),
    };
    if let Some(condition) = condition {
        told.set_condition(condition, false, &PhaseReason::new("Refused", message), now);
    }
    told.other_fields
        .insert("waitingFor".to_owned(), json!([shown_cause(&format!("failed to {what}: {message}"), 256)]));
    told
}

/// Plans the next changes for a job.
pub fn plan(observed: OpsObservation<'_>, target_locks: &TargetLocks) -> OpsPlan {
    let status = observed.job.status.clone();
    let mut planner = OpsPlanner {
        observed,
        status,
        locks: LockChange::Keep,
        effects: Vec::new(),
        pending_read: None,
        requeue_at: None,
    };
    planner.go_on(target_locks);
    if !observed.job.has_ops_finalizer && (observed.job.deleting || planner.status.has_ended()) {
        planner.locks = LockChange::Release;
    }
    let OpsPlanner { status, locks, effects, pending_read, requeue_at, .. } = planner;
    OpsPlan { status: status.changed_from(&observed.job.status), locks, effects, pending_read, requeue_at }
}

struct OpsPlanner<'a> {
    observed: OpsObservation<'a>,
    status: OpsStatus,
    locks: LockChange,
    effects: Vec<Effect>,
    pending_read: Option<OpsRead>,
    requeue_at: Option<Timestamp>,
}

impl<'a> OpsPlanner<'a> {
    /// Plans the stage of the job.
    fn go_on(&mut self, target_locks: &TargetLocks) {
        let OpsObservation { job, spec, child, history_row, now, .. } = self.observed;
        let seen = StageInputs { job, spec, child, has_history: history_row != RowState::NotKept, now };
        let stage = stage(seen);
        if stage.is_in_work() {
            self.enter_pending();
            seen.times_out_at().into_iter().for_each(|due| self.requeue_by(due));
        }
        // A status that another host wrote counts as well.
        if stage.has_locked_targets() && !self.locks_targets(target_locks) {
            return;
        }
        match stage {
            Stage::Protect => self.protect(seen),
            Stage::Find(spec) => self.find(spec),
            Stage::Lock(spec, resolved) => self.lock(spec, resolved, target_locks),
            Stage::Reject(why) | Stage::Fail(why) => self.fail(&why),
            Stage::Create(spec) => self.create(spec),
            Stage::Record(child) | Stage::Follow(child) | Stage::Lose(child) => self.follow(child),
            Stage::Begin(child) => self.begin(child),
            Stage::Collect(child) => self.collect(child),
            Stage::Stop(child, why) => self.stop(child, &why),
            Stage::Abort(child, why) => self.abort(child, &why),
            Stage::Release(child) => self.release(child),
            Stage::Conclude => self.conclude(""),
            Stage::CleanUp(child) => self.delete_child(child),
            Stage::Unlock => self.effects.push(Effect::DropFinalizer(FINALIZER)),
            Stage::Expire => self.expire(),
        }
    }

    fn requeue_by(&mut self, time: Timestamp) {
        self.requeue_at = earliest([self.requeue_at, Some(time)]);
    }

    fn fail(&mut self, why: &PhaseReason) {
        // Targets in flight have no outcome, so they count as failed. If the outcomes are stored already, the stored counts stay.
        let is_told = self.status.has_outcomes();
        if let Some(progress) = self.status.other_fields.get_mut("progress") {
            let mut counts = TargetCounts::read(Some(progress));
            let interrupted = std::mem::take(&mut counts.processing);
            counts.failed += if is_told { 0 } else { interrupted };
            *progress = counts.write();
        }
        let began = self.observed.child.and_then(|child| child.began);
        self.status.enter(Phase::Failed, why, began, self.observed.now);
    }

    /// Enters `Pending`, and gives the job its place among the jobs of the same second.
    fn enter_pending(&mut self) {
        let OpsObservation { job, now, .. } = self.observed;
        self.status.enter(Phase::Pending, &PhaseReason::new("Created", ""), None, now);
        // Creation times have whole seconds. `seq` keeps the order of jobs that were created in the same second.
        self.status.other_fields.entry("seq").or_insert_with(|| json!(job.place_in_second()));
    }

    /// Adds the missing finalizers.
    fn protect(&mut self, seen: StageInputs<'_>) {
        let own = (!seen.job.has_ops_finalizer).then_some(FINALIZER);
        let history = seen.lacks_history_finalizer().then_some(HISTORY);
        self.effects.push(Effect::AddFinalizers(own.into_iter().chain(history).collect()));
    }

    /// Locks the targets. If another job has locked one of them, fails the job and returns false.
    fn locks_targets(&mut self, target_locks: &TargetLocks) -> bool {
        let job = self.observed.job;
        let locks = job.locks();
        if let Err(busy) = target_locks.check(&job.uid, &locks) {
            let targets = job.targets.as_ref().map_or(&[][..], |resolved| &resolved.targets);
            self.fail(&locked_message(&busy, targets));
            return false;
        }
        self.locks = LockChange::Take(locks);
        true
    }

    /// Finds the targets and stores them in the spec.
    fn find(&mut self, spec: &OpsSpec) {
        let Some(found) = self.lookup(spec) else { return };
        if let Some(broken) = spec.refused_anew() {
            return self.fail(&PhaseReason::new("Invalid", broken.message()));
        }
        if let Some(missing) = &found.missing {
            return self.fail(&PhaseReason::new("WorkloadNotFound", missing_message(missing)));
        }
        if let Err(refused) = &found.steps {
            return self.fail(&of_steps(refused));
        }
        let resolved = found.resolve(spec, &spec.filters, self.observed.here);
        match resolved.and_then(|resolved| resolved.within(ROOM.saturating_sub(self.observed.job.bytes))) {
            Ok(resolved) => {
                if let Err(why) = found.exported(spec, &resolved) {
                    return self.fail(&PhaseReason::new("Invalid", format!("spec.inputs: {why}")));
                }
                let shared = found.shared_workspace(&resolved);
                self.effects.push(Effect::StoreTargets(resolved, shared));
            }
            Err(unresolved) => self.fail(&unresolved_message(&unresolved)),
        }
    }

    /// Locks the targets in the spec.
    fn lock(&mut self, spec: &OpsSpec, resolved: &Resolved, target_locks: &TargetLocks) {
        let Some(found) = self.lookup(spec) else { return };
        if !self.locks_targets(target_locks) {
            return;
        }
        match found.exported(spec, resolved) {
            Err(why) => return self.fail(&PhaseReason::new("PodNotFound", why)),
            Ok(Some(exported)) => {
                self.status.other_fields.insert("addedInputs".to_owned(), exported.added_inputs());
                self.status.other_fields.insert("export".to_owned(), exported.status());
            }
            Ok(None) => {}
        }
        let skipped = resolved.skipped.len();
        let rest = if skipped == 0 { String::new() } else { format!(", {skipped} skipped") };
        let count = resolved.targets.len();
        let message = format!("{count} {}{rest}", if count == 1 { "target" } else { "targets" });
        self.status.set_condition(RESOLVED, true, &PhaseReason::new("Resolved", message), self.observed.now);
        self.status.other_fields.insert("outputs".to_owned(), json!(skipped_output(&resolved.skipped)));
        let counts = TargetCounts { total: resolved.targets.len(), ..TargetCounts::default() };
        self.status.other_fields.insert("progress".to_owned(), counts.write());
        self.status.other_fields.remove("waitingFor");
    }

    /// Returns the data by which the targets are found. Returns `None` if the host must read the data first, or if the job waits or fails.
    fn lookup(&mut self, spec: &OpsSpec) -> Option<&'a Found> {
        let OpsObservation { found, file, exports, .. } = self.observed;
        if spec.kind == OpsType::Dumplog && file == JobFile::NotKept {
            self.fail(&PhaseReason::new("NotServed", NO_FILES));
            return None;
        }
        if !self.has_room_for_file(spec) {
            return None;
        }
        if spec.kind == OpsType::Exportimage && exports.is_none() {
            self.fail(&PhaseReason::new("NotServed", NO_REGISTRY));
            return None;
        }
        if self.is_forbidden() {
            return None;
        }
        let Some(found) = found else {
            self.pending_read = Some(OpsRead::Targets);
            return None;
        };
        // Without the policies, anyone could have written the targets.
        if let Some(gap) = &found.gap {
            let message =
                format!("{gap}: ask a cluster admin to apply `oarlock manifests --ops`, then create this job again");
            self.fail(&PhaseReason::new("PolicyMissing", message));
            return None;
        }
        Some(found)
    }

    /// Returns true if the job leaves no file or the volume has room for it. Otherwise the job waits, with a condition.
    fn has_room_for_file(&mut self, spec: &OpsSpec) -> bool {
        let (JobFile::NoRoom(why), OpsType::Dumplog) = (self.observed.file, spec.kind) else {
            self.status.clear_condition(FILES, "HasRoom", self.observed.now);
            return true;
        };
        self.status.set_condition(FILES, false, &PhaseReason::new("VolumeFull", why), self.observed.now);
        self.status.other_fields.insert("waitingFor".to_owned(), json!([shown_cause(why, 256)]));
        self.requeue_by(after_seconds(self.observed.now, FILE_AGAIN));
        false
    }

    /// Returns true if the plugin's grant covers less than the spec asks for, and fails the job. REST answers 403 in this case.
    fn is_forbidden(&mut self) -> bool {
        let Some(ungranted) = self.observed.ungranted else { return false };
        self.fail(&PhaseReason::new("Forbidden", format!("spec.{ungranted}")));
        true
    }

    /// Creates the OperationJob, paused. It keeps the scripts of this moment, even if the templates change later.
    fn create(&mut self, spec: &OpsSpec) {
        // The plugin's grant may have changed since the targets were found.
        if self.is_forbidden() {
            return;
        }
        let steps = match self.observed.found {
            _ if spec.steps.is_empty() => &[][..],
            None => {
                self.pending_read = Some(OpsRead::Targets);
                return;
            }
            Some(Found { steps: Err(refused), .. }) => return self.fail(&of_steps(refused)),
            Some(Found { steps: Ok(steps), .. }) => steps,
        };
        let of_export = match self.export_parameters(spec) {
            Ok(parameters) => parameters,
            Err(why) => return self.fail(&PhaseReason::new("Invalid", why)),
        };
        let scripts = spec.script.iter().chain(steps.iter().map(|step| &step.script));
        self.effects.extend(scripts.cloned().map(Effect::StoreScript));
        self.effects.push(Effect::CreateChild(child_of(self.observed.job, spec, steps, of_export)));
    }

    /// Returns the parameters of an export's OperationJob, from the job's status.
    fn export_parameters(&self, spec: &OpsSpec) -> Result<Map<String, Value>, String> {
        if spec.kind != OpsType::Exportimage {
            return Ok(Map::new());
        }
        let exported = ExportedImage::read(&self.observed.job.status.other_fields).zip(self.observed.job.created);
        let (exported, created) = exported.ok_or_else(|| "its status does not say what is exported".to_owned())?;
        exported.parameters(created, &self.observed.job.uid, self.observed.job.child_namespace())
    }

    /// Names the OperationJob in the status, and copies its start and its progress.
    fn copy_progress(&mut self, child: &OpsChild) {
        let OpsObservation { job, now, .. } = self.observed;
        self.status.other_fields.insert(OPERATION_JOB.to_owned(), record_of(job, child));
        if child.began.is_some() {
            self.status.enter(Phase::Running, &PhaseReason::new("Started", ""), child.began, now);
        }
        // A deletion of the OperationJob ends its targets, so their outcomes say nothing.
        if !child.deleting && !self.status.has_outcomes() {
            self.status.other_fields.insert("progress".to_owned(), child.counts.write());
        }
    }

    /// Copies the obstacles of the OperationJob.
    fn copy_obstacles(&mut self, child: &OpsChild) {
        let now = self.observed.now;
        self.status.clear_condition(CREATED, "Created", now);
        match child.refused.as_ref().or(child.unserved.as_ref()) {
            Some(why) => self.status.set_condition(AVAILABLE, false, &PhaseReason::new("NotServed", why.clone()), now),
            None => self.status.clear_condition(AVAILABLE, "Serving", now),
        }
        let waits: Vec<&String> = match child.has_ended || child.paused {
            true => Vec::new(),
            false => child.waits_for.iter().filter(|word| *word != PAUSED).chain(&child.obstacles).collect(),
        };
        self.status.other_fields.insert("waitingFor".to_owned(), json!(waits));
    }

    /// Copies the state of the OperationJob.
    fn follow(&mut self, child: &OpsChild) {
        self.copy_progress(child);
        self.copy_obstacles(child);
    }

    /// Lets the OperationJob start targets. The stored status names it, so the host never creates it again.
    fn begin(&mut self, child: &OpsChild) {
        self.follow(child);
        self.effects.push(Effect::UnpauseChild);
    }

    /// Stores the outcomes of all targets.
    fn collect(&mut self, child: &OpsChild) {
        self.copy_progress(child);
        self.take_outcomes(true);
    }

    /// Keeps the OperationJob from starting more targets, then stores the outcomes so far.
    fn stop(&mut self, child: &OpsChild, why: &PhaseReason) {
        // If the outcomes of all targets cannot be read, or the file takes long, a stop must not wait for them.
        if child.has_ended && !child.deleting && self.status.stopping().is_none() {
            self.collect(child);
            if self.status.has_outcomes() {
                return;
            }
        }
        self.say_stopping(child, why);
        match (child.deleting, child.paused) {
            (true, _) => {}
            (false, false) => self.effects.push(Effect::PauseChild),
            (false, true) => self.take_outcomes(false),
        }
        self.give_up_waiting(why, child);
    }

    /// Releases the targets of a job that ends by force.
    fn abort(&mut self, child: &OpsChild, why: &PhaseReason) {
        self.say_stopping(child, why);
        match child.paused || child.deleting {
            true => self.delete_child(child),
            false => self.effects.push(Effect::PauseChild),
        }
        self.give_up_waiting(why, child);
    }

    /// Copies the state of the OperationJob, and stores the reason for which the job ends by force.
    fn say_stopping(&mut self, child: &OpsChild, why: &PhaseReason) {
        self.follow(child);
        if self.status.stopping().is_none() {
            self.status.set_condition(STOPPING, true, why, self.observed.now);
        }
    }

    /// Releases the targets of a job whose targets have ended.
    fn release(&mut self, child: &OpsChild) {
        self.follow(child);
        self.delete_child(child);
        if self.has_waited() {
            self.conclude("; the remaining targets are released as soon as possible");
        }
    }

    /// Stores the outcomes of the targets in the status. The host deletes the OperationJob only after that, because it is their only record.
    fn take_outcomes(&mut self, has_ended: bool) {
        let Some(outcomes) = self.observed.outcomes else {
            self.pending_read = Some(OpsRead::Outcomes);
            return;
        };
        let kind = self.observed.spec.ok().map(|spec| spec.kind);
        // If a job is ended by force, its collected logs are not merged into a file.
        let leaves_file = kind == Some(OpsType::Preflight) || kind == Some(OpsType::Dumplog) && has_ended;
        match self.observed.file {
            JobFile::Due if leaves_file => {
                self.pending_read = Some(OpsRead::File);
                return;
            }
            JobFile::Underway(how) if leaves_file => {
                self.status.other_fields.insert("waitingFor".to_owned(), json!([shown_cause(how, 256)]));
                self.requeue_by(after_seconds(self.observed.now, FILE_AGAIN));
                return;
            }
            _ => {}
        }
        let (now, mut counts) = (self.observed.now, outcomes.counts);
        if kind == Some(OpsType::Preflight) && !has_ended {
            // The result of a preflight names every node as failed that no check has found healthy.
            let failed = counts.total.saturating_sub(counts.succeeded);
            counts = TargetCounts { failed, processing: 0, skipped: 0, ..counts };
        }
        self.status.other_fields.insert("progress".to_owned(), counts.write());
        let facts = self.output_facts();
        let mut outputs = self.observed.spec.map_or_else(|_| Vec::new(), |spec| outputs(spec.kind, outcomes, &facts));
        outputs.extend(self.observed.file.outputs(kind).into_iter().filter(|_| leaves_file));
        outputs.extend(skipped_output(self.observed.job.targets.as_ref().map_or(&[], |resolved| &resolved.skipped)));
        self.status.other_fields.insert("outputs".to_owned(), json!(outputs));
        self.status.other_fields.insert("waitingFor".to_owned(), json!([]));
        for (name, reason, message) in explained(&outcomes.targets) {
            self.status.set_target_condition(name, reason, message, now);
        }
        let message = format!("{} of {} succeeded, {} failed", counts.succeeded, counts.total, counts.failed);
        self.status.set_condition(ENDED, has_ended, &PhaseReason::new("OutputsStored", message), now);
        let succeeds = self.observed.spec.is_ok_and(|spec| counts.failed <= spec.tolerated(counts.total));
        if let (JobFile::Lost(why), Some(OpsType::Dumplog), true) = (self.observed.file, kind, leaves_file && succeeds)
        {
            // The file is the whole purpose of a dumplog.
            self.fail(&PhaseReason::new("FileLost", format!("the logs could not be stored: {why}")));
        }
    }

    /// Returns the facts for the outputs that the host itself has decided, in addition to the outcomes.
    fn output_facts(&self) -> OutputFacts {
        let OpsObservation { job, exports, .. } = self.observed;
        let names = ExportedImage::read(&job.status.other_fields)
            .zip(job.created)
            .and_then(|(image, created)| image.names(created, &job.uid, job.child_namespace()).ok())
            .unwrap_or_default();
        let images = |registry: &str| names.iter().map(|name| format!("{registry}/{name}")).collect::<Vec<_>>();
        OutputFacts {
            left_out: job.targets.as_ref().map_or(0, |resolved| resolved.skipped.len()),
            images: exports.map(images).unwrap_or_default(),
        }
    }

    /// Deletes the OperationJob. If the job goes on, the stored status has the outcomes, because nothing else records them.
    fn delete_child(&mut self, child: &OpsChild) {
        if !child.deleting {
            self.effects.push(Effect::DeleteChild);
        }
    }

    /// Returns true if the release of targets has taken longer than the grace period.
    fn has_waited(&mut self) -> bool {
        let due = self.status.releases_since().map(|since| after_seconds(since, CANCEL_GRACE));
        let Some(due) = due else { return false };
        if due > self.observed.now {
            self.requeue_by(due);
        }
        due <= self.observed.now
    }

    /// Fails the job if the release of targets takes too long. The host goes on with the release.
    fn give_up_waiting(&mut self, why: &PhaseReason, child: &OpsChild) {
        if self.has_waited() {
            let held = child.counts.processing;
            let message =
                format!("{}; {held} targets are not released yet, and are released as soon as possible", why.message);
            self.fail(&PhaseReason::new(why.reason, message));
        }
    }

    /// Ends the job, once the outcomes of all targets are stored.
    fn conclude(&mut self, more: &str) {
        let OpsObservation { spec, now, .. } = self.observed;
        let spec = match spec {
            Ok(spec) => spec,
            Err(broken) => return self.fail(&PhaseReason::new("Invalid", broken.message())),
        };
        let TargetCounts { total, succeeded, failed, .. } =
            TargetCounts::read(self.status.other_fields.get("progress"));
        let tolerated = spec.tolerated(total);
        let began = self.status.started;
        if failed > tolerated {
            let message = format!("{failed} of {total} targets failed, and at most {tolerated} may fail{more}");
            self.status.enter(Phase::Failed, &PhaseReason::new("ToleranceExceeded", message), began, now);
        } else {
            let message = format!("{succeeded} of {total} targets succeeded{more}");
            self.status.enter(Phase::Succeeded, &PhaseReason::new("Succeed", message), began, now);
        }
    }

    /// Deletes a job that has ended and holds nothing, once its time to live is over.
    fn expire(&mut self) {
        let OpsObservation { job, now, history_row, .. } = self.observed;
        // Until the history has the whole job, clients can read the job only from this object.
        if job.deleting && job.has_history_finalizer && history_row != RowState::InPart {
            self.effects.push(Effect::DropFinalizer(HISTORY));
        }
        let due = job.ttl.zip(self.status.finished).map(|(seconds, finished)| after_seconds(finished, seconds));
        match due.filter(|_| !job.deleting) {
            // A job that ended before the host had a history does not wait for the history.
            Some(due) if due <= now && !job.has_history_finalizer && history_row == RowState::InPart => {}
            Some(due) if due <= now => self.effects.push(Effect::DeleteSelf),
            Some(due) => self.requeue_by(due),
            None => {}
        }
    }
}

/// Returns the reason why an addon cannot run its sources.
fn of_steps(refused: &StepsRefused) -> PhaseReason {
    let reason = if matches!(refused, StepsRefused::NotFound(..)) { "TemplateNotFound" } else { "Invalid" };
    PhaseReason::new(reason, refused.describe())
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
