//! The state of a task as it is stored with its target, and the result that a command on a node leaves.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::operation_job::state::extras;

/// Most bytes of a task's output that are stored with its target.
const MOST_OUTPUT: usize = 512;
/// Most bytes of output, over all tasks, that are stored with a target.
const MOST_OUTPUT_OF_ALL: usize = 1024;
/// Bytes of each task's output that are stored even beyond the common limit.
const LEAST_OUTPUT: usize = 64;
/// Most bytes of the message of a check whose output is too long. Quoted, each byte may take two.
const MOST_MESSAGE: usize = 232;
/// Text that stands for a missing part.
pub const CUT: &str = "[...]";

/// Progress of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TaskProgress {
    /// The task has not begun.
    #[default]
    Waiting,
    /// The task runs.
    Running,
    /// The task ended with exit code 0.
    Succeeded,
    /// The task ended with another exit code, or was lost.
    Failed,
}

impl TaskProgress {
    /// Returns true once the task has ended.
    pub fn terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// Returns the word of the contract.
    pub fn word(self) -> &'static str {
        match self {
            Self::Waiting => "Waiting",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

/// A task as it is stored with its target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StoredTask {
    /// Progress of the task.
    pub state: TaskProgress,
    /// True if the host itself performs the task, without a pod. Such a task may begin again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub of_host: bool,
    /// UID of the task's pod, once the host saw the pod. A task with a UID never begins again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The exit code of the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// SHA-256 of the output, in hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// The end of the output. For a check, the part that [`of_check`] keeps.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub output: String,
    /// The reason why the task failed. For a waiting task, a note that its pod did not start in time and must be
    /// removed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The reason why the task waits. It is stored because a kubelet that ends the pod forgets it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub waits: String,
    /// Time since which the task waits for that reason, in RFC 3339.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub since: String,
}

impl StoredTask {
    /// Returns the task of this name; `None` if there is none. A task that cannot be read, because another client wrote
    /// it, counts as failed: it may have run.
    pub fn read(extra: &BTreeMap<String, String>, name: &str) -> Option<Self> {
        extra.get(&key(name)).map(|text| Self::parse(text))
    }

    fn parse(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_else(|_| Self {
            state: TaskProgress::Failed,
            message: "lost: its stored state cannot be read".to_owned(),
            ..Self::default()
        })
    }

    /// Returns all tasks of a target, by name.
    pub fn all(extra: &BTreeMap<String, String>) -> impl Iterator<Item = (&str, Self)> {
        extra.range(extras::TASK.to_owned()..).map_while(|(key, text)| {
            let name = key.strip_prefix(extras::TASK)?;
            Some((name, Self::parse(text)))
        })
    }

    /// Returns true if a target has a task.
    pub fn any(extra: &BTreeMap<String, String>) -> bool {
        Self::all(extra).next().is_some()
    }

    /// Stores the task, with as much of its output as fits.
    pub fn store(mut self, extra: &mut BTreeMap<String, String>, name: &str) {
        let others = Self::all(extra).filter(|(other, _)| *other != name).map(|(_, task)| task.output.len());
        let room = MOST_OUTPUT_OF_ALL.saturating_sub(others.sum()).clamp(LEAST_OUTPUT, MOST_OUTPUT);
        self.output = tail(&self.output, room);
        // The task has no map with keys other than strings, so it can be written.
        let text = serde_json::to_string(&self).unwrap_or_default();
        extra.insert(key(name), text);
    }
}

fn key(name: &str) -> String {
    format!("{}{name}", extras::TASK)
}

/// Returns the output of a check as it is stored, so that a plugin can judge the node by it. A JSON object that is too
/// long keeps its `passed` and the beginning of its `message`. Any other text of a check that ended well keeps its
/// beginning.
pub fn of_check(output: String, ended_well: bool) -> String {
    if output.len() <= MOST_OUTPUT {
        return output;
    }
    match serde_json::from_str(&output) {
        Ok(Value::Object(said)) => {
            let passed = said.get("passed").map(|passed| ("passed", json!(passed.as_bool())));
            let message = said.get("message").and_then(Value::as_str).map(|text| ("message", json!(plain_head(text))));
            json!(passed.into_iter().chain(message).collect::<BTreeMap<_, _>>()).to_string()
        }
        _ if ended_well && !output.starts_with(CUT) => head(&output, MOST_OUTPUT),
        _ => output,
    }
}

/// Returns the beginning of a message, without control characters, and short enough however it is quoted.
fn plain_head(message: &str) -> String {
    let plain: String = message.chars().filter(|c| !c.is_control()).collect();
    head(&plain, MOST_MESSAGE)
}

/// Returns the first `most` bytes of a text, or a few less, with a mark if some are missing.
fn head(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let mut to = most.saturating_sub(CUT.len());
    while !text.is_char_boundary(to) {
        to = to.saturating_sub(1);
    }
    format!("{}{CUT}", text.get(..to).unwrap_or_default())
}

/// Returns the last `most` bytes of a text, or a few less, with a mark if some are missing.
pub fn tail(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let mut from = text.len().saturating_sub(most.saturating_sub(CUT.len()));
    while !text.is_char_boundary(from) {
        from = from.saturating_add(1);
    }
    format!("{CUT}{}", text.get(from..).unwrap_or_default())
}

/// The result of a command on a node: the termination message of its pod, as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeResult {
    /// The exit code. Absent if the command was not begun or did not end by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The boot ID of the node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
    /// SHA-256 of the whole output, in hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// The end of the output.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub output: String,
    /// True if the beginning of the output is missing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// The reason why the command was not begun, or why it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outputs_of_all_tasks_have_a_bound() {
        let mut extra = BTreeMap::new();
        for name in ["a", "b", "c", "d"] {
            StoredTask { output: format!("{}end", "x".repeat(5_000)), ..StoredTask::default() }.store(&mut extra, name);
        }
        let kept: Vec<usize> = StoredTask::all(&extra).map(|(_, task)| task.output.len()).collect();
        assert_eq!(kept, [512, 512, 64, 64]);
        let first = StoredTask::read(&extra, "a").unwrap();
        assert!(first.output.starts_with("[...]x") && first.output.ends_with("xend"));
    }

    #[test]
    fn what_somebody_else_wrote_counts_as_lost() {
        let extra = BTreeMap::from([("Task/a".to_owned(), "no JSON".to_owned())]);
        assert_eq!(StoredTask::read(&extra, "a").unwrap().state, TaskProgress::Failed);
        assert!(StoredTask::any(&extra) && !StoredTask::any(&BTreeMap::new()));
    }

    #[test]
    fn a_tail_is_cut_between_characters() {
        assert_eq!(tail("short", 5), "short");
        assert_eq!(tail("ääääää", 10), "[...]ää");
    }
}
