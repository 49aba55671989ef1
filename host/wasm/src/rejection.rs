//! The reason for not using a component: a word for programs, and a sentence for people that names the fix.

use std::fmt;

/// The reason for not using a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// A CamelCase word for programs, the same in events and metrics.
    pub reason: &'static str,
    /// One sentence for people, with the fix.
    pub sentence: String,
    /// `true` if the same component may be accepted later without being changed.
    pub retryable: bool,
}

impl Rejection {
    pub(crate) fn new(reason: &'static str, sentence: impl Into<String>) -> Self {
        Self { reason, sentence: sentence.into(), retryable: false }
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

/// An error with its causes, on one line, for the end of a sentence.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(600).collect()
}
