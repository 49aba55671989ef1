//! The reason for not using a component: a word for programs, and a sentence for people that names the fix.

use std::borrow::Cow;
use std::fmt;

pub(crate) use oarlock_contract::causes::causes;
use serde::{Deserialize, Serialize};

/// The reason for not using a component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejection {
    /// A CamelCase word for programs, the same in events and metrics.
    pub reason: Cow<'static, str>,
    /// One sentence for people, with the fix.
    pub sentence: String,
    /// `true` if the same component may be accepted later without being changed.
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
