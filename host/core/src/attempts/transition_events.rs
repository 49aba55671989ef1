//! Events about a JobFlow or DaemonJob. Each transition gets one event, by a comparison of the earlier and the new state. Source: docs/jobflow.md 7.

use crate::attempts::build::Cause;
use crate::attempts::changes::changed_units;
use crate::attempts::parent::{API_VERSION, Parent, ParentKind};
use crate::attempts::plan::{ChildChange, ParentPlan, PlanMemory};
use crate::attempts::retry_and_cleanup::FLOW_TIMEOUT;
use crate::attempts::unit::{Unit, UnitState};
use crate::object::api_object::{Kind, ObjectKey};
use crate::requests::writes::EventNote;

/// The number of units above which one Normal event for each tenth replaces the Normal events of units.
const MANY: usize = 80;
/// The most warnings about units of an object with many units.
const WARNINGS: usize = 100;

struct EventRecorder<'a> {
    parent: &'a Parent,
    notes: Vec<EventNote>,
}

impl EventRecorder<'_> {
    /// Adds an event. `mark` distinguishes events that may happen again: an attempt, a generation, a retry.
    fn record(&mut self, warning: bool, reason: &str, mark: &str, message: String) {
        let parent = self.parent;
        let text = format!("{}/{reason}/{mark}", parent.uid);
        let key = ObjectKey {
            kind: Kind::new(API_VERSION, parent.kind.name()),
            namespace: Some(parent.namespace.clone()),
            name: parent.name.clone(),
        };
        self.notes.push(EventNote {
            name: EventNote::name_of(&parent.name, &text),
            regarding: key,
            regarding_uid: parent.uid.clone(),
            warning,
            reason: reason.to_owned(),
            action: "Reconcile".to_owned(),
            message: crate::object::bound::shown_cause(&message, 1_024),
        });
    }
}

/// Returns the events of a plan that is durable.
pub fn transition_events(parent: &Parent, memory: &PlanMemory, plan: &ParentPlan) -> Vec<EventNote> {
    let mut recorder = EventRecorder { parent, notes: Vec::new() };
    let many = plan.units.len() > MANY;
    // Units that are already failed or blocked had their warnings before.
    let stands = |unit: &&Unit| matches!(unit.state, UnitState::Failed | UnitState::Blocked);
    let warned = memory.units.iter().filter(stands).count();
    for (old, unit) in changed_units(&memory.units, &plan.units) {
        record_unit_events(&mut recorder, old, unit, many, warned);
    }
    if many {
        record_tenths(&mut recorder, memory, plan);
    }
    record_object_events(&mut recorder, memory, plan);
    let is_new = memory.header.observed_generation != Some(parent.generation)
        || memory.header.retry_token != plan.header.retry_token;
    for ignored in plan.ignored.iter().filter(|_| is_new) {
        recorder.record(true, "IgnoredField", ignored, ignored.clone());
    }
    recorder.notes
}

/// Returns the events of the clean-up changes that the host made. For an object with many units, only its own deletion has an event.
pub fn cleaned_up<'a>(
    parent: &Parent,
    units: usize,
    changes: impl IntoIterator<Item = &'a ChildChange>,
) -> Vec<EventNote> {
    let mut recorder = EventRecorder { parent, notes: Vec::new() };
    let many = units > MANY;
    for change in changes {
        match change {
            ChildChange::DeleteSelf => {
                recorder.record(
                    false,
                    "CleanedUp",
                    "",
                    "deleted, since its spec.cleanup.ttlSeconds are over".to_owned(),
                );
            }
            ChildChange::Delete(child) if !many => {
                let why = if child.progress.ended.is_some() {
                    "had ended"
                } else {
                    "had not ended when its attempt was over"
                };
                recorder.record(false, "CleanedUp", &child.uid, format!("deleted {}, which {why}", child.name));
            }
            _ => {}
        }
    }
    recorder.notes
}

/// Returns the event of a change that the API server refused for this cause.
pub fn change_refused(parent: &Parent, change: &ChildChange, cause: &Cause) -> Vec<EventNote> {
    let mut recorder = EventRecorder { parent, notes: Vec::new() };
    let (uid, verb) = change.key(parent);
    let mark = format!("{uid}/{verb}/{}", cause.message);
    recorder.record(true, "ChangeRefused", &mark, cause.message.clone());
    recorder.notes
}

fn record_unit_events(recorder: &mut EventRecorder<'_>, old: Option<&Unit>, unit: &Unit, many: bool, warned: usize) {
    let word = recorder.parent.kind.unit_word();
    let mark = format!("{}/{}", unit.name, unit.attempt);
    let name = &unit.name;
    if !many && unit.has_child() && old.is_none_or(|old| old.job_uid != unit.job_uid) {
        recorder.record(false, "Created", &mark, format!("created {} for {word} {name}", unit.job));
    }
    if old.is_some_and(|old| old.state == unit.state) {
        return;
    }
    let warnings = recorder.notes.iter().filter(|note| note.warning).count();
    let may_warn = !many || warned + warnings < WARNINGS;
    let why = if unit.message.is_empty() { unit.reason.clone() } else { format!("{}: {}", unit.reason, unit.message) };
    match unit.state {
        UnitState::Retrying if !many => {
            recorder.record(false, "Retrying", &mark, format!("{word} {name} is retried: {why}"))
        }
        UnitState::Omitted if !many => {
            recorder.record(false, "Omitted", &mark, format!("{word} {name} is omitted: {why}"))
        }
        UnitState::Blocked if may_warn => {
            recorder.record(true, "Blocked", &format!("{mark}/{}", unit.reason), format!("{word} {name}: {why}"))
        }
        UnitState::Failed if may_warn => {
            let reason = if recorder.parent.kind == ParentKind::Flow { "StepFailed" } else { "NodeFailed" };
            recorder.record(true, reason, &mark, format!("{word} {name} failed: {why}"));
        }
        _ => {}
    }
}

fn record_tenths(recorder: &mut EventRecorder<'_>, memory: &PlanMemory, plan: &ParentPlan) {
    let tenth = |units: &[Unit]| units.iter().filter(|unit| unit.state.is_terminal()).count() * 10 / units.len().max(1);
    let (was, is) = (tenth(&memory.units), tenth(&plan.units));
    if is > was {
        let counts = plan.summary.counts;
        let message = format!(
            "{} succeeded, {} failed, {} omitted of {}",
            counts.succeeded, counts.failed, counts.omitted, counts.total
        );
        recorder.record(
            false,
            "Progress",
            &format!("{is}/{}", plan.header.retry_token.as_deref().unwrap_or_default()),
            message,
        );
    }
}

fn record_object_events(recorder: &mut EventRecorder<'_>, memory: &PlanMemory, plan: &ParentPlan) {
    let before = &memory.header;
    let parent = recorder.parent;
    let mark = format!("{}/{}", parent.generation, plan.header.retry_token.as_deref().unwrap_or_default());
    let summary = &plan.summary;
    let message_of = |kind: &str| {
        let mut all = summary.conditions.iter();
        all.find(|one| one.kind == kind && one.status == "True").map(|one| one.message.clone()).unwrap_or_default()
    };
    let was_true = |kind: &str| before.conditions.iter().any(|one| one.kind == kind && one.status == "True");
    let is_true = |kind: &str| summary.conditions.iter().any(|one| one.kind == kind && one.status == "True");
    if summary.state == "Succeed" && before.state != "Succeed" {
        // New nodes may make the object succeed again.
        let end = plan.header.completion_time.map(|time| time.to_string()).unwrap_or_default();
        recorder.record(false, "Succeed", &format!("{mark}/{end}"), message_of("Complete"));
    }
    if summary.state == "Failed" && before.state != "Failed" {
        // New nodes may make the object fail again. New nodes add units or attempts.
        let attempts: u64 = plan.units.iter().map(|unit| u64::from(unit.attempt)).sum();
        let mark = format!("{mark}/{}/{attempts}", plan.units.len());
        let why = summary.failure.as_ref().map(|failure| failure.message.clone());
        recorder.record(true, "Failed", &mark, why.unwrap_or_else(|| format!("{} failed", parent.name)));
    }
    let invalid = |conditions: &[oarlock_api::Condition]| {
        conditions.iter().find(|one| one.kind == "Valid" && one.status == "False").map(|one| one.message.clone())
    };
    if let Some(message) = invalid(&summary.conditions).filter(|now| invalid(&before.conditions).as_ref() != Some(now))
    {
        recorder.record(true, "InvalidSpec", &mark, message);
    }
    // After a retry by name, some units may still have an earlier timeout.
    let is_new = |(old, unit): (Option<&Unit>, &Unit)| {
        unit.reason == FLOW_TIMEOUT && old.is_none_or(|old| old.reason != FLOW_TIMEOUT)
    };
    if changed_units(&memory.units, &plan.units).any(is_new) {
        recorder.record(true, "Timeout", &mark, "the limit of spec.timeoutSeconds is over".to_owned());
    }
    let since = || plan.header.suspended_since.map(|time| time.to_string()).unwrap_or_default();
    match (was_true("Paused"), is_true("Paused")) {
        (false, true) => recorder.record(false, "Paused", &format!("{mark}/{}", since()), message_of("Paused")),
        (true, false) => recorder.record(
            false,
            "Resumed",
            &format!("{mark}/{}", plan.header.suspended_seconds),
            "units start again".to_owned(),
        ),
        _ => {}
    }
}
