//! A view of one unit: a step of a JobFlow or a node of a DaemonJob.
//!
//! The view trusts no field. A spec may be older than its validation rules, and a status may be absent, cut, or of another version.

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::span_text::between;
use crate::unit_state::ShownState;

/// The required outcome of a step's dependencies for the step to start. Source: docs/jobflow.md 2.3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StepWhen {
    /// All dependencies succeeded.
    #[default]
    Success,
    /// A dependency failed.
    Failure,
    /// All dependencies ended.
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

    /// Returns the word of the API.
    pub fn word(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Finished => "finished",
        }
    }
}

/// A view of one unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitView {
    /// The index of the unit, from 0. Steps of `flows` come before steps of `finally`, and nodes are sorted by name.
    pub index: usize,
    /// The name of the step or the node.
    pub name: String,
    /// The names of the steps that the step depends on, each once and in the order of the spec.
    pub dependencies: Vec<String>,
    /// The required outcome of the dependencies.
    pub when: StepWhen,
    /// True for a step of `finally`.
    pub is_finally: bool,
    /// True if the child of the step is an OperationJob, and false if the child is a Job.
    pub is_operation: bool,
    /// The state of the unit.
    pub state: ShownState,
    /// A CamelCase word about the state, or an empty text.
    pub reason: String,
    /// A sentence about the state, or an empty text.
    pub message: String,
    /// The name of the unit's child, or an empty text.
    pub job: String,
    /// The number of the attempt. The first attempt is 0, and each retry adds 1.
    pub attempt: u64,
    /// The start time of the unit's child.
    pub started: Option<Timestamp>,
    /// The end time of the unit's child.
    pub ended: Option<Timestamp>,
    /// True if the child was built from an older spec.
    pub outdated: bool,
    /// True if the unit failed and the failure does not count.
    pub tolerated: bool,
    /// True if the success of the step makes up for the failures of its dependencies.
    pub handles_failure: bool,
    /// The name of the step that made up for the unit's failure, or an empty text.
    pub handled_by: String,
}

impl UnitView {
    /// Returns the step that an entry of `spec.flows` or `spec.finally` describes.
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
        let is_operation = step.get("operation").is_some_and(Value::is_object);
        let name = text(step, "name");
        Self { name, dependencies, when, is_finally, is_operation, handles_failure, ..Self::default() }
    }

    /// Returns the unit with the data from an entry of the status or of a record.
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

    /// Returns true if the unit failed with a Job, whose pods may have a log.
    pub fn has_log(&self) -> bool {
        self.state == ShownState::Failed && !self.is_operation && !self.job.is_empty()
    }

    /// Returns the required outcome of the dependencies in words, and whether the success of the step makes up for their failure.
    pub fn condition(&self) -> &'static str {
        if self.handles_failure { "failure, made up for" } else { self.when.word() }
    }

    /// Returns the duration of the unit so far.
    pub fn span(&self, now: Timestamp) -> Option<String> {
        let end = self.ended.or_else(|| (!self.state.is_terminal()).then_some(now));
        between(self.started, end)
    }

    /// Returns the details besides the state: retries, obstacles, and whether the unit is outdated, tolerated or made up for.
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
        parts.extend(Some(self.notes()).filter(|notes| !notes.is_empty()));
        parts.join("; ")
    }

    /// Returns whether the unit is tolerated, made up for or outdated, in words. The text is empty if none of them is so.
    pub fn notes(&self) -> String {
        let notes = [
            self.tolerated.then(|| "tolerated".to_owned()),
            (!self.handled_by.is_empty()).then(|| format!("{} made up for it", self.handled_by)),
            self.outdated.then(|| "outdated".to_owned()),
        ];
        notes.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    /// Returns true if the change between the units is worth a message. Changes of times alone are not.
    pub(crate) fn differs_from(&self, other: &Self) -> bool {
        let told = |unit: &Self| {
            let Self { state, attempt, outdated, tolerated, .. } = *unit;
            (state, attempt, outdated, tolerated, [&unit.reason, &unit.message, &unit.handled_by].map(String::clone))
        };
        told(self) != told(other)
    }
}

/// Returns true if a field is true.
fn is_set(object: &Value, field: &str) -> bool {
    object.get(field).and_then(Value::as_bool).unwrap_or_default()
}

/// Returns the text of a field, or an empty text.
pub(crate) fn text(object: &Value, field: &str) -> String {
    object.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Returns the time in a field, if the field has a valid time.
pub(crate) fn time(object: &Value, field: &str) -> Option<Timestamp> {
    object.get(field)?.as_str()?.parse().ok()
}
