//! What a plan does alike for JobFlow and DaemonJob: taking up a retry by hand, and what follows once the end is durable.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use crate::child::build::Cause;
use crate::child::canonical::digest;
use crate::child::children::Children;
use crate::child::course::{follow, stop};
use crate::child::failure::RetryRules;
use crate::child::fields::{at, text};
use crate::child::header::Header;
use crate::child::imported::import;
use crate::child::parent::{Parent, ParentKind};
use crate::child::plan::{ChildChange, Observation, ParentPlan};
use crate::child::settings::{Cleanup, FailurePolicyType, KeptJobs, cleanup, failure_policy, retry_by_hand};
use crate::child::unit::{Unit, UnitState};
use crate::child::verdict::{Findings, TERMINATING, conclude};
use crate::child::view::{ChildKind, ChildView};
use crate::job::bound::shown;
use crate::job::policy::Retry;
use crate::job::time::after_seconds;

/// The reason of a unit that the time of its flow ended.
pub const FLOW_TIMEOUT: &str = "FlowTimeout";
/// The reason of a step that has no run because one that it depends on did not succeed.
pub const DEPENDENCY_NOT_MET: &str = "DependencyNotMet";
/// The reason of a step that has no run because another one failed.
pub const FLOW_FAILED: &str = "FlowFailed";
/// The reason of a step that has no run because what it is there for did not happen.
pub const NOT_NEEDED: &str = "NotNeeded";
/// The reason of a step that has no run because one before it failed, which another branch made up for.
pub const FAILURE_HANDLED: &str = "FailureHandled";
/// Attempts of a unit before its latest whose children are kept: each was told of when it failed.
const KEPT_ATTEMPTS: u32 = 3;
/// Longest annotation that is kept in the status as it is; of a longer one its digest is.
const TOKEN_BYTES: usize = 128;

/// The token of the annotation that is to be carried out; `None` where it was.
pub fn new_retry<'a>(parent: &'a Parent, header: &Header) -> Option<&'a str> {
    let value = parent.retry.as_deref()?;
    (header.retry_token.as_deref() != Some(&kept_token(value))).then_some(value)
}

/// Of a long value that names many units, its token is still there to be recognised by whoever wrote it.
fn kept_token(value: &str) -> String {
    if value.len() <= TOKEN_BYTES {
        return value.to_owned();
    }
    let (token, _) = retry_by_hand(value);
    format!("{}#{}", shown(token, TOKEN_BYTES / 2), digest(value.as_bytes(), 16))
}

/// Carries out a retry by hand: failed and omitted units start over, those that it names or all.
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
    // Else the failures that stay would stop the units that are named, or hold an object that is paused.
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
        // The limits count anew.
        plan.header.start_time = None;
        plan.header.suspended_seconds = 0;
        plan.header.suspended_since = None;
    }
}

/// True where a failure pauses an object.
fn pauses(parent: &Parent) -> bool {
    let holder = match parent.kind {
        ParentKind::Flow => Some(&parent.spec),
        ParentKind::Daemon => at(&parent.spec, "/rollout"),
    };
    holder.is_some_and(|holder| matches!(failure_policy(holder, ""), Ok(FailurePolicyType::Pause)))
}

/// After a retry by hand: steps that others kept from running follow those that run again. Where something is left that keeps
/// them from it, they are omitted again.
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

/// The command by which a user has what failed run again.
pub fn retry_command(parent: &Parent) -> String {
    let short = if parent.kind == ParentKind::Flow { "jf" } else { "dj" };
    format!("oarlock retry {short}/{} -n {}", parent.name, parent.namespace)
}

/// Plans for an object whose spec is refused: what runs ends and is recorded, and nothing starts.
pub fn plan_invalid(
    observed: Observation<'_>,
    (mut units, mut plan): (Vec<Unit>, ParentPlan),
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
    // Also those whose child was created a moment before the edit.
    for unit in &mut units {
        follow(unit, (parent, &children), memory, &rules, (&mut plan, now));
    }
    plan.units = Arc::new(units);
    // What the original operator had ended stays so, whatever rule it breaks.
    let kept_state = plan.header.imported_generation.map(|_| plan.header.state.clone());
    let found = Findings { invalid: Some(invalid), kept_state, ..Findings::of(memory) };
    plan.verdict = conclude(parent, &plan.units, &plan.header, &found, now);
    complete(&mut plan, now);
    let cleanup = cleanup_of_refused(parent, &plan.units, &plan.header);
    settle(observed, &children, cleanup, &mut plan, now);
    plan
}

/// What a refused spec says of the clean-up, as far as that can be read. The object itself goes only where nothing of it could
/// go on once the spec is mended.
fn cleanup_of_refused(parent: &Parent, units: &[Unit], header: &Header) -> Cleanup {
    let asked = cleanup(&parent.spec).unwrap_or_default();
    let has_ended = |unit: &Unit| unit.state.is_terminal() && !unit.unjudged;
    let is_over = !runs_more(parent, units, header) && !units.is_empty() && units.iter().all(has_ended);
    Cleanup { ttl: asked.ttl.filter(|_| is_over), ..asked }
}

/// True where a refused spec may have something to run that no unit stands for.
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

/// Notes when nothing was active any more, and takes it back once something is. A deletion changes nothing of it.
pub fn complete(plan: &mut ParentPlan, now: Timestamp) {
    if plan.verdict.has_completed && plan.reads.is_empty() {
        plan.header.completion_time.get_or_insert(now);
    } else if plan.verdict.state != TERMINATING {
        plan.header.completion_time = None;
    }
}

/// What follows once the outcomes are durable: times to live begin, children and the object itself are cleaned up.
pub fn settle(
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
        for change in settled_of(parent, unit, children, cleanup.jobs, now) {
            match late {
                // As long as its name is taken, a create that comes late makes no other child.
                Some(late) if frees_a_name(&change) => plan.wake_at(late),
                _ => plan.settled.push(change),
            }
        }
    }
    if let Some(due) = cleanup.ttl.zip(plan.header.completion_time).map(|(ttl, end)| after_seconds(end, ttl)) {
        if due <= now {
            plan.settled.push(ChildChange::DeleteSelf);
        } else {
            plan.wake_at(due);
        }
    }
}

/// What is called for of the children of a unit.
fn settled_of(
    parent: &Parent,
    unit: &Unit,
    children: &Children<'_>,
    kept: KeptJobs,
    now: Timestamp,
) -> Vec<ChildChange> {
    let is_there = |child: &&Arc<ChildView>| !child.gone && !child.terminating;
    let earlier = children.earlier(parent, unit).filter(is_there);
    let mut settled: Vec<_> = earlier.filter_map(|child| settle_earlier(parent, unit, child, kept, now)).collect();
    if unit.state.is_terminal() || unit.state == UnitState::Retrying {
        let strays = children.strays(parent, unit).filter(is_there);
        settled.extend(strays.map(|stray| ChildChange::Delete(stray.clone())));
        let own = children.of_uid(&unit.job_uid).filter(is_there);
        settled.extend(own.and_then(|child| settle_child(unit, child, kept)));
    }
    settled
}

/// True where the child has ended, and its name is free once the change is made.
fn frees_a_name(change: &ChildChange) -> bool {
    let frees = matches!(change, ChildChange::SetTtl(..) | ChildChange::Delete(_));
    frees && change.child().is_some_and(|child| child.progress.ended.is_some())
}

/// A child that a later attempt has taken the place of.
fn settle_earlier(
    parent: &Parent,
    unit: &Unit,
    child: &Arc<ChildView>,
    kept: KeptJobs,
    now: Timestamp,
) -> Option<ChildChange> {
    if child.progress.end(now).is_err() {
        // Its node or its time is gone, and a retry by hand came before its end.
        let is_void = child.kind == ChildKind::Operation || parent.kind == ParentKind::Daemon;
        return if is_void { Some(ChildChange::Delete(child.clone())) } else { stop(child) };
    }
    match kept {
        // What it says may still be asked for.
        _ if child.progress.ended.is_none() || !unit.has_child() && !unit.state.is_terminal() => None,
        KeptJobs::DeleteAll => Some(ChildChange::Delete(child.clone())),
        _ if unit.attempt.saturating_sub(child.attempt) > KEPT_ATTEMPTS => Some(ChildChange::Delete(child.clone())),
        _ => child.withheld_ttl.map(|ttl| ChildChange::SetTtl(child.clone(), ttl)),
    }
}

fn settle_child(unit: &Unit, child: &Arc<ChildView>, kept: KeptJobs) -> Option<ChildChange> {
    if child.progress.ended.is_none() {
        // Its time was over, or its node is gone.
        let is_void =
            child.kind == ChildKind::Operation && unit.reason == "DeadlineExceeded" || unit.reason == "NodeGone";
        return is_void.then(|| ChildChange::Delete(child.clone()));
    }
    match kept {
        // What it says may still be asked for by the next attempt.
        _ if unit.state == UnitState::Retrying || unit.unjudged && child.kind == ChildKind::Operation => None,
        KeptJobs::DeleteAll => Some(ChildChange::Delete(child.clone())),
        KeptJobs::DeleteSucceeded if unit.state == UnitState::Succeed => Some(ChildChange::Delete(child.clone())),
        _ => child.withheld_ttl.map(|ttl| ChildChange::SetTtl(child.clone(), ttl)),
    }
}
