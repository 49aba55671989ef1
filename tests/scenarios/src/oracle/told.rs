//! The targets of a job, as its status or its records show them.
//!
//! Takes versions; yields the facts that the oracle checks. Content that cannot be read yields no facts.

use std::collections::BTreeMap;

use oarlock_sim::world::Version;
use serde_json::Value;

/// A target as it was stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) progress: String,
    pub(super) uid: String,
    /// True if an attempt has failed and the next attempt has not begun.
    pub(super) waits: bool,
    /// The name of the pod that replaces the target.
    pub(super) new_pod: String,
    /// True if the target is a node whose pods are being evicted.
    pub(super) draining: bool,
}

impl Target {
    pub(super) fn is_terminal(&self) -> bool {
        matches!(self.progress.as_str(), "Succeeded" | "Failed")
    }

    /// Returns true if the holds of the target may go: the target or its attempt has ended.
    pub(super) fn may_let_go(&self) -> bool {
        self.is_terminal() || self.waits
    }

    fn of(told: &Value) -> (String, Self) {
        let text = |pointer: &str| told.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let target = Self {
            progress: text("/progress"),
            uid: text("/uid"),
            waits: told.pointer("/nextAttemptTime").is_some(),
            new_pod: text("/extraInfo/NewPod"),
            draining: text("/extraInfo/Drain").contains("Draining"),
        };
        (text("/name"), target)
    }
}

/// Returns the targets in a job's status.
pub(super) fn details(job: &Version) -> BTreeMap<String, Target> {
    job.at("/status/targetDetails").as_array().into_iter().flatten().map(Target::of).collect()
}

/// Returns the targets in a record.
pub(super) fn lines(record: &Version) -> BTreeMap<String, Target> {
    let lines = record.at("/targets").as_array().into_iter().flatten().filter_map(Value::as_str);
    lines.filter_map(|line| Some(Target::of(&serde_json::from_str(line).ok()?))).collect()
}
