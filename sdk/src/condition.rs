//! The status conditions of an object.

use serde::Deserialize;

use crate::{Object, ReadError, parse_instant};

/// An entry of `/status/conditions`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// The `type` of the condition, such as `Ready`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The status: `True`, `False` or `Unknown`.
    pub status: String,
    /// The reason for the status, as a CamelCase word. Empty if the object has
    /// none.
    #[serde(default)]
    pub reason: String,
    /// The reason for the status, as a sentence.
    #[serde(default)]
    pub message: String,
    last_transition_time: Option<String>,
}

impl Condition {
    /// Returns true if the status is `True`.
    #[must_use]
    pub fn is_true(&self) -> bool {
        self.status == "True"
    }

    /// Returns the time of the last change of the status, in milliseconds since
    /// 1970. Returns `None` if the object has no such time.
    #[must_use]
    pub fn since_ms(&self) -> Option<u64> {
        self.last_transition_time.as_deref().and_then(parse_instant)
    }
}

/// Returns the condition of this type.
pub(crate) fn find(object: &Object, kind: &str) -> Result<Option<Condition>, ReadError> {
    let all: Option<Vec<Condition>> = object.field("/status/conditions")?;
    Ok(all.into_iter().flatten().find(|condition| condition.kind == kind))
}
