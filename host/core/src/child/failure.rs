//! What an attempt that failed means for its unit. Source: docs/jobflow.md 2.4 and 2.5.

use std::sync::Arc;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::child::plan::{Memory, ParentPlan};
use crate::child::progress::Ended;
use crate::child::unit::{Unit, UnitState};
use crate::child::view::{ChildKind, ChildView};
use crate::child::waiting::is_stopped_unstarted;
use crate::job::policy::Retry;
use crate::job::time::{after, read_time, write_time};

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
    /// Seconds that an attempt has. A Job that runs ends by itself then.
    pub timeout: Option<i64>,
}

/// What a unit says of the infrastructure that is about to fail its attempt. It outlives the pods, and the driver.
pub(super) fn told_before(unit: &Unit) -> Option<String> {
    (unit.state == UnitState::Running && unit.reason == INFRASTRUCTURE).then(|| unit.message.clone())
}

/// The same of a Job that announced a failure, by its pods; they are listed now if they were not.
pub(super) fn foresee(child: &Arc<ChildView>, memory: &Memory, plan: &mut ParentPlan) -> Option<String> {
    child.progress.announced.as_ref().filter(|announced| !announced.well)?;
    let Some(report) = memory.pods.get(&child.uid) else {
        plan.early_reads.push(child.clone());
        return None;
    };
    report.is_infrastructure.then(|| report.message.clone())
}

/// A failed Job is judged once its pods were listed.
pub(super) fn judge_failure(
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
            let unread = memory.unread.get(&child.uid).filter(|unread| unread.blocks());
            let waited = if is_stopped_unstarted(child) { unit.message.clone() } else { String::new() };
            unit.set(UnitState::Running, "", unread.map_or(&waited, |unread| &unread.refusal.message));
            plan.reads.push(child.clone());
            return;
        }
    };
    // Of a Job whose time is over, the pods are gone that said what it waited for.
    let waited = memory.looks.get(&child.uid).map(|look| look.told.as_str());
    let held = Some(unit.message.as_str()).filter(|_| is_stopped_unstarted(child));
    let waited = waited.filter(|told| !told.is_empty()).or(held).filter(|_| told.is_empty()).unwrap_or_default();
    let told = [told, waited, ended.message.as_str()].into_iter().filter(|part| !part.is_empty());
    let message = told.collect::<Vec<_>>().join("; ");
    fail(unit, &Ended { message, ..ended.clone() }, rules, (plan, now), is_infra)
}

/// A failed attempt: the last one, or one that another follows.
pub(super) fn fail(
    unit: &mut Unit,
    ended: &Ended,
    rules: &RetryRules,
    (plan, now): (&mut ParentPlan, Timestamp),
    is_infra: bool,
) {
    // A failure cannot lie in the time to come, whatever clock wrote it.
    let since = ended.at.unwrap_or(now).min(now);
    // What the template calls final is that.
    let is_infra = is_infra && ended.reason != POD_FAILURE_POLICY;
    unit.completion_time = Some(write_time(since));
    unit.infra_attempts = unit.infra_attempts.saturating_add(u32::from(is_infra));
    unit.set(UnitState::Retrying, if is_infra { INFRASTRUCTURE } else { &ended.reason }, &ended.message);
    if rules.unknown {
        unit.state = UnitState::Failed;
        unit.unjudged = true;
        return;
    }
    match back_off(unit, rules) {
        Some(wait) if !rules.given_up => plan.wake_at(after(since, wait)),
        more => {
            let message = if more.is_some() { left_out(&ended.message) } else { ended.message.clone() };
            unit.set(UnitState::Failed, &ended.reason, &message);
            unit.tolerated = rules.tolerated;
        }
    }
}

/// Why an attempt failed that others would have followed.
fn left_out(message: &str) -> String {
    let gap = if message.is_empty() { "" } else { "; " };
    format!("it is not tried again, because another failed{gap}{message}")
}

/// A unit that failed while the spec was refused, by its own rules.
pub(super) fn judge_anew(unit: &mut Unit, rules: &RetryRules) {
    unit.unjudged = false;
    if back_off(unit, rules).is_some() && !rules.given_up {
        unit.state = UnitState::Retrying;
    } else {
        unit.tolerated = rules.tolerated;
    }
}

/// The wait after the attempt that a unit is at; `None` where it was the last one.
fn back_off(unit: &Unit, rules: &RetryRules) -> Option<SignedDuration> {
    if unit.reason == POD_FAILURE_POLICY {
        return None;
    }
    if unit.reason == INFRASTRUCTURE {
        return rules.infra.wait_after(unit.infra_attempts);
    }
    let ended = unit.attempt.saturating_add(1).saturating_sub(unit.counted_from);
    rules.own.wait_after(ended.saturating_sub(unit.infra_attempts))
}

/// The reason of a Job that a rule `FailJob` of its podFailurePolicy ended.
const POD_FAILURE_POLICY: &str = "PodFailurePolicy";

/// The reason of an attempt that failed through the infrastructure.
pub(super) const INFRASTRUCTURE: &str = "InfrastructureFailure";

/// True once the back-off of a unit is over; the unit is then ready for its next attempt.
pub(super) fn retry_due(unit: &mut Unit, rules: &RetryRules, plan: &mut ParentPlan, now: Timestamp) -> bool {
    if rules.given_up {
        let (reason, message) = (unit.reason.clone(), left_out(&unit.message));
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
