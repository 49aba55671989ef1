//! Takes what `progress` found and yields its answer. May not be an end without
//! saying which.

use core::time::Duration;

use crate::failure::millis;
use crate::{Proposal, wit};

/// How far a target is, and why it failed.
pub use crate::wit::{Error, State};

/// What `progress` found, and what to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report(wit::Report);

impl Report {
    /// Not at its end.
    #[must_use]
    pub fn processing() -> Self {
        Self::new(State::Processing)
    }

    /// Ended well: for what was seen, never for what was asked for.
    #[must_use]
    pub fn succeeded() -> Self {
        Self::new(State::Succeeded)
    }

    /// Ended badly, and trying again would not help.
    #[must_use]
    pub fn failed(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(State::Failed(wit::Error { reason: reason.into(), message: message.into() }))
    }

    /// Adds what to do next. State and extras are durable before a mutation is
    /// made.
    #[must_use]
    pub fn with(mut self, proposal: Proposal) -> Self {
        self.0.proposal = proposal.into();
        self
    }

    /// Sets the longest time until the next visit, while processing.
    #[must_use]
    pub fn check_after(mut self, wait: Duration) -> Self {
        self.0.check_after_ms = Some(millis(wait));
        self
    }

    /// How far the target is.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.0.state
    }

    /// What to do next.
    #[must_use]
    pub fn proposal(&self) -> Proposal {
        Proposal(self.0.proposal.clone())
    }

    /// The longest time until the next visit, where one is set.
    #[must_use]
    pub fn next_check(&self) -> Option<Duration> {
        self.0.check_after_ms.map(|ms| Duration::from_millis(ms.into()))
    }

    fn new(state: State) -> Self {
        Self(wit::Report { state, proposal: Proposal::new().into(), check_after_ms: None })
    }
}

impl From<Report> for wit::Report {
    fn from(report: Report) -> Self {
        report.0
    }
}
