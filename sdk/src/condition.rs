//! Takes an object and yields one of its status conditions. May not judge it.

use serde::Deserialize;

use crate::{Object, ReadError, parse_instant};

/// One entry of `/status/conditions`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// `type`, such as `Ready`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Why it is so, in a CamelCase word; empty where the object does not say.
    #[serde(default)]
    pub reason: String,
    /// The same in a sentence.
    #[serde(default)]
    pub message: String,
    last_transition_time: Option<String>,
}

impl Condition {
    /// Whether the status is `True`.
    #[must_use]
    pub fn is_true(&self) -> bool {
        self.status == "True"
    }

    /// Since when the status is as it is, in milliseconds since 1970; `None`
    /// where the object does not say.
    #[must_use]
    pub fn since_ms(&self) -> Option<u64> {
        self.last_transition_time.as_deref().and_then(parse_instant)
    }
}

/// The condition of this type.
pub(crate) fn find(object: &Object, kind: &str) -> Result<Option<Condition>, ReadError> {
    let all: Option<Vec<Condition>> = object.field("/status/conditions")?;
    Ok(all.into_iter().flatten().find(|condition| condition.kind == kind))
}
