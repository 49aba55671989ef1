//! One unit, the step of a JobFlow or the node of a DaemonJob, as it is shown.
//!
//! No field is trusted: a spec may be stored from before its rules, a status may be absent, cut, or of another version.

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::span_text::between;
use crate::unit_state::ShownState;

/// What the outcome of its dependencies must be for a step to start. Source: docs/jobflow.md 2.3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StepWhen {
    /// They succeeded.
    #[default]
    Success,
    /// One failed.
    Failure,
    /// They ended.
    Finished,
}

impl StepWhen {
    fn read(word: &str, otherwise: Self) -> Self {
        match word {
            "success" => Self::Success,
            "failure" => Self::Failure,
            "finished" => Self::Finished,
            _ => otherwise,
        }
    }

    /// The word of the API.
    pub fn word(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Finished => "finished",
        }
    }
}

/// One unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitView {
    /// Its place among the units, from 0: flows, then finally; nodes by name.
    pub index: usize,
    /// Name of the step or the node.
    pub name: String,
    /// Names of the steps it depends on, each once, as they are written.
    pub dependencies: Vec<String>,
    /// What their outcome must be.
    pub when: StepWhen,
    /// True for a step of `finally`.
    pub is_finally: bool,
    /// Its state.
    pub state: ShownState,
    /// A CamelCase word about it, or nothing.
    pub reason: String,
    /// A sentence about it, or nothing.
    pub message: String,
    /// Name of its child, or nothing.
    pub job: String,
    /// 0, and one more for each retry.
    pub attempt: u64,
    /// Start of its child.
    pub started: Option<Timestamp>,
    /// Its end.
    pub ended: Option<Timestamp>,
    /// True if its child was built from an older spec.
    pub outdated: bool,
    /// True if it failed and that does not count.
    pub tolerated: bool,
    /// True if its success makes up for the failures of its dependencies.
    pub handles_failure: bool,
    /// Name of the step that made up for its failure, or nothing.
    pub handled_by: String,
}

impl UnitView {
    /// The step that an entry of `spec.flows` or `spec.finally` describes.
    pub(crate) fn of_step(step: &Value, is_finally: bool) -> Self {
        let mut dependencies: Vec<String> = Vec::new();
        for name in step.get("dependencies").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
            if !dependencies.iter().any(|other| other == name) {
                dependencies.push(name.to_owned());
            }
        }
        let otherwise = if is_finally { StepWhen::Finished } else { StepWhen::Success };
        let when = StepWhen::read(text(step, "when").as_str(), otherwise);
        let handles_failure = is_set(step, "handlesFailure");
        Self { name: text(step, "name"), dependencies, when, is_finally, handles_failure, ..Self::default() }
    }

    /// The same with what an entry of the status, or of a record, says of it.
    pub(crate) fn with_status(self, entry: &Value) -> Self {
        Self {
            state: ShownState::read(&text(entry, "state")),
            reason: text(entry, "reason"),
            message: text(entry, "message"),
            job: text(entry, "job"),
            attempt: entry.get("attempt").and_then(Value::as_u64).unwrap_or_default(),
            started: time(entry, "startTime"),
            ended: time(entry, "completionTime"),
            outdated: is_set(entry, "outdated"),
            tolerated: is_set(entry, "tolerated"),
            handled_by: text(entry, "handledBy"),
            ..self
        }
    }

    /// What the outcome of its dependencies must be for it to start, in words, and what its success then means.
    pub fn condition(&self) -> &'static str {
        if self.handles_failure { "failure, made up for" } else { self.when.word() }
    }

    /// The time it took, or has taken so far.
    pub fn span(&self, now: Timestamp) -> Option<String> {
        let end = self.ended.or_else(|| (!self.state.is_terminal()).then_some(now));
        between(self.started, end)
    }

    /// What is to be told beside its state: retries, what is in its way, and that it is outdated, tolerated or made up for.
    pub fn detail(&self) -> String {
        let mut parts = Vec::new();
        if self.attempt > 0 {
            parts.push(format!("retry {}", self.attempt));
        }
        match (self.reason.is_empty(), self.message.is_empty()) {
            (false, false) => parts.push(format!("{}: {}", self.reason, self.message)),
            (false, true) => parts.push(self.reason.clone()),
            (true, false) => parts.push(self.message.clone()),
            (true, true) => {}
        }
        parts.extend(self.tolerated.then(|| "tolerated".to_owned()));
        parts.extend((!self.handled_by.is_empty()).then(|| format!("{} made up for it", self.handled_by)));
        parts.extend(self.outdated.then(|| "outdated".to_owned()));
        parts.join("; ")
    }

    /// True if a person should know that it changed to this: times alone are no news.
    pub(crate) fn differs_from(&self, other: &Self) -> bool {
        let told = |unit: &Self| {
            let Self { state, attempt, outdated, tolerated, .. } = *unit;
            (state, attempt, outdated, tolerated, [&unit.reason, &unit.message, &unit.handled_by].map(String::clone))
        };
        told(self) != told(other)
    }
}

/// Whether a field is true.
fn is_set(object: &Value, field: &str) -> bool {
    object.get(field).and_then(Value::as_bool).unwrap_or_default()
}

/// The text of a field, or nothing.
pub(crate) fn text(object: &Value, field: &str) -> String {
    object.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// The time in a field, if it is one.
pub(crate) fn time(object: &Value, field: &str) -> Option<Timestamp> {
    object.get(field)?.as_str()?.parse().ok()
}
