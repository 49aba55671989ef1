//! The state of a unit (a step of a JobFlow or a node of a DaemonJob), and the numbers of units in each state.

use ratatui::style::{Color, Modifier, Style};
use serde::Serialize;
use serde_json::Value;

/// The state of a unit in the words of the API, and `Unknown`. Source: docs/jobflow.md 2.4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum ShownState {
    /// The unit may not start yet.
    #[default]
    Waiting,
    /// The unit could start, but something blocks it.
    Blocked,
    /// The child of the unit exists without an active pod.
    Pending,
    /// The child of the unit runs.
    Running,
    /// An attempt failed, and the unit waits for the next attempt.
    Retrying,
    /// The unit succeeded.
    Succeed,
    /// The unit failed.
    Failed,
    /// The unit never runs.
    Omitted,
    /// The state is unknown, because its word belongs to another version or the entry could not be read.
    Unknown,
}

impl ShownState {
    /// All states, in the order in which users need to see them.
    pub const ALL: [Self; 9] = [
        Self::Failed,
        Self::Blocked,
        Self::Retrying,
        Self::Running,
        Self::Pending,
        Self::Unknown,
        Self::Waiting,
        Self::Succeed,
        Self::Omitted,
    ];

    /// Returns the state that a stored word names. No word means that the unit may not start yet.
    pub(crate) fn read(word: &str) -> Self {
        let known = Self::ALL.into_iter().find(|state| state.word() == word);
        known.unwrap_or(if word.is_empty() { Self::Waiting } else { Self::Unknown })
    }

    /// Returns the word of the API.
    pub fn word(self) -> &'static str {
        match self {
            Self::Waiting => "Waiting",
            Self::Blocked => "Blocked",
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Retrying => "Retrying",
            Self::Succeed => "Succeed",
            Self::Failed => "Failed",
            Self::Omitted => "Omitted",
            Self::Unknown => "Unknown",
        }
    }

    /// Returns the symbol of the state in a drawing, one column wide.
    pub fn symbol(self) -> char {
        match self {
            Self::Waiting => '○',
            Self::Blocked => '■',
            Self::Pending => '◔',
            Self::Running => '●',
            Self::Retrying => '↻',
            Self::Succeed => '✓',
            Self::Failed => '✗',
            Self::Omitted => '–',
            Self::Unknown => '?',
        }
    }

    /// Returns true if only a user can change the state.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeed | Self::Failed | Self::Omitted)
    }

    /// Returns true while a child of the unit may run, or will run without a user's action.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Pending | Self::Running | Self::Retrying)
    }

    /// Returns the index in [`Self::ALL`], by which units that need attention come first.
    pub(crate) fn rank(self) -> usize {
        Self::ALL.iter().position(|state| *state == self).unwrap_or(Self::ALL.len())
    }

    /// Returns the colour of the state on a terminal.
    pub(crate) fn style(self) -> Style {
        match self {
            Self::Blocked | Self::Retrying => Style::new().fg(Color::Yellow),
            Self::Running | Self::Pending => Style::new().fg(Color::Cyan),
            Self::Failed => Style::new().fg(Color::Red),
            Self::Succeed => Style::new().fg(Color::Green),
            Self::Omitted => Style::new().add_modifier(Modifier::DIM),
            Self::Waiting | Self::Unknown => Style::new(),
        }
    }
}

/// The numbers of units in each state, as in `status.counts`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UnitCounts {
    /// The number of all units.
    pub total: usize,
    /// The number of units that may not start yet.
    pub waiting: usize,
    /// The number of units that something blocks.
    pub blocked: usize,
    /// The number of units whose child has no active pod.
    pub pending: usize,
    /// The number of units whose child runs.
    pub running: usize,
    /// The number of units between two attempts.
    pub retrying: usize,
    /// The number of units that succeeded.
    pub succeeded: usize,
    /// The number of units that failed.
    pub failed: usize,
    /// The number of units that never run.
    pub omitted: usize,
}

impl UnitCounts {
    /// Returns the numbers in a status, or counts the units if the status has no numbers.
    pub(crate) fn new(counts: Option<&Value>, states: &[ShownState]) -> Self {
        let told = |name: &str| counts.and_then(|counts| counts.get(name)).and_then(Value::as_u64);
        let is_told = told("total").is_some();
        let number = |name: &str, state: ShownState| {
            if is_told {
                return told(name).and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
            }
            states.iter().filter(|other| **other == state).count()
        };
        let total = told("total").and_then(|count| usize::try_from(count).ok());
        Self {
            total: total.unwrap_or(states.len()),
            waiting: number("waiting", ShownState::Waiting),
            blocked: number("blocked", ShownState::Blocked),
            pending: number("pending", ShownState::Pending),
            running: number("running", ShownState::Running),
            retrying: number("retrying", ShownState::Retrying),
            succeeded: number("succeeded", ShownState::Succeed),
            failed: number("failed", ShownState::Failed),
            omitted: number("omitted", ShownState::Omitted),
        }
    }

    /// Returns the number of units that have ended or never run.
    pub fn ended(&self) -> usize {
        self.succeeded.saturating_add(self.failed).saturating_add(self.omitted)
    }

    /// Returns the percentage of units that have ended, rounded down, so that 100 means all units.
    pub fn percent(&self) -> usize {
        self.ended().saturating_mul(100).checked_div(self.total).unwrap_or(0).min(100)
    }

    /// Returns the numbers in words, such as `2 succeeded, 1 failed, 3 running, 4 waiting`. It omits numbers that are 0.
    pub fn sentence(&self) -> String {
        let parts = [
            (self.succeeded, "succeeded"),
            (self.failed, "failed"),
            (self.blocked, "blocked"),
            (self.retrying, "retrying"),
            (self.running, "running"),
            (self.pending, "pending"),
            (self.waiting, "waiting"),
            (self.omitted, "omitted"),
        ];
        let said: Vec<String> =
            parts.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}")).collect();
        if said.is_empty() { "nothing to run".to_owned() } else { said.join(", ") }
    }
}
