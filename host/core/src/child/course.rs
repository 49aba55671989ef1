//! One unit through its attempts: what becomes of it while its child goes on. Source: docs/jobflow.md 2.3 to 2.5.

use std::sync::Arc;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::child::build::{Built, Cause, ChildPlace};
use crate::child::children::Children;
use crate::child::name::child_name;
use crate::child::parent::Parent;
use crate::child::plan::{ChildChange, Create, Memory, ParentPlan};
use crate::child::progress::Ended;
use crate::child::unit::{JudgedBy, Unit, UnitState};
use crate::child::view::{ChildKind, ChildView};
use crate::job::policy::Retry;
use crate::job::time::{after, after_seconds, read_time, write_time};

/// What a failed attempt means for a unit.
#[derive(Clone, Copy, Debug)]
pub struct RetryRules {
    /// After failures of the work itself.
    pub own: Retry,
    /// After failures of the infrastructure.
    pub infra: Retry,
    /// No failure of this unit counts for the others.
    pub tolerated: bool,
    /// No further attempt starts.
    pub given_up: bool,
    /// The spec is refused: what a failure means is judged once it is accepted.
    pub unknown: bool,
    /// Seconds from the creation of an operation to its end by force.
    pub operation_timeout: Option<i64>,
}

/// Brings a unit up to its child. True where its next attempt may be started now.
pub fn follow(
    unit: &mut Unit,
    (parent, children): (&Parent, &Children<'_>),
    memory: &Memory,
    rules: &RetryRules,
    (plan, now): (&mut ParentPlan, Timestamp),
) -> bool {
    if unit.unjudged && !rules.unknown {
        judge_anew(unit, rules);
    }
    let was_omitted = unit.state == UnitState::Omitted && !unit.has_child();
    if was_omitted && children.newest(parent, &unit.name, unit.attempt).is_some_and(|child| !child.gone) {
        // Its create had no answer, and came through.
        unit.set(UnitState::Waiting, "", "");
    }
    if unit.state.is_terminal() {
        return false;
    }
    let least = if unit.state == UnitState::Retrying && unit.has_child() {
        unit.attempt.saturating_add(1)
    } else {
        unit.attempt
    };
    let newest = children.newest(parent, &unit.name, least);
    let child = newest.filter(|newest| !newest.gone || !unit.has_child()).or_else(|| children.of_uid(&unit.job_uid));
    if unit.state == UnitState::Retrying && newest.is_none() {
        // An operation whose time was over is deleted before another one may touch its targets.
        let still_acts = children.of_uid(&unit.job_uid).is_some_and(|old| !old.gone && old.progress.end(now).is_err());
        return !still_acts && retry_due(unit, rules, plan, now);
    }
    let Some(child) = child else {
        if let Some(child) = children.disowned(&unit.job_uid) {
            let ((_, kind), ChildView { namespace, name, .. }) = (child.kind.api(), &**child);
            let rest = "is there without its owner reference; put that back, or delete it";
            unit.set(UnitState::Blocked, "NameConflict", &format!("{kind} {namespace}/{name} {rest}"));
            return false;
        }
        if unit.has_child() {
            let gone = Ended { well: false, reason: "JobDeleted".into(), message: deleted(unit), at: Some(now) };
            fail(unit, &gone, rules, (plan, now), false);
            return false;
        }
        // So is one that a retry by hand left behind.
        let acts =
            |old: &Arc<ChildView>| old.kind == ChildKind::Operation && !old.gone && old.progress.end(now).is_err();
        return !children.earlier(parent, unit).any(acts);
    };
    take(unit, child);
    match child.progress.end(now) {
        Ok(ended) if ended.well => succeed(unit, ended, now),
        Ok(ended) => judge_failure(unit, (child, ended), memory, rules, (plan, now)),
        Err(_) if child.gone => {
            let gone = Ended { well: false, reason: "JobDeleted".into(), message: deleted(unit), at: Some(now) };
            fail(unit, &gone, rules, (plan, now), false);
        }
        Err(due) => {
            due.into_iter().for_each(|due| plan.wake_at(due));
            let foretold = told_before(unit).or_else(|| foresee(child, memory, plan));
            go_on(unit, child, rules, (plan, now));
            foretold.into_iter().for_each(|told| unit.set(UnitState::Running, INFRASTRUCTURE, &told));
        }
    }
    false
}

fn deleted(unit: &Unit) -> String {
    format!("{} was deleted before it ended", unit.job)
}

/// Notes which child a unit has.
pub(super) fn take(unit: &mut Unit, child: &ChildView) {
    if unit.job_uid != child.uid {
        unit.job.clone_from(&child.name);
        unit.job_uid.clone_from(&child.uid);
        unit.attempt = child.attempt;
        unit.completion_time = None;
        unit.start_time = child.created.map(write_time);
        (*child.template).clone_into(&mut unit.template);
        unit.judged_by = JudgedBy::Nothing;
        unit.outdated = false;
    }
    unit.revision.clone_from(&child.revision);
}

fn succeed(unit: &mut Unit, ended: &Ended, now: Timestamp) {
    unit.set(UnitState::Succeed, "", &ended.message);
    unit.completion_time = Some(write_time(ended.at.unwrap_or(now)));
}

/// What a unit says of the infrastructure that is about to fail its attempt. It outlives the pods, and the driver.
fn told_before(unit: &Unit) -> Option<String> {
    (unit.state == UnitState::Running && unit.reason == INFRASTRUCTURE).then(|| unit.message.clone())
}

/// The same of a Job that announced a failure, by its pods; they are listed now if they were not.
fn foresee(child: &Arc<ChildView>, memory: &Memory, plan: &mut ParentPlan) -> Option<String> {
    child.progress.announced.as_ref().filter(|announced| !announced.well)?;
    let Some(report) = memory.pods.get(&child.uid) else {
        plan.early_reads.push(child.clone());
        return None;
    };
    report.is_infrastructure.then(|| report.message.clone())
}

/// A failed Job is judged once its pods were listed.
fn judge_failure(
    unit: &mut Unit,
    (child, ended): (&Arc<ChildView>, &Ended),
    memory: &Memory,
    rules: &RetryRules,
    (plan, now): (&mut ParentPlan, Timestamp),
) {
    if child.kind == ChildKind::Operation || child.gone {
        return fail(unit, ended, rules, (plan, now), false);
    }
    let foretold = told_before(unit);
    let (told, is_infra) = match (memory.pods.get(&child.uid), &foretold) {
        (Some(report), None) => (report.message.as_str(), report.is_infrastructure),
        (_, Some(told)) => (told.as_str(), true),
        (None, None) => {
            unit.set(UnitState::Running, "", "");
            plan.reads.push(child.clone());
            return;
        }
    };
    let told = [told, ended.message.as_str()].into_iter().filter(|part| !part.is_empty());
    let message = told.collect::<Vec<_>>().join("; ");
    fail(unit, &Ended { message, ..ended.clone() }, rules, (plan, now), is_infra)
}

/// A failed attempt: the last one, or one that another follows.
fn fail(unit: &mut Unit, ended: &Ended, rules: &RetryRules, (plan, now): (&mut ParentPlan, Timestamp), is_infra: bool) {
    // A failure cannot lie in the time to come, whatever clock wrote it.
    let since = ended.at.unwrap_or(now).min(now);
    unit.completion_time = Some(write_time(since));
    unit.infra_attempts = unit.infra_attempts.saturating_add(u32::from(is_infra));
    unit.set(UnitState::Retrying, if is_infra { INFRASTRUCTURE } else { &ended.reason }, &ended.message);
    if rules.unknown {
        unit.state = UnitState::Failed;
        unit.unjudged = true;
        return;
    }
    match back_off(unit, rules).filter(|_| !rules.given_up) {
        Some(wait) => plan.wake_at(after(since, wait)),
        None => {
            unit.set(UnitState::Failed, &ended.reason, &ended.message);
            unit.tolerated = rules.tolerated;
        }
    }
}

/// A unit that failed while the spec was refused, by its own rules.
fn judge_anew(unit: &mut Unit, rules: &RetryRules) {
    unit.unjudged = false;
    if back_off(unit, rules).is_some() && !rules.given_up {
        unit.state = UnitState::Retrying;
    } else {
        unit.tolerated = rules.tolerated;
    }
}

/// The wait after the attempt that a unit is at; `None` where it was the last one.
fn back_off(unit: &Unit, rules: &RetryRules) -> Option<SignedDuration> {
    if unit.reason == INFRASTRUCTURE {
        return rules.infra.wait_after(unit.infra_attempts);
    }
    let ended = unit.attempt.saturating_add(1).saturating_sub(unit.counted_from);
    rules.own.wait_after(ended.saturating_sub(unit.infra_attempts))
}

/// The reason of an attempt that failed through the infrastructure.
const INFRASTRUCTURE: &str = "InfrastructureFailure";

/// True once the back-off of a unit is over; the unit is then ready for its next attempt.
fn retry_due(unit: &mut Unit, rules: &RetryRules, plan: &mut ParentPlan, now: Timestamp) -> bool {
    if rules.given_up {
        let (reason, message) = (unit.reason.clone(), unit.message.clone());
        unit.set(UnitState::Failed, &reason, &message);
        unit.tolerated = rules.tolerated;
        return false;
    }
    if !unit.has_child() {
        return true;
    }
    let since = read_time(unit.completion_time.as_deref()).unwrap_or(now);
    // A limit that was lowered meanwhile takes no promised attempt back.
    let due = back_off(unit, rules).map_or(now, |wait| after(since, wait));
    if due > now {
        plan.wake_at(due);
        return false;
    }
    true
}

/// A child that goes on.
fn go_on(unit: &mut Unit, child: &Arc<ChildView>, rules: &RetryRules, (plan, now): (&mut ParentPlan, Timestamp)) {
    if let Some(message) = &child.progress.blocked {
        unit.set(UnitState::Blocked, "OperationNotReady", message);
    } else {
        let state = if child.progress.runs { UnitState::Running } else { UnitState::Pending };
        unit.set(state, "", &child.progress.message);
    }
    let timeout = rules.operation_timeout.filter(|_| child.kind == ChildKind::Operation);
    let Some(due) = timeout.zip(child.created).map(|(seconds, created)| after_seconds(created, seconds)) else {
        return;
    };
    if due > now {
        return plan.wake_at(due);
    }
    let told = &child.progress.message;
    let gap = if told.is_empty() { "" } else { "; " };
    let message = format!("the operation did not end within {} s{gap}{told}", timeout.unwrap_or(0));
    let ended = Ended { well: false, reason: "DeadlineExceeded".into(), message, at: Some(now) };
    fail(unit, &ended, rules, (plan, now), false);
}

/// Starts the next attempt of a unit, unless it cannot be built or was refused lately.
pub fn start(
    unit: &mut Unit,
    built: Result<Built, Cause>,
    (parent, memory): (&Parent, &Memory),
    (plan, now): (&mut ParentPlan, Timestamp),
    is_unit: impl Fn(&str) -> bool,
) {
    if unit.has_child() {
        unit.attempt = unit.attempt.saturating_add(1);
        unit.job.clear();
        unit.job_uid.clear();
        unit.template.clear();
    }
    let built = match built {
        Ok(built) => built,
        Err(refusal) => return unit.set(UnitState::Blocked, &refusal.reason, &refusal.message),
    };
    let revision = format!("{}/{}", built.revision, unit.attempt);
    if let Some(refused) = memory.refused.get(&unit.name) {
        if refused.blocks() {
            unit.set(UnitState::Blocked, &refused.refusal.reason, &refused.refusal.message);
        }
        if refused.revision == revision && refused.until > now {
            return plan.wake_at(refused.until);
        }
    } else if unit.state == UnitState::Blocked {
        unit.set(UnitState::Waiting, "", "");
    }
    let prefix = parent.name.len() + 1;
    let is_taken = |name: &str| name.get(prefix..).is_some_and(&is_unit);
    let name = child_name(parent.kind.name(), &parent.name, &unit.name, unit.attempt, is_taken);
    let object = built.object(parent, ChildPlace { name: &name, unit: &unit.name, attempt: unit.attempt });
    let kind = if built.operation { ChildKind::Operation } else { ChildKind::Job };
    plan.creates.push(Create { unit: unit.name.clone(), kind, name, revision, follows: false, object });
}

/// True where the next child of a unit is the first of its turn, and was not refused before.
pub fn is_first(unit: &Unit, memory: &Memory) -> bool {
    unit.attempt == unit.counted_from && !memory.refused.contains_key(&unit.name)
}

/// The change that stops a child which is not needed any more.
pub fn stop(child: &Arc<ChildView>) -> Option<ChildChange> {
    let has_ended = child.gone || child.terminating || child.progress.ended.is_some();
    match child.kind {
        _ if has_ended => None,
        ChildKind::Job if !child.suspended => (child.deadline != Some(1)).then(|| ChildChange::Stop(child.clone())),
        _ => Some(ChildChange::Delete(child.clone())),
    }
}
