//! The consequences of a failed attempt for its unit. Source: docs/jobflow.md 2.4 and 2.5.

use std::sync::Arc;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::attempts::follow::FollowInput;
use crate::attempts::plan::{ParentPlan, PlanMemory};
use crate::attempts::progress::Ended;
use crate::attempts::unit::{Unit, UnitState};
use crate::attempts::view::{ChildKind, ChildView};
use crate::attempts::waiting::is_stopped_unstarted;
use crate::object::time::{after, read_time, write_time};
use crate::status::policy::Retry;

/// The rules for a unit after a failed attempt.
#[derive(Clone, Copy, Debug)]
pub struct RetryRules {
    /// Retries after failures of the work itself.
    pub own: Retry,
    /// Retries after infrastructure failures.
    pub infra: Retry,
    /// True if a failure of this unit does not count for other units.
    pub tolerated: bool,
    /// True if no further attempt starts.
    pub given_up: bool,
    /// True if the spec is refused. The host judges the failure once it accepts the spec.
    pub unknown: bool,
    /// Time limit of an attempt, in seconds. A running Job ends by itself at that time.
    pub timeout: Option<i64>,
}

/// Returns the unit's message about an infrastructure failure that is about to end its attempt. The message outlives the pods and the host's process.
pub(crate) fn earlier_message(unit: &Unit) -> Option<String> {
    (unit.state == UnitState::Running && unit.reason == INFRASTRUCTURE).then(|| unit.message.clone())
}

/// Returns the message about an announced failure of a Job, if its pods show an infrastructure failure. Asks for a list of the pods if the host has
/// none.
pub(crate) fn foresee(child: &Arc<ChildView>, memory: &PlanMemory, plan: &mut ParentPlan) -> Option<String> {
    child.progress.announced.as_ref().filter(|announced| !announced.well)?;
    let Some(report) = memory.pods.get(&child.uid) else {
        plan.early_reads.push(child.clone());
        return None;
    };
    report.is_infrastructure.then(|| report.message.clone())
}

/// Judges the failure of a child. For a Job, the host first lists its pods.
pub(crate) fn judge_failure(
    unit: &mut Unit,
    child: &Arc<ChildView>,
    ended: &Ended,
    input: FollowInput<'_>,
    plan: &mut ParentPlan,
) {
    let memory = input.memory;
    if child.kind == ChildKind::Operation || child.gone {
        return fail(unit, ended, input, plan, false);
    }
    let foretold = earlier_message(unit);
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
    // If the Job's time is over, the pods that showed what it waited for are gone.
    let waited = memory.wait_checks.get(&child.uid).map(|look| look.message.as_str());
    let held = Some(unit.message.as_str()).filter(|_| is_stopped_unstarted(child));
    let waited = waited.filter(|told| !told.is_empty()).or(held).filter(|_| told.is_empty()).unwrap_or_default();
    let told = [told, waited, ended.message.as_str()].into_iter().filter(|part| !part.is_empty());
    let message = told.collect::<Vec<_>>().join("; ");
    fail(unit, &Ended { message, ..ended.clone() }, input, plan, is_infra)
}

/// Ends the attempt as failed. The unit waits for its next attempt, or the unit fails.
pub(crate) fn fail(unit: &mut Unit, ended: &Ended, input: FollowInput<'_>, plan: &mut ParentPlan, is_infra: bool) {
    let FollowInput { rules, now, .. } = input;
    // A failure cannot be in the future, even if another machine's clock says so.
    let since = ended.at.unwrap_or(now).min(now);
    // A failure that the template's podFailurePolicy calls final stays final.
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
        Some(wait) if !rules.given_up => plan.requeue_by(after(since, wait)),
        more => {
            let message = if more.is_some() { left_out(&ended.message) } else { ended.message.clone() };
            unit.set(UnitState::Failed, &ended.reason, &message);
            unit.tolerated = rules.tolerated;
        }
    }
}

/// Returns the message of a failed attempt whose retries were given up.
fn left_out(message: &str) -> String {
    let gap = if message.is_empty() { "" } else { "; " };
    format!("it is not tried again, because another failed{gap}{message}")
}

/// Judges a unit that failed while the spec was refused, by the rules of its accepted spec.
pub(crate) fn judge_anew(unit: &mut Unit, rules: &RetryRules) {
    unit.unjudged = false;
    if back_off(unit, rules).is_some() && !rules.given_up {
        unit.state = UnitState::Retrying;
    } else {
        unit.tolerated = rules.tolerated;
    }
}

/// Returns the wait after the unit's latest attempt. Returns `None` if that attempt was the last.
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

/// The reason of an attempt that the infrastructure made fail.
pub(crate) const INFRASTRUCTURE: &str = "InfrastructureFailure";

/// Returns true once the backoff of a unit is over and its next attempt may start.
pub(crate) fn retry_due(unit: &mut Unit, rules: &RetryRules, plan: &mut ParentPlan, now: Timestamp) -> bool {
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
    // A lower limit does not withdraw an attempt that the status has promised.
    let due = back_off(unit, rules).map_or(now, |wait| after(since, wait));
    if due > now {
        plan.requeue_by(due);
        return false;
    }
    true
}
