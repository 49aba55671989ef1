//! Progress of a job or a target as it is shown, and numbers of targets by progress.

use serde::Serialize;

/// Progress in the words of the API, and one more for what cannot be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum ShownProgress {
    /// Not started.
    #[default]
    Pending,
    /// Started, not ended.
    Processing,
    /// Ended well.
    Succeeded,
    /// Ended otherwise.
    Failed,
    /// Not told: the word is of another version, or the detail of a target cannot be read.
    Unknown,
}

impl ShownProgress {
    /// The progress that a stored word names; no word means that nothing has started.
    pub(crate) fn read(word: Option<&str>) -> Self {
        match word {
            None | Some("" | "Pending") => Self::Pending,
            Some("Processing") => Self::Processing,
            Some("Succeeded") => Self::Succeeded,
            Some("Failed") => Self::Failed,
            Some(_) => Self::Unknown,
        }
    }

    /// The word of the API.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Processing => "Processing",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Unknown => "Unknown",
        }
    }

    /// True once it never changes again.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// The more advanced of two accounts of one target; of two that are equally advanced, this one.
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

/// Numbers of targets by progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShownCounts {
    /// All.
    pub total: usize,
    /// Ended well.
    pub succeeded: usize,
    /// Ended otherwise.
    pub failed: usize,
    /// Started, not ended.
    pub in_flight: usize,
    /// Not started.
    pub pending: usize,
}

impl ShownCounts {
    /// The targets that have ended.
    pub fn ended(&self) -> usize {
        self.succeeded.saturating_add(self.failed)
    }

    /// The ended ones of all, as whole percent; 100 is said of all alone.
    pub fn percent(&self) -> usize {
        self.ended().saturating_mul(100).checked_div(self.total).unwrap_or(0).min(100)
    }

    /// `2 succeeded, 1 failed, 3 in flight, 4 pending`, without what there is none of.
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
