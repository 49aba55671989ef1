//! Failures of a call: whether the host retries, a word for programs, and a
//! sentence for people.

use core::fmt;
use core::time::Duration;

use crate::{backend, wit};

/// The result type of an action's functions, with [`Failure`] as the default
/// error.
pub type Result<T, E = Failure> = core::result::Result<T, E>;

/// The reason why a call could not give an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure(wit::Failure);

impl Failure {
    /// Makes a permanent failure: another try would fail too. The attempt at
    /// this target has failed.
    #[must_use]
    pub fn permanent(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(false, reason.into(), message.into())
    }

    /// Makes a failure that says nothing about the target. The host repeats the
    /// call.
    #[must_use]
    pub fn retryable(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(true, reason.into(), message.into())
    }

    /// Sets the shortest time until the next try.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.0.retry_after_ms = Some(millis(wait));
        self
    }

    /// Returns true if the host repeats the call.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.0.retryable
    }

    /// Returns the reason, which is a word for programs.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.0.reason
    }

    /// Returns the message, which is a sentence for people.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    fn new(retryable: bool, reason: String, message: String) -> Self {
        Self(wit::Failure { retryable, reason, message, retry_after_ms: None })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.reason, self.0.message)
    }
}

impl core::error::Error for Failure {}

impl From<Failure> for wit::Failure {
    fn from(failure: Failure) -> Self {
        failure.0
    }
}

/// The reason why something could not be read. With `?` it becomes the
/// [`Failure`] that the contract asks for.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The manifest does not declare this read. This is a mistake in the
    /// plugin.
    #[error("{message}")]
    NotDeclared {
        /// The missing declaration.
        message: String,
    },
    /// The host needs a live read first. It repeats the call after that.
    #[error("{message}")]
    Unavailable {
        /// The object of the live read.
        message: String,
    },
    /// The value does not have the type that the plugin expects.
    #[error("{what} does not have the type that the plugin expects")]
    Malformed {
        /// The value that was read.
        what: String,
        /// The error of the parser.
        #[source]
        source: serde_json::Error,
    },
}

impl From<backend::ReadError> for ReadError {
    fn from(error: backend::ReadError) -> Self {
        // The contract says that any other word counts as `Unavailable`.
        match error.reason.as_str() {
            "NotDeclared" => Self::NotDeclared { message: error.message },
            _ => Self::Unavailable { message: error.message },
        }
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::NotDeclared { message } => Self::permanent("NotDeclared", message),
            ReadError::Unavailable { message } => Self::retryable("Unavailable", message),
            // An object may change and then be readable. If this failed the
            // target, it could deny an effect that happened.
            ReadError::Malformed { what, source } => Self::retryable(
                "Malformed",
                format!("{what} does not have the type that the plugin expects: {source}."),
            ),
        }
    }
}

/// Returns a duration in the unit of the contract, capped at its largest value.
pub(crate) fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(reason: &str) -> Failure {
        Failure::from(ReadError::from(backend::ReadError { reason: reason.into(), message: "m".into() }))
    }

    #[test]
    fn unavailable_read_is_tried_again() {
        assert!(read("Unavailable").is_retryable());
        assert!(read("SomethingNewer").is_retryable());
    }

    #[test]
    fn undeclared_read_fails_the_attempt() {
        assert!(!read("NotDeclared").is_retryable());
        assert_eq!(read("NotDeclared").reason(), "NotDeclared");
    }

    #[test]
    fn too_long_a_wait_is_cut_to_the_longest() {
        assert_eq!(millis(Duration::from_secs(u64::MAX)), u32::MAX);
    }
}
