//! One unit through its attempts: what becomes of it while its child goes on. Source: docs/jobflow.md 2.3 to 2.5.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use crate::child::build::{Built, Cause, ChildPlace};
use crate::child::children::Children;
use crate::child::failure::{
    INFRASTRUCTURE, RetryRules, fail, foresee, judge_anew, judge_failure, retry_due, told_before,
};
use crate::child::fields::text;
use crate::child::name::AttemptOf;
use crate::child::parent::Parent;
use crate::child::plan::{ChildChange, Create, Memory, ParentPlan};
use crate::child::progress::Ended;
use crate::child::unit::{JudgedBy, Unit, UnitState};
use crate::child::view::{ChildKind, ChildView};
use crate::child::waiting::{held, is_stopped_unstarted, waits_for};
use crate::cluster::memory::memory_of;
use crate::job::time::{after_seconds, write_time};

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
    take_back(unit, (parent, children));
    if unit.state.is_terminal() {
        return false;
    }
    let is_retrying = unit.state == UnitState::Retrying;
    let least = unit.attempt.saturating_add(u32::from(is_retrying && unit.has_child()));
    let newest = children.newest(parent, unit, least);
    let child = newest.filter(|newest| !newest.gone || !unit.has_child()).or_else(|| children.of_uid(&unit.job_uid));
    match child {
        old if is_retrying && newest.is_none() => {
            let acts = old.is_some_and(|old| still_acts(old, now)) || acts_beside(unit, (parent, children), rules, now);
            !acts && retry_due(unit, rules, plan, now)
        }
        Some(child) => {
            go_along(unit, child, memory, rules, (plan, now));
            false
        }
        None => is_free(unit, (parent, children), rules, (plan, now)),
    }
}

/// A unit that was left out while its create had no answer, and came through, counts again.
fn take_back(unit: &mut Unit, (parent, children): (&Parent, &Children<'_>)) {
    let was_omitted = unit.state == UnitState::Omitted && !unit.has_child();
    if was_omitted && children.newest(parent, unit, unit.attempt).is_some_and(|child| !child.gone) {
        unit.set(UnitState::Waiting, "", "");
    }
}

/// True where a unit without a child may be given one. One that had a child lost it: that attempt failed.
fn is_free(
    unit: &mut Unit,
    (parent, children): (&Parent, &Children<'_>),
    rules: &RetryRules,
    (plan, now): (&mut ParentPlan, Timestamp),
) -> bool {
    if let Some(child) = children.disowned(&unit.job_uid) {
        let ((_, kind), ChildView { namespace, name, .. }) = (child.kind.api(), &**child);
        let rest = "is there without its owner reference; put that back, or delete it";
        unit.set(UnitState::Blocked, "NameConflict", &format!("{kind} {namespace}/{name} {rest}"));
        return false;
    }
    if unit.has_child() {
        let gone = deleted(unit, now);
        fail(unit, &gone, rules, (plan, now), false);
        return false;
    }
    !acts_beside(unit, (parent, children), rules, now)
}

/// Brings a unit up to a child that is there, or was until now.
fn go_along(
    unit: &mut Unit,
    child: &Arc<ChildView>,
    memory: &Memory,
    rules: &RetryRules,
    (plan, now): (&mut ParentPlan, Timestamp),
) {
    take(unit, child);
    match child.progress.end(now) {
        Ok(ended) if ended.well => succeed(unit, ended, now),
        Ok(ended) => judge_failure(unit, (child, ended), memory, rules, (plan, now)),
        Err(_) if child.gone => {
            let gone = deleted(unit, now);
            fail(unit, &gone, rules, (plan, now), false);
        }
        Err(due) => {
            due.into_iter().for_each(|due| plan.wake_at(due));
            let foretold = told_before(unit).or_else(|| foresee(child, memory, plan));
            go_on(unit, child, memory, rules, (plan, now));
            foretold.into_iter().for_each(|told| unit.set(UnitState::Running, INFRASTRUCTURE, &told));
        }
    }
}

/// Whether something acts that the unit left behind, and that is to be gone first: an operation, whose targets another one
/// would touch, and a stray Job, where another attempt follows.
fn acts_beside(unit: &Unit, (parent, children): (&Parent, &Children<'_>), rules: &RetryRules, now: Timestamp) -> bool {
    let is_operation = |old: &&Arc<ChildView>| old.kind == ChildKind::Operation;
    let strays = children.strays(parent, unit).filter(|stray| !rules.given_up || is_operation(stray));
    children.earlier(parent, unit).filter(is_operation).chain(strays).any(|old| still_acts(old, now))
}

/// Whether a child of an attempt before this one may still come to be: until then another one would run beside it.
fn comes_late((unit, next): (&Unit, u32), memory: &Memory, (plan, now): (&mut ParentPlan, Timestamp)) -> bool {
    let late = memory.late_creates.get(&unit.name).filter(|late| late.until > now && late.attempt < next);
    late.into_iter().for_each(|late| plan.wake_at(late.until));
    late.is_some()
}

/// Whether a child that a unit left behind has not ended.
fn still_acts(child: &ChildView, now: Timestamp) -> bool {
    !child.gone && child.progress.end(now).is_err()
}

fn deleted(unit: &Unit, now: Timestamp) -> Ended {
    let message = format!("{} was deleted before it ended", unit.job);
    Ended { well: false, reason: "JobDeleted".into(), message, at: Some(now) }
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

/// A child that goes on.
fn go_on(
    unit: &mut Unit,
    child: &Arc<ChildView>,
    memory: &Memory,
    rules: &RetryRules,
    (plan, now): (&mut ParentPlan, Timestamp),
) {
    if let Some(message) = &child.progress.blocked {
        unit.set(UnitState::Blocked, "OperationNotReady", message);
    } else {
        let state = if child.progress.runs { UnitState::Running } else { UnitState::Pending };
        let waits = waits_for(child, memory, (plan, now));
        let told = match (held(child), waits) {
            // What it waited for until it was stopped is said at its end.
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
        return plan.wake_at(due);
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
    fail(unit, &ended, rules, (plan, now), false);
}

/// Starts the next attempt of a unit, unless it cannot be built, was refused lately, or a child of one before may come late.
pub fn start(
    unit: &mut Unit,
    built: Result<Built, Cause>,
    (parent, memory): (&Parent, &Memory),
    (plan, now): (&mut ParentPlan, Timestamp),
    is_unit: impl Fn(&str) -> bool,
) {
    let next = unit.attempt.saturating_add(unit.has_child().into());
    if comes_late((unit, next), memory, (plan, now)) {
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
            return plan.wake_at(refused.until);
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

/// True where the next child of a unit is the first of its turn, and was not refused before.
pub fn is_first(unit: &Unit, memory: &Memory) -> bool {
    unit.attempt == unit.counted_from && !memory.refused.contains_key(&unit.name)
}

/// The change that stops a child which is not needed any more.
pub fn stop(child: &Arc<ChildView>) -> Option<ChildChange> {
    let has_ended = child.gone || child.terminating || child.progress.ended.is_some();
    match child.kind {
        _ if has_ended => None,
        // Somebody has suspended it anew after it was stopped, and would do so again.
        ChildKind::Job if child.suspended && child.is_idle && child.deadline == Some(1) => {
            Some(ChildChange::Delete(child.clone()))
        }
        // Whoever else says whether it runs would not start it, and nobody else ends what has not started.
        ChildKind::Job if !child.suspended || child.held_by.is_empty() => {
            let is_stopped = child.deadline == Some(1) && !child.suspended;
            (!is_stopped).then(|| ChildChange::Stop(child.clone()))
        }
        _ => Some(ChildChange::Delete(child.clone())),
    }
}
