//! The reason why the host does not use a component: a word for programs, and a message for people that names the fix.

use std::borrow::Cow;
use std::fmt;

pub(crate) use oarlock_contract::causes::causes;
use serde::{Deserialize, Serialize};

/// The reason why the host does not use a component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejection {
    /// A CamelCase word for programs, which events and metrics also use.
    pub reason: Cow<'static, str>,
    /// One sentence for people, with the fix.
    pub sentence: String,
    /// True if the host may accept the same component later without a change to it.
    pub retryable: bool,
}

impl Rejection {
    pub(crate) fn new(reason: &'static str, sentence: impl Into<String>) -> Self {
        Self { reason: Cow::Borrowed(reason), sentence: sentence.into(), retryable: false }
    }

    pub(crate) fn for_now(reason: &'static str, sentence: impl Into<String>) -> Self {
        Self { retryable: true, ..Self::new(reason, sentence) }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.sentence)
    }
}

impl std::error::Error for Rejection {}
