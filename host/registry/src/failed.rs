//! The failure of a copy.
//!
//! A failure must not contain a password, a token or the query of a URL. Its words consist of methods, hosts, paths and causes.

use std::time::Duration;

/// The kind of failure of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The source does not return the requested image.
    Pull,
    /// The target does not accept the image.
    Push,
    /// A registry needs other credentials.
    Unauthorized,
    /// The bytes do not match their digest or size.
    DigestMismatch,
}

/// The failure of a copy. The target keeps what was copied before, and the next copy skips it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct CopyFailed {
    fault: Fault,
    message: String,
    for_now: bool,
    after: Option<Duration>,
    is_wordless: bool,
}

impl CopyFailed {
    /// Makes a permanent failure. Another try would fail in the same way.
    pub(crate) fn for_good(fault: Fault, message: impl Into<String>) -> Self {
        Self { fault, message: message.into(), for_now: false, after: None, is_wordless: false }
    }

    /// Makes a failure that may pass: a broken connection, a timeout or an overload.
    pub(crate) fn for_now(fault: Fault, message: impl Into<String>) -> Self {
        Self { fault, message: message.into(), for_now: true, after: None, is_wordless: false }
    }

    /// Sets the pause that the registry asks for.
    pub(crate) fn after(self, after: Option<Duration>) -> Self {
        Self { after, ..self }
    }

    /// Marks a failure without words of the registry, because the answer to `HEAD` has no body.
    pub(crate) fn without_words(self, is_wordless: bool) -> Self {
        Self { is_wordless, ..self }
    }

    /// Returns true if a `GET` of the same URL may return words.
    pub(crate) fn is_wordless(&self) -> bool {
        self.is_wordless
    }

    /// Returns the pause that the registry asks for before the next try.
    pub(crate) fn asked_pause(&self) -> Option<Duration> {
        self.after
    }

    /// Returns the kind of the failure.
    pub fn fault(&self) -> Fault {
        self.fault
    }

    /// Returns the kind of the failure as a word: `PullFailed`, `PushFailed`, `Unauthorized` or `DigestMismatch`.
    pub fn reason(&self) -> &'static str {
        match self.fault {
            Fault::Pull => "PullFailed",
            Fault::Push => "PushFailed",
            Fault::Unauthorized => "Unauthorized",
            Fault::DigestMismatch => "DigestMismatch",
        }
    }

    /// Returns true if a later copy may succeed: all retries failed, but the cause may pass.
    pub fn is_for_now(&self) -> bool {
        self.for_now
    }
}
