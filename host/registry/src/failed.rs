//! Why an image was not copied.
//!
//! May not hold a password, a token or the query of an address: words are made of methods, hosts, paths and causes.

use std::time::Duration;

/// Which rule of a copy was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The source does not yield what was asked of it.
    Pull,
    /// The target does not take what it was sent.
    Push,
    /// A registry wants other credentials.
    Unauthorized,
    /// Bytes are not those that their digest or size promises.
    DigestMismatch,
}

/// Why an image was not copied. What was copied before that stays at the target, and another copy skips it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{words}")]
pub struct CopyFailed {
    fault: Fault,
    words: String,
    for_now: bool,
    after: Option<Duration>,
    is_wordless: bool,
}

impl CopyFailed {
    /// Another try of the same would end the same.
    pub(crate) fn for_good(fault: Fault, words: impl Into<String>) -> Self {
        Self { fault, words: words.into(), for_now: false, after: None, is_wordless: false }
    }

    /// Another try is worth it: a connection that breaks, silence, an overload.
    pub(crate) fn for_now(fault: Fault, words: impl Into<String>) -> Self {
        Self { fault, words: words.into(), for_now: true, after: None, is_wordless: false }
    }

    /// With the time that the registry asks for.
    pub(crate) fn after(self, after: Option<Duration>) -> Self {
        Self { after, ..self }
    }

    /// With no words of the registry, for the answer to `HEAD` has none.
    pub(crate) fn without_words(self, is_wordless: bool) -> Self {
        Self { is_wordless, ..self }
    }

    /// Returns true if the same request by `GET` may be answered with words.
    pub(crate) fn is_wordless(&self) -> bool {
        self.is_wordless
    }

    /// The time that the registry asks for before another try.
    pub(crate) fn asked_pause(&self) -> Option<Duration> {
        self.after
    }

    /// Which rule was broken.
    pub fn fault(&self) -> Fault {
        self.fault
    }

    /// The same in one word: `PullFailed`, `PushFailed`, `Unauthorized` or `DigestMismatch`.
    pub fn reason(&self) -> &'static str {
        match self.fault {
            Fault::Pull => "PullFailed",
            Fault::Push => "PushFailed",
            Fault::Unauthorized => "Unauthorized",
            Fault::DigestMismatch => "DigestMismatch",
        }
    }

    /// Whether a copy that begins later may end well: the own tries did not suffice, and nothing is known to be wrong for good.
    pub fn is_for_now(&self) -> bool {
        self.for_now
    }
}
