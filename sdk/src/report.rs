//! Builds the answer of `progress`.

use core::time::Duration;

use crate::failure::millis;
use crate::{Proposal, wit};

/// The state of a target, and the reason of a failure.
pub use crate::wit::{Error, State};

/// The state that `progress` observed, and the next changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report(wit::Report);

impl Report {
    /// Reports that the target has not ended.
    #[must_use]
    pub fn processing() -> Self {
        Self::new(State::Processing)
    }

    /// Reports success. Report an observed success, never only a requested one.
    #[must_use]
    pub fn succeeded() -> Self {
        Self::new(State::Succeeded)
    }

    /// Reports a failure that another try would not cure.
    #[must_use]
    pub fn failed(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(State::Failed(wit::Error { reason: reason.into(), message: message.into() }))
    }

    /// Adds a proposal. The host stores the state and the extras durably before
    /// it makes a mutation.
    #[must_use]
    pub fn with(mut self, proposal: Proposal) -> Self {
        self.0.proposal = proposal.into();
        self
    }

    /// Sets the longest time until the next visit, while the target is
    /// processing.
    #[must_use]
    pub fn check_after(mut self, wait: Duration) -> Self {
        self.0.check_after_ms = Some(millis(wait));
        self
    }

    /// Returns the state of the target.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.0.state
    }

    /// Returns the proposal.
    #[must_use]
    pub fn proposal(&self) -> Proposal {
        Proposal(self.0.proposal.clone())
    }

    /// Returns the longest time until the next visit, if one is set.
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
