//! Parts of a plan that JobFlow and DaemonJob share: carrying out a retry by hand, and the steps after the end is durable.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use crate::attempts::build::Cause;
use crate::attempts::children::Children;
use crate::attempts::failure::RetryRules;
use crate::attempts::follow::{FollowInput, follow, stop};
use crate::attempts::header::Header;
use crate::attempts::imported::import;
use crate::attempts::owner_summary::{PlanResults, TERMINATING, conclude};
use crate::attempts::parent::{Parent, ParentKind};
use crate::attempts::plan::{ChildChange, Observation, ParentPlan};
use crate::attempts::settings::{Cleanup, FailurePolicyType, KeptJobs, cleanup, failure_policy, retry_by_hand};
use crate::attempts::unit::{Unit, UnitState};
use crate::attempts::view::{ChildKind, ChildView};
use crate::object::bound::shown;
use crate::object::canonical::digest;
use crate::object::fields::{at, text};
use crate::object::time::after_seconds;
use crate::status::policy::Retry;

/// The reason of a unit that the timeout of its flow ended.
pub const FLOW_TIMEOUT: &str = "FlowTimeout";
/// The reason of an omitted step: a step that it depends on did not succeed.
pub const DEPENDENCY_NOT_MET: &str = "DependencyNotMet";
/// The reason of an omitted step: another step failed.
pub const FLOW_FAILED: &str = "FlowFailed";
/// The reason of an omitted step: the failure or success that it waits for did not happen.
pub const NOT_NEEDED: &str = "NotNeeded";
/// The reason of an omitted step: an earlier step failed, and another branch made up for the failure.
pub const FAILURE_HANDLED: &str = "FailureHandled";
/// Attempts before the latest attempt whose children the host keeps. An event was sent for each of them when it failed.
const KEPT_ATTEMPTS: u32 = 3;
/// The longest value of the annotation that the status keeps in full. The status keeps a longer value as token and digest.
const TOKEN_BYTES: usize = 128;

/// Returns the value of the retry annotation if the host has not carried it out yet.
pub fn new_retry<'a>(parent: &'a Parent, header: &Header) -> Option<&'a str> {
    let value = parent.retry.as_deref()?;
    (header.retry_token.as_deref() != Some(&kept_token(value))).then_some(value)
}

/// Returns the form of the value that the status keeps. For a long value that names many units, its token stays, so that its author recognises it.
fn kept_token(value: &str) -> String {
    if value.len() <= TOKEN_BYTES {
        return value.to_owned();
    }
    let (token, _) = retry_by_hand(value);
    format!("{}#{}", shown(token, TOKEN_BYTES / 2), digest(value.as_bytes(), 16))
}

/// Carries out a retry by hand: failed and omitted units start over. `value` may name the units; if it names none, it means all.
pub fn retry_now(parent: &Parent, value: &str, units: &mut [Unit], plan: &mut ParentPlan) {
    let (_, named) = retry_by_hand(value);
    let meant: HashSet<&str> = named.iter().copied().collect();
    let is_meant = |unit: &Unit| meant.is_empty() || meant.contains(unit.name.as_str());
    let timed_out = units.iter().any(|unit| unit.reason == FLOW_TIMEOUT);
    let mut starts = false;
    for unit in units.iter_mut().filter(|unit| is_meant(unit)) {
        if matches!(unit.state, UnitState::Failed | UnitState::Omitted) {
            unit.start_over();
            starts = true;
        }
    }
    // The failures that stay would stop the named units, or would keep a paused object paused. So these failures are passed over.
    let resumes = starts || pauses(parent) && units.iter().any(is_meant);
    let failed = units.iter_mut().filter(|unit| resumes && unit.state == UnitState::Failed);
    failed.for_each(|unit| unit.passed_over = true);
    if resumes {
        judge_omitted_anew(units);
    }
    let known: HashSet<&str> = units.iter().map(|unit| unit.name.as_str()).collect();
    for name in named.iter().filter(|name| !known.contains(**name)).take(10) {
        plan.ignored.push(format!("the annotation oarlock.dev/retry names {name:?}, which is no unit of this object"));
    }
    plan.header.retry_token = Some(kept_token(value));
    plan.header.imported_generation = None;
    if starts && (plan.header.completion_time.take().is_some() || timed_out) {
        // The time limits start anew.
        plan.header.start_time = None;
        plan.header.suspended_seconds = 0;
        plan.header.suspended_since = None;
    }
}

/// Returns true if a failure pauses the object.
fn pauses(parent: &Parent) -> bool {
    let holder = match parent.kind {
        ParentKind::Flow => Some(&parent.spec),
        ParentKind::Daemon => at(&parent.spec, "/rollout"),
    };
    holder.is_some_and(|holder| matches!(failure_policy(holder, ""), Ok(FailurePolicyType::Pause)))
}

/// Starts over the steps that other steps kept from running, after a retry by hand. If something still keeps such a step from running, the plan omits
/// the step again.
fn judge_omitted_anew(units: &mut [Unit]) {
    let fails = units.iter().any(Unit::has_failed);
    let may_follow = |reason: &str| match reason {
        DEPENDENCY_NOT_MET | NOT_NEEDED | FAILURE_HANDLED => true,
        FLOW_FAILED | FLOW_TIMEOUT => !fails,
        _ => false,
    };
    let omitted = units.iter_mut().filter(|unit| unit.state == UnitState::Omitted && may_follow(&unit.reason));
    omitted.for_each(Unit::start_over);
}

/// Returns the command with which a user retries the failed units.
pub fn retry_command(parent: &Parent) -> String {
    let short = if parent.kind == ParentKind::Flow { "jf" } else { "dj" };
    format!("oarlock retry {short}/{} -n {}", parent.name, parent.namespace)
}

/// Plans an object whose spec is refused. Running children end and the host records their outcome. Nothing new starts.
pub fn plan_invalid(
    observed: Observation<'_>,
    mut units: Vec<Unit>,
    mut plan: ParentPlan,
    invalid: Cause,
    now: Timestamp,
) -> ParentPlan {
    let Observation { parent, memory, .. } = observed;
    let children = Children::of(parent, observed.children);
    let rules = RetryRules {
        own: Retry::default(),
        infra: Retry::default(),
        tolerated: false,
        given_up: false,
        unknown: true,
        timeout: None,
    };
    import(parent, &children, &mut units, &mut plan.header);
    if let Some(token) = new_retry(parent, &memory.header) {
        retry_now(parent, token, &mut units, &mut plan);
    }
    // This includes units whose child was created just before the edit.
    for unit in &mut units {
        follow(unit, FollowInput { parent, children: &children, memory, rules: &rules, now }, &mut plan);
    }
    plan.units = Arc::new(units);
    // An object that the original operator had ended keeps its state, even if its spec breaks a rule.
    let kept_state = plan.header.imported_generation.map(|_| plan.header.state.clone());
    let found = PlanResults { invalid: Some(invalid), kept_state, ..PlanResults::of(memory) };
    plan.summary = conclude(parent, &plan.units, &plan.header, &found, now);
    complete(&mut plan, now);
    let cleanup = cleanup_of_refused(parent, &plan.units, &plan.header);
    finalize(observed, &children, cleanup, &mut plan, now);
    plan
}

/// Returns the readable part of the clean-up settings in a refused spec. The time to live of the object counts only if no unit could go on after the
/// user mends the spec.
fn cleanup_of_refused(parent: &Parent, units: &[Unit], header: &Header) -> Cleanup {
    let asked = cleanup(&parent.spec).unwrap_or_default();
    let has_ended = |unit: &Unit| unit.state.is_terminal() && !unit.unjudged;
    let is_over = !runs_more(parent, units, header) && !units.is_empty() && units.iter().all(has_ended);
    Cleanup { ttl: asked.ttl.filter(|_| is_over), ..asked }
}

/// Returns true if a refused spec may have work that no unit stands for.
fn runs_more(parent: &Parent, units: &[Unit], header: &Header) -> bool {
    match parent.kind {
        ParentKind::Flow => {
            let known: HashSet<&str> = units.iter().map(|unit| unit.name.as_str()).collect();
            parent.step_names().any(|name| name.is_none_or(|name| !known.contains(name)))
        }
        ParentKind::Daemon => {
            let runs_new = text(&parent.spec, "/rollout/newNodePolicy") == Some("Run");
            runs_new || header.set_generation != Some(parent.generation)
        }
    }
}

/// Notes the time at which nothing was active any more. Clears the time if something is active again. A deletion does not change it.
pub fn complete(plan: &mut ParentPlan, now: Timestamp) {
    if plan.summary.has_completed && plan.reads.is_empty() {
        plan.header.completion_time.get_or_insert(now);
    } else if plan.summary.state != TERMINATING {
        plan.header.completion_time = None;
    }
}

/// Plans the steps that follow once the outcomes are durable. Times to live begin, and the host cleans up the children and the object.
pub fn finalize(
    Observation { parent, memory, .. }: Observation<'_>,
    children: &Children<'_>,
    cleanup: Cleanup,
    plan: &mut ParentPlan,
    now: Timestamp,
) {
    if parent.terminating {
        return;
    }
    plan.changes.extend(children.uncontrolled());
    for unit in plan.units.clone().iter() {
        let late = memory.late_creates.get(&unit.name).map(|late| late.until).filter(|late| *late > now);
        for change in cleanup_of_unit(parent, unit, children, cleanup.jobs, now) {
            match late {
                // While the name is taken, a late create cannot make a second child.
                Some(late) if frees_a_name(&change) => plan.requeue_by(late),
                _ => plan.changes_after_record.push(change),
            }
        }
    }
    if let Some(due) = cleanup.ttl.zip(plan.header.completion_time).map(|(ttl, end)| after_seconds(end, ttl)) {
        if due <= now {
            plan.changes_after_record.push(ChildChange::DeleteSelf);
        } else {
            plan.requeue_by(due);
        }
    }
}

/// Returns the changes that the children of a unit need.
fn cleanup_of_unit(
    parent: &Parent,
    unit: &Unit,
    children: &Children<'_>,
    kept: KeptJobs,
    now: Timestamp,
) -> Vec<ChildChange> {
    let is_there = |child: &&Arc<ChildView>| !child.gone && !child.terminating;
    let earlier = children.earlier(parent, unit).filter(is_there);
    let mut changes_after_record: Vec<_> =
        earlier.filter_map(|child| cleanup_of_earlier(parent, unit, child, kept, now)).collect();
    if unit.state.is_terminal() || unit.state == UnitState::Retrying {
        let leftovers = children.leftovers(parent, unit).filter(is_there);
        changes_after_record.extend(leftovers.map(|leftover| ChildChange::Delete(leftover.clone())));
        let own = children.of_uid(&unit.job_uid).filter(is_there);
        changes_after_record.extend(own.and_then(|child| cleanup_of_child(unit, child, kept)));
    }
    changes_after_record
}

/// Returns true if the child has ended, and the change frees its name.
fn frees_a_name(change: &ChildChange) -> bool {
    let frees = matches!(change, ChildChange::SetTtl(..) | ChildChange::Delete(_));
    frees && change.child().is_some_and(|child| child.progress.ended.is_some())
}

/// Returns the change for a child that a later attempt has replaced.
fn cleanup_of_earlier(
    parent: &Parent,
    unit: &Unit,
    child: &Arc<ChildView>,
    kept: KeptJobs,
    now: Timestamp,
) -> Option<ChildChange> {
    if child.progress.end(now).is_err() {
        // The child's node is gone or its time is over, and a retry by hand came before the child ended.
        let is_void = child.kind == ChildKind::Operation || parent.kind == ParentKind::Daemon;
        return if is_void { Some(ChildChange::Delete(child.clone())) } else { stop(child) };
    }
    match kept {
        // The host may still need the status of this child.
        _ if child.progress.ended.is_none() || !unit.has_child() && !unit.state.is_terminal() => None,
        KeptJobs::DeleteAll => Some(ChildChange::Delete(child.clone())),
        _ if unit.attempt.saturating_sub(child.attempt) > KEPT_ATTEMPTS => Some(ChildChange::Delete(child.clone())),
        _ => child.withheld_ttl.map(|ttl| ChildChange::SetTtl(child.clone(), ttl)),
    }
}

fn cleanup_of_child(unit: &Unit, child: &Arc<ChildView>, kept: KeptJobs) -> Option<ChildChange> {
    if child.progress.ended.is_none() {
        // The child's time is over, or its node is gone.
        let is_void =
            child.kind == ChildKind::Operation && unit.reason == "DeadlineExceeded" || unit.reason == "NodeGone";
        return is_void.then(|| ChildChange::Delete(child.clone()));
    }
    match kept {
        // The next attempt may still need the status of this child.
        _ if unit.state == UnitState::Retrying || unit.unjudged && child.kind == ChildKind::Operation => None,
        KeptJobs::DeleteAll => Some(ChildChange::Delete(child.clone())),
        KeptJobs::DeleteSucceeded if unit.state == UnitState::Succeed => Some(ChildChange::Delete(child.clone())),
        _ => child.withheld_ttl.map(|ttl| ChildChange::SetTtl(child.clone(), ttl)),
    }
}
