//! Follows one unit through its attempts. Source: docs/jobflow.md 2.3 to 2.5.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use crate::attempts::build::{Built, Cause, ChildPlace};
use crate::attempts::children::Children;
use crate::attempts::failure::{
    INFRASTRUCTURE, RetryRules, earlier_message, fail, foresee, judge_anew, judge_failure, retry_due,
};
use crate::attempts::name::AttemptOf;
use crate::attempts::parent::Parent;
use crate::attempts::plan::{ChildChange, Create, ParentPlan, PlanMemory};
use crate::attempts::progress::Ended;
use crate::attempts::unit::{JudgedBy, Unit, UnitState};
use crate::attempts::view::{ChildKind, ChildView};
use crate::attempts::waiting::{held, is_stopped_unstarted, waits_for};
use crate::object::fields::text;
use crate::object::memory::memory_of;
use crate::object::time::{after_seconds, write_time};

/// The inputs of a plan that decide how a unit follows its child.
#[derive(Clone, Copy)]
pub struct FollowInput<'a> {
    /// The object of the unit.
    pub parent: &'a Parent,
    /// The children of the object.
    pub children: &'a Children<'a>,
    /// The memory of the object.
    pub memory: &'a PlanMemory,
    /// The rules of the unit's retries.
    pub rules: &'a RetryRules,
    /// Time of the plan.
    pub now: Timestamp,
}

/// The inputs of a plan that decide how a unit starts an attempt.
#[derive(Clone, Copy)]
pub struct StartInput<'a> {
    /// The object of the unit.
    pub parent: &'a Parent,
    /// The memory of the object.
    pub memory: &'a PlanMemory,
    /// Time of the plan.
    pub now: Timestamp,
}

/// Updates a unit from its newest child. Returns true if the unit may start its next attempt now.
pub fn follow(unit: &mut Unit, input: FollowInput<'_>, plan: &mut ParentPlan) -> bool {
    let FollowInput { parent, children, rules, now, .. } = input;
    if unit.unjudged && !rules.unknown {
        judge_anew(unit, rules);
    }
    restore_omitted(unit, parent, children);
    if unit.state.is_terminal() {
        return false;
    }
    let is_retrying = unit.state == UnitState::Retrying;
    let least = unit.attempt.saturating_add(u32::from(is_retrying && unit.has_child()));
    let newest = children.newest(parent, unit, least);
    let child = newest.filter(|newest| !newest.gone || !unit.has_child()).or_else(|| children.of_uid(&unit.job_uid));
    match child {
        old if is_retrying && newest.is_none() => {
            let acts = old.is_some_and(|old| is_still_active(old, now)) || is_blocked_by_old_child(unit, input);
            !acts && retry_due(unit, rules, plan, now)
        }
        Some(child) => {
            follow_child(unit, child, input, plan);
            false
        }
        None => is_free(unit, input, plan),
    }
}

/// Restores a unit that was omitted while its create was unanswered, if the child exists after all.
fn restore_omitted(unit: &mut Unit, parent: &Parent, children: &Children<'_>) {
    let was_omitted = unit.state == UnitState::Omitted && !unit.has_child();
    if was_omitted && children.newest(parent, unit, unit.attempt).is_some_and(|child| !child.gone) {
        unit.set(UnitState::Waiting, "", "");
    }
}

/// Returns true if a unit without a child may get a child. If the unit's child was deleted, the attempt fails.
fn is_free(unit: &mut Unit, input: FollowInput<'_>, plan: &mut ParentPlan) -> bool {
    if let Some(child) = input.children.orphaned(&unit.job_uid) {
        let ((_, kind), ChildView { namespace, name, .. }) = (child.kind.api(), &**child);
        let rest = "is there without its owner reference; put that back, or delete it";
        unit.set(UnitState::Blocked, "NameConflict", &format!("{kind} {namespace}/{name} {rest}"));
        return false;
    }
    if unit.has_child() {
        let gone = deleted(unit, input.now);
        fail(unit, &gone, input, plan, false);
        return false;
    }
    !is_blocked_by_old_child(unit, input)
}

/// Updates a unit from a child that exists or was just deleted.
fn follow_child(unit: &mut Unit, child: &Arc<ChildView>, input: FollowInput<'_>, plan: &mut ParentPlan) {
    let FollowInput { memory, now, .. } = input;
    take(unit, child);
    match child.progress.end(now) {
        Ok(ended) if ended.well => succeed(unit, ended, now),
        Ok(ended) => judge_failure(unit, child, ended, input, plan),
        Err(_) if child.gone => {
            let gone = deleted(unit, now);
            fail(unit, &gone, input, plan, false);
        }
        Err(due) => {
            due.into_iter().for_each(|due| plan.requeue_by(due));
            let foretold = earlier_message(unit).or_else(|| foresee(child, memory, plan));
            go_on(unit, child, input, plan);
            foretold.into_iter().for_each(|told| unit.set(UnitState::Running, INFRASTRUCTURE, &told));
        }
    }
}

/// Returns true if an old child of the unit still runs and blocks the next attempt. An old OperationJob always blocks, because the next one would
/// touch its targets. A leftover Job blocks only if another attempt follows.
fn is_blocked_by_old_child(unit: &Unit, input: FollowInput<'_>) -> bool {
    let FollowInput { parent, children, rules, now, .. } = input;
    let is_operation = |old: &&Arc<ChildView>| old.kind == ChildKind::Operation;
    let leftovers = children.leftovers(parent, unit).filter(|leftover| !rules.given_up || is_operation(leftover));
    children.earlier(parent, unit).filter(is_operation).chain(leftovers).any(|old| is_still_active(old, now))
}

/// Returns true while the API server may still execute the create of an earlier attempt. A new child could then run beside the late child.
fn may_come_late(unit: &Unit, next: u32, input: StartInput<'_>, plan: &mut ParentPlan) -> bool {
    let StartInput { memory, now, .. } = input;
    let late = memory.late_creates.get(&unit.name).filter(|late| late.until > now && late.attempt < next);
    late.into_iter().for_each(|late| plan.requeue_by(late.until));
    late.is_some()
}

/// Returns true if a child that the unit left behind has not ended.
fn is_still_active(child: &ChildView, now: Timestamp) -> bool {
    !child.gone && child.progress.end(now).is_err()
}

fn deleted(unit: &Unit, now: Timestamp) -> Ended {
    let message = format!("{} was deleted before it ended", unit.job);
    Ended { well: false, reason: "JobDeleted".into(), message, at: Some(now) }
}

/// Stores in the unit which child it has.
pub(crate) fn take(unit: &mut Unit, child: &ChildView) {
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

/// Updates a unit from a child that has not ended. Ends the attempt if its time limit is over.
fn go_on(unit: &mut Unit, child: &Arc<ChildView>, input: FollowInput<'_>, plan: &mut ParentPlan) {
    let FollowInput { memory, rules, now, .. } = input;
    if let Some(message) = &child.progress.blocked {
        unit.set(UnitState::Blocked, "OperationNotReady", message);
    } else {
        let state = if child.progress.runs { UnitState::Running } else { UnitState::Pending };
        let waits = waits_for(child, memory, plan, now);
        let told = match (held(child), waits) {
            // If the Job was stopped before it had a pod, the unit keeps the message about its wait until the Job ends.
            _ if is_stopped_unstarted(child) && unit.reason.is_empty() && !unit.message.is_empty() => {
                unit.message.clone()
            }
            (Some(held), _) => held,
            (None, waits) => waits.unwrap_or(&child.progress.message).to_owned(),
        };
        unit.set(state, "", &told);
    }
    let ends_itself = child.kind == ChildKind::Job && !(child.suspended && child.held_by.is_empty());
    let timeout = rules.timeout.filter(|_| !ends_itself);
    let Some(due) = timeout.zip(child.created).map(|(seconds, created)| after_seconds(created, seconds)) else {
        return;
    };
    if due > now {
        return plan.requeue_by(due);
    }
    if child.kind == ChildKind::Job {
        let is_stopped = |change: &ChildChange| change.child().is_some_and(|other| other.uid == child.uid);
        if !plan.changes.iter().any(is_stopped) {
            plan.changes.extend(stop(child));
        }
        return;
    }
    let told = &child.progress.message;
    let gap = if told.is_empty() { "" } else { "; " };
    let message = format!("the operation did not end within {} s{gap}{told}", timeout.unwrap_or(0));
    let ended = Ended { well: false, reason: "DeadlineExceeded".into(), message, at: Some(now) };
    fail(unit, &ended, input, plan, false);
}

/// Starts the next attempt of a unit. Starts nothing if the child cannot be built, its create was refused recently, or an earlier create may still
/// come late.
pub fn start(
    unit: &mut Unit,
    built: Result<Built, Cause>,
    input: StartInput<'_>,
    plan: &mut ParentPlan,
    is_unit: impl Fn(&str) -> bool,
) {
    let StartInput { parent, memory, now } = input;
    let next = unit.attempt.saturating_add(unit.has_child().into());
    if may_come_late(unit, next, input, plan) {
        return;
    }
    if unit.has_child() {
        unit.attempt = next;
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
            return plan.requeue_by(refused.until);
        }
    } else if unit.state == UnitState::Blocked {
        unit.set(UnitState::Waiting, "", "");
    }
    let prefix = parent.name.len() + 1;
    let is_taken = |name: &str| name.get(prefix..).is_some_and(&is_unit);
    let is_indexed = text(&built.spec, "/completionMode") == Some("Indexed");
    let of = AttemptOf { kind: parent.kind.name(), parent: &parent.name, unit: &unit.name, attempt: unit.attempt };
    let name = of.name(is_indexed, is_taken);
    let object = built.object(parent, ChildPlace { name: &name, unit: &unit.name, attempt: unit.attempt });
    plan.bytes = plan.bytes.saturating_add(memory_of(&object));
    let kind = if built.operation { ChildKind::Operation } else { ChildKind::Job };
    let (unit, attempt) = (unit.name.clone(), unit.attempt);
    plan.creates.push(Create { unit, kind, name, attempt, revision, follows: false, object });
}

/// Returns true if the next child of a unit is the first of its attempts that count, and no create of it was refused.
pub fn is_first(unit: &Unit, memory: &PlanMemory) -> bool {
    unit.attempt == unit.counted_from && !memory.refused.contains_key(&unit.name)
}

/// Returns the change that stops a child which is no longer needed.
pub fn stop(child: &Arc<ChildView>) -> Option<ChildChange> {
    let has_ended = child.gone || child.terminating || child.progress.ended.is_some();
    match child.kind {
        _ if has_ended => None,
        // Somebody suspended the Job again after its stop, and may do so each time.
        ChildKind::Job if child.suspended && child.is_idle && child.deadline == Some(1) => {
            Some(ChildChange::Delete(child.clone()))
        }
        // Another controller suspended this Job and would not resume it. A Job that has not started ends only by deletion.
        ChildKind::Job if !child.suspended || child.held_by.is_empty() => {
            let is_stopped = child.deadline == Some(1) && !child.suspended;
            (!is_stopped).then(|| ChildChange::Stop(child.clone()))
        }
        _ => Some(ChildChange::Delete(child.clone())),
    }
}
