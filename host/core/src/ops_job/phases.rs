//! The phase and the status of an OpsJob. Source: docs/opsjob.md 4.
//!
//! A job enters each phase at most once and only moves forward. It never leaves a terminal phase. Each phase has a condition of its name, which stays
//! as history.

use k8s_openapi::jiff::Timestamp;
use oarlock_api::Condition;
use serde_json::{Map, Value, json};

use crate::object::bound::shown_cause;
use crate::object::fields::{list, number, object, text};
use crate::object::time::{read_time, write_time};
use crate::ops_job::names::OPERATION_JOB;

/// The longest message of a condition, in bytes.
const MESSAGE_CHARS: usize = 4_096;

/// The phase of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// No target has begun.
    Pending,
    /// At least one target has begun.
    Running,
    /// Enough targets have succeeded.
    Succeeded,
    /// The job has failed.
    Failed,
}

impl Phase {
    /// All phases, in order.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Running, Self::Succeeded, Self::Failed];

    /// Returns the word of `status.phase` and of the condition.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }

    /// Returns true if the phase is an outcome.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// The reason for entering a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseReason {
    /// The reason for programs.
    pub reason: &'static str,
    /// The message for people.
    pub message: String,
}

impl PhaseReason {
    /// Returns this reason with this message.
    pub fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// The status of a job. Fields that the host does not know stay as they are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpsStatus {
    /// Phase of the job. `None` before the host has seen the job.
    pub phase: Option<Phase>,
    /// Time at which the first target began.
    pub started: Option<Timestamp>,
    /// Time at which the job ended.
    pub finished: Option<Timestamp>,
    /// Number of the status. Each other change adds one.
    pub revision: i64,
    /// The conditions, one of each type.
    pub conditions: Vec<Condition>,
    /// All other fields.
    pub other_fields: Map<String, Value>,
}

/// The fields that [`OpsStatus`] has by name.
const OWN: [&str; 5] = ["phase", "startedAt", "finishedAt", "revision", "conditions"];

impl OpsStatus {
    /// Reads a stored status. Unreadable parts count as absent.
    pub fn read(status: &Value) -> Self {
        let word = text(status, "/phase");
        let conditions = list(status, "/conditions").iter();
        let rest = object(status, "").into_iter().flatten().filter(|(field, _)| !OWN.contains(&field.as_str()));
        Self {
            phase: Phase::ALL.into_iter().find(|phase| Some(phase.word()) == word),
            started: read_time(text(status, "/startedAt")),
            finished: read_time(text(status, "/finishedAt")),
            revision: number(status, "/revision").unwrap_or(0),
            conditions: conditions.filter_map(|one| serde_json::from_value(one.clone()).ok()).collect(),
            other_fields: rest.map(|(field, value)| (field.clone(), value.clone())).collect(),
        }
    }

    /// Returns the status in its stored form.
    pub fn write(&self) -> Value {
        let mut fields = self.other_fields.clone();
        fields.extend(self.phase.map(|phase| ("phase".to_owned(), json!(phase.word()))));
        fields.extend(self.started.map(|time| ("startedAt".to_owned(), json!(write_time(time)))));
        fields.extend(self.finished.map(|time| ("finishedAt".to_owned(), json!(write_time(time)))));
        fields.insert("revision".to_owned(), json!(self.revision));
        fields.insert("conditions".to_owned(), json!(self.conditions));
        Value::Object(fields)
    }

    /// Returns true if the job has ended.
    pub fn has_ended(&self) -> bool {
        self.phase.is_some_and(Phase::is_terminal)
    }

    /// Moves forward to a phase, through the phases before it that the host did not see. Any other phase changes nothing. `began` is the time at
    /// which the first target began, if a target has begun.
    pub fn enter(&mut self, phase: Phase, why: &PhaseReason, began: Option<Timestamp>, now: Timestamp) {
        let is_forward = self.phase.is_none_or(|before| before < phase && !before.is_terminal());
        if !is_forward {
            return;
        }
        if self.phase.is_none() {
            self.set_condition(Phase::Pending.word(), true, &PhaseReason::new("Created", "the job was seen"), now);
        }
        self.phase = Some(phase);
        if phase > Phase::Pending
            && let Some(began) = began.filter(|_| self.started.is_none())
        {
            self.started = Some(began.min(now));
            self.set_condition(
                Phase::Running.word(),
                true,
                &PhaseReason::new("Started", "the first target has begun"),
                now,
            );
        }
        if phase.is_terminal() {
            self.finished = Some(now);
            // A job whose targets never began started and ended at the same time.
            self.started = Some(self.started.unwrap_or(now));
        }
        if phase != Phase::Pending && phase != Phase::Running {
            self.set_condition(phase.word(), true, why, now);
        }
    }

    /// Adds a condition with the target's name that says why the target failed.
    pub fn set_target_condition(&mut self, name: &str, reason: &str, message: &str, now: Timestamp) {
        let condition = Condition {
            kind: name.to_owned(),
            status: "False".to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            last_transition_time: write_time(now),
            ..Condition::default()
        };
        self.conditions.push(condition);
    }

    /// Sets a condition. Its time is the time of its last change of status.
    pub fn set_condition(&mut self, kind: &str, holds: bool, why: &PhaseReason, now: Timestamp) {
        let status = if holds { "True" } else { "False" };
        let message = shown_cause(&why.message, MESSAGE_CHARS);
        let before = self.conditions.iter_mut().find(|condition| condition.kind == kind);
        match before {
            Some(before) => {
                if before.status != status {
                    before.last_transition_time = write_time(now);
                }
                (before.status, before.reason, before.message) = (status.to_owned(), why.reason.to_owned(), message);
            }
            None => self.conditions.push(Condition {
                kind: kind.to_owned(),
                status: status.to_owned(),
                reason: why.reason.to_owned(),
                message,
                last_transition_time: write_time(now),
                ..Condition::default()
            }),
        }
    }

    /// Sets a condition to True if it exists, because its problem is over.
    pub fn clear_condition(&mut self, kind: &str, reason: &'static str, now: Timestamp) {
        if self.has(kind) {
            self.set_condition(kind, true, &PhaseReason::new(reason, ""), now);
        }
    }

    /// Returns the condition of this type.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }

    /// Returns true if a condition of this type exists.
    pub fn has(&self, kind: &str) -> bool {
        self.condition(kind).is_some()
    }

    /// Returns true if the phase, the conditions or the OperationJob differ. Counts do not matter.
    pub fn differs_visibly_from(&self, before: &Self) -> bool {
        let child = |status: &Self| status.other_fields.get(OPERATION_JOB).cloned();
        (self.phase, &self.conditions) != (before.phase, &before.conditions) || child(self) != child(before)
    }

    /// Returns true if the condition of this type is True.
    pub fn is(&self, kind: &str) -> bool {
        self.condition(kind).is_some_and(|condition| condition.status == "True")
    }

    /// Returns the status to write in place of `before`, with the next revision. Returns `None` if nothing differs.
    pub fn changed_from(mut self, before: &Self) -> Option<Self> {
        self.revision = before.revision;
        if self == *before {
            return None;
        }
        self.revision = before.revision.saturating_add(1);
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_767_225_600 + second).unwrap()
    }

    fn types(status: &OpsStatus) -> Vec<&str> {
        status.conditions.iter().map(|condition| condition.kind.as_str()).collect()
    }

    #[test]
    fn a_phase_that_was_passed_unseen_is_entered_with_the_one_after_it() {
        let mut status = OpsStatus::default();
        status.enter(Phase::Succeeded, &PhaseReason::new("Succeed", "3 of 3"), Some(at(5)), at(9));
        assert_eq!(types(&status), ["Pending", "Running", "Succeeded"]);
        assert_eq!((status.started, status.finished), (Some(at(5)), Some(at(9))));
        assert!(status.is("Running"), "it stays as history");
    }

    #[test]
    fn what_never_began_has_begun_when_it_ended_and_never_ran() {
        let mut status = OpsStatus::default();
        status.enter(Phase::Pending, &PhaseReason::new("Created", ""), None, at(0));
        status.enter(Phase::Failed, &PhaseReason::new("NoTargets", "all are excluded"), None, at(3));
        assert_eq!(types(&status), ["Pending", "Failed"]);
        assert_eq!((status.started, status.finished), (Some(at(3)), Some(at(3))));
    }

    #[test]
    fn what_it_does_not_know_is_kept_and_a_revision_counts_changes() {
        let stored = json!({"phase": "Running", "startedAt": "2026-01-01T00:00:00Z", "revision": 4, "conditions": [],
            "outputs": [{"name": "a", "value": "b"}]});
        let status = OpsStatus::read(&stored);
        assert_eq!(status.write(), stored);
        assert_eq!(status.clone().changed_from(&status), None);
        let mut next = status.clone();
        next.set_condition("Stopping", true, &PhaseReason::new("Stopped", "x".repeat(9_000)), at(1));
        let next = next.changed_from(&status).unwrap();
        assert_eq!(next.revision, 5);
        assert!(next.conditions[0].message.chars().count() <= MESSAGE_CHARS);
    }

    proptest! {
        /// Phases only go forward in any sequence, an outcome stays, and only an outcome has an end time.
        #[test]
        fn phases_only_go_forward(steps in prop::collection::vec((0usize..4, any::<bool>()), 0..12)) {
            let mut status = OpsStatus::default();
            for (second, (phase, began)) in (0..).zip(steps) {
                let (before, now) = (status.clone(), at(second));
                status.enter(Phase::ALL[phase], &PhaseReason::new("R", "m"), began.then_some(now), now);
                prop_assert!(before.phase <= status.phase);
                prop_assert!(!before.has_ended() || before == status);
                prop_assert_eq!(status.has_ended(), status.finished.is_some());
                prop_assert_eq!(OpsStatus::read(&status.write()), status.clone());
            }
        }
    }
}
