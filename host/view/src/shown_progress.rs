//! The shown progress of a job or a target, and the numbers of targets in each progress.

use serde::Serialize;

/// The progress in the words of the API, and `Unknown`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum ShownProgress {
    /// The job or target has not started.
    #[default]
    Pending,
    /// The job or target has started and not ended.
    Processing,
    /// The job or target succeeded.
    Succeeded,
    /// The job or target failed.
    Failed,
    /// The progress is unknown, because its word belongs to another version or the detail of a target cannot be read.
    Unknown,
}

impl ShownProgress {
    /// Returns the progress that a stored word names. No word means that nothing has started.
    pub(crate) fn read(word: Option<&str>) -> Self {
        match word {
            None | Some("" | "Pending") => Self::Pending,
            Some("Processing") => Self::Processing,
            Some("Succeeded") => Self::Succeeded,
            Some("Failed") => Self::Failed,
            Some(_) => Self::Unknown,
        }
    }

    /// Returns the word of the API.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Processing => "Processing",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Unknown => "Unknown",
        }
    }

    /// Returns true if the progress never changes again.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// Returns the more advanced of two reports about one target. If both are equally advanced, returns this one.
    pub(crate) fn or_more_advanced(self, other: Self) -> Self {
        let rank = |progress| match progress {
            Self::Unknown => 0,
            Self::Pending => 1,
            Self::Processing => 2,
            Self::Succeeded | Self::Failed => 3,
        };
        if rank(other) > rank(self) { other } else { self }
    }
}

/// The numbers of targets in each progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShownCounts {
    /// The number of all targets.
    pub total: usize,
    /// The number of targets that succeeded.
    pub succeeded: usize,
    /// The number of targets that failed.
    pub failed: usize,
    /// The number of targets that have started and not ended.
    pub in_flight: usize,
    /// The number of targets that have not started.
    pub pending: usize,
}

impl ShownCounts {
    /// Returns the number of targets that have ended.
    pub fn ended(&self) -> usize {
        self.succeeded.saturating_add(self.failed)
    }

    /// Returns the percentage of targets that have ended, rounded down, so that 100 means all targets.
    pub fn percent(&self) -> usize {
        self.ended().saturating_mul(100).checked_div(self.total).unwrap_or(0).min(100)
    }

    /// Returns the numbers in words, such as `2 succeeded, 1 failed, 3 in flight, 4 pending`. It omits numbers that are 0.
    pub fn sentence(&self) -> String {
        let parts = [
            (self.succeeded, "succeeded"),
            (self.failed, "failed"),
            (self.in_flight, "in flight"),
            (self.pending, "pending"),
        ];
        let said: Vec<String> =
            parts.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}")).collect();
        if said.is_empty() { "no targets".to_owned() } else { said.join(", ") }
    }
}
