//! The stages of an OpsJob, from its first round until it is gone. Source: docs/opsjob.md 4 and 6.
//!
//! Takes the stored and observed state of one time; yields the stage. No field stores the stage. It follows from the finalizers, the targets in the
//! spec, the conditions, and the OperationJob. `plan.rs` has one method for each stage. Only this file reads the conditions and the recorded OperationJob.
//!
//! A plan leads to its own stage again or to a later one. Three other events lead back:
//! - If the host begins to keep a history, each job lacks a finalizer, so it is in [`Stage::Protect`] again.
//! - If the OperationJob is deleted and gone before the status names it, the job is in [`Stage::Create`] again. No target has started.
//! - If somebody pauses the OperationJob, the job is in [`Stage::Begin`] again.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::object::fields::text;
use crate::object::time::{after_seconds, read_time};
use crate::ops_job::names::{ENDED, OPERATION_JOB, RESOLVED, STOPPING};
use crate::ops_job::phases::{OpsStatus, PhaseReason};
use crate::ops_job::spec::{OpsSpec, RuleBroken};
use crate::ops_job::targets::Resolved;
use crate::ops_job::view::{OpsChild, OpsJobView};

/// A stage of a job, in the order of a job's life, with the data that its plan needs.
#[derive(Clone, Debug, PartialEq)]
pub enum Stage<'a> {
    /// The job lacks a finalizer of the host. The plan adds the missing finalizers.
    Protect,
    /// The job has its finalizers, and the spec has no targets. The plan finds the targets and stores them in the spec.
    Find(&'a OpsSpec),
    /// The spec has the targets, and `TargetsResolved` is not True. The plan locks the targets and sets `TargetsResolved` to True.
    Lock(&'a OpsSpec, &'a Resolved),
    /// `TargetsResolved` is not True, and the job is invalid, deleted, stopped or out of time. The plan enters `Failed` for this reason.
    Reject(PhaseReason),
    /// `TargetsResolved` is True, and there is no OperationJob yet. The plan creates the OperationJob, which is paused.
    Create(&'a OpsSpec),
    /// The OperationJob exists, and the status does not name it. The plan names it in the status, so that the host never creates it again.
    Record(&'a OpsChild),
    /// The status names the OperationJob, which is paused. The plan lets the OperationJob start targets.
    Begin(&'a OpsChild),
    /// The OperationJob may start targets. The plan copies its progress and its obstacles.
    Follow(&'a OpsChild),
    /// All targets have ended, and `TargetsEnded` is not set. If the job leaves a file, the plan publishes it. Then the plan stores the outcomes and sets
    /// `TargetsEnded` to True.
    Collect(&'a OpsChild),
    /// Somebody else deletes the OperationJob before the outcomes are stored. The plan waits until the OperationJob is gone.
    Lose(&'a OpsChild),
    /// The job must end by force, and `TargetsEnded` is not set. The plan sets `Stopping` to True and pauses the OperationJob. Then it stores the outcomes
    /// so far and sets `TargetsEnded` to False. After the grace period, the plan enters `Failed`. If all targets have ended before `Stopping` is set, and
    /// their outcomes can be stored at once, the plan stores the outcomes instead.
    Stop(&'a OpsChild, PhaseReason),
    /// The job must end by force, and `TargetsEnded` is False. The plan deletes the OperationJob, which releases its targets. After the grace period, the
    /// plan enters `Failed`.
    Abort(&'a OpsChild, PhaseReason),
    /// `TargetsEnded` is True. The plan deletes the OperationJob, which releases its targets. After the grace period, the plan enters the last phase.
    Release(&'a OpsChild),
    /// `TargetsEnded` is True, and the OperationJob is gone. The plan enters `Succeeded` or `Failed`: the spec says how many failures it tolerates.
    Conclude,
    /// `TargetsResolved` is True, and the job must end without an OperationJob: by force, or because somebody else deleted the OperationJob. The plan
    /// enters `Failed` for this reason.
    Fail(PhaseReason),
    /// The job has ended, and an OperationJob still exists. The plan deletes the OperationJob.
    CleanUp(&'a OpsChild),
    /// The job has ended, and there is no OperationJob. The plan removes the finalizer of the targets. Without it, the host releases the locks.
    Unlock,
    /// The job has ended and holds nothing. The plan deletes the job after its time to live. If the job is being deleted, the plan removes the
    /// finalizer of the history once the history has the job.
    Expire,
}

impl Stage<'_> {
    /// Returns true if the job has its finalizers and has not ended.
    pub const fn is_in_work(&self) -> bool {
        !matches!(self, Self::Protect | Self::CleanUp(_) | Self::Unlock | Self::Expire)
    }

    /// Returns true if the job is in work and `TargetsResolved` is True.
    pub const fn has_locked_targets(&self) -> bool {
        self.is_in_work() && !matches!(self, Self::Find(_) | Self::Lock(..) | Self::Reject(_))
    }
}

/// The stored and observed state that determines the stage of a job.
#[derive(Clone, Copy)]
pub struct StageInputs<'a> {
    /// The job.
    pub job: &'a OpsJobView,
    /// The checked spec, or the rule that it breaks.
    pub spec: Result<&'a OpsSpec, &'a RuleBroken>,
    /// The OperationJob, if it exists.
    pub child: Option<&'a OpsChild>,
    /// True if the host keeps a history.
    pub has_history: bool,
    /// The current time.
    pub now: Timestamp,
}

/// Returns the stage of a job.
pub fn stage(seen: StageInputs<'_>) -> Stage<'_> {
    let StageInputs { job, child, .. } = seen;
    if job.status.has_ended() {
        return match child {
            Some(child) => Stage::CleanUp(child),
            None if job.has_ops_finalizer => Stage::Unlock,
            None => Stage::Expire,
        };
    }
    if !job.deleting && (!job.has_ops_finalizer || seen.lacks_history_finalizer()) {
        return Stage::Protect;
    }
    if !job.status.has_locked_targets() {
        return match (seen.admitted(), &job.targets) {
            (Err(why), _) => Stage::Reject(why),
            (Ok(spec), None) => Stage::Find(spec),
            (Ok(spec), Some(resolved)) => Stage::Lock(spec, resolved),
        };
    }
    // Another OperationJob than the recorded one would repeat the work.
    match child.filter(|child| !job.has_recorded_another(child)) {
        Some(child) => seen.with_child(child),
        None => seen.without_child(),
    }
}

impl<'a> StageInputs<'a> {
    /// Returns true if the history would lose the last state of the job.
    pub fn lacks_history_finalizer(self) -> bool {
        self.has_history && !self.job.has_history_finalizer
    }

    /// Returns the time at which the job times out, unless something else ends it by force now.
    pub fn times_out_at(self) -> Option<Timestamp> {
        self.admitted().ok().and_then(|spec| self.deadline(spec)).map(|(due, _)| due)
    }

    /// Returns the spec of a job that may go on.
    ///
    /// # Errors
    /// If the job must end: its spec is invalid, or it is deleted, stopped or out of time.
    fn admitted(self) -> Result<&'a OpsSpec, PhaseReason> {
        let Self { job, spec, now, .. } = self;
        let spec = spec.map_err(|broken| PhaseReason::new("Invalid", broken.message()))?;
        if job.deleting {
            return Err(PhaseReason::new("Stopped", "the job was deleted, and so it was stopped"));
        }
        if job.stops {
            return Err(PhaseReason::new("Stopped", "the job was stopped"));
        }
        match self.deadline(spec) {
            Some((due, seconds)) if due <= now => {
                Err(PhaseReason::new("Timeout", format!("timed out after {seconds} s")))
            }
            _ => Ok(spec),
        }
    }

    /// Returns the time at which a job with this spec times out, and the seconds from its creation until then.
    fn deadline(self, spec: &OpsSpec) -> Option<(Timestamp, i64)> {
        let (seconds, created) = spec.timeout.zip(self.job.created)?;
        Some((after_seconds(created, seconds), seconds))
    }

    /// Returns the stage of a job with locked targets and this OperationJob.
    fn with_child(self, child: &'a OpsChild) -> Stage<'a> {
        let status = &self.job.status;
        let refused = || child.refused.as_ref().filter(|_| child.began.is_none());
        let forced = status.stopping().or_else(|| self.admitted().err());
        let forced = forced.or_else(|| refused().map(|why| PhaseReason::new("Invalid", why)));
        if status.has_all_outcomes() {
            return Stage::Release(child);
        }
        match forced {
            Some(why) if status.has_outcomes() => Stage::Abort(child, why),
            Some(why) => Stage::Stop(child, why),
            None if child.deleting => Stage::Lose(child),
            None if child.has_ended && !status.has_outcomes() => Stage::Collect(child),
            None if !status.has_recorded(&record_of(self.job, child)) => Stage::Record(child),
            None if child.paused => Stage::Begin(child),
            None => Stage::Follow(child),
        }
    }

    /// Returns the stage of a job with locked targets and without an OperationJob. The OperationJob was not created yet, has done its work, or was lost.
    fn without_child(self) -> Stage<'a> {
        let (job, status) = (self.job, &self.job.status);
        if status.has_recorded_child() && status.has_all_outcomes() {
            return Stage::Conclude;
        }
        match status.stopping().map_or_else(|| self.admitted(), Err) {
            Err(why) => Stage::Fail(why),
            Ok(_) if status.has_recorded_child() => {
                let (namespace, name) = (job.child_namespace(), &job.name);
                let message = format!("OperationJob {namespace}/{name} was deleted by somebody else");
                Stage::Fail(PhaseReason::new("ChildLost", message))
            }
            Ok(spec) => Stage::Create(spec),
        }
    }
}

/// Returns the entry of the status that names this OperationJob.
pub(super) fn record_of(job: &OpsJobView, child: &OpsChild) -> Value {
    json!({"name": job.name, "uid": child.uid})
}

/// The meanings of the conditions and of the recorded OperationJob.
impl OpsStatus {
    /// Returns true if the job has its targets. No other job may work on them.
    pub fn has_locked_targets(&self) -> bool {
        self.is(RESOLVED)
    }

    /// Returns true if the status names an OperationJob. The OperationJob may have started targets.
    pub fn has_recorded_child(&self) -> bool {
        self.other_fields.contains_key(OPERATION_JOB)
    }

    /// Returns true if the status has exactly this entry for its OperationJob.
    fn has_recorded(&self, record: &Value) -> bool {
        self.other_fields.get(OPERATION_JOB) == Some(record)
    }

    /// Returns the UID of the OperationJob that the status names.
    pub fn recorded_uid(&self) -> Option<&str> {
        self.other_fields.get(OPERATION_JOB).and_then(|recorded| text(recorded, "/uid"))
    }

    /// Returns true if the status has the outcomes of the targets, also if some targets had not ended.
    pub fn has_outcomes(&self) -> bool {
        self.has(ENDED)
    }

    /// Returns true if the status has the outcomes of the targets and all targets had ended.
    pub fn has_all_outcomes(&self) -> bool {
        self.is(ENDED)
    }

    /// Returns the reason for which the host ends the job by force, once it is stored.
    pub fn stopping(&self) -> Option<PhaseReason> {
        let condition = self.condition(STOPPING).filter(|one| one.status == "True")?;
        let reason = ["Timeout", "Invalid"].into_iter().find(|reason| condition.reason == *reason).unwrap_or("Stopped");
        Some(PhaseReason::new(reason, condition.message.clone()))
    }

    /// Returns the time since when the host waits for the release of the targets: since all have ended, or since the job ends by force.
    pub fn releases_since(&self) -> Option<Timestamp> {
        let since = self.condition(if self.has_all_outcomes() { ENDED } else { STOPPING })?;
        read_time(Some(since.last_transition_time.as_str()))
    }
}

#[cfg(test)]
#[path = "stage_tests.rs"]
mod tests;
