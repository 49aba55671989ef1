//! The state and the conditions of an object as a whole. Source: docs/jobflow.md 5.

use k8s_openapi::jiff::Timestamp;
use oarlock_api::Condition;

use crate::attempts::build::Cause;
use crate::attempts::header::Header;
use crate::attempts::parent::Parent;
use crate::attempts::plan::PlanMemory;
use crate::attempts::unit::{CountsByState, Unit, UnitState};
use crate::object::bound::shown_cause;
use crate::status::conditions::{NewCondition, new_condition};

/// `status.state` of an object that is being deleted.
pub const TERMINATING: &str = "Terminating";
/// The most units that the condition `Progressing` names.
const AWAITED: usize = 5;
/// The most units that the condition `Blocked` names.
const BLOCKED: usize = 10;

/// The results of a plan that are not in the entries of the units.
#[derive(Clone, Debug, Default)]
pub struct PlanResults {
    /// The rule that the spec breaks.
    pub invalid: Option<Cause>,
    /// Reason and sentence of a failure by policy or timeout.
    pub failure: Option<Cause>,
    /// Reason and sentence of a pause, in which nothing new starts.
    pub paused: Option<Cause>,
    /// True if a failure pauses the object. The object is not over then, even if every unit has an outcome.
    pub holds: bool,
    /// True if the host is about to create children.
    pub starts: bool,
    /// True if steps of `finally` run or are about to run.
    pub runs_finally: bool,
    /// True if stopped children have not ended yet.
    pub winds_down: bool,
    /// The reason that keeps all units from starting, and how to remove it.
    pub held: Option<&'static str>,
    /// Changes of children that the API server refuses, as a sentence.
    pub refused: Option<String>,
    /// The state in which the original operator had ended the object.
    pub kept_state: Option<String>,
    /// The reason of `Complete` if there are no units.
    pub empty: &'static str,
}

impl PlanResults {
    /// Returns the findings that are known before the host judges the units.
    pub fn of(memory: &PlanMemory) -> Self {
        let mut all = memory.refused_changes.values();
        let first = all.next().map(|refused| format!("refused: {}", refused.refusal.message));
        let more = if all.len() > 0 { format!("; and {} more", all.len()) } else { String::new() };
        Self { refused: first.map(|first| first + &more), ..Self::default() }
    }
}

/// The state and the conditions of an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParentSummary {
    /// Either `Pending`, `Running`, `Succeed`, `Failed` or `Terminating`.
    pub state: String,
    /// All conditions.
    pub conditions: Vec<Condition>,
    /// The numbers of units by state.
    pub counts: CountsByState,
    /// Why the state is `Failed`. It is set before the condition `Failed` is True.
    pub failure: Option<Cause>,
    /// True if nothing is active any more, and nothing will start by itself.
    pub has_completed: bool,
}

/// Computes the state and the conditions from the entries.
pub fn conclude(
    parent: &Parent,
    units: &[Unit],
    header: &Header,
    found: &PlanResults,
    now: Timestamp,
) -> ParentSummary {
    let counts = CountsByState::of(units);
    let all_terminal = counts.terminal() == counts.total && !found.holds;
    // A waiting retry counts as active only if something may start.
    let retries = counts.retrying > 0 && found.invalid.is_none() && found.paused.is_none();
    let is_active = counts.pending + counts.running > 0 || retries || found.winds_down;
    let state = match &found.kept_state {
        _ if parent.terminating => TERMINATING,
        Some(state) => state,
        None if found.invalid.is_some() || found.failure.is_some() => "Failed",
        None if all_terminal => "Succeed",
        None if counts.running + counts.retrying + counts.terminal() > 0 || found.winds_down => "Running",
        None => "Pending",
    };
    let is_kept = found.kept_state.is_some();
    let at_rest = !is_active && (all_terminal || found.invalid.is_some() || is_kept);
    let new = new_conditions(units, found, &counts, &Activity { state, at_rest, is_active }, parent.kind.unit_word());
    let stamped =
        new.into_iter().map(|condition| condition.stamped(parent.generation, &header.conditions, now)).collect();
    ParentSummary {
        state: state.to_owned(),
        conditions: stamped,
        counts,
        failure: found.invalid.clone().or_else(|| found.failure.clone()),
        has_completed: at_rest && !parent.terminating,
    }
}

/// The state of an object, and whether something still moves in it.
struct Activity<'a> {
    /// The state, as in [`ParentSummary`].
    state: &'a str,
    /// True if nothing will change by itself.
    at_rest: bool,
    /// True if a child is active, or an attempt is about to start.
    is_active: bool,
}

fn new_conditions(
    units: &[Unit],
    found: &PlanResults,
    counts: &CountsByState,
    activity: &Activity<'_>,
    unit_word: &str,
) -> Vec<NewCondition> {
    let Activity { state, at_rest, is_active } = *activity;
    let told = format!("{} of {} {unit_word}s succeeded", counts.succeeded, counts.desired);
    let off = if at_rest { "AtRest" } else { "InProgress" };
    let complete = at_rest && state == "Succeed";
    let empty = counts.desired == 0 && !found.empty.is_empty();
    let succeeded = if empty { found.empty } else { "Succeeded" };
    let failed = at_rest && state == "Failed";
    let cause = found.invalid.as_ref().map(|invalid| Cause::new("Invalid", invalid.message.clone()));
    let cause = cause.or_else(|| found.failure.clone()).unwrap_or_else(|| Cause::new("StepFailed", told.clone()));
    let is_stuck = counts.blocked > 0 && !is_active && !found.starts;
    let is_paused = found.paused.is_some() && !at_rest;
    let progressing = !at_rest && !is_stuck && (is_active || !is_paused) && state != TERMINATING;
    let working = match (&found.failure, found.runs_finally) {
        (_, true) => "RunningFinally",
        (Some(_), false) => "WindingDown",
        _ => "Working",
    };
    let mut words = vec![
        new_condition("Complete", complete, if complete { succeeded } else { off }, told.clone()),
        if failed {
            new_condition("Failed", true, &cause.reason, cause.message.clone())
        } else {
            new_condition("Failed", false, off, "")
        },
        new_condition(
            "Progressing",
            progressing,
            if progressing { working } else { "AtRest" },
            match (at_rest, failed) {
                (false, _) => outlook(units, told, found, state),
                (true, true) if cause.message != told => with(format!("{told}; {}", cause.message), &found.refused),
                (true, _) => with(told, &found.refused),
            },
        ),
        match &found.invalid {
            Some(invalid) => new_condition("Valid", false, &invalid.reason, invalid.message.clone()),
            None => new_condition("Valid", true, "Accepted", "the spec is accepted"),
        },
        blocked(units),
        match found.paused.as_ref().filter(|_| is_paused) {
            Some(paused) => new_condition("Paused", true, &paused.reason, paused.message.clone()),
            None => new_condition("Paused", false, off, ""),
        },
    ];
    let stalled = failed || found.invalid.is_some() || is_stuck;
    if !stalled && (progressing || is_paused) {
        let reason = if is_paused { "Paused" } else { working };
        words.push(new_condition("Reconciling", true, reason, ""));
    }
    if stalled {
        let reason = if is_stuck { "Blocked" } else { cause.reason.as_str() };
        words.push(new_condition(
            "Stalled",
            true,
            reason,
            if is_stuck { String::new() } else { cause.message.clone() },
        ));
    }
    words
}

/// Returns the message of `Progressing`: what pauses the object, how far it is and what it waits for. Users see this message beside the state.
fn outlook(units: &[Unit], told: String, found: &PlanResults, state: &str) -> String {
    let waits = |unit: &&Unit| unit.state == UnitState::Waiting && !unit.reason.is_empty();
    let blocked = units.iter().filter(|unit| unit.state == UnitState::Blocked);
    let awaited = blocked.chain(units.iter().filter(|unit| unit.state.is_active() || waits(unit)));
    let count = awaited.clone().count();
    let named: Vec<String> = awaited.take(AWAITED).map(|unit| named(unit, 120)).collect();
    let more = if count > AWAITED { format!(" and {} more", count - AWAITED) } else { String::new() };
    let waits = match found.held {
        _ if !named.is_empty() => Some(format!("waiting for {}{more}", named.join(", "))),
        _ if state == TERMINATING => Some("being deleted: what it started goes with it".to_owned()),
        _ if found.winds_down => Some("waiting for the Jobs that were told to stop to end".to_owned()),
        _ if found.paused.is_some() => None,
        Some(held) => Some(held.to_owned()),
        None => Some("units are about to start".to_owned()),
    };
    let paused = found.paused.as_ref().map(|paused| format!("paused: {}", paused.message));
    with([paused, Some(told), waits].into_iter().flatten().collect::<Vec<_>>().join("; "), &found.refused)
}

fn with(told: String, refused: &Option<String>) -> String {
    refused.iter().fold(told, |told, refused| told + "; " + refused)
}

fn named(unit: &Unit, most: usize) -> String {
    if unit.not_ready_since.is_some() {
        let gap = if unit.message.is_empty() { "" } else { "; before: " };
        let before = shown_cause(&unit.message, most);
        return format!("{} (NodeNotReady: the next attempt starts once its node is Ready{gap}{before})", unit.name);
    }
    let state = format!("{:?}", unit.state);
    let has_cause = matches!(unit.state, UnitState::Blocked | UnitState::Waiting);
    let word = if has_cause { &unit.reason } else { &state };
    let why = if unit.message.is_empty() && !has_cause { &unit.reason } else { &unit.message };
    let why = if why.is_empty() { String::new() } else { format!(": {}", shown_cause(why, most)) };
    format!("{} ({word}{why})", unit.name)
}

fn blocked(units: &[Unit]) -> NewCondition {
    let mut all = units.iter().filter(|unit| unit.state == UnitState::Blocked);
    let Some(first) = all.clone().next() else { return new_condition("Blocked", false, "NoneBlocked", "") };
    let named: Vec<String> =
        all.by_ref().take(BLOCKED).map(|unit| format!("{}: {}", unit.name, unit.message)).collect();
    let more = all.count();
    let rest = if more > 0 { format!("; and {more} more") } else { String::new() };
    new_condition("Blocked", true, &first.reason, named.join("; ") + &rest)
}
