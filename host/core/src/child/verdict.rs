//! What is said of an object as a whole: its state and its conditions. Source: docs/jobflow.md 5.

use k8s_openapi::jiff::Timestamp;
use oarlock_api::Condition;

use crate::child::build::Cause;
use crate::child::header::Header;
use crate::child::parent::Parent;
use crate::child::plan::Memory;
use crate::child::unit::{CountsByState, Unit, UnitState};
use crate::job::bound::shown_cause;
use crate::job::conditions::{Said, say};

/// `status.state` of an object that is being deleted.
pub const TERMINATING: &str = "Terminating";
/// Most units that `Progressing` names.
const AWAITED: usize = 5;
/// Most units that `Blocked` names.
const BLOCKED: usize = 10;

/// What a plan found out beside the entries.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// The rule that the spec breaks.
    pub invalid: Option<Cause>,
    /// It failed by policy or timeout: reason and sentence.
    pub failure: Option<Cause>,
    /// Nothing new starts: reason and sentence.
    pub paused: Option<Cause>,
    /// It is paused by a failure, and not over though every unit may have an outcome.
    pub holds: bool,
    /// Children are about to be created.
    pub starts: bool,
    /// Steps of `finally` run or are about to.
    pub runs_finally: bool,
    /// Children that were told to stop have not ended yet.
    pub winds_down: bool,
    /// What keeps all units from starting, and how to lift it.
    pub held: Option<&'static str>,
    /// Changes of children that the API server refuses.
    pub refused: Option<String>,
    /// The original operator had ended it with this state.
    pub kept_state: Option<String>,
    /// The reason of `Complete` where there is no unit.
    pub empty: &'static str,
}

impl Findings {
    /// What is known before the units are judged.
    pub fn of(memory: &Memory) -> Self {
        let mut all = memory.refused_changes.values();
        let first = all.next().map(|refused| format!("refused: {}", refused.refusal.message));
        let more = if all.len() > 0 { format!("; and {} more", all.len()) } else { String::new() };
        Self { refused: first.map(|first| first + &more), ..Self::default() }
    }
}

/// The state and the conditions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParentVerdict {
    /// `Pending`, `Running`, `Succeed`, `Failed` or `Terminating`.
    pub state: String,
    /// All conditions.
    pub conditions: Vec<Condition>,
    /// The numbers of units.
    pub counts: CountsByState,
    /// Why its state is `Failed`, before the condition says so too.
    pub failure: Option<Cause>,
    /// Nothing is active any more, and nothing will start by itself.
    pub has_completed: bool,
}

/// Concludes from the entries.
pub fn conclude(parent: &Parent, units: &[Unit], header: &Header, found: &Findings, now: Timestamp) -> ParentVerdict {
    let counts = CountsByState::of(units);
    let all_terminal = counts.terminal() == counts.total && !found.holds;
    // An attempt that waits goes on only where something may start.
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
    let words = words(units, found, &counts, (state, at_rest, is_active), parent.kind.unit_word());
    let stamped = words.into_iter().map(|said| said.stamped(parent.generation, &header.conditions, now)).collect();
    ParentVerdict {
        state: state.to_owned(),
        conditions: stamped,
        counts,
        failure: found.invalid.clone().or_else(|| found.failure.clone()),
        has_completed: at_rest && !parent.terminating,
    }
}

fn words(
    units: &[Unit],
    found: &Findings,
    counts: &CountsByState,
    (state, at_rest, is_active): (&str, bool, bool),
    unit_word: &str,
) -> Vec<Said> {
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
        say("Complete", complete, if complete { succeeded } else { off }, told.clone()),
        if failed { say("Failed", true, &cause.reason, cause.message.clone()) } else { say("Failed", false, off, "") },
        say(
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
            Some(invalid) => say("Valid", false, &invalid.reason, invalid.message.clone()),
            None => say("Valid", true, "Accepted", "the spec is accepted"),
        },
        blocked(units),
        match found.paused.as_ref().filter(|_| is_paused) {
            Some(paused) => say("Paused", true, &paused.reason, paused.message.clone()),
            None => say("Paused", false, off, ""),
        },
    ];
    let stalled = failed || found.invalid.is_some() || is_stuck;
    if !stalled && (progressing || is_paused) {
        let reason = if is_paused { "Paused" } else { working };
        words.push(say("Reconciling", true, reason, ""));
    }
    if stalled {
        let reason = if is_stuck { "Blocked" } else { cause.reason.as_str() };
        words.push(say("Stalled", true, reason, if is_stuck { String::new() } else { cause.message.clone() }));
    }
    words
}

/// What holds it, how far it is and what it waits for: users see this of an object beside its state.
fn outlook(units: &[Unit], told: String, found: &Findings, state: &str) -> String {
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

fn blocked(units: &[Unit]) -> Said {
    let mut all = units.iter().filter(|unit| unit.state == UnitState::Blocked);
    let Some(first) = all.clone().next() else { return say("Blocked", false, "NoneBlocked", "") };
    let named: Vec<String> =
        all.by_ref().take(BLOCKED).map(|unit| format!("{}: {}", unit.name, unit.message)).collect();
    let more = all.count();
    let rest = if more > 0 { format!("; and {more} more") } else { String::new() };
    say("Blocked", true, &first.reason, named.join("; ") + &rest)
}
